//! Answers that may not be shared: no client queues for them twice.

use tower_stampede::CacheOutcome::*;
use tower_stampede::HttpService;

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
async fn who_waits_at_a_key_that_is_not_always_shared_is_answered_stale_when_that_fails() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::ok("max-age=10, stale-if-error=60", "good"),
        1 => Answer::ok("private", "for one"),
        _ => Answer::status(500).body("bad").after(secs(1)),
    });
    let app = app(&origin);
    send(&app, get("/report")).await;
    tokio::time::sleep(secs(20)).await;
    assert_eq!(send(&app, get("/report")).await.text(), "for one", "and sets the marker");
    let (leads, waits) = tokio::join!(send(&app, get("/report")), send(&app, get("/report")));
    assert_eq!((leads.text(), waits.text()), ("good", "good"));
    assert_eq!(origin.calls(), 3, "one was shared lately: it may be so again");
}

/// The page of an origin that answers a request with the field `x-odd` as it should not be shared.
fn odd_origin(odd: fn() -> Answer) -> Origin {
    Origin::new(move |call| match call.header("x-odd") {
        Some(_) => odd(),
        None => Answer::ok("max-age=1", "good"),
    })
}

const ODD: [fn() -> Answer; 6] = [
    || Answer::ok("no-store", "odd"),
    || Answer::ok("max-age=60", "odd").header("set-cookie", "a=b"),
    || Answer::ok("max-age=60", "odd").header("vary", "*"),
    || Answer::ok("max-age=60", "odd").header("content-type", "text/event-stream"),
    || Answer::status(302).header("location", "/elsewhere"),
    || Answer::ok("private", "odd"),
];

