//! What the key and the service see of a request: two requests that reach the
//! service as different ones never share a response.

use axum::Router;
use axum::extract::OriginalUri;
use axum::routing::get as on_get;
use http::Uri;
use tower_layer::Layer;

use crate::kit::http::*;
use crate::kit::spawn;

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
    spawn(async move { axum::serve(listener, router).await });
    let mut attacker = tokio::net::TcpStream::connect(address).await.unwrap();
    attacker.write_all(b"GET victim HTTP/1.1\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut got = String::new();
    attacker.read_to_string(&mut got).await.unwrap();
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let handshake =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.unwrap();
    spawn(connection);
    let request = http::Request::get("http://victim/").body(Empty::<bytes::Bytes>::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    assert_eq!((head.status.as_u16(), &body[..]), (200, &b"home"[..]), "{got} {:?}", head.headers);
}

fn who(call: &Call, name: &str) -> Answer {
    Answer::status(200).body(call.header(name).unwrap_or("anonymous").to_owned())
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

/// What has an own path for each form, and none panics.
#[tokio::test(start_paused = true)]
async fn targets_of_every_form_reach_the_service_as_they_are_keyed() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.uri()));
    for query in [None, Some(&[][..]), Some(&["x"][..])] {
        let mut layer = origin_only().http_layer();
        if let Some(query) = query {
            layer = layer.query(query.iter().copied());
        }
        let app = layered(layer, &origin);
        let forms = [
            "/",
            "//",
            "//evil",
            "//evil?x=1&y=2",
            "//evil?y=2",
            "/?",
            "/?&",
            "/?x",
            "*",
            "victim",
            "victim:80",
            "http://victim",
            "http://victim?x=1",
            "http://victim?y=1",
            "http://victim/?x=1",
            "http://VICTIM:80//evil?y=1",
            "https://victim:443/",
            "https://victim:80/",
            "ftp://victim/",
        ];
        for form in forms {
            let first = send(&app, get(form)).await;
            let again = send(&app, get(form)).await;
            assert_eq!(first.text(), again.text(), "{form} {query:?}");
            let seen = first.text().parse::<Uri>().unwrap();
            let own = form.parse::<Uri>().unwrap();
            assert_eq!(seen.path(), own.path(), "{form}");
            assert_eq!(seen.scheme(), own.scheme(), "{form}");
        }
    }
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
        assert_eq!(send(&plain, get("/page")).await.text(), "anonymous");
        assert_eq!(send(&varying, with("/page", &[(name, "bob")])).await.text(), "bob", "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_layers_of_which_one_names_a_field_in_vary_do_not_replace_each_others_entries() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.n.to_string()));
    let cache = origin_only();
    let plain = layered(cache.http_layer(), &origin);
    let varying = layered(cache.http_layer().vary(["x-shop"]), &origin);
    for _ in 0..20 {
        send(&plain, get("/page")).await;
        send(&varying, with("/page", &[("x-shop", "a")])).await;
    }
    assert!(origin.calls() <= 4, "{} calls for 40 requests", origin.calls());
}
