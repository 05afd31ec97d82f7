//! Leaders that come late: their results are stored only where no other process
//! has superseded them.

use tower_stampede::remote::{Double, RemoteErrorKind, RemoteOp, RemoteSettings};

use crate::kit::origin::*;
use crate::kit::remote::*;

/// Processes whose leaders do not renew: they stall past their leases.
async fn stalling(n: usize, double: &Double) -> Vec<Process> {
    double.fail(&[RemoteOp::Renew], RemoteErrorKind::Connection);
    let patient = RemoteSettings::new().breaker_failures(1000);
    let make = |_| Process::with_remote(double, settings(), patient.clone());
    let processes: Vec<_> = (0..n).map(make).collect();
    for process in &processes {
        process.prepare(double).await;
    }
    processes
}

#[tokio::test(start_paused = true)]
async fn a_late_result_that_nobody_has_superseded_is_stored() {
    let (double, origin) = (Double::new(), Origin::taking(12 * SECOND));
    let processes = stalling(2, &double).await;
    assert_eq!(processes[0].load(&origin).await, 1);
    all_have_run().await;
    assert_eq!(processes[0].stats().refused_fills, 0);
    assert_eq!(processes[1].get("k").await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_late_result_that_was_superseded_is_refused_and_taken_back() {
    let (double, slow, quick) = (Double::new(), Origin::taking(12 * SECOND), Origin::new());
    let processes = stalling(3, &double).await;
    let late = processes[0].spawn(&slow);
    all_have_run().await;
    quick.next([Answer::Value]);
    // Takes over after the lease.
    assert_eq!(processes[1].load(&quick).await, 1);
    processes[1].refresh("k", quick.compute()).await.unwrap();
    assert_eq!(late.await.unwrap().unwrap(), 1, "its own caller gets it");
    all_have_run().await;
    assert_eq!(processes[0].stats().refused_fills, 1);
    // Not in the process that was late, and not in the remote.
    assert_eq!(processes[0].get("k").await, Some(2));
    assert_eq!(processes[2].get("k").await, Some(2));
    assert_quiet(&processes[0].cache);
}

#[tokio::test(start_paused = true)]
async fn a_late_result_while_its_successor_computes_is_refused() {
    let (double, slow) = (Double::new(), Origin::taking(8 * SECOND));
    let processes = stalling(2, &double).await;
    let late = processes[0].spawn(&slow);
    pass(SECOND).await;
    let successor = processes[1].spawn(&slow);
    assert_eq!(late.await.unwrap().unwrap(), 1);
    all_have_run().await;
    assert_eq!(processes[0].stats().refused_fills, 1);
    assert_eq!(successor.await.unwrap().unwrap(), 2);
    all_have_run().await;
    assert_eq!(processes[0].get("k").await, Some(2));
    assert_eq!(processes[1].stats().refused_fills, 0);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_was_put_meanwhile_is_not_overwritten_by_a_computation() {
    let (double, origin) = (Double::new(), Origin::taking(SECOND));
    let processes = Process::several(3, &double).await;
    let leader = processes[0].spawn(&origin);
    pass(100 * MS).await;
    processes[1].put("k", 100).await;
    assert_eq!(leader.await.unwrap().unwrap(), 1);
    all_have_run().await;
    for process in &processes {
        assert_eq!(process.get("k").await, Some(100));
    }
    assert_eq!(processes[0].stats().refused_fills, 1);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_was_put_meanwhile_in_the_same_process_is_not_overwritten_either() {
    let (double, origin) = (Double::new(), Origin::taking(SECOND));
    let processes = Process::several(2, &double).await;
    let leader = processes[0].spawn(&origin);
    pass(100 * MS).await;
    processes[0].put("k", 100).await;
    assert_eq!(leader.await.unwrap().unwrap(), 1);
    all_have_run().await;
    for process in &processes {
        assert_eq!(process.get("k").await, Some(100));
    }
}

#[tokio::test(start_paused = true)]
async fn where_the_fill_fails_the_value_is_served_kept_here_and_the_lease_given_up() {
    for kind in [RemoteErrorKind::Connection, RemoteErrorKind::OutOfMemory] {
        let (double, origin) = (Double::new(), Origin::taking(100 * MS));
        let processes = Process::several(2, &double).await;
        let leader = processes[0].spawn(&origin);
        all_have_run().await;
        double.fail(&[RemoteOp::Fill], kind);
        let other = processes[1].spawn(&origin);
        assert_eq!(leader.await.unwrap().unwrap(), 1);
        assert_eq!(processes[0].load(&origin).await, 1);
        // The other process takes over at once, not after the lease.
        assert_eq!(within(110 * MS, other).await.unwrap().unwrap(), 2);
        assert_eq!(origin.calls(), 2, "one per process");
        all_have_run().await;
        assert_eq!(double.calls(RemoteOp::Abandon), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn where_the_fill_hangs_nobody_waits_for_it() {
    let (double, origin) = (Double::new(), Origin::taking(100 * MS));
    let processes = Process::several(2, &double).await;
    let leader = processes[0].spawn(&origin);
    pass(50 * MS).await;
    double.freeze();
    assert_eq!(within(51 * MS, leader).await.unwrap().unwrap(), 1);
    assert_eq!(within(MS, processes[0].load(&origin)).await, 1);
    double.thaw();
    // Executed late, and in order: the fill, then the abandon of nothing.
    all_have_run().await;
    assert_eq!(processes[1].load(&origin).await, 1);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_fill_whose_reply_is_lost_is_there() {
    let (double, origin) = (Double::new(), Origin::new());
    let processes = Process::several(2, &double).await;
    double.lose_replies(&[RemoteOp::Fill]);
    assert_eq!(processes[0].load(&origin).await, 1);
    pass(200 * MS).await;
    assert_eq!(processes[0].get("k").await, Some(1));
    assert_eq!(processes[1].load(&origin).await, 1);
    assert_eq!(origin.calls(), 1);
    assert_quiet(&processes[0].cache);
}

#[tokio::test(start_paused = true)]
async fn after_everything_was_flushed_what_ran_is_not_shared_and_the_next_result_is() {
    let (double, origin) = (Double::new(), Origin::taking(SECOND));
    let processes = Process::several(2, &double).await;
    let old = processes[0].spawn(&origin);
    pass(100 * MS).await;
    double.flush();
    let new = processes[1].spawn(&origin);
    assert_eq!(old.await.unwrap().unwrap(), 1);
    assert_eq!(new.await.unwrap().unwrap(), 2);
    all_have_run().await;
    // The log was lost as well: what was invalidated with it, no process knows.
    assert_eq!(processes[0].stats().refused_fills, 1);
    assert_eq!(processes[0].load(&origin).await, 3);
    pass(10 * MS).await;
    assert_eq!(processes[1].load(&origin).await, 3);
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_inline_leader_that_nobody_polls_does_not_keep_its_lease() {
    let (double, origin) = (Double::new(), Origin::new());
    let builder = || settings().compute_timeout(10 * SECOND).wait_timeout(30 * SECOND);
    let processes = Process::several_with(2, &double, builder).await;
    origin.next([Answer::Hang]);
    let mut stuck = Box::pin(processes[0].get_or_compute_scoped("k", || origin.load()));
    assert!(futures_util::poll!(&mut stuck).is_pending());
    while origin.calls() == 0 {
        tokio::task::yield_now().await;
        assert!(futures_util::poll!(&mut stuck).is_pending());
    }
    // Its time-out, a second of grace, the lease.
    let other = within(18 * SECOND, processes[1].load(&origin)).await;
    assert_eq!(other, 2);
    drop(stuck);
    assert_eq!(processes[0].load(&origin).await, 2);
    assert_eq!(origin.calls(), 2);
}
