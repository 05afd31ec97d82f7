//! A remote in trouble: no request fails by it, none waits for long, and each
//! process computes at most once.

use std::time::Duration;

use tokio::time::Instant;
use tower_stampede::remote::{Double, RemoteErrorKind, RemoteOp, RemoteSettings};
use tower_stampede::{Event, Health};

use crate::kit::origin::*;
use crate::kit::remote::*;

const KINDS: [RemoteErrorKind; 7] = [
    RemoteErrorKind::Timeout,
    RemoteErrorKind::Connection,
    RemoteErrorKind::ReadOnly,
    RemoteErrorKind::OutOfMemory,
    RemoteErrorKind::Denied,
    RemoteErrorKind::Unavailable,
    RemoteErrorKind::Protocol,
];

const WRITES: [RemoteOp; 6] = [
    RemoteOp::Acquire,
    RemoteOp::Fill,
    RemoteOp::Renew,
    RemoteOp::Abandon,
    RemoteOp::Invalidate,
    RemoteOp::Put,
];

/// Returns how long one request for a key of its own takes.
async fn takes(process: &Process, key: u64) -> Duration {
    let began = Instant::now();
    let origin = Origin::new();
    process.get_or_compute(key, origin.compute()).await.unwrap();
    began.elapsed()
}

/// How much longer than its time-out a timer may take.
const OP_TIMEOUT: Duration = Duration::from_millis(102);

#[tokio::test(start_paused = true)]
async fn a_frozen_remote_delays_a_few_requests_by_a_time_out_and_no_more_after_that() {
    let double = Double::new();
    let one = Process::on(&double);
    one.prepare(&double).await;
    double.freeze();
    for key in 0..3 {
        let took = takes(&one, key).await;
        assert!(took > 90 * MS && took <= OP_TIMEOUT, "{key}: {took:?}");
    }
    assert_eq!(one.health(), Health::Degraded);
    for key in 3..100 {
        assert_eq!(takes(&one, key).await, Duration::ZERO, "{key}");
    }
    assert_eq!(commands(&double).len(), 1, "gets, and nothing in line after a failure");
}

