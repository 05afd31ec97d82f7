//! Many processes compute once, and what that costs in commands.

use std::future::Future;
use std::pin::Pin;

use tower::{ServiceExt, service_fn};
use tower_stampede::remote::{Double, RemoteOp::*};
use tower_stampede::{Computed, Error, Health, Stampede};

use crate::kit::origin::*;
use crate::kit::remote::*;

#[tokio::test(start_paused = true)]
async fn a_local_hit_asks_the_remote_nothing() {
    let (double, origin) = (Double::new(), Origin::new());
    let one = Process::on(&double);
    one.load(&origin).await;
    all_have_run().await;
    double.forget_calls();
    for _ in 0..100 {
        assert_eq!(one.load(&origin).await, 1);
        assert_eq!(one.get("k").await, Some(1));
    }
    assert!(double.all_calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_cold_miss_costs_its_leader_three_commands_and_a_hit_in_the_remote_one() {
    let (double, origin) = (Double::new(), Origin::taking(10 * MS));
    let processes = Process::several(2, &double).await;
    assert_eq!(processes[0].load(&origin).await, 1);
    all_have_run().await;
    assert_eq!(commands(&double), [(Get, 1), (Acquire, 1), (Fill, 1)]);

    double.forget_calls();
    assert_eq!(processes[1].load(&origin).await, 1);
    all_have_run().await;
    assert_eq!(commands(&double), [(Get, 1)]);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_waits_asks_three_times() {
    let (double, origin) = (Double::new(), Origin::taking(100 * MS));
    let processes = Process::several(2, &double).await;
    let leader = processes[0].spawn(&origin);
    all_have_run().await;
    double.forget_calls();
    assert_eq!(processes[1].load(&origin).await, 1);
    leader.await.unwrap().unwrap();
    all_have_run().await;
    assert_eq!(commands(&double), [(Get, 2), (Acquire, 1), (Fill, 1)], "the fill is the leader's");
}

#[tokio::test(start_paused = true)]
async fn a_herd_in_one_process_costs_what_one_request_costs() {
    let (double, origin) = (Double::new(), Origin::taking(100 * MS));
    let processes = Process::several(2, &double).await;
    let answers = herd(1000, |_| {
        let (one, origin) = (processes[0].clone(), origin.clone());
        async move { one.load(&origin).await }
    });
    assert!(answers.await.iter().all(|answer| *answer == 1));
    all_have_run().await;
    assert_eq!(commands(&double), [(Get, 1), (Acquire, 1), (Fill, 1)]);

    double.forget_calls();
    let answers = herd(1000, |_| {
        let (other, origin) = (processes[1].clone(), origin.clone());
        async move { other.load(&origin).await }
    });
    assert!(answers.await.iter().all(|answer| *answer == 1));
    assert_eq!(commands(&double), [(Get, 1)]);
}

#[tokio::test(start_paused = true)]
async fn two_hundred_cold_keys_in_thirty_two_processes_are_two_hundred_calls() {
    let (double, origin) = (Double::new(), Origin::taking(50 * MS));
    let processes: Vec<_> = (0..32).map(|_| Process::on(&double)).collect();
    let callers = 32 * 200 * 2;
    let answers = herd(callers, |i| {
        let (one, origin) = (processes[i % 32].clone(), origin.clone());
        let key = (i / 32 % 200) as u64;
        async move { (key, one.get_or_compute(key, origin.compute()).await.unwrap()) }
    });
    let mut of_key = std::collections::HashMap::new();
    for (key, answer) in answers.await {
        assert_eq!(*of_key.entry(key).or_insert(answer), answer, "one value per key");
    }
    assert_eq!(origin.calls(), 200);
    assert_eq!(double.calls(Fill), 200);
}

#[tokio::test(start_paused = true)]
async fn who_missed_before_the_fill_and_asks_for_the_lease_after_it_is_given_the_value() {
    let (double, origin) = (Double::new(), Origin::taking(20 * MS));
    let processes = Process::several(2, &double).await;
    let leader = processes[0].spawn(&origin);
    pass(10 * MS).await;
    // What is executed now is answered only after the fill.
    double.delay(50 * MS);
    assert_eq!(processes[1].load(&origin).await, 1);
    leader.await.unwrap().unwrap();
    all_have_run().await;
    assert_eq!(commands(&double), [(Get, 2), (Acquire, 2), (Fill, 1)]);
    assert_eq!(origin.calls(), 1);
}

type Asking = Pin<Box<dyn Future<Output = Result<u64, Error>> + Send>>;
type Way = fn(Stampede<u64>, Origin) -> Asking;

const WAYS: [(&str, Way); 5] = [
    ("detached", |cache, origin| {
        Box::pin(async move { cache.get_or_compute("k", origin.compute()).await })
    }),
    ("with", |cache, origin| {
        let compute = move || async move { origin.load().await.map(Computed::new) };
        Box::pin(async move { cache.get_or_compute_with("k", compute).await })
    }),
    ("scoped", |cache, origin| {
        Box::pin(async move { cache.get_or_compute_scoped("k", || origin.load()).await })
    }),
    ("service", |cache, origin| {
        let load = service_fn(move |()| origin.load());
        Box::pin(tower::Layer::layer(&cache.layer(|(): &()| Some("k")), load).oneshot(()))
    }),
    ("inline service", |cache, origin| {
        let load = service_fn(move |()| origin.load());
        Box::pin(tower::Layer::layer(&cache.layer(|(): &()| Some("k")).inline(), load).oneshot(()))
    }),
];

/// The first result of another process may come from a lease that was granted before the call.
/// The second comes from one that was granted when that had ended.
#[tokio::test(start_paused = true)]
async fn processes_that_refresh_a_key_in_one_instant_compute_twice_and_one_after_the_other() {
    let (double, origin) = (Double::new(), Origin::taking(100 * MS));
    let processes: Vec<_> = (0..8).map(|_| Process::on(&double)).collect();
    let answers = herd(8 * 20, |i| {
        let (cache, compute) = (processes[i % 8].cache.clone(), origin.compute());
        async move { cache.refresh("k", compute).await }
    });
    assert!(answers.await.into_iter().all(|answer| answer.is_ok()));
    assert_eq!((origin.calls(), origin.most_at_once()), (2, 1));
    all_have_run().await;
    processes.iter().for_each(|process| assert_quiet(&process.cache));
}

#[tokio::test(start_paused = true)]
async fn whichever_way_a_cold_key_is_asked_for_all_processes_compute_once() {
    for (way, ask) in WAYS {
        let (double, origin) = (Double::new(), Origin::taking(100 * MS));
        let processes: Vec<_> = (0..8).map(|_| Process::on(&double)).collect();
        let answers = herd(8 * 20, |i| ask(processes[i % 8].cache.clone(), origin.clone())).await;
        assert!(answers.into_iter().all(|answer| answer.unwrap() == 1), "{way}");
        assert_eq!(origin.calls(), 1, "{way}");
        all_have_run().await;
        assert_eq!(commands(&double), [(Get, 15), (Acquire, 8), (Fill, 1)], "{way}");
        processes.iter().for_each(|process| assert_quiet(&process.cache));
    }
}

#[tokio::test(start_paused = true)]
async fn a_refresh_by_name_computes_over_what_is_there_and_every_process_gets_it() {
    let (double, origin) = (Double::new(), Origin::taking(10 * MS));
    let processes = Process::several(2, &double).await;
    assert_eq!(processes[0].load(&origin).await, 1);
    all_have_run().await;
    assert_eq!(processes[1].refresh("k", origin.compute()).await.unwrap(), 2);
    all_have_run().await;
    assert_eq!(processes[1].get("k").await, Some(2));
    // A local copy is good as long as no process invalidates it.
    assert_eq!(processes[0].get("k").await, Some(1));
    let third = Process::on(&double);
    assert_eq!(third.get("k").await, Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_get_costs_one_command_computes_nothing_and_keeps_a_copy() {
    let (double, origin) = (Double::new(), Origin::new());
    let processes = Process::several(2, &double).await;
    assert_eq!(processes[0].get("k").await, None);
    assert_eq!(commands(&double), [(Get, 1)]);
    processes[0].load(&origin).await;
    all_have_run().await;
    double.forget_calls();
    assert_eq!(processes[1].get("k").await, Some(1));
    assert_eq!(processes[1].get("k").await, Some(1));
    assert_eq!(commands(&double), [(Get, 1)]);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_put_is_two_commands_and_replaces_what_every_process_has() {
    let (double, origin) = (Double::new(), Origin::new());
    let processes = Process::several(3, &double).await;
    for process in &processes {
        assert_eq!(process.load(&origin).await, 1);
        all_have_run().await;
    }
    double.forget_calls();
    processes[0].put("k", 7).await;
    assert_eq!(commands(&double), [(Put, 1), (Announce, 1)]);
    for process in &processes {
        assert_eq!(process.load(&origin).await, 7);
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_another_process_keeps_no_place_from_other_computations() {
    let (double, origin) = (Double::new(), Origin::taking(SECOND));
    let one = Process::on(&double);
    let other = Process::with(&double, settings().max_computations(1).max_refreshes(1));
    let leader = one.spawn(&origin);
    all_have_run().await;
    let waiter = other.spawn(&origin);
    all_have_run().await;
    let quick = Origin::new();
    let answer = other.get_or_compute("another key", quick.compute());
    assert_eq!(within(100 * MS, answer).await.unwrap(), 1);
    assert_eq!(waiter.await.unwrap().unwrap(), leader.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_comes_to_lead_waits_no_longer_than_it_would_have_as_a_waiter() {
    let double = Double::new();
    let (forever, origin) = (Origin::taking(60 * MINUTE), Origin::new());
    let long = || settings().compute_timeout(30 * MINUTE);
    let one = Process::with(&double, long());
    let other = Process::with(&double, long().wait_timeout(20 * SECOND));
    let _leader = one.spawn(&forever);
    all_have_run().await;
    let first = other.spawn_scoped(&origin);
    all_have_run().await;
    let second = other.spawn_scoped(&origin);
    pass(15 * SECOND).await;
    first.abort();
    let error = within(6 * SECOND, second).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), tower_stampede::ErrorKind::WaitTimeout);
    assert_eq!(origin.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn many_tags_are_announced_in_calls_of_five_hundred() {
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    processes[0].invalidate_tags((0..1250_u32).map(|n| n.to_string())).await;
    assert_eq!(double.calls(Announce), 3);
    assert_eq!(processes[0].health(), Health::Up);
}
