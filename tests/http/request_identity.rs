//! Attacks on the layer that once worked.

use std::collections::HashMap;
use std::sync::Mutex;

use axum::Router;
use axum::extract::OriginalUri;
use axum::routing::{any, get as on_get};
use http::{Method, Uri};
use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{CacheFor, HttpStampede};

use crate::kit::http::*;

const DIRECTIVES: &str = "max-age=10, stale-while-revalidate=60";

// ===== The key and what the service sees =====

/// `GET victim HTTP/1.1` without `Host` (hyper passes it on) beside
/// `:authority: victim`, `:path: /` of HTTP/2.
#[tokio::test(start_paused = true)]
async fn a_target_without_a_path_does_not_share_with_the_root() {
    let router = Router::new().route("/", on_get(|| async { "home" }));
    let app = with_ttl(60).http_layer().layer(router);
    let attack = send(&app, get("victim")).await;
    let victim = send(&app, get("http://victim/")).await;
    assert_eq!((victim.status, victim.text()), (200, "home"), "the attacker got {}", attack.status);
}

#[tokio::test(start_paused = true)]
async fn a_rewritten_uri_keeps_a_port_that_is_not_its_own_schemes() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.uri()));
    // TLS ends before this process; a layer further out chooses the backend.
    let app = layered(origin_only().http_layer().scheme("https"), &origin);
    let mut request = get("http://backend:443/x");
    request.extensions_mut().insert(OriginalUri(Uri::from_static("/x")));
    assert_eq!(send(&app, request).await.text(), "http://backend:443/x");
}

/// The same over sockets: hyper hands such a target to the service as it is.
#[tokio::test]
async fn a_client_of_http_1_without_a_path_does_not_choose_the_root_of_http_2() {
    use http_body_util::{BodyExt, Empty};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let router = Router::new().route("/", on_get(|| async { "home" }));
    let router = router.layer(with_ttl(60).http_layer());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let mut attacker = tokio::net::TcpStream::connect(address).await.unwrap();
    attacker.write_all(b"GET victim HTTP/1.1\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut got = String::new();
    attacker.read_to_string(&mut got).await.unwrap();
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let handshake =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.unwrap();
    tokio::spawn(connection);
    let request = http::Request::get("http://victim/").body(Empty::<bytes::Bytes>::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    assert_eq!((head.status.as_u16(), &body[..]), (200, &b"home"[..]), "{got} {:?}", head.headers);
}

// ===== Nested layers =====

/// Each layer invalidates what it has stored.
#[tokio::test(start_paused = true)]
async fn a_write_through_nested_layers_ends_what_the_inner_one_stored() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.n.to_string()));
    let cache = origin_only();
    let inner = cache.http_layer().scope("shop");
    let handler = origin.clone();
    let route = any(move |request| handler.clone().handle(request)).layer(inner);
    // The same routes once with a layer around them, and once without.
    let public: Router = Router::new().route("/page", route).layer(cache.http_layer());
    let handler = origin.clone();
    let route = any(move |request| handler.clone().handle(request));
    let internal: Router =
        Router::new().route("/page", route.layer(cache.http_layer().scope("shop")));
    assert_eq!(send(&internal, get("/page")).await.text(), "0");
    assert!(send(&internal, get("/page")).await.is(Hit));
    assert_eq!(send(&public, request("POST", "/page", &[])).await.text(), "1");
    assert_eq!(send(&internal, get("/page")).await.text(), "2");
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
    // Who asks is found between the two, by what no list of fields has.
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

// ===== Credentials =====

fn who(call: &Call, name: &str) -> Answer {
    Answer::status(200).body(call.header(name).unwrap_or("nobody").to_owned())
}

/// The one after the other: a mesh's fields are exempted, one is added again.
#[tokio::test(start_paused = true)]
async fn a_field_that_is_named_a_credential_after_a_wider_exemption_is_one() {
    let origin = Origin::new(|call| who(call, "x-auth-user"));
    let layer = with_ttl(60).http_layer().not_a_credential("x-auth-*");
    let app = layered(layer.credential_headers(["x-auth-user"]), &origin);
    for user in ["eve", "bob"] {
        assert_eq!(send(&app, with("/page", &[("x-auth-user", user)])).await.text(), user);
    }
}

