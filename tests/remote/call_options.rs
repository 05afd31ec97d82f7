//! One call with options of its own, where other processes and a remote take part.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::Instant;
use tower_stampede::remote::{Double, RemoteErrorKind, RemoteOp::*, RemoteSettings};
use tower_stampede::{Builder, CacheOutcome, Computed, Producer, Recording, Stampede, Stored};

use crate::kit::origin::*;
use crate::kit::remote::*;
use crate::kit::spawn;

fn stale() -> Builder<u64> {
    settings().stale_for(10 * MINUTE)
}

async fn ask(process: &Process, origin: &Origin, soft: std::time::Duration) -> (u64, CacheOutcome) {
    let call = process.entry("k").soft_timeout(soft).get_or_compute(origin.compute());
    let served = call.await.unwrap();
    (*served, served.outcome())
}

/// Two processes that have a value, which is stale, and the origin that made it.
async fn with_stale_copies() -> (Double, Vec<Process>, Origin) {
    let (double, origin) = (Double::new(), Origin::taking(SECOND));
    let processes = Process::several_with(3, &double, stale).await;
    for process in &processes[..2] {
        assert_eq!(process.load(&origin).await, 1);
    }
    pass(2 * MINUTE).await;
    (double, processes, origin)
}

#[tokio::test(start_paused = true)]
async fn the_value_of_another_process_is_waited_for_within_the_soft_time_out() {
    let (_double, processes, origin) = with_stale_copies().await;
    let leader = processes[0].clone();
    let (leading, compute) = (leader.clone(), origin.compute());
    let led = spawn(async move { leading.refresh("k", compute).await });
    pass(100 * MS).await;
    // Shorter than the lease, with a copy and without one.
    for waiter in &processes[1..] {
        let begun = Instant::now();
        assert_eq!(ask(waiter, &origin, 200 * MS).await, (1, CacheOutcome::Stale));
        assert_eq!(begun.elapsed(), 200 * MS);
    }
    let (value, _) = ask(&processes[1], &origin, 5 * SECOND).await;
    assert_eq!((value, led.await.unwrap().unwrap()), (2, 2));
    all_have_run().await;
    assert_eq!(ask(&processes[2], &origin, 5 * SECOND).await.0, 2);
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn processes_with_soft_time_outs_compute_a_stale_value_once() {
    for soft in [300 * MS, 5 * SECOND] {
        let (_double, processes, origin) = with_stale_copies().await;
        let begun = Instant::now();
        let answers = herd(3 * 50, |i| {
            let (process, origin) = (processes[i % 3].clone(), origin.clone());
            async move { ask(&process, &origin, soft).await.0 }
        });
        let value = if soft < SECOND { 1 } else { 2 };
        assert!(answers.await.iter().all(|answer| *answer == value));
        assert!(begun.elapsed() <= soft.min(SECOND + 10 * MS), "{:?}", begun.elapsed());
        pass(5 * SECOND).await;
        assert_eq!(origin.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_remote_that_stands_still_prolongs_no_soft_time_out_by_more_than_a_look() {
    let (double, processes, origin) = with_stale_copies().await;
    double.freeze();
    for process in &processes[..2] {
        let begun = Instant::now();
        let (value, _) = ask(process, &origin, 300 * MS).await;
        assert_eq!(value, 1);
        assert!(begun.elapsed() <= 400 * MS, "{:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_skips_the_local_copy_sees_what_the_remote_has() {
    let (double, origin) = (Double::new(), Origin::new());
    let processes = Process::several(2, &double).await;
    let (here, there) = (&processes[0], &processes[1]);
    assert_eq!(here.load(&origin).await, 1);
    assert_eq!(there.load(&origin).await, 1);
    // The message that would end the copy is lost.
    double.lose_messages(true);
    there.put("k", 9).await;
    assert_eq!(here.load(&origin).await, 1);
    double.forget_calls();
    let call = || here.entry("k").skip_local_copy();
    assert_eq!(call().get().await.as_deref(), Some(&9));
    assert_eq!(double.calls(Get), 1);
    there.put("k", 10).await;
    assert_eq!(*call().get_or_compute(origin.compute()).await.unwrap(), 10);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn while_the_remote_is_away_no_call_skips_the_local_copy() {
    let (double, origin) = (Double::new(), Origin::new());
    let here = Process::several(1, &double).await.remove(0);
    assert_eq!(here.load(&origin).await, 1);
    double.fail(&[Get, Acquire, Probe], RemoteErrorKind::Connection);
    for key in 0..10_u64 {
        drop(here.get_or_compute(key, origin.compute()).await);
    }
    let calls = origin.calls();
    assert_eq!(here.load(&origin).await, 1);
    let call = here.entry("k").skip_local_copy().get_or_compute(origin.compute());
    assert_eq!((*call.await.unwrap(), origin.calls()), (1, calls));
}

#[tokio::test(start_paused = true)]
async fn the_computation_of_another_process_sees_the_value_and_its_validator() {
    let double = Double::new();
    let processes = Process::several_with(3, &double, stale).await;
    let first = || async { Ok::<_, OriginError>(Computed::new(5).validator("v1").tag("t")) };
    assert_eq!(processes[0].get_or_compute_with("k", first).await.unwrap(), 5);
    processes[2].put_with("put", Computed::new(6).validator("v2")).await;
    pass(2 * MINUTE).await;
    for (key, value, validator) in [("k", 5, "v1"), ("put", 6, "v2")] {
        let renew = move |stored: Option<Stored<u64>>| async move {
            let stored = stored.expect("the remote has it");
            assert_eq!((*stored.value(), stored.validator()), (value, Some(validator)));
            assert!(stored.age() >= 2 * MINUTE, "{:?}", stored.age());
            Ok::<_, OriginError>(stored.renewed())
        };
        let call = processes[1].entry(key).soft_timeout(SECOND).get_or_compute_with(renew);
        assert_eq!(*call.await.unwrap(), value);
    }
    assert_eq!(processes[1].lookup("k").unwrap().tags, ["t".into()]);
    processes[0].invalidate_tag("t").await;
    all_have_run().await;
    assert_eq!(processes[1].get("k").await, None, "a renewed value keeps its tags");
}

/// Three chunks, 1 s apart; each producer says its number.
fn produce(producers: &Arc<AtomicU64>) -> impl FnOnce() -> Producer<u64> + Send + use<> {
    let producers = Arc::clone(producers);
    move || {
        let producer = producers.fetch_add(1, SeqCst);
        Producer::new(stream::iter(0..3).then(move |chunk| async move {
            tokio::time::sleep(SECOND).await;
            Ok::<_, std::io::Error>(10 * producer + chunk)
        }))
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_waited_for_in_other_processes_or_produced_beside_them() {
    let (double, producers) = (Double::new(), Arc::new(AtomicU64::new(0)));
    let caches: Vec<Stampede<Recording<u64>>> = (0..3)
        .map(|_| settings().remote(double.process(), RemoteSettings::new()).build().unwrap())
        .collect();
    let mut leads = caches[0].entry("k").get_or_stream(produce(&producers)).await.unwrap();
    assert_eq!(leads.next().await.unwrap().unwrap(), 0);
    let begun = Instant::now();
    let waiter = caches[1].clone();
    let waits = produce(&producers);
    let waits = spawn(async move { waiter.entry("k").get_or_stream(waits).await });
    let beside = caches[2].entry("k").beside_other_processes();
    let mut beside = beside.get_or_stream(produce(&producers)).await.unwrap();
    assert_eq!((beside.next().await.unwrap().unwrap(), begun.elapsed()), (10, SECOND));
    // Whole, as soon as it is.
    let waited = waits.await.unwrap().unwrap();
    assert!(begun.elapsed() < 2 * SECOND + 100 * MS, "{:?}", begun.elapsed());
    assert_eq!(waited.try_collect::<Vec<_>>().await.unwrap(), [0, 1, 2]);
    assert_eq!(leads.try_collect::<Vec<_>>().await.unwrap(), [1, 2]);
    assert_eq!(beside.try_collect::<Vec<_>>().await.unwrap(), [11, 12]);
    // What was produced beside the leader stays in its process.
    let late: Stampede<Recording<u64>> =
        settings().remote(double.process(), RemoteSettings::new()).build().unwrap();
    for (cache, first) in [(&late, 0), (&caches[2], 10)] {
        let stored = cache.get("k").await.unwrap();
        assert_eq!(stored.chunks().unwrap().next(), Some(&first));
    }
    assert_eq!(producers.load(SeqCst), 2);
}
