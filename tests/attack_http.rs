//! A hostile reader's tests of the HTTP layer and the remote.
#![cfg(all(feature = "http", feature = "axum", feature = "remote", feature = "test-util"))]
#![allow(clippy::pedantic, unused_imports, missing_docs)]

#[path = "kit/mod.rs"]
mod kit;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http::Request;
use kit::http::*;
use kit::remote::{Process, k, lock_and_die};
use tokio::time::Instant;
use tower::ServiceExt;
use tower_layer::Layer;
use tower_service::Service;
use tower_stampede::CacheOutcome;
use tower_stampede::remote::{Double, Record, Remote, RemoteSettings};
use tower_stampede::{
    Builder, CacheFor, ErrorKind, HttpService, HttpStampede, Mode, Stampede, StoredResponse,
};

fn web() -> Builder<StoredResponse> {
    Stampede::builder("web").origin_only().jitter(0.0)
}

fn joined(double: &Double, settings: Builder<StoredResponse>) -> HttpStampede {
    settings.remote(double.process(), RemoteSettings::new()).build().unwrap()
}

// ---- modes ----

async fn unprotected_failure(
    mode: Mode,
    method: &str,
    failure: fn() -> Answer,
) -> Result<Reply, OriginError> {
    let origin = Origin::new(|_| Answer::ok("max-age=600, stale-if-error=600", "stored"));
    let cache = origin_only();
    let app = layered(cache.http_layer(), &origin);
    assert_eq!(send(&app, get("/p")).await.text(), "stored");
    cache.set_mode(mode);
    origin.answers(move |_| failure());
    try_send(&app, request(method, "/p", &[])).await
}

#[tokio::test(start_paused = true)]
async fn off_answers_with_nothing_that_is_stored() {
    let reply = unprotected_failure(Mode::Off, "GET", || Answer::status(503)).await.unwrap();
    assert_eq!(reply.status, 503, "{reply:?}");
}

#[tokio::test(start_paused = true)]
async fn off_hands_on_the_error_of_the_service() {
    let reply = unprotected_failure(Mode::Off, "GET", Answer::error).await;
    assert!(reply.is_err(), "{reply:?}");
}

#[tokio::test(start_paused = true)]
async fn observe_answers_with_nothing_that_is_stored() {
    for method in ["GET", "HEAD"] {
        let reply =
            unprotected_failure(Mode::Observe, method, || Answer::status(503)).await.unwrap();
        assert_eq!(reply.status, 503, "{method} {reply:?}");
    }
}

/// A body that says when it is dropped, and yields a chunk per second.
struct Dripping(Arc<AtomicBool>, Arc<AtomicUsize>);
impl Drop for Dripping {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}
fn dripping(dropped: &Arc<AtomicBool>, chunks: &Arc<AtomicUsize>) -> Body {
    let state = Dripping(Arc::clone(dropped), Arc::clone(chunks));
    Body::from_stream(stream::unfold(state, |state| async move {
        tokio::time::sleep(secs(1)).await;
        state.1.fetch_add(1, SeqCst);
        Some((Ok::<_, std::io::Error>(Bytes::from_static(b"drip")), state))
    }))
}

