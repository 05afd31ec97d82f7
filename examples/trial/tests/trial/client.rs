//! A cache in front of hyper-util's client: what a server said is not asked again.
//!
//! The connections are real, so the clock of the cache moves only as the test says.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::header::{CACHE_CONTROL, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tower::{Layer, ServiceExt};
use tower_stampede::{CacheOutcome, HttpStampede, ManualClock, Stampede};

/// A server that counts its requests, and knows its page by a validator.
async fn start_server(requests: Arc<AtomicUsize>) -> String {
    let page = move |headers: HeaderMap| async move {
        requests.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(50)).await;
        let fields = [(CACHE_CONTROL, "max-age=60"), (ETAG, "\"1\"")];
        if headers.contains_key(IF_NONE_MATCH) {
            return (StatusCode::NOT_MODIFIED, fields).into_response();
        }
        (fields, "news").into_response()
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(axum::serve(listener, Router::new().route("/news", get(page))).into_future());
    format!("http://{address}/news")
}

#[tokio::test]
async fn a_client_asks_the_server_once_and_confirms_what_has_expired() {
    let requests = Arc::new(AtomicUsize::new(0));
    let url = start_server(requests.clone()).await;
    let clock = ManualClock::new();
    let cache: HttpStampede =
        Stampede::builder("client").origin_only().clock(&clock).build().unwrap();
    let client = Client::builder(TokioExecutor::new()).build_http();
    let client = cache.http_layer().layer(client);
    let read = || async {
        let request = Request::get(&url).body(Empty::<Bytes>::new()).unwrap();
        let response = client.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let outcome = CacheOutcome::of(&response).unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "news");
        outcome
    };

    let herd = tokio::join!(read(), read(), read(), read());
    assert_eq!(requests.load(Ordering::SeqCst), 1, "{herd:?}");
    assert_eq!(read().await, CacheOutcome::Hit);

    clock.advance(Duration::from_secs(61));
    assert_eq!(read().await, CacheOutcome::Computed);
    assert_eq!(requests.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_an_error_of_the_client() {
    let cache: HttpStampede = Stampede::builder("client").origin_only().build().unwrap();
    let client = Client::builder(TokioExecutor::new()).build_http();
    let client = cache.http_layer().layer(client);
    // No server listens on the port of discarded data.
    let request = Request::get("http://127.0.0.1:9/").body(Empty::<Bytes>::new()).unwrap();
    let error = client.oneshot(request).await.unwrap_err();
    let own: &hyper_util::client::legacy::Error = &error;
    assert!(own.is_connect());
}
