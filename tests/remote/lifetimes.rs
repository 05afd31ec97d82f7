//! A process keeps values for another time than the remote does.

use std::time::Duration;

use tokio::time::Instant;
use tower_stampede::Stampede;
use tower_stampede::remote::{Double, Record, RemoteErrorKind, RemoteOp, RemoteSettings};

use crate::kit::origin::*;
use crate::kit::remote::*;

fn local(ttl: Duration) -> RemoteSettings {
    RemoteSettings::new().local_ttl(ttl)
}

async fn with(double: &Double, remote: RemoteSettings) -> Process {
    let process = Process::with_remote(double, settings(), remote);
    process.prepare(double).await;
    process
}

#[tokio::test(start_paused = true)]
async fn after_its_local_ttl_a_value_is_asked_for_again_once_and_not_computed() {
    let (double, origin) = (Double::new(), Origin::new());
    let one = with(&double, local(SECOND)).await;
    assert_eq!(one.load(&origin).await, 1);
    all_have_run().await;
    double.forget_calls();
    for round in 1..=3 {
        pass(SECOND - 2 * MS).await;
        assert_eq!(one.load(&origin).await, 1);
        assert_eq!(double.calls(RemoteOp::Get), round - 1, "it is used for the whole time");
        pass(2 * MS).await;
        let answers = herd(100, |_| {
            let (one, origin) = (one.clone(), origin.clone());
            async move { one.load(&origin).await }
        });
        assert!(answers.await.iter().all(|answer| *answer == 1));
        assert_eq!(commands(&double), [(RemoteOp::Get, round)]);
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_the_remote_has_lost_is_computed_once_for_all_after_the_local_ttl() {
    let (double, origin) = (Double::new(), Origin::taking(10 * MS));
    let processes = [with(&double, local(SECOND)).await, with(&double, local(SECOND)).await];
    for process in &processes {
        assert_eq!(process.load(&origin).await, 1);
    }
    all_have_run().await;
    double.lose(&k(), Record::Value);
    pass(SECOND).await;
    let answers = herd(100, |i| {
        let (one, origin) = (processes[i % 2].clone(), origin.clone());
        async move { one.load(&origin).await }
    });
    assert!(answers.await.iter().all(|answer| *answer == 2));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn while_the_remote_is_away_a_value_is_used_as_long_as_it_lasts() {
    let (double, origin) = (Double::new(), Origin::new());
    let one = with(&double, local(SECOND)).await;
    assert_eq!(one.load(&origin).await, 1);
    all_have_run().await;
    double.freeze();
    let end = Instant::now() + MINUTE - 5 * SECOND;
    let mut slow = 0;
    while Instant::now() < end {
        pass(SECOND / 4).await;
        let began = Instant::now();
        assert_eq!(one.load(&origin).await, 1);
        slow += usize::from(began.elapsed() > Duration::ZERO);
        assert!(began.elapsed() <= 2 * SECOND / 10, "{:?}", began.elapsed());
    }
    assert!(slow <= 3, "{slow} requests waited for a remote that is away");
    double.thaw();
    pass(2 * SECOND).await;
    assert_eq!(one.load(&origin).await, 1, "it is asked again, and has it");
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_slow_remote_has_nothing_computed_that_is_here() {
    let (double, origin) = (Double::new(), Origin::new());
    let one = with(&double, local(SECOND)).await;
    assert_eq!(one.load(&origin).await, 1);
    all_have_run().await;
    pass(SECOND).await;
    double.lose_replies(&[RemoteOp::Get]);
    let answers = herd(100, |_| {
        let (one, origin) = (one.clone(), origin.clone());
        async move { one.load(&origin).await }
    });
    assert!(answers.await.iter().all(|answer| *answer == 1));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_invalidated_is_not_used_because_the_remote_does_not_answer() {
    let (double, origin) = (Double::new(), Origin::new());
    let one = with(&double, local(SECOND)).await;
    assert_eq!(one.load(&origin).await, 1);
    all_have_run().await;
    pass(SECOND).await;
    double.freeze();
    one.invalidate("k").await;
    assert_eq!(one.load(&origin).await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_value_without_a_place_in_the_remote_is_used_as_long_as_it_lasts() {
    let (double, origin) = (Double::new(), Origin::new());
    let one = with(&double, local(SECOND)).await;
    double.fail(&[RemoteOp::Get, RemoteOp::Acquire], RemoteErrorKind::Connection);
    assert_eq!(one.load(&origin).await, 1);
    double.heal(&[RemoteOp::Get, RemoteOp::Acquire]);
    pass(3 * SECOND).await;
    assert_eq!(one.load(&origin).await, 1);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_remote_forgets_after_its_own_ttl_and_a_process_does_not() {
    let (double, origin) = (Double::new(), Origin::new());
    let remote = RemoteSettings::new().remote_ttl(SECOND);
    let one = with(&double, remote.clone()).await;
    assert_eq!(one.load(&origin).await, 1);
    assert_eq!(with(&double, remote.clone()).await.load(&origin).await, 1);
    pass(SECOND + MS).await;
    assert_eq!(one.load(&origin).await, 1, "it has its copy");
    assert_eq!(with(&double, remote).await.load(&origin).await, 2);
}

#[test]
fn lifetimes_of_nothing_are_refused() {
    for (settings, field) in [
        (RemoteSettings::new().local_ttl(Duration::ZERO), "local_ttl"),
        (RemoteSettings::new().remote_ttl(Duration::ZERO), "remote_ttl"),
    ] {
        let builder = Stampede::<u64>::builder("x").ttl(SECOND);
        let error = builder.remote(Double::new().process(), settings).build().unwrap_err();
        assert_eq!(error.fields(), [field]);
    }
}
