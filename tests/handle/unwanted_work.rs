//! Work that no caller waits for any more, with and without `cancel_unwanted`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tokio::task::JoinHandle;
use tower_stampede::{Builder, Cache, CacheOutcome, Stampede};

use crate::kit::origin::*;
use crate::kit::spawn;

fn cancelling() -> Builder<u64> {
    settings().cancel_unwanted(0.5)
}

/// Starts a call, and returns once it has been polled.
async fn call(cache: &Stampede<u64>, key: u64, origin: &Origin) -> JoinHandle<u64> {
    let (cache, compute) = (cache.clone(), origin.compute());
    let call = spawn(async move { cache.get_or_compute(key, compute).await.unwrap() });
    all_have_run().await;
    call
}

/// Ends a call, as a client does that gives up.
async fn leave(call: JoinHandle<u64>) {
    call.abort();
    all_have_run().await;
}

#[tokio::test(start_paused = true)]
async fn by_default_work_goes_on_when_its_last_caller_has_left() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(30 * SECOND));
    leave(call(&cache, 1, &origin).await).await;
    pass(30 * SECOND).await;
    assert_eq!(cache.get(1).await, Some(1));
    assert_eq!((origin.calls(), origin.dropped()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn work_is_cancelled_when_its_last_caller_leaves_and_the_next_caller_begins_anew() {
    let builder = cancelling().max_computations(1);
    let (cache, origin) = (builder.build().unwrap(), Origin::taking(30 * SECOND));
    let (first, second) = (call(&cache, 1, &origin).await, call(&cache, 1, &origin).await);
    leave(first).await;
    pass(SECOND).await;
    assert_eq!(origin.running(), 1, "one caller waits");
    leave(second).await;
    assert_eq!((origin.running(), origin.dropped()), (0, 1));
    assert_quiet(&cache);
    let stats = cache.stats();
    assert_eq!((stats.computations, stats.failures), (1, 0), "it is no failure");
    // Its place is free again.
    let next = call(&cache, 1, &origin).await;
    assert_eq!(origin.running(), 1);
    assert_eq!(next.await.unwrap(), 2);
    assert_eq!(origin.most_at_once(), 1);
}

#[tokio::test(start_paused = true)]
async fn work_that_has_run_for_its_share_of_the_expected_time_goes_on() {
    let (cache, origin) = (cancelling().build().unwrap(), Origin::taking(10 * SECOND));
    assert_eq!(cache.get_or_compute(0, origin.compute()).await.unwrap(), 1);
    for (key, stays, outcome) in [(1, 4 * SECOND, None), (2, 6 * SECOND, Some(3))] {
        let caller = call(&cache, key, &origin).await;
        pass(stays).await;
        leave(caller).await;
        pass(10 * SECOND).await;
        assert_eq!(cache.get(key).await, outcome, "left after {stays:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_value_in_hand_has_taken_is_expected_rather_than_what_others_take() {
    let cache = cancelling().stale_if_error(60 * MINUTE).build().unwrap();
    let (slow, quick) = (Origin::taking(20 * SECOND), Origin::taking(MS));
    assert_eq!(cache.get_or_compute(1, slow.compute()).await.unwrap(), 1);
    for key in 100..200 {
        cache.get_or_compute(key, quick.compute()).await.unwrap();
    }
    pass(2 * MINUTE).await;
    let caller = call(&cache, 1, &slow).await;
    pass(9 * SECOND).await;
    leave(caller).await;
    assert_eq!(slow.dropped(), 1, "for others of this cache 9 s is long");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_comes_and_goes_late_does_not_end_work_that_went_on() {
    let (cache, origin) = (cancelling().build().unwrap(), Origin::taking(10 * SECOND));
    assert_eq!(cache.get_or_compute(0, origin.compute()).await.unwrap(), 1);
    let caller = call(&cache, 1, &origin).await;
    pass(6 * SECOND).await;
    leave(caller).await;
    leave(call(&cache, 1, &origin).await).await;
    pass(4 * SECOND).await;
    assert_eq!((cache.get(1).await, origin.calls()), (Some(2), 2));
}

#[tokio::test(start_paused = true)]
async fn refreshes_and_the_work_of_a_soft_time_out_go_on_without_callers() {
    let cache = cancelling().stale_for(10 * MINUTE).stale_if_error(60 * MINUTE).build().unwrap();
    let origin = Origin::taking(10 * SECOND);
    assert_eq!(cache.get_or_compute(1, origin.compute()).await.unwrap(), 1);
    pass(2 * MINUTE).await;
    assert_eq!(cache.get_or_compute(1, origin.compute()).await.unwrap(), 1, "it is stale");
    // A caller that waits for the refresh, and gives up.
    let (waiter, compute) = (cache.clone(), origin.compute());
    let waiter = spawn(async move {
        let call = waiter.entry(1).soft_timeout(5 * SECOND).get_or_compute(compute);
        call.await.map(|it| *it).unwrap()
    });
    all_have_run().await;
    leave(waiter).await;
    pass(10 * SECOND).await;
    assert_eq!(cache.get(1).await, Some(2));
    pass(2 * MINUTE + 10 * MINUTE).await;
    let soft = cache.entry(1).soft_timeout(SECOND).get_or_compute(origin.compute());
    assert_eq!(soft.await.unwrap().outcome(), CacheOutcome::StaleIfError);
    pass(10 * SECOND).await;
    let calls = origin.calls() as u64;
    assert_eq!(cache.get(1).await, Some(calls), "{calls} calls");
    assert_eq!(origin.dropped(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_call_of_a_batch_is_cancelled_when_none_of_its_keys_has_a_caller() {
    for stays in [false, true] {
        let (loads, ends) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (load, end) = (Arc::clone(&loads), Arc::clone(&ends));
        let cache: Stampede<u64> = cancelling().build().unwrap();
        let cache = Cache::batched(cache, move |ids: Vec<u64>| {
            load.fetch_add(1, SeqCst);
            let end = Arc::clone(&end);
            async move {
                tokio::time::sleep(30 * SECOND).await;
                end.fetch_add(1, SeqCst);
                let rows = ids.into_iter().map(|id| (id, id * id));
                Ok::<_, OriginError>(rows.collect::<HashMap<_, _>>())
            }
        });
        let all = cache.clone();
        let all = spawn(async move { drop(all.get_many([1, 2, 3]).await) });
        all_have_run().await;
        let one = stays.then(|| {
            let cache = cache.clone();
            spawn(async move { cache.get(2).await.unwrap() })
        });
        all_have_run().await;
        all.abort();
        pass(SECOND).await;
        if let Some(one) = one {
            assert_eq!(one.await.unwrap(), 4, "one of the keys has a caller");
            assert_eq!((loads.load(SeqCst), ends.load(SeqCst)), (1, 1));
        } else {
            assert_quiet(cache.handle());
            assert_eq!((cache.get(2).await.unwrap(), loads.load(SeqCst)), (4, 2));
            assert_eq!(ends.load(SeqCst), 1, "the first call was cancelled");
        }
    }
}

/// 30,000 s of the origin's time without the setting.
#[tokio::test(start_paused = true)]
async fn a_thousand_clients_that_leave_after_a_second_cost_a_second_each() {
    for (stay_for_ever, at_most) in [(0, 1_000), (1, 31_000)] {
        let (cache, origin) = (cancelling().build().unwrap(), Origin::taking(30 * SECOND));
        let herd = |n| {
            spawn_herd(n, |i| {
                let (cache, compute) = (cache.clone(), origin.compute());
                async move { cache.get_or_compute(i as u64, compute).await }
            })
        };
        let (leaving, staying) = (herd(1000), herd(1000 * stay_for_ever));
        let mut spent = 0;
        for second in 0..30 {
            if second == 1 {
                leaving.iter().for_each(JoinHandle::abort);
            }
            all_have_run().await;
            spent += origin.running();
            pass(SECOND).await;
        }
        assert!(spent <= at_most, "{spent} s");
        let (ended, dropped) = (gather(staying).await, origin.dropped());
        assert!(ended.iter().all(Result::is_ok), "with a caller nothing is lost");
        assert_eq!(dropped, 1000 * (1 - stay_for_ever));
        assert_quiet(&cache);
    }
}
