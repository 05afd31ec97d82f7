//! Requests for which the body that arrives is no answer.

use std::time::Duration;

use axum::body::Body;
use futures_util::future::join_all;
use tower_stampede::CacheOutcome::*;
use tower_stampede::remote::{Double, RemoteSettings};
use tower_stampede::{CacheFor, HttpLayer, HttpStampede, Stampede};

use super::fed::*;
use crate::kit::http::*;
use crate::kit::spawn;

fn reload(directive: &str) -> http::Request<Body> {
    with("/report", &[("cache-control", directive)])
}

fn honouring() -> HttpLayer {
    origin_only().http_layer().honour_request_directives(true)
}

fn language(language: &str) -> http::Request<Body> {
    with("/report", &[("accept-language", language)])
}

#[tokio::test(start_paused = true)]
async fn a_reload_while_a_body_arrives_is_answered_by_a_response_of_its_own() {
    for directive in ["max-age=0", "no-cache"] {
        let (app, origin, sources) = fed(honouring());
        let mut first = open(&app, get("/report")).await;
        let old = sources.take(0);
        old.send("o");
        settle().await;
        let mut again = open(&app, reload(directive)).await;
        assert!(again.is(Computed) && again.took == WORK, "{directive}: {again:?}");
        let new = sources.take(1);
        new.send("new");
        drop(new);
        assert!(again.rest().await.is("new"));
        old.send("ld");
        drop(old);
        assert!(first.rest().await.is("old"), "who reads already goes on");
        let hit = send(&app, get("/report")).await;
        assert!(hit.is(Hit) && hit.text() == "new", "{directive}: {hit:?}");
        assert_eq!(origin.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reload_that_came_before_the_head_is_answered_when_the_head_has_come() {
    let (app, _origin, sources) = fed(honouring());
    let first = open(&app, get("/report"));
    let again = async {
        pass(WORK / 2).await;
        open(&app, reload("max-age=0")).await
    };
    let (mut first, mut again) = futures_util::join!(first, again);
    assert!(again.is(Computed) && again.took == WORK * 3 / 2, "{again:?}");
    sources.take(0).send("old");
    sources.take(1).send("new");
    assert!(first.rest().await.is("old") && again.rest().await.is("new"));
}

#[tokio::test(start_paused = true)]
async fn a_crowd_of_reloads_while_a_body_arrives_asks_once_for_the_first_and_once_for_the_others() {
    let (app, origin, sources) = fed(honouring());
    let _first = open(&app, get("/report")).await;
    let old = sources.take(0);
    // They come when the first call has begun: that response is too old for them.
    let crowd = (0..50).map(|_| open(&app, reload("no-cache")));
    let mut crowd = join_all(crowd).await;
    assert_eq!(origin.calls(), 2);
    assert!(crowd.iter().all(|reload| reload.took <= WORK * 2));
    sources.take(1).send("new");
    assert!(rests(&mut crowd).await.iter().all(|rest| rest.is("new")));
    drop(old);
}

#[tokio::test(start_paused = true)]
async fn other_variants_do_not_wait_for_a_body_that_is_to_replace_a_response_without_variants() {
    let sources = Sources::default();
    let origin = Origin::new({
        let sources = sources.clone();
        move |call| match call.n {
            0 => Answer::ok("max-age=10, stale-if-error=100", "plain"),
            _ => Answer::ok("max-age=600", sources.body()).header("vary", "accept-language"),
        }
    });
    let app = layered(origin_only().http_layer(), &origin);
    send(&app, get("/report")).await;
    pass(secs(11)).await;
    let mut german = open(&app, language("de")).await;
    let guten = sources.take(0);
    guten.send("gu");
    settle().await;
    let mut english = join_all((0..20).map(|_| open(&app, language("en")))).await;
    assert_eq!(origin.calls(), 3, "all of the variant share one call");
    sources.take(1).send("good");
    assert!(rests(&mut english).await.iter().all(|rest| rest.is("good")));
    guten.send("ten");
    drop(guten);
    assert!(german.rest().await.is("guten"));
    for (name, text) in [("de", "guten"), ("en", "good")] {
        let hit = send(&app, language(name)).await;
        assert!(hit.is(Hit) && hit.text() == text, "{name}: {hit:?}");
    }
    assert_eq!(origin.calls(), 3);
}

/// A body with a chunk per second.
fn drip(source: Source) {
    spawn(async move {
        while !source.is_dropped() {
            source.send("o");
            pass(secs(1)).await;
        }
    });
}

#[tokio::test(start_paused = true)]
async fn whatever_becomes_of_a_reload_other_requests_read_the_body_that_arrives() {
    let failures: [fn() -> Answer; 3] = [Answer::never, Answer::error, || Answer::status(500)];
    for failure in failures {
        let (app, origin, sources) = fed(honouring());
        let mut first = open(&app, get("/report")).await;
        let old = sources.take(0);
        old.send("o");
        settle().await;
        origin.answers(move |_| failure());
        let again = spawn({
            let app = app.clone();
            async move { try_send(&app, reload("no-cache")).await.map(|reply| reply.status) }
        });
        pass(WORK / 2).await;
        for wait in [Duration::ZERO, WORK] {
            pass(wait).await;
            let mut plain = open(&app, get("/report")).await;
            assert!(plain.is(Joined) && plain.took == Duration::ZERO, "{plain:?}");
            assert_eq!(plain.now(), "o");
        }
        old.send("ld");
        drop(old);
        assert!(first.rest().await.is("old"));
        assert!(send(&app, get("/report")).await.is(Hit), "it is stored");
        assert_eq!(origin.calls(), 2);
        again.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_reload_that_queues_for_a_place_keeps_no_request_from_the_body_that_arrives() {
    let cache: HttpStampede =
        Stampede::builder("test").origin_only().max_computations(1).build().unwrap();
    let (app, origin, sources) = fed(cache.http_layer().honour_request_directives(true));
    let mut first = open(&app, get("/report")).await;
    let old = sources.take(0);
    old.send("o");
    settle().await;
    let again = open(&app, reload("no-cache"));
    assert!(tokio::time::timeout(ms(10), again).await.is_err(), "it queues, and hangs up");
    let plain = open(&app, get("/report")).await;
    assert!(plain.is(Joined) && plain.took == Duration::ZERO, "{plain:?}");
    drop(old);
    assert!(first.rest().await.is("o"));
    assert!(send(&app, get("/report")).await.is(Hit));
    assert_eq!((origin.calls(), cache.stats().flights, cache.stats().waiting), (1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn reloads_one_after_the_other_leave_places_to_other_pages() {
    let cache: HttpStampede =
        Stampede::builder("test").origin_only().max_computations(4).build().unwrap();
    let (app, origin, sources) = fed(cache.http_layer().honour_request_directives(true));
    let mut readers = vec![open(&app, get("/report")).await];
    drip(sources.take(0));
    for n in 1..12 {
        readers.push(open(&app, reload("no-cache")).await);
        assert_eq!(origin.calls(), n + 1);
        drip(sources.take(n));
    }
    let other = open(&app, get("/other")).await;
    assert!(other.head.status == 200 && other.took == WORK, "{other:?}");
}

#[tokio::test(start_paused = true)]
async fn an_older_body_that_completes_later_does_not_replace_a_newer_response() {
    // Two flights with one place in the store: of a reload, and of other credentials.
    for other in [("cache-control", "no-cache"), ("cookie", "a=b")] {
        for vary in [false, true] {
            let sources = Sources::default();
            let origin = Origin::new({
                let sources = sources.clone();
                move |_| {
                    let answer = Answer::ok("public, max-age=60, s-maxage=60", sources.body());
                    if vary { answer.header("vary", "accept-language") } else { answer }
                }
            });
            let app = layered(honouring(), &origin);
            let mut first = open(&app, get("/report")).await;
            let old = sources.take(0);
            old.send("old");
            settle().await;
            let mut again = open(&app, with("/report", &[other])).await;
            let new = sources.take(1);
            new.send("new");
            drop(new);
            assert!(again.rest().await.is("new"));
            settle().await;
            drop(old);
            assert!(first.rest().await.is("old"));
            settle().await;
            let hit = send(&app, get("/report")).await;
            assert!(hit.is(Hit) && hit.text() == "new", "varies: {vary}, {other:?}: {hit:?}");
            assert_eq!(origin.calls(), 2);
        }
    }
}

fn in_process_of(double: &Double) -> HttpStampede {
    Stampede::builder("test")
        .origin_only()
        .jitter(0.0)
        .remote(double.process(), RemoteSettings::new())
        .build()
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_reload_does_not_wait_for_the_lease_that_an_arriving_body_has() {
    for vary in [false, true] {
        let cache = in_process_of(&Double::new());
        let sources = Sources::default();
        let origin =
            sources.origin(
                move |_, answer| {
                    if vary { answer.header("vary", "accept-language") } else { answer }
                },
            );
        let app = layered(cache.http_layer().honour_request_directives(true), &origin);
        let mut zeroth = open(&app, get("/report")).await;
        sources.take(0).send("zeroth");
        assert!(zeroth.rest().await.is("zeroth"));
        pass(secs(61)).await;
        let _first = open(&app, get("/report")).await;
        drip(sources.take(1));
        pass(secs(1)).await;
        let again = open(&app, reload("no-cache")).await;
        assert!(again.is(Computed) && again.took < secs(1), "varies: {vary}: {again:?}");
        let plain = open(&app, get("/report")).await;
        assert!(plain.is(Joined) && plain.took == Duration::ZERO, "varies: {vary}: {plain:?}");
        assert_eq!(origin.calls(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_after_an_invalidation_does_not_wait_for_the_body_that_came_before_it() {
    for vary in [false, true] {
        let cache = in_process_of(&Double::new());
        let sources = Sources::default();
        let origin = sources.origin(move |_, answer| {
            let answer = answer.extension(CacheFor::new(secs(600)).tag("t"));
            if vary { answer.header("vary", "accept-language") } else { answer }
        });
        let app = layered(cache.http_layer(), &origin);
        let mut zeroth = open(&app, get("/report")).await;
        sources.take(0).send("zeroth");
        assert!(zeroth.rest().await.is("zeroth"));
        cache.invalidate_tag("t").await;
        let first = spawn({
            let app = app.clone();
            async move { open(&app, get("/report")).await }
        });
        pass(WORK / 2).await;
        // The tag of this computation is not known yet.
        cache.invalidate_tag("t").await;
        let asks = open(&app, get("/report"));
        let body = async {
            let first = first.await.unwrap();
            drip(sources.take(1));
            first
        };
        let (asked, _first) = futures_util::join!(asks, body);
        assert!(asked.is(Computed) && asked.took < secs(1), "varies: {vary}: {asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_outlives_its_lifetime_costs_one_call_for_each_lifetime_and_delays_no_request()
{
    // Its lifetime is 60 s. It is shorter than `max_body` for longer than any caller waits.
    let (app, origin, sources) = fed(origin_only().http_layer());
    let mut bodies = 0;
    for second in 0..400 {
        let readings = open_many(&app, 3).await;
        let slowest = readings.iter().map(|reading| reading.took).max();
        assert!(slowest <= Some(WORK), "{second}: {slowest:?}");
        assert!(readings.iter().all(|reading| reading.head.status == 200), "{second}");
        while bodies < origin.calls() {
            drip(sources.take(bodies));
            bodies += 1;
        }
        pass(secs(1)).await;
    }
    assert_eq!(origin.calls(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_no_client_reads_is_dropped_when_its_lifetime_ends() {
    let (app, origin, sources) = fed(origin_only().http_layer());
    drop(open(&app, get("/report")).await);
    let source = sources.take(0);
    for _ in 0..59 {
        pass(secs(1)).await;
        source.send("o");
        assert!(!source.is_dropped(), "it may be stored");
    }
    pass(secs(2)).await;
    source.send("o");
    settle().await;
    assert!(source.is_dropped());
    assert!(open(&app, get("/report")).await.is(Computed) && origin.calls() == 2);
}
