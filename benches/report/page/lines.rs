//! A chart of lines.
//!
//! Across it everything is placed by shares of its width, upwards by pixels:
//! so it fills the width that there is, and its text keeps its size on a phone.

use maud::{Markup, html};

use super::super::{Axis, Role, Scale, Series};
use super::look::{Look, mark};
use super::number;
use super::scale::{Direction, Ruler};

/// Of the plane that the lines are in, in pixels.
pub(crate) const HEIGHT: f64 = 280.0;
/// With the labels below it.
pub(crate) const HEIGHT_WITH_LABELS: f64 = HEIGHT + 26.0;
/// Lines are drawn on a plane so wide, which is then stretched.
const WIDTH: f64 = 1000.0;
/// Lines of so many points have a mark on each, longer ones on some.
const MARKED: usize = 24;
const MARKS_ON_LONG_LINES: usize = 8;

#[derive(Debug)]
pub(crate) struct Lines<'a> {
    x_axis: &'a Axis,
    y_axis: &'a Axis,
    series: &'a [Series],
    looks: Vec<Look>,
    x: Ruler,
    y: Ruler,
}

impl<'a> Lines<'a> {
    pub(crate) fn new(
        x_axis: &'a Axis,
        y_axis: &'a Axis,
        series: &'a [Series],
        looks: Vec<Look>,
    ) -> Self {
        let points = || series.iter().flat_map(|series| &series.points);
        let ends = series.iter().filter_map(end);
        let xs: Vec<f64> = points().map(|point| point.0).chain(ends).collect();
        let ys: Vec<f64> = points().map(|point| point.1).collect();
        let x = Ruler::new(x_axis.scale, Direction::Across, &xs);
        let y = Ruler::new(y_axis.scale, Direction::Up, &ys);
        Self { x_axis, y_axis, series, looks, x, y }
    }

    /// What the numbers beside the vertical axis need, in pixels.
    pub(crate) fn gutter(&self) -> usize {
        let longest = self.y.ticks().iter().map(|tick| number::tick(*tick).chars().count()).max();
        14 + 8 * longest.unwrap_or(1)
    }

    /// Everything inside of the `svg` that gives it its width.
    pub(crate) fn inside(&self) -> Markup {
        html! {
            (self.upwards())
            (self.across())
            svg class="plane" viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } width="100%" height=(HEIGHT)
                preserveAspectRatio="none" {
                @for n in self.back_to_front() { (self.line(n)) }
            }
            @for n in self.back_to_front() { (self.marks_of(n)) }
        }
    }

    /// Ours is drawn last, over all others.
    fn back_to_front(&self) -> Vec<usize> {
        let depth = |n: &usize| match self.series[*n].role {
            Role::Bound => 0,
            Role::Without => 1,
            Role::Other => 2,
            Role::Ours => 3,
        };
        let mut order: Vec<usize> = (0..self.series.len()).collect();
        order.sort_by_key(depth);
        order
    }

    fn upwards(&self) -> Markup {
        let (from, to, nothing) = self.y.ends();
        html! {
            g class="axis up" data-scale=(name(self.y.scale())) data-from=(from) data-to=(to)
                data-nothing=(nothing) {
                @for tick in self.y.ticks() {
                    @let y = format!("{:.2}", self.height(*tick).unwrap_or_default());
                    line class="grid" x1="0" x2="100%" y1=(y) y2=(y) {}
                    text class="tick" x="-8" y=(y) dy="0.35em" text-anchor="end" data-value=(tick) {
                        (number::tick(*tick))
                    }
                }
            }
        }
    }

    fn across(&self) -> Markup {
        let (from, to, nothing) = self.x.ends();
        let ticks = self.x.ticks();
        let crowded = ticks.iter().map(|tick| number::tick(*tick).len() + 2).sum::<usize>() > 34;
        html! {
            g class="axis across" data-scale=(name(self.x.scale())) data-from=(from) data-to=(to)
                data-nothing=(nothing) {
                line class="base" x1="0" x2="100%" y1=(HEIGHT) y2=(HEIGHT) {}
                @for (n, tick) in ticks.iter().enumerate() {
                    @let x = percent(self.x.place(*tick).unwrap_or_default());
                    line class="stub" x1=(x) x2=(x) y1=(HEIGHT) y2=(HEIGHT + 5.0) {}
                    // On a phone there is room for some.
                    text class=(if crowded && is_minor(*tick, n, ticks) { "tick minor" } else { "tick" })
                        x=(x) y=(HEIGHT + 20.0) text-anchor="middle" data-value=(tick) {
                        (label_across(self.x_axis.scale, *tick))
                    }
                }
            }
        }
    }

    fn height(&self, value: f64) -> Option<f64> {
        self.y.place(value).map(|place| (1.0 - place) * HEIGHT)
    }

    /// Of each point that has a place: its number and its place.
    fn places(&self, series: &Series) -> Vec<(usize, f64, f64)> {
        let place = |(n, point): (usize, &(f64, f64))| {
            Some((n, self.x.place(point.0)?, self.height(point.1)?))
        };
        series.points.iter().enumerate().filter_map(place).collect()
    }

    fn line(&self, n: usize) -> Markup {
        let series = &self.series[n];
        let places = self.places(series);
        let class = &self.looks[n].class;
        let mut path = path(&places, series.steps);
        if let Some(end) = end(series).and_then(|end| self.x.place(end)) {
            path += &format!("H{:.2}", end * WIDTH);
        }
        html! {
            @if series.steps && let Some((_, first, _)) = places.first() {
                path class={ "area " (class) }
                    d={ (path) "V" (HEIGHT) "H" (format!("{:.2}", first * WIDTH)) "Z" } {}
            }
            @if !places.is_empty() {
                path class={ "line " (class) } d=(path) data-series=(n) {}
            }
        }
    }

    fn marks_of(&self, n: usize) -> Markup {
        let series = &self.series[n];
        let places = self.places(series);
        let apart = if places.len() <= MARKED { 1 } else { places.len() / MARKS_ON_LONG_LINES };
        let has_marks = !series.steps && series.role != Role::Bound;
        // Those of two lines that run together do not cover each other.
        let first = n * apart / self.series.len().max(1);
        let marked = places.iter().skip(first).step_by(apart).filter(|_| has_marks);
        html! {
            @for (point, x, y) in marked {
                @let at = format!("series/{n}/points/{point}");
                (mark(&self.looks[n], &percent(*x), &format!("{y:.2}"), Some(&at),
                    &self.says(series, *point)))
            }
        }
    }

    fn says(&self, series: &Series, point: usize) -> String {
        let (x, y) = series.points[point];
        let (x, y) = (number::short(x), number::short(y));
        let (across, up) = (&self.x_axis.unit, &self.y_axis.unit);
        format!("{}: {y} {up} at {x} {across}", series.name)
    }
}

