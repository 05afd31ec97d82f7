//! Results that do not reach the other processes. No process waits for one after the other of them.

use std::time::Duration;

use tower_stampede::remote::{Double, Remote, RemoteSettings};
use tower_stampede::{Computed, Stampede};

use crate::kit::crowd::{Crowd, MAX_BYTES, Report, WORK, reports};
use crate::kit::origin::*;
use crate::kit::remote::k;

/// The longest wait where no process waits for more than two computations.
const TWO_WORKS: Duration = Duration::from_millis(2100);

/// All come at nearly the same time; or while others compute.
const SPREADS: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(1500)];

async fn processes(double: &Double, n: usize) -> Vec<Stampede<Report>> {
    let remote = || RemoteSettings::new().max_value_bytes(MAX_BYTES);
    let process = |_| reports().remote(double.process(), remote()).build().unwrap();
    let caches: Vec<_> = (0..n).map(process).collect();
    for cache in &caches {
        assert_eq!(cache.get("nothing is here").await, None);
    }
    all_have_run().await;
    caches
}

fn too_large() -> Computed<Report> {
    Report::of(MAX_BYTES + 1)
}

fn not_encodable() -> Computed<Report> {
    Computed::new(Report(None))
}

fn with_too_many_tags() -> Computed<Report> {
    (0..4097).fold(Report::small(), |computed, n| computed.tag(n))
}

#[tokio::test(start_paused = true)]
async fn a_result_that_can_be_shared_is_computed_once() {
    for spread in SPREADS {
        let (double, origin) = (Double::new(), Origin::taking(WORK));
        let caches = processes(&double, 8).await;
        Crowd::ask(&caches, spread, &origin, Report::small).await.waits_at_most(1100 * MS, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_that_cannot_be_shared_is_computed_once_in_each_process_and_no_request_fails() {
    for makes in [too_large, not_encodable, with_too_many_tags] {
        for spread in SPREADS {
            let (double, origin) = (Double::new(), Origin::taking(WORK));
            let caches = processes(&double, 8).await;
            Crowd::ask(&caches, spread, &origin, makes).await.waits_at_most(TWO_WORKS, 8);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn while_there_is_a_marker_no_process_waits_for_another() {
    let (double, origin) = (Double::new(), Origin::taking(WORK));
    let caches = processes(&double, 1).await;
    Crowd::ask(&caches, Duration::ZERO, &origin, too_large).await.waits_at_most(WORK, 1);
    all_have_run().await;
    let others = processes(&double, 8).await;
    let crowd = Crowd::ask(&others, SPREADS[0], &origin, too_large).await;
    crowd.waits_at_most(1050 * MS, 8);
}

#[tokio::test(start_paused = true)]
async fn the_first_result_that_can_be_shared_replaces_the_marker() {
    let (double, origin) = (Double::new(), Origin::taking(WORK));
    let caches = processes(&double, 3).await;
    Crowd::ask(&caches[..1], Duration::ZERO, &origin, too_large).await;
    all_have_run().await;
    Crowd::ask(&caches[1..2], Duration::ZERO, &origin, Report::small).await.waits_at_most(WORK, 1);
    all_have_run().await;
    Crowd::ask(&caches[2..], Duration::ZERO, &origin, Report::small).await.waits_at_most(MS, 0);
}

#[tokio::test(start_paused = true)]
async fn the_marker_lasts_as_long_as_the_result_and_a_minute_at_most() {
    let lasting: [(fn() -> Computed<Report>, u64); 3] = [
        (|| too_large().ttl(30 * SECOND), 30),
        (|| too_large().ttl(60 * MINUTE), 60),
        (|| too_large().ttl(10 * MS), 1),
    ];
    for (makes, secs) in lasting {
        let (double, origin) = (Double::new(), Origin::new());
        let caches = processes(&double, 1).await;
        Crowd::ask(&caches, Duration::ZERO, &origin, makes).await;
        let stands = async || double.process().get(&k()).await.unwrap().is_some();
        pass(Duration::from_secs(secs) - 100 * MS).await;
        assert!(stands().await, "{secs}");
        pass(200 * MS).await;
        assert!(!stands().await, "{secs}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_completed_computation_with_the_right_to_fill_leaves_a_marker() {
    let (double, origin) = (Double::new(), Origin::taking(10 * MS));
    let caches = processes(&double, 2).await;
    // A failure.
    origin.next([Answer::Fail]);
    Crowd::ask(&caches[..1], Duration::ZERO, &origin, too_large).await;
    all_have_run().await;
    assert_eq!(double.process().get(&k()).await.unwrap(), None);
    // A time-out.
    caches[0].invalidate("k").await;
    origin.next([Answer::Hang]);
    Crowd::ask(&caches[..1], Duration::ZERO, &origin, too_large).await;
    all_have_run().await;
    assert_eq!(double.process().get(&k()).await.unwrap(), None);
    // A right that is lost: the key was invalidated meanwhile.
    caches[0].invalidate("k").await;
    let computing = tokio::spawn({
        let (caches, origin) = (caches.clone(), origin.clone());
        async move { Crowd::ask(&caches[..1], Duration::ZERO, &origin, too_large).await }
    });
    pass(5 * MS).await;
    caches[1].invalidate("k").await;
    computing.await.unwrap();
    all_have_run().await;
    assert_eq!(double.process().get(&k()).await.unwrap(), None);
    // A caller that goes away, with its computation.
    let scoped = caches[0].get_or_compute_scoped("k", || async {
        pass(SECOND).await;
        Ok::<_, OriginError>(Report(None))
    });
    assert!(tokio::time::timeout(10 * MS, scoped).await.is_err());
    all_have_run().await;
    assert_eq!(double.process().get(&k()).await.unwrap(), None);
}
