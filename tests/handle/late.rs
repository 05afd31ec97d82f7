//! Leaders and callers that are polled only after a long while, and computations that take
//! longer than `compute_timeout`.

use std::future::Future;
use std::time::Duration;

use tokio::time::advance;
use tower_stampede::{ErrorKind, Mode, Stampede};

use crate::kit::origin::*;

/// Polls a future once, and leaves it alone for so long.
async fn begin_and_leave<F: Future + Unpin>(future: &mut F, time: Duration) {
    assert!(futures_util::poll!(future).is_pending());
    all_have_run().await;
    advance(time).await;
}

#[tokio::test(start_paused = true)]
async fn what_a_leader_has_that_was_not_polled_in_time_goes_to_its_caller_and_is_not_stored() {
    let cache = settings().compute_timeout(5 * SECOND).build().unwrap();
    let origin = Origin::taking(SECOND);
    let mut leader = Box::pin(cache.get_or_compute_scoped("k", || origin.load()));
    begin_and_leave(&mut leader, 60 * MINUTE).await;
    assert_eq!(leader.await.unwrap(), 1);
    assert_eq!(cache.get("k").await, None, "its data is an hour old");
    assert_eq!(cache.stats().refused_fills, 1);
}

#[tokio::test(start_paused = true)]
async fn what_takes_longer_than_the_time_out_while_observing_is_not_stored() {
    for (takes, expected) in [(4 * SECOND, Some(1)), (60 * MINUTE, None)] {
        let cache: Stampede<u64> = settings().compute_timeout(5 * SECOND).build().unwrap();
        cache.set_mode(Mode::Observe);
        let origin = Origin::taking(takes);
        assert_eq!(cache.get_or_compute("k", origin.compute()).await.unwrap(), 1);
        cache.set_mode(Mode::On);
        assert_eq!(cache.get("k").await, expected, "after {takes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_comes_to_a_failure_late_is_served_no_value_that_has_ended_meanwhile() {
    for (late, expected) in [(SECOND, Ok(100)), (10 * MINUTE, Err(ErrorKind::Inner))] {
        let cache = settings().stale_if_error(3 * MINUTE).build().unwrap();
        let origin = Origin::new();
        origin.usually(Answer::Fail);
        cache.put("k", 100).await;
        pass(2 * MINUTE).await;
        let mut caller = Box::pin(cache.get_or_compute("k", origin.compute()));
        begin_and_leave(&mut caller, late).await;
        assert_eq!(caller.await.map_err(|error| error.kind()), expected, "{late:?} late");
        assert_eq!(origin.calls(), 1);
    }
}
