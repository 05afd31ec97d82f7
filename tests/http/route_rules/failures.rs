//! Handlers that fail, and clients that leave, at routes with rules.

use axum::body::Body;
use http::Request;
use tower_stampede::{HttpStampede, Stampede};

use super::{echo, routes, ruled, site};
use crate::kit::http::*;
use crate::kit::spawn;

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_fails_one_client_and_the_others_get_the_next_result() {
    for warm in [false, true] {
        let origin = echo();
        let cache = with_ttl(60);
        let app = site(&origin, cache.http_layer(), |it| it.query(["q"]));
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
async fn a_failing_handler_is_asked_once_and_holds_nothing_back() {
    let (cache, origin) = (with_ttl(60), Origin::new(|_| Answer::status(503)));
    let app = site(&origin, cache.http_layer(), |it| it.query(["q"]));
    let replies = crowd(&app, 30, |_| get("/items/1")).await;
    assert!(replies.iter().all(|reply| reply.status == 503));
    assert_eq!(origin.calls(), 1);
    origin.answers(|_| Answer::status(200).body("fine"));
    assert_eq!(send(&app, get("/items/1")).await.text(), "fine");
}

#[tokio::test(start_paused = true)]
async fn one_place_for_computations_is_enough_for_all_routes() {
    let origin = echo();
    let cache: HttpStampede =
        Stampede::builder("test").ttl(secs(60)).max_computations(1).build().unwrap();
    for round in 0..2 {
        let app = site(&origin, cache.http_layer(), |it| it.query(["q"]));
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
        let app = site(&origin, cache.http_layer(), |it| it.query(["q"]));
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
async fn a_refusal_behind_the_layer_ends_nothing_that_a_route_has_stored() {
    let (cache, origin) = (with_ttl(60), echo());
    let gate = axum::middleware::from_fn(
        |request: Request<Body>, next: axum::middleware::Next| async move {
            match request.headers().contains_key("x-ticket") {
                true => Ok(next.run(request).await),
                false => Err(http::StatusCode::FORBIDDEN),
            }
        },
    );
    let layer = ruled(cache.http_layer(), |it| it.vary(["x-ticket"]));
    let app = routes(&origin).layer(gate).layer(layer);
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
async fn modes_switch_the_rules_of_routes_too() {
    use tower_stampede::Mode;
    let (cache, origin) = (with_ttl(60), echo());
    let app = site(&origin, cache.http_layer(), |it| it.query(["q"]));
    for (mode, calls) in [(Mode::Off, 5), (Mode::Observe, 10), (Mode::On, 10)] {
        cache.set_mode(mode);
        crowd(&app, 5, |_| get("/search")).await;
        assert_eq!(origin.calls(), calls, "{mode:?}");
    }
}

/// The computation of the page lends its place.
#[tokio::test(start_paused = true)]
async fn an_internal_request_to_a_route_with_rules_needs_no_second_place() {
    use axum::Router;
    use axum::routing::any;
    use std::sync::{Arc, OnceLock};
    for have_rules in [false, true] {
        let cache: HttpStampede = Stampede::builder("site")
            .ttl(secs(60))
            .max_computations(1)
            .max_refreshes(1)
            .build()
            .unwrap();
        let whole: Arc<OnceLock<Router>> = Arc::default();
        let own = Arc::clone(&whole);
        let page = any(move || {
            let app = own.get().unwrap().clone();
            async move {
                let part = send(&app, get("/part")).await;
                format!("{} {}", part.status, part.text())
            }
        });
        let layer = cache.http_layer();
        let layer = match have_rules {
            true => layer.route_rules("/whole", |it| it.query([])).route_rules("/part", |it| it),
            false => layer,
        };
        let app = Router::new().route("/whole", page).route("/part", any(|| async { "part" }));
        let app = app.layer(layer);
        whole.set(app.clone()).unwrap();
        let reply = send(&app, get("/whole")).await;
        assert_eq!(reply.text(), "200 part", "{have_rules}: {:?}", reply.took);
    }
}
