//! How clients share the places for computations and for forwarded requests: no client takes
//! them all, and each is served in its turn.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use futures_util::FutureExt;
use futures_util::future::join_all;
use http::Request;
use tokio::task::JoinHandle;
use tower::ServiceExt;
use tower::util::BoxCloneSyncService;
use tower_layer::Layer;
use tower_stampede::{
    Builder, CacheOutcome, HttpLayer, HttpService, HttpStampede, Mode, Stampede, StoredResponse,
};

use crate::kit::http::*;
use crate::kit::spawn;

const SLOW: Duration = Duration::from_secs(10);

fn builder() -> Builder<StoredResponse> {
    Stampede::builder("clients").ttl(secs(600)).jitter(0.0)
}

fn with_places(max: usize) -> HttpStampede {
    builder().max_computations(max).max_refreshes(1).build().unwrap()
}

/// A layer that knows its clients by a field, which stands for their address.
fn by_client(cache: &HttpStampede) -> HttpLayer {
    cache.http_layer().client(|parts| parts.headers.get("client").cloned())
}

fn slow_origin() -> Origin {
    Origin::new(|call| Answer::ok("max-age=600", call.uri()).after(SLOW))
}

type App = HttpService<Origin>;

/// Sends requests on tasks of their own, in this order.
fn ask(app: &App, requests: impl IntoIterator<Item = Request<Body>>) -> Vec<JoinHandle<Reply>> {
    let spawn = |request| {
        let app = app.clone();
        spawn(async move { send(&app, request).await })
    };
    requests.into_iter().map(spawn).collect()
}

fn get_as(client: &str, uri: &str) -> Request<Body> {
    with(uri, &[("client", client)])
}

fn post_as(client: &str, uri: &str) -> Request<Body> {
    request("POST", uri, &[("client", client)])
}

fn asked(origin: &Origin) -> Vec<String> {
    origin.seen().iter().map(Call::uri).collect()
}

#[tokio::test(start_paused = true)]
async fn a_new_key_is_computed_next_however_many_slow_urls_another_client_asks_for() {
    let origin = slow_origin();
    let cache = builder().build().unwrap();
    let app = layered(by_client(&cache), &origin);
    // Six connections with 180 streams each.
    let attacker = (0..6 * 180).map(|n| get_as("attacker", &format!("/slow/{n}")));
    drop(ask(&app, attacker));
    pass(ms(10)).await;
    assert_eq!(origin.calls(), 896, "seven eighths of 1024 places");
    drop(ask(&app, [get_as("other", "/new")]));
    pass(ms(10)).await;
    assert_eq!(asked(&origin)[896..], ["/new"]);
}

#[tokio::test(start_paused = true)]
async fn without_the_hook_no_client_has_a_bound() {
    let origin = slow_origin();
    let app = layered(with_places(8).http_layer(), &origin);
    drop(ask(&app, (0..20).map(|n| get_as("one", &format!("/{n}")))));
    pass(ms(10)).await;
    assert_eq!(origin.calls(), 8);
}

#[tokio::test(start_paused = true)]
async fn clients_in_the_queue_are_served_in_turns() {
    let origin = Origin::new(|call| Answer::ok("max-age=600", call.uri()).after(ms(100)));
    let app = layered(by_client(&with_places(1)), &origin);
    let a = ["/a0", "/a1", "/a2", "/a3"].map(|uri| get_as("a", uri));
    let b = ["/b0", "/b1"].map(|uri| get_as("b", uri));
    let unnamed = [get("/c0")];
    join_all(ask(&app, a.into_iter().chain(b).chain(unnamed))).await;
    assert_eq!(asked(&origin), ["/a0", "/b0", "/c0", "/a1", "/b1", "/a2", "/a3"]);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_leads_after_another_client_has_the_places_of_its_own_client() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::panic(),
        _ => Answer::ok("max-age=600", "x").after(SLOW),
    });
    // Each client may have one of the two places.
    let app = layered(by_client(&with_places(2)), &origin);
    drop(ask(&app, [get_as("a", "/x"), get_as("b", "/x"), get_as("a", "/slow")]));
    pass(ms(50)).await;
    assert_eq!(asked(&origin), ["/x"], "the other key waits for its client's place");
    pass(ms(100)).await;
    assert_eq!(asked(&origin)[1..].len(), 2, "both clients compute: {:?}", asked(&origin));
}

