//! The shop as a process: `trial DATABASE REDIS_URL QUERY_MILLIS`. Says on which address it
//! listens, and `query` for each query that it begins.

use std::env::args;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tower_stampede::Redis;
use trial::shop::{Database, Shop};

use crate::redis_failure::describe;

#[path = "../../redis_failure/mod.rs"]
mod redis_failure;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("trial: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = args().skip(1).collect();
    let [file, redis, millis] = &arguments[..] else {
        return Err("usage: trial DATABASE REDIS_URL QUERY_MILLIS".into());
    };
    let wrong = |error| format!("DATABASE: {file}: {error}");
    let mut database = Database::open(Path::new(file)).map_err(wrong)?;
    let delay = millis.parse().map_err(|_| format!("QUERY_MILLIS: {millis:?} is no whole number"));
    database.delay = Duration::from_millis(delay?);
    let wrong = |error| format!("REDIS_URL: {}", describe(&error));
    let redis = Redis::connect(redis).await.map_err(wrong)?.namespace("trial");
    redis.check().await.map_err(wrong)?;
    let app = Shop::new(database, Some(redis))?.app();

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
