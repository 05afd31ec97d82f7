//! Edges of calls with options, where a remote takes part.

use tokio::time::Instant;
use tower_stampede::remote::{Double, RemoteErrorKind, RemoteOp::*, RemoteSettings};
use tower_stampede::{Builder, Cache, CacheOutcome, Computed, Stored};

use crate::kit::crowd::Report;
use crate::kit::origin::*;
use crate::kit::remote::*;
use crate::kit::spawn;

fn stale() -> Builder<u64> {
    settings().stale_for(10 * MINUTE)
}

/// A computation that renews what it sees, and says what that was.
async fn renew(stored: Option<Stored<u64>>) -> Result<Computed<u64>, OriginError> {
    match stored {
        Some(stored) => Ok(stored.renewed()),
        None => Ok(Computed::new(100)),
    }
}

// Promise: `soft_timeout` bounds the wait where the call could be served a stale value. Here one of
// 2 ms becomes a wait for a computation of 10 s.
// Cause: `answer_in_time` (cache/call_limits.rs) asks `stale_now` once, at the soft time-out; the
// value that `wait_for_fresh` finds in the remote after that is waited for to be replaced.
#[tokio::test(start_paused = true)]
async fn a_stale_value_that_the_remote_sends_after_the_soft_time_out_is_served_at_once() {
    let double = Double::new();
    let processes = Process::several_with(2, &double, stale).await;
    let origin = Origin::taking(10 * SECOND);
    assert_eq!(processes[0].load(&origin).await, 1);
    pass(2 * MINUTE).await;
    double.delay(5 * MS);
    let begun = Instant::now();
    let call = processes[1].entry("k").soft_timeout(2 * MS).get_or_compute(origin.compute());
    let served = call.await.unwrap();
    assert_eq!((*served, served.outcome()), (1, CacheOutcome::Stale));
    assert!(begun.elapsed() <= 50 * MS, "{:?}", begun.elapsed());
}

// Promise: one origin call per key and freshness window; `skip_local_copy` costs a round trip.
// Cause: `KeyQuestion::copy_here` and `second_look` (cache/key_work.rs) pass over any entry of this
// process, also one that the remote never had, so each call leads and computes.
#[tokio::test(start_paused = true)]
async fn a_value_that_cannot_be_shared_is_not_computed_again_for_a_call_that_skips_the_local_copy()
{
    let (double, origin) = (Double::new(), Origin::new());
    let builder = settings::<Report>().remote(double.process(), RemoteSettings::new());
    let cache = builder.build().unwrap();
    assert_eq!(cache.get("nothing is here").await, None);
    all_have_run().await;
    let compute = || {
        let origin = origin.clone();
        move || async move { origin.load().await.map(|_| Computed::new(Report(None))) }
    };
    for _ in 0..10 {
        drop(cache.entry("k").skip_local_copy().get_or_compute(compute()).await.unwrap());
    }
    assert_eq!(origin.calls(), 1);
}

// Promise: while the remote is in trouble there is no second origin call for a fresh value.
// Cause: the option is dropped before the flight alone (`look_up_for` in cache/entry_selector.rs). A
// leader whose look fails computes, though `copy_here` (cache/key_work.rs) has a fresh value.
#[tokio::test(start_paused = true)]
async fn a_remote_that_fails_costs_no_computation_where_a_call_skips_a_fresh_local_copy() {
    for frozen in [true, false] {
        let (double, origin) = (Double::new(), Origin::new());
        let here = Process::several(1, &double).await.remove(0);
        for key in 0..20_u64 {
            here.get_or_compute(key, origin.compute()).await.unwrap();
        }
        if frozen {
            double.freeze();
        } else {
            double.fail(&[Get, Acquire, Probe], RemoteErrorKind::Connection);
        }
        for key in 0..20_u64 {
            let call = here.entry(key).skip_local_copy().get_or_compute(origin.compute());
            drop(call.await.unwrap());
        }
        assert_eq!(origin.calls(), 20, "frozen: {frozen}");
    }
}

