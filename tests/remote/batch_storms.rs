//! Batches of several processes at random moments: callers that go away or are not polled any
//! more, modes that change, commands that take long.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tower_stampede::remote::Double;
use tower_stampede::{Cache, Computed, Key, Mode};

use crate::kit::origin::*;
use crate::kit::remote::*;
use crate::kit::spawn;
use crate::kit::table::*;

type ComputedRows = Result<Vec<(u64, Computed<u64>)>, OriginError>;
/// Which process loads which keys.
type Loading = (usize, Vec<u64>);

/// Runs a scenario for each seed, on paused time.
fn for_each_seed<F: Future<Output = Result<(), String>>>(scenario: impl Fn(u64) -> F) {
    for seed in 0..150 {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        if let Err(how) = runtime.block_on(scenario(seed)) {
            panic!("seed {seed}: {how}");
        }
    }
}

/// Asks for a key of a batch whose caller was polled once and is then neither polled nor
/// dropped; `asked` is the process that asks. Another process has put the batch's other key.
async fn ask_beside_a_silent_batch(asked: usize) {
    let double = Double::new();
    let processes = Process::several(3, &double).await;
    processes[1].put(1_u64, 1).await;
    let table = Table::taking(SECOND);
    let mut silent = Box::pin(processes[0].get_many([1_u64, 2], table.loader()));
    assert!(futures_util::poll!(&mut silent).is_pending());
    all_have_run().await;
    let began = tokio::time::Instant::now();
    let got = processes[asked].get_or_compute(2_u64, Origin::new().compute()).await;
    assert!(got.is_ok(), "{got:?} after {:?}", began.elapsed());
    assert!(began.elapsed() < 5 * SECOND, "{:?}", began.elapsed());
    drop(silent);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_not_polled_any_more_does_not_stall_the_callers_of_its_keys() {
    ask_beside_a_silent_batch(0).await;
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_not_polled_any_more_does_not_keep_other_processes_waiting() {
    ask_beside_a_silent_batch(2).await;
}

#[tokio::test(start_paused = true)]
async fn refreshes_whose_commands_outlast_the_window_give_back_their_shares() {
    let double = Double::new();
    let settings =
        settings().max_refreshes(1).batch_window(5 * MS).ttl(10 * SECOND).stale_for(50 * MINUTE);
    let process = Process::with(&double, settings);
    process.prepare(&double).await;
    let table = Table::taking(SECOND);
    let cache = Cache::batched(process.cache.clone(), table.loader());
    cache.get_many([1, 2, 3]).await.complete().unwrap();
    pass(15 * SECOND).await;
    double.delay(10 * MS);
    assert!(cache.get(1).await.is_ok());
    pass(7 * MS).await;
    assert!(cache.get(2).await.is_ok());
    pass(10 * SECOND).await;
    assert_quiet(&process);
    let before = table.loads_of(3);
    assert!(cache.get(3).await.is_ok());
    pass(5 * SECOND).await;
    assert_eq!(table.loads_of(3), before + 1, "stale, and refreshed: {:?}", table.queries.lock());
}

// The same for a batch that another process answers with a hold: its caller is not polled.
#[tokio::test(start_paused = true)]
async fn a_batch_that_is_not_polled_any_more_gives_back_the_place_of_its_call() {
    let double = Double::new();
    let builder = || settings().max_refreshes(1).max_computations(1);
    let processes = Process::several_with(2, &double, builder).await;
    processes[1].put(1_u64, 1).await;
    let table = Table::taking(SECOND);
    let mut silent = Box::pin(processes[0].get_many([1_u64, 2], table.loader()));
    assert!(futures_util::poll!(&mut silent).is_pending());
    all_have_run().await;
    let began = tokio::time::Instant::now();
    let got = processes[0].get_or_compute("another key", Origin::new().compute()).await;
    assert!(got.is_ok(), "{got:?}");
    assert!(began.elapsed() < 5 * SECOND, "{:?}", began.elapsed());
    drop(silent);
}

// The control for the two tests above: polled, it takes a moment.
#[tokio::test(start_paused = true)]
async fn a_batch_that_is_polled_stalls_no_caller() {
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    processes[1].put(1_u64, 1).await;
    let table = Table::taking(SECOND);
    let (handle, load) = (processes[0].cache.clone(), table.loader());
    let batch = spawn(async move { handle.get_many([1_u64, 2], load).await });
    all_have_run().await;
    let began = tokio::time::Instant::now();
    let got = processes[0].get_or_compute(2_u64, Origin::new().compute()).await;
    assert_eq!(got.ok(), Some(4));
    assert!(began.elapsed() < 2 * SECOND);
    batch.await.unwrap().complete().unwrap();
}

// However the mode is switched while a batch is under way, no caller of it fails.
#[tokio::test(start_paused = true)]
async fn a_switch_of_the_mode_in_the_middle_of_a_batch_fails_no_caller() {
    for to in [Mode::Observe, Mode::Off] {
        for (at, back) in
            [(5, 30), (15, 5), (25, 2000), (40, 100), (500, 600), (1100, 50), (2500, 500)]
        {
            let double = Double::new();
            let builder = || settings().max_refreshes(1).max_computations(2).batch_window(5 * MS);
            let processes = Process::several_with(2, &double, builder).await;
            double.delay(10 * MS);
            assert!(double.lock_as_stranger(&Key::from(3_u64), 2 * SECOND));
            let table = Table::taking(SECOND);
            let mut asked = Vec::new();
            for n in 0..6_u64 {
                let process = &processes[(n % 2) as usize];
                let (handle, load) = (process.cache.clone(), table.loader());
                let ids: Vec<u64> = (n..n + 4).collect();
                asked.push(spawn(async move { handle.get_many(ids, load).await }));
                let cache = Cache::batched(process.cache.clone(), table.loader());
                asked.push(spawn(async move {
                    let got = cache.get(n + 1).await;
                    let mut batch = cache
                        .handle()
                        .get_many([0_u64; 0], |_| async { Rows::Ok(HashMap::new()) })
                        .await;
                    if let Err(tower_stampede::Failure::Cache(error)) = got {
                        batch.failures.insert(n + 1, error);
                    }
                    batch
                }));
            }
            pass(at * MS).await;
            processes[0].set_mode(to);
            pass(back * MS).await;
            processes[0].set_mode(Mode::On);
            for caller in asked {
                let batch = within(5 * MINUTE, caller).await.unwrap();
                assert!(batch.failures.is_empty(), "{to:?} {at} {back}: {:?}", batch.failures);
            }
            pass(SECOND).await;
            processes.iter().for_each(|process| assert_quiet(&process.cache));
        }
    }
}

async fn storm_of(seed: u64) -> Result<(), String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let (max_places, max_batch) = (random.usize(1..4), random.usize(1..5));
    let window = [0, 0, 5, 20][random.usize(0..4)] * MS;
    let aborts = random.bool();
    let double = Double::new();
    let (wait, limit) = (10 * SECOND, 60 * SECOND);
    let builder = || {
        settings()
            .ttl(3 * SECOND)
            .stale_for(2 * SECOND)
            .max_computations(max_places)
            .max_refreshes(1)
            .max_batch(max_batch)
            .batch_window(window)
            .wait_timeout(wait)
            .compute_timeout(limit)
    };
    let processes = Process::several_with(2, &double, builder).await;
    let running: Arc<Mutex<Vec<Loading>>> = Arc::default();
    let twice: Arc<Mutex<Vec<String>>> = Arc::default();
    struct Running(Arc<Mutex<Vec<Loading>>>, Loading);
    impl Drop for Running {
        fn drop(&mut self) {
            let mut running = self.0.lock();
            let at = running.iter().position(|one| *one == self.1).unwrap();
            running.remove(at);
        }
    }
    let loader = |number: usize, random: fastrand::Rng| {
        let (running, twice) = (Arc::clone(&running), Arc::clone(&twice));
        let random = Arc::new(Mutex::new(random));
        move |ids: Vec<u64>| -> BoxFuture<'static, Rows> {
            {
                let mut all = running.lock();
                for id in &ids {
                    if let Some(other) = all.iter().find(|one| one.1.contains(id)) {
                        twice.lock().push(format!("{id} by {number} and {}", other.0));
                    }
                }
                all.push((number, ids.clone()));
                let here = all.iter().filter(|one| one.0 == number).count();
                if here > max_places {
                    twice.lock().push(format!("{here} calls of {max_places} in {number}"));
                }
            }
            let guard = Running(Arc::clone(&running), (number, ids.clone()));
            let takes = random.lock().u64(0..150);
            Box::pin(async move {
                let _guard = guard;
                tokio::time::sleep(takes as u32 * MS).await;
                Ok(ids.into_iter().map(|id| (id, id * 1000)).collect())
            })
        }
    };
    let loads = [loader(0, random.fork()), loader(1, random.fork())];
    let caches: Vec<_> =
        (0..2).map(|n| Cache::batched(processes[n].cache.clone(), loads[n].clone())).collect();
    let mut callers = Vec::new();
    for _ in 0..60 {
        tokio::time::sleep(random.u32(0..25) * MS).await;
        if random.u32(0..4) == 0 {
            double.delay(random.u32(0..15) * MS);
            double.delay_commands(random.u32(0..15) * MS);
        }
        let n = random.usize(0..2);
        let (cache, handle, load) =
            (caches[n].clone(), processes[n].cache.clone(), loads[n].clone());
        let (id, kind) = (random.u64(0..8), random.u32(0..9));
        let caller = spawn(async move {
            let began = tokio::time::Instant::now();
            let failed = match kind {
                0..5 => cache.get(id).await.err().map(|error| format!("{error:?}")),
                5..7 => cache.get_many(id..id + 4).await.complete().err().map(|e| format!("{e:?}")),
                _ => handle
                    .get_many(id..id + 4, load)
                    .await
                    .complete()
                    .err()
                    .map(|e| format!("{e:?}")),
            };
            (kind, began.elapsed(), failed)
        });
        if aborts && random.u32(0..5) == 0 {
            let (abort, after) = (caller.abort_handle(), random.u32(0..60) * MS);
            spawn(async move {
                tokio::time::sleep(after).await;
                abort.abort();
            });
        }
        callers.push(caller);
    }
    for caller in callers {
        let Ok((kind, took, failed)) = within(10 * MINUTE, caller).await else { continue };
        if failed.is_some() || took > 12 * SECOND {
            return Err(format!("kind {kind} took {took:?}: {failed:?}"));
        }
    }
    pass(SECOND).await;
    if let Some(twice) = twice.lock().iter().find(|text| !aborts || text.contains("calls of")) {
        return Err(format!("aborts {aborts}: {twice}"));
    }
    for process in &processes {
        let stats = process.stats();
        if (stats.flights, stats.waiting) != (0, 0) || !running.lock().is_empty() {
            return Err(format!("left over {} {}", stats.flights, stats.waiting));
        }
        let origin = Origin::taking(500 * MS);
        let all: Vec<_> = (0..max_places as u64)
            .map(|n| {
                let (handle, compute) = (process.cache.clone(), origin.compute());
                spawn(async move { handle.refresh(200 + n, compute).await.is_ok() })
            })
            .collect();
        pass(200 * MS).await;
        if origin.running() != max_places {
            return Err(format!("{} of {max_places} places are free", origin.running()));
        }
        for one in all {
            one.await.unwrap();
        }
    }
    Ok(())
}

