//! A second leader after a failure of the first, and errors that go to the whole crowd.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::remote::{Double, RemoteSettings};
use tower_stampede::{HttpService, Stampede};

use crate::kit::http::*;
use crate::kit::spawn;

/// A request of one client: the field is neither keyed nor named in `Vary`.
fn from_client(i: usize) -> http::Request<axum::body::Body> {
    with("/report", &[("user-agent", &format!("client {i}"))])
}

/// An origin that fails for the requests with this `user-agent`.
fn origin_that_fails_for(client: &'static str, failure: fn() -> Answer) -> Origin {
    Origin::new(move |call| match call.header("user-agent") {
        Some(agent) if agent == client => failure(),
        _ => Answer::ok("max-age=60", "good"),
    })
}

fn good(got: &[Got<OriginError>]) -> usize {
    let is_good = |got: &Got<_>| matches!(got, Got::Reply(reply) if reply.text() == "good");
    got.iter().filter(|got| is_good(got)).count()
}

// ---- the second leader ----

#[tokio::test(start_paused = true)]
async fn a_crowd_at_an_origin_that_breaks_its_first_connection_loses_one_answer() {
    for requests in [|_| get("/report"), from_client] {
        let origin = Origin::new(|call| match call.n {
            0 => Answer::error(),
            _ => Answer::ok("max-age=60", "good"),
        });
        let app = app(&origin);
        let got = crowd_of(&app, 30, requests).await;
        assert!(matches!(got[0], Got::Error(OriginError)), "its own client gets the failure");
        assert_eq!((good(&got), origin.calls()), (29, 2));
        assert!(send(&app, get("/report")).await.is(Hit), "the second result is stored");
    }
}

#[tokio::test(start_paused = true)]
async fn a_500_for_one_client_s_field_fails_this_client_alone() {
    for status in [500, 502, 504, 505] {
        let origin = Origin::new(move |call| match call.header("user-agent") {
            Some("client 0") => Answer::status(status).body("bad"),
            _ => Answer::ok("max-age=60", "good"),
        });
        let got = crowd_of(&app(&origin), 20, from_client).await;
        assert!(matches!(&got[0], Got::Reply(reply) if reply.status == status));
        assert_eq!((good(&got), origin.calls()), (19, 2), "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_second_leader_is_one_whose_request_differs() {
    let origin = origin_that_fails_for("client 0", || Answer::status(500));
    let same_but_one = |i| from_client(if i == 29 { 1 } else { 0 });
    let got = crowd_of(&app(&origin), 30, same_but_one).await;
    assert_eq!((good(&got), origin.calls()), (29, 2));
    assert_eq!(origin.last().header("user-agent"), Some("client 1"));
}

#[tokio::test(start_paused = true)]
async fn an_attacker_that_is_always_there_is_seldom_the_second_leader_too() {
    const CROWDS: u64 = 40;
    for failure in [|| Answer::status(400), || Answer::status(500), Answer::error] {
        let origin = Origin::new(move |call| {
            let is_odd = call.header("x-odd").is_some();
            if is_odd { failure() } else { Answer::ok("max-age=1", "good") }.after(ms(970))
        });
        let app = app(&origin);
        send(&app, get("/report")).await;
        let attacked = app.clone();
        let attacker = spawn(async move {
            for n in 0_u32.. {
                let (app, odd) = (attacked.clone(), n.to_string());
                let request = with("/report", &[("x-odd", &odd)]);
                spawn(async move { try_send(&app, request).await });
                pass(ms(250)).await;
            }
        });
        let mut failed = 0;
        for n in 0..CROWDS {
            // Each time at another moment of the attack.
            pass(ms(2200 + 37 * n % 250)).await;
            let got = crowd_of(&app, 20, from_client).await;
            failed += u64::from(good(&got) < 20);
        }
        attacker.abort();
        // Of 23 that wait, three or four are the attacker's.
        assert!(failed <= CROWDS / 2, "{failed} of {CROWDS} crowds");
    }
}

#[tokio::test(start_paused = true)]
async fn equal_requests_are_not_sent_twice_after_a_500() {
    let origin = Origin::new(|_| Answer::status(500).body("broken"));
    // What is keyed, or known to select the response, makes no difference.
    let of = |i: usize| {
        with("/report", &[("accept-language", if i.is_multiple_of(2) { "de" } else { "DE" })])
    };
    let layer = origin_only().http_layer().vary(["accept-language"]);
    let replies = crowd(&layered(layer, &origin), 30, of).await;
    assert!(replies.iter().all(|reply| (reply.status, reply.text()) == (500, "broken")));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn no_second_leader_follows_a_time_out_a_503_or_a_429() {
    for (failure, expected) in [
        ((|| Answer::status(503)) as fn() -> Answer, 503),
        (|| Answer::status(429), 429),
        (|| Answer::never(), 504),
    ] {
        let origin = Origin::new(move |_| failure());
        let replies = crowd(&app(&origin), 10, from_client).await;
        assert!(replies.iter().all(|reply| reply.status == expected), "{expected}");
        assert_eq!(origin.calls(), 1, "{expected}");
    }
}

#[tokio::test(start_paused = true)]
async fn where_something_stale_answers_no_second_leader_follows() {
    for (failure, directives) in [
        ((|| Answer::status(500)) as fn() -> Answer, "max-age=10, stale-if-error=600"),
        (Answer::error, "max-age=10, stale-if-error=600"),
        (Answer::error, "max-age=10, stale-while-revalidate=600"),
    ] {
        let origin = Origin::new(move |_| Answer::ok(directives, "old"));
        let app = app(&origin);
        send(&app, get("/report")).await;
        origin.answers(move |_| failure());
        pass(secs(11)).await;
        let replies = crowd(&app, 10, from_client).await;
        assert!(replies.iter().all(|reply| reply.text() == "old"), "{directives}");
        pass(secs(1)).await;
        assert_eq!(origin.calls(), 2, "{directives}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_failure_of_the_second_leader_goes_to_all() {
    let origin = Origin::new(|call| Answer::status(500).body(call.n.to_string()));
    let mut replies = crowd(&app(&origin), 30, from_client).await;
    assert_eq!(origin.calls(), 2);
    assert_eq!(replies.remove(0).text(), "0");
    assert!(replies.iter().all(|reply| (reply.status, reply.text()) == (500, "1")));
}

#[tokio::test(start_paused = true)]
async fn a_second_leader_that_panics_is_the_last() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::error(),
        _ => Answer::panic(),
    });
    let got = crowd_of(&app(&origin), 10, from_client).await;
    assert_eq!(origin.calls(), 2);
    let told = got.iter().filter(|got| matches!(got, Got::Reply(reply) if reply.status == 500));
    assert_eq!(told.count(), 8);
}

#[tokio::test(start_paused = true)]
async fn an_elected_client_that_hangs_up_leaves_its_result_to_the_others() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::error(),
        _ => Answer::ok("max-age=60", "good"),
    });
    let app = app(&origin);
    let clients: Vec<_> = (0..10)
        .map(|i| {
            let app = app.clone();
            spawn(async move { try_send(&app, from_client(i)).await })
        })
        .collect();
    pass(WORK + ms(1)).await;
    assert_eq!(origin.calls(), 2);
    let elected = origin.last().header("user-agent").unwrap().to_owned();
    let mut answered = 0;
    for (i, client) in clients.into_iter().enumerate() {
        if format!("client {i}") == elected {
            client.abort();
        } else if let Ok(reply) = client.await.unwrap() {
            assert_eq!(reply.text(), "good");
            answered += 1;
        }
    }
    assert_eq!((answered, origin.calls()), (8, 2));
}

