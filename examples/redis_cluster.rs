//! Two caches on one Redis Cluster, as two processes would have them: a cold
//! herd at both is one computation, whichever node has the key.
//!
//! ```sh
//! cargo run --example redis_cluster --features redis-cluster -- \
//!     redis://127.0.0.1:7000 redis://127.0.0.1:7001 redis://127.0.0.1:7002
//! ```
//!
//! Any of the nodes is enough to find the others.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tower_stampede::{Announcement, Redis, Stampede};

mod redis_failure;

const ROWS: u32 = 20;
const CALLERS: u32 = 100;

/// A slow database that counts how often it is asked.
#[derive(Clone, Default)]
struct Database(Arc<AtomicU32>);

impl Database {
    async fn load(self, id: u32) -> Result<String, std::io::Error> {
        self.0.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok(format!("row {id}"))
    }
}

/// What each process does once, when it starts.
fn process(nodes: &[String]) -> Result<Stampede<String>, Box<dyn Error>> {
    // All keys of an entry share a slot, so every step stays one round trip.
    let redis = Redis::cluster(nodes)?.namespace("cluster-example");
    let cache = Stampede::builder("rows").ttl(Duration::from_secs(10)).redis(redis).build()?;
    Ok(cache)
}

#[tokio::main]
async fn main() -> ExitCode {
    let nodes: Vec<_> = std::env::args().skip(1).collect();
    let Some(first) = nodes.first() else {
        eprintln!("redis_cluster: name at least one node, as redis://HOST:PORT");
        return ExitCode::from(2);
    };
    match run(&nodes).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let (node, why) = (redis_failure::printable(first), redis_failure::describe(&*error));
            eprintln!("redis_cluster: {node}: {why}");
            ExitCode::FAILURE
        }
    }
}

async fn run(nodes: &[String]) -> Result<(), Box<dyn Error>> {
    // Says what is wrong now; without this, caches work for themselves until
    // the cluster can be used.
    Redis::cluster(nodes)?.namespace("cluster-example").check().await?;

    let database = Database::default();
    let processes = [process(nodes)?, process(nodes)?];
    let began = Instant::now();
    let mut herd = tokio::task::JoinSet::new();
    for cache in &processes {
        for caller in 0..ROWS * CALLERS {
            let (cache, database, id) = (cache.clone(), database.clone(), caller % ROWS);
            herd.spawn(async move {
                cache.get_or_compute(("row", id), move || database.load(id)).await
            });
        }
    }
    while let Some(row) = herd.join_next().await {
        row??;
    }
    let (asked, loaded) = (2 * ROWS * CALLERS, database.0.load(Ordering::Relaxed));
    println!("{asked} callers at two caches, {ROWS} rows: loaded {loaded} times");
    println!("answered in {:.0?}", began.elapsed());
    // Shared until it ends or is invalidated; for the next run, now.
    if processes[0].invalidate_all().await.remote == Announcement::Queued {
        eprintln!("redis_cluster: the cluster was not told that the rows have ended");
    }
    Ok(())
}
