//! What is stored, as a later client sees it: responses to POST, failures, the
//! length of the body, and nothing of the request that caused it.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use tower::ServiceExt;
use tower_stampede::CacheFor;
use tower_stampede::CacheOutcome::Hit;

use crate::kit::http::*;
use crate::kit::spawn;

#[tokio::test(start_paused = true)]
async fn what_a_post_left_for_get_is_found_by_the_tags_its_handler_gave_it() {
    let origin = Origin::new(|call| {
        Answer::ok("max-age=600", format!("{}", call.n))
            .header("content-location", "http://h/user/7")
            .extension(CacheFor::new(secs(300)).tag("user:7"))
    });
    let cache = with_ttl(60);
    let app = layered(post_storing(&cache), &origin);
    send(&app, request("POST", "http://h/user/7", &[])).await;
    assert_eq!(send(&app, get("http://h/user/7")).await.text(), "0", "stored for GET");
    cache.invalidate_tag("user:7").await;
    assert_eq!(send(&app, get("http://h/user/7")).await.text(), "1");
}

#[tokio::test(start_paused = true)]
async fn a_post_lives_for_get_as_long_as_its_handler_says() {
    let origin = Origin::new(|call| {
        Answer::ok("max-age=600", format!("{}", call.n))
            .header("content-location", "http://h/user/7")
            .extension(CacheFor::new(secs(5)))
    });
    let app = layered(post_storing(&with_ttl(60)), &origin);
    send(&app, request("POST", "http://h/user/7", &[])).await;
    tokio::time::sleep(secs(6)).await;
    assert_eq!(send(&app, get("http://h/user/7")).await.text(), "1");
}

#[tokio::test(start_paused = true)]
async fn a_failure_met_by_one_with_credentials_does_not_replace_what_all_others_get() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::ok("max-age=60", "good"),
        _ => Answer::status(500).header("cache-control", "public, max-age=60").body("bad"),
    });
    let app = app(&origin);
    send(&app, get("/report")).await;
    let reply = send(&app, with("/report", &[("authorization", "alice")])).await;
    assert_eq!(reply.status, 500);
    assert_eq!(send(&app, get("/report")).await.text(), "good");
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_one_variant_does_not_replace_the_others() {
    let origin = Origin::new(|call| match call.header("accept-language") {
        Some("fr") => Answer::status(503).header("cache-control", "max-age=60").body("bad"),
        _ => Answer::ok("max-age=60", "good").header("vary", "accept-language"),
    });
    let app = app(&origin);
    send(&app, with("/report", &[("accept-language", "de")])).await;
    send(&app, with("/report", &[("accept-language", "fr")])).await;
    let reply = send(&app, with("/report", &[("accept-language", "de")])).await;
    assert_eq!((reply.text(), origin.calls()), ("good", 2));
}

/// A body that arrives `after` its head.
fn late_body(after: Duration, text: String) -> Body {
    Body::from_stream(futures_util::stream::once(async move {
        tokio::time::sleep(after).await;
        Ok::<_, std::convert::Infallible>(Bytes::from(text))
    }))
}

#[tokio::test(start_paused = true)]
async fn who_comes_after_the_head_is_not_given_what_is_stale_when_the_body_is_complete() {
    let origin = Origin::new(|call| {
        Answer::ok(
            "max-age=1",
            late_body(secs(if call.n == 0 { 10 } else { 0 }), call.n.to_string()),
        )
    });
    let app = app(&origin);
    let early = spawn({
        let app = app.clone();
        async move { tokio::join!(send(&app, get("/report")), send(&app, get("/report"))) }
    });
    tokio::time::sleep(secs(5)).await;
    let late = send(&app, get("/report")).await;
    let (leader, waiter) = early.await.unwrap();
    assert_eq!((leader.text(), waiter.text()), ("0", "0"), "both came before the head");
    assert_eq!(late.text(), "1");
}

