//! What happens while a remote is away is made good when it is back, and
//! coming back is no herd.

use std::time::Duration;

use tower_stampede::remote::{Double, RemoteErrorKind, RemoteOp, RemoteSettings};
use tower_stampede::{Announcement, Computed, Health};

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
    async fn invalidate(self, process: &Process) {
        let told = match self {
            Self::Key => process.invalidate("k").await.remote,
            Self::Tag => process.invalidate_tag("t").await.remote,
            Self::All => process.invalidate_all().await.remote,
            Self::Put => {
                process.put("k", 100).await;
                Announcement::Queued
            }
        };
        assert_ne!(told, Announcement::NoRemote);
    }
}

async fn ask(process: &Process, origin: &Origin) -> u64 {
    let origin = origin.clone();
    let compute = move || async move { origin.load().await.map(|n| Computed::new(n).tag("t")) };
    process.get_or_compute_with("k", compute).await.unwrap()
}

/// Ways for a remote to go away, and how it comes back.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    Frozen,
    Refusing,
    /// It does what it is told, and no process gets a reply.
    Mute,
    /// Invalidations alone fail: the breaker is closed by everything else.
    DeafToInvalidations,
    /// The same, executed.
    MuteOnInvalidations,
}

const TROUBLES: [Trouble; 5] = [
    Trouble::Frozen,
    Trouble::Refusing,
    Trouble::Mute,
    Trouble::DeafToInvalidations,
    Trouble::MuteOnInvalidations,
];

const TELLING: [RemoteOp; 3] = [RemoteOp::Invalidate, RemoteOp::Announce, RemoteOp::Put];

impl Trouble {
    fn begin(self, double: &Double) {
        match self {
            Self::Frozen => double.freeze(),
            Self::Refusing => double.fail(RemoteOp::ALL, RemoteErrorKind::Connection),
            Self::Mute => double.lose_replies(RemoteOp::ALL),
            Self::DeafToInvalidations => double.fail(&TELLING, RemoteErrorKind::Connection),
            Self::MuteOnInvalidations => double.lose_replies(&TELLING),
        }
    }

    fn end(self, double: &Double) {
        match self {
            Self::Frozen => double.thaw(),
            _ => double.heal(RemoteOp::ALL),
        }
    }
}

/// Looks into `process` every few milliseconds, by both ways there are.
fn watch(process: &Process, origin: &Origin) -> tokio::task::JoinHandle<()> {
    let (one, origin) = (process.clone(), origin.clone());
    spawn(async move {
        for round in 0..3000 {
            let seen =
                if round % 2 == 0 { one.get("k").await } else { Some(ask(&one, &origin).await) };
            assert_ne!(seen, Some(1), "the old value is back in round {round}");
            pass(3 * MS).await;
        }
    })
}