// Promise: no user sees a value that was replaced before the call began; the option is for a caller
// that must see what another process has just put.
// Cause: the call joins the flight of an earlier caller, whose look at the remote was before the put:
// `KeyQuestion::fits` (cache/key_work.rs) takes any result for `Purpose::Serve`.
#[tokio::test(start_paused = true)]
async fn a_call_that_skips_the_local_copy_sees_a_put_that_was_acknowledged_before_it_began() {
    for with_get in [true, false] {
        let (double, origin) = (Double::new(), Origin::new());
        let processes = Process::several(2, &double).await;
        let (here, there) = (processes[0].clone(), processes[1].clone());
        assert_eq!(here.load(&origin).await, 1);
        double.lose_messages(true);
        // The first look has its answer, which is under way.
        double.delay(50 * MS);
        let (first, compute) = (here.clone(), origin.compute());
        let first = spawn(async move {
            *first.entry("k").skip_local_copy().get_or_compute(compute).await.unwrap()
        });
        pass(5 * MS).await;
        double.delay(MS);
        there.put("k", 9).await;
        let call = here.entry("k").skip_local_copy();
        let seen = match with_get {
            true => *call.get().await.unwrap(),
            false => *call.get_or_compute(origin.compute()).await.unwrap(),
        };
        assert_eq!(seen, 9, "get: {with_get}");
        drop(first.await);
    }
}

// Promise: a caller sees what its process has put before; one origin call per freshness window.
// Cause: as of the option: the value that waits to be told to the remote is passed over
// (`look_up_for`, `copy_here`), and the call computes.
#[tokio::test(start_paused = true)]
async fn a_call_that_skips_the_local_copy_sees_what_its_process_has_put_while_the_remote_failed() {
    let (double, origin) = (Double::new(), Origin::new());
    let processes = Process::several(2, &double).await;
    let here = &processes[0];
    assert_eq!(processes[1].load(&origin).await, 1);
    assert_eq!(here.load(&origin).await, 1);
    for now in [false, true] {
        double.fail(&[Put, Announce], RemoteErrorKind::Connection);
        if now {
            here.put_now("k", 9);
        } else {
            here.put("k", 9).await;
        }
        assert_eq!(here.get("k").await, Some(9));
        let seen =
            here.entry("k").skip_local_copy().get_or_compute(origin.compute()).await.unwrap();
        assert_eq!(*seen, 9);
        double.heal(&[Put, Announce]);
        let seen = here.entry("k").skip_local_copy().get().await;
        assert_eq!(seen.as_deref(), Some(&9));
        assert_eq!(here.get("k").await, Some(9));
        pass(5 * SECOND).await;
        assert_eq!(here.get("k").await, Some(9));
    }
}

// Promise: no late writer overwrites a newer value: `renewed` brings back value 1 over value 2, which
// this leader has found in the remote.
// Cause: `KeyQuestion::begin` (cache/key_work.rs) prefers the copy here to `passed_over`, and `judge`
// keeps a newer stale value for `Purpose::Serve` alone.
#[tokio::test(start_paused = true)]
async fn a_computation_sees_the_newer_value_of_the_remote_and_not_the_older_copy_here() {
    let double = Double::new();
    let processes = Process::several_with(2, &double, stale).await;
    let origin = Origin::new();
    assert_eq!(processes[0].load(&origin).await, 1);
    pass(2 * MINUTE).await;
    assert_eq!(processes[1].refresh("k", origin.compute()).await.unwrap(), 2);
    pass(2 * MINUTE).await;
    let call = processes[0].entry("k").soft_timeout(SECOND).get_or_compute_with(renew);
    assert_eq!(*call.await.unwrap(), 2);
    assert_eq!(processes[1].entry("k").skip_local_copy().get().await.as_deref(), Some(&2));
}

// The same promise and cause, for a refresh in the background.
#[tokio::test(start_paused = true)]
async fn a_refresh_in_the_background_renews_the_newer_value_of_the_remote() {
    let double = Double::new();
    let processes = Process::several_with(2, &double, stale).await;
    let origin = Origin::new();
    assert_eq!(processes[0].load(&origin).await, 1);
    pass(2 * MINUTE).await;
    assert_eq!(processes[1].refresh("k", origin.compute()).await.unwrap(), 2);
    pass(2 * MINUTE).await;
    drop(processes[0].entry("k").get_or_compute_with(renew).await.unwrap());
    pass(SECOND).await;
    assert_eq!(processes[0].get("k").await, Some(2));
    assert_eq!(processes[1].entry("k").skip_local_copy().get().await.as_deref(), Some(&2));
}

