//! Attacks on shared streams, each of which once worked. The comments say which promise was broken, and
//! why: "cause" is the code as it was.

use std::time::Duration;

use futures_util::FutureExt;
use http_body_util::BodyExt;
use tower::ServiceExt;
use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{HttpService, HttpStampede, Mode, Stampede, StreamRule};

use super::query::with_body;
use super::shared_streams::{EVENTS, done, fed_events, shared};
use super::streaming::fed::*;
use crate::kit::http::*;
use crate::kit::spawn;

/// An origin that sends what follows the event that a request names, in its last field.
fn resuming() -> Origin {
    Origin::new(|call| {
        let ids = call.parts.headers.get_all("last-event-id").iter();
        let mut ids = ids.filter_map(|id| id.to_str().ok()?.parse::<usize>().ok());
        let from = ids.next_back().unwrap_or(0);
        Answer::ok("no-cache", EVENTS[from..].concat()).header("content-type", "text/event-stream")
    })
}

const RANGE_AND_ID: [(&str, &str); 2] = [("range", "bytes=0-3"), ("last-event-id", "2")];
const TWO_IDS: [(&str, &str); 2] = [("last-event-id", ""), ("last-event-id", "2")];

// ===== A tail that is stored as the whole =====

// Promise: nothing that was cut is stored; a `Last-Event-ID` is for one client alone.
// Cause: `FieldScan::wishes` sets `last_event` only without a `Range`. So this client leads, and
// `ask_for_the_whole` takes out its range, but not its `Last-Event-ID`. The end mark is there, so
// the tail counts as complete.
#[tokio::test(start_paused = true)]
async fn a_range_with_a_last_event_id_does_not_store_the_tail_as_the_whole() {
    let app = layered(shared(done()), &resuming());
    send(&app, with("/report", &RANGE_AND_ID)).await;
    assert_eq!(send(&app, get("/report")).await.text(), EVENTS.concat());
}

// Promise: no client gets less than the whole that it asked for.
// Cause: as above; the clients that wait for the same flight get the tail.
#[tokio::test(start_paused = true)]
async fn waiters_of_a_leader_with_a_range_and_a_last_event_id_get_the_whole() {
    let app = layered(shared(done()), &resuming());
    let replies = crowd(&app, 3, |n| match n {
        0 => with("/report", &RANGE_AND_ID),
        _ => get("/report"),
    })
    .await;
    assert!(replies[1..].iter().all(|reply| reply.text() == EVENTS.concat()), "{replies:?}");
}

// Promise: nothing that was cut is stored.
// Cause: `wishes` reads the first line of the field alone. If that is empty, the request counts as
// one without an id, and leads with all its lines.
#[tokio::test(start_paused = true)]
async fn an_empty_last_event_id_before_another_one_does_not_store_the_tail_as_the_whole() {
    let app = layered(shared(done()), &resuming());
    send(&app, with("/report", &TWO_IDS)).await;
    assert_eq!(send(&app, get("/report")).await.text(), EVENTS.concat());
}

// Promise: nothing that was cut is stored; the range of a POST is ignored.
// Cause: both causes from above hold for POSTs with a key, too.
#[tokio::test(start_paused = true)]
async fn a_post_with_a_last_event_id_does_not_store_the_tail_as_the_whole() {
    let ask = |fields: &[(&'static str, &'static str)]| {
        let mut request = with_body("POST", "/v1/chat", "{\"stream\":true}");
        for (name, value) in fields {
            request.headers_mut().append(*name, value.parse().unwrap());
        }
        request
    };
    let mut wholes = Vec::new();
    for fields in [RANGE_AND_ID, TWO_IDS] {
        let layer = origin_only().http_layer().cache_posts(|_| true).share_streams(done());
        let app = layered(layer, &resuming());
        send(&app, ask(&fields)).await;
        wholes.push(send(&app, ask(&[])).await.text() == EVENTS.concat());
    }
    assert_eq!(wholes, [true, true]);
}

