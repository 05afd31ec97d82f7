//! A server whose clock is set while no connection breaks.

use std::time::Duration;

use tower_stampede::Health;
use tower_stampede::remote::Double;

use crate::kit::origin::*;
use crate::kit::remote::*;

/// Sets the clock, and returns how often six processes compute a key that ended before.
async fn computations_after(by: Duration, set: impl Fn(&Double, Duration)) -> usize {
    let double = Double::new();
    let processes = Process::several(6, &double).await;
    let origin = Origin::taking(10 * MS);
    processes[0].load(&origin).await;
    set(&double, by);
    // A while later: no process can know of it before it asks for the time.
    pass(5 * SECOND).await;
    processes[0].invalidate("k").await;
    all_have_run().await;
    let before = origin.calls();
    for process in &processes {
        process.load(&origin).await;
        assert_eq!(process.health(), Health::Up);
    }
    origin.calls() - before
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_makes_no_process_compute_what_another_has_computed() {
    for by in [3 * SECOND, 60 * MINUTE] {
        assert_eq!(computations_after(by, Double::set_clock_forward).await, 1, "{by:?} forward");
        assert_eq!(computations_after(by, Double::set_clock_back).await, 1, "{by:?} back");
    }
}
