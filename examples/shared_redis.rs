//! Two processes on one Redis: one computes, both read the value, which is JSON, compressed and encrypted.
//!
//! ```sh
//! cargo run --example shared_redis --features codec-json,codec-zstd,codec-aead -- redis://127.0.0.1
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use tower_stampede::remote::{Codec, EncryptionKeys};
use tower_stampede::{Redis, Stampede};

mod redis_failure;

/// What each process does once, when it starts.
async fn process(url: &str) -> Result<Stampede<Vec<String>>, Box<dyn Error + Send + Sync>> {
    // In an application the key comes from where its other secrets are.
    let keys = EncryptionKeys::new(1, &[7; 32]);
    let codec = Codec::json().compress_above(1024).encrypt(keys);
    let redis = Redis::connect(url).await?.namespace("shared-example");
    let ttl = Duration::from_secs(60);
    Ok(Stampede::builder("catalog").ttl(ttl).codec(codec).redis(redis).build()?)
}

async fn load() -> Result<Vec<String>, std::io::Error> {
    tokio::time::sleep(Duration::from_millis(200)).await;
    Ok((0..1000).map(|id| format!("product {id}")).collect())
}

#[tokio::main]
async fn main() -> ExitCode {
    redis_failure::run("shared_redis", async |urls| run(&urls[0]).await).await
}

async fn run(url: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let (one, other) = (process(url).await?, process(url).await?);
    let computed = one.entry("all").get_or_compute(load).await?;
    let read = other.entry("all").get_or_compute(load).await?;
    println!(
        "one process: {}, the other: {}",
        computed.outcome().as_str(),
        read.outcome().as_str()
    );
    assert_eq!(*computed, *read);

    // After this call no process serves the old value.
    one.invalidate_all().await;
    let again = other.entry("all").get_or_compute(load).await?;
    println!("after an invalidation in the first, the other: {}", again.outcome().as_str());
    Ok(())
}