#[tokio::test(start_paused = true)]
async fn an_observing_cache_reads_no_body_whose_client_has_hung_up() {
    let (dropped, chunks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (d, c) = (Arc::clone(&dropped), Arc::clone(&chunks));
    let origin = Origin::new(move |_| Answer::ok("max-age=600", dripping(&d, &c)));
    let cache = origin_only();
    let app = layered(cache.http_layer(), &origin);
    cache.set_mode(Mode::Observe);
    let response = app.clone().oneshot(get("/events")).await.unwrap();
    drop(response);
    pass(secs(600)).await;
    assert!(dropped.load(SeqCst), "{} chunks were read for nobody", chunks.load(SeqCst));
}

#[tokio::test(start_paused = true)]
async fn switched_off_no_body_is_read_whose_client_has_hung_up() {
    let (dropped, chunks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (d, c) = (Arc::clone(&dropped), Arc::clone(&chunks));
    let origin = Origin::new(move |_| Answer::ok("max-age=600", dripping(&d, &c)));
    let cache = origin_only();
    let app = layered(cache.http_layer(), &origin);
    let response = app.clone().oneshot(get("/events")).await.unwrap();
    pass(secs(3)).await;
    cache.set_mode(Mode::Off);
    drop(response);
    pass(secs(600)).await;
    assert!(dropped.load(SeqCst), "{} chunks were read for nobody", chunks.load(SeqCst));
}

// ---- a leader that waits for another process ----

#[tokio::test(start_paused = true)]
async fn a_leader_whose_patience_is_over_gets_what_this_process_has_fresh() {
    let double = Double::new();
    let origin = Origin::new(|_| Answer::ok("public, max-age=600", "page"));
    // A process that computes and is never done.
    let silent = joined(&double, web()).http_layer().layer(Origin::new(|_| Answer::never()));
    let app = joined(&double, web().wait_timeout(secs(5)).lease(secs(3)))
        .http_layer()
        .layer(origin.clone());
    let s = silent.clone();
    tokio::spawn(async move { send(&s, get("http://a/x")).await });
    pass(secs(1)).await;
    let a = app.clone();
    let waits = tokio::spawn(async move { send(&a, get("http://a/x")).await });
    pass(secs(1)).await;
    let b = send(&app, with("http://a/x", &[("authorization", "b")])).await;
    assert_eq!((b.status, b.text()), (200, "page"));
    let hit = send(&app, get("http://a/x")).await;
    assert_eq!(hit.text(), "page");
    assert!(hit.is(CacheOutcome::Hit), "the page is fresh here: {hit:?}");
    let reply = waits.await.unwrap();
    assert_eq!((reply.status, reply.text()), (200, "page"), "after {:?}", reply.took);
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_origin_fails_gets_what_this_process_has_fresh() {
    let origin = Origin::new(|call| match call.header("authorization") {
        Some(_) => Answer::ok("public, max-age=600", "page"),
        None => Answer::status(503).after(secs(5)),
    });
    let app = app(&origin);
    let a = app.clone();
    let waits = tokio::spawn(async move { send(&a, get("http://a/x")).await });
    pass(secs(1)).await;
    let b = send(&app, with("http://a/x", &[("authorization", "b")])).await;
    assert_eq!((b.status, b.text()), (200, "page"));
    let reply = waits.await.unwrap();
    assert_eq!((reply.status, reply.text()), (200, "page"), "after {:?}", reply.took);
}

// ---- holds in other processes ----

/// An outage of five minutes in a process that serves stale; then the remote has lost the
/// value, the origin is well, and another process asks.
async fn outage_seen_by_another(big: bool) -> Duration {
    let double = Double::new();
    let down = Arc::new(AtomicBool::new(false));
    let is_down = Arc::clone(&down);
    let body = if big { "x".repeat(100_000) } else { "x".into() };
    let origin = Origin::new(move |_| {
        if is_down.load(SeqCst) {
            Answer::status(503)
        } else {
            Answer::ok("max-age=10, stale-if-error=86400", body.clone())
        }
    });
    let small = RemoteSettings::new().max_value_bytes(10_000);
    let first = web()
        .remote(double.process(), small.clone())
        .build()
        .unwrap()
        .http_layer()
        .layer(origin.clone());
    let other =
        web().remote(double.process(), small).build().unwrap().http_layer().layer(origin.clone());
    assert_eq!(send(&first, get("http://a/x")).await.status, 200);
    pass(secs(11)).await;
    down.store(true, SeqCst);
    for _ in 0..300 {
        assert_eq!(send(&first, get("http://a/x")).await.status, 200);
        pass(secs(1)).await;
    }
    let attempts = origin.calls();
    while origin.calls() == attempts {
        assert_eq!(send(&first, get("http://a/x")).await.status, 200);
        pass(ms(100)).await;
    }
    pass(ms(200)).await;
    down.store(false, SeqCst);
    let from = Instant::now();
    loop {
        let reply = send(&other, get("http://a/x")).await;
        if reply.status == 200 {
            return from.elapsed();
        }
        assert!(from.elapsed() < secs(300));
        pass(ms(200)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_without_a_stale_copy_is_not_held_for_a_minute_by_one_that_has_it() {
    let took = outage_seen_by_another(true).await;
    assert!(took <= secs(2), "503 from a healthy origin for {took:?}");
}

#[tokio::test(start_paused = true)]
async fn the_same_where_the_remote_has_the_stale_copy() {
    let took = outage_seen_by_another(false).await;
    assert!(took <= secs(2), "{took:?}");
}

// ---- request directives ----

#[tokio::test(start_paused = true)]
async fn no_cache_is_not_answered_with_an_old_response_of_the_remote() {
    let double = Double::new();
    let origin = Origin::new(|call| Answer::ok("max-age=3600", call.n.to_string()));
    let first =
        joined(&double, web()).http_layer().honour_request_directives(true).layer(origin.clone());
    let app =
        joined(&double, web()).http_layer().honour_request_directives(true).layer(origin.clone());
    assert_eq!(send(&first, get("http://a/x")).await.text(), "0");
    pass(secs(600)).await;
    double.delay(ms(10));
    // It came first, and is polled second.
    let mut service = app.clone();
    let strict = service.call(with("http://a/x", &[("cache-control", "no-cache")]));
    let a = app.clone();
    let other = tokio::spawn(async move { send(&a, get("http://a/x")).await });
    pass(ms(1)).await;
    let strict = read(strict.await.unwrap(), ms(0)).await;
    assert_eq!(other.await.unwrap().text(), "0");
    assert_eq!(strict.text(), "1", "{strict:?}");
}

// ---- lending ----

#[derive(Clone, Default)]
struct Late(
    Arc<
        Mutex<
            Option<
                HttpService<
                    tower::util::BoxCloneSyncService<
                        Request<Body>,
                        http::Response<Body>,
                        std::convert::Infallible,
                    >,
                >,
            >,
        >,
    >,
);

type Boxed =
    tower::util::BoxCloneSyncService<Request<Body>, http::Response<Body>, std::convert::Infallible>;

fn late_app(
    cache: &HttpStampede,
    handle: impl Fn(
        Late,
        Request<Body>,
    ) -> futures_util::future::BoxFuture<'static, http::Response<Body>>
    + Clone
    + Send
    + Sync
    + 'static,
) -> HttpService<Boxed> {
    let late = Late::default();
    let l = late.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (late, handle) = (l.clone(), handle.clone());
        async move { Ok::<_, std::convert::Infallible>(handle(late, request).await) }
    });
    let app = cache.http_layer().layer(Boxed::new(service));
    *late.0.lock().unwrap() = Some(app.clone());
    app
}

impl Late {
    async fn ask(&self, uri: &str) -> (u16, Bytes) {
        let app = self.0.lock().unwrap().clone().unwrap();
        let reply = send(&app, get(uri)).await;
        (reply.status, reply.body)
    }
}

fn page(body: impl Into<Body>) -> http::Response<Body> {
    http::Response::builder().header("cache-control", "max-age=60").body(body.into()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_body_that_asks_for_other_pages_lends_its_place() {
    let cache = web().max_computations(1).max_refreshes(1).wait_timeout(secs(5)).build().unwrap();
    let app = late_app(&cache, |late, request| {
        Box::pin(async move {
            if request.uri().path() != "/outer" {
                return page("inner");
            }
            page(Body::from_stream(stream::once(async move {
                let (status, body) = late.ask("/inner").await;
                Ok::<_, std::io::Error>(Bytes::from(format!(
                    "{status} {}",
                    String::from_utf8_lossy(&body)
                )))
            })))
        })
    });
    let reply = send(&app, get("/outer")).await;
    assert_eq!(reply.text(), "200 inner");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_asks_for_other_pages_lends_its_place() {
    let cache = web().max_computations(1).max_refreshes(1).wait_timeout(secs(5)).build().unwrap();
    let app = late_app(&cache, |late, request| {
        Box::pin(async move {
            if request.uri().path() != "/outer" {
                return page(format!("inner {}", request.uri().path()));
            }
            let (a, b) = tokio::join!(late.ask("/a"), late.ask("/b"));
            page(format!("{} {}", a.0, b.0))
        })
    });
    let reply = send(&app, get("/outer")).await;
    assert_eq!(reply.text(), "200 200");
}

#[tokio::test(start_paused = true)]
async fn a_handler_asks_for_a_second_page_while_the_body_of_the_first_streams() {
    let cache = web().max_computations(1).max_refreshes(1).wait_timeout(secs(5)).build().unwrap();
    let app = late_app(&cache, |late, request| {
        Box::pin(async move {
            match request.uri().path() {
                "/outer" => {
                    let app = late.0.lock().unwrap().clone().unwrap();
                    // Its head is all that it wants so far.
                    let slow = app.oneshot(get("/slow")).await.unwrap();
                    let (status, _) = late.ask("/b").await;
                    drop(slow);
                    page(format!("{status}"))
                }
                "/slow" => page(Body::from_stream(stream::unfold(0, |n| async move {
                    tokio::time::sleep(secs(1)).await;
                    (n < 60).then(|| (Ok::<_, std::io::Error>(Bytes::from_static(b"x")), n + 1))
                }))),
                _ => page("b"),
            }
        })
    });
    let reply = send(&app, get("/outer")).await;
    assert_eq!(reply.text(), "200", "after {:?}", reply.took);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_computes_after_its_wait_lends_its_place() {
    let cache = web()
        .max_computations(2)
        .max_refreshes(2)
        .wait_timeout(secs(2))
        .compute_timeout(secs(600))
        .compute_after_wait()
        .build()
        .unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let app = late_app(&cache, move |late, request| {
        let calls = Arc::clone(&calls);
        Box::pin(async move {
            if request.uri().path() != "/outer" {
                return page("inner");
            }
            if calls.fetch_add(1, SeqCst) == 0 {
                std::future::pending::<()>().await;
            }
            let (status, _) = late.ask("/inner").await;
            page(format!("{status}"))
        })
    });
    let a = app.clone();
    tokio::spawn(async move { send(&a, get("/outer")).await });
    pass(ms(10)).await;
    let reply = send(&app, get("/outer")).await;
    assert_eq!((reply.status, reply.text()), (200, "200"), "after {:?}", reply.took);
}

// ---- places ----

async fn place_is_back_after(body: fn() -> Body, read_it: bool) {
    let origin = Origin::new(move |call| match call.parts.uri.path() {
        "/stream" => Answer::ok("max-age=60", body()).header("vary", "accept"),
        _ => Answer::ok("max-age=60", "ok"),
    });
    let cache = web().max_computations(1).max_refreshes(1).wait_timeout(secs(5)).build().unwrap();
    let app = layered(cache.http_layer(), &origin);
    let response = app.clone().oneshot(get("/stream")).await.unwrap();
    if read_it {
        read(response, ms(0)).await;
    } else {
        drop(response);
    }
    let from = Instant::now();
    pass(secs(100)).await;
    let reply = send(&app, get("/other")).await;
    assert_eq!(reply.status, 200);
    assert!(reply.took < secs(1), "{:?} {:?}", reply.took, from.elapsed());
    assert_eq!(cache.stats().flights, 0);
}

fn panicking() -> Body {
    Body::from_stream(stream::unfold(0, |n| async move {
        tokio::time::sleep(ms(100)).await;
        assert!(n < 3, "the body panics");
        Some((Ok::<_, std::io::Error>(Bytes::from_static(b"x")), n + 1))
    }))
}
fn broken() -> Body {
    Body::from_stream(stream::unfold(0, |n| async move {
        tokio::time::sleep(ms(100)).await;
        let it =
            if n < 3 { Ok(Bytes::from_static(b"x")) } else { Err(std::io::Error::other("broken")) };
        Some((it, n + 1))
    }))
}
fn hanging() -> Body {
    Body::from_stream(stream::unfold(0, |n| async move {
        if n == 3 {
            std::future::pending::<()>().await;
        }
        Some((Ok::<_, std::io::Error>(Bytes::from_static(b"x")), n + 1))
    }))
}

#[tokio::test(start_paused = true)]
async fn places_come_back_from_bodies() {
    place_is_back_after(panicking, true).await;
    place_is_back_after(panicking, false).await;
    place_is_back_after(broken, true).await;
    place_is_back_after(broken, false).await;
    place_is_back_after(hanging, false).await;
}

#[tokio::test(start_paused = true)]
async fn a_place_is_not_taken_from_a_leader_that_a_slow_remote_delays() {
    use kit::origin::{Origin as Work, SECOND, settings};
    let double = Double::new();
    let settings = settings()
        .max_computations(1)
        .max_refreshes(1)
        .wait_timeout(30 * SECOND)
        .lease(20 * SECOND)
        .compute_timeout(28 * SECOND);
    let remote = RemoteSettings::new().op_timeout(6 * SECOND);
    let process = Process::with_remote(&double, settings, remote);
    process.prepare(&double).await;
    let (busy, work) = (Work::taking(27 * SECOND), Work::new());
    work.usually(kit::origin::Answer::Hang);
    let (cache, compute) = (process.cache.clone(), busy.compute());
    let first = tokio::spawn(async move { cache.get_or_compute("first", compute).await });
    pass(ms(1)).await;
    let queued = process.spawn(&work);
    pass(secs(26)).await;
    double.delay(5 * SECOND);
    pass(ms(400)).await;
    // At 31.4 s it asks for a place; the other is overdue, and its acquire is under way.
    let (cache, compute) = (process.cache.clone(), work.compute());
    let other = tokio::spawn(async move { cache.get_or_compute("other", compute).await });
    pass(secs(120)).await;
    let _ = first.await;
    assert!(work.most_at_once() <= 1, "{} at once", work.most_at_once());
    assert!(queued.is_finished(), "the computation has outlived compute_timeout by far");
    assert!(other.is_finished());
}

#[tokio::test(start_paused = true)]
async fn leaders_that_wait_for_other_processes_count_as_waiters() {
    use kit::origin::{Origin as Work, settings};
    let double = Double::new();
    let process = Process::with(&double, settings().max_waiters(10).max_waiters_in_all(10));
    process.prepare(&double).await;
    let stranger = Process::on(&double);
    stranger.prepare(&double).await;
    let work = Work::taking(secs(20));
    let mut all = Vec::new();
    for n in 0..100_u32 {
        let (cache, compute) = (stranger.cache.clone(), work.compute());
        all.push(tokio::spawn(async move { cache.get_or_compute(n, compute).await.ok() }));
    }
    pass(ms(100)).await;
    let mut waiting = Vec::new();
    for n in 0..100_u32 {
        let (cache, compute) = (process.cache.clone(), work.compute());
        waiting.push(tokio::spawn(async move {
            cache.get_or_compute(n, compute).await.map_err(|e| e.kind())
        }));
    }
    pass(ms(500)).await;
    let left = waiting.iter().filter(|it| !it.is_finished()).count();
    assert!(left <= 10, "{left} wait, stats say {}", process.stats().waiting);
}

// ---- lifetimes between processes ----

#[tokio::test(start_paused = true)]
async fn a_response_is_fresh_until_the_same_moment_everywhere() {
    let double = Double::new();
    let origin = Origin::new(|call| {
        Answer::status(200)
            .body(call.n.to_string())
            .extension(CacheFor::new(secs(10)))
            .after(secs(3))
    });
    let apps: Vec<_> =
        (0..2).map(|_| joined(&double, web()).http_layer().layer(origin.clone())).collect();
    assert_eq!(send(&apps[0], get("http://a/x")).await.text(), "0");
    let age0 = send(&apps[0], get("http://a/x")).await;
    pass(ms(9900)).await;
    let here = send(&apps[0], get("http://a/x")).await;
    let there = send(&apps[1], get("http://a/x")).await;
    assert_eq!((here.text(), there.text()), ("0", "0"), "{age0:?}");
    assert_eq!(here.header("age"), there.header("age"));
    pass(ms(200)).await;
    assert_eq!(send(&apps[1], get("http://a/x")).await.text(), "1");
}

#[tokio::test(start_paused = true)]
async fn a_stale_value_in_the_remote_does_not_end_the_growth_of_a_hold() {
    use kit::origin::{Origin as Work, SECOND, settings};
    let double = Double::new();
    // Room for one.
    let builder =
        || settings().ttl(SECOND).stale_for(3600 * SECOND).max_bytes(1000).weigher(|_| 700);
    let process = Process::with(&double, builder());
    process.prepare(&double).await;
    let work = Work::new();
    assert_eq!(process.load(&work).await, 1);
    pass(secs(2)).await;
    work.usually(kit::origin::Answer::Fail);
    for n in 0..600_u64 {
        process.put("other", n).await;
        let _ = process.cache.stats();
        assert_eq!(process.load(&work).await, 1);
        pass(ms(100)).await;
    }
    assert!(work.calls() <= 20, "{} calls of a dead origin in a minute", work.calls());
}

#[tokio::test(start_paused = true)]
async fn a_held_caller_is_refused_in_time_while_the_remote_is_frozen() {
    use kit::origin::{Origin as Work, SECOND, settings};
    let double = Double::new();
    let process = Process::with(&double, settings().hold(30 * SECOND));
    process.prepare(&double).await;
    let work = Work::new();
    work.next([kit::origin::Answer::Fail]);
    assert!(process.spawn(&work).await.unwrap().is_err());
    double.freeze();
    for _ in 0..10 {
        let from = Instant::now();
        let held = process.spawn(&work).await.unwrap().unwrap_err();
        assert_eq!(held.kind(), ErrorKind::Held);
        assert!(from.elapsed() < ms(200), "{:?}", from.elapsed());
    }
    assert_eq!(work.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_invalidation_during_a_held_look_lets_the_caller_compute() {
    use kit::origin::{Origin as Work, SECOND, settings};
    let double = Double::new();
    let process = Process::with(&double, settings().hold(30 * SECOND));
    process.prepare(&double).await;
    let work = Work::new();
    work.next([kit::origin::Answer::Fail]);
    assert!(process.spawn(&work).await.unwrap().is_err());
    pass(ms(10)).await;
    double.delay(ms(50));
    let looks = process.spawn(&work);
    pass(ms(10)).await;
    process.put("k", 1000).await;
    let got = looks.await.unwrap();
    assert_eq!(got.ok(), Some(1000), "it was put while the caller looked into the remote");
}

// ---- off while callers wait ----

#[tokio::test(start_paused = true)]
async fn switched_off_callers_that_queue_reach_the_service() {
    let origin = Origin::new(|call| match call.parts.uri.path() {
        "/slow" => Answer::never(),
        _ => Answer::ok("max-age=60", "ok"),
    });
    let cache = web().max_computations(1).max_refreshes(1).wait_timeout(secs(10)).build().unwrap();
    let app = layered(cache.http_layer(), &origin);
    let a = app.clone();
    tokio::spawn(async move { send(&a, get("/slow")).await });
    pass(ms(10)).await;
    let a = app.clone();
    let queued = tokio::spawn(async move { send(&a, get("/other")).await });
    pass(secs(1)).await;
    cache.set_mode(Mode::Off);
    let reply = queued.await.unwrap();
    assert_eq!(reply.status, 200, "{reply:?}");
}

#[tokio::test(start_paused = true)]
async fn switched_off_callers_that_wait_reach_the_service() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::never(),
        _ => Answer::ok("max-age=60", "ok"),
    });
    let cache = web().wait_timeout(secs(10)).build().unwrap();
    let app = layered(cache.http_layer(), &origin);
    let a = app.clone();
    tokio::spawn(async move { send(&a, get("/x")).await });
    pass(ms(10)).await;
    let a = app.clone();
    let waits = tokio::spawn(async move { send(&a, get("/x")).await });
    pass(secs(1)).await;
    cache.set_mode(Mode::Off);
    let reply = waits.await.unwrap();
    assert_eq!(reply.status, 200, "{reply:?}");
}

// ---- HTTP holds and others ----

#[tokio::test(start_paused = true)]
async fn a_head_request_in_a_held_key_finds_what_the_remote_has() {
    // Two lost connections hold the page here; another process computes it.
    let double = Double::new();
    let origin = Origin::new(|_| Answer::error());
    let settings = || web().hold(secs(30));
    let here = joined(&double, settings()).http_layer().layer(origin.clone());
    for _ in 0..2 {
        let _ = try_send(&here, get("http://a/x")).await;
        pass(ms(10)).await;
    }
    origin.answers(|_| Answer::ok("max-age=600", "page"));
    for _ in 0..10 {
        double.lose(&k(), Record::Lock);
    }
    double.flush();
    pass(ms(10)).await;
    let there = joined(&double, settings()).http_layer().layer(origin.clone());
    assert_eq!(send(&there, get("http://a/x")).await.text(), "page");
    pass(ms(10)).await;
    let calls = origin.calls();
    let head = send(&here, request("HEAD", "http://a/x", &[])).await;
    assert_eq!((head.status, origin.calls() - calls), (200, 0), "{head:?}");
}

#[tokio::test(start_paused = true)]
async fn an_anonymous_failure_elsewhere_does_not_hold_credentials() {
    let double = Double::new();
    let origin = Origin::new(|call| match call.header("authorization") {
        None => Answer::error(),
        Some(_) => Answer::ok("private, max-age=60", "alice"),
    });
    let settings = || web().hold(secs(30));
    let first = joined(&double, settings()).http_layer().layer(origin.clone());
    let other = joined(&double, settings()).http_layer().layer(origin.clone());
    for _ in 0..2 {
        let _ = try_send(&first, get("http://a/x")).await;
        pass(ms(10)).await;
    }
    for (app, which) in [(&first, "the same process"), (&other, "another process")] {
        let reply = send(app, with("http://a/x", &[("authorization", "alice")])).await;
        assert_eq!((reply.status, reply.text()), (200, "alice"), "{which}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_ends_a_hold_that_another_process_began() {
    let double = Double::new();
    let down = Arc::new(AtomicBool::new(true));
    let is_down = Arc::clone(&down);
    let origin = Origin::new(move |_| {
        if is_down.load(SeqCst) { Answer::error() } else { Answer::ok("max-age=60", "ok") }
    });
    let settings = || web().hold(secs(30));
    let apps: Vec<_> =
        (0..2).map(|_| joined(&double, settings()).http_layer().layer(origin.clone())).collect();
    for _ in 0..2 {
        let _ = try_send(&apps[0], get("http://a/x")).await;
        pass(ms(10)).await;
    }
    let held = try_send(&apps[1], get("http://a/x")).await;
    assert!(held.is_ok_and(|reply| reply.status == 503));
    down.store(false, SeqCst);
    assert_eq!(send(&apps[1], request("POST", "http://a/x", &[])).await.status, 200);
    pass(ms(10)).await;
    let from = Instant::now();
    while send(&apps[1], get("http://a/x")).await.status != 200 {
        pass(ms(100)).await;
    }
    assert!(from.elapsed() <= ms(1200), "{:?}", from.elapsed());
}

#[tokio::test(start_paused = true)]
async fn observing_a_condition_of_any_kind_reaches_the_service_and_is_not_stored() {
    for (name, value) in
        [("if-match", "\"other\""), ("if-unmodified-since", "Sun, 06 Nov 1994 08:49:37 GMT")]
    {
        let origin = Origin::new(move |call| match call.header(name) {
            Some(_) => Answer::status(412).body("failed"),
            None => Answer::ok("max-age=60", "page"),
        });
        let cache = with_ttl(60);
        let app = layered(cache.http_layer(), &origin);
        cache.set_mode(Mode::Observe);
        assert_eq!(send(&app, with("/p", &[(name, value)])).await.status, 412);
        cache.set_mode(Mode::On);
        assert_eq!(send(&app, get("/p")).await.text(), "page");
    }
}

// ---- streams and callers that they do not fit ----

fn slow_stream(n: u64) -> Body {
    Body::from_stream(stream::unfold(0, move |i| async move {
        tokio::time::sleep(secs(1)).await;
        (i < n).then(|| (Ok::<_, std::io::Error>(Bytes::from_static(b"x")), i + 1))
    }))
}

#[tokio::test(start_paused = true)]
async fn a_reload_while_a_long_body_arrives_is_answered() {
    for field in ["max-age=0", "no-cache"] {
        let origin = Origin::new(|call| match call.n {
            0 => Answer::ok("max-age=600", slow_stream(120)),
            _ => Answer::ok("max-age=600", "new"),
        });
        let app = layered(origin_only().http_layer().honour_request_directives(true), &origin);
        let first = app.clone().oneshot(get("/p")).await.unwrap();
        pass(secs(5)).await;
        let reload = send(&app, with("/p", &[("cache-control", field)])).await;
        assert_eq!(reload.status, 200, "{field}: {reload:?}");
        assert!(reload.took < secs(10), "{field}: {:?}", reload.took);
        drop(first);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reload_that_came_before_the_head_of_a_long_body_is_answered() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::ok("max-age=600", slow_stream(120)).after(secs(2)),
        _ => Answer::ok("max-age=600", "new"),
    });
    let app = layered(origin_only().http_layer().honour_request_directives(true), &origin);
    let a = app.clone();
    tokio::spawn(async move { send(&a, get("/p")).await });
    pass(secs(1)).await;
    let reload = send(&app, with("/p", &[("cache-control", "max-age=0")])).await;
    assert_eq!(reload.status, 200, "{reload:?}");
    assert!(reload.took < secs(10), "{:?}", reload.took);
}

#[tokio::test(start_paused = true)]
async fn another_variant_is_answered_while_a_long_body_arrives_that_replaces_a_page_without_variants()
 {
    let origin = Origin::new(|call| match (call.n, call.header("accept-language")) {
        (0, _) => Answer::ok("max-age=10, stale-if-error=100", "plain"),
        (1, _) => Answer::ok("max-age=600", slow_stream(120)).header("vary", "accept-language"),
        (_, language) => Answer::ok("max-age=600", language.unwrap_or("none").to_owned())
            .header("vary", "accept-language"),
    });
    let app = app(&origin);
    send(&app, get("/p")).await;
    pass(secs(11)).await;
    let de = app.clone().oneshot(with("/p", &[("accept-language", "de")])).await.unwrap();
    pass(secs(1)).await;
    let en = send(&app, with("/p", &[("accept-language", "en")])).await;
    assert_eq!((en.status, en.text()), (200, "en"), "after {:?} {:?}", en.took, en.headers);
    assert!(en.took < secs(5));
    drop(de);
}

#[tokio::test(start_paused = true)]
async fn a_range_of_a_long_body_that_arrives_is_answered() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::ok("max-age=600", slow_stream(120)),
        _ => Answer::ok("max-age=600", "new"),
    });
    let app = app(&origin);
    let first = app.clone().oneshot(get("/p")).await.unwrap();
    pass(secs(5)).await;
    for (method, fields) in [
        ("GET", vec![("range", "bytes=0-1")]),
        ("HEAD", vec![]),
        ("GET", vec![("if-none-match", "\"a\"")]),
    ] {
        let from = Instant::now();
        let response = app.clone().oneshot(request(method, "/p", &fields)).await.unwrap();
        assert!(response.status().is_success(), "{method} {fields:?}");
        assert!(from.elapsed() < secs(1), "{method} {fields:?} {:?}", from.elapsed());
    }
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn with_credentials_a_long_body_keeps_nobody_waiting() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::ok("max-age=600", slow_stream(120)),
        _ => Answer::ok("private", call.header("authorization").unwrap_or("nobody").to_owned()),
    });
    let app = app(&origin);
    let first = app.clone().oneshot(get("/p")).await.unwrap();
    pass(secs(5)).await;
    for who in ["alice", "bob"] {
        let reply = send(&app, with("/p", &[("authorization", who)])).await;
        assert_eq!((reply.status, reply.text()), (200, who));
        assert!(reply.took < secs(1));
    }
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn a_write_while_a_long_body_arrives_lets_the_next_reader_ask() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::ok("max-age=600", slow_stream(120)).header("vary", "accept"),
        _ => Answer::ok("max-age=600", "new").header("vary", "accept"),
    });
    let app = app(&origin);
    let first = app.clone().oneshot(get("/p")).await.unwrap();
    pass(secs(5)).await;
    assert_eq!(send(&app, request("POST", "/p", &[])).await.status, 200);
    let reply = send(&app, get("/p")).await;
    assert_eq!(reply.text(), "new");
    assert!(reply.took < secs(1));
    pass(secs(200)).await;
    assert_eq!(send(&app, get("/p")).await.text(), "new");
    drop(first);
}

// ---- clients that hang up while another process computes ----

#[tokio::test(start_paused = true)]
async fn leaders_whose_clients_hung_up_while_another_process_computed_compute_nothing() {
    use kit::origin::{Origin as Work, settings};
    let double = Double::new();
    let process = Process::with(&double, settings());
    process.prepare(&double).await;
    for n in 0..100_u32 {
        assert!(double.lock_as_stranger(&n.into(), secs(5)));
    }
    let work = Work::taking(secs(1));
    let mut callers = Vec::new();
    for n in 0..100_u32 {
        let (cache, compute) = (process.cache.clone(), work.compute());
        callers.push(tokio::spawn(async move { cache.get_or_compute(n, compute).await.ok() }));
    }
    pass(secs(1)).await;
    callers.iter().for_each(tokio::task::JoinHandle::abort);
    pass(secs(60)).await;
    assert_eq!(work.calls(), 0, "computed for nobody");
}

// ---- shutdown ----

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_in_time_with_fills_of_a_frozen_remote_under_way() {
    let double = Double::new();
    let origin = Origin::new(|_| Answer::ok("max-age=600", "page"));
    let cache =
        web().remote(double.process(), RemoteSettings::new().op_timeout(secs(1))).build().unwrap();
    let app = layered(cache.http_layer(), &origin);
    let a = app.clone();
    let first = tokio::spawn(async move { send(&a, get("http://a/x")).await });
    pass(ms(50)).await;
    double.freeze();
    assert_eq!(first.await.unwrap().status, 200);
    let from = Instant::now();
    cache.shutdown(ms(100)).await;
    assert!(from.elapsed() < ms(200), "{:?}", from.elapsed());
    assert_eq!(send(&app, get("http://a/x")).await.status, 200);
    assert_eq!(origin.calls(), 2);
}

// ---- privacy, at random corners ----

#[tokio::test(start_paused = true)]
async fn observing_stores_nothing_private() {
    let origin = Origin::new(|call| {
        Answer::ok(
            "max-age=600",
            call.header("authorization").or(call.header("cookie")).unwrap_or("nobody").to_owned(),
        )
    });
    for ttl in [false, true] {
        let cache = if ttl { with_ttl(600) } else { origin_only() };
        let app = layered(cache.http_layer(), &origin);
        cache.set_mode(Mode::Observe);
        for fields in [[("authorization", "alice")], [("cookie", "alice")]] {
            let replies = crowd(&app, 5, |_| with("/p", &fields)).await;
            assert!(replies.iter().all(|it| it.text() == "alice"));
        }
        cache.set_mode(Mode::On);
        assert_eq!(send(&app, with("/p", &[("authorization", "bob")])).await.text(), "bob");
        assert_eq!(send(&app, with("/p", &[("cookie", "bob")])).await.text(), "bob");
        assert_eq!(send(&app, get("/p")).await.text(), "nobody");
    }
}

#[tokio::test(start_paused = true)]
async fn an_observing_flight_is_joined_by_nobody_it_is_not_for() {
    // Led while observing, joined after the switch.
    let origin = Origin::new(|call| {
        Answer::ok("max-age=600", call.header("authorization").unwrap_or("nobody").to_owned())
            .after(secs(2))
    });
    let cache = origin_only();
    let app = layered(cache.http_layer(), &origin);
    cache.set_mode(Mode::Observe);
    let a = app.clone();
    let alice =
        tokio::spawn(async move { send(&a, with("/p", &[("authorization", "alice")])).await });
    pass(secs(1)).await;
    cache.set_mode(Mode::On);
    let b = app.clone();
    let bob = tokio::spawn(async move { send(&b, with("/p", &[("authorization", "bob")])).await });
    let nobody = send(&app, get("/p")).await;
    assert_eq!(nobody.text(), "nobody");
    assert_eq!(bob.await.unwrap().text(), "bob");
    assert_eq!(alice.await.unwrap().text(), "alice");
}

#[tokio::test(start_paused = true)]
async fn a_computation_begun_while_observing_is_bounded_once_the_cache_is_on() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::never(),
        _ => Answer::ok("max-age=600", "page"),
    });
    let cache = web().compute_timeout(secs(5)).wait_timeout(secs(20)).build().unwrap();
    let app = layered(cache.http_layer(), &origin);
    cache.set_mode(Mode::Observe);
    let a = app.clone();
    tokio::spawn(async move { send(&a, get("/p")).await });
    pass(secs(1)).await;
    cache.set_mode(Mode::On);
    pass(secs(30)).await;
    let reply = send(&app, get("/p")).await;
    assert_eq!(reply.status, 200, "{reply:?}");
}

