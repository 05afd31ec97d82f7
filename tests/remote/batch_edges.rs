//! Batches, remembered failures and operations without `await`, on one remote under hostile
//! interleavings.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use parking_lot::Mutex;
use tower_stampede::remote::Double;
use tower_stampede::{Cache, Failure, FailureAction, Key, Stampede};

use crate::kit::origin::*;
use crate::kit::remote::*;
use crate::kit::table::*;

// `max_computations` bounds how many calls of the origin run at once. A key of a batch whose
// lease comes free while the call of the others runs is a second call, and needs a place.
#[tokio::test(start_paused = true)]
async fn a_later_call_of_a_batch_does_not_run_on_the_place_of_the_earlier_one() {
    let double = Double::new();
    let process = Process::with(&double, settings().max_refreshes(1).max_computations(1));
    process.prepare(&double).await;
    assert!(double.lock_as_stranger(&Key::from(1_u64), 2 * SECOND));
    assert!(double.lock_as_stranger(&Key::from(2_u64), 5 * SECOND));
    let table = Table::taking(3 * SECOND);
    let batch = within(5 * MINUTE, process.get_many([1, 2, 3], table.loader())).await;
    assert_eq!(batch.complete().unwrap().len(), 3);
    assert_eq!(table.most_at_once.load(SeqCst), 1, "{:?}", table.queries.lock());
    assert_quiet(&process);
}

// The same for single callers: no other process has a part in it. The commands of a caller may
// take longer than the window.
#[tokio::test(start_paused = true)]
async fn single_callers_whose_commands_outlast_the_window_keep_the_bound() {
    let double = Double::new();
    let settings = settings().max_refreshes(1).max_computations(1).batch_window(5 * MS);
    let process = Process::with(&double, settings);
    process.prepare(&double).await;
    double.delay(10 * MS);
    let table = Table::taking(3 * SECOND);
    let cache = Cache::batched(process.cache.clone(), table.loader());
    let got = herd(6, |n| {
        let cache = cache.clone();
        async move {
            pass(7 * n as u32 * MS).await;
            cache.get(n as u64).await.is_ok()
        }
    });
    assert!(got.await.into_iter().all(|is_ok| is_ok));
    assert_eq!(table.most_at_once.load(SeqCst), 1, "{:?}", table.queries.lock());
}

// "A key without a pair is absent: it stands in neither map." That another process has asked
// for it a moment ago makes no failure of it.
#[tokio::test(start_paused = true)]
async fn a_key_that_is_absent_is_no_failure_in_another_process() {
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    let table = Table::taking(3 * SECOND);
    for process in &processes {
        let batch = process.get_many([1, 5000], table.loader()).await;
        assert!(batch.failures.is_empty(), "{:?}", batch.failures);
        assert_eq!(batch.values.len(), 1);
    }
}

/// A cache whose loader answers with the next of these.
fn answering(
    handle: &Stampede<u64>,
    answers: impl IntoIterator<Item = Result<u64, &'static str>>,
) -> Cache<u64, u64, &'static str> {
    let answers: Arc<Mutex<Vec<_>>> = Arc::new(Mutex::new(answers.into_iter().collect()));
    answers.lock().reverse();
    let load = move |_: u64| {
        let answer = answers.lock().pop().expect("no further call");
        async move { answer }
    };
    Cache::new(handle.clone(), load).on_failure(|error| match *error {
        "not found" => FailureAction::Remember(SECOND / 2),
        "not found, for long" => FailureAction::Remember(30 * MINUTE),
        _ => FailureAction::Hold,
    })
}

// The answer was to be remembered for half a second. That the database is down, as another
// process has found, must not bring it back.
#[tokio::test(start_paused = true)]
async fn an_answer_whose_time_is_over_is_not_given_because_another_process_failed() {
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    let here = answering(&processes[0], [Err("not found"), Ok(1)]);
    let there = answering(&processes[1], [Err("the database is down")]);
    here.get(7).await.unwrap_err();
    pass(SECOND).await;
    there.get(7).await.unwrap_err();
    for _ in 0..3 {
        let got = here.get(7).await;
        assert!(!matches!(got, Err(Failure::Computation(_))), "{got:?}");
    }
}

// A gap in the subscription drops local copies, because messages may have been missed. A
// remembered answer is a local copy as well: the `put` that ends it may be among them.
#[tokio::test(start_paused = true)]
async fn a_gap_in_the_subscription_ends_remembered_answers_as_it_ends_values() {
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    let here = answering(&processes[0], [Err("not found, for long"), Ok(1)]);
    here.get(7).await.unwrap_err();
    processes[0].client.unsubscribe();
    pass(SECOND).await;
    processes[1].cache.put(7_u64, 70).await;
    pass(SECOND).await;
    processes[0].client.subscribe();
    pass(SECOND).await;
    assert_eq!(here.get(7).await.ok(), Some(70), "the value of the other process");
}

// During a gap copies are used for `local_ttl` at most.
#[tokio::test(start_paused = true)]
async fn a_remembered_answer_outlasts_no_gap_in_the_subscription() {
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    let here = answering(&processes[0], [Err("not found, for long"), Ok(1)]);
    here.get(7).await.unwrap_err();
    processes[0].client.unsubscribe();
    processes[1].cache.put(7_u64, 70).await;
    pass(5 * MINUTE).await;
    processes[1].cache.put(7_u64, 70).await;
    assert_eq!(here.get(7).await.ok(), Some(70), "the value of the other process");
}

