//! What stands in the remote is not trusted: what cannot be used is a miss,
//! counted, and replaced.

use bytes::Bytes;
use tower_stampede::remote::{Double, Remote, RemoteOp::*, RemoteSettings};
use tower_stampede::{Key, Stampede};

use crate::kit::origin::*;
use crate::kit::remote::*;

/// Returns what a process stores under `key`.
async fn envelope_of(key: &'static str) -> Bytes {
    let (double, origin) = (Double::new(), Origin::new());
    let one = Process::on(&double);
    one.get_or_compute(key, origin.compute()).await.unwrap();
    all_have_run().await;
    double.process().get(&Key::from(key)).await.unwrap().unwrap()
}

fn with_digits(envelope: &Bytes, digits: &[u8; 16]) -> Bytes {
    let mut bytes = envelope.to_vec();
    bytes[4..20].copy_from_slice(digits);
    bytes.into()
}

/// Asserts that `process` takes what is there for nothing, once, and that all
/// is well afterwards.
async fn is_replaced(double: &Double, process: &Process, what: &str) {
    let origin = Origin::new();
    process.prepare(double).await;
    assert_eq!(process.load(&origin).await, 1, "{what}");
    all_have_run().await;
    assert_eq!(commands(double), [(Get, 1), (Acquire, 1), (Fill, 1)], "{what}");
    // Seen by the get, and perhaps once more by the acquire.
    let damaged = process.stats().damaged;
    assert!((1..=2).contains(&damaged), "{what}: {damaged}");
    let other = Process::on(double);
    assert_eq!(other.load(&origin).await, 1, "{what}");
    assert_eq!((origin.calls(), other.stats().damaged), (1, 0), "{what}");
}

