//! A remote of several shards: one that is away costs its own keys only.

use std::time::Duration;

use tokio::time::Instant;
use tower_stampede::remote::{Double, RemoteErrorKind, RemoteOp, Shard};
use tower_stampede::{Announcement, Computed, Health, Key};

use crate::kit::origin::*;
use crate::kit::remote::*;

/// The log is on the first of three.
const LOG: Shard = Shard::ONLY;
const SECOND_SHARD: Shard = Shard::new(1);
const THIRD_SHARD: Shard = Shard::new(2);

/// Returns keys of one shard.
fn keys_on(double: &Double, shard: Shard) -> impl Iterator<Item = String> + use<> {
    let double = double.clone();
    let keys = (0..).map(|n: u32| format!("key {n}"));
    keys.filter(move |key| double.shard_of(&Key::from(key.as_str())) == shard)
}

fn key_on(double: &Double, shard: Shard) -> String {
    keys_on(double, shard).next().unwrap()
}

async fn ask(process: &Process, key: &str, origin: &Origin) -> u64 {
    process.get_or_compute(key, origin.compute()).await.unwrap()
}

async fn ask_tagged(process: &Process, key: &str, tag: &str, origin: &Origin) -> u64 {
    let (origin, tag) = (origin.clone(), tag.to_owned());
    let compute = || async move { origin.load().await.map(|value| Computed::new(value).tag(tag)) };
    process.get_or_compute_with(key, compute).await.unwrap()
}

/// Has the process find out that a shard does not answer.
async fn notice(process: &Process, double: &Double, shard: Shard) {
    for key in keys_on(double, shard).skip(1000).take(3) {
        ask(process, &key, &Origin::new()).await;
    }
    assert_eq!(process.servers_away(), [format!("remote {}", shard.number())]);
}

#[tokio::test(start_paused = true)]
async fn a_frozen_shard_delays_its_own_keys_and_the_others_have_one_computation() {
    let (double, origin) = (Double::sharded(3), Origin::new());
    let processes = Process::several(2, &double).await;
    double.freeze_shard(SECOND_SHARD);
    for process in &processes {
        notice(process, &double, SECOND_SHARD).await;
    }
    for shard in [LOG, THIRD_SHARD] {
        for key in keys_on(&double, shard).take(10) {
            let began = Instant::now();
            for process in &processes {
                ask(process, &key, &origin).await;
            }
            assert_eq!(began.elapsed(), Duration::ZERO);
        }
    }
    assert_eq!(origin.calls(), 20, "one for both processes");
    assert_eq!(processes[0].health(), Health::Degraded);
    double.heal_shard(SECOND_SHARD);
    pass(SECOND).await;
    assert_eq!(processes[0].health(), Health::Up);
    assert!(processes[0].servers_away().is_empty());
    let key = keys_on(&double, SECOND_SHARD).nth(5000).unwrap();
    for process in &processes {
        ask(process, &key, &origin).await;
    }
    assert_eq!(origin.calls(), 21);
}

#[tokio::test(start_paused = true)]
async fn an_invalidation_that_a_shard_cannot_be_told_of_costs_no_other_key() {
    let (double, origin) = (Double::sharded(3), Origin::new());
    let processes = Process::several(2, &double).await;
    let victim = key_on(&double, SECOND_SHARD);
    ask(&processes[0], &victim, &origin).await;
    double.fail_shard(SECOND_SHARD, RemoteErrorKind::Connection);
    assert_eq!(processes[0].invalidate(&*victim).await.remote, Announcement::Queued);
    let before = origin.calls();
    for key in keys_on(&double, THIRD_SHARD).take(10) {
        for process in &processes {
            ask(process, &key, &origin).await;
        }
    }
    assert_eq!(origin.calls() - before, 10);
    double.heal_shard(SECOND_SHARD);
    pass(SECOND).await;
    // The invalidated value is gone, for both.
    for process in &processes {
        assert_eq!(process.get(&*victim).await, None);
    }
    assert_eq!(processes[0].health(), Health::Up);
}

