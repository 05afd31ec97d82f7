//! `Vary: Accept-Encoding`: one computation for each coding that the origin chooses, and no
//! client gets a coding that it refuses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use http::Request;
use proptest::prelude::*;
use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::remote::{Double, RemoteSettings};
use tower_stampede::{HttpService, Stampede};

use crate::kit::codings::{accepts, refuses};
use crate::kit::http::*;

/// Twenty ways to say that `gzip` is welcome.
const GZIP: [&str; 20] = [
    "gzip",
    "GZIP",
    "gzip;q=1.0",
    "gzip;q=0.5",
    "gzip ; q=0.001",
    "x-gzip",
    "gzip, deflate",
    "deflate,gzip",
    "gzip, gzip",
    "gzip, deflate, br, zstd",
    "zstd;q=0.1, br;q=0.2, gzip",
    "br;q=1.0, gzip;q=0.8, *;q=0.1",
    "*",
    "*;q=0.5",
    "br, *",
    "identity, gzip",
    "identity;q=0.5, gzip;q=1, *;q=0",
    "gzip, identity;q=0",
    "gzip, foo",
    " , gzip ,, br;q=0",
];

/// Ways to say that no coding is welcome.
const NONE: [&str; 6] =
    ["", "identity", "gzip;q=0", "gzip;q=0.000, identity", "foo", "*;q=0, identity"];

fn asking(accept: &str) -> Request<Body> {
    with("/report", &[("accept-encoding", accept)])
}

/// An origin that codes its responses by the first of `codings` that a request accepts, and
/// sends the others plain.
fn codes(codings: &'static [&'static str]) -> Origin {
    Origin::new(move |call| {
        let said = call.parts.headers.get_all("accept-encoding");
        let said: Vec<_> = said.iter().map(|value| value.to_str().unwrap().to_owned()).collect();
        let chosen = codings.iter().find(|coding| accepts(&said, coding) && !said.is_empty());
        let answer = Answer::ok("max-age=60", chosen.copied().unwrap_or("identity"));
        let answer = answer.header("vary", "Accept-Encoding");
        match chosen {
            Some(coding) => {
                answer.header("content-encoding", coding).header("etag", &format!("\"{coding}\""))
            }
            None => answer.header("etag", "\"identity\""),
        }
    })
}

/// The same where the origin names no `Vary`.
fn codes_without_vary(codings: &'static [&'static str]) -> Origin {
    Origin::new(move |call| {
        let said = call.parts.headers.get_all("accept-encoding");
        let said: Vec<_> = said.iter().map(|value| value.to_str().unwrap().to_owned()).collect();
        let chosen = codings.iter().find(|coding| accepts(&said, coding) && !said.is_empty());
        let coding = chosen.copied().unwrap_or("identity");
        let etag = format!("\"{coding}\"");
        if call.header("if-none-match") == Some(&etag) {
            return Answer::status(304).header("cache-control", "max-age=60").header("etag", &etag);
        }
        let answer = Answer::ok("max-age=60", coding).header("etag", &etag);
        if chosen.is_some() { answer.header("content-encoding", coding) } else { answer }
    })
}

fn assert_welcome(accept: &[String], reply: &Reply) {
    let coding = reply.header("content-encoding").unwrap_or("identity");
    assert_eq!(reply.text(), coding);
    assert!(accepts(accept, coding), "{accept:?} {coding}");
}

