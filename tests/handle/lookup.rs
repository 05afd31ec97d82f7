//! What `lookup` says of an entry of this process.

use std::time::Duration;

use tower_stampede::{Computed, Mode, Stampede};

const SECOND: Duration = Duration::from_secs(1);

fn cache() -> Stampede<String> {
    Stampede::builder("test")
        .ttl(SECOND * 60)
        .stale_for(SECOND * 30)
        .stale_if_error(SECOND * 300)
        .jitter(0.0)
        .build()
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn it_says_how_old_an_entry_is_and_how_long_it_may_be_used() {
    let cache = cache();
    assert!(cache.lookup("k").is_none());
    cache.put_with("k", Computed::new("x".repeat(100)).tag("a").tag("b")).await;
    tokio::time::advance(SECOND * 20).await;
    let entry = cache.lookup("k").unwrap();
    assert_eq!((entry.age, entry.ttl_left), (SECOND * 20, SECOND * 40));
    assert_eq!((entry.stale_left, entry.stale_if_error_left), (SECOND * 70, SECOND * 340));
    assert_eq!(entry.tags, ["a".into(), "b".into()]);
    assert_eq!(entry.bytes, cache.stats().bytes);
    tokio::time::advance(SECOND * 50).await;
    let entry = cache.lookup("k").unwrap();
    assert_eq!((entry.ttl_left, entry.stale_left), (Duration::ZERO, SECOND * 20));
    tokio::time::advance(SECOND * 400).await;
    assert!(cache.lookup("k").is_none(), "of no use any more");
}

#[tokio::test(start_paused = true)]
async fn it_shows_no_entry_that_was_invalidated() {
    let cache = cache();
    for invalidate_by_tag in [false, true] {
        cache.put_with("k", Computed::new("x".into()).tag("t")).await;
        assert!(cache.lookup("k").is_some());
        if invalidate_by_tag {
            cache.invalidate_tag("t").await;
        } else {
            cache.invalidate("k").await;
        }
        assert!(cache.lookup("k").is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn it_counts_nothing_computes_nothing_and_works_in_every_mode() {
    let cache = cache();
    cache.put("k", "x".into()).await;
    let before = cache.stats();
    for mode in [Mode::Off, Mode::Observe, Mode::On] {
        cache.set_mode(mode);
        assert!(cache.lookup("k").is_some() && cache.lookup("other").is_none());
    }
    assert_eq!(cache.stats(), before);
}
