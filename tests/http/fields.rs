//! Fields: what clients learn about the cache, and what is not passed on.

use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{CacheFor, Mode, Stampede};

use crate::kit::http::*;
use crate::kit::spawn;

#[tokio::test(start_paused = true)]
async fn a_hit_carries_its_age() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "report"));
    let app = app(&origin);
    let first = send(&app, get("/report")).await;
    assert_eq!(first.header("age"), None, "what is forwarded gains none");
    for (pause, age) in [(0, "0"), (10, "10"), (49, "59")] {
        pass(secs(pause)).await;
        assert_eq!(send(&app, get("/report")).await.header("age"), Some(age));
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_age_of_an_answer_from_another_cache_counts_on() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "report").header("age", "20"));
    let app = app(&origin);
    let replies = crowd(&app, 3, |_| get("/report")).await;
    assert_eq!(replies[0].header("age"), Some("20"), "forwarded as it was");
    assert_eq!(replies[1].header("age"), Some("20"));
    pass(secs(39)).await;
    assert_eq!(send(&app, get("/report")).await.header("age"), Some("59"));
    pass(secs(1)).await;
    assert!(!send(&app, get("/report")).await.is(Hit));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn age_counts_from_the_request_and_not_from_the_answer() {
    // RFC 9111, 4.2.3: the time that the origin took counts as age.
    let origin = Origin::new(|_| Answer::ok("max-age=60", "report").after(secs(5)));
    let app = app(&origin);
    let replies = crowd(&app, 2, |_| get("/report")).await;
    assert_eq!(replies[1].header("age"), Some("5"));
    pass(secs(55)).await;
    assert!(!send(&app, get("/report")).await.is(Hit));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn nonsense_in_age_is_ignored_and_a_huge_one_is_old() {
    for (age, is_hit) in [
        ("x", true),
        ("-1", true),
        ("1.5", true),
        ("10, 70", true),
        ("18446744073709551615", false),
    ] {
        let origin = Origin::new(move |_| Answer::ok("max-age=60", "").header("age", age));
        let app = app(&origin);
        send(&app, get("/report")).await;
        assert_eq!(send(&app, get("/report")).await.is(Hit), is_hit, "{age}");
        assert_eq!(origin.calls(), if is_hit { 1 } else { 2 });
    }
}

#[tokio::test(start_paused = true)]
async fn age_can_be_switched_off() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "").header("age", "20"));
    let app = layered(origin_only().http_layer().age(false), &origin);
    send(&app, get("/report")).await;
    assert_eq!(send(&app, get("/report")).await.header("age"), None);
    assert_eq!(origin.calls(), 1);
}

// ===== Cache-Status (RFC 9211) =====

#[tokio::test(start_paused = true)]
async fn cache_status_says_how_an_answer_came_about() {
    let directives = "max-age=10, stale-while-revalidate=10, stale-if-error=100";
    let origin = Origin::new(move |_| Answer::ok(directives, "report"));
    let app = app(&origin);
    let cold = crowd(&app, 2, |_| get("/report")).await;
    assert_eq!(cold[0].cache_status(), "tower-stampede; fwd=uri-miss; fwd-status=200; stored");
    assert_eq!(cold[1].cache_status(), "tower-stampede; fwd=uri-miss; fwd-status=200; collapsed");
    pass(secs(2)).await;
    let hit = send(&app, get("/report")).await;
    assert_eq!(hit.cache_status(), "tower-stampede; hit; ttl=7");
    pass(secs(10)).await;
    origin.answers(|_| Answer::status(500));
    let stale = send(&app, get("/report")).await;
    assert_eq!(stale.cache_status(), "tower-stampede; hit; ttl=-3");
    pass(secs(50)).await;
    let instead = send(&app, get("/report")).await;
    assert!(instead.is(StaleIfError));
    assert_eq!(instead.cache_status(), "tower-stampede; hit; ttl=-53");
    pass(secs(100)).await;
    let expired = send(&app, get("/report")).await;
    assert_eq!(expired.status, 500);
    assert!(expired.cache_status().starts_with("tower-stampede; fwd="));
    assert!(expired.cache_status().contains("; fwd-status=500"));
    assert_eq!(origin.calls(), 4);
}

