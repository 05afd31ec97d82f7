//! Validation with a remote.

use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::remote::{Double, RemoteErrorKind, RemoteOp, RemoteSettings};
use tower_stampede::{HttpService, HttpStampede, Stampede};

use super::{TAG, is_conditional, not_modified, origin, report};
use crate::kit::http::*;

fn process(double: &Double) -> HttpStampede {
    let remote = double.process();
    Stampede::builder("web").origin_only().remote(remote, RemoteSettings::new()).build().unwrap()
}

fn processes(double: &Double, origin: &Origin, n: usize) -> Vec<HttpService<Origin>> {
    (0..n).map(|_| process(double).http_layer().layer(origin.clone())).collect()
}

#[tokio::test(start_paused = true)]
async fn what_one_process_confirms_the_others_have() {
    let (double, origin) = (Double::new(), origin());
    let apps = processes(&double, &origin, 3);
    for app in &apps {
        send(app, get("http://a/x")).await;
    }
    assert_eq!(origin.calls(), 1);
    pass(secs(11)).await;
    double.forget_calls();
    let all = tokio::join!(
        crowd(&apps[0], 20, |_| get("http://a/x")),
        crowd(&apps[1], 20, |_| get("http://a/x")),
        crowd(&apps[2], 20, |_| get("http://a/x")),
    );
    assert_eq!(origin.calls(), 2);
    assert!(is_conditional(&origin.last()));
    for replies in [all.0, all.1, all.2] {
        assert!(replies.iter().all(|reply| reply.status == 200 && reply.text() == "report"));
    }
    assert_eq!(double.calls(RemoteOp::Fill), 1);
    // With times that began anew.
    pass(secs(8)).await;
    let newcomer = &processes(&double, &origin, 1)[0];
    for app in apps.iter().chain([newcomer]) {
        assert!(send(app, get("http://a/x")).await.is(Hit));
    }
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_never_held_it_asks_about_what_it_finds_in_the_remote() {
    let (double, origin) = (Double::new(), origin());
    let apps = processes(&double, &origin, 2);
    send(&apps[0], get("http://a/x")).await;
    pass(secs(300)).await;
    let replies = crowd(&apps[1], 20, |_| get("http://a/x")).await;
    assert!(replies.iter().all(|reply| reply.status == 200 && reply.text() == "report"));
    assert_eq!(origin.calls(), 2);
    assert_eq!(origin.last().header("if-none-match"), Some(TAG));
    // Read and written once more, it can still be asked about.
    pass(secs(300)).await;
    send(&processes(&double, &origin, 1)[0], get("http://a/x")).await;
    assert!(is_conditional(&origin.last()));
    pass(secs(700)).await;
    send(&processes(&double, &origin, 1)[0], get("http://a/x")).await;
    assert!(!is_conditional(&origin.last()));
}

#[tokio::test(start_paused = true)]
async fn what_each_must_ask_about_is_asked_about_once_in_every_process() {
    let origin = Origin::new(|call| match is_conditional(call) {
        true => not_modified().header("etag", TAG),
        false => Answer::ok("no-cache", "report").header("etag", TAG),
    });
    let double = Double::new();
    let apps = processes(&double, &origin, 3);
    send(&apps[0], get("http://a/x")).await;
    pass(secs(60)).await;
    let all = tokio::join!(
        crowd(&apps[0], 10, |_| get("http://a/x")),
        crowd(&apps[1], 10, |_| get("http://a/x")),
        crowd(&apps[2], 10, |_| get("http://a/x")),
    );
    assert_eq!(origin.calls(), 1 + 3);
    for replies in [all.0, all.1, all.2] {
        assert!(replies.iter().all(|reply| reply.status == 200 && reply.text() == "report"));
        assert!(slowest(&replies) <= WORK * 2, "{:?}", slowest(&replies));
    }
    assert!(origin.seen().iter().filter(|call| is_conditional(call)).count() >= 1);
}

#[tokio::test(start_paused = true)]
async fn what_may_not_be_stored_any_more_leaves_the_remote_too() {
    let origin = Origin::new(|call| match is_conditional(call) {
        true => not_modified().header("cache-control", "no-store"),
        false => report().header("cache-control", "stale-while-revalidate=0, stale-if-error=600"),
    });
    let double = Double::new();
    let apps = processes(&double, &origin, 2);
    send(&apps[0], get("http://a/x")).await;
    pass(secs(11)).await;
    assert_eq!(send(&apps[0], get("http://a/x")).await.text(), "report");
    origin.answers(|_| Answer::status(503));
    pass(ms(10)).await;
    // Nothing is left that could stand in.
    assert_eq!(send(&apps[1], get("http://a/x")).await.status, 503);
    assert!(!is_conditional(&origin.last()));
}

#[tokio::test(start_paused = true)]
async fn a_remote_that_is_away_keeps_nobody_from_asking() {
    let (double, origin) = (Double::new(), origin());
    let apps = processes(&double, &origin, 1);
    send(&apps[0], get("http://a/x")).await;
    pass(secs(11)).await;
    double.fail(RemoteOp::ALL, RemoteErrorKind::Connection);
    let replies = crowd(&apps[0], 20, |_| get("http://a/x")).await;
    assert!(replies.iter().all(|reply| reply.status == 200 && reply.text() == "report"));
    assert_eq!(origin.calls(), 2);
    assert!(is_conditional(&origin.last()));
}
