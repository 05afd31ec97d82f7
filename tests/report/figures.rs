//! Figures in the README and in docs/ are those of `report/results.json`,
//! which `scripts/report` measures.
//!
//! A figure stands between two comments, which the rendered text does not
//! show: `<!--hit.generic_to_moka_1-->1.26<!--/-->`. It is given with as many
//! digits as the author likes. `PART.date`, `PART.processor`, `PART.cores` and
//! `PART.rustc` say when and on what a part was measured.
//!
//! People also read the README as source. So it has its figures in one block without
//! comments, and `tests/report/readme_figures.md` has the same block with them.
//!
//! After a new report, `UPDATE_FIGURES=1 cargo test -p tower-stampede-tests --test report figures` writes the
//! new figures into the texts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

const OPEN: &str = "<!--";
const CLOSE: &str = "<!--/-->";

const README_FIGURES: &str = "tests/report/readme_figures.md";
const BEGIN_BLOCK: &str = "<!-- figures: begin";
const END_BLOCK: &str = "<!-- figures: end -->";

/// What a text may quote: a number, or words.
enum Quotable {
    Number(f64),
    Text(String),
}

impl Quotable {
    /// With as many digits after the point as `like` has.
    fn write_like(&self, like: &str) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) => {
                let digits = like.split_once('.').map_or(0, |(_, digits)| digits.len());
                let plain = format!("{number:.digits$}");
                if like.contains(',') { with_thousands(&plain) } else { plain }
            }
        }
    }
}

fn with_thousands(plain: &str) -> String {
    let (whole, rest) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let mut grouped = String::new();
    for (at, digit) in whole.char_indices() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the repository")
}

fn results() -> BTreeMap<String, Quotable> {
    let text = fs::read_to_string(root().join("report/results.json")).expect("a stored report");
    let report: Value = serde_json::from_str(&text).expect("the report is JSON");
    let parts = report.as_object().expect("the report has parts");
    parts.values().flat_map(quotables).collect()
}

fn quotables(part: &Value) -> Vec<(String, Quotable)> {
    let figures = part["figures"].as_array().expect("a part has figures");
    let numbers = figures.iter().map(|figure| {
        let id = figure["id"].as_str().expect("a figure has a name");
        let value = figure["value"].as_f64().expect("a figure has a value");
        (id.to_owned(), Quotable::Number(value))
    });
    let name = part["name"].as_str().expect("a part has a name");
    let text = |what: &str, value: &Value| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        (format!("{name}.{what}"), Quotable::Text(text))
    };
    let day = part["date"].as_str().and_then(|date| date.get(..10)).expect("a part has a date");
    let machine = &part["machine"];
    let about = [
        text("date", &Value::from(day)),
        text("processor", &machine["processor"]),
        text("cores", &machine["cores"]),
        text("rustc", &machine["rustc"]),
    ];
    numbers.chain(about).collect()
}

/// The README's figures with their comments, and every page of docs/.
fn texts() -> Vec<PathBuf> {
    let pages = fs::read_dir(root().join("docs")).expect("there are docs");
    let pages = pages.map(|page| page.expect("a page can be read").path());
    let mut texts: Vec<_> =
        pages.filter(|page| page.extension().is_some_and(|end| end == "md")).collect();
    texts.push(root().join(README_FIGURES));
    texts.sort();
    texts
}

/// Rewrites every figure of `text`, and says which ones were not as they are
/// in the report.
fn renew(text: &str, results: &BTreeMap<String, Quotable>) -> (String, Vec<String>) {
    let (mut new, mut wrong, mut rest) = (String::new(), Vec::new(), text);
    while let Some(end) = rest.find(CLOSE) {
        let (before, after) = rest.split_at(end);
        let open = before.rfind(OPEN).expect("a figure that ends has begun");
        let (id, old) = before[open + OPEN.len()..].split_once("-->").expect("a whole comment");
        let fresh = match results.get(id) {
            Some(quotable) => quotable.write_like(old),
            None => "not in the report".into(),
        };
        if fresh != old {
            wrong.push(format!("{id}: {old}, in the report {fresh}"));
        }
        new.push_str(&before[..open]);
        new.push_str(&format!("{OPEN}{id}-->{fresh}{CLOSE}"));
        rest = &after[CLOSE.len()..];
    }
    (new + rest, wrong)
}

#[test]
fn every_quoted_figure_is_in_the_stored_report() {
    let results = results();
    let update = std::env::var_os("UPDATE_FIGURES").is_some();
    let mut wrong = Vec::new();
    for path in texts() {
        let text = fs::read_to_string(&path).expect("a text can be read");
        let (new, of_text) = renew(&text, &results);
        if update && new != text {
            fs::write(&path, new).expect("a text can be written");
        }
        wrong.extend(of_text.into_iter().map(|line| format!("{}: {line}", path.display())));
    }
    wrong.extend(readme_block(&results, update));
    let missing = wrong.iter().any(|line| line.ends_with("not in the report"));
    assert!(wrong.is_empty() || update && !missing, "{}", wrong.join("\n"));
}

/// The README in three parts: up to the block of figures, the block, and the rest.
fn readme_parts(text: &str) -> [&str; 3] {
    let begin = text.find(BEGIN_BLOCK).expect("the README has a block of figures");
    let begin =
        begin + text[begin..].find('\n').expect("the block begins on a line of its own") + 1;
    let end = text.find(END_BLOCK).expect("the block of figures ends");
    [&text[..begin], &text[begin..end], &text[end..]]
}

