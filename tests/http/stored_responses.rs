//! What a hostile reading of the code found, each as a client would see it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::Bytes;
use tower::ServiceExt;
use tower_stampede::CacheOutcome::Hit;
use tower_stampede::{CacheFor, Computed, Stampede};

use crate::kit::http::*;

#[tokio::test(start_paused = true)]
async fn what_a_post_left_for_get_is_found_by_the_tags_its_handler_gave_it() {
    let origin = Origin::new(|call| {
        Answer::ok("max-age=600", format!("{}", call.n))
            .header("content-location", "http://h/user/7")
            .extension(CacheFor::new(secs(300)).tag("user:7"))
    });
    let cache = with_ttl(60);
    let app = layered(post_storing(&cache), &origin);
    send(&app, request("POST", "http://h/user/7", &[])).await;
    assert_eq!(send(&app, get("http://h/user/7")).await.text(), "0", "stored for GET");
    cache.invalidate_tag("user:7").await;
    assert_eq!(send(&app, get("http://h/user/7")).await.text(), "1");
}

#[tokio::test(start_paused = true)]
async fn a_post_lives_for_get_as_long_as_its_handler_says() {
    let origin = Origin::new(|call| {
        Answer::ok("max-age=600", format!("{}", call.n))
            .header("content-location", "http://h/user/7")
            .extension(CacheFor::new(secs(5)))
    });
    let app = layered(post_storing(&with_ttl(60)), &origin);
    send(&app, request("POST", "http://h/user/7", &[])).await;
    tokio::time::sleep(secs(6)).await;
    assert_eq!(send(&app, get("http://h/user/7")).await.text(), "1");
}

#[tokio::test(start_paused = true)]
async fn a_failure_met_by_one_with_credentials_does_not_replace_what_all_others_get() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::ok("max-age=60", "good"),
        _ => Answer::status(500).header("cache-control", "public, max-age=60").body("bad"),
    });
    let app = app(&origin);
    send(&app, get("/report")).await;
    let reply = send(&app, with("/report", &[("authorization", "alice")])).await;
    assert_eq!(reply.status, 500);
    assert_eq!(send(&app, get("/report")).await.text(), "good");
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_one_variant_does_not_replace_the_others() {
    let origin = Origin::new(|call| match call.header("accept-language") {
        Some("fr") => Answer::status(503).header("cache-control", "max-age=60").body("bad"),
        _ => Answer::ok("max-age=60", "good").header("vary", "accept-language"),
    });
    let app = app(&origin);
    send(&app, with("/report", &[("accept-language", "de")])).await;
    send(&app, with("/report", &[("accept-language", "fr")])).await;
    let reply = send(&app, with("/report", &[("accept-language", "de")])).await;
    assert_eq!((reply.text(), origin.calls()), ("good", 2));
}

/// A body that arrives `after` its head.
fn late_body(after: Duration, text: String) -> Body {
    Body::from_stream(futures_util::stream::once(async move {
        tokio::time::sleep(after).await;
        Ok::<_, std::convert::Infallible>(Bytes::from(text))
    }))
}

#[tokio::test(start_paused = true)]
async fn who_comes_after_the_head_is_not_given_what_is_stale_when_the_body_is_complete() {
    let origin = Origin::new(|call| {
        Answer::ok(
            "max-age=1",
            late_body(secs(if call.n == 0 { 10 } else { 0 }), call.n.to_string()),
        )
    });
    let app = app(&origin);
    let early = tokio::spawn({
        let app = app.clone();
        async move { tokio::join!(send(&app, get("/report")), send(&app, get("/report"))) }
    });
    tokio::time::sleep(secs(5)).await;
    let late = send(&app, get("/report")).await;
    let (leader, waiter) = early.await.unwrap();
    assert_eq!((leader.text(), waiter.text()), ("0", "0"), "both came before the head");
    assert_eq!(late.text(), "1");
}

#[tokio::test(start_paused = true)]
async fn a_response_without_lifetime_is_not_shared_once_its_stale_window_is_over() {
    let origin = Origin::new(|call| {
        Answer::ok("max-age=0, stale-while-revalidate=5", call.n.to_string()).header("age", "100")
    });
    let app = app(&origin);
    let (a, b) = tokio::join!(send(&app, get("/report")), send(&app, get("/report")));
    assert_ne!(a.text(), b.text());
}

