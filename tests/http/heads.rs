//! Crowds of HEAD requests that find nothing fresh.

use axum::body::Body;
use axum::routing::{get as on_get, post as on_post};
use axum::{Router, http::StatusCode};
use tower_stampede::CacheOutcome::{self, *};

use crate::kit::http::*;
use crate::kit::spawn;

const PAGE: &str = "http://x/page";
const CROWD: usize = 500;

fn head() -> http::Request<Body> {
    request("HEAD", PAGE, &[])
}

fn count(replies: &[Reply], outcome: CacheOutcome) -> usize {
    replies.iter().filter(|reply| reply.is(outcome)).count()
}

fn methods(origin: &Origin) -> Vec<String> {
    origin.seen().iter().map(|call| call.parts.method.to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_crowd_of_cold_heads_costs_one_head() {
    let origin = Origin::new(|_| {
        // Of a body that would be too long to store.
        Answer::ok("max-age=60", "").header("content-length", "99999999").header("etag", "\"a\"")
    });
    let app = app(&origin);
    let replies = crowd(&app, CROWD, |_| head()).await;
    for reply in &replies {
        assert_eq!((reply.status, reply.header("content-length")), (200, Some("99999999")));
        assert_eq!((reply.header("etag"), reply.text()), (Some("\"a\""), ""));
    }
    assert_eq!((count(&replies, Computed), count(&replies, Joined)), (1, CROWD - 1));
    assert_eq!(
        replies[0].cache_status(),
        "tower-stampede; fwd=uri-miss; fwd-status=200; detail=method"
    );
    assert_eq!(slowest(&replies), WORK);
    assert_eq!(methods(&origin), ["HEAD"]);
}

#[tokio::test(start_paused = true)]
async fn the_response_to_a_head_answers_no_get_and_no_later_head() {
    let origin = Origin::new(|call| match call.parts.method.as_str() {
        "HEAD" => Answer::ok("max-age=60", "").header("content-length", "4"),
        _ => Answer::ok("max-age=60", "page"),
    });
    let cache = origin_only();
    let app = layered(cache.http_layer(), &origin);
    crowd(&app, CROWD, |_| head()).await;
    assert_eq!(cache.stats().entries, 0);
    assert!(send(&app, head()).await.is(Computed));
    assert_eq!(send(&app, get(PAGE)).await.text(), "page");
    assert!(send(&app, head()).await.is(Hit));
    assert_eq!(methods(&origin), ["HEAD", "HEAD", "GET"]);
}

#[tokio::test(start_paused = true)]
async fn heads_and_gets_at_once_cost_one_request_of_each() {
    let origin = Origin::new(|call| match call.parts.method.as_str() {
        "HEAD" => Answer::ok("max-age=60", "").header("content-length", "4"),
        _ => Answer::ok("max-age=60", "page"),
    });
    let app = app(&origin);
    let replies = crowd(&app, CROWD, |i| if i % 2 == 0 { head() } else { get(PAGE) }).await;
    for (i, reply) in replies.iter().enumerate() {
        assert_eq!(reply.text(), ["", "page"][i % 2]);
        assert_eq!(reply.header("content-length").is_some_and(|n| n == "4"), i % 2 == 0 || i > 1);
    }
    assert_eq!(methods(&origin), ["HEAD", "GET"]);
}

#[tokio::test(start_paused = true)]
async fn each_head_of_a_crowd_has_conditions_of_its_own() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "").header("etag", "\"a\""));
    let app = app(&origin);
    let tags = ["\"a\"", "\"b\""];
    let replies =
        crowd(&app, CROWD, |i| request("HEAD", PAGE, &[("if-none-match", tags[i % 2])])).await;
    for (i, reply) in replies.iter().enumerate() {
        assert_eq!(reply.status, [304, 200][i % 2]);
    }
    assert_eq!(origin.calls(), 1);
    assert!(origin.last().parts.headers.is_empty());
}

