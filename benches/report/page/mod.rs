//! Puts the parts of a report together: one page that needs nothing but
//! itself, and all numbers of it in one file.
//!
//! Charts are drawn here and not by a plotting library: those write colours
//! and pixels into their drawing, and these charts follow the reader's colour
//! scheme and the width of the window without a script.

mod bars;
mod figures;
pub(crate) mod front;
mod lines;
mod look;
pub(crate) mod number;
mod parts;
pub(crate) mod reasons;
pub(crate) mod scale;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde::{Serialize, Serializer};

use super::{Content, Part, Role};

/// Parts come in this order, all others after them by name.
const ORDER: [&str; 12] = [
    "load",
    "recovery",
    "recovery_http",
    "http_caches",
    "over_http",
    "hit",
    "hit_allocations",
    "hit_ratio",
    "peers",
    "wake",
    "scaling",
    "fleet",
];

/// Exhibits that tell most, the first one that is there.
const HEROES: [&str; 2] = ["load.hot_expiry.calls_over_time", "load.cold_herd.calls_over_time"];

const STYLE: &str = include_str!("style.css");

/// Reads `DIR/parts/*.json`, and of an earlier `DIR/results.json` the parts that
/// are not among them. Writes `DIR/results.json`, `DIR/report.html`,
/// and where there is a chart to begin with, `DIR/front.svg` and
/// `DIR/front-dark.svg`.
pub(crate) fn assemble(directory: &Path) -> io::Result<()> {
    let results = directory.join("results.json");
    let parts = read(&directory.join("parts"), &results)?;
    fs::write(results, serde_json::to_string_pretty(&InOrder(&parts))? + "\n")?;
    fs::write(directory.join("report.html"), page(&parts)?)?;
    if let Some((part, index)) = hero(&parts) {
        for (name, dark) in [("front.svg", false), ("front-dark.svg", true)] {
            fs::write(directory.join(name), front::drawing(part, index, dark))?;
        }
    }
    Ok(())
}

fn read(directory: &Path, earlier: &Path) -> io::Result<Vec<Part>> {
    let entries = fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
    let mut files: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    let mut parts = files.iter().map(|file| part(file)).collect::<io::Result<Vec<_>>>()?;
    for part in of_earlier(earlier)? {
        if parts.iter().all(|new| new.name != part.name) {
            parts.push(part);
        }
    }
    let place =
        |part: &Part| ORDER.iter().position(|name| *name == part.name).unwrap_or(ORDER.len());
    parts.sort_by(|a, b| place(a).cmp(&place(b)).then_with(|| a.name.cmp(&b.name)));
    Ok(parts)
}

fn of_earlier(results: &Path) -> io::Result<Vec<Part>> {
    if !results.exists() {
        return Ok(Vec::new());
    }
    let text = fs::read_to_string(results)?;
    let parts: BTreeMap<String, Part> = serde_json::from_str(&text)
        .map_err(|error| wrong(format!("{}: {error}", results.display())))?;
    Ok(parts.into_values().collect())
}

fn part(file: &Path) -> io::Result<Part> {
    let text = fs::read_to_string(file)?;
    serde_json::from_str(&text).map_err(|error| wrong(format!("{}: {error}", file.display())))
}

fn wrong(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The parts by name, in their order.
struct InOrder<'a>(&'a [Part]);

impl Serialize for InOrder<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|part| (&part.name, part)))
    }
}

/// Links, the README and the page's own check go by name.
fn check_names(parts: &[Part]) -> io::Result<()> {
    let figures = parts.iter().flat_map(|part| &part.figures).map(|figure| ("figure", &figure.id));
    let exhibits =
        parts.iter().flat_map(|part| &part.exhibits).map(|exhibit| ("exhibit", &exhibit.id));
    let names = parts.iter().map(|part| ("part", &part.name)).chain(figures).chain(exhibits);
    let mut known = BTreeSet::new();
    for (kind, name) in names {
        if !known.insert((kind, name)) {
            return Err(wrong(format!("two of {kind} {name}")));
        }
    }
    Ok(())
}

