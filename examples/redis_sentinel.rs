//! A cache on the primary that sentinels name: after a failover, on the new one.
//!
//! ```sh
//! cargo run --example redis_sentinel --features redis-sentinel -- \
//!     main redis://127.0.0.1:26379 redis://127.0.0.1:26380
//! ```
//!
//! The first argument is what the sentinels call the primary. One sentinel that answers is enough.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use tower_stampede::{Redis, Stampede};

mod redis_failure;

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (name, sentinels) = (arguments.next(), arguments.collect::<Vec<_>>());
    let (Some(name), Some(first)) = (name, sentinels.first()) else {
        eprintln!("redis_sentinel: name the primary, and its sentinels as redis://HOST:PORT");
        return ExitCode::from(2);
    };
    match run(&name, &sentinels).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let (server, why) = (redis_failure::printable(first), redis_failure::describe(&*error));
            eprintln!("redis_sentinel: {server}: {why}");
            ExitCode::FAILURE
        }
    }
}

async fn run(name: &str, sentinels: &[String]) -> Result<(), Box<dyn Error>> {
    let connect =
        || Ok::<_, Box<dyn Error>>(Redis::sentinel(sentinels, name)?.namespace("sentinel"));
    // Says what is wrong now; without this, the cache works for itself until there is a primary.
    connect()?.check().await?;

    let builder = Stampede::builder("rows").ttl(Duration::from_secs(60));
    let cache: Stampede<String> = builder.redis(connect()?).build()?;
    for id in [1, 2, 1] {
        let load = move || async move { Ok::<_, std::io::Error>(format!("row {id}")) };
        let row = cache.entry(id).get_or_compute(load).await?;
        println!("{}: {}", *row, row.outcome().as_str());
    }
    println!("{:?}", cache.health());
    cache.invalidate_all().await;
    Ok(())
}
