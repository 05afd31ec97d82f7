//! How much a process grows when its cache is filled to several times its bound: a fresh process
//! for each kind of value.
//!
//! With one thread the growth is what the kernel counts, with the system's allocator. With
//! several it is what is allocated: glibc has a heap for each thread, and which of them a
//! freed value goes back to is chance. A thread that the system stops while it reads the table
//! keeps what others take out of it: of several fills, the one with the lowest peak counts,
//! and in the end all that is above the bound is freed.

#![cfg(target_os = "linux")]

#[path = "../kit/mod.rs"]
mod kit;

use std::alloc::System;
use std::convert::Infallible;
use std::future::ready;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio::runtime::{Builder, Runtime};
use tower_stampede::Stampede;

use crate::kit::alone::alone;
use crate::kit::origin::*;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Times that each cache is filled, about, on one thread and on several.
const ROUNDS: [usize; 2] = [3, 5];

const CASES: &[&str] = &[
    "u64",
    "String of 100 B",
    "String of 1 KiB",
    "String of 64 KiB",
    "String of 1 MiB",
    "String of 10 MiB",
    "Vec<u8>",
    "keys of 300 B",
    "HTTP responses",
];

#[test]
fn a_process_grows_by_no_more_than_a_sixth_above_the_bound_and_two_bodies() {
    alone(CASES, |case| {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let Filled { max_bytes, resident, largest, .. } = fill(case, 8 * MIB, &runtime);
        println!("{case}: {resident} bytes are resident, {}", share(resident, max_bytes));
        let most = max_bytes / 20 * 23 + 2 * largest;
        assert!(resident <= most, "{case}: {resident} bytes of {max_bytes}");
    });
}

#[test]
fn several_threads_allocate_no_more_than_a_sixth_above_the_bound_and_two_bodies() {
    alone(CASES, |case| {
        let runtime = Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
        let Filled { max_bytes, live, after, largest, .. } = fill(case, 4 * MIB, &runtime);
        println!("{case}: {live} bytes are allocated at most, {}", share(live, max_bytes));
        // The values that the filling tasks have in hand are in no other term.
        let most = max_bytes / 20 * 23 + 2 * largest + 2 * largest;
        assert!(live <= most, "{case}: {live} bytes of {max_bytes}");
        assert!(after <= most, "{case}: {after} bytes of {max_bytes} after the last fill");
    });
}

fn share(bytes: usize, max_bytes: usize) -> String {
    format!("{} hundredths of the bound", bytes * 100 / max_bytes)
}

/// How much a process has grown while a cache with this bound was filled.
struct Filled {
    max_bytes: usize,
    resident: usize,
    /// The lowest of the peaks of each fill of the full cache.
    live: usize,
    /// The least that was allocated between the last fill and the end of ten seconds.
    after: usize,
    /// The largest of the values.
    largest: usize,
}

fn fill(case: &str, small: usize, on: &Runtime) -> Filled {
    let large = 64 * MIB;
    match case {
        "u64" => filled(on, small, (small / 240, 8), |n| n as u64),
        "String of 100 B" => filled(on, small, (small / 350, 100), |_| "x".repeat(100)),
        "String of 1 KiB" => filled(on, small, (small / 1300, KIB), |_| "x".repeat(KIB)),
        "String of 64 KiB" => {
            filled(on, small, (small / (64 * KIB), 64 * KIB), |_| "x".repeat(64 * KIB))
        }
        "String of 1 MiB" => filled(on, large, (64, MIB), |_| "x".repeat(MIB)),
        "String of 10 MiB" => filled(on, large, (16, 10 * MIB), |_| "x".repeat(10 * MIB)),
        "Vec<u8>" => filled(on, small, (small / 2048, 4 * KIB), |n| vec![b'x'; any(n, 4 * KIB)]),
        "keys of 300 B" => filled_under_long_keys(on, small, small / 800),
        "HTTP responses" => http::filled(on, 4 * small, 4 * small / (16 * KIB)),
        _ => unreachable!("{case}"),
    }
}