#[tokio::test(start_paused = true)]
async fn cache_status_says_why_the_origin_was_asked() {
    let origin = Origin::new(|_| Answer::ok("max-age=10", "report").header("vary", "a"));
    let app = app(&origin);
    let fwd = |reply: Reply| {
        let status = reply.cache_status().to_owned();
        status.strip_prefix("tower-stampede; fwd=").unwrap().to_owned()
    };
    assert_eq!(fwd(send(&app, get("/r")).await), "uri-miss; fwd-status=200; stored");
    let other = with("/r", &[("a", "1")]);
    assert_eq!(fwd(send(&app, other).await), "vary-miss; fwd-status=200; stored");
    let mine = with("/r", &[("authorization", "a")]);
    let mine = fwd(send(&app, mine).await);
    assert!(mine.ends_with("; fwd-status=200; detail=credentials:authorization"), "{mine}");
    for (name, value, detail) in [
        ("range", "items=0-1", "range"),
        ("if-match", "\"a\"", "conditional"),
        ("cache-control", "no-store", "no-store"),
    ] {
        let reply = send(&app, with("/cold", &[(name, value)])).await;
        assert_eq!(fwd(reply), format!("bypass; fwd-status=200; detail={detail}"));
    }
    let post = send(&app, request("POST", "/other", &[])).await;
    assert_eq!(fwd(post), "method; fwd-status=200; detail=method");
    let head = send(&app, request("HEAD", "/head", &[])).await;
    assert_eq!(fwd(head), "uri-miss; fwd-status=200; detail=method");
    origin.answers(|_| Answer::ok("private", "mine"));
    let private = send(&app, get("/private")).await;
    assert_eq!(fwd(private), "uri-miss; fwd-status=200; detail=private");
    origin.answers(|_| Answer::ok("max-age=1", "report"));
    send(&app, get("/short")).await;
    pass(secs(2)).await;
    let stale = fwd(send(&app, get("/short")).await);
    assert!(stale.starts_with("stale;") || stale.starts_with("uri-miss;"), "{stale}");
    assert_eq!(origin.calls(), 11);
}

#[tokio::test(start_paused = true)]
async fn hit_and_fwd_never_stand_in_one_member() {
    let origin = Origin::new(|call| match call.n % 3 {
        0 => Answer::ok("max-age=10, stale-while-revalidate=10, stale-if-error=60", ""),
        1 => Answer::status(500),
        _ => Answer::ok("no-store", ""),
    });
    let app = app(&origin);
    for _ in 0..40 {
        for reply in crowd(&app, 3, |_| get("/report")).await {
            let status = reply.cache_status();
            assert!(status.contains("hit") != status.contains("fwd="), "{status}");
            assert_eq!(reply.all("cache-status").len(), 1);
        }
        pass(secs(3)).await;
    }
    assert!(origin.calls() > 3);
}

