//! The HTTP layer in outages: holds, fallbacks, switched off, and places of streaming
//! bodies.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::kit::http::*;
use crate::kit::log::{TextLog, assert_says};
use crate::kit::remote::Process;
use crate::kit::spawn;
use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http::Request;
use tokio::time::Instant;
use tower::ServiceExt;
use tower_layer::Layer;
use tower_service::Service;
use tower_stampede::CacheOutcome;
use tower_stampede::remote::{Double, RemoteSettings};
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
    spawn(async move { send(&s, get("http://a/x")).await });
    pass(secs(1)).await;
    let a = app.clone();
    let waits = spawn(async move { send(&a, get("http://a/x")).await });
    pass(secs(1)).await;
    let b = send(&app, with("http://a/x", &[("authorization", "b")])).await;
    assert_eq!((b.status, b.text()), (200, "page"));
    let hit = send(&app, get("http://a/x")).await;
    assert_eq!(hit.text(), "page");
    assert!(hit.is(CacheOutcome::Hit), "the page is fresh here: {hit:?}");
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
    let other = spawn(async move { send(&a, get("http://a/x")).await });
    pass(ms(1)).await;
    let strict = read(strict.await.unwrap(), ms(0)).await;
    assert_eq!(other.await.unwrap().text(), "0");
    assert_eq!(strict.text(), "1", "{strict:?}");
}

// ---- lending ----

type Boxed =
    tower::util::BoxCloneSyncService<Request<Body>, http::Response<Body>, std::convert::Infallible>;

/// The application, for a handler that asks it for other pages.
#[derive(Clone, Default)]
struct Late(Arc<Mutex<Option<HttpService<Boxed>>>>);

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
    spawn(async move { send(&a, get("/outer")).await });
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
    use crate::kit::origin::{Origin as Work, SECOND, settings};
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
    work.usually(crate::kit::origin::Answer::Hang);
    let (cache, compute) = (process.cache.clone(), busy.compute());
    let first = spawn(async move { cache.get_or_compute("first", compute).await });
    pass(ms(1)).await;
    let queued = process.spawn(&work);
    pass(secs(26)).await;
    double.delay(5 * SECOND);
    pass(ms(400)).await;
    // At 31.4 s it asks for a place; the other is overdue, and its acquire is under way.
    let (cache, compute) = (process.cache.clone(), work.compute());
    let other = spawn(async move { cache.get_or_compute("other", compute).await });
    pass(secs(120)).await;
    let _ = first.await;
    assert!(work.most_at_once() <= 1, "{} at once", work.most_at_once());
    assert!(queued.is_finished(), "the computation has outlived compute_timeout by far");
    assert!(other.is_finished());
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
    use crate::kit::origin::{Origin as Work, SECOND, settings};
    let double = Double::new();
    // Room for one.
    let builder = || settings().ttl(SECOND).stale_for(3600 * SECOND).max_entries(1);
    let process = Process::with(&double, builder());
    process.prepare(&double).await;
    let work = Work::new();
    assert_eq!(process.load(&work).await, 1);
    pass(secs(2)).await;
    work.usually(crate::kit::origin::Answer::Fail);
    for n in 0..600_u64 {
        process.put("other", n).await;
        let _ = process.cache.stats();
        assert_eq!(process.load(&work).await, 1);
        pass(ms(100)).await;
    }
    assert!(work.calls() <= 20, "{} calls of a dead origin in a minute", work.calls());
}

/// A process whose key failed just now, and is held for half a minute.
async fn process_that_holds() -> (Double, Process, crate::kit::origin::Origin) {
    use crate::kit::origin::{Answer, Origin, SECOND, settings};
    let double = Double::new();
    let process = Process::with(&double, settings().hold(30 * SECOND));
    process.prepare(&double).await;
    let work = Origin::new();
    work.next([Answer::Fail]);
    assert!(process.spawn(&work).await.unwrap().is_err());
    (double, process, work)
}

