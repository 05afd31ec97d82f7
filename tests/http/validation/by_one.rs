//! One request validates under the flight, and every waiter has what it learns.

use tower_stampede::CacheOutcome::*;
use tower_stampede::{CacheFor, Event, SetCookie};

use axum::body::Body;
use http::Request;
use http_body_util::{Either, Empty};
use tower::ServiceExt;
use tower_layer::Layer;

use super::{TAG, expired, is_conditional, not_modified, origin, report};
use crate::kit::http::*;
use crate::kit::spawn;

const DAY: &str = "Wed, 01 Jan 2020 00:00:00 GMT";

#[tokio::test(start_paused = true)]
async fn a_herd_on_an_expired_response_is_one_conditional_call_and_everybody_gets_its_body() {
    let origin = origin();
    let app = app(&origin);
    send(&app, get("/report")).await;
    pass(secs(11)).await;
    let replies = crowd(&app, 500, |_| get("/report")).await;
    assert_eq!(origin.calls(), 2);
    assert_eq!(origin.last().header("if-none-match"), Some(TAG));
    assert!(replies.iter().all(|reply| reply.status == 200 && reply.text() == "report"));
    assert_eq!(replies.iter().filter(|reply| reply.is(Joined)).count(), 499);
    assert!(slowest(&replies) <= WORK + ms(1));
    let hit = send(&app, get("/report")).await;
    assert!(hit.is(Hit) && hit.text() == "report");
    assert_eq!(hit.header("age"), Some("0"));
    pass(secs(11)).await;
    send(&app, get("/report")).await;
    assert_eq!(origin.calls(), 3);
    assert!(is_conditional(&origin.last()));
}

#[tokio::test(start_paused = true)]
async fn what_may_be_confirmed_is_kept_ten_minutes_and_what_may_not_be_is_not() {
    let origin = Origin::new(|call| {
        let answer = Answer::ok("max-age=10", "x");
        if call.uri() == "/tagged" { answer.header("etag", TAG) } else { answer }
    });
    let cache = origin_only();
    let app = layered(cache.http_layer(), &origin);
    send(&app, get("/tagged")).await;
    send(&app, get("/plain")).await;
    pass(secs(60)).await;
    assert_eq!(cache.stats().entries, 1);
    pass(secs(500)).await;
    send(&app, get("/tagged")).await;
    assert!(is_conditional(&origin.last()));
    pass(secs(700)).await;
    assert_eq!(cache.stats().entries, 0);
    send(&app, get("/tagged")).await;
    assert!(!is_conditional(&origin.last()));
}

#[tokio::test(start_paused = true)]
async fn the_request_carries_the_stored_validators_as_they_were_sent_and_no_others() {
    for (stored, asked) in [
        (vec![("etag", "W/\"v1\"")], vec![("if-none-match", "W/\"v1\"")]),
        (vec![("last-modified", DAY)], vec![("if-modified-since", DAY)]),
        (
            vec![("etag", TAG), ("last-modified", DAY)],
            vec![("if-modified-since", DAY), ("if-none-match", TAG)],
        ),
        (vec![], vec![]),
    ] {
        let fields = stored.clone();
        let first = move || {
            fields
                .iter()
                .fold(Answer::ok("max-age=10", "x"), |a, (name, value)| a.header(name, value))
        };
        let (origin, app) = expired(first, |_| Answer::ok("max-age=10", "y")).await;
        assert_eq!(send(&app, with("/report", &[("accept", "a/b")])).await.text(), "y");
        let call = origin.last();
        let sent = call.parts.headers.iter().filter(|(name, _)| name.as_str().starts_with("if-"));
        let mut sent: Vec<_> = sent.map(|(n, v)| (n.as_str(), v.to_str().unwrap())).collect();
        sent.sort_unstable();
        assert_eq!(sent, asked, "{stored:?}");
        assert_eq!(call.header("accept"), Some("a/b"));
    }
}