// Promise: a refresh asks for the whole.
// Cause: `refresh` removes the field only where `wishes.last_event` is set, which a range prevents.
// A rule for the key has the refresh carry all other fields of the client.
#[tokio::test(start_paused = true)]
async fn a_refresh_triggered_by_a_range_with_a_last_event_id_asks_for_the_whole() {
    let layer = origin_only().http_layer().stale_for(secs(600)).share_streams(done());
    let app = layered(layer.key(|_| Some("tenant")), &resuming());
    send(&app, get("/report")).await;
    pass(secs(601)).await;
    send(&app, with("/report", &RANGE_AND_ID)).await;
    pass(secs(1)).await;
    assert_eq!(send(&app, get("/report")).await.text(), EVENTS.concat());
}

// Promise: what follows an event has `no-store`, since a cache behind us would take it for the whole.
// Cause: `Shape::Resumed` leaves `CDN-Cache-Control` and `Surrogate-Control` as they are. For the
// caches that read them they replace `Cache-Control` (RFC 9213, 2.2).
#[tokio::test(start_paused = true)]
async fn no_field_permits_a_cache_behind_us_to_store_what_follows_an_event() {
    let fields = &[
        ("cache-control", "max-age=60"),
        ("cdn-cache-control", "max-age=600"),
        ("surrogate-control", "max-age=600"),
    ];
    let sources = Sources::default();
    let app = layered(shared(done()), &fed_events(&sources, fields));
    let mut first = open(&app, get("/report")).await;
    let source = sources.take(0);
    source.send(EVENTS.concat());
    drop(source);
    first.rest().await;
    let back = send(&app, with("/report", &[("last-event-id", "2")])).await;
    assert!(back.is(Hit));
    for name in ["cdn-cache-control", "surrogate-control"] {
        let said = back.header(name);
        assert!(said.is_none_or(|said| said.contains("no-store")), "{name}: {said:?}");
    }
}

// ===== A cut stream that counts as complete =====

/// Returns whether a stream that has ended after these bytes, without an error, is stored.
async fn is_stored(rule: StreamRule, content_type: &'static str, body: &'static str) -> bool {
    let sources = Sources::default();
    let origin = Origin::new({
        let sources = sources.clone();
        move |_| Answer::ok("max-age=60", sources.body()).header("content-type", content_type)
    });
    let app = layered(shared(rule), &origin);
    let mut reader = open(&app, get("/report")).await;
    let source = sources.take(0);
    settle().await;
    source.send(body);
    drop(source);
    assert!(reader.rest().await.is(body));
    open(&app, get("/report")).await.is(Hit)
}

// Promise: nothing that was cut is stored.
// Cause: outside of event streams the last line needs no line end, and `has_finish_reason` looks
// only for the first quotation mark of the value. The JSON itself may be cut.
#[tokio::test(start_paused = true)]
async fn a_line_of_json_that_is_cut_within_its_finish_reason_is_not_stored() {
    let rule = StreamRule::finish_reason().content_types(["application/x-ndjson"]);
    let cut = "{\"text\":\"a\",\"finish_reason\":null}\n{\"text\":\"b\",\"finish_reason\":\"st";
    assert!(!is_stored(rule, "application/x-ndjson", cut).await);
}

// Promise: nothing that was cut is stored.
// Cause: as above, the last line needs no line end. A longer line can be cut to the end mark.
#[tokio::test(start_paused = true)]
async fn a_longer_line_that_is_cut_to_the_end_mark_is_not_stored() {
    let rule = StreamRule::end_mark("END").content_types(["text/plain"]);
    assert!(!is_stored(rule, "text/plain", "a line\nEND").await, "of `ENDLESS`");
}

// Promise: nothing that was cut is stored; a complete stream has a text as `finish_reason`.
// Cause: `has_finish_reason` takes `""` for a text. Some servers write that into each chunk.
#[tokio::test(start_paused = true)]
async fn an_empty_finish_reason_is_not_the_end_of_a_stream() {
    let cut = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"\"}]}\n\n";
    assert!(!is_stored(StreamRule::finish_reason(), "text/event-stream", cut).await);
}

// Promise: event streams are read as the HTML standard says: the last `event` field names an event.
// Cause: `is_complete` asks whether the last event has such a field at all.
#[tokio::test(start_paused = true)]
async fn an_event_has_the_name_of_its_last_event_field() {
    let body = "event: done\nevent: delta\ndata: x\n\n";
    assert!(!is_stored(StreamRule::last_event("done"), "text/event-stream", body).await);
}

