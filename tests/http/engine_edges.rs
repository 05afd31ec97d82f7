//! HTTP at the edges: writes after an outage, clients that hang up, lifetimes
//! of slow responses, and modes.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Waker};
use std::time::Duration;

use crate::kit::http::*;
use axum::body::Body;
use bytes::Bytes;
use tokio::time::Instant;
use tower_stampede::CacheOutcome::Hit;
use tower_stampede::{CacheFor, HttpService, HttpStampede, Mode, Stampede};

// ---- writes ----

/// A page in an outage of five minutes, served stale; its last attempt failed
/// just now, and the origin is well again.
async fn after_an_outage() -> (HttpService<Origin>, Origin, tower_stampede::HttpStampede) {
    let down = Arc::new(AtomicBool::new(false));
    let is_down = Arc::clone(&down);
    let origin = Origin::new(move |call| {
        if is_down.load(SeqCst) {
            Answer::status(503)
        } else {
            Answer::ok("max-age=10, stale-if-error=86400", call.n.to_string())
        }
    });
    let cache = origin_only();
    let app = layered(cache.http_layer(), &origin);
    assert_eq!(send(&app, get("/page")).await.text(), "0");
    pass(secs(11)).await;
    down.store(true, SeqCst);
    let mut attempts = 0;
    for _ in 0..300 {
        attempts = origin.calls();
        assert_eq!(send(&app, get("/page")).await.status, 200);
        pass(secs(1)).await;
    }
    while origin.calls() == attempts {
        assert_eq!(send(&app, get("/page")).await.status, 200);
        pass(ms(100)).await;
    }
    down.store(false, SeqCst);
    (app, origin, cache)
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_a_write_does_not_close_the_page() {
    let (app, origin, _) = after_an_outage().await;
    assert_eq!(send(&app, request("POST", "/page", &[])).await.status, 200);
    let calls = origin.calls();
    let reply = send(&app, get("/page")).await;
    assert_eq!((reply.status, origin.calls() - calls), (200, 1), "{reply:?}");
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_an_invalidation_of_the_path_does_not_close_the_page() {
    let (app, origin, cache) = after_an_outage().await;
    cache.invalidate_path("/page").await;
    let calls = origin.calls();
    let from = Instant::now();
    let mut refused = Vec::new();
    while origin.calls() == calls {
        refused.push(send(&app, get("/page")).await.status);
        pass(ms(100)).await;
    }
    // A path is a tag: the hold of a caller without a stale response is 1 s.
    assert!(from.elapsed() <= Duration::from_millis(1200), "{refused:?} in {:?}", from.elapsed());
    assert_eq!(send(&app, get("/page")).await.status, 200);
}

/// Sends a request and hangs up before there is an answer.
fn hang_up(app: &HttpService<Origin>, method: &str, uri: &str) {
    let sending = pin!(send(app, request(method, uri, &[])));
    assert!(sending.poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

fn hangs_on_posts() -> Origin {
    Origin::new(|call| match call.parts.method.as_str() {
        "POST" => Answer::never(),
        _ => Answer::ok("max-age=600", call.n.to_string()),
    })
}

#[tokio::test(start_paused = true)]
async fn clients_that_hang_up_posts_to_other_urls_do_not_empty_the_cache() {
    let origin = hangs_on_posts();
    let app = app(&origin);
    for n in 0..50 {
        send(&app, get(&format!("/page/{n}"))).await;
    }
    for n in 0..110_000 {
        hang_up(&app, "POST", &format!("/no/such/page/{n}"));
    }
    tokio::task::yield_now().await;
    let calls = origin.calls();
    for n in 0..50 {
        assert_eq!(send(&app, get(&format!("/page/{n}"))).await.status, 200);
    }
    assert_eq!(origin.calls() - calls, 0, "of 50 fresh pages");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_a_post_invalidates_its_own_url() {
    let origin = hangs_on_posts();
    let app = app(&origin);
    for uri in ["/page", "/other"] {
        send(&app, get(uri)).await;
    }
    hang_up(&app, "POST", "/page");
    pass(secs(1)).await;
    let calls = origin.calls();
    assert!(!send(&app, get("/page")).await.is(Hit));
    assert!(send(&app, get("/other")).await.is(Hit));
    assert_eq!(origin.calls() - calls, 1);
}

// ---- from when a lifetime counts ----

/// A body that is complete so long after its head.
fn late_body(after: Duration) -> Body {
    Body::from_stream(futures_util::stream::once(async move {
        pass(after).await;
        Ok::<_, Infallible>(Bytes::from_static(b"page"))
    }))
}

/// Sends one request, and returns which later ones hit; the times count from
/// the head of the first response.
async fn hits_after(
    app: &HttpService<Origin>,
    head_after: Duration,
    after: impl IntoIterator<Item = u64>,
) -> Vec<bool> {
    let from = Instant::now();
    let first = send(app, get("/page")).await;
    assert_eq!((first.took, first.text()), (head_after, "page"));
    let mut hits = Vec::new();
    for time in after {
        tokio::time::sleep_until(from + head_after + ms(time)).await;
        hits.push(send(app, get("/page")).await.is(Hit));
    }
    hits
}

const LIFETIME: Duration = Duration::from_millis(1500);

#[tokio::test(start_paused = true)]
async fn cache_for_counts_from_the_head_of_the_response() {
    let origin = Origin::new(|_| {
        let answer = Answer::status(200).body("page").extension(CacheFor::new(LIFETIME));
        answer.after(secs(2))
    });
    let hits = hits_after(&app(&origin), secs(2), [10, 1400, 1600]).await;
    assert_eq!(hits, [true, true, false]);
}

#[tokio::test(start_paused = true)]
async fn cache_for_does_not_count_from_the_end_of_a_slow_body() {
    let origin = Origin::new(|_| {
        let answer = Answer::status(200).body(late_body(secs(1)));
        answer.extension(CacheFor::new(LIFETIME)).after(secs(2))
    });
    let hits = hits_after(&app(&origin), secs(2), [1010, 1400, 1600]).await;
    assert_eq!(hits, [true, true, false]);
}

#[tokio::test(start_paused = true)]
async fn the_ttl_of_the_cache_counts_from_the_head_of_the_response() {
    let origin = Origin::new(|_| Answer::status(200).body("page").after(secs(2)));
    let cache = Stampede::builder("test").ttl(LIFETIME).jitter(0.0).build().unwrap();
    let app = layered(cache.http_layer(), &origin);
    let hits = hits_after(&app, secs(2), [10, 1400, 1600]).await;
    assert_eq!(hits, [true, true, false]);
}

#[tokio::test(start_paused = true)]
async fn the_lifetime_of_the_origins_own_fields_counts_the_delay_of_the_response() {
    // RFC 9111, 4.2.3: the response delay is part of its age.
    for (max_age, expected) in [(1, [false, false]), (4, [true, false])] {
        let directives = format!("max-age={max_age}");
        let origin = Origin::new(move |_| Answer::ok(&directives, "page").after(secs(2)));
        let hits = hits_after(&app(&origin), secs(2), [1900, 2100]).await;
        assert_eq!(hits, expected, "max-age={max_age}");
    }
}

// ---- modes ----

#[tokio::test(start_paused = true)]
async fn a_cache_that_takes_no_part_ends_no_request_at_its_timeout_and_delays_none() {
    for mode in [Mode::Observe, Mode::Off] {
        let cache: tower_stampede::HttpStampede = Stampede::builder("test")
            .origin_only()
            .compute_timeout(secs(1))
            .wait_timeout(secs(1))
            .max_refreshes(1)
            .max_computations(1)
            .build()
            .unwrap();
        cache.set_mode(mode);
        let origin = Origin::new(|_| Answer::ok("max-age=60", "page").after(secs(20)));
        let app = layered(cache.http_layer(), &origin);
        let replies = crowd(&app, 6, |n| get(&format!("/page/{}", n / 2))).await;
        let statuses: Vec<_> = replies.iter().map(|reply| reply.status).collect();
        assert_eq!(statuses, [200; 6], "{mode:?}");
        assert_eq!((slowest(&replies), origin.calls()), (secs(20), 6), "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_takes_no_part_hides_no_failure_behind_a_stored_response() {
    for mode in [Mode::Observe, Mode::Off] {
        let cache: HttpStampede = Stampede::builder("test").origin_only().build().unwrap();
        let origin = Origin::new(|_| Answer::ok("max-age=60, stale-if-error=600", "stored"));
        let app = tower::Layer::layer(&cache.http_layer(), origin.clone());
        assert_eq!(send(&app, get("/page")).await.status, 200);
        cache.set_mode(mode);
        origin.answers(|_| Answer::status(503).body("down"));
        let reply = send(&app, get("/page")).await;
        assert_eq!((reply.status, reply.text()), (503, "down"), "{mode:?}");
    }
}

/// A body with a chunk per second, without end.
struct Dripping(Arc<Dripped>);

#[derive(Default)]
struct Dripped {
    chunks: AtomicUsize,
    is_dropped: AtomicBool,
}

impl Drop for Dripping {
    fn drop(&mut self) {
        self.0.is_dropped.store(true, SeqCst);
    }
}

impl Dripping {
    fn origin(dripped: &Arc<Dripped>, max_age: u32) -> Origin {
        let dripped = Arc::clone(dripped);
        Origin::new(move |_| {
            let body = futures_util::stream::unfold(Self(Arc::clone(&dripped)), Self::next);
            Answer::ok(&format!("max-age={max_age}"), Body::from_stream(body)).after(secs(2))
        })
    }

    async fn next(self) -> Option<(Result<Bytes, Infallible>, Self)> {
        pass(secs(1)).await;
        self.0.chunks.fetch_add(1, SeqCst);
        Some((Ok(Bytes::from_static(b"drip")), self))
    }
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_takes_no_part_reads_no_body_whose_clients_have_gone() {
    let kinds = [Mode::Observe, Mode::Off].into_iter();
    // A response with a lifetime of a second is stale when it comes.
    let kinds = kinds.flat_map(|mode| [(mode, true, 600), (mode, false, 600), (mode, false, 1)]);
    for (mode, switched_first, max_age) in kinds {
        let dripped = Arc::<Dripped>::default();
        let cache = origin_only();
        let app = layered(cache.http_layer(), &Dripping::origin(&dripped, max_age));
        if switched_first {
            cache.set_mode(mode);
        }
        let response = tower::ServiceExt::oneshot(app.clone(), get("/events")).await.unwrap();
        pass(secs(3)).await;
        cache.set_mode(mode);
        drop(response);
        pass(secs(2)).await;
        let chunks = dripped.chunks.load(SeqCst);
        let what = format!("{mode:?} {switched_first} max-age={max_age}: {chunks} chunks");
        assert!(dripped.is_dropped.load(SeqCst), "{what}");
        assert_eq!(cache.stats().flights, 0, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_that_took_longer_than_the_time_out_while_observing_is_not_stored() {
    for (takes, is_stored) in [(secs(4), true), (secs(3600), false)] {
        let cache: HttpStampede =
            Stampede::builder("test").origin_only().compute_timeout(secs(5)).build().unwrap();
        cache.set_mode(Mode::Observe);
        let origin = Origin::new(move |_| {
            Answer::ok("x", "page").extension(CacheFor::new(secs(60))).after(takes)
        });
        let app = layered(cache.http_layer(), &origin);
        assert_eq!(send(&app, get("/page")).await.status, 200);
        cache.set_mode(Mode::On);
        origin.answers(|_| Answer::ok("max-age=60", "new"));
        assert_eq!(send(&app, get("/page")).await.is(Hit), is_stored, "after {takes:?}");
    }
}