/// Where the last step ends: it is as long as the one before.
fn end(series: &Series) -> Option<f64> {
    match series.points.as_slice() {
        [.., before, last] if series.steps => Some(2.0 * last.0 - before.0),
        _ => None,
    }
}

fn path(places: &[(usize, f64, f64)], steps: bool) -> String {
    let mut path = String::new();
    for (n, (_, x, y)) in places.iter().enumerate() {
        let x = x * WIDTH;
        if n == 0 {
            path += &format!("M{x:.2} {y:.2}");
        } else if steps {
            path += &format!("H{x:.2}V{y:.2}");
        } else {
            path += &format!("L{x:.2} {y:.2}");
        }
    }
    path
}

/// Between two powers of ten, or each second one.
fn is_minor(tick: f64, n: usize, ticks: &[f64]) -> bool {
    let is_power = |tick: f64| tick > 0.0 && (tick.log10() - tick.log10().round()).abs() < 1e-9;
    let powers = ticks.iter().filter(|tick| is_power(**tick)).count();
    if powers > 1 && powers < ticks.len() - 1 { !is_power(tick) } else { n % 2 == 1 }
}

fn label_across(scale: Scale, tick: f64) -> String {
    match scale {
        Scale::Percentile if tick == 100.0 => "max".into(),
        // 99.999 is all of its digits.
        Scale::Percentile => tick.to_string(),
        _ => number::tick(tick),
    }
}

pub(crate) fn name(scale: Scale) -> &'static str {
    match scale {
        Scale::Linear => "linear",
        Scale::Log => "log",
        Scale::Percentile => "percentile",
    }
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.3}%", 100.0 * share)
}

/// `latency (ms, logarithmic)`.
pub(crate) fn title(axis: &Axis) -> String {
    let unit = (!axis.unit.is_empty()).then_some(axis.unit.as_str());
    let scale = (axis.scale == Scale::Log).then_some("logarithmic");
    let said: Vec<&str> = unit.into_iter().chain(scale).collect();
    if said.is_empty() {
        axis.label.clone()
    } else {
        format!("{} ({})", axis.label, said.join(", "))
    }
}
