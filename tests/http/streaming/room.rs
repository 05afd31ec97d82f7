//! The bound on the bytes of all bodies that arrive: what happens there, and that every end of a
//! body gives its bytes back.

use tower_stampede::CacheOutcome::*;
use tower_stampede::{Event, HttpLayer, HttpStampede, Mode, Stampede};

use super::fed::*;
use crate::kit::http::*;
use crate::kit::spawn;

const KIB: usize = 1024;

fn with_room(bytes: usize) -> HttpStampede {
    let settings = Stampede::builder("test").origin_only();
    settings.max_arriving_bytes(bytes as u64).build().unwrap()
}

/// Opens `/n` for each number, each with its own body.
async fn open_each(app: &App, numbers: std::ops::Range<usize>) -> Vec<Reading> {
    let mut readers = Vec::new();
    for n in numbers {
        readers.push(open(app, get(&format!("/{n}"))).await);
        settle().await;
    }
    readers
}

fn chunk(bytes: usize) -> String {
    "x".repeat(bytes)
}

#[tokio::test(start_paused = true)]
async fn a_declared_body_without_room_is_passed_on_unshared_and_stored_the_next_time() {
    let sources = Sources::default();
    let origin = sources.origin(|_, answer| answer.header("content-length", "6"));
    let cache = with_room(10);
    let mut events = cache.events();
    let app = layered(cache.http_layer(), &origin);
    let mut first = open(&app, get("/first")).await;
    assert_eq!(cache.stats().arriving_bytes, 6, "the declared length, before a byte has come");

    let mut crowd = open_many(&app, 3).await;
    assert_eq!(origin.calls(), 4, "each of the crowd asks for itself");
    let status = crowd[0].head.headers["cache-status"].to_str().unwrap();
    assert!(status.contains("detail=no-room"), "{status}");
    for n in 1..4 {
        sources.take(n).send("report");
    }
    assert!(rests(&mut crowd).await.iter().all(|rest| rest.is("report")));
    let stats = cache.stats();
    assert_eq!((stats.refused_bodies, stats.refused, stats.entries), (1, 0, 0));
    let is_refusal = |event| matches!(event, Event::BodyRefused { .. });
    assert!(std::iter::from_fn(|| events.try_recv().ok()).any(is_refusal));

    sources.take(0).send("report");
    assert!(first.rest().await.is("report"));
    assert_eq!(cache.stats().arriving_bytes, 0);
    let mut again = open_many(&app, 3).await;
    assert!(again[0].is(Computed) && again[1].is(Joined), "the key is not uncacheable");
    sources.take(4).send("report");
    assert!(rests(&mut again).await.iter().all(|rest| rest.is("report")));
    assert!(send(&app, get("/report")).await.is(Hit));
    assert!(send(&app, get("/first")).await.is(Hit));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_grows_beyond_the_room_reaches_all_that_read_it_and_is_not_stored() {
    let sources = Sources::default();
    let origin = sources.origin(|_, answer| answer);
    let cache = with_room(100 * KIB);
    let app = layered(cache.http_layer(), &origin);
    let _other = open(&app, get("/other")).await;
    let other = sources.take(0);
    other.send(chunk(60 * KIB));
    settle().await;
    let mut readers = open_many(&app, 3).await;
    let source = sources.take(1);
    (0..4).for_each(|_| source.send(chunk(20 * KIB)));
    drop(source);
    let rests = rests(&mut readers).await;
    assert!(rests.iter().all(|rest| rest.is(&chunk(80 * KIB))), "nothing is missing");
    let stats = cache.stats();
    assert_eq!((stats.arriving_bytes, stats.refused_bodies), (60 * KIB as u64, 1));
    assert_eq!((stats.entries, origin.calls()), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn bodies_that_are_there_at_once_need_no_room() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "report"));
    let cache = with_room(1);
    let app = layered(cache.http_layer(), &origin);
    assert!(send(&app, get("/report")).await.is(Computed));
    assert!(send(&app, get("/report")).await.is(Hit));
    assert_eq!(cache.stats().refused_bodies, 0);
}

#[tokio::test(start_paused = true)]
async fn many_bodies_at_once_take_no_more_than_the_room_and_none_fails() {
    let sources = Sources::default();
    let origin = sources.origin(|_, answer| answer);
    let cache = with_room(100 * KIB);
    let app = layered(cache.http_layer(), &origin);
    let mut readers = open_each(&app, 0..50).await;
    for n in 0..50 {
        let source = sources.take(n);
        source.send(chunk(16 * KIB));
        settle().await;
        assert!(cache.stats().arriving_bytes <= 100 * KIB as u64);
        sources_end_later(source);
    }
    assert!(cache.stats().refused_bodies >= 40, "{}", cache.stats().refused_bodies);
    assert!(rests(&mut readers).await.iter().all(|rest| rest.is(&chunk(16 * KIB))));
    assert_eq!(cache.stats().arriving_bytes, 0);
}