fn assert_all_welcome(values: &[&str], replies: &[Reply]) {
    for (i, reply) in replies.iter().enumerate() {
        assert_welcome(&[values[i % values.len()].to_owned()], reply);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stored_gzip_body_answers_every_spelling_that_accepts_it() {
    let origin = codes(&["gzip"]);
    let app = app(&origin);
    for accept in GZIP {
        let reply = send(&app, asking(accept)).await;
        assert_eq!(reply.text(), "gzip", "{accept}");
    }
    assert_eq!(origin.calls(), 1);
    let lines = Request::get("/report").header("accept-encoding", "br");
    let lines = lines.header("accept-encoding", "gzip;q=0.1").body(Body::empty()).unwrap();
    assert!(send(&app, lines).await.is(Hit));
}

#[tokio::test(start_paused = true)]
async fn a_crowd_with_twenty_spellings_is_one_computation_per_coding() {
    let all: Vec<_> = GZIP.iter().chain(&NONE).copied().collect();
    for (codings, first, calls) in [
        (&["gzip"][..], 0, 2),
        (&["gzip"], GZIP.len(), 2),
        (&["br", "gzip"], 0, 3),
        (&["br", "gzip"], 9, 3),
        (&["br", "gzip"], GZIP.len(), 3),
        (&["zstd", "br", "gzip"], 5, 4),
    ] {
        let mut values = all.clone();
        values.rotate_left(first);
        let origin = codes(codings);
        let app = app(&origin);
        let replies = crowd(&app, 500, |i| asking(values[i % values.len()])).await;
        assert_all_welcome(&values, &replies);
        assert!(origin.calls() <= calls, "{codings:?} {first}: {}", origin.calls());
        // The next crowd knows the codings, and asks for each at once.
        pass(secs(61)).await;
        let before = origin.calls();
        let replies = crowd(&app, 500, |i| asking(values[i % values.len()])).await;
        assert_all_welcome(&values, &replies);
        assert!(origin.calls() - before <= calls, "{codings:?} {first}: {}", origin.calls());
        let replies = crowd(&app, 500, |i| asking(values[i % values.len()])).await;
        assert!(replies.iter().all(|reply| reply.is(Hit)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_that_is_never_coded_is_computed_once_for_all_that_accept_gzip() {
    let origin = codes(&[]);
    let app = app(&origin);
    let values: Vec<_> =
        GZIP.iter().chain(&NONE).filter(|it| !it.contains("identity;q=0")).collect();
    crowd(&app, 500, |i| asking(values[i % values.len()])).await;
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_client_without_codings_does_not_switch_them_off_for_others() {
    let origin = codes(&["gzip"]);
    let app = app(&origin);
    for first in ["identity", "br", ""] {
        assert_eq!(send(&app, asking(first)).await.text(), "identity");
    }
    assert_eq!(origin.calls(), 1);
    assert_eq!(send(&app, asking("gzip")).await.text(), "gzip");
    assert_eq!(origin.calls(), 2);
    // Nor where the page is not compressed: the origin has to be asked once.
    let origin = codes(&[]);
    let app = layered(origin_only().http_layer(), &origin);
    for accept in ["identity", "gzip", "br, gzip", "", "zstd"] {
        send(&app, asking(accept)).await;
    }
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_accepts_only_gzip_has_its_own_computation_beside_a_stored_br() {
    let origin = codes(&["br", "gzip"]);
    let app = app(&origin);
    assert_eq!(send(&app, asking("gzip, br")).await.text(), "br");
    assert_eq!(send(&app, asking("gzip")).await.text(), "gzip");
    // The preferred one of both, whichever came last.
    assert_eq!(send(&app, asking("gzip, br")).await.text(), "br");
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_accepts_more_is_answered_with_a_stored_gzip() {
    let origin = codes(&["br", "gzip"]);
    let app = app(&origin);
    assert_eq!(send(&app, asking("gzip")).await.text(), "gzip");
    assert_eq!(send(&app, asking("gzip, br")).await.text(), "gzip");
    assert_eq!(origin.calls(), 1);
    // Once it has expired, the origin is asked for what this client accepts.
    pass(secs(61)).await;
    assert_eq!(send(&app, asking("gzip, br")).await.text(), "br");
}

#[tokio::test(start_paused = true)]
async fn the_origin_sees_one_form_of_what_a_client_accepts() {
    let origin = codes(&["gzip"]);
    let app = app(&origin);
    for (i, (accept, expected)) in [
        ("br;q=0.1,   GZIP;q=1.0, foo", Some("gzip, br")),
        ("*;q=0", Some("identity;q=0")),
        ("", Some("identity")),
    ]
    .into_iter()
    .enumerate()
    {
        send(&app, with(&format!("/{i}"), &[("accept-encoding", accept)])).await;
        assert_eq!(origin.last().header("accept-encoding"), expected);
    }
    send(&app, get("/none")).await;
    assert_eq!(origin.last().header("accept-encoding"), None);
}

#[tokio::test(start_paused = true)]
async fn a_page_that_is_coded_no_more_does_not_make_a_stampede() {
    let origin = codes(&["gzip"]);
    let app = app(&origin);
    send(&app, asking("gzip")).await;
    pass(secs(61)).await;
    origin.answers(|call| {
        Answer::ok("max-age=60", format!("plain {}", call.n)).header("vary", "accept-encoding")
    });
    for _ in 0..3 {
        let before = origin.calls();
        let replies = crowd(&app, 100, |i| asking(["gzip", "gzip, br"][i % 2])).await;
        assert!(replies.iter().all(|reply| reply.text().starts_with("plain")));
        assert_eq!(origin.calls(), before + 1);
        assert!(send(&app, asking("gzip")).await.is(Hit));
        pass(secs(61)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_origin_that_codes_for_all_clients_is_asked_as_often_as_without_a_cache_at_most() {
    let origin = Origin::new(|_| {
        let answer = Answer::ok("max-age=60", "gzip").header("vary", "accept-encoding");
        answer.header("content-encoding", "gzip")
    });
    // RFC 9110, 12.5.3: without the field, any coding is acceptable.
    let app = layered(origin_only().http_layer(), &origin);
    crowd(&app, 500, |_| get("/report")).await;
    assert_eq!(origin.calls(), 1);
    // What is not named may come where the origin was asked with the same.
    crowd(&app, 500, |_| asking("identity")).await;
    assert_eq!(origin.calls(), 2);
    // A response in a coding that its client refuses is for that client alone.
    let before = origin.calls();
    let replies = crowd(&app, 100, |_| asking("gzip;q=0")).await;
    assert_eq!(origin.calls() - before, 100);
    assert!(replies.iter().any(|reply| reply.cache_status().contains("detail=coding")));
    assert!(slowest(&replies) <= 4 * WORK, "{:?}", slowest(&replies));
}

#[tokio::test(start_paused = true)]
async fn a_coded_response_without_vary_answers_clients_that_accept_its_coding_and_stays() {
    let origin = codes_without_vary(&["gzip"]);
    let app = app(&origin);
    for round in 0..4 {
        // The second round confirms what is stored, and the third begins with the other one.
        let values = if round == 2 { ["identity", "gzip"] } else { ["gzip", "identity"] };
        for accept in [values[0], values[1], values[0], values[1]] {
            assert_welcome(&[accept.to_owned()], &send(&app, asking(accept)).await);
        }
        assert_all_welcome(&GZIP, &crowd(&app, 60, |i| asking(GZIP[i % 20])).await);
        assert_all_welcome(&NONE, &crowd(&app, 60, |i| asking(NONE[i % 6])).await);
        assert_eq!(origin.calls(), 2 * (round + 1), "{round}");
        pass(secs(61)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_crowd_that_waits_for_a_coded_response_without_vary_is_split_by_what_it_accepts() {
    let origin = codes_without_vary(&["gzip"]);
    let app = app(&origin);
    let values = ["gzip", "identity", "gzip;q=0"];
    assert_all_welcome(&values, &crowd(&app, 60, |i| asking(values[i % 3])).await);
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_refuses_gzip_costs_a_crowd_one_computation_more() {
    let origin = Origin::new(|_| {
        let answer = Answer::ok("max-age=60", "gzip").header("vary", "accept-encoding");
        answer.header("content-encoding", "gzip")
    });
    let app = app(&origin);
    let accept = |i: usize| if i == 0 { "gzip;q=0" } else { "gzip" };
    crowd(&app, 500, |i| asking(accept(i))).await;
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_error_for_a_client_that_refuses_plain_bodies_reaches_no_other() {
    let origin = Origin::new(|call| {
        let refuses = call.header("accept-encoding").is_some_and(|it| it.contains("identity;q=0"));
        let answer = if refuses { Answer::status(406) } else { Answer::status(200) };
        let answer = answer.header("cache-control", "max-age=60").header("vary", "accept-encoding");
        answer.header("content-encoding", "gzip")
    });
    let app = app(&origin);
    assert_eq!(send(&app, asking("gzip, identity;q=0")).await.status, 406);
    assert_eq!(send(&app, asking("gzip")).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_validator_belongs_to_its_variant() {
    let origin = codes(&["gzip"]);
    let app = app(&origin);
    for (accept, etag) in [("gzip", "\"gzip\""), ("identity", "\"identity\"")] {
        send(&app, asking(accept)).await;
        let ask = [("accept-encoding", accept), ("if-none-match", etag)];
        assert_eq!(send(&app, with("/report", &ask)).await.status, 304, "{accept}");
    }
    let ask = [("accept-encoding", "gzip"), ("if-none-match", "\"identity\"")];
    assert_eq!(send(&app, with("/report", &ask)).await.text(), "gzip");
    // The origin confirms the variant that it is asked about.
    pass(secs(61)).await;
    origin.answers(|call| {
        let answer = Answer::status(304).header("cache-control", "max-age=60");
        let answer = answer.header("vary", "accept-encoding");
        answer.header("etag", call.header("if-none-match").unwrap())
    });
    for (accept, etag) in [("x-gzip", "\"gzip\""), ("", "\"identity\"")] {
        let reply = send(&app, asking(accept)).await;
        assert_eq!(reply.header("etag"), Some(etag));
        assert_eq!(reply.text(), etag.trim_matches('"'));
        assert!(send(&app, asking(accept)).await.is(Hit));
    }
}

#[tokio::test(start_paused = true)]
async fn a_confirmed_plain_body_still_answers_those_for_which_it_was_sent() {
    let origin = codes(&[]);
    let app = app(&origin);
    send(&app, asking("gzip")).await;
    pass(secs(61)).await;
    origin.answers(|_| {
        Answer::status(304).header("cache-control", "max-age=60").header("vary", "accept-encoding")
    });
    assert_eq!(send(&app, asking("identity")).await.text(), "identity");
    assert!(send(&app, asking("gzip")).await.is(Hit));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn other_fields_beside_the_codings_select_as_they_are() {
    let origin = Origin::new(|call| {
        let language = call.header("accept-language").unwrap_or("none").to_owned();
        let answer = Answer::ok("max-age=60", language).header("content-encoding", "gzip");
        answer.header("vary", "Accept-Encoding, Accept-Language")
    });
    let app = app(&origin);
    let languages = ["de", "en", "fr"];
    let replies = crowd(&app, 300, |i| {
        let fields = [("accept-encoding", GZIP[i % 17]), ("accept-language", languages[i % 3])];
        with("/report", &fields)
    });
    for (i, reply) in replies.await.iter().enumerate() {
        assert_eq!(reply.text(), languages[i % 3]);
    }
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_spelling_counts_where_the_handler_reads_it() {
    let origin = codes(&["gzip"]);
    let app = layered(origin_only().http_layer().normalise_accept(false), &origin);
    send(&app, asking("gzip, br")).await;
    assert!(send(&app, asking("gzip,br")).await.is(Hit));
    assert!(!send(&app, asking("br, gzip")).await.is(Hit));
    assert_eq!(origin.last().header("accept-encoding"), Some("br, gzip"));
}

#[tokio::test(start_paused = true)]
async fn a_refresh_asks_for_what_its_client_accepts() {
    let origin = codes(&["br", "gzip"]);
    let app = layered(origin_only().http_layer().stale_for(secs(60)), &origin);
    send(&app, asking("gzip;q=0.5")).await;
    pass(secs(61)).await;
    assert!(send(&app, asking("br, GZIP")).await.is(Stale));
    pass(secs(1)).await;
    assert_eq!(origin.last().header("accept-encoding"), Some("gzip, br"));
    assert_eq!(send(&app, asking("br, GZIP")).await.text(), "br");
    assert_eq!(send(&app, asking("gzip")).await.text(), "gzip", "stale, and refreshed");
}

#[tokio::test(start_paused = true)]
async fn spellings_share_behind_a_layer_inside_of_another_too() {
    let cache = origin_only();
    let origin = codes(&["gzip"]);
    let inside = layered(cache.http_layer(), &origin);
    let app = tower_layer::Layer::layer(&cache.http_layer(), inside);
    for accept in GZIP {
        assert_eq!(send(&app, asking(accept)).await.text(), "gzip", "{accept}");
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_longest_field_costs_no_more_than_a_short_one() {
    let origin = codes(&["gzip"]);
    let app = app(&origin);
    let long = "gzip;q=0.5, ".repeat(4_000);
    assert_eq!(send(&app, asking(&long)).await.text(), "identity");
    assert_eq!(origin.last().header("accept-encoding"), Some("identity"));
}

const ORIGINS: &[&[&str]] = &[&["gzip"], &["br", "gzip"], &["zstd"], &[]];

fn member() -> impl Strategy<Value = String> {
    const NAMES: &[&str] =
        &["gzip", "GZip", "x-gzip", "br", "zstd", "deflate", "identity", "*", "foo", "compress"];
    const WEIGHTS: &[&str] =
        &["", "", "", ";q=0", ";q=0.0", "; Q=0.000", ";q=0.5", " ; q=1", ";q=1.000"];
    let (name, weight) = (proptest::sample::select(NAMES), proptest::sample::select(WEIGHTS));
    (name, weight).prop_map(|(name, weight)| format!("{name}{weight}"))
}

/// The lines of a field; none: it is absent.
fn lines() -> impl Strategy<Value = Vec<String>> {
    let line = proptest::collection::vec(member(), 0..4).prop_map(|members| members.join(", "));
    proptest::collection::vec(line, 0..3)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The judge is `kit::codings`, which reads RFC 9110, 12.5.3, and nothing of the crate.
    #[test]
    fn no_client_gets_a_stored_body_that_it_does_not_accept(
        asked in proptest::collection::vec(lines(), 1..12),
        codings in proptest::sample::select(ORIGINS),
        always in proptest::option::of(proptest::sample::select(&["gzip", "br", "foo"][..])),
        names_vary: bool,
        at_once: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let origin = if names_vary { codes(codings) } else { codes_without_vary(codings) };
            // One that codes whatever it is asked for.
            let calls = Arc::new(AtomicUsize::new(0));
            if let Some(coding) = always {
                let calls = Arc::clone(&calls);
                origin.answers(move |_| {
                    calls.fetch_add(1, Ordering::Relaxed);
                    let answer = Answer::ok("max-age=60", coding);
                    let answer = answer.header("content-encoding", coding);
                    if names_vary { answer.header("vary", "accept-encoding") } else { answer }
                });
            }
            let app = app(&origin);
            let ask = |i: usize| {
                let mut request = get("/report");
                for line in &asked[i % asked.len()] {
                    request.headers_mut().append("accept-encoding", line.parse().unwrap());
                }
                request
            };
            let replies = if at_once {
                crowd(&app, asked.len() * 3, ask).await
            } else {
                let mut replies = Vec::new();
                for i in 0..asked.len() * 2 {
                    replies.push(send(&app, ask(i)).await);
                }
                replies
            };
            for (i, reply) in replies.iter().enumerate() {
                let said = &asked[i % asked.len()];
                let coding = reply.header("content-encoding").unwrap_or("identity");
                // A body without a coding is for all where the origin does not say otherwise.
                let is_for_all = !names_vary && coding == "identity";
                let is_shared = (reply.is(Hit) || reply.is(Joined)) && !is_for_all;
                assert!(!is_shared || !refuses(said, coding), "{said:?} {coding}");
                // An origin that obeys is not asked for a client what it would not send it.
                let obeys = always.is_none();
                assert!(!is_shared || !obeys || accepts(said, coding), "{said:?} {coding}");
            }
        });
    }
}

#[tokio::test(start_paused = true)]
async fn processes_find_what_each_other_got_after_the_origin_has_begun_to_compress() {
    let double = Double::new();
    let origin = Origin::new(|call| {
        let reply = match call.n {
            0 => Answer::ok("max-age=1, must-revalidate", "old").header("etag", "\"old\""),
            _ => Answer::ok("max-age=60", "new"),
        };
        let said = call.header("accept-encoding").unwrap_or_default().to_owned();
        let is_coded = call.n > 0 && accepts(&[said], "gzip");
        let reply = reply.header("vary", "accept-encoding");
        if is_coded { reply.header("content-encoding", "gzip") } else { reply }
    });
    let process = || -> HttpService<Origin> {
        let builder = Stampede::builder("web").origin_only();
        let cache = builder.remote(double.process(), RemoteSettings::new()).build().unwrap();
        cache.http_layer().layer(origin.clone())
    };
    let apps = [process(), process()];
    // Those that refuse `identity` are a kind of their own.
    let coded: Vec<_> = GZIP.into_iter().filter(|said| !said.contains("identity;q=0")).collect();
    let client = |i: usize| {
        let kind = if i.is_multiple_of(2) { &coded[..] } else { &NONE[..] };
        with("http://a/report", &[("accept-encoding", kind[i / 2 % kind.len()])])
    };
    send(&apps[0], client(0)).await;
    pass(secs(3)).await;
    tokio::join!(crowd_of(&apps[0], 40, client), crowd_of(&apps[1], 40, client));
    assert_eq!(origin.calls() - 1, 2, "one for those that accept gzip, one for the others");
}
