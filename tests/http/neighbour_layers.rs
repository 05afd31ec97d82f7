//! The layer next to others, both ways round: what stands outside and what
//! inside decides what is stored, counted and turned away.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use http::Request;
use tower::ServiceBuilder;
use tower_http::auth::AddAuthorizationLayer;
use tower_http::compression::CompressionLayer;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;
use tower_http::validate_request::ValidateRequestHeaderLayer;
use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;

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
