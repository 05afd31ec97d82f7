//! Which rules a request has, by its path: behind axum's routers, in front of them and without them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::routing::get as on_get;
use http::{Request, Uri};
use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{HttpLayer, HttpStampede};

use super::{echo, handler};
use crate::kit::http::*;

/// A layer that caches all but the account.
fn guarded(cache: &HttpStampede) -> HttpLayer {
    cache
        .http_layer()
        .route_rules("/account", HttpLayer::private)
        .route_rules("/account/{*page}", HttpLayer::private)
        .route_rules("/users/{id}", |route| route.query(["q"]))
}

async fn is_cached<S, B>(app: &S, path: &str) -> bool
where
    S: tower_service::Service<http::Request<axum::body::Body>, Response = http::Response<B>>
        + Clone,
    S::Error: std::fmt::Debug,
    B: http_body::Body<Data = bytes::Bytes>,
{
    send(app, get(path)).await;
    send(app, get(path)).await.is(Hit)
}

#[tokio::test(start_paused = true)]
async fn a_request_has_the_rules_of_its_path_wherever_the_layer_stands() {
    let origin = echo();
    let routes = || {
        ["/account", "/account/orders", "/users/{id}", "/about"]
            .iter()
            .fold(Router::new(), |app, path| app.route(path, handler(&origin)))
    };
    let one = with_ttl(60);
    let behind = routes().layer(guarded(&one));
    let cache = with_ttl(60);
    let fallback = Router::new().fallback_service(handler(&origin)).layer(guarded(&cache));
    let cache = with_ttl(60);
    let wildcard = Router::new().route("/{*path}", handler(&origin)).layer(guarded(&cache));
    let cache = with_ttl(60);
    let in_front = guarded(&cache).layer(routes());
    let cache = with_ttl(60);
    let without = guarded(&cache).layer(Router::new().fallback_service(handler(&origin)));
    for (name, app) in [("behind", behind), ("fallback", fallback), ("wildcard", wildcard)] {
        check(name, &app).await;
    }
    check("in front", &in_front).await;
    check("without a router", &without).await;

    async fn check<S, B>(name: &str, app: &S)
    where
        S: tower_service::Service<http::Request<axum::body::Body>, Response = http::Response<B>>
            + Clone,
        S::Error: std::fmt::Debug,
        B: http_body::Body<Data = bytes::Bytes>,
    {
        for path in ["/account", "/account/orders"] {
            assert!(!is_cached(app, path).await, "{name}: {path}");
        }
        assert!(is_cached(app, "/about").await, "{name}");
        send(app, get("/users/1?q=1&x=1")).await;
        assert!(send(app, get("/users/1?q=1&x=2")).await.is(Hit), "{name}");
        send(app, get("/about?q=1&x=1")).await;
        assert!(!send(app, get("/about?q=1&x=2")).await.is(Hit), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn patterns_name_the_path_that_the_client_has_sent_where_routers_are_nested() {
    let (cache, origin) = (with_ttl(60), echo());
    let layer = cache
        .http_layer()
        .route_rules("/api/me", HttpLayer::private)
        .route_rules("/{tenant}/settings", HttpLayer::private);
    let inner =
        || Router::new().route("/me", handler(&origin)).route("/settings", handler(&origin));
    let within = Router::new().nest("/api", inner().layer(layer.clone()));
    let around = Router::new().nest("/api", inner()).layer(layer.clone());
    let service = Router::new().nest_service("/api", inner()).layer(layer.clone());
    let front = layer.layer(Router::new().nest("/api", inner()));
    for app in [within, around, service] {
        assert!(!is_cached(&app, "/api/me").await);
        assert!(!is_cached(&app, "/api/settings").await);
    }
    assert!(!is_cached(&front, "/api/me").await);
    // Without the prefix these paths are others.
    let plain = inner().layer(layer);
    assert!(is_cached(&plain, "/me").await);
}

/// The rule forbids to share, and something behind the layer may read a path in another way.
#[tokio::test(start_paused = true)]
async fn no_spelling_of_a_path_evades_the_rule_of_a_route() {
    let origin = echo();
    let cache = with_ttl(60);
    let app = guarded(&cache).layer(Router::new().fallback_service(handler(&origin)));
    for path in [
        "/%61ccount",
        "/Account",
        "/account/",
        "//account",
        "//host/account",
        "/about/../account",
        "/about/..%2faccount",
        "/about/%2e%2e/account",
        "/./account",
        "/account;v=1",
        "/account%3Bv",
        "/about%5c..%5caccount",
        "/%2561ccount",
        "/account%00",
        "/account.",
        "/account%3fx",
        "/(S(x))/account",
        "/ACCOUNT/orders",
        "http://x/%61ccount",
    ] {
        let reply = send(&app, get(path)).await;
        assert_eq!(reply.status, 200, "{path}");
        let again = send(&app, get(path)).await;
        assert!(again.is(Bypass), "{path}: {}", again.cache_status());
        assert!(again.cache_status().ends_with("detail=ambiguous-path"), "{path}");
    }
    assert_eq!(cache.stats().entries, 0);
    // What has the same rules in all readings is cached.
    for path in ["/ABOUT", "/about/", "/a%62out", "/caf%C3%A9%20x", "/users/a%3Ab"] {
        assert!(is_cached(&app, path).await, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_router_that_has_matched_the_route_says_which_one_it_is() {
    let origin = echo();
    let cache = with_ttl(60);
    let app: Router = Router::new()
        .route("/account", handler(&origin))
        .route("/users/{id}", handler(&origin))
        .layer(guarded(&cache));
    // An id with an encoded slash, and one that is no name on Windows.
    for path in ["/users/a%2Fb", "/users/a."] {
        assert!(is_cached(&app, path).await, "{path}");
    }
    // No route: the fallback answers, and the path counts.
    let reply = send(&app, get("/Account")).await;
    assert!(reply.status == 404 && reply.is(Bypass), "{}", reply.cache_status());
}

/// axum compares no parameter with anything.
#[tokio::test(start_paused = true)]
async fn a_parameter_that_is_decoded_for_the_handler_does_not_evade_a_rule() {
    let cache = with_ttl(60);
    let layer = cache.http_layer().route_rules("/pages/account", HttpLayer::private);
    let page = on_get(async |Path(page): Path<String>| page);
    let app: Router = Router::new().route("/pages/{page}", page).layer(layer);
    for path in ["/pages/account", "/pages/%61ccount", "/pages/ACCOUNT"] {
        assert!(!is_cached(&app, path).await, "{path}");
    }
    for path in ["/pages/news", "/pages/N%65ws", "/pages/a%2Faccount"] {
        assert!(is_cached(&app, path).await, "{path}");
    }
}

/// axum takes `/admin/` for `/admin`, and says `/admin/` where it says which route has matched.
#[tokio::test(start_paused = true)]
async fn a_slash_at_the_end_of_a_nested_service_does_not_evade_its_rule() {
    let cache = with_ttl(60);
    let layer = cache.http_layer();
    let layer = layer.route_rules("/admin", HttpLayer::private);
    let layer = layer.route_rules("/admin/{*page}", HttpLayer::private);
    let admin = || Router::new().route("/", on_get(async || "admin"));
    let around: Router = Router::new().nest_service("/admin", admin()).layer(layer.clone());
    let within: Router = Router::new().nest_service("/admin", admin().layer(layer.clone()));
    let front: Router = Router::new().nest_service("/admin", layer.layer(admin()));
    for (name, app) in [("around", around), ("within", within), ("front", front)] {
        for path in ["/admin", "/admin/"] {
            assert!(!is_cached(&app, path).await, "{name}: {path}");
        }
    }
}

/// The nested router has matched another path than the one that the client has sent, which counts.
/// `NormalizePathLayer` of tower-http rewrites like this.
#[tokio::test(start_paused = true)]
async fn a_path_that_is_rewritten_before_a_nested_router_does_not_evade_its_rule() {
    let cache = with_ttl(60);
    let layer = cache.http_layer().route_rules("/app/account", HttpLayer::private);
    let routes = Router::new().route("/account", on_get(async || "account")).layer(layer);
    let rewritten = tower::util::MapRequest::new(routes, |mut request: Request<Body>| {
        *request.uri_mut() = Uri::from_static("/account");
        request
    });
    let app: Router = Router::new().nest_service("/app", rewritten);
    for path in ["account", "account/", "/account", "./account", "x/../account", "ACCOUNT"] {
        assert!(!is_cached(&app, &format!("/app/{path}")).await, "{path}");
    }
}

/// The layer does not know which parameters count, so all of them reach the service.
#[tokio::test(start_paused = true)]
async fn an_ambiguous_request_is_forwarded_as_it_has_come() {
    let (cache, origin) = (with_ttl(60), echo());
    let layer = cache.http_layer().query([]).ignore_cookies(["*"]);
    let layer = layer.route_rules("/search", |route| route.query(["q"]));
    let app = layer.layer(origin.infallible());
    let reply = send(&app, with("/Search?q=1&x=2", &[("cookie", "a=b")])).await;
    assert!(reply.text().starts_with("/Search?q=1&x=2 "), "{}", reply.text());
    assert_eq!(origin.last().header("cookie"), Some("a=b"));
}

/// A write is one whatever the rules are.
#[tokio::test(start_paused = true)]
async fn a_write_to_an_ambiguous_path_ends_what_is_stored_of_its_uri() {
    let (cache, origin) = (with_ttl(60), echo());
    let plain = cache.http_layer().layer(origin.infallible());
    let app = guarded(&cache).layer(origin.infallible());
    assert!(is_cached(&plain, "/Account").await);
    send(&app, request("POST", "/Account", &[])).await;
    assert!(send(&plain, get("/Account")).await.is(Computed));
}

fn refusal(make: impl FnOnce(HttpLayer) -> HttpLayer) -> String {
    let cache = with_ttl(60);
    let made = catch_unwind(AssertUnwindSafe(|| make(cache.http_layer())));
    *made.map(drop).unwrap_err().downcast::<String>().unwrap()
}

#[test]
fn rules_that_claim_one_route_or_make_no_sense_are_refused_with_the_remedy() {
    let two = refusal(|layer| {
        layer.route_rules("/users/{id}", |it| it).route_rules("/users/{name}", |it| it)
    });
    assert!(two.contains("`/users/{name}` claims a route that `/users/{id}` claims"), "{two}");
    let old = refusal(|layer| layer.route_rules("/users/:id", |it| it));
    assert!(old.contains("`/users/:id` is written for axum 0.7; write `{name}`"), "{old}");
    let relative = refusal(|layer| layer.route_rules("users", |it| it));
    assert!(relative.contains("begin it with `/`"), "{relative}");
    let set: [fn(HttpLayer) -> HttpLayer; 2] = [|it| it.scope("own"), |it| it.scheme("https")];
    for set in set {
        let why = refusal(move |layer| layer.route_rules("/a", set));
        assert!(why.contains("set them on the layer"), "{why}");
    }
    let nested = refusal(|layer| layer.route_rules("/a", |it| it.route_rules("/b", |it| it)));
    assert!(nested.contains("add each pattern to the layer itself"), "{nested}");
    let other = with_ttl(60).http_layer();
    let foreign = refusal(move |layer| layer.route_rules("/a", move |_| other.clone()));
    assert!(foreign.contains("another handle"), "{foreign}");
    // Without what keeps clients apart.
    let rules: [fn(HttpLayer) -> HttpLayer; 2] =
        [|layer| layer.identity(|_| Some("me")), HttpLayer::private];
    for rule in rules {
        let laxer = refusal(|layer| {
            let plain = layer.clone();
            rule(layer).route_rules("/a", move |_| plain.clone())
        });
        assert!(laxer.contains("return the layer that it gets"), "{laxer}");
    }
}

/// What a setting is an exception from does not depend on the order of the calls.
#[tokio::test(start_paused = true)]
async fn settings_of_the_layer_hold_for_its_routes_whether_they_come_before_or_after() {
    for is_first in [true, false] {
        let (cache, origin) = (with_ttl(60), echo());
        let rule = |layer: HttpLayer| layer.route_rules("/search", |it| it.ttl(secs(5)));
        let common = |layer: HttpLayer| layer.ttl(secs(9)).vary(["x-user"]).scope("site");
        let layer = cache.http_layer();
        let layer = if is_first { rule(common(layer)) } else { common(rule(layer)) };
        let app = layer.layer(origin.infallible());
        let ask = |user| with("/search", &[("x-user", user)]);
        let first = send(&app, ask("a")).await;
        assert_ne!(first.text(), send(&app, ask("b")).await.text());
        pass(secs(6)).await;
        assert!(send(&app, ask("a")).await.is(Computed), "{is_first}");
        cache.invalidate_path_in("site", "/search").await;
        assert!(send(&app, ask("b")).await.is(Computed), "{is_first}");
    }
}
