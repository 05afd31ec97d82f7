//! What is computed once, and what travels.

use tower_layer::Layer;
use tower_stampede::remote::{Double, RemoteOp, RemoteSettings};
use tower_stampede::{CacheFor, CacheOutcome};

use super::{everywhere, joined, process, processes, settings};
use crate::kit::http::{Answer, Origin, WORK, crowd, get, ms, pass, request, secs, send, slowest};
use crate::kit::spawn;

fn minute() -> Origin {
    Origin::new(|call| Answer::ok("max-age=60", format!("answer {}", call.n)))
}

#[tokio::test(start_paused = true)]
async fn a_cold_crowd_at_many_processes_is_one_call() {
    let (double, origin) = (Double::new(), minute());
    let apps = processes(&double, &origin, 8);
    let replies = everywhere(&apps, 50, |_| get("http://a/x")).await;
    assert_eq!(origin.calls(), 1);
    assert!(replies.iter().all(|reply| reply.status == 200 && reply.text() == "answer 0"));
    // Three for the leader, three for each process that waits.
    assert_eq!(double.calls(RemoteOp::Acquire), 8);
    assert_eq!(double.calls(RemoteOp::Fill), 1);
    assert_eq!(double.calls(RemoteOp::Get), 15);
}

#[tokio::test(start_paused = true)]
async fn the_whole_response_travels() {
    let (double, origin) = (
        Double::new(),
        Origin::new(|_| {
            Answer::status(203)
                .header("cache-control", "max-age=60")
                .header("x-many", "1")
                .header("etag", "\"v1\"")
                .header("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT")
                .header("x-many", "2")
                .header("cache-status", "Upstream; hit")
                .body("body")
        }),
    );
    let apps = processes(&double, &origin, 2);
    let own = send(&apps[0], get("http://a/x")).await;
    let other = send(&apps[1], get("http://a/x")).await;
    assert_eq!(origin.calls(), 1);
    assert_eq!((other.status, other.text()), (203, "body"));
    assert_eq!(other.all("x-many"), ["1", "2"]);
    assert_eq!(other.header("etag"), Some("\"v1\""));
    assert_eq!(other.header("last-modified"), own.header("last-modified"));
    assert_eq!(other.declared, Some(4));
    let status = other.all("cache-status").join(", ");
    assert!(status.starts_with("Upstream; hit, "), "{status}");
    assert!(status.ends_with("; hit; ttl=59") || status.ends_with("; hit; ttl=60"), "{status}");
    assert!(other.is(CacheOutcome::Hit));
}

