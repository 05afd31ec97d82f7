//! An attack on admin routes and memory bounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use axum::Router;
use axum::body::Body;
use http::Request;
use serde_json::{Value, json};
use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{HttpStampede, Stampede, admin};

use crate::kit::http::*;

// ===== 5: admin =====

async fn ask(app: &Router, method: &str, uri: &str, body: String) -> (u16, Value) {
    let mut request = request(method, uri, &[]);
    *request.body_mut() = body.into();
    let reply = send(app, request).await;
    (reply.status, serde_json::from_str(reply.text()).unwrap())
}

async fn keys(app: &Router) -> Vec<String> {
    let (_, said) = ask(app, "GET", "/keys", String::new()).await;
    let keys = said["keys"].as_array().unwrap();
    keys.iter().map(|it| it["key"].as_str().unwrap().to_owned()).collect()
}

/// admin: a purge "reaches computations that run".
#[tokio::test(start_paused = true)]
async fn a_purge_by_the_key_of_a_response_reaches_the_computation_that_runs() {
    for what in ["path", "key"] {
        let cache = with_ttl(10);
        let origin = Origin::new(|call| {
            Answer::status(200).body(format!("version {}", call.n)).after(secs(5))
        });
        let (site, app) = (
            cache.http_layer().stale_for(secs(60)).layer(origin.clone()),
            admin::router(cache.clone()),
        );
        send(&site, get("/page")).await;
        let key = keys(&app).await.pop().unwrap();
        pass(secs(11)).await;
        // Served stale: the computation of version 1 runs.
        assert!(send(&site, get("/page")).await.is(Stale));
        pass(secs(1)).await;
        let said = match what {
            "key" => json!({"key": key}),
            _ => json!({"path": "/page"}),
        };
        assert_eq!(ask(&app, "POST", "/purge", said.to_string()).await.0, 200);
        pass(secs(6)).await;
        let reply = send(&site, get("/page")).await;
        assert_eq!(reply.text(), "version 2", "{what}: {}", reply.cache_status());
    }
}

/// The same without anything stored: the operator knows the key from before.
#[tokio::test(start_paused = true)]
async fn a_purge_by_the_key_of_a_response_reaches_the_first_computation() {
    for what in ["path", "key"] {
        let cache = with_ttl(10);
        let origin = Origin::new(|call| {
            Answer::status(200).body(format!("version {}", call.n)).after(secs(5))
        });
        let (site, app) = (cache.http_layer().layer(origin.clone()), admin::router(cache.clone()));
        send(&site, get("/page")).await;
        let key = keys(&app).await.pop().unwrap();
        pass(secs(60)).await;
        let purge = async {
            pass(secs(1)).await;
            let said = match what {
                "key" => json!({"key": key}),
                _ => json!({"path": "/page"}),
            };
            ask(&app, "POST", "/purge", said.to_string()).await
        };
        tokio::join!(send(&site, get("/page")), purge);
        let reply = send(&site, get("/page")).await;
        assert_eq!(reply.text(), "version 2", "{what}: {}", reply.cache_status());
    }
}

/// admin: `POST /purge` with a key "purges one entry".
#[tokio::test(start_paused = true)]
async fn a_purge_by_each_key_of_a_url_with_variants_ends_them_all() {
    let cache = with_ttl(60);
    let origin = Origin::new(|call| {
        Answer::status(200).body(format!("version {}", call.n)).header("vary", "accept-language")
    });
    let (site, app) = (cache.http_layer().layer(origin.clone()), admin::router(cache.clone()));
    for language in ["de", "en"] {
        send(&site, with("/page", &[("accept-language", language)])).await;
    }
    for key in keys(&app).await {
        let (status, _) = ask(&app, "POST", "/purge", json!({"key": key}).to_string()).await;
        assert_eq!(status, 200);
    }
    for (n, language) in ["de", "en"].into_iter().enumerate() {
        let reply = send(&site, with("/page", &[("accept-language", language)])).await;
        assert_eq!(reply.text(), format!("version {}", n + 2), "{}", reply.cache_status());
    }
}

// ===== 4: memory =====

#[global_allocator]
static ALLOCATOR: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn live() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

fn bounded(max_bytes: usize) -> HttpStampede {
    Stampede::builder("test").origin_only().max_bytes(max_bytes as u64).build().unwrap()
}

/// how-it-works: "`max_bytes` bounds memory"; threats: "entries, variants and markers are
/// bounded". Not counted are "values that callers hold, flights and waiters, and about 100 KiB".
#[tokio::test(start_paused = true)]
async fn long_urls_of_a_page_that_may_not_be_stored_take_no_more_than_max_bytes() {
    let before = live();
    let cache = bounded(4 * MIB);
    let origin = tower::service_fn(|_: Request<Body>| async {
        let response = http::Response::builder().header("cache-control", "no-store");
        Ok::<_, std::convert::Infallible>(response.body(Body::from("x")).unwrap())
    });
    let app = cache.http_layer().layer(origin);
    for n in 0..16_000 {
        let path = format!("/account?{n}{}", "x".repeat(7 * KIB));
        send(&app, get(&path)).await;
    }
    let stats = cache.stats();
    assert_eq!((stats.flights, stats.waiting, stats.entries), (0, 0, 0));
    let held = live() - before;
    assert!(held <= 8 * MIB, "{} MiB are held beside {} bytes that count", held / MIB, stats.bytes);
}

