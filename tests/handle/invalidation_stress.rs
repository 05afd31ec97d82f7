//! Readers and writers on several threads, in real time: a reader never gets a
//! value that was invalidated before it asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use tower_stampede::{Computed, Stampede};

use crate::kit::origin::SECOND;
use crate::kit::spawn;

const KEYS: usize = 8;

/// Each key: what the database holds, and the oldest version that a caller may
/// get now.
#[derive(Default)]
struct World {
    versions: [AtomicU64; KEYS],
    floors: [AtomicU64; KEYS],
    calls: AtomicU64,
}

async fn reader(cache: Stampede<u64>, world: Arc<World>, until: Instant) {
    while Instant::now() < until {
        let key = fastrand::usize(..KEYS);
        let floor = world.floors[key].load(SeqCst);
        let compute = {
            let world = Arc::clone(&world);
            move || async move {
                world.calls.fetch_add(1, SeqCst);
                let version = world.versions[key].load(SeqCst);
                for _ in 0..fastrand::usize(..4) {
                    tokio::task::yield_now().await;
                }
                match fastrand::usize(..40) {
                    0 => Err(std::io::Error::other("now and then")),
                    _ => Ok(Computed::new(version).tag(format!("t{}", key % 2))),
                }
            }
        };
        let got = match fastrand::usize(..8) {
            0 => {
                let world = &world;
                let scoped = cache.get_or_compute_scoped(key, || async move {
                    let version = world.versions[key].load(SeqCst);
                    tokio::task::yield_now().await;
                    Ok::<_, std::io::Error>(version)
                });
                let scoped =
                    tokio::time::timeout(Duration::from_micros(fastrand::u64(..300)), scoped);
                scoped.await.ok().and_then(Result::ok)
            }
            1 => {
                let asked = cache.get_or_compute_with(key, compute);
                tokio::time::timeout(Duration::from_micros(fastrand::u64(..300)), asked)
                    .await
                    .ok()
                    .and_then(Result::ok)
            }
            _ => cache.get_or_compute_with(key, compute).await.ok(),
        };
        if let Some(got) = got {
            assert!(got >= floor, "key {key}: {got} is older than {floor}");
        }
    }
}

async fn writer(cache: Stampede<u64>, world: Arc<World>, until: Instant) {
    while Instant::now() < until {
        let key = fastrand::usize(..KEYS);
        let written = |keys: &[usize]| -> Vec<(usize, u64)> {
            keys.iter().map(|&key| (key, world.versions[key].fetch_add(1, SeqCst) + 1)).collect()
        };
        let written = match fastrand::usize(..3) {
            0 => {
                let written = written(&[key]);
                cache.invalidate(key).await;
                written
            }
            1 => {
                let written = written(&(0..KEYS).collect::<Vec<_>>());
                cache.invalidate_all().await;
                written
            }
            _ => {
                let written = written(&[key]);
                cache.invalidate_tag(format!("t{}", key % 2)).await;
                cache.invalidate(key).await;
                written
            }
        };
        for (key, version) in written {
            world.floors[key].fetch_max(version, SeqCst);
        }
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..400))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_stress_nobody_gets_what_was_invalidated_before_and_nothing_is_left_behind() {
    let cache: Stampede<u64> = Stampede::builder("stress")
        .ttl(Duration::from_millis(3))
        .jitter(0.0)
        .stale_for(Duration::from_millis(3))
        .hold(Duration::from_micros(100))
        .build()
        .unwrap();
    let world = Arc::new(World::default());
    let until = Instant::now() + Duration::from_millis(1500);
    let readers = (0..32).map(|_| spawn(reader(cache.clone(), Arc::clone(&world), until)));
    let writers = (0..3).map(|_| spawn(writer(cache.clone(), Arc::clone(&world), until)));
    for task in readers.chain(writers).collect::<Vec<_>>() {
        tokio::time::timeout(120 * SECOND, task).await.expect("no caller hangs").unwrap();
    }
    // What is computed for no caller any more comes to its end.
    let quiet = async {
        while (cache.stats().flights, cache.stats().waiting) != (0, 0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let is_quiet = tokio::time::timeout(120 * SECOND, quiet).await;
    assert!(is_quiet.is_ok(), "something is left behind: {:?}", cache.stats());
    assert!(world.calls.load(SeqCst) > 0);
}
