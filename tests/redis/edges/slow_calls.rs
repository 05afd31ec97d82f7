//! Slow replies do not open the breaker; silence does.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tower_stampede::{Health, Redis, Stampede};

use crate::kit::origin::{MINUTE, MS, Origin, settings, within};
use crate::kit::redis::{Proxy, Server, eventually};
use crate::kit::redis_caches::*;
use crate::kit::spawn;

use super::names;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_slow_calls_at_once_do_not_open_the_breaker() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let redis = Redis::lazy(&proxy.url()).unwrap().namespace("stampede").op_timeout(400 * MS);
    let cache: Cache = patient().redis(redis).build().unwrap();
    all_listen(std::slice::from_ref(&cache)).await;
    let mut events = cache.events();
    proxy.delay(600 * MS);
    let origin = Origin::new();
    tokio::join!(
        load(&cache, &origin, fresh_key()),
        load(&cache, &origin, fresh_key()),
        load(&cache, &origin, fresh_key()),
    );
    let mut went_away = false;
    while let Ok(event) = events.try_recv() {
        went_away |= matches!(event, tower_stampede::Event::RemoteChanged { up: false, .. });
    }
    assert!(!went_away, "the server answers after 600 ms");
    assert_eq!(cache.health(), Health::Up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_answers_take_longer_than_the_time_out_from_now_on_is_found_again() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let redis = Redis::lazy(&proxy.url()).unwrap().namespace("stampede").op_timeout(200 * MS);
    let cache: Cache = patient().redis(redis).build().unwrap();
    all_listen(std::slice::from_ref(&cache)).await;
    let origin = Origin::new();
    for _ in 0..8 {
        load(&cache, &origin, fresh_key()).await;
    }
    proxy.stall();
    eventually("the breaker is open", || {
        drop(spawn({
            let (cache, origin) = (cache.clone(), origin.clone());
            async move { load(&cache, &origin, fresh_key()).await }
        }));
        cache.health() != Health::Up
    })
    .await;
    proxy.pass();
    proxy.delay(500 * MS);
    eventually("the server is used again", || cache.health() == Health::Up).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_behind_replies_of_sixteen_mib_is_not_lost() {
    const LEASE: Duration = Duration::from_secs(6);
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let redis = |url: &str| {
        Redis::lazy(url).unwrap().namespace("stampede").local_ttl(MS).op_timeout_per_mib(1500 * MS)
    };
    let process = |url: &str| -> Stampede<Vec<u8>> {
        let settings = settings().ttl(60 * MINUTE).lease(LEASE).wait_timeout(LIMIT);
        settings.redis(redis(url)).build().unwrap()
    };
    let (near, far) = (process(&server.url()), process(&proxy.url()));
    let calls = Arc::new(AtomicUsize::new(0));
    let large = move |cache: &Stampede<Vec<u8>>| {
        let (cache, calls) = (cache.clone(), Arc::clone(&calls));
        async move {
            let counted = Arc::clone(&calls);
            let compute = || async move {
                counted.fetch_add(1, Ordering::SeqCst);
                Ok::<_, Infallible>(vec![7; 15 << 20])
            };
            cache.get_or_compute("large", compute).await.unwrap();
            calls.load(Ordering::SeqCst)
        }
    };
    // The first look does not know how large the value is: on a busy machine it may be given up. Then
    // the process computes for itself, and has a copy of its own. So both begin anew.
    let shared = async {
        loop {
            let computed = large(&near).await;
            if large(&far).await == computed {
                return computed;
            }
            eventually("the breaker is closed", || far.health() == Health::Up).await;
            near.invalidate("large").await;
        }
    };
    let computed = within(LIMIT, shared).await;
    let (open, door) = tokio::sync::oneshot::channel::<()>();
    let leader = far.clone();
    let leader = spawn(async move {
        let compute = || async move {
            door.await.unwrap();
            Ok::<_, Infallible>(b"the leader's".to_vec())
        };
        leader.get_or_compute("led", compute).await.unwrap()
    });
    let is_led = || names(&server).iter().any(|name| name.contains("{led}"));
    eventually("the lease is taken", is_led).await;
    // 64 KiB each 5 ms: one reply is on its way for more than a second, and then the next.
    proxy.delay(5 * MS);
    let large_replies = async {
        let (mut computed, mut taken) = (computed, Instant::now());
        while taken.elapsed() < LEASE * 3 / 2 {
            eventually("the breaker is closed", || far.health() == Health::Up).await;
            let (asked, before) = (Instant::now(), computed);
            computed = large(&far).await;
            // On a busy machine the breaker opens: the process serves its copy, or computes.
            if computed > before || asked.elapsed() < Duration::from_secs(1) {
                taken = Instant::now();
            }
        }
    };
    within(LIMIT, large_replies).await;
    let waiter = spawn(async move {
        let compute = || async { Ok::<_, Infallible>(b"the waiter's".to_vec()) };
        near.get_or_compute("led", compute).await.unwrap()
    });
    eventually("it has asked for the lease", || registered(&server, "led") == 1).await;
    open.send(()).unwrap();
    assert_eq!(leader.await.unwrap(), b"the leader's");
    assert_eq!(waiter.await.unwrap(), b"the leader's");
}