#[tokio::test(start_paused = true)]
async fn damaged_bytes_are_a_miss_and_replaced() {
    let good = envelope_of("k").await;
    let mut cases: Vec<(String, Bytes)> = vec![
        ("empty".into(), Bytes::new()),
        ("garbage".into(), Bytes::from_static(b"not an envelope at all, by no means whatever")),
        ("a counter of somebody's".into(), Bytes::from_static(b"42")),
        ("zeros".into(), vec![0; 4096].into()),
        ("ones".into(), vec![0xff; 4096].into()),
        ("too long".into(), [&good[..], b"x"].concat().into()),
    ];
    cases.extend((0..good.len()).map(|n| (format!("cut to {n}"), good.slice(..n))));
    // Every bit but those of the version, which only order values.
    for at in (0..4).chain(20..good.len()) {
        let mut bytes = good.to_vec();
        bytes[at] ^= 1 << (at % 8);
        cases.push((format!("bit in byte {at}"), bytes.into()));
    }
    for (what, bytes) in cases {
        let double = Double::new();
        double.set_raw(&k(), bytes);
        is_replaced(&double, &Process::on(&double), &what).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_value_of_a_foreign_type_is_a_miss_and_replaced() {
    let double = Double::new();
    double.set_foreign(&k());
    is_replaced(&double, &Process::on(&double), "foreign").await;
}

#[tokio::test(start_paused = true)]
async fn the_value_of_another_key_is_a_miss_and_replaced() {
    let double = Double::new();
    double.set_raw(&k(), envelope_of("another key").await);
    is_replaced(&double, &Process::on(&double), "another key").await;
}

#[tokio::test(start_paused = true)]
async fn a_value_of_another_schema_is_a_miss_and_replaced() {
    let double = Double::new();
    double.set_raw(&k(), envelope_of("k").await);
    let origin = Origin::new();
    let newer = Process::with(&double, settings().schema(1));
    newer.prepare(&double).await;
    assert_eq!(newer.load(&origin).await, 1);
    all_have_run().await;
    assert_eq!(commands(&double), [(Get, 1), (Acquire, 1), (Fill, 1)]);
    assert_eq!(Process::with(&double, settings().schema(1)).load(&origin).await, 1);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_does_not_decode_is_a_miss_and_replaced() {
    let double = Double::new();
    let text = Stampede::<String>::builder("test").ttl(MINUTE);
    let text = text.remote(double.process(), RemoteSettings::new()).build().unwrap();
    // No number begins so: each byte says that another one follows.
    text.put("k", "\u{fff}".repeat(100)).await;
    let flags = Stampede::<(bool, bool)>::builder("test").ttl(MINUTE);
    let flags = flags.remote(double.process(), RemoteSettings::new()).build().unwrap();
    let both = || async { Ok::<_, OriginError>((true, false)) };
    assert_eq!(flags.get_or_compute("k", both).await.unwrap(), (true, false));
    all_have_run().await;
    assert!(flags.stats().damaged >= 1);
    let other = Stampede::<(bool, bool)>::builder("test").ttl(MINUTE);
    let other = other.remote(double.process(), RemoteSettings::new()).build().unwrap();
    assert_eq!(other.get("k").await, Some((true, false)));
}

#[tokio::test(start_paused = true)]
async fn a_value_that_is_too_large_is_a_miss_and_one_that_would_be_stays_here() {
    let double = Double::new();
    let build = |max| {
        let builder = Stampede::<String>::builder("test").ttl(MINUTE);
        let remote = RemoteSettings::new().max_value_bytes(max);
        builder.remote(double.process(), remote).build().unwrap()
    };
    let (generous, strict) = (build(1 << 20), build(1000));
    generous.put("k", "x".repeat(2000)).await;
    assert_eq!(strict.get("k").await, None);
    assert_eq!(strict.stats().damaged, 1);

    let mut events = strict.events();
    let large = || async { Ok::<_, OriginError>("y".repeat(2000)) };
    assert_eq!(strict.get_or_compute("own", large).await.unwrap().len(), 2000);
    all_have_run().await;
    assert_eq!(strict.get("own").await.map(|value| value.len()), Some(2000));
    assert_eq!(generous.get("own").await, None);
    let told = std::iter::from_fn(|| events.try_recv().ok())
        .any(|event| matches!(event, tower_stampede::Event::Unshareable { .. }));
    assert!(told);
    // No other process has to wait for its lease.
    let other = || async { Ok::<_, OriginError>("z".to_owned()) };
    assert_eq!(within(10 * MS, generous.get_or_compute("own", other)).await.unwrap(), "z");
}

#[tokio::test(start_paused = true)]
async fn no_version_however_large_stops_fills() {
    let good = envelope_of("k").await;
    for digits in [
        b"9007199254740993",
        b"9007199254740992",
        b"4503599627370496",
        b"4503599627370495",
        b"4503599627370494",
        b"9999999999999999",
        b"0000000000000000",
        b"0000000000000001",
        b"-000000000000001",
        b"1e15            ",
    ] {
        let double = Double::new();
        double.set_raw(&k(), with_digits(&good, digits));
        // Past its lifetime, so that it is to be replaced.
        pass(2 * MINUTE).await;
        let (one, origin) = (Process::on(&double), Origin::new());
        for round in 1..=3 {
            let digits = String::from_utf8_lossy(digits);
            assert_eq!(one.refresh("k", origin.compute()).await.unwrap(), round, "{digits}");
            all_have_run().await;
            assert_eq!(one.stats().refused_fills, 0, "{digits}");
            let other = Process::on(&double);
            assert_eq!(other.get("k").await, Some(round), "{digits}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn many_who_find_a_damaged_value_replace_it_once() {
    let (double, origin) = (Double::new(), Origin::taking(50 * MS));
    double.set_raw(&k(), vec![b'7'; 200]);
    let processes: Vec<_> = (0..8).map(|_| Process::on(&double)).collect();
    let answers = herd(8 * 20, |i| {
        let (one, origin) = (processes[i % 8].clone(), origin.clone());
        async move { one.load(&origin).await }
    });
    assert!(answers.await.into_iter().all(|answer| answer == 1));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_value_from_a_server_whose_clock_ran_ahead_is_a_miss_and_replaced() {
    let (ahead, origin) = (Double::new(), Origin::new());
    pass(60 * MINUTE).await;
    Process::on(&ahead).load(&origin).await;
    all_have_run().await;
    let from_the_future = ahead.process().get(&k()).await.unwrap().unwrap();

    let double = Double::new();
    double.set_raw(&k(), from_the_future);
    assert_eq!(Process::on(&double).load(&origin).await, 2);
    all_have_run().await;
    assert_eq!(Process::on(&double).load(&origin).await, 2);
}
