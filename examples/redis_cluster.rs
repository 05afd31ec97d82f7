//! Two caches on one Redis Cluster, as two processes would have them: a cold herd at both is one
//! computation, whichever node has the key. Any of the nodes is enough to find the others.
//!
//! ```sh
//! cargo run --example redis_cluster --features redis-cluster -- redis://127.0.0.1:7000
//! ```

use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tower_stampede::{Announcement, Redis, Stampede};

mod redis_failure;

const ROWS: u32 = 20;
const CALLERS: u32 = 100;

/// How often the slow database was asked.
static LOADED: AtomicU32 = AtomicU32::new(0);

async fn load(id: u32) -> Result<String, std::io::Error> {
    LOADED.fetch_add(1, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(200)).await;
    Ok(format!("row {id}"))
}

#[tokio::main]
async fn main() -> ExitCode {
    let run = async |nodes: Vec<String>| {
        // All keys of an entry share a slot, so every step stays one round trip.
        let redis = Redis::cluster(&nodes)?.namespace("cluster-example");
        // Says what is wrong now; without this, caches work for themselves until the cluster can be used.
        redis.check().await?;
        let process = || {
            let redis = Redis::cluster(&nodes)?.namespace("cluster-example");
            Stampede::<String>::builder("rows").ttl(Duration::from_secs(10)).redis(redis).build()
        };
        let processes = [process()?, process()?];
        let mut herd = tokio::task::JoinSet::new();
        for cache in &processes {
            for id in (0..ROWS * CALLERS).map(|caller| caller % ROWS) {
                let cache = cache.clone();
                let call = async move { cache.get_or_compute(("row", id), move || load(id)).await };
                herd.spawn(call);
            }
        }
        while let Some(row) = herd.join_next().await {
            row??;
        }
        let (asked, loaded) = (2 * ROWS * CALLERS, LOADED.load(Ordering::Relaxed));
        println!("{asked} callers at two caches, {ROWS} rows: loaded {loaded} times");
        // Shared until it ends or is invalidated; for the next run, now.
        if processes[0].invalidate_all().await.remote == Announcement::Queued {
            eprintln!("redis_cluster: the cluster was not told that the rows have ended");
        }
        Ok(())
    };
    redis_failure::run("redis_cluster", run).await
}
