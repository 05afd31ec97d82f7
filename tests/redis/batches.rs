//! Batches of several processes on one Redis: each key is loaded once in all, and a batch
//! waits for its round trips, not for one of each key.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use tower_stampede::{Batch, Redis};

use crate::kit::origin::*;
use crate::kit::redis::{Cluster, Proxy, Server};
use crate::kit::redis_caches::*;
use crate::kit::spawn;

type Rows = Result<HashMap<u64, u64>, std::io::Error>;

/// A table that records each query.
#[derive(Clone, Default)]
struct Table(Arc<Mutex<Vec<Vec<u64>>>>);

impl Table {
    fn loader(&self) -> impl Fn(Vec<u64>) -> BoxFuture<'static, Rows> + use<> {
        let queries = Arc::clone(&self.0);
        move |ids| {
            queries.lock().push(ids.clone());
            Box::pin(async move {
                tokio::time::sleep(50 * MS).await;
                Ok(squares(ids))
            })
        }
    }

    fn loads(&self) -> BTreeMap<u64, usize> {
        let mut loads = BTreeMap::new();
        self.0.lock().iter().flatten().for_each(|id| *loads.entry(*id).or_default() += 1);
        loads
    }
}

fn squares(ids: impl IntoIterator<Item = u64>) -> HashMap<u64, u64> {
    ids.into_iter().map(|id| (id, id * id)).collect()
}

/// Fifty batches of a hundred keys each, of which neighbours share ninety.
async fn fifty_overlapping_batches(caches: &[Cache], table: &Table) {
    all_listen(caches).await;
    let batches = (0..50_u64).map(|n| {
        let (cache, load) = (caches[n as usize % caches.len()].clone(), table.loader());
        let ids: Vec<u64> = (n * 10..n * 10 + 100).collect();
        let asked = ids.clone();
        let asking = spawn(async move { cache.get_many(asked, load).await });
        async { (asking.await.unwrap(), ids) }
    });
    let batches: Vec<(Batch<u64, u64>, Vec<u64>)> = within(LIMIT, join_all(batches)).await;
    for (batch, ids) in batches {
        assert_eq!(batch.complete().unwrap(), squares(ids));
    }
    let expected: BTreeMap<u64, usize> = (0..590).map(|id| (id, 1)).collect();
    assert_eq!(table.loads(), expected, "each key once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlapping_batches_of_two_processes_load_each_key_once() {
    let (server, table) = (Server::start(), Table::default());
    fifty_overlapping_batches(&processes(2, &server.url()), &table).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlapping_batches_of_two_processes_on_a_cluster_load_each_key_once() {
    let (cluster, table) = (Cluster::start(), Table::default());
    let process = || patient_on(Redis::cluster(cluster.urls()).unwrap().namespace("stampede"));
    fifty_overlapping_batches(&[process(), process()], &table).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keys_of_a_batch_are_looked_up_with_a_few_round_trips() {
    let (server, table) = (Server::start(), Table::default());
    let link = Proxy::start(server.port());
    let (first, second) = (process(&server.url()), process(&link.url()));
    all_listen(&[first.clone(), second.clone()]).await;
    let ids = || 0..200_u64;
    assert_eq!(first.get_many(ids(), table.loader()).await.values, squares(ids()));
    eventually_filled(&server, 200).await;
    link.delay(500 * MS);
    let from = Instant::now();
    assert_eq!(second.get_many(ids(), table.loader()).await.values, squares(ids()));
    // One after the other they would take a hundred seconds; a few round trips take two.
    assert!(from.elapsed() < 50 * SECOND, "{:?}", from.elapsed());
    assert_eq!(table.loads().values().sum::<usize>(), 200);
}

/// Waits until the server has so many values.
async fn eventually_filled(server: &Server, values: usize) {
    let is_there = || {
        let keys = server.cli(&["DBSIZE"]).int();
        keys >= values as i64
    };
    crate::kit::redis::eventually("the values are in Redis", is_there).await;
}
