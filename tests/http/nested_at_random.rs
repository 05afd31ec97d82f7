//! Layers with rules for routes, and nested layers, with random settings and requests: they share
//! no more than each layer would share alone, a crowd is one call, and no request panics.

use axum::Router;
use axum::body::Body;
use axum::middleware::{Next, from_fn, map_request};
use axum::routing::{MethodRouter, any};
use http::Request;
use proptest::prelude::*;
use tower_layer::Layer;
use tower_stampede::HttpLayer;

use crate::kit::http::*;
use crate::kit::spawn;

fn run<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().unwrap().block_on(work)
}

fn handler(origin: &Origin) -> MethodRouter {
    let origin = origin.clone();
    any(move |request| origin.clone().handle(request))
}

/// What layers share, against each of them alone.
mod sharing {
    use super::*;

    /// How many settings there are that say which requests share.
    const SETTINGS: usize = 20;
    const IGNORES_COOKIES: usize = 15;

    fn set(layer: HttpLayer, which: usize) -> HttpLayer {
        let by_field = |name: &'static str| {
            move |parts: &http::request::Parts| {
                parts.headers.get(name).map(|it| it.as_bytes().to_vec())
            }
        };
        match which {
            0 => layer.vary(["x-plan"]),
            1 => layer.keyed_headers(["x-sid"]),
            2 => layer.credential_headers(["x-sid"]),
            3 => layer.scope("s"),
            4 => layer.scheme("https"),
            5 => layer.identity(move |parts| Some(by_field("x-plan")(parts))),
            6 => layer.replace_keyed_headers([]),
            7 => layer.not_a_credential(["x-user"]),
            8 => layer.vary(["cookie"]),
            9 => layer.keyed_headers(["authorization"]),
            10 => layer.identity(by_field("x-sid")),
            11 => layer.bypass(|parts| parts.headers.contains_key("x-plan")),
            12 => layer.vary(["accept-language"]),
            13 => layer.query(["q"]),
            14 => layer.query(["t"]),
            IGNORES_COOKIES => layer.ignore_cookies(["*"]),
            16 => layer.normalise_accept(false),
            17 => layer.replace_credential_headers(["x-sid"]),
            18 => layer.replace_credential_headers([]),
            _ => layer.not_keyed(["x-forwarded-host"]),
        }
    }

    /// Settings that are one for all routes.
    fn is_of_layer(which: usize) -> bool {
        matches!(which, 3 | 4)
    }

    const FIELDS: [(&str, &str); 17] = [
        ("host", "a"),
        ("host", "b"),
        ("cookie", "u=1"),
        ("cookie", "u=2"),
        ("authorization", "alice"),
        ("authorization", "bob"),
        ("accept-language", "de, en"),
        ("accept-language", "en, de"),
        ("x-sid", "1"),
        ("x-sid", "2"),
        ("x-plan", "1"),
        ("x-plan", "2"),
        ("x-user", "1"),
        ("x-user", "2"),
        ("x-user", "1,2"),
        ("x-user", "1, 2"),
        ("x-forwarded-host", "c"),
    ];
    const URIS: [&str; 4] = ["/page?q=1", "/page?q=1&t=1", "/page?q=1&t=2", "/page?q=2"];
    const CONTROL: [&str; 3] = ["", "max-age=60", "public, max-age=60"];
    const VARY: [&str; 5] = ["", "accept-language", "cookie", "x-plan", "x-user"];
    const REMOVED: [&str; 7] =
        ["x-none", "cookie", "authorization", "x-sid", "x-plan", "accept-language", "x-user"];

    fn made(uri: usize, fields: &[usize]) -> Request<Body> {
        let mut request = get(URIS[uri]);
        for field in fields {
            let (name, value) = FIELDS[*field];
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        request
    }

    fn app(
        origin: &Origin,
        inner: Option<HttpLayer>,
        removed: [&'static str; 2],
        outer: Option<HttpLayer>,
    ) -> Router {
        let route = match inner {
            Some(inner) => handler(origin).layer(inner),
            None => handler(origin),
        };
        let app = Router::new().route("/page", route);
        let app = app.layer(map_request(move |mut request: Request<Body>| async move {
            removed.iter().for_each(|name| drop(request.headers_mut().remove(*name)));
            request
        }));
        match outer {
            Some(outer) => app.layer(outer),
            None => app,
        }
    }

    /// Returns whether two requests are one call at most.
    async fn shares(
        app: &Router,
        origin: &Origin,
        is_warm: bool,
        pair: [(usize, &[usize]); 2],
    ) -> bool {
        if is_warm {
            send(app, get("/page?warm")).await;
        }
        let before = origin.calls();
        for (uri, fields) in pair {
            send(app, made(uri, fields)).await;
        }
        origin.calls() <= before + 1
    }

    fn origin_with(control: usize, vary: usize) -> Origin {
        Origin::new(move |_| {
            let mut answer = Answer::status(200).body("x").after(ms(1));
            if !CONTROL[control].is_empty() {
                answer = answer.header("cache-control", CONTROL[control]);
            }
            if !VARY[vary].is_empty() {
                answer = answer.header("vary", VARY[vary]);
            }
            answer
        })
    }

    fn with_all(base: HttpLayer, settings: &[usize]) -> HttpLayer {
        settings.iter().fold(base, |layer, which| set(layer, *which))
    }

    fn fields() -> impl Strategy<Value = Vec<usize>> {
        proptest::collection::vec(0..FIELDS.len(), 0..3)
    }

    fn settings() -> impl Strategy<Value = Vec<usize>> {
        proptest::collection::vec(0..SETTINGS, 0..3)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn nested_layers_share_what_each_of_them_would_share_alone(
            is_warm: bool,
            outer in settings(),
            inner in settings(),
            (control, vary) in (0..CONTROL.len(), 0..VARY.len()),
            removed in 0..REMOVED.len(),
            common in fields(),
            one in fields(),
            other in fields(),
            (uri, other_uri) in (0..URIS.len(), 0..URIS.len()),
        ) {
            let one = [&common[..], &one].concat();
            let other = [&common[..], &other].concat();
            let pair = [(uri, &one[..]), (other_uri, &other[..])];
            // What the outer layer itself hides, no layer inside of it receives.
            let hidden = if outer.contains(&IGNORES_COOKIES) { "cookie" } else { "x-none" };
            let removed = [REMOVED[removed], "x-none"];
            run(async {
                let origin = origin_with(control, vary);
                let cache = with_ttl(60);
                let (inside, around) =
                    (with_all(cache.http_layer(), &inner), with_all(cache.http_layer(), &outer));
                let both = app(&origin, Some(inside), removed, Some(around));
                if !shares(&both, &origin, is_warm, pair).await {
                    return Ok(());
                }
                let (first, second) = (with_ttl(60), with_ttl(60));
                let around = with_all(first.http_layer(), &outer);
                let alone = app(&origin, None, removed, Some(around));
                prop_assert!(shares(&alone, &origin, is_warm, pair).await, "at the outer place");
                let inside = with_all(second.http_layer(), &inner);
                let alone = app(&origin, Some(inside), [removed[0], hidden], None);
                prop_assert!(shares(&alone, &origin, is_warm, pair).await, "at the inner place");
                Ok(())
            })?;
        }

        #[test]
        fn a_route_shares_what_one_layer_with_all_its_settings_shares(
            is_warm: bool,
            is_first: bool,
            layer in settings(),
            route in settings(),
            (control, vary) in (0..CONTROL.len(), 0..VARY.len()),
            common in fields(),
            one in fields(),
            other in fields(),
            (uri, other_uri) in (0..URIS.len(), 0..URIS.len()),
        ) {
            let route: Vec<_> = route.into_iter().filter(|which| !is_of_layer(*which)).collect();
            let one = [&common[..], &one].concat();
            let other = [&common[..], &other].concat();
            let pair = [(uri, &one[..]), (other_uri, &other[..])];
            run(async {
                let origin = origin_with(control, vary);
                let cache = with_ttl(60);
                let all = [&layer[..], &route].concat();
                let ruled = |it: HttpLayer| {
                    let route = route.clone();
                    it.route_rules("/page", move |it| with_all(it, &route))
                };
                let ruled = match is_first {
                    true => with_all(ruled(cache.http_layer()), &layer),
                    false => ruled(with_all(cache.http_layer(), &layer)),
                };
                let ruled = app(&origin, None, ["x-none"; 2], Some(ruled));
                let single = with_all(with_ttl(60).http_layer(), &all);
                let single = app(&origin, None, ["x-none"; 2], Some(single));
                let by_route = shares(&ruled, &origin, is_warm, pair).await;
                let by_layer = shares(&single, &origin, is_warm, pair).await;
                prop_assert_eq!(by_route, by_layer);
                Ok(())
            })?;
        }
    }
}

/// One call for each window, whatever the crowd asks for.
mod calls {
    use super::*;

    fn answer(call: &Call) -> Answer {
        let is_known = call.header("if-none-match").is_some();
        let answer = if is_known { Answer::status(304) } else { Answer::ok("", "ten bytes.") };
        answer.header("etag", "\"a\"").header("cache-control", "max-age=10")
    }

    async fn slow(request: Request<Body>, next: Next) -> http::Response<Body> {
        tokio::time::sleep(ms(30)).await;
        next.run(request).await
    }

    fn apps(origin: &Origin) -> Vec<(&'static str, Router)> {
        let page = |layer: HttpLayer| Router::new().route("/page", handler(origin).layer(layer));
        let other = || Router::new().route("/other", handler(origin));
        let (a, b) = (with_ttl(60), with_ttl(60));
        let two = page(b.http_layer()).layer(a.http_layer());
        let three = page(a.http_layer()).layer(b.http_layer()).layer(a.http_layer());
        let layer = with_ttl(60).http_layer();
        let twice = page(layer.clone()).layer(layer);
        let fallback = other()
            .fallback_service(handler(origin).layer(with_ttl(60).http_layer()))
            .layer(from_fn(slow))
            .layer(with_ttl(60).http_layer());
        let d = with_ttl(60);
        let fallback_of_one = other()
            .fallback_service(handler(origin).layer(d.http_layer().ttl(secs(20))))
            .layer(from_fn(slow))
            .layer(d.http_layer());
        let e = with_ttl(60);
        let nested = Router::new().route("/x", handler(origin)).layer(e.http_layer());
        let nested = Router::new()
            .nest("/sub", nested)
            .merge(page(e.http_layer()))
            .layer(from_fn(slow))
            .layer(e.http_layer());
        let ruled = || {
            let layer = with_ttl(60).http_layer().query([]);
            layer.route_rules("/page", |route| route.query(["q"]).vary(["x-plan"]))
        };
        let route = Router::new().route("/page", handler(origin)).layer(ruled());
        let by_path = other().fallback_service(handler(origin)).layer(ruled());
        vec![
            ("two handles", two),
            ("two handles, three layers", three),
            ("one layer twice", twice),
            ("fallback", fallback),
            ("fallback of one handle", fallback_of_one),
            ("nested router of one handle", nested),
            ("route with rules", route),
            ("fallback with rules", by_path),
        ]
    }

    #[tokio::test(start_paused = true)]
    async fn crowds_of_all_kinds_are_one_call_for_each_window() {
        let origin = Origin::new(answer);
        for (name, app) in apps(&origin) {
            for window in 0..4 {
                let before = origin.calls();
                // These clients hang up at once.
                let leaving: Vec<_> = (0..5)
                    .map(|_| {
                        let app = app.clone();
                        spawn(async move { send(&app, get("/page?q=1")).await })
                    })
                    .collect();
                pass(ms(10)).await;
                leaving.iter().for_each(|client| client.abort());
                let replies = crowd(&app, 40, |n| match n % 4 {
                    0 => with("/page?q=1", &[("if-none-match", "\"a\"")]),
                    1 => with("/page?q=1", &[("range", "bytes=0-3")]),
                    2 => request("HEAD", "/page?q=1", &[]),
                    _ => get("/page?q=1"),
                })
                .await;
                for (n, reply) in replies.iter().enumerate() {
                    let expected = [304, 206, 200, 200][n % 4];
                    assert_eq!(reply.status, expected, "{name} {n} {}", reply.cache_status());
                    assert_eq!(reply.body.len(), [0, 4, 0, 10][n % 4], "{name} {n}");
                }
                assert_eq!(origin.calls(), before + 1, "{name}, window {window}");
                pass(secs(11)).await;
            }
        }
    }
}

/// Nothing from the network panics.
mod hostile {
    use super::*;

    const NAMES: [&str; 12] = [
        "host",
        "range",
        "if-none-match",
        "cookie",
        "accept-language",
        "accept_language",
        "cache-control",
        "x-forwarded-host",
        "if-modified-since",
        "x-user",
        "if-range",
        "authorization",
    ];
    const METHODS: [&str; 5] = ["GET", "HEAD", "POST", "GET", "OPTIONS"];

    fn uri() -> impl Strategy<Value = String> {
        let scheme = "(http://|https://|//)?[aA]?(:80|:|@)?";
        proptest::string::string_regex(&format!(
            "{scheme}/?(page|%7e|\\*)?(\\?[q=&tu%?x]{{0,8}})?|\\*|a:1"
        ))
        .unwrap()
    }

    fn field() -> impl Strategy<Value = (usize, Vec<u8>)> {
        let byte = prop_oneof![Just(0xff_u8), Just(b','), Just(b'"'), Just(b'='), 0x20..0x7f_u8];
        (0..NAMES.len(), proptest::collection::vec(byte, 0..12))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn no_request_to_nested_layers_panics(
            uris in proptest::collection::vec(uri(), 1..4),
            methods in proptest::collection::vec(0..METHODS.len(), 4),
            fields in proptest::collection::vec(field(), 0..5),
        ) {
            run(async {
                let cache = with_ttl(60);
                let origin = Origin::new(|_| {
                    Answer::ok("public, max-age=5, stale-while-revalidate=60", "ten bytes.")
                        .header("vary", "accept-language, cookie")
                        .header("etag", "\"a\"")
                        .after(ms(1))
                });
                let inner = cache.http_layer().query(["q"]).vary(["x-user"]).layer(origin.infallible());
                let middle = cache.http_layer().query(["q", "t"]).ignore_cookies(["*"]);
                let middle = middle.honour_request_directives(true).layer(inner);
                let layer = cache.http_layer().query([]).store_post_responses(true);
                let layer = layer.route_rules("/page", |it| it.query(["q"]).cache_posts(|_| true));
                let app = layer.layer(middle);
                for (n, uri) in uris.iter().enumerate() {
                    let Ok(uri) = uri.parse::<http::Uri>() else { continue };
                    for _ in 0..3 {
                        let mut request = request(METHODS[methods[n]], "/", &[]);
                        *request.uri_mut() = uri.clone();
                        for (name, value) in &fields {
                            let Ok(value) = http::HeaderValue::from_bytes(value) else { continue };
                            request.headers_mut().append(NAMES[*name], value);
                        }
                        let response = tower::ServiceExt::oneshot(app.clone(), request);
                        let body = response.await.unwrap().into_body();
                        let _ = http_body_util::BodyExt::collect(body).await;
                        pass(secs(3)).await;
                    }
                }
            });
        }
    }
}
