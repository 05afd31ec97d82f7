//! Values that are made stale by their tags (a soft purge), over many processes.

use tower_stampede::remote::{Double, RemoteErrorKind, RemoteOp};
use tower_stampede::{Announcement, Builder, Computed};

use crate::kit::origin::*;
use crate::kit::remote::*;

fn stale() -> Builder<u64> {
    settings().stale_for(10 * MINUTE)
}

async fn ask(process: &Process, origin: &Origin) -> u64 {
    let origin = origin.clone();
    let compute = move || async move { origin.load().await.map(|n| Computed::new(n).tag("t")) };
    process.get_or_compute_with("k", compute).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_mark_reaches_every_process_and_one_of_them_refreshes() {
    for mark in ["t", "*"] {
        let (double, origin) = (Double::new(), Origin::new());
        let processes = Process::several_with(3, &double, stale).await;
        for process in &processes {
            assert_eq!(ask(process, &origin).await, 1);
            all_have_run().await;
        }
        pass(10 * MS).await;
        assert_eq!(processes[1].mark_tag_stale(mark).await.remote, Announcement::Done);
        pass(10 * MS).await;
        for process in &processes {
            assert!(process.lookup("k").expect("it is there").ttl_left.is_zero(), "{mark}");
            assert_eq!(ask(process, &origin).await, 1, "{mark}");
        }
        pass(SECOND).await;
        for process in &processes {
            ask(process, &origin).await;
            all_have_run().await;
            assert_eq!(ask(process, &origin).await, 2, "{mark}");
        }
        assert_eq!(origin.calls(), 2, "{mark}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_comes_later_finds_the_marked_value_of_the_remote_stale() {
    for mark in ["t", "*"] {
        let (double, origin) = (Double::new(), Origin::new());
        let first = Process::with(&double, stale());
        assert_eq!(ask(&first, &origin).await, 1);
        all_have_run().await;
        pass(10 * MS).await;
        first.mark_tag_stale(mark).await;
        pass(MINUTE / 2).await;
        let later = Process::several_with(1, &double, stale).await.remove(0);
        assert_eq!(ask(&later, &origin).await, 1, "{mark}");
        let info = later.lookup("k").expect("it is there");
        assert!(info.ttl_left.is_zero(), "{mark}");
        // Counted from the mark, in the remote's time.
        assert!(info.stale_left <= 10 * MINUTE - MINUTE / 2 + SECOND, "{:?}", info.stale_left);
        pass(SECOND).await;
        assert_eq!(ask(&later, &origin).await, 2, "{mark}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_marked_value_without_a_stale_window_is_computed_once_by_all_processes() {
    let (double, origin) = (Double::new(), Origin::taking(SECOND));
    let processes = Process::several(3, &double).await;
    for process in &processes {
        assert_eq!(ask(process, &origin).await, 1);
    }
    all_have_run().await;
    pass(10 * MS).await;
    processes[0].mark_tag_stale("t").await;
    pass(10 * MS).await;
    let answers = herd(30, |i| {
        let (process, origin) = (processes[i % 3].cache.clone(), origin.clone());
        async move {
            let compute =
                move || async move { origin.load().await.map(|n| Computed::new(n).tag("t")) };
            process.get_or_compute_with("k", compute).await.unwrap()
        }
    });
    assert!(answers.await.iter().all(|answer| *answer == 2));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_mark_during_an_outage_is_told_before_the_remote_is_asked_again() {
    let (double, origin) = (Double::new(), Origin::new());
    let processes = Process::several_with(2, &double, stale).await;
    for process in &processes {
        assert_eq!(ask(process, &origin).await, 1);
        all_have_run().await;
    }
    double.fail(RemoteOp::ALL, RemoteErrorKind::Connection);
    pass(SECOND).await;
    assert_eq!(processes[0].mark_tag_stale("t").await.remote, Announcement::Queued);
    double.heal(RemoteOp::ALL);
    pass(MINUTE / 2).await;
    for process in &processes {
        ask(process, &origin).await;
        pass(SECOND).await;
        assert_eq!(ask(process, &origin).await, 2);
    }
}
