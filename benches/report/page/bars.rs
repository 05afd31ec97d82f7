//! A chart of horizontal bars: a row for each, with its name beside it and its
//! value at its end, so that nobody has to look for a colour in a legend.

use maud::{Markup, html};

use super::super::{Axis, BarSeries};
use super::lines::{name, percent};
use super::look::Look;
use super::number;
use super::scale::{Direction, Ruler};

#[derive(Debug)]
pub(crate) struct Bars<'a> {
    axis: &'a Axis,
    categories: &'a [String],
    series: &'a [BarSeries],
    looks: Vec<Look>,
    ruler: Ruler,
}

impl<'a> Bars<'a> {
    pub(crate) fn new(
        axis: &'a Axis,
        categories: &'a [String],
        series: &'a [BarSeries],
        looks: Vec<Look>,
    ) -> Self {
        let values: Vec<f64> =
            series.iter().flat_map(|series| &series.values).flatten().copied().collect();
        let ruler = Ruler::new(axis.scale, Direction::Bars, &values);
        Self { axis, categories, series, looks, ruler }
    }

    pub(crate) fn draw(&self) -> Markup {
        let (from, to, nothing) = self.ruler.ends();
        html! {
            div class="bars" data-scale=(name(self.ruler.scale())) data-from=(from) data-to=(to)
                data-nothing=(nothing) {
                @for category in 0..self.categories.len() { (self.group(category)) }
                (self.marks_below())
            }
        }
    }

    /// A single series needs no names: its categories are the names.
    fn group(&self, category: usize) -> Markup {
        let alone = self.series.len() == 1;
        html! {
            @if !alone { p class="category" { (self.categories[category]) } }
            @for (n, series) in self.series.iter().enumerate() {
                div class="bar" {
                    span class="name" {
                        @if alone { (self.categories[category]) } @else { (series.name) }
                    }
                    (self.bar(n, category))
                }
            }
        }
    }

    fn bar(&self, n: usize, category: usize) -> Markup {
        let value = self.series[n].values.get(category).copied().flatten();
        let place = value.and_then(|value| self.ruler.place(value));
        let start = self.ruler.place(0.0).unwrap_or_default();
        html! {
            svg class="track" height="18" aria-hidden="true" {
                @match (value, place) {
                    (Some(value), Some(place)) => {
                        @let (left, right) = (start.min(place), start.max(place));
                        rect class={ "fill " (self.looks[n].class) } x=(percent(left)) y="2" height="14"
                            width=(percent(right - left)) data-bar={ "series/" (n) "/values/" (category) } {}
                        text class="value" x=(percent(right)) dx="6" y="9" dy="0.35em" {
                            (self.says(value))
                        }
                    },
                    _ => text class="value absent" x="0" dx="6" y="9" dy="0.35em" { "not measured" },
                }
            }
        }
    }

    fn says(&self, value: f64) -> String {
        let unit = &self.axis.unit;
        if unit.is_empty() { number::short(value) } else { number::with_unit(value, unit) }
    }

    fn marks_below(&self) -> Markup {
        let ticks = self.ruler.ticks();
        html! {
            div class="bar below" {
                span class="name" {}
                svg class="track" height="24" aria-hidden="true" {
                    line class="base" x1="0" x2="100%" y1="1" y2="1" {}
                    @for (n, tick) in ticks.iter().enumerate() {
                        @let x = percent(self.ruler.place(*tick).unwrap_or_default());
                        line class="stub" x1=(x) x2=(x) y1="1" y2="6" {}
                        text class=(if n % 2 == 1 { "tick minor" } else { "tick" }) x=(x) y="19"
                            text-anchor="middle" data-value=(tick) { (number::tick(*tick)) }
                    }
                }
            }
        }
    }
}
