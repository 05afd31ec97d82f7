//! A process that knows no variants of a URI, and a remote that does: one flight is for all, and
//! its leader reads on its way which variant its own request asks for.

use axum::body::Body;
use http::Request;
use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::remote::{Double, RemoteErrorKind, RemoteOp};
use tower_stampede::{Eviction, HttpStampede, Mode};

use super::{App, everywhere, joined, process, settings};
use crate::kit::http::{
    Answer, Origin, OriginError, Reply, WORK, get, layered, ms, pass, request, secs, send,
    try_send, with,
};
use crate::kit::spawn;

const FILE: &str = "http://a/file";

/// Answers everything with a response by language, which all may share.
fn by_language() -> Origin {
    Origin::new(|call| {
        let text = call.header("accept-language").unwrap_or("none").repeat(10);
        Answer::ok("public, max-age=60", text)
            .header("vary", "accept-language")
            .header("etag", "\"a\"")
    })
}

/// Another process has stored a variant that no client of the test asks for.
async fn another_has_stored_a_variant(double: &Double, origin: &Origin) -> App {
    let app = process(double, origin);
    let reply = send(&app, with(FILE, &[("accept-language", "fr")])).await;
    assert_eq!(reply.status, 200);
    double.delay(ms(1));
    app
}

fn german() -> Request<Body> {
    with(FILE, &[("accept-language", "de")])
}

#[tokio::test(start_paused = true)]
async fn as_many_callers_wait_as_the_bound_allows() {
    for bound in [1, 10] {
        let (double, origin) = (Double::new(), by_language());
        another_has_stored_a_variant(&double, &origin).await;
        let cache = joined(&double, settings().max_waiters_in_all(bound));
        let app = cache.http_layer().layer(origin.clone());
        let replies = everywhere(&[app], bound + 1, |_| german()).await;
        let refused = replies.iter().filter(|reply| reply.status != 200).count();
        assert_eq!((refused, origin.calls()), (0, 2), "with a bound of {bound}");
    }
}

