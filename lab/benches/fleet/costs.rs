//! What things cost: as the bench `scaling` measured it, or assumed.

use std::fs;
use std::path::Path;

use crate::queue::{MICROSECOND, Moment};
use crate::report::Part;

/// Unit costs, in nanoseconds.
#[derive(Debug, Clone)]
pub(crate) struct Costs {
    /// Server CPU by kind of command.
    pub(crate) get: Moment,
    pub(crate) acquire: Moment,
    pub(crate) locked: Moment,
    pub(crate) fill: Moment,
    pub(crate) publish: Moment,
    /// From a process to a shard, or back.
    pub(crate) one_way: Moment,
    /// Between the reply and the value in a waiter's hand.
    pub(crate) hand_over: Moment,
    /// What each of the waiters in a process adds to that.
    pub(crate) wake: Moment,
}

/// Name of the figure, factor to nanoseconds, and the value that is assumed
/// where no run has measured it.
const INPUTS: [(&str, f64, f64); 8] = [
    ("redis_get_us", 1e3, 2.0),
    ("redis_acquire_us", 1e3, 10.0),
    ("redis_locked_us", 1e3, 10.0),
    ("redis_fill_us", 1e3, 12.0),
    ("redis_publish_us_per_inbox", 1e3, 4.0),
    ("remote_round_trip_us", 1e3, 100.0),
    ("fill_to_waiter_us", 1e3, 370.0),
    ("wake_per_waiter_ns", 1.0, 500.0),
];

impl Costs {
    /// Takes what `DIR/parts/scaling.json` has, and assumes the rest. Returns
    /// a note about each of both.
    pub(crate) fn read(out: Option<&Path>) -> (Self, Vec<String>) {
        let part = out.and_then(read_part);
        let (mut values, mut measured, mut assumed) = (Vec::new(), Vec::new(), Vec::new());
        for (name, factor, otherwise) in INPUTS {
            let found = part.as_ref().and_then(|part| value_of(part, name));
            let value = found.unwrap_or(otherwise);
            let list = if found.is_some() { &mut measured } else { &mut assumed };
            list.push(format!("{name} {value:.2}"));
            values.push(value * factor);
        }
        (Self::from_values(&values), notes(part.as_ref(), &measured, &assumed))
    }

    fn from_values(values: &[f64]) -> Self {
        let [get, acquire, locked, fill, publish, round_trip, to_waiter, wake] =
            *values.first_chunk().expect("one value for each input");
        let one_way = ((round_trip - get) / 2.0).max(0.0);
        // On the way: the fill, the message, the look and its reply.
        let hand_over = to_waiter - 4.0 * one_way - fill - publish - get;
        Self {
            get: nanos(get),
            acquire: nanos(acquire),
            locked: nanos(locked),
            fill: nanos(fill),
            publish: nanos(publish),
            one_way: nanos(one_way),
            hand_over: nanos(hand_over),
            wake: nanos(wake),
        }
    }

    /// The same where a round trip takes a millisecond.
    pub(crate) fn on_a_slow_network(&self) -> Self {
        Self { one_way: 500 * MICROSECOND, ..self.clone() }
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "cut off at 0")]
fn nanos(value: f64) -> Moment {
    value.max(0.0).round() as Moment
}

fn read_part(directory: &Path) -> Option<Part> {
    let path = directory.join("parts").join("scaling.json");
    let text = fs::read_to_string(path).ok()?;
    match serde_json::from_str(&text) {
        Ok(part) => Some(part),
        Err(error) => {
            eprintln!("scaling.json is not understood: {error}");
            None
        }
    }
}

fn value_of(part: &Part, name: &str) -> Option<f64> {
    let id = format!("scaling.{name}");
    part.figures.iter().find(|figure| figure.id == id).map(|figure| figure.value)
}

fn notes(part: Option<&Part>, measured: &[String], assumed: &[String]) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(part) = part.filter(|_| !measured.is_empty()) {
        let list = measured.join(", ");
        notes.push(format!("Unit costs measured by the part scaling on {}: {list}.", part.date));
    }
    if !assumed.is_empty() {
        let list = assumed.join(", ");
        notes.push(format!("Unit costs ASSUMED, not measured: {list}."));
    }
    notes
}
