//! What the cache has saved, in sum and by key and tag.

use std::time::Duration;

use tower_stampede::{Computed, Stampede};

use crate::kit::origin::*;

async fn hit(cache: &Stampede<u64>, key: &str, times: u32) {
    for _ in 0..times {
        cache.get(key).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn each_hit_and_each_caller_that_joins_saves_what_the_computation_took() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(2 * SECOND));
    let results = herd(4, |_| {
        let (cache, compute) = (cache.clone(), origin.compute());
        async move { cache.get_or_compute("k", compute).await }
    });
    assert!(results.await.iter().all(Result::is_ok));
    assert_eq!(cache.stats().origin_time_saved, 6 * SECOND, "three have joined");
    hit(&cache, "k", 5).await;
    assert_eq!(cache.stats().origin_time_saved, 16 * SECOND);
    let (key, savings) = cache.top(20).keys.remove(0);
    assert_eq!((key.as_str(), savings.joined, savings.hits), ("k", 3, 0));
    assert_eq!((savings.waited, savings.origin_time_saved), (6 * SECOND, 6 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn what_is_served_in_place_of_a_failure_saves_nothing() {
    let cache = settings().stale_if_error(60 * MINUTE).build().unwrap();
    let origin = Origin::taking(2 * SECOND);
    cache.get_or_compute("k", origin.compute()).await.unwrap();
    origin.usually(Answer::Fail);
    pass(2 * MINUTE).await;
    assert_eq!(cache.get_or_compute("k", origin.compute()).await.unwrap(), 1);
    assert_eq!(cache.stats().origin_time_saved, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_keys_that_have_saved_the_most_come_first_however_often_they_were_used() {
    let cache: Stampede<u64> = settings().build().unwrap();
    for (key, takes, hits) in [("slow", SECOND, 32), ("often", MS, 3200), ("rare", SECOND, 8)] {
        let origin = Origin::taking(takes);
        cache.get_or_compute(key, origin.compute()).await.unwrap();
        hit(&cache, key, hits).await;
    }
    let top = cache.top(20);
    let hits: Vec<_> = top.keys.iter().map(|(key, it)| (key.as_str(), it.hits)).collect();
    assert_eq!(hits, [("slow", 32), ("often", 3200)], "what was used 8 times is not known yet");
    assert_eq!(top.keys[0].1.origin_time_saved, 32 * SECOND);
    assert_eq!(cache.top(1).keys.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn uses_are_counted_across_the_values_of_a_key_that_replace_each_other() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(SECOND));
    for _ in 0..8 {
        cache.refresh("k", origin.compute()).await.unwrap();
        hit(&cache, "k", 4).await;
    }
    assert_eq!(cache.top(1).keys[0].1.hits, 32);
}

#[tokio::test(start_paused = true)]
async fn a_tag_has_the_sum_of_its_entries() {
    let cache: Stampede<u64> = settings().build().unwrap();
    for key in ["a", "b"] {
        let load = || async {
            tokio::time::sleep(SECOND).await;
            Ok::<_, OriginError>(Computed::new(1).tag("users"))
        };
        cache.get_or_compute_with(key, load).await.unwrap();
        hit(&cache, key, 16).await;
    }
    let tags = cache.top(20).tags;
    assert_eq!(tags.len(), 1);
    assert_eq!((tags[0].0.as_str(), tags[0].1.hits), ("users", 32));
    assert_eq!(tags[0].1.origin_time_saved, 32 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_has_saved_more_takes_the_row_of_one_that_has_saved_less() {
    let cache: Stampede<u64> = settings().build().unwrap();
    for key in 0..300_u64 {
        let origin = Origin::taking((key as u32 + 1) * MS);
        cache.get_or_compute(key, origin.compute()).await.unwrap();
        for _ in 0..16 {
            cache.get(key).await.unwrap();
        }
    }
    let keys = cache.top(usize::MAX).keys;
    assert_eq!(keys.len(), 128);
    assert_eq!((keys[0].0.as_str(), keys[127].0.as_str()), ("299", "172"));
}

#[tokio::test(start_paused = true)]
async fn a_long_key_is_known_by_its_beginning_and_another_with_that_beginning_is_another() {
    let (cache, origin) = (settings::<u64>().build().unwrap(), Origin::taking(SECOND));
    let long = "x".repeat(1000);
    for end in ["a", "b"] {
        let key = format!("{long}{end}");
        cache.get_or_compute(key.as_str(), origin.compute()).await.unwrap();
        hit(&cache, &key, 16).await;
    }
    let keys = cache.top(20).keys;
    assert!(keys.iter().all(|(key, it)| *key == long[..192] && it.hits == 16));
    assert_eq!(keys.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_herd_that_has_joined_is_listed_although_keys_that_saved_more_than_one_caller_fill_the_rows()
 {
    let (cache, origin) = (settings::<u64>().build().unwrap(), Origin::taking(SECOND));
    for key in 0..128_u64 {
        cache.get_or_compute(key, origin.compute()).await.unwrap();
        for _ in 0..16 {
            cache.get(key).await.unwrap();
        }
    }
    let slow = Origin::taking(10 * SECOND);
    let results = herd(100, |_| {
        let (cache, compute) = (cache.clone(), slow.compute());
        async move { cache.get_or_compute("herd", compute).await }
    });
    assert!(results.await.iter().all(Result::is_ok));
    let (key, savings) = cache.top(1).keys.remove(0);
    assert_eq!((key.as_str(), savings.joined), ("herd", 99));
    assert_eq!(savings.origin_time_saved, 990 * SECOND);
}
