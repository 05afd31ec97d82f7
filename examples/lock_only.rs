//! The lock alone, without a cache: of many workers, one at a time does the nightly job, and others
//! that know only `SET NX PX` take turns with them. See "What it does not promise" at `RedisLock`.
//!
//! ```sh
//! cargo run --example lock_only --features redis -- redis://127.0.0.1
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::try_join_all;
use tower_stampede::{Redis, RedisLock};

mod redis_failure;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const WORK: Duration = Duration::from_millis(300);

/// How many workers do the job at this moment.
static AT_WORK: AtomicU32 = AtomicU32::new(0);

/// Does the job if no other process does it.
async fn try_once(lock: RedisLock) -> Result<bool> {
    // Dropping the guard gives the lock back as well; `release` also tells whether it was still ours.
    let Some(guard) = lock.try_acquire().await? else { return Ok(false) };
    tokio::time::sleep(WORK).await;
    guard.release().await?;
    Ok(true)
}

/// Does the job in its turn, and returns how many do it at the same time.
async fn in_turn(lock: RedisLock) -> Result<u32> {
    let patience = Duration::from_secs(30);
    let guard = lock.acquire(patience).await?.ok_or("others had the lock all the time")?;
    let together = AT_WORK.fetch_add(1, Ordering::SeqCst) + 1;
    // Longer than the lease: the guard prolongs it as long as it lives.
    tokio::time::sleep(WORK).await;
    AT_WORK.fetch_sub(1, Ordering::SeqCst);
    guard.release().await?;
    Ok(together)
}

#[tokio::main]
async fn main() -> ExitCode {
    let run = async |urls: Vec<String>| {
        let redis = Redis::connect(&urls[0]).await?.namespace("lock-only");
        // The name is the key, as it is: other languages can know it.
        let lock = RedisLock::new(&redis, "jobs:nightly")?.lease(WORK / 2);
        let done = try_join_all((0..20).map(|_| try_once(lock.clone()))).await?;
        println!("20 workers tried at once: {} did the job", done.iter().filter(|it| **it).count());
        let together = try_join_all((0..5).map(|_| in_turn(lock.clone()))).await?;
        let most = together.iter().max().unwrap_or(&0);
        println!("5 workers waited for their turn: at most {most} at the same time");
        Ok(())
    };
    redis_failure::run("lock_only", run).await
}
