//! Ranges and HEADs at many processes.

use std::collections::HashSet;

use tower_stampede::CacheOutcome::*;
use tower_stampede::remote::{Double, RemoteOp};

use super::{everywhere, processes};
use crate::kit::http::{Answer, Origin, WORK, get, pass, request, secs, send, with};

const FILE: &str = "http://a/file";

fn range(range: &str) -> http::Request<axum::body::Body> {
    with(FILE, &[("range", range)])
}

fn head() -> http::Request<axum::body::Body> {
    request("HEAD", FILE, &[])
}

/// Sends a part where a part is asked for, and a whole of so many bytes.
fn origin_of(length: usize) -> Origin {
    Origin::new(move |call| match call.header("range") {
        Some(_) => Answer::status(206).body("own"),
        None => Answer::ok("max-age=60", "x".repeat(length)).header("etag", "\"a\""),
    })
}

#[tokio::test(start_paused = true)]
async fn a_cold_crowd_of_ranges_at_many_processes_is_one_request_for_the_whole() {
    let (double, origin) = (Double::new(), origin_of(1000));
    let apps = processes(&double, &origin, 8);
    let replies = everywhere(&apps, 50, |i| range(&format!("bytes={i}-{}", i + 9))).await;
    assert!(replies.iter().all(|reply| reply.status == 206 && reply.text() == "xxxxxxxxxx"));
    assert_eq!((origin.calls(), origin.last().header("range")), (1, None));
    // The whole travels, and no part.
    assert_eq!(double.calls(RemoteOp::Fill), 1);
    let late = processes(&double, &origin, 1);
    assert_eq!(send(&late[0], get(FILE)).await.body.len(), 1000);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_whole_that_is_too_long_costs_each_process_at_most_one_more_request() {
    let (double, origin) = (Double::new(), origin_of(2 << 20));
    let apps = processes(&double, &origin, 4);
    for wave in 1..=2 {
        let replies = everywhere(&apps, 50, |_| range("bytes=0-2")).await;
        assert!(replies.iter().all(|reply| reply.status == 206 && reply.text() == "own"));
        assert!(origin.calls() <= 200 * wave + 4, "{} calls", origin.calls());
    }
}

/// Answers 200 in the language that is asked for, and may be stored once: before anything expires.
fn no_longer_stored() -> Origin {
    Origin::new(|call| {
        let directives = if call.n == 0 { "max-age=1, must-revalidate" } else { "no-store" };
        Answer::ok(directives, "x").header("vary", "accept-language").header("etag", "\"a\"")
    })
}

#[tokio::test(start_paused = true)]
async fn ranges_of_what_is_no_longer_stored_take_two_waves_at_many_processes() {
    for languages in [&["de"][..], &["de", "en"]] {
        let (double, origin) = (Double::new(), no_longer_stored());
        let apps = processes(&double, &origin, 3);
        send(&apps[0], with(FILE, &[("accept-language", "de")])).await;
        pass(secs(2)).await;
        let ask = |i: usize| {
            let fields =
                [("accept-language", languages[i % languages.len()]), ("range", "bytes=0-9,20-29")];
            with(FILE, &fields)
        };
        let replies = everywhere(&apps, 40, ask).await;
        let slowest = replies.iter().map(|reply| reply.took).max().unwrap();
        assert!(replies.iter().all(|reply| reply.status == 200), "{replies:?}");
        assert!(slowest < WORK * 5 / 2, "{slowest:?} with {languages:?}");
        // The first request for the whole of each variant, and each client's own.
        let most = 1 + languages.len() + replies.len();
        assert!(origin.calls() <= most, "{} calls with {languages:?}", origin.calls());
    }
}

#[tokio::test(start_paused = true)]
async fn a_crowd_of_heads_is_one_head_for_each_process_and_takes_no_lease() {
    let (double, origin) = (Double::new(), origin_of(0));
    let apps = processes(&double, &origin, 2);
    let replies = everywhere(&apps, 250, |_| head()).await;
    assert!(replies.iter().all(|reply| reply.status == 200));
    let methods: HashSet<_> = origin.seen().into_iter().map(|call| call.parts.method).collect();
    assert_eq!((origin.calls(), methods), (2, HashSet::from([http::Method::HEAD])));
    assert_eq!((double.calls(RemoteOp::Acquire), double.calls(RemoteOp::Fill)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn heads_and_ranges_are_answered_by_what_another_process_has_stored() {
    let (double, origin) = (Double::new(), origin_of(1000));
    let apps = processes(&double, &origin, 3);
    send(&apps[0], get(FILE)).await;
    let reply = send(&apps[1], head()).await;
    assert!(reply.is(Hit) && reply.header("content-length") == Some("1000"), "{reply:?}");
    let reply = send(&apps[2], range("bytes=998-,0-0")).await;
    assert!(reply.is(Hit) && reply.status == 206, "{reply:?}");
    assert_eq!(origin.calls(), 1);
}