#[tokio::test(start_paused = true)]
async fn other_processes_hear_of_an_invalidation_although_its_shard_is_away() {
    let (double, origin) = (Double::sharded(3), Origin::new());
    let processes = Process::several(2, &double).await;
    let victim = key_on(&double, SECOND_SHARD);
    for process in &processes {
        ask(process, &victim, &origin).await;
    }
    double.fail_shard(SECOND_SHARD, RemoteErrorKind::Connection);
    processes[0].invalidate(&*victim).await;
    all_have_run().await;
    assert_eq!(processes[1].get(&*victim).await, None);
}

#[tokio::test(start_paused = true)]
async fn keys_on_their_way_to_another_server_say_nothing_of_its_health() {
    let (double, origin) = (Double::sharded(1), Origin::new());
    let processes = Process::several(2, &double).await;
    ask(&processes[0], "moving", &origin).await;
    double.fail(&[RemoteOp::Invalidate], RemoteErrorKind::TryAgain);
    for _ in 0..5 {
        processes[0].invalidate("moving").await;
    }
    assert!(processes[0].servers_away().is_empty());
    let before = origin.calls();
    for n in 0..10_u64 {
        for process in &processes {
            process.get_or_compute(n, origin.compute()).await.unwrap();
        }
    }
    assert_eq!(origin.calls() - before, 10, "other keys are shared");
    assert_eq!(processes[0].get("moving").await, None, "its own invalidation");
    assert_eq!(processes[0].health(), Health::Degraded, "something is still to be told");
    double.heal(&[RemoteOp::Invalidate]);
    pass(10 * SECOND).await;
    assert_eq!(processes[0].health(), Health::Up);
    assert_eq!(processes[1].get("moving").await, None);
}

#[tokio::test(start_paused = true)]
async fn while_the_log_is_away_keys_elsewhere_are_shared_by_those_who_knew_it() {
    let (double, origin) = (Double::sharded(3), Origin::new());
    let processes = Process::several(2, &double).await;
    double.freeze_shard(LOG);
    for process in &processes {
        notice(process, &double, LOG).await;
    }
    let mut keys = keys_on(&double, THIRD_SHARD);
    for (n, key) in keys.by_ref().take(10).enumerate() {
        for process in &processes {
            match n % 2 {
                0 => ask(process, &key, &origin).await,
                _ => ask_tagged(process, &key, "a tag", &origin).await,
            };
        }
    }
    assert_eq!(origin.calls(), 10);
    // A new process shares nothing: what has ended, only the log knows.
    let new = Process::on(&double);
    notice(&new, &double, LOG).await;
    let key = keys.next().unwrap();
    let before = origin.calls();
    let began = Instant::now();
    for process in [&new, &processes[0], &new, &processes[1]] {
        ask(process, &key, &origin).await;
    }
    assert_eq!(origin.calls() - before, 2, "its own, and one for the others");
    assert_eq!(began.elapsed(), Duration::ZERO, "it holds no lease that others wait for");
}

