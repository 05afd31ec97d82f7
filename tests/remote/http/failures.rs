//! Origins that fail, in many processes.

use std::time::Duration;

use tokio::task::JoinHandle;
use tower_layer::Layer;
use tower_stampede::remote::Double;
use tower_stampede::{CacheOutcome, HttpStampede, Mode};

use super::{App, everywhere, joined, process, processes, settings};
use crate::kit::http::{
    Answer, Origin, WORK, crowd, get, ms, pass, request, secs, send, slowest, try_send, with,
};
use crate::kit::spawn;

fn good() -> Origin {
    Origin::new(|call| Answer::ok("max-age=10, stale-if-error=600", format!("good {}", call.n)))
}

#[tokio::test(start_paused = true)]
async fn a_stale_response_stands_in_for_a_failure_in_every_process() {
    let (double, origin) = (Double::new(), good());
    let mut apps = processes(&double, &origin, 2);
    everywhere(&apps, 1, |_| get("http://a/x")).await;
    pass(secs(20)).await;
    origin.answers(|_| Answer::status(500));
    // One that has nothing yet.
    apps.push(process(&double, &origin));
    for app in apps.iter().rev() {
        let replies = crowd(app, 10, |_| get("http://a/x")).await;
        let stale = |reply: &crate::kit::http::Reply| {
            reply.text() == "good 0" && reply.is(CacheOutcome::StaleIfError)
        };
        assert!(replies.iter().all(stale), "{replies:?}");
    }
    // The hold after the first failure is for all.
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_dead_origin_sees_a_handful_of_attempts_and_comes_back() {
    let (double, origin) = (Double::new(), good());
    let apps = processes(&double, &origin, 4);
    everywhere(&apps, 1, |_| get("http://a/x")).await;
    pass(secs(20)).await;
    origin.answers(|_| Answer::error());
    for _ in 0..30 {
        let replies = everywhere(&apps, 5, |_| get("http://a/x")).await;
        assert!(replies.iter().all(|reply| reply.text() == "good 0"));
        pass(secs(1)).await;
    }
    assert!(origin.calls() < 40, "{}", origin.calls());
    origin.answers(|_| Answer::ok("max-age=10", "back"));
    pass(secs(61)).await;
    everywhere(&apps, 1, |_| get("http://a/x")).await;
    let replies = everywhere(&apps, 1, |_| get("http://a/x")).await;
    assert!(replies.iter().all(|reply| reply.text() == "back"), "{replies:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cold_failure_is_one_call_per_process_and_goes_to_all_its_waiters() {
    let origin = Origin::new(|_| Answer::status(503).body("busy"));
    let double = Double::new();
    let apps = processes(&double, &origin, 3);
    let replies = everywhere(&apps, 20, |_| get("http://a/x")).await;
    assert!(replies.iter().all(|reply| (reply.status, reply.text()) == (503, "busy")));
    assert!(origin.calls() <= 3, "{}", origin.calls());
    // Nothing to serve: no hold after the first failure.
    origin.answers(|_| Answer::ok("max-age=60", "back"));
    assert_eq!(send(&apps[2], get("http://a/x")).await.text(), "back");
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_may_be_stored_is_one_call_for_all() {
    let origin =
        Origin::new(|_| Answer::status(503).header("cache-control", "max-age=5").body("busy"));
    let double = Double::new();
    let apps = processes(&double, &origin, 4);
    let replies = everywhere(&apps, 20, |_| get("http://a/x")).await;
    assert!(replies.iter().all(|reply| reply.status == 503 && reply.text() == "busy"));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_may_be_stored_replaces_nothing_good_in_the_remote() {
    let (double, origin) = (Double::new(), good());
    let apps = processes(&double, &origin, 2);
    everywhere(&apps, 1, |_| get("http://a/x")).await;
    pass(secs(20)).await;
    origin.answers(|_| Answer::status(503).header("cache-control", "public, max-age=60"));
    // Alice may not have the good one; it is the others' all the same.
    let fresh = process(&double, &origin);
    let alice = send(&fresh, with("http://a/x", &[("authorization", "alice")])).await;
    assert_eq!(alice.status, 503);
    pass(ms(1)).await;
    let reply = send(&process(&double, &origin), get("http://a/x")).await;
    assert_eq!(reply.text(), "good 0");
}

#[tokio::test(start_paused = true)]
async fn a_panic_elsewhere_elects_another_process() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::panic(),
        _ => Answer::ok("max-age=60", "good"),
    });
    let double = Double::new();
    let apps = processes(&double, &origin, 2);
    let app = apps[0].clone();
    let unlucky = spawn(async move { send(&app, get("http://a/x")).await });
    pass(ms(1)).await;
    let replies = crowd(&apps[1], 10, |_| get("http://a/x")).await;
    assert!(replies.iter().all(|reply| reply.text() == "good"));
    assert!(slowest(&replies) < 2 * WORK + ms(10), "{:?}", slowest(&replies));
    assert!(unlucky.await.is_err());
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_missing_page_that_may_not_be_stored_concerns_each_process_for_itself() {
    let origin = Origin::new(|_| Answer::status(404).header("cache-control", "no-store"));
    let double = Double::new();
    let apps = processes(&double, &origin, 2);
    let replies = everywhere(&apps, 10, |_| get("http://a/x")).await;
    assert!(replies.iter().all(|reply| reply.status == 404));
    assert!(slowest(&replies) < 8 * WORK, "{:?}", slowest(&replies));
}

#[tokio::test(start_paused = true)]
async fn a_head_request_of_a_held_page_finds_what_another_process_has_computed() {
    let (double, origin) = (Double::new(), Origin::new(|_| Answer::error()));
    let apps = processes(&double, &origin, 2);
    // Two lost connections hold the page in the first process. In the remote the hold is lost.
    for _ in 0..2 {
        let _ = try_send(&apps[0], get("http://a/x")).await;
        pass(ms(10)).await;
    }
    double.flush();
    pass(ms(10)).await;
    origin.answers(|_| Answer::ok("max-age=600", "page"));
    assert_eq!(send(&apps[1], get("http://a/x")).await.text(), "page");
    pass(ms(10)).await;
    let calls = origin.calls();
    for (method, text) in [("HEAD", ""), ("GET", "page")] {
        let reply = send(&apps[0], request(method, "http://a/x", &[])).await;
        assert_eq!((reply.status, reply.text()), (200, text), "{method}: {reply:?}");
    }
    assert_eq!(origin.calls(), calls, "the origin is not asked");
}

/// A process whose origin has failed twice, so that the page is held; nothing is in the
/// remote, and the origin is well again.
async fn that_holds(double: &Double, hold: Duration) -> (HttpStampede, App, Origin) {
    let origin = Origin::new(|_| Answer::error());
    let cache = joined(double, settings().hold(hold));
    let app = cache.http_layer().layer(origin.clone());
    for _ in 0..2 {
        let _ = try_send(&app, get("http://a/x")).await;
        pass(ms(10)).await;
    }
    double.flush();
    pass(ms(10)).await;
    origin.answers(|_| Answer::ok("max-age=600", "page"));
    (cache, app, origin)
}

/// Begins a request that looks into a slow remote.
async fn looking(app: &App, method: &'static str, look: Duration) -> JoinHandle<u16> {
    let looks = spawn({
        let app = app.clone();
        async move { send(&app, request(method, "http://a/x", &[])).await.status }
    });
    pass(look).await;
    looks
}

#[tokio::test(start_paused = true)]
async fn a_held_request_that_looks_into_the_remote_is_not_refused_once_the_cache_is_off() {
    for (method, mode) in
        [("GET", Mode::Off), ("HEAD", Mode::Off), ("GET", Mode::Observe), ("HEAD", Mode::Observe)]
    {
        let double = Double::new();
        let (cache, app, _origin) = that_holds(&double, secs(30)).await;
        double.delay(ms(50));
        let looks = looking(&app, method, ms(10)).await;
        cache.set_mode(mode);
        assert_eq!(looks.await.unwrap(), 200, "{method} {mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_after_the_end_of_a_hold_is_not_refused_with_one_that_looked_before_it() {
    for method in ["GET", "HEAD"] {
        let double = Double::new();
        let (_cache, app, origin) = that_holds(&double, secs(1)).await;
        let calls = origin.calls();
        // 20 ms have passed since the second failure.
        pass(ms(960)).await;
        double.delay(ms(90));
        let looks = looking(&app, method, ms(30)).await;
        assert_eq!(send(&app, get("http://a/x")).await.status, 200, "after a {method}");
        assert_eq!(origin.calls() - calls, 1);
        looks.await.unwrap();
    }
}
