//! Requests with credentials that an identity stands for.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{HttpLayer, HttpStampede};
use tracing::Level;

use crate::kit::http::*;
use crate::kit::log::{TextLog, assert_says};

const HINT: &str = "the layer has an identity";

fn page() -> Origin {
    Origin::new(|call| {
        let tenant = call.header("x-team").unwrap_or("no team").to_owned();
        Answer::ok("max-age=60", tenant)
    })
}

/// The team of a request is its identity. A layer further out checks the field.
fn by_team(cache: &HttpStampede) -> HttpLayer {
    cache
        .http_layer()
        .identity(|parts| parts.headers.get("x-team").map(|it| it.as_bytes().to_vec()))
}

fn covering(cache: &HttpStampede) -> HttpLayer {
    by_team(cache).identity_covers(["authorization", "cookie", "x-auth-*"])
}

#[tokio::test(start_paused = true)]
async fn a_crowd_with_tokens_costs_one_call_for_each_identity_that_covers_them() {
    for field in ["authorization", "cookie", "x-auth-token"] {
        let origin = page();
        let app = layered(covering(&origin_only()), &origin);
        let replies = crowd(&app, 200, |i| {
            let team = ["a", "b"][i % 2];
            with("http://x/", &[("x-team", team), (field, &format!("user-{i}"))])
        })
        .await;
        for (i, reply) in replies.iter().enumerate() {
            assert_eq!(reply.text(), ["a", "b"][i % 2], "{field}");
        }
        assert_eq!(origin.calls(), 2, "{field}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_an_identity_a_request_with_a_covered_field_shares_nothing() {
    let origin = page();
    let app = layered(covering(&origin_only()).public(), &origin);
    let replies =
        crowd(&app, 20, |i| with("http://x/", &[("authorization", &format!("user-{i}"))])).await;
    assert!(replies.iter().all(|reply| reply.cache_status().contains("detail=identity")));
    assert_eq!(origin.calls(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_field_that_is_not_covered_stays_a_credential() {
    let origin = page();
    let layer = by_team(&origin_only()).identity_covers(["authorization"]);
    let app = layered(layer, &origin);
    for n in 1..4 {
        let fields = [("x-team", "a"), ("authorization", "t"), ("cookie", "sid=1")];
        let reply = send(&app, with("http://x/", &fields)).await;
        assert!(reply.cache_status().contains("credentials:cookie"), "{}", reply.cache_status());
        assert_eq!(origin.calls(), n);
    }
}

/// A key that a rule adds does not say which client has sent the request.
#[tokio::test(start_paused = true)]
async fn a_route_without_an_identity_shares_nothing_by_what_the_layer_covers() {
    let origin = page();
    let layer = origin_only().http_layer().key(|_| "phone").identity_covers(["authorization"]);
    let layer = layer.route_rules("/team", |route| {
        route.identity(|parts| parts.headers.get("x-team").map(|it| it.as_bytes().to_vec()))
    });
    let app = layered(layer, &origin);
    for (path, calls) in [("http://x/team", 1), ("http://x/", 5)] {
        let before = origin.calls();
        for user in ["1", "2", "3", "4", "5"] {
            send(&app, with(path, &[("x-team", "a"), ("authorization", user)])).await;
        }
        assert_eq!(origin.calls() - before, calls, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_response_forbids_stays_forbidden_beside_an_identity() {
    for (name, value) in
        [("cache-control", "private"), ("cache-control", "no-store"), ("set-cookie", "a=b")]
    {
        let origin = Origin::new(move |_| Answer::status(200).header(name, value));
        let app = layered(covering(&with_ttl(60)), &origin);
        for _ in 0..3 {
            send(&app, with("http://x/", &[("x-team", "a"), ("authorization", "t")])).await;
        }
        assert_eq!(origin.calls(), 3, "{name}: {value}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_background_refresh_carries_the_covered_fields() {
    let origin = Origin::new(|call| {
        let token = call.header("authorization").unwrap_or("none").to_owned();
        Answer::ok("max-age=10, stale-while-revalidate=60", token)
    });
    for layer in [covering(&origin_only()), covering(&origin_only()).refresh_headers(["x-team"])] {
        let app = layered(layer, &origin);
        let request = || with("http://x/", &[("x-team", "a"), ("authorization", "token")]);
        send(&app, request()).await;
        pass(secs(11)).await;
        assert!(send(&app, request()).await.is(Stale));
        pass(secs(1)).await;
        let reply = send(&app, request()).await;
        assert!(reply.is(Hit), "{}", reply.cache_status());
        assert_eq!(reply.text(), "token");
    }
}

#[test]
fn fields_that_no_identity_covers_end_at_start_up() {
    let layer = origin_only().http_layer().key(|_| "phone").identity_covers(["authorization"]);
    let make = AssertUnwindSafe(|| drop(layer.layer(page())));
    let panic = catch_unwind(make).unwrap_err();
    let said = *panic.downcast_ref::<&str>().expect("a message");
    assert!(said.starts_with("`identity_covers`: neither the layer"), "{said}");
}

fn hints(log: &TextLog) -> Vec<String> {
    log.lines().into_iter().filter(|line| line.contains(HINT)).collect()
}

#[tokio::test(start_paused = true)]
async fn an_identity_beside_which_nothing_is_stored_says_so_once() {
    let log = TextLog::default();
    let _listening = log.listen(Level::WARN);
    let origin = page();
    let app = layered(by_team(&origin_only()), &origin);
    for i in 0..19 {
        let fields = [("x-team", "a"), ("authorization", "token")];
        send(&app, with(&format!("http://x/{}", i % 3), &fields)).await;
    }
    assert_eq!(hints(&log), [""; 0]);
    crowd(&app, 50, |_| with("http://x/", &[("x-team", "a"), ("authorization", "token")])).await;
    let [line] = &hints(&log)[..] else { panic!("{}", log.text()) };
    assert_says(line, &["WARN", "field=\"authorization\"", "HttpLayer::identity_covers"]);
}

#[tokio::test(start_paused = true)]
async fn an_identity_beside_which_something_is_stored_gives_no_hint() {
    let log = TextLog::default();
    let _listening = log.listen(Level::WARN);
    let origin = page();
    let app = layered(by_team(&origin_only()), &origin);
    send(&app, with("http://x/", &[("x-team", "a")])).await;
    for _ in 0..50 {
        send(&app, with("http://x/", &[("x-team", "a"), ("authorization", "token")])).await;
    }
    assert_eq!(hints(&log), [""; 0]);
}
