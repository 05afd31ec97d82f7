//! How much the process grows when a cache is filled to several times its bound: one fresh
//! process for each kind of value.

#![cfg(target_os = "linux")]

#[path = "../kit/mod.rs"]
mod kit;

use std::convert::Infallible;

use tower_stampede::Stampede;

use crate::kit::origin::*;

const MIB: usize = 1 << 20;

/// The growth that is permitted, in parts of the bound.
const MOST: f64 = 1.25;

/// Returns a number of KiB from `/proc/self/status`, in bytes.
fn status(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// Runs `fill` on two threads, once on a small cache and once on one of `max_bytes`, and
/// returns the highest resident growth of the second run.
fn growth<C, Fut>(
    max_bytes: usize,
    make: impl Fn(u64) -> C,
    fill: impl Fn(C, usize) -> Fut,
) -> usize
where
    C: Clone + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let small = make(1 << 16);
        fill(small, 0).await;
        let before = status("VmRSS");
        let cache = make(max_bytes as u64);
        for n in 1..=4 {
            fill(cache.clone(), n).await;
            println!(
                "{n}: VmRSS {} VmHWM {}",
                (status("VmRSS") - before) / 1024,
                (status("VmHWM") - before) / 1024
            );
        }
        let grown = status("VmHWM") - before;
        drop(cache);
        grown
    })
}

/// Fills with values of any type.
fn values<V: Clone + Send + Sync + 'static>(
    max_bytes: usize,
    count: usize,
    set: impl Fn(tower_stampede::Builder<V>) -> tower_stampede::Builder<V>,
    value: impl Fn(usize) -> V + Clone + Send + 'static,
) -> usize {
    let make = |bytes| set(settings::<V>().max_bytes(bytes)).build().unwrap();
    let per_round = count;
    let fill = move |cache: Stampede<V>, round: usize| {
        let value = value.clone();
        let count = if round == 0 { 100 } else { per_round };
        async move {
            let halves = [0, 1].map(|half| {
                let (cache, value) = (cache.clone(), value.clone());
                tokio::spawn(async move {
                    for n in (half..count).step_by(2) {
                        let value = value(n);
                        let compute = move || std::future::ready(Ok::<_, Infallible>(value));
                        let key = (round * per_round + n) as u64;
                        cache.get_or_compute(key, compute).await.unwrap();
                    }
                })
            });
            for half in halves {
                half.await.unwrap();
            }
            let s = cache.stats();
            println!("entries {} bytes {}", s.entries, s.bytes);
        }
    };
    growth(max_bytes, make, fill)
}

fn main_of(case: &str) {
    let t = std::time::Instant::now();
    let big = 64 * MIB;
    let small = 16 * MIB;
    let (max, grown) = match case {
        "u64" => (small, values::<u64>(small, small / 500, |b| b, |n| n as u64)),
        "String of 100 B" => (small, values(small, small / 600, |b| b, |_| "x".repeat(100))),
        "String of 1 MiB" => (big, values(big, 100, |b| b, |_| "x".repeat(MIB))),
        "Vec<u8>" => (small, values(small, small / 1000, |b| b, |n| vec![b'x'; n % 4096])),
        "vec2k" => (small, values(small, small / 2500, |b| b, |_| vec![b'x'; 2048])),
        "vec4k" => (small, values(small, small / 4500, |b| b, |_| vec![b'x'; 4096])),
        "vec64k" => (small, values(small, small / 64000, |b| b, |_| vec![b'x'; 65536])),
        "vecmix64" => (big, values(big, big / 1000, |b| b, |n| vec![b'x'; n % 4096])),
        "vecrand" => (small, values(small, small / 1000, |b| b, |n| vec![b'x'; ((n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize])),
        "vec256k" => (big, values(big, 700, |b| b, |_| vec![b'x'; 1<<18])),
        _ => unreachable!(),
    };
    println!("{case}: {:.3} {:?}", grown as f64 / max as f64, t.elapsed());
}

#[test]
fn a_full_cache_holds_no_more_memory_than_its_bound() {
    main_of(&std::env::var("CASE").unwrap());
}