#[tokio::test(start_paused = true)]
async fn a_remote_that_freezes_after_the_get_delays_by_one_time_out_too() {
    for op in [RemoteOp::Get, RemoteOp::Acquire, RemoteOp::Fill] {
        let double = Double::new();
        let one = Process::on(&double);
        one.prepare(&double).await;
        double.lose_replies(&[op]);
        for key in 0..10 {
            assert!(takes(&one, key).await <= OP_TIMEOUT, "{op:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_remote_that_is_frozen_from_the_start_delays_a_herd_by_half_a_second() {
    let double = Double::new();
    double.freeze();
    let (one, origin) = (Process::on(&double), Origin::new());
    let began = Instant::now();
    let answers = herd(1000, |i| {
        let (one, origin) = (one.clone(), origin.clone());
        async move { one.get_or_compute(i as u64 % 200, origin.compute()).await.is_ok() }
    });
    assert!(answers.await.into_iter().all(|is_answered| is_answered));
    // Before its first answer a remote may be slow.
    assert!(began.elapsed() <= 500 * MS, "{:?}", began.elapsed());
    assert_eq!(origin.calls(), 200);
    pass(20 * SECOND).await;
    // Probes come alone and rarer, however many have asked.
    assert!(double.calls(RemoteOp::Probe) < 15, "{}", double.calls(RemoteOp::Probe));
}

#[tokio::test(start_paused = true)]
async fn a_slow_remote_delays_no_request_longer_than_its_time_out() {
    for delay in [20, 60, 99, 150, 1000] {
        let double = Double::new();
        let one = Process::on(&double);
        one.prepare(&double).await;
        double.delay(delay * MS);
        for key in 0..50 {
            let took = takes(&one, key).await;
            assert!(took <= 2 * OP_TIMEOUT, "{delay} ms each: {took:?}");
            assert!(delay < 100 || took <= OP_TIMEOUT, "{delay} ms each: {took:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_the_remote_refuses_with_no_request_fails_and_a_process_computes_once() {
    for kind in KINDS {
        for ops in [RemoteOp::ALL, &WRITES[..], &[RemoteOp::Get], &[RemoteOp::Acquire]] {
            let (double, origin) = (Double::new(), Origin::taking(10 * MS));
            let processes = Process::several(4, &double).await;
            double.fail(ops, kind);
            for round in 0..5_u64 {
                let began = Instant::now();
                let answers = herd(4 * 25, |i| {
                    let (one, origin) = (processes[i % 4].clone(), origin.clone());
                    async move { one.get_or_compute(round, origin.compute()).await.is_ok() }
                });
                assert!(answers.await.into_iter().all(|is_answered| is_answered));
                assert!(began.elapsed() <= 12 * MS, "{kind:?}: {:?}", began.elapsed());
            }
            assert!(origin.calls() <= 4 * 5, "{kind:?}: {} calls", origin.calls());
            double.heal(RemoteOp::ALL);
            pass(7 * SECOND).await;
            let before = origin.calls();
            for process in &processes {
                let answer = process.get_or_compute("afterwards", origin.compute());
                answer.await.unwrap();
                all_have_run().await;
            }
            assert_eq!(origin.calls(), before + 1, "{kind:?}: healed by itself");
            assert!(processes.iter().all(|process| process.health() == Health::Up));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_held_here_is_served_all_the_time() {
    let (double, origin) = (Double::new(), Origin::new());
    let one = Process::on(&double);
    one.load(&origin).await;
    all_have_run().await;
    double.freeze();
    for _ in 0..59 {
        let began = Instant::now();
        assert_eq!(one.load(&origin).await, 1);
        assert_eq!(began.elapsed(), Duration::ZERO);
        takes(&one, 7).await;
        pass(900 * MS).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_held_here_is_served_while_the_remote_is_gone_with_its_messages() {
    let (double, origin) = (Double::new(), Origin::new());
    let one = Process::on(&double);
    one.load(&origin).await;
    all_have_run().await;
    double.fail(RemoteOp::ALL, RemoteErrorKind::Connection);
    one.client.unsubscribe();
    for _ in 0..50 {
        assert_eq!(one.load(&origin).await, 1);
        pass(SECOND).await;
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn only_a_probe_in_the_background_closes_the_breaker() {
    let double = Double::new();
    let one = Process::on(&double);
    one.prepare(&double).await;
    let mut events = one.events();
    double.fail(RemoteOp::ALL, RemoteErrorKind::Connection);
    for key in 0..5 {
        takes(&one, key).await;
    }
    double.forget_calls();
    pass(2 * SECOND).await;
    for key in 5..100 {
        takes(&one, key).await;
    }
    assert_eq!(commands(&double), [], "no request asks");
    assert!(double.calls(RemoteOp::Probe) >= 2);
    double.heal(RemoteOp::ALL);
    assert_eq!(one.health(), Health::Degraded);
    pass(6 * SECOND).await;
    assert_eq!(one.health(), Health::Up);
    let changes: Vec<_> = std::iter::from_fn(|| events.try_recv().ok())
        .filter_map(|event| match event {
            Event::RemoteChanged { up, .. } => Some(up),
            _ => None,
        })
        .collect();
    assert_eq!(changes, [false, true]);
}

#[tokio::test(start_paused = true)]
async fn probes_become_rarer_and_end_with_the_cache() {
    let double = Double::new();
    let one = Process::on(&double);
    one.prepare(&double).await;
    double.fail(RemoteOp::ALL, RemoteErrorKind::Connection);
    for key in 0..5 {
        takes(&one, key).await;
    }
    pass(10 * SECOND).await;
    double.forget_calls();
    pass(MINUTE).await;
    let probes = double.calls(RemoteOp::Probe);
    assert!((8..=16).contains(&probes), "{probes} in a minute");
    drop(one);
    pass(10 * SECOND).await;
    double.forget_calls();
    pass(MINUTE).await;
    assert!(double.all_calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn invalidating_while_the_remote_is_away_does_not_make_probes_more_frequent() {
    let double = Double::new();
    let one = Process::on(&double);
    one.prepare(&double).await;
    double.fail(RemoteOp::ALL, RemoteErrorKind::Connection);
    for n in 0..1000_u64 {
        one.invalidate(n).await;
        pass(MS).await;
    }
    assert!(double.calls(RemoteOp::Probe) < 10, "{}", double.calls(RemoteOp::Probe));
}

#[tokio::test(start_paused = true)]
async fn writes_that_hang_while_reads_answer_do_not_delay_requests_for_ever() {
    let double = Double::new();
    let one = Process::on(&double);
    one.prepare(&double).await;
    double.lose_replies(&WRITES);
    let mut delayed = 0;
    for key in 0..200 {
        let took = takes(&one, key).await;
        assert!(took <= OP_TIMEOUT);
        delayed += u32::from(!took.is_zero());
    }
    assert!(delayed <= 10, "{delayed} of 200 requests were delayed");
}

#[tokio::test(start_paused = true)]
async fn a_time_out_counts_the_bytes_that_were_seen() {
    let double = Double::new();
    let remote = RemoteSettings::new().op_timeout_per_mib(200 * MS);
    let build = || {
        let builder = tower_stampede::Stampede::<String>::builder("test").ttl(MINUTE).jitter(0.0);
        builder.remote(double.process(), remote.clone()).build().unwrap()
    };
    let (one, other) = (build(), build());
    let large = || async { Ok::<_, OriginError>("x".repeat(2 << 20)) };
    one.get_or_compute("k", large).await.unwrap();
    other.get("k").await.unwrap();
    other.get("nothing").await;
    double.delay(400 * MS);
    let began = Instant::now();
    other.get("nothing else").await;
    assert!(began.elapsed() >= 400 * MS && other.stats().remote_errors == 0);
}

#[tokio::test(start_paused = true)]
async fn stale_values_held_here_stand_in_while_the_remote_and_the_origin_are_both_away() {
    let (double, origin) = (Double::new(), Origin::new());
    let one = Process::with(&double, settings().stale_if_error(10 * MINUTE));
    one.load(&origin).await;
    all_have_run().await;
    double.fail(RemoteOp::ALL, RemoteErrorKind::Connection);
    one.client.unsubscribe();
    origin.usually(Answer::Fail);
    pass(MINUTE + SECOND).await;
    for _ in 0..20 {
        assert_eq!(one.load(&origin).await, 1);
        pass(SECOND).await;
    }
    // Also in the moment in which the remote comes back empty.
    double.flush();
    one.client.subscribe();
    assert_eq!(one.load(&origin).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_slow_remote_that_answers_within_the_time_out_stays_up_after_a_new_subscription() {
    let (double, origin) = (Double::new(), Origin::new());
    let remote = RemoteSettings::new().op_timeout(300 * MS);
    let one = Process::with_remote(&double, settings(), remote);
    one.prepare(&double).await;
    assert_eq!(one.load(&origin).await, 1);
    double.delay(150 * MS);
    pass(3 * SECOND).await;
    assert_eq!(one.health(), Health::Up);
    let mut events = one.events();
    one.client.unsubscribe();
    one.client.subscribe();
    for _ in 0..50 {
        assert_eq!(one.load(&origin).await, 1);
        pass(10 * MS).await;
    }
    while let Ok(event) = events.try_recv() {
        assert!(!matches!(event, Event::RemoteChanged { up: false, .. }), "it answers");
    }
    assert_eq!((one.health(), origin.calls()), (Health::Up, 1));
}
