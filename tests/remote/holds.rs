//! Holds in other processes: what one process invalidates, puts or computes
//! reaches the callers that another one refuses.

use crate::kit::origin::*;
use crate::kit::remote::*;
use tower_stampede::remote::{Double, Record};
use tower_stampede::{Builder, ErrorKind, FailureAction};

fn long_hold() -> Builder<u64> {
    settings().hold(30 * SECOND)
}

/// Two processes that both refuse the callers of a key, which failed just now.
async fn two_that_hold() -> (Double, Vec<Process>, Origin) {
    let double = Double::new();
    let processes = Process::several_with(2, &double, long_hold).await;
    let origin = Origin::taking(10 * MS);
    origin.next([Answer::Fail]);
    let failed = processes[0].spawn(&origin).await.unwrap().unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Inner);
    all_have_run().await;
    for process in &processes {
        let held = process.spawn(&origin).await.unwrap().unwrap_err();
        assert_eq!(held.kind(), ErrorKind::Held);
    }
    assert_eq!(origin.calls(), 1);
    (double, processes, origin)
}

#[tokio::test(start_paused = true)]
async fn an_invalidation_ends_the_hold_in_every_process() {
    for by in [0, 1] {
        let (_double, processes, origin) = two_that_hold().await;
        processes[by].invalidate("k").await;
        all_have_run().await;
        for process in [&processes[1 - by], &processes[by]] {
            let got = process.spawn(&origin).await.unwrap();
            assert_eq!(got.ok(), Some(2), "invalidated by process {by}");
        }
        assert_eq!(origin.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_put_ends_the_hold_in_every_process() {
    for by in [0, 1] {
        let (_double, processes, origin) = two_that_hold().await;
        processes[by].put("k", 1000).await;
        all_have_run().await;
        for process in &processes {
            let got = process.spawn(&origin).await.unwrap();
            assert_eq!(got.ok(), Some(1000), "put by process {by}");
        }
        assert_eq!(origin.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_reads_what_another_process_computed_before_it_is_refused() {
    for by in [0, 1] {
        let (double, processes, origin) = two_that_hold().await;
        // The server has evicted the hold: then the refresh gets the lease.
        double.lose(&k(), Record::Lock);
        assert_eq!(processes[by].refresh("k", origin.compute()).await.unwrap(), 2);
        all_have_run().await;
        let got = processes[1 - by].spawn(&origin).await.unwrap();
        assert_eq!(got.ok(), Some(2), "computed by process {by}");
        assert_eq!(origin.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_is_refused_while_no_process_has_a_value() {
    let (_double, processes, origin) = two_that_hold().await;
    pass(29 * SECOND).await;
    for process in &processes {
        let held = process.spawn(&origin).await.unwrap().unwrap_err();
        assert_eq!(held.kind(), ErrorKind::Held);
    }
    pass(2 * SECOND).await;
    assert_eq!(processes[1].spawn(&origin).await.unwrap().ok(), Some(2));
    assert_eq!(origin.calls(), 2);
}

// ---- failures that are answers ----

#[tokio::test(start_paused = true)]
async fn not_found_removes_the_older_value_from_every_process_and_makes_no_hold_in_them() {
    let double = Double::new();
    let remembering = || {
        let settings = settings().ttl(10 * SECOND).stale_for(60 * MINUTE);
        settings.on_failure(|_| FailureAction::Remember(MINUTE))
    };
    let processes = Process::several_with(2, &double, remembering).await;
    let origin = Origin::taking(10 * MS);
    for process in &processes {
        assert_eq!(process.load(&origin).await, 1);
    }
    pass(11 * SECOND).await;
    origin.usually(Answer::Fail);
    assert_eq!(processes[0].load(&origin).await, 1, "stale, while it is refreshed");
    pass(SECOND).await;
    for (n, process) in processes.iter().enumerate() {
        for _ in 0..3 {
            let error = process.spawn(&origin).await.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Inner, "process {n}");
        }
    }
    assert_eq!(origin.calls(), 3, "one call of each process");
}

// The lock is protected from such a server (contract: a lease ends in time though the clock was
// set back); a hold stands in the same place.
#[tokio::test(start_paused = true)]
async fn a_hold_ends_in_time_though_the_clock_of_the_server_was_set_back() {
    let double = Double::new();
    let processes = Process::several_with(2, &double, || settings().hold(SECOND)).await;
    let origin = Origin::taking(10 * MS);
    origin.next([Answer::Fail]);
    processes[0].spawn(&origin).await.unwrap().unwrap_err();
    all_have_run().await;
    double.set_clock_back(60 * MINUTE);
    pass(2 * SECOND).await;
    let mut refused = std::time::Duration::ZERO;
    for process in [&processes[1], &processes[0]] {
        while let Err(error) = process.spawn(&origin).await.unwrap() {
            assert_eq!(error.kind(), ErrorKind::Held);
            refused += SECOND;
            assert!(refused < 5 * SECOND, "the key is refused for {refused:?} after a hold of 1 s");
            pass(SECOND).await;
        }
    }
}