// Calls of one caller, one after the other: a caller must never read the value that it has
// just invalidated.
#[tokio::test(start_paused = true)]
async fn an_invalidation_after_a_put_ends_it_although_neither_is_awaited() {
    let double = Double::new();
    double.delay(10 * MS);
    let process = Process::on(&double);
    process.put_now("k", 1);
    process.invalidate_now("k");
    pass(10 * SECOND).await;
    assert_eq!(process.get("k").await, None, "it was invalidated after the put");
    let other = Process::on(&double);
    assert_eq!(other.get("k").await, None, "and here as well");
}

// The same where the second put is the newer one.
#[tokio::test(start_paused = true)]
async fn of_two_puts_that_are_not_awaited_the_later_one_stands() {
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    // The first command is slower on its way than the second.
    double.delay_commands(100 * MS);
    processes[0].put_now("k", 1);
    all_have_run().await;
    double.delay_commands(Duration::ZERO);
    processes[0].put_now("k", 2);
    pass(10 * SECOND).await;
    assert_eq!(processes[1].get("k").await, Some(2));
}

// `invalidate_now` tells the remote in the background, or before this process asks it again.
// Where the runtime ends before the background has run, the second must hold.
#[test]
fn an_invalidation_that_the_end_of_the_runtime_cut_off_is_told_later() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(true).build().unwrap()
    };
    let double = Double::new();
    let first = runtime();
    let process = first.block_on(async {
        let process = Process::on(&double);
        process.prepare(&double).await;
        process.put("k", 1).await;
        process
    });
    first.block_on(async {
        process.invalidate_now("k");
    });
    drop(first);
    runtime().block_on(async {
        assert_eq!(process.get("k").await, None, "it was invalidated");
    });
}

// A failure that is remembered removes the older value, and nothing that comes later.
#[tokio::test(start_paused = true)]
async fn a_value_that_is_put_after_a_remembered_failure_stays_in_the_remote() {
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    let here = answering(&processes[0], [Ok(1), Err("not found, for long")]);
    here.get(7).await.unwrap();
    // Shorter than `op_timeout`: a call that is given up on may be executed later.
    double.delay_commands(50 * MS);
    here.refresh(7).await.unwrap_err();
    all_have_run().await;
    double.delay_commands(Duration::ZERO);
    processes[0].put(7_u64, 70).await;
    assert_eq!(processes[1].get(7_u64).await, Some(70));
    pass(SECOND).await;
    assert_eq!(processes[1].get(7_u64).await, Some(70), "the put came later");
}

// How long a failing key with a stale value is left alone has a bound (`max_hold`). An answer
// that was remembered before, and that a later failure has replaced, says nothing of it.
#[tokio::test(start_paused = true)]
async fn a_remembered_answer_does_not_prolong_the_hold_of_a_later_failure() {
    let double = Double::new();
    let builder = || settings().ttl(10 * SECOND).stale_for(60 * MINUTE);
    let processes = Process::several_with(2, &double, builder).await;
    let here = answering(
        &processes[0],
        [Err("not found, for long"), Err("the database is down"), Ok(2), Ok(3), Ok(4)],
    );
    here.get(7).await.unwrap_err();
    here.refresh(7).await.unwrap_err();
    pass(2 * SECOND).await;
    let there = answering(&processes[1], [Ok(1)]);
    assert_eq!(there.get(7).await.ok(), Some(1));
    pass(15 * SECOND).await;
    assert_eq!(here.get(7).await.ok(), Some(1), "stale, from the other process");
    for _ in 0..20 {
        pass(15 * SECOND).await;
        drop(here.get(7).await);
    }
    assert!(here.get(7).await.is_ok_and(|value| value > 1), "it was refreshed in five minutes");
}

// An invalidation from a thread without a runtime is no outage of the remote: until it is told,
// callers may wait for that, but two processes must not both compute a key.
#[tokio::test(start_paused = true)]
async fn an_invalidation_outside_of_a_runtime_does_not_let_two_processes_compute() {
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    double.delay(MS);
    let origin = Origin::taking(SECOND);
    let there = processes[1].spawn(&origin);
    pass(100 * MS).await;
    let cache = processes[0].cache.clone();
    std::thread::spawn(move || cache.invalidate_now("another key")).join().unwrap();
    let here = processes[0].spawn(&origin);
    here.await.unwrap().unwrap();
    there.await.unwrap().unwrap();
    assert_eq!(origin.calls(), 1);
}

// "The older value is removed, also from the remote": also where this process has no room for
// the older value, and only another process could serve it.
#[tokio::test(start_paused = true)]
async fn a_remembered_failure_removes_an_older_value_that_has_no_room_in_this_process() {
    for bytes_of_a_value in [8, 8 << 20] {
        let double = Double::new();
        let builder = || settings().ttl(10 * SECOND).stale_if_error(60 * MINUTE);
        let other = Process::with(&double, builder());
        let weigher = move |_: &u64| bytes_of_a_value;
        let here = Process::with(&double, builder().max_bytes(1 << 20).weigher(weigher));
        for process in [&other, &here] {
            process.prepare(&double).await;
        }
        other.get_or_compute(7_u64, Origin::new().compute()).await.unwrap();
        pass(15 * SECOND).await;
        let load = |_: u64| async { Err::<u64, _>("not found") };
        let cache =
            Cache::new(here.cache.clone(), load).on_failure(|_| FailureAction::Remember(SECOND));
        cache.get(7).await.unwrap_err();
        pass(5 * SECOND).await;
        let origin = Origin::new();
        origin.usually(Answer::Fail);
        let got = other.get_or_compute(7_u64, origin.compute()).await.ok();
        assert_eq!(got, None, "a value of {bytes_of_a_value} bytes");
    }
}
