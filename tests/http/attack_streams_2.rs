//! A second attack on shared streams. Each of these once worked; "cause" is the code as it was.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use futures_util::{StreamExt, stream};
use http_body_util::BodyExt;
use tower::ServiceExt;
use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{HttpService, HttpStampede, Stampede, StreamRule};

use super::shared_streams::{EVENTS, done, fed_events, shared};
use super::streaming::fed::*;
use crate::kit::http::*;
use crate::kit::spawn;

fn two_caches(origin: &Origin, rule: StreamRule) -> HttpService<HttpService<Origin>> {
    let layer = |name, rule| {
        let cache: HttpStampede = Stampede::builder(name).origin_only().build().unwrap();
        cache.http_layer().share_streams(rule).body_idle_timeout(secs(30))
    };
    layer("outer", rule).layer(layer("inner", done()).layer(origin.clone()))
}

/// Returns what a later client gets of a stream that came in these chunks.
async fn stored_of(rule: StreamRule, chunks: &[&'static str]) -> Option<String> {
    let sources = Sources::default();
    let app = layered(shared(rule), &fed_events(&sources, &[("cache-control", "no-cache")]));
    let mut first = open(&app, get("/report")).await;
    let source = sources.take(0);
    settle().await;
    for chunk in chunks {
        source.send(*chunk);
        settle().await;
    }
    drop(source);
    first.rest().await;
    let mut later = open(&app, get("/report")).await;
    if later.is(Hit) { Some(later.rest().await.text().to_owned()) } else { None }
}

// Promise: clients get the bytes of the origin. RFC 9110, 13.1.5 and 8.8.2.2: a date can be a strong
// validator, and `Range` with `If-Range` then counts in the same bytes.
// Cause: `states_its_bytes` (rules/streams.rs) knows strong entity tags, and no `Last-Modified`; the
// client counts our comment among its bytes, and misses three of the stream.
#[tokio::test(start_paused = true)]
async fn a_client_that_goes_on_with_if_range_and_a_date_misses_no_byte() {
    const THEN: &str = "Wed, 01 Jan 2020 00:00:00 GMT";
    const LATER: &str = "Wed, 01 Jan 2025 00:00:00 GMT";
    let sources = Sources::default();
    let fields = &[("cache-control", "no-cache"), ("last-modified", THEN), ("date", LATER)];
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
    let rest = send(&app, with("/report", &[("range", &from), ("if-range", THEN)])).await;
    if rest.status == 200 {
        got.clear();
    }
    let all = format!("{got}{}", rest.text());
    assert_eq!(all.trim_start_matches(":\n\n"), EVENTS.concat());
}

// Promise: "Comments are not stored, and count nowhere; those of another such cache behind this one
// neither", and no request joins after `body_idle_timeout` of silence.
// Cause: with `heartbeat(0)`, and wherever this cache makes no comments, `stream` (flow/lead/keep.rs)
// sets no `tail`: the inner comments are bytes of the stream, and a dead one takes new readers.
#[tokio::test(start_paused = true)]
async fn comments_of_another_cache_count_nowhere_where_this_one_makes_none() {
    let sources = Sources::default();
    let origin = fed_events(&sources, &[("cache-control", "no-cache")]);
    let app = two_caches(&origin, done().heartbeat(Duration::ZERO));
    let first = app.clone().oneshot(get("/report")).await.unwrap();
    let _silent = sources.take(0);
    let _reading = spawn(first.into_body().collect());
    pass(secs(300)).await;
    let _second = app.oneshot(get("/report")).await.unwrap();
    assert_eq!(origin.calls(), 2, "the first stream has been silent for 300 s");
}

// Promise: as above, "not stored". Cause: as above.
#[tokio::test(start_paused = true)]
async fn comments_of_another_cache_are_not_stored_where_this_one_makes_none() {
    let stored =
        stored_of(done().heartbeat(Duration::ZERO), &[":\n\n", "data: x\n\n", "data: [DONE]\n\n"])
            .await;
    assert_eq!(stored.as_deref(), Some("data: x\n\ndata: [DONE]\n\n"));
}

// Promise: as above. Cause: `is_before_comments` (rules/streams.rs) knows chunks of nothing but comments;
// a connection may join a comment and the event after it.
#[tokio::test(start_paused = true)]
async fn a_comment_of_another_cache_that_comes_with_an_event_is_not_stored() {
    let stored = stored_of(done(), &["data: x\n\n", ":\n\ndata: [DONE]\n\n"]).await;
    assert_eq!(stored.as_deref(), Some("data: x\n\ndata: [DONE]\n\n"));
}

// Promise: as above. Cause: as above; a connection may cut a comment in two, as well.
#[tokio::test(start_paused = true)]
async fn a_comment_of_another_cache_that_comes_in_two_chunks_is_not_stored() {
    let stored = stored_of(done(), &["data: x\n\n", ":", "\n\n", "data: [DONE]\n\n"]).await;
    assert_eq!(stored.as_deref(), Some("data: x\n\ndata: [DONE]\n\n"));
}

// Promise: nothing that was cut is stored. The other choice has not ended.
// Cause: `after_key` (rules/streams.rs) skips each `null`, and `has_finish_reason` wants one text.
#[tokio::test(start_paused = true)]
async fn a_stream_with_one_of_two_choices_unfinished_is_not_complete() {
    let cut = "data: {\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"},\
               {\"index\":1,\"finish_reason\":null}]}\n\n";
    assert_eq!(stored_of(StreamRule::finish_reason().ttl(secs(600)), &[cut]).await, None);
}

// Promise: nothing that was cut is stored; `finish_reason` of the choice is `null`.
// Cause: `after_key` (rules/streams.rs) finds the key at any depth, and skips the `null` for it.
#[tokio::test(start_paused = true)]
async fn a_finish_reason_within_the_answer_is_not_the_end_of_the_stream() {
    let cut = "data: {\"choices\":[{\"finish_reason\":null,\
               \"delta\":{\"logs\":[{\"finish_reason\":\"stop\"}]}}]}\n\n";
    assert_eq!(stored_of(StreamRule::finish_reason().ttl(secs(600)), &[cut]).await, None);
}

// Promise: "A reader of an event stream that gets nothing for `heartbeat` gets a comment".
// Cause: `of_own` in `stream` (flow/lead/keep.rs) goes by the wish for a range; with another `If-Range`
// the client gets the whole, and a proxy cuts it off.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_range_leads_to_the_whole_gets_comments_too() {
    let sources = Sources::default();
    let app = layered(shared(done()), &fed_events(&sources, &[("cache-control", "no-cache")]));
    let mut reader =
        open(&app, with("/report", &[("range", "bytes=4-"), ("if-range", "\"other\"")])).await;
    let mut other = open(&app, get("/report")).await;
    let _source = sources.take(0);
    assert_eq!(reader.head.status, 200);
    reader.now();
    other.now();
    pass(secs(16)).await;
    assert_eq!(other.now(), ":\n\n");
    assert_eq!(reader.now(), ":\n\n");
}