/// The whole page. Fails if a name is not unique.
pub(crate) fn page(parts: &[Part]) -> io::Result<String> {
    check_names(parts)?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "tower-stampede: load report" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                svg class="shapes" width="0" height="0" aria-hidden="true" { defs { (look::marks()) } }
                (navigation(parts))
                main {
                    (top(parts))
                    @for part in parts { (parts::section(part)) }
                }
            }
        }
    };
    Ok(page.into_string())
}

fn navigation(parts: &[Part]) -> Markup {
    html! {
        nav aria-label="Parts" {
            a class="home" href="#top" { "tower-stampede" }
            ul {
                @for part in parts { li {
                    a href={ "#part-" (part.name) } {
                        // A phone has room for one of them.
                        span class="long" { (part.title) }
                        span class="brief" { (part.name.replace('_', " ")) }
                    }
                    ul { @for exhibit in &part.exhibits {
                        li { a href={ "#exhibit-" (exhibit.id) } { (exhibit.title) } }
                    } }
                } }
            }
        }
    }
}

fn top(parts: &[Part]) -> Markup {
    html! {
        header id="top" {
            h1 { "When all clients ask at once" }
            p class="lede" {
                "What tower-stampede does under load, what it costs, and how others do beside it. "
                "Every number on this page comes from a command that is named with it."
            }
            @if let Some(first) = parts.first() {
                p class="measured" {
                    code { (first.command) } " · " (days(parts)) " · " (first.machine.processor) ", "
                    (first.machine.cores) " cores · " (first.machine.rustc)
                    @for (name, version) in &first.versions { " · " (name) " " (version) }
                }
                (conditions(parts))
            }
        }
        @if let Some((part, index)) = hero(parts) { (parts::hero(part, index)) }
        (figures::headlines(parts))
        (figures::verdict(parts))
    }
}

/// One day, or from which to which.
fn days(parts: &[Part]) -> String {
    let days: BTreeSet<&str> = parts.iter().map(|part| parts::day(&part.date)).collect();
    match (days.first(), days.last()) {
        (Some(first), Some(last)) if first != last => format!("{first} to {last}"),
        (first, _) => first.copied().unwrap_or_default().into(),
    }
}

/// Of all parts: machine, versions, command and date.
fn conditions(parts: &[Part]) -> Markup {
    let versions: BTreeSet<&(String, String)> =
        parts.iter().flat_map(|part| &part.versions).collect();
    let machines = parts.iter().any(|part| part.machine != parts[0].machine);
    html! {
        details class="source" {
            summary { "Machine, versions and commands" }
            (parts::machine(&parts[0]))
            @if machines { p { "Parts that were measured on another machine say so." } }
            dl {
                @for (name, version) in versions { dt { (name) } dd { (version) } }
                @for part in parts {
                    dt { a href={ "#part-" (part.name) } { (part.name) } }
                    dd { code { (part.command) } " · " time datetime=(part.date) { (part.date) } }
                }
            }
        }
    }
}

/// The chart that tells most: our lines, and those of the same load without our crate.
fn hero(parts: &[Part]) -> Option<(&Part, usize)> {
    let all = parts.iter();
    let all = all.flat_map(|part| (0..part.exhibits.len()).map(move |index| (part, index)));
    let compares = |&(part, index): &(&Part, usize)| match &part.exhibits[index].content {
        Content::Lines { series, .. } => [Role::Ours, Role::Without]
            .iter()
            .all(|role| series.iter().any(|line| line.role == *role)),
        _ => false,
    };
    let comparing: Vec<(&Part, usize)> = all.filter(compares).collect();
    let named = |id: &&str| comparing.iter().find(|(part, index)| part.exhibits[*index].id == **id);
    HEROES.iter().find_map(named).or(comparing.first()).copied()
}
