//! Requests of all kinds at once, modes and bodies: no client gets what is not for it.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use crate::kit::cases::cases;
use crate::kit::http::*;
use crate::kit::remote::Process;
use crate::kit::spawn;
use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http::Request;
use tokio::time::Instant;
use tower::ServiceExt;
use tower_layer::Layer;
use tower_stampede::remote::{Double, RemoteSettings};
use tower_stampede::{Builder, HttpStampede, Mode, Stampede, StoredResponse};

fn web() -> Builder<StoredResponse> {
    Stampede::builder("web").origin_only().jitter(0.0)
}

fn joined(double: &Double, settings: Builder<StoredResponse>) -> HttpStampede {
    settings.remote(double.process(), RemoteSettings::new()).build().unwrap()
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
    spawn(async move { send(&a, get("/slow")).await });
    pass(ms(10)).await;
    let a = app.clone();
    let queued = spawn(async move { send(&a, get("/other")).await });
    pass(secs(1)).await;
    cache.set_mode(Mode::Off);
    let reply = queued.await.unwrap();
    assert_eq!(reply.status, 200, "{reply:?}");
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
async fn with_credentials_no_request_waits_for_a_long_body() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::ok("max-age=600", slow_stream(120)),
        _ => Answer::ok("private", call.header("authorization").unwrap_or("anonymous").to_owned()),
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
    use crate::kit::origin::{Origin as Work, settings};
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
        callers.push(spawn(async move { cache.get_or_compute(n, compute).await.ok() }));
    }
    pass(secs(1)).await;
    callers.iter().for_each(tokio::task::JoinHandle::abort);
    pass(secs(60)).await;
    assert_eq!(work.calls(), 0, "computed without a client");
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
    let first = spawn(async move { send(&a, get("http://a/x")).await });
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
            call.header("authorization")
                .or(call.header("cookie"))
                .unwrap_or("anonymous")
                .to_owned(),
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
        assert_eq!(send(&app, get("/p")).await.text(), "anonymous");
    }
}

#[tokio::test(start_paused = true)]
async fn no_request_joins_an_observing_flight_that_is_not_for_it() {
    // Led while observing, joined after the switch.
    let origin = Origin::new(|call| {
        Answer::ok("max-age=600", call.header("authorization").unwrap_or("anonymous").to_owned())
            .after(secs(2))
    });
    let cache = origin_only();
    let app = layered(cache.http_layer(), &origin);
    cache.set_mode(Mode::Observe);
    let a = app.clone();
    let alice = spawn(async move { send(&a, with("/p", &[("authorization", "alice")])).await });
    pass(secs(1)).await;
    cache.set_mode(Mode::On);
    let b = app.clone();
    let bob = spawn(async move { send(&b, with("/p", &[("authorization", "bob")])).await });
    let anonymous = send(&app, get("/p")).await;
    assert_eq!(anonymous.text(), "anonymous");
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
    spawn(async move { send(&a, get("/p")).await });
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
    let first = spawn(async move { send(&a, with("/p", &[("accept-language", "de")])).await });
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
/// hang up. No client gets another's response, or one older than allowed.
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
                clients.push(spawn(async move {
                    send(&app, request("POST", "http://a/p", &[])).await;
                    written[which].fetch_max(version.load(SeqCst), SeqCst);
                    Ok(())
                }));
            }
            4 => {
                let hangs = rng.lock().unwrap().u64(0..3000);
                clients.push(spawn(async move {
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
                clients.push(spawn(async move {
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
fn no_client_gets_a_response_that_is_not_for_it() {
    let (first, cases) = (cases("PRIVACY_STORM_SEED", 0_u64), cases("PRIVACY_STORM_CASES", 200));
    let mut failed = Vec::new();
    for seed in first..first + cases {
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
