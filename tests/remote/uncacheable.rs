//! Answers that may not be shared: no process waits for another's.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower_stampede::remote::Double;
use tower_stampede::{Computed, Error};

use crate::kit::origin::*;
use crate::kit::remote::*;
use crate::kit::spawn;

fn ask(process: &Process, origin: &Origin) -> JoinHandle<Result<u64, Error>> {
    let (cache, origin) = (process.cache.clone(), origin.clone());
    let compute =
        move || async move { origin.load().await.map(|n| Computed::new(n).do_not_store()) };
    spawn(async move { cache.get_or_compute_with("k", compute).await })
}

fn ask_to_store(process: &Process, origin: &Origin) -> JoinHandle<Result<u64, Error>> {
    let (cache, origin) = (process.cache.clone(), origin.clone());
    let compute = move || async move { origin.load().await.map(|n| Computed::new(n).tag("t")) };
    spawn(async move { cache.get_or_compute_with("k", compute).await })
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_in_other_processes_compute_in_parallel_at_once() {
    let (double, origin) = (Double::new(), Origin::taking(100 * MS));
    let processes = Process::several(8, &double).await;
    let began = Instant::now();
    let callers: Vec<_> = (0..80).map(|i| ask(&processes[i % 8], &origin)).collect();
    let mut answers: Vec<_> =
        gather(callers).await.into_iter().map(|answer| answer.unwrap()).collect();
    answers.sort_unstable();
    answers.dedup();
    assert_eq!(answers.len(), 80, "nobody gets another's");
    assert!(began.elapsed() < 210 * MS, "{:?}", began.elapsed());
    assert!(origin.most_at_once() > 70);
}

#[tokio::test(start_paused = true)]
async fn those_who_come_later_do_not_queue_in_any_process() {
    let (double, origin) = (Double::new(), Origin::taking(100 * MS));
    let processes = Process::several(3, &double).await;
    ask(&processes[0], &origin).await.unwrap().unwrap();
    all_have_run().await;
    let began = Instant::now();
    let callers: Vec<_> = (0..30).map(|i| ask(&processes[i % 3], &origin)).collect();
    gather(callers).await.into_iter().for_each(|answer| assert!(answer.is_ok()));
    assert!(began.elapsed() < 110 * MS, "{:?}", began.elapsed());
    assert_eq!(processes[2].get("k").await, None);
}

#[tokio::test(start_paused = true)]
async fn the_word_that_nothing_is_shared_ends_and_a_value_replaces_it() {
    let (double, origin) = (Double::new(), Origin::taking(10 * MS));
    let processes = Process::several(2, &double).await;
    ask(&processes[0], &origin).await.unwrap().unwrap();
    all_have_run().await;
    ask(&processes[1], &origin).await.unwrap().unwrap();
    pass(31 * SECOND).await;
    let value = ask_to_store(&processes[1], &origin).await.unwrap().unwrap();
    all_have_run().await;
    assert_eq!(processes[0].get("k").await, Some(value));
}

#[tokio::test(start_paused = true)]
async fn a_computation_longer_than_that_word_holds_keeps_nobody_queued() {
    let (double, origin) = (Double::new(), Origin::taking(8 * SECOND));
    let short = || settings().uncacheable_for(4 * SECOND);
    let processes = Process::several_with(6, &double, short).await;
    let began = Instant::now();
    let callers: Vec<_> = (0..12).map(|i| ask(&processes[i % 6], &origin)).collect();
    gather(callers).await.into_iter().for_each(|answer| assert!(answer.is_ok()));
    assert!(began.elapsed() < 17 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_dead_value_that_still_stands_there_keeps_nobody_queued() {
    let (double, origin) = (Double::new(), Origin::taking(SECOND));
    let processes = Process::several(6, &double).await;
    ask_to_store(&processes[0], &origin).await.unwrap().unwrap();
    pass(10 * MS).await;
    processes[0].invalidate_tag("t").await;
    pass(10 * MS).await;
    let began = Instant::now();
    let callers: Vec<_> = (0..12).map(|i| ask(&processes[i % 6], &origin)).collect();
    gather(callers).await.into_iter().for_each(|answer| assert!(answer.is_ok()));
    assert!(began.elapsed() < 2200 * MS, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_newer_result_that_is_not_stored_ends_the_older_value_in_every_process() {
    let unstored: [fn(u64) -> Computed<u64>; 2] =
        [|n| Computed::new(n).do_not_store(), |n| Computed::new(n).ttl(Duration::ZERO)];
    for make in unstored {
        let (double, origin) = (Double::new(), Origin::new());
        let useful = || settings().stale_for(10 * MINUTE).stale_if_error(10 * MINUTE);
        let processes = Process::several_with(2, &double, useful).await;
        assert_eq!(ask_to_store(&processes[0], &origin).await.unwrap().unwrap(), 1);
        all_have_run().await;
        assert_eq!(processes[1].get("k").await, Some(1));
        pass(2 * MINUTE).await;
        let load = origin.clone();
        let compute = move || async move { load.load().await.map(make) };
        let stale = processes[0].cache.get_or_compute_with("k", compute).await.unwrap();
        assert_eq!(stale, 1, "served while it is refreshed");
        all_have_run().await;
        pass(SECOND).await;
        assert_eq!(origin.calls(), 2);
        for process in &processes {
            assert_eq!(process.get("k").await, None);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_for_a_result_that_is_not_stored_do_not_wait_for_the_remote() {
    let (double, origin) = (Double::new(), Origin::taking(SECOND));
    let useful = || settings().stale_if_error(10 * MINUTE);
    let processes = Process::several_with(1, &double, useful).await;
    assert_eq!(ask_to_store(&processes[0], &origin).await.unwrap().unwrap(), 1);
    pass(2 * MINUTE).await;
    let cache = processes[0].cache.clone();
    let answers = spawn_herd(10, |_| {
        let (cache, origin) = (cache.clone(), origin.clone());
        let compute = move || async move {
            origin.load().await.map(|n| Computed::new(n).ttl(Duration::ZERO))
        };
        async move { cache.get_or_compute_with("k", compute).await.unwrap() }
    });
    pass(SECOND / 2).await;
    double.delay_commands(SECOND);
    let from = Instant::now();
    assert_eq!(gather(answers.into_iter().skip(1).collect()).await, [2; 9]);
    assert_eq!(from.elapsed(), SECOND / 2);
}

#[tokio::test(start_paused = true)]
async fn a_value_without_a_lifetime_is_for_those_who_wait_here_and_blocks_nobody() {
    let (double, origin) = (Double::new(), Origin::taking(100 * MS));
    let processes = Process::several(3, &double).await;
    let callers: Vec<_> = (0..30)
        .map(|i| {
            let (cache, origin) = (processes[i % 3].cache.clone(), origin.clone());
            let compute = move || async move {
                origin.load().await.map(|n| Computed::new(n).ttl(Duration::ZERO))
            };
            spawn(async move { cache.get_or_compute_with("k", compute).await })
        })
        .collect();
    let began = Instant::now();
    gather(callers).await.into_iter().for_each(|answer| assert!(answer.is_ok()));
    assert!(origin.calls() <= 3, "one per process");
    assert!(began.elapsed() < 350 * MS, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_value_sets_its_own_lifetime_and_tags_for_every_process() {
    let (double, origin) = (Double::new(), Origin::new());
    let processes = Process::several(2, &double).await;
    let with = |ttl: Duration| {
        let origin = origin.clone();
        move || async move { origin.load().await.map(|n| Computed::new(n).ttl(ttl).tag("t")) }
    };
    processes[0].get_or_compute_with("k", with(5 * SECOND)).await.unwrap();
    all_have_run().await;
    assert_eq!(processes[1].get("k").await, Some(1));
    pass(6 * SECOND).await;
    assert_eq!(processes[1].get("k").await, None);
    processes[0].get_or_compute_with("k", with(MINUTE)).await.unwrap();
    all_have_run().await;
    assert_eq!(processes[1].get("k").await, Some(2));
    processes[1].invalidate_tag("t").await;
    assert_eq!((processes[0].get("k").await, processes[1].get("k").await), (None, None));
}
