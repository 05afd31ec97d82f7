//! Lifetimes of errors by status.

use tower_stampede::CacheOutcome::*;
use tower_stampede::{HttpStampede, Stampede};

use crate::kit::http::*;

fn numbered(status: u16, directives: &'static str) -> Origin {
    Origin::new(move |call| {
        let answer = Answer::status(status).body(call.n.to_string());
        if directives.is_empty() { answer } else { answer.header("cache-control", directives) }
    })
}

fn with_status_ttl(status: u16) -> HttpStampede {
    let builder = Stampede::builder("test").ttl(secs(60)).jitter(0.0);
    builder.status_ttl(status, secs(10)).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_error_lives_as_long_as_its_status_says() {
    for status in [400, 403, 404, 410, 418, 500, 503, 599] {
        let origin = numbered(status, "");
        let app = layered(with_status_ttl(status).http_layer(), &origin);
        for (after, outcome, text) in [(0, Computed, "0"), (9, Hit, "0"), (2, Computed, "1")] {
            pass(secs(after)).await;
            let reply = send(&app, get("/report")).await;
            assert_eq!((reply.status, reply.text()), (status, text), "{status}");
            assert!(reply.is(outcome), "{status}: {reply:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_origin_s_own_word_and_other_statuses_go_their_own_ways() {
    for (status, directives, is_hit) in [
        (404, "max-age=60", true),
        (404, "max-age=0", false),
        (404, "no-store", false),
        (500, "", false),
    ] {
        let origin = numbered(status, directives);
        let app = layered(with_status_ttl(404).http_layer(), &origin);
        send(&app, get("/report")).await;
        pass(secs(20)).await;
        assert_eq!(send(&app, get("/report")).await.is(Hit), is_hit, "{status} {directives}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_with_a_lifetime_by_status_replaces_nothing_usable() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::ok("max-age=5, stale-if-error=60", "good"),
        _ => Answer::status(500),
    });
    let app = layered(with_status_ttl(500).http_layer(), &origin);
    send(&app, get("/report")).await;
    pass(secs(6)).await;
    for _ in 0..3 {
        assert_eq!(send(&app, get("/report")).await.text(), "good");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_that_one_client_s_field_has_caused_is_asked_for_again_before_it_is_stored() {
    for status in [400, 500] {
        let origin = Origin::new(move |call| match call.header("x-odd") {
            Some(_) => Answer::status(status),
            None => Answer::ok("max-age=60", "good"),
        });
        let app = layered(with_status_ttl(status).http_layer(), &origin);
        let of = |i| if i == 0 { with("/report", &[("x-odd", "1")]) } else { get("/report") };
        let replies = crowd(&app, 20, of).await;
        assert_eq!(replies.iter().filter(|reply| reply.text() == "good").count(), 19);
        assert_eq!(send(&app, get("/report")).await.text(), "good");
        assert_eq!(origin.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_layer_and_a_route_have_lifetimes_of_their_own() {
    let cache = origin_only();
    let of_layer = cache.http_layer().scope("layer").status_ttl(404, secs(10));
    let of_route = cache.http_layer().scope("route");
    let of_route = of_route.route_rules("/report", |it| it.status_ttl(404, secs(10)));
    for layer in [of_layer, of_route] {
        let origin = numbered(404, "");
        let app = layered(layer, &origin);
        send(&app, get("/report")).await;
        pass(secs(5)).await;
        assert!(send(&app, get("/report")).await.is(Hit));
    }
}

#[test]
fn only_errors_have_lifetimes_by_status() {
    for (status, ttl) in [(200, secs(1)), (304, secs(1)), (600, secs(1)), (404, secs(0))] {
        let build = || Stampede::<u32>::builder("a").ttl(secs(1)).status_ttl(status, ttl).build();
        let error = build().unwrap_err().to_string();
        assert!(error.starts_with("`status_ttl`: "), "{error}");
        let layer = || origin_only().http_layer().status_ttl(status, ttl);
        assert!(std::panic::catch_unwind(layer).is_err(), "{status}");
    }
}
