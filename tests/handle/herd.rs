//! A herd on one key costs one computation, whatever state the key is in.

use tokio::time::Instant;
use tower_stampede::{Error, Stampede};

use crate::kit::origin::*;

const HERDS: [usize; 3] = [10, 1000, 10_000];

async fn ask(cache: Stampede<u64>, origin: Origin) -> Result<u64, Error> {
    cache.get_or_compute("k", origin.compute()).await
}

async fn all_get(expected: u64, callers: usize, cache: &Stampede<u64>, origin: &Origin) {
    for answer in herd(callers, |_| ask(cache.clone(), origin.clone())).await {
        assert_eq!(answer.unwrap(), expected);
    }
    assert_quiet(cache);
}

#[tokio::test(start_paused = true)]
async fn a_cold_key_is_computed_once() {
    for callers in HERDS {
        let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
        all_get(1, callers, &cache, &origin).await;
        assert_eq!(origin.calls(), 1, "{callers} callers");
        let stats = cache.stats();
        assert_eq!((stats.computed, stats.joined), (1, callers as u64 - 1));
    }
}

#[tokio::test(start_paused = true)]
async fn an_expired_key_is_computed_once_more() {
    for callers in HERDS {
        let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
        ask(cache.clone(), origin.clone()).await.unwrap();
        pass(MINUTE).await;
        all_get(2, callers, &cache, &origin).await;
        assert_eq!(origin.calls(), 2, "{callers} callers");
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalidated_key_is_computed_once_more() {
    for callers in HERDS {
        let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
        ask(cache.clone(), origin.clone()).await.unwrap();
        assert!(cache.invalidate("k").await.local);
        all_get(2, callers, &cache, &origin).await;
        assert_eq!(origin.calls(), 2, "{callers} callers");
    }
}

#[tokio::test(start_paused = true)]
async fn callers_that_arrive_while_it_is_computed_wait_for_the_same_result() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
    let answers = herd(100, |i| {
        let (cache, origin) = (cache.clone(), origin.clone());
        async move {
            pass(MS * i as u32).await;
            ask(cache, origin).await.unwrap()
        }
    });
    assert_eq!(answers.await, [1; 100]);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_herd_with_borrowing_computations_is_computed_once_too() {
    for callers in [10, 1000] {
        let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
        let answers = herd(callers, |_| {
            let (cache, origin) = (cache.clone(), origin.clone());
            async move { cache.get_or_compute_scoped("k", || origin.load()).await.unwrap() }
        });
        assert!(answers.await.iter().all(|answer| *answer == 1));
        assert_eq!(origin.calls(), 1);
        assert_quiet(&cache);
    }
}

#[tokio::test(start_paused = true)]
async fn different_keys_are_computed_side_by_side() {
    let (cache, origin) = (settings::<u64>().build().unwrap(), Origin::taking(100 * MS));
    let from = Instant::now();
    herd(1000, |i| {
        let (cache, origin) = (cache.clone(), origin.clone());
        async move { cache.get_or_compute(i / 10, origin.compute()).await.unwrap() }
    })
    .await;
    assert_eq!(origin.calls(), 100);
    assert_eq!(origin.most_at_once(), 100);
    assert_eq!(from.elapsed(), 100 * MS);
}

#[tokio::test(start_paused = true)]
async fn a_full_warm_cache_takes_100_new_keys_with_100_calls() {
    let origin = Origin::new();
    let cache: Stampede<u64> = settings().max_entries(1000).build().unwrap();
    let ask = |key: usize| {
        let (cache, origin) = (cache.clone(), origin.clone());
        async move { cache.get_or_compute(key, origin.compute()).await.unwrap() }
    };
    // Warm: every key is read several times, so that popularity speaks against
    // whatever is new.
    for _ in 0..5 {
        herd(1000, ask).await;
    }
    assert_eq!((origin.calls(), cache.stats().entries), (1000, 1000));

    for _ in 0..20 {
        herd(100, |i| ask(10_000 + i)).await;
        assert!(cache.stats().entries <= 1000);
    }
    assert_eq!(origin.calls() - 1000, 100);
    assert_eq!(cache.stats().entries, 1000);
    assert_eq!(cache.stats().evictions, 100);
}

#[tokio::test(start_paused = true)]
async fn a_stale_key_is_refreshed_once_and_every_caller_is_answered_without_waiting() {
    for callers in HERDS {
        let cache = settings().stale_for(MINUTE).build().unwrap();
        let origin = Origin::taking(100 * MS);
        ask(cache.clone(), origin.clone()).await.unwrap();
        pass(MINUTE + SECOND).await;

        let answers = herd(callers, |_| {
            let (cache, origin) = (cache.clone(), origin.clone());
            async move {
                let from = Instant::now();
                let answer = ask(cache, origin).await.unwrap();
                (answer, from.elapsed().is_zero())
            }
        });
        assert!(answers.await.iter().all(|answer| *answer == (1, true)));
        assert_eq!(cache.stats().stale, callers as u64);

        pass(101 * MS).await;
        assert_eq!(ask(cache.clone(), origin.clone()).await.unwrap(), 2);
        assert_eq!(origin.calls(), 2, "{callers} callers");
        assert_quiet(&cache);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stale_key_is_refreshed_by_one_borrowing_caller_while_the_others_are_served() {
    let cache = settings().stale_for(MINUTE).build().unwrap();
    let origin = Origin::taking(100 * MS);
    ask(cache.clone(), origin.clone()).await.unwrap();
    pass(MINUTE + SECOND).await;
    let mut answers = herd(1000, |_| {
        let (cache, origin) = (cache.clone(), origin.clone());
        async move {
            let from = Instant::now();
            let answer = cache.get_or_compute_scoped("k", || origin.load()).await.unwrap();
            (answer, from.elapsed())
        }
    })
    .await;
    answers.sort();
    assert_eq!(answers[999], (2, 100 * MS));
    assert!(answers[..999].iter().all(|(answer, waited)| *answer == 1 && waited.is_zero()));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn past_the_stale_window_callers_wait() {
    let cache = settings().stale_for(MINUTE).build().unwrap();
    let origin = Origin::taking(100 * MS);
    ask(cache.clone(), origin.clone()).await.unwrap();
    pass(2 * MINUTE).await;
    all_get(2, 100, &cache, &origin).await;
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn under_a_stream_of_reads_early_refresh_recomputes_once_per_cycle_and_nobody_waits() {
    let cache = settings::<u64>().early_refresh(1.0).build().unwrap();
    let origin = Origin::taking(500 * MS);
    ask(cache.clone(), origin.clone()).await.unwrap();

    let from = Instant::now();
    for _ in 0..20 * 60 * 10 {
        let answers = herd(5, |_| ask(cache.clone(), origin.clone()));
        let at = Instant::now();
        answers.await;
        assert!(at.elapsed().is_zero(), "a reader waited");
        pass(100 * MS).await;
    }
    let cycles = from.elapsed().as_secs_f64() / 60.0;
    let recomputations = (origin.calls() - 1) as f64;
    assert!(
        (cycles - 1.0..cycles * 1.2 + 1.0).contains(&recomputations),
        "{recomputations} recomputations in {cycles} lifetimes"
    );
    // Never twice for the same entry: between two starts lies most of a ttl.
    let starts = origin.started_at();
    let shortest = starts.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap();
    assert!(shortest >= 45 * SECOND, "two recomputations within {shortest:?}");
    assert_eq!(origin.most_at_once(), 1);
    assert_eq!(cache.stats().joined, 0);
}

#[tokio::test(start_paused = true)]
async fn jitter_ends_lifetimes_at_different_moments_and_never_later_than_the_ttl() {
    let cache: Stampede<u64> =
        Stampede::builder("jitter").ttl(100 * SECOND).jitter(0.5).build().unwrap();
    for key in 0..1000_u64 {
        cache.put(key, key).await;
    }
    let fresh = async || {
        let mut fresh = 0;
        for key in 0..1000_u64 {
            fresh += u64::from(cache.get(key).await.is_some());
        }
        fresh
    };
    pass(50 * SECOND - MS).await;
    assert_eq!(fresh().await, 1000);
    pass(25 * SECOND).await;
    assert!((400..600).contains(&fresh().await));
    pass(25 * SECOND + MS).await;
    assert_eq!(fresh().await, 0);
}
