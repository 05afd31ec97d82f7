//! Batches of several processes that share a remote: each key is loaded once in all, a batch
//! costs the waits of one key, and no batch waits for another in a circle.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::Instant;
use tower_stampede::remote::{Double, RemoteErrorKind, RemoteOp};
use tower_stampede::{Batch, Key};

use crate::kit::origin::*;
use crate::kit::remote::*;
use crate::kit::spawn;

type Rows = Result<HashMap<u64, u64>, std::io::Error>;

/// A table that takes a second for a query, and records each.
#[derive(Clone, Default)]
struct Table(Arc<Mutex<Vec<Vec<u64>>>>);

impl Table {
    fn loader(&self) -> impl Fn(Vec<u64>) -> BoxFuture<'static, Rows> + use<> {
        let queries = Arc::clone(&self.0);
        move |ids| {
            queries.lock().push(ids.clone());
            Box::pin(async move {
                tokio::time::sleep(SECOND).await;
                Ok(ids.into_iter().map(|id| (id, id * id)).collect())
            })
        }
    }

    fn queries(&self) -> Vec<Vec<u64>> {
        self.0.lock().clone()
    }
}

fn ask_on_task(
    process: &Process,
    table: &Table,
    ids: Vec<u64>,
) -> tokio::task::JoinHandle<Batch<u64, u64>> {
    let (cache, load) = (process.cache.clone(), table.loader());
    spawn(async move { cache.get_many(ids, load).await })
}

fn squares(ids: impl IntoIterator<Item = u64>) -> HashMap<u64, u64> {
    ids.into_iter().map(|id| (id, id * id)).collect()
}

#[tokio::test(start_paused = true)]
async fn overlapping_batches_of_two_processes_load_each_key_once() {
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    let table = Table::default();
    let asked: Vec<_> = (0..50_u64)
        .map(|n| {
            let ids: Vec<u64> = (n * 10..n * 10 + 100).collect();
            (ask_on_task(&processes[n as usize % 2], &table, ids.clone()), ids)
        })
        .collect();
    for (batch, ids) in asked {
        assert_eq!(within(MINUTE, batch).await.unwrap().complete().unwrap(), squares(ids));
    }
    let mut loaded: Vec<u64> = table.queries().into_iter().flatten().collect();
    loaded.sort_unstable();
    assert_eq!(loaded, (0..590).collect::<Vec<_>>(), "each id once");
    assert!(table.queries().len() <= 50, "at most a call for each batch");
    for process in &processes {
        assert_quiet(process);
    }
}

#[tokio::test(start_paused = true)]
async fn batches_that_hold_each_others_keys_do_not_wait_for_each_other_to_load() {
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    let table = Table::default();
    double.delay(10 * MS);
    let from = Instant::now();
    let one = ask_on_task(&processes[0], &table, (0..20).collect());
    let other = ask_on_task(&processes[1], &table, (0..20).rev().collect());
    assert_eq!(one.await.unwrap().complete().unwrap(), squares(0..20));
    assert_eq!(other.await.unwrap().complete().unwrap(), squares(0..20));
    assert!(from.elapsed() < 2 * SECOND, "{:?}", from.elapsed());
    assert_eq!(table.queries().iter().map(Vec::len).sum::<usize>(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_batch_waits_for_the_remote_as_long_as_one_key() {
    let mut took = Vec::new();
    for keys in [1, 500] {
        let double = Double::new();
        let processes = Process::several(2, &double).await;
        let table = Table::default();
        double.delay(10 * MS);
        for process in &processes {
            let from = Instant::now();
            let batch = ask_on_task(process, &table, (0..keys).collect()).await.unwrap();
            assert_eq!(batch.values.len(), keys as usize);
            took.push(from.elapsed());
            pass(SECOND).await;
        }
        assert_eq!(table.queries().len(), 1, "the other process finds them in the remote");
    }
    assert_eq!(took[..2], took[2..], "one key, and five hundred");
}

#[tokio::test(start_paused = true)]
async fn keys_that_a_dead_process_had_the_lease_of_are_loaded_with_one_further_call() {
    let double = Double::new();
    let process = Process::on(&double);
    process.prepare(&double).await;
    for id in 0..10_u64 {
        assert!(double.lock_as_stranger(&Key::from(id), 3 * SECOND));
    }
    let table = Table::default();
    let batch = ask_on_task(&process, &table, (0..20).collect());
    assert_eq!(within(MINUTE, batch).await.unwrap().complete().unwrap(), squares(0..20));
    let mut sizes: Vec<usize> = table.queries().iter().map(Vec::len).collect();
    sizes.sort_unstable();
    assert_eq!(sizes.iter().sum::<usize>(), 20);
    assert_eq!(sizes.last(), Some(&10), "the free ones are not delayed: {sizes:?}");
    assert!(sizes.len() <= 4, "and the others are not loaded one by one: {sizes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_remote_that_is_away_leaves_one_call_for_the_batch() {
    let double = Double::new();
    let process = Process::on(&double);
    process.prepare(&double).await;
    let all = [RemoteOp::Get, RemoteOp::Acquire, RemoteOp::Fill];
    double.fail(&all, RemoteErrorKind::Connection);
    let table = Table::default();
    let batch = ask_on_task(&process, &table, (0..20).collect()).await.unwrap();
    assert_eq!(batch.complete().unwrap(), squares(0..20));
    assert_eq!(table.queries().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_frozen_remote_delays_a_batch_by_its_time_out_at_most() {
    let double = Double::new();
    let process = Process::on(&double);
    process.prepare(&double).await;
    double.freeze();
    let table = Table::default();
    let from = Instant::now();
    let batch = ask_on_task(&process, &table, (0..20).collect()).await.unwrap();
    assert_eq!(batch.complete().unwrap(), squares(0..20));
    assert!(from.elapsed() < SECOND + Duration::from_millis(600), "{:?}", from.elapsed());
    assert_eq!(table.queries().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_finds_stale_values_in_the_remote_serves_and_refreshes_them() {
    let double = Double::new();
    let builder = || settings().stale_for(10 * MINUTE);
    let earlier = Process::with(&double, builder());
    for id in [1_u64, 2] {
        earlier.put(id, 1000 + id).await;
    }
    drop(earlier);
    pass(MINUTE + SECOND).await;
    let process = Process::with(&double, builder());
    process.prepare(&double).await;
    let table = Table::default();
    let values = process.get_many([1, 2, 3], table.loader()).await.complete().unwrap();
    assert_eq!(values, HashMap::from([(1, 1001), (2, 1002), (3, 9)]));
    pass(2 * SECOND).await;
    for id in 1..=3_u64 {
        assert_eq!(process.get(id).await, Some(id * id));
    }
    let mut loaded = table.queries().concat();
    loaded.sort_unstable();
    assert_eq!(loaded, [1, 2, 3], "each key is loaded once");
}
