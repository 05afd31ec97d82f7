//! What a write at one process ends in the remote and in other processes.

use axum::Router;
use axum::body::Body;
use axum::http::request::Parts;
use axum::routing::{get as route_get, post as route_post};
use http::Request;
use tower::ServiceExt;
use tower_layer::Layer;
use tower_stampede::remote::{Double, RemoteErrorKind, RemoteOp, RemoteSettings};
use tower_stampede::{Announcement, CacheOutcome, HttpLayer, HttpStampede};

use super::{App, joined, settings};
use crate::kit::http::{Answer, Origin, Reply, get, ms, pass, request, secs, send, with};
use crate::kit::spawn;

const PAGE: &str = "http://x/page";

type Fields = &'static [(&'static str, &'static str)];

/// GETs are answered with a number and what they ask for, writes with 204.
fn numbered() -> Origin {
    Origin::new(|call| match call.parts.method.as_str() {
        "GET" => Answer::ok("max-age=600", call.n.to_string()).header("vary", "a"),
        _ => Answer::status(204),
    })
}

fn plain() -> Origin {
    Origin::new(|call| match call.parts.method.as_str() {
        "GET" => Answer::ok("max-age=60", call.n.to_string()),
        _ => Answer::status(204),
    })
}

fn post(uri: &str) -> Request<Body> {
    request("POST", uri, &[])
}

fn by_region(layer: HttpLayer) -> HttpLayer {
    layer.key(|parts: &Parts| parts.headers.get("x-region").map(|it| it.as_bytes().to_vec()))
}

fn as_it_is(layer: HttpLayer) -> HttpLayer {
    layer
}

type Settings = fn(HttpLayer) -> HttpLayer;

fn process(double: &Double, origin: &Origin, tune: Settings) -> App {
    tune(joined(double, settings()).http_layer()).layer(origin.clone())
}

fn number(reply: &Reply) -> usize {
    reply.text().parse().unwrap()
}

/// A way in which two requests for one URI differ, so that each has a response of its own.
type Way = (&'static str, Settings, [(&'static str, Fields); 2]);

const WAYS: [Way; 6] = [
    ("variants", as_it_is, [(PAGE, &[("a", "1")]), (PAGE, &[("a", "2")])]),
    ("keys", by_region, [(PAGE, &[("x-region", "eu")]), (PAGE, &[])]),
    ("variants of a key", by_region, [(PAGE, &[("a", "1")]), (PAGE, &[("a", "2")])]),
    ("keyed fields", as_it_is, [(PAGE, &[("x-forwarded-host", "y")]), (PAGE, &[])]),
    ("schemes", as_it_is, [(PAGE, &[]), ("https://x/page", &[])]),
    ("places of the host", as_it_is, [(PAGE, &[]), ("/page", &[("host", "x")])]),
];

#[tokio::test(start_paused = true)]
async fn a_write_ends_every_response_for_its_uri_in_every_process() {
    for (name, tune, asked) in WAYS {
        let (double, origin) = (Double::new(), numbered());
        let (one, other) = (process(&double, &origin, tune), process(&double, &origin, tune));
        for app in [&one, &other] {
            for (uri, fields) in asked {
                send(app, with(uri, fields)).await;
                pass(ms(100)).await;
            }
        }
        assert_eq!(origin.calls(), 2, "{name}: both processes share them");
        send(&one, post("http://x/other")).await;
        pass(ms(100)).await;
        for (uri, fields) in asked {
            assert!(send(&other, with(uri, fields)).await.is(CacheOutcome::Hit), "{name}");
        }
        send(&one, request("POST", "/page", &[("host", "x")])).await;
        pass(ms(100)).await;
        for (uri, fields) in asked {
            assert!(number(&send(&other, with(uri, fields)).await) > 3, "{name}");
        }
        assert_eq!(origin.calls(), 6, "{name}");
        pass(ms(100)).await;
        for (uri, fields) in asked {
            assert!(number(&send(&one, with(uri, fields)).await) > 3, "{name}");
        }
        assert_eq!(origin.calls(), 6, "{name}: shared again");
    }
}

/// The process that is asked holds no copy, and no message reaches it.
#[tokio::test(start_paused = true)]
async fn after_a_write_nothing_in_the_remote_leads_to_what_was_there() {
    for (name, tune, asked) in WAYS {
        let (double, origin) = (Double::new(), numbered());
        let one = process(&double, &origin, tune);
        for (uri, fields) in asked {
            send(&one, with(uri, fields)).await;
            pass(ms(100)).await;
        }
        let late = process(&double, &origin, tune);
        send(&late, get("http://x/other")).await;
        double.lose_messages(true);
        send(&one, post(PAGE)).await;
        let before = origin.calls();
        for (uri, fields) in asked {
            assert!(number(&send(&late, with(uri, fields)).await) >= before, "{name}");
        }
    }
}