#[tokio::test(start_paused = true)]
async fn the_fields_of_the_304_replace_the_stored_ones_for_everybody() {
    let (origin, app) = expired(report, |_| {
        not_modified()
            .header("etag", TAG)
            .header("x-b", "2")
            .header("x-b", "3")
            .header("content-length", "0")
            .header("connection", "x-a")
            .header("x-a", "2")
            .header("cache-control", "max-age=100")
    })
    .await;
    let own = send(&app, get("/report")).await;
    let hit = send(&app, get("/report")).await;
    assert_eq!(origin.calls(), 2);
    for reply in [&own, &hit] {
        assert_eq!((reply.status, reply.text()), (200, "report"));
        assert_eq!(reply.all("x-a"), ["1"]);
        assert_eq!(reply.all("x-b"), ["2", "3"]);
        assert_eq!(reply.declared, Some(6));
    }
    assert_eq!(own.header("age"), None);
    let status = own.cache_status();
    assert!(status.ends_with("; fwd=stale; fwd-status=304; stored"), "{status}");
    assert!(hit.is(Hit) && hit.cache_status().ends_with("; hit; ttl=99"), "{hit:?}");
}

#[tokio::test(start_paused = true)]
async fn the_age_of_the_304_counts_and_that_of_the_stored_response_does_not() {
    let first = || Answer::ok("max-age=20", "x").header("etag", TAG).header("age", "15");
    let (origin, app) = expired(first, |_| not_modified().header("age", "4")).await;
    assert_eq!(send(&app, get("/report")).await.header("age"), Some("4"));
    assert_eq!(send(&app, get("/report")).await.header("age"), Some("4"));
    pass(secs(11)).await;
    assert!(send(&app, get("/report")).await.is(Hit));
    pass(secs(6)).await;
    origin.answers(|_| not_modified());
    assert_eq!(send(&app, get("/report")).await.header("age"), None);
    pass(secs(19)).await;
    assert!(send(&app, get("/report")).await.is(Hit));
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_cookie_in_a_304_goes_to_the_client_that_was_forwarded_and_to_no_other() {
    let (origin, app) = expired(report, |_| not_modified().header("set-cookie", "id=1")).await;
    let replies = crowd(&app, 10, |_| get("/report")).await;
    assert_eq!(origin.calls(), 2);
    let with_cookie = replies.iter().filter(|reply| reply.header("set-cookie").is_some());
    assert_eq!(with_cookie.count(), 1);
    assert_eq!(send(&app, get("/report")).await.header("set-cookie"), None);

    // Neither does it replace one that every client gets.
    let origin = Origin::new(|call| match call.n {
        0 => report().header("set-cookie", "theme=dark"),
        _ => not_modified().header("set-cookie", "theme=light"),
    });
    let app = layered(origin_only().http_layer().set_cookie(SetCookie::Explicit), &origin);
    send(&app, get("/report")).await;
    pass(secs(11)).await;
    assert_eq!(send(&app, get("/report")).await.all("set-cookie"), ["theme=light"]);
    assert_eq!(send(&app, get("/report")).await.all("set-cookie"), ["theme=dark"]);
}

#[tokio::test(start_paused = true)]
async fn a_full_answer_to_the_question_replaces_what_was_stored() {
    let (origin, app) =
        expired(report, |_| Answer::ok("max-age=10", "new").header("etag", "\"v2\"")).await;
    let replies = crowd(&app, 20, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| reply.text() == "new" && reply.header("x-a").is_none()));
    assert_eq!(origin.calls(), 2);
    assert!(is_conditional(&origin.last()));
}

#[tokio::test(start_paused = true)]
async fn a_304_about_another_response_updates_nothing_and_costs_one_call_without_conditions() {
    for other in [("etag", "\"v2\""), ("etag", "W/\"v2\""), ("last-modified", DAY)] {
        let (origin, app) = expired(report, move |call| match is_conditional(call) {
            true => not_modified().header(other.0, other.1).header("x-a", "2"),
            false => Answer::ok("max-age=10", "new").header("etag", "\"v2\""),
        })
        .await;
        let fields = [("accept", "a/b"), ("x-trace", "7")];
        let replies = crowd(&app, 50, |_| with("/report", &fields)).await;
        assert!(replies.iter().all(|reply| reply.status == 200 && reply.text() == "new"));
        assert_eq!(origin.calls(), 3, "{other:?}");
        let again = origin.last();
        assert!(!is_conditional(&again) && again.body.is_empty());
        assert_eq!((again.header("accept"), again.header("x-trace")), (Some("a/b"), Some("7")));
        assert!(send(&app, get("/report")).await.is(Hit));
    }
}

