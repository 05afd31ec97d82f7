//! Requests that may be served a stale response, and wait a while for the new one.

use std::time::Duration;

use crate::kit::http::*;
use tower_stampede::remote::{Double, RemoteSettings};
use tower_stampede::{CacheOutcome, HttpStampede, Stampede};

const MS: Duration = Duration::from_millis(1);

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
async fn a_response_within_the_soft_time_out_is_fresh_and_after_it_stale() {
    for (takes, text, outcome) in
        [(100 * MS, "2", CacheOutcome::Computed), (1000 * MS, "1", CacheOutcome::Stale)]
    {
        let origin = numbered(SWR, takes);
        let app = layered(cache().http_layer(), &origin);
        assert_eq!(send(&app, get("/p")).await.text(), "1", "nothing to serve: it is waited for");
        pass(Duration::from_secs(90)).await;
        let reply = send(&app, get("/p")).await;
        assert_eq!((reply.text(), reply.took), (text, takes.min(300 * MS)), "{reply:?}");
        assert!(reply.is(outcome), "{reply:?}");
        // The work goes on.
        pass(Duration::from_secs(2)).await;
        assert_eq!(send(&app, get("/p")).await.text(), "2");
        assert_eq!(origin.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_crowd_with_a_soft_time_out_is_one_call() {
    for (takes, text) in [(100 * MS, "2"), (1000 * MS, "1")] {
        let origin = numbered(SWR, takes);
        let app = layered(cache().http_layer(), &origin);
        send(&app, get("/p")).await;
        pass(Duration::from_secs(90)).await;
        let replies = crowd(&app, 200, |_| get("/p")).await;
        assert!(replies.iter().all(|reply| reply.text() == text));
        assert!(slowest(&replies) <= takes.min(300 * MS));
        pass(Duration::from_secs(2)).await;
        assert_eq!(origin.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_for_failures_alone_is_served_after_the_soft_time_out() {
    let origin = numbered("max-age=60, stale-if-error=1200", 1000 * MS);
    let app = layered(cache().http_layer(), &origin);
    send(&app, get("/p")).await;
    pass(Duration::from_secs(90)).await;
    let reply = send(&app, get("/p")).await;
    assert_eq!((reply.text(), reply.took), ("1", 300 * MS));
    assert!(reply.is(CacheOutcome::StaleIfError), "{reply:?}");
}

#[tokio::test(start_paused = true)]
async fn what_may_not_be_served_stale_is_waited_for() {
    for fields in ["max-age=60", "max-age=60, must-revalidate, stale-if-error=600"] {
        let origin = numbered(fields, 1000 * MS);
        let app = layered(cache().http_layer(), &origin);
        send(&app, get("/p")).await;
        pass(Duration::from_secs(90)).await;
        assert_eq!(send(&app, get("/p")).await.text(), "2", "{fields}");
    }
    let origin = numbered(SWR, 1000 * MS);
    let app = layered(cache().http_layer().honour_request_directives(true), &origin);
    send(&app, get("/p")).await;
    pass(Duration::from_secs(90)).await;
    assert_eq!(send(&app, with("/p", &[("cache-control", "no-cache")])).await.text(), "2");
}

#[tokio::test(start_paused = true)]
async fn an_invalidated_response_is_not_served_at_the_end_of_the_soft_time_out() {
    let (cache, origin) = (cache(), numbered(SWR, 1000 * MS));
    let app = layered(cache.http_layer(), &origin);
    send(&app, get("/p")).await;
    pass(Duration::from_secs(90)).await;
    let (asking, request) = (app.clone(), get("/p"));
    let asked = crate::kit::spawn(async move { send(&asking, request).await });
    pass(100 * MS).await;
    cache.invalidate_path("/p").await;
    assert_ne!(asked.await.unwrap().text(), "1");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_finds_a_stale_response_in_the_remote_waits_for_the_new_one() {
    let double = Double::new();
    let process = || {
        let builder = Stampede::builder("web").origin_only().jitter(0.0).soft_timeout(300 * MS);
        builder.remote(double.process(), RemoteSettings::new()).build().unwrap()
    };
    for takes in [100 * MS, 1000 * MS] {
        let (one, two, origin) = (process(), process(), numbered(SWR, takes));
        let path = format!("/{takes:?}");
        let first = layered(one.http_layer(), &origin);
        assert_eq!(send(&first, get(&path)).await.text(), "1");
        pass(Duration::from_secs(90)).await;
        let second = layered(two.http_layer(), &origin);
        let reply = send(&second, get(&path)).await;
        let text = if takes == 100 * MS { "2" } else { "1" };
        assert_eq!(reply.text(), text, "{reply:?}");
        assert!(reply.took <= 310 * MS, "{reply:?}");
        pass(Duration::from_secs(2)).await;
        assert_eq!(send(&second, get(&path)).await.text(), "2");
        assert_eq!(origin.calls(), 2);
    }
}