const KEYS: usize = 8;

/// Each key: what the database holds, and the oldest version that one who
/// asks now may get.
#[derive(Default)]
struct World {
    versions: [AtomicU64; KEYS],
    floors: [AtomicU64; KEYS],
    calls: AtomicU64,
}

async fn reader(cache: Stampede<u64>, world: Arc<World>, until: Instant) {
    while Instant::now() < until {
        let key = fastrand::usize(..KEYS);
        let floor = world.floors[key].load(SeqCst);
        let compute = {
            let world = Arc::clone(&world);
            move || async move {
                world.calls.fetch_add(1, SeqCst);
                let version = world.versions[key].load(SeqCst);
                for _ in 0..fastrand::usize(..4) {
                    tokio::task::yield_now().await;
                }
                match fastrand::usize(..40) {
                    0 => Err(std::io::Error::other("now and then")),
                    _ => Ok(Computed::new(version).tag(format!("t{}", key % 2))),
                }
            }
        };
        let got = match fastrand::usize(..8) {
            0 => {
                let world = &world;
                let scoped = cache.get_or_compute_scoped(key, || async move {
                    let version = world.versions[key].load(SeqCst);
                    tokio::task::yield_now().await;
                    Ok::<_, std::io::Error>(version)
                });
                let scoped =
                    tokio::time::timeout(Duration::from_micros(fastrand::u64(..300)), scoped);
                scoped.await.ok().and_then(Result::ok)
            }
            1 => {
                let asked = cache.get_or_compute_with(key, compute);
                tokio::time::timeout(Duration::from_micros(fastrand::u64(..300)), asked)
                    .await
                    .ok()
                    .and_then(Result::ok)
            }
            _ => cache.get_or_compute_with(key, compute).await.ok(),
        };
        if let Some(got) = got {
            assert!(got >= floor, "key {key}: {got} is older than {floor}");
        }
    }
}

