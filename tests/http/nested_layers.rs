//! A layer inside of another one of the same handle: it passes requests on.

use axum::Router;
use axum::routing::any;
use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{CacheFor, HttpLayer, HttpStampede};

use crate::kit::http::*;

/// A route with a layer of its own, below a layer of the whole router.
fn nested(cache: &HttpStampede, origin: &Origin) -> Router {
    let origin = origin.clone();
    let handler = any(move |request| origin.clone().handle(request));
    Router::new().route("/page", handler.layer(cache.http_layer())).layer(cache.http_layer())
}

#[tokio::test(start_paused = true)]
async fn one_layer_alone_speaks_and_the_response_is_stored_once() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.n.to_string()));
    let app = nested(&origin_only(), &origin);
    let first = send(&app, get("/page")).await;
    assert_eq!((first.status, first.text()), (200, "0"));
    assert!(first.took < secs(1), "{:?}", first.took);
    assert_eq!(first.all("cache-status").len(), 1, "one layer speaks");
    assert!(send(&app, get("/page")).await.is(Hit));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_crowd_at_nested_layers_is_one_call() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "page"));
    let app = nested(&origin_only(), &origin);
    let replies = crowd(&app, 100, |_| get("/page")).await;
    assert!(replies.iter().all(|reply| reply.text() == "page"));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn every_kind_of_request_passes_both_layers() {
    let cache = with_ttl(60);
    let origin = Origin::new(|call| match call.parts.method.as_str() {
        "GET" if call.header("cookie").is_some() => Answer::ok("private", "mine"),
        _ => Answer::ok("max-age=10, stale-while-revalidate=60", call.n.to_string()),
    });
    let app = nested(&cache, &origin);
    for (n, request) in [
        with("/page", &[("cookie", "a=b")]),
        with("/page", &[("if-match", "*")]),
        with("/page", &[("cache-control", "no-store")]),
        with("/page", &[("range", "bytes=0-1")]),
        request("POST", "/page", &[]),
        request("HEAD", "/page", &[]),
        request("OPTIONS", "/page", &[]),
        get("/page"),
    ]
    .into_iter()
    .enumerate()
    {
        let reply = send(&app, request).await;
        assert_eq!(reply.status, if n == 3 { 206 } else { 200 });
        assert!(reply.took < secs(1), "{:?}", reply.took);
        assert_eq!(origin.calls(), n + 1);
    }
    // A refresh in the background reaches the handler too.
    pass(secs(11)).await;
    assert!(send(&app, get("/page")).await.is(Stale));
    pass(secs(1)).await;
    assert_eq!(origin.calls(), 9);
    assert_eq!(send(&app, get("/page")).await.text(), "8");
    assert_eq!(cache.stats().flights, 0);
}

