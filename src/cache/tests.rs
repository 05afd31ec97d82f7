//! The invalidation log and the store together.

use std::time::Duration;

use crate::{Computed, Stampede};

fn cache(max_tags: usize) -> Stampede<u32> {
    let builder = Stampede::builder("test").ttl(Duration::from_secs(60));
    builder.max_logged_tags(max_tags).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_log_never_holds_more_than_its_bound() {
    let cache = cache(100);
    cache.put_with("k", Computed::new(1).tag("mine")).await;
    let mut most = 0;
    for n in 0..2_000_u32 {
        cache.invalidate_tag(n).await;
        most = most.max(cache.0.engine.log.len());
    }
    assert_eq!(most, 100);
    assert_eq!(cache.get("k").await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn the_tidying_task_makes_room_from_three_quarters_of_the_bound_on() {
    let cache = cache(100);
    cache.put_with("k", Computed::new(1).tag("mine")).await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    let mut most = 0;
    for n in 0..2_000_u32 {
        cache.invalidate_tag(n).await;
        most = most.max(cache.0.engine.log.len());
        // Less than half a minute in all: the sweep by the clock has no
        // part in it.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(most, 75);
    assert_eq!(cache.get("k").await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_check_removes_the_dead_entries() {
    let cache = cache(8);
    for n in 0..100_u32 {
        cache.put_with(n, Computed::new(n).tag("one").tag(("each", n))).await;
    }
    cache.invalidate_tag("one").await;
    for n in 0..8_u32 {
        cache.invalidate_tag(n).await;
    }
    assert_eq!(cache.stats().entries, 0);
}