// RFC 9110, 6.5: trailers follow the content. Promise: clients get the bytes of the origin.
// Cause: `StreamReader::poll_frame` (body/stream.rs) gives out the trailers before the bytes that it
// has held back of a byte order mark.
#[tokio::test(start_paused = true)]
async fn no_data_follows_the_trailers() {
    let sources = Sources::default();
    let app = layered(shared(done()), &fed_events(&sources, &[("cache-control", "no-cache")]));
    let mut reader = open(&app, get("/report")).await;
    let source = sources.take(0);
    reader.now();
    pass(secs(16)).await;
    reader.now();
    source.send(&b"\xef"[..]);
    settle().await;
    source.trailers();
    drop(source);
    let mut seen_trailers = false;
    while let Some(frame) = reader.body.frame().await {
        let frame = frame.unwrap();
        assert!(!seen_trailers, "{frame:?} after the trailers");
        seen_trailers |= frame.is_trailers();
    }
}

// Promise: "A request with this field gets what follows the event with this id in the stream that is
// stored or arrives", and no client waits without a head: an unknown id is forwarded at once.
// Cause: `HttpCaller::refuse` (flow/lookup.rs) leaves only where the event is lacking; a known id
// answers `Fit::Refused` and waits 30 s, to the end of the stream or of `wait_timeout`.
#[tokio::test(start_paused = true)]
async fn a_known_id_is_answered_at_once_though_each_request_validates_the_stream() {
    let sources = Sources::default();
    let origin = fed_events(&sources, &[("cache-control", "no-cache"), ("etag", "W/\"v\"")]);
    let app = layered(shared(StreamRule::end_mark("data: [DONE]")), &origin);
    let _first = open(&app, get("/report")).await;
    let source = sources.take(0);
    source.send(EVENTS[0]);
    settle().await;
    let back = open(&app, with("/report", &[("last-event-id", "1")])).await;
    assert!(back.took < secs(1), "{:?}", back.took);
}

// Promise: clients get the bytes of the origin. The response is shared with the waiters and is not
// stored, as it is too old for later ones.
// Cause: the filter of comments belonged to what is stored; without that, what it held back was lost.
#[tokio::test(start_paused = true)]
async fn readers_of_a_stream_that_is_too_old_to_be_stored_miss_no_byte() {
    const REST: &str = " a note\n\ndata: [DONE]\n\n";
    let origin = Origin::new(|_| {
        let rest = stream::once(async {
            tokio::time::sleep(secs(1)).await;
            Ok::<_, Infallible>(REST)
        });
        let body = Body::from_stream(stream::iter([Ok("data: x\n\n:")]).chain(rest));
        let answer = Answer::ok("max-age=10", body).header("age", "100");
        answer.header("content-type", "text/event-stream")
    });
    let app = layered(shared(StreamRule::end_mark("data: [DONE]")), &origin);
    let readers = [send(&app, get("/report")), send(&app, get("/report"))];
    for reader in futures_util::future::join_all(readers).await {
        assert_eq!(reader.text(), format!("data: x\n\n:{REST}"));
    }
    assert_eq!(origin.calls(), 1);
}
