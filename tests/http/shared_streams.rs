//! Event streams that a rule of the layer shares while they arrive, and stores when they are
//! complete.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::Request;
use tokio::time::Instant;
use tower_stampede::CacheOutcome::*;
use tower_stampede::remote::{Double, RemoteSettings};
use tower_stampede::{
    CacheFor, HttpLayer, HttpStampede, Stampede, StoredResponse, StreamReplay, StreamRule,
};

use super::query::with_body;
use super::streaming::fed::*;
use crate::kit::http::*;

/// A stream of three events and its end.
pub(super) const EVENTS: [&str; 4] =
    ["id: 1\ndata: one\n\n", "id: 2\ndata: two\n\n", "id: 3\ndata: three\n\n", "data: [DONE]\n\n"];

pub(super) fn done() -> StreamRule {
    StreamRule::end_mark("data: [DONE]").ttl(secs(600))
}

pub(super) fn shared(rule: StreamRule) -> HttpLayer {
    origin_only().http_layer().share_streams(rule)
}

type Fields = &'static [(&'static str, &'static str)];

/// An origin of event streams that the test feeds, with these further fields.
pub(super) fn fed_events(sources: &Sources, fields: Fields) -> Origin {
    fed(sources, || Answer::status(200), fields)
}

/// What axum's `Sse` says of its responses.
fn events_of(sources: &Sources, fields: Fields) -> Origin {
    fed(sources, || Answer::status(200).header("cache-control", "no-cache"), fields)
}

fn fed(sources: &Sources, head: fn() -> Answer, fields: Fields) -> Origin {
    let sources = sources.clone();
    Origin::new(move |_| {
        let answer = head().body(sources.body()).header("content-type", "text/event-stream");
        fields.iter().fold(answer, |answer, (name, value)| answer.header(name, value))
    })
}

fn streaming(layer: HttpLayer) -> (App, Origin, Sources) {
    let sources = Sources::default();
    let origin = events_of(&sources, &[]);
    (layered(layer, &origin), origin, sources)
}

/// A client that has read the events up to this one, and connects again.
fn resume(id: &str) -> Request<Body> {
    with("/report", &[("last-event-id", id)])
}

/// Stores a stream whose events come one second apart.
async fn store(app: &App, sources: &Sources) {
    let mut reader = open(app, get("/report")).await;
    let source = sources.take(0);
    for event in EVENTS {
        pass(secs(1)).await;
        source.send(event);
    }
    drop(source);
    assert!(reader.rest().await.is(&EVENTS.concat()));
}