/// Compares the README's block with its figures in the report, and writes it if told so.
fn readme_block(results: &BTreeMap<String, Quotable>, update: bool) -> Option<String> {
    let path = root().join("README.md");
    let text = fs::read_to_string(&path).expect("the README can be read");
    let marked = fs::read_to_string(root().join(README_FIGURES)).expect("there are figures");
    let fresh = format!("\n{}\n", without_marks(&renew(&marked, results).0));
    let [before, block, after] = readme_parts(&text);
    if block == fresh {
        return None;
    }
    if update {
        fs::write(&path, [before, &fresh, after].concat()).expect("the README can be written");
    }
    Some(format!("README.md: the block of figures differs from {README_FIGURES}:\n{fresh}"))
}

/// The text without the comments around each figure.
fn without_marks(text: &str) -> String {
    let (marked, last) = text.rsplit_once(CLOSE).unwrap_or(("", text));
    let plain = marked.split(CLOSE).map(|piece| {
        let (before, figure) = piece.rsplit_once(OPEN).unwrap_or((piece, ""));
        before.to_owned() + figure.split_once("-->").map_or("", |(_, figure)| figure)
    });
    plain.chain([last.to_owned()]).collect()
}

/// A measured number without a mark would not be compared.
#[test]
fn the_readme_has_measured_figures_only_in_its_block() {
    let text = fs::read_to_string(root().join("README.md")).expect("a text can be read");
    let [before, _, after] = readme_parts(&text);
    assert_eq!(unmarked(before), [""; 0], "write these into {README_FIGURES}");
    assert_eq!(unmarked(after), [""; 0], "write these into {README_FIGURES}");
    assert!(!text.contains(CLOSE), "the README has a figure with comments");

    let marked = fs::read_to_string(root().join(README_FIGURES)).expect("there are figures");
    assert_eq!(unmarked(&marked), [""; 0], "give these figures their comments");
}

/// The lines outside of code that have a measured number without a mark.
fn unmarked(text: &str) -> Vec<&str> {
    let mut in_code = false;
    let mut unmarked = Vec::new();
    for line in text.lines() {
        in_code ^= line.starts_with("```");
        if !in_code && measured(&without_marked(line)) {
            unmarked.push(line);
        }
    }
    unmarked
}

/// The line with a word in place of each marked figure.
fn without_marked(line: &str) -> String {
    let (marked, last) = line.rsplit_once(CLOSE).unwrap_or(("", line));
    let outside = marked.split(CLOSE).map(|piece| piece.split(OPEN).next().unwrap_or_default());
    outside.chain([last]).collect::<Vec<_>>().join("marked")
}

/// Whether a number has a unit that only measuring gives. Seconds and sizes
/// are settings as well, and are left to the eye.
fn measured(line: &str) -> bool {
    const UNITS: [&str; 9] =
        ["ms", "µs", "ns", "×", "%", "times", "allocations", "requests/s", "requests a second"];
    let has_unit = |after: &str| {
        let mut units = UNITS.iter().filter_map(|unit| after.trim_start().strip_prefix(unit));
        units.any(|more| !more.starts_with(char::is_alphanumeric))
    };
    let is_of_number = |c: char| c.is_ascii_digit() || ".,".contains(c);
    // A digit inside of a word, as in `p50`, begins no number.
    let ends = |c: char| c.is_whitespace() || "(|*~".contains(c);
    let words = std::iter::once(line).chain(line.match_indices(ends).map(|(at, _)| &line[at..]));
    words.map(|rest| rest.trim_start_matches(ends)).any(|rest| {
        let after = rest.trim_start_matches(is_of_number);
        rest.starts_with(|first: char| first.is_ascii_digit()) && has_unit(after)
    })
}

/// A comment at the beginning of a line would make the rest of it no text.
#[test]
fn no_figure_begins_a_line() {
    for path in texts() {
        let text = fs::read_to_string(&path).expect("a text can be read");
        let first = text.lines().find(|line| line.starts_with(OPEN) && line.contains(CLOSE));
        assert_eq!(first, None, "{}", path.display());
    }
}

#[test]
fn a_figure_that_differs_is_named_and_one_that_rounds_alike_is_not() {
    let results = BTreeMap::from([("a.b".to_owned(), Quotable::Number(1234.256))]);
    let (new, wrong) = renew("say <!--a.b-->1,234.26<!--/--> and", &results);
    assert_eq!((new.as_str(), wrong.len()), ("say <!--a.b-->1,234.26<!--/--> and", 0));
    let (new, wrong) = renew("say <!--a.b-->1233<!--/-->", &results);
    assert_eq!(new, "say <!--a.b-->1234<!--/-->");
    assert_eq!(wrong, ["a.b: 1233, in the report 1234"]);
    let (_, wrong) = renew("say <!--a.c-->1<!--/-->", &results);
    assert_eq!(wrong, ["a.c: 1, in the report not in the report"]);
}

#[test]
fn a_text_without_marks_has_its_figures_and_its_other_comments() {
    let text = "<!-- a --> say <!--a.b-->1.2<!--/--> of <!--a.c-->3<!--/-->, <!-- b --> or 4";
    assert_eq!(without_marks(text), "<!-- a --> say 1.2 of 3, <!-- b --> or 4");
}

#[test]
fn a_number_with_a_unit_is_measured_and_one_between_marks_is_not() {
    assert!(measured("takes 3 ms each"));
    assert!(measured("(0.3 ms)"));
    assert!(measured("3ms"));
    assert!(measured("| 1.3× |"));
    assert!(measured("5% less"));
    assert!(measured("1,234 requests a second"));
    assert!(!measured("p50 marked ms"));
    assert!(!measured("Rust 1.88 or newer, 30 s, 1 MiB, 2 msgs"));
    assert!(!measured(&without_marked("takes <!--a.b-->3<!--/--> ms each")));
    assert!(measured(&without_marked("<!--a.b-->3<!--/--> ms, and 4 ms")));
}