#[tokio::test(start_paused = true)]
async fn a_held_caller_is_refused_in_time_while_the_remote_is_frozen() {
    let (double, process, work) = process_that_holds().await;
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
    let (double, process, work) = process_that_holds().await;
    pass(ms(10)).await;
    double.delay(ms(50));
    let looks = process.spawn(&work);
    pass(ms(10)).await;
    process.put("k", 1000).await;
    let got = looks.await.unwrap();
    assert_eq!(got.ok(), Some(1000), "it was put while the caller looked into the remote");
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
async fn a_leader_whose_origin_fails_gets_what_this_process_has_fresh() {
    let origin = Origin::new(|call| match call.header("authorization") {
        Some(_) => Answer::ok("public, max-age=600", "page"),
        None => Answer::status(503).after(secs(5)),
    });
    let app = app(&origin);
    let a = app.clone();
    let waits = spawn(async move { send(&a, get("http://a/x")).await });
    pass(secs(1)).await;
    let b = send(&app, with("http://a/x", &[("authorization", "b")])).await;
    assert_eq!((b.status, b.text()), (200, "page"));
    let reply = waits.await.unwrap();
    assert_eq!((reply.status, reply.text()), (200, "page"), "after {:?}", reply.took);
}

#[tokio::test(start_paused = true)]
async fn leaders_that_wait_for_other_processes_count_as_waiters() {
    use crate::kit::origin::{Origin as Work, settings};
    let double = Double::new();
    let process = Process::with(&double, settings().max_waiters(10).max_waiters_in_all(10));
    process.prepare(&double).await;
    let stranger = Process::on(&double);
    stranger.prepare(&double).await;
    let work = Work::taking(secs(20));
    let mut all = Vec::new();
    for n in 0..100_u32 {
        let (cache, compute) = (stranger.cache.clone(), work.compute());
        all.push(spawn(async move { cache.get_or_compute(n, compute).await.ok() }));
    }
    pass(ms(100)).await;
    let mut waiting = Vec::new();
    for n in 0..100_u32 {
        let (cache, compute) = (process.cache.clone(), work.compute());
        waiting.push(spawn(
            async move { cache.get_or_compute(n, compute).await.map_err(|e| e.kind()) },
        ));
    }
    pass(ms(500)).await;
    let left = waiting.iter().filter(|it| !it.is_finished()).count();
    assert!(left <= 10, "{left} wait, stats say {}", process.stats().waiting);
}

#[tokio::test(start_paused = true)]
async fn a_stored_failure_takes_the_place_of_no_failure() {
    // The origin lets its failure be stored, for a failure.
    let origin = Origin::new(|call| {
        let fields = "max-age=0, stale-if-error=60";
        Answer::status(500).header("cache-control", fields).body(call.n.to_string())
    });
    let app = layered(origin_only().http_layer(), &origin);
    for call in 0..3 {
        let reply = send(&app, get("/page")).await;
        assert_eq!((reply.status, reply.text()), (500, &*call.to_string()));
    }
}

// ---- what the operator sees ----

#[tokio::test(start_paused = true)]
async fn a_failure_of_the_service_that_a_stale_response_hides_is_a_line() {
    for (failure, cause) in [
        (Answer::error as fn() -> Answer, "the service cannot be reached"),
        (|| Answer::status(503), "the service answered 503"),
        (Answer::never, "computation took too long"),
    ] {
        for fields in ["max-age=10, stale-if-error=600", "max-age=10, stale-while-revalidate=600"] {
            let log = TextLog::default();
            let _listening = log.listen(tracing::Level::WARN);
            let origin = Origin::new(move |_| Answer::ok(fields, "page"));
            let cache = web().compute_timeout(secs(5)).build().unwrap();
            let app = layered(cache.http_layer(), &origin);
            send(&app, get("/page")).await;
            pass(secs(60)).await;
            origin.answers(move |_| failure());
            assert_eq!(send(&app, get("/page")).await.text(), "page");
            pass(secs(6)).await;
            let hidden = |line: &&String| line.contains("failures reach no caller");
            let lines = log.lines();
            let lines: Vec<_> = lines.iter().filter(hidden).collect();
            assert_eq!(lines.len(), 1, "{fields} {cause} {}", log.text());
            assert_says(lines[0], &["failures=1", "oldest_stale=1m", cause]);
            assert!(cache.stats().oldest_stale >= secs(60), "{:?}", cache.stats());
        }
    }
}

/// Before the header section is handed over, and while the body arrives.
#[tokio::test(start_paused = true)]
async fn a_refresh_whose_body_breaks_off_is_a_hidden_failure() {
    let at_once = || Body::from_stream(stream::iter([Err::<Bytes, _>("broken")]));
    for body in [at_once as fn() -> Body, broken] {
        let log = TextLog::default();
        let _listening = log.listen(tracing::Level::WARN);
        let fields = "max-age=10, stale-while-revalidate=600";
        let origin = Origin::new(move |_| Answer::ok(fields, "page"));
        let cache = web().build().unwrap();
        let app = layered(cache.http_layer(), &origin);
        send(&app, get("/page")).await;
        pass(secs(60)).await;
        origin.answers(move |_| Answer::ok(fields, body()));
        for _ in 0..2 {
            let reply = send(&app, get("/page")).await;
            assert!(reply.is(CacheOutcome::Stale) && reply.text() == "page", "{reply:?}");
            pass(secs(60)).await;
        }
        assert_eq!(origin.calls(), 3);
        let lines = log.lines();
        let [first, second] = &lines[..] else { panic!("{}", log.text()) };
        assert_says(first, &["failures reach no caller", "failures=1", "oldest_stale=1m"]);
        assert_says(second, &["failures=2", "cause=\"the body of the response broke off"]);
        // Clients that come at once are one attempt more.
        for _ in 0..10 {
            assert_eq!(send(&app, get("/page")).await.text(), "page");
        }
        pass(ms(100)).await;
        assert_eq!(origin.calls(), 4);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_request_for_a_part_that_is_answered_stale_is_told_of() {
    let log = TextLog::default();
    let origin = Origin::new(|_| Answer::ok("max-age=10, stale-if-error=600", "page"));
    let cache = origin_only();
    let app = layered(cache.http_layer(), &origin);
    send(&app, get("/page")).await;
    pass(secs(60)).await;
    let _listening = log.listen(tracing::Level::WARN);
    for (calls, failure) in
        [(2, Answer::error as fn() -> Answer), (3, || Answer::status(503)), (4, Answer::error)]
    {
        origin.answers(move |_| failure());
        let part = with("/page", &[("range", "bytes=0-1"), ("if-range", "\"other\"")]);
        let reply = send(&app, part).await;
        assert!(reply.is(CacheOutcome::StaleIfError), "{reply:?}");
        assert_eq!(origin.calls(), calls);
        pass(secs(60)).await;
    }
    let hidden = log.lines().into_iter().filter(|line| line.contains("failures reach no caller"));
    assert_eq!(hidden.count(), 2, "at the first and the second: {}", log.text());
}