async fn writer(cache: Stampede<u64>, world: Arc<World>, until: Instant) {
    while Instant::now() < until {
        let key = fastrand::usize(..KEYS);
        let written = |keys: &[usize]| -> Vec<(usize, u64)> {
            keys.iter().map(|&key| (key, world.versions[key].fetch_add(1, SeqCst) + 1)).collect()
        };
        let written = match fastrand::usize(..3) {
            0 => {
                let written = written(&[key]);
                cache.invalidate(key).await;
                written
            }
            1 => {
                let written = written(&(0..KEYS).collect::<Vec<_>>());
                cache.invalidate_all().await;
                written
            }
            _ => {
                let written = written(&[key]);
                cache.invalidate_tag(format!("t{}", key % 2)).await;
                cache.invalidate(key).await;
                written
            }
        };
        for (key, version) in written {
            world.floors[key].fetch_max(version, SeqCst);
        }
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..400))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_stress_nobody_gets_what_was_invalidated_before_and_nothing_is_left_behind() {
    let cache: Stampede<u64> = Stampede::builder("stress")
        .ttl(Duration::from_millis(3))
        .jitter(0.0)
        .stale_for(Duration::from_millis(3))
        .hold(Duration::from_micros(100))
        .build()
        .unwrap();
    let world = Arc::new(World::default());
    let until = Instant::now() + Duration::from_millis(1500);
    let readers = (0..32).map(|_| tokio::spawn(reader(cache.clone(), Arc::clone(&world), until)));
    let writers = (0..3).map(|_| tokio::spawn(writer(cache.clone(), Arc::clone(&world), until)));
    for task in readers.chain(writers).collect::<Vec<_>>() {
        tokio::time::timeout(secs(10), task).await.expect("nobody hangs").unwrap();
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let stats = cache.stats();
    assert_eq!((stats.flights, stats.waiting), (0, 0));
    assert!(world.calls.load(SeqCst) > 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_on_its_post_leaves_nothing_old_behind() {
    let origin = Origin::new(|call| {
        let answer = Answer::ok("max-age=600", format!("{}", call.n));
        if call.parts.method == "POST" { answer.after(secs(5)) } else { answer }
    });
    let app = app(&origin);
    assert_eq!(send(&app, get("/report")).await.text(), "0");
    let post = send(&app, request("POST", "/report", &[]));
    assert!(tokio::time::timeout(secs(1), post).await.is_err(), "it hangs up");
    assert_eq!(send(&app, get("/report")).await.text(), "2", "the service may have changed it");
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_hit_carries_nothing_of_its_request_but_the_outcome() {
    #[derive(Clone)]
    struct OfTheRequest;
    let origin = Origin::new(|_| Answer::ok("max-age=60", "report"));
    let app = app(&origin);
    send(&app, get("/report")).await;
    let mut asked = get("/report");
    asked.extensions_mut().insert(OfTheRequest);
    // Another cache's, before or behind.
    asked.extensions_mut().insert(tower_stampede::CacheOutcome::Bypass);
    let response = app.clone().oneshot(asked).await.unwrap();
    let extensions = response.extensions();
    assert!(extensions.get::<OfTheRequest>().is_none());
    assert_eq!(extensions.get(), Some(&Hit));
    assert_eq!(extensions.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_204_that_names_a_length_is_stored_without_it() {
    // RFC 9110, 8.6
    let origin = Origin::new(|_| {
        Answer::status(204).header("cache-control", "max-age=60").header("content-length", "0")
    });
    let app = app(&origin);
    send(&app, get("/report")).await;
    for method in ["GET", "HEAD"] {
        let reply = send(&app, request(method, "/report", &[])).await;
        assert!(reply.is(Hit));
        assert_eq!(reply.header("content-length"), None, "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_304_does_not_change_the_length_of_what_is_stored() {
    // RFC 9111, 3.2
    let origin = Origin::new(|call| match call.n {
        0 => {
            Answer::ok("max-age=1", "report").header("etag", "\"a\"").header("content-length", "6")
        }
        _ => Answer::status(304)
            .header("etag", "\"a\"")
            .header("cache-control", "max-age=60")
            .header("content-length", "99"),
    });
    let app = app(&origin);
    send(&app, get("/report")).await;
    tokio::time::sleep(secs(2)).await;
    assert_eq!(send(&app, get("/report")).await.header("content-length"), Some("6"));
    let hit = send(&app, get("/report")).await;
    assert!(hit.is(Hit) && origin.calls() == 2);
    assert_eq!((hit.text(), hit.header("content-length")), ("report", Some("6")));
    let part = send(&app, with("/report", &[("range", "bytes=0-1")])).await;
    assert_eq!((part.status, part.header("content-length")), (206, Some("2")));
}

#[tokio::test(start_paused = true)]
async fn what_is_chunked_and_coded_has_the_length_of_the_bytes_sent() {
    // RFC 9112, 6.2: never both.
    let origin = Origin::new(|_| {
        Answer::ok("max-age=60", &b"\x1f\x8bnot really"[..])
            .header("content-encoding", "gzip")
            .header("transfer-encoding", "chunked")
    });
    let app = app(&origin);
    send(&app, get("/report")).await;
    let hit = send(&app, get("/report")).await;
    assert!(hit.is(Hit));
    assert_eq!(hit.header("content-length"), Some("12"));
    assert_eq!((hit.body.len(), hit.header("transfer-encoding")), (12, None));
}

#[tokio::test(start_paused = true)]
async fn credentials_are_seen_in_whatever_line_they_stand() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", format!("{}", call.n)));
    let long = "x".repeat(64);
    let longer = "x".repeat(65);
    let layer = origin_only().http_layer().credential_headers(["x-api-key", &*long]);
    let app = layered(layer, &origin);
    assert_eq!(send(&app, get("/report")).await.text(), "0");
    let anonymous: [&[(&str, &str)]; 2] = [&[(&*longer, "1")], &[("x-api-kez", "1")]];
    for fields in anonymous {
        assert_eq!(send(&app, with("/report", fields)).await.text(), "0", "{fields:?}");
    }
    let known: [&[(&str, &str)]; 5] = [
        &[("AUTHORIZATION", "a")],
        &[("authorization", ""), ("authorization", "b")],
        &[("X-Api-Key", "1")],
        &[("x-api-key", "1"), ("x-api-key", "2")],
        &[(&*long, "1")],
    ];
    for fields in known {
        assert_ne!(send(&app, with("/report", fields)).await.text(), "0", "{fields:?}");
    }
}
