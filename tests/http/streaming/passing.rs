//! Bodies that turn out not to be stored, and are read by several.

use axum::body::Body;
use http::Request;
use tower_stampede::BodyErrorKind;
use tower_stampede::CacheOutcome::*;

use super::fed::*;
use crate::kit::http::*;
use crate::kit::spawn;

const KIB: usize = 1024;

fn chunk() -> String {
    "x".repeat(16 * KIB)
}

/// An app with a limit of 64 KiB, and readers of a body that is over it.
async fn over_the_limit(readers: usize) -> (App, Origin, Source, Vec<Reading>) {
    let (app, origin, sources) = fed(origin_only().http_layer().max_body(64 * KIB));
    let readers = open_many(&app, readers).await;
    let source = sources.take(0);
    (0..5).for_each(|_| source.send(chunk()));
    settle().await;
    assert_eq!(source.taken(), 5, "the limit is passed");
    (app, origin, source, readers)
}

#[tokio::test(start_paused = true)]
async fn over_the_limit_who_reads_is_finished_and_who_comes_begins_anew() {
    let (app, origin, source, mut readers) = over_the_limit(3).await;
    assert_eq!(origin.calls(), 1);
    let began = tokio::time::Instant::now();
    let late = open_many(&app, 3).await;
    assert!(late.iter().all(|reader| !reader.is(Joined)));
    assert_eq!(began.elapsed(), WORK, "it is known by now, and nobody queues");
    assert_eq!(origin.calls(), 4);
    source.send("end");
    drop(source);
    for rest in rests(&mut readers).await {
        assert_eq!((rest.bytes.len(), rest.error.is_none()), (80 * KIB + 3, true));
    }
    assert!(!open(&app, get("/report")).await.is(Hit), "nothing is stored");
}

#[tokio::test(start_paused = true)]
async fn over_the_limit_the_source_is_read_at_the_pace_of_the_slowest() {
    let (_app, _, source, mut readers) = over_the_limit(2).await;
    (0..1000).for_each(|_| source.send(chunk()));
    settle().await;
    assert_eq!(source.taken(), 5, "80 KiB are there for those who have read nothing");
    let (fast, slow) = readers.split_at_mut(1);
    assert_eq!(fast[0].now().len(), 80 * KIB);
    settle().await;
    assert_eq!(source.taken(), 5);
    for _ in 0..900 {
        assert_eq!(slow[0].next().unwrap().len(), 16 * KIB);
        settle().await;
        fast[0].now();
        settle().await;
        let read = slow[0].read / (16 * KIB);
        let ahead = source.taken() - read;
        assert_eq!(ahead, 4, "64 KiB ahead of the slowest, no more and no less");
    }
}

#[tokio::test(start_paused = true)]
async fn a_single_reader_is_never_too_slow() {
    let (_app, _, source, mut readers) = over_the_limit(1).await;
    for _ in 0..20 {
        source.send(chunk());
        pass(secs(60)).await;
        assert_eq!(readers[0].next().unwrap().len(), 16 * KIB);
    }
    drop(source);
    let rest = readers[0].rest().await;
    assert_eq!((rest.bytes.len(), rest.error.is_none()), (5 * 16 * KIB, true));
}

