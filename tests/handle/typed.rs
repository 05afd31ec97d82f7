//! A cache with one type of key and a loader: the application's own errors come back, and
//! the loader is called by one caller.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tower_stampede::{Cache, Computed, ErrorKind, Failure, FailureAction, Mode, Stampede, ToKey};

use crate::kit::origin::*;
use crate::kit::spawn;

/// An error that is no `std::error::Error`, as `anyhow`'s is none.
#[derive(Debug, PartialEq)]
enum UserError {
    NotFound(u64),
}

impl fmt::Display for UserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::NotFound(id) = self;
        write!(f, "there is no user {id}")
    }
}

/// A cache of users: even numbers exist. Counts the calls of its loader.
fn users(handle: Stampede<u64>) -> (Cache<u64, u64, UserError>, Arc<AtomicUsize>) {
    let calls = Arc::<AtomicUsize>::default();
    let cache = Cache::with_state(handle, Arc::clone(&calls), |calls, id| async move {
        calls.fetch_add(1, SeqCst);
        tokio::time::sleep(SECOND).await;
        if id % 2 == 0 { Ok(id * 10) } else { Err(UserError::NotFound(id)) }
    });
    (cache, calls)
}

#[tokio::test(start_paused = true)]
async fn one_caller_of_a_crowd_loads() {
    let (cache, calls) = users(settings().build().unwrap());
    let got = herd(50, |_| {
        let cache = cache.clone();
        async move { cache.get(4).await }
    });
    assert!(got.await.into_iter().all(|got| got.is_ok_and(|value| value == 40)));
    assert_eq!(calls.load(SeqCst), 1);
    assert_eq!(cache.get(4).await.ok(), Some(40));
    assert_eq!(calls.load(SeqCst), 1, "a hit does not call the loader");
    assert_eq!(cache.handle().stats().joined, 49);
}

