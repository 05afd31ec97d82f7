//! Makes a failing case small: leaves out operations while it still breaks the same rule.

use crate::case::Case;
use crate::survey;

/// Bounds the time that one case takes.
const MOST_RUNS: usize = 400;

/// Returns the smallest case found that still breaks `rule`.
pub(crate) fn shrink(case: &Case, rule: &str) -> Case {
    let mut runs = 0;
    let mut fails = |case: &Case| {
        runs += 1;
        runs < MOST_RUNS
            && survey::run(case, false).violations.iter().any(|broken| broken.rule == rule)
    };
    let mut small = case.clone();
    let mut size = small.ops.len().div_ceil(2);
    while size > 0 {
        let mut from = 0;
        while from < small.ops.len() {
            let mut smaller = small.clone();
            let to = (from + size).min(smaller.ops.len());
            let pause: u64 = smaller.ops.drain(from..to).map(|op| op.pause).sum();
            // First with the time that those operations took, then without.
            if let Some(next) = smaller.ops.get_mut(from) {
                next.pause += pause;
            }
            if fails(&smaller) {
                small = smaller;
                continue;
            }
            if let Some(next) = smaller.ops.get_mut(from) {
                next.pause -= pause;
                if fails(&smaller) {
                    small = smaller;
                    continue;
                }
            }
            from += size;
        }
        size /= 2;
    }
    small
}
