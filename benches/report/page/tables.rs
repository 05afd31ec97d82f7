//! The numbers of an exhibit. Each cell says where in `results.json` it is
//! from, and has the exact number beside the one that is read.

use maud::{Markup, html};

use super::super::{Axis, BarSeries, Cell, Content, Series};
use super::lines::title;
use super::number;

/// An attribute of some element around it begins the path: `data-under`.
pub(crate) fn cell(at: &str, value: f64) -> Markup {
    html! { td class="number" data-at=(at) data-value=(value) { (number::short(value)) } }
}

/// A table that is wider than the page is moved within its own box.
pub(crate) fn boxed(name: &str, table: &Markup) -> Markup {
    html! { div class="box" role="region" aria-label=(name) tabindex="0" { (table) } }
}

pub(crate) fn table(content: &Content) -> Markup {
    match content {
        Content::Lines { x, y, series } => of_lines(x, y, series),
        Content::Bars { value, categories, series } => of_bars(value, categories, series),
        Content::Table { columns, rows } => of_table(columns, rows),
    }
}

/// A point of a line, and where it is from.
struct At {
    x: f64,
    y: f64,
    /// How many of this line have the same x and come before it.
    nth: usize,
    series: usize,
    point: usize,
}

fn points(series: &[Series]) -> Vec<At> {
    let mut points = Vec::new();
    for (n, line) in series.iter().enumerate() {
        let mut nth = 0;
        for (point, &(x, y)) in line.points.iter().enumerate() {
            let again = point > 0 && line.points[point - 1].0.total_cmp(&x).is_eq();
            nth = if again { nth + 1 } else { 0 };
            points.push(At { x, y, nth, series: n, point });
        }
    }
    points
}

/// A row for each x, a column for each line.
fn of_lines(x: &Axis, y: &Axis, series: &[Series]) -> Markup {
    let mut points = points(series);
    points
        .sort_by(|a, b| a.x.total_cmp(&b.x).then(a.nth.cmp(&b.nth)).then(a.series.cmp(&b.series)));
    let rows = points.chunk_by(|a, b| a.x.total_cmp(&b.x).is_eq() && a.nth == b.nth);
    html! {
        table {
            caption { (title(y)) }
            thead { tr {
                th scope="col" class="number" { (title(x)) }
                @for line in series { th scope="col" class="number" { (line.name) } }
            } }
            tbody { @for row in rows { tr { (row_of_lines(row, series.len())) } } }
        }
    }
}

/// Points that have an x are of lines in their order; some have none there.
fn row_of_lines(row: &[At], lines: usize) -> Markup {
    let path = |at: &At, of: usize| format!("series/{}/points/{}/{of}", at.series, at.point);
    let from: Vec<String> = row.iter().map(|at| path(at, 0)).collect();
    html! {
        (cell(&from.join(" "), row[0].x))
        @for line in 0..lines {
            // Two points of one line at one place, out of order, stay together.
            @let here: Vec<&At> = row.iter().filter(|at| at.series == line).collect();
            @match here.as_slice() {
                [] => td {},
                [at] => (cell(&path(at, 1), at.y)),
                several => td class="number" {
                    @for at in several {
                        span data-at=(path(at, 1)) data-value=(at.y) { (number::short(at.y)) } " "
                    }
                },
            }
        }
    }
}

fn of_bars(value: &Axis, categories: &[String], series: &[BarSeries]) -> Markup {
    html! {
        table {
            caption { (title(value)) }
            thead { tr {
                th scope="col" {}
                @for bars in series { th scope="col" class="number" { (bars.name) } }
            } }
            tbody { @for (n, category) in categories.iter().enumerate() { tr {
                th scope="row" { (category) }
                @for (which, bars) in series.iter().enumerate() {
                    @match bars.values.get(n).copied().flatten() {
                        Some(value) => (cell(&format!("series/{which}/values/{n}"), value)),
                        None => td class="number absent" { "not measured" },
                    }
                }
            } } }
        }
    }
}

fn of_table(columns: &[String], rows: &[Vec<Cell>]) -> Markup {
    let is_number = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).any(|cell| matches!(cell, Cell::Number(_)))
    };
    html! {
        table {
            thead { tr { @for (n, column) in columns.iter().enumerate() {
                th scope="col" class=[is_number(n).then_some("number")] { (column) }
            } } }
            tbody { @for (r, row) in rows.iter().enumerate() { tr {
                @for (c, found) in row.iter().enumerate() {
                    @match found {
                        Cell::Number(value) => (cell(&format!("rows/{r}/{c}"), *value)),
                        Cell::Text(text) => td class=[is_number(c).then_some("number")] { (text) },
                    }
                }
            } } }
        }
    }
}
