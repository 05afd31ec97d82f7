//! Methods other than GET, and GETs that go past the cache.

use axum::body::Body;
use tower_stampede::CacheOutcome::*;

use crate::kit::http::*;
use crate::kit::spawn;

const REPORT: &str = "http://x/report";

fn head(uri: &str) -> http::Request<Body> {
    request("HEAD", uri, &[])
}

fn post(uri: &str) -> http::Request<Body> {
    request("POST", uri, &[])
}

fn numbered() -> Origin {
    Origin::new(|call| Answer::ok("max-age=60", call.n.to_string()))
}

// ===== HEAD =====

#[tokio::test(start_paused = true)]
async fn head_is_answered_stale_when_its_own_request_fails_where_that_is_allowed() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::ok("max-age=10, stale-if-error=60", "report"),
        _ => Answer::status(503).body("broken"),
    });
    let app = app(&origin);
    send(&app, get(REPORT)).await;
    tokio::time::sleep(secs(20)).await;
    let reply = send(&app, head(REPORT)).await;
    assert_eq!((reply.status, reply.header("content-length")), (200, Some("6")));
    assert!(reply.is(StaleIfError));
    tokio::time::sleep(secs(60)).await;
    assert_eq!(send(&app, head(REPORT)).await.status, 503, "its window is over");
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn head_is_answered_from_a_stored_get() {
    let origin = Origin::new(|_| {
        Answer::ok("max-age=60", "report").header("etag", "\"a\"").header("x-a", "1")
    });
    let app = app(&origin);
    send(&app, get(REPORT)).await;
    let reply = send(&app, head(REPORT)).await;
    assert!(reply.is(Hit) && reply.status == 200 && reply.body.is_empty());
    assert_eq!(reply.header("content-length"), Some("6"));
    assert_eq!(reply.header("etag"), Some("\"a\""));
    assert_eq!(reply.header("x-a"), Some("1"));
    assert_eq!(reply.header("age"), Some("0"));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_204_has_no_length_for_head_either() {
    // RFC 9110, 8.6: "MUST NOT send a Content-Length in any response with a
    // status code of 1xx or 204".
    let origin = Origin::new(|_| Answer::status(204).header("cache-control", "max-age=60"));
    let app = app(&origin);
    send(&app, get(REPORT)).await;
    let reply = send(&app, head(REPORT)).await;
    assert!(reply.is(Hit));
    assert_eq!(reply.header("content-length"), None);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_head_that_finds_nothing_is_sent_as_head_and_fills_nothing() {
    let origin = Origin::new(|call| match call.parts.method.as_str() {
        "HEAD" => Answer::ok("max-age=60", "").header("content-length", "6"),
        _ => Answer::ok("max-age=60", "report"),
    });
    let app = app(&origin);
    for n in 1..=2 {
        let reply = send(&app, head(REPORT)).await;
        assert_eq!(reply.header("content-length"), Some("6"));
        assert_eq!(origin.last().parts.method, "HEAD");
        assert_eq!(origin.calls(), n);
    }
    let replies = crowd(&app, 10, |_| get(REPORT)).await;
    assert!(replies.iter().all(|reply| reply.text() == "report"));
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_head_does_not_lead_the_gets_that_come_meanwhile() {
    let origin = Origin::new(|call| match call.parts.method.as_str() {
        "HEAD" => Answer::ok("max-age=60", ""),
        _ => Answer::ok("max-age=60", "report"),
    });
    let app = app(&origin);
    let replies = crowd(&app, 10, |i| if i % 2 == 0 { head(REPORT) } else { get(REPORT) }).await;
    for (i, reply) in replies.iter().enumerate() {
        assert_eq!(reply.text(), if i % 2 == 0 { "" } else { "report" });
    }
    // The first is alone; the others take the head of what the flight gets.
    assert_eq!(origin.calls(), 2);
    let is_joined =
        |reply: &&Reply| reply.is(Joined) && reply.header("content-length") == Some("6");
    assert_eq!(replies.iter().step_by(2).filter(is_joined).count(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_head_is_sent_alone_when_the_flight_it_joined_had_nothing_for_it() {
    let origin = Origin::new(|call| Answer::ok("private", call.parts.method.to_string()));
    let app = app(&origin);
    let replies = crowd(&app, 3, |i| if i == 0 { get(REPORT) } else { head(REPORT) }).await;
    assert_eq!(replies[0].text(), "GET");
    assert!(replies[1..].iter().all(|reply| reply.is(Bypass)));
    assert_eq!(origin.seen().iter().filter(|call| call.parts.method == "HEAD").count(), 2);
    // From now on no GET waits for what will not be shared, and after one more try no HEAD does.
    for longest in [WORK * 2, WORK] {
        let replies = crowd(&app, 3, |i| if i == 0 { get(REPORT) } else { head(REPORT) }).await;
        assert_eq!(slowest(&replies), longest);
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_is_not_sent_while_its_key_is_left_alone() {
    let origin = Origin::new(|_| Answer::error());
    let app = app(&origin);
    for _ in 0..2 {
        assert!(try_send(&app, get(REPORT)).await.is_err());
    }
    assert!(send(&app, head(REPORT)).await.is(Refused));
    assert_eq!(origin.calls(), 2);
}

// ===== Unsafe methods =====

#[tokio::test(start_paused = true)]
async fn what_may_change_a_resource_invalidates_it() {
    for method in ["POST", "PUT", "DELETE", "PATCH", "LOCK", "WHATEVER", "get"] {
        for (status, invalidates) in
            [(200, true), (204, true), (303, true), (400, false), (500, false)]
        {
            let origin = Origin::new(move |call| match call.parts.method.as_str() {
                "GET" => Answer::ok("max-age=60", call.n.to_string()),
                _ => Answer::status(status),
            });
            let app = app(&origin);
            send(&app, get(REPORT)).await;
            send(&app, get("http://x/other")).await;
            assert!(send(&app, request(method, REPORT, &[])).await.is(Bypass));
            let kept = send(&app, get(REPORT)).await.is(Hit);
            assert_eq!(kept, !invalidates, "{method} {status}");
            assert!(send(&app, get("http://x/other")).await.is(Hit));
            assert_eq!(origin.calls(), if invalidates { 4 } else { 3 });
        }
    }
}

#[tokio::test(start_paused = true)]
async fn safe_methods_invalidate_nothing() {
    for method in ["OPTIONS", "TRACE", "PROPFIND", "HEAD"] {
        let origin = numbered();
        let app = app(&origin);
        send(&app, get(REPORT)).await;
        send(&app, request(method, REPORT, &[("if-match", "*")])).await;
        assert!(send(&app, get(REPORT)).await.is(Hit), "{method}");
        assert_eq!(origin.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn every_variant_of_what_changed_is_invalidated_and_no_other_query_or_host() {
    let origin =
        Origin::new(|call| Answer::ok("max-age=60", call.n.to_string()).header("vary", "a"));
    let app = app(&origin);
    let ask = |uri: &'static str, a: &'static str| with(uri, &[("a", a)]);
    let uris = [
        ("http://x/r?1", "1"),
        ("http://x/r?1", "2"),
        ("http://x/r?2", "1"),
        ("http://y/r?1", "1"),
    ];
    for (uri, a) in uris {
        send(&app, ask(uri, a)).await;
    }
    send(&app, request("POST", "/r?1", &[("host", "X:80")])).await;
    for ((uri, a), kept) in uris.into_iter().zip([false, false, true, true]) {
        assert_eq!(send(&app, ask(uri, a)).await.is(Hit), kept, "{uri} {a}");
    }
    assert_eq!(origin.calls(), 7);
}

#[tokio::test(start_paused = true)]
async fn what_a_write_points_to_is_invalidated_on_the_same_origin_only() {
    for name in ["location", "content-location"] {
        for (target, invalidates) in [
            ("/other", true),
            ("other", true),
            ("http://x/other", true),
            ("HTTP://X:80/other", true),
            ("//x/other#part", true),
            ("/o/../other", true),
            ("http://y/other", false),
            ("https://x/other", false),
            ("http://x:81/other", false),
            ("", false),
            ("http://[", false),
        ] {
            let origin = Origin::new(move |call| match call.parts.method.as_str() {
                "GET" => Answer::ok("max-age=60", call.n.to_string()),
                _ => Answer::status(201).header(name, target),
            });
            let app = app(&origin);
            for uri in ["http://x/other", "http://y/other", "https://x/other", "http://x:81/other"]
            {
                send(&app, get(uri)).await;
            }
            send(&app, post(REPORT)).await;
            assert_eq!(send(&app, get("http://x/other")).await.is(Hit), !invalidates, "{target}");
            for uri in ["http://y/other", "https://x/other", "http://x:81/other"] {
                assert!(send(&app, get(uri)).await.is(Hit), "{target}: {uri}");
            }
            assert_eq!(origin.calls(), if invalidates { 6 } else { 5 });
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_ends_the_use_of_what_is_being_computed() {
    let origin = Origin::new(|call| match call.parts.method.as_str() {
        "GET" => Answer::ok("max-age=60", call.n.to_string()).after(secs(2)),
        _ => Answer::status(204).after(ms(100)),
    });
    let app = app(&origin);
    let before = spawn({
        let app = app.clone();
        async move { crowd(&app, 10, |_| get(REPORT)).await }
    });
    pass(secs(1)).await;
    send(&app, post(REPORT)).await;
    // A client that asks now never joins the flight that began before the write.
    let after = crowd(&app, 10, |_| get(REPORT)).await;
    let before = before.await.unwrap();
    assert!(before.iter().all(|reply| reply.text() == "0"), "who waited already is served");
    assert!(after.iter().all(|reply| reply.text() == "2"));
    assert_eq!(slowest(&after), secs(2), "nor waits for it");
    assert_eq!(origin.calls(), 3);
    assert_eq!(send(&app, get(REPORT)).await.text(), "2");
}

#[tokio::test(start_paused = true)]
async fn a_get_that_comes_while_a_write_runs_is_not_stored_past_it() {
    let origin = Origin::new(|call| match call.parts.method.as_str() {
        "GET" => Answer::ok("max-age=60", call.n.to_string()).after(ms(100)),
        _ => Answer::status(204).after(secs(1)),
    });
    let app = app(&origin);
    let write = spawn({
        let app = app.clone();
        async move { send(&app, post(REPORT)).await }
    });
    pass(ms(500)).await;
    send(&app, get(REPORT)).await;
    assert!(send(&app, get(REPORT)).await.is(Hit), "the write is not done yet");
    write.await.unwrap();
    assert!(!send(&app, get(REPORT)).await.is(Hit));
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_write_invalidates_while_the_cache_is_switched_off() {
    let cache = origin_only();
    let origin = numbered();
    let app = layered(cache.http_layer(), &origin);
    send(&app, get(REPORT)).await;
    cache.set_mode(tower_stampede::Mode::Off);
    send(&app, post(REPORT)).await;
    cache.set_mode(tower_stampede::Mode::On);
    assert!(!send(&app, get(REPORT)).await.is(Hit));
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_post_reaches_the_origin_as_it_was_and_is_never_collapsed() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.body.clone()));
    let app = app(&origin);
    let replies = crowd(&app, 10, |i| {
        let fields = [("content-type", "text/plain"), ("cookie", "a=b")];
        request("POST", "http://x/report?q=1", &fields).map(|_| Body::from(i.to_string()))
    });
    for (i, reply) in replies.await.iter().enumerate() {
        assert_eq!(reply.text(), i.to_string());
    }
    assert_eq!(origin.calls(), 10);
    assert_eq!(origin.last().uri(), "http://x/report?q=1");
    assert_eq!(origin.last().header("cookie"), Some("a=b"));
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_post_is_not_stored_for_get_unless_the_layer_is_told_so() {
    // An endpoint that answers with what it was sent, to every client.
    let origin = Origin::new(|call| {
        let text = if call.body.is_empty() { "page".into() } else { call.body.clone() };
        Answer::ok("public, max-age=60", text).header("content-location", "/report")
    });
    let app = app(&origin);
    let evil = http::Request::post("/report").body(Body::from("evil")).unwrap();
    assert_eq!(send(&app, evil).await.text(), "evil");
    assert_eq!(send(&app, get("/report")).await.text(), "page");
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_post_for_another_spelling_of_the_host_is_not_stored() {
    let origin = Origin::new(|call| {
        let host = call.header("host").unwrap_or_default().to_owned();
        Answer::ok("max-age=60", host).header("content-location", "/report")
    });
    let app = layered(post_storing(&origin_only()), &origin);
    for host in ["a:80", "A", "a"] {
        send(&app, request("POST", "/report", &[("host", host)])).await;
        let reply = send(&app, with("/report", &[("host", "a")])).await;
        assert_eq!(reply.text(), "a");
        assert_eq!(reply.is(Hit), host == "a", "{host}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_post_is_stored_for_get_where_it_says_that_it_is_one() {
    for (location, directives, cookie, status, stored) in [
        (Some("/report"), "max-age=60", None, 200, true),
        (Some(REPORT), "max-age=60", None, 201, true),
        (None, "max-age=60", None, 200, false),
        (Some("/other"), "max-age=60", None, 200, false),
        (Some("http://y/report"), "max-age=60", None, 200, false),
        (Some("/report"), "", None, 200, false),
        (Some("/report"), "public", None, 200, false),
        (Some("/report"), "max-age=60, no-store", None, 200, false),
        (Some("/report"), "public, max-age=60", Some("a=b"), 200, false),
        (Some("/report"), "max-age=60", None, 303, false),
        (Some("/report"), "max-age=60", None, 404, false),
    ] {
        let origin = Origin::new(move |call| {
            let answer = Answer::status(if call.n == 1 { status } else { 200 });
            let answer = answer.header("cache-control", directives).body(call.n.to_string());
            location.into_iter().fold(answer, |a, location| a.header("content-location", location))
        });
        let app = layered(post_storing(&with_ttl(60)), &origin);
        send(&app, get("http://x/warm-up")).await;
        let fields: Vec<_> = cookie.map(|cookie| ("cookie", cookie)).into_iter().collect();
        let reply = send(&app, request("POST", REPORT, &fields)).await;
        assert_eq!(reply.text(), "1");
        let reply = send(&app, get(REPORT)).await;
        let case = format!("{location:?} {directives} {cookie:?} {status}");
        assert_eq!(reply.text(), if stored { "1" } else { "2" }, "{case}");
        assert_eq!(reply.is(Hit), stored, "{case}");
        assert_eq!(origin.calls(), if stored { 2 } else { 3 });
    }
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_post_replaces_what_was_stored_before() {
    let origin = Origin::new(|call| {
        Answer::ok("max-age=60", call.n.to_string()).header("content-location", "/report")
    });
    let app = layered(post_storing(&origin_only()), &origin);
    assert_eq!(send(&app, get(REPORT)).await.text(), "0");
    send(&app, post(REPORT)).await;
    assert_eq!(send(&app, get(REPORT)).await.text(), "1");
    send(&app, request("PUT", REPORT, &[])).await;
    assert_eq!(send(&app, get(REPORT)).await.text(), "3", "a PUT is not stored");
    assert_eq!(origin.calls(), 4);
}

// ===== Past the cache =====

#[tokio::test(start_paused = true)]
async fn what_is_not_served_from_here_reaches_the_origin_unchanged() {
    for fields in [
        &[("if-match", "*")][..],
        &[("if-match", "*"), ("if-none-match", "\"a\""), ("range", "bytes=0-1")],
        &[("if-unmodified-since", "Sun, 06 Nov 1994 08:49:37 GMT")],
        &[("connection", "upgrade"), ("upgrade", "websocket")],
    ] {
        let origin = Origin::new(|call| match call.parts.headers.is_empty() {
            true => Answer::ok("public, max-age=60", "stored"),
            false => Answer::status(206).header("cache-control", "public, max-age=60"),
        });
        let app = app(&origin);
        send(&app, get(REPORT)).await;
        let mut all = fields.to_vec();
        all.extend([("cookie", "a=b"), ("authorization", "c")]);
        let replies = crowd(&app, 5, |_| with(REPORT, &all)).await;
        assert!(replies.iter().all(|reply| reply.is(Bypass) && reply.status == 206));
        assert_eq!(origin.calls(), 6, "{fields:?}");
        let sent = with(REPORT, &all);
        let got = origin.last();
        assert_eq!((&got.parts.uri, &got.parts.method), (sent.uri(), sent.method()));
        assert_eq!(&got.parts.headers, sent.headers());
        // And leaves what is stored as it was.
        assert_eq!(send(&app, get(REPORT)).await.text(), "stored");
    }
}

#[tokio::test(start_paused = true)]
async fn a_get_with_a_body_goes_past_the_cache_with_its_body() {
    let origin = Origin::new(|call| Answer::ok("public, max-age=60", call.body.clone()));
    let app = app(&origin);
    send(&app, get(REPORT)).await;
    let replies = crowd(&app, 5, |i| get(REPORT).map(|_| Body::from(format!("query {i}")))).await;
    for (i, reply) in replies.iter().enumerate() {
        assert!(reply.is(Bypass));
        assert_eq!(reply.text(), format!("query {i}"));
    }
    assert_eq!(origin.calls(), 6);
    assert_eq!(send(&app, get(REPORT)).await.text(), "", "it poisoned nothing");
}

#[tokio::test(start_paused = true)]
async fn too_many_bytes_of_fields_go_past_the_cache() {
    let origin = numbered();
    let app = layered(origin_only().http_layer().max_header_bytes(1000), &origin);
    send(&app, get(REPORT)).await;
    assert!(send(&app, with(REPORT, &[("x-long", &"x".repeat(1000))])).await.is(Bypass));
    assert_eq!(origin.calls(), 2);
}
