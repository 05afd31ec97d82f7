//! Requests for which the body that arrives is no answer.

use axum::body::Body;
use futures_util::future::join_all;
use tower_stampede::CacheOutcome::*;
use tower_stampede::remote::{Double, RemoteSettings};
use tower_stampede::{HttpLayer, Stampede};

use super::fed::*;
use crate::kit::http::*;

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
    // All but the first come when its call has begun: that response is too old for them.
    let crowd = (0..50).map(|_| open(&app, reload("no-cache")));
    let mut crowd = join_all(crowd).await;
    assert_eq!(origin.calls(), 3);
    assert!(crowd.iter().all(|reload| reload.took <= WORK * 2));
    (1..3).for_each(|n| sources.take(n).send("new"));
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

#[tokio::test(start_paused = true)]
async fn a_reload_does_not_wait_for_the_lease_that_an_arriving_body_has() {
    let double = Double::new();
    let cache = Stampede::builder("test")
        .origin_only()
        .jitter(0.0)
        .remote(double.process(), RemoteSettings::new())
        .build()
        .unwrap();
    let (app, origin, sources) = fed(cache.http_layer().honour_request_directives(true));
    let _first = open(&app, get("/report")).await;
    let old = sources.take(0);
    old.send("o");
    pass(secs(1)).await;
    let mut again = open(&app, reload("no-cache")).await;
    assert!(again.is(Computed) && again.took < secs(1), "{again:?}");
    sources.take(1).send("new");
    assert!(again.rest().await.is("new"));
    assert_eq!(origin.calls(), 2);
    drop(old);
}
