//! How long a key is left alone after failures, and what ends that.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower::{ServiceExt, service_fn};
use tower_stampede::{Computed, Error, ErrorKind, Event, Stampede};

use crate::kit::origin::*;
use crate::kit::spawn;

type Answered = Result<u64, Error>;

fn ask(cache: &Stampede<u64>, origin: &Origin) -> JoinHandle<Answered> {
    let (cache, compute) = (cache.clone(), origin.compute());
    spawn(async move { cache.get_or_compute("k", compute).await })
}

/// A key whose hold has grown to a minute in an outage of ten minutes, while
/// its stale value was served. The last attempt failed just now.
async fn after_a_long_outage() -> (Stampede<u64>, Origin) {
    let cache: Stampede<u64> = settings()
        .ttl(10 * SECOND)
        .stale_if_error(24 * 60 * MINUTE)
        .max_entries(100)
        .hold(SECOND)
        .build()
        .unwrap();
    let origin = Origin::new();
    origin.usually(Answer::Fail);
    cache.put_with("k", Computed::new(1000).tag("t")).await;
    pass(11 * SECOND).await;
    let mut attempts = 0;
    for _ in 0..600 {
        assert_eq!(ask(&cache, &origin).await.unwrap().unwrap(), 1000);
        attempts = origin.calls();
        pass(SECOND).await;
    }
    while origin.calls() == attempts {
        assert_eq!(ask(&cache, &origin).await.unwrap().unwrap(), 1000);
        pass(100 * MS).await;
    }
    let starts = origin.started_at();
    let rest = starts[starts.len() - 1] - starts[starts.len() - 2];
    assert!(rest > 50 * SECOND, "the hold has grown: {rest:?}");
    origin.usually(Answer::Value);
    (cache, origin)
}

/// Asks every 100 ms until there is a value, and returns how long that took.
async fn refused_for(cache: &Stampede<u64>, origin: &Origin) -> Duration {
    let from = Instant::now();
    while let Err(error) = ask(cache, origin).await.unwrap() {
        assert_eq!(error.kind(), ErrorKind::Held);
        pass(100 * MS).await;
    }
    from.elapsed()
}

// ---- a hold that has grown ----