// Promise: nothing that was cut is stored.
// Cause: `SharedStream::of` takes a response with two `Content-Type` lines for one without a rule,
// and stores it like all others. It refuses an event stream in this place.
#[tokio::test(start_paused = true)]
async fn a_second_content_type_does_not_lift_the_rule_for_the_end() {
    let origin = Origin::new(|_| {
        let answer = Answer::ok("max-age=60", "{\"a\":1}\n");
        answer.header("content-type", "application/x-ndjson").header("content-type", "text/plain")
    });
    let rule = StreamRule::end_mark("{\"done\":true}").content_types(["application/x-ndjson"]);
    let app = layered(shared(rule), &origin);
    send(&app, get("/report")).await;
    assert!(!send(&app, get("/report")).await.is(Hit));
}

// ===== Clients that wait, and producers that are too many =====

/// A cache in front of another one, each with a rule for streams.
fn two_caches(origin: &Origin, idle: Duration) -> HttpService<HttpService<Origin>> {
    let layer = |name| {
        let cache: HttpStampede = Stampede::builder(name).origin_only().build().unwrap();
        cache.http_layer().share_streams(done()).body_idle_timeout(idle)
    };
    layer("outer").layer(layer("inner").layer(origin.clone()))
}

// Promise: no client waits without a bound: after `body_idle_timeout` of silence no request joins.
// Cause: for the outer cache the comments of the inner one are bytes of the stream. Each begins its
// `body_idle_timeout` anew, and counts for `max_body`. So a dead stream takes readers until its
// lifetime is over.
#[tokio::test(start_paused = true)]
async fn comments_of_another_cache_do_not_keep_a_dead_stream_open_for_new_readers() {
    let sources = Sources::default();
    let origin = fed_events(&sources, &[("cache-control", "no-cache")]);
    let app = two_caches(&origin, secs(30));
    let first = app.clone().oneshot(get("/report")).await.unwrap();
    let _silent = sources.take(0);
    let _reading = spawn(first.into_body().collect());
    pass(secs(300)).await;
    let _second = app.oneshot(get("/report")).await.unwrap();
    assert_eq!(origin.calls(), 2, "the first stream has been silent for 300 s");
}

// Promise: if the id is not there, the request is forwarded for this client alone.
// Cause: each request validates this stream, so `HttpCaller::refuse` answers `Fit::Refused`: the
// client waits for the end of the stream, up to `wait_timeout` (35 s), without a head or a comment.
#[tokio::test(start_paused = true)]
async fn an_unknown_id_is_forwarded_at_once_though_each_request_validates_the_stream() {
    let sources = Sources::default();
    let origin = fed_events(&sources, &[("cache-control", "no-cache"), ("etag", "\"v\"")]);
    let app = layered(shared(StreamRule::end_mark("data: [DONE]")), &origin);
    let _first = open(&app, get("/report")).await;
    let source = sources.take(0);
    source.send(EVENTS[0]);
    settle().await;
    let back = open(&app, with("/report", &[("last-event-id", "9")])).await;
    assert!(back.took < secs(1), "{:?}", back.took);
}

// Promise: one producer per key; a leader with a range gets its part of the whole.
// Cause: with a heartbeat, the leader's own body is `State::Stream`, of which
// `ResponseBody::content` and `reader` know nothing. So `cuttable` finds it lost, and the client's own
// request is sent too. Without a heartbeat there is one call.
#[tokio::test(start_paused = true)]
async fn a_range_that_leads_to_a_live_stream_is_one_call_with_a_heartbeat_too() {
    for heartbeat in [Duration::ZERO, secs(15)] {
        let sources = Sources::default();
        let origin = fed_events(&sources, &[("cache-control", "no-cache")]);
        let app = layered(shared(done().heartbeat(heartbeat)), &origin);
        let part = spawn({
            let app = app.clone();
            async move { send(&app, with("/report", &[("range", "bytes=0-3")])).await }
        });
        pass(ms(200)).await;
        let source = sources.take(0);
        source.send(EVENTS.concat());
        settle().await;
        assert_eq!(origin.calls(), 1, "{heartbeat:?}");
        drop(source);
        let part = part.await.unwrap();
        assert_eq!((part.status, part.text()), (206, "id: "));
    }
}