#[tokio::test(start_paused = true)]
async fn a_hold_counts_waves_and_not_leaders() {
    let origin = Origin::new(|_| Answer::error());
    let app = app(&origin);
    crowd_of(&app, 10, from_client).await;
    // One wave has failed: the next is not held.
    crowd_of(&app, 10, from_client).await;
    assert_eq!(origin.calls(), 4);
    let held = send(&app, get("/report")).await;
    assert_eq!((held.status, origin.calls()), (503, 4));
}

#[tokio::test(start_paused = true)]
async fn two_requests_of_one_client_that_fail_in_turn_hold_the_page_for_it_alone() {
    for is_known in [false, true] {
        let origin = Origin::new(|call| match call.header("x-odd") {
            Some(_) => Answer::error(),
            None => Answer::ok("max-age=60", "good"),
        });
        let layer = origin_only().http_layer();
        let layer = match is_known {
            true => layer.client(|parts| parts.headers.get("x-client").cloned()),
            false => layer,
        };
        let app = layered(layer, &origin);
        let odd = |i: usize| {
            let field = if is_known { i.to_string() } else { "1".to_owned() };
            with("/report", &[("x-client", "attacker"), ("x-odd", &field)])
        };
        for _ in 0..3 {
            crowd_of(&app, 2, odd).await;
        }
        assert_eq!(send(&app, odd(0)).await.status, 503, "its own client is held");
        assert_eq!(send(&app, from_client(1)).await.text(), "good", "client known: {is_known}");
    }
}