#[test]
fn a_storm_of_batches_in_two_processes_loads_each_key_once_and_fails_no_caller() {
    for_each_seed(storm_of);
}

// Remembered here, the older value removed everywhere, and in time the origin is asked again.
#[tokio::test(start_paused = true)]
async fn a_remembered_failure_of_a_batch_stands_for_its_time_and_no_older_value_comes_back() {
    use tower_stampede::FailureAction;
    let double = Double::new();
    double.delay(5 * MS);
    let builder = || {
        settings()
            .ttl(10 * SECOND)
            .stale_for(MINUTE)
            .stale_if_error(60 * MINUTE)
            .batch_window(5 * MS)
    };
    let processes = Process::several_with(2, &double, builder).await;
    let mode = Arc::new(AtomicUsize::new(0));
    let calls = Arc::new(AtomicUsize::new(0));
    let caches: Vec<Cache<u64, u64, &'static str>> = processes
        .iter()
        .map(|process| {
            let (mode, calls) = (Arc::clone(&mode), Arc::clone(&calls));
            let load = move |ids: Vec<u64>| {
                calls.fetch_add(1, SeqCst);
                let mode = mode.load(SeqCst);
                async move {
                    match mode {
                        0 => Ok(ids.into_iter().map(|id| (id, id)).collect::<HashMap<_, _>>()),
                        1 => Ok(HashMap::new()),
                        2 => Err("not found"),
                        _ => Err("down"),
                    }
                }
            };
            Cache::batched(process.cache.clone(), load).absent(|_| "not found").on_failure(
                |error| match *error {
                    "not found" => FailureAction::Remember(30 * SECOND),
                    _ => FailureAction::Hold,
                },
            )
        })
        .collect();
    for not_found in [1, 2] {
        mode.store(0, SeqCst);
        caches[0].get_many([1, 2, 3]).await.complete().unwrap();
        caches[1].get_many([1, 2, 3]).await.complete().unwrap();
        pass(15 * SECOND).await;
        mode.store(not_found, SeqCst);
        // Stale: served, and refreshed by the same call.
        let before = calls.load(SeqCst);
        assert_eq!(caches[0].get_many([1, 2, 3]).await.values.len(), 3);
        pass(SECOND).await;
        assert_eq!(calls.load(SeqCst), before + 1);
        for _ in 0..3 {
            let batch = caches[0].get_many([1, 2, 3]).await;
            assert_eq!((batch.values.len(), batch.failures.len()), (0, 3));
            assert!(caches[0].get(1).await.is_err());
        }
        assert_eq!(calls.load(SeqCst), before + 1, "remembered");
        mode.store(3, SeqCst);
        let there = caches[1].get_many([1, 2, 3]).await;
        assert!(there.values.is_empty(), "an older value: {there:?}");
        pass(35 * SECOND).await;
        let here = caches[0].get_many([1, 2, 3]).await;
        assert!(here.values.is_empty(), "an older value: {here:?}");
        pass(5 * SECOND).await;
        for process in &processes {
            assert_quiet(process);
            process.invalidate_all().await;
        }
    }
}

