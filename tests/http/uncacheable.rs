//! Answers that may not be shared: no client queues for them twice.

use tower_stampede::CacheOutcome::*;

use crate::kit::http::*;

#[tokio::test(start_paused = true)]
async fn waiters_of_an_uncacheable_answer_are_released_at_once_and_in_parallel() {
    for directives in ["no-store", "private", "no-cache", "max-age=0"] {
        let origin = Origin::new(move |call| Answer::ok(directives, call.n.to_string()));
        let app = app(&origin);
        let replies = crowd(&app, 100, |_| get("/report")).await;
        assert_eq!(slowest(&replies), WORK * 2, "{directives}");
        assert_eq!(origin.calls(), 100);
        let mut bodies: Vec<_> = replies.iter().map(Reply::text).collect();
        bodies.sort_unstable();
        bodies.dedup();
        assert_eq!(bodies.len(), 100, "{directives}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_crowd_at_an_uncacheable_key_does_not_queue() {
    for directives in ["no-store", "private"] {
        let origin = Origin::new(move |call| Answer::ok(directives, call.n.to_string()));
        let app = app(&origin);
        crowd(&app, 10, |_| get("/report")).await;
        for wave in 2..=4 {
            pass(secs(9)).await;
            let replies = crowd(&app, 10, |_| get("/report")).await;
            assert_eq!(slowest(&replies), WORK, "{directives}, wave {wave}");
            assert_eq!(origin.calls(), 10 * wave);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_remembered_of_an_uncacheable_key_is_forgotten_after_a_while() {
    let origin = Origin::new(|_| Answer::ok("no-store", ""));
    let app = app(&origin);
    send(&app, get("/report")).await;
    pass(secs(31)).await;
    let replies = crowd(&app, 10, |_| get("/report")).await;
    assert_eq!(slowest(&replies), WORK * 2);
    assert_eq!(origin.calls(), 11);
}

#[tokio::test(start_paused = true)]
async fn a_storable_answer_ends_the_mark_and_is_stored_in_spite_of_it() {
    let origin = Origin::new(|_| Answer::ok("no-store", ""));
    let app = app(&origin);
    send(&app, get("/report")).await;
    origin.answers(|_| Answer::ok("max-age=10", "good"));
    let reply = send(&app, get("/report")).await;
    assert!(reply.is(Computed));
    assert!(send(&app, get("/report")).await.is(Hit));
    assert_eq!(origin.calls(), 2);
    // At its end the crowd queues again: the mark is gone.
    pass(secs(11)).await;
    crowd(&app, 100, |_| get("/report")).await;
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn one_requests_credentials_do_not_mark_a_key() {
    let origin = Origin::new(|_| Answer::ok("max-age=10", "good"));
    let app = app(&origin);
    for kind in ["authorization", "cookie", "x-api-key"] {
        send(&app, with("/report", &[(kind, "mine")])).await;
    }
    assert_eq!(origin.calls(), 3);
    crowd(&app, 100, |_| get("/report")).await;
    assert_eq!(origin.calls(), 4);
}

#[tokio::test(start_paused = true)]
async fn what_a_credentialed_request_was_answered_does_not_mark_the_key_for_others() {
    let origin = Origin::new(|call| match call.header("cookie") {
        Some(_) => Answer::ok("private", "mine"),
        None => Answer::ok("max-age=10", "everybody's"),
    });
    let app = app(&origin);
    crowd(&app, 10, |_| with("/report", &[("cookie", "mine")])).await;
    assert_eq!(origin.calls(), 10);
    let replies = crowd(&app, 100, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| reply.text() == "everybody's"));
    assert_eq!(origin.calls(), 11);
}

#[tokio::test(start_paused = true)]
async fn errors_and_partial_answers_do_not_mark_a_key() {
    for status in [400, 401, 403, 404, 410, 418, 429, 501, 505, 206, 304] {
        let origin =
            Origin::new(move |_| Answer::status(status).header("cache-control", "no-store"));
        let app = app(&origin);
        send(&app, get("/report")).await;
        origin.answers(|_| Answer::ok("max-age=10", "good"));
        crowd(&app, 100, |_| get("/report")).await;
        assert_eq!(origin.calls(), 2, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_goes_past_the_cache_does_not_mark_a_key() {
    let origin = Origin::new(|call| match call.parts.headers.is_empty() {
        false => Answer::status(206).header("cache-control", "no-store"),
        true => Answer::ok("max-age=10", "good"),
    });
    let app = app(&origin);
    for (name, value) in
        [("range", "items=0-1"), ("if-match", "\"a\""), ("cache-control", "no-store")]
    {
        send(&app, with("/report", &[(name, value)])).await;
    }
    crowd(&app, 100, |_| get("/report")).await;
    assert_eq!(origin.calls(), 4);
}

#[tokio::test(start_paused = true)]
async fn one_uncacheable_variant_leaves_the_others_protected() {
    let origin = Origin::new(|call| {
        let directives = if call.header("a") == Some("2") { "private" } else { "max-age=10" };
        Answer::ok(directives, call.header("a").unwrap().to_owned()).header("vary", "a")
    });
    let app = app(&origin);
    send(&app, with("/report", &[("a", "1")])).await;
    crowd(&app, 10, |_| with("/report", &[("a", "2")])).await;
    assert_eq!(origin.calls(), 11);
    pass(secs(11)).await;
    let replies = crowd(&app, 100, |i| with("/report", &[("a", ["1", "2"][i % 2])])).await;
    for (i, reply) in replies.iter().enumerate() {
        assert_eq!(reply.text(), ["1", "2"][i % 2]);
    }
    assert_eq!(slowest(&replies), WORK);
    assert_eq!(origin.calls(), 11 + 1 + 50);
}

#[tokio::test(start_paused = true)]
async fn who_passes_an_uncacheable_key_by_itself_is_answered_stale_when_that_fails() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::ok("max-age=10, stale-if-error=60", "good"),
        1 => Answer::ok("private", "for one"),
        _ => Answer::status(500).body("bad").after(secs(1)),
    });
    let app = app(&origin);
    send(&app, get("/report")).await;
    tokio::time::sleep(secs(20)).await;
    assert_eq!(send(&app, get("/report")).await.text(), "for one", "and sets the marker");
    let (leads, passes) = tokio::join!(send(&app, get("/report")), send(&app, get("/report")));
    assert_eq!((leads.text(), passes.text()), ("good", "good"));
    assert_eq!(origin.calls(), 4, "neither waited for the other");
}
