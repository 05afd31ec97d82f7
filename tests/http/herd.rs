//! A crowd at one URL: how often the origin is asked, and what every client gets.

use tower::ServiceExt;
use tower_stampede::CacheOutcome::{self, *};
use tower_stampede::{CacheFor, Stampede};

use crate::kit::http::*;
use crate::kit::spawn;

fn count(replies: &[Reply], outcome: CacheOutcome) -> usize {
    replies.iter().filter(|reply| reply.is(outcome)).count()
}

#[tokio::test(start_paused = true)]
async fn a_thousand_clients_on_a_cold_key_ask_the_origin_once() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "report"));
    let app = app(&origin);
    let replies = crowd(&app, 1000, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| reply.status == 200 && reply.text() == "report"));
    assert_eq!((count(&replies, Computed), count(&replies, Joined)), (1, 999));
    assert_eq!(slowest(&replies), WORK);
    assert_eq!(origin.calls(), 1);

    let again = send(&app, get("/report")).await;
    assert!(again.is(Hit) && again.took.is_zero());
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_clients_on_an_expired_key_ask_the_origin_once() {
    let origin = Origin::new(|call| Answer::ok("max-age=10", format!("report {}", call.n)));
    let app = app(&origin);
    send(&app, get("/report")).await;
    pass(secs(11)).await;
    let replies = crowd(&app, 1000, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| reply.text() == "report 1"));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_invalidated_key_is_computed_once() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", format!("report {}", call.n)));
    let cache = origin_only();
    let app = layered(cache.http_layer(), &origin);
    send(&app, get("/report?a")).await;
    cache.invalidate_path("/report").await;
    let replies = crowd(&app, 100, |_| get("/report?a")).await;
    assert!(replies.iter().all(|reply| reply.text() == "report 1"));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_stale_answer_reaches_everybody_at_once_while_one_refresh_runs() {
    let directives = "max-age=10, stale-while-revalidate=60";
    let origin = Origin::new(move |call| Answer::ok(directives, format!("report {}", call.n)));
    let app = app(&origin);
    send(&app, get("/report")).await;
    pass(secs(11)).await;
    let replies = crowd(&app, 1000, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| reply.is(Stale) && reply.text() == "report 0"));
    assert!(slowest(&replies).is_zero());
    pass(WORK * 2).await;
    assert_eq!(origin.calls(), 2);
    let fresh = send(&app, get("/report")).await;
    assert!(fresh.is(Hit) && fresh.text() == "report 1");
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_carries_nothing_of_the_client_that_triggered_it() {
    let directives = "public, max-age=10, stale-while-revalidate=60";
    let origin = Origin::new(move |_| Answer::ok(directives, "report"));
    let app = app(&origin);
    send(&app, get("/report")).await;
    pass(secs(11)).await;
    let fields = [
        ("authorization", "Bearer mine"),
        ("cookie", "id=mine"),
        ("x-api-key", "mine"),
        ("proxy-authorization", "mine"),
        ("client-cert", "mine"),
        ("accept", "text/plain"),
    ];
    let reply = send(&app, with("/report", &fields)).await;
    assert!(reply.is(Stale));
    pass(WORK * 2).await;
    assert_eq!(origin.calls(), 2);
    let refresh = origin.last();
    let names: Vec<_> = refresh.parts.headers.keys().map(|name| name.as_str()).collect();
    assert_eq!(names, [""; 0]);

    // What a client asks less for is refreshed as a whole.
    pass(secs(11)).await;
    let fields = [("if-none-match", "\"x\""), ("if-range", "\"x\""), ("range", "bytes=0-1")];
    assert!(send(&app, with("/report", &fields)).await.is(Stale));
    pass(WORK * 2).await;
    assert_eq!(origin.calls(), 3);
    assert!(origin.last().parts.headers.is_empty());
    pass(secs(11)).await;
    // HEAD refreshes with a GET.
    let head = send(&app, request("HEAD", "/report", &[])).await;
    assert!(head.is(Stale) && head.body.is_empty());
    pass(WORK * 2).await;
    assert_eq!(origin.last().parts.method, "GET");
    assert_eq!(origin.calls(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_that_a_cookie_triggered_fills_for_everybody() {
    let directives = "max-age=10, stale-while-revalidate=60";
    let origin = Origin::new(move |call| Answer::ok(directives, call.n.to_string()));
    let app = app(&origin);
    send(&app, get("/report")).await;
    pass(secs(11)).await;
    assert!(send(&app, with("/report", &[("cookie", "mine")])).await.is(Stale));
    pass(WORK * 2).await;
    let hit = send(&app, get("/report")).await;
    assert!(hit.is(Hit) && hit.text() == "1");
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_of_what_a_credentialed_request_stored_keeps_that_kind_of_credentials() {
    let directives = "public, max-age=10, stale-while-revalidate=60";
    let origin = Origin::new(move |_| Answer::ok(directives, "report"));
    let app = app(&origin);
    send(&app, with("/report", &[("authorization", "Bearer a")])).await;
    pass(secs(11)).await;
    let fields = [("authorization", "Bearer b"), ("cookie", "id=b")];
    assert!(send(&app, with("/report", &fields)).await.is(Stale));
    pass(WORK * 2).await;
    let refresh = origin.last();
    assert_eq!(refresh.header("authorization"), Some("Bearer b"));
    assert_eq!(refresh.header("cookie"), None);
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn when_the_leaders_client_hangs_up_the_others_get_its_answer() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "report"));
    let app = app(&origin);
    let leader = spawn(app.clone().oneshot(get("/report")));
    pass(WORK / 2).await;
    let crowd = spawn({
        let app = app.clone();
        async move { crowd(&app, 100, |_| get("/report")).await }
    });
    pass(WORK / 4).await;
    leader.abort();
    let replies = crowd.await.unwrap();
    assert!(replies.iter().all(|reply| reply.is(Joined) && reply.text() == "report"));
    assert_eq!(slowest(&replies), WORK / 2);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn when_nobody_waits_any_more_the_answer_is_stored_all_the_same() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "report"));
    let app = app(&origin);
    let leader = spawn(app.clone().oneshot(get("/report")));
    pass(WORK / 2).await;
    leader.abort();
    pass(WORK).await;
    assert!(send(&app, get("/report")).await.is(Hit));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failing_refresh_serves_stale_and_leaves_the_origin_alone() {
    let origin = Origin::new(|_| Answer::ok("max-age=10, stale-if-error=600", "good"));
    let app = app(&origin);
    send(&app, get("/report")).await;
    pass(secs(11)).await;
    origin.answers(|_| Answer::status(500).body("bad"));
    for _ in 0..600 {
        for reply in crowd(&app, 5, |_| get("/report")).await {
            assert!(reply.is(StaleIfError) && reply.status == 200 && reply.text() == "good");
        }
        pass(ms(100)).await;
    }
    let attempts = origin.calls() - 1;
    assert!((3..=8).contains(&attempts), "{attempts} attempts in a minute");

    // The first attempt that succeeds ends the outage.
    origin.answers(|_| Answer::ok("max-age=10", "better"));
    pass(secs(61)).await;
    assert_eq!(send(&app, get("/report")).await.text(), "better");
    assert_eq!(origin.calls(), 2 + attempts);
}

#[tokio::test(start_paused = true)]
async fn every_kind_of_failure_is_one_for_stale_if_error() {
    type Failure = fn() -> Answer;
    let failures: [Failure; 9] = [
        || Answer::status(408),
        || Answer::status(408).header("cache-control", "max-age=60"),
        || Answer::status(500),
        || Answer::status(502),
        || Answer::status(503).header("cache-control", "max-age=60"),
        || Answer::status(504),
        Answer::error,
        Answer::never,
        Answer::panic,
    ];
    for (i, failure) in failures.into_iter().enumerate() {
        let origin = Origin::new(|_| Answer::ok("max-age=10, stale-if-error=600", "good"));
        let app = app(&origin);
        send(&app, get("/report")).await;
        pass(secs(11)).await;
        origin.answers(move |_| failure());
        let all = crowd_of(&app, 10, |_| get("/report")).await;
        let calls = origin.calls() - 1;
        // A panic goes on in the client that led; one of the others tries once more.
        let panicked = all.iter().filter(|got| matches!(got, Got::Panicked)).count();
        assert_eq!((calls, panicked), if i == 8 { (2, 2) } else { (1, 0) }, "failure {i}");
        for got in all.into_iter().filter(|got| !matches!(got, Got::Panicked)) {
            let reply = got.reply();
            assert!(reply.is(StaleIfError) && reply.text() == "good", "failure {i}: {reply:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_background_refresh_backs_off_too() {
    let directives = "max-age=10, stale-while-revalidate=600";
    let origin = Origin::new(move |_| Answer::ok(directives, "good"));
    let app = app(&origin);
    send(&app, get("/report")).await;
    pass(secs(11)).await;
    origin.answers(|_| Answer::error());
    for _ in 0..600 {
        let reply = send(&app, get("/report")).await;
        assert!(reply.is(Stale) && reply.text() == "good" && reply.took.is_zero());
        pass(ms(100)).await;
    }
    let attempts = origin.calls() - 1;
    assert!((1..=8).contains(&attempts), "{attempts} attempts in a minute");
}

#[tokio::test(start_paused = true)]
async fn stale_is_never_served_against_must_revalidate() {
    for directives in [
        "max-age=10, stale-if-error=600, stale-while-revalidate=600, must-revalidate",
        "max-age=10, stale-if-error=600, stale-while-revalidate=600, proxy-revalidate",
        "s-maxage=10",
    ] {
        let cache = Stampede::builder("test")
            .origin_only()
            .stale_for(secs(600))
            .stale_if_error(secs(600))
            .build()
            .unwrap();
        let origin = Origin::new(move |_| Answer::ok(directives, "good"));
        let app = layered(cache.http_layer(), &origin);
        send(&app, get("/report")).await;
        pass(secs(11)).await;
        origin.answers(|_| Answer::status(500));
        assert_eq!(send(&app, get("/report")).await.status, 500, "{directives}");
        assert_eq!(origin.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_ends_with_the_window_that_it_was_for() {
    let origin = Origin::new(|_| Answer::ok("max-age=1, stale-if-error=20", "good"));
    let app = app(&origin);
    send(&app, get("/report")).await;
    pass(secs(1)).await;
    origin.answers(|_| Answer::status(500));
    while send(&app, get("/report")).await.is(StaleIfError) {
        pass(ms(100)).await;
    }
    // There is nothing to serve any more, and a hold would be a refusal.
    origin.answers(|_| Answer::ok("max-age=60", "better"));
    let reply = send(&app, get("/report")).await;
    assert_eq!((reply.status, reply.text()), (200, "better"));
    assert!(origin.calls() <= 8);
}

#[tokio::test(start_paused = true)]
async fn a_cold_failure_reaches_the_whole_wave_without_a_byte_of_the_origins() {
    for status in [408, 500, 502, 503, 504] {
        let origin = Origin::new(move |_| {
            let answer = Answer::status(status).header("x-secret", "trace").body("secret trace");
            answer.header("retry-after", "77").header("set-cookie", "a=b")
        });
        let app = app(&origin);
        for wave in 1..=3 {
            let mut replies = crowd(&app, 100, |_| get("/report")).await;
            assert_eq!(origin.calls(), wave, "one call a wave, and no hold");
            let leader = replies.remove(0);
            assert_eq!((leader.status, leader.text()), (status, "secret trace"));
            assert_eq!(leader.header("retry-after"), Some("77"));
            for reply in replies {
                assert_eq!(reply.status, status);
                assert!(reply.is(Refused) && reply.took == WORK);
                assert!(reply.header("retry-after").is_some_and(|after| after != "77"));
                assert_eq!(reply.header("cache-control"), Some("no-store"));
                assert_eq!(reply.header("x-secret"), None);
                assert_eq!(reply.header("set-cookie"), None);
                assert!(!reply.text().contains("secret"));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_may_be_stored_is_given_to_the_waiters() {
    let origin = Origin::new(|_| {
        Answer::status(503).header("cache-control", "max-age=5").body("maintenance")
    });
    let app = app(&origin);
    let replies = crowd(&app, 100, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| reply.status == 503 && reply.text() == "maintenance"));
    assert!(send(&app, get("/report")).await.is(Hit));
    assert_eq!(origin.calls(), 1);
    pass(secs(6)).await;
    send(&app, get("/report")).await;
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_failure_without_explicit_freshness_is_not_stored_by_our_ttl() {
    let origin = Origin::new(|_| Answer::status(500));
    let app = layered(with_ttl(60).http_layer(), &origin);
    send(&app, get("/report")).await;
    assert_eq!(send(&app, get("/report")).await.status, 500);
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_service_reaches_only_the_client_whose_request_it_got() {
    let origin = Origin::new(|_| Answer::error());
    let app = app(&origin);
    let wave = crowd_of(&app, 100, |_| get("/report")).await;
    let (errors, replies): (Vec<_>, Vec<_>) =
        wave.into_iter().partition(|got| matches!(got, Got::Error(OriginError)));
    assert_eq!((errors.len(), origin.calls()), (2, 2), "a second leader follows the first");
    for reply in replies.into_iter().map(Got::reply) {
        assert_eq!(reply.status, 502);
        assert!(reply.header("retry-after").is_some());
        assert!(!reply.text().contains("secret"));
    }

    // A later request makes its own attempt; the second wave in a row that fails is
    // worth a pause.
    assert!(try_send(&app, get("/report")).await.is_err());
    assert_eq!(origin.calls(), 3);
    let held = send(&app, get("/report")).await;
    assert_eq!((held.status, held.took), (503, ms(0)));
    assert!(held.is(Refused) && held.header("retry-after") == Some("1"));
    assert_eq!(origin.calls(), 3);
    pass(secs(1)).await;
    origin.answers(|_| Answer::ok("max-age=60", "good"));
    assert_eq!(send(&app, get("/report")).await.text(), "good");
    assert_eq!(origin.calls(), 4);
}

#[tokio::test(start_paused = true)]
async fn an_answer_between_two_errors_of_the_service_is_no_row() {
    let origin =
        Origin::new(|call| if call.n == 1 { Answer::status(500) } else { Answer::error() });
    let app = app(&origin);
    for _ in 0..3 {
        drop(try_send(&app, get("/report")).await);
    }
    assert_eq!(origin.calls(), 3);
    origin.answers(|_| Answer::ok("max-age=60", "good"));
    assert_eq!(send(&app, get("/report")).await.text(), "good");
    assert_eq!(origin.calls(), 4);
}

#[tokio::test(start_paused = true)]
async fn an_origin_that_hangs_is_given_up_with_504_and_the_lead_is_free_again() {
    let cache = Stampede::builder("test").origin_only().compute_timeout(secs(2)).build().unwrap();
    let origin = Origin::new(|_| Answer::never());
    let app = layered(cache.http_layer(), &origin);
    let replies = crowd(&app, 100, |_| get("/report")).await;
    for reply in &replies {
        assert_eq!((reply.status, reply.took), (504, secs(2)));
        assert!(reply.header("retry-after").is_some());
    }
    assert_eq!(origin.calls(), 1);
    origin.answers(|_| Answer::ok("max-age=60", "good"));
    assert_eq!(send(&app, get("/report")).await.text(), "good");
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn after_a_panic_one_is_elected_and_a_second_panic_ends_the_wave() {
    let origin = Origin::new(|_| Answer::panic());
    let app = app(&origin);
    let wave = crowd_of(&app, 100, |_| get("/report")).await;
    let (panicked, others): (Vec<_>, Vec<_>) =
        wave.into_iter().partition(|got| matches!(got, Got::Panicked));
    assert_eq!(panicked.len(), 2, "a panic goes on in the client that led");
    for got in others {
        let reply = got.reply();
        assert_eq!(reply.status, 500);
        assert!(reply.header("retry-after").is_some());
    }
    assert_eq!(origin.calls(), 2);
    // No hold: a later request makes its own attempt.
    origin.answers(|_| Answer::ok("max-age=60", "good"));
    assert_eq!(send(&app, get("/report")).await.text(), "good");
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn after_one_panic_the_elected_one_serves_all() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::panic(),
        _ => Answer::ok("max-age=60", "good"),
    });
    let app = app(&origin);
    let wave = crowd_of(&app, 100, |_| get("/report")).await;
    let served = wave.into_iter().filter(|got| matches!(got, Got::Reply(r) if r.text() == "good"));
    assert_eq!(served.count(), 99);
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_error_that_may_not_be_shared_releases_a_crowd_of_equal_requests_at_once() {
    for (status, directives) in
        [(404, "no-store"), (400, "max-age=0"), (429, "no-store"), (501, "private")]
    {
        let origin = Origin::new(move |call| {
            let answer = Answer::status(status).header("cache-control", directives);
            answer.body(format!("{}", call.n))
        });
        let app = layered(with_ttl(60).http_layer(), &origin);
        let replies = crowd(&app, 100, |_| get("/report")).await;
        let mut bodies: Vec<_> = replies.iter().map(|reply| reply.text().to_owned()).collect();
        bodies.sort();
        bodies.dedup();
        assert_eq!(bodies.len(), 100, "nobody got the answer of another");
        assert!(slowest(&replies) <= WORK * 2, "{:?}", slowest(&replies));
        assert_eq!(origin.calls(), 100);

        // It set no marker: the next crowd is protected again.
        origin.answers(|_| Answer::ok("max-age=60", "good"));
        crowd(&app, 100, |_| get("/report")).await;
        assert_eq!(origin.calls(), 101, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_unstorable_404_does_not_end_the_protection_of_the_others() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::status(404).header("cache-control", "no-store"),
        _ => Answer::ok("max-age=60", "good"),
    });
    let app = app(&origin);
    let of = |i: usize| with("/report", &[("x-client", if i == 0 { "odd" } else { "plain" })]);
    let replies = crowd(&app, 100, of).await;
    assert_eq!(replies.iter().filter(|reply| reply.status == 404).count(), 1);
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_asks_to_log_in_releases_everybody_at_once() {
    for status in [401, 403, 407] {
        let origin = Origin::new(move |_| Answer::status(status));
        let app = app(&origin);
        let replies = crowd(&app, 100, |_| get("/report")).await;
        assert_eq!(slowest(&replies), WORK * 2);
        assert_eq!(origin.calls(), 100);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lifetime_shorter_than_the_work_does_not_restart_the_stampede() {
    let origin = Origin::new(|_| Answer::ok("max-age=1", "report").after(secs(2)));
    let app = app(&origin);
    let replies = crowd(&app, 1000, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| reply.text() == "report"));
    assert_eq!(slowest(&replies), secs(2));
    assert_eq!(origin.calls(), 1);
    // Later requests are look-ups, and it is expired.
    send(&app, get("/report")).await;
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_lifetime_of_zero_is_shared_only_where_a_stale_window_covers_it() {
    for (directives, calls) in
        [("max-age=0", 100), ("max-age=x", 100), ("max-age=0, stale-while-revalidate=60", 1)]
    {
        let origin = Origin::new(move |call| Answer::ok(directives, call.n.to_string()));
        let app = app(&origin);
        let replies = crowd(&app, 100, |_| get("/report")).await;
        assert_eq!(origin.calls(), calls, "{directives}");
        assert!(slowest(&replies) <= WORK * 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lifetime_of_zero_in_a_stale_window_is_served_stale_and_refreshed() {
    let directives = "max-age=0, stale-while-revalidate=60";
    let origin = Origin::new(move |call| Answer::ok(directives, call.n.to_string()));
    let app = app(&origin);
    send(&app, get("/report")).await;
    let replies = crowd(&app, 100, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| reply.is(Stale) && reply.text() == "0"));
    pass(WORK * 2).await;
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_handlers_own_lifetime_and_tags_count() {
    let origin = Origin::new(|call| {
        let lifetime = CacheFor::new(secs(10)).tag("user:7");
        Answer::ok("max-age=600", call.n.to_string()).extension(lifetime)
    });
    let cache = origin_only();
    let app = layered(cache.http_layer(), &origin);
    crowd(&app, 100, |_| get("/report")).await;
    assert!(send(&app, get("/report")).await.is(Hit));
    pass(secs(10)).await;
    crowd(&app, 100, |_| get("/report")).await;
    assert_eq!(origin.calls(), 2);
    cache.invalidate_tag("user:7").await;
    assert_eq!(send(&app, get("/report")).await.text(), "2");
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_invalidation_during_the_computation_keeps_the_old_value_from_later_clients() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.n.to_string()));
    let cache = origin_only();
    let app = layered(cache.http_layer(), &origin);
    let before = spawn({
        let app = app.clone();
        async move { crowd(&app, 10, |_| get("/report")).await }
    });
    pass(WORK / 2).await;
    cache.invalidate_path("/report").await;
    let after = crowd(&app, 10, |_| get("/report")).await;
    assert!(before.await.unwrap().iter().all(|reply| reply.text() == "0"));
    assert!(after.iter().all(|reply| reply.text() == "1"));
    assert_eq!(origin.calls(), 2);
    assert_eq!(send(&app, get("/report")).await.text(), "1");
}
