//! A chart of horizontal bars: a row for each, with its name beside it and its
//! value at its end, so that no reader has to look for a colour in a legend.

use maud::{Markup, html};

use super::super::{Axis, BarSeries, Role};
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
                (self.legend())
                @for category in 0..self.categories.len() { (self.group(category)) }
                (self.marks_below())
            }
        }
    }

    /// A single series needs no names: its categories are the names. Bounds
    /// have no bars; they are lines across those of the others.
    fn group(&self, category: usize) -> Markup {
        let bars = || (0..self.series.len()).filter(|n| self.series[*n].role != Role::Bound);
        let alone = bars().count() == 1;
        html! {
            @if !alone { p class="category" { (self.categories[category]) } }
            @for n in bars() {
                div class="bar" {
                    span class="name" {
                        @if alone { (self.categories[category]) } @else { (self.series[n].name) }
                    }
                    (self.track(n, category))
                }
            }
        }
    }

    /// What was measured, and its place.
    fn placed(&self, n: usize, category: usize) -> Option<(f64, f64)> {
        let value = self.series[n].values.get(category).copied().flatten()?;
        Some((value, self.ruler.place(value)?))
    }

    fn track(&self, n: usize, category: usize) -> Markup {
        let limits: Vec<usize> = (0..self.series.len())
            .filter(|n| self.series[*n].role == Role::Bound && self.placed(*n, category).is_some())
            .collect();
        html! {
            svg class="track" height="18" aria-hidden="true" {
                @match self.placed(n, category) {
                    Some((value, place)) => (self.bar(n, category, value, place, &limits)),
                    None => text class="value absent" x="0" dx="6" y="9" dy="0.35em" { "not measured" },
                }
                @for limit in &limits {
                    @let x = self.placed(*limit, category).map_or(0.0, |(_, place)| place);
                    line class="limit halo" x1=(percent(x)) x2=(percent(x)) y1="2" y2="16" {}
                    line class="limit" x1=(percent(x)) x2=(percent(x)) y1="0" y2="18"
                        data-bar={ "series/" (limit) "/values/" (category) } {}
                }
            }
        }
    }

    /// Its value stands behind it, and behind the bounds on it.
    fn bar(&self, n: usize, category: usize, value: f64, place: f64, limits: &[usize]) -> Markup {
        let start = self.ruler.place(0.0).unwrap_or_default();
        let (left, right) = (start.min(place), start.max(place));
        let limits: Vec<(usize, f64, f64)> = limits
            .iter()
            .filter_map(|limit| self.placed(*limit, category).map(|(value, x)| (*limit, value, x)))
            .collect();
        let end = limits.iter().map(|(_, _, x)| *x).fold(right, f64::max);
        html! {
            rect class={ "fill " (self.looks[n].class) } x=(percent(left)) y="2" height="14"
                width=(percent(right - left)) data-bar={ "series/" (n) "/values/" (category) } {}
            text class="value" x=(percent(end)) dx="6" y="9" dy="0.35em" { (self.says(value)) }
            @for (limit, value, _) in &limits {
                title { (self.series[*limit].name) ": " (self.says(*value)) }
            }
        }
    }

    /// What the lines across the bars are.
    fn legend(&self) -> Markup {
        html! {
            @for series in self.series.iter().filter(|series| series.role == Role::Bound) {
                p class="limits" {
                    svg width="10" height="18" aria-hidden="true" {
                        line class="limit" x1="5" x2="5" y1="0" y2="18" {}
                    }
                    (series.name)
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