#[tokio::test(start_paused = true)]
async fn each_caller_of_a_crowd_gets_the_loaders_own_error_also_from_a_hold() {
    let (cache, calls) = users(settings().hold(10 * SECOND).build().unwrap());
    let got = herd(50, |_| {
        let cache = cache.clone();
        async move { cache.get(7).await }
    });
    for got in got.await {
        let Err(Failure::Computation(error)) = got else { panic!("{got:?}") };
        assert_eq!(*error, UserError::NotFound(7));
    }
    let held = cache.get(7).await.unwrap_err();
    assert_eq!(held.to_string(), "there is no user 7");
    assert!(matches!(held, Failure::Computation(_)), "{held:?}");
    assert_eq!(calls.load(SeqCst), 1, "the key is held");
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_cache_is_none_of_the_loader() {
    let handle = settings().compute_timeout(SECOND / 2).build().unwrap();
    let (cache, _calls) = users(handle);
    let Err(Failure::Cache(error)) = cache.get(4).await else { panic!("it takes too long") };
    assert_eq!(error.kind(), ErrorKind::ComputeTimeout);
    assert!(error.downcast::<UserError>().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_loader_may_set_lifetimes_and_tags() {
    let handle: Stampede<u64> = settings().build().unwrap();
    let cache = Cache::new(handle, |id: u64| async move {
        Ok::<_, UserError>(Computed::new(id).ttl(10 * SECOND).tag("users"))
    });
    cache.get(1).await.unwrap();
    cache.refresh(2).await.unwrap();
    assert_eq!((cache.peek(&1).await, cache.peek(&2).await), (Some(1), Some(2)));
    cache.invalidate_tag("users").await;
    assert_eq!((cache.peek(&1).await, cache.peek(&2).await), (None, None));
    cache.get(1).await.unwrap();
    pass(11 * SECOND).await;
    assert_eq!(cache.peek(&1).await, None, "its own lifetime has ended");
}

/// Asks by one of the ways of a typed cache.
type Ask = fn(Cache<String, u64, UserError>) -> futures_util::future::BoxFuture<'static, ()>;

#[tokio::test(start_paused = true)]
async fn a_loader_that_returns_a_plain_value_keeps_the_tags_of_the_value_that_it_refreshes() {
    let key = || "a".to_owned();
    let asks: [(&str, Ask); 6] = [
        ("get", |cache| Box::pin(async move { drop(cache.get("a".to_owned()).await) })),
        ("get_borrowed", |cache| Box::pin(async move { drop(cache.get_borrowed("a").await) })),
        ("entry", |cache| Box::pin(async move { drop(cache.entry("a".to_owned()).get().await) })),
        ("get_many", |cache| Box::pin(async move { drop(cache.get_many(["a".to_owned()]).await) })),
        ("refresh", |cache| Box::pin(async move { drop(cache.refresh("a".to_owned()).await) })),
        ("keep_fresh", |cache| {
            Box::pin(async move {
                let kept = cache.keep_fresh(["a".to_owned()]);
                pass(2 * SECOND).await;
                drop(kept);
            })
        }),
    ];
    let one: fn(Stampede<u64>) -> Cache<String, u64, UserError> =
        |handle| Cache::new(handle, |_| async { Ok(2_u64) });
    let batched: fn(Stampede<u64>) -> Cache<String, u64, UserError> = |handle| {
        Cache::batched(handle, |keys: Vec<String>| async {
            Ok(keys.into_iter().map(|key| (key, 2_u64)).collect::<Vec<_>>())
        })
    };
    for (loader, cache) in [("one", one), ("batched", batched)] {
        for (way, ask) in asks {
            let cache = cache(settings().stale_for(10 * MINUTE).build().unwrap());
            cache.put("a", Computed::new(1).tag("t")).await;
            cache.mark_stale_now("a");
            ask(cache.clone()).await;
            all_have_run().await;
            assert_eq!(cache.peek("a").await, Some(2), "{loader}, {way}: it is refreshed");
            cache.invalidate_tag("t").await;
            assert_eq!(cache.peek("a").await, None, "{loader}, {way}");
        }
        let cache = cache(settings().build().unwrap());
        cache.put(&key(), Computed::new(1).tag("t")).await;
        cache.put(&key(), 3).await;
        cache.invalidate_tag("t").await;
        assert_eq!(cache.peek("a").await, Some(3), "{loader}: a put names all tags");
    }
}

#[tokio::test(start_paused = true)]
async fn a_loader_that_names_a_tag_or_none_by_name_does_not_keep_those_of_the_older_value() {
    let returns: [fn() -> Computed<u64>; 2] =
        [|| Computed::from(2).tag("new"), || Computed::new(2)];
    for made in returns {
        let handle: Stampede<u64> = settings().build().unwrap();
        let cache = Cache::new(handle, move |_: String| async move { Ok::<_, UserError>(made()) });
        cache.put("a", Computed::new(1).tag("old")).await;
        cache.refresh("a".to_owned()).await.unwrap();
        cache.invalidate_tag("old").await;
        assert_eq!(cache.peek("a").await, Some(2));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_put_or_invalidated_needs_no_loader() {
    let (cache, calls) = users(settings().build().unwrap());
    cache.put(&4, 41).await;
    assert_eq!(cache.get(4).await.ok(), Some(41));
    cache.invalidate(&4).await;
    assert_eq!(cache.peek(&4).await, None);
    assert_eq!(calls.load(SeqCst), 0);
    assert_eq!(cache.refresh(4).await.ok(), Some(40));
    assert_eq!(calls.load(SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn switched_off_each_caller_loads_and_gets_its_own_error() {
    let (cache, calls) = users(settings().build().unwrap());
    cache.handle().set_mode(Mode::Off);
    for _ in 0..2 {
        assert_eq!(cache.get(4).await.ok(), Some(40));
        assert!(matches!(cache.get(7).await, Err(Failure::Computation(_))));
    }
    assert_eq!(calls.load(SeqCst), 4);
}

// ---- failures that are answers ----

#[derive(Debug, PartialEq)]
enum Lookup {
    NotFound,
    Down,
}

impl fmt::Display for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// What the database answers now.
type Answers = Arc<parking_lot::Mutex<Result<u64, fn() -> Lookup>>>;

/// A cache of one user, whose database answers as the test says.
fn one_user(
    handle: Stampede<u64>,
    answers: &Answers,
) -> (Cache<u64, u64, Lookup>, Arc<AtomicUsize>) {
    let calls = Arc::<AtomicUsize>::default();
    let (counted, answers) = (Arc::clone(&calls), Arc::clone(answers));
    let load = move |_| {
        counted.fetch_add(1, SeqCst);
        let answer = (*answers.lock()).map_err(|make| make());
        async move { answer }
    };
    let cache = Cache::new(handle, load).on_failure(|error| match error {
        Lookup::NotFound => FailureAction::Remember(10 * SECOND),
        Lookup::Down => FailureAction::Hold,
    });
    (cache, calls)
}

fn cause(got: Result<u64, Failure<Lookup>>) -> Lookup {
    match got {
        Err(Failure::Computation(error)) if *error == Lookup::NotFound => Lookup::NotFound,
        Err(Failure::Computation(_)) => Lookup::Down,
        got => panic!("{got:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn not_found_is_remembered_for_its_time_and_comes_back_as_the_loaders_error() {
    let answers = Arc::new(parking_lot::Mutex::new(Err((|| Lookup::NotFound) as fn() -> Lookup)));
    let (cache, calls) = one_user(settings().build().unwrap(), &answers);
    for _ in 0..3 {
        assert_eq!(cause(cache.get(7).await), Lookup::NotFound);
    }
    assert_eq!(calls.load(SeqCst), 1);
    let stats = cache.handle().stats();
    assert_eq!((stats.hits, stats.held, stats.refused), (2, 0, 0), "an answer, no refusal");
    pass(10 * SECOND).await;
    assert_eq!(cause(cache.get(7).await), Lookup::NotFound);
    assert_eq!(calls.load(SeqCst), 2);
    cache.invalidate(&7).await;
    *answers.lock() = Ok(70);
    assert_eq!(cache.get(7).await.unwrap(), 70, "an invalidation ends it");
}

#[tokio::test(start_paused = true)]
async fn a_stale_value_stands_in_for_down_and_not_for_not_found() {
    let answers = Arc::new(parking_lot::Mutex::new(Ok(70)));
    let settings = settings().ttl(10 * SECOND).stale_for(10 * SECOND).stale_if_error(60 * MINUTE);
    let (cache, calls) = one_user(settings.build().unwrap(), &answers);
    assert_eq!(cache.get(7).await.unwrap(), 70);
    pass(25 * SECOND).await;
    *answers.lock() = Err(|| Lookup::Down);
    assert_eq!(cache.get(7).await.unwrap(), 70, "stale if error");
    pass(2 * SECOND).await;
    *answers.lock() = Err(|| Lookup::NotFound);
    assert_eq!(cause(cache.get(7).await), Lookup::NotFound);
    *answers.lock() = Err(|| Lookup::Down);
    pass(10 * SECOND).await;
    assert_eq!(cause(cache.get(7).await), Lookup::Down, "the older value is gone");
    assert_eq!(calls.load(SeqCst), 4);
}

#[tokio::test(start_paused = true)]
async fn a_background_refresh_that_finds_nothing_ends_the_stale_value() {
    let answers = Arc::new(parking_lot::Mutex::new(Ok(70)));
    let settings = settings().ttl(10 * SECOND).stale_for(60 * MINUTE);
    let (cache, calls) = one_user(settings.build().unwrap(), &answers);
    assert_eq!(cache.get(7).await.unwrap(), 70);
    pass(11 * SECOND).await;
    *answers.lock() = Err(|| Lookup::NotFound);
    assert_eq!(cache.get(7).await.unwrap(), 70, "stale, while it is refreshed");
    all_have_run().await;
    assert_eq!(cause(cache.get(7).await), Lookup::NotFound);
    assert_eq!(cache.peek(&7).await, None);
    assert_eq!(calls.load(SeqCst), 2);
    *answers.lock() = Ok(71);
    assert_eq!(cache.refresh(7).await.unwrap(), 71, "a refresh computes");
    assert_eq!(cache.get(7).await.unwrap(), 71);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_was_put_meanwhile_is_not_removed_by_not_found() {
    let cache: Stampede<u64> =
        settings().on_failure(|_| FailureAction::Remember(MINUTE)).build().unwrap();
    let origin = Origin::taking(SECOND);
    origin.next([Answer::Fail]);
    let (asking, compute) = (cache.clone(), origin.compute());
    let asked = spawn(async move { asking.get_or_compute("k", compute).await });
    all_have_run().await;
    cache.put("k", 5).await;
    let error = asked.await.unwrap().unwrap_err();
    assert_eq!(error.inner(), Some(&OriginError(1)));
    assert_eq!(cache.get_or_compute("k", origin.compute()).await.unwrap(), 5);
}

// ---- forms ----

#[tokio::test(start_paused = true)]
async fn a_text_key_is_looked_up_by_a_borrowed_text() {
    let handle: Stampede<usize> = settings().build().unwrap();
    let lengths = Cache::new(handle, |text: String| async move { Ok::<_, UserError>(text.len()) });
    assert_eq!(lengths.get("abc".to_owned()).await.unwrap(), 3);
    assert_eq!(lengths.get_borrowed("abc").await.unwrap(), 3);
    assert_eq!(lengths.get_borrowed("abcd").await.unwrap(), 4);
    assert_eq!(lengths.peek("abcd").await, Some(4));
    lengths.put("abcd", 7_usize).await;
    assert_eq!(*lengths.entry("abcd".to_owned()).get().await.unwrap(), 7);
    assert!(lengths.invalidate("abcd").await.local);
    let stats = lengths.handle().stats();
    assert_eq!((stats.computations, stats.hits), (2, 3));
}

#[tokio::test(start_paused = true)]
async fn two_kinds_of_things_share_a_handle_by_their_key_types() {
    tower_stampede::key_struct! {
        #[derive(Copy)]
        struct UserId(u64);
    }
    tower_stampede::key_struct! {
        #[derive(Copy)]
        struct TeamId(u64);
    }
    let handle: Stampede<u64> = settings().build().unwrap();
    let users = Cache::new(handle.clone(), |id: UserId| async move { Ok::<_, UserError>(id.0) });
    let teams = Cache::new(handle, |id: TeamId| async move { Ok::<_, UserError>(id.0 + 1000) });
    let got = (users.get(UserId(7)).await.unwrap(), teams.get(TeamId(7)).await.unwrap());
    assert_eq!(got, (7, 1007));
}

// ---- keys ----

mod users {
    tower_stampede::key_struct! {
        pub struct Id(pub u64);
    }
}

mod orders {
    tower_stampede::key_struct! {
        pub struct Id(pub u64);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cache_of_one_value_has_the_key_unit() {
    let handle: Stampede<u64> = settings().build().unwrap();
    let rates = Cache::new(handle, |()| async { Ok::<_, UserError>(7_u64) });
    assert_eq!(rates.get(()).await.unwrap(), 7);
    assert_eq!(rates.peek(&()).await, Some(7));
    assert!(rates.invalidate(&()).await.local);
    assert_eq!(rates.handle().get("").await, None);
    assert_eq!(rates.refresh(()).await.unwrap(), 7);
    assert_eq!(rates.handle().stats().computations, 2);
}

#[test]
fn keys_of_two_types_of_one_name_in_two_modules_differ() {
    assert_ne!(users::Id(7).to_key(), orders::Id(7).to_key());
    assert_eq!(users::Id(7).to_key(), users::Id(7).to_key());
}

#[tokio::test(start_paused = true)]
async fn every_method_takes_a_key_or_a_reference_to_it() {
    let handle = Stampede::in_memory(SECOND);
    let squares = Cache::new(handle, |n: u64| async move { Ok::<_, OriginError>(n * n) });
    squares.put(7, 1).await;
    squares.put(&8, 2).await;
    assert_eq!((squares.peek(&7).await, squares.peek(8).await), (Some(1), Some(2)));
    assert!(squares.invalidate(7).await.local && squares.invalidate_now(8));

    // Shared texts, and texts that live forever.
    let load = |_: Arc<str>| async { Ok::<_, OriginError>(1) };
    let shared = Cache::new(Stampede::in_memory(SECOND), load);
    shared.put("a", 1).await;
    assert_eq!(shared.peek(Arc::<str>::from("a")).await, Some(1));
    let load = |_: &'static str| async { Ok::<_, OriginError>(1) };
    let fixed = Cache::new(Stampede::in_memory(SECOND), load);
    fixed.put("a", 1).await;
    assert_eq!((fixed.peek("a").await, fixed.peek(&"a").await), (Some(1), Some(1)));
}

#[tokio::test(start_paused = true)]
async fn a_single_value_is_loaded_once_before_it_is_read_and_refreshed_without_readers() {
    let origin = Origin::new();
    let counted = origin.clone();
    let handle = settings().ttl(60 * SECOND).build().unwrap();
    let rates = Cache::single(handle, move || counted.load());
    rates.keep_fresh([()]).forever();
    let (one, two) = tokio::join!(rates.value(), rates.value());
    assert_eq!((one.unwrap(), two.unwrap(), origin.calls()), (1, 1, 1));
    tokio::time::sleep(59 * SECOND).await;
    assert_eq!(origin.calls(), 2, "refreshed although no caller reads it");
    assert_eq!(rates.value().await.unwrap(), 2);
    assert!(rates.invalidate(()).await.local);
}