#[tokio::test(start_paused = true)]
async fn an_origin_that_answers_304_whatever_is_asked_is_asked_twice_and_no_more() {
    let (origin, app) = expired(report, |_| not_modified().header("etag", "\"v2\"")).await;
    let reply = send(&app, get("/report")).await;
    assert_eq!((reply.status, reply.text()), (304, ""));
    assert_eq!(origin.calls(), 3);
    assert!(!reply.cache_status().contains("stored"));
}

#[tokio::test(start_paused = true)]
async fn a_304_that_nobody_asked_for_is_passed_on_and_not_stored() {
    let origin = Origin::new(|_| not_modified().header("cache-control", "max-age=10"));
    let app = app(&origin);
    for n in 1..=2 {
        assert_eq!(send(&app, get("/report")).await.status, 304);
        assert_eq!(origin.calls(), n);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_invalidated_while_it_was_asked_about_is_fetched() {
    let origin = Origin::new(|call| match is_conditional(call) {
        true => not_modified(),
        false => report().body(format!("report {}", call.n)),
    });
    let cache = origin_only();
    let app = layered(cache.http_layer(), &origin);
    send(&app, get("/report")).await;
    pass(secs(11)).await;
    let asking = spawn({
        let app = app.clone();
        async move { send(&app, get("/report")).await }
    });
    pass(WORK / 2).await;
    cache.invalidate_path("/report").await;
    assert_eq!(asking.await.unwrap().text(), "report 2");
    assert_eq!(origin.calls(), 3);
    // It was asked for before the invalidation, so it is not kept.
    assert_eq!(send(&app, get("/report")).await.text(), "report 3");
}

#[tokio::test(start_paused = true)]
async fn what_was_invalidated_before_is_not_asked_about() {
    let origin = origin();
    let cache = origin_only();
    let app = layered(cache.http_layer(), &origin);
    send(&app, get("/report")).await;
    pass(secs(11)).await;
    cache.invalidate_path("/report").await;
    send(&app, get("/report")).await;
    assert!(!is_conditional(&origin.last()));
}

#[tokio::test(start_paused = true)]
async fn the_tags_of_a_confirmed_response_stay_though_the_304_does_not_repeat_them() {
    let origin = Origin::new(|call| match is_conditional(call) {
        true => not_modified().header("cache-control", "max-age=60"),
        false => Answer::status(200)
            .header("etag", TAG)
            .body("x")
            .extension(CacheFor::new(secs(10)).tag("user:7")),
    });
    let cache = origin_only();
    let app = layered(cache.http_layer(), &origin);
    send(&app, get("/report")).await;
    pass(secs(11)).await;
    assert!(!send(&app, get("/report")).await.has_cache_for);
    assert!(send(&app, get("/report")).await.is(Hit));
    cache.invalidate_tag("user:7").await;
    send(&app, get("/report")).await;
    assert_eq!(origin.calls(), 3);
    assert!(!is_conditional(&origin.last()));
}

#[tokio::test(start_paused = true)]
async fn a_304_may_say_by_extension_how_long_what_it_confirms_lives() {
    let (origin, app) =
        expired(report, |_| not_modified().extension(CacheFor::new(secs(100)))).await;
    assert!(!send(&app, get("/report")).await.has_cache_for);
    pass(secs(90)).await;
    assert!(send(&app, get("/report")).await.is(Hit));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_may_not_be_stored_any_more_is_removed_and_its_client_gets_it_whole() {
    for now in [("cache-control", "no-store"), ("cache-control", "private"), ("vary", "*")] {
        let (origin, app) = expired(report, move |call| match is_conditional(call) {
            true => not_modified().header(now.0, now.1),
            false => Answer::ok("no-store", "own"),
        })
        .await;
        let replies = crowd(&app, 10, |_| get("/report")).await;
        let whole = replies.iter().filter(|reply| reply.text() == "report").count();
        assert_eq!(whole, 1, "{now:?}");
        assert!(replies.iter().all(|reply| reply.status == 200));
        // The others went alone, and had nothing to ask about any more.
        assert_eq!(origin.calls(), 1 + 10);
        assert_eq!(origin.seen().iter().filter(|call| is_conditional(call)).count(), 1);
        assert_eq!(send(&app, get("/report")).await.text(), "own");
        assert!(!is_conditional(&origin.last()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_304_that_names_other_fields_in_vary_moves_what_is_stored() {
    let (origin, app) = expired(report, |call| match is_conditional(call) {
        true => not_modified().header("vary", "accept"),
        false => report().header("vary", "accept").body("other"),
    })
    .await;
    let of = |accept| with("/report", &[("accept", accept)]);
    assert_eq!(send(&app, of("a")).await.text(), "report");
    assert!(send(&app, of("a")).await.is(Hit));
    assert_eq!(send(&app, of("b")).await.text(), "other");
    assert!(!is_conditional(&origin.last()));
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn each_variant_is_asked_about_with_its_own_validators() {
    let origin = Origin::new(|call| {
        let accept = call.header("accept").unwrap().to_owned();
        let tag = format!("\"{accept}\"");
        match call.header("if-none-match") {
            Some(asked) if asked == tag => not_modified().header("etag", &tag),
            Some(other) => panic!("{accept} was asked about as {other}"),
            None => Answer::ok("max-age=10", accept).header("etag", &tag).header("vary", "accept"),
        }
    });
    let app = app(&origin);
    let of = |n: usize| with("/report", &[("accept", ["a", "b"][n % 2])]);
    crowd(&app, 20, of).await;
    pass(secs(11)).await;
    let replies = crowd(&app, 20, of).await;
    assert!(replies.iter().enumerate().all(|(n, reply)| reply.text() == ["a", "b"][n % 2]));
    let questions = origin.seen().iter().filter(|call| is_conditional(call)).count();
    assert_eq!(questions, 2);
    assert_eq!(send(&app, with("/report", &[("accept", "c")])).await.text(), "c");
    assert!(!is_conditional(&origin.last()));
}

#[tokio::test(start_paused = true)]
async fn only_a_200_is_asked_about() {
    for (status, asked) in [(200, true), (203, false), (404, false), (301, false)] {
        let first = move || {
            Answer::status(status).header("cache-control", "max-age=10").header("etag", TAG)
        };
        let origin = Origin::new(move |_| first());
        let app = app(&origin);
        send(&app, get("/report")).await;
        pass(secs(11)).await;
        send(&app, get("/report")).await;
        assert_eq!(is_conditional(&origin.last()), asked, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_to_confirm_follows_the_rules_of_stale_answers() {
    let first = || report().header("cache-control", "stale-if-error=60");
    for failure in [|| Answer::status(503), Answer::error] {
        let (origin, app) = expired(first, move |_| failure()).await;
        let reply = send(&app, get("/report")).await;
        assert!(reply.is(StaleIfError) && reply.text() == "report");
        assert!(is_conditional(&origin.last()));
        pass(secs(5)).await;
        origin.answers(|_| not_modified());
        assert_eq!(send(&app, get("/report")).await.text(), "report");
        assert!(send(&app, get("/report")).await.is(Hit));
    }
    // Beyond its windows it is kept to be asked about, not to be served.
    let (_, app) = expired(report, |_| Answer::status(503)).await;
    assert_eq!(send(&app, get("/report")).await.status, 503);
}

#[tokio::test(start_paused = true)]
async fn a_background_refresh_asks_too() {
    let first = || report().header("cache-control", "stale-while-revalidate=60");
    let (origin, app) = expired(first, |_| not_modified()).await;
    let fields = [("cookie", "id=mine"), ("accept", "a/b")];
    assert!(send(&app, with("/report", &fields)).await.is(Stale));
    pass(WORK * 2).await;
    let refresh = origin.last();
    assert_eq!(refresh.header("if-none-match"), Some(TAG));
    assert_eq!(refresh.header("cookie"), None);
    let hit = send(&app, get("/report")).await;
    assert!(hit.is(Hit) && hit.text() == "report");
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_conditions_of_clients_never_reach_the_question_of_the_leader() {
    let (origin, app) = expired(report, |_| not_modified()).await;
    let theirs = [("if-none-match", "\"mine\""), ("if-modified-since", DAY)];
    let replies = crowd(&app, 10, |n| match n % 2 {
        0 => with("/report", &theirs),
        _ => get("/report"),
    })
    .await;
    assert_eq!(origin.calls(), 2);
    assert_eq!(origin.last().header("if-none-match"), Some(TAG));
    assert_eq!(origin.last().header("if-modified-since"), None);
    assert!(replies.iter().all(|reply| reply.status == 200 && reply.text() == "report"));
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_own_condition_yields_it_gets_a_304_and_the_others_the_whole() {
    let (origin, app) = expired(report, |_| not_modified().header("etag", TAG)).await;
    let replies = crowd(&app, 10, |n| match n % 2 {
        0 => with("/report", &[("if-none-match", TAG)]),
        _ => get("/report"),
    })
    .await;
    assert_eq!(origin.calls(), 2);
    for (n, reply) in replies.iter().enumerate() {
        let expected = if n % 2 == 0 { (304, "") } else { (200, "report") };
        assert_eq!((reply.status, reply.text()), expected, "{n}");
    }
    let status = replies[0].cache_status();
    assert!(status.contains("; fwd-status=304; stored"), "{status}");
}

#[tokio::test(start_paused = true)]
async fn a_response_from_credentials_stays_one_whoever_confirms_it() {
    let origin = Origin::new(|call| match call.n {
        0 => report().header("cache-control", "public"),
        1 => not_modified().header("cache-control", "public, max-age=10"),
        _ if is_conditional(call) => not_modified().header("cache-control", "max-age=10"),
        n => Answer::ok("max-age=10", format!("anonymous {n}")),
    });
    let app = app(&origin);
    send(&app, with("/report", &[("authorization", "Bearer a")])).await;
    pass(secs(11)).await;
    assert_eq!(send(&app, get("/report")).await.text(), "report");
    assert!(send(&app, get("/report")).await.is(Hit));
    pass(secs(11)).await;
    // Without `public` no other client may have what a credentialed request got.
    assert_eq!(send(&app, get("/report")).await.status, 200);
    assert_eq!(send(&app, get("/report")).await.text(), "anonymous 3");
}

#[tokio::test(start_paused = true)]
async fn a_body_of_any_type_can_be_sent_twice_once_it_is_said_how_to_make_one() {
    type Any = Either<Body, Empty<bytes::Bytes>>;
    fn empty() -> Any {
        Either::Right(Empty::new())
    }
    for is_said in [false, true] {
        let origin = Origin::new(|call| match is_conditional(call) {
            true => not_modified().header("etag", "\"v2\""),
            false => report(),
        });
        let layer = origin_only().http_layer();
        let layer = if is_said { layer.empty_request_body(empty) } else { layer };
        let behind = origin.clone();
        let service = layer.layer(tower::service_fn(move |request: Request<Any>| {
            behind.clone().oneshot(request.map(Body::new))
        }));
        for _ in 0..2 {
            let request = get("/report").map(Either::Left);
            let reply = read(service.clone().oneshot(request).await.unwrap(), WORK).await;
            assert_eq!((reply.status, reply.text()), (200, "report"));
            pass(secs(11)).await;
        }
        let questions = origin.seen().iter().filter(|call| is_conditional(call)).count();
        assert_eq!((questions, origin.calls()), if is_said { (1, 3) } else { (0, 2) });
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_says_what_came_of_each_question_about_a_stored_response() {
    let origin = origin();
    let cache = origin_only();
    let app = layered(cache.http_layer(), &origin);
    send(&app, get("/report")).await;
    let mut events = cache.events();
    let mut how = Vec::new();
    let mismatched = |call: &Call| match call.header("if-none-match") {
        Some(_) => not_modified().header("etag", "\"other\""),
        None => report(),
    };
    type Script = fn(&Call) -> Answer;
    let answers: [(Script, &str); 4] = [
        (|_| not_modified().header("etag", TAG).header("cache-control", "max-age=10"), "confirmed"),
        (mismatched, "mismatched"),
        (|_| Answer::status(503), "failed"),
        (|_| report(), "changed"),
    ];
    for (answer, _) in answers {
        pass(secs(11)).await;
        origin.answers(answer);
        send(&app, get("/report")).await;
    }
    while let Ok(event) = events.try_recv() {
        if let Event::Revalidated { how: what, .. } = event {
            how.push(what);
        }
    }
    assert_eq!(how, answers.map(|(_, what)| what));
}