/// how-it-works: an entry weighs "the value, and what value, key and tags have on the heap"; the
/// issue: resident growth is at most 1.25 x `max_bytes` for HTTP responses.
#[tokio::test(start_paused = true)]
async fn variants_that_name_fields_in_vary_take_no_more_than_max_bytes() {
    let mut is_over = false;
    for names in [0, 4, 16, 64, 200] {
        let before = live();
        let cache = bounded(8 * MIB);
        let list: Vec<_> = (0..names).map(|n| format!("x-field-number-{n}")).collect();
        let list = list.join(", ");
        let list = if names > 0 { format!("accept, {list}") } else { "accept".to_owned() };
        let origin = tower::service_fn(move |_: Request<Body>| {
            let response = http::Response::builder().header("cache-control", "max-age=600");
            let response = response.header("vary", &list);
            async move { Ok::<_, std::convert::Infallible>(response.body(Body::from("x")).unwrap()) }
        });
        let app = cache.http_layer().layer(origin);
        for n in 0..15_000 {
            let accept = n.to_string();
            send(&app, with(&format!("/page?{}", n / 60), &[("accept", &accept)])).await;
        }
        let counted = cache.stats().bytes;
        let held = live() - before;
        let share = held * 100 / (8 * MIB);
        println!("{names}: {held} bytes are held, {counted} are counted: {share} hundredths");
        is_over |= held > 10 * MIB;
    }
    assert!(!is_over, "see above");
}

/// Bodies of all kinds, clients that leave at any time, and purges meanwhile.
#[tokio::test(start_paused = true)]
async fn bytes_of_arriving_bodies_stay_below_their_bound_and_all_come_back() {
    fn random(n: &AtomicUsize, below: usize) -> usize {
        let n = n.fetch_add(1, SeqCst) as u64;
        (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize % below
    }
    let seed = Arc::new(AtomicUsize::new(1));
    let cache: HttpStampede = Stampede::builder("test")
        .origin_only()
        .max_arriving_bytes(100_000)
        .max_bytes(1 << 20)
        .compute_timeout(secs(20))
        .build()
        .unwrap();
    let own = Arc::clone(&seed);
    let origin = tower::service_fn(move |_: Request<Body>| {
        let own = Arc::clone(&own);
        async move {
            tokio::time::sleep(ms(random(&own, 300) as u64)).await;
            let chunks = random(&own, 30);
            let size = [1, 600, 3000][random(&own, 3)];
            let end = random(&own, 4);
            let stream = futures_util::stream::unfold(0, move |at| {
                let own = Arc::clone(&own);
                async move {
                    tokio::time::sleep(ms(random(&own, 200) as u64)).await;
                    if at < chunks {
                        return Some((Ok(bytes::Bytes::from(vec![b'x'; size])), at + 1));
                    }
                    match end {
                        0 => Some((Err(std::io::Error::other("broken")), at + 1)),
                        1 => std::future::pending().await,
                        _ => None,
                    }
                }
            });
            let response = http::Response::builder().header("cache-control", "max-age=1");
            let response =
                if end == 3 { response.header("content-length", chunks * size) } else { response };
            Ok::<_, std::convert::Infallible>(response.body(Body::from_stream(stream)).unwrap())
        }
    });
    let inner = cache.rules().max_body(60_000).layer(origin);
    let app = cache.http_layer().layer(inner);
    let mut clients = Vec::new();
    for n in 0..3000 {
        let (app, own) = (app.clone(), Arc::clone(&seed));
        clients.push(tokio::spawn(async move {
            let path = format!("/{}", random(&own, 20));
            let life = ms(random(&own, 6000) as u64);
            let _ = tokio::time::timeout(life, async {
                let response = tower::ServiceExt::oneshot(app, get(&path)).await.unwrap();
                if random(&own, 5) == 0 {
                    tokio::time::sleep(secs(5)).await;
                }
                let _ = http_body_util::BodyExt::collect(response.into_body()).await;
            })
            .await;
        }));
        if n % 50 == 0 {
            cache.invalidate_path(&format!("/{}", n % 20)).await;
        }
        pass(ms(20)).await;
        let arriving = cache.stats().arriving_bytes;
        assert!(arriving <= 100_000, "{arriving}");
    }
    for client in clients {
        client.await.unwrap();
    }
    pass(secs(600)).await;
    let stats = cache.stats();
    assert_eq!((stats.arriving_bytes, stats.flights, stats.waiting), (0, 0, 0));
}
