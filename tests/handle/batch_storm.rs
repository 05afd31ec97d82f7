//! Batches at random moments: callers that go away, loaders that panic or take too long, nested
//! calls, invalidations.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tower_stampede::Cache;

use crate::kit::origin::*;
use crate::kit::spawn;

type Rows = Result<HashMap<u64, u64>, OriginError>;

/// Returns which promise was not kept.
async fn storm_of(seed: u64) -> Result<(), String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let (max_places, max_batch) = (random.usize(1..4), random.usize(1..5));
    let window = [0, 0, 5, 20][random.usize(0..4)] * MS;
    let nests = random.bool();
    let (wait, limit) = (random.u32(50..400) * MS, random.u32(50..300) * MS);
    // A place that is left must not come back because it is overdue.
    let is_patient = random.bool();
    let (wait, limit) = if is_patient { (30 * SECOND, 60 * SECOND) } else { (wait, limit) };
    let handle = settings::<u64>()
        .ttl(200 * MS)
        .stale_for(400 * MS)
        .max_computations(max_places)
        .max_refreshes(1.max(max_places / 2))
        .max_batch(max_batch)
        .batch_window(window)
        .wait_timeout(wait)
        .compute_timeout(limit)
        .hold(10 * MS)
        .build()
        .unwrap();
    let running = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    struct Running(Arc<(AtomicUsize, AtomicUsize)>);
    impl Drop for Running {
        fn drop(&mut self) {
            self.0.0.fetch_sub(1, SeqCst);
        }
    }
    let load = {
        let (running, handle) = (Arc::clone(&running), handle.clone());
        let random = Arc::new(Mutex::new(random.fork()));
        move |ids: Vec<u64>| -> BoxFuture<'static, Rows> {
            let now = running.0.fetch_add(1, SeqCst) + 1;
            running.1.fetch_max(now, SeqCst);
            let guard = Running(Arc::clone(&running));
            let (takes, how, part) = {
                let mut random = random.lock();
                (random.u64(0..90), random.u32(0..12), random.u64(100..103))
            };
            let handle = handle.clone();
            Box::pin(async move {
                let _guard = guard;
                if nests && how > 8 {
                    let (running, counted) = (Arc::clone(&_guard.0), Arc::clone(&_guard.0));
                    let part_of = move || async move {
                        let now = running.0.fetch_add(1, SeqCst) + 1;
                        running.1.fetch_max(now, SeqCst);
                        let _guard = Running(running);
                        tokio::time::sleep(takes as u32 * MS).await;
                        Ok::<u64, OriginError>(part * 1000)
                    };
                    // It waits and does not work.
                    struct Waits(Arc<(AtomicUsize, AtomicUsize)>);
                    impl Drop for Waits {
                        fn drop(&mut self) {
                            self.0.0.fetch_add(1, SeqCst);
                        }
                    }
                    counted.0.fetch_sub(1, SeqCst);
                    let waits = Waits(Arc::clone(&counted));
                    let got = handle.get_or_compute(part, part_of).await;
                    drop(waits);
                    let now = counted.0.load(SeqCst);
                    if got.is_ok() {
                        counted.1.fetch_max(now, SeqCst);
                    }
                }
                tokio::time::sleep(takes as u32 * MS).await;
                match how {
                    0 => panic!("the table panics"),
                    1 => Err(OriginError(0)),
                    2 => Ok(HashMap::new()),
                    3 if !is_patient => {
                        tokio::time::sleep(SECOND).await;
                        Ok(HashMap::new())
                    }
                    _ => Ok(ids.into_iter().map(|id| (id, id * 1000)).collect()),
                }
            })
        }
    };
    let cache = Cache::batched(handle.clone(), load.clone());
    let mut callers = Vec::new();
    for _ in 0..60 {
        tokio::time::sleep(random.u32(0..12) * MS).await;
        let (cache, handle, load) = (cache.clone(), handle.clone(), load.clone());
        let (id, kind) = (random.u64(0..8), random.u32(0..12));
        let caller = spawn(async move {
            let began = tokio::time::Instant::now();
            let mut got = Vec::new();
            match kind {
                0..4 => got.extend(cache.get(id).await.ok().map(|value| (id, value))),
                4..6 => got.extend(cache.get_many(id..id + 4).await.values),
                6..8 => got.extend(handle.get_many(id..id + 4, load).await.values),
                8 => got.extend(cache.refresh(id).await.ok().map(|value| (id, value))),
                9 => {
                    let _ = handle.mark_stale_now(id);
                }
                10 => {
                    let _ = handle.invalidate_now(id);
                }
                _ => {
                    let one = || async move {
                        load(vec![id]).await.map(|rows| rows.get(&id).copied().unwrap_or(id * 1000))
                    };
                    got.extend(
                        handle.get_or_compute_scoped(id, one).await.ok().map(|value| (id, value)),
                    );
                }
            }
            (kind, began.elapsed(), got)
        });
        let is_aborted = random.u32(0..5) == 0;
        if is_aborted {
            let (abort, after) = (caller.abort_handle(), random.u32(0..60) * MS);
            spawn(async move {
                tokio::time::sleep(after).await;
                abort.abort();
            });
        }
        callers.push(caller);
    }
    for caller in callers {
        let Ok((kind, took, got)) = within(MINUTE, caller).await else { continue };
        let most = wait + limit + window.max(5 * MS) + 3 * MS;
        let most = if kind == 8 { most + wait } else { most };
        if took > most {
            return Err(format!(
                "kind {kind} took {took:?}, {wait:?} + {limit:?}, window {window:?}"
            ));
        }
        if got.iter().any(|(id, value)| id * 1000 != *value) {
            return Err(format!("foreign value {got:?}"));
        }
    }
    pass(SECOND).await;
    let stats = handle.stats();
    if (stats.flights, stats.waiting) != (0, 0) || running.0.load(SeqCst) != 0 {
        return Err(format!(
            "left over {} {} {}",
            stats.flights,
            stats.waiting,
            running.0.load(SeqCst)
        ));
    }
    let most = running.1.load(SeqCst);
    if most > max_places && stats.alone == 0 && (!nests || is_patient) {
        return Err(format!("{most} of {max_places} at once, nests {nests}"));
    }
    // All places and shares are free.
    let origin = Origin::taking(20 * MS);
    let all: Vec<_> = (0..max_places as u64)
        .map(|n| {
            let (handle, compute) = (handle.clone(), origin.compute());
            spawn(async move { handle.get_or_compute(200 + n, compute).await.is_ok() })
        })
        .collect();
    pass(10 * MS).await;
    if origin.running() != max_places {
        return Err(format!("{} of {max_places} places are free", origin.running()));
    }
    for one in all {
        one.await.unwrap();
    }
    pass(250 * MS).await;
    let again = Origin::taking(MS);
    handle.get_or_compute(200_u64, again.compute()).await.unwrap();
    pass(10 * MS).await;
    if again.calls() != 1 {
        return Err("no share of the refreshes is free".to_owned());
    }
    Ok(())
}

/// Some loaders panic, which is no news.
#[test]
fn a_storm_of_batches_keeps_the_bounds_and_leaves_nothing() {
    for seed in 0..200 {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        if let Err(how) = runtime.block_on(storm_of(seed)) {
            panic!("seed {seed}: {how}");
        }
    }
}
