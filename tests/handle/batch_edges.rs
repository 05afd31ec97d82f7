//! Batches and kept keys under hostile interleavings, in one process.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tower_stampede::{Builder, Cache, Computed, Failure, Stampede};

use crate::kit::origin::*;
use crate::kit::spawn;

type Rows = Result<HashMap<u64, u64>, OriginError>;

/// A table that counts how many queries run at once.
#[derive(Clone, Default)]
struct Table(Arc<TableState>);

#[derive(Default)]
struct TableState {
    queries: Mutex<Vec<Vec<u64>>>,
    running: AtomicUsize,
    most_at_once: AtomicUsize,
    panics: AtomicUsize,
}

/// One query under way.
struct Query(Arc<TableState>);

impl Query {
    fn begin(state: &Arc<TableState>) -> Self {
        let running = state.running.fetch_add(1, SeqCst) + 1;
        state.most_at_once.fetch_max(running, SeqCst);
        Self(Arc::clone(state))
    }
}

impl Drop for Query {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, SeqCst);
    }
}

impl Table {
    fn select(&self, mut ids: Vec<u64>) -> BoxFuture<'static, Rows> {
        ids.sort_unstable();
        self.0.queries.lock().push(ids.clone());
        let query = Query::begin(&self.0);
        let panics = self.0.panics.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_ok();
        Box::pin(async move {
            tokio::time::sleep(SECOND).await;
            assert!(!panics, "the table panics");
            drop(query);
            Ok(ids.into_iter().map(|id| (id, id * id)).collect())
        })
    }

    fn loader(&self) -> impl Fn(Vec<u64>) -> BoxFuture<'static, Rows> + use<> {
        let table = self.clone();
        move |ids| table.select(ids)
    }

    fn cache(&self, settings: Builder<u64>) -> Cache<u64, u64, OriginError> {
        Cache::batched(settings.build().unwrap(), self.loader())
    }

    fn queries(&self) -> Vec<Vec<u64>> {
        self.0.queries.lock().clone()
    }

    fn most_at_once(&self) -> usize {
        self.0.most_at_once.load(SeqCst)
    }
}

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

fn get_or_compute(
    handle: &Stampede<u64>,
    key: u64,
    origin: &Origin,
) -> tokio::task::JoinHandle<Result<u64, tower_stampede::Error>> {
    let (handle, compute) = (handle.clone(), origin.compute());
    spawn(async move { handle.get_or_compute(key, compute).await })
}

// `max_computations` bounds how many calls of the origin run at once. Callers that are elected
// together, and are more than `max_batch`, make several calls; each needs a place.
#[tokio::test(start_paused = true)]
async fn several_calls_of_elected_callers_do_not_run_on_one_place() {
    let table = Table::default();
    let cache = table.cache(places(1).batch_window(5 * MS).max_batch(2));
    let handle = cache.handle().clone();
    let first = {
        let (handle, origin) = (handle.clone(), Origin::taking(SECOND));
        spawn(async move { handle.get_or_compute(0, origin.compute()).await })
    };
    all_have_run().await;
    // Leaders that queue for the place and go away.
    let queued: Vec<_> = (1..5_u64)
        .map(|id| {
            let (handle, origin) = (handle.clone(), Origin::new());
            spawn(async move { handle.get_or_compute_scoped(id, || origin.load()).await })
        })
        .collect();
    all_have_run().await;
    let waiting: Vec<_> = (1..5_u64).map(|id| get(&cache, id)).collect();
    all_have_run().await;
    for leader in queued {
        leader.abort();
    }
    first.await.unwrap().unwrap();
    for caller in waiting {
        within(MINUTE, caller).await.unwrap().unwrap();
    }
    assert_eq!(table.most_at_once(), 1, "{:?}", table.queries());
    assert_quiet(&handle);
}

