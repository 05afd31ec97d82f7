//! Figures in the README and in docs/ are those of `report/results.json`,
//! which `scripts/report` measures.
//!
//! People read the pages as source, too. So a page has its figures as plain text, in blocks:
//! `<!-- figures: NAME -->` and `<!-- figures: end -->`. `tests/report/figures.md` has the block of
//! the same name with a mark around each figure: `<!--hit.generic_to_moka_1-->1.26<!--/-->`. It is
//! given with as many digits as the author likes. `PART.date`, `PART.processor`, `PART.cores` and
//! `PART.rustc` say when and on what a part was measured.
//!
//! After a new report, `UPDATE_FIGURES=1 cargo test -p tower-stampede-tests --test report figures`
//! writes the new figures into `tests/report/figures.md` and into the pages.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::report::page::reasons;

const OPEN: &str = "<!--";
const CLOSE: &str = "<!--/-->";

const MARKED: &str = "tests/report/figures.md";
const BEGIN_BLOCK: &str = "<!-- figures: ";
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

/// The names of the figures that are beyond a limit.
fn missed() -> Vec<String> {
    let text = fs::read_to_string(root().join("report/results.json")).expect("a stored report");
    let report: Value = serde_json::from_str(&text).expect("the report is JSON");
    let parts = report.as_object().expect("the report has parts").values();
    let figures = parts.flat_map(|part| part["figures"].as_array().expect("a part has figures"));
    let is_missed = |figure: &&Value| {
        let value = figure["value"].as_f64().expect("a figure has a value");
        let limit = |end: &str| figure["bound"][end].as_f64();
        limit("at_least").is_some_and(|least| value < least)
            || limit("at_most").is_some_and(|most| value > most)
    };
    figures
        .filter(is_missed)
        .map(|figure| figure["id"].as_str().expect("a name").to_owned())
        .collect()
}

#[test]
fn each_goal_that_is_missed_has_a_sentence_why() {
    let without: Vec<_> = missed().into_iter().filter(|id| reasons::why(id).is_none()).collect();
    assert_eq!(without, [""; 0], "write them in benches/report/page/reasons.rs");
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The README, and every page of docs/ that is not in a folder.
fn pages() -> Vec<PathBuf> {
    let pages = fs::read_dir(root().join("docs")).expect("there are docs");
    let pages = pages.map(|page| page.expect("a page can be read").path());
    let mut pages: Vec<_> =
        pages.filter(|page| page.extension().is_some_and(|end| end == "md")).collect();
    pages.push(root().join("README.md"));
    pages.sort();
    pages
}

/// A text in pieces: `(None, text)` outside of blocks, with their marks, and `(Some(name), block)`.
fn pieces(text: &str) -> Vec<(Option<&str>, &str)> {
    let (mut pieces, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(BEGIN_BLOCK) {
        let (name, below) =
            rest[at + BEGIN_BLOCK.len()..].split_once(" -->").expect("a whole mark");
        let end = below.find(END_BLOCK).unwrap_or_else(|| panic!("the block {name} has no end"));
        pieces.push((None, &rest[..rest.len() - below.len()]));
        pieces.push((Some(name), &below[..end]));
        pieces.push((None, END_BLOCK));
        rest = &below[end + END_BLOCK.len()..];
    }
    pieces.push((None, rest));
    pieces
}

/// The blocks of [`MARKED`] without their marks, by name.
fn plain_blocks(marked: &str) -> BTreeMap<&str, String> {
    let blocks = pieces(marked).into_iter();
    blocks.filter_map(|(name, block)| Some((name?, without_marks(block)))).collect()
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

/// Puts the blocks into a page, and says which ones were not as they are there.
fn fill(page: &str, blocks: &BTreeMap<&str, String>) -> (String, Vec<String>) {
    let (mut new, mut wrong) = (String::new(), Vec::new());
    for (name, piece) in pieces(page) {
        let fresh = name.map(|name| blocks.get(name).ok_or(name));
        match fresh {
            Some(Err(name)) => wrong.push(format!("{name}: {MARKED} has no such block")),
            Some(Ok(fresh)) if fresh != piece => {
                wrong.push(format!("{}: differs from {MARKED}", name.expect("a block has a name")));
                new.push_str(fresh);
                continue;
            }
            _ => {}
        }
        new.push_str(piece);
    }
    (new, wrong)
}

#[test]
fn every_quoted_figure_is_in_the_stored_report() {
    let update = std::env::var_os("UPDATE_FIGURES").is_some();
    let write = |path: &Path, old: &str, new: &str| {
        if update && new != old {
            fs::write(path, new).expect("a text can be written");
        }
    };
    let path = root().join(MARKED);
    let old = read(&path);
    let (marked, mut wrong) = renew(&old, &results());
    write(&path, &old, &marked);

    let blocks = plain_blocks(&marked);
    let mut unused: Vec<_> = blocks.keys().copied().collect();
    for path in pages() {
        let page = read(&path);
        let (new, of_page) = fill(&page, &blocks);
        write(&path, &page, &new);
        wrong.extend(of_page.into_iter().map(|line| format!("{}: {line}", path.display())));
        unused.retain(|unused| pieces(&page).iter().all(|(name, _)| *name != Some(unused)));
        assert!(!page.contains(CLOSE), "{}: a figure with marks", path.display());
    }
    assert_eq!(unused, [""; 0], "blocks of {MARKED} that no page has");
    let missing = |line: &String| line.contains("not in the report") || line.contains("no such");
    let missing = wrong.iter().any(missing);
    assert!(wrong.is_empty() || update && !missing, "{}", wrong.join("\n"));
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

/// A measured number outside of the blocks would not be compared.
#[test]
fn the_readme_has_measured_figures_only_in_its_block() {
    let text = read(&root().join("README.md"));
    let outside = pieces(&text).into_iter().filter(|(name, _)| name.is_none());
    let outside: String = outside.map(|(_, piece)| piece).collect();
    assert_eq!(unmarked(&outside), [""; 0], "write these into {MARKED}");

    let marked = read(&root().join(MARKED));
    let block = pieces(&marked).into_iter().find(|(name, _)| *name == Some("readme"));
    let (_, block) = block.expect("the README has a block");
    assert_eq!(unmarked(block), [""; 0], "give these figures their marks");
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
fn a_block_that_differs_is_written_and_one_without_a_source_is_named() {
    let marked = "<!-- figures: a -->\n<!--a.b-->12<!--/--> ms\n<!-- figures: end -->\n";
    let blocks = plain_blocks(marked);
    let page = "1\n<!-- figures: a -->\n11 ms\n<!-- figures: end -->\n2";
    let (new, wrong) = fill(page, &blocks);
    assert_eq!(new, "1\n<!-- figures: a -->\n12 ms\n<!-- figures: end -->\n2");
    assert_eq!(wrong.len(), 1);
    assert_eq!(fill(&new, &blocks), (new.clone(), vec![]));
    let (same, wrong) = fill("<!-- figures: b -->\n1\n<!-- figures: end -->", &blocks);
    assert_eq!(same, "<!-- figures: b -->\n1\n<!-- figures: end -->");
    assert_eq!(wrong, ["b: tests/report/figures.md has no such block"]);
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