#[tokio::test(start_paused = true)]
async fn what_carries_a_tag_that_the_log_does_not_know_of_is_neither_adopted_nor_shared() {
    let (double, origin) = (Double::sharded(3), Origin::new());
    let processes = Process::several(3, &double).await;
    let keys: Vec<_> = keys_on(&double, THIRD_SHARD).take(2).collect();
    ask_tagged(&processes[0], &keys[0], "a tag", &origin).await;
    double.freeze_shard(LOG);
    processes[1].invalidate_tag("a tag").await;
    // Not adopted, whatever stands in the remote.
    let before = origin.calls();
    ask_tagged(&processes[1], &keys[0], "a tag", &origin).await;
    assert_eq!(origin.calls() - before, 1);
    // Not shared: the others would not know what to think of it.
    ask_tagged(&processes[1], &keys[1], "a tag", &origin).await;
    ask_tagged(&processes[2], &keys[1], "a tag", &origin).await;
    assert_eq!(origin.calls() - before, 3);
    // Other tags are shared as ever.
    let other = keys_on(&double, THIRD_SHARD).nth(9).unwrap();
    let before = origin.calls();
    for process in &processes {
        ask_tagged(process, &other, "another tag", &origin).await;
    }
    assert_eq!(origin.calls() - before, 1);
    double.heal_shard(LOG);
    pass(2 * SECOND).await;
    for process in &processes {
        assert_eq!(process.health(), Health::Up);
    }
    assert_eq!(processes[0].get(&*keys[0]).await, None, "it has ended everywhere");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_starts_without_the_log_adopts_nothing_that_was_ended_before() {
    let (double, origin) = (Double::sharded(3), Origin::new());
    let old = Process::several(1, &double).await.remove(0);
    let key = key_on(&double, THIRD_SHARD);
    ask(&old, &key, &origin).await;
    assert_eq!(old.invalidate_all().await.remote, Announcement::Done);
    double.freeze_shard(LOG);
    let new = Process::on(&double);
    notice(&new, &double, LOG).await;
    assert_eq!(new.get(&*key).await, None);
    assert_eq!(ask(&new, &key, &origin).await, 2);
    double.heal_shard(LOG);
    pass(5 * SECOND).await;
    assert_eq!(new.health(), Health::Up);
    assert_eq!(ask(&new, &key, &origin).await, ask(&old, &key, &origin).await);
}

#[tokio::test(start_paused = true)]
async fn shards_whose_clocks_differ_date_their_own_values() {
    let (double, origin) = (Double::sharded(3), Origin::new());
    double.set_shard_ahead(SECOND_SHARD, 400 * MS);
    double.set_shard_ahead(THIRD_SHARD, MINUTE);
    let processes = Process::several(2, &double).await;
    for shard in [LOG, SECOND_SHARD, THIRD_SHARD] {
        let key = key_on(&double, shard);
        let began = origin.calls();
        ask(&processes[0], &key, &origin).await;
        let lives_for = MINUTE;
        pass(lives_for - 100 * MS).await;
        ask(&processes[1], &key, &origin).await;
        assert_eq!(origin.calls() - began, 1, "{shard:?}: it is fresh");
        pass(200 * MS).await;
        assert_eq!(processes[1].get(&*key).await, None, "{shard:?}: it is not");
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_stops_and_goes_on_while_its_shards_come_and_go_is_up_again() {
    let (double, origin) = (Double::sharded(3), Origin::new());
    let processes = Process::several(2, &double).await;
    for round in 0..20 {
        let shard = Shard::new(round % 3);
        double.fail_shard(shard, RemoteErrorKind::Connection);
        for key in keys_on(&double, shard).take(5) {
            ask(&processes[0], &key, &origin).await;
            processes[0].invalidate(&*key).await;
            processes[0].invalidate_tag("a tag").await;
        }
        double.heal_shard(shard);
        if round % 4 == 0 {
            pass(700 * MS).await;
        }
    }
    pass(MINUTE).await;
    for process in &processes {
        assert_eq!(process.health(), Health::Up);
        for shard in [LOG, SECOND_SHARD, THIRD_SHARD] {
            for key in keys_on(&double, shard).take(5) {
                assert_eq!(process.get(&*key).await, None);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_on_its_way_to_another_server_costs_no_key_elsewhere() {
    let (double, origin) = (Double::sharded(3), Origin::new());
    let processes = Process::several(2, &double).await;
    double.fail_shard(LOG, RemoteErrorKind::TryAgain);
    pass(5 * SECOND).await;
    for key in keys_on(&double, THIRD_SHARD).take(10) {
        for process in &processes {
            ask(process, &key, &origin).await;
        }
    }
    assert_eq!(origin.calls(), 10, "one for both processes");
    assert_eq!(processes[0].health(), Health::Degraded, "the log cannot be read");
    double.heal_shard(LOG);
    pass(10 * SECOND).await;
    assert_eq!(processes[0].health(), Health::Up);
}
