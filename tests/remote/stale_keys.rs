//! Keys whose values are made stale, over many processes.

use tower_stampede::remote::RemoteOp::{Fill, ReadPositions};
use tower_stampede::remote::{Double, RemoteErrorKind, RemoteOp};
use tower_stampede::{Announcement, Builder, Stampede};

use crate::kit::origin::*;
use crate::kit::remote::*;

fn stale() -> Builder<u64> {
    settings().stale_for(10 * MINUTE)
}

/// Several processes, each with a copy of the first value.
async fn with_copies(n: usize, builder: fn() -> Builder<u64>) -> (Double, Vec<Process>, Origin) {
    let (double, origin) = (Double::new(), Origin::new());
    let processes = Process::several_with(n, &double, builder).await;
    for process in &processes {
        assert_eq!(process.load(&origin).await, 1);
        all_have_run().await;
    }
    pass(10 * MS).await;
    (double, processes, origin)
}

fn is_fresh(cache: &Stampede<u64>) -> bool {
    cache.lookup("k").is_some_and(|info| !info.ttl_left.is_zero())
}

/// Asks once, and once more when a refresh has had the time to end.
async fn ask_twice(process: &Process, origin: &Origin) -> (u64, u64) {
    let first = process.load(origin).await;
    pass(100 * MS).await;
    (first, process.load(origin).await)
}

