//! What is counted during a run.

use crate::queue::{Moment, SECOND, seconds};
use crate::redis::Commands;
use crate::report::median;

/// What one run found.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Tally {
    /// Of each key, the calls of each refresh: what begins within half a
    /// lifetime of the first call belongs to it.
    pub(crate) refreshes: Vec<Vec<Refresh>>,
    /// Of each key, the moments of its calls.
    pub(crate) calls_at: Vec<Vec<Moment>>,
    /// Requests that had to wait, and for how long in all, in seconds. Of
    /// requests that come while another is on its way, the mean is counted.
    pub(crate) waited: f64,
    pub(crate) waited_for: f64,
    pub(crate) longest_wait: Moment,
    /// Of each value that other processes waited for, and of each of them, how
    /// long after the end of the computation its last waiter had the value.
    pub(crate) fan_out: Vec<Vec<Moment>>,
    pub(crate) fills: u64,
    pub(crate) messages: u64,
    pub(crate) timeouts: u64,
    /// Which leaders died, and when.
    pub(crate) killed: Vec<(u32, Moment)>,
    pub(crate) commands: Commands,
    /// Server CPU of each shard.
    pub(crate) busy: Vec<Moment>,
    pub(crate) events: u64,
}

/// The calls for one refresh of one key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Refresh {
    pub(crate) began: Moment,
    pub(crate) calls: u32,
    /// How long before the end of the old value, in seconds.
    pub(crate) lead: f64,
}

impl Tally {
    pub(crate) fn new(keys: u32) -> Self {
        let keys = keys as usize;
        Self {
            refreshes: vec![Vec::new(); keys],
            calls_at: vec![Vec::new(); keys],
            ..Self::default()
        }
    }

    pub(crate) fn called(&mut self, key: u32, now: Moment, lead: Moment, ttl: Moment) {
        self.calls_at[key as usize].push(now);
        let refreshes = &mut self.refreshes[key as usize];
        match refreshes.last_mut() {
            Some(last) if now < last.began + ttl / 2 => last.calls += 1,
            _ => refreshes.push(Refresh { began: now, calls: 1, lead: seconds(lead) }),
        }
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls_at.iter().map(Vec::len).sum()
    }

    /// The most calls of one key in any span of this length after `from`.
    pub(crate) fn most_calls_within(&self, span: Moment, from: Moment) -> usize {
        let of_key = |calls: &Vec<Moment>| {
            let calls: Vec<_> = calls.iter().filter(|at| **at >= from).collect();
            let from_each = (0..calls.len())
                .map(|first| calls.partition_point(|at| **at < calls[first] + span) - first);
            from_each.max().unwrap_or_default()
        };
        self.calls_at.iter().map(of_key).max().unwrap_or_default()
    }

    fn of_refreshes(&self, from: Moment) -> impl Iterator<Item = &Refresh> {
        self.refreshes.iter().flatten().filter(move |refresh| refresh.began >= from)
    }

    /// The mean over refreshes that began at `from` or later.
    pub(crate) fn calls_a_refresh(&self, from: Moment) -> f64 {
        mean(self.of_refreshes(from).map(|refresh| f64::from(refresh.calls)))
    }

    pub(crate) fn most_calls(&self, from: Moment) -> u32 {
        self.of_refreshes(from).map(|refresh| refresh.calls).max().unwrap_or_default()
    }

    pub(crate) fn mean_lead(&self, from: Moment) -> f64 {
        mean(self.of_refreshes(from).map(|refresh| refresh.lead))
    }

    /// After how many milliseconds so many percent of the processes that waited
    /// for a value have it: the median over values. Of all waits together it
    /// would be a number of the values that most waited for.
    pub(crate) fn fan_out_ms(&self, percent: usize) -> Option<f64> {
        let of_value = |waits: &Vec<Moment>| percentile_ms(waits, percent);
        let mut of_values: Vec<_> = self.fan_out.iter().filter_map(of_value).collect();
        (!of_values.is_empty()).then(|| median(&mut of_values))
    }

    /// Calls in each slice of a second and so many parts.
    pub(crate) fn calls_in_slices(&self, slices_a_second: u64, until: Moment) -> Vec<u32> {
        let slice = SECOND / slices_a_second;
        let mut slices = vec![0; usize::try_from(until / slice).expect("not so many") + 1];
        for at in self.calls_at.iter().flatten() {
            slices[usize::try_from(at / slice).expect("not so many")] += 1;
        }
        slices
    }

    /// The share of time in which the busiest shard was at work.
    pub(crate) fn busiest(&self, until: Moment) -> f64 {
        let most = self.busy.iter().max().copied().unwrap_or_default();
        seconds(most) / seconds(until)
    }

    pub(crate) fn server_seconds(&self) -> f64 {
        seconds(self.busy.iter().sum())
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0.0, 0.0), |(n, sum), value| (n + 1.0, sum + value));
    if count == 0.0 { 0.0 } else { sum / count }
}

/// The smallest value that so many percent of all do not exceed, in
/// milliseconds; none if there are none.
fn percentile_ms(values: &[Moment], percent: usize) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(rank).map(|value| seconds(*value) * 1e3)
}
