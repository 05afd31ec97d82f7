//! Refreshes inside a caller, refreshes asked for by name, and from when a
//! lifetime counts.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower::{ServiceExt, service_fn};
use tower_stampede::{Computed, Error, ErrorKind, Stampede};

use crate::kit::origin::*;
use crate::kit::spawn;

type Answered = Result<u64, Error>;
type Asking = Pin<Box<dyn Future<Output = Answered> + Send>>;

/// A way to ask with a computation inside the caller.
type Ask = fn(&Stampede<u64>, &Origin) -> Asking;

fn scoped(cache: &Stampede<u64>, origin: &Origin) -> Asking {
    let (cache, origin) = (cache.clone(), origin.clone());
    Box::pin(async move { cache.get_or_compute_scoped("k", || origin.load()).await })
}

fn inline(cache: &Stampede<u64>, origin: &Origin) -> Asking {
    let origin = origin.clone();
    let layer = cache.layer(|(): &()| Some("k")).inline();
    Box::pin(tower::Layer::layer(&layer, service_fn(move |()| origin.load())).oneshot(()))
}

const INLINE: [Ask; 2] = [scoped, inline];

fn ask(cache: &Stampede<u64>, origin: &Origin) -> JoinHandle<Answered> {
    let (cache, compute) = (cache.clone(), origin.compute());
    spawn(async move { cache.get_or_compute("k", compute).await })
}

fn refresh(cache: &Stampede<u64>, origin: &Origin) -> JoinHandle<Answered> {
    let (cache, compute) = (cache.clone(), origin.compute());
    spawn(async move { cache.refresh("k", compute).await })
}

// ---- a refresh inside the caller ----

/// A value that is fresh to 10 s and stale to 15 s, looked at at 12 s.
async fn stale_value(stale_if_error: Duration) -> Stampede<u64> {
    let settings = settings().ttl(10 * SECOND).stale_for(5 * SECOND);
    let cache = settings.stale_if_error(stale_if_error).build().unwrap();
    cache.put("k", 1000).await;
    pass(12 * SECOND).await;
    cache
}

fn failing_after(time: Duration) -> Origin {
    let origin = Origin::taking(time);
    origin.usually(Answer::Fail);
    origin
}

#[tokio::test(start_paused = true)]
async fn an_inline_refresh_that_fails_after_the_stale_window_returns_its_error() {
    for caller in INLINE {
        let cache = stale_value(Duration::ZERO).await;
        let got = caller(&cache, &failing_after(25 * SECOND)).await;
        assert!(got.is_err(), "{got:?} at 37 s");
    }
}