/// Modes are switched, some callers are polled once and no more, some results are not stored.
async fn switching_storm_of(seed: u64) -> Result<(), String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let (max_places, max_batch) = (random.usize(1..4), random.usize(1..5));
    let window = [0, 0, 5, 20][random.usize(0..4)] * MS;
    let (has_remote, nests, unshared) = (random.bool(), random.bool(), random.bool());
    let (switches, silent) = (random.bool(), random.bool());
    let double = Double::new();
    let builder = || {
        settings()
            .ttl(3 * SECOND)
            .stale_for(2 * SECOND)
            .max_computations(max_places)
            .max_refreshes(1)
            .max_batch(max_batch)
            .batch_window(window)
            .wait_timeout(20 * SECOND)
            .compute_timeout(60 * SECOND)
    };
    let handle = match has_remote {
        true => {
            let process = Process::with(&double, builder());
            process.prepare(&double).await;
            process.cache.clone()
        }
        false => builder().build().unwrap(),
    };
    let load = {
        let (random, handle) = (Arc::new(Mutex::new(random.fork())), handle.clone());
        move |ids: Vec<u64>| -> BoxFuture<'static, ComputedRows> {
            let (takes, how, part) = {
                let mut random = random.lock();
                (random.u32(0..90), random.u32(0..8), random.u64(100..103))
            };
            let handle = handle.clone();
            Box::pin(async move {
                if nests && how > 5 {
                    let part_of = move || async move { Ok::<u64, OriginError>(part * 1000) };
                    if let Err(error) = handle.get_or_compute(part, part_of).await {
                        panic!("part: {error:?}");
                    }
                }
                pass(takes * MS).await;
                let computed = |id| {
                    let value = Computed::new(id * 1000);
                    if unshared && how == 0 { value.do_not_store() } else { value }
                };
                Ok(ids.into_iter().map(|id| (id, computed(id))).collect())
            })
        }
    };
    let cache = Cache::batched(handle.clone(), load.clone());
    let (mut callers, mut kept) = (Vec::new(), Vec::new());
    for _ in 0..60 {
        pass(random.u32(0..25) * MS).await;
        if random.u32(0..4) == 0 {
            double.delay(random.u32(0..15) * MS);
        }
        if switches && random.u32(0..4) == 0 {
            handle.set_mode([Mode::On, Mode::Observe, Mode::Off][random.usize(0..3)]);
        }
        let (cache, handle, load) = (cache.clone(), handle.clone(), load.clone());
        let (id, kind) = (random.u64(0..8), random.u32(0..9));
        if silent && random.u32(0..6) == 0 {
            let mut one = Box::pin(async move { cache.get(id).await });
            let _ = futures_util::poll!(&mut one);
            kept.push(one);
            continue;
        }
        callers.push(spawn(async move {
            let began = tokio::time::Instant::now();
            let failed = match kind {
                0..5 => cache.get(id).await.err().map(|error| format!("{error:?}")),
                5..7 => cache
                    .get_many(id..id + 4)
                    .await
                    .complete()
                    .err()
                    .map(|error| format!("{error:?}")),
                7 => {
                    let _ = handle.mark_stale_now(id);
                    None
                }
                _ => handle
                    .get_many(id..id + 4, load)
                    .await
                    .complete()
                    .err()
                    .map(|error| format!("{error:?}")),
            };
            (kind, began.elapsed(), failed)
        }));
    }
    let on = random.bool();
    if on {
        handle.set_mode(Mode::On);
    }
    for caller in callers {
        match within(10 * MINUTE, caller).await {
            Ok((kind, took, None)) if took < 15 * SECOND => {
                let _ = (kind, took);
            }
            Ok((kind, took, failed)) => {
                return Err(format!(
                    "kind {kind} took {took:?}: {failed:?} remote {has_remote} nests {nests} unshared {unshared} switches {switches} silent {silent} places {max_places}"
                ));
            }
            Err(_) => {
                return Err(format!(
                    "a panic; remote {has_remote} nests {nests} unshared {unshared} switches {switches} silent {silent}"
                ));
            }
        }
    }
    handle.set_mode(Mode::On);
    drop(kept);
    pass(SECOND).await;
    let stats = handle.stats();
    if (stats.flights, stats.waiting) != (0, 0) {
        return Err(format!("left over {} {}", stats.flights, stats.waiting));
    }
    let origin = Origin::taking(500 * MS);
    let all: Vec<_> = (0..max_places as u64)
        .map(|n| {
            let (handle, compute) = (handle.clone(), origin.compute());
            spawn(async move { handle.refresh(200 + n, compute).await.is_ok() })
        })
        .collect();
    pass(200 * MS).await;
    if origin.running() != max_places {
        return Err(format!(
            "{} of {max_places} places are free; remote {has_remote} nests {nests} switches {switches} silent {silent}",
            origin.running()
        ));
    }
    for one in all {
        one.await.unwrap();
    }
    Ok(())
}

#[test]
fn a_storm_with_switches_and_callers_that_are_not_polled_fails_no_other_caller() {
    for_each_seed(switching_storm_of);
}
