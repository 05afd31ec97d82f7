//! Bodies that arrive: together they stay below `max_arriving_bytes`, whatever clients do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use axum::body::Body;
use http::Request;
use tower_layer::Layer;
use tower_stampede::{HttpStampede, Stampede};

use crate::kit::http::*;
use crate::kit::spawn;

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
    let layer = cache.http_layer().route_rules("/{page}", |it| it.max_body(60_000));
    let app = layer.layer(origin);
    let mut clients = Vec::new();
    for n in 0..3000 {
        let (app, own) = (app.clone(), Arc::clone(&seed));
        clients.push(spawn(async move {
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