#[tokio::test(start_paused = true)]
async fn heads_that_may_not_be_shared_are_sent_one_by_one() {
    for (name, value) in [
        ("cache-control", "private"),
        ("cache-control", "no-store"),
        ("set-cookie", "id=1"),
        ("vary", "*"),
        ("cache-control", "no-cache"),
    ] {
        let origin = Origin::new(move |call| {
            Answer::ok("max-age=60", "").header(name, value).header("x-n", &call.n.to_string())
        });
        let app = app(&origin);
        for wave in 1..=2 {
            let replies = crowd(&app, 50, |_| head()).await;
            let numbers: std::collections::HashSet<_> =
                replies.iter().map(|reply| reply.header("x-n").unwrap()).collect();
            assert_eq!((numbers.len(), origin.calls()), (50, 50 * wave), "{name}: {value}");
            assert!(slowest(&replies) <= WORK * 2);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_with_credentials_is_shared_only_where_the_response_permits_it() {
    for (directives, calls) in [("max-age=60", 2 * CROWD), ("public, max-age=60", CROWD + 1)] {
        let origin = Origin::new(move |_| Answer::ok(directives, ""));
        let app = app(&origin);
        for _ in 0..2 {
            let own = |i: usize| request("HEAD", PAGE, &[("authorization", &i.to_string())]);
            crowd(&app, CROWD, own).await;
        }
        assert_eq!(origin.calls(), calls, "{directives}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_crowd_of_heads_over_variants_gets_the_head_of_its_own() {
    let origin = Origin::new(|call| {
        let language = call.header("accept-language").unwrap_or_default().to_owned();
        Answer::ok("max-age=60", "")
            .header("vary", "accept-language")
            .header("content-language", &language)
    });
    let app = app(&origin);
    let languages = ["de", "en", "fr", "it", "es"];
    let replies = crowd(&app, CROWD, |i| {
        request("HEAD", PAGE, &[("accept-language", languages[i % languages.len()])])
    })
    .await;
    for (i, reply) in replies.iter().enumerate() {
        assert_eq!(reply.header("content-language"), Some(languages[i % languages.len()]));
    }
    assert_eq!(origin.calls(), languages.len());
}

#[tokio::test(start_paused = true)]
async fn an_error_is_the_answer_to_all_heads_that_waited() {
    for status in [405, 503] {
        let answer = move || Answer::status(status).header("cache-control", "max-age=5");
        let origin = Origin::new(move |_| answer());
        let replies = crowd(&app(&origin), CROWD, |_| head()).await;
        assert!(replies.iter().all(|reply| reply.status == status));
        assert_eq!(origin.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_while_a_head_runs_ends_its_use() {
    let origin = Origin::new(|call| match call.parts.method.as_str() {
        "HEAD" => Answer::ok("max-age=60", "").header("x-n", &call.n.to_string()).after(secs(2)),
        _ => Answer::status(204).after(ms(100)),
    });
    let app = app(&origin);
    let before = spawn({
        let app = app.clone();
        async move { crowd(&app, 10, |_| head()).await }
    });
    pass(secs(1)).await;
    send(&app, request("POST", PAGE, &[])).await;
    let after = crowd(&app, 10, |_| head()).await;
    assert!(before.await.unwrap().iter().all(|reply| reply.header("x-n") == Some("0")));
    assert!(after.iter().all(|reply| reply.header("x-n") == Some("2")));
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_head_of_a_crowd_renews_the_stored_response() {
    // RFC 9111, 4.3.5
    let origin = Origin::new(|call| match call.parts.method.as_str() {
        "HEAD" => Answer::ok("max-age=60", "").header("etag", "\"a\"").header("x-b", "2"),
        _ => Answer::ok("max-age=10", "page").header("etag", "\"a\""),
    });
    let app = app(&origin);
    send(&app, get(PAGE)).await;
    pass(secs(11)).await;
    crowd(&app, CROWD, |_| head()).await;
    let reply = send(&app, get(PAGE)).await;
    assert!(reply.is(Hit) && reply.text() == "page" && reply.header("x-b") == Some("2"));
    assert_eq!(methods(&origin), ["GET", "HEAD"]);
}

#[tokio::test(start_paused = true)]
async fn a_crowd_of_heads_behind_axum_costs_one_call_of_the_handler_for_gets() {
    for kind in ["get", "head apart", "post only"] {
        let calls = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = std::sync::Arc::clone(&calls);
        let answer = move |status: StatusCode| {
            counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            async move {
                tokio::time::sleep(WORK).await;
                (status, [("cache-control", "max-age=60"), ("x-a", "1")], "page")
            }
        };
        let (other, own) = (answer.clone(), answer.clone());
        let route = match kind {
            "get" => on_get(move || answer(StatusCode::OK)),
            // A GET of it fails, and a HEAD does not.
            "head apart" => on_get(move || other(StatusCode::METHOD_NOT_ALLOWED))
                .head(move || own(StatusCode::OK)),
            _ => on_post(move || answer(StatusCode::OK)),
        };
        let app: Router = Router::new().route("/page", route).layer(origin_only().http_layer());
        let replies = crowd(&app, CROWD, |_| request("HEAD", "/page", &[])).await;
        let status = if kind == "post only" { 405 } else { 200 };
        assert!(replies.iter().all(|reply| reply.status == status), "{kind}");
        assert!(replies.iter().all(|reply| reply.text().is_empty()), "{kind}");
        let expected = usize::from(kind != "post only");
        assert_eq!(calls.load(std::sync::atomic::Ordering::SeqCst), expected, "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_crowd_of_heads_behind_two_layers_costs_at_most_two_requests() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", ""));
    let cache = origin_only();
    let inner = tower::ServiceBuilder::new()
        .map_response(|response: http::Response<_>| response.map(Body::new))
        .service(layered(cache.http_layer(), &origin));
    let app = tower_layer::Layer::layer(&cache.http_layer(), inner);
    for wave in 1..=2 {
        let replies = crowd(&app, CROWD, |_| head()).await;
        assert!(replies.iter().all(|reply| reply.status == 200));
        assert!(origin.calls() <= 2 * wave, "{} calls", origin.calls());
    }
    assert_eq!(cache.stats().flights, 0);
}