#[tokio::test(start_paused = true)]
async fn processes_on_one_remote_have_two_leaders_in_all() {
    let double = Double::new();
    let origin = Origin::new(|call| match call.n {
        0 => Answer::error(),
        _ => Answer::ok("max-age=60", "good"),
    });
    let process = || -> HttpService<Origin> {
        let builder = Stampede::builder("web").origin_only();
        let cache = builder.remote(double.process(), RemoteSettings::new()).build().unwrap();
        cache.http_layer().layer(origin.clone())
    };
    let apps = [process(), process(), process()];
    let client = |i: usize| with("http://a/report", &[("user-agent", &format!("client {i}"))]);
    let (one, two, three) = tokio::join!(
        crowd_of(&apps[0], 10, client),
        crowd_of(&apps[1], 10, client),
        crowd_of(&apps[2], 10, client),
    );
    assert_eq!(good(&one) + good(&two) + good(&three), 29);
    assert_eq!(origin.calls(), 2);
}

// ---- errors without a lifetime ----

#[tokio::test(start_paused = true)]
async fn an_error_without_a_lifetime_goes_to_the_crowd_that_waits_and_is_not_stored() {
    for status in [400, 402, 404, 405, 409, 410, 414, 418, 422, 429, 451, 500, 501, 503, 505] {
        let origin = Origin::new(move |call| {
            let error = Answer::status(status).header("x-reason", "why");
            error.body(format!("error {}", call.n))
        });
        let cache = origin_only();
        let app = layered(cache.http_layer(), &origin);
        let replies = crowd(&app, 500, |_| get("/report")).await;
        assert_eq!(origin.calls(), 1, "{status}");
        for reply in &replies {
            assert_eq!((reply.status, reply.text()), (status, "error 0"));
            assert_eq!(reply.header("x-reason"), Some("why"));
        }
        assert_eq!((slowest(&replies), cache.stats().entries), (WORK, 0));
        assert_eq!(send(&app, get("/report")).await.text(), "error 1", "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_that_may_be_the_fault_of_one_request_is_not_forced_on_the_others() {
    for status in [400, 409, 415, 422, 431] {
        let origin = Origin::new(move |call| match call.header("user-agent") {
            Some("client 0") => Answer::status(status).body("bad"),
            _ => Answer::ok("max-age=60", "good"),
        });
        let got = crowd_of(&app(&origin), 20, from_client).await;
        assert_eq!((good(&got), origin.calls()), (19, 2), "{status}");
    }
    // The same for two requests concerns all.
    let origin = Origin::new(|call| Answer::status(400).body(call.n.to_string()));
    let replies = crowd(&app(&origin), 500, from_client).await;
    assert_eq!(origin.calls(), 2);
    assert!(replies[1..].iter().all(|reply| (reply.status, reply.text()) == (400, "1")));
}

#[tokio::test(start_paused = true)]
async fn an_absent_page_is_asked_for_once_by_clients_that_differ() {
    let origin = Origin::new(|_| Answer::status(404).body("absent"));
    let replies = crowd(&app(&origin), 500, from_client).await;
    assert!(replies.iter().all(|reply| (reply.status, reply.text()) == (404, "absent")));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_error_is_shared_no_further_than_a_response_is() {
    for (name, value) in [
        ("cache-control", "private"),
        ("cache-control", "no-store"),
        ("cache-control", "no-cache"),
        ("set-cookie", "id=mine"),
        ("vary", "*"),
        ("content-type", "text/event-stream"),
    ] {
        for status in [404, 500] {
            let origin = Origin::new(move |call| {
                Answer::status(status).header(name, value).body(format!("mine {}", call.n))
            });
            let replies = crowd(&app(&origin), 20, |_| get("/report")).await;
            let texts = replies.iter().map(Reply::text).filter(|text| text.starts_with("mine"));
            let (texts, count): (HashSet<_>, _) = (texts.clone().collect(), texts.count());
            assert_eq!(texts.len(), count, "{status} {name}: {value} went to several clients");
            assert!(replies.iter().all(|reply| reply.status == status));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_to_a_request_with_credentials_is_for_its_client_alone() {
    for status in [404, 400, 500] {
        let origin = Origin::new(move |call| {
            let who = call.header("authorization").unwrap_or("no one").to_owned();
            Answer::status(status).body(who)
        });
        let of = |i: usize| with("/report", &[("authorization", &format!("user {i}"))]);
        let replies = crowd(&app(&origin), 20, of).await;
        for (i, reply) in replies.iter().enumerate() {
            let text = reply.text();
            assert!(text == format!("user {i}") || !text.contains("user"), "{status}: {text}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_that_varies_goes_to_the_clients_that_select_it() {
    for status in [404, 500] {
        let origin = Origin::new(move |call| {
            let language = call.header("accept-language").unwrap_or("none").to_owned();
            Answer::status(status).header("vary", "accept-language").body(language)
        });
        let of = |i: usize| with("/report", &[("accept-language", ["de", "en"][i % 2])]);
        let replies = crowd(&app(&origin), 20, of).await;
        for (i, reply) in replies.iter().enumerate() {
            let (text, expected) = (reply.text(), ["de", "en"][i % 2]);
            assert!(text == expected || text.starts_with("computation failed"), "{text}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_with_a_long_body_is_shared_while_it_arrives() {
    let body = || {
        let parts = (0..8).map(|i| Ok::<_, std::io::Error>(format!("part {i};")));
        let parts = futures_util::stream::iter(parts);
        axum::body::Body::from_stream(futures_util::StreamExt::then(parts, |part| async {
            tokio::time::sleep(ms(10)).await;
            part
        }))
    };
    for status in [404, 500] {
        let origin = Origin::new(move |_| Answer::status(status).body(body()));
        let replies = crowd(&app(&origin), 50, |_| get("/report")).await;
        assert_eq!(origin.calls(), 1);
        assert!(replies.iter().all(|reply| reply.text().ends_with("part 7;") && !reply.broken));
        assert_eq!(slowest(&replies), WORK);
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_with_a_body_beyond_the_bound_is_not_kept() {
    for (status, calls) in [(500, 1), (404, 20)] {
        let origin = Origin::new(move |_| Answer::status(status).body("x".repeat(200)));
        let layer = origin_only().http_layer().max_body(100);
        let replies = crowd(&layered(layer, &origin), 20, |_| get("/report")).await;
        assert!(replies.iter().all(|reply| reply.status == status));
        assert_eq!(origin.calls(), calls, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_absent_page_that_varies_by_everything_or_is_too_long_is_tried_once_in_all_processes() {
    let limit = 1000;
    for (name, value, size) in [("vary", "*", 3), ("x-size", "large", limit + 1)] {
        let double = Double::new();
        let origin =
            Origin::new(move |_| Answer::status(404).header(name, value).body("a".repeat(size)));
        let process = || -> HttpService<Origin> {
            let builder = Stampede::builder("web").origin_only();
            let cache = builder.remote(double.process(), RemoteSettings::new()).build().unwrap();
            cache.http_layer().max_body(limit).layer(origin.clone())
        };
        let apps = [process(), process()];
        let client = |i: usize| with("http://a/report", &[("user-agent", &i.to_string())]);
        let others = |i| client(20 + i);
        let (one, two) = tokio::join!(crowd(&apps[0], 20, client), crowd(&apps[1], 20, others));
        assert!(one.iter().chain(&two).all(|reply| reply.status == 404));
        assert_eq!(origin.calls(), 40, "{name}");
        // Two leaders, whose requests differ, and then each client.
        assert_eq!(slowest(&one).max(slowest(&two)), WORK * 3, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_elsewhere_ends_what_a_second_leader_computes_of_a_variant() {
    for key_part in [false, true] {
        let double = Double::new();
        let version = Arc::new(AtomicUsize::new(0));
        let written = Arc::clone(&version);
        let origin = Origin::new(move |call| {
            let said = |name| call.header(name).unwrap_or_default().to_owned();
            if call.parts.method == "POST" {
                written.fetch_add(1, Ordering::SeqCst);
                return Answer::status(204).after(ms(10));
            }
            if said("user-agent") == "odd" {
                return Answer::error();
            }
            let body = format!("{} {}", said("x-kind"), written.load(Ordering::SeqCst));
            Answer::ok("max-age=60", body).header("vary", "x-kind")
        });
        let process = || -> HttpService<Origin> {
            let builder = Stampede::builder("web").origin_only();
            let cache = builder.remote(double.process(), RemoteSettings::new()).build().unwrap();
            let layer = cache.http_layer();
            let layer = if key_part { layer.key(|_| "part") } else { layer };
            layer.layer(origin.clone())
        };
        let apps = [process(), process()];
        let ask = |kind: &str, agent: &str| {
            with("http://a/report", &[("x-kind", kind), ("user-agent", agent)])
        };
        // The index of variants that the next leaders come by.
        for app in &apps {
            send(app, ask("x", "plain")).await;
        }
        let (app, odd) = (apps[1].clone(), ask("y", "odd"));
        let first = spawn(async move { try_send(&app, odd).await });
        pass(ms(10)).await;
        let (app, plain) = (apps[1].clone(), ask("y", "plain"));
        let second = spawn(async move { send(&app, plain).await });
        pass(WORK).await;
        // The second leader has asked the service, which has not answered yet.
        send(&apps[0], request("POST", "http://a/report", &[])).await;
        second.await.unwrap();
        drop(first.await.unwrap());
        pass(secs(1)).await;
        for app in &apps {
            assert_eq!(send(app, ask("y", "plain")).await.text(), "y 1", "{key_part}");
        }
    }
}
