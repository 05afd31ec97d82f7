//! Every await of a leader among many processes is a place to die, or to hang:
//! which process frees the lease then, and which one wakes the waiters?

use std::time::Duration;

use tokio::runtime::Builder as Runtime;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower_stampede::remote::{Double, RemoteErrorKind, RemoteOp, RemoteSettings};
use tower_stampede::{Error, ErrorKind};

use crate::kit::origin::*;
use crate::kit::remote::*;
use crate::kit::spawn;

type Asking = JoinHandle<Result<u64, Error>>;

/// What happens to the command that the leader waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    /// Executed; the reply is lost.
    Executed,
    /// Executed once the server goes on.
    Late,
}

/// What happens to the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leader {
    Dropped,
    /// Left alone with a remote that says nothing.
    Hung,
}

struct Scene {
    double: Double,
    origin: Origin,
    processes: Vec<Process>,
    leader: Asking,
    /// Wait in the leader's own process.
    locals: Vec<Asking>,
}

impl Scene {
    /// Brings a leader to where it waits for `op`.
    async fn set(op: RemoteOp, command: Command) -> Self {
        let (double, origin) = (Double::new(), Origin::taking(20 * MS));
        let processes: Vec<_> = (0..3).map(|_| Process::on(&double)).collect();
        let has_prepared = !matches!(op, RemoteOp::Probe | RemoteOp::ReadLog);
        for process in &processes[usize::from(!has_prepared)..] {
            process.prepare(&double).await;
        }
        if command == Command::Executed {
            double.lose_replies(&[op]);
        } else if !matches!(op, RemoteOp::Acquire | RemoteOp::ReadLog) {
            double.freeze();
        } else {
            // The command before is executed at once and answered later.
            double.delay(5 * MS);
        }
        double.forget_calls();
        let leader = processes[0].spawn_scoped(&origin);
        pass(3 * MS).await;
        double.delay(Duration::ZERO);
        if command == Command::Late {
            double.freeze();
        }
        pass(7 * MS).await;
        assert_eq!(double.calls(op), 1, "{op:?} {command:?}");
        assert_eq!(origin.calls(), 0, "{op:?} {command:?}");
        let locals = (0..3).map(|_| processes[0].spawn_scoped(&origin)).collect();
        pass(MS).await;
        Self { double, origin, processes, leader, locals }
    }

    fn goes_on(&self) {
        self.double.heal(RemoteOp::ALL);
        self.double.thaw();
    }

    /// Lets other processes ask, and waits for every caller.
    async fn ends(self, most_calls: usize, what: &str) {
        let began = Instant::now();
        let others: Vec<_> = self.processes.iter().map(|one| one.spawn(&self.origin)).collect();
        for answer in gather(others).await.into_iter().chain(gather(self.locals).await) {
            assert!(answer.unwrap() <= most_calls as u64, "{what}");
        }
        let took = began.elapsed();
        // A lease is a minute long. A remote that has not answered yet may be slow.
        assert!(took < 500 * MS, "{what}: no caller waits for a lease, {took:?}");
        let calls = self.origin.calls();
        assert!(calls <= most_calls, "{what}: {calls} calls");
        pass(SECOND).await;
        self.processes.iter().for_each(|process| assert_quiet(&process.cache));
        let free = self.processes[0].refresh("k", self.origin.compute());
        within(50 * MS, free).await.expect("the lease is free");
    }
}

