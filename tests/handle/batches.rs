//! Many keys at once: each key is loaded once, whichever batches and single callers ask for
//! it, and one call loads all that a caller leads.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tower_stampede::{Absent, Batch, Cache, Computed, Error, ErrorKind, Failure, Mode, Stampede};

use crate::kit::origin::*;
use crate::kit::spawn;

/// A table of the numbers below 1000 and their squares, which records each query.
#[derive(Clone, Default)]
struct Table(Arc<TableState>);

#[derive(Default)]
struct TableState {
    queries: Mutex<Vec<Vec<u64>>>,
    running: AtomicUsize,
    most_at_once: AtomicUsize,
    fails: AtomicUsize,
    panics: AtomicUsize,
}

type Rows = Result<HashMap<u64, u64>, std::io::Error>;

impl Table {
    async fn select(self, mut ids: Vec<u64>) -> Rows {
        ids.sort_unstable();
        self.0.queries.lock().push(ids.clone());
        let running = self.0.running.fetch_add(1, SeqCst) + 1;
        self.0.most_at_once.fetch_max(running, SeqCst);
        tokio::time::sleep(SECOND).await;
        self.0.running.fetch_sub(1, SeqCst);
        let once =
            |count: &AtomicUsize| count.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_ok();
        assert!(!once(&self.0.panics), "the table panics");
        if once(&self.0.fails) {
            return Err(std::io::Error::other("the table is away"));
        }
        Ok(ids.into_iter().filter(|id| *id < 1000).map(|id| (id, id * id)).collect())
    }

    fn loader(
        &self,
    ) -> impl Fn(Vec<u64>) -> futures_util::future::BoxFuture<'static, Rows> + use<> {
        let table = self.clone();
        move |ids| Box::pin(table.clone().select(ids))
    }

    fn queries(&self) -> Vec<Vec<u64>> {
        self.0.queries.lock().clone()
    }

    fn loads_of(&self, id: u64) -> usize {
        self.queries().iter().flatten().filter(|loaded| **loaded == id).count()
    }
}

fn squares(ids: impl IntoIterator<Item = u64>) -> HashMap<u64, u64> {
    ids.into_iter().map(|id| (id, id * id)).collect()
}

async fn ask(cache: &Stampede<u64>, table: &Table, ids: &[u64]) -> Batch<u64, u64> {
    cache.get_many(ids.iter().copied(), table.loader()).await
}

