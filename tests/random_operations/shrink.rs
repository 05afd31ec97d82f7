//! Makes a failing case small: leaves out operations while it still fails.

use crate::case::{Ask, Case, Op, Step};
use crate::stage;

/// Bounds the time that one case takes.
const MOST_RUNS: usize = 600;

/// Returns the smallest case found that still breaks `rule`.
pub(crate) fn shrink(case: &Case, rule: &str, mut begins: impl FnMut()) -> Case {
    let mut runs = 0;
    let mut fails = |case: &Case| {
        runs += 1;
        begins();
        runs < MOST_RUNS
            && stage::run(case, false).violations.iter().any(|violation| violation.rule == rule)
    };
    let mut small = case.clone();
    let mut size = small.ops.len().div_ceil(2);
    while size > 0 {
        let mut from = 0;
        while from < small.ops.len() {
            let mut smaller = small.clone();
            let to = (from + size).min(smaller.ops.len());
            drop(smaller.ops.drain(from..to));
            if fails(&smaller) {
                small = smaller;
            } else {
                from += size;
            }
        }
        size /= 2;
    }
    for op in 0..small.ops.len() {
        let mut step = 0;
        while let Some(smaller) = without_step(&small, op, step) {
            if fails(&smaller) {
                small = smaller;
            } else {
                step += 1;
            }
        }
    }
    small
}

/// Returns the case without one step of a computation, if there is one.
fn without_step(case: &Case, op: usize, step: usize) -> Option<Case> {
    let Op::Ask(caller, ask) = &case.ops[op] else { return None };
    if step >= ask.steps.len() {
        return None;
    }
    let steps: Vec<Step> =
        ask.steps.iter().enumerate().filter(|(n, _)| *n != step).map(|(_, s)| s.clone()).collect();
    let smaller = Ask { steps, ..Ask::clone(ask) };
    let mut case = case.clone();
    case.ops[op] = Op::Ask(*caller, smaller.into());
    Some(case)
}