// ===== Bytes that are not those of the origin =====

/// Returns what a client gets of a stream that is silent before its first byte.
async fn after_a_silence(fields: &'static [(&'static str, &'static str)]) -> String {
    let sources = Sources::default();
    let app = layered(shared(done()), &fed_events(&sources, fields));
    let mut reader = open(&app, get("/report")).await;
    let source = sources.take(0);
    let mut text = reader.now();
    pass(secs(16)).await;
    text += &reader.now();
    source.send(EVENTS.concat());
    drop(source);
    text + reader.rest().await.text()
}

// Promise: docs/rfc9111.md, R5.2.2.6-1: `no-transform` is met.
// Cause: `SharedStream::heartbeat` does not read the directive. Frameworks write it into event
// streams, so that no proxy compresses them.
#[tokio::test(start_paused = true)]
async fn no_comment_is_added_to_a_response_with_no_transform() {
    let fields = &[("cache-control", "no-cache, no-transform")];
    assert_eq!(after_a_silence(fields).await, EVENTS.concat());
}

// Promise: clients get the bytes of the origin.
// Cause: a comment is added to a body of which `Content-Digest` states the digest (RFC 9530, 2).
#[tokio::test(start_paused = true)]
async fn no_comment_is_added_to_a_response_with_a_digest() {
    let fields = &[("cache-control", "no-cache"), ("content-digest", "sha-256=:AAAA:")];
    assert_eq!(after_a_silence(fields).await, EVENTS.concat());
}

// Promise: clients get the bytes of the origin; a strong tag stands for the same bytes.
// Cause: a client counts the comments among the bytes that it has got. If it goes on with `If-Range`
// and the strong tag of the response, as many bytes of the stream are missing.
#[tokio::test(start_paused = true)]
async fn a_client_that_goes_on_with_if_range_misses_no_byte() {
    let sources = Sources::default();
    let fields = &[("cache-control", "no-cache"), ("etag", "\"v\"")];
    let app = layered(shared(done()), &fed_events(&sources, fields));
    let mut cut = open(&app, get("/report")).await;
    let mut first = open(&app, get("/report")).await;
    let source = sources.take(0);
    let mut got = cut.now();
    pass(secs(16)).await;
    got += &cut.now();
    source.send(EVENTS[0]);
    settle().await;
    got += &cut.now();
    drop(cut);
    source.send(EVENTS[1..].concat());
    drop(source);
    first.rest().await;
    let from = format!("bytes={}-", got.len());
    let rest = send(&app, with("/report", &[("range", &from), ("if-range", "\"v\"")])).await;
    if rest.status == 200 {
        got.clear();
    }
    let all = format!("{got}{}", rest.text());
    assert_eq!(all.trim_start_matches(":\n\n"), EVENTS.concat());
}

// Promise: comments are not stored, and count nowhere.
// Cause: as with the dead stream above: the outer cache stores the comments of the inner one.
#[tokio::test(start_paused = true)]
async fn comments_of_another_cache_are_not_stored() {
    let sources = Sources::default();
    let origin = fed_events(&sources, &[("cache-control", "no-cache")]);
    let app = two_caches(&origin, secs(300));
    let first = app.clone().oneshot(get("/report")).await.unwrap();
    let source = sources.take(0);
    let reading = spawn(first.into_body().collect());
    pass(secs(40)).await;
    source.send(EVENTS.concat());
    drop(source);
    reading.await.unwrap().unwrap();
    let hit = app.oneshot(get("/report")).await.unwrap();
    let stored = hit.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(String::from_utf8_lossy(&stored), EVENTS.concat());
}

// Promise: a cache that only observes changes nothing (recipes/observe-only.md).
// Cause: in `Mode::Observe` a leader fills the store, and its client reads `ResponseBody::live`. In
// `Mode::Off` there is none.
#[tokio::test(start_paused = true)]
async fn a_client_gets_no_comment_while_the_cache_only_observes() {
    for mode in [Mode::Off, Mode::Observe] {
        let (cache, sources) = (origin_only(), Sources::default());
        let origin = fed_events(&sources, &[("cache-control", "no-cache")]);
        let app = layered(cache.http_layer().share_streams(done()), &origin);
        cache.set_mode(mode);
        let mut reader = open(&app, get("/report")).await;
        assert_eq!(reader.now(), "");
        pass(secs(16)).await;
        assert_eq!(reader.now(), "", "{mode:?}");
    }
}