async fn play(op: RemoteOp, leader: Leader) {
    for command in [Command::Executed, Command::Late] {
        let what = format!("{op:?} {command:?} {leader:?}");
        let scene = Scene::set(op, command).await;
        match leader {
            Leader::Dropped => {
                scene.leader.abort();
                scene.goes_on();
                scene.ends(1, &what).await;
            }
            Leader::Hung => {
                pass(500 * MS).await;
                assert!(scene.leader.is_finished(), "{what}: it goes on without the remote");
                scene.goes_on();
                scene.ends(3, &what).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_dropped_while_it_asks_for_the_time() {
    play(RemoteOp::Probe, Leader::Dropped).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_hung_while_it_asks_for_the_time() {
    play(RemoteOp::Probe, Leader::Hung).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_dropped_while_it_reads_the_log() {
    play(RemoteOp::ReadLog, Leader::Dropped).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_hung_while_it_reads_the_log() {
    play(RemoteOp::ReadLog, Leader::Hung).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_dropped_while_it_gets() {
    play(RemoteOp::Get, Leader::Dropped).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_hung_while_it_gets() {
    play(RemoteOp::Get, Leader::Hung).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_dropped_while_it_acquires() {
    play(RemoteOp::Acquire, Leader::Dropped).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_hung_while_it_acquires() {
    play(RemoteOp::Acquire, Leader::Hung).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_may_have_been_granted_is_given_up_also_when_the_breaker_is_open_by_it() {
    let (double, origin) = (Double::new(), Origin::taking(20 * MS));
    let impatient = RemoteSettings::new().breaker_failures(1);
    let one = Process::with_remote(&double, settings(), impatient);
    let other = Process::on(&double);
    one.prepare(&double).await;
    double.lose_replies(&[RemoteOp::Acquire]);
    double.fail(&[RemoteOp::Probe], RemoteErrorKind::Connection);
    assert_eq!(one.load(&origin).await, 1);
    double.heal(RemoteOp::ALL);
    assert_eq!(within(30 * MS, other.load(&origin)).await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_leader_dropped_while_it_waits_for_a_place() {
    let (double, origin) = (Double::new(), Origin::taking(20 * MS));
    let one = Process::with(&double, settings().max_computations(1).max_refreshes(1));
    let other = Process::on(&double);
    one.prepare(&double).await;
    let busy = Origin::taking(SECOND);
    let first = {
        let (one, compute) = (one.clone(), busy.compute());
        spawn(async move { one.get_or_compute("another key", compute).await })
    };
    all_have_run().await;
    let leader = one.spawn_scoped(&origin);
    let local = one.spawn_scoped(&origin);
    pass(100 * MS).await;
    leader.abort();
    // It had no lease yet: another process is not kept waiting.
    assert_eq!(within(30 * MS, other.load(&origin)).await, 1);
    first.await.unwrap().unwrap();
    assert_eq!(local.await.unwrap().unwrap(), 1);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_leader_dropped_while_it_waits_for_another_process() {
    let (double, origin) = (Double::new(), Origin::taking(SECOND));
    let processes = Process::several(2, &double).await;
    let elsewhere = processes[1].spawn(&origin);
    all_have_run().await;
    let leader = processes[0].spawn_scoped(&origin);
    all_have_run().await;
    let locals: Vec<_> = (0..3).map(|_| processes[0].spawn_scoped(&origin)).collect();
    pass(100 * MS).await;
    leader.abort();
    for answer in within(950 * MS, gather(locals)).await {
        assert_eq!(answer.unwrap(), 1);
    }
    elsewhere.await.unwrap().unwrap();
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_leader_dropped_while_it_waits_where_another_process_dies() {
    let (double, origin) = (Double::new(), Origin::new());
    let processes = Process::several(2, &double).await;
    lock_and_die(&double, 5 * SECOND).await;
    let leader = processes[0].spawn_scoped(&origin);
    all_have_run().await;
    let locals: Vec<_> = (0..3).map(|_| processes[0].spawn_scoped(&origin)).collect();
    pass(100 * MS).await;
    leader.abort();
    for answer in within(6200 * MS, gather(locals)).await {
        assert_eq!(answer.unwrap(), 1);
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_caller_dropped_at_any_moment_leaves_no_lease_behind() {
    let ways: [fn(&Process, &Origin) -> Asking; 2] = [Process::spawn, Process::spawn_scoped];
    for way in ways {
        for moment in 0..60 {
            let (double, origin) = (Double::new(), Origin::taking(10 * MS));
            let processes = Process::several(2, &double).await;
            double.delay_commands(4 * MS);
            double.delay(4 * MS);
            let caller = way(&processes[0], &origin);
            pass(Duration::from_millis(moment)).await;
            caller.abort();
            let other = within(200 * MS, processes[1].load(&origin)).await;
            assert!(other <= 2, "dropped after {moment} ms");
            assert!(origin.calls() <= 2, "dropped after {moment} ms");
            pass(SECOND).await;
            processes.iter().for_each(|process| assert_quiet(&process.cache));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_get_dropped_at_any_moment_hands_on_to_those_who_joined_it() {
    for moment in 0..20 {
        let (double, origin) = (Double::new(), Origin::new());
        let one = Process::on(&double);
        one.prepare(&double).await;
        double.delay(10 * MS);
        let cache = one.cache.clone();
        let get = spawn(async move { cache.get("k").await });
        all_have_run().await;
        let joined = one.spawn(&origin);
        pass(Duration::from_millis(moment)).await;
        get.abort();
        assert_eq!(within(100 * MS, joined).await.unwrap().unwrap(), 1);
        pass(100 * MS).await;
        assert_quiet(&one.cache);
        assert_eq!(one.stats().failures, 0, "a look-up is no computation");
    }
}

#[tokio::test(start_paused = true)]
async fn a_get_that_hangs_keeps_those_who_joined_it_for_a_time_out() {
    let (double, origin) = (Double::new(), Origin::new());
    let one = Process::on(&double);
    one.prepare(&double).await;
    double.freeze();
    let cache = one.cache.clone();
    let get = spawn(async move { cache.get("k").await });
    all_have_run().await;
    // One time-out of the get and one of its own.
    assert_eq!(within(205 * MS, one.load(&origin)).await, 1);
    assert_eq!(get.await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_held_while_the_last_handle_goes_is_used_to_its_end() {
    let (double, origin) = (Double::new(), Origin::taking(SECOND));
    let processes = Process::several(2, &double).await;
    let other = processes[1].clone();
    let caller = processes[0].spawn(&origin);
    all_have_run().await;
    caller.abort();
    drop(processes);
    assert_eq!(other.load(&origin).await, 1);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_gives_up_leases_before_it_returns() {
    let (double, origin) = (Double::new(), Origin::taking(20 * MS));
    let processes = Process::several(2, &double).await;
    origin.next([Answer::Hang]);
    let leader = processes[0].spawn(&origin);
    all_have_run().await;
    double.delay(10 * MS);
    assert_eq!(processes[0].shutdown(100 * MS).await, 1);
    assert_eq!(double.calls(RemoteOp::Abandon), 1);
    double.delay(Duration::ZERO);
    assert_eq!(within(30 * MS, processes[1].load(&origin)).await, 2);
    assert_eq!(leader.await.unwrap().unwrap_err().kind(), ErrorKind::ShutDown);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_fills_and_for_what_is_told_and_not_for_a_frozen_remote() {
    let (double, origin) = (Double::new(), Origin::new());
    let processes = Process::several(2, &double).await;
    double.delay_commands(30 * MS);
    assert_eq!(processes[0].load(&origin).await, 1);
    assert_eq!(processes[0].shutdown(SECOND).await, 0);
    double.delay_commands(Duration::ZERO);
    assert_eq!(processes[1].get("k").await, Some(1));

    origin.next([Answer::Hang]);
    let cache = processes[1].cache.clone();
    let compute = origin.compute();
    let caller = spawn(async move { cache.get_or_compute("other", compute).await });
    all_have_run().await;
    double.freeze();
    let began = Instant::now();
    processes[1].shutdown(50 * MS).await;
    assert!(began.elapsed() < 160 * MS, "{:?}", began.elapsed());
    assert!(caller.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_the_wait_for_another_process() {
    let (double, origin) = (Double::new(), Origin::new());
    let one = Process::on(&double);
    lock_and_die(&double, MINUTE).await;
    let waiter = one.spawn(&origin);
    all_have_run().await;
    within(200 * MS, one.shutdown(100 * MS)).await;
    assert_eq!(within(MS, waiter).await.unwrap().unwrap_err().kind(), ErrorKind::ShutDown);
}

/// In real time: a runtime ends, and takes its leader with it.
#[test]
fn a_cache_goes_on_on_another_runtime_when_the_leases_of_the_first_have_ended() {
    let (double, origin) = (Double::new(), Origin::new());
    let lease = Duration::from_millis(300);
    let quick = RemoteSettings::new().op_timeout(50 * MS);
    let one = Process::with_remote(&double, settings().lease(lease), quick);
    origin.next([Answer::Hang]);
    let first = Runtime::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    first.block_on(async {
        let _leader = one.spawn(&origin);
        while origin.calls() == 0 {
            tokio::task::yield_now().await;
        }
    });
    drop(first);
    let second = Runtime::new_current_thread().enable_all().build().unwrap();
    assert_eq!(second.block_on(one.load(&origin)), 2);
    second.block_on(async {
        one.invalidate("k").await;
        assert_eq!(one.load(&origin).await, 3);
    });
    assert_quiet(&one.cache);
}
