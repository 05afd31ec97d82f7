//! The chart that the page begins with as a drawing of its own, for a README:
//! of a fixed size, with its colours written into it.

use maud::{Markup, PreEscaped, html};

use super::super::{Content, Exhibit, Part, Role, Series};
use super::STYLE;
use super::lines::{HEIGHT, Lines, title};
use super::look::{Look, Others, mark, marks};

const WIDTH: usize = 860;
const MARGIN: usize = 28;
/// Characters of the title that have room in a line.
const TITLE: usize = 72;

/// Of an exhibit with lines.
pub(crate) fn drawing(part: &Part, index: usize, dark: bool) -> String {
    let exhibit = &part.exhibits[index];
    let Content::Lines { x, y, series } = &exhibit.content else { return String::new() };
    let looks = Others::of(part).looks(&exhibit.content);
    let heading = heading(&exhibit.title);
    let (legend, below_legend) = legend(series, &looks, 52 + 26 * heading.len());
    let lines = Lines::new(x, y, series, looks);
    let left = MARGIN + lines.gutter();
    let top = below_legend + 46;
    let bottom = top + HEIGHT as usize;
    let drawing = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (WIDTH) " " (bottom + 66) }
            width=(WIDTH) height=(bottom + 66) role="img" aria-label=(exhibit.title) {
            style { (PreEscaped(style(dark))) }
            defs { (marks()) }
            rect class="paper" width="100%" height="100%" rx="10" {}
            (words(exhibit, &heading))
            (legend)
            text class="axis-title" x=(MARGIN) y=(top - 18) { (title(y)) }
            svg x=(left) y=(top) width=(WIDTH - left - MARGIN - 8) height=(HEIGHT) overflow="visible" {
                (lines.inside())
            }
            text class="axis-title" x=(WIDTH - MARGIN - 8) y=(bottom + 46) text-anchor="end" { (title(x)) }
        }
    };
    drawing.into_string() + "\n"
}

fn words(exhibit: &Exhibit, heading: &[String]) -> Markup {
    html! {
        title { (exhibit.title) }
        desc { (exhibit.caption) }
        @for (n, line) in heading.iter().enumerate() {
            text class="heading" x=(MARGIN) y=(46 + 26 * n) { (line) }
        }
    }
}

/// In lines that are not too long.
fn heading(title: &str) -> Vec<String> {
    let mut lines: Vec<String> = vec![String::new()];
    for word in title.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + word.chars().count() < TITLE => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

/// And where it ends.
fn legend(series: &[Series], looks: &[Look], top: usize) -> (Markup, usize) {
    let mut entries = Vec::new();
    let (mut x, mut y) = (MARGIN, top);
    for (series, look) in series.iter().zip(looks) {
        let width = 56 + 8 * series.name.chars().count();
        if x > MARGIN && x + width > WIDTH - MARGIN {
            (x, y) = (MARGIN, y + 24);
        }
        entries.push((series, look, x, y));
        x += width;
    }
    let drawn = html! {
        @for (series, look, x, y) in entries {
            path class={ "line " (look.class) } d={ "M" (x) " " (y) "h32" } {}
            @if !series.steps && series.role != Role::Bound {
                (mark(look, &(x + 16).to_string(), &y.to_string(), None, ""))
            }
            text class="entry" x=(x + 40) y=(y) dy="0.35em" { (series.name) }
        }
    };
    (drawn, y + 12)
}

/// The page's own style sheet has what charts need in a piece of its own. Not
/// everything that shows a README's picture knows variables.
fn style(dark: bool) -> String {
    let rules = between(STYLE, "/* charts */", "/* end of charts */");
    let colours = between(STYLE, if dark { "/* dark */" } else { "/* light */" }, "/* end */");
    let mut rules = rules.to_owned();
    for declaration in colours.split(';') {
        if let Some((name, colour)) = declaration.split_once(':') {
            rules = rules.replace(&format!("var({})", name.trim()), colour.trim());
        }
    }
    rules
}

fn between<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let rest = text.split_once(from).map_or("", |(_, rest)| rest);
    rest.split_once(to).map_or(rest, |(piece, _)| piece)
}