// Promise: behind a comment the byte order mark is left out, since it would be one no more: a client
// would read the name of the first field with it, and lose the event.
// Cause: `StreamReader::take` looks for the whole mark in the first chunk alone.
#[tokio::test(start_paused = true)]
async fn a_byte_order_mark_in_two_chunks_is_left_out_behind_a_comment() {
    let sources = Sources::default();
    let app = layered(shared(done()), &fed_events(&sources, &[("cache-control", "no-cache")]));
    let mut reader = open(&app, get("/report")).await;
    let source = sources.take(0);
    let mut bytes = reader.now().into_bytes();
    pass(secs(16)).await;
    bytes.extend(reader.now().into_bytes());
    for part in [&b"\xef"[..], b"\xbb\xbfdata: x\n\n"] {
        source.send(part);
        settle().await;
        while let Some(Some(frame)) = reader.body.frame().now_or_never() {
            bytes.extend(frame.unwrap().into_data().unwrap());
        }
    }
    assert_eq!(String::from_utf8(bytes).unwrap(), ":\n\ndata: x\n\n");
}

// Promise: clients get the bytes of the origin.
// Cause: `strips_mark` is set where the last three bytes are those of `BEGIN`, three line feeds.
// Those may stand in the middle of a stream as well.
#[tokio::test(start_paused = true)]
async fn a_byte_order_mark_in_the_middle_of_a_stream_stays() {
    let sources = Sources::default();
    let app = layered(shared(done()), &fed_events(&sources, &[("cache-control", "no-cache")]));
    let mut reader = open(&app, get("/report")).await;
    let source = sources.take(0);
    source.send("data: x\n\n\n");
    settle().await;
    let mut text = reader.now();
    pass(secs(16)).await;
    text += &reader.now();
    source.send("\u{feff}data: y\n\ndata: [DONE]\n\n");
    drop(source);
    text += reader.rest().await.text();
    assert_eq!(text, "data: x\n\n\n:\n\n\u{feff}data: y\n\ndata: [DONE]\n\n");
}

// ===== Ids =====

// Promise: a 204 where nothing follows, so that an `EventSource` does not connect again.
// Cause: `resume_at` takes the first event with the id. Where all events have the id of their answer,
// a client that has read all of them gets them again each time it connects, for ever. An id that
// several events have names no place: the origin should be asked.
#[tokio::test(start_paused = true)]
async fn an_id_that_several_events_have_is_a_question_for_the_origin() {
    let whole = "id: chat-7\ndata: a\n\nid: chat-7\ndata: b\n\nid: chat-7\ndata: [DONE]\n\n";
    let origin = Origin::new(move |call| match call.header("last-event-id") {
        Some(_) => Answer::status(204),
        None => Answer::ok("no-cache", whole).header("content-type", "text/event-stream"),
    });
    let app = layered(shared(done()), &origin);
    send(&app, get("/report")).await;
    let back = send(&app, with("/report", &[("last-event-id", "chat-7")])).await;
    assert_eq!((back.status, back.text()), (204, ""));
}

// Promise: if the id is not there, the request is forwarded for this client alone.
// Cause: `wishes` sets `last_event` for GETs alone. A HEAD with the field leads, and shares its head
// with HEADs that have none.
#[tokio::test(start_paused = true)]
async fn a_head_with_a_last_event_id_is_not_for_other_heads() {
    let origin = Origin::new(|call| match call.header("last-event-id") {
        Some(_) => Answer::status(204).header("cache-control", "max-age=60"),
        None => Answer::ok("max-age=60", "").header("content-type", "text/event-stream"),
    });
    let app = layered(shared(done()), &origin);
    let replies = crowd(&app, 3, |n| match n {
        0 => request("HEAD", "/report", &[("last-event-id", "3")]),
        _ => request("HEAD", "/report", &[]),
    })
    .await;
    assert!(replies[1..].iter().all(|reply| reply.status == 200), "{replies:?}");
}