/// Returns a number below `bound` that looks random, and is the same in each run.
fn any(n: usize, bound: usize) -> usize {
    ((n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize % bound
}

/// Computes `count` values in each round, on two tasks.
fn filled<V: Clone + Send + Sync + 'static>(
    on: &Runtime,
    max_bytes: usize,
    (count, largest): (usize, usize),
    value: impl Fn(usize) -> V + Copy + Send + 'static,
) -> Filled {
    let make = |max_bytes| settings::<V>().max_bytes(max_bytes).build().unwrap();
    growth(on, max_bytes, (count, largest), make, move |cache, numbers| async move {
        let halves = [0, 1].map(|half| {
            let (cache, numbers) = (cache.clone(), numbers.clone());
            tokio::spawn(async move {
                for n in numbers.skip(half).step_by(2) {
                    let value = value(n);
                    let compute = move || ready(Ok::<_, Infallible>(value));
                    cache.get_or_compute(n as u64, compute).await.unwrap();
                    sample();
                }
            })
        });
        for half in halves {
            half.await.unwrap();
        }
    })
}

fn filled_under_long_keys(on: &Runtime, max_bytes: usize, count: usize) -> Filled {
    let make = |max_bytes| settings().max_bytes(max_bytes).build().unwrap();
    growth(on, max_bytes, (count, 300), make, |cache: Stampede<u64>, numbers| async move {
        for n in numbers {
            cache.put(format!("{n:0300}").as_str(), 1).await;
            sample();
        }
    })
}

/// Fills a small cache, so that what every cache needs once is there, and then one with this
/// bound: until values leave it, and again after all were invalidated.
fn growth<V, Fut>(
    on: &Runtime,
    max_bytes: usize,
    (count, largest): (usize, usize),
    make: impl Fn(u64) -> Stampede<V>,
    fill: impl Fn(Stampede<V>, Range<usize>) -> Fut,
) -> Filled
where
    V: Clone + Send + Sync + 'static,
    Fut: Future<Output = ()>,
{
    on.block_on(async {
        fill(make(64 * KIB as u64), 0..100).await;
        let before = (resident("VmRSS:"), live());
        let cache = make(max_bytes as u64);
        let mut least_peak = usize::MAX;
        let rounds = ROUNDS[usize::from(on.metrics().num_workers() > 1)];
        for round in 0..rounds {
            MOST_LIVE.store(0, Ordering::Relaxed);
            fill(cache.clone(), round * count..(round + 1) * count).await;
            if round > 0 {
                least_peak = least_peak.min(MOST_LIVE.load(Ordering::Relaxed));
            }
        }
        cache.invalidate_all().await;
        fill(cache.clone(), 0..count).await;
        let resident = resident("VmHWM:") - before.0;
        // Until here it is full.
        let after = freed(&cache, before.1 + max_bytes / 20 * 23).await - before.1;
        Filled { max_bytes, resident, live: least_peak - before.1, after, largest }
    })
}

/// Reads until what was taken out of the table is freed down to `bound`, for ten seconds at
/// most. Returns what is allocated then.
async fn freed<V: Clone + Send + Sync + 'static>(cache: &Stampede<V>, bound: usize) -> usize {
    let end = Instant::now() + Duration::from_secs(10);
    let mut least = live();
    while least > bound && Instant::now() < end {
        cache.invalidate(0).await;
        tokio::task::yield_now().await;
        least = least.min(live());
    }
    least
}

/// The most bytes that were allocated when [`sample`] was called.
static MOST_LIVE: AtomicUsize = AtomicUsize::new(0);

fn sample() {
    MOST_LIVE.fetch_max(live(), Ordering::Relaxed);
}

/// Bytes that are allocated now.
fn live() -> usize {
    let stats = ALLOCATOR.stats();
    // Read one after the other, while other threads go on.
    stats.bytes_allocated.saturating_sub(stats.bytes_deallocated)
}

/// Returns a size from `/proc/self/status`, in bytes.
fn resident(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * KIB
}

mod http {
    use std::convert::Infallible;

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::{BodyExt, Full};
    use tower::{ServiceExt, service_fn};
    use tower_layer::Layer;
    use tower_stampede::{HttpStampede, Stampede};

    use super::{Filled, KIB, Runtime, any, growth, sample};

    type Body = Full<Bytes>;

    fn response(n: usize) -> Response<Body> {
        let fields = Response::builder()
            .header("cache-control", "max-age=600")
            .header("content-type", "text/html; charset=utf-8")
            .header("etag", format!("\"{n:032x}\""))
            .header("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT")
            .header("server", "origin")
            .header("x-request-id", format!("{n:016x}"));
        fields.body(Body::from(vec![b'x'; any(n, 32 * KIB)])).unwrap()
    }

    pub(super) fn filled(on: &Runtime, max_bytes: usize, count: usize) -> Filled {
        let make = |max_bytes| -> HttpStampede {
            Stampede::builder("test").origin_only().max_bytes(max_bytes).build().unwrap()
        };
        growth(on, max_bytes, (count, 32 * KIB), make, |cache: HttpStampede, numbers| async move {
            let origin = service_fn(async |request: Request<Body>| {
                Ok::<_, Infallible>(response(request.uri().path()[1..].parse().unwrap()))
            });
            let app = cache.http_layer().layer(origin);
            for n in numbers {
                let request = Request::get(format!("http://example.org/{n}"));
                let request = request.body(Body::default()).unwrap();
                let response = app.clone().oneshot(request).await.unwrap();
                response.into_body().collect().await.unwrap();
                sample();
            }
        })
    }
}