// Promise: no user sees a value that was invalidated before the call began: the process that has
// invalidated it reads it again, with a new lifetime, where one message was lost.
// Cause: `KeyQuestion::begin` (cache/key_work.rs) shows the copy here, for which the remote need not
// vouch any more, though the leader has just been told that the remote has no such value.
#[tokio::test(start_paused = true)]
async fn a_computation_does_not_renew_what_another_process_has_invalidated_or_replaced() {
    let ways = ["key", "tag", "put", "all"].into_iter();
    let mut wrong = Vec::new();
    for (by, is_lost) in ways.flat_map(|by| [(by, false), (by, true)]) {
        let double = Double::new();
        let processes = Process::several_with(2, &double, stale).await;
        let first = || async { Ok::<_, OriginError>(Computed::new(5).tag("t")) };
        assert_eq!(processes[0].get_or_compute_with("k", first).await.unwrap(), 5);
        pass(2 * MINUTE).await;
        double.lose_messages(is_lost);
        match by {
            "key" => drop(processes[1].invalidate("k").await),
            "tag" => drop(processes[1].invalidate_tag("t").await),
            "all" => drop(processes[1].invalidate_all().await),
            _ => processes[1].put("k", 9).await,
        }
        all_have_run().await;
        let load = |_, stored| renew(stored);
        let cache = Cache::<&str, u64, OriginError>::revalidating(processes[0].cache.clone(), load);
        drop(cache.entry("k").refresh().await.unwrap());
        let seen = processes[1].entry("k").skip_local_copy().get().await;
        if seen.as_deref() == Some(&5) {
            wrong.push((by, is_lost));
        }
    }
    assert!(wrong.is_empty(), "invalidated by, and whether the message was lost: {wrong:?}");
}

// Promise: the work of a caller that has gone by its soft time-out goes on.
// Cause: the end of `answer_in_time` drops the interest in the flight, and the wait for the lease ends
// without it (`is_wanted` in flight/clearance.rs).
#[tokio::test(start_paused = true)]
async fn work_that_waits_for_the_lease_of_another_process_goes_on_when_its_caller_has_gone() {
    let double = Double::new();
    let processes = Process::several_with(1, &double, stale).await;
    let origin = Origin::new();
    assert_eq!(processes[0].load(&origin).await, 1);
    pass(2 * MINUTE).await;
    assert!(double.lock_as_stranger(&k(), 2 * SECOND));
    let call = processes[0].entry("k").soft_timeout(300 * MS).get_or_compute(origin.compute());
    assert_eq!(*call.await.unwrap(), 1);
    pass(10 * SECOND).await;
    assert_eq!(origin.calls(), 2);
    assert_quiet(&processes[0]);
}

/// A leader that waits for the lease of another process may have found a value before its wait that
/// was invalidated during it.
#[tokio::test(start_paused = true)]
async fn a_computation_does_not_see_a_value_that_was_invalidated_while_its_leader_waited() {
    let double = Double::new();
    let processes = Process::several_with(2, &double, stale).await;
    assert_eq!(processes[0].load(&Origin::new()).await, 1);
    pass(2 * MINUTE).await;
    assert!(double.lock_as_stranger(&k(), 2 * SECOND));
    double.lose_messages(true);
    let caller = processes[1].clone();
    let caller = spawn(async move {
        let call = caller.entry("k").soft_timeout(MINUTE).get_or_compute_with(renew);
        call.await.map(|value| *value)
    });
    pass(SECOND).await;
    processes[0].invalidate("k").await;
    assert_eq!(caller.await.unwrap().unwrap(), 100, "nothing was there to be renewed");
}

/// The result of a caller that computes for itself is not stored, but the caller gets it.
#[tokio::test(start_paused = true)]
async fn a_caller_that_computes_for_itself_renews_no_copy_of_a_value_that_another_process_has_ended()
 {
    let double = Double::new();
    let builder = || stale().wait_timeout(20 * SECOND).compute_after_wait();
    let processes = Process::several_with(2, &double, builder).await;
    for process in &processes {
        assert_eq!(process.load(&Origin::new()).await, 1);
    }
    pass(11 * MINUTE).await;
    processes[0].put("k", 9).await;
    double.lose_messages(true);
    processes[0].invalidate("k").await;
    let leading = processes[1].clone();
    let hangs = Origin::new();
    hangs.usually(Answer::Hang);
    let led = spawn(async move { leading.get_or_compute("k", hangs.compute()).await });
    all_have_run().await;
    let call = processes[1].entry("k").get_or_compute_with(renew).await;
    assert!(call.is_ok_and(|value| *value == 100), "it renews nothing");
    led.abort();
}
