//! One slow export and many readers: all get the batches of one query, from the first one on. The
//! whole is kept for ten minutes, or until the orders change.
//!
//! ```sh
//! cargo run --example shared_export
//! ```

use std::io;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt, stream};
use tower_stampede::{BoxError, Chunks, Error, Producer, Recording, Stampede};

type Batch = Vec<u64>;

static QUERIES: AtomicU32 = AtomicU32::new(0);

/// Stands for a query that returns five batches of a hundred rows, one each 50 ms.
fn query() -> Producer<Batch> {
    QUERIES.fetch_add(1, Relaxed);
    let batches = stream::iter(0..5).then(async |batch| {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok::<_, io::Error>((batch * 100..(batch + 1) * 100).collect())
    });
    // The cache's bound on memory counts what the rows take.
    Producer::new(batches).weigh(|rows: &Batch| rows.len() * size_of::<u64>())
}

#[derive(Clone)]
struct Exports(Stampede<Recording<Batch>>);

impl Exports {
    async fn orders(&self) -> Result<Chunks<Batch>, Error> {
        let export = self.0.entry("orders").ttl(Duration::from_secs(600)).tag("orders");
        export.get_or_stream(query).await
    }

    async fn count(&self) -> Result<usize, BoxError> {
        let batches = self.orders().await?;
        Ok(batches.try_fold(0, async |sum, rows| Ok(sum + rows.len())).await?)
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let exports = Exports(Stampede::builder("exports").ttl(Duration::from_secs(60)).build()?);
    let queries = || QUERIES.load(Relaxed);

    // It reads nothing, and delays no other reader.
    let _idle = exports.orders().await?;
    let rows = try_join_all((0..1000).map(|_| exports.count())).await?;
    println!("readers: {}, rows: {}, queries: {}", rows.len(), rows[0], queries());
    println!("later: rows: {}, queries: {}", exports.count().await?, queries());
    exports.0.invalidate_tag("orders").await;
    println!("after a change: rows: {}, queries: {}", exports.count().await?, queries());
    Ok(())
}