/// Ends a body a second from now.
fn sources_end_later(source: Source) {
    spawn(async move {
        pass(secs(1)).await;
        drop(source);
    });
}

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    Complete,
    Fails,
    Panics,
    ShorterThanDeclared,
    TooLarge,
    Trailers,
    Pauses,
    LastReaderGoesWhileObserving,
    IsInvalidated,
    CacheIsShutDown,
    ModeIsOff,
}

const ENDINGS: [Ending; 11] = [
    Ending::Complete,
    Ending::Fails,
    Ending::Panics,
    Ending::ShorterThanDeclared,
    Ending::TooLarge,
    Ending::Trailers,
    Ending::Pauses,
    Ending::LastReaderGoesWhileObserving,
    Ending::IsInvalidated,
    Ending::CacheIsShutDown,
    Ending::ModeIsOff,
];

async fn bring_about(ending: Ending, cache: &HttpStampede, source: Source, reader: &mut Reading) {
    match ending {
        Ending::Complete | Ending::ShorterThanDeclared => drop(source),
        Ending::Fails => source.fail(),
        Ending::Panics => source.panic(),
        Ending::TooLarge => (0..4).for_each(|_| source.send(chunk(32 * KIB))),
        Ending::Trailers => {
            source.trailers();
            drop(source);
        }
        Ending::Pauses => {
            pass(secs(3)).await;
            source.send("more");
        }
        Ending::LastReaderGoesWhileObserving => {
            cache.set_mode(Mode::Observe);
            reader.body = Default::default();
            settle().await;
            assert!(source.is_dropped());
        }
        Ending::IsInvalidated => {
            cache.invalidate_all().await;
            drop(source);
        }
        Ending::CacheIsShutDown => {
            cache.shutdown(secs(1)).await;
        }
        Ending::ModeIsOff => {
            cache.set_mode(Mode::Off);
            drop(source);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_end_of_a_body_gives_its_bytes_back() {
    for ending in ENDINGS {
        let sources = Sources::default();
        let origin = sources.origin(move |_, answer| match ending {
            Ending::ShorterThanDeclared => answer.header("content-length", "65536"),
            _ => answer,
        });
        let cache = with_room(64 * KIB);
        let layer = |cache: &HttpStampede| -> HttpLayer {
            cache.http_layer().max_body(80 * KIB).body_idle_timeout(secs(2))
        };
        let app = layered(layer(&cache), &origin);
        let mut reader = open(&app, get("/report")).await;
        let source = sources.take(0);
        source.send(chunk(40 * KIB));
        settle().await;
        let held = if ending == Ending::ShorterThanDeclared { 64 } else { 40 };
        assert_eq!(cache.stats().arriving_bytes, held * KIB as u64, "{ending:?}");
        bring_about(ending, &cache, source, &mut reader).await;
        settle().await;
        reader.rest().await;
        settle().await;
        assert_eq!(cache.stats().arriving_bytes, 0, "{ending:?}");
    }
}

#[test]
fn a_runtime_that_ends_gives_the_bytes_back() {
    let cache = with_room(64 * KIB);
    let sources = Sources::default();
    let origin = sources.origin(|_, answer| answer);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let app = layered(cache.http_layer(), &origin);
    let (reader, source) = runtime.block_on(async {
        let reader = open(&app, get("/report")).await;
        let source = sources.take(0);
        source.send(chunk(40 * KIB));
        while cache.stats().arriving_bytes == 0 {
            tokio::task::yield_now().await;
        }
        (reader, source)
    });
    drop(runtime);
    assert_eq!(cache.stats().arriving_bytes, 0);
    drop((reader, source));
}

/// the speed of its reader. One that reads nothing must not keep the room of all others.
#[tokio::test(start_paused = true)]
async fn readers_of_bodies_that_are_too_long_take_no_room_from_other_bodies() {
    use axum::body::Body;
    use bytes::Bytes;
    use futures_util::stream;
    use http_body_util::BodyExt;
    use std::convert::Infallible;
    use tower::ServiceExt;
    use tower_layer::Layer;
    fn chunks(n: usize) -> Body {
        Body::from_stream(stream::unfold(n, |left| async move {
            tokio::time::sleep(ms(1)).await;
            (left > 0).then(|| (Ok::<_, Infallible>(Bytes::from(vec![b'x'; 4096])), left - 1))
        }))
    }
    let settings = Stampede::builder("site").ttl(secs(60)).max_arriving_bytes(1024 * KIB as u64);
    let cache: HttpStampede = settings.build().unwrap();
    let origin = Origin::new(|call| {
        let is_large = call.uri().starts_with("/large");
        Answer::status(200).body(chunks(if is_large { 1000 } else { 10 }))
    });
    let app = cache.http_layer().max_body(256 * KIB).layer(origin.clone());
    let mut slow = Vec::new();
    for n in 0..4 {
        slow.push(app.clone().oneshot(get(&format!("/large{n}"))).await.unwrap());
    }
    pass(secs(24 * 3600)).await;
    assert_eq!(cache.stats().arriving_bytes, 0);
    for _ in 0..2 {
        let reply = app.clone().oneshot(get("/small")).await.unwrap();
        reply.into_body().collect().await.unwrap();
    }
    assert_eq!(origin.calls(), 5);
    drop(slow);
}
