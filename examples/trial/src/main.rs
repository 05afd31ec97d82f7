//! The shop as a process: `trial DATABASE REDIS_URL QUERY_MILLIS`. Says on which address it
//! listens, and `query` for each query that it begins.

use std::env::args;
use std::error::Error;
use std::path::Path;
use std::time::Duration;

use tower_stampede::Redis;
use trial::shop::{Database, Shop};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = args().skip(1).collect();
    let [file, redis, millis] = &arguments[..] else {
        return Err("usage: trial DATABASE REDIS_URL QUERY_MILLIS".into());
    };
    let mut database = Database::open(Path::new(file))?;
    database.delay = Duration::from_millis(millis.parse()?);
    let redis = Redis::connect(redis).await?.namespace("trial");
    redis.check().await?;
    let app = Shop::new(database, Some(redis))?.app();

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