#[tokio::test(start_paused = true)]
async fn what_a_handler_asks_for_counts_for_the_client_of_its_request() {
    let slow = slow_origin();
    let inner = Arc::new(Mutex::new(None::<BoxCloneSyncService<_, _, _>>));
    let (asking, origin) = (Arc::clone(&inner), slow.clone());
    // The page asks for twenty parts at once, through the same layer and without a client.
    let handler = tower::service_fn(move |request: Request<Body>| {
        let (inner, origin) = (asking.lock().unwrap().clone(), origin.clone());
        async move {
            if request.uri().path() == "/page" {
                let ask = |n| inner.clone().unwrap().oneshot(get(&format!("/part/{n}")));
                join_all((0..20).map(ask)).await;
            }
            origin.oneshot(request).await
        }
    });
    let app = by_client(&with_places(8)).layer(handler);
    *inner.lock().unwrap() = Some(BoxCloneSyncService::new(app.clone()));
    let page = spawn(app.clone().oneshot(get_as("a", "/page")));
    pass(ms(10)).await;
    // The page lends its own place, and six others are free for the client.
    assert_eq!(slow.calls(), 7);
    let other = spawn(app.oneshot(get_as("b", "/new")));
    pass(ms(10)).await;
    assert_eq!(asked(&slow).last().unwrap(), "/new");
    drop((page, other));
}

// ---- requests outside of flights ----

fn forwarding(cache: &HttpStampede, max: usize) -> HttpLayer {
    by_client(cache).max_forwarded(max)
}

#[tokio::test(start_paused = true)]
async fn forwarded_requests_are_bounded_and_served_in_turns() {
    let origin = Origin::new(|_| Answer::ok("no-store", "").after(ms(100)));
    let app = layered(forwarding(&with_places(1024), 8), &origin);
    let a = (0..20).map(|n| post_as("a", &format!("/a{n}")));
    let mut asking = ask(&app, a);
    pass(ms(10)).await;
    assert_eq!(origin.calls(), 7, "seven eighths are for one client");
    asking.extend(ask(&app, ["/b0", "/b1", "/b2"].map(|uri| post_as("b", uri))));
    pass(ms(10)).await;
    assert_eq!(asked(&origin)[7..], ["/b0"], "another client's request goes first");
    pass(ms(100)).await;
    let second = asked(&origin)[8..16].to_vec();
    assert!(second.contains(&"/b1".into()) && second.contains(&"/b2".into()), "{second:?}");
    let replies = join_all(asking).await;
    assert!(replies.iter().all(|reply| reply.as_ref().unwrap().status == 200));
}

#[tokio::test(start_paused = true)]
async fn requests_whose_responses_are_not_shared_are_bounded() {
    let origin = Origin::new(|_| Answer::ok("no-store", "").after(ms(100)));
    let app = layered(forwarding(&with_places(1024), 8), &origin);
    send(&app, get_as("a", "/")).await;
    drop(ask(&app, (0..20).map(|_| get_as("a", "/"))));
    pass(ms(10)).await;
    assert_eq!(origin.calls(), 1 + 1 + 7, "one leads, the others go alone");
}

