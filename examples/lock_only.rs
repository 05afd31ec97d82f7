//! The lock alone, without a cache: of many workers, one at a time does the
//! nightly job, and others that know only `SET NX PX` take turns with them.
//!
//! ```sh
//! cargo run --example lock_only --features redis -- redis://127.0.0.1
//! ```
//!
//! Keep in mind what no lock in Redis promises: see "What it does not promise"
//! at `RedisLock`.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tower_stampede::{Redis, RedisLock};

mod redis_failure;

const WORK: Duration = Duration::from_millis(300);

/// Does the job if no other process does it.
async fn try_once(lock: RedisLock) -> Result<bool, Box<dyn Error + Send + Sync>> {
    // Dropping the guard gives the lock back as well; `release` also tells
    // whether it was still ours.
    let Some(guard) = lock.try_acquire().await? else { return Ok(false) };
    tokio::time::sleep(WORK).await;
    guard.release().await?;
    Ok(true)
}

/// Does the job in its turn, and counts how many processes do it at the same time.
async fn in_turn(
    lock: RedisLock,
    at_work: Arc<AtomicU32>,
) -> Result<u32, Box<dyn Error + Send + Sync>> {
    let patience = Duration::from_secs(30);
    let guard = lock.acquire(patience).await?.ok_or("others had the lock all the time")?;
    let together = at_work.fetch_add(1, Ordering::SeqCst) + 1;
    // Longer than the lease: the guard prolongs it as long as it lives.
    tokio::time::sleep(WORK).await;
    at_work.fetch_sub(1, Ordering::SeqCst);
    guard.release().await?;
    Ok(together)
}

#[tokio::main]
async fn main() -> ExitCode {
    let Some(url) = std::env::args().nth(1) else {
        eprintln!("lock_only: name the server, as redis://HOST:PORT");
        return ExitCode::from(2);
    };
    match run(&url).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let (server, why) = (redis_failure::printable(&url), redis_failure::describe(&*error));
            eprintln!("lock_only: {server}: {why}");
            ExitCode::FAILURE
        }
    }
}

async fn run(url: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let redis = Redis::connect(url).await?.namespace("lock-only");
    // The name is the key, as it is: other languages can know it.
    let lock = RedisLock::new(&redis, "jobs:nightly")?.lease(WORK / 2);

    let workers = (0..20).map(|_| tokio::spawn(try_once(lock.clone())));
    let mut done = 0;
    for worker in workers.collect::<Vec<_>>() {
        done += u32::from(worker.await??);
    }
    println!("20 workers tried at once: {done} did the job");

    let at_work = Arc::<AtomicU32>::default();
    let workers = (0..5).map(|_| tokio::spawn(in_turn(lock.clone(), Arc::clone(&at_work))));
    let mut together = 0;
    for worker in workers.collect::<Vec<_>>() {
        together = together.max(worker.await??);
    }
    println!("5 workers waited for their turn: at most {together} at the same time");
    Ok(())
}
