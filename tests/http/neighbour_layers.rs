//! The layer next to others, both ways round: what stands outside and what
//! inside decides what is stored, counted and turned away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::middleware::{Next, from_fn};
use axum::routing::get as on_get;
use axum::{Extension, Router};
use http::{HeaderValue, Request, Response};
use tower::{ServiceBuilder, ServiceExt};
use tower_http::auth::AddAuthorizationLayer;
use tower_http::compression::CompressionLayer;
use tower_http::services::ServeDir;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;
use tower_http::validate_request::ValidateRequestHeaderLayer;
use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::Stampede;

use crate::kit::http::*;

// ===== Compression =====

#[tokio::test(start_paused = true)]
async fn inside_compression_one_stored_body_serves_every_encoding() {
    let text = "report ".repeat(100);
    let stored = text.clone();
    let origin = Origin::new(move |_| {
        Answer::ok("max-age=60", stored.clone()).header("content-type", "text/plain")
    });
    let app = ServiceBuilder::new()
        .layer(CompressionLayer::new())
        .layer(origin_only().http_layer())
        .service(origin.infallible());
    for encoding in ["gzip", "identity", "gzip", "identity"] {
        let reply = send(&app, with("/report", &[("accept-encoding", encoding)])).await;
        let zipped = encoding == "gzip";
        assert_eq!(reply.header("content-encoding"), zipped.then_some("gzip"));
        assert_eq!(reply.text_if_plain(), (!zipped).then_some(&*text));
    }
    assert_eq!(origin.calls(), 1);
}

impl Reply {
    fn text_if_plain(&self) -> Option<&str> {
        if self.header("content-encoding").is_some() { None } else { Some(self.text()) }
    }
}

