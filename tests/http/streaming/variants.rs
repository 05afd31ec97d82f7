//! Who belongs to another variant does not wait for this one's body.

use tower_stampede::CacheOutcome::*;

use super::fed::*;
use crate::kit::http::*;

fn language(language: &str) -> http::Request<axum::body::Body> {
    with("/report", &[("accept-language", language)])
}

fn varies(sources: &Sources) -> Origin {
    sources.origin(|_, answer| answer.header("vary", "accept-language"))
}

#[tokio::test(start_paused = true)]
async fn a_waiter_of_another_variant_leads_its_own_flight_while_the_first_body_arrives() {
    let sources = Sources::default();
    let origin = varies(&sources);
    let app = layered(origin_only().http_layer(), &origin);
    let from = tokio::time::Instant::now();
    let names = ["de", "en", "de", "en", "fr"];
    let readers = names.map(|name| open(&app, language(name)));
    let mut readers = futures_util::future::join_all(readers).await;
    assert_eq!(from.elapsed(), WORK * 2, "no caller waits for a body");
    assert_eq!(origin.calls(), 3);
    for (n, call) in origin.seen().iter().enumerate() {
        let source = sources.take(n);
        source.send(call.header("accept-language").unwrap().to_owned());
    }
    for (rest, name) in rests(&mut readers).await.iter().zip(names) {
        assert!(rest.is(name), "{rest:?} {name}");
    }
    for name in names {
        let hit = send(&app, language(name)).await;
        assert!(hit.is(Hit) && hit.text() == name);
    }
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn who_comes_for_a_new_variant_while_its_body_arrives_joins_it() {
    let sources = Sources::default();
    let origin = varies(&sources);
    let cache = origin_only();
    let app = layered(cache.http_layer(), &origin);
    let mut first = open(&app, language("de")).await;
    let source = sources.take(0);
    source.send("gu");
    settle().await;
    let mut late = open(&app, language("DE")).await;
    assert!(late.is(Joined));
    source.send("ten");
    drop(source);
    assert!(first.rest().await.is("guten") && late.rest().await.is("guten"));
    assert_eq!(origin.calls(), 1);
    let hit = send(&app, language("de")).await;
    assert!(hit.is(Hit) && hit.text() == "guten");
    assert_eq!(cache.stats().flights, 0, "the flight of the variant has ended with it");
}

#[tokio::test(start_paused = true)]
async fn when_a_new_variant_breaks_off_the_next_request_for_it_leads() {
    let sources = Sources::default();
    let origin = varies(&sources);
    let app = layered(origin_only().http_layer(), &origin);
    let mut first = open(&app, language("de")).await;
    let source = sources.take(0);
    source.send("gu");
    source.fail();
    assert!(first.rest().await.error.is_some());
    settle().await;
    let mut next = open(&app, language("de")).await;
    assert!(next.is(Computed));
    sources.take(1).send("guten");
    assert!(next.rest().await.is("guten"));
    assert!(send(&app, language("de")).await.is(Hit));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_is_stored_and_of_use_is_not_lost_to_a_body_that_breaks_off() {
    let sources = Sources::default();
    let origin = Origin::new({
        let sources = sources.clone();
        move |call| match call.n {
            0 => Answer::ok("max-age=1, stale-if-error=600", "good"),
            1 => Answer::ok("max-age=60", sources.body()).header("vary", "accept-language"),
            _ => Answer::error(),
        }
    });
    let app = layered(origin_only().http_layer(), &origin);
    send(&app, language("de")).await;
    pass(secs(2)).await;
    let mut reader = open(&app, language("de")).await;
    let source = sources.take(0);
    source.send("b");
    settle().await;
    source.fail();
    assert!(reader.rest().await.error.is_some());
    let reply = send(&app, language("de")).await;
    assert!(reply.is(StaleIfError) && reply.text() == "good");
}
