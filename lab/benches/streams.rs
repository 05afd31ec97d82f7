//! One producer of chunks and a thousand readers, in one process.
//!
//! `cargo bench -p tower-stampede-lab --bench streams`. Prints two tables: how far the first chunk
//! reaches the last reader behind the first one, over short streams; and one stream of 64 MiB in
//! 10 seconds with slow readers and readers that never read: producers, delays and memory.

use std::convert::Infallible;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::task::JoinSet;
use tower_stampede::{Recording, Stampede};

const READERS: usize = 1000;
const ROUNDS: u64 = 300;
const CHUNK: usize = 64 << 10;
const CHUNKS: u64 = 1024;
const STEP: Duration = Duration::from_micros(9_765);
const SLOW: usize = 100;
const STALLED: usize = 10;

type Cache = Stampede<Recording<Bytes>>;

#[tokio::main]
async fn main() {
    // Under `cargo test` there is nothing to measure.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let cache: Cache = Stampede::builder("streams")
        .ttl(Duration::from_secs(600))
        .max_bytes(512 << 20)
        .build()
        .unwrap();
    first_chunks(&cache).await;
    long_stream(&cache).await;
}

/// From the first reader that has the first chunk to the last one.
async fn first_chunks(cache: &Cache) {
    let mut spreads = Vec::new();
    for round in 0..ROUNDS {
        let mut readers = JoinSet::new();
        for _ in 0..READERS {
            let cache = cache.clone();
            readers.spawn(async move {
                let produce = || {
                    stream::once(async {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        Ok::<_, Infallible>(Bytes::from_static(b"first"))
                    })
                };
                let mut chunks = cache.entry(round).get_or_stream(produce).await.unwrap();
                chunks.next().await.unwrap().unwrap();
                Instant::now()
            });
        }
        let at = readers.join_all().await;
        let (first, last) = (at.iter().min().unwrap(), at.iter().max().unwrap());
        spreads.push(last.duration_since(*first));
    }
    spreads.sort();
    let at = |share: f64| spreads[((spreads.len() - 1) as f64 * share) as usize];
    println!("first chunk, first to last of {READERS} readers, {ROUNDS} streams:");
    println!("| p50 | p99 | most |\n| --- | --- | --- |");
    println!("| {:.2?} | {:.2?} | {:.2?} |", at(0.5), at(0.99), at(1.0));
    println!("producers: {} of {ROUNDS}", cache.stats().computations);
}

async fn long_stream(cache: &Cache) {
    let (calls, begun) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let produce = {
        let calls = Arc::clone(&calls);
        move || {
            calls.fetch_add(1, Relaxed);
            stream::iter(0..CHUNKS).then(move |n| async move {
                let due = begun + STEP * n as u32;
                tokio::time::sleep_until(due.into()).await;
                let mut chunk = vec![0; CHUNK];
                let sent = begun.elapsed().as_micros() as u64;
                chunk[..8].copy_from_slice(&sent.to_le_bytes());
                Ok::<_, Infallible>(Bytes::from(chunk))
            })
        }
    };
    // Counts of delays, in tenths of a millisecond.
    let delays: Arc<[AtomicU64]> = (0..100_000).map(|_| AtomicU64::new(0)).collect();
    let before = resident();
    let mut readers = JoinSet::new();
    for reader in 0..READERS {
        let (cache, produce, delays) = (cache.clone(), produce.clone(), Arc::clone(&delays));
        readers.spawn(async move {
            let mut chunks = cache.entry("long").get_or_stream(produce).await.unwrap();
            if reader < STALLED {
                tokio::time::sleep(Duration::from_secs(12)).await;
            }
            let (is_fast, mut count) = (reader >= STALLED + SLOW, 0);
            while let Some(chunk) = chunks.next().await {
                let sent = u64::from_le_bytes(chunk.unwrap()[..8].try_into().unwrap());
                let delay = (begun.elapsed().as_micros() as u64).saturating_sub(sent);
                count += 1;
                if is_fast {
                    delays[(delay as usize / 100).min(delays.len() - 1)].fetch_add(1, Relaxed);
                } else {
                    tokio::time::sleep(Duration::from_millis(15)).await;
                }
            }
            assert_eq!(count, CHUNKS, "each reader has all of it");
        });
    }
    tokio::time::sleep(Duration::from_secs(9)).await;
    let grown = resident().saturating_sub(before);
    readers.join_all().await;
    let all: u64 = delays.iter().map(|count| count.load(Relaxed)).sum();
    let at = |share: f64| {
        let (mut seen, wanted) = (0, (all as f64 * share) as u64);
        let is_there = |count: &AtomicU64| {
            seen += count.load(Relaxed);
            seen >= wanted
        };
        delays.iter().position(is_there).unwrap_or(delays.len()) as f64 / 10.0
    };
    let body = CHUNKS * CHUNK as u64 * 9 / 10;
    println!("64 MiB in 10 s, {READERS} readers, {SLOW} slow, {STALLED} that wait 12 s:");
    println!("| producers | delay p50 | p99 | most | memory beside the body, a reader |");
    println!("| --- | --- | --- | --- | --- |");
    println!(
        "| {} | {:.1} ms | {:.1} ms | {:.1} ms | {} bytes |",
        calls.load(Relaxed),
        at(0.5),
        at(0.99),
        at(1.0),
        grown.saturating_sub(body) / READERS as u64,
    );
}

/// Returns the resident bytes of this process.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}