#[tokio::test(start_paused = true)]
async fn a_thousand_clients_of_one_live_stream_are_one_call_whenever_they_come() {
    let (app, origin, sources) = streaming(shared(done().heartbeat(Duration::ZERO)));
    let leader = open(&app, get("/report")).await;
    let source = sources.take(0);
    let mut readers = open_many(&app, 400).await;
    source.send(EVENTS[0]);
    settle().await;
    assert!(readers.iter_mut().all(|reader| reader.now() == EVENTS[0]));
    // Its client leaves, and many read nothing more: that delays no other client.
    drop(leader);
    readers.truncate(300);
    let stalled = open_many(&app, 200).await;
    source.send(EVENTS[1]);
    pass(secs(20)).await;
    assert!(readers.iter_mut().all(|reader| reader.now() == EVENTS[1]));
    readers.iter_mut().for_each(|reader| assert!(!reader.is(Computed)));
    // Silent for 20 s, it is joined all the same, and read from its beginning.
    let mut late = open_many(&app, 300).await;
    assert!(
        late.iter_mut().all(|reader| reader.is(Joined) && reader.now() == EVENTS[..2].concat())
    );
    source.send(EVENTS[2..].concat());
    drop(source);
    let last = EVENTS[2..].concat();
    assert!(rests(&mut readers).await.iter().all(|rest| rest.is(&last)));
    assert!(rests(&mut late).await.iter().all(|rest| rest.is(&last)));
    drop(stalled);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_complete_stream_is_replayed_byte_for_byte() {
    let (app, origin, sources) = streaming(shared(done()));
    store(&app, &sources).await;
    for _ in 0..2 {
        let mut readers = open_many(&app, 100).await;
        assert!(readers.iter().all(|reader| reader.is(Hit) && reader.took.is_zero()));
        assert!(rests(&mut readers).await.iter().all(|rest| rest.is(&EVENTS.concat())));
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_cut_anywhere_is_never_stored_and_leaves_no_reader_behind() {
    let whole = EVENTS.concat();
    for cut in 0..whole.len() {
        for fails in [true, false] {
            let (app, origin, sources) = streaming(shared(done()));
            let mut readers = open_many(&app, 3).await;
            let source = sources.take(0);
            source.send(whole[..cut].to_owned());
            settle().await;
            if fails {
                source.fail();
            }
            drop(source);
            for rest in rests(&mut readers).await {
                assert_eq!(rest.text(), &whole[..cut]);
                assert_eq!(rest.error.is_some(), fails, "they get the end that it had");
            }
            let mut next = open(&app, get("/report")).await;
            assert!(next.is(Computed), "{cut} {fails}: {:?}", &whole[..cut]);
            sources.take(1).send(whole.clone());
            assert!(next.rest().await.is(&whole), "of one producer alone");
            assert_eq!(origin.calls(), 2);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_stream_that_is_there_at_once_is_for_those_who_wait() {
    let origin = Origin::new(|_| {
        Answer::ok("no-cache", EVENTS[0]).header("content-type", "text/event-stream")
    });
    let app = layered(shared(done()), &origin);
    let replies = crowd(&app, 100, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| reply.text() == EVENTS[0]));
    assert_eq!(origin.calls(), 1);
    let next = send(&app, get("/report")).await;
    assert!(next.is(Computed) && next.cache_status().contains("detail=incomplete"));
}

#[tokio::test(start_paused = true)]
async fn the_application_says_what_a_complete_stream_ends_with() {
    let last = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    let usage = "data: {\"choices\": [], \"usage\":{}}\n\ndata: [DONE]\n\n";
    let cut = "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"finish_reason\\\":\\\"stop\\\"\"},\
               \"finish_reason\":null}]}\n\n";
    let ends = |text: &'static [u8]| StreamRule::complete_if(move |all| all.ends_with(text));
    let lines = || StreamRule::end_mark("{\"done\":true}").content_types(["application/x-ndjson"]);
    let reasons = StreamRule::finish_reason;
    for (rule, content_type, body, is_stored) in [
        (done(), "text/event-stream; charset=utf-8", "data:[DONE]\r\n\r\n".to_owned(), true),
        (done(), "Text/Event-Stream", "data: x\r\rdata: [DONE]\r\r: bye\r\r".into(), true),
        (done(), "text/event-stream", "data: [DONE]\n".into(), false),
        (done(), "text/event-stream", "data: [DONE]\n\ndata: x\n\n".into(), false),
        (
            StreamRule::last_event("done"),
            "text/event-stream",
            "event: done\ndata: x\n\n".into(),
            true,
        ),
        (
            StreamRule::last_event("done"),
            "text/event-stream",
            "event: done\ndata: x\n".into(),
            false,
        ),
        (
            StreamRule::last_event("done"),
            "text/event-stream",
            "data: event: done\n\n".into(),
            false,
        ),
        (reasons(), "text/event-stream", last.into(), true),
        (reasons(), "text/event-stream", format!("{last}{usage}"), true),
        (reasons(), "text/event-stream", format!("{last}{cut}"), false),
        (reasons(), "text/event-stream", cut.into(), false),
        (ends(b"end"), "text/event-stream", "data: the end".into(), true),
        (ends(b"end"), "text/event-stream", "data: the".into(), false),
        (
            StreamRule::complete_if(|_| panic!("a rule")),
            "text/event-stream",
            "data: x\n\n".into(),
            false,
        ),
        (lines(), "application/x-ndjson", "{\"a\":1}\n{\"done\":true}\n".into(), true),
        (lines(), "application/x-ndjson", "{\"a\":1}\n".into(), false),
        // Not named: the one is never stored, the other one is a body like all others.
        (lines(), "text/event-stream", "{\"done\":true}\n".into(), false),
        (lines(), "application/json", "{}".into(), true),
    ] {
        let sources = Sources::default();
        let origin = Origin::new({
            let sources = sources.clone();
            move |_| Answer::ok("max-age=60", sources.body()).header("content-type", content_type)
        });
        let app = layered(shared(rule), &origin);
        let mut reader = open(&app, get("/report")).await;
        let source = sources.take(0);
        settle().await;
        source.send(body.clone());
        drop(source);
        assert!(reader.rest().await.is(&body));
        assert_eq!(open(&app, get("/report")).await.is(Hit), is_stored, "{content_type}: {body}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_forbids_to_share_a_response_forbids_it_for_streams() {
    for (fields, is_shared) in [
        (&[][..], true),
        (&[("cache-control", "max-age=0, must-revalidate")], true),
        (&[("expires", "0")], true),
        (&[("cache-control", "no-store")], false),
        (&[("cache-control", "private")], false),
        (&[("set-cookie", "a=b")], false),
        (&[("vary", "*")], false),
        // No rule can read its end.
        (&[("content-encoding", "gzip")], false),
    ] {
        let sources = Sources::default();
        let app = layered(shared(done()), &events_of(&sources, fields));
        let mut readers = open_many(&app, 2).await;
        let source = sources.take(0);
        source.send(EVENTS.concat());
        drop(source);
        assert!(readers[0].rest().await.is(&EVENTS.concat()));
        assert_eq!(readers[1].is(Joined), is_shared, "{fields:?}");
        assert_eq!(open(&app, get("/report")).await.is(Hit), is_shared, "{fields:?}");
    }
    // Without a ttl the response's own fields govern.
    let (app, origin, _sources) = streaming(shared(StreamRule::end_mark("data: [DONE]")));
    open_many(&app, 2).await;
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_ttl_of_the_rule_is_for_streams_without_a_lifetime_of_their_own() {
    for (fields, lives) in
        [(&[][..], 600), (&[("cache-control", "max-age=60")], 60), (&[("x-cache-for", "20")], 20)]
    {
        let sources = Sources::default();
        let origin = Origin::new({
            let sources = sources.clone();
            move |_| {
                let answer = Answer::ok("no-cache", sources.body());
                let answer = answer.header("content-type", "text/event-stream");
                fields.iter().fold(answer, |answer, (name, value)| match *name {
                    "x-cache-for" => answer.extension(CacheFor::new(secs(20))),
                    name => answer.header(name, value),
                })
            }
        });
        let app = layered(shared(done()), &origin);
        let mut first = open(&app, get("/report")).await;
        let source = sources.take(0);
        source.send(EVENTS.concat());
        drop(source);
        first.rest().await;
        pass(secs(lives - 2)).await;
        assert!(open(&app, get("/report")).await.is(Hit), "{fields:?}");
        pass(secs(2)).await;
        assert!(open(&app, get("/report")).await.is(Computed), "{fields:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_invalidated_or_too_long_reaches_its_readers_and_is_not_stored() {
    for too_long in [false, true] {
        let cache = origin_only();
        let layer = cache.http_layer().max_body(64).share_streams(done());
        let (app, origin, sources) = streaming(layer);
        let mut readers = open_many(&app, 3).await;
        let source = sources.take(0);
        source.send(EVENTS[0]);
        settle().await;
        let long = "x".repeat(64);
        match too_long {
            true => source.send(long.clone()),
            false => drop(cache.invalidate_path("/report").await),
        }
        settle().await;
        // A new client does not join it.
        let mut next = open(&app, get("/report")).await;
        assert!(next.is(Computed));
        source.send(EVENTS[3]);
        drop(source);
        let middle = if too_long { long } else { String::new() };
        let expected = format!("{}{middle}{}", EVENTS[0], EVENTS[3]);
        assert!(rests(&mut readers).await.iter().all(|rest| rest.is(&expected)));
        sources.take(1).send(EVENTS[3]);
        assert!(next.rest().await.is(EVENTS[3]));
        assert_eq!(origin.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_comes_back_gets_what_follows_the_event_that_it_names() {
    let (app, origin, sources) = streaming(shared(done()));
    let mut first = open(&app, get("/report")).await;
    let source = sources.take(0);
    source.send(EVENTS[..2].concat());
    settle().await;
    // Of the stream that arrives:
    let mut back = open(&app, resume("1")).await;
    assert!(back.is(Joined) && back.now() == EVENTS[1]);
    assert_eq!(back.head.headers["cache-control"], "no-store", "it is not the whole");
    // An id that has not come yet is a question for the origin.
    let mut ahead = open(&app, resume("3")).await;
    assert!(ahead.is(Bypass) && origin.calls() == 2);
    assert_eq!(origin.last().header("last-event-id"), Some("3"));
    sources.take(1).send("data: of the origin\n\n");
    assert!(ahead.rest().await.is("data: of the origin\n\n"), "the answer is for it alone");
    source.send(EVENTS[2..].concat());
    drop(source);
    assert!(back.rest().await.is(&EVENTS[2..].concat()));
    assert!(first.rest().await.is(&EVENTS.concat()));
    // Of the stored one, each event once:
    for (id, rest) in [("1", &EVENTS[1..]), ("2", &EVENTS[2..]), ("3", &EVENTS[3..])] {
        let mut back = open(&app, resume(id)).await;
        assert!(back.is(Hit) && back.rest().await.is(&rest.concat()), "{id}");
        assert!(!back.head.headers.contains_key("content-length"));
    }
    assert_eq!(origin.calls(), 2);
    let unknown = open(&app, resume("4")).await;
    assert!(unknown.is(Bypass) && origin.calls() == 3);
    let status = unknown.head.headers["cache-status"].to_str().unwrap();
    assert!(status.contains("detail=last-event-id"), "{status}");
    assert!(open(&app, get("/report")).await.is(Hit), "and nothing else has changed");
}

#[tokio::test(start_paused = true)]
async fn ids_are_those_of_the_html_standard() {
    let whole = "\u{feff}id: a\r\ndata: x\r\n\r\nid:b\rid: c\rdata: y\r\rid: d\nid\ndata: z\n\n\
                 id: e\nid: x\0\ndata\n\n: note\nid: é\n\nid: open\ndata: [DONE]\n\n";
    let (app, origin, sources) = streaming(shared(done()));
    let mut first = open(&app, get("/report")).await;
    sources.take(0).send(whole);
    first.rest().await;
    let after = |text: &str| whole.split_once(text).unwrap().1.to_owned();
    for (id, rest) in [
        ("a", Some(after("x\r\n\r\n"))),
        ("b", None),
        ("c", Some(after("y\r\r"))),
        ("d", None),
        ("e", Some(after("\0\ndata\n\n"))),
        ("é", Some(after("é\n\n"))),
    ] {
        let mut back = open(&app, resume(id)).await;
        match rest {
            Some(rest) => assert!(back.rest().await.is(&rest), "{id}"),
            None => assert!(back.is(Bypass), "{id}"),
        }
    }
    // There is no more, and there never will be: the client need not connect again.
    let over = send(&app, resume("open")).await;
    assert_eq!((over.status, over.text()), (204.try_into().unwrap(), ""));
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn without_a_rule_a_last_event_id_changes_nothing() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "page"));
    let app = layered(origin_only().http_layer(), &origin);
    let replies = crowd(&app, 50, |_| resume("1")).await;
    assert!(replies.iter().all(|reply| reply.text() == "page"));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reader_of_a_silent_stream_gets_a_comment_between_events_every_15_seconds() {
    let (app, _, sources) = streaming(shared(done()).body_idle_timeout(secs(300)));
    let mut readers = open_many(&app, 2).await;
    let source = sources.take(0);
    assert!(readers.iter_mut().all(|reader| reader.now().is_empty()));
    for _ in 0..2 {
        pass(ms(14_900)).await;
        assert!(readers.iter_mut().all(|reader| reader.now().is_empty()));
        pass(ms(200)).await;
        assert!(readers.iter_mut().all(|reader| reader.now() == ":\n\n"), "before any byte");
    }
    // The mark of the byte order is one at the very beginning alone.
    source.send("\u{feff}data: half");
    settle().await;
    assert!(readers.iter_mut().all(|reader| reader.now() == "data: half"));
    pass(secs(31)).await;
    assert!(readers.iter_mut().all(|reader| reader.now().is_empty()), "not within an event");
    source.send("\r\n");
    pass(secs(31)).await;
    assert!(readers.iter_mut().all(|reader| reader.now() == "\r\n"), "nor behind its first line");
    source.send("\r\n");
    settle().await;
    assert!(readers.iter_mut().all(|reader| reader.now() == "\r\n"));
    pass(secs(16)).await;
    assert!(readers.iter_mut().all(|reader| reader.now() == ":\n\n"));
    source.send(EVENTS[3]);
    drop(source);
    assert!(rests(&mut readers).await.iter().all(|rest| rest.is(EVENTS[3])));
    let mut hit = open(&app, get("/report")).await;
    let stored = format!("\u{feff}data: half\r\n\r\n{}", EVENTS[3]);
    assert!(hit.is(Hit) && hit.rest().await.is(&stored), "no comment is stored");
}

#[tokio::test(start_paused = true)]
async fn no_comment_comes_where_it_is_off_or_the_length_is_declared_or_the_body_has_no_events() {
    let rows: [(StreamRule, &'static [(&str, &str)]); 3] = [
        (done().heartbeat(Duration::ZERO), &[]),
        (done(), &[("content-length", "14")]),
        (
            done().content_types(["application/x-ndjson"]),
            &[("content-type", "application/x-ndjson")],
        ),
    ];
    for (rule, fields) in rows {
        let sources = Sources::default();
        let origin = Origin::new({
            let sources = sources.clone();
            move |_| {
                let answer = Answer::ok("no-cache", sources.body());
                let answer = match fields {
                    [("content-type", _)] => answer,
                    _ => answer.header("content-type", "text/event-stream"),
                };
                fields.iter().fold(answer, |answer, (name, value)| answer.header(name, value))
            }
        });
        let app = layered(shared(rule), &origin);
        let mut readers = open_many(&app, 2).await;
        pass(secs(20)).await;
        assert!(readers.iter_mut().all(|reader| reader.now().is_empty()), "{fields:?}");
        sources.take(0).send(EVENTS[3]);
        assert!(rests(&mut readers).await.iter().all(|rest| rest.is(EVENTS[3])), "{fields:?}");
        assert_eq!(origin.calls(), 1);
    }
}

/// Reads a stream, and says after how long each part of it was there.
async fn timed(reader: &mut Reading) -> Vec<(u64, String)> {
    use http_body_util::BodyExt;
    let (began, mut parts) = (Instant::now(), Vec::new());
    while let Some(frame) = reader.body.frame().await {
        let data = frame.unwrap().into_data().unwrap();
        parts.push((began.elapsed().as_secs(), String::from_utf8(data.to_vec()).unwrap()));
    }
    parts
}

fn paced() -> StreamRule {
    done().replay(StreamReplay::Paced)
}

fn at_pace(from: usize) -> Vec<(u64, String)> {
    let events = EVENTS.iter().skip(from).enumerate();
    events.map(|(n, event)| (n as u64 + 1, (*event).to_owned())).collect()
}

#[tokio::test(start_paused = true)]
async fn a_stored_stream_is_replayed_at_its_pace_where_the_rule_says_so() {
    let (app, origin, sources) = streaming(shared(paced()));
    store(&app, &sources).await;
    for _ in 0..2 {
        let mut readers = open_many(&app, 100).await;
        assert!(readers.iter().all(|reader| reader.is(Hit)));
        let all = futures_util::future::join_all(readers.iter_mut().map(timed)).await;
        assert!(all.iter().all(|parts| *parts == at_pace(0)), "{:?}", all[0]);
    }
    // From an event on, the time before it is over.
    let mut back = open(&app, resume("2")).await;
    assert_eq!(timed(&mut back).await, at_pace(2));
    let head = send(&app, request("HEAD", "/report", &[])).await;
    assert!(head.is(Hit) && head.header("content-length").is_none());
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_replay_at_its_pace_has_comments_too() {
    let (app, _, sources) = streaming(shared(paced()));
    let mut first = open(&app, get("/report")).await;
    let source = sources.take(0);
    source.send(EVENTS[0]);
    pass(secs(20)).await;
    source.send(EVENTS[3]);
    drop(source);
    first.rest().await;
    let parts = timed(&mut open(&app, get("/report")).await).await;
    let expected = [(0, EVENTS[0]), (15, ":\n\n"), (20, EVENTS[3])];
    assert_eq!(parts, expected.map(|(at, text)| (at, text.to_owned())));
}

#[tokio::test(start_paused = true)]
async fn other_processes_replay_a_stored_stream_at_its_pace() {
    let (double, sources) = (Double::new(), Sources::default());
    let origin = events_of(&sources, &[]);
    let process = || {
        let builder = Stampede::<StoredResponse>::builder("web").origin_only();
        let cache = builder.remote(double.process(), RemoteSettings::new()).build().unwrap();
        layered(cache.http_layer().share_streams(paced()), &origin)
    };
    let apps = [process(), process()];
    let open_at = |app| open(app, get("http://a/report"));
    let mut first = open_at(&apps[0]).await;
    let source = sources.take(0);
    for event in EVENTS {
        pass(secs(1)).await;
        source.send(event);
    }
    drop(source);
    first.rest().await;
    pass(secs(1)).await;
    let mut other = open_at(&apps[1]).await;
    assert!(other.is(Hit));
    assert_eq!(timed(&mut other).await, at_pace(0));
    assert_eq!(origin.calls(), 1);
}

fn ask(body: &'static str, user: &'static str) -> Request<Body> {
    let mut request = with_body("POST", "/v1/chat/completions", body);
    let fields = request.headers_mut();
    fields.insert("content-type", "application/json".parse().unwrap());
    fields.insert("authorization", user.parse().unwrap());
    request
}

/// The question without the spelling of its JSON; no key for what is no stream.
fn question(_: &http::request::Parts, body: &Bytes) -> Option<String> {
    let text: String = std::str::from_utf8(body).ok()?.split_ascii_whitespace().collect();
    text.contains("\"stream\":true").then_some(text)
}

fn gateway(cache: &HttpStampede) -> HttpLayer {
    let posts = cache.http_layer().cache_posts(|parts| parts.uri.path().starts_with("/v1/"));
    posts.post_key(question).share_streams(done())
}

const HELLO: &str = r#"{"model": "m", "stream": true, "messages": ["hello"]}"#;
const SAME: &str = r#"{"model":"m","stream":true,"messages":["hello"]}"#;

#[tokio::test(start_paused = true)]
async fn posts_of_one_question_share_its_stream_and_users_share_nothing() {
    let (app, origin, sources) = streaming(gateway(&origin_only()).vary(["authorization"]));
    let mut ada = open(&app, ask(HELLO, "ada")).await;
    let mut again = open(&app, ask(SAME, "ada")).await;
    let mut bob = open(&app, ask(HELLO, "bob")).await;
    assert!(again.is(Joined) && bob.is(Computed));
    for (n, text) in ["data: ada\n\n", "data: bob\n\n"].into_iter().enumerate() {
        let source = sources.take(n);
        source.send(format!("{text}{}", EVENTS[3]));
    }
    assert!(ada.rest().await.text().contains("ada") && again.rest().await.text().contains("ada"));
    assert!(bob.rest().await.text().contains("bob"));
    for user in ["ada", "bob"] {
        let mut hit = open(&app, ask(SAME, user)).await;
        assert!(hit.is(Hit) && hit.rest().await.text().contains(user));
    }
    assert_eq!(origin.calls(), 2);
    assert_eq!(origin.last().body, HELLO);
}

#[tokio::test(start_paused = true)]
async fn without_permission_no_two_requests_with_credentials_share_a_stream() {
    let (app, origin, _sources) = streaming(gateway(&origin_only()));
    let first = open(&app, ask(HELLO, "ada")).await;
    for user in ["ada", "bob"] {
        assert!(!open(&app, ask(HELLO, user)).await.is(Joined));
    }
    let status = first.head.headers["cache-status"].to_str().unwrap();
    assert!(status.contains("detail=credentials:authorization"), "{status}");
    assert_eq!(origin.calls(), 3);
    // Where the application says that the answers are for all, they are.
    let (app, origin, _sources) = streaming(gateway(&origin_only()).public());
    open(&app, ask(HELLO, "ada")).await;
    let _leader = open(&app, ask(HELLO, "ada")).await;
    assert!(open(&app, ask(HELLO, "bob")).await.is(Joined));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_arrives_counts_for_the_bytes_that_arrive() {
    let cache: HttpStampede =
        Stampede::builder("test").origin_only().max_arriving_bytes(64).build().unwrap();
    let (app, _, sources) = streaming(cache.http_layer().share_streams(done()));
    let mut readers = open_many(&app, 2).await;
    let source = sources.take(0);
    source.send(EVENTS[0]);
    settle().await;
    assert_eq!(cache.stats().arriving_bytes, EVENTS[0].len() as u64);
    source.send("x".repeat(64));
    source.send(EVENTS[3]);
    drop(source);
    assert!(rests(&mut readers).await.iter().all(|rest| rest.error.is_none()));
    assert_eq!((cache.stats().arriving_bytes, cache.stats().entries), (0, 0));
}
