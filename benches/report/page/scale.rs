//! Where a value stands on an axis, and which values are marked on it.

use super::super::Scale;

/// What an axis is for: decides where it begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Left to right under lines: from the first value to the last.
    Across,
    /// Upwards beside lines: from nothing, where there is a nothing.
    Up,
    /// Along bars: as upwards, and the smallest bar can be seen.
    Bars,
}

/// An axis over given values. Places are shares of its length, 0 to 1.
#[derive(Debug, Clone)]
pub(crate) struct Ruler {
    scale: Scale,
    /// Both as [`transform`] has them.
    from: f64,
    to: f64,
    /// The share at the beginning of a logarithmic axis where 0 stands.
    nothing: f64,
    ticks: Vec<f64>,
}

impl Ruler {
    /// Values that have no place on such a scale do not count.
    pub(crate) fn new(scale: Scale, direction: Direction, values: &[f64]) -> Self {
        let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        match scale {
            Scale::Linear => linear(direction, &finite),
            Scale::Log => logarithmic(direction, &finite),
            Scale::Percentile => percentile(&finite),
        }
    }

    /// None for a value that has no place.
    pub(crate) fn place(&self, value: f64) -> Option<f64> {
        if !value.is_finite() {
            return None;
        }
        let place = match self.scale {
            Scale::Log if value < 0.0 => return None,
            Scale::Log if value == 0.0 => 0.0,
            Scale::Percentile if !(0.0..=100.0).contains(&value) => return None,
            Scale::Percentile if value == 100.0 => 1.0,
            scale => {
                let share = (transform(scale, value) - self.from) / (self.to - self.from);
                self.nothing + (1.0 - self.nothing) * share
            }
        };
        place.is_finite().then_some(place)
    }

    pub(crate) fn ticks(&self) -> &[f64] {
        &self.ticks
    }

    pub(crate) fn scale(&self) -> Scale {
        self.scale
    }

    /// What a program needs to find every place again: the transformed ends,
    /// and the share that 0 has to itself.
    pub(crate) fn ends(&self) -> (f64, f64, f64) {
        (self.from, self.to, self.nothing)
    }
}

/// The value as it goes along the axis in equal steps.
fn transform(scale: Scale, value: f64) -> f64 {
    match scale {
        Scale::Linear => value,
        Scale::Log => value.log10(),
        Scale::Percentile => -(1.0 - value / 100.0).log10(),
    }
}

/// The smallest and the largest.
fn extent(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |extent, value| match extent {
        None => Some((value, value)),
        Some((low, high)) => Some((value.min(low), value.max(high))),
    })
}

fn linear(direction: Direction, values: &[f64]) -> Ruler {
    let (mut from, mut to) = extent(values.iter().copied()).unwrap_or((0.0, 1.0));
    if direction != Direction::Across || (from > 0.0 && from < to / 4.0) {
        (from, to) = (from.min(0.0), to.max(0.0));
    }
    if from == to {
        to = from + from.abs().max(1.0);
    }
    let step = round_step(from, to);
    if direction != Direction::Across {
        (from, to) = ((from / step).floor() * step, (to / step).ceil() * step);
    }
    let first = (from / step - 1e-9).ceil();
    let ticks = (0..12).map(|n| (first + f64::from(n)) * step).map(without_noise);
    let ticks = ticks.filter(|tick| *tick <= to + step * 1e-9).collect();
    Ruler { scale: Scale::Linear, from, to, nothing: 0.0, ticks }
}

/// 1, 2 or 5 times a power of ten, so that there are about five steps.
fn round_step(from: f64, to: f64) -> f64 {
    let rough = to / 5.0 - from / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0].map(|times| times * power);
    let step = step.into_iter().find(|step| *step >= rough * 0.8).unwrap_or(10.0 * power);
    if step.is_normal() { step } else { 1.0 }
}

/// Three tenths are 0.3 and not 0.30000000000000004.
fn without_noise(value: f64) -> f64 {
    format!("{value:.12e}").parse().unwrap_or(value)
}

fn logarithmic(direction: Direction, values: &[f64]) -> Ruler {
    let nothing = if values.contains(&0.0) { 0.1 } else { 0.0 };
    let (low, high) =
        extent(values.iter().copied().filter(|value| *value > 0.0)).unwrap_or((1.0, 10.0));
    let (mut from, mut to) = (marks_around(low).0, marks_around(high).1);
    if direction == Direction::Bars {
        // The end of the smallest bar is some way from the beginning.
        from = marks_around(low * 0.6).0;
    }
    if to - from < 0.3 {
        (from, to) = (from.floor(), to.floor() + 1.0);
    }
    let mut ticks = decades(from, to);
    if nothing > 0.0 {
        ticks.insert(0, 0.0);
    }
    Ruler { scale: Scale::Log, from, to, nothing, ticks }
}

/// The logarithms of the 1, 2 or 5 times a power of ten below and above.
fn marks_around(value: f64) -> (f64, f64) {
    let logarithm = value.log10();
    let power = logarithm.floor();
    let marks = [0.0, 2f64.log10(), 5f64.log10(), 1.0].map(|mark| power + mark);
    let below = marks.iter().rfind(|mark| **mark <= logarithm + 1e-9);
    let above = marks.iter().find(|mark| **mark >= logarithm - 1e-9);
    (*below.unwrap_or(&marks[0]), *above.unwrap_or(&marks[3]))
}

/// The powers of ten between two logarithms, and what lies between them where
/// they are few.
fn decades(from: f64, to: f64) -> Vec<f64> {
    let (first, last) = (from.floor() as i32, to.ceil() as i32);
    let mantissas: &[f64] = if to - from < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let stride = usize::try_from((last - first) / 7 + 1).unwrap_or(1);
    let powers = (first..=last).step_by(stride);
    let ticks =
        powers.flat_map(|power| mantissas.iter().map(move |times| times * 10f64.powi(power)));
    let within = |tick: &f64| (from - 1e-9..=to + 1e-9).contains(&tick.log10());
    ticks.map(without_noise).filter(within).collect()
}

/// Where the largest of all stands behind the last percentile.
const LARGEST: f64 = 0.7;

fn percentile(values: &[f64]) -> Ruler {
    let scale = Scale::Percentile;
    let (low, high) = extent(values.iter().copied().filter(|value| (0.0..100.0).contains(value)))
        .unwrap_or((50.0, 99.9));
    let (from, mut to) = (transform(scale, low), transform(scale, high));
    if to - from < 0.1 {
        to = from + 1.0;
    }
    let ticks = [0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999].into_iter();
    let within = |tick: &f64| (from - 1e-9..=to + 1e-9).contains(&transform(scale, *tick));
    let mut ticks: Vec<f64> = ticks.filter(within).collect();
    if values.contains(&100.0) {
        to += LARGEST;
        ticks.push(100.0);
    }
    Ruler { scale, from, to, nothing: 0.0, ticks }
}
