//! What is read from memory: our cache, and the map beneath it alone.

use std::hint::black_box;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tower_stampede::Stampede;

/// Something that has the values of the keys from 0 on.
pub(crate) trait Reads: Send + Sync {
    fn read(&self, key: u64) -> Bytes;
}

impl Reads for moka::sync::Cache<u64, Bytes> {
    fn read(&self, key: u64) -> Bytes {
        self.get(&key).expect("the key is warm")
    }
}

impl Reads for Stampede<Bytes> {
    fn read(&self, key: u64) -> Bytes {
        let asking = self.get_or_compute(key, || async { Err(std::fmt::Error) });
        let mut asking = std::pin::pin!(asking);
        match asking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value.expect("the key is warm"),
            Poll::Pending => panic!("a hit is ready at once"),
        }
    }
}

pub(crate) fn moka(keys: u64, value: &Bytes) -> moka::sync::Cache<u64, Bytes> {
    let cache = moka::sync::Cache::builder().max_capacity(1 << 40).build();
    (0..keys).for_each(|key| cache.insert(key, value.clone()));
    cache.run_pending_tasks();
    cache
}

pub(crate) fn ours(keys: u64, value: &Bytes) -> Stampede<Bytes> {
    let builder = Stampede::builder("scaling").ttl(Duration::from_secs(3600)).max_bytes(1 << 40);
    let cache = builder.build().expect("the settings are good");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime starts").block_on(async {
        for key in 0..keys {
            cache.put(key, value.clone()).await;
        }
    });
    assert_eq!(cache.stats().entries, keys, "all have room");
    cache
}

/// Reads so often, all keys in turn and none beside the last one, and returns
/// how long that took. `turn` continues where other slices ended.
pub(crate) fn slice<S: Reads>(subject: &S, keys: u64, times: u64, turn: u64) -> Duration {
    // Prime, so that it visits all keys: their number is a power of ten.
    let order = |n: u64| n.wrapping_mul(7919) % keys;
    let from = Instant::now();
    for n in turn * times..(turn + 1) * times {
        black_box(subject.read(order(n)));
    }
    from.elapsed()
}

/// Nanoseconds of one hit of our cache and of moka's.
pub(crate) struct Pair {
    pub(crate) ours: f64,
    pub(crate) moka: f64,
    /// The middle one of the ratios of paired slices.
    pub(crate) ratio: f64,
}

/// Reads both in turn, so that a drift of the machine's speed hits both.
pub(crate) fn paired(
    slices: u64,
    times: u64,
    ours: impl Fn(u64) -> Duration,
    moka: impl Fn(u64) -> Duration,
) -> Pair {
    // What was never read is read once before it counts.
    ours(0);
    moka(0);
    let each = |time: Duration| time.as_secs_f64() * 1e9 / times as f64;
    let (mut our_times, mut their_times): (Vec<_>, Vec<_>) =
        (1..=slices).map(|turn| (each(ours(turn)), each(moka(turn)))).unzip();
    let mut ratios: Vec<_> = our_times.iter().zip(&their_times).map(|(a, b)| a / b).collect();
    let median = crate::report::median;
    Pair {
        ours: median(&mut our_times),
        moka: median(&mut their_times),
        ratio: median(&mut ratios),
    }
}