#[tokio::test(start_paused = true)]
async fn a_process_with_a_copy_and_one_without_serve_the_marked_value_stale_and_one_refreshes() {
    let (double, mut processes, origin) = with_copies(3, stale).await;
    processes.extend(Process::several_with(1, &double, stale).await);
    assert_eq!(processes[0].mark_stale("k").await.remote, Announcement::Done);
    pass(10 * MS).await;
    assert!(!processes[..3].iter().any(|process| is_fresh(process)));
    for process in processes.iter().rev() {
        assert_eq!(process.load(&origin).await, 1);
    }
    pass(SECOND).await;
    for process in &processes {
        assert_eq!(ask_twice(process, &origin).await.1, 2);
        assert!(is_fresh(process), "the new value is not marked");
    }
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_mark_without_await_reaches_the_others_too() {
    let (_double, processes, origin) = with_copies(2, stale).await;
    assert!(processes[0].mark_stale_now("k"));
    assert!(!processes[0].mark_stale_now("nothing there"));
    pass(10 * MS).await;
    assert_eq!(ask_twice(&processes[1], &origin).await, (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_starts_after_the_mark_finds_the_value_of_the_remote_stale() {
    let (double, processes, origin) = with_copies(1, stale).await;
    processes[0].mark_stale("k").await;
    // It is not the last thing that the log hears of.
    processes[0].mark_stale("another").await;
    processes[0].invalidate_tag("another").await;
    let later = Process::several_with(1, &double, stale).await.remove(0);
    assert_eq!(ask_twice(&later, &origin).await, (1, 2));
    let latest = Process::several_with(1, &double, stale).await.remove(0);
    assert_eq!(ask_twice(&latest, &origin).await, (2, 2));
    assert!(is_fresh(&latest));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_starts_later_asks_once_where_no_key_was_marked() {
    let (double, processes, origin) = with_copies(1, settings).await;
    for key in ["a", "b", "c"] {
        processes[0].get_or_compute(key, origin.compute()).await.unwrap();
    }
    all_have_run().await;
    processes[0].invalidate_tag("t").await;
    let later = Process::several_with(1, &double, settings).await.remove(0);
    for key in ["a", "b", "c"] {
        assert!(later.get(key).await.is_some());
    }
    assert_eq!(double.calls(ReadPositions), 1);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_is_put_after_the_mark_is_fresh_in_all_processes() {
    for is_awaited in [true, false] {
        let (double, mut processes, origin) = with_copies(2, stale).await;
        match is_awaited {
            true => {
                processes[0].mark_stale("k").await;
                processes[0].put("k", 100).await;
            }
            false => {
                processes[0].mark_stale_now("k");
                processes[0].put_now("k", 100);
            }
        }
        pass(10 * MS).await;
        processes.extend(Process::several_with(1, &double, stale).await);
        for process in &processes {
            assert_eq!(ask_twice(process, &origin).await, (100, 100));
            assert!(is_fresh(process));
        }
        assert_eq!(origin.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_mark_whose_message_is_lost_is_found_in_the_log() {
    let (double, processes, origin) = with_copies(2, stale).await;
    double.lose_messages(true);
    assert_eq!(processes[0].mark_stale("k").await.remote, Announcement::Done);
    assert!(is_fresh(&processes[1]));
    pass(2 * SECOND).await;
    assert!(!is_fresh(&processes[1]));
    assert_eq!(ask_twice(&processes[1], &origin).await, (1, 2));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_mark_during_an_outage_is_queued_and_told_before_the_remote_is_asked_again() {
    let (double, processes, origin) = with_copies(2, stale).await;
    double.fail(RemoteOp::ALL, RemoteErrorKind::Connection);
    pass(SECOND).await;
    assert_eq!(processes[0].mark_stale("k").await.remote, Announcement::Queued);
    assert!(!is_fresh(&processes[0]) && is_fresh(&processes[1]));
    double.heal(RemoteOp::ALL);
    pass(MINUTE / 2).await;
    assert!(!is_fresh(&processes[1]));
    let later = Process::several_with(1, &double, stale).await.remove(0);
    assert_eq!(ask_twice(&later, &origin).await, (1, 2));
    assert_eq!(ask_twice(&processes[1], &origin).await.1, 2);
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_result_whose_computation_began_before_the_mark_is_stale_at_once() {
    for marks in [0, 1] {
        let (double, origin) = (Double::new(), Origin::taking(SECOND));
        let processes = Process::several_with(3, &double, stale).await;
        let early = processes[0].spawn(&origin);
        pass(SECOND / 2).await;
        processes[marks].mark_stale("k").await;
        assert_eq!(early.await.unwrap().unwrap(), 1, "its own caller has it");
        pass(10 * MS).await;
        assert_eq!(double.calls(Fill), 1);
        assert!(!is_fresh(&processes[0]));
        assert_eq!(processes[2].load(&origin).await, 1, "stale");
        assert!(!is_fresh(&processes[2]));
        pass(2 * SECOND).await;
        for process in &processes {
            assert_eq!(ask_twice(process, &origin).await.1, 2);
            assert!(is_fresh(process));
        }
        assert_eq!(origin.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_stale_window_the_processes_compute_a_marked_key_once_together() {
    let (_double, processes, origin) = with_copies(3, settings).await;
    processes[0].mark_stale("k").await;
    pass(10 * MS).await;
    let answers = herd(30, |i| {
        let (cache, origin) = (processes[i % 3].cache.clone(), origin.clone());
        async move { cache.get_or_compute("k", origin.compute()).await.unwrap() }
    });
    assert_eq!(answers.await, [2; 30]);
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_mark_concerns_its_own_key_alone() {
    let (double, processes, origin) = with_copies(2, stale).await;
    for key in ["", "ke"] {
        processes[0].mark_stale(key).await;
    }
    pass(10 * MS).await;
    let later = Process::several_with(1, &double, stale).await.remove(0);
    for process in [&processes[0], &processes[1], &later] {
        assert_eq!(ask_twice(process, &origin).await, (1, 1));
        assert!(is_fresh(process));
    }
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_the_log_has_dropped_leaves_the_value_stale() {
    let (double, processes, origin) = with_copies(1, stale).await;
    double.bound_log(10, 10);
    processes[0].mark_stale("k").await;
    for tag in 0..50_u32 {
        processes[0].invalidate_tag(tag).await;
    }
    let later = Process::several_with(1, &double, stale).await.remove(0);
    assert_eq!(ask_twice(&later, &origin).await, (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_mark_is_told_again_where_the_log_begins_anew_on_another_server() {
    let (double, processes, origin) = with_copies(2, stale).await;
    double.lose_messages(true);
    processes[0].mark_stale("k").await;
    double.lose_messages(false);
    double.fail_over_log(1);
    pass(MINUTE / 2).await;
    for process in &processes {
        assert_eq!(ask_twice(process, &origin).await.1, 2);
    }
    assert_eq!(origin.calls(), 2);
}