#[tokio::test(start_paused = true)]
async fn what_a_handler_says_in_extensions_reaches_the_layer_that_stores() {
    let origin = Origin::new(|_| {
        Answer::status(200).body("page").extension(CacheFor::new(secs(60)).tag("pages"))
    });
    let cache = origin_only();
    let app = nested(&cache, &origin);
    send(&app, get("/page")).await;
    assert!(send(&app, get("/page")).await.is(Hit));
    cache.invalidate_tag("pages").await;
    assert!(send(&app, get("/page")).await.is(Computed));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_stricter_layer_on_a_route_stays_strict_inside_a_laxer_one() {
    type Tune = fn(HttpLayer) -> HttpLayer;
    let stricter: [(&str, Tune); 9] = [
        ("identity", |layer| {
            layer.identity(|parts| parts.headers.get("x-mine").map(|it| it.as_bytes().to_vec()))
        }),
        ("credentials", |layer| layer.credential_headers(["x-mine"])),
        ("bypass", |layer| layer.bypass(|_| true)),
        ("origin_only", HttpLayer::origin_only),
        ("vary", |layer| layer.vary(["x-mine"])),
        ("keyed", |layer| layer.keyed_headers(["x-mine"])),
        ("query", |layer| layer.query(["q"])),
        ("tags", |layer| layer.tags(["me"])),
        ("route", |layer| layer.route_rules("/me", HttpLayer::private)),
    ];
    for (what, tune) in stricter {
        let cache = with_ttl(60);
        let origin = Origin::new(|call| {
            Answer::status(200).body(call.header("x-mine").unwrap_or("nothing").to_owned())
        });
        let inner = tune(cache.http_layer()).layer(origin.infallible());
        let app = cache.http_layer().layer(inner);
        for client in ["alice", "bob"] {
            let reply = send(&app, with("/me", &[("x-mine", client)])).await;
            assert_eq!(reply.text(), client, "{what}");
        }
        // A crowd does not wait for what it may not share.
        let replies = crowd(&app, 10, |i| with("/me", &[("x-mine", ["a", "b"][i % 2])])).await;
        assert!(slowest(&replies) < secs(1));
        for (i, reply) in replies.iter().enumerate() {
            assert_eq!(reply.text(), ["a", "b"][i % 2], "{what}");
        }
        assert_eq!(cache.stats().entries, 0, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_layer_used_twice_and_layers_that_differ_in_lifetimes_alone_share() {
    let origin = Origin::new(|_| Answer::status(200).body("page"));
    let cache = with_ttl(60);
    let layer = cache.http_layer().vary(["x-plan"]).query(["q"]);
    let other = layer.clone().ttl(secs(1)).stale_for(secs(1)).max_body(10);
    for inner in [layer.clone(), other] {
        cache.invalidate_all().await;
        let before = origin.calls();
        let app = layer.layer(inner.layer(origin.infallible()));
        send(&app, get("/page")).await;
        assert!(send(&app, get("/page")).await.is(Hit));
        assert_eq!(origin.calls() - before, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_layer_of_another_handle_between_the_two_works_as_usual() {
    let (pages, parts) = (origin_only(), origin_only());
    let origin = Origin::new(|_| Answer::ok("max-age=60", "page"));
    let innermost = pages.http_layer().layer(origin.infallible());
    let between = parts.http_layer().outcome_on_hits(true);
    let app = pages.http_layer().layer(between.layer(innermost));
    let first = send(&app, get("/page")).await;
    assert!(first.took < secs(1), "{:?}", first.took);
    assert!(send(&app, get("/page")).await.is(Hit));
    pages.invalidate_all().await;
    assert_eq!(first.all("cache-status").len(), 2);
    // The layer between them has kept its own.
    assert_eq!(send(&app, get("/page")).await.text(), "page");
    assert_eq!(origin.calls(), 1);
}

mod warning {
    use super::*;
    use crate::kit::log::TextLog;

    #[tokio::test(start_paused = true)]
    async fn one_warning_names_the_field_that_keeps_responses_from_being_shared() {
        let lines = TextLog::default();
        let _listening = lines.listen(tracing::Level::WARN);
        let origin = Origin::new(|_| Answer::ok("max-age=60", "page"));
        let app = app(&origin);
        for field in ["cookie", "authorization", "x-forwarded-client-cert", "x-api-key"] {
            send(&app, with("/page", &[(field, "me")])).await;
        }
        let text = lines.text();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("not_a_credential"), "{text}");
        assert!(text.contains("field=\"x-forwarded-client-cert\""), "{text}");
        assert!(!text.contains("=me") && !text.contains("\"me\""), "{text}");
    }

    /// axum makes the service of a handler's layer for each request.
    #[tokio::test(start_paused = true)]
    async fn one_warning_for_each_layer_says_that_it_is_inside_of_another_one() {
        use axum::handler::Handler;
        use axum::routing::get as on_get;
        let lines = TextLog::default();
        let _listening = lines.listen(tracing::Level::WARN);
        let (cache, origin) = (with_ttl(60), Origin::new(|_| Answer::status(200)));
        let page = || {
            let origin = origin.clone();
            move |request: http::Request<axum::body::Body>| origin.clone().handle(request)
        };
        let app: Router = Router::new()
            .route("/a", on_get(page().layer(cache.http_layer().query(["q"]))))
            .route("/b", on_get(page()).layer(cache.http_layer()))
            .route("/c", on_get(page()))
            .layer(cache.http_layer());
        for path in ["/c", "/a", "/a", "/b", "/b?x", "/c?x"] {
            send(&app, get(path)).await;
        }
        let text = lines.text();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.lines().all(|line| line.contains("HttpLayer::route_rules")), "{text}");
    }

    /// A pattern matches names of any length, which a client chooses.
    #[tokio::test(start_paused = true)]
    async fn a_warning_has_64_bytes_of_the_name_of_a_field() {
        let lines = TextLog::default();
        let _listening = lines.listen(tracing::Level::WARN);
        let origin = Origin::new(|_| Answer::ok("max-age=60", "page"));
        let name = format!("x-auth-{}", "a".repeat(10_000));
        send(&app(&origin), with("/page", &[(&name, "me")])).await;
        let text = lines.text();
        assert!(text.contains(&format!("field=\"{}\"", &name[..64])), "{text}");
    }
}

// ===== Writes and identities =====

#[tokio::test(start_paused = true)]
async fn a_write_through_nested_layers_ends_what_the_outer_one_stored() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.n.to_string()));
    let cache = origin_only();
    let app = nested(&cache, &origin);
    assert_eq!(send(&app, get("/page")).await.text(), "0");
    assert_eq!(send(&app, request("POST", "/page", &[])).await.text(), "1");
    assert_eq!(send(&app, get("/page")).await.text(), "2");
}

/// A route with an identity below a layer of the whole router, of one handle or
/// of two. The handler sets `CacheFor`.
async fn is_shared_across_users(outer: &HttpStampede, inner: &HttpStampede) -> bool {
    let origin = Origin::new(|call| {
        let user = call.parts.extensions.get::<User>().unwrap().0;
        Answer::status(200).body(user).extension(CacheFor::new(secs(60)))
    });
    let route = inner.http_layer().identity(|parts| parts.extensions.get::<User>().map(|u| u.0));
    let route = any(move |request| origin.clone().handle(request)).layer(route);
    // A middleware between the two finds the user, by a field that is in no list.
    let router: Router = Router::new()
        .route("/me", route)
        .layer(axum::middleware::map_request(
            |mut request: http::Request<axum::body::Body>| async {
                let is_alice = request.headers().get("x-sid").is_some_and(|sid| sid == "a11ce");
                request.extensions_mut().insert(User(if is_alice { "alice" } else { "bob" }));
                request
            },
        ))
        .layer(outer.http_layer());
    let ask = |sid| with("/me", &[("x-sid", sid)]);
    assert_eq!(send(&router, ask("a11ce")).await.text(), "alice");
    send(&router, ask("b0b")).await.text() != "bob"
}

#[derive(Clone)]
struct User(&'static str);

#[tokio::test(start_paused = true)]
async fn a_nested_layer_with_an_identity_still_keeps_users_apart() {
    assert!(!is_shared_across_users(&origin_only(), &origin_only()).await, "two handles");
    let cache = origin_only();
    assert!(!is_shared_across_users(&cache, &cache).await, "one handle");
}

#[tokio::test(start_paused = true)]
async fn of_three_layers_the_outermost_stores_and_each_of_the_others_may_forbid_it() {
    for (strict, entries) in [(None, 1), (Some(0), 0), (Some(1), 0)] {
        let (cache, origin) = (with_ttl(60), Origin::new(|call| Answer::ok("", call.uri())));
        let layer = |which| match strict == Some(which) {
            true => cache.http_layer().query(["q"]),
            false => cache.http_layer().ttl(secs(5)),
        };
        let app = cache.http_layer().layer(layer(1).layer(layer(0).layer(origin.infallible())));
        for _ in 0..3 {
            assert_eq!(send(&app, get("/page?x=1")).await.text(), "/page?x=1");
        }
        assert_eq!(cache.stats().entries, entries, "{strict:?}");
        assert_eq!(origin.calls(), if entries == 1 { 1 } else { 3 }, "{strict:?}");
    }
}

/// Something between the layers may make a response of its own.
#[tokio::test(start_paused = true)]
async fn a_stricter_layer_stays_strict_where_its_response_is_made_anew() {
    let cache = with_ttl(60);
    let origin =
        Origin::new(|call| Answer::status(200).body(call.header("x-mine").unwrap().to_owned()));
    let inner = cache.http_layer().private().layer(origin.infallible());
    let between = tower::service_fn(move |request: http::Request<axum::body::Body>| {
        let inner = inner.clone();
        async move {
            let body = tower::ServiceExt::oneshot(inner, request).await?.into_body();
            Ok::<_, std::convert::Infallible>(http::Response::new(axum::body::Body::new(body)))
        }
    });
    let app = cache.http_layer().layer(between);
    for client in ["alice", "bob"] {
        let reply = send(&app, with("/me", &[("x-mine", client)])).await;
        assert_eq!(reply.text(), client);
        assert!(reply.cache_status().ends_with("detail=nested"), "{}", reply.cache_status());
    }
}

/// Of an answer to a HEAD, to a condition of the cache's own, to a range, to a refresh, and of an
/// error.
#[tokio::test(start_paused = true)]
async fn nothing_from_behind_a_stricter_layer_is_stored_whatever_was_asked() {
    let cache = with_ttl(60);
    let origin = Origin::new(|call| match call.parts.uri.path() {
        "/gone" => Answer::status(404).body(call.n.to_string()),
        "/moved" => Answer::status(301).header("location", "/").body(call.n.to_string()),
        _ => Answer::ok("max-age=10, stale-while-revalidate=60", format!("{:010}", call.n))
            .header("etag", &format!("\"{}\"", call.n)),
    });
    let inner = cache.http_layer().query(["q"]).layer(origin.infallible());
    let app = cache.http_layer().layer(inner);
    for path in ["/page", "/gone", "/moved"] {
        for _ in 0..2 {
            let before = origin.calls();
            let replies = crowd(&app, 20, |n| match n % 4 {
                0 => with(path, &[("range", "bytes=0-3")]),
                1 => request("HEAD", path, &[]),
                2 => with(path, &[("if-none-match", "\"x\"")]),
                _ => get(path),
            })
            .await;
            assert!(slowest(&replies) < secs(1), "{path}: {:?}", slowest(&replies));
            let gets: std::collections::HashSet<_> = replies
                .iter()
                .enumerate()
                .filter(|(n, _)| n % 4 == 3)
                .map(|(_, reply)| reply.text())
                .collect();
            assert_eq!(gets.len(), 5, "{path}: {gets:?}");
            assert!(origin.calls() - before >= 20, "{path}");
            pass(secs(11)).await;
        }
    }
    assert_eq!(cache.stats().entries, 0);
}

/// What was stored before such a layer was reached may be confirmed by it: that stores nothing new.
#[tokio::test(start_paused = true)]
async fn a_confirmation_from_behind_a_stricter_layer_renews_nothing() {
    let cache = origin_only();
    let origin = Origin::new(|call| {
        let is_known = call.header("if-none-match").is_some();
        let answer = if is_known { Answer::status(304) } else { Answer::ok("", "page") };
        answer.header("etag", "\"a\"").header("cache-control", "max-age=10")
    });
    let plain = layered(cache.http_layer(), &origin);
    let nested = cache.http_layer().layer(cache.http_layer().private().layer(origin.clone()));
    send(&plain, get("/page")).await;
    pass(secs(11)).await;
    for calls in [2, 3] {
        assert_eq!(send(&nested, get("/page")).await.text(), "page");
        assert_eq!(origin.calls(), calls);
    }
}

/// A layer between the two tells the inner one who the client is.
#[tokio::test(start_paused = true)]
async fn what_is_added_between_two_layers_alike_is_for_its_client_alone() {
    use axum::middleware::map_request;
    for (field, vary) in [("authorization", ""), ("x-user", ""), ("x-plan", "x-plan")] {
        let cache = with_ttl(60);
        let origin = Origin::new(move |call| {
            let answer = Answer::status(200).body(call.header(field).unwrap_or("none").to_owned());
            if vary.is_empty() { answer } else { answer.header("vary", vary) }
        });
        let handler = origin.clone();
        let route = any(move |request| handler.clone().handle(request)).layer(cache.http_layer());
        let app: Router = Router::new()
            .route("/me", route)
            .layer(map_request(move |mut request: http::Request<axum::body::Body>| async move {
                if let Some(sid) = request.headers().get("x-sid").cloned() {
                    request.headers_mut().insert(field, sid);
                }
                request
            }))
            .layer(cache.http_layer());
        for client in ["alice", "bob"] {
            assert_eq!(
                send(&app, with("/me", &[("x-sid", client)])).await.text(),
                client,
                "{field}"
            );
        }
        assert_eq!(cache.stats().entries, 0, "{field}");
        assert_eq!(send(&app, get("/me")).await.text(), "none", "{field}");
        assert!(send(&app, get("/me")).await.is(Hit), "{field}");
    }
}

/// The body of a GraphQL request says whether it is a mutation. The inner layer reads none.
#[tokio::test(start_paused = true)]
async fn a_post_whose_body_makes_it_a_write_is_one_for_the_inner_layer_too() {
    type Tune = fn(HttpLayer) -> HttpLayer;
    let by_body: Tune = |layer| {
        let is_query = |_: &http::request::Parts, body: &bytes::Bytes| {
            (!body.starts_with(b"mutation")).then(|| body.to_vec())
        };
        layer.cache_posts(|_| true).post_key(is_query)
    };
    let plain: Tune = |layer| layer;
    for (what, tune) in [("plain", plain), ("by its body", by_body)] {
        let (cache, origin) = (with_ttl(60), Origin::new(|_| Answer::status(200)));
        let inner = || cache.http_layer().scope("inner");
        let beside = inner().layer(origin.infallible());
        let app = by_body(cache.http_layer());
        let app = app.layer(tune(inner()).layer(origin.infallible()));
        let post = |body: &'static str| {
            request("POST", "/graphql", &[]).map(|_| axum::body::Body::from(body))
        };
        send(&beside, get("/graphql")).await;
        send(&app, post("query")).await;
        assert!(send(&beside, get("/graphql")).await.is(Hit), "{what}");
        send(&app, post("mutation")).await;
        assert!(send(&beside, get("/graphql")).await.is(Computed), "{what}");
    }
}

/// Its extensions are those of a GET.
#[tokio::test(start_paused = true)]
async fn a_mutation_that_a_handler_sends_on_the_way_of_a_get_is_a_write() {
    let (cache, origin) = (with_ttl(60), Origin::new(|_| Answer::status(200)));
    let layer = cache.http_layer().cache_posts(|_| true).post_key(|_, _| None::<u8>);
    let inside = layer.layer(origin.infallible());
    let handler = inside.clone();
    let sends = tower::service_fn(move |outer: http::Request<axum::body::Body>| {
        let mut inner = request("POST", "/graphql", &[]);
        *inner.extensions_mut() = outer.extensions().clone();
        tower::ServiceExt::oneshot(handler.clone(), inner)
    });
    let app = layer.layer(sends);
    send(&inside, get("/graphql")).await;
    assert!(send(&inside, get("/graphql")).await.is(Hit));
    send(&app, get("/page")).await;
    assert!(send(&inside, get("/graphql")).await.is(Computed));
}
