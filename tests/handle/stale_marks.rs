//! Values that are made stale by their tags (a soft purge), in one process.

use std::time::Duration;

use tower_stampede::{Computed, Event, Stampede};

use crate::kit::origin::*;
use crate::kit::spawn;

fn stale() -> Stampede<u64> {
    settings().stale_for(10 * MINUTE).stale_if_error(20 * MINUTE).build().unwrap()
}

async fn ask(cache: &Stampede<u64>, origin: &Origin, key: &'static str) -> u64 {
    let load = origin.compute();
    let compute = move || async move { load().await.map(|n| Computed::new(n).tag("t").tag(key)) };
    cache.get_or_compute_with(key, compute).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_value_that_was_made_stale_is_served_while_one_caller_refreshes_it() {
    let (cache, origin) = (stale(), Origin::taking(SECOND));
    assert_eq!(ask(&cache, &origin, "k").await, 1);
    assert!(cache.mark_tag_stale("t").await.local);
    let answers = herd(100, |_| {
        let (cache, origin) = (cache.clone(), origin.clone());
        async move { ask(&cache, &origin, "k").await }
    });
    assert!(answers.await.iter().all(|answer| *answer == 1));
    pass(2 * SECOND).await;
    assert_eq!(ask(&cache, &origin, "k").await, 2);
    assert_eq!((origin.calls(), cache.stats().stale), (2, 100));
    pass(MINUTE / 2).await;
    assert_eq!(ask(&cache, &origin, "k").await, 2, "the new value is not stale");
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_stale_windows_begin_with_the_mark() {
    let (cache, origin) = (stale(), Origin::new());
    ask(&cache, &origin, "k").await;
    cache.mark_tags_stale(["t", "other"]).await;
    let info = cache.lookup("k").expect("it is there");
    assert_eq!((info.ttl_left, info.stale_left), (Duration::ZERO, 10 * MINUTE));
    assert_eq!(info.stale_if_error_left, 20 * MINUTE);
    pass(MINUTE).await;
    // A second mark does not make them longer.
    cache.mark_tag_stale("t").await;
    assert_eq!(cache.lookup("k").unwrap().stale_left, 9 * MINUTE);
    pass(9 * MINUTE).await;
    assert_eq!(cache.get("k").await, None);
    assert_eq!(ask(&cache, &origin, "k").await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_is_fresh_for_ever_has_its_stale_windows_from_the_mark_on() {
    type Mark = fn(Stampede<u64>) -> futures_util::future::BoxFuture<'static, ()>;
    let marks: [Mark; 4] = [
        |cache| Box::pin(async move { assert!(cache.mark_stale("k").await.local) }),
        |cache| Box::pin(async move { assert!(cache.mark_stale_now("k")) }),
        |cache| Box::pin(async move { assert!(cache.mark_tag_stale("t").await.local) }),
        |cache| Box::pin(async move { assert!(cache.mark_all_stale().await.local) }),
    ];
    for mark in marks {
        let (cache, origin) = (stale(), Origin::new());
        let value = || Computed::new(7).tag("t").ttl(Duration::MAX);
        cache.put_with("k", value()).await;
        pass(60 * MINUTE).await;
        mark(cache.clone()).await;
        let info = cache.lookup("k").expect("it is there");
        assert_eq!((info.ttl_left, info.stale_left), (Duration::ZERO, 10 * MINUTE));
        assert_eq!(info.stale_if_error_left, 20 * MINUTE);
        pass(9 * MINUTE).await;
        assert_eq!(cache.get("k").await, Some(7));
        pass(10 * MINUTE).await;
        origin.usually(Answer::Fail);
        assert_eq!(ask(&cache, &origin, "k").await, 7, "in an outage");
        pass(MINUTE).await;
        assert_eq!(cache.lookup("k"), None);
        // Without any end it is served until it is refreshed.
        cache.put_with("k", value().stale_for(Duration::MAX)).await;
        mark(cache.clone()).await;
        pass(24 * 60 * MINUTE).await;
        assert_eq!(cache.get("k").await, Some(7));
    }
}

#[tokio::test(start_paused = true)]
async fn a_value_without_a_stale_window_is_computed_again_by_the_next_caller() {
    let (cache, origin) = (settings().build().unwrap(), Origin::new());
    assert_eq!(ask(&cache, &origin, "k").await, 1);
    cache.mark_tag_stale("t").await;
    assert_eq!(cache.get("k").await, None);
    assert_eq!(ask(&cache, &origin, "k").await, 2);
    assert_eq!(ask(&cache, &origin, "k").await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_mark_concerns_the_values_of_its_tag_alone_and_that_of_everything_all() {
    let (cache, origin) = (stale(), Origin::new());
    let keys = ["a", "b"];
    let marked = async |mark: &'static str| {
        for key in keys {
            cache.invalidate(key).await;
            ask(&cache, &origin, key).await;
        }
        cache.put("plain", 100).await;
        cache.mark_tag_stale(mark).await;
        let all = keys.iter().chain(&["plain"]);
        let is_stale = |key: &&&str| cache.lookup(**key).unwrap().ttl_left.is_zero();
        all.filter(is_stale).copied().collect::<Vec<_>>()
    };
    assert_eq!(marked("a").await, ["a"]);
    assert_eq!(marked("t").await, ["a", "b"]);
    assert_eq!(marked("none").await, [""; 0]);
    assert_eq!(marked("*").await, ["a", "b", "plain"]);
    assert_eq!(marked("a").await, ["a"], "what came after everything is fresh");
    cache.mark_all_stale().await;
    assert!(cache.lookup("b").unwrap().ttl_left.is_zero());
}

#[tokio::test(start_paused = true)]
async fn a_computation_that_ran_during_the_mark_is_neither_joined_nor_stored() {
    for mark in ["t", "*"] {
        let (cache, origin) = (stale(), Origin::taking(SECOND));
        let early = {
            let (cache, origin) = (cache.clone(), origin.clone());
            spawn(async move { ask(&cache, &origin, "k").await })
        };
        pass(SECOND / 2).await;
        cache.mark_tag_stale(mark).await;
        assert_eq!(ask(&cache, &origin, "k").await, 2, "{mark}");
        assert_eq!(early.await.unwrap(), 1, "its own caller has it");
        assert_eq!(ask(&cache, &origin, "k").await, 2, "{mark}");
        assert_eq!(origin.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalidation_after_a_mark_ends_the_value_and_a_mark_revives_none() {
    let (cache, origin) = (stale(), Origin::new());
    ask(&cache, &origin, "k").await;
    cache.mark_tag_stale("t").await;
    cache.invalidate_tag("t").await;
    assert_eq!(cache.get("k").await, None);
    cache.mark_tag_stale("t").await;
    assert_eq!(cache.get("k").await, None);
    ask(&cache, &origin, "k").await;
    assert_eq!(cache.lookup("k").unwrap().ttl_left, MINUTE);
}

#[tokio::test(start_paused = true)]
async fn a_marked_value_stays_marked_when_the_log_drops_its_record() {
    let cache = settings().stale_for(10 * MINUTE).max_logged_tags(64).build().unwrap();
    let origin = Origin::new();
    ask(&cache, &origin, "k").await;
    cache.mark_tag_stale("t").await;
    for n in 0..1000_u32 {
        cache.mark_tag_stale(n).await;
    }
    let info = cache.lookup("k").expect("an unrelated mark ends nothing");
    assert!(info.ttl_left.is_zero() && !info.stale_left.is_zero());
}

#[tokio::test(start_paused = true)]
async fn a_mark_is_an_event_of_its_own_and_counts_as_an_invalidation() {
    let cache = stale();
    let mut events = cache.events();
    cache.mark_tag_stale("t").await;
    cache.mark_all_stale().await;
    let mut tags = Vec::new();
    while let Ok(event) = events.try_recv() {
        match event {
            Event::TagMarkedStale { tag, .. } => tags.push(tag),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(tags, ["t".into(), "*".into()]);
    assert_eq!(cache.stats().invalidations, 2);
}

#[tokio::test(start_paused = true)]
async fn a_mark_leaves_a_value_with_a_long_lifetime_its_whole_stale_window() {
    for years in [1, 10, 100] {
        let builder = settings().ttl(365 * 24 * 60 * MINUTE * years);
        let (cache, origin) = (builder.stale_for(SECOND).build().unwrap(), Origin::new());
        for _ in 0..10 {
            ask(&cache, &origin, "k").await;
            pass(SECOND / 3).await;
            cache.mark_tag_stale("t").await;
            let left = cache.lookup("k").map(|info| info.stale_left);
            let left = left.expect("it was marked a moment ago");
            assert!(left <= SECOND && SECOND - left < MS, "{years} years: {left:?}");
            cache.invalidate("k").await;
        }
    }
}