#[tokio::test(start_paused = true)]
async fn forwarded_requests_have_no_bound_by_default() {
    let origin = slow_origin();
    let app = layered(by_client(&with_places(8)), &origin);
    drop(ask(&app, (0..2000).map(|_| post_as("a", "/"))));
    pass(ms(10)).await;
    assert_eq!(origin.calls(), 2000);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_too_long_is_refused_and_invalidates_nothing() {
    let cache = builder().wait_timeout(secs(2)).hold(secs(3)).build().unwrap();
    let origin = Origin::new(|call| {
        let is_get = call.parts.method == "GET";
        Answer::ok("max-age=600", "page").after(if is_get { ms(1) } else { SLOW })
    });
    let app = layered(forwarding(&cache, 1), &origin);
    send(&app, get("/page")).await;
    drop(ask(&app, [post_as("a", "/slow")]));
    pass(ms(10)).await;
    let refused = send(&app, post_as("b", "/page")).await;
    assert_eq!((refused.status, refused.took), (503, secs(2)));
    assert_eq!(refused.header("retry-after"), Some("3"));
    assert_eq!(refused.cache_status(), "tower-stampede; detail=overloaded");
    assert!(refused.is(CacheOutcome::Refused));
    assert_eq!(asked(&origin), ["/page", "/slow"], "the origin has not seen it");
    assert!(send(&app, get("/page")).await.is(CacheOutcome::Hit));
    assert_eq!(cache.stats().overloaded, 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_leaves_the_queue_and_returns_the_place() {
    let origin = slow_origin();
    let app = layered(forwarding(&with_places(8), 1), &origin);
    let first = ask(&app, [post_as("a", "/first")]).remove(0);
    pass(ms(10)).await;
    for polls in 1..4 {
        let mut waiting = Box::pin(send(&app, post_as("b", "/gone")));
        for _ in 0..polls {
            assert!(waiting.as_mut().now_or_never().is_none());
        }
    }
    let next = ask(&app, [post_as("b", "/next")]).remove(0);
    pass(ms(10)).await;
    first.abort();
    pass(ms(10)).await;
    assert_eq!(asked(&origin), ["/first", "/next"]);
    assert_eq!(next.await.unwrap().status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_streams_holds_no_place() {
    let origin = Origin::new(|_| {
        let body = Body::from_stream(futures_util::stream::pending::<
            Result<bytes::Bytes, std::io::Error>,
        >());
        Answer::ok("no-store", body)
    });
    let app = layered(forwarding(&with_places(8), 1), &origin);
    let first = app.clone().oneshot(post_as("a", "/")).await.unwrap();
    let second = app.clone().oneshot(post_as("a", "/")).await.unwrap();
    assert_eq!((first.status(), second.status()), (http::StatusCode::OK, http::StatusCode::OK));
}

#[tokio::test(start_paused = true)]
async fn a_forwarded_request_lends_its_place_to_what_its_handler_sends() {
    let inner = Arc::new(Mutex::new(None::<BoxCloneSyncService<_, _, _>>));
    let asking = Arc::clone(&inner);
    let handler = tower::service_fn(move |request: Request<Body>| {
        let inner = asking.lock().unwrap().clone();
        async move {
            if request.uri().path() == "/outer" {
                return inner.unwrap().oneshot(request_to("/inner")).await.map(
                    |r: http::Response<_>| http::Response::new(Body::from(r.status().to_string())),
                );
            }
            Ok(http::Response::new(Body::empty()))
        }
    });
    let app = forwarding(&with_places(8), 1).layer(handler);
    *inner.lock().unwrap() = Some(BoxCloneSyncService::new(app.clone()));
    let reply: Result<_, std::convert::Infallible> = try_send(&app, request_to("/outer")).await;
    assert_eq!(reply.unwrap().text(), "200 OK");
}

fn request_to(uri: &str) -> Request<Body> {
    post_as("a", uri)
}

#[tokio::test(start_paused = true)]
async fn a_request_through_two_layers_counts_once() {
    let cache = with_places(8);
    let origin = Origin::new(|_| Answer::ok("no-store", "both"));
    let inner = layered(cache.http_layer().max_forwarded(1), &origin);
    let app = forwarding(&cache, 1).layer(inner);
    for request in [
        post_as("a", "/"),
        with("/", &[("authorization", "x")]),
        with("/", &[("range", "bytes=0-1")]),
    ] {
        let reply = tokio::time::timeout(secs(5), app.clone().oneshot(request)).await;
        assert_eq!(reply.expect("it waits for no place of its own").unwrap().status(), 200);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_is_off_bounds_no_forwarded_requests() {
    let (cache, origin) = (with_places(8), slow_origin());
    let app = layered(forwarding(&cache, 1), &origin);
    drop(ask(&app, (0..5).map(|_| post_as("a", "/"))));
    pass(ms(10)).await;
    assert_eq!(origin.calls(), 1);
    cache.set_mode(Mode::Off);
    drop(ask(&app, (0..5).map(|_| post_as("a", "/"))));
    pass(ms(10)).await;
    assert_eq!(origin.calls(), 6, "new requests are forwarded at once");
    pass(secs(1)).await;
}
