//! Callers of a batch that go away, come too late, or ask for more from inside of it.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::runtime::Runtime;
use tower_stampede::{Builder, Cache, Computed, ErrorKind, Failure, Mode, Stampede};

use crate::kit::origin::*;
use crate::kit::spawn;
use crate::kit::table::*;

fn places(n: usize) -> Builder<u64> {
    settings().max_refreshes(1).max_computations(n)
}

fn get(
    cache: &Cache<u64, u64, OriginError>,
    id: u64,
) -> tokio::task::JoinHandle<Result<u64, Failure<OriginError>>> {
    let cache = cache.clone();
    spawn(async move { cache.get(id).await })
}

/// A batch loader that asks its own handle for a part first.
fn asking(handle: &Stampede<u64>) -> impl Fn(Vec<u64>) -> BoxFuture<'static, Rows> + use<> {
    let handle = handle.clone();
    move |ids| {
        let handle = handle.clone();
        Box::pin(async move {
            let part = || async { Ok::<u64, OriginError>(100) };
            handle.get_or_compute("part", part).await.map_err(|_| OriginError(0))?;
            Ok(ids.into_iter().map(|id| (id, id)).collect())
        })
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_loader_of_a_refreshed_batch_key_asks_for_borrows_its_place() {
    // The control: the loader of single keys.
    let handle = places(1).build().unwrap();
    let load = asking(&handle);
    let single = Cache::new(handle, move |id| {
        let rows = load(vec![id]);
        async move { rows.await.map(|rows| rows[&id]) }
    });
    assert_eq!(within(MINUTE, single.refresh(1)).await.ok(), Some(1));
    let handle = places(1).build().unwrap();
    let batched = Cache::batched(handle.clone(), asking(&handle));
    assert_eq!(within(MINUTE, batched.get(2)).await.ok(), Some(2));
    handle.invalidate("part").await;
    let began = tokio::time::Instant::now();
    let got = within(10 * MINUTE, batched.refresh(1)).await;
    assert!(got.is_ok(), "{got:?} after {:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_the_call_of_a_caller_that_has_waited_too_long_asks_for_borrows_its_place() {
    for is_batched in [false, true] {
        let settings = places(2).wait_timeout(SECOND).compute_after_wait();
        let handle = settings.build().unwrap();
        let (hanging, origin) = (handle.clone(), Origin::taking(20 * SECOND));
        let hanging = spawn(async move { hanging.get_or_compute(1_u64, origin.compute()).await });
        all_have_run().await;
        let load = asking(&handle);
        let cache = match is_batched {
            true => Cache::batched(handle.clone(), load),
            false => Cache::new(handle.clone(), move |id| {
                let rows = load(vec![id]);
                async move { rows.await.map(|rows| rows[&id]) }
            }),
        };
        let got = within(MINUTE, cache.get(1)).await;
        assert!(got.is_ok(), "batched: {is_batched}: {got:?}");
        hanging.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_caller_of_a_key_whose_caller_went_away_joins_the_call_that_gathers() {
    let table = Table::taking(SECOND);
    let handle = places(5).batch_window(20 * MS).build().unwrap();
    let cache = Cache::batched(handle, table.loader());
    let (one, two) = (get(&cache, 1), get(&cache, 2));
    pass(5 * MS).await;
    one.abort();
    pass(5 * MS).await;
    let again = get(&cache, 1);
    assert!(two.await.unwrap().is_ok());
    assert!(again.await.unwrap().is_ok());
    assert_eq!(*table.queries.lock(), [vec![1, 2]]);
}

#[tokio::test(start_paused = true)]
async fn the_key_of_a_caller_that_goes_away_while_the_call_gathers_is_not_loaded() {
    let table = Table::taking(SECOND);
    let handle = places(5).batch_window(20 * MS).build().unwrap();
    let cache = Cache::batched(handle, table.loader());
    let (one, two) = (get(&cache, 1), get(&cache, 2));
    pass(5 * MS).await;
    one.abort();
    assert!(two.await.unwrap().is_ok());
    assert_eq!(*table.queries.lock(), [vec![2]]);
}

// A share of `max_refreshes` is free once the refresh is over.
#[tokio::test(start_paused = true)]
async fn a_refresh_that_joins_a_later_call_gives_back_its_share_of_the_refreshes() {
    let table = Table::taking(SECOND);
    let settings = places(5).batch_window(20 * MS).ttl(10 * SECOND).stale_for(50 * MINUTE);
    let cache = Cache::batched(settings.build().unwrap(), table.loader());
    let handle = cache.handle().clone();
    cache.get_many([1, 2]).await.complete().unwrap();
    pass(15 * SECOND).await;
    // Stale: refreshed in the background.
    assert!(cache.get(1).await.is_ok());
    pass(5 * MS).await;
    // The data has changed while the call gathers its keys: the next refresh is another one.
    handle.mark_stale_now(1_u64);
    assert!(cache.get(1).await.is_ok());
    pass(5 * SECOND).await;
    assert_quiet(&handle);
    let before = table.loads_of(2);
    assert!(cache.get(2).await.is_ok());
    pass(5 * SECOND).await;
    assert_eq!(table.loads_of(2), before + 1, "stale, and refreshed: {:?}", table.queries.lock());
}

#[tokio::test(start_paused = true)]
async fn a_refresh_in_the_call_of_a_caller_that_has_waited_too_long_gives_back_its_share() {
    let table = Table::taking(SECOND);
    let settings = places(5).batch_window(100 * MS).stale_for(50 * MINUTE);
    let settings = settings.wait_timeout(SECOND).compute_after_wait();
    let cache = Cache::batched(settings.build().unwrap(), table.loader());
    for id in [1, 3] {
        cache.put(&id, 0).await;
        cache.mark_stale_now(&id);
    }
    let (slow, origin) = (cache.handle().clone(), Origin::taking(20 * SECOND));
    let slow = spawn(async move { slow.get_or_compute(2_u64, origin.compute()).await });
    all_have_run().await;
    let late = get(&cache, 2);
    pass(950 * MS).await;
    assert_eq!(cache.get(1).await.unwrap(), 0, "stale, and refreshed in the next call");
    assert_eq!(late.await.unwrap().unwrap(), 4);
    assert_eq!(*table.queries.lock(), [vec![1, 2]]);
    all_have_run().await;
    assert_eq!(cache.get(3).await.unwrap(), 0, "stale");
    pass(5 * SECOND).await;
    assert_eq!(*table.queries.lock(), [vec![1, 2], vec![3]], "and refreshed");
    slow.abort();
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

/// What happens to the runtime of the first caller of a call. A runtime that stands still is not
/// driven any more.
#[derive(Clone, Copy, Debug, PartialEq)]
enum First {
    Ends,
    StandsStill,
}

/// Lets two callers on two runtimes ask for keys of one call. The first runtime goes on for `after`,
/// and then no more. Returns what the second caller gets, and after how long.
fn ask_on_two_runtimes(
    mode: Mode,
    first: First,
    after: Duration,
) -> (Result<u64, ErrorKind>, Duration) {
    let (table, timeout) = (Table::taking(SECOND), 5 * SECOND);
    let settings = places(5).batch_window(SECOND).compute_timeout(timeout).wait_timeout(timeout);
    let cache = Cache::batched(settings.build().unwrap(), table.loader());
    cache.handle().set_mode(mode);
    let (one, other) = (runtime(), runtime());
    let ask = |runtime: &Runtime, id| {
        let mut asked = None;
        runtime.block_on(async {
            asked = Some(get(&cache, id));
            all_have_run().await;
        });
        asked.expect("it has asked")
    };
    let (_gone, asked) = (ask(&one, 1), ask(&other, 2));
    one.block_on(pass(after));
    match first {
        First::Ends => drop(one),
        First::StandsStill => std::mem::forget(one),
    }
    other.block_on(async {
        let from = tokio::time::Instant::now();
        let got = within(MINUTE, asked).await.expect("no panic");
        let kind = |failure| match failure {
            Failure::Cache(error) => error.kind(),
            Failure::Computation(_) => ErrorKind::Inner,
        };
        (got.map_err(kind), from.elapsed())
    })
}

#[test]
fn a_caller_of_a_call_that_gathers_needs_no_other_callers_runtime() {
    for first in [First::Ends, First::StandsStill] {
        let (got, took) = ask_on_two_runtimes(Mode::On, first, Duration::ZERO);
        assert_eq!(got, Ok(4), "{first:?}");
        assert!(took <= 3 * SECOND, "{first:?}: {took:?}");
    }
}

#[test]
fn a_caller_whose_call_ends_with_the_runtime_of_another_caller_asks_anew() {
    let (got, took) = ask_on_two_runtimes(Mode::On, First::Ends, SECOND + 500 * MS);
    assert_eq!(got, Ok(4));
    assert!(took <= 3 * SECOND, "{took:?}");
}

#[test]
fn a_caller_whose_own_runtime_has_ended_does_not_ask_for_ever() {
    let table = Table::taking(SECOND);
    let cache = Cache::batched(settings().build().unwrap(), table.loader());
    cache.handle().set_mode(Mode::Off);
    let ended = runtime();
    let handle = ended.handle().clone();
    drop(ended);
    let Err(Failure::Cache(error)) = handle.block_on(cache.get(1)) else { panic!("no task runs") };
    assert_eq!(error.kind(), ErrorKind::ShutDown);
}

// As a caller that waits for a computation on a runtime that stands still.
#[test]
fn a_caller_whose_call_stands_still_with_the_runtime_of_another_caller_is_told_in_time() {
    let (got, took) = ask_on_two_runtimes(Mode::On, First::StandsStill, SECOND + 500 * MS);
    assert_eq!(got, Err(ErrorKind::ComputeTimeout));
    assert!(took <= 8 * SECOND, "{took:?}");
}

#[test]
fn a_caller_of_a_cache_that_is_not_on_depends_on_no_other_callers_runtime() {
    for mode in [Mode::Off, Mode::Observe] {
        for first in [First::Ends, First::StandsStill] {
            for after in [Duration::ZERO, 500 * MS, SECOND + 500 * MS] {
                let (got, took) = ask_on_two_runtimes(mode, first, after);
                assert_eq!(got, Ok(4), "{mode:?} {first:?} {after:?}");
                assert!(took <= SECOND, "{mode:?} {first:?} {after:?}: {took:?}");
            }
        }
    }
}

#[test]
fn a_caller_that_asks_before_the_cache_is_switched_on_depends_on_no_other_callers_runtime() {
    let table = Table::taking(SECOND);
    let cache = Cache::batched(places(5).batch_window(SECOND).build().unwrap(), table.loader());
    let (one, other) = (runtime(), runtime());
    let mut gone = None;
    one.block_on(async {
        gone = Some(get(&cache, 1));
        all_have_run().await;
    });
    let mut asked = {
        let cache = cache.clone();
        Box::pin(async move { cache.get(2).await })
    };
    other.block_on(async {
        cache.handle().set_mode(Mode::Off);
        assert!(futures_util::poll!(asked.as_mut()).is_pending());
        // The call of the first caller gathers.
        cache.handle().set_mode(Mode::On);
        all_have_run().await;
    });
    one.block_on(pass(SECOND + 500 * MS));
    std::mem::forget(one);
    let got = other.block_on(within(10 * MINUTE, asked));
    assert_eq!(got.ok(), Some(4));
    assert_eq!(*table.queries.lock(), [vec![2], vec![1]]);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_computes_alone_has_no_time_out_once_the_cache_is_switched_off() {
    let table = Table::taking(5 * MINUTE);
    let cache = Cache::batched(places(1).build().unwrap(), table.loader());
    let handle = cache.handle().clone();
    // The values of the key are known not to be shared.
    let unshared = || async { Ok::<_, OriginError>(Computed::new(1).do_not_store()) };
    handle.get_or_compute_with(1_u64, unshared).await.unwrap();
    let (leading, origin) = (handle.clone(), Origin::taking(20 * MINUTE));
    let leading = spawn(async move { leading.get_or_compute(1_u64, origin.compute()).await });
    all_have_run().await;
    let asked = get(&cache, 1);
    pass(SECOND).await;
    handle.set_mode(Mode::Off);
    let got = within(20 * MINUTE, asked).await.unwrap();
    assert_eq!(got.ok(), Some(1));
    assert_eq!(table.loads_of(1), 2, "after the longest time of a call");
    leading.abort();
}

#[tokio::test(start_paused = true)]
async fn a_warm_up_with_a_limit_of_one_does_not_load_stale_keys_side_by_side() {
    let table = Table::taking(SECOND);
    let settings = settings().ttl(10 * SECOND).stale_for(50 * MINUTE);
    let load = table.loader();
    let cache = Cache::new(settings.build().unwrap(), move |id: u64| {
        let rows = load(vec![id]);
        async move { rows.await.map(|rows| rows[&id]) }
    });
    assert!(cache.preload(0..8, 1).await.is_empty());
    assert_eq!(table.most_at_once.load(SeqCst), 1);
    pass(15 * SECOND).await;
    assert!(cache.preload(0..8, 1).await.is_empty());
    pass(15 * SECOND).await;
    assert_eq!(table.most_at_once.load(SeqCst), 1, "{:?}", table.queries.lock());
}

#[tokio::test(start_paused = true)]
async fn what_a_batch_that_its_caller_computes_alone_asks_for_borrows_the_place_around_it() {
    let alone = |handle: &Stampede<u64>, after: Duration| {
        let handle = handle.clone();
        spawn(async move {
            pass(after).await;
            let compute = || async { Ok::<_, OriginError>(Computed::new(1).do_not_store()) };
            handle.get_or_compute_with(1_u64, compute).await
        })
    };
    let handle = places(1).build().unwrap();
    // The values of the key are known not to be shared.
    alone(&handle, Duration::ZERO).await.unwrap().unwrap();
    let (inner, from) = (handle.clone(), tokio::time::Instant::now());
    let page = move || async move {
        pass(SECOND).await;
        let load = asking(&inner);
        Ok::<_, OriginError>(inner.get_many([1_u64], load).await.values[&1])
    };
    // A flight of the key waits for the only place, which the page has.
    let waiting = alone(&handle, MS);
    assert_eq!(within(10 * MINUTE, handle.get_or_compute("page", page)).await.ok(), Some(1));
    assert_eq!(from.elapsed(), SECOND, "without a batch the part borrows the place of the page");
    waiting.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn callers_inside_of_a_computation_that_compute_alone_wait_for_no_place() {
    for is_of_another_handle in [false, true] {
        let table = Table::taking(SECOND);
        let handle = places(1).batch_window(20 * MS).build().unwrap();
        let cache = Cache::batched(handle.clone(), table.loader());
        // The values of the key are known not to be shared.
        let compute = || async { Ok::<_, OriginError>(Computed::new(1).do_not_store()) };
        handle.get_or_compute_with(1_u64, compute).await.unwrap();
        let page = move || async move {
            // One leads, and each of the others has a call of its own.
            let got = futures_util::join!(cache.get(1), cache.get(1), cache.get(1));
            let got = [got.0, got.1, got.2].into_iter().filter_map(Result::ok);
            Ok::<_, OriginError>(got.sum())
        };
        let outer = if is_of_another_handle { places(1).build().unwrap() } else { handle };
        let from = tokio::time::Instant::now();
        let got = within(10 * MINUTE, outer.get_or_compute("page", page)).await;
        assert_eq!(got.ok(), Some(3), "another handle: {is_of_another_handle}");
        assert_eq!(from.elapsed(), SECOND + 20 * MS, "another handle: {is_of_another_handle}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_batch_that_its_caller_computes_alone_asks_for_borrows_a_place_that_comes_back() {
    let handle = places(1).build().unwrap();
    // The values of the key are known not to be shared.
    let unshared = || async { Ok::<_, OriginError>(Computed::new(1).do_not_store()) };
    handle.get_or_compute_with(1_u64, unshared).await.unwrap();
    let (inner, from) = (handle.clone(), tokio::time::Instant::now());
    let page = move || async move {
        let slow = || async {
            pass(3 * SECOND).await;
            Ok::<u64, OriginError>(9)
        };
        let alone = async {
            pass(SECOND).await;
            inner.get_many([1_u64], asking(&inner)).await.values.get(&1).copied()
        };
        let (slow, alone) = futures_util::join!(inner.get_or_compute("slow", slow), alone);
        Ok::<_, OriginError>(slow.unwrap_or_default() + alone.unwrap_or_default())
    };
    // A flight of the key waits for the only place, which the page has.
    let waiting = handle.clone();
    let waiting = spawn(async move {
        pass(MS).await;
        waiting.get_or_compute_with(1_u64, unshared).await
    });
    assert_eq!(within(10 * MINUTE, handle.get_or_compute("page", page)).await.ok(), Some(10));
    assert_eq!(from.elapsed(), 3 * SECOND);
    waiting.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_place_that_a_call_has_borrowed_returns_with_the_caller_that_has_lent_it() {
    let table = Table::taking(20 * SECOND);
    let handle = places(1).batch_window(20 * MS).build().unwrap();
    let cache = Cache::batched(handle.clone(), table.loader());
    // The values of the keys are known not to be shared.
    let unshared = || async { Ok::<_, OriginError>(Computed::new(1).do_not_store()) };
    for id in [1_u64, 2] {
        handle.get_or_compute_with(id, unshared).await.unwrap();
    }
    let inner = cache.clone();
    let page = move || async move {
        pass(10 * MS).await;
        let part = tokio::time::timeout(SECOND, inner.get(2)).await;
        Ok::<_, OriginError>(u64::from(part.is_err()))
    };
    let outer = handle.clone();
    let page = spawn(async move { outer.get_or_compute("page", page).await });
    all_have_run().await;
    // Flights of the keys wait for the only place, which the page has.
    let flights = [1_u64, 2].map(|id| {
        let handle = handle.clone();
        spawn(async move { handle.get_or_compute_with(id, unshared).await })
    });
    all_have_run().await;
    // The call of this caller, which needs no place, serves the page, too.
    let other = get(&cache, 1);
    assert_eq!(page.await.unwrap().ok(), Some(1), "the page gives its part up");
    let from = tokio::time::Instant::now();
    for flight in flights {
        flight.await.unwrap().unwrap();
    }
    assert!(from.elapsed() <= SECOND, "{:?}", from.elapsed());
    assert!(other.await.unwrap().is_ok());
    assert_eq!(*table.queries.lock(), [vec![1, 2]]);
}