#[tokio::test(start_paused = true)]
async fn after_an_invalidation_a_grown_hold_refuses_no_caller() {
    let (cache, origin) = after_a_long_outage().await;
    cache.invalidate("k").await;
    assert_eq!(refused_for(&cache, &origin).await, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn after_an_invalidation_by_tag_a_grown_hold_lasts_as_long_as_one_without_a_value() {
    let (cache, origin) = after_a_long_outage().await;
    cache.invalidate_tag("t").await;
    let took = refused_for(&cache, &origin).await;
    assert!(took <= SECOND, "refused for {took:?}");
}

#[tokio::test(start_paused = true)]
async fn after_everything_is_invalidated_a_grown_hold_lasts_as_long_as_one_without_a_value() {
    let (cache, origin) = after_a_long_outage().await;
    cache.invalidate_all().await;
    let took = refused_for(&cache, &origin).await;
    assert!(took <= SECOND, "refused for {took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_put_ends_a_grown_hold() {
    let (cache, origin) = after_a_long_outage().await;
    let short = Computed::new(7).ttl(2 * SECOND).stale_if_error(Duration::ZERO);
    cache.put_with("k", short).await;
    assert_eq!(ask(&cache, &origin).await.unwrap().unwrap(), 7);
    pass(3 * SECOND).await;
    assert_eq!(refused_for(&cache, &origin).await, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_put_of_a_value_that_may_not_be_stored_ends_a_grown_hold() {
    let (cache, origin) = after_a_long_outage().await;
    cache.put_with("k", Computed::new(7).do_not_store()).await;
    assert_eq!(refused_for(&cache, &origin).await, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_successful_refresh_ends_a_grown_hold() {
    let (cache, origin) = after_a_long_outage().await;
    let fresh = cache.refresh("k", origin.compute()).await.unwrap();
    pass(11 * SECOND).await;
    let next = ask(&cache, &origin).await.unwrap().unwrap();
    assert_eq!(next, fresh + 1, "computed, and not the stale value");
}

#[tokio::test(start_paused = true)]
async fn a_caller_without_a_stale_value_is_refused_for_the_first_hold_only() {
    let (cache, origin) = after_a_long_outage().await;
    // The value makes room for others, which are used as well; nothing is invalidated.
    for key in 0..1000_u64 {
        cache.put(key, key).await;
        assert_eq!(cache.get(key).await, Some(key));
    }
    assert_eq!(cache.get("k").await, None);
    let error = ask(&cache, &origin).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held, "the key failed less than a second ago");
    assert!(error.retry_after().unwrap() <= SECOND, "{:?}", error.retry_after());
    let took = refused_for(&cache, &origin).await;
    assert!(took <= SECOND, "refused for {took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_caller_with_a_stale_value_is_served_it_for_the_whole_of_a_grown_hold() {
    let (cache, origin) = after_a_long_outage().await;
    let calls = origin.calls();
    pass(50 * SECOND).await;
    assert_eq!(ask(&cache, &origin).await.unwrap().unwrap(), 1000);
    assert_eq!(origin.calls(), calls);
    pass(10 * SECOND).await;
    assert_ne!(ask(&cache, &origin).await.unwrap().unwrap(), 1000);
}

#[tokio::test(start_paused = true)]
async fn failures_with_a_quiet_day_between_them_are_not_in_a_row() {
    let (cache, origin) = after_a_long_outage().await;
    cache.put_with("k", Computed::new(1).ttl(SECOND).stale_if_error(48 * 60 * MINUTE)).await;
    origin.usually(Answer::Fail);
    for _ in 0..60 {
        pass(SECOND).await;
        assert_eq!(ask(&cache, &origin).await.unwrap().unwrap(), 1);
    }
    pass(24 * 60 * MINUTE).await;
    origin.next([Answer::Fail]).usually(Answer::Value);
    assert_eq!(ask(&cache, &origin).await.unwrap().unwrap(), 1);
    pass(SECOND).await;
    assert_ne!(ask(&cache, &origin).await.unwrap().unwrap(), 1, "the hold is short again");
}

// ---- a row that did not exist ----

#[tokio::test(start_paused = true)]
async fn a_row_that_did_not_exist_is_found_at_once_after_it_is_created_and_invalidated() {
    let cache: Stampede<u64> = settings().hold(30 * SECOND).build().unwrap();
    let origin = Origin::new();
    origin.next([Answer::Fail]);
    assert_eq!(ask(&cache, &origin).await.unwrap().unwrap_err().kind(), ErrorKind::Inner);
    assert_eq!(ask(&cache, &origin).await.unwrap().unwrap_err().kind(), ErrorKind::Held);
    cache.invalidate("k").await;
    let got = ask(&cache, &origin).await.unwrap();
    assert!(got.is_ok(), "{got:?}");
}

#[tokio::test(start_paused = true)]
async fn a_row_that_is_created_and_invalidated_during_the_look_up_is_found_at_once() {
    let cache: Stampede<u64> = settings().hold(30 * SECOND).build().unwrap();
    let origin = Origin::taking(100 * MS);
    origin.next([Answer::Fail]);
    let too_early = ask(&cache, &origin);
    pass(50 * MS).await;
    cache.invalidate("k").await;
    assert_eq!(too_early.await.unwrap().unwrap_err().kind(), ErrorKind::Inner);
    let got = ask(&cache, &origin).await.unwrap();
    assert!(got.is_ok(), "{got:?}");
}

#[tokio::test(start_paused = true)]
async fn a_row_that_is_put_ends_the_hold_of_its_key() {
    let cache: Stampede<u64> = settings().hold(30 * SECOND).build().unwrap();
    let origin = Origin::new();
    origin.next([Answer::Fail]);
    ask(&cache, &origin).await.unwrap().unwrap_err();
    cache.put_with("k", Computed::new(7).ttl(SECOND)).await;
    pass(2 * SECOND).await;
    let got = ask(&cache, &origin).await.unwrap();
    assert!(got.is_ok(), "{got:?}");
}

// ---- counts ----

fn held_events(events: &mut tokio::sync::broadcast::Receiver<Event>) -> usize {
    std::iter::from_fn(|| events.try_recv().ok())
        .filter(|event| matches!(event, Event::Held { .. }))
        .count()
}

#[tokio::test(start_paused = true)]
async fn callers_that_are_served_stale_during_a_hold_are_not_counted_as_held() {
    // Once served while it would be refreshed, once in place of the failure.
    for (stale_for, stale_if_error) in
        [(60 * MINUTE, Duration::ZERO), (Duration::ZERO, 60 * MINUTE)]
    {
        let cache: Stampede<u64> = settings()
            .stale_for(stale_for)
            .stale_if_error(stale_if_error)
            .hold(30 * SECOND)
            .build()
            .unwrap();
        let mut events = cache.events();
        let origin = Origin::new();
        origin.usually(Answer::Fail);
        cache.put("k", 1000).await;
        pass(MINUTE).await;
        for _ in 0..100 {
            assert_eq!(ask(&cache, &origin).await.unwrap().unwrap(), 1000);
            pass(10 * MS).await;
        }
        assert_eq!(origin.calls(), 1);
        let counted = (cache.stats().held, held_events(&mut events));
        assert_eq!(counted, (0, 0), "stats and events, with {stale_for:?}, {stale_if_error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn callers_that_are_refused_during_a_hold_are_counted_as_held() {
    let cache: Stampede<u64> = settings().hold(30 * SECOND).build().unwrap();
    let mut events = cache.events();
    let origin = Origin::new();
    origin.usually(Answer::Fail);
    for _ in 0..=100 {
        ask(&cache, &origin).await.unwrap().unwrap_err();
    }
    assert_eq!((cache.stats().held, held_events(&mut events)), (100, 100));
}

// ---- panics ----

#[tokio::test(start_paused = true)]
async fn two_panics_a_week_apart_are_not_in_a_row() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let origin = Origin::taking(100 * MS);
    origin.next([Answer::Panic, Answer::Panic]);
    assert!(ask(&cache, &origin).await.unwrap_err().is_panic());
    pass(7 * 24 * 60 * MINUTE).await;
    let leader = ask(&cache, &origin);
    all_have_run().await;
    let waiter = ask(&cache, &origin);
    assert!(leader.await.unwrap_err().is_panic());
    let got = waiter.await.unwrap();
    assert_eq!(got.unwrap(), 3, "a waiter is elected after a first panic");
}

/// Callers that compute inside their own task, in which another part panics
/// later.
fn page_with_a_bug(cache: &Stampede<u64>, origin: &Origin, later: Duration) -> [JoinHandle<()>; 2] {
    let bug = move || async move {
        pass(later).await;
        panic!("another part of the page panics, as the test told it");
    };
    let (scoped, load) = (cache.clone(), origin.clone());
    let scoped = spawn(async move {
        let value = scoped.get_or_compute_scoped("scoped", || load.load());
        let _: (_, ()) = tokio::join!(value, bug());
    });
    let load = origin.clone();
    let layer = cache.layer(|(): &()| Some("layer")).inline();
    let service = tower::Layer::layer(&layer, service_fn(move |()| load.load()));
    let layer = spawn(async move {
        let _: (_, ()) = tokio::join!(service.oneshot(()), bug());
    });
    [scoped, layer]
}

#[tokio::test(start_paused = true)]
async fn a_panic_elsewhere_in_the_task_of_an_inline_caller_is_not_counted_against_the_key() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let slow = Origin::taking(SECOND);
    for _ in 0..3 {
        for page in page_with_a_bug(&cache, &slow, 100 * MS) {
            assert!(page.await.unwrap_err().is_panic());
        }
    }
    assert_eq!((slow.calls(), slow.dropped()), (6, 6));
    for key in ["scoped", "layer"] {
        let got = cache.get_or_compute(key, Origin::new().compute()).await;
        assert!(got.is_ok(), "{key}: {got:?}");
    }
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_elected_after_every_panic_elsewhere_in_the_leaders_task() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let slow = Origin::taking(SECOND);
    let pages: Vec<_> =
        (1..=3).flat_map(|n| page_with_a_bug(&cache, &slow, n * 100 * MS)).collect();
    all_have_run().await;
    let waiter = spawn({
        let (cache, compute) = (cache.clone(), slow.compute());
        async move { cache.get_or_compute("scoped", compute).await }
    });
    for page in pages {
        assert!(page.await.unwrap_err().is_panic());
    }
    let got = waiter.await.unwrap();
    assert!(got.is_ok(), "{got:?}");
}

// ---- what is remembered ----

#[derive(Debug)]
struct Large(#[allow(dead_code, reason = "only counted")] Arc<()>);

impl fmt::Display for Large {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a large error")
    }
}

impl std::error::Error for Large {}

#[tokio::test(start_paused = true)]
async fn a_cache_that_only_fails_forgets_its_failures() {
    for scoped in [false, true] {
        let cache: Stampede<u64> = settings().build().unwrap();
        let errors = Arc::new(());
        for key in 0..1000_u64 {
            let error = Large(Arc::clone(&errors));
            let failing = || async { Err::<u64, _>(error) };
            let got = if scoped {
                cache.get_or_compute_scoped(key, failing).await
            } else {
                cache.get_or_compute(key, failing).await
            };
            got.unwrap_err();
        }
        pass(60 * MINUTE).await;
        assert_eq!(Arc::strong_count(&errors) - 1, 0, "errors kept after an hour");
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalidated_key_does_not_keep_its_error() {
    let cache: Stampede<u64> = settings().hold(30 * SECOND).build().unwrap();
    let errors = Arc::new(());
    let error = Large(Arc::clone(&errors));
    cache.get_or_compute("k", || async { Err::<u64, _>(error) }).await.unwrap_err();
    assert_eq!(Arc::strong_count(&errors) - 1, 1, "the hold repeats it");
    cache.invalidate("k").await;
    assert_eq!(Arc::strong_count(&errors) - 1, 0);
}

// ---- the room for errors ----

/// An error whose text takes a quarter of a mebibyte, a sixteenth of the room.
#[derive(Debug)]
struct Long;

impl fmt::Display for Long {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&"x".repeat(1 << 18))
    }
}

impl std::error::Error for Long {}

async fn fail_long(cache: &Stampede<u64>, key: u64) -> Error {
    cache.get_or_compute(key, || async { Err::<u64, _>(Long) }).await.unwrap_err()
}

#[tokio::test(start_paused = true)]
async fn a_hold_whose_error_finds_no_room_is_a_hold_without_it() {
    let cache: Stampede<u64> = settings().hold(10 * SECOND).build().unwrap();
    let mut kept = 0;
    for key in 0..40 {
        assert_eq!(fail_long(&cache, key).await.kind(), ErrorKind::Inner, "its own caller has it");
        let held = fail_long(&cache, key).await;
        assert_eq!(held.kind(), ErrorKind::Held);
        kept += usize::from(held.inner::<Long>().is_some());
    }
    assert_eq!(kept, 15, "and what else an error takes");
    // Holds that are over make room: at the latest when the cache is tidied.
    pass(MINUTE).await;
    fail_long(&cache, 100).await;
    assert!(fail_long(&cache, 100).await.inner::<Long>().is_some());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_finds_no_room_is_computed_again() {
    let remember = |_: &(dyn std::error::Error + Send + Sync + 'static)| {
        tower_stampede::FailureAction::Remember(MINUTE)
    };
    let cache: Stampede<u64> = settings().on_failure(remember).build().unwrap();
    for key in 0..40 {
        for _ in 0..2 {
            let error = fail_long(&cache, key).await;
            assert!(error.inner::<Long>().is_some(), "it is the answer: {:?}", error.kind());
        }
    }
    assert_eq!(cache.stats().computations, 15 + 2 * 25);
    let small = || async { Err::<u64, _>(OriginError(7)) };
    cache.get_or_compute(100_u64, small).await.unwrap_err();
    cache.get_or_compute(100_u64, small).await.unwrap_err();
    assert_eq!(cache.stats().computations, 15 + 2 * 25 + 1, "there is room for a small one");
}