#[tokio::test(start_paused = true)]
async fn heads_wait_for_the_get_that_leads() {
    let (double, origin) = (Double::new(), by_language());
    another_has_stored_a_variant(&double, &origin).await;
    let app = process(&double, &origin);
    let ask = |i: usize| match i {
        0 => german(),
        _ => request("HEAD", FILE, &[("accept-language", "de")]),
    };
    let replies = everywhere(&[app], 10, ask).await;
    assert!(replies.iter().all(|reply| reply.status == 200), "{replies:?}");
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn ranges_that_lead_no_flight_get_their_parts_from_the_get_that_leads() {
    for (range, fills, status) in [("bytes=0-3", false, 206), ("items=0-3", true, 200)] {
        let (double, origin) = (Double::new(), by_language());
        another_has_stored_a_variant(&double, &origin).await;
        let cache = joined(&double, settings());
        let app = layered(cache.http_layer().fill_from_ranges(fills), &origin);
        let ask = |i: usize| match i {
            0 => german(),
            _ => with(FILE, &[("accept-language", "de"), ("range", range)]),
        };
        let replies = everywhere(&[app], 10, ask).await;
        let of_status = replies.iter().filter(|reply| reply.status == status).count();
        assert_eq!(origin.calls(), 2, "{range}: {of_status} of status {status}");
    }
}

#[tokio::test(start_paused = true)]
async fn callers_with_credentials_share_a_variant_that_is_new_to_their_process() {
    let double = Double::new();
    let origin = Origin::new(|call| match call.n {
        0 => Answer::ok("public, max-age=1", "x"),
        _ => {
            let text = call.header("accept-language").unwrap_or("none").repeat(10);
            Answer::ok("public, max-age=60", text).header("vary", "accept-language")
        }
    });
    let cache = joined(&double, settings().uncacheable_for(secs(120)));
    let app: App = cache.http_layer().layer(origin.clone());
    let ask = |_| with(FILE, &[("accept-language", "de"), ("authorization", "Bearer a")]);
    send(&app, ask(0)).await;
    // The stored response has gone. That answers are shared is still known.
    cache.invalidate_path("/file").await;
    pass(secs(70)).await;
    assert_eq!(cache.stats().entries, 0);
    another_has_stored_a_variant(&double, &origin).await;
    let before = origin.calls();
    let replies = everywhere(&[app], 20, ask).await;
    assert!(replies.iter().all(|reply| reply.status == 200), "{replies:?}");
    assert_eq!(origin.calls() - before, 1);
}

#[tokio::test(start_paused = true)]
async fn the_work_of_a_leader_that_reads_of_its_variant_goes_on_when_its_client_hangs_up() {
    let (double, origin) = (Double::new(), by_language());
    another_has_stored_a_variant(&double, &origin).await;
    double.delay(ms(20));
    let app = process(&double, &origin);
    for hangs_up_after in [5, 30] {
        let client = {
            let app = app.clone();
            spawn(async move { send(&app, german()).await })
        };
        pass(ms(hangs_up_after)).await;
        client.abort();
        pass(secs(1)).await;
        assert_eq!(origin.calls(), 2, "after {hangs_up_after} ms");
        assert!(send(&app, german()).await.is(Hit));
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_reads_of_its_variant_keeps_its_rank_in_the_queue_for_places() {
    let (double, origin) = (Double::new(), by_language());
    double.delay(ms(1));
    let other = process(&double, &origin);
    let cache = joined(&double, settings().max_computations(1));
    let app: App = cache.http_layer().layer(origin.clone());
    let ask = |app: &App, request: Request<Body>| {
        let app = app.clone();
        spawn(async move { send(&app, request).await })
    };
    // It has the only place.
    let first = ask(&app, get("http://a/first"));
    pass(ms(10)).await;
    // Nothing is known of the file, anywhere, when its leader enters the queue.
    let german = ask(&app, german());
    pass(ms(10)).await;
    let later: Vec<_> = (0..5).map(|i| ask(&app, get(&format!("http://a/later/{i}")))).collect();
    // It would be done before the place is free.
    origin.answers(|_| {
        Answer::ok("public, max-age=60", "x").header("vary", "accept-language").after(ms(20))
    });
    send(&other, with(FILE, &[("accept-language", "fr")])).await;
    let text = || Answer::ok("public, max-age=60", "x").header("vary", "accept-language");
    origin.answers(move |_| text());
    first.await.unwrap();
    let reply = german.await.unwrap();
    assert_eq!(reply.status, 200);
    let paths: Vec<_> = origin.seen().iter().map(|call| call.uri()).collect();
    assert!(reply.took < WORK * 7 / 2, "{:?} {paths:?}", reply.took);
    for later in later {
        assert_eq!(later.await.unwrap().status, 200);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_keeps_no_index_costs_a_crowd_no_look_for_each_caller() {
    for eviction in [Eviction::ByPrice, Eviction::S3Fifo, Eviction::Lru, Eviction::TinyLfu] {
        for bytes in [600, 1200] {
            let (double, origin) = (Double::new(), by_language());
            another_has_stored_a_variant(&double, &origin).await;
            let settings = settings().eviction(eviction).max_bytes(bytes);
            let cache = joined(&double, settings);
            let app: App = cache.http_layer().layer(origin.clone());
            double.forget_calls();
            // Other responses come and go all the while.
            let others = {
                let app = app.clone();
                spawn(async move {
                    for i in 0..200 {
                        let app = app.clone();
                        spawn(async move { send(&app, get(&format!("http://a/other/{i}"))).await });
                        pass(ms(1)).await;
                    }
                })
            };
            pass(ms(150)).await;
            let replies = everywhere(&[app], 100, |_| german()).await;
            others.await.unwrap();
            let slowest = replies.iter().map(|reply| reply.took).max().unwrap();
            let is_file = |uri: &str| uri == FILE;
            let calls = origin.seen().iter().filter(|call| is_file(&call.uri())).count();
            let case = format!("{eviction:?} {bytes}: {slowest:?}, {calls} calls");
            assert!(slowest < WORK * 3 / 2, "{case}");
            assert_eq!(calls, 2, "{case}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_reads_of_its_variant_gets_the_part_or_the_condition_it_asked_for() {
    let (double, origin) = (Double::new(), by_language());
    another_has_stored_a_variant(&double, &origin).await;
    let cases: [(&[(&str, &str)], u16); 4] = [
        (&[("range", "bytes=0-3")], 206),
        (&[("range", "bytes=900-")], 416),
        (&[("if-none-match", "\"a\"")], 304),
        (&[("range", "bytes=0-3"), ("if-range", "\"b\"")], 200),
    ];
    for (i, (fields, status)) in cases.into_iter().enumerate() {
        let language = format!("l{i}");
        let mut all = vec![("accept-language", &*language)];
        all.extend(fields);
        let reply = send(&process(&double, &origin), with(FILE, &all)).await;
        assert_eq!(reply.status, status, "{fields:?}");
        let call = origin.last();
        assert_eq!(origin.calls(), i + 2);
        assert!(["range", "if-range", "if-none-match"].iter().all(|it| call.header(it).is_none()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_switch_while_a_leader_looks_for_its_variant_passes_the_request_on() {
    for mode in [Mode::Off, Mode::Observe] {
        for after in [5, 15, 25, 35, 45, 55, 65, 75, 85] {
            let (double, origin) = (Double::new(), by_language());
            another_has_stored_a_variant(&double, &origin).await;
            double.delay(ms(20));
            let cache: HttpStampede = joined(&double, settings());
            let app: App = cache.http_layer().layer(origin.clone());
            let ask = |fields: &[(&str, &str)]| {
                let mut all = vec![("accept-language", "de")];
                all.extend(fields);
                let (app, request) = (app.clone(), with(FILE, &all));
                spawn(async move { send(&app, request).await })
            };
            let clients =
                [ask(&[("range", "bytes=0-3")]), ask(&[("if-none-match", "\"a\"")]), ask(&[])];
            pass(ms(after)).await;
            cache.set_mode(mode);
            for client in clients {
                let reply: Reply = client.await.unwrap();
                assert!([200, 206, 304].contains(&reply.status), "{mode:?} {after} {reply:?}");
            }
            assert!(origin.calls() <= 5, "{mode:?} {after}: {}", origin.calls());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_wait_timeout_bounds_the_wait_for_a_variant_that_another_process_computes() {
    let (double, origin) = (Double::new(), by_language());
    another_has_stored_a_variant(&double, &origin).await;
    origin.answers(|_| Answer::never());
    let holder = process(&double, &origin);
    spawn(async move { send(&holder, german()).await });
    pass(ms(50)).await;
    let cache =
        joined(&double, settings().lease(secs(2)).wait_timeout(secs(3)).compute_timeout(secs(20)));
    let app: App = cache.http_layer().layer(origin.clone());
    let replies = everywhere(&[app], 10, |_| german()).await;
    for reply in replies {
        assert!(reply.took < ms(3300), "{reply:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_finds_its_variant_is_told_that_it_must_be_validated() {
    let double = Double::new();
    let origin = Origin::new(|_| {
        Answer::ok("max-age=1, must-revalidate", "x")
            .header("vary", "accept-language")
            .header("etag", "\"a\"")
    });
    let app = |double: &Double| {
        let layer = joined(double, settings()).http_layer();
        layered(layer.disconnected(|_: &OriginError| true), &origin)
    };
    send(&app(&double), german()).await;
    pass(secs(2)).await;
    double.delay(ms(1));
    origin.answers(|_| Answer::error());
    let late = app(&double);
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let app = late.clone();
            spawn(async move { try_send(&app, german()).await })
        })
        .collect();
    let mut got = Vec::new();
    for client in clients {
        got.push(client.await.unwrap().map_or(0, |reply| reply.status));
    }
    // Its leader has found the response that must be validated.
    assert_eq!(got[0], 504, "{got:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_callers_passes_a_wake_up_on_also_where_its_process_has_learned_variants()
{
    let double = Double::new();
    let origin = Origin::new(|call| match call.header("x-process") {
        Some("a") => Answer::error().after(ms(600)),
        Some("auth") => Answer::ok("public, max-age=60", "x").header("vary", "accept-language"),
        _ => Answer::ok("public, max-age=60", "x").header("vary", "accept-language"),
    });
    let ask = |app: &App, fields: &[(&str, &str)]| {
        let (app, request) = (app.clone(), with(FILE, fields));
        spawn(async move { try_send(&app, request).await })
    };
    let [a, b, c] = std::array::from_fn(|_| process(&double, &origin));
    let holder = ask(&a, &[("accept-language", "de"), ("x-process", "a")]);
    pass(ms(50)).await;
    let hangs_up = ask(&b, &[("accept-language", "de")]);
    pass(ms(50)).await;
    let waits = ask(&c, &[("accept-language", "de")]);
    pass(ms(50)).await;
    // It computes beside the lease, and its process knows the variants then.
    let with_credentials =
        [("accept-language", "fr"), ("authorization", "x"), ("x-process", "auth")];
    ask(&b, &with_credentials).await.unwrap().unwrap();
    hangs_up.abort();
    assert!(holder.await.unwrap().is_err());
    let reply = waits.await.unwrap().unwrap();
    assert!(reply.took < ms(500) + WORK * 2, "{reply:?}");
}

#[tokio::test(start_paused = true)]
async fn a_remote_that_fails_while_a_leader_looks_for_its_variant_costs_one_request() {
    for after in [5, 15, 25, 35, 45, 55, 65, 75] {
        let (double, origin) = (Double::new(), by_language());
        another_has_stored_a_variant(&double, &origin).await;
        double.delay(ms(10));
        let app = process(&double, &origin);
        let fails = async {
            pass(ms(after)).await;
            let all = [RemoteOp::Get, RemoteOp::Acquire, RemoteOp::Fill];
            double.fail(&all, RemoteErrorKind::Connection);
        };
        let apps = [app];
        let (replies, ()) = tokio::join!(everywhere(&apps, 20, |_| german()), fails);
        assert!(replies.iter().all(|reply| reply.status == 200), "{replies:?}");
        assert_eq!(origin.calls(), 2, "after {after} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_query_whose_leader_reads_of_its_variant_has_its_body() {
    let double = Double::new();
    let origin = Origin::new(|call| {
        let body = String::from_utf8_lossy(&call.body).into_owned();
        Answer::ok("max-age=60", body).header("vary", "accept-language")
    });
    let ask = |language: &str| {
        let fields = [("content-type", "text/plain"), ("accept-language", language)];
        let mut query = request("QUERY", "http://a/x", &fields);
        *query.body_mut() = "what is it".into();
        query
    };
    send(&process(&double, &origin), ask("fr")).await;
    double.delay(ms(1));
    let apps = [process(&double, &origin)];
    let replies = everywhere(&apps, 20, |_| ask("de")).await;
    assert!(replies.iter().all(|reply| reply.text() == "what is it"), "{replies:?}");
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_crowd_for_a_variant_that_is_new_to_its_process_is_counted_once() {
    let (double, origin) = (Double::new(), by_language());
    another_has_stored_a_variant(&double, &origin).await;
    let cache = joined(&double, settings());
    let apps: [App; 1] = [cache.http_layer().layer(origin.clone())];
    everywhere(&apps, 20, |_| german()).await;
    pass(secs(1)).await;
    let stats = cache.stats();
    assert_eq!((stats.computed, stats.joined, stats.computations), (1, 19, 1), "{stats:?}");
    assert_eq!((stats.flights, stats.waiting), (0, 0), "{stats:?}");
}

#[tokio::test(start_paused = true)]
async fn what_varies_no_more_is_one_request_of_a_process_that_knows_no_variants() {
    for status in [200, 503] {
        let (double, origin) = (Double::new(), by_language());
        another_has_stored_a_variant(&double, &origin).await;
        origin.answers(move |_| match status {
            200 => Answer::ok("public, max-age=60", "for all"),
            _ => Answer::status(status),
        });
        let apps = [process(&double, &origin)];
        let ask = |i: usize| with(FILE, &[("accept-language", &*format!("l{i}"))]);
        let replies = everywhere(&apps, 20, ask).await;
        assert!(replies.iter().all(|reply| reply.status == status), "{replies:?}");
        assert_eq!(origin.calls() - 1, 1, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn nested_layers_find_a_variant_with_one_place() {
    let (double, origin) = (Double::new(), by_language());
    another_has_stored_a_variant(&double, &origin).await;
    let cache = joined(&double, settings().max_computations(1));
    let app = cache.http_layer().layer(cache.http_layer().layer(origin.clone()));
    let clients: Vec<_> = (0..10)
        .map(|_| {
            let app = app.clone();
            spawn(async move { send(&app, german()).await })
        })
        .collect();
    for client in clients {
        let reply = client.await.unwrap();
        assert!(reply.status == 200 && reply.took < WORK * 3 / 2, "{reply:?}");
    }
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_crowd_goes_on_when_the_client_of_a_leader_that_looks_for_its_variant_hangs_up() {
    for after in (5..100).step_by(5) {
        let (double, origin) = (Double::new(), by_language());
        another_has_stored_a_variant(&double, &origin).await;
        double.delay(ms(10));
        let cache = joined(&double, settings());
        let app: App = cache.http_layer().layer(origin.clone());
        let mut clients = (0..10).map(|_| {
            let app = app.clone();
            spawn(async move { send(&app, german()).await })
        });
        let first = clients.next().unwrap();
        let others: Vec<_> = clients.collect();
        pass(ms(after)).await;
        first.abort();
        for client in others {
            let reply = client.await.unwrap();
            assert!(reply.status == 200 && reply.took < WORK * 5 / 2, "{reply:?}");
        }
        pass(secs(1)).await;
        let stats = cache.stats();
        assert_eq!((origin.calls(), stats.flights, stats.waiting), (2, 0, 0), "after {after} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lone_client_of_a_variant_looks_once() {
    let (double, origin) = (Double::new(), by_language());
    another_has_stored_a_variant(&double, &origin).await;
    double.delay(ms(20));
    double.forget_calls();
    let reply = send(&process(&double, &origin), german()).await;
    pass(secs(1)).await;
    // The index and the variant, and the index once more to note the variant in it.
    assert_eq!(double.calls(RemoteOp::Get), 3, "{:?} in {:?}", double.all_calls(), reply.took);
}

#[tokio::test(start_paused = true)]
async fn a_crowd_is_served_the_stale_variant_that_its_leader_finds_if_the_origin_fails() {
    let double = Double::new();
    let origin = Origin::new(|_| {
        Answer::ok("max-age=1, stale-if-error=60", "x")
            .header("vary", "accept-language")
            .header("etag", "\"a\"")
    });
    send(&process(&double, &origin), german()).await;
    pass(secs(2)).await;
    double.delay(ms(1));
    origin.answers(|_| Answer::status(503));
    let apps = [process(&double, &origin)];
    let replies = everywhere(&apps, 20, |_| german()).await;
    assert!(replies.iter().all(|reply| reply.status == 200), "{replies:?}");
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_outage_costs_each_process_one_request_for_each_variant_and_one_more() {
    const LANGUAGES: [&str; 3] = ["de", "en", "it"];
    let (double, origin) = (Double::new(), by_language());
    another_has_stored_a_variant(&double, &origin).await;
    let before = origin.calls();
    origin.answers(|_| Answer::status(503).header("vary", "accept-language"));
    let apps = [process(&double, &origin), process(&double, &origin)];
    let ask = |i: usize| with(FILE, &[("accept-language", LANGUAGES[i % LANGUAGES.len()])]);
    let late = async {
        // By now the leaders have read of the variants: these callers have flights by variant.
        pass(WORK / 2).await;
        everywhere(&apps, 60, ask).await
    };
    let (replies, late) = tokio::join!(everywhere(&apps, 60, ask), late);
    assert!(replies.iter().chain(&late).all(|reply| reply.status == 503));
    let calls = origin.calls() - before;
    assert!(calls <= apps.len() * (LANGUAGES.len() + 1), "{calls} calls");
}
