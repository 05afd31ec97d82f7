//! Stale values over many processes: served at once, refreshed once.

use tokio::time::Instant;
use tower_stampede::remote::{Double, RemoteErrorKind, RemoteOp::*};
use tower_stampede::{Builder, CacheOutcome, ErrorKind, Stampede};

use crate::kit::origin::*;
use crate::kit::remote::*;

fn stale() -> Builder<u64> {
    settings().stale_for(10 * MINUTE)
}

fn stale_if_error() -> Builder<u64> {
    settings().stale_if_error(10 * MINUTE)
}

/// A remote with a value that is a little older than its `ttl`, and `n`
/// processes that have nothing.
async fn with_old_value(n: usize, builder: fn() -> Builder<u64>) -> (Double, Vec<Process>) {
    let double = Double::new();
    let first = Process::with(&double, builder());
    first.load(&Origin::new()).await;
    all_have_run().await;
    drop(first);
    pass(MINUTE + SECOND).await;
    let processes = Process::several_with(n, &double, builder).await;
    (double, processes)
}

/// An origin whose first call is the second of the key.
async fn second_call(time: std::time::Duration) -> Origin {
    let origin = Origin::taking(time);
    drop(origin.load());
    origin
}

#[tokio::test(start_paused = true)]
async fn a_process_with_nothing_serves_the_remotes_stale_value_at_once_and_one_refreshes() {
    let (double, processes) = with_old_value(8, stale).await;
    let origin = second_call(SECOND).await;
    let began = Instant::now();
    let answers = herd(8 * 50, |i| {
        let (one, origin) = (processes[i % 8].clone(), origin.clone());
        async move { one.load(&origin).await }
    });
    assert!(answers.await.iter().all(|answer| *answer == 1));
    assert_eq!(began.elapsed(), std::time::Duration::ZERO);
    pass(2 * SECOND).await;
    assert_eq!(origin.calls(), 2);
    assert_eq!(double.calls(Fill), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_by_another_process_is_taken_over_and_not_computed_again() {
    let (double, processes) = with_old_value(3, stale).await;
    let origin = second_call(SECOND).await;
    for process in &processes {
        assert_eq!(process.load(&origin).await, 1);
    }
    pass(2 * SECOND).await;
    assert_eq!(origin.calls(), 2);
    double.forget_calls();
    for process in &processes[1..] {
        // Stale once more, and the new value by that.
        assert_eq!(process.load(&origin).await, 1);
        all_have_run().await;
        assert_eq!(process.load(&origin).await, 2);
    }
    assert_eq!(origin.calls(), 2);
    assert_eq!(commands(&double), [(Get, 2)]);
}

#[tokio::test(start_paused = true)]
async fn a_stale_value_held_here_is_served_at_once_however_slow_the_remote_is() {
    for slow in ["slow", "frozen"] {
        let double = Double::new();
        let one = Process::with(&double, stale());
        one.load(&Origin::new()).await;
        pass(MINUTE + SECOND).await;
        if slow == "slow" {
            double.delay(90 * MS);
        } else {
            double.freeze();
        }
        let origin = second_call(SECOND).await;
        for _ in 0..10 {
            let began = Instant::now();
            assert_eq!(one.load(&origin).await, 1);
            assert_eq!(began.elapsed(), std::time::Duration::ZERO, "{slow}");
            pass(20 * MS).await;
        }
        pass(3 * SECOND).await;
        assert_eq!(one.load(&origin).await, 2, "{slow}");
        assert_eq!(origin.calls(), 2, "{slow}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refresh_that_another_process_is_at_costs_few_commands_and_no_wait() {
    let (double, processes) = with_old_value(2, stale).await;
    let origin = second_call(SECOND).await;
    assert_eq!(processes[0].load(&origin).await, 1);
    all_have_run().await;
    double.forget_calls();
    for _ in 0..900 {
        assert_eq!(processes[1].load(&origin).await, 1);
        pass(MS).await;
    }
    let asked = double.calls(Get) + double.calls(Acquire);
    assert!(asked <= 22, "one look in a tenth of a second: {asked}");
    pass(200 * MS).await;
    processes[1].load(&origin).await;
    all_have_run().await;
    assert_eq!(processes[1].load(&origin).await, 2);
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_whose_process_died_is_done_by_one_after_the_lease() {
    let (double, processes) = with_old_value(4, stale).await;
    let dead = double.process();
    let seen = seen_version(&double).await;
    let ask = tower_stampede::remote::LeaseRequest::new(5 * SECOND, MINUTE).seen(seen);
    use tower_stampede::remote::Remote;
    assert!(matches!(
        dead.acquire(&k(), &ask).await,
        Ok(tower_stampede::remote::AcquireOutcome::Granted(_))
    ));
    let origin = second_call(100 * MS).await;
    let began = Instant::now();
    while origin.calls() == 1 {
        for process in &processes {
            assert_eq!(process.load(&origin).await, 1);
        }
        pass(50 * MS).await;
    }
    assert!(began.elapsed() < 5300 * MS, "{:?}", began.elapsed());
    pass(SECOND).await;
    for process in &processes {
        process.load(&origin).await;
        all_have_run().await;
        assert_eq!(process.load(&origin).await, 2);
    }
    assert_eq!(origin.calls(), 2);
}

async fn seen_version(double: &Double) -> Option<tower_stampede::remote::Version> {
    use tower_stampede::remote::{Remote, Version};
    let envelope = double.process().get(&k()).await.unwrap().unwrap();
    Version::from_digits(&envelope[4..20])
}

#[tokio::test(start_paused = true)]
async fn an_early_refresh_is_one_over_all_processes() {
    let double = Double::new();
    // So eager that every reader in the last quarter draws it.
    let early = || settings().early_refresh(1e9);
    let origin = Origin::taking(500 * MS);
    let processes = Process::several_with(8, &double, early).await;
    for process in &processes {
        assert_eq!(process.load(&origin).await, 1);
        all_have_run().await;
    }
    pass(50 * SECOND).await;
    for process in &processes {
        assert_eq!(process.load(&origin).await, 1);
    }
    pass(SECOND).await;
    for process in &processes {
        process.load(&origin).await;
        all_have_run().await;
        assert_eq!(process.load(&origin).await, 2);
    }
    assert_eq!(origin.calls(), 2);
    assert!(double.calls(Acquire) <= 10, "{}", double.calls(Acquire));
}

#[tokio::test(start_paused = true)]
async fn a_scoped_caller_refreshes_itself_unless_another_process_does() {
    let (double, processes) = with_old_value(2, stale).await;
    let origin = second_call(SECOND).await;
    let refresher = processes[0].spawn_scoped(&origin);
    all_have_run().await;
    let began = Instant::now();
    let other = processes[1].get_or_compute_scoped("k", origin.compute()).await;
    assert_eq!(other.unwrap(), 1);
    assert!(began.elapsed() < 5 * MS);
    assert_eq!(refresher.await.unwrap().unwrap(), 2);
    assert_eq!(origin.calls(), 2);
    assert_eq!(double.calls(Fill), 1);
}

#[tokio::test(start_paused = true)]
async fn the_remotes_old_value_stands_in_for_a_failure_where_there_is_none_here() {
    for scoped in [false, true] {
        let (_double, processes) = with_old_value(2, stale_if_error).await;
        let origin = Origin::new();
        origin.usually(Answer::Fail);
        let answer =
            if scoped { processes[0].spawn_scoped(&origin) } else { processes[0].spawn(&origin) };
        assert_eq!(answer.await.unwrap().unwrap(), 1);
        assert_eq!(processes[0].stats().stale_if_error, 1);
        // The hold has travelled, and the old value is served in place of its error as well.
        assert_eq!(processes[1].load(&origin).await, 1);
        assert_eq!(processes[1].stats().stale_if_error, 1);
        assert_eq!(origin.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_for_a_failing_process_get_the_remotes_old_value() {
    let (_double, processes) = with_old_value(2, stale_if_error).await;
    let origin = Origin::taking(100 * MS);
    origin.usually(Answer::Fail);
    let callers: Vec<_> = (0..20).map(|i| processes[i % 2].spawn(&origin)).collect();
    for answer in gather(callers).await {
        assert_eq!(answer.unwrap(), 1);
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_held_process_serves_a_stale_value_in_its_window() {
    let (_double, processes) = with_old_value(2, stale).await;
    let origin = Origin::new();
    origin.usually(Answer::Fail);
    assert_eq!(processes[0].load(&origin).await, 1);
    all_have_run().await;
    assert_eq!(origin.calls(), 1);
    for _ in 0..10 {
        assert_eq!(processes[1].load(&origin).await, 1);
        all_have_run().await;
    }
    assert_eq!(origin.calls(), 1, "the hold has travelled");
}

#[tokio::test(start_paused = true)]
async fn an_old_value_past_all_its_windows_is_not_served() {
    let (_double, processes) = with_old_value(1, stale).await;
    pass(10 * MINUTE).await;
    let origin = Origin::new();
    origin.usually(Answer::Fail);
    let error = processes[0].get_or_compute("k", origin.compute()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Inner);
}

#[tokio::test(start_paused = true)]
async fn a_value_marked_stale_is_refreshed_over_what_the_remote_has() {
    for builder in [stale as fn() -> Builder<u64>, settings] {
        let (double, origin) = (Double::new(), Origin::new());
        let processes = Process::several_with(2, &double, builder).await;
        assert_eq!(processes[0].load(&origin).await, 1);
        all_have_run().await;
        assert_eq!(processes[1].load(&origin).await, 1);
        assert!(processes[0].mark_stale("k").await.local);
        processes[0].load(&origin).await;
        all_have_run().await;
        assert_eq!(processes[0].load(&origin).await, 2);
        assert_eq!(origin.calls(), 2);
        assert_eq!(Process::with(&double, builder()).get("k").await, Some(2));
    }
}

#[tokio::test(start_paused = true)]
async fn the_lifetime_of_a_value_counts_from_the_end_of_its_computation_in_every_process() {
    let (double, origin) = (Double::new(), Origin::taking(20 * SECOND));
    let processes = Process::several(2, &double).await;
    assert_eq!(processes[0].load(&origin).await, 1);
    pass(59 * SECOND).await;
    assert_eq!(processes[1].get("k").await, Some(1));
    pass(2 * SECOND).await;
    assert_eq!(processes[0].get("k").await, None);
    assert_eq!(processes[1].get("k").await, None);
}

#[tokio::test(start_paused = true)]
async fn the_age_of_a_value_does_not_count_from_a_wait_for_the_lease() {
    let (double, origin) = (Double::new(), Origin::new());
    let one = Process::on(&double);
    assert!(double.lock_as_stranger(&k(), 4 * SECOND));
    assert_eq!(one.load(&origin).await, 1);
    pass(59 * SECOND).await;
    assert_eq!(one.get("k").await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_jittered_lifetime_ends_in_all_processes_at_once() {
    let double = Double::new();
    let jittered = || Stampede::builder("test").ttl(MINUTE).jitter(0.9);
    let processes = Process::several_with(6, &double, jittered).await;
    let origin = Origin::new();
    for process in &processes {
        process.load(&origin).await;
        all_have_run().await;
    }
    let began = Instant::now();
    let mut ended = [None; 6];
    while began.elapsed() < MINUTE {
        for (process, ended) in processes.iter().zip(&mut ended) {
            if ended.is_none() && process.get("k").await.is_none() {
                *ended = Some(began.elapsed());
            }
        }
        pass(50 * MS).await;
    }
    let first = ended.iter().min().unwrap().unwrap();
    let last = ended.iter().max().unwrap().unwrap();
    assert!(last - first <= 150 * MS, "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn an_absence_is_remembered_for_as_long_in_every_process() {
    let double = Double::new();
    let process = || {
        let builder = Stampede::<Option<u64>>::builder("test").ttl(MINUTE).jitter(0.0);
        let remote = tower_stampede::remote::RemoteSettings::new();
        builder.negative_ttl(5 * SECOND).remote(double.process(), remote).build().unwrap()
    };
    let (one, other) = (process(), process());
    let absent = || async { Ok::<_, OriginError>(None) };
    assert_eq!(one.get_or_compute("k", absent).await.unwrap(), None);
    pass(4 * SECOND).await;
    assert_eq!(other.get("k").await, Some(None));
    pass(2 * SECOND).await;
    assert_eq!(other.get("k").await, None);
    let there = || async { Ok::<_, OriginError>(Some(1)) };
    assert_eq!(other.get_or_compute("k", there).await.unwrap(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_refresh_while_the_remote_is_away_is_done_here_once() {
    let (double, processes) = with_old_value(1, stale).await;
    let origin = second_call(SECOND).await;
    assert_eq!(processes[0].get("k").await, Some(1));
    double.fail(tower_stampede::remote::RemoteOp::ALL, RemoteErrorKind::Connection);
    for _ in 0..20 {
        assert_eq!(processes[0].load(&origin).await, 1);
        pass(10 * MS).await;
    }
    pass(2 * SECOND).await;
    assert_eq!(processes[0].load(&origin).await, 2);
    assert_eq!(origin.calls(), 2);
}

// A fresh read does not take the older value of the remote, not even in place of a failure.
#[tokio::test(start_paused = true)]
async fn a_refresh_that_fails_leaves_the_older_value_where_it_is() {
    for late in [false, true] {
        let (double, processes) = with_old_value(1, stale_if_error).await;
        if !late {
            processes[0].put("k", 1).await;
        }
        let process = Process::with(&double, stale_if_error());
        process.prepare(&double).await;
        let origin = Origin::new();
        origin.usually(Answer::Fail);
        let error = process.refresh("k", origin.compute()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Inner);
        assert_eq!(process.stats().entries, 0, "late: {late}");
        if late {
            // A caller that takes any value is served it.
            assert_eq!(process.load(&origin).await, 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_joins_a_leader_which_finds_a_stale_value_in_the_remote_is_told_so() {
    let (double, processes) = with_old_value(1, stale).await;
    double.delay(10 * MS);
    let origin = second_call(SECOND).await;
    let served = herd(2, |_| {
        let (process, origin) = (processes[0].clone(), origin.clone());
        async move { process.entry("k").get_or_compute(origin.compute()).await.unwrap() }
    });
    let [leader, waiter] = &served.await[..] else { unreachable!("a herd of two") };
    assert_eq!((**leader, **waiter), (1, 1));
    assert_eq!((leader.outcome(), waiter.outcome()), (CacheOutcome::Stale, CacheOutcome::Joined));
    assert!(leader.is_stale() && waiter.is_stale());
    let info = processes[0].lookup("k").unwrap();
    assert_eq!((leader.age(), waiter.age()), (info.age, info.age));
    let oldest = processes[0].stats().oldest_stale;
    assert!(oldest > MINUTE && oldest <= info.age, "{oldest:?}");
}