#[tokio::test(start_paused = true)]
async fn a_response_without_lifetime_is_not_shared_once_its_stale_window_is_over() {
    let origin = Origin::new(|call| {
        Answer::ok("max-age=0, stale-while-revalidate=5", call.n.to_string()).header("age", "100")
    });
    let app = app(&origin);
    let (a, b) = tokio::join!(send(&app, get("/report")), send(&app, get("/report")));
    assert_ne!(a.text(), b.text());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_on_its_post_leaves_nothing_old_behind() {
    let origin = Origin::new(|call| {
        let answer = Answer::ok("max-age=600", format!("{}", call.n));
        if call.parts.method == "POST" { answer.after(secs(5)) } else { answer }
    });
    let app = app(&origin);
    assert_eq!(send(&app, get("/report")).await.text(), "0");
    let post = send(&app, request("POST", "/report", &[]));
    assert!(tokio::time::timeout(secs(1), post).await.is_err(), "it hangs up");
    assert_eq!(send(&app, get("/report")).await.text(), "2", "the service may have changed it");
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_hit_carries_nothing_of_its_request_and_the_outcome_where_that_is_asked_for() {
    #[derive(Clone)]
    struct OfTheRequest;
    let origin = Origin::new(|_| Answer::ok("max-age=60", "report"));
    for is_asked_for in [false, true] {
        let layer = origin_only().http_layer().outcome_on_hits(is_asked_for);
        let app = layered(layer, &origin);
        send(&app, get("/report")).await;
        let mut asked = get("/report");
        asked.extensions_mut().insert(OfTheRequest);
        // Another cache's, before or behind.
        asked.extensions_mut().insert(tower_stampede::CacheOutcome::Bypass);
        let response = app.clone().oneshot(asked).await.unwrap();
        assert_eq!(tower_stampede::CacheOutcome::of(&response), Some(Hit));
        let extensions = response.extensions();
        assert!(extensions.get::<OfTheRequest>().is_none());
        assert_eq!(extensions.get(), is_asked_for.then_some(&Hit));
        assert_eq!(extensions.len(), usize::from(is_asked_for));
    }
}

#[tokio::test(start_paused = true)]
async fn a_204_that_names_a_length_is_stored_without_it() {
    // RFC 9110, 8.6
    let origin = Origin::new(|_| {
        Answer::status(204).header("cache-control", "max-age=60").header("content-length", "0")
    });
    let app = app(&origin);
    send(&app, get("/report")).await;
    for method in ["GET", "HEAD"] {
        let reply = send(&app, request(method, "/report", &[])).await;
        assert!(reply.is(Hit));
        assert_eq!(reply.header("content-length"), None, "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_304_does_not_change_the_length_of_what_is_stored() {
    // RFC 9111, 3.2
    let origin = Origin::new(|call| match call.n {
        0 => {
            Answer::ok("max-age=1", "report").header("etag", "\"a\"").header("content-length", "6")
        }
        _ => Answer::status(304)
            .header("etag", "\"a\"")
            .header("cache-control", "max-age=60")
            .header("content-length", "99"),
    });
    let app = app(&origin);
    send(&app, get("/report")).await;
    tokio::time::sleep(secs(2)).await;
    assert_eq!(send(&app, get("/report")).await.header("content-length"), Some("6"));
    let hit = send(&app, get("/report")).await;
    assert!(hit.is(Hit) && origin.calls() == 2);
    assert_eq!((hit.text(), hit.header("content-length")), ("report", Some("6")));
    let part = send(&app, with("/report", &[("range", "bytes=0-1")])).await;
    assert_eq!((part.status, part.header("content-length")), (206, Some("2")));
}

#[tokio::test(start_paused = true)]
async fn what_is_chunked_and_coded_has_the_length_of_the_bytes_sent() {
    // RFC 9112, 6.2: never both.
    let origin = Origin::new(|_| {
        Answer::ok("max-age=60", &b"\x1f\x8bnot really"[..])
            .header("content-encoding", "gzip")
            .header("transfer-encoding", "chunked")
    });
    let app = app(&origin);
    send(&app, get("/report")).await;
    let hit = send(&app, get("/report")).await;
    assert!(hit.is(Hit));
    assert_eq!(hit.header("content-length"), Some("12"));
    assert_eq!((hit.body.len(), hit.header("transfer-encoding")), (12, None));
}

// ---- which of two responses is kept ----

/// Asks once a second, so often, and returns how often the origin was called in all.
async fn calls_of(
    app: &tower_stampede::HttpService<Origin>,
    origin: &Origin,
    requests: usize,
) -> usize {
    for _ in 0..requests {
        assert_eq!(send(app, get("/page")).await.status, 200);
        pass(secs(1) - ms(1)).await;
    }
    origin.calls()
}

#[tokio::test(start_paused = true)]
async fn behind_a_cache_that_sends_age_in_whole_seconds_each_ttl_costs_one_call() {
    for vary in [false, true] {
        let made = tokio::time::Instant::now();
        let origin = Origin::new(move |call| {
            let age = made.elapsed().as_secs().to_string();
            let answer = match call.header("if-none-match") {
                Some(_) => Answer::status(304),
                None => Answer::status(200).body("page"),
            };
            let answer = answer.header("etag", "\"1\"").header("age", &age).after(ms(1));
            if vary { answer.header("vary", "accept-encoding") } else { answer }
        });
        let cache = with_ttl(10);
        let app = layered(cache.http_layer(), &origin);
        // Rounded, the age of a later response may say that it is from before the first.
        pass(ms(5900)).await;
        calls_of(&app, &origin, 1).await;
        pass(ms(9300)).await;
        let calls = calls_of(&app, &origin, 60).await;
        assert!(calls <= 8, "varies: {vary}: {calls} calls for 61 requests in 70 s");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_asked_for_later_is_kept_however_old_it_is_on_arrival() {
    let etag = |answer: Answer| answer.header("etag", "\"1\"").after(ms(1));
    for confirms in [false, true] {
        let origin = Origin::new(move |call| match call.n {
            0 => etag(Answer::ok("max-age=60, stale-while-revalidate=600", "page")),
            _ if confirms => etag(Answer::status(304))
                .header("cache-control", "max-age=600")
                .header("age", "100"),
            _ => etag(Answer::ok("max-age=600", "page")).header("age", "100"),
        });
        let app = layered(origin_only().http_layer(), &origin);
        calls_of(&app, &origin, 1).await;
        pass(secs(61)).await;
        let calls = calls_of(&app, &origin, 30).await;
        assert_eq!(calls, 2, "confirms: {confirms}");
    }
}
