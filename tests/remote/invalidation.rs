//! Invalidations over many processes: what was computed before them is served
//! to no caller that asks after them.

use std::time::Duration;

use tokio::task::JoinHandle;
use tower_stampede::remote::{Double, RemoteErrorKind, RemoteOp::*};
use tower_stampede::{Announcement, Computed, Error, Mode};

use crate::kit::origin::*;
use crate::kit::remote::*;
use crate::kit::spawn;

#[derive(Clone, Copy, Debug)]
enum How {
    Key,
    Tag,
    All,
    Put,
}

const EVERY: [How; 4] = [How::Key, How::Tag, How::All, How::Put];

impl How {
    async fn invalidate(self, process: &Process) -> Announcement {
        match self {
            Self::Key => process.invalidate("k").await.remote,
            Self::Tag => process.invalidate_tag("t").await.remote,
            Self::All => process.invalidate_all().await.remote,
            Self::Put => {
                process.put("k", 100).await;
                Announcement::Done
            }
        }
    }

    /// What a caller that asks afterwards gets, after `calls` calls.
    fn then(self, calls: u64) -> u64 {
        if matches!(self, Self::Put) { 100 } else { calls }
    }
}

/// Asks for `k` with the tag `t`.
fn ask(process: &Process, origin: &Origin) -> JoinHandle<Result<u64, Error>> {
    let (cache, origin) = (process.cache.clone(), origin.clone());
    let compute = move || async move { origin.load().await.map(|n| Computed::new(n).tag("t")) };
    spawn(async move { cache.get_or_compute_with("k", compute).await })
}

