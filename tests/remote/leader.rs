//! The life of a leader among many processes: it keeps its lease as long as it
//! computes, and however it ends, another process can go on.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower_stampede::remote::{Double, RemoteOp};
use tower_stampede::{Builder, Error, ErrorKind, FailureAction, Mode};

use crate::kit::origin::*;
use crate::kit::remote::*;

#[tokio::test(start_paused = true)]
async fn a_computation_that_is_longer_than_the_lease_keeps_it() {
    let (double, origin) = (Double::new(), Origin::taking(22 * SECOND));
    let processes = Process::several(4, &double).await;
    let callers: Vec<_> = processes.iter().map(|process| process.spawn(&origin)).collect();
    for answer in gather(callers).await {
        assert_eq!(answer.unwrap(), 1);
    }
    assert_eq!(origin.calls(), 1);
    // Every third of five seconds.
    assert_eq!(double.calls(RemoteOp::Renew), 13);
    assert_eq!(double.calls(RemoteOp::Fill), 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_renewed_any_more_once_the_computation_has_ended() {
    let (double, origin) = (Double::new(), Origin::taking(2 * SECOND));
    let one = Process::on(&double);
    one.load(&origin).await;
    origin.next([Answer::Fail]);
    let failing = one.get_or_compute("other", origin.compute()).await;
    assert_eq!(failing.unwrap_err().kind(), ErrorKind::Inner);
    all_have_run().await;
    double.forget_calls();
    pass(MINUTE).await;
    assert_eq!(commands(&double), []);
}

/// How the leader of the first process ends, and how many computations are
/// begun in all.
struct End {
    name: &'static str,
    answer: Answer,
    /// Runs in the caller, which may be dropped.
    scoped: bool,
    dropped: bool,
}

const fn end(name: &'static str, answer: Answer, scoped: bool, dropped: bool) -> End {
    End { name, answer, scoped, dropped }
}

fn without_holds() -> Builder<u64> {
    settings().on_failure(|_| FailureAction::ShareOnly)
}

impl End {
    fn begin(&self, process: &Process, origin: &Origin) -> JoinHandle<Result<u64, Error>> {
        origin.next([self.answer]);
        if self.scoped { process.spawn_scoped(origin) } else { process.spawn(origin) }
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_ends_without_a_value_hands_the_lease_to_one_process_at_once() {
    let ends = [
        end("dropped", Answer::Hang, true, true),
        end("panics", Answer::Panic, false, false),
        end("panics in its caller", Answer::Panic, true, false),
        end("fails", Answer::Fail, false, false),
        end("fails in its caller", Answer::Fail, true, false),
    ];
    for end in ends {
        let (double, origin) = (Double::new(), Origin::taking(100 * MS));
        let processes = Process::several_with(5, &double, without_holds).await;
        let leader = end.begin(&processes[0], &origin);
        all_have_run().await;
        let began = Instant::now();
        let waiters: Vec<_> = processes[1..].iter().map(|other| other.spawn(&origin)).collect();
        pass(50 * MS).await;
        if end.dropped {
            leader.abort();
        }
        for answer in gather(waiters).await {
            assert_eq!(answer.unwrap(), 2, "{}", end.name);
        }
        assert!(began.elapsed() < 210 * MS, "{} took {:?}", end.name, began.elapsed());
        assert_eq!(origin.calls(), 2, "{}", end.name);
        assert_eq!(double.calls(RemoteOp::Abandon), 1, "{}", end.name);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_caller_of_a_detached_computation_leaves_lease_and_result_as_they_are() {
    let (double, origin) = (Double::new(), Origin::taking(100 * MS));
    let processes = Process::several(2, &double).await;
    let leader = processes[0].spawn(&origin);
    all_have_run().await;
    leader.abort();
    assert_eq!(processes[1].load(&origin).await, 1);
    assert_eq!(double.calls(RemoteOp::Abandon), 0);
    assert_eq!(origin.calls(), 1);
}

async fn held_for(process: &Process, origin: &Origin) -> Duration {
    let error = process.get_or_compute("k", origin.compute()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held);
    error.retry_after().expect("says when to come again")
}

#[tokio::test(start_paused = true)]
async fn a_failure_holds_every_process_and_afterwards_one_tries_again() {
    for scoped in [false, true] {
        let (double, origin) = (Double::new(), Origin::taking(100 * MS));
        let processes = Process::several(4, &double).await;
        let leader = end("fails", Answer::Fail, scoped, false).begin(&processes[0], &origin);
        all_have_run().await;
        let waiter = processes[1].spawn(&origin);
        assert_eq!(leader.await.unwrap().unwrap_err().kind(), ErrorKind::Inner);
        // The waiter is told at once, and a caller that comes now as well.
        let told = within(5 * MS, waiter).await.unwrap();
        assert_eq!(told.unwrap_err().kind(), ErrorKind::Held);
        let rest = held_for(&processes[2], &origin).await;
        assert!(rest <= SECOND && rest > 900 * MS, "{rest:?}");
        assert_eq!(origin.calls(), 1);

        pass(rest).await;
        let again: Vec<_> = processes.iter().map(|process| process.spawn(&origin)).collect();
        for answer in gather(again).await {
            assert_eq!(answer.unwrap(), 2);
        }
        assert_eq!(origin.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_process_reads_once_for_a_crowd_and_asks_for_the_lease_once() {
    let (double, origin) = (Double::new(), Origin::new());
    let processes = Process::several(2, &double).await;
    origin.next([Answer::Fail]);
    processes[0].get_or_compute("k", origin.compute()).await.unwrap_err();
    all_have_run().await;
    double.forget_calls();
    held_for(&processes[1], &origin).await;
    assert_eq!(commands(&double), [(RemoteOp::Get, 1), (RemoteOp::Acquire, 1)]);
    // Each crowd looks whether another process has computed a value meanwhile.
    double.forget_calls();
    let crowd: Vec<_> = (0..100).map(|_| processes[1].spawn(&origin)).collect();
    for answer in gather(crowd).await {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Held);
    }
    assert_eq!(commands(&double), [(RemoteOp::Get, 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_computation_past_its_time_out_ends_its_lease_and_holds_every_process() {
    for scoped in [false, true] {
        let (double, origin) = (Double::new(), Origin::new());
        let builder = || settings().compute_timeout(10 * SECOND);
        let processes = Process::several_with(3, &double, builder).await;
        let began = Instant::now();
        let leader = end("hangs", Answer::Hang, scoped, false).begin(&processes[0], &origin);
        all_have_run().await;
        let waiter = processes[1].spawn(&origin);
        assert_eq!(leader.await.unwrap().unwrap_err().kind(), ErrorKind::ComputeTimeout);
        assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Held);
        let rest = held_for(&processes[2], &origin).await;
        assert!(began.elapsed() < 10_010 * MS, "{:?}", began.elapsed());
        pass(rest).await;
        assert_eq!(processes[2].load(&origin).await, 2);
        assert_eq!(origin.dropped(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_second_panic_in_a_row_holds_every_process() {
    let (double, origin) = (Double::new(), Origin::new());
    let processes = Process::several(2, &double).await;
    origin.next([Answer::Panic, Answer::Panic]);
    assert!(processes[0].spawn(&origin).await.unwrap_err().is_panic());
    assert!(processes[0].spawn(&origin).await.unwrap_err().is_panic());
    all_have_run().await;
    held_for(&processes[0], &origin).await;
    held_for(&processes[1], &origin).await;
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_dies_is_succeeded_by_one_after_its_lease() {
    let (double, origin) = (Double::new(), Origin::taking(100 * MS));
    let processes = Process::several(8, &double).await;
    lock_and_die(&double, 5 * SECOND).await;
    let began = Instant::now();
    let callers: Vec<_> = (0..80).map(|i| processes[i % processes.len()].spawn(&origin)).collect();
    for answer in gather(callers).await {
        assert_eq!(answer.unwrap(), 1);
    }
    let took = began.elapsed();
    assert!(5 * SECOND <= took && took < 6300 * MS, "{took:?}");
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lock_of_a_client_of_another_kind_is_waited_for() {
    let (double, origin) = (Double::new(), Origin::taking(100 * MS));
    let one = Process::on(&double);
    assert!(double.lock_as_stranger(&k(), 3 * SECOND));
    let began = Instant::now();
    let waiter = one.spawn(&origin);
    pass(2 * SECOND).await;
    assert!(double.unlock_as_stranger(&k()));
    assert_eq!(waiter.await.unwrap().unwrap(), 1);
    let took = began.elapsed();
    assert!(2 * SECOND <= took && took < 3300 * MS, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_lost_alone_is_taken_again_by_its_renewal() {
    let (double, origin) = (Double::new(), Origin::taking(10 * SECOND));
    let processes = Process::several(2, &double).await;
    let leader = processes[0].spawn(&origin);
    all_have_run().await;
    double.lose(&k(), tower_stampede::remote::Record::Lock);
    pass(2 * SECOND).await;
    let waiter = processes[1].spawn(&origin);
    assert_eq!(leader.await.unwrap().unwrap(), 1);
    assert_eq!(waiter.await.unwrap().unwrap(), 1);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_asked_for_by_name_is_not_held_back_by_the_hold_of_a_failure() {
    let (double, origin) = (Double::new(), Origin::new());
    let processes = Process::several(2, &double).await;
    origin.next([Answer::Fail]);
    assert!(processes[0].get_or_compute("k", origin.compute()).await.is_err());
    all_have_run().await;
    for process in &processes {
        let calls = origin.calls();
        let refreshed = process.refresh("k", origin.compute()).await;
        assert_eq!(refreshed.ok(), Some(calls as u64 + 1));
    }
}

// A leader that has computed nothing, and whose cache was switched off meanwhile, computes for
// itself.
#[tokio::test(start_paused = true)]
async fn a_leader_that_waits_for_another_process_computes_when_its_cache_is_switched_off() {
    for to in [Mode::Observe, Mode::Off] {
        for at in [0, 500, 5000] {
            let double = Double::new();
            let process = Process::with(&double, settings().wait_timeout(20 * SECOND));
            process.prepare(&double).await;
            assert!(double.lock_as_stranger(&k(), MINUTE));
            let origin = Origin::new();
            let caller = process.spawn(&origin);
            pass(at * MS).await;
            process.set_mode(to);
            assert_eq!(within(MINUTE, caller).await.unwrap().unwrap(), 1, "{to:?} after {at} ms");
            assert_eq!(origin.calls(), 1);
        }
    }
}

/// Settings under which a computation has to begin 1 s after its caller came.
fn five_seconds() -> Builder<u64> {
    settings().lease(SECOND).compute_timeout(4 * SECOND).wait_timeout(5 * SECOND)
}

#[tokio::test(start_paused = true)]
async fn a_long_lease_of_a_dead_process_fails_no_request_of_processes_with_a_shorter_one() {
    // The second one may take longer than its caller waits: then it waits for a lease of its own.
    let settings = [five_seconds, || five_seconds().compute_timeout(20 * SECOND)];
    for settings in settings {
        let (double, origin) = (Double::new(), Origin::taking(3 * SECOND));
        let processes = Process::several_with(8, &double, settings).await;
        lock_and_die(&double, MINUTE).await;
        let began = Instant::now();
        let callers = spawn_herd(160, |n| {
            let (process, origin) = (processes[n % 8].clone(), origin.clone());
            async move { process.load(&origin).await }
        });
        gather(callers).await;
        assert!(began.elapsed() <= 4200 * MS, "{:?}", began.elapsed());
        assert!(origin.calls() <= 8, "once in each process: {}", origin.calls());
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_its_holder_prolongs_is_waited_for_however_long() {
    let (double, origin) = (Double::new(), Origin::taking(4 * SECOND));
    let processes = Process::several_with(2, &double, five_seconds).await;
    let first = processes[0].spawn(&origin);
    pass(100 * MS).await;
    assert_eq!(processes[1].load(&origin).await, 1, "renewed each third of a second");
    first.await.unwrap().unwrap();

    processes[0].invalidate("k").await;
    assert!(double.lock_as_stranger(&k(), SECOND));
    let waiting = processes[1].spawn(&origin);
    for _ in 0..12 {
        pass(300 * MS).await;
        double.stretch_lease(&k(), SECOND);
    }
    assert_eq!(origin.calls(), 1, "a client of another kind prolongs its lock");
    assert!(double.unlock_as_stranger(&k()));
    assert_eq!(waiting.await.unwrap().unwrap(), 2);
}