fn ask_on_task(
    cache: &Stampede<u64>,
    table: &Table,
    ids: &[u64],
) -> tokio::task::JoinHandle<Batch<u64, u64>> {
    let (cache, table, ids) = (cache.clone(), table.clone(), ids.to_vec());
    spawn(async move { ask(&cache, &table, &ids).await })
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_missing_are_loaded_with_one_call_and_the_others_are_not() {
    let (cache, table) = (settings().build().unwrap(), Table::default());
    cache.put(2, 4).await;
    let batch = ask(&cache, &table, &[1, 2, 3, 3, 1]).await;
    assert_eq!(batch.complete().unwrap(), squares([1, 2, 3]));
    assert_eq!(table.queries(), [vec![1, 3]]);
    assert_eq!(ask(&cache, &table, &[1, 2, 3]).await.values, squares([1, 2, 3]));
    assert_eq!(table.queries().len(), 1, "what was loaded is stored");
    assert!(ask(&cache, &table, &[]).await.values.is_empty());
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn fifty_overlapping_batches_of_a_hundred_keys_load_each_key_once() {
    let (cache, table) = (settings().build().unwrap(), Table::default());
    let batches = herd(50, |n| {
        let (cache, table) = (cache.clone(), table.clone());
        let ids: Vec<u64> = (n as u64 * 10..n as u64 * 10 + 100).collect();
        async move { (ask(&cache, &table, &ids).await, ids) }
    });
    for (batch, ids) in batches.await {
        assert_eq!(batch.complete().unwrap(), squares(ids));
    }
    for id in 0..590 {
        assert_eq!(table.loads_of(id), 1, "id {id}");
    }
    assert_eq!(table.queries().len(), 50, "a call for what each batch leads");
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn a_batch_and_single_callers_share_what_either_computes() {
    let (cache, table) = (settings().build().unwrap(), Table::default());
    let origin = Origin::taking(10 * MS);
    let single = {
        let (cache, compute) = (cache.clone(), origin.compute());
        spawn(async move { cache.get_or_compute(1, compute).await })
    };
    all_have_run().await;
    let batch = ask_on_task(&cache, &table, &[1, 2]);
    all_have_run().await;
    let compute = origin.compute();
    assert_eq!(cache.get_or_compute(2, compute).await.unwrap(), 4, "the batch loads it");
    assert_eq!(batch.await.unwrap().values, HashMap::from([(1, 1), (2, 4)]));
    assert_eq!(single.await.unwrap().unwrap(), 1);
    assert_eq!((origin.calls(), table.queries()), (1, vec![vec![2]]));
}

#[tokio::test(start_paused = true)]
async fn a_key_without_a_pair_is_absent_and_is_loaded_once_for_all_that_wait() {
    let (cache, table) = (settings().build().unwrap(), Table::default());
    let (one, other) =
        (ask_on_task(&cache, &table, &[1, 5000]), ask_on_task(&cache, &table, &[5000]));
    all_have_run().await;
    let origin = Origin::new();
    let single = cache.get_or_compute(5000, origin.compute()).await.unwrap_err();
    assert_eq!(single.kind(), ErrorKind::Inner);
    assert!(single.inner::<Absent>().is_some());
    let (one, other) = (one.await.unwrap(), other.await.unwrap());
    assert_eq!(one.values, squares([1]));
    assert!(one.failures.is_empty() && other.failures.is_empty() && other.values.is_empty());
    assert_eq!((table.loads_of(5000), origin.calls()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_failed_call_fails_its_keys_and_leaves_the_others_their_values() {
    let (cache, table) = (settings().build().unwrap(), Table::default());
    cache.put(1, 1).await;
    let origin = Origin::taking(10 * MS);
    let (for_two, compute) = (cache.clone(), origin.compute());
    let single = spawn(async move { for_two.get_or_compute(2, compute).await });
    all_have_run().await;
    table.0.fails.store(1, SeqCst);
    let batch = ask(&cache, &table, &[1, 2, 3, 4]).await;
    assert_eq!(batch.values, HashMap::from([(1, 1), (2, 1)]));
    let mut failed: Vec<u64> = batch.failures.keys().copied().collect();
    failed.sort_unstable();
    assert_eq!(failed, [3, 4]);
    for error in batch.failures.values() {
        assert_eq!(error.kind(), ErrorKind::Inner);
        let cause = error.inner::<std::io::Error>().expect("the loader's own error");
        assert_eq!(cause.to_string(), "the table is away");
    }
    assert_eq!(single.await.unwrap().unwrap(), 1);
    let held = ask(&cache, &table, &[3]).await;
    assert_eq!(held.complete().unwrap_err().kind(), ErrorKind::Held);
    assert_eq!(table.queries().len(), 1, "a key that failed is held");
}

#[tokio::test(start_paused = true)]
async fn a_batch_takes_one_place_until_its_last_key_has_ended() {
    let cache = settings().max_refreshes(1).max_computations(2).build().unwrap();
    let table = Table::default();
    let batches = herd(20, |n| {
        let (cache, table) = (cache.clone(), table.clone());
        let ids: Vec<u64> = (n as u64 * 10..n as u64 * 10 + 10).collect();
        async move { ask(&cache, &table, &ids).await.complete().unwrap().len() }
    });
    assert!(batches.await.iter().all(|values| *values == 10));
    assert_eq!(table.queries().len(), 20);
    assert_eq!(table.0.most_at_once.load(SeqCst), 2);
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn an_invalidation_of_one_key_ends_that_key_and_no_other() {
    let (cache, table) = (settings().build().unwrap(), Table::default());
    let batch = ask_on_task(&cache, &table, &[1, 2, 3]);
    all_have_run().await;
    cache.invalidate(2).await;
    assert_eq!(batch.await.unwrap().values, squares([1, 2, 3]), "its waiters have asked before");
    assert_eq!(ask(&cache, &table, &[1, 2, 3]).await.values, squares([1, 2, 3]));
    assert_eq!(table.queries(), [vec![1, 2, 3], vec![2]]);
}

#[tokio::test(start_paused = true)]
async fn stale_values_are_served_at_once_and_refreshed_by_the_call_of_the_missing_ones() {
    let cache = settings().ttl(10 * SECOND).stale_for(60 * SECOND).build().unwrap();
    let table = Table::default();
    cache.put(1, 100).await;
    cache.put(2, 200).await;
    pass(11 * SECOND).await;
    let batch = ask(&cache, &table, &[1, 2, 3]).await;
    assert_eq!(batch.values, HashMap::from([(1, 100), (2, 200), (3, 9)]));
    all_have_run().await;
    assert_eq!(table.queries(), [vec![1, 2, 3]]);
    assert_eq!(ask(&cache, &table, &[1, 2]).await.values, squares([1, 2]));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_caller_leaves_the_call_running() {
    let (cache, table) = (settings().build().unwrap(), Table::default());
    let batch = ask_on_task(&cache, &table, &[1, 2]);
    all_have_run().await;
    batch.abort();
    pass(2 * SECOND).await;
    assert_eq!(ask(&cache, &table, &[1, 2]).await.values, squares([1, 2]));
    assert_eq!(table.queries().len(), 1);
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn more_keys_than_a_call_may_have_are_several_calls_side_by_side() {
    let cache = settings().max_batch(40).build().unwrap();
    let table = Table::default();
    let ids: Vec<u64> = (0..100).collect();
    let from = tokio::time::Instant::now();
    assert_eq!(ask(&cache, &table, &ids).await.complete().unwrap(), squares(0..100));
    assert_eq!(from.elapsed(), SECOND);
    let sizes: Vec<usize> = table.queries().iter().map(Vec::len).collect();
    assert_eq!(sizes, [40, 40, 20]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_loader_goes_on_in_the_caller_and_the_waiters_load_together() {
    let (cache, table) = (settings().build().unwrap(), Table::default());
    table.0.panics.store(1, SeqCst);
    let panicked = ask_on_task(&cache, &table, &[1, 2, 3]);
    all_have_run().await;
    let waiting = ask_on_task(&cache, &table, &[1, 2, 3]);
    let panic = panicked.await.unwrap_err().into_panic();
    assert_eq!(panic.downcast_ref(), Some(&"the table panics"));
    assert_eq!(waiting.await.unwrap().complete().unwrap(), squares([1, 2, 3]));
    assert_eq!(table.queries(), [vec![1, 2, 3], vec![1, 2, 3]]);
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_takes_too_long_is_dropped_and_its_keys_fail() {
    let cache: Stampede<u64> = settings().compute_timeout(500 * MS).build().unwrap();
    let table = Table::default();
    let batch = ask(&cache, &table, &[1, 2]).await;
    assert!(batch.failures.values().all(|error| error.kind() == ErrorKind::ComputeTimeout));
    assert_eq!(batch.failures.len(), 2);
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn a_loader_may_ask_the_same_cache_for_other_keys_with_one_place_in_all() {
    let cache = settings().max_refreshes(1).max_computations(1).build().unwrap();
    let (table, inner) = (Table::default(), cache.clone());
    let loader = table.loader();
    let sums = move |ids: Vec<u64>| {
        let (inner, loader) = (inner.clone(), table.loader());
        async move {
            let parts = inner.get_many([1, 2, 3], loader).await.complete()?;
            let sum: u64 = parts.values().sum();
            Ok::<_, Error>(ids.into_iter().map(move |id| (id, sum)).collect::<Vec<_>>())
        }
    };
    drop(loader);
    let batch = cache.get_many([2000, 2001], sums).await;
    assert_eq!(batch.complete().unwrap(), HashMap::from([(2000, 14), (2001, 14)]));
    assert_quiet(&cache);
}

/// Counts how often a future is polled.
struct Counted<F>(F, Arc<AtomicUsize>);

impl<F: Future + Unpin> Future for Counted<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.1.fetch_add(1, SeqCst);
        Pin::new(&mut self.0).poll(cx)
    }
}

#[tokio::test(start_paused = true)]
async fn a_loader_is_polled_once_for_each_time_that_it_is_woken() {
    let (cache, polls) = (settings().build().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&polls);
    // Rows that come one after the other.
    let load = move |ids: Vec<u64>| {
        let rows = async move {
            let mut rows = HashMap::new();
            for id in ids {
                tokio::time::sleep(MS).await;
                rows.insert(id, id * id);
            }
            Rows::Ok(rows)
        };
        Counted(Box::pin(rows), Arc::clone(&counted))
    };
    assert_eq!(cache.get_many(0..500, load).await.values, squares(0..500));
    assert_eq!(polls.load(SeqCst), 501, "at the begin, and for each of 500 rows");
}

#[tokio::test(start_paused = true)]
async fn values_may_set_their_own_tags() {
    let (cache, table) = (settings().build().unwrap(), Table::default());
    let load = {
        let table = table.clone();
        move |ids| {
            let table = table.clone();
            async move {
                let rows = table.select(ids).await?;
                let tagged = |(id, n)| (id, Computed::new(n).tag(("id", id)));
                Ok::<_, std::io::Error>(rows.into_iter().map(tagged).collect::<Vec<_>>())
            }
        }
    };
    assert_eq!(cache.get_many([1, 2], load).await.values, squares([1, 2]));
    cache.invalidate_tag(("id", 1_u64)).await;
    assert_eq!((cache.get(1).await, cache.get(2).await), (None, Some(4)));
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_only_observes_refuses_no_key_of_a_batch_when_the_clock_jumps() {
    let (table, cache) = (Table::default(), Stampede::<u64>::in_memory(MINUTE));
    cache.set_mode(Mode::Observe);
    let asking = {
        let (cache, loader) = (cache.clone(), table.loader());
        spawn(async move { cache.get_many([2, 3], loader).await })
    };
    all_have_run().await;
    // The clock is beyond the end of any computation before its driver is polled again.
    tokio::time::advance(10 * MINUTE).await;
    let batch = asking.await.unwrap();
    assert!(batch.failures.is_empty(), "{:?}", batch.failures);
    assert_eq!((batch.values[&2], batch.values[&3], table.queries().len()), (4, 9, 1));
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_is_switched_off_or_observes_loads_the_whole_batch_with_one_call() {
    for mode in [Mode::Off, Mode::Observe] {
        let (cache, table) = (settings().build().unwrap(), Table::default());
        cache.set_mode(mode);
        for calls in 1..3 {
            assert_eq!(ask(&cache, &table, &[1, 2, 3]).await.values, squares([1, 2, 3]));
            assert_eq!(table.queries().len(), calls, "{mode:?}");
        }
    }
}

// ---- typed caches ----

fn typed(handle: Stampede<u64>, table: &Table) -> Cache<u64, u64, std::io::Error> {
    Cache::batched(handle, table.loader())
}

#[tokio::test(start_paused = true)]
async fn single_callers_within_the_window_are_loaded_with_one_call() {
    let table = Table::default();
    let cache = typed(settings().batch_window(11 * MS).build().unwrap(), &table);
    let got = herd(10, |n| {
        let cache = cache.clone();
        async move {
            tokio::time::sleep(2 * n as u32 * MS).await;
            cache.get(n as u64 % 8).await
        }
    });
    assert!(got.await.iter().all(Result::is_ok));
    assert_eq!(table.queries(), [vec![0, 1, 2, 3, 4, 5], vec![6, 7]]);
    assert_quiet(cache.handle());
}

#[tokio::test(start_paused = true)]
async fn without_a_window_each_single_caller_that_misses_has_a_call_of_its_own() {
    let table = Table::default();
    let cache = typed(settings().build().unwrap(), &table);
    let from = tokio::time::Instant::now();
    assert_eq!(cache.get(3).await.unwrap(), 9);
    assert_eq!(from.elapsed(), SECOND);
    assert_eq!(cache.refresh(3).await.unwrap(), 9);
    assert_eq!(cache.get_many([3, 4]).await.complete().unwrap(), squares([3, 4]));
    assert_eq!(table.queries(), [vec![3], vec![3], vec![4]]);
}

#[tokio::test(start_paused = true)]
async fn the_loaders_own_error_comes_back_for_each_key_of_a_typed_batch() {
    let table = Table::default();
    let cache = typed(settings().build().unwrap(), &table);
    table.0.fails.store(1, SeqCst);
    let batch = cache.get_many([1, 2]).await;
    assert_eq!(batch.failures.len(), 2);
    for failure in batch.failures.values() {
        let Failure::Computation(error) = failure else { panic!("{failure:?}") };
        assert_eq!(error.to_string(), "the table is away");
    }
    let absent = cache.get(5000).await.unwrap_err();
    let Failure::Cache(absent) = absent else { panic!("{absent:?}") };
    assert!(absent.inner::<Absent>().is_some());
}

#[tokio::test(start_paused = true)]
async fn more_single_callers_than_a_call_may_have_take_a_place_for_each_call() {
    let table = Table::default();
    let settings = settings().batch_window(5 * MS).max_batch(3);
    let cache = typed(settings.max_refreshes(1).max_computations(2).build().unwrap(), &table);
    let got = herd(30, |n| {
        let cache = cache.clone();
        async move { cache.get(n as u64).await.unwrap() }
    });
    assert_eq!(got.await.len(), 30);
    assert_eq!(table.queries().len(), 10);
    assert_eq!(table.0.most_at_once.load(SeqCst), 2);
    assert_quiet(cache.handle());
}

/// Timers fire at whole milliseconds: a full call waits for the next of them, and others come.
#[tokio::test(start_paused = true)]
async fn a_full_call_that_waits_for_its_timer_gets_no_more_keys() {
    let table = Table::default();
    let settings = settings().batch_window(10 * MS).max_batch(3);
    let cache = typed(settings.build().unwrap(), &table);
    tokio::time::advance(MS / 3).await;
    let got = herd(30, |n| {
        let cache = cache.clone();
        async move { cache.get(n as u64).await.unwrap() }
    });
    assert_eq!(got.await.len(), 30);
    let sizes: Vec<usize> = table.queries().iter().map(Vec::len).collect();
    assert_eq!(sizes, [3; 10]);
    assert_quiet(cache.handle());
}

#[tokio::test(start_paused = true)]
async fn a_full_batch_does_not_wait_for_the_end_of_the_window() {
    let table = Table::default();
    let settings = settings().batch_window(10 * SECOND).max_batch(3);
    let cache = typed(settings.build().unwrap(), &table);
    let from = tokio::time::Instant::now();
    let got = herd(3, |n| {
        let cache = cache.clone();
        async move { cache.get(n as u64).await.unwrap() }
    });
    assert_eq!(got.await, [0, 1, 4]);
    assert_eq!(from.elapsed(), SECOND);
}
