//! Handlers and layers that fail beside the rules of a route.

use std::convert::Infallible;

use axum::Router;
use axum::body::Body;
use http::Request;
use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{HttpStampede, Stampede};

use super::{echo, routes, site};
use crate::kit::http::*;
use crate::kit::spawn;

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_fails_one_client_and_the_others_get_the_next_result() {
    for warm in [false, true] {
        let origin = echo();
        let cache = with_ttl(60);
        let app = site(&origin, &cache.rules(), cache.http_layer());
        if warm {
            send(&app, get("/items/0")).await;
        }
        let before = origin.calls();
        origin.answers(move |call| match call.n - before {
            0 => Answer::panic(),
            _ => Answer::status(200).body("fine"),
        });
        let got = crowd_of(&app, 30, |_| get("/items/1")).await;
        let panicked = got.iter().filter(|got| matches!(got, Got::Panicked)).count();
        assert_eq!((panicked, origin.calls() - before), (1, 2), "warm: {warm}");
        for got in got.into_iter().filter(|got| !matches!(got, Got::Panicked)) {
            assert_eq!(got.reply().text(), "fine");
        }
        assert_eq!(cache.stats().flights, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_handler_is_asked_once_and_the_outer_layer_holds_nothing_back() {
    let (cache, origin) = (with_ttl(60), Origin::new(|_| Answer::status(503)));
    let app = site(&origin, &cache.rules(), cache.http_layer());
    let replies = crowd(&app, 30, |_| get("/items/1")).await;
    assert!(replies.iter().all(|reply| reply.status == 503));
    assert_eq!(origin.calls(), 1);
    origin.answers(|_| Answer::status(200).body("fine"));
    assert_eq!(send(&app, get("/items/1")).await.text(), "fine");
}

#[tokio::test(start_paused = true)]
async fn one_place_for_computations_is_enough_for_both_layers() {
    let origin = echo();
    let cache: HttpStampede =
        Stampede::builder("test").ttl(secs(60)).max_computations(1).build().unwrap();
    for round in 0..2 {
        let app = site(&origin, &cache.rules().query(["q"]), cache.http_layer());
        let ask = |i: usize| match i % 3 {
            0 => request("HEAD", &format!("/search?q={}", i % 5), &[]),
            1 => with(&format!("/items/{}", i % 5), &[("cookie", "a=b")]),
            _ => get(&format!("/search?q={}&x={i}", i % 5)),
        };
        let replies = crowd(&app, 60, ask).await;
        assert!(replies.iter().all(|reply| reply.status == 200), "round {round}");
        assert!(slowest(&replies) < WORK * 15, "{:?}", slowest(&replies));
        cache.invalidate_all().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_others_get_the_response_although_the_first_client_hangs_up() {
    for leaves_after in [ms(0), ms(1), ms(50)] {
        let (cache, origin) = (with_ttl(60), echo());
        let app = site(&origin, &cache.rules(), cache.http_layer());
        let first = spawn({
            let app = app.clone();
            async move { send(&app, get("/search")).await }
        });
        tokio::task::yield_now().await;
        let others = spawn({
            let app = app.clone();
            async move { crowd(&app, 10, |_| get("/search")).await }
        });
        tokio::time::sleep(leaves_after).await;
        first.abort();
        let replies = others.await.unwrap();
        assert!(replies.iter().all(|reply| reply.text() == "/search 0"), "{leaves_after:?}");
        assert_eq!(origin.calls(), 1, "{leaves_after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_from_between_the_layers_is_not_stored_and_later_ones_are() {
    let (cache, origin) = (with_ttl(60), echo());
    let gate = axum::middleware::from_fn(
        |request: Request<Body>, next: axum::middleware::Next| async move {
            match request.headers().contains_key("x-ticket") {
                true => Ok(next.run(request).await),
                false => Err(http::StatusCode::FORBIDDEN),
            }
        },
    );
    let app = routes(&origin, &cache.rules()).layer(gate).layer(cache.http_layer());
    for _ in 0..3 {
        let ask = |i: usize| match i % 2 {
            0 => with("/search", &[("x-ticket", "1")]),
            _ => get("/search"),
        };
        let replies = crowd(&app, 20, ask).await;
        for (i, reply) in replies.iter().enumerate() {
            assert_eq!(reply.status, [200, 403][i % 2]);
        }
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_the_outer_layer_remembers_of_a_route_costs_few_calls_where_it_is_wrong() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    let (cache, origin) = (with_ttl(60), echo());
    let has_rules = Arc::new(AtomicBool::new(true));
    let (ruled, plain) = (cache.rules().layer(origin.infallible()), origin.infallible());
    let switch = Arc::clone(&has_rules);
    let route = tower::service_fn(move |request: Request<Body>| {
        let (ruled, plain, has_rules) = (ruled.clone(), plain.clone(), switch.load(SeqCst));
        async move {
            use axum::response::IntoResponse;
            use tower::ServiceExt;
            Ok::<_, Infallible>(match has_rules {
                true => ruled.oneshot(request).await?.map(Body::new).into_response(),
                false => plain.oneshot(request).await?,
            })
        }
    });
    let app: Router = Router::new().route_service("/items/{id}", route).layer(cache.http_layer());
    for path in ["/items/1", "/items/2"] {
        send(&app, get(path)).await;
        assert!(send(&app, get(path)).await.is(Hit), "{path}");
    }
    has_rules.store(false, SeqCst);
    for path in ["/items/3", "/items/4"] {
        for _ in 0..4 {
            let wrong = send(&app, get(path)).await;
            assert!(wrong.is(Bypass) && wrong.cache_status().ends_with("detail=nested"), "{path}");
        }
        assert!(send(&app, get(path)).await.is(Computed), "{path}");
        assert!(send(&app, get(path)).await.is(Hit), "{path}");
    }
    // And back.
    has_rules.store(true, SeqCst);
    for path in ["/items/5", "/items/6"] {
        let replies = crowd(&app, 10, |_| get(path)).await;
        assert_eq!(replies.iter().filter(|reply| reply.is(Computed)).count(), 1, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn modes_switch_both_layers() {
    use tower_stampede::Mode;
    let (cache, origin) = (with_ttl(60), echo());
    let app = site(&origin, &cache.rules(), cache.http_layer());
    for (mode, calls) in [(Mode::Off, 5), (Mode::Observe, 10), (Mode::On, 10)] {
        cache.set_mode(mode);
        crowd(&app, 5, |_| get("/search")).await;
        assert_eq!(origin.calls(), calls, "{mode:?}");
    }
}
