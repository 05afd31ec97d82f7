//! What clients may ask of the cache by `Cache-Control` and `Pragma`.

use std::time::Duration;

use axum::body::Body;
use tower_stampede::CacheOutcome::*;
use tower_stampede::Mode;

use crate::kit::http::*;
use crate::kit::spawn;

const REPORT: &str = "http://x/report";

fn asking(directives: &str) -> http::Request<Body> {
    with(REPORT, &[("cache-control", directives)])
}

fn numbered(directives: &'static str) -> Origin {
    Origin::new(move |call| Answer::ok(directives, call.n.to_string()))
}

// ===== only-if-cached =====

#[tokio::test(start_paused = true)]
async fn a_client_that_only_wants_what_is_stored_never_waits() {
    // RFC 9111, 5.2.1.7
    let origin = numbered("max-age=60");
    let app = app(&origin);
    let reply = send(&app, asking("only-if-cached")).await;
    assert_eq!((reply.status, reply.took), (504, Duration::ZERO));
    assert!(reply.is(Refused));
    assert_eq!(reply.cache_status(), "tower-stampede; detail=only-if-cached");
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    assert_eq!(origin.calls(), 0);
    // Nor for what others are waiting for.
    let replies = crowd(&app, 5, |i| if i == 0 { get(REPORT) } else { asking("Only-If-Cached") });
    let replies = replies.await;
    assert_eq!(replies[0].status, 200);
    for reply in &replies[1..] {
        assert_eq!((reply.status, reply.took), (504, Duration::ZERO));
    }
    let reply = send(&app, asking("only-if-cached")).await;
    assert!(reply.is(Hit) && reply.text() == "0");
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_stale_is_what_is_stored_only_where_it_may_be_served() {
    for (directives, status) in [
        ("max-age=10", 504),
        ("max-age=10, stale-if-error=60", 504),
        ("max-age=10, stale-while-revalidate=60", 200),
    ] {
        let origin = numbered(directives);
        let app = app(&origin);
        send(&app, get(REPORT)).await;
        pass(secs(20)).await;
        let reply = send(&app, asking("only-if-cached")).await;
        assert_eq!((reply.status, reply.took), (status, Duration::ZERO), "{directives}");
        pass(WORK * 2).await;
        let refreshed = status == 200;
        assert_eq!(origin.calls(), if refreshed { 2 } else { 1 });
        assert_eq!(origin.last().header("cache-control"), None, "a cache behind us would refuse");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_only_wants_what_is_stored_gets_its_own_shape_of_it() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "report").header("etag", "\"a\""));
    let app = app(&origin);
    send(&app, get(REPORT)).await;
    let directive = ("cache-control", "only-if-cached");
    let reply = send(&app, with(REPORT, &[directive, ("if-none-match", "\"a\"")])).await;
    assert_eq!(reply.status, 304);
    let reply = send(&app, with(REPORT, &[directive, ("range", "bytes=0-1")])).await;
    assert_eq!((reply.status, reply.text()), (206, "re"));
    for request in [
        with("http://x/cold", &[directive, ("range", "bytes=0-1")]),
        request("HEAD", "http://x/cold", &[directive]),
        with("http://x/cold", &[directive, ("cache-control", "no-store")]),
        with(REPORT, &[directive, ("authorization", "mine")]),
    ] {
        assert_eq!(send(&app, request).await.status, 504);
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_is_switched_off_forwards_what_only_wants_what_is_stored() {
    let cache = origin_only();
    let origin = numbered("max-age=60");
    let app = layered(cache.http_layer(), &origin);
    cache.set_mode(Mode::Off);
    assert_eq!(send(&app, asking("only-if-cached")).await.text(), "0");
    assert_eq!(origin.last().header("cache-control"), Some("only-if-cached"));
}

// ===== no-store =====

#[tokio::test(start_paused = true)]
async fn what_must_not_be_stored_is_answered_from_the_store_or_alone() {
    // RFC 9111, 5.2.1.5
    let origin = numbered("max-age=60, stale-while-revalidate=60");
    let app = app(&origin);
    for n in 0..2 {
        let reply = send(&app, asking("no-store")).await;
        assert!(reply.is(Bypass) && reply.text() == n.to_string());
        assert!(reply.cache_status().ends_with("fwd=bypass; fwd-status=200; detail=no-store"));
        assert_eq!(origin.last().header("cache-control"), Some("no-store"));
    }
    send(&app, get(REPORT)).await;
    assert!(send(&app, asking("no-store")).await.is(Hit));
    pass(secs(90)).await;
    assert!(send(&app, asking("no-store")).await.is(Bypass), "it is fresh no more");
    assert_eq!(origin.calls(), 4);
    assert_eq!(send(&app, get(REPORT)).await.text(), "2", "and was not replaced");
}

#[tokio::test(start_paused = true)]
async fn what_must_not_be_stored_waits_for_nobody_and_nobody_for_it() {
    let origin = numbered("max-age=60");
    let app = app(&origin);
    let replies = crowd(&app, 6, |i| match i % 2 {
        0 => asking("no-store"),
        _ => get(REPORT),
    });
    let replies = replies.await;
    assert!(replies.iter().step_by(2).all(|reply| reply.is(Bypass)));
    assert_eq!(slowest(&replies), WORK);
    assert_eq!(origin.calls(), 4);
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_field_counts_as_the_strictest() {
    let origin = numbered("max-age=60");
    let app = app(&origin);
    assert!(send(&app, asking("max-age=0; no-store")).await.is(Bypass));
    assert!(send(&app, get(REPORT)).await.is(Computed));
}

// ===== Ignored by default =====

#[tokio::test(start_paused = true)]
async fn clients_cannot_drive_the_origin() {
    // http.md 4.8
    let origin = numbered("max-age=60");
    let app = app(&origin);
    send(&app, get(REPORT)).await;
    pass(secs(5)).await;
    for fields in [
        ("cache-control", "no-cache"),
        ("cache-control", "max-age=0"),
        ("cache-control", "min-fresh=600"),
        ("pragma", "no-cache"),
        ("pragma", "x"),
    ] {
        assert!(send(&app, with(REPORT, &[fields])).await.is(Hit), "{fields:?}");
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn clients_cannot_widen_a_window() {
    let origin = numbered("max-age=10");
    let app = app(&origin);
    send(&app, get(REPORT)).await;
    pass(secs(20)).await;
    for directives in ["max-stale", "max-stale=600"] {
        assert!(!send(&app, asking(directives)).await.is(Hit));
        pass(secs(20)).await;
    }
    assert_eq!(origin.calls(), 3);
}

// ===== Honoured by choice =====

fn honouring(origin: &Origin) -> tower_stampede::HttpService<Origin> {
    layered(origin_only().http_layer().honour_request_directives(true), origin)
}

#[tokio::test(start_paused = true)]
async fn a_demand_for_something_newer_is_honoured_where_that_is_switched_on() {
    // RFC 9111, 5.2.1 and 5.4
    for (fields, is_hit) in [
        (&[("cache-control", "no-cache")][..], false),
        (&[("pragma", "no-cache")], false),
        (&[("pragma", "no-cache"), ("cache-control", "x")], true),
        (&[("cache-control", "max-age=0")], false),
        (&[("cache-control", "max-age=4")], false),
        (&[("cache-control", "max-age=10")], true),
        (&[("cache-control", "min-fresh=10")], true),
        (&[("cache-control", "min-fresh=59")], false),
        (&[("cache-control", "max-stale=9")], true),
    ] {
        let origin = numbered("max-age=60");
        let app = honouring(&origin);
        send(&app, get(REPORT)).await;
        pass(secs(5)).await;
        let reply = send(&app, with(REPORT, fields)).await;
        assert_eq!(reply.is(Hit), is_hit, "{fields:?}");
        assert_eq!(reply.text(), if is_hit { "0" } else { "1" });
        if !is_hit {
            let status = "tower-stampede; fwd=request; fwd-status=200; stored";
            assert_eq!(reply.cache_status(), status);
        }
        assert_eq!(send(&app, get(REPORT)).await.text(), reply.text(), "it fills for all");
    }
}

#[tokio::test(start_paused = true)]
async fn a_crowd_with_demands_costs_two_calls() {
    let origin = numbered("max-age=60");
    let app = honouring(&origin);
    send(&app, get(REPORT)).await;
    for wave in 0..3 {
        pass(secs(1)).await;
        let before = crowd(&app, 100, |_| asking("no-cache"));
        let after = async {
            pass(WORK / 2).await;
            crowd(&app, 100, |_| asking("no-cache")).await
        };
        let (before, after) = tokio::join!(before, after);
        for reply in &before {
            assert_eq!(reply.text(), (2 * wave + 1).to_string());
        }
        for reply in &after {
            assert_eq!(reply.text(), (2 * wave + 2).to_string(), "sent after it came");
        }
        assert_eq!((slowest(&before), slowest(&after)), (WORK, WORK * 3 / 2));
    }
    assert_eq!(origin.calls(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_reloads_a_second_cost_two_calls_per_origin_time_at_most() {
    for directive in ["no-cache", "max-age=0"] {
        let origin =
            Origin::new(|call| Answer::ok("max-age=60", call.n.to_string()).after(ms(300)));
        let app = honouring(&origin);
        let mut reloads = Vec::new();
        for _ in 0..3_000 {
            let (app, before) = (app.clone(), origin.calls());
            let reload = async move { (before, send(&app, asking(directive)).await) };
            reloads.push(spawn(reload));
            pass(ms(1)).await;
        }
        for reload in reloads {
            let (before, reply) = reload.await.unwrap();
            let n: usize = reply.text().parse().unwrap();
            assert!(n >= before, "{directive}: call {n} began before the request came");
            assert!(reply.took <= ms(600), "{directive}: {:?}", reply.took);
        }
        // 3 s are 10 origin times.
        assert!(origin.calls() <= 20, "{directive}: {} calls", origin.calls());
    }
}

#[tokio::test(start_paused = true)]
async fn what_began_before_a_request_came_is_not_its_answer() {
    let origin = numbered("max-age=60");
    let app = honouring(&origin);
    let first = send(&app, get(REPORT));
    let later = async {
        pass(WORK / 2).await;
        crowd(&app, 3, |i| match i {
            0 => asking("max-age=0"),
            1 => asking("max-age=5"),
            _ => get(REPORT),
        })
        .await
    };
    let (first, later) = tokio::join!(first, later);
    let texts: Vec<_> = std::iter::once(&first).chain(&later).map(Reply::text).collect();
    assert_eq!(texts, ["0", "1", "0", "0"]);
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_demand_is_met_by_a_response_that_is_old_when_it_comes() {
    let origin =
        Origin::new(|call| Answer::ok("max-age=60", call.n.to_string()).header("age", "30"));
    let app = honouring(&origin);
    let replies = crowd(&app, 10, |_| asking("no-cache, max-age=5")).await;
    assert!(replies.iter().all(|reply| reply.text() == "0"), "nothing newer can be had");
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_demand_takes_nothing_stale_unless_the_service_fails() {
    let origin = numbered("max-age=10, stale-while-revalidate=60, stale-if-error=60");
    let app = honouring(&origin);
    send(&app, get(REPORT)).await;
    pass(secs(20)).await;
    assert!(send(&app, asking("max-age=600")).await.is(Computed));
    origin.answers(|_| Answer::status(503));
    assert!(send(&app, asking("no-cache")).await.is(StaleIfError));
    let only = send(&app, asking("no-cache, only-if-cached")).await;
    assert_eq!((only.status, only.took), (504, Duration::ZERO));
}
