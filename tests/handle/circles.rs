//! Computations that ask for their own keys, directly or through other keys, and those that only
//! look like it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::Barrier;
use tokio::time::Instant;
use tower_stampede::{Cache, Computed, Error, ErrorKind, Failure, Stampede};

use crate::kit::origin::*;
use crate::kit::spawn;

type Got = Result<u64, Error>;

/// Asks for the first key of the way. Its computation asks for the next one, and so on.
fn follow(cache: &Stampede<u64>, way: &'static [&'static str]) -> BoxFuture<'static, Got> {
    let cache = cache.clone();
    Box::pin(async move {
        let [key, rest @ ..] = way else { return Ok(0) };
        let next = cache.clone();
        let compute = move || async move { follow(&next, rest).await.map(|steps| steps + 1) };
        cache.get_or_compute(*key, compute).await
    })
}

/// The error at the ground of those that computations have handed on.
fn ground(error: &Error) -> &Error {
    error.inner::<Error>().map_or(error, ground)
}

fn assert_circle(got: Got, key: &str, from: Instant) {
    let error = got.unwrap_err();
    let ground = ground(&error);
    assert_eq!(ground.kind(), ErrorKind::Cycle, "{error}");
    assert!(ground.to_string().contains(&format!("the key `{key}`")), "{ground}");
    assert_eq!(from.elapsed(), Duration::ZERO, "found at once");
}

#[tokio::test(start_paused = true)]
async fn a_computation_that_asks_for_its_own_key_is_told_so_at_once() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let from = Instant::now();
    assert_circle(follow(&cache, &["a", "a"]).await, "a", from);
    assert_quiet(&cache);
    pass(2 * SECOND).await;
    assert_eq!(follow(&cache, &["a"]).await.unwrap(), 1, "the key is as good as any");
}

#[tokio::test(start_paused = true)]
async fn a_circle_through_other_keys_is_found_whatever_its_length() {
    let cache: Stampede<u64> = settings().max_computations(1).build().unwrap();
    let from = Instant::now();
    assert_circle(follow(&cache, &["a", "b", "a"]).await, "a", from);
    assert_circle(follow(&cache, &["c", "d", "e", "f", "d"]).await, "d", from);
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn the_error_of_a_circle_names_the_cache_the_key_and_the_remedy() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let error = follow(&cache, &["a", "a"]).await.unwrap_err();
    let expected = "cache `test`: computation waits for itself: it asks for the key `a`, directly \
                    or through other keys; let it ask for another key, or read an older value with \
                    `get`";
    assert_eq!(ground(&error).to_string(), expected);
    assert_eq!(ground(&error).retry_after(), None, "to ask again is of no use");
}

/// Of two keys that wait for each other, neither leads to the other.
#[tokio::test(start_paused = true)]
async fn a_circle_of_two_computations_with_callers_of_their_own_is_found() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let ask = |key: &'static str, other: &'static str, after: Duration| {
        let (outer, inner) = (cache.clone(), cache.clone());
        spawn(async move {
            let compute = move || async move {
                pass(after).await;
                follow(&inner, if other == "a" { &["a"] } else { &["b"] }).await
            };
            outer.get_or_compute(key, compute).await
        })
    };
    let (a, b) = (ask("a", "b", SECOND), ask("b", "a", 2 * SECOND));
    let from = Instant::now();
    let (a, b) = (a.await.unwrap(), b.await.unwrap());
    assert_eq!(from.elapsed(), 2 * SECOND);
    for got in [a, b] {
        assert_eq!(ground(&got.unwrap_err()).kind(), ErrorKind::Cycle);
    }
    assert_quiet(&cache);
}

