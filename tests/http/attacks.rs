//! What strangers and careless origins tried, and what holds since.

use axum::body::Body;
use bytes::Bytes;
use http::Request;
use tower_stampede::CacheOutcome::*;

use crate::kit::http::*;
use crate::kit::spawn;

const PAGE: &str = "http://a/page";

/// A request with a body.
fn sent(method: &str, uri: &str, fields: &[(&str, &str)], body: impl Into<Body>) -> Request<Body> {
    let mut request = request(method, uri, fields);
    *request.body_mut() = body.into();
    request
}

#[tokio::test(start_paused = true)]
async fn a_field_that_breaks_the_connection_holds_the_page_for_its_own_client_alone() {
    for directives in ["max-age=1", "no-store"] {
        for every in [50, 500] {
            let origin = Origin::new(move |call| match call.header("x-evil") {
                Some(_) => Answer::error().after(ms(1)),
                None => Answer::ok(directives, "well").after(ms(20)),
            });
            let app = app(&origin);
            let evil = spawn({
                let app = app.clone();
                async move {
                    loop {
                        let _ = try_send(&app, with(PAGE, &[("x-evil", "1")])).await;
                        pass(ms(every)).await;
                    }
                }
            });
            for n in 0..100 {
                pass(ms(310)).await;
                let reply = try_send(&app, get(PAGE)).await;
                let is_well = reply.is_ok_and(|reply| reply.status == 200);
                assert!(is_well, "{directives}, evil every {every} ms: request {n}");
            }
            evil.abort();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_origin_that_is_down_is_held_for_all_after_four_different_clients_have_failed() {
    let origin = Origin::new(|_| Answer::error());
    let app = app(&origin);
    for n in 0..20 {
        let _ = try_send(&app, with(PAGE, &[("user-agent", &n.to_string())])).await;
    }
    assert_eq!(origin.calls(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_the_applications_key_does_not_tell_apart_does_not_fail_a_crowd() {
    let origin = Origin::new(|call| match call.body.contains(&b'\t') {
        true => Answer::status(500).body("evil"),
        false => Answer::ok("max-age=60", "good"),
    });
    let words = |_: &http::request::Parts, body: &Bytes| {
        let text = std::str::from_utf8(body).ok()?;
        Some(text.split_ascii_whitespace().collect::<Vec<_>>().join(" "))
    };
    let layer = origin_only().http_layer().cache_posts(|_| true).post_key(words);
    let app = layered(layer, &origin);
    let replies =
        crowd(&app, 20, |i| sent("POST", "/x", &[], if i == 0 { "query\t1" } else { "query 1" }))
            .await;
    assert!(replies[1..].iter().all(|reply| reply.status == 200));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_rfc_6585_forbids_to_store_is_stored_for_nobody_and_goes_to_a_crowd_once() {
    for status in [428, 429, 431, 511] {
        for directives in ["max-age=60", ""] {
            let origin = Origin::new(move |_| {
                let answer = Answer::status(status);
                match directives {
                    "" => answer,
                    directives => answer.header("cache-control", directives),
                }
            });
            let app = app(&origin);
            let replies = crowd(&app, 10, |_| get("/x")).await;
            assert!(replies.iter().all(|reply| reply.status == status));
            assert_eq!(origin.calls(), 1, "{status} {directives}");
            origin.answers(|_| Answer::ok("max-age=60", "well"));
            assert_eq!(send(&app, get("/x")).await.text(), "well");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_tag_of_our_own_changes_with_what_says_how_to_read_the_body() {
    for (name, first, second) in [
        ("content-type", "text/plain", "text/html"),
        ("content-type", "text/html; charset=utf-8", "text/html; charset=utf-7"),
        ("content-language", "de", "en"),
    ] {
        let origin = Origin::new(move |call| {
            Answer::ok("max-age=10", "page").header(name, if call.n == 0 { first } else { second })
        });
        let app = layered(origin_only().http_layer().make_etags(true), &origin);
        send(&app, get("/x")).await;
        let tag = send(&app, get("/x")).await.header("etag").unwrap().to_owned();
        pass(secs(11)).await;
        send(&app, get("/x")).await;
        let reply = send(&app, with("/x", &[("if-none-match", &tag)])).await;
        assert_eq!((reply.status, reply.header(name)), (200, Some(second)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_with_an_unreadable_host_ends_no_group_of_another_origin() {
    let origin = Origin::new(|call| match call.parts.method.as_str() {
        "POST" => Answer::ok("no-store", "").header("cache-group-invalidation", "\"g\""),
        _ => Answer::ok("max-age=60", call.n.to_string()).header("cache-groups", "\"g\""),
    });
    let app = app(&origin);
    send(&app, get("/1")).await;
    for host in ["a b", "a/b", "@", "[::1", "x:99999", "x:y"] {
        send(&app, sent("POST", "/edit", &[("host", host)], "")).await;
        assert!(send(&app, get("/1")).await.is(Hit), "{host:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_names_its_host_in_odd_ways_ends_the_page_of_each_host() {
    let cases: [(&str, &[(&str, &str)]); 5] = [
        ("http://A:80/page", &[]),
        ("http://a/page", &[("host", "b")]),
        ("/page", &[("host", "a"), ("host", "a")]),
        ("http://b/page", &[("host", "a"), ("host", "b")]),
        ("http://a/page", &[("host", "")]),
    ];
    for (uri, fields) in cases {
        let origin = Origin::new(|call| match call.parts.method.as_str() {
            "GET" => Answer::ok("max-age=60", call.n.to_string()),
            _ => Answer::status(204),
        });
        let app = app(&origin);
        send(&app, get(PAGE)).await;
        send(&app, with("/page", &[("host", "a")])).await;
        send(&app, request("POST", uri, fields)).await;
        assert!(!send(&app, get(PAGE)).await.is(Hit), "{uri} {fields:?}");
        let reply = send(&app, with("/page", &[("host", "a")])).await;
        assert!(!reply.is(Hit), "{uri} {fields:?} of HTTP/1.1");
    }
}

#[tokio::test(start_paused = true)]
async fn a_304_that_names_its_prohibition_in_connection_ends_the_storing() {
    for (name, value) in [
        ("cache-control", "private"),
        ("cache-control", "no-store"),
        ("vary", "*"),
        ("cdn-cache-control", "no-store"),
    ] {
        let origin = Origin::new(move |call| match call.header("if-none-match") {
            Some(_) => Answer::status(304).header(name, value).header("connection", name),
            None => Answer::ok("max-age=10", call.n.to_string()).header("etag", "\"a\""),
        });
        let app = app(&origin);
        send(&app, get(PAGE)).await;
        pass(secs(20)).await;
        send(&app, get(PAGE)).await;
        let reply = send(&app, get(PAGE)).await;
        assert!(!reply.is(Hit), "{name}: {value}: {}", reply.cache_status());
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_whose_connection_takes_its_coding_away_is_not_stored() {
    for name in ["content-encoding", "content-type"] {
        let origin = Origin::new(move |_| {
            Answer::ok("max-age=60", "zip")
                .header("content-encoding", "gzip")
                .header("content-type", "text/x")
                .header("connection", name)
        });
        let app = app(&origin);
        for n in 1..=2 {
            send(&app, with(PAGE, &[("accept-encoding", "gzip")])).await;
            assert_eq!(origin.calls(), n, "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_304_that_was_not_asked_for_confirms_the_stale_response() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::ok("max-age=10", "page"),
        _ => Answer::status(304).header("cache-control", "max-age=60").header("x-for", "one"),
    });
    let app = app(&origin);
    send(&app, get(PAGE)).await;
    pass(secs(20)).await;
    let replies = crowd(&app, 20, |_| get(PAGE)).await;
    assert!(replies.iter().all(|reply| (reply.status, reply.text()) == (200, "page")));
    assert!(replies.iter().all(|reply| reply.header("x-for").is_none()));
    assert!(send(&app, get(PAGE)).await.is(Hit));
    assert_eq!(origin.calls(), 2);
}