fn with_rules(cache: &HttpStampede, origin: &Origin) -> Router {
    let (read, write) = (origin.clone(), origin.clone());
    let read = route_get(move |request| read.clone().handle(request));
    let write = route_post(move |request| write.clone().handle(request));
    let shop = Router::new().route("/page", read.merge(write));
    let rules = |route: HttpLayer| route.query(["q"]).vary(["x-plan"]);
    Router::new().nest("/shop", shop).layer(cache.http_layer().route_rules("/shop/page", rules))
}

#[tokio::test(start_paused = true)]
async fn a_write_ends_what_the_rules_of_a_route_have_shared() {
    let (double, origin) = (Double::new(), plain());
    let ask = |method: &str| {
        let request = request(method, "/shop/page?q=1&x=2", &[("host", "x")]);
        request.map(|_| Body::empty())
    };
    let text = async |app: &Router, method: &str| {
        let response = app.clone().oneshot(ask(method)).await.unwrap();
        axum::body::to_bytes(Body::new(response.into_body()), 99).await.unwrap()
    };
    let caches: Vec<_> = (0..2).map(|_| joined(&double, settings())).collect();
    let apps: Vec<_> = caches.iter().map(|cache| with_rules(cache, &origin)).collect();
    for app in &apps {
        assert_eq!(text(app, "GET").await, "0");
        pass(ms(100)).await;
    }
    text(&apps[0], "POST").await;
    pass(ms(100)).await;
    assert_eq!(text(&apps[1], "GET").await, "2");
    double.lose_messages(true);
    text(&apps[0], "POST").await;
    let late = joined(&double, settings());
    assert_eq!(text(&with_rules(&late, &origin), "GET").await, "4");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_slower_than_a_write_leads_no_process_to_its_response() {
    for (name, tune, asked) in WAYS {
        // The leader computes the first response, or one more.
        for is_first in [true, false] {
            let (double, origin) = (Double::new(), numbered());
            let (one, other) = (process(&double, &origin, tune), process(&double, &origin, tune));
            if !is_first {
                send(&one, with(asked[1].0, asked[1].1)).await;
                pass(ms(100)).await;
            }
            let before = origin.calls();
            origin.answers(|call| match call.parts.method.as_str() {
                "GET" => Answer::ok("max-age=60", "old").header("vary", "a").after(secs(2)),
                _ => Answer::status(204),
            });
            let early = spawn({
                let app = one.clone();
                async move { send(&app, with(asked[0].0, asked[0].1)).await }
            });
            pass(secs(1)).await;
            assert_eq!(origin.calls() - before, 1);
            // Nothing but the remote itself tells of the write.
            double.lose_messages(true);
            send(&other, post(PAGE)).await;
            double.lose_messages(false);
            assert_eq!(early.await.unwrap().text(), "old");
            pass(secs(1)).await;
            origin.answers(|_| Answer::ok("max-age=60", "new").header("vary", "a"));
            let late = process(&double, &origin, tune);
            for app in [&other, &late] {
                let reply = send(app, with(asked[0].0, asked[0].1)).await;
                assert_eq!(reply.text(), "new", "{name}, first: {is_first}");
                pass(ms(100)).await;
            }
        }
    }
}

/// A process waits for the leader of a variant, and the write comes meanwhile.
#[tokio::test(start_paused = true)]
async fn a_process_that_waits_for_a_variant_begins_anew_once_its_uri_was_written_to() {
    let (double, origin) = (Double::new(), numbered());
    let apps: Vec<_> = (0..3).map(|_| process(&double, &origin, as_it_is)).collect();
    for app in &apps {
        send(app, with(PAGE, &[("a", "1")])).await;
        pass(ms(100)).await;
    }
    origin.answers(|call| match (call.parts.method.as_str(), call.n) {
        ("GET", 1) => Answer::ok("max-age=60", "old").header("vary", "a").after(secs(3)),
        ("GET", _) => Answer::ok("max-age=60", "new").header("vary", "a"),
        _ => Answer::status(204),
    });
    let ask = |app: &App| {
        let app = app.clone();
        spawn(async move { send(&app, with(PAGE, &[("a", "2")])).await })
    };
    let leader = ask(&apps[0]);
    pass(ms(100)).await;
    let waiter = ask(&apps[1]);
    pass(ms(100)).await;
    send(&apps[2], post(PAGE)).await;
    assert_eq!(leader.await.unwrap().text(), "old", "it came before the write");
    waiter.await.unwrap();
    pass(secs(1)).await;
    // What it has waited for is not what later requests get.
    for app in &apps {
        assert_eq!(send(app, with(PAGE, &[("a", "2")])).await.text(), "new");
    }
}

#[tokio::test(start_paused = true)]
async fn an_index_keeps_its_generation_when_variants_and_keys_are_added() {
    for (name, tune, _) in [WAYS[0], WAYS[2]] {
        let (double, origin) = (Double::new(), numbered());
        for n in 0..5_usize {
            // Each process fills one variant, and finds all those before it.
            let app = process(&double, &origin, tune);
            for a in 0..=n {
                let reply = send(&app, with(PAGE, &[("a", &a.to_string())])).await;
                assert_eq!(number(&reply), a, "{name}");
            }
            pass(ms(100)).await;
            assert_eq!(origin.calls(), n + 1);
        }
    }
    let (double, origin) = (Double::new(), plain());
    for n in 0..5_usize {
        let app = process(&double, &origin, by_region);
        for region in 0..=n {
            let reply = send(&app, with(PAGE, &[("x-region", &region.to_string())])).await;
            assert_eq!(number(&reply), region);
        }
        pass(ms(100)).await;
    }
    assert_eq!(origin.calls(), 5);
}

#[tokio::test(start_paused = true)]
async fn an_anchor_lasts_as_long_as_the_responses_behind_it() {
    let (double, origin) =
        (Double::new(), Origin::new(|call| Answer::ok("max-age=86400", call.n.to_string())));
    let ask = || with(PAGE, &[("x-region", "eu")]);
    send(&process(&double, &origin, by_region), ask()).await;
    for _ in 0..3 {
        pass(secs(6 * 3600)).await;
        assert_eq!(send(&process(&double, &origin, by_region), ask()).await.text(), "0");
    }
}

#[tokio::test(start_paused = true)]
async fn a_plain_miss_costs_three_commands_and_one_with_more_in_its_key_five_or_four() {
    let (double, origin) = (Double::new(), plain());
    let commands = async |app: &App, request: Request<Body>| {
        pass(secs(1)).await;
        double.forget_calls();
        send(app, request).await;
        pass(secs(1)).await;
        let count = |op| double.calls(op);
        [count(RemoteOp::Get), count(RemoteOp::Acquire), count(RemoteOp::Fill)]
    };
    let app = process(&double, &origin, as_it_is);
    send(&app, get("http://x/other")).await;
    assert_eq!(commands(&app, get(PAGE)).await, [1, 1, 1]);
    let app = process(&double, &origin, by_region);
    send(&app, get("http://x/other")).await;
    let of = |region: &str| with(PAGE, &[("x-region", region)]);
    assert_eq!(commands(&app, of("eu")).await, [1, 2, 2], "it fills the anchor");
    assert_eq!(commands(&app, of("us")).await, [2, 1, 1]);
    assert_eq!(commands(&app, of("us")).await, [0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_write_is_announced_once_and_delays_no_other_uri() {
    let (double, origin) = (Double::new(), plain());
    let (one, other) = (process(&double, &origin, as_it_is), process(&double, &origin, as_it_is));
    send(&one, get(PAGE)).await;
    send(&other, get("http://x/other")).await;
    pass(ms(100)).await;
    double.forget_calls();
    for n in 0..100 {
        send(&one, post(&format!("http://x/{n}"))).await;
    }
    assert_eq!(double.calls(RemoteOp::Announce), 100);
    // For each scheme: each of three places of the host, and the anchor.
    assert_eq!(double.calls(RemoteOp::Invalidate), 800);

    double.delay(ms(80));
    let write = spawn({
        let app = one.clone();
        async move { send(&app, post(PAGE)).await }
    });
    pass(ms(150)).await;
    let reply = send(&one, get("http://x/third")).await;
    // The look, the lease and the work; what comes after does not delay the client.
    assert_eq!(reply.took, ms(2 * 80 + 100), "{reply:?}");
    write.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_write_that_the_remote_cannot_be_told_of_ends_what_is_there_once_it_is_back() {
    for (name, tune, asked) in WAYS {
        let (double, origin) = (Double::new(), numbered());
        let one = process(&double, &origin, tune);
        for (uri, fields) in asked {
            send(&one, with(uri, fields)).await;
            pass(ms(100)).await;
        }
        let ops = [RemoteOp::Invalidate, RemoteOp::Probe];
        double.fail(&ops, RemoteErrorKind::Unavailable);
        send(&one, post(PAGE)).await;
        let before = origin.calls();
        // It does not take over what it has not been able to end.
        for (uri, fields) in asked {
            assert!(number(&send(&one, with(uri, fields)).await) >= before, "{name}");
        }
        double.heal(&ops);
        pass(secs(60)).await;
        let late = process(&double, &origin, tune);
        for (uri, fields) in asked {
            assert!(number(&send(&late, with(uri, fields)).await) >= before, "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_invalidation_of_a_key_ends_what_other_processes_have_of_its_uri() {
    let (double, origin) = (Double::new(), numbered());
    let cache = joined(&double, settings());
    let one = cache.http_layer().layer(origin.clone());
    let other = process(&double, &origin, as_it_is);
    for app in [&one, &other] {
        for a in ["1", "2"] {
            send(app, with(PAGE, &[("a", a)])).await;
            pass(ms(100)).await;
        }
    }
    // As the layer makes it: the host is in the URI.
    let part = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    let parts = ["", "http", "x", "/page"].map(part).concat();
    let key = tower_stampede::Key::from_encoded(&[b"\0a", &parts[..]].concat());
    let done = cache.invalidate(key).await;
    assert!(done.local && done.remote == Announcement::Done);
    pass(ms(100)).await;
    for app in [&other, &one] {
        for a in ["1", "2"] {
            assert!(number(&send(app, with(PAGE, &[("a", a)])).await) >= 2);
            pass(ms(100)).await;
        }
    }
    assert_eq!(origin.calls(), 4);
}

/// The lease of what an anchor leads to outlives the write: the remote does not refuse the fill.
#[tokio::test(start_paused = true)]
async fn what_was_written_to_while_a_process_heard_nothing_does_not_stay_there() {
    for (name, tune, asked) in WAYS {
        let (double, origin) = (Double::new(), numbered());
        let remote = double.process();
        let cache = settings().remote(remote.clone(), RemoteSettings::new()).build().unwrap();
        let one = tune(cache.http_layer()).layer(origin.clone());
        let other = process(&double, &origin, tune);
        // There is an index, or an anchor.
        send(&one, with(asked[1].0, asked[1].1)).await;
        send(&other, get("http://x/other")).await;
        pass(ms(100)).await;
        origin.answers(|call| match call.parts.method.as_str() {
            "GET" => Answer::ok("max-age=600", "old").header("vary", "a").after(secs(2)),
            _ => Answer::status(204),
        });
        let early = spawn({
            let app = one.clone();
            async move { send(&app, with(asked[0].0, asked[0].1)).await }
        });
        pass(secs(1)).await;
        remote.unsubscribe();
        send(&other, post(PAGE)).await;
        remote.subscribe();
        assert_eq!(early.await.unwrap().text(), "old");
        pass(secs(1)).await;
        origin.answers(|_| Answer::ok("max-age=600", "new").header("vary", "a"));
        assert_eq!(send(&one, with(asked[0].0, asked[0].1)).await.text(), "new", "{name}");
    }
}

// The log and the messages carry a digest of it.
#[tokio::test(start_paused = true)]
async fn a_write_to_a_long_uri_ends_what_other_processes_have_of_it() {
    let (double, origin) = (Double::new(), plain());
    let (one, other) = (process(&double, &origin, as_it_is), process(&double, &origin, as_it_is));
    let uris = ["1", "2"].map(|end| format!("http://x/{}{end}", "long/".repeat(1000)));
    for uri in &uris {
        for app in [&one, &other] {
            send(app, get(uri)).await;
            pass(ms(100)).await;
        }
    }
    assert_eq!(origin.calls(), 2, "both processes share them");
    for is_away in [false, true] {
        let before = origin.calls();
        if is_away {
            double.fail(RemoteOp::ALL, RemoteErrorKind::Connection);
        }
        send(&one, post(&uris[0])).await;
        double.heal(RemoteOp::ALL);
        pass(secs(10)).await;
        assert!(number(&send(&other, get(&uris[0])).await) > before, "away: {is_away}");
        assert!(send(&other, get(&uris[1])).await.is(CacheOutcome::Hit), "away: {is_away}");
    }
}
