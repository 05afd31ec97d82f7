//! One cache, one trace: how many hits, and how long its callers wait.

use std::collections::HashMap;

use crate::caches::Kind;
use crate::cost::{MEDIAN_MICROS, cost};

/// How long after a request the next one comes: at any time some twenty computations run.
const BETWEEN_MICROS: u64 = 500;

pub(crate) fn hit_ratio(kind: Kind, entries: usize, trace: &[u64]) -> f64 {
    let mut cache = kind.with(entries);
    let hits = trace.iter().filter(|key| cache.ask(**key, MEDIAN_MICROS as u64)).count();
    hits as f64 / trace.len() as f64
}

/// Returns the seconds that all callers wait together. A key takes the same time at each
/// computation, a log-normal one. A caller that asks for a key that is being computed waits for the
/// rest: a delayed hit.
pub(crate) fn waiting(kind: Kind, entries: usize, trace: &[u64], sigma: f64) -> f64 {
    let mut cache = kind.with(entries);
    let mut costs = HashMap::<u64, u64, foldhash::fast::FixedState>::default();
    let mut ready = HashMap::<u64, u64, foldhash::fast::FixedState>::default();
    let mut waited = 0;
    for (turn, key) in trace.iter().enumerate() {
        let now = turn as u64 * BETWEEN_MICROS;
        let cost = *costs.entry(*key).or_insert_with(|| cost(*key, sigma));
        if cache.ask(*key, cost) {
            waited += ready.get(key).map_or(0, |ready| ready.saturating_sub(now));
        } else {
            waited += cost;
            ready.insert(*key, now + cost);
        }
    }
    waited as f64 / 1e6
}
