//! A part of the report: how it was measured, its figures, its exhibits.

use maud::{Markup, html};

use super::super::{Axis, Content, Exhibit, Part, Role, Series};
use super::bars::Bars;
use super::lines::{HEIGHT_WITH_LABELS, Lines, title};
use super::look::{Look, Others, mark};
use super::{figures, number, tables};

pub(crate) fn section(part: &Part) -> Markup {
    let others = Others::of(part);
    html! {
        section id={ "part-" (part.name) } {
            h2 { (part.title) }
            @for note in &part.notes { p class="note" { (note) } }
            (source(part))
            (figures::tables(part))
            @for (n, exhibit) in part.exhibits.iter().enumerate() {
                figure id={ "exhibit-" (exhibit.id) } { (exhibit_inside(part, n, exhibit, &others)) }
            }
        }
    }
}

/// The exhibit that the page begins with.
pub(crate) fn hero(part: &Part, index: usize) -> Markup {
    html! {
        figure class="hero" { (exhibit_inside(part, index, &part.exhibits[index], &Others::of(part))) }
    }
}

/// The command that finds it again, when it ran, and on what.
fn source(part: &Part) -> Markup {
    html! {
        details class="source" {
            summary { code { (part.command) } " · " time datetime=(part.date) { (day(&part.date)) } }
            (machine(part))
            dl {
                dt { "Ended" } dd { time datetime=(part.date) { (part.date) } }
                @for (name, version) in &part.versions { dt { (name) } dd { (version) } }
            }
        }
    }
}

/// What a part was measured on.
pub(crate) fn machine(part: &Part) -> Markup {
    let machine = &part.machine;
    html! {
        dl data-under={ (part.name) "/machine" } {
            dt { "Processor" } dd {
                (machine.processor) ", "
                span data-at="cores" data-value=(machine.cores) { (machine.cores) }
                (if machine.cores == 1 { " core" } else { " cores" })
            }
            dt { "Memory" } dd {
                span data-at="memory_mib" data-value=(machine.memory_mib) data-unit="MiB" {
                    (number::short(machine.memory_mib as f64)) " MiB"
                }
            }
            dt { "System" } dd { (machine.system) }
            dt { "Compiler" } dd { (machine.rustc) }
        }
    }
}

/// `2026-11-21` of `2026-11-21T14:31:38Z`.
pub(crate) fn day(date: &str) -> &str {
    date.split_once('T').map_or(date, |(day, _)| day)
}

fn exhibit_inside(part: &Part, index: usize, exhibit: &Exhibit, others: &Others) -> Markup {
    let looks = others.looks(&exhibit.content);
    html! {
        h3 { (exhibit.title) }
        p class="caption" { (exhibit.caption) }
        div data-under={ (part.name) "/exhibits/" (index) "/content" } {
            @match &exhibit.content {
                Content::Lines { x, y, series } => (lines(exhibit, x, y, series, looks)),
                Content::Bars { value, categories, series } => {
                    (Bars::new(value, categories, series, looks).draw())
                    p class="axis-title across" { (title(value)) }
                },
                Content::Table { .. } => (tables::boxed(&exhibit.title, &tables::table(&exhibit.content))),
            }
            @if !matches!(exhibit.content, Content::Table { .. }) {
                details class="numbers" {
                    summary { "Numbers" }
                    (tables::boxed(&exhibit.title, &tables::table(&exhibit.content)))
                }
            }
        }
    }
}

fn lines(exhibit: &Exhibit, x: &Axis, y: &Axis, series: &[Series], looks: Vec<Look>) -> Markup {
    let legend = legend(series, &looks);
    let lines = Lines::new(x, y, series, looks);
    html! {
        (legend)
        p class="axis-title up" { (title(y)) }
        svg class="plot" role="img" aria-label=(exhibit.title) height=(HEIGHT_WITH_LABELS)
            style={ "--gutter:" (lines.gutter()) "px" } { (lines.inside()) }
        p class="axis-title across" { (title(x)) }
    }
}

fn legend(series: &[Series], looks: &[Look]) -> Markup {
    html! {
        ul class="legend" {
            @for (n, (series, look)) in series.iter().zip(looks).enumerate() {
                li {
                    svg class="swatch" width="36" height="12" aria-hidden="true" data-of=(n) {
                        path class={ "line " (look.class) } d="M0 6H36" {}
                        @if !series.steps && series.role != Role::Bound {
                            (mark(look, "18", "6", None, ""))
                        }
                    }
                    (series.name)
                    @if series.points.is_empty() { " (not measured)" }
                }
            }
        }
    }
}