#[tokio::test(start_paused = true)]
async fn one_request_that_is_not_shared_does_not_release_a_crowd_of_others() {
    for odd in ODD {
        for is_cold in [true, false] {
            let origin = odd_origin(odd);
            let app = app(&origin);
            if !is_cold {
                send(&app, get("/page")).await;
                pass(secs(2)).await;
            }
            send(&app, with("/page", &[("x-odd", "1")])).await;
            let before = origin.calls();
            let replies = crowd(&app, 40, |_| get("/page")).await;
            assert!(replies.iter().all(|reply| reply.text() == "good"));
            assert_eq!(origin.calls() - before, 1, "cold: {is_cold}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_crowd_behind_a_request_that_is_not_shared_waits_for_one_more() {
    for odd in ODD {
        let origin = odd_origin(odd);
        let app = app(&origin);
        let request = |i| match i {
            0 => with("/page", &[("x-odd", "1")]),
            _ => get("/page"),
        };
        let replies = crowd(&app, 40, request).await;
        assert!(replies.iter().skip(1).all(|reply| reply.text() == "good"));
        assert_eq!(origin.calls(), 2);
        assert_eq!(slowest(&replies), WORK * 2);
    }
}

#[tokio::test(start_paused = true)]
async fn two_requests_that_are_not_shared_do_not_release_a_crowd_with_ranges() {
    let range = || with("/page", &[("range", "bytes=0-1")]);
    for ranges in [1, 40] {
        let origin = odd_origin(ODD[0]);
        let app = app(&origin);
        send(&app, get("/page")).await;
        pass(secs(2)).await;
        for n in ["1", "2"] {
            send(&app, with("/page", &[("x-odd", n)])).await;
        }
        let before = origin.calls();
        let replies = crowd(&app, 40, |i| if i < ranges { range() } else { get("/page") }).await;
        assert!(replies.iter().all(|reply| ["good", "go"].contains(&reply.text())));
        assert_eq!(origin.calls() - before, 1, "{ranges} ranges");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_shared_lately_counts_although_the_store_has_it_no_more() {
    for is_swept in [true, false] {
        let origin = odd_origin(ODD[0]);
        let cache = origin_only();
        let app = layered(cache.http_layer(), &origin);
        // The store is swept each half minute.
        send(&app, get("/other")).await;
        pass(secs(27)).await;
        send(&app, get("/page")).await;
        pass(if is_swept { secs(5) } else { secs(2) }).await;
        for n in ["1", "2"] {
            send(&app, with("/page", &[("x-odd", n)])).await;
        }
        if !is_swept {
            cache.invalidate_path("/page").await;
        }
        let before = origin.calls();
        crowd(&app, 40, |_| get("/page")).await;
        assert_eq!(origin.calls() - before, 1, "swept: {is_swept}");
    }
}

/// Asks each 250 ms with a field that is not keyed, and gets a response that is not shared.
async fn attack(app: HttpService<Origin>, spellings: u32) {
    for n in 0_u32.. {
        let app = app.clone();
        let odd = (n % spellings).to_string();
        tokio::spawn(async move { send(&app, with("/page", &[("x-odd", &odd)])).await });
        tokio::time::sleep(ms(250)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_attack_costs_a_crowd_no_more_than_two_calls_for_each_lifetime() {
    const LIFETIMES: usize = 400;
    for spellings in [1, 2, u32::MAX] {
        for are_equal in [true, false] {
            let origin = Origin::new(|call| match call.header("x-odd") {
                Some(_) => Answer::ok("no-store", "odd").after(ms(300)),
                None => Answer::ok("max-age=1", "good").after(ms(300)),
            });
            let app = app(&origin);
            send(&app, get("/page")).await;
            let attacker = tokio::spawn(attack(app.clone(), spellings));
            for n in 0..LIFETIMES {
                // Each time at another moment of the attack.
                tokio::time::sleep(ms(1500 + 37 * n as u64 % 250)).await;
                let request = |i: usize| match are_equal {
                    true => get("/page"),
                    false => with("/page", &[("user-agent", &(n * 20 + i).to_string())]),
                };
                let replies = crowd(&app, 20, request).await;
                assert!(replies.iter().all(|reply| reply.text() == "good"));
            }
            attacker.abort();
            let own = origin.seen().iter().filter(|call| call.header("x-odd").is_none()).count();
            println!("{spellings} spellings, equal: {are_equal}: {own} calls in {LIFETIMES}");
            assert!(own <= LIFETIMES * 3, "{spellings} spellings: {own} calls");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_crowd_of_different_requests_at_an_uncacheable_key_runs_in_parallel_after_two_rounds() {
    for directives in ["no-store", "private"] {
        let origin = Origin::new(move |_| Answer::ok(directives, ""));
        let app = app(&origin);
        let request = |i: usize| with("/page", &[("user-agent", &i.to_string())]);
        let replies = crowd(&app, 40, request).await;
        assert_eq!((slowest(&replies), origin.calls()), (WORK * 3, 40));
        for wave in 2..=4 {
            pass(secs(9)).await;
            let replies = crowd(&app, 40, request).await;
            assert_eq!((slowest(&replies), origin.calls()), (WORK, 40 * wave), "{directives}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_that_is_no_longer_shared_costs_each_crowd_two_rounds_at_most_and_later_none() {
    let origin = Origin::new(|_| Answer::ok("max-age=1", "good"));
    let app = app(&origin);
    let request = |i: usize| with("/page", &[("user-agent", &i.to_string())]);
    crowd(&app, 40, request).await;
    pass(secs(2)).await;
    origin.answers(|_| Answer::ok("private", "for one"));
    for _ in 0..3 {
        let replies = crowd(&app, 40, request).await;
        assert!(slowest(&replies) <= WORK * 3, "{:?}", slowest(&replies));
        pass(secs(9)).await;
    }
    pass(secs(9)).await;
    let replies = crowd(&app, 40, request).await;
    assert_eq!(slowest(&replies), WORK);
}

#[tokio::test(start_paused = true)]
async fn one_invalid_credential_does_not_release_the_clients_of_a_public_page() {
    for odd in
        [|| Answer::ok("private", "odd"), || Answer::ok("max-age=9", "odd"), || Answer::status(401)]
    {
        let origin = Origin::new(move |call| match call.header("authorization") {
            Some("bad") => odd(),
            _ => Answer::ok("public, max-age=1", "good"),
        });
        let app = app(&origin);
        let client = |i: usize| with("/page", &[("authorization", &format!("good{i}"))]);
        send(&app, client(0)).await;
        pass(secs(2)).await;
        send(&app, with("/page", &[("authorization", "bad")])).await;
        let before = origin.calls();
        let replies = crowd(&app, 40, client).await;
        assert!(replies.iter().all(|reply| reply.text() == "good"));
        assert_eq!(origin.calls() - before, 1);
    }
}

/// One request of a stranger whose fields are exactly those of the clients: the service refuses
/// it for its address.
#[tokio::test(start_paused = true)]
async fn a_refused_address_with_the_fields_of_the_clients_does_not_release_their_crowd() {
    #[derive(Clone, Copy, Hash)]
    struct Address(u8);
    let origin = Origin::new(|call| match call.parts.extensions.get::<Address>() {
        Some(Address(9)) => Answer::ok("no-store", "refused"),
        _ => Answer::ok("max-age=1", "good"),
    });
    let layer = origin_only().http_layer();
    let layer = layer.client(|parts| parts.extensions.get::<Address>().copied());
    let app = layered(layer, &origin);
    let from = |n| {
        let mut request = get("/page");
        request.extensions_mut().insert(Address(n));
        request
    };
    send(&app, from(1)).await;
    pass(secs(2)).await;
    send(&app, from(9)).await;
    let before = origin.calls();
    crowd(&app, 40, |_| from(1)).await;
    assert!(origin.calls() - before <= 3, "{} calls", origin.calls() - before);
}