#[tokio::test(start_paused = true)]
async fn no_cache_is_not_answered_by_the_flight_beside_an_older_computation() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::ok("max-age=600", slow_stream(5))
            .header("vary", "accept-language")
            .after(secs(2)),
        _ => Answer::ok("max-age=600", "new").header("vary", "accept-language"),
    });
    let app = layered(origin_only().http_layer().honour_request_directives(true), &origin);
    let a = app.clone();
    let first =
        tokio::spawn(async move { send(&a, with("/p", &[("accept-language", "de")])).await });
    pass(secs(1)).await;
    // The first computation has run for a second.
    let fields = [("accept-language", "de"), ("cache-control", "no-cache")];
    let reply = send(&app, with("/p", &fields)).await;
    assert_eq!(reply.text(), "new", "{:?}", reply.headers);
    assert_eq!(first.await.unwrap().text(), "xxxxx");
}

// ---- at random ----

/// One random case: clients with and without credentials, languages, conditions and
/// directives; writes; modes; one or two processes; bodies that arrive slowly; clients that
/// hang up. Nobody gets what is another's, or older than allowed.
async fn case(seed: u64) -> Result<(), String> {
    let rng = Arc::new(Mutex::new(fastrand::Rng::with_seed(seed)));
    let version = Arc::new(AtomicUsize::new(0));
    let calls = Arc::new(AtomicUsize::new(0));
    let (r, v, c) = (Arc::clone(&rng), Arc::clone(&version), Arc::clone(&calls));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (rng, version, calls) = (Arc::clone(&r), Arc::clone(&v), Arc::clone(&c));
        async move {
            let n = calls.fetch_add(1, SeqCst);
            let seen = version.load(SeqCst);
            let (wait, policy, slow, etag, vary) = {
                let mut rng = rng.lock().unwrap();
                (rng.u64(0..1500), rng.u8(0..9), rng.bool(), rng.u8(0..3) == 0, rng.u8(0..3) == 0)
            };
            if request.method() == "POST" {
                tokio::time::sleep(ms(wait / 2)).await;
                version.fetch_add(1, SeqCst);
                tokio::time::sleep(ms(wait / 2)).await;
                return Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(
                    "written",
                )));
            }
            tokio::time::sleep(ms(wait)).await;
            let header = |name: &str| {
                request
                    .headers()
                    .get(name)
                    .and_then(|it| it.to_str().ok())
                    .unwrap_or("-")
                    .to_owned()
            };
            let (auth, cookie, lang) =
                (header("authorization"), header("cookie"), header("accept-language"));
            let is_private = !matches!(policy, 1 | 2);
            let control = match policy {
                0 => "max-age=5",
                1 => "public, max-age=5",
                2 => "s-maxage=4, stale-while-revalidate=10",
                3 => "private, max-age=50",
                4 => "no-cache",
                5 => "max-age=0",
                6 => "max-age=2, stale-while-revalidate=20, stale-if-error=50",
                7 => "no-store",
                _ => "max-age=1, stale-if-error=60",
            };
            let text = format!(
                "n={n};auth={auth};cookie={cookie};lang={};private={is_private};ver={seen};",
                if vary { &lang } else { "any" }
            );
            let mut response = http::Response::builder().header("cache-control", control);
            if etag {
                if request.headers().get("if-none-match").is_some()
                    && fastrand::u8(0..4) == 0
                    && false
                {
                    return Ok(response.status(304).body(Body::empty()).unwrap());
                }
                response = response.header("etag", format!("\"{n}\""));
            }
            if vary {
                response = response.header("vary", "accept-language");
            }
            let body = if slow {
                let parts: Vec<_> = text.as_bytes().chunks(9).map(Bytes::copy_from_slice).collect();
                Body::from_stream(stream::unfold(parts.into_iter(), |mut parts| async {
                    tokio::time::sleep(ms(300)).await;
                    parts.next().map(|part| (Ok::<_, std::io::Error>(part), parts))
                }))
            } else {
                Body::from(text)
            };
            Ok(response.body(body).unwrap())
        }
    });
    let remote = rng.lock().unwrap().bool();
    let max = rng.lock().unwrap().usize(1..4);
    let double = Double::new();
    let caches: Vec<_> = (0..2)
        .map(|_| {
            let settings = web().max_computations(max).max_refreshes(1).compute_timeout(secs(20));
            if remote { joined(&double, settings) } else { settings.build().unwrap() }
        })
        .collect();
    let apps: Vec<_> = caches
        .iter()
        .map(|cache| cache.http_layer().honour_request_directives(true).layer(service.clone()))
        .collect();
    // The last time that the mode was not on, and the version each process has seen written.
    let modes = Arc::new(Mutex::new([Instant::now(); 2]));
    let written: Arc<[AtomicUsize; 2]> = Arc::default();
    let mut clients = Vec::new();
    for _ in 0..60 {
        let (which, kind, gap) = {
            let mut rng = rng.lock().unwrap();
            (if remote { rng.usize(0..2) } else { 0 }, rng.u8(0..40), rng.u64(0..800))
        };
        pass(ms(gap)).await;
        let app = apps[which].clone();
        match kind {
            0 => {
                let mode = *[Mode::On, Mode::On, Mode::Observe, Mode::Off]
                    .get(rng.lock().unwrap().usize(0..4))
                    .unwrap();
                caches[which].set_mode(mode);
                modes.lock().unwrap()[which] = Instant::now();
            }
            1..=3 => {
                let (written, version) = (Arc::clone(&written), Arc::clone(&version));
                clients.push(tokio::spawn(async move {
                    send(&app, request("POST", "http://a/p", &[])).await;
                    written[which].fetch_max(version.load(SeqCst), SeqCst);
                    Ok(())
                }));
            }
            4 => {
                let hangs = rng.lock().unwrap().u64(0..3000);
                clients.push(tokio::spawn(async move {
                    let _ = tokio::time::timeout(ms(hangs), send(&app, get("http://a/p"))).await;
                    Ok(())
                }));
            }
            _ => {
                let (who, how, lang, ask) = {
                    let mut rng = rng.lock().unwrap();
                    (
                        ["alice", "bob"][rng.usize(0..2)],
                        rng.u8(0..5),
                        ["de", "en"][rng.usize(0..2)],
                        rng.u8(0..8),
                    )
                };
                let mut fields = vec![("accept-language", lang)];
                match how {
                    0 => fields.push(("authorization", who)),
                    1 => fields.push(("cookie", who)),
                    _ => (),
                }
                let mut method = "GET";
                match ask {
                    0 => fields.push(("cache-control", "no-cache")),
                    1 => fields.push(("range", "bytes=0-100000")),
                    2 => method = "HEAD",
                    3 => fields.push(("if-none-match", "\"nothing\"")),
                    4 => fields.push(("cache-control", "no-store")),
                    _ => (),
                }
                let mode = caches[which].mode();
                let (from, since, floor) =
                    (Instant::now(), calls.load(SeqCst), written[which].load(SeqCst));
                let modes = Arc::clone(&modes);
                let request = request(method, "http://a/p", &fields);
                clients.push(tokio::spawn(async move {
                    let reply = send(&app, request).await;
                    if reply.status == 503 && max < 3 { return Ok(()); }
                    let say = |what: &str| Err(format!("{what}: {method} {fields:?} at {mode:?}, {since} calls, floor {floor}: {reply:?}"));
                    if !matches!(reply.status, 200 | 206) { return say("status"); }
                    if reply.broken { return say("broken"); }
                    if method == "HEAD" { return Ok(()); }
                    let text = reply.text().to_owned();
                    let of = |name: &str| text.split(';').find_map(|it| it.strip_prefix(&format!("{name}="))).map(str::to_owned).unwrap_or_default();
                    let (own_auth, own_cookie) = (if how == 0 { who } else { "-" }, if how == 1 { who } else { "-" });
                    if of("private") == "true" {
                        if of("auth") != "-" && of("auth") != own_auth { return say("another's (authorization)"); }
                        if of("cookie") != "-" && of("cookie") != own_cookie { return say("another's (cookie)"); }
                        if own_auth != "-" && of("auth") != own_auth { return say("anonymous page for credentials"); }
                    }
                    if of("lang") != "any" && of("lang") != lang { return say("another language"); }
                    let n: usize = of("n").parse().map_err(|_| format!("no number {reply:?}"))?;
                    let was_switched = modes.lock().unwrap()[which] >= from;
                    if ask == 0 && n < since { return say("older than no-cache allows"); }
                    if mode != Mode::On && !was_switched && n < since { return say("stored, although it is not on"); }
                    if of("ver").parse::<usize>().unwrap() < floor { return say("older than a write"); }
                    Ok(())
                }));
            }
        }
    }
    for client in clients {
        tokio::time::timeout(secs(600), client)
            .await
            .map_err(|_| "hangs".to_owned())?
            .map_err(|e| e.to_string())??;
    }
    pass(secs(120)).await;
    for cache in &caches {
        let stats = cache.stats();
        if (stats.flights, stats.waiting) != (0, 0) {
            return Err(format!("left over: {stats:?}"));
        }
    }
    Ok(())
}

#[test]
fn nobody_gets_what_is_not_for_him() {
    let cases = std::env::var("CASES").map_or(1000, |n| n.parse().unwrap());
    let mut failed = Vec::new();
    for seed in 0..cases {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        if let Err(why) = runtime.block_on(case(seed)) {
            failed.push(format!("seed {seed}: {why}"));
        }
    }
    let kinds: std::collections::BTreeSet<_> =
        failed.iter().filter_map(|it| it.split(": ").nth(1)).collect();
    eprintln!("{kinds:?}");
    assert!(
        failed.is_empty(),
        "{} of {cases}:\n{}",
        failed.len(),
        failed.iter().take(12).cloned().collect::<Vec<_>>().join("\n")
    );
}