async fn answer(process: &Process, origin: &Origin) -> u64 {
    within(MINUTE, ask(process, origin)).await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_is_stored_is_gone_in_every_process() {
    for how in EVERY {
        let (double, origin) = (Double::new(), Origin::new());
        let processes = Process::several(3, &double).await;
        for process in &processes {
            assert_eq!(answer(process, &origin).await, 1);
            all_have_run().await;
        }
        pass(10 * MS).await;
        assert_eq!(how.invalidate(&processes[1]).await, Announcement::Done, "{how:?}");
        pass(10 * MS).await;
        for process in &processes {
            assert_eq!(answer(process, &origin).await, how.then(2), "{how:?}");
            all_have_run().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_being_computed_here_is_not_served_to_who_asks_afterwards() {
    for how in EVERY {
        let (double, origin) = (Double::new(), Origin::taking(SECOND));
        let processes = Process::several(2, &double).await;
        let early = ask(&processes[0], &origin);
        let waits_elsewhere = ask(&processes[1], &origin);
        pass(500 * MS).await;
        how.invalidate(&processes[0]).await;
        let late = [ask(&processes[0], &origin), ask(&processes[1], &origin)];
        assert_eq!(early.await.unwrap().unwrap(), 1, "who asked before may have it");
        for late in late {
            assert_eq!(late.await.unwrap().unwrap(), how.then(2), "{how:?}");
        }
        assert_ne!(waits_elsewhere.await.unwrap().unwrap(), 0);
        pass(SECOND).await;
        for process in &processes {
            assert_eq!(process.get("k").await, Some(how.then(2)), "{how:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_being_computed_elsewhere_is_not_served_there_once_the_message_is_there() {
    for how in EVERY {
        let (double, origin) = (Double::new(), Origin::taking(SECOND));
        let processes = Process::several(3, &double).await;
        let early = ask(&processes[0], &origin);
        pass(500 * MS).await;
        how.invalidate(&processes[1]).await;
        let late: Vec<_> = processes.iter().map(|process| ask(process, &origin)).collect();
        assert_eq!(early.await.unwrap().unwrap(), 1);
        for late in gather(late).await {
            assert_eq!(late.unwrap(), how.then(2), "{how:?}");
        }
        pass(SECOND).await;
        let fourth = Process::on(&double);
        assert_eq!(answer(&fourth, &origin).await, how.then(2), "{how:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn where_the_message_is_lost_the_old_result_is_still_not_served_by_others() {
    for how in EVERY {
        let (double, origin) = (Double::new(), Origin::taking(SECOND));
        let processes = Process::several(3, &double).await;
        let early = ask(&processes[0], &origin);
        pass(500 * MS).await;
        double.lose_messages(true);
        how.invalidate(&processes[1]).await;
        double.lose_messages(false);
        assert_eq!(early.await.unwrap().unwrap(), 1);
        all_have_run().await;
        // By key it is not stored; by tag it is dead where it is stored.
        assert_eq!(processes[1].get("k").await, (how.then(0) == 100).then_some(100), "{how:?}");
        let fourth = Process::on(&double);
        assert_eq!(fourth.get("k").await, (how.then(0) == 100).then_some(100), "{how:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tag_invalidated_twice_in_one_millisecond_is_invalidated_twice() {
    for how in [How::Tag, How::All] {
        let (double, origin) = (Double::new(), Origin::taking(SECOND));
        let processes = Process::several(2, &double).await;
        how.invalidate(&processes[1]).await;
        let early = ask(&processes[0], &origin);
        while origin.calls() == 0 {
            tokio::task::yield_now().await;
        }
        how.invalidate(&processes[1]).await;
        assert_eq!(early.await.unwrap().unwrap(), 1);
        assert_eq!(answer(&processes[0], &origin).await, 2, "{how:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_adopted_while_an_invalidation_is_on_its_way_is_gone_when_it_is_done() {
    for how in EVERY {
        for lag in [0, 1, 5, 19, 20, 21, 39, 40, 41, 59] {
            let (double, origin) = (Double::new(), Origin::new());
            let processes = Process::several(2, &double).await;
            assert_eq!(answer(&processes[1], &origin).await, 1);
            pass(10 * MS).await;
            // Every reply takes as long as a few of the lags.
            double.delay(20 * MS);
            let one = processes[0].clone();
            let reader = {
                let (one, origin) = (one.clone(), origin.clone());
                spawn(async move {
                    pass(lag * MS).await;
                    one.get("k").await;
                    ask(&one, &origin).await.unwrap().unwrap()
                })
            };
            pass(20 * MS).await;
            how.invalidate(&one).await;
            let after = [one.get("k").await, Some(answer(&one, &origin).await)];
            assert!(!after.contains(&Some(1)), "{how:?} with a lag of {lag}");
            reader.await.unwrap();
            pass(100 * MS).await;
            assert_ne!(one.get("k").await, Some(1), "{how:?} with a lag of {lag}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn own_messages_do_not_come_back() {
    let (double, origin) = (Double::new(), Origin::new());
    let one = Process::on(&double);
    one.prepare(&double).await;
    one.put("k", 5).await;
    pass(10 * MS).await;
    double.forget_calls();
    assert_eq!(one.load(&origin).await, 5);
    assert_eq!(commands(&double), []);
    let mut events = one.events();
    one.invalidate("k").await;
    assert_eq!(one.load(&origin).await, 1);
    all_have_run().await;
    assert_eq!(one.load(&origin).await, 1);
    let mut invalidations = 0;
    while let Ok(event) = events.try_recv() {
        invalidations += usize::from(matches!(event, tower_stampede::Event::Invalidated { .. }));
    }
    assert_eq!(invalidations, 1);
}

#[tokio::test(start_paused = true)]
async fn an_invalidation_is_at_most_two_commands_and_ends_the_lease() {
    for how in EVERY {
        let (double, origin) = (Double::new(), Origin::taking(SECOND));
        let processes = Process::several(2, &double).await;
        let early = ask(&processes[0], &origin);
        all_have_run().await;
        double.forget_calls();
        how.invalidate(&processes[1]).await;
        let first = match how {
            How::Key => Some((Invalidate, 1)),
            How::Tag | How::All => None,
            How::Put => Some((Put, 1)),
        };
        let sent: Vec<_> = first.into_iter().chain([(Announce, 1)]).collect();
        assert_eq!(commands(&double), sent);
        early.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalidation_during_a_computation_costs_one_more_however_many_wait() {
    for how in EVERY {
        let (double, origin) = (Double::new(), Origin::taking(SECOND));
        let processes = Process::several(8, &double).await;
        let mut callers: Vec<_> = processes.iter().map(|process| ask(process, &origin)).collect();
        pass(500 * MS).await;
        how.invalidate(&processes[3]).await;
        callers.extend(processes.iter().map(|process| ask(process, &origin)));
        gather(callers).await.into_iter().for_each(|answer| assert_ne!(answer.unwrap(), 0));
        assert_eq!(origin.calls(), if matches!(how, How::Put) { 1 } else { 2 }, "{how:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_does_not_keep_the_remote_from_being_told() {
    for how in EVERY {
        let (double, origin) = (Double::new(), Origin::new());
        let processes = Process::several(2, &double).await;
        assert_eq!(answer(&processes[1], &origin).await, 1);
        pass(10 * MS).await;
        double.delay(10 * MS);
        {
            let mut telling = Box::pin(how.invalidate(&processes[0]));
            assert!(futures_util::poll!(&mut telling).is_pending());
        }
        pass(50 * MS).await;
        assert_eq!(answer(&processes[1], &origin).await, how.then(2), "{how:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalidation_that_the_remote_executed_and_did_not_confirm_is_told_again() {
    for how in [How::Key, How::Tag, How::All] {
        let (double, origin) = (Double::new(), Origin::new());
        let processes = Process::several(2, &double).await;
        assert_eq!(answer(&processes[0], &origin).await, 1);
        pass(10 * MS).await;
        double.break_replies(&[Invalidate, Announce], RemoteErrorKind::Connection);
        assert_eq!(how.invalidate(&processes[0]).await, Announcement::Queued);
        assert_eq!(answer(&processes[0], &origin).await, 2);
        double.heal(&[Invalidate, Announce]);
        pass(10 * SECOND).await;
        let calls = double.calls(Invalidate) + double.calls(Announce);
        assert!(calls >= 2, "{calls}");
        assert!(answer(&processes[1], &origin).await >= 2);
    }
}

#[tokio::test(start_paused = true)]
async fn an_untagged_value_outlives_the_invalidation_of_a_tag() {
    let (double, origin) = (Double::new(), Origin::new());
    let processes = Process::several(2, &double).await;
    assert_eq!(processes[0].load(&origin).await, 1);
    pass(10 * MS).await;
    processes[0].invalidate_tag("t").await;
    for process in &processes {
        assert_eq!(process.load(&origin).await, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_starts_later_knows_of_earlier_invalidations() {
    for how in [How::Tag, How::All] {
        let (double, origin) = (Double::new(), Origin::taking(SECOND));
        let processes = Process::several(2, &double).await;
        let early = ask(&processes[0], &origin);
        pass(500 * MS).await;
        double.lose_messages(true);
        how.invalidate(&processes[1]).await;
        double.lose_messages(false);
        early.await.unwrap().unwrap();
        pass(10 * MS).await;
        assert_eq!(double.calls(Fill), 1, "stored, and dead");
        let later = Process::on(&double);
        assert_eq!(answer(&later, &origin).await, 2, "{how:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_that_was_lost_is_written_back_by_those_who_know() {
    let (double, origin) = (Double::new(), Origin::new());
    let processes = Process::several(2, &double).await;
    let envelope = {
        answer(&processes[0], &origin).await;
        all_have_run().await;
        use tower_stampede::remote::Remote;
        double.process().get(&k()).await.unwrap().unwrap()
    };
    processes[0].invalidate_tag("t").await;
    double.flush();
    // The tagged record comes back from somewhere: a replica, a backup.
    double.set_raw(&k(), envelope);
    processes[1].client.unsubscribe();
    processes[1].client.subscribe();
    assert_eq!(processes[1].get("k").await, None);
    pass(SECOND).await;
    let third = Process::on(&double);
    assert_eq!(third.get("k").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_put_is_not_undone_by_who_reads_the_old_value_while_it_is_under_way() {
    let (double, origin) = (Double::new(), Origin::new());
    let processes = Process::several(2, &double).await;
    assert_eq!(processes[1].load(&origin).await, 1);
    pass(10 * MS).await;
    double.delay_commands(40 * MS);
    let cache = processes[0].cache.clone();
    let put = spawn(async move { cache.put("k", 100).await });
    pass(10 * MS).await;
    double.delay_commands(std::time::Duration::ZERO);
    // Local copies go, and with them the one of the put.
    processes[0].client.unsubscribe();
    processes[0].client.subscribe();
    assert_eq!(processes[0].get("k").await, Some(100), "it waits until the put is done");
    put.await.unwrap();
    assert_eq!(processes[0].get("k").await, Some(100));
}

const DAY: Duration = Duration::from_secs(24 * 3600);

async fn load_tagged(process: &Process, origin: &Origin, ttl: Duration) -> u64 {
    let origin = origin.clone();
    let compute = move || async move {
        let value = origin.load().await?;
        Ok::<_, OriginError>(Computed::new(value).ttl(ttl).tag("t"))
    };
    process.get_or_compute_with("k", compute).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_invalidated_entry_with_a_long_life_stays_dead_whoever_trims_the_log() {
    let (double, origin) = (Double::new(), Origin::new());
    let long = Process::on(&double);
    assert_eq!(load_tagged(&long, &origin, 30 * DAY).await, 1);
    all_have_run().await;
    long.invalidate_tag("t").await;
    drop(long);
    pass(3 * DAY).await;
    // Knows nothing of entries that live so long.
    let other = Process::on(&double);
    other.prepare(&double).await;
    pass(2 * 60 * MINUTE).await;
    drop(other);
    let new = Process::on(&double);
    assert_eq!(load_tagged(&new, &origin, 30 * DAY).await, 2, "what was invalidated is back");
}

#[tokio::test(start_paused = true)]
async fn what_is_stored_while_observing_ends_with_an_invalidation_elsewhere() {
    for how in EVERY {
        let double = Double::new();
        let [observing, other] = [(); 2].map(|()| Process::on(&double));
        observing.set_mode(Mode::Observe);
        let compute = || async { Ok::<_, OriginError>(Computed::new(1).tag("t")) };
        observing.get_or_compute_with("k", compute).await.unwrap();
        pass(SECOND).await;
        // It has subscribed since, and may have missed a message before.
        observing.get_or_compute_with("k", compute).await.unwrap();
        how.invalidate(&other).await;
        pass(SECOND).await;
        observing.set_mode(Mode::On);
        let found = observing.get("k").await;
        assert_eq!(found, matches!(how, How::Put).then_some(100), "{how:?}");
        assert!(commands(&double).iter().all(|(op, _)| *op != Acquire), "{how:?}");
    }
}

// ---- without `await` ----

#[tokio::test(start_paused = true)]
async fn an_invalidation_or_put_without_await_reaches_the_other_processes() {
    for outside_of_a_runtime in [false, true] {
        let double = Double::new();
        let processes = Process::several(2, &double).await;
        let run = |work: &(dyn Fn(&Process) + Sync)| match outside_of_a_runtime {
            false => work(&processes[0]),
            true => std::thread::scope(|threads| {
                threads.spawn(|| work(&processes[0]));
            }),
        };
        for key in ["invalidated", "tagged", "put"] {
            processes[0].put_with(key, Computed::new(1).tag(("tag of", key))).await;
            assert_eq!(processes[1].get(key).await, Some(1));
        }
        run(&|process| {
            process.invalidate_now("invalidated");
            process.invalidate_tags_now([("tag of", "tagged")]);
            process.put_now("put", 2);
        });
        assert_eq!(processes[0].get("put").await, Some(2), "here at once");
        pass(5 * SECOND).await;
        assert_eq!(processes[1].get("invalidated").await, None);
        assert_eq!(processes[1].get("tagged").await, None);
        let other = processes[1].get("put").await;
        assert_eq!(other, Some(2), "outside of a runtime: {outside_of_a_runtime}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_lacks_the_invalidation_is_not_believed() {
    let (double, origin) = (Double::new(), Origin::new());
    let old = Process::on(&double);
    assert_eq!(answer(&old, &origin).await, 1);
    // The log is read by its own announcement: what it knows of older entries, it must ask.
    let new = Process::on(&double);
    assert_eq!(new.invalidate_tag("t").await.remote, Announcement::Done);
    double.fail_over_log(1);
    assert_eq!(new.get("k").await, None);
    assert_eq!(answer(&new, &origin).await, 2);
    pass(5 * SECOND).await;
    assert_eq!(answer(&old, &origin).await, answer(&new, &origin).await);
}

#[tokio::test(start_paused = true)]
async fn after_a_broken_connection_the_log_is_checked_before_it_judges() {
    let (double, origin) = (Double::new(), Origin::new());
    let old = Process::on(&double);
    assert_eq!(answer(&old, &origin).await, 1);
    let new = Process::on(&double);
    new.invalidate_tag("another tag").await;
    double.lose_messages(true);
    assert_eq!(old.invalidate_tag("t").await.remote, Announcement::Done);
    // The server that takes over has not heard of it, and the connection to the old one ends.
    double.fail_over_log(1);
    double.fail(&[Get], RemoteErrorKind::Connection);
    pass(MS).await;
    assert_eq!(new.get("something else").await, None);
    double.heal(&[Get]);
    assert_eq!(new.get("k").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_keeps_the_tags_of_an_entry_that_only_the_remote_has() {
    for in_background in [false, true] {
        let double = Double::new();
        let builder = || settings().stale_for(10 * MINUTE);
        let [other, process] = [(); 2].map(|()| Process::with(&double, builder()));
        process.prepare(&double).await;
        other.put_with("k", Computed::new(1000).tag("t")).await;
        let origin = Origin::new();
        if in_background {
            pass(MINUTE + SECOND).await;
            assert_eq!(process.load(&origin).await, 1000);
            all_have_run().await;
        } else {
            assert_eq!(process.refresh("k", origin.compute()).await.unwrap(), 1);
        }
        all_have_run().await;
        assert_eq!(process.get("k").await, Some(1));
        other.invalidate_tag("t").await;
        pass(SECOND).await;
        assert_eq!(process.get("k").await, None, "in the background: {in_background}");
    }
}