#[tokio::test(start_paused = true)]
async fn an_inline_refresh_that_fails_returns_no_value_that_was_invalidated_meanwhile() {
    for caller in INLINE {
        for by_tag in [false, true] {
            let cache = stale_value(Duration::ZERO).await;
            let refreshing = spawn(caller(&cache, &failing_after(2 * SECOND)));
            pass(SECOND).await;
            if by_tag {
                cache.invalidate_all().await;
            } else {
                cache.invalidate("k").await;
            }
            let got = refreshing.await.unwrap();
            assert!(got.is_err(), "{got:?} at 14 s, invalidated at 13 s");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_inline_refresh_that_fails_within_the_windows_returns_the_stale_value() {
    for caller in INLINE {
        let cache = stale_value(Duration::ZERO).await;
        assert_eq!(caller(&cache, &failing_after(2 * SECOND)).await.unwrap(), 1000);
        let cache = stale_value(MINUTE).await;
        assert_eq!(caller(&cache, &failing_after(25 * SECOND)).await.unwrap(), 1000);
    }
}

#[tokio::test(start_paused = true)]
async fn an_inline_refresh_that_takes_too_long_returns_no_value_past_its_window() {
    for caller in INLINE {
        let cache = stale_value(Duration::ZERO).await;
        let error = caller(&cache, &Origin::taking(MINUTE)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ComputeTimeout, "at 42 s");
    }
}

#[tokio::test(start_paused = true)]
async fn an_inline_caller_with_a_stale_value_does_not_queue_for_a_place() {
    for caller in INLINE {
        let cache = settings()
            .ttl(10 * SECOND)
            .stale_for(60 * MINUTE)
            .max_refreshes(1)
            .max_computations(1)
            .build()
            .unwrap();
        cache.put("k", 1000).await;
        pass(12 * SECOND).await;
        let (busy, origin) = (Origin::taking(29 * SECOND), Origin::new());
        let compute = busy.compute();
        let handle = cache.clone();
        let leader = spawn(async move { handle.get_or_compute("busy", compute).await });
        all_have_run().await;
        let from = Instant::now();
        assert_eq!(caller(&cache, &origin).await.unwrap(), 1000);
        assert_eq!(from.elapsed(), Duration::ZERO);
        assert_eq!(origin.calls(), 0);
        leader.await.unwrap().unwrap();
        assert_eq!(caller(&cache, &origin).await.unwrap(), 1, "the next caller refreshes");
        assert_quiet(&cache);
    }
}

// ---- a refresh asked for by name ----

#[tokio::test(start_paused = true)]
async fn a_refresh_returns_what_was_computed_after_it_was_asked_for() {
    for stored in [false, true] {
        let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
        if stored {
            cache.put("k", 1000).await;
        }
        let older = if stored { refresh(&cache, &origin) } else { ask(&cache, &origin) };
        pass(50 * MS).await;
        let got = refresh(&cache, &origin).await.unwrap().unwrap();
        assert_eq!(got, 2, "the first computation began before the call");
        assert_eq!(older.await.unwrap().unwrap(), 1);
        assert_eq!(cache.get("k").await, Some(2));
        assert_eq!((origin.calls(), origin.most_at_once()), (2, 1));
        assert_quiet(&cache);
    }
}

#[tokio::test(start_paused = true)]
async fn however_many_callers_refresh_one_computation_runs_and_one_is_queued() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
    let first = ask(&cache, &origin);
    pass(50 * MS).await;
    let second: Vec<_> = (0..100).map(|_| refresh(&cache, &origin)).collect();
    pass(100 * MS).await;
    let third: Vec<_> = (0..100).map(|_| refresh(&cache, &origin)).collect();
    assert_eq!(first.await.unwrap().unwrap(), 1);
    for (n, wave) in [(2, second), (3, third)] {
        for answer in gather(wave).await {
            assert_eq!(answer.unwrap(), n);
        }
    }
    assert_eq!((origin.calls(), origin.most_at_once()), (3, 1));
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn every_refresh_of_a_storm_gets_a_computation_that_began_after_it() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
    let mut refreshing = Vec::new();
    for _ in 0..1000 {
        refreshing.push((Instant::now(), refresh(&cache, &origin)));
        pass(7 * MS).await;
    }
    let mut stale = 0;
    for (asked, caller) in refreshing {
        let n = within(MINUTE, caller).await.unwrap().unwrap();
        stale += usize::from(origin.started_at()[n as usize - 1] < asked);
    }
    assert_eq!(stale, 0, "results of computations that began before the call");
    assert_eq!(origin.most_at_once(), 1);
    assert!(origin.calls() <= 73, "{} calls of 100 ms in 7 s", origin.calls());
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_fresh_reads_a_second_cost_two_calls_per_origin_time_at_most() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(300 * MS));
    let mut reading = Vec::new();
    for _ in 0..9_000 {
        let from = Instant::now();
        let reader = refresh(&cache, &origin);
        reading.push(spawn(async move { (from, reader.await, from.elapsed()) }));
        pass(MS).await;
    }
    for reader in reading {
        let (asked, value, took) = reader.await.unwrap();
        let n = value.unwrap().unwrap() as usize;
        assert!(origin.started_at()[n - 1] >= asked, "call {n} began before the read");
        assert!(took <= 600 * MS, "{took:?}");
    }
    // 9 s are 30 origin times.
    assert!(origin.calls() <= 2 * 30, "{} calls", origin.calls());
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_does_not_share_the_end_of_an_older_computation() {
    for answer in [Answer::Fail, Answer::Panic] {
        let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
        origin.next([answer]);
        let older = ask(&cache, &origin);
        pass(50 * MS).await;
        let got = refresh(&cache, &origin).await.unwrap();
        assert_eq!(got.unwrap(), 2, "after an older computation with {answer:?}");
        drop(older);
    }
}

#[tokio::test(start_paused = true)]
async fn a_queued_refresh_goes_on_for_the_others_when_its_first_caller_leaves() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
    let older = ask(&cache, &origin);
    pass(50 * MS).await;
    let leaves = refresh(&cache, &origin);
    all_have_run().await;
    let stays = refresh(&cache, &origin);
    all_have_run().await;
    leaves.abort();
    assert_eq!(stays.await.unwrap().unwrap(), 2);
    assert_eq!(older.await.unwrap().unwrap(), 1);
    assert_eq!((origin.calls(), origin.most_at_once()), (2, 1));
    assert_quiet(&cache);
}

// ---- tags ----

#[tokio::test(start_paused = true)]
async fn a_refresh_keeps_the_tags_of_the_entry() {
    for by_put in [false, true] {
        let cache: Stampede<u64> = settings().build().unwrap();
        let tagged = Computed::new(1).tag("t").tag("u");
        if by_put {
            cache.put_with("k", tagged).await;
        } else {
            let compute = || async { Ok::<_, OriginError>(tagged) };
            cache.get_or_compute_with("k", compute).await.unwrap();
        }
        for n in 2..4 {
            let compute = move || async move { Ok::<_, OriginError>(n) };
            assert_eq!(cache.refresh("k", compute).await.unwrap(), n);
            assert_eq!(cache.get("k").await, Some(n));
        }
        cache.invalidate_tag("u").await;
        assert_eq!(cache.get("k").await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_background_refresh_keeps_the_tags_of_the_entry() {
    let cache: Stampede<u64> = settings().stale_for(60 * MINUTE).build().unwrap();
    cache.put_with("k", Computed::new(1000).tag("t")).await;
    pass(2 * MINUTE).await;
    let origin = Origin::new();
    assert_eq!(ask(&cache, &origin).await.unwrap().unwrap(), 1000);
    all_have_run().await;
    assert_eq!(cache.get("k").await, Some(1));
    cache.invalidate_tag("t").await;
    assert_eq!(cache.get("k").await, None);
}

#[tokio::test(start_paused = true)]
async fn an_invalidation_by_tag_during_a_refresh_ends_the_use_of_its_result() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let origin = Origin::taking(100 * MS);
    cache.put_with("k", Computed::new(1000).tag("t")).await;
    let refreshing = refresh(&cache, &origin);
    pass(50 * MS).await;
    cache.invalidate_tag("t").await;
    assert_eq!(refreshing.await.unwrap().unwrap(), 1);
    assert_eq!(cache.get("k").await, None);
}

// ---- from when a lifetime counts ----

/// Asks for a value of `ttl` 1.5 s that needs 2 s, and returns at which times
/// after that a caller still hits.
async fn hits_after(
    cache: &Stampede<u64>,
    own_ttl: Option<Duration>,
    after: impl IntoIterator<Item = Duration>,
) -> Vec<bool> {
    let slow = Origin::taking(2 * SECOND);
    let compute = slow.compute();
    let computed = move || async move {
        let value = Computed::new(compute().await?);
        Ok::<_, OriginError>(if let Some(ttl) = own_ttl { value.ttl(ttl) } else { value })
    };
    assert_eq!(cache.get_or_compute_with("k", computed).await.unwrap(), 1);
    let end = Instant::now();
    let mut hits = Vec::new();
    for time in after {
        tokio::time::sleep_until(end + time).await;
        hits.push(cache.get("k").await.is_some());
    }
    hits
}

#[tokio::test(start_paused = true)]
async fn a_ttl_counts_from_the_end_of_the_computation() {
    let cache = settings().ttl(1500 * MS).build().unwrap();
    let hits = hits_after(&cache, None, [Duration::ZERO, 1400 * MS, 1600 * MS]).await;
    assert_eq!(hits, [true, true, false]);
}

#[tokio::test(start_paused = true)]
async fn the_ttl_of_a_computed_value_counts_from_the_end_of_the_computation() {
    let cache = settings().build().unwrap();
    let hits = hits_after(&cache, Some(1500 * MS), [Duration::ZERO, 1400 * MS, 1600 * MS]).await;
    assert_eq!(hits, [true, true, false]);
}

#[tokio::test(start_paused = true)]
async fn the_stale_window_begins_where_the_ttl_ends() {
    let cache = settings().ttl(1500 * MS).stale_for(SECOND).build().unwrap();
    let hits = hits_after(&cache, None, [1400 * MS, 2400 * MS, 2600 * MS]).await;
    assert_eq!(hits, [true, true, false]);
}

#[tokio::test(start_paused = true)]
async fn callers_of_a_computation_that_is_slower_than_the_ttl_hit_after_it() {
    let cache: Stampede<u64> = settings().ttl(1500 * MS).build().unwrap();
    let slow = Origin::taking(2 * SECOND);
    let crowd: Vec<_> = (0..10).map(|_| ask(&cache, &slow)).collect();
    assert!(gather(crowd).await.into_iter().all(|answer| answer.unwrap() == 1));
    assert_eq!(ask_now(&cache, &slow).await, 1);
    assert_eq!((slow.calls(), cache.stats().hits), (1, 1));
}

async fn ask_now(cache: &Stampede<u64>, origin: &Origin) -> u64 {
    ask(cache, origin).await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_value_is_at_most_as_old_as_its_ttl_and_the_compute_timeout() {
    let cache: Stampede<u64> =
        settings().ttl(5 * SECOND).compute_timeout(3 * SECOND).build().unwrap();
    let slow = Origin::taking(2900 * MS);
    for _ in 0..100 {
        let n = ask_now(&cache, &slow).await;
        let age = slow.started_at()[n as usize - 1].elapsed();
        assert!(age <= 8 * SECOND, "{age:?}");
        pass(370 * MS).await;
    }
    let calls = 37_000_usize.div_ceil(5000);
    assert!(slow.calls() <= calls, "{} calls: each value lives for 5 s", slow.calls());
}

#[tokio::test(start_paused = true)]
async fn what_is_invalidated_during_a_computation_is_not_stored_however_its_ttl_counts() {
    for everything in [false, true] {
        let cache: Stampede<u64> = settings().ttl(1500 * MS).build().unwrap();
        let slow = Origin::taking(2 * SECOND);
        let compute = slow.compute();
        let computed =
            || async move { Ok::<_, OriginError>(Computed::new(compute().await?).tag("t")) };
        let handle = cache.clone();
        let computing = spawn(async move { handle.get_or_compute_with("k", computed).await });
        pass(SECOND).await;
        if everything {
            cache.invalidate_all().await;
        } else {
            cache.invalidate_tag("t").await;
        }
        assert_eq!(computing.await.unwrap().unwrap(), 1);
        assert_eq!(cache.get("k").await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_too_heavy_to_be_stored_does_not_disturb_a_computation_that_began_after_it() {
    let weigher = |value: &u64| if *value == 1 { usize::MAX } else { 8 };
    let cache: Stampede<u64> = settings().weigher(weigher).build().unwrap();
    let origin = Origin::taking(10 * SECOND);
    let heavy = spawn({
        let (cache, compute) = (cache.clone(), origin.compute());
        async move { cache.refresh("k", compute).await }
    });
    pass(8 * SECOND).await;
    cache.invalidate("k").await;
    let later = spawn({
        let (cache, compute) = (cache.clone(), origin.compute());
        async move { cache.get_or_compute("k", compute).await }
    });
    assert_eq!(heavy.await.unwrap().unwrap(), 1);
    assert_eq!(later.await.unwrap().unwrap(), 2);
    assert_eq!(cache.get("k").await, Some(2), "it is stored");
}

#[tokio::test(start_paused = true)]
async fn a_fresh_read_waits_no_longer_because_leaders_give_up_in_the_queue() {
    let cache: Stampede<u64> = settings()
        .max_computations(1)
        .compute_timeout(60 * MINUTE)
        .wait_timeout(10 * SECOND)
        .build()
        .unwrap();
    let busy = Origin::taking(50 * MINUTE);
    let other = spawn({
        let (cache, compute) = (cache.clone(), busy.compute());
        async move { cache.get_or_compute("other", compute).await }
    });
    all_have_run().await;
    let origin = Origin::new();
    let queue = |cache: &Stampede<u64>| {
        let (cache, compute) = (cache.clone(), origin.compute());
        spawn(async move { cache.get_or_compute("k", compute).await })
    };
    let mut queued = vec![queue(&cache)];
    pass(SECOND).await;
    let fresh = spawn({
        let (cache, compute) = (cache.clone(), origin.compute());
        async move {
            let from = Instant::now();
            let refused = cache.refresh("k", compute).await.unwrap_err();
            (refused.kind(), from.elapsed())
        }
    });
    // Each of them leads when the one before it has given up.
    for _ in 0..10 {
        pass(8 * SECOND).await;
        queued.push(queue(&cache));
    }
    let (kind, took) = fresh.await.unwrap();
    assert!(matches!(kind, ErrorKind::Overloaded | ErrorKind::WaitTimeout), "{kind:?}");
    assert_eq!(took, 10 * SECOND, "its own `wait_timeout`: no computation has begun");
    other.abort();
    gather(queued).await;
}