// A batch takes one place. Waiters of a batch that came to nothing are a batch as well: they
// must not need a place and a call for each key.
#[tokio::test(start_paused = true)]
async fn waiters_of_a_batch_that_panicked_load_together_with_one_place_in_all() {
    let table = Table::default();
    let cache = places(1).build().unwrap();
    table.0.panics.store(1, SeqCst);
    let ask = |cache: &Stampede<u64>| {
        let (cache, load) = (cache.clone(), table.loader());
        spawn(async move { cache.get_many(0..100, load).await })
    };
    let panicked = ask(&cache);
    all_have_run().await;
    let waiting = ask(&cache);
    panicked.await.unwrap_err();
    let batch = waiting.await.unwrap();
    assert!(batch.failures.is_empty(), "{:?}", batch.failures.values().next());
    let sizes: Vec<_> = table.queries().iter().map(Vec::len).collect();
    assert_eq!(sizes, [100, 100]);
}

// What a computation holds (a connection, a permit) must be free once its time is over:
// `ErrorKind::ComputeTimeout` says that the computation was dropped.
#[tokio::test(start_paused = true)]
async fn a_call_of_single_callers_that_takes_too_long_is_dropped() {
    let (connections, handle) = (Arc::new(tokio::sync::Semaphore::new(1)), settings::<u64>());
    let handle = handle.batch_window(5 * MS).compute_timeout(5 * SECOND).build().unwrap();
    let pool = Arc::clone(&connections);
    let load = move |_: Vec<u64>| {
        let pool = Arc::clone(&pool);
        async move {
            let _connection = pool.acquire().await.unwrap();
            std::future::pending::<Rows>().await
        }
    };
    let cache = Cache::batched(handle, load);
    within(MINUTE, cache.get(1)).await.unwrap_err();
    all_have_run().await;
    assert_quiet(cache.handle());
    assert_eq!(connections.available_permits(), 1, "the call still has its connection");
}

// `keep_fresh` treats a failure as any other and tries again; a loader that panics once must
// not end it for ever.
#[tokio::test(start_paused = true)]
async fn a_panic_of_the_loader_does_not_end_what_keeps_keys_fresh() {
    for is_batched in [false, true] {
        let table = Table::default();
        table.0.panics.store(1, SeqCst);
        let handle = settings().ttl(10 * SECOND).build().unwrap();
        let cache: Cache<u64, u64, OriginError> = match is_batched {
            true => Cache::batched(handle, table.loader()),
            false => {
                let table = table.clone();
                Cache::new(handle, move |id| {
                    let rows = table.select(vec![id]);
                    async move { rows.await.map(|rows| rows[&id]) }
                })
            }
        };
        let _kept = cache.keep_fresh([1]);
        pass(MINUTE).await;
        assert_eq!(cache.peek(&1).await, Some(1), "batched: {is_batched}");
    }
}

// A computation that asks the same handle lends its place to what it waits for. That must hold
// for a call of a batch as well where a caller outside of any flight has a part in it.
#[tokio::test(start_paused = true)]
async fn a_call_that_a_caller_without_a_place_shares_lends_the_place_of_the_others() {
    let handle = places(1).batch_window(5 * MS).build().unwrap();
    let inner = handle.clone();
    let load = move |ids: Vec<u64>| {
        let inner = inner.clone();
        async move {
            if ids.contains(&5) {
                let part = || async { Ok::<u64, OriginError>(100) };
                let part = inner.get_or_compute("part", part).await;
                part.map_err(|_| OriginError(0))?;
            }
            pass(SECOND).await;
            // The first key may not be shared: each of its callers loads it.
            let computed = |id| match id {
                1 => Computed::new(id).do_not_store(),
                _ => Computed::new(id),
            };
            Ok::<_, OriginError>(ids.into_iter().map(|id| (id, computed(id))).collect::<Vec<_>>())
        }
    };
    let cache = Cache::batched(handle, load);
    let (one, two) = (get(&cache, 1), get(&cache, 1));
    // Just after the first call has ended.
    pass(SECOND + 7 * MS).await;
    let five = get(&cache, 5);
    let five = within(10 * SECOND, five).await.unwrap();
    assert!(five.is_ok(), "{five:?}");
    assert!(one.await.unwrap().is_ok() && two.await.unwrap().is_ok());
}