#[tokio::test(start_paused = true)]
async fn who_reads_nothing_while_another_waits_is_left_behind() {
    let (_app, _, source, mut readers) = over_the_limit(3).await;
    (0..5).for_each(|_| source.send(chunk()));
    // No reader waits: all are slow.
    pass(secs(60)).await;
    assert_eq!(readers[1].next().unwrap().len(), 16 * KIB);
    let mut fast = readers.remove(0);
    assert_eq!(fast.now().len(), 80 * KIB);
    settle().await;
    let until = tokio::time::Instant::now() + secs(5);
    let read = spawn(async move { (fast.next_frame().await, fast) });
    tokio::time::sleep_until(until - ms(500)).await;
    assert!(!read.is_finished());
    // This one moves, and is waited for anew.
    assert_eq!(readers[0].next().unwrap().len(), 16 * KIB);
    tokio::time::sleep_until(until - ms(3)).await;
    assert!(!read.is_finished());
    tokio::time::sleep_until(until + ms(2)).await;
    // The other two are 48 KiB apart, within the window.
    let (frame, _fast) = read.await.unwrap();
    assert_eq!(frame, 16 * KIB);
    let stalled = readers[1].rest().await;
    assert_eq!((stalled.kind(), stalled.bytes.len()), (Some(BodyErrorKind::Stalled), 0));
    drop(source);
    assert_eq!(readers[0].rest().await.error.map(|error| error.kind()), None);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_moves_is_not_left_behind_however_long_another_waits() {
    let (_app, _, source, mut readers) = over_the_limit(2).await;
    source.send(chunk());
    assert_eq!(readers[0].now().len(), 80 * KIB);
    settle().await;
    pass(ms(4500)).await;
    assert_eq!(readers[1].next().unwrap().len(), 16 * KIB);
    // It is still at the edge of the window, and has five seconds again.
    pass(ms(4900)).await;
    assert_eq!(readers[0].next(), None);
    pass(ms(200)).await;
    assert_eq!(readers[0].now().len(), 16 * KIB);
    assert_eq!(readers[1].rest().await.kind(), Some(BodyErrorKind::Stalled));
}

#[tokio::test(start_paused = true)]
async fn whoever_stops_waiting_holds_nothing_against_the_slow() {
    let (_app, _, source, mut readers) = over_the_limit(2).await;
    source.send(chunk());
    assert_eq!(readers[0].now().len(), 80 * KIB);
    settle().await;
    pass(secs(4)).await;
    drop(readers.remove(0));
    pass(secs(60)).await;
    drop(source);
    let rest = readers[0].rest().await;
    assert_eq!((rest.bytes.len(), rest.kind()), (96 * KIB, None));
}

#[tokio::test(start_paused = true)]
async fn a_short_stall_time_can_be_set() {
    let layer = origin_only().http_layer().max_body(64 * KIB).stall_timeout(ms(100));
    let (app, _, sources) = fed(layer);
    let mut readers = open_many(&app, 2).await;
    let source = sources.take(0);
    (0..6).for_each(|_| source.send(chunk()));
    settle().await;
    assert_eq!(readers[0].now().len(), 80 * KIB);
    pass(ms(90)).await;
    assert_eq!(source.taken(), 5);
    pass(ms(20)).await;
    assert_eq!(source.taken(), 6);
    assert_eq!(readers[1].rest().await.kind(), Some(BodyErrorKind::Stalled));
}

#[tokio::test(start_paused = true)]
async fn when_the_slowest_goes_away_the_others_go_on() {
    let (_app, _, source, mut readers) = over_the_limit(2).await;
    source.send(chunk());
    assert_eq!(readers[0].now().len(), 80 * KIB);
    settle().await;
    assert_eq!(source.taken(), 5);
    drop(readers.pop());
    settle().await;
    assert_eq!(readers[0].now().len(), 16 * KIB);
}

#[tokio::test(start_paused = true)]
async fn when_all_readers_are_gone_the_source_is_dropped() {
    for is_full in [false, true] {
        let (_app, _, source, mut readers) = over_the_limit(2).await;
        if !is_full {
            readers.iter_mut().for_each(|reader| drop(reader.now()));
            settle().await;
        }
        assert!(!source.is_dropped());
        drop(readers);
        settle().await;
        assert!(source.is_dropped());
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_over_its_limit_whose_readers_left_before_is_dropped_with_its_flight() {
    let (app, origin, sources) = fed(origin_only().http_layer().max_body(64 * KIB));
    drop(open_many(&app, 2).await);
    let source = sources.take(0);
    (0..4).for_each(|_| source.send(chunk()));
    settle().await;
    assert!(!source.is_dropped(), "it may yet be stored");
    source.send("x");
    settle().await;
    assert!(source.is_dropped());
    drop(open(&app, get("/report")).await);
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_pauses_goes_on_for_those_who_read_it() {
    let (app, origin, sources) = fed(origin_only().http_layer().body_idle_timeout(secs(2)));
    let mut readers = open_many(&app, 2).await;
    let source = sources.take(0);
    pass(secs(1)).await;
    source.send("one ");
    pass(ms(1900)).await;
    assert!(open(&app, get("/report")).await.is(Joined));
    // An empty chunk is no progress.
    source.send("");
    pass(ms(200)).await;
    let next = open(&app, get("/report")).await;
    assert!(!next.is(Joined));
    assert_eq!(origin.calls(), 2);
    pass(secs(600)).await;
    source.send("two");
    drop(source);
    assert!(rests(&mut readers).await.iter().all(|rest| rest.is("one two")));
}

#[tokio::test(start_paused = true)]
async fn empty_chunks_without_end_are_a_pause_and_leave_others_their_turn() {
    let empty = || Ok::<_, std::io::Error>(bytes::Bytes::new());
    let origin = Origin::new(move |call| match call.n {
        0 => {
            let body = futures_util::stream::repeat_with(empty);
            Answer::ok("max-age=60", axum::body::Body::from_stream(body))
        }
        _ => Answer::ok("max-age=60", "good"),
    });
    // No time passes while a task is always ready; the clock is moved by hand.
    let app = layered(origin_only().http_layer().body_idle_timeout(secs(2)), &origin);
    let reader = open(&app, get("/report")).await;
    tokio::time::advance(secs(3)).await;
    tokio::task::yield_now().await;
    let late = spawn({
        let app = app.clone();
        async move { send(&app, get("/report")).await }
    });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(origin.calls(), 2, "nobody joins it any more");
    drop(reader);
    assert_eq!(late.await.unwrap().text(), "good");
}

#[tokio::test(start_paused = true)]
async fn trailers_reach_the_client_of_the_forwarded_request_alone_and_are_never_stored() {
    for (method, content_type) in
        [("GET", "text/plain"), ("QUERY", "text/plain"), ("GET", "application/grpc")]
    {
        let sources = Sources::default();
        let origin = sources.origin(move |_, answer| answer.header("content-type", content_type));
        let app = layered(origin_only().http_layer(), &origin);
        let request =
            || Request::builder().method(method).uri("/report").body(Body::empty()).unwrap();
        let crowd = (0..3).map(|_| open(&app, request()));
        let mut readers = futures_util::future::join_all(crowd).await;
        assert_eq!(readers.iter().filter(|reader| reader.is(Joined)).count(), 2, "{method}");
        let source = sources.take(0);
        source.send("report");
        settle().await;
        source.trailers();
        drop(source);
        let outcomes = readers.iter().map(|reader| reader.is(Joined)).collect::<Vec<_>>();
        for (joined, rest) in outcomes.into_iter().zip(rests(&mut readers).await) {
            assert_eq!(rest.text(), "report");
            assert_eq!(rest.trailers.is_none(), joined, "{method} {content_type}: {rest:?}");
            assert!(rest.error.is_none());
        }
        assert!(readers.iter().all(|reader| http_body::Body::is_end_stream(&reader.body)));
        assert!(!open(&app, request()).await.is(Hit));
        assert_eq!(origin.calls(), 2);
    }
}