#[tokio::test(start_paused = true)]
async fn around_compression_each_encoding_is_a_variant() {
    let text = "report ".repeat(100);
    let origin = Origin::new(move |_| {
        Answer::ok("max-age=60", text.clone()).header("content-type", "text/plain")
    });
    let inner = ServiceBuilder::new().layer(CompressionLayer::new()).service(origin.infallible());
    let app = origin_only().http_layer().layer(inner);
    for encoding in ["gzip", "identity", "gzip", "identity"] {
        let reply = send(&app, with("/report", &[("accept-encoding", encoding)])).await;
        let zipped = encoding == "gzip";
        assert_eq!(reply.header("content-encoding"), zipped.then_some("gzip"), "{encoding}");
    }
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_compressor_around_the_layer_finds_several_ranges_only_where_it_codes_nothing() {
    // The head of a `multipart/byteranges` must not have a `Content-Range` (RFC 9110, 15.3.7.2),
    // by which a compressor would know it.
    let text = ('a'..='z').map(|letter| letter.to_string().repeat(200)).collect::<String>();
    let stored = text.clone();
    let origin = Origin::new(move |_| {
        let answer = Answer::ok("max-age=60", stored.clone()).header("etag", "\"a\"");
        answer.header("content-type", "text/plain")
    });
    let app = ServiceBuilder::new()
        .layer(CompressionLayer::new())
        .layer(origin_only().http_layer())
        .service(origin.infallible());
    let range = |range, accept| {
        let request = with("/report", &[("range", range)]);
        let (mut parts, body) = request.into_parts();
        let accept: Option<&str> = accept;
        accept.map(|accept| parts.headers.insert("accept-encoding", accept.parse().unwrap()));
        Request::from_parts(parts, body)
    };
    // Nothing is stored at first.
    for accept in ["gzip", "br;q=0.5, gzip", "identity, gzip;q=0.001", "x-gzip"] {
        let whole = send(&app, range("bytes=0-1,2000-2001", Some(accept))).await;
        assert_eq!(whole.status, 200, "{accept}");
        assert_eq!(whole.header("content-type"), Some("text/plain"));
        let part = send(&app, range("bytes=0-1", Some(accept))).await;
        assert_eq!((part.status, part.text()), (206, "aa"));
        assert_eq!(part.header("content-encoding"), None);
    }
    for accept in [None, Some(""), Some("identity"), Some("gzip;q=0, identity"), Some("*;q=0")] {
        let parts = send(&app, range("bytes=0-1,2000-2001", accept)).await;
        assert_eq!((parts.status, parts.header("content-encoding")), (206, None), "{accept:?}");
        assert!(parts.header("content-type").unwrap().starts_with("multipart/byteranges"));
        assert!(parts.text().contains("content-range: bytes 2000-2001/5200\r\n\r\nkk\r\n"));
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test]
async fn files_that_are_compressed_already_reach_the_clients_that_accept_the_coding_alone() {
    // `ServeDir` names no `Vary`.
    let folder = tempfile::tempdir().unwrap();
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(1_000_000);
    for (name, content) in [("a.js", "plain"), ("a.js.gz", "gzip")] {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
    }
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let files = ServeDir::new(folder.path()).precompressed_gzip();
    let files = files.map_request(move |request: Request<Body>| {
        counted.fetch_add(1, Ordering::SeqCst);
        request
    });
    let app = origin_only().http_layer().layer(files);
    let refuses = ["identity", "gzip;q=0", "br", "*;q=0, identity"];
    for round in 0..3 {
        for accept in ["gzip", "deflate, gzip;q=0.5"] {
            let reply = send(&app, with("/a.js", &[("accept-encoding", accept)])).await;
            assert_eq!((reply.text(), reply.header("vary")), ("gzip", None), "{accept}");
            assert!(round == 0 && accept == "gzip" || reply.is(Hit), "{accept}");
        }
        for accept in refuses {
            let reply = send(&app, with("/a.js", &[("accept-encoding", accept)])).await;
            assert_eq!(
                (reply.text(), reply.header("content-encoding")),
                ("plain", None),
                "{accept}"
            );
        }
        let reply = send(&app, get("/a.js")).await;
        assert_eq!((reply.text(), reply.is(Hit)), ("plain", true));
    }
    assert_eq!(calls.load(Ordering::SeqCst), 2, "one for each file");
}

// ===== Authentication =====

#[tokio::test(start_paused = true)]
async fn inside_authentication_nobody_is_answered_who_may_not_ask() {
    let origin = Origin::new(|_| Answer::ok("public, max-age=60", "secret"));
    #[expect(deprecated, reason = "enough for a test")]
    let app = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .layer(ValidateRequestHeaderLayer::bearer("token"))
        .layer(origin_only().http_layer())
        .service(origin.infallible());
    let ask = |token: &str| with("/report", &[("authorization", &*format!("Bearer {token}"))]);
    assert_eq!(send(&app, ask("token")).await.text(), "secret");
    assert_eq!(send(&app, ask("wrong")).await.status, 401);
    assert_eq!(send(&app, get("/report")).await.status, 401);
    assert!(send(&app, ask("token")).await.is(Hit));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn credentials_added_inside_do_not_concern_the_cache() {
    let origin = Origin::new(|call| {
        Answer::ok("max-age=60", call.header("authorization").unwrap().to_owned())
    });
    let app = ServiceBuilder::new()
        .layer(origin_only().http_layer())
        .layer(AddAuthorizationLayer::bearer("ours"))
        .service(origin.infallible());
    crowd(&app, 10, |_| get("/report")).await;
    assert_eq!(send(&app, get("/report")).await.text(), "Bearer ours");
    assert_eq!(origin.calls(), 1);
}

/// The wrong way round, and why it is one: the cache answers before the layer
/// of authentication checks the client. Only what says `public` is affected.
#[tokio::test(start_paused = true)]
async fn around_authentication_what_is_public_is_answered_without_a_check() {
    let origin = Origin::new(|_| Answer::ok("public, max-age=60", "secret"));
    #[expect(deprecated, reason = "enough for a test")]
    let app = ServiceBuilder::new()
        .layer(origin_only().http_layer())
        .layer(ValidateRequestHeaderLayer::bearer("token"))
        .service(origin.infallible());
    let ask = |token: &str| with("/report", &[("authorization", &*format!("Bearer {token}"))]);
    assert_eq!(send(&app, ask("wrong")).await.status, 401);
    assert_eq!(send(&app, ask("token")).await.text(), "secret");
    assert!(send(&app, ask("wrong")).await.is(Hit));
}

#[tokio::test(start_paused = true)]
async fn around_authentication_what_is_not_public_is_checked_each_time() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "secret"));
    #[expect(deprecated, reason = "enough for a test")]
    let app = ServiceBuilder::new()
        .layer(origin_only().http_layer())
        .layer(ValidateRequestHeaderLayer::bearer("token"))
        .service(origin.infallible());
    let ask = |token: &str| with("/report", &[("authorization", &*format!("Bearer {token}"))]);
    assert_eq!(send(&app, ask("token")).await.text(), "secret");
    assert_eq!(send(&app, ask("wrong")).await.status, 401);
    assert_eq!(send(&app, get("/report")).await.status, 401);
    assert_eq!(origin.calls(), 1, "of the service; the check refused the others");
}

// ===== Trace =====

/// A trace layer that counts what it sees.
macro_rules! counted {
    ($seen:expr) => {{
        let seen = Arc::clone(&$seen);
        TraceLayer::new_for_http().on_request(move |_: &Request<Body>, _: &tracing::Span| {
            seen.fetch_add(1, Ordering::Relaxed);
        })
    }};
}

#[tokio::test(start_paused = true)]
async fn inside_trace_every_request_is_seen() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "report"));
    let seen = Arc::new(AtomicUsize::new(0));
    let app = ServiceBuilder::new()
        .layer(counted!(seen))
        .layer(origin_only().http_layer())
        .service(origin.infallible());
    crowd(&app, 10, |_| get("/report")).await;
    assert_eq!(seen.load(Ordering::Relaxed), 10);
}

#[tokio::test(start_paused = true)]
async fn around_trace_only_what_is_computed_is_seen() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "report"));
    let seen = Arc::new(AtomicUsize::new(0));
    let app = ServiceBuilder::new()
        .layer(origin_only().http_layer())
        .layer(counted!(seen))
        .service(origin.infallible());
    crowd(&app, 10, |_| get("/report")).await;
    assert_eq!(seen.load(Ordering::Relaxed), 1);
}