#[tokio::test(start_paused = true)]
async fn an_invalidation_while_the_remote_is_away_is_never_undone_in_its_process() {
    for trouble in TROUBLES {
        for how in EVERY {
            for breaker_is_open in [false, true] {
                let (double, origin) = (Double::new(), Origin::taking(2 * MS));
                let processes = Process::several(3, &double).await;
                for process in &processes {
                    assert_eq!(ask(process, &origin).await, 1);
                    pass(10 * MS).await;
                }
                trouble.begin(&double);
                if breaker_is_open {
                    for key in 0..5_u64 {
                        processes[0].get_or_compute(key, Origin::new().compute()).await.unwrap();
                    }
                }
                how.invalidate(&processes[0]).await;
                let watched = watch(&processes[0], &origin);
                pass(2 * SECOND).await;
                trouble.end(&double);
                pass(8 * SECOND).await;
                // By now the remote is told, and no process has the old value any more.
                for process in &processes {
                    let answer = ask(process, &origin).await;
                    assert_ne!(answer, 1, "{trouble:?} {how:?} {breaker_is_open}");
                    assert_eq!(process.health(), Health::Up);
                }
                within(MINUTE, watched).await.unwrap();
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_under_way_does_not_bring_the_old_value_back_whenever_it_began() {
    for trouble in TROUBLES {
        for how in EVERY {
            // The invalidation begins at 50 ms and gives up at 150 ms.
            for began in (0..170).step_by(10) {
                let (double, origin) = (Double::new(), Origin::new());
                let processes = Process::several(2, &double).await;
                assert_eq!(ask(&processes[1], &origin).await, 1);
                pass(10 * MS).await;
                double.delay(30 * MS);
                let reader = {
                    let (one, origin) = (processes[0].clone(), origin.clone());
                    spawn(async move {
                        pass(Duration::from_millis(began)).await;
                        one.get("k").await;
                        ask(&one, &origin).await;
                    })
                };
                pass(50 * MS).await;
                trouble.begin(&double);
                how.invalidate(&processes[0]).await;
                let what = format!("{trouble:?} {how:?} {began}");
                assert_ne!(processes[0].get("k").await, Some(1), "{what}");
                trouble.end(&double);
                reader.await.unwrap();
                for _ in 0..40 {
                    assert_ne!(processes[0].get("k").await, Some(1), "{what}");
                    pass(5 * MS).await;
                }
                assert_ne!(ask(&processes[0], &origin).await, 1, "{what}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_fill_under_way_does_not_bring_the_old_value_back() {
    for trouble in TROUBLES {
        for how in EVERY {
            for invalidated_at in (0..120).step_by(10) {
                let (double, origin) = (Double::new(), Origin::taking(60 * MS));
                let processes = Process::several(2, &double).await;
                double.delay_commands(15 * MS);
                let leader = {
                    let (one, origin) = (processes[0].clone(), origin.clone());
                    spawn(async move { ask(&one, &origin).await })
                };
                pass(Duration::from_millis(invalidated_at)).await;
                let is_computing = origin.calls() == 1;
                trouble.begin(&double);
                how.invalidate(&processes[0]).await;
                let what = format!("{trouble:?} {how:?} {invalidated_at}");
                let old = is_computing.then_some(1);
                let is_old = |seen: Option<u64>| seen.is_some() && seen == old;
                assert!(!is_old(processes[0].get("k").await), "{what}");
                trouble.end(&double);
                leader.await.unwrap();
                for _ in 0..100 {
                    assert!(!is_old(processes[0].get("k").await), "{what}");
                    pass(20 * MS).await;
                }
                pass(6 * SECOND).await;
                for process in &processes {
                    assert!(!is_old(Some(ask(process, &origin).await)), "{what}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalidation_while_the_remote_is_away_is_queued_and_told_when_it_is_back() {
    let (double, origin) = (Double::new(), Origin::new());
    let processes = Process::several(2, &double).await;
    for process in &processes {
        assert_eq!(ask(process, &origin).await, 1);
        pass(10 * MS).await;
    }
    double.fail(RemoteOp::ALL, RemoteErrorKind::Connection);
    assert_eq!(processes[0].invalidate("k").await.remote, Announcement::Queued);
    assert_eq!(processes[0].invalidate_tag("t").await.remote, Announcement::Queued);
    assert_eq!(processes[0].invalidate_all().await.remote, Announcement::Queued);
    assert_eq!(ask(&processes[1], &origin).await, 1, "nobody could tell it");
    double.heal(RemoteOp::ALL);
    pass(6 * SECOND).await;
    assert_ne!(ask(&processes[1], &origin).await, 1);
    assert_eq!(processes[0].invalidate("k").await.remote, Announcement::Done);
}

#[tokio::test(start_paused = true)]
async fn more_invalidations_than_the_journal_holds_become_one_of_everything() {
    let (double, origin) = (Double::new(), Origin::new());
    let small = RemoteSettings::new().max_journal(10);
    let one = Process::with_remote(&double, settings(), small);
    let other = Process::on(&double);
    one.prepare(&double).await;
    assert_eq!(other.load(&origin).await, 1);
    pass(10 * MS).await;
    double.fail(RemoteOp::ALL, RemoteErrorKind::Connection);
    for n in 0..100_u64 {
        one.invalidate(n).await;
    }
    double.heal(RemoteOp::ALL);
    double.forget_calls();
    pass(6 * SECOND).await;
    assert_eq!(double.calls(RemoteOp::Invalidate), 0);
    assert_eq!(double.calls(RemoteOp::Announce), 1);
    // Not asked for by its name.
    assert_eq!(other.load(&origin).await, 2);
}

#[tokio::test(start_paused = true)]
async fn coming_back_from_an_outage_is_no_herd() {
    for outage in ["frozen", "restarted empty"] {
        let (double, origin) = (Double::new(), Origin::taking(10 * MS));
        let processes = Process::several(16, &double).await;
        for process in &processes {
            process.load(&origin).await;
            pass(10 * MS).await;
        }
        assert_eq!(origin.calls(), 1);
        double.fail(RemoteOp::ALL, RemoteErrorKind::Connection);
        processes.iter().for_each(|process| process.client.unsubscribe());
        for process in &processes {
            for key in 0..5_u64 {
                process.get_or_compute(key, Origin::new().compute()).await.unwrap();
            }
        }
        pass(3 * SECOND).await;
        if outage == "restarted empty" {
            double.flush();
        }
        // Subscribers are back first, and the server is still slow.
        processes.iter().for_each(|process| process.client.subscribe());
        for round in 0..20 {
            if round == 10 {
                double.heal(RemoteOp::ALL);
                double.delay(20 * MS);
            }
            for process in &processes {
                assert_eq!(process.load(&origin).await, 1, "served while the remote is away");
            }
            if round < 10 {
                pass(100 * MS).await;
            }
        }
        let before = origin.calls();
        for _ in 0..80 {
            let callers: Vec<_> = processes.iter().map(|process| process.spawn(&origin)).collect();
            gather(callers).await.into_iter().for_each(|answer| assert!(answer.is_ok()));
            pass(100 * MS).await;
        }
        assert_eq!(before, 1);
        let again = usize::from(outage == "restarted empty");
        assert!(origin.calls() <= 1 + again, "{outage}: {} calls", origin.calls());
    }
}

#[tokio::test(start_paused = true)]
async fn without_messages_a_local_copy_is_used_no_longer_than_its_time() {
    let (double, origin) = (Double::new(), Origin::new());
    let processes = Process::several(2, &double).await;
    for process in &processes {
        assert_eq!(process.load(&origin).await, 1);
        pass(10 * MS).await;
    }
    processes[1].client.unsubscribe();
    pass(10 * MS).await;
    assert_eq!(processes[1].health(), Health::Degraded);
    processes[0].invalidate("k").await;
    assert_eq!(processes[0].load(&origin).await, 2);
    pass(1100 * MS).await;
    assert_eq!(processes[1].load(&origin).await, 2);
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_messages_tags_are_read_again() {
    let (double, origin) = (Double::new(), Origin::new());
    let processes = Process::several(2, &double).await;
    for process in &processes {
        assert_eq!(ask(process, &origin).await, 1);
        pass(10 * MS).await;
    }
    processes[1].client.unsubscribe();
    pass(10 * MS).await;
    processes[0].invalidate_tag("t").await;
    pass(1100 * MS).await;
    // What stands in the remote is dead, and it has to know that.
    assert_eq!(ask(&processes[1], &origin).await, 2);
}

#[tokio::test(start_paused = true)]
async fn what_was_invalidated_while_nobody_listened_is_gone_after_a_new_subscription() {
    for op in ["key", "tag"] {
        let (double, origin) = (Double::new(), Origin::new());
        let processes = Process::several(2, &double).await;
        for process in &processes {
            assert_eq!(ask(process, &origin).await, 1);
            pass(10 * MS).await;
        }
        processes[1].client.unsubscribe();
        if op == "key" {
            processes[0].invalidate("k").await;
        } else {
            processes[0].invalidate_tag("t").await;
        }
        pass(10 * MS).await;
        assert_eq!(ask(&processes[1], &origin).await, 1, "it cannot know");
        processes[1].client.subscribe();
        assert_eq!(ask(&processes[1], &origin).await, 2, "{op}");
        assert_eq!(processes[1].health(), Health::Up);
    }
}

#[tokio::test(start_paused = true)]
async fn a_computation_over_a_gap_in_the_messages_is_not_kept_if_it_was_invalidated_in_it() {
    let (double, origin) = (Double::new(), Origin::taking(SECOND));
    let processes = Process::several(2, &double).await;
    let leader = processes[1].spawn(&origin);
    pass(100 * MS).await;
    processes[1].client.unsubscribe();
    processes[0].invalidate("k").await;
    processes[1].client.subscribe();
    assert_eq!(leader.await.unwrap().unwrap(), 1);
    all_have_run().await;
    assert_eq!(processes[1].get("k").await, None);
    assert_eq!(processes[0].load(&origin).await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_computation_over_a_lost_part_of_the_log_is_not_kept_if_it_was_invalidated_in_it() {
    for how in [How::Tag, How::All] {
        let (double, origin) = (Double::new(), Origin::taking(SECOND));
        let processes = Process::several(2, &double).await;
        let (leader, counted) = (processes[1].clone(), origin.clone());
        let leader = spawn(async move { ask(&leader, &counted).await });
        pass(100 * MS).await;
        processes[1].client.unsubscribe();
        processes[0].invalidate("another key").await;
        how.invalidate(&processes[0]).await;
        // What was said of keys can be read no more: this process learns that it has missed something.
        double.lose_key_log();
        processes[1].client.subscribe();
        assert_eq!(leader.await.unwrap(), 1, "it came before");
        all_have_run().await;
        assert_eq!(processes[1].get("k").await, None, "{how:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalidation_in_the_very_moment_of_recovery_is_told_before_anybody_asks() {
    for moment in (0..200).step_by(4) {
        let (double, origin) = (Double::new(), Origin::new());
        let processes = Process::several(2, &double).await;
        assert_eq!(processes[1].load(&origin).await, 1);
        pass(10 * MS).await;
        double.fail(RemoteOp::ALL, RemoteErrorKind::Connection);
        processes[0].invalidate("another key").await;
        pass(SECOND).await;
        double.heal(RemoteOp::ALL);
        double.delay(20 * MS);
        double.forget_calls();
        while double.calls(RemoteOp::Invalidate) == 0 {
            pass(MS).await;
        }
        pass(Duration::from_millis(moment)).await;
        processes[0].invalidate("k").await;
        for _ in 0..100 {
            assert_eq!(processes[0].get("k").await, None, "at {moment} ms");
            pass(2 * MS).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_invalidates_all_the_time_comes_back_to_the_remote() {
    let double = Double::new();
    double.delay(2 * MS);
    let one = Process::on(&double);
    one.prepare(&double).await;
    double.fail(RemoteOp::ALL, RemoteErrorKind::Unavailable);
    let busy = one.clone();
    let invalidating = spawn(async move {
        for n in 0_u64.. {
            busy.invalidate(n).await;
            pass(4 * MS).await;
        }
    });
    pass(SECOND).await;
    assert_eq!(one.health(), Health::Degraded);
    double.heal(RemoteOp::ALL);
    let back = async {
        while one.health() != Health::Up {
            all_have_run().await;
        }
    };
    within(10 * SECOND, back).await;
    invalidating.abort();
}

#[tokio::test(start_paused = true)]
async fn a_process_that_only_puts_makes_up_for_an_outage_as_well() {
    let (double, origin) = (Double::new(), Origin::new());
    let writer = Process::on(&double);
    writer.put("k", 7).await;
    double.fail(RemoteOp::ALL, RemoteErrorKind::Unavailable);
    writer.put("k", 8).await;
    double.heal(RemoteOp::ALL);
    pass(10 * SECOND).await;
    let reader = Process::on(&double);
    assert_ne!(reader.get_or_compute("k", origin.compute()).await.unwrap(), 7);
    assert_eq!(writer.health(), Health::Up);
}
