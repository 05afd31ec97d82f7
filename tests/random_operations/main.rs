//! Random operations on a whole handle, against a sequential model of what must
//! hold. See below for how to run it.
#![allow(clippy::unwrap_used, reason = "a test, also in its helpers")]

mod answers;
mod case;
mod panics;
mod record;
mod running;
mod show;
mod shrink;
mod stage;
mod survey;
mod world;

use survey::Plan;

/// How many cases the suite runs.
const IN_SUITE: u64 = 10_000;

#[test]
fn a_handle_keeps_its_rules_under_random_operations() {
    let plan = Plan::from_environment(IN_SUITE);
    let survey = plan.run();
    println!("{survey}");
    assert!(survey.is_clean(), "{} rules are broken, see above", survey.broken_rules());
}