/// Both wait for the other at the same moment: neither may miss the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_computations_that_ask_for_each_other_at_one_moment_are_told_so() {
    let handles: [Stampede<u64>; 2] = [settings().build().unwrap(), settings().build().unwrap()];
    for round in 0..500_u64 {
        let barrier = Arc::new(Barrier::new(2));
        let ask = |own: usize| {
            let (outer, inner) = (handles[own].clone(), handles[1 - own].clone());
            let barrier = Arc::clone(&barrier);
            spawn(async move {
                let compute = move || async move {
                    barrier.wait().await;
                    inner.get_or_compute(round, || async { Ok::<_, Error>(7) }).await
                };
                outer.get_or_compute(round, compute).await
            })
        };
        let asked = [ask(0), ask(1)];
        let got = within(MINUTE, futures_util::future::join_all(asked)).await;
        let is_circle = |got: &Result<Got, _>| {
            let got = got.as_ref().unwrap();
            got.as_ref().is_err_and(|error| ground(error).kind() == ErrorKind::Cycle)
        };
        assert!(got.iter().all(is_circle), "{got:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_circle_of_two_handles_is_found() {
    let (one, two) = (settings().build().unwrap(), settings().build().unwrap());
    let (inner, back) = (two.clone(), one.clone());
    let from = Instant::now();
    let compute = move || async move {
        inner.get_or_compute("k", move || async move { follow(&back, &["k"]).await }).await
    };
    assert_circle(one.get_or_compute("k", compute).await, "k", from);
    // The same with callers of their own.
    let ask = |outer: &Stampede<u64>, inner: &Stampede<u64>, after| {
        let (outer, inner) = (outer.clone(), inner.clone());
        spawn(async move {
            let compute = move || async move {
                pass(after).await;
                follow(&inner, &["m"]).await
            };
            outer.get_or_compute("m", compute).await
        })
    };
    let asked = [ask(&one, &two, SECOND), ask(&two, &one, SECOND)];
    for got in gather(asked.into()).await {
        assert_eq!(ground(&got.unwrap_err()).kind(), ErrorKind::Cycle);
    }
    assert_eq!(from.elapsed(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_computation_inside_its_caller_that_asks_for_its_own_key_is_told_so() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let from = Instant::now();
    let got = cache
        .get_or_compute_scoped("k", || async {
            let inner = || async { Ok::<_, Error>(1) };
            Box::pin(cache.get_or_compute_scoped("k", inner)).await
        })
        .await;
    assert_circle(got, "k", from);
    let got = cache
        .get_or_compute_scoped("m", || async {
            cache.refresh("m", || async { Ok::<_, Error>(1) }).await
        })
        .await;
    assert_circle(got, "m", from);
    assert_quiet(&cache);
}

type Nested = Cache<u64, u64, String>;

/// Asks for the next key: 7, 8, 9, and 7 again.
async fn ask_next(home: Arc<OnceLock<Nested>>, id: u64) -> Result<u64, String> {
    let cache = home.get().expect("it is set").clone();
    let next = if id == 9 { 7 } else { id + 1 };
    cache.get(next).await.map_err(|failure| match failure {
        Failure::Cache(error) => format!("{:?}", error.kind()),
        Failure::Computation(error) => (*error).clone(),
    })
}

#[tokio::test(start_paused = true)]
async fn a_loader_of_a_typed_cache_that_asks_for_its_own_key_is_told_so() {
    for is_batched in [false, true] {
        let (home, from) = (Arc::<OnceLock<Nested>>::default(), Instant::now());
        let (of_load, handle) = (Arc::clone(&home), settings().build().unwrap());
        let cache = if is_batched {
            Cache::batched(handle, move |ids: Vec<u64>| {
                let home = Arc::clone(&of_load);
                async move { Ok([(ids[0], ask_next(home, ids[0]).await?)]) }
            })
        } else {
            Cache::new(handle, move |id| ask_next(Arc::clone(&of_load), id))
        };
        assert!(home.set(cache.clone()).is_ok());
        let Err(Failure::Computation(error)) = cache.get(7).await else { panic!("a circle") };
        assert_eq!((error.as_str(), from.elapsed()), ("Cycle", Duration::ZERO), "{is_batched}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_loader_that_asks_for_a_key_of_its_own_call_is_told_so() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let (inner, from) = (cache.clone(), Instant::now());
    let load = move |ids: Vec<u64>| {
        let inner = inner.clone();
        async move {
            let got = inner.get_or_compute(2_u64, || async { Ok::<_, Error>(0) }).await?;
            Ok::<_, Error>(ids.into_iter().map(move |id| (id, got)))
        }
    };
    let batch = cache.get_many([1_u64, 2], load).await;
    assert_eq!(batch.failures.len(), 2);
    assert_circle(Err(batch.failures[&1].clone()), "2", from);
}

/// Lets a caller lead the flight of a key for so long. What results from it is for that caller alone.
async fn lead_alone(cache: &Stampede<u64>, key: &'static str, takes: Duration) {
    let compute = move || async move {
        pass(takes).await;
        Ok::<_, Error>(Computed::new(1).do_not_store())
    };
    cache.get_or_compute_with(key, compute).await.unwrap();
}

/// Returns a cache whose callers of the key `own` compute for themselves, for some seconds.
async fn with_uncacheable_key() -> Stampede<u64> {
    let cache: Stampede<u64> = settings().build().unwrap();
    lead_alone(&cache, "own", Duration::ZERO).await;
    let other = cache.clone();
    drop(spawn(async move { lead_alone(&other, "own", 20 * SECOND).await }));
    all_have_run().await;
    cache
}

type Pairs = Vec<(&'static str, u64)>;

/// Returns a batch loader that asks for the page after so long.
fn asking_for_page(
    cache: &Stampede<u64>,
    after: Duration,
) -> impl Fn(Vec<&'static str>) -> BoxFuture<'static, Result<Pairs, Error>> + use<> {
    let cache = cache.clone();
    move |keys| {
        let cache = cache.clone();
        Box::pin(async move {
            pass(after).await;
            let got = follow(&cache, &["page"]).await?;
            Ok(keys.into_iter().map(|key| (key, got)).collect())
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_circle_through_a_batch_that_its_caller_computes_alone_is_found() {
    let cache = with_uncacheable_key().await;
    let (inner, from) = (cache.clone(), Instant::now());
    let page = move || async move {
        let load = asking_for_page(&inner, Duration::ZERO);
        Ok::<_, Error>(inner.get_many(["own"], load).await.complete()?["own"])
    };
    assert_circle(cache.get_or_compute("page", page).await, "page", from);
    pass(MINUTE).await;
    assert_quiet(&cache);
}

// ---- what is no circle ----

#[tokio::test(start_paused = true)]
async fn a_batch_loader_may_ask_for_a_key_of_another_call_of_its_batch() {
    let cache: Stampede<u64> = settings().max_batch(2).build().unwrap();
    let outer = cache.clone();
    let load = move |ids: Vec<u64>| {
        let cache = cache.clone();
        async move {
            // Of three keys, one is in another call.
            let other = (1..4).find(|id| !ids.contains(id)).filter(|_| ids.len() == 2);
            let mut value = 1;
            if let Some(other) = other {
                value += cache.get_or_compute(other, || async { Err(OriginError(0)) }).await?;
            }
            Ok::<_, Error>(ids.into_iter().map(move |id| (id, value)))
        }
    };
    let got = within(MINUTE, outer.get_many([1_u64, 2, 3], load)).await.complete().unwrap();
    let mut values: Vec<u64> = got.into_values().collect();
    values.sort_unstable();
    assert_eq!(values, [1, 2, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_two_inner_keys_share_is_no_circle() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let inner = cache.clone();
    let compute = move || async move {
        let (one, two) = tokio::join!(follow(&inner, &["b", "d"]), follow(&inner, &["c", "d"]));
        Ok::<_, Error>(one? + two?)
    };
    assert_eq!(cache.get_or_compute("a", compute).await.unwrap(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_computation_whose_key_was_invalidated_may_ask_for_it() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let inner = cache.clone();
    let compute = move || async move {
        inner.invalidate("a").await;
        follow(&inner, &["a"]).await
    };
    assert_eq!(cache.get_or_compute("a", compute).await.unwrap(), 1);
    // The newer computation asks for its own key again.
    let inner = cache.clone();
    let from = Instant::now();
    let compute = move || async move {
        inner.invalidate("b").await;
        follow(&inner, &["b", "b"]).await
    };
    assert_circle(cache.get_or_compute("b", compute).await, "b", from);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_that_asks_for_its_own_key_is_served_the_stale_value() {
    let cache: Stampede<u64> =
        settings().stale_for(MINUTE).stale_if_error(10 * MINUTE).build().unwrap();
    cache.put("k", 5).await;
    pass(MINUTE).await;
    assert_eq!(follow(&cache, &["k", "k"]).await.unwrap(), 5, "stale");
    all_have_run().await;
    assert_eq!(cache.get("k").await, Some(6), "refreshed in the background");
    pass(3 * MINUTE).await;
    let from = Instant::now();
    assert_eq!(follow(&cache, &["k", "k"]).await.unwrap(), 7, "in place of the error");
    assert_eq!(from.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_has_left_is_in_no_circle() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let (middle, inner) = (cache.clone(), cache.clone());
    let part = move || async move {
        pass(2 * SECOND).await;
        follow(&inner, &["page"]).await
    };
    let page = move || async move {
        let part = tokio::time::timeout(SECOND, middle.get_or_compute("part", part)).await;
        assert!(part.is_err(), "it goes on without the part");
        pass(5 * SECOND).await;
        Ok::<_, Error>(10)
    };
    assert_eq!(cache.get_or_compute("page", page).await.unwrap(), 10);
    assert_eq!(follow(&cache, &["part"]).await.unwrap(), 10, "the part has waited for the page");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_has_left_a_batch_which_it_computed_alone_is_in_no_circle() {
    let cache = with_uncacheable_key().await;
    let inner = cache.clone();
    let page = move || async move {
        // The call goes on for the flight of the other key.
        let load = asking_for_page(&inner, 2 * SECOND);
        let parts = tokio::time::timeout(SECOND, inner.get_many(["own", "part"], load)).await;
        assert!(parts.is_err(), "it goes on without the parts");
        pass(5 * SECOND).await;
        Ok::<_, Error>(10)
    };
    assert_eq!(cache.get_or_compute("page", page).await.unwrap(), 10);
    assert_eq!(follow(&cache, &["part"]).await.unwrap(), 10, "the part has waited for the page");
}

/// Nothing tells the engine which computation has spawned a task.
#[tokio::test(start_paused = true)]
async fn a_circle_through_a_spawned_task_ends_with_the_time_for_the_computation() {
    let cache: Stampede<u64> = settings().compute_timeout(5 * SECOND).build().unwrap();
    let (inner, from) = (cache.clone(), Instant::now());
    let compute =
        move || async move { spawn(async move { follow(&inner, &["k"]).await }).await.unwrap() };
    let error = cache.get_or_compute("k", compute).await.unwrap_err();
    assert_eq!((error.kind(), from.elapsed()), (ErrorKind::ComputeTimeout, 5 * SECOND));
    all_have_run().await;
    assert_quiet(&cache);
}
