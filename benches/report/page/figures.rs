//! Single numbers, what they have to be, and whether they are.

use maud::{Markup, html};

use super::super::{Bound, Figure, Part};
use super::{number, reasons};

/// The figures that a reader should see first, in this order, as far as they
/// were measured.
const HEADLINES: &[&str] = &[
    "load.cold_herd.origin_calls",
    "load.cold_herd.ratio",
    "hit.instructions_generic_to_moka",
    "hit.instructions_http_to_floor",
    "over_http.web_server_to_axum",
    "wake.push.p50",
    "hit.generic_to_moka_1",
    "hit.http_to_floor_1",
    "scaling.fill_to_waiter_us",
    "scaling.wake_per_waiter_ns",
];
const MOST_HEADLINES: usize = 6;
const FEWEST_HEADLINES: usize = 4;
/// A part that has more shows its goals and what is missed, and folds the rest.
const MOST_AT_ONCE: usize = 10;

/// A figure, and where it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placed<'a> {
    pub(crate) figure: &'a Figure,
    part: &'a Part,
    index: usize,
}

impl Placed<'_> {
    fn under(&self) -> String {
        format!("{}/figures/{}", self.part.name, self.index)
    }
}

pub(crate) fn of(part: &Part) -> impl Iterator<Item = Placed<'_>> {
    part.figures.iter().enumerate().map(move |(index, figure)| Placed { figure, part, index })
}

pub(crate) fn headlines(parts: &[Part]) -> Markup {
    html! {
        ul class="headlines" {
            @for chosen in choose(parts) {
                li data-under=(chosen.under()) {
                    a href={ "#figure-" (chosen.figure.id) } {
                        strong data-at="value" data-value=(chosen.figure.value) data-unit=(chosen.figure.unit) {
                            (number::short(chosen.figure.value))
                            " " span class="unit" { (unit(chosen.figure)) }
                        }
                        span class="says" { (chosen.figure.says) }
                    }
                    (judged(chosen.figure))
                }
            }
        }
    }
}

fn unit(figure: &Figure) -> &str {
    if figure.unit.is_empty() { "×" } else { number::of_so_many(figure.value, &figure.unit) }
}

/// Those with a name in the list; where they are few, of each part the first
/// that has a bound.
fn choose(parts: &[Part]) -> Vec<Placed<'_>> {
    let all: Vec<Placed<'_>> = parts.iter().flat_map(of).collect();
    let named = HEADLINES.iter().filter_map(|id| all.iter().find(|placed| placed.figure.id == *id));
    let mut chosen: Vec<Placed<'_>> = named.copied().take(MOST_HEADLINES).collect();
    for part in parts {
        let bounded = of(part).find(|placed| {
            placed.figure.bound.is_some()
                && !chosen.iter().any(|known| known.figure.id == placed.figure.id)
        });
        if chosen.len() < FEWEST_HEADLINES {
            chosen.extend(bounded);
        }
    }
    chosen
}

/// How many goals are met, and each one that is not.
pub(crate) fn verdict(parts: &[Part]) -> Markup {
    let bounded = || parts.iter().flat_map(of).filter(|placed| placed.figure.bound.is_some());
    let missed: Vec<Placed<'_>> = bounded().filter(|placed| !placed.figure.is_met()).collect();
    let all = bounded().count();
    html! {
        @if all > 0 {
            p class="verdict" {
                (number::short((all - missed.len()) as f64)) " of " (number::short(all as f64))
                " bounds and goals are met."
                @if !missed.is_empty() { " Missed:" }
            }
        }
        @if !missed.is_empty() {
            ul class="missed" {
                @for placed in missed { li data-under=(placed.under()) {
                    a href={ "#figure-" (placed.figure.id) } { (placed.figure.says) } ": "
                    span data-at="value" data-value=(placed.figure.value) data-unit=(placed.figure.unit) {
                        (number::with_unit(placed.figure.value, &placed.figure.unit))
                    }
                    ", " (asked(placed.figure)) "."
                    @if let Some(why) = reasons::why(&placed.figure.id) { " " (why) }
                } }
            }
        }
    }
}

/// All of a part.
pub(crate) fn tables(part: &Part) -> Markup {
    let few = part.figures.len() <= MOST_AT_ONCE;
    let is_telling = |placed: &Placed<'_>| {
        let goal = placed.figure.bound.is_some_and(|bound| !bound.ends_the_run);
        few || goal || !placed.figure.is_met()
    };
    let (telling, others): (Vec<_>, Vec<_>) = of(part).partition(is_telling);
    let bounds = others.iter().filter(|placed| placed.figure.bound.is_some()).count();
    html! {
        (table(&telling))
        @if !others.is_empty() {
            details class="numbers" {
                summary {
                    (others.len()) " more figures"
                    @if bounds > 0 { ", among them " (bounds) " with a bound, all of them met" }
                }
                (table(&others))
            }
        }
    }
}

fn table(figures: &[Placed<'_>]) -> Markup {
    html! {
        @if !figures.is_empty() {
            table class="figures" {
                thead { tr {
                    th scope="col" { "Figure" }
                    th scope="col" class="number" { "Measured" }
                    th scope="col" { "Bound or goal" }
                } }
                tbody { @for placed in figures { (row(*placed)) } }
            }
        }
    }
}

fn row(placed: Placed<'_>) -> Markup {
    let figure = placed.figure;
    html! {
        tr id={ "figure-" (figure.id) } data-under=(placed.under()) {
            th scope="row" {
                (figure.says)
                span class="small" { (figure.statistic) " · " code { (figure.id) } }
            }
            td class="number" data-at="value" data-value=(figure.value) data-unit=(figure.unit) {
                (number::with_unit(figure.value, &figure.unit))
            }
            td { (judged(figure)) }
        }
    }
}

/// What it has to be, and a word and a sign for whether it is.
fn judged(figure: &Figure) -> Markup {
    html! {
        @if figure.bound.is_some() {
            span class="judged" {
                @if figure.is_met() {
                    span class="met" { "✓ met" }
                } @else {
                    span class="missed" { "✗ missed" }
                }
                " " (asked(figure))
            }
        } @else {
            span class="judged" { "no bound" }
        }
    }
}

fn asked(figure: &Figure) -> Markup {
    let Some(bound) = figure.bound else { return html! {} };
    let kind = if bound.ends_the_run { "bound" } else { "goal" };
    html! { span class="asked" { (kind) " " (limits(bound, &figure.unit)) } }
}

fn limits(bound: Bound, unit: &str) -> Markup {
    match (bound.at_least, bound.at_most) {
        (Some(least), Some(most)) if least == most => {
            html! { "exactly " (limit("bound/at_least bound/at_most", least, unit)) }
        }
        (Some(least), Some(most)) => html! {
            (limit("bound/at_least", least, "")) " to " (limit("bound/at_most", most, unit))
        },
        (Some(least), None) => html! { "≥ " (limit("bound/at_least", least, unit)) },
        (None, Some(most)) => html! { "≤ " (limit("bound/at_most", most, unit)) },
        (None, None) => html! {},
    }
}

fn limit(at: &str, value: f64, unit: &str) -> Markup {
    html! {
        span data-at=(at) data-value=(value) data-unit=(unit) {
            (number::short(value))
            @if !unit.is_empty() { " " (number::of_so_many(value, unit)) }
        }
    }
}
