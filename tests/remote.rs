//! Many processes and one remote: who computes, who waits, who asks what.
//!
//! The remote is the double in memory, and time is paused; the same on real
//! servers is in `tests/redis_*.rs`.

#![cfg(all(feature = "remote", feature = "test-util"))]

mod support;

use support::{MS, Origin, settings};
use tokio::task::JoinSet;
use tower_stampede::remote::{Double, RemoteOp, RemoteSettings};
use tower_stampede::{Builder, Stampede};

fn process(double: &Double) -> Stampede<u64> {
    process_with(double, settings())
}

fn process_with(double: &Double, builder: Builder<u64>) -> Stampede<u64> {
    builder.remote(double.process(), RemoteSettings::new()).build().unwrap()
}

async fn load(cache: &Stampede<u64>, origin: &Origin, key: &'static str) -> u64 {
    let origin = origin.clone();
    cache.get_or_compute(key, move || origin.load()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn of_many_processes_with_many_callers_each_one_computes() {
    let (double, origin) = (Double::new(), Origin::taking(100 * MS));
    let processes: Vec<_> = (0..16).map(|_| process(&double)).collect();
    let mut herd = JoinSet::new();
    for cache in &processes {
        for _ in 0..100 {
            let (cache, origin) = (cache.clone(), origin.clone());
            herd.spawn(async move { load(&cache, &origin, "k").await });
        }
    }
    let answers = herd.join_all().await;
    assert!(answers.iter().all(|answer| *answer == 1));
    assert_eq!(origin.calls(), 1);
    // Three for the leader, three for each process that waits.
    assert_eq!(double.calls(RemoteOp::Fill), 1);
    assert_eq!(double.calls(RemoteOp::Acquire), 16);
    assert_eq!(double.calls(RemoteOp::Get), 31);
}