fn storm(window: std::time::Duration, max_batch: usize) -> (Table, Cache<u64, u64, OriginError>) {
    let table = Table::default();
    let settings = places(2).batch_window(window).max_batch(max_batch).ttl(MINUTE);
    let load = {
        let table = table.clone();
        move |ids: Vec<u64>| -> BoxFuture<'static, Rows> {
            table.0.queries.lock().push(ids.clone());
            let query = Query::begin(&table.0);
            Box::pin(async move {
                tokio::time::sleep(MS).await;
                drop(query);
                Ok(ids.into_iter().map(|id| (id, id)).collect())
            })
        }
    };
    let cache = Cache::batched(settings.build().unwrap(), load);
    (table, cache)
}

// The bound holds on several threads, too: callers that are seated at the same time may be more
// than `max_batch`, and the calls that are too many need places of their own. In real time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn single_callers_on_several_threads_keep_the_bound_on_computations() {
    // A round waits for its windows most of the time: ten share the threads.
    for group in 0..30 {
        let rounds = (0..10).map(|n| spawn(a_round_keeps_the_bound(10 * group + n)));
        gather(rounds.collect()).await;
    }
}

async fn a_round_keeps_the_bound(round: usize) {
    let (table, cache) = storm(MS, 2);
    let got = herd(200, |n| {
        let cache = cache.clone();
        async move { cache.get(n as u64 % 100).await.is_ok() }
    });
    assert!(got.await.into_iter().all(|is_ok| is_ok));
    assert!(table.most_at_once() <= 2, "round {round}: {}", table.most_at_once());
    let mut loaded: Vec<u64> = table.queries().into_iter().flatten().collect();
    loaded.sort_unstable();
    assert_eq!(loaded, (0..100).collect::<Vec<_>>(), "each key once");
    assert_quiet(cache.handle());
}

/// A value whose `Drop` panics, if it is told to.
#[derive(Debug)]
struct Fragile(u64, bool);

impl Clone for Fragile {
    fn clone(&self) -> Self {
        Self(self.0, false)
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        assert!(!self.1 || std::thread::panicking(), "the value panics");
    }
}

// A pair that was not asked for is dropped. A panic in a value's `Drop` ends at that value: it
// does not concern the caller of another key.
#[tokio::test(start_paused = true)]
async fn a_panic_in_the_drop_of_a_pair_that_was_not_asked_for_fails_no_other_key() {
    let cache: Stampede<Fragile> = settings().max_entries(100).build().unwrap();
    let load = |_: Vec<u64>| async {
        Ok::<_, OriginError>(vec![(1, Fragile(1, false)), (9, Fragile(9, true))])
    };
    let asked = cache.clone();
    let batch = spawn(async move { asked.get_many([1], load).await });
    assert_eq!(batch.await.expect("no panic").values[&1].0, 1);
}

// A slot among the waiters belongs to the caller that took it: one caller is left, and the leader
// that it waits for.
#[tokio::test(start_paused = true)]
async fn a_batch_that_is_dropped_in_the_queue_leaves_no_slot_and_no_flight() {
    let table = Table::default();
    let cache = places(1).build().unwrap();
    let (busy, origin) = (cache.clone(), Origin::taking(10 * SECOND));
    let busy = spawn(async move { busy.get_or_compute("busy", origin.compute()).await });
    all_have_run().await;
    let (asked, load) = (cache.clone(), table.loader());
    let batch = spawn(async move { asked.get_many(0..100, load).await });
    all_have_run().await;
    let (other, load) = (cache.clone(), table.loader());
    let joined = spawn(async move { other.get_many([7], load).await.values.len() });
    all_have_run().await;
    batch.abort();
    all_have_run().await;
    let stats = cache.stats();
    assert_eq!(stats.flights, 2, "busy, and the one that another caller waits for");
    assert!(stats.waiting <= 2, "{}", stats.waiting);
    assert_eq!(joined.await.unwrap(), 1);
    busy.await.unwrap().unwrap();
    assert_eq!(table.queries(), [vec![7]]);
    assert_quiet(&cache);
}

