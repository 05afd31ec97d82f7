//! What one invalidation costs at most: the one that finds the invalidation log full and
//! checks every local entry. Prints times; on a busy machine they say little.

use std::time::{Duration, Instant};

use tower_stampede::{Computed, Stampede};

const ENTRIES: u32 = 1_000_000;

fn main() {
    // As under `cargo bench --no-run` and `cargo test --benches`.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    // Without a timer, so that no tidying task makes room before.
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime").block_on(async {
        let builder = Stampede::builder("bench").ttl(Duration::from_secs(3600));
        let cache: Stampede<u32> = builder.max_bytes(1 << 32).build().expect("settings that fit");
        for n in 0..ENTRIES {
            cache.put_with(n, Computed::new(n).tag(("tag", n % 1000))).await;
        }
        let (mut slowest, mut all) = (Duration::ZERO, Duration::ZERO);
        for n in 0..100_001_u32 {
            let begin = Instant::now();
            cache.invalidate_tag(("other", n)).await;
            slowest = slowest.max(begin.elapsed());
            all += begin.elapsed();
        }
        println!(
            "{} entries; slowest invalidation {slowest:?}; all {all:?}",
            cache.stats().entries
        );
    });
}
