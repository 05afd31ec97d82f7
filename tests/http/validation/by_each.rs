//! What no request may have without a validation of its own: one that began after it came.

use tower_stampede::CacheOutcome::*;

use super::{TAG, expired, is_conditional, not_modified};
use crate::kit::http::*;
use crate::kit::spawn;

#[tokio::test(start_paused = true)]
async fn a_crowd_for_what_is_never_fresh_shares_a_validation_that_began_after_it_came() {
    for directives in ["no-cache", "no-cache, max-age=100", "max-age=0", "s-maxage=0, public"] {
        let origin = Origin::new(move |call| match is_conditional(call) {
            true => not_modified().header("etag", TAG),
            false => Answer::ok(directives, "report").header("etag", TAG),
        });
        let app = app(&origin);
        let first = send(&app, get("/report")).await;
        assert!(first.cache_status().ends_with("; stored"), "{}", first.cache_status());
        for n in 2..4 {
            let reply = send(&app, get("/report")).await;
            assert_eq!((reply.status, reply.text()), (200, "report"), "{directives}");
            assert_eq!(origin.calls(), n);
            assert!(is_conditional(&origin.last()));
        }
        for after in [1, 60] {
            pass(secs(after)).await;
            let before = origin.calls();
            let replies = crowd(&app, 20, |_| get("/report")).await;
            assert!(replies.iter().all(|reply| reply.status == 200 && reply.text() == "report"));
            assert!(slowest(&replies) <= WORK + ms(1), "{directives}: {:?}", slowest(&replies));
            assert_eq!(origin.calls(), before + 1, "{directives}");
            assert!(origin.seen()[before..].iter().all(is_conditional));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cold_crowd_for_what_each_must_ask_about_pays_two_calls_at_most() {
    let origin = Origin::new(|call| match is_conditional(call) {
        true => not_modified(),
        false => Answer::ok("no-cache", "report").header("etag", TAG),
    });
    let app = app(&origin);
    let before = crowd(&app, 50, |_| get("/report"));
    let after = async {
        pass(WORK / 2).await;
        crowd(&app, 50, |_| get("/report")).await
    };
    let (before, after) = tokio::join!(before, after);
    for reply in before.iter().chain(&after) {
        assert_eq!((reply.status, reply.text()), (200, "report"));
    }
    assert_eq!(origin.calls(), 2);
    assert_eq!((slowest(&before), slowest(&after)), (WORK, WORK * 3 / 2));
    assert!(is_conditional(&origin.last()), "the second call validates what the first has brought");
}

#[tokio::test(start_paused = true)]
async fn no_client_gets_a_validation_that_began_before_its_request_came() {
    for directives in ["no-cache", "max-age=0"] {
        // It changes all the time.
        let origin = Origin::new(move |call| {
            Answer::ok(directives, call.n.to_string()).header("etag", &format!("\"{}\"", call.n))
        });
        let app = app(&origin);
        let mut clients = Vec::new();
        for _ in 0..200 {
            let (app, began) = (app.clone(), origin.calls());
            clients.push(spawn(async move { (began, send(&app, get("/report")).await) }));
            pass(ms(7)).await;
        }
        for client in clients {
            let (began, reply) = client.await.unwrap();
            let number: usize = reply.text().parse().unwrap();
            assert!(number >= began, "{directives}: call {number} began before the request came");
            assert!(reply.took <= WORK * 2, "{:?}", reply.took);
        }
        let most = (ms(7) * 200).as_millis() / WORK.as_millis() + 2;
        assert!(origin.calls() as u128 <= most, "{} calls, not {most}", origin.calls());
    }
}

#[tokio::test(start_paused = true)]
async fn what_each_must_ask_about_is_never_given_away_unasked() {
    let first = || Answer::ok("no-cache, max-age=100, stale-if-error=100", "x").header("etag", TAG);
    let (_, app) = expired(first, |_| Answer::status(503)).await;
    assert_eq!(send(&app, get("/report")).await.status, 503);
    let head = send(&app, request("HEAD", "/report", &[])).await;
    assert_eq!(head.status, 503);
    // Without validators there is nothing to ask about, and nothing is kept.
    let origin = Origin::new(|_| Answer::ok("no-cache", "x"));
    let cache = origin_only();
    send(&layered(cache.http_layer(), &origin), get("/report")).await;
    assert_eq!(cache.stats().entries, 0);
}

#[tokio::test(start_paused = true)]
async fn what_becomes_fresh_again_is_shared_again() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::ok("no-cache", "report").header("etag", TAG),
        _ => not_modified().header("cache-control", "max-age=10"),
    });
    let app = app(&origin);
    send(&app, get("/report")).await;
    send(&app, get("/report")).await;
    let replies = crowd(&app, 20, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| reply.is(Hit)));
    pass(secs(11)).await;
    crowd(&app, 20, |_| get("/report")).await;
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn each_client_s_own_condition_is_held_against_what_its_request_learned() {
    let origin = Origin::new(|call| match call.header("if-none-match") {
        Some(TAG) => not_modified().header("etag", TAG),
        _ => Answer::ok("no-cache", "report").header("etag", TAG),
    });
    let app = app(&origin);
    send(&app, get("/report")).await;
    let replies = crowd(&app, 9, |n| match n % 3 {
        0 => with("/report", &[("if-none-match", TAG)]),
        1 => with("/report", &[("if-none-match", "\"mine\"")]),
        _ => get("/report"),
    })
    .await;
    assert_eq!(origin.calls(), 1 + 1);
    for (n, reply) in replies.iter().enumerate() {
        let expected = if n % 3 == 0 { (304, "") } else { (200, "report") };
        assert_eq!((reply.status, reply.text()), expected, "{n}");
    }
    assert!(origin.seen()[1..].iter().all(|call| call.header("if-none-match") == Some(TAG)));
}

#[tokio::test(start_paused = true)]
async fn a_part_of_what_each_must_ask_about_is_cut_out_of_the_whole_that_is_confirmed() {
    let origin = Origin::new(|call| match call.header("if-none-match") {
        Some(TAG) => Answer::status(304).header("etag", TAG),
        _ => Answer::ok("no-cache", "report").header("etag", TAG),
    });
    let app = app(&origin);
    send(&app, get("/report")).await;
    let fields = [("range", "bytes=0-1"), ("if-range", TAG)];
    let part = send(&app, with("/report", &fields)).await;
    assert_eq!((part.status, part.text()), (206, "re"));
    let call = origin.last();
    assert_eq!(call.header("if-none-match"), Some(TAG));
    assert_eq!((call.header("range"), call.header("if-range")), (None, None));
}