// A shutdown drops what still runs: its connection is free then.
#[tokio::test(start_paused = true)]
async fn a_call_of_single_callers_does_not_outlive_a_shutdown() {
    let connections = Arc::new(tokio::sync::Semaphore::new(1));
    let handle = settings::<u64>().batch_window(5 * MS).build().unwrap();
    let pool = Arc::clone(&connections);
    let load = move |_: Vec<u64>| {
        let pool = Arc::clone(&pool);
        async move {
            let _connection = pool.acquire().await.unwrap();
            std::future::pending::<Rows>().await
        }
    };
    let cache = Cache::batched(handle, load);
    let caller = get(&cache, 1);
    pass(SECOND).await;
    cache.handle().shutdown(MS).await;
    drop(within(SECOND, caller).await);
    assert_eq!(connections.available_permits(), 1, "the call still has its connection");
}

// An elected caller is late: it joins a later call. What that call asks for borrows its place,
// also where the caller is a computation itself that waits.
#[tokio::test(start_paused = true)]
async fn what_a_late_batch_of_a_computation_asks_for_borrows_its_place() {
    let handle = places(2).wait_timeout(SECOND).build().unwrap();
    let origin = Origin::taking(SECOND / 2);
    origin.next([Answer::Panic]);
    let panicking = get_or_compute(&handle, 1, &origin);
    all_have_run().await;
    let asking = handle.clone();
    let load = move |ids: Vec<u64>| {
        let asking = asking.clone();
        async move {
            let part = || async { Ok::<u64, OriginError>(100) };
            asking.get_or_compute("part", part).await.map_err(|_| OriginError(0))?;
            Rows::Ok(ids.into_iter().map(|id| (id, id)).collect())
        }
    };
    let asking = handle.clone();
    let compute = move || async move {
        let batch = asking.get_many([1], load).await;
        Ok::<u64, OriginError>(batch.values.len() as u64)
    };
    let outer = handle.clone();
    let outer = spawn(async move { outer.get_or_compute(0, compute).await });
    assert!(panicking.await.is_err(), "its caller is told of the panic");
    // The late call gathers its keys. From now on the other place is busy until all is over.
    let busy = get_or_compute(&handle, 2, &Origin::taking(10 * SECOND));
    assert_eq!(within(5 * SECOND, outer).await.unwrap().unwrap(), 1);
    busy.abort();
}

// Late callers bring the place of the first of them: no caller of the queue comes between.
#[tokio::test(start_paused = true)]
async fn late_callers_keep_the_place_of_the_first_of_them() {
    let table = Table::default();
    let handle = places(1).wait_timeout(5 * SECOND).build().unwrap();
    let busy = get_or_compute(&handle, 0, &Origin::taking(2 * SECOND));
    all_have_run().await;
    let (queued, origin) = (handle.clone(), Origin::new());
    let queued = spawn(async move { queued.get_or_compute_scoped(1, || origin.load()).await });
    all_have_run().await;
    let (asked, load) = (handle.clone(), table.loader());
    let batch = spawn(async move { asked.get_many([1], load).await });
    all_have_run().await;
    let later = get_or_compute(&handle, 2, &Origin::taking(10 * SECOND));
    all_have_run().await;
    // Elected, it has the rank of the caller that it has waited for.
    queued.abort();
    let batch = within(4 * SECOND, batch).await.unwrap();
    assert!(batch.failures.is_empty(), "{:?}", batch.failures);
    assert!(busy.await.unwrap().is_ok());
    later.abort();
}

// A call that still gathers its keys has not begun: where its callers leave, it never does.
#[tokio::test(start_paused = true)]
async fn a_batch_that_its_callers_leave_while_it_gathers_does_not_call_the_origin() {
    let table = Table::default();
    let cache = table.cache(places(1).batch_window(5 * MS));
    let callers = [get(&cache, 1), get(&cache, 2)];
    pass(2 * MS).await;
    callers.iter().for_each(tokio::task::JoinHandle::abort);
    pass(10 * MS).await;
    assert_eq!(table.queries(), Vec::<Vec<u64>>::new());
    assert_quiet(cache.handle());
    // The next caller is not affected.
    assert_eq!(get(&cache, 1).await.unwrap().unwrap(), 1);
}
