//! How callers that wait for another process learn that they can go on.

use std::time::Duration;

use tokio::time::Instant;
use tower_stampede::Stats;
use tower_stampede::remote::{Double, RemoteOp};

use crate::kit::origin::*;
use crate::kit::remote::*;

fn wakes(stats: &Stats) -> (u64, u64, u64) {
    (stats.wakes_by_push, stats.wakes_by_timer, stats.wakes_by_poll)
}

#[tokio::test(start_paused = true)]
async fn a_message_wakes_those_who_wait_at_once() {
    let (double, origin) = (Double::new(), Origin::taking(100 * MS));
    let processes = Process::several(2, &double).await;
    let began = Instant::now();
    let leader = processes[0].spawn(&origin);
    all_have_run().await;
    processes[1].load(&origin).await;
    assert!(began.elapsed() < 105 * MS, "{:?}", began.elapsed());
    leader.await.unwrap().unwrap();
    assert_eq!(wakes(&processes[1].stats()), (1, 0, 0));
    assert_eq!(wakes(&processes[0].stats()), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn where_messages_are_lost_a_timer_of_about_a_second_stands_in() {
    let (double, origin) = (Double::new(), Origin::taking(100 * MS));
    let processes = Process::several(2, &double).await;
    double.lose_messages(true);
    let began = Instant::now();
    let _leader = processes[0].spawn(&origin);
    all_have_run().await;
    assert_eq!(processes[1].load(&origin).await, 1);
    let took = began.elapsed();
    assert!(SECOND <= took && took < 1200 * MS, "{took:?}");
    assert_eq!(wakes(&processes[1].stats()), (0, 1, 0));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_lost_its_registration_goes_by_its_timer() {
    let (double, origin) = (Double::new(), Origin::taking(100 * MS));
    let processes = Process::several(2, &double).await;
    let _leader = processes[0].spawn(&origin);
    all_have_run().await;
    let waiter = processes[1].spawn(&origin);
    all_have_run().await;
    double.lose(&k(), tower_stampede::remote::Record::Right);
    assert_eq!(within(1200 * MS, waiter).await.unwrap().unwrap(), 1);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_a_subscription_those_who_wait_poll() {
    let (double, origin) = (Double::new(), Origin::taking(2 * SECOND));
    let processes = Process::several(2, &double).await;
    processes[1].client.unsubscribe();
    let began = Instant::now();
    let _leader = processes[0].spawn(&origin);
    all_have_run().await;
    assert_eq!(processes[1].load(&origin).await, 1);
    let took = began.elapsed();
    assert!(took < 2310 * MS, "{took:?}");
    let (push, timer, poll) = wakes(&processes[1].stats());
    assert_eq!((push, timer), (0, 0));
    // 25, 50, 100, 200, then every 250 ms, each up to a fifth off.
    assert!((9..=14).contains(&poll), "{poll} polls");
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_new_subscription_wakes_all_who_wait() {
    let (double, origin) = (Double::new(), Origin::taking(100 * MS));
    let processes = Process::several(2, &double).await;
    let _leader = processes[0].spawn(&origin);
    all_have_run().await;
    let waiter = processes[1].spawn(&origin);
    all_have_run().await;
    // No process gets the message of the fill.
    processes[1].client.unsubscribe();
    pass(150 * MS).await;
    assert!(!waiter.is_finished());
    processes[1].client.subscribe();
    assert_eq!(within(10 * MS, waiter).await.unwrap().unwrap(), 1);
    assert_eq!(wakes(&processes[1].stats()), (1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_wake_up_between_the_answer_and_the_wait_is_not_missed() {
    let (double, origin) = (Double::new(), Origin::taking(20 * MS));
    let processes = Process::several(2, &double).await;
    let _leader = processes[0].spawn(&origin);
    pass(10 * MS).await;
    let began = Instant::now();
    let waiter = processes[1].spawn(&origin);
    // Its get is answered at once; the answer to its acquire is still on the
    // way when the leader fills.
    while double.calls(RemoteOp::Get) < 2 {
        tokio::task::yield_now().await;
        if double.calls(RemoteOp::Get) == 2 {
            double.delay(30 * MS);
        }
    }
    assert_eq!(waiter.await.unwrap().unwrap(), 1);
    assert!(began.elapsed() < 200 * MS, "{:?}", began.elapsed());
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn many_who_wait_look_again_only_when_they_are_woken() {
    let (double, origin) = (Double::new(), Origin::taking(900 * MS));
    let processes = Process::several(16, &double).await;
    let _leader = processes[0].spawn(&origin);
    all_have_run().await;
    double.forget_calls();
    let waiters: Vec<_> = processes[1..].iter().map(|process| process.spawn(&origin)).collect();
    for answer in gather(waiters).await {
        assert_eq!(answer.unwrap(), 1);
    }
    assert_eq!(double.calls(RemoteOp::Get), 30);
    assert_eq!(double.calls(RemoteOp::Acquire), 15);
    assert_eq!(origin.calls(), 1);
}

/// How long the third process waits after the leader is gone, where the callers of another one that
/// waits have hung up. The remote wakes one of the two.
async fn next_leader_after(gone: usize) -> Duration {
    let (double, origin) = (Double::new(), Origin::taking(100 * MS));
    let processes = Process::several(3, &double).await;
    let leader = processes[0].spawn_scoped(&origin);
    all_have_run().await;
    let mut waiters = Vec::new();
    for process in &processes[1..] {
        waiters.push(process.spawn(&origin));
        all_have_run().await;
    }
    waiters.remove(gone).abort();
    all_have_run().await;
    let began = Instant::now();
    leader.abort();
    waiters.remove(0).await.unwrap().unwrap();
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_process_whose_callers_have_hung_up_passes_a_wake_up_on() {
    for gone in [0, 1] {
        let took = next_leader_after(gone).await;
        assert!(took < 150 * MS, "waiter {gone} has hung up: {took:?}");
    }
}