#[tokio::test(start_paused = true)]
async fn a_field_in_vary_is_no_credential_though_it_is_named_among_them() {
    for name in ["x-api-key", "authorization", "cookie"] {
        let origin = Origin::new(move |call| who(call, name));
        let layer = with_ttl(60).http_layer().credential_headers([name]).vary([name]);
        let app = layered(layer, &origin);
        send(&app, with("/page", &[(name, "me")])).await;
        let reply = send(&app, with("/page", &[(name, "me")])).await;
        assert!(reply.is(Hit), "{name}: {}", reply.cache_status());
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_names_the_field_though_it_is_named_twice() {
    let origin = Origin::new(|call| who(call, "authorization"));
    // The list as the call wanted it when it still replaced the defaults.
    let layer = with_ttl(60).http_layer().credential_headers(["authorization", "x-api-key"]);
    let app = layered(layer.vary(["authorization"]), &origin);
    let reply = send(&app, with("/page", &[("authorization", "me")])).await;
    let status = reply.cache_status();
    assert!(
        !status.contains("credentials") || status.contains("credentials:authorization"),
        "{status}"
    );
}

#[tokio::test(start_paused = true)]
async fn ignored_cookies_are_no_credentials_though_the_field_is_named_among_them() {
    let origin = Origin::new(|call| who(call, "cookie"));
    let layer = with_ttl(60).http_layer().credential_headers(["cookie", "x-sid"]).ignore_cookies();
    let app = layered(layer, &origin);
    send(&app, with("/page", &[("cookie", "_ga=1")])).await;
    let reply = send(&app, with("/page", &[("cookie", "_ga=2")])).await;
    assert!(reply.is(Hit), "{}", reply.cache_status());
}

#[tokio::test(start_paused = true)]
async fn common_spellings_of_authorization_are_credentials() {
    let names = ["x-authorization", "x-original-authorization", "authentication", "x-auth"];
    let shared: Vec<_> = {
        let mut shared = Vec::new();
        for name in names {
            let origin = Origin::new(move |call| who(call, name));
            let app = layered(with_ttl(60).http_layer(), &origin);
            send(&app, with("/page", &[(name, "eve")])).await;
            if send(&app, with("/page", &[(name, "bob")])).await.text() != "bob" {
                shared.push(name);
            }
        }
        shared
    };
    assert!(shared.is_empty(), "shared across users: {shared:?}");
}

/// Rows of the proxy's own table of fields that "frameworks build URLs from".
#[tokio::test(start_paused = true)]
async fn what_the_proxy_takes_for_a_claim_is_keyed_by_the_layer() {
    let mut poisoned = Vec::new();
    for name in [
        "cloudfront-forwarded-proto",
        "https",
        "x-original-method",
        "x-scheme",
        "x-sendfile-type",
        "x-accel-mapping",
        "surrogate-capability",
    ] {
        let origin = Origin::new(move |call| who(call, name));
        let app = layered(with_ttl(60).http_layer(), &origin);
        send(&app, with("/page", &[(name, "evil")])).await;
        if send(&app, get("/page")).await.text() == "evil" {
            poisoned.push(name);
        }
    }
    assert!(poisoned.is_empty(), "{poisoned:?}");
}

// ===== Refreshes =====

fn region(parts: &http::request::Parts) -> String {
    parts.headers.get("x-region").map_or("none", |value| value.to_str().unwrap()).to_owned()
}

/// A HEAD may meet a stale copy. Its refresh would be a GET, for which the rule of
/// `bypass` gives another answer.
#[tokio::test(start_paused = true)]
async fn a_refresh_that_a_head_triggers_carries_what_was_keyed() {
    let origin = Origin::new(|call| {
        let preview = call.header("x-preview").unwrap_or("-");
        Answer::ok(DIRECTIVES, format!("{} {preview}", region(&call.parts)))
    });
    let layer = origin_only()
        .http_layer()
        .key(region)
        .bypass(|parts| parts.method == Method::GET && parts.headers.contains_key("x-preview"));
    let app = layered(layer, &origin);
    let victim = || with("/page", &[("x-region", "eu")]);
    assert_eq!(send(&app, victim()).await.text(), "eu -");
    pass(secs(11)).await;
    let fields = [("x-region", "eu"), ("x-preview", "evil")];
    assert!(send(&app, request("HEAD", "/page", &fields)).await.is(Stale));
    pass(secs(1)).await;
    let reply = send(&app, victim()).await;
    assert_eq!(reply.text(), "eu -", "{}", reply.cache_status());
}

/// The same where a rule reads what the layer hides from the service.
#[tokio::test(start_paused = true)]
async fn a_refresh_carries_what_a_rule_reads_though_another_reads_a_hidden_cookie() {
    let origin = Origin::new(|call| Answer::ok(DIRECTIVES, region(&call.parts)));
    let layer = origin_only()
        .http_layer()
        .ignore_cookies()
        // Nobody is cached who has not consented.
        .identity(|parts| parts.headers.get("cookie").map(|_| "consented"))
        .key(region);
    let app = layered(layer, &origin);
    let eu = || with("/page", &[("x-region", "eu"), ("cookie", "consent=1")]);
    assert_eq!(send(&app, eu()).await.text(), "eu");
    pass(secs(11)).await;
    assert!(send(&app, eu()).await.is(Stale));
    pass(secs(1)).await;
    assert_eq!(send(&app, eu()).await.text(), "eu");
}

/// A layer further out guarantees the field; the rule may count on it.
#[tokio::test(start_paused = true)]
async fn a_rule_is_not_run_on_requests_that_nobody_sent() {
    let origin = Origin::new(|call| Answer::ok(DIRECTIVES, region(&call.parts)));
    let known: Mutex<HashMap<String, u64>> = Mutex::default();
    let layer = origin_only().http_layer().key(move |parts| {
        let mut known = known.lock().unwrap();
        let next = known.len() as u64;
        let region = parts.headers["x-region"].to_str().unwrap().to_owned();
        *known.entry(region).or_insert(next)
    });
    let app = layered(layer, &origin);
    let eu = || with("/page", &[("x-region", "eu")]);
    send(&app, eu()).await;
    pass(secs(11)).await;
    assert!(send(&app, eu()).await.is(Stale));
    pass(secs(1)).await;
    // In a task: the rule's mutex is poisoned.
    let app_of_victim = app.clone();
    let victim = tokio::spawn(async move { send(&app_of_victim, eu()).await.status }).await;
    assert!(victim.is_ok(), "every request panics from now on");
}

// ===== Underscores =====

/// Keyed fields and credentials are read with `_` as with `-`, because the
/// service may stand behind CGI. So are the fields of `Vary`.
#[tokio::test(start_paused = true)]
async fn a_field_that_vary_names_is_found_with_an_underscore_too() {
    let origin = Origin::new(|call| {
        let fields = call.parts.headers.iter();
        let shop = fields.filter(|(name, _)| name.as_str().replace('_', "-") == "x-shop");
        let shop = shop.map(|(_, value)| value.to_str().unwrap()).next();
        Answer::ok("max-age=60", shop.unwrap_or("none").to_owned()).header("vary", "x-shop")
    });
    let app = layered(origin_only().http_layer().vary(["x-shop"]), &origin);
    send(&app, with("/page", &[("x_shop", "evil")])).await;
    assert_eq!(send(&app, get("/page")).await.text(), "none");
}

// ===== Permissions =====

/// `max-age=0` and `s-maxage=0` are what frameworks write against caches. The
/// lifetime is the handler's, who has not said `public()`.
#[tokio::test(start_paused = true)]
async fn a_lifetime_of_zero_beside_one_of_the_handlers_permits_nobody_to_share() {
    let mut shared = Vec::new();
    for (directives, name) in [
        ("max-age=0, must-revalidate", "authorization"),
        ("s-maxage=0", "cookie"),
        ("public, max-age=0", "x-api-key"),
    ] {
        let origin = Origin::new(move |call| {
            let body = call.header(name).unwrap_or("nobody").to_owned();
            Answer::ok(directives, body).extension(CacheFor::new(secs(20)))
        });
        let app = layered(origin_only().http_layer(), &origin);
        send(&app, with("/page", &[(name, "alice")])).await;
        if send(&app, with("/page", &[(name, "bob")])).await.text() != "bob" {
            shared.push((directives, name));
        }
    }
    assert!(shared.is_empty(), "{shared:?}");
}

// ===== Two layers on one handle, or two processes with one remote =====

/// `vary` treats every response as if it named the field. One that another
/// layer stored (or an older version, in Redis) does not name it; and because
/// the field is in `vary`, it is no credential any more that would help.
#[tokio::test(start_paused = true)]
async fn what_was_stored_without_a_field_in_vary_answers_no_request_that_has_it() {
    for name in ["x-tenant-id", "authorization", "cookie", "x-shop"] {
        let origin = Origin::new(move |call| who(call, name));
        let cache = with_ttl(60);
        let plain = layered(cache.http_layer(), &origin);
        let varying = layered(cache.http_layer().vary([name]), &origin);
        assert_eq!(send(&plain, get("/page")).await.text(), "nobody");
        assert_eq!(send(&varying, with("/page", &[(name, "bob")])).await.text(), "bob", "{name}");
    }
}