#[tokio::test(start_paused = true)]
async fn age_counts_from_the_start_of_the_computation_whichever_process_answers() {
    let origin = Origin::new(|_| Answer::ok("max-age=100", "x").header("age", "10").after(secs(2)));
    let double = Double::new();
    let apps = processes(&double, &origin, 2);
    send(&apps[0], get("http://a/x")).await;
    pass(secs(5)).await;
    let reply = send(&apps[1], get("http://a/x")).await;
    assert_eq!(reply.header("age"), Some("17"));
    // To the millisecond, rounded down.
    let status = reply.cache_status();
    assert!(status.ends_with("ttl=83") || status.ends_with("ttl=82"), "{status}");
    pass(secs(82)).await;
    assert_eq!(send(&apps[1], get("http://a/x")).await.header("age"), Some("99"));
    pass(secs(2)).await;
    send(&apps[1], get("http://a/x")).await;
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_local_hit_asks_the_remote_nothing() {
    let (double, origin) = (Double::new(), minute());
    let apps = processes(&double, &origin, 2);
    everywhere(&apps, 3, |_| get("http://a/x")).await;
    pass(secs(1)).await;
    double.forget_calls();
    let replies = everywhere(&apps, 20, |_| get("http://a/x")).await;
    assert!(replies.iter().all(|reply| reply.is(CacheOutcome::Hit)));
    let mut calls = double.all_calls();
    // A heartbeat may be due: it does not depend on requests.
    calls.remove(&RemoteOp::ReadLog);
    assert!(calls.is_empty(), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn a_path_is_invalidated_in_every_process_whatever_its_query() {
    let (double, origin) = (Double::new(), minute());
    let caches: Vec<_> = (0..3).map(|_| joined(&double, settings())).collect();
    let apps: Vec<_> = caches.iter().map(|c| c.http_layer().layer(origin.clone())).collect();
    everywhere(&apps, 2, |_| get("http://a/x?q=1")).await;
    everywhere(&apps, 2, |_| get("http://a/y")).await;
    assert_eq!(origin.calls(), 2);
    caches[0].invalidate_path("/x").await;
    // What starts in the same millisecond counts as invalidated.
    pass(ms(1)).await;
    let replies = everywhere(&apps, 2, |_| get("http://a/x?q=1")).await;
    assert!(replies.iter().all(|reply| reply.text() == "answer 2"), "{replies:?}");
    everywhere(&apps, 2, |_| get("http://a/y")).await;
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_handler_s_tag_is_invalidated_in_every_process() {
    let origin = Origin::new(|call| {
        let for_long = CacheFor::new(secs(60)).tag("user:7");
        Answer::status(200).body(format!("answer {}", call.n)).extension(for_long)
    });
    let double = Double::new();
    let caches: Vec<_> = (0..2).map(|_| joined(&double, settings())).collect();
    let apps: Vec<_> = caches.iter().map(|c| c.http_layer().layer(origin.clone())).collect();
    everywhere(&apps, 1, |_| get("http://a/x")).await;
    caches[1].invalidate_tag("user:7").await;
    pass(ms(1)).await;
    let replies = everywhere(&apps, 1, |_| get("http://a/x")).await;
    assert!(replies.iter().all(|reply| reply.text() == "answer 1"), "{replies:?}");
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn after_the_response_to_an_unsafe_request_no_process_has_the_old_one() {
    for method in ["POST", "PUT", "DELETE", "PATCH", "FROBNICATE"] {
        let (double, origin) = (Double::new(), minute());
        let apps = processes(&double, &origin, 3);
        everywhere(&apps, 1, |_| get("http://a/x")).await;
        origin.answers(|call| match call.parts.method.as_str() {
            "GET" => Answer::ok("max-age=60", "new"),
            _ => Answer::status(204),
        });
        assert_eq!(send(&apps[0], request(method, "http://a/x", &[])).await.status, 204);
        pass(ms(1)).await;
        let replies = everywhere(&apps, 5, |_| get("http://a/x")).await;
        assert!(replies.iter().all(|reply| reply.text() == "new"), "{method}");
        assert_eq!(origin.calls(), 3, "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_begun_before_an_unsafe_request_elsewhere_is_not_served_after_it() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "old").after(secs(2)));
    let double = Double::new();
    let apps = processes(&double, &origin, 3);
    let early = {
        let app = apps[1].clone();
        spawn(async move { send(&app, get("http://a/x")).await })
    };
    pass(secs(1)).await;
    origin.answers(|call| match call.parts.method.as_str() {
        "GET" => Answer::ok("max-age=60", "new"),
        _ => Answer::status(204),
    });
    send(&apps[0], request("POST", "http://a/x", &[])).await;
    let replies = everywhere(&apps, 3, |_| get("http://a/x")).await;
    assert!(replies.iter().all(|reply| reply.text() == "new"), "{replies:?}");
    assert_eq!(early.await.unwrap().text(), "old");
    pass(secs(5)).await;
    let replies = everywhere(&apps, 3, |_| get("http://a/x")).await;
    assert!(replies.iter().all(|reply| reply.text() == "new"), "{replies:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_on_its_unsafe_request_leaves_nobody_with_the_old_response() {
    for hung_up_after in [0, 50, 100, 101] {
        let (double, origin) = (Double::new(), minute());
        let apps = processes(&double, &origin, 2);
        everywhere(&apps, 1, |_| get("http://a/x")).await;
        double.delay(ms(5));
        let post = send(&apps[0], request("POST", "http://a/x", &[]));
        let _ = tokio::time::timeout(ms(hung_up_after), post).await;
        pass(secs(1)).await;
        let reply = send(&apps[1], get("http://a/x")).await;
        assert_ne!(reply.text(), "answer 0", "after {hung_up_after} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_over_the_bound_streams_and_leaves_the_process_never() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", vec![b'x'; 2 << 20]));
    let double = Double::new();
    let apps = processes(&double, &origin, 2);
    for app in &apps {
        let reply = send(app, get("http://a/x")).await;
        assert_eq!((reply.body.len(), reply.broken), (2 << 20, false));
    }
    assert_eq!(origin.calls(), 2);
    // At most the word that there is nothing to share.
    let reply = send(&process(&double, &origin), get("http://a/x")).await;
    assert!(!reply.is(CacheOutcome::Hit));
}

#[tokio::test(start_paused = true)]
async fn a_response_too_large_for_the_remote_is_kept_by_the_process() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", vec![b'x'; 10_000]));
    let double = Double::new();
    let small = || RemoteSettings::new().max_value_bytes(1000);
    let make = || settings().remote(double.process(), small()).build().unwrap();
    let apps: Vec<_> = (0..2).map(|_| make().http_layer().layer(origin.clone())).collect();
    // Until it is linked, a process does not know what it may have missed.
    everywhere(&apps, 1, |_| get("http://a/first")).await;
    let before = origin.calls();
    let replies = everywhere(&apps, 10, |_| get("http://a/x")).await;
    assert!(replies.iter().all(|reply| reply.body.len() == 10_000));
    assert_eq!(origin.calls() - before, 2);
    let again = everywhere(&apps, 10, |_| get("http://a/x")).await;
    assert!(again.iter().all(|reply| reply.is(CacheOutcome::Hit)));
}

#[tokio::test(start_paused = true)]
async fn the_response_to_a_post_is_not_stored_where_there_is_a_remote() {
    let origin = Origin::new(|call| match call.parts.method.as_str() {
        "POST" => Answer::ok("max-age=60", "of the post").header("content-location", "http://a/x"),
        _ => Answer::ok("max-age=60", "of the get"),
    });
    let double = Double::new();
    let apps = processes(&double, &origin, 2);
    send(&apps[0], request("POST", "http://a/x", &[])).await;
    pass(ms(1)).await;
    for app in &apps {
        assert_eq!(send(app, get("http://a/x")).await.text(), "of the get");
    }
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn head_is_answered_from_what_came_through_the_remote() {
    let (double, origin) = (Double::new(), minute());
    let apps = processes(&double, &origin, 2);
    everywhere(&apps, 1, |_| get("http://a/x")).await;
    let reply = send(&apps[1], request("HEAD", "http://a/x", &[])).await;
    assert!(reply.is(CacheOutcome::Hit));
    assert_eq!((reply.body.len(), reply.header("content-length")), (0, Some("8")));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_head_miss_leads_nobody_and_fills_nothing() {
    let (double, origin) = (Double::new(), minute());
    let apps = processes(&double, &origin, 2);
    send(&apps[0], request("HEAD", "http://a/x", &[])).await;
    assert_eq!(double.calls(RemoteOp::Acquire), 0);
    let replies = everywhere(&apps, 5, |_| get("http://a/x")).await;
    assert!(replies.iter().all(|reply| reply.text() == "answer 1"));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_stale_response_is_served_by_every_process_at_once_and_refreshed_by_one() {
    let origin = Origin::new(|call| {
        Answer::ok("max-age=10, stale-while-revalidate=60", format!("answer {}", call.n))
    });
    let double = Double::new();
    let mut apps = processes(&double, &origin, 3);
    everywhere(&apps, 1, |_| get("http://a/x")).await;
    pass(secs(20)).await;
    // One that has nothing yet.
    apps.push(process(&double, &origin));
    let replies = everywhere(&apps, 20, |_| get("http://a/x")).await;
    assert!(
        replies.iter().all(|reply| reply.text() == "answer 0" && reply.is(CacheOutcome::Stale)
            || reply.is(CacheOutcome::Joined))
    );
    assert!(slowest(&replies) < WORK, "no caller waits for the refresh");
    pass(secs(1)).await;
    assert_eq!(origin.calls(), 2);
    everywhere(&apps, 1, |_| get("http://a/x")).await;
    pass(secs(1)).await;
    let replies = everywhere(&apps, 1, |_| get("http://a/x")).await;
    assert!(replies.iter().all(|reply| reply.text() == "answer 1"), "{replies:?}");
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_its_remote_a_process_is_as_it_was_alone() {
    let (double, origin) = (Double::new(), minute());
    double.freeze();
    let apps = processes(&double, &origin, 2);
    let replies = everywhere(&apps, 100, |_| get("http://a/x")).await;
    assert!(replies.iter().all(|reply| reply.status == 200));
    assert_eq!(origin.calls(), 2);
    // Before its first answer a remote may be slow.
    assert!(slowest(&replies) < WORK + ms(500), "{:?}", slowest(&replies));
    // Each process serves what it has stored; by now none asks the remote any more.
    everywhere(&apps, 1, |_| get("http://a/1")).await;
    everywhere(&apps, 1, |_| get("http://a/2")).await;
    let replies = everywhere(&apps, 100, |_| get("http://a/3")).await;
    assert!(slowest(&replies) < WORK + ms(10), "{:?}", slowest(&replies));
    let calls = origin.calls();
    assert!(
        everywhere(&apps, 9, |_| get("http://a/3")).await.iter().all(|r| r.is(CacheOutcome::Hit))
    );
    assert_eq!(origin.calls(), calls);
}

#[tokio::test(start_paused = true)]
async fn unsafe_requests_are_heard_of_once_the_remote_is_back() {
    let (double, origin) = (Double::new(), minute());
    let apps = processes(&double, &origin, 2);
    everywhere(&apps, 1, |_| get("http://a/x")).await;
    double.freeze();
    send(&apps[0], request("POST", "http://a/x", &[])).await;
    assert_eq!(send(&apps[0], get("http://a/x")).await.text(), "answer 2");
    double.thaw();
    pass(secs(10)).await;
    let reply = send(&apps[1], get("http://a/x")).await;
    assert_ne!(reply.text(), "answer 0");
}

#[tokio::test(start_paused = true)]
async fn the_leader_s_client_may_hang_up_at_any_moment() {
    for after in 0..14 {
        let (double, origin) = (Double::new(), minute());
        double.delay(ms(10));
        let apps = processes(&double, &origin, 2);
        let gone = send(&apps[0], get("http://a/x"));
        let _ = tokio::time::timeout(ms(after * 10 + 1), gone).await;
        let replies = everywhere(&apps, 10, |_| get("http://a/x")).await;
        assert!(replies.iter().all(|reply| reply.text() == "answer 0"), "after {after}");
        assert_eq!(origin.calls(), 1, "after {after}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_too_long_for_another_process_gets_a_response_of_ours() {
    let (double, origin) = (Double::new(), Origin::new(|_| Answer::never()));
    let short = || settings().lease(secs(1)).compute_timeout(secs(20)).wait_timeout(secs(2));
    let make = || joined(&double, short()).http_layer().layer(origin.clone());
    let apps: Vec<_> = (0..2).map(|_| make()).collect();
    let leader = apps[0].clone();
    let leader = spawn(async move { send(&leader, get("http://a/x")).await });
    pass(ms(1)).await;
    let replies = crowd(&apps[1], 10, |_| get("http://a/x")).await;
    assert!(
        replies.iter().all(|reply| reply.status == 503 && reply.header("retry-after").is_some())
    );
    assert_eq!(origin.calls(), 1);
    leader.abort();
}

#[tokio::test(start_paused = true)]
async fn after_the_local_ttl_a_response_is_asked_for_again_and_not_computed() {
    for vary in ["accept-language", ""] {
        let origin = Origin::new(move |call| {
            Answer::ok("max-age=60", format!("answer {}", call.n)).header("vary", vary)
        });
        let double = Double::new();
        let settings = RemoteSettings::new().local_ttl(secs(1));
        let cache = super::settings().remote(double.process(), settings).build().unwrap();
        let app = cache.http_layer().layer(origin.clone());
        send(&app, get("http://a/x")).await;
        for round in 1..4 {
            pass(ms(500)).await;
            double.forget_calls();
            assert_eq!(send(&app, get("http://a/x")).await.text(), "answer 0");
            assert_eq!(double.calls(RemoteOp::Get), 0, "{vary}: {round}");
            pass(ms(600)).await;
            let reply = send(&app, get("http://a/x")).await;
            assert_eq!(reply.text(), "answer 0");
            assert!(reply.is(CacheOutcome::Hit), "{}", reply.cache_status());
            assert!(double.calls(RemoteOp::Get) > 0, "{vary}: {round}");
        }
        double.freeze();
        for _ in 0..20 {
            pass(ms(1_100)).await;
            assert_eq!(send(&app, get("http://a/x")).await.text(), "answer 0");
        }
        assert_eq!(origin.calls(), 1, "{vary}");
    }
}
