//! Soft time-outs of requests of each kind, of those that are shorter than a round trip, and their
//! counts.

use std::time::Duration;

use crate::kit::http::*;
use tower_stampede::remote::{Double, RemoteSettings};
use tower_stampede::{CacheOutcome, HttpStampede, Stampede};

const MS: Duration = Duration::from_millis(1);

/// A name, a method, and fields of a request.
type Kind = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

fn cache() -> HttpStampede {
    Stampede::builder("web").origin_only().jitter(0.0).soft_timeout(300 * MS).build().unwrap()
}

/// An origin whose n-th response is `n`, and takes this long.
fn numbered(fields: &'static str, takes: Duration) -> Origin {
    let calls = std::sync::atomic::AtomicUsize::default();
    Origin::new(move |_| {
        let call = calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1;
        Answer::ok(fields, call.to_string()).after(takes)
    })
}

const SWR: &str = "max-age=60, stale-while-revalidate=600, stale-if-error=1200";

#[tokio::test(start_paused = true)]
async fn requests_of_each_kind_get_the_stale_response_in_time_and_cost_one_call() {
    let kinds: [Kind; 7] = [
        ("plain", "GET", &[]),
        ("head", "HEAD", &[]),
        ("range", "GET", &[("range", "bytes=0-0")]),
        ("condition", "GET", &[("if-none-match", "\"x\"")]),
        ("credentials", "GET", &[("authorization", "Basic eDp5")]),
        ("cookie", "GET", &[("cookie", "a=b")]),
        ("only-if-cached", "GET", &[("cache-control", "only-if-cached")]),
    ];
    let mut wrong = Vec::new();
    for (kind, method, fields) in kinds {
        let origin = numbered("public, max-age=60, stale-while-revalidate=600", 1000 * MS);
        let cache = cache();
        let app = layered(cache.http_layer().honour_request_directives(true), &origin);
        send(&app, get("/p")).await;
        pass(Duration::from_secs(90)).await;
        let mut request = with("/p", fields);
        *request.method_mut() = method.parse().unwrap();
        let reply = send(&app, request).await;
        let took = reply.took;
        pass(Duration::from_secs(5)).await;
        let calls = origin.calls();
        send(&app, get("/p")).await;
        if took > 300 * MS || calls > 2 {
            wrong.push((kind, took, calls));
        }
        pass(Duration::from_secs(5)).await;
        let stats = cache.stats();
        if (stats.flights, stats.waiting) != (0, 0) {
            wrong.push((kind, took, 99));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stale_response_that_the_remote_sends_after_the_soft_time_out_is_served_at_once() {
    let double = Double::new();
    let process = || {
        let builder = Stampede::builder("web").origin_only().jitter(0.0).soft_timeout(2 * MS);
        builder.remote(double.process(), RemoteSettings::new()).build().unwrap()
    };
    let (one, two, origin) = (process(), process(), numbered(SWR, 10_000 * MS));
    let first = layered(one.http_layer(), &origin);
    assert_eq!(send(&first, get("/p")).await.text(), "1");
    let second = layered(two.http_layer(), &origin);
    assert_eq!(send(&second, get("/other")).await.text(), "2");
    pass(Duration::from_secs(90)).await;
    double.delay(5 * MS);
    let reply = send(&second, get("/p")).await;
    assert_eq!(reply.text(), "1", "{reply:?}");
    assert!(reply.took <= 50 * MS, "{reply:?}");
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_for_less_than_a_round_trip_do_not_leave_a_response_unrefreshed() {
    let double = Double::new();
    let builder = Stampede::builder("web").origin_only().jitter(0.0).soft_timeout(2 * MS);
    let cache = builder.remote(double.process(), RemoteSettings::new()).build().unwrap();
    let origin = numbered(SWR, 10 * MS);
    let app = layered(cache.http_layer(), &origin);
    assert_eq!(send(&app, get("/p")).await.text(), "1");
    pass(Duration::from_secs(90)).await;
    double.delay(5 * MS);
    for _ in 0..100 {
        send(&app, get("/p")).await;
        pass(100 * MS).await;
    }
    assert_eq!(send(&app, get("/p")).await.text(), "2");
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn each_request_with_a_soft_time_out_is_counted_once() {
    for (takes, requests) in [(100 * MS, 50), (1000 * MS, 50)] {
        let (cache, origin) = (cache(), numbered(SWR, takes));
        let app = layered(cache.http_layer(), &origin);
        send(&app, get("/p")).await;
        pass(Duration::from_secs(90)).await;
        crowd(&app, requests, |_| get("/p")).await;
        pass(Duration::from_secs(5)).await;
        let s = cache.stats();
        let sum = s.hits + s.stale + s.stale_if_error + s.computed + s.joined + s.alone + s.refused;
        assert_eq!(sum, requests as u64 + 1, "{s:?}");
        assert_eq!((s.flights, s.waiting), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_that_may_not_be_shared_is_asked_for_once_by_each_request() {
    let origin = Origin::new(move |_| Answer::ok("private, max-age=60", "p").after(1000 * MS));
    let app = layered(cache().http_layer(), &origin);
    send(&app, get("/p")).await;
    let reply = send(&app, get("/p")).await;
    assert_eq!(reply.text(), "p");
    assert!(!reply.is(CacheOutcome::Stale));
    assert_eq!(origin.calls(), 2);
}
