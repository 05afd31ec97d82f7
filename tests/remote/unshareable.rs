//! Results that do not reach the other processes. No process waits for one after the other of them.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;
use tower_stampede::remote::{Double, Remote, RemoteErrorKind, RemoteOp, RemoteSettings};
use tower_stampede::{Computed, Stampede};

use crate::kit::crowd::{Crowd, MAX_BYTES, Report, WORK, reports};
use crate::kit::origin::*;
use crate::kit::remote::k;
use crate::kit::spawn;

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
    let lasting: [fn() -> Computed<Report>; 3] = [
        || too_large().ttl(30 * SECOND),
        || too_large().ttl(60 * MINUTE),
        || too_large().ttl(10 * MS),
    ];
    for (makes, secs) in lasting.into_iter().zip([30, 60, 1]) {
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

fn with_a_tag() -> Computed<Report> {
    Report::small().tag("t")
}

/// Does something every 200 ms.
fn again_and_again<F>(again: impl Fn() -> F + Send + 'static) -> AbortOnDropHandle<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    AbortOnDropHandle::new(spawn(async move {
        loop {
            pass(200 * MS).await;
            again().await;
        }
    }))
}

#[tokio::test(start_paused = true)]
async fn a_tag_that_ends_faster_than_the_work_costs_one_computation_for_all_that_wait() {
    // For the callers of a later time the result is too old: they wait for one more.
    for (spread, longest, computations) in [(SPREADS[0], 1100 * MS, 1), (SPREADS[1], TWO_WORKS, 4)]
    {
        let marks: [fn(Stampede<Report>) -> BoxFuture<'static, ()>; 3] = [
            |cache| Box::pin(async move { _ = cache.invalidate_tag("t").await }),
            |cache| Box::pin(async move { _ = cache.mark_tag_stale("t").await }),
            |cache| Box::pin(async move { _ = cache.invalidate_all().await }),
        ];
        for ends in marks {
            let (double, origin) = (Double::new(), Origin::taking(WORK));
            let caches = processes(&double, 9).await;
            let writer = caches[8].clone();
            let _ending = again_and_again(move || ends(writer.clone()));
            let crowd = Crowd::ask(&caches[..8], spread, &origin, with_a_tag).await;
            crowd.waits_at_most(longest, computations);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn tags_of_other_results_make_no_difference_to_those_that_wait() {
    let (double, origin) = (Double::new(), Origin::taking(WORK));
    let caches = processes(&double, 2).await;
    let [one, two] = &caches[..] else { panic!("two") };
    let first = ask(one, &origin);
    pass(100 * MS).await;
    two.invalidate_tag("other").await;
    let second = ask(two, &origin);
    pass(100 * MS).await;
    two.invalidate_tag("t").await;
    assert_eq!((first.await.unwrap(), second.await.unwrap()), (1, 1));
    assert_eq!(two.get("k").await, None, "served, and not kept");
}

#[tokio::test(start_paused = true)]
async fn a_caller_never_gets_what_has_ended_before_it_came() {
    // By its own process, which waits for another one already; by a third one.
    for writer in [1, 2] {
        let (double, origin) = (Double::new(), Origin::taking(WORK));
        let caches = processes(&double, 3).await;
        let first = ask(&caches[0], &origin);
        pass(100 * MS).await;
        let before = ask(&caches[1], &origin);
        pass(100 * MS).await;
        caches[writer].invalidate_tag("t").await;
        pass(MS).await;
        let after = ask(&caches[1], &origin);
        assert_eq!((first.await.unwrap(), before.await.unwrap()), (1, 1));
        assert_eq!(after.await.unwrap(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_never_gets_what_has_ended_while_its_leader_looked_or_the_remote_was_not_told() {
    let (double, origin) = (Double::new(), Origin::taking(WORK));
    let caches = processes(&double, 2).await;
    let first = ask(&caches[0], &origin);
    pass(100 * MS).await;
    // The invalidation comes while the first look of this process is on its way.
    double.delay_commands(10 * MS);
    let before = ask(&caches[1], &origin);
    pass(5 * MS).await;
    let told = spawn({
        let cache = caches[1].clone();
        async move { cache.invalidate_tag("t").await.remote }
    });
    pass(20 * MS).await;
    let after = ask(&caches[1], &origin);
    first.await.unwrap();
    before.await.unwrap();
    assert_eq!(after.await.unwrap(), 2);
    told.await.unwrap();
}

/// Asks on a task of its own. Returns the number of the computation.
fn ask(cache: &Stampede<Report>, origin: &Origin) -> JoinHandle<u8> {
    let (cache, origin) = (cache.clone(), origin.clone());
    spawn(async move {
        let compute = move || async move {
            let number = origin.load().await? as u8;
            let report = Computed::new(Report(Some(vec![number].into()))).tag("t");
            Ok::<_, OriginError>(report)
        };
        cache.get_or_compute_with("k", compute).await.unwrap().0.unwrap()[0]
    })
}

#[tokio::test(start_paused = true)]
async fn where_the_remote_has_no_memory_all_that_wait_compute_at_once() {
    let (double, origin) = (Double::new(), Origin::taking(WORK));
    let caches = processes(&double, 8).await;
    let full = spawn({
        let double = double.clone();
        async move {
            pass(WORK / 2).await;
            double.out_of_memory(true);
        }
    });
    let crowd = Crowd::ask(&caches, SPREADS[0], &origin, Report::small).await;
    crowd.waits_at_most(TWO_WORKS, 8);
    full.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_key_that_ends_faster_than_the_work_costs_each_process_two_works_at_most() {
    for n in [8, 40] {
        let (double, origin) = (Double::new(), Origin::taking(WORK));
        let caches = processes(&double, n + 1).await;
        let writer = caches[n].clone();
        let _ending = again_and_again(move || {
            let writer = writer.clone();
            async move { _ = writer.invalidate("k").await }
        });
        let crowd = Crowd::ask(&caches[..n], SPREADS[0], &origin, Report::small).await;
        crowd.waits_at_most(2300 * MS, 2 * n);
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_ends_once_during_the_work_is_computed_once_more() {
    let (double, origin) = (Double::new(), Origin::taking(2 * WORK));
    let caches = processes(&double, 9).await;
    let writer = caches[8].clone();
    let ending = spawn(async move {
        pass(3 * WORK / 2).await;
        writer.invalidate("k").await;
    });
    let crowd = Crowd::ask(&caches[..8], SPREADS[0], &origin, Report::small).await;
    crowd.waits_at_most(3600 * MS, 2);
    ending.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_process_that_has_seen_two_leases_end_without_a_value_computes_for_itself() {
    let (double, origin) = (Double::new(), Origin::taking(WORK));
    let caches = processes(&double, 8).await;
    // The server refuses the results, and takes the locks.
    double.fail(&[RemoteOp::Fill], RemoteErrorKind::TryAgain);
    let crowd = Crowd::ask(&caches, SPREADS[0], &origin, Report::small).await;
    crowd.waits_at_most(3300 * MS, 8);
}

#[tokio::test(start_paused = true)]
async fn a_result_without_a_lifetime_keeps_no_process_waiting_for_more_than_three_works() {
    let (double, origin) = (Double::new(), Origin::taking(WORK));
    let caches = processes(&double, 8).await;
    let momentary = || Report::small().ttl(Duration::ZERO);
    let crowd = Crowd::ask(&caches, SPREADS[0], &origin, momentary).await;
    crowd.waits_at_most(3300 * MS, 8);
}