#[tokio::test(start_paused = true)]
async fn members_of_caches_before_us_are_kept_in_front() {
    let origin = Origin::new(|_| {
        Answer::ok("max-age=60", "").header("cache-status", "cdn; hit").header("cache-status", "b")
    });
    let app = app(&origin);
    for ours in
        ["tower-stampede; fwd=uri-miss; fwd-status=200; stored", "tower-stampede; hit; ttl=59"]
    {
        let reply = send(&app, get("/report")).await;
        assert_eq!(reply.all("cache-status"), ["cdn; hit", "b", ours]);
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_name_in_cache_status_can_be_set_and_the_field_left_out() {
    for (name, shown) in
        [("edge-1", "edge-1; hit; ttl=59"), ("my cache", "\"my cache\"; hit; ttl=59")]
    {
        let origin = Origin::new(|_| Answer::ok("max-age=60", ""));
        let app = layered(origin_only().http_layer().cache_status(name), &origin);
        send(&app, get("/report")).await;
        assert_eq!(send(&app, get("/report")).await.cache_status(), shown);
    }
    let origin = Origin::new(|_| Answer::ok("max-age=60", "").header("cache-status", "cdn; hit"));
    let app = layered(origin_only().http_layer().cache_status(""), &origin);
    for reply in crowd(&app, 3, |_| get("/report")).await {
        assert_eq!(reply.all("cache-status"), ["cdn; hit"]);
    }
    origin.answers(|_| Answer::ok("max-age=60", ""));
    crowd(&app, 2, |_| get("/other")).await;
    let past = with("/other", &[("if-match", "*")]);
    for request in [get("/other"), past, request("POST", "/", &[])] {
        assert_eq!(send(&app, request).await.header("cache-status"), None);
    }
    assert_eq!(origin.calls(), 4);
}

// ===== Extensions =====

#[tokio::test(start_paused = true)]
async fn every_response_says_its_outcome_and_none_the_handlers_lifetime() {
    let origin =
        Origin::new(|_| Answer::ok("", "").extension(CacheFor::new(secs(10)).stale_for(secs(10))));
    let cache = Stampede::builder("test").origin_only().max_waiters(1).build().unwrap();
    let app = layered(cache.http_layer(), &origin);
    let mut replies = crowd(&app, 3, |_| get("/report")).await;
    replies.push(send(&app, get("/report")).await);
    pass(secs(11)).await;
    replies.push(send(&app, get("/report")).await);
    replies.push(send(&app, with("/report", &[("if-match", "*")])).await);
    replies.push(send(&app, request("POST", "/report", &[])).await);
    replies.push(send(&app, request("HEAD", "/other", &[])).await);
    replies.push(send(&app, with("/report", &[("cookie", "a")])).await);
    cache.set_mode(Mode::Off);
    replies.push(send(&app, get("/report")).await);
    let outcomes: Vec<_> = replies.iter().map(|reply| reply.outcome.unwrap()).collect();
    let expected =
        [Computed, Joined, Refused, Hit, Stale, Bypass, Bypass, Computed, Computed, Alone];
    assert_eq!(outcomes, expected);
    assert!(replies.iter().all(|reply| !reply.has_cache_for));
}

// ===== What is not stored =====

#[tokio::test(start_paused = true)]
async fn what_concerns_one_connection_is_not_stored() {
    let origin = Origin::new(|_| {
        Answer::ok("max-age=60", "report")
            .header("connection", "keep-alive, X-Hop")
            .header("connection", "x-other")
            .header("keep-alive", "timeout=5")
            .header("x-hop", "1")
            .header("x-other", "1")
            .header("proxy-authenticate", "Basic")
            .header("proxy-authentication-info", "a")
            .header("te", "trailers")
            .header("upgrade", "h2c")
            .header("x-end", "1")
    });
    let app = app(&origin);
    let replies = crowd(&app, 3, |_| get("/report")).await;
    for reply in [&replies[1], &send(&app, get("/report")).await] {
        let mut names: Vec<_> = reply.headers.keys().map(|name| name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            ["age", "cache-control", "cache-status", "content-length", "date", "x-end"]
        );
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn repeated_fields_survive_in_order() {
    let origin = Origin::new(|_| {
        let answer = Answer::ok("max-age=60", "");
        answer.header("link", "<a>").header("x", "1").header("link", "<b>").header("link", "<a>")
    });
    let app = app(&origin);
    for reply in crowd(&app, 3, |_| get("/report")).await {
        assert_eq!(reply.all("link"), ["<a>", "<b>", "<a>"]);
    }
    assert_eq!(send(&app, get("/report")).await.all("link"), ["<a>", "<b>", "<a>"]);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_date_is_set_once_where_it_is_missing_and_never_rewritten() {
    for date in [None, Some("x"), Some("Sun, 06 Nov 2094 08:49:37 GMT")] {
        let origin = Origin::new(move |_| {
            let answer = Answer::ok("max-age=60", "");
            date.into_iter().fold(answer, |answer, date| answer.header("date", date))
        });
        let app = app(&origin);
        send(&app, get("/report")).await;
        let first = send(&app, get("/report")).await;
        pass(secs(30)).await;
        let second = send(&app, get("/report")).await;
        assert_eq!(first.all("date").len(), 1);
        assert_eq!(first.header("date"), second.header("date"), "the time of receipt stays");
        if let Some(valid) = date.filter(|date| date.len() > 1) {
            assert_eq!(first.header("date"), Some(valid));
        } else {
            assert!(first.header("date").unwrap().ends_with(" GMT"));
        }
        assert_eq!(origin.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn status_and_fields_of_a_hit_are_those_of_the_origin() {
    for status in [200, 203, 301, 404, 410, 418, 599] {
        let origin = Origin::new(move |_| {
            let answer = Answer::status(status).header("cache-control", "max-age=60");
            answer.header("location", "/x").header("content-encoding", "gzip").body("zip")
        });
        let app = app(&origin);
        send(&app, get("/report")).await;
        let hit = send(&app, get("/report")).await;
        assert!(hit.is(Hit) && hit.status == status && hit.text() == "zip");
        assert_eq!(hit.header("content-encoding"), Some("gzip"));
        assert_eq!(hit.header("location"), Some("/x"));
        assert_eq!(origin.calls(), 1);
    }
}

/// Nothing that a client or an origin sends makes the layer panic.
mod random {
    use super::*;
    use axum::body::Body;
    use http::{HeaderName, HeaderValue, Method, Request, Response, Uri};
    use proptest::prelude::*;
    use std::convert::Infallible;

    type Fields = Vec<(HeaderName, HeaderValue)>;

    fn name() -> impl Strategy<Value = HeaderName> {
        let known = [
            "cache-control",
            "vary",
            "age",
            "date",
            "expires",
            "set-cookie",
            "connection",
            "host",
            "authorization",
            "cookie",
            "content-length",
            "content-type",
            "trailer",
            "location",
            "content-location",
            "cache-status",
            "cdn-cache-control",
            "range",
            "if-none-match",
            "x-forwarded-host",
            "accept-encoding",
            "accept-language",
            "transfer-encoding",
            "pragma",
            "content-encoding",
            "etag",
            "x-api-key",
            "forwarded",
            "te",
            "upgrade",
        ];
        prop_oneof![
            4 => prop::sample::select(known.to_vec()).prop_map(HeaderName::from_static),
            1 => "[a-z!#-]{1,12}".prop_filter_map("a name", |name| HeaderName::try_from(name).ok()),
        ]
    }

    fn value() -> impl Strategy<Value = HeaderValue> {
        let directive = prop_oneof![
            Just("max-age"),
            Just("s-maxage"),
            Just("no-store"),
            Just("private"),
            Just("public"),
            Just("no-cache"),
            Just("stale-while-revalidate"),
            Just("stale-if-error"),
            Just("must-understand"),
            Just("must-revalidate"),
            Just("gzip"),
            Just("*"),
        ];
        let number = prop_oneof![
            Just(String::new()),
            "=[0-9]{1,22}",
            "=\"[ -~]{0,6}\"",
            "=[ -~]{0,4}",
            ";q=[0-9.]{1,5}",
        ];
        let member = (directive, number).prop_map(|(name, number)| format!("{name}{number}"));
        let list = prop::collection::vec(member, 0..4).prop_map(|list| list.join(", "));
        let of_text = |text: String| HeaderValue::try_from(text).ok();
        let uris = "[a-z:/.?#@%\\[\\]]{0,12}";
        prop_oneof![
            4 => list.prop_filter_map("a value", of_text),
            1 => uris.prop_filter_map("a value", of_text),
            1 => "[0-9]{0,20}".prop_filter_map("a value", of_text),
            1 => prop::collection::vec(any::<u8>(), 0..12)
                .prop_filter_map("a value", |bytes| HeaderValue::from_bytes(&bytes).ok()),
        ]
    }

    fn fields() -> impl Strategy<Value = Fields> {
        prop::collection::vec((name(), value()), 0..6)
    }

    fn uri() -> impl Strategy<Value = Uri> {
        prop_oneof![
            "/[ -~]{0,12}",
            "/[a-z]?[a-z&=%;?]{0,12}",
            "\\*",
            "http://[a-z.:@0-9]{0,8}/?[a-z?=&]{0,5}",
            "[a-z]{1,4}:[0-9]{1,3}",
            "https://[a-z]{1,3}\\?[a-z=&]{0,6}",
        ]
        .prop_filter_map("a uri", |text| text.parse().ok())
    }

    fn method() -> impl Strategy<Value = Method> {
        prop_oneof![
            6 => Just(Method::GET),
            1 => Just(Method::HEAD),
            1 => Just(Method::POST),
            1 => Just(Method::CONNECT),
            1 => "[A-Z]{1,6}".prop_map(|name| Method::from_bytes(name.as_bytes()).unwrap()),
        ]
    }

    fn request() -> impl Strategy<Value = (Method, Uri, Fields)> {
        (method(), uri(), fields())
    }

    fn made<B>(mut message: B, fields: &Fields, headers: fn(&mut B) -> &mut http::HeaderMap) -> B {
        for (name, value) in fields {
            headers(&mut message).append(name, value.clone());
        }
        message
    }

    async fn survive(
        requests: Vec<(Method, Uri, Fields)>,
        status: u16,
        answer: Fields,
        cookies: bool,
    ) -> Result<(), TestCaseError> {
        let inner = tower::service_fn(move |request: Request<Body>| {
            let response = Response::builder().status(status).body(request.into_body()).unwrap();
            let response = made(response, &answer, Response::headers_mut);
            async move {
                tokio::time::sleep(ms(10)).await;
                Ok::<_, Infallible>(response)
            }
        });
        let layer = with_ttl(60).http_layer().stale_for(secs(60)).query(["a", "q"]);
        let layer = if cookies { layer.ignore_cookies(["*"]) } else { layer };
        let app = layer.layer(inner);
        for _ in 0..2 {
            let tasks: Vec<_> = requests
                .iter()
                .flat_map(|request| [request, request])
                .map(|(method, uri, fields)| {
                    let request = Request::builder().method(method).uri(uri);
                    let request = request.body(Body::empty()).unwrap();
                    let request = made(request, fields, Request::headers_mut);
                    let app = app.clone();
                    spawn(async move { send(&app, request).await })
                })
                .collect();
            for task in tasks {
                let reply = task.await;
                prop_assert!(reply.is_ok(), "{:?}", reply);
                let reply = reply.unwrap();
                prop_assert!(reply.outcome.is_some() && reply.took < secs(1));
            }
            pass(secs(61)).await;
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

        #[test]
        fn no_request_and_no_response_makes_the_layer_panic(
            requests in prop::collection::vec(request(), 1..4),
            status in 200_u16..600,
            answer in fields(),
            cookies: bool,
        ) {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_time().start_paused(true).build().unwrap();
            runtime.block_on(survive(requests, status, answer, cookies))?;
        }
    }
}

/// The kit asserts of each reply in these tests that it says why it was not shared; here are the
/// words that are rare.
#[tokio::test(start_paused = true)]
async fn a_response_that_was_not_shared_says_why() {
    let origin = Origin::new(|call| match &*call.uri() {
        "/fails" => Answer::status(503),
        "/private" => Answer::ok("private", "mine").after(secs(1)),
        "/late" => Answer::ok("max-age=1", "old").after(secs(1)).header("age", "5"),
        _ => Answer::ok("max-age=60", "report").after(secs(1)),
    });
    let cache = origin_only();
    let app = layered(cache.http_layer(), &origin);
    let detail = |reply: &Reply| {
        let status = reply.cache_status();
        status.split_once("; detail=").map(|(_, detail)| detail.to_owned()).unwrap_or_default()
    };
    assert_eq!(detail(&send(&app, get("/fails")).await), "failed");
    assert_eq!(detail(&send(&app, get("/late")).await), "expired");
    let both = tokio::join!(send(&app, get("/private")), send(&app, get("/private")));
    assert_eq!((&*detail(&both.0), &*detail(&both.1)), ("private", "declined"));
    let both = tokio::join!(send(&app, get("/private")), send(&app, get("/private")));
    assert_eq!((&*detail(&both.0), &*detail(&both.1)), ("private", "passed"));
    let invalidate = async {
        pass(ms(500)).await;
        cache.invalidate_all().await;
    };
    let (reply, ()) = tokio::join!(send(&app, get("/report")), invalidate);
    assert_eq!(detail(&reply), "invalidated");
    assert_eq!(detail(&send(&app, request("HEAD", "/head", &[])).await), "method");
    cache.set_mode(Mode::Observe);
    assert_eq!(detail(&send(&app, with("/r", &[("range", "bytes=0-1")])).await), "observe");
    cache.set_mode(Mode::Off);
    assert_eq!(detail(&send(&app, get("/report")).await), "off");
}
