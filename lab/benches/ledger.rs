//! Whether `Stampede::top` knows the keys that have saved the most, on real traces.
//!
//! `cargo bench -p tower-stampede-lab --features test-util --bench ledger -- --traces DIR`: DIR as for
//! the bench `hit_ratio`. Each key has a price by chance, the same in each run (lognormal, sigma 1).
//! The truth is what each hit has saved, summed up beside the cache.

#[path = "hit_ratio/cost.rs"]
mod cost;
#[path = "hit_ratio/traces.rs"]
#[allow(dead_code, reason = "of a bench with more")]
mod traces;

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tower_stampede::{ManualClock, Stampede};

const FIRST: usize = 20;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut args = std::env::args().skip_while(|arg| arg != "--traces");
    // Under `cargo test` there is nothing to measure.
    let Some(directory) = args.nth(1) else { return };
    println!("| trace | entries | hits | first 20 known | time saved, known of true |");
    println!("| --- | --- | --- | --- | --- |");
    for trace in &traces::ALL {
        let Some(keys) = trace.read(Path::new(&directory)) else { continue };
        for entries in trace.sizes {
            let (recall, hits, share) = play(&keys, entries).await;
            println!("| {} | {entries} | {hits} | {recall} | {share:.4} |", trace.name);
        }
    }
}

/// Returns how many of the true first keys are known, the hits, and what share of the time that was
/// saved is known.
async fn play(keys: &[u64], entries: usize) -> (usize, u64, f64) {
    let clock = ManualClock::new();
    let builder = Stampede::builder("trace").ttl(Duration::from_secs(1 << 30)).jitter(0.0);
    let builder = builder.max_entries(entries as u64).max_bytes(1 << 40).clock(&clock);
    let cache: Stampede<()> = builder.build().unwrap();
    let (mut truth, calls) = (HashMap::<u64, u64>::new(), Arc::new(AtomicU64::new(0)));
    let now = Arc::clone(&calls);
    for &key in keys {
        let price = cost::cost(key, 1.0);
        let (clock, calls, before) = (clock.clone(), Arc::clone(&calls), calls.load(Relaxed));
        let work = move || async move {
            calls.fetch_add(1, Relaxed);
            clock.advance(Duration::from_micros(price));
            Ok::<_, Infallible>(())
        };
        cache.get_or_compute(key, work).await.unwrap();
        if now.load(Relaxed) == before {
            *truth.entry(key).or_default() += price;
        }
    }
    let mut order: Vec<_> = truth.iter().map(|(key, saved)| (*saved, *key)).collect();
    order.sort_unstable_by(|a, b| b.cmp(a));
    let first: HashSet<_> = order.iter().take(FIRST).map(|(_, key)| key.to_string()).collect();
    let known = cache.top(FIRST).keys;
    let recall = known.iter().filter(|(key, _)| first.contains(key)).count();
    let stats = cache.stats();
    let saved = truth.values().sum::<u64>() as f64 / 1e6;
    (recall, stats.hits, stats.origin_time_saved.as_secs_f64() / saved)
}