// ===== Time-outs =====

fn timeout(after: Duration) -> TimeoutLayer {
    TimeoutLayer::with_status_code(http::StatusCode::GATEWAY_TIMEOUT, after)
}

/// The client is told in time, and the computation goes on for the others.
#[tokio::test(start_paused = true)]
async fn inside_a_time_out_the_client_gives_up_and_the_computation_does_not() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "report").after(secs(3)));
    let app = ServiceBuilder::new()
        .layer(timeout(secs(1)))
        .layer(origin_only().http_layer())
        .service(origin.infallible());
    let late = send(&app, get("/report")).await;
    assert_eq!((late.status, late.took), (504, secs(1)));
    pass(secs(3)).await;
    assert!(send(&app, get("/report")).await.is(Hit));
    assert_eq!(origin.calls(), 1);
}

/// By default the time-out answers 408.
#[tokio::test(start_paused = true)]
async fn a_408_of_a_time_out_inside_is_a_failure_that_a_stale_response_hides() {
    let origin = Origin::new(|_| Answer::ok("max-age=10", "report").header("etag", "\"a\""));
    let cache = Stampede::builder("test").origin_only().stale_if_error(secs(600)).build().unwrap();
    let app = ServiceBuilder::new()
        .layer(cache.http_layer())
        .layer(TimeoutLayer::with_status_code(http::StatusCode::REQUEST_TIMEOUT, secs(1)))
        .service(origin.infallible());
    send(&app, get("/report")).await;
    origin.answers(|_| Answer::never());
    pass(secs(11)).await;
    let replies = crowd(&app, 10, |_| get("/report")).await;
    let is_hidden = |reply: &Reply| reply.is(StaleIfError) && reply.text() == "report";
    assert!(replies.iter().all(is_hidden), "{replies:?}");
    assert_eq!(origin.calls(), 2);
    assert!(is_hidden(&send(&app, get("/report")).await), "the failure begins a hold");
    assert_eq!(origin.calls(), 2);
}

/// The time-out ends the computation, and every client that waits shares that.
#[tokio::test(start_paused = true)]
async fn around_a_time_out_the_computation_ends_for_everybody() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "report").after(secs(3)));
    let app = ServiceBuilder::new()
        .layer(origin_only().http_layer())
        .layer(timeout(secs(1)))
        .service(origin.infallible());
    let replies = crowd(&app, 10, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| reply.status == 504 && reply.took == secs(1)));
    assert_eq!(origin.calls(), 1);
}

// ===== Fields of one request =====

/// As tower-http's `PropagateRequestIdLayer`: replaces no id that is there.
async fn propagate_id(request: Request<Body>, next: Next) -> Response<Body> {
    let id = request.headers()["x-request-id"].clone();
    let mut response = next.run(request).await;
    response.headers_mut().entry("x-request-id").or_insert(id);
    response
}

#[tokio::test(start_paused = true)]
async fn around_the_cache_a_layer_gives_each_response_the_id_of_its_own_request() {
    for is_outside in [true, false] {
        let page = || async { ([("cache-control", "max-age=60")], "page") };
        let (app, layer) = (Router::new().route("/", on_get(page)), origin_only().http_layer());
        let app = match is_outside {
            true => app.layer(layer).layer(from_fn(propagate_id)),
            false => app.layer(from_fn(propagate_id)).layer(layer),
        };
        for id in ["a", "b"] {
            let reply = send(&app, with("/", &[("x-request-id", id)])).await;
            let expected = if is_outside { id } else { "a" };
            assert_eq!(reply.header("x-request-id"), Some(expected));
        }
    }
}

/// What a handler begins, and the layer of sessions makes a cookie of.
#[derive(Clone, Default)]
struct Session(Arc<AtomicBool>);

async fn sessions(mut request: Request<Body>, next: Next) -> Response<Body> {
    let session = Session::default();
    request.extensions_mut().insert(session.clone());
    let mut response = next.run(request).await;
    if session.0.load(Ordering::Relaxed) {
        response.headers_mut().insert("set-cookie", HeaderValue::from_static("session=1"));
    }
    response
}

/// Outside of the cache, the layer makes the cookie of a response that is stored already.
#[tokio::test(start_paused = true)]
async fn a_cookie_that_a_layer_around_the_cache_sets_keeps_no_response_from_being_stored() {
    for is_outside in [true, false] {
        let page = |Extension(session): Extension<Session>| async move {
            session.0.store(true, Ordering::Relaxed);
            ([("cache-control", "max-age=60")], "page")
        };
        let (app, layer) = (Router::new().route("/", on_get(page)), origin_only().http_layer());
        let app = match is_outside {
            true => app.layer(layer).layer(from_fn(sessions)),
            false => app.layer(from_fn(sessions)).layer(layer),
        };
        assert_eq!(send(&app, get("/")).await.header("set-cookie"), Some("session=1"));
        let second = send(&app, get("/")).await;
        assert_eq!(
            (second.is(Hit), second.header("set-cookie").is_none()),
            (is_outside, is_outside)
        );
    }
}
