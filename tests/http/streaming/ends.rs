//! Bodies that end before their end, and what is invalidated meanwhile.

use futures_util::FutureExt;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{BodyErrorKind, HttpStampede};

use super::fed::*;
use crate::kit::http::*;
use crate::kit::spawn;

fn with_length(length: &'static str, sources: &Sources) -> Origin {
    sources.origin(move |call, answer| match call.n {
        0 => answer.header("content-length", length),
        _ => answer,
    })
}

#[tokio::test(start_paused = true)]
async fn a_failed_body_gives_all_who_read_it_its_bytes_and_then_its_own_error() {
    let (app, origin, sources) = fed(origin_only().http_layer());
    let mut readers = open_many(&app, 10).await;
    let source = sources.take(0);
    source.send("repo");
    settle().await;
    source.fail();
    for rest in rests(&mut readers).await {
        assert_eq!(rest.text(), "repo");
        assert_eq!(rest.kind(), Some(BodyErrorKind::Inner));
        assert_eq!(rest.sources().last().unwrap(), "reset");
    }
    let mut next = open_many(&app, 3).await;
    assert!(next[0].is(Computed), "it is not stored");
    assert!(next[2].is(Joined), "and it is no word about the key");
    sources.take(1).send("report");
    assert!(rests(&mut next).await.iter().all(|rest| rest.is("report")));
    assert!(send(&app, get("/report")).await.is(Hit));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_body_of_another_length_than_declared_is_broken_off_for_all() {
    for (length, error) in [("6", None), ("5", Some(())), ("7", Some(()))] {
        let sources = Sources::default();
        let origin = with_length(length, &sources);
        let app = layered(origin_only().http_layer(), &origin);
        let mut readers = open_many(&app, 3).await;
        let source = sources.take(0);
        source.send("re");
        settle().await;
        source.send("port");
        drop(source);
        for rest in rests(&mut readers).await {
            assert_eq!(rest.text(), "report");
            assert_eq!(rest.kind(), error.map(|()| BodyErrorKind::BrokenOff), "{length}");
        }
        assert_eq!(open(&app, get("/report")).await.is(Hit), error.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn who_comes_after_a_break_off_does_not_get_it() {
    let (app, origin, sources) = fed(origin_only().http_layer());
    let mut reader = open(&app, get("/report")).await;
    let source = sources.take(0);
    source.send("repo");
    source.fail();
    settle().await;
    let mut next = open(&app, get("/report")).await;
    sources.take(1).send("report");
    assert!(next.rest().await.is("report"));
    assert_eq!(reader.rest().await.kind(), Some(BodyErrorKind::Inner));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_comes_to_its_answer_only_after_a_break_off_asks_again() {
    let (app, origin, sources) = fed(origin_only().http_layer());
    let leader = spawn({
        let app = app.clone();
        async move { open(&app, get("/report")).await }
    });
    settle().await;
    let mut waiter = Box::pin(open(&app, get("/report")));
    assert!(waiter.as_mut().now_or_never().is_none(), "it waits, and is not polled for a while");
    let mut first = leader.await.unwrap();
    sources.take(0).fail();
    assert!(first.rest().await.error.is_some());
    settle().await;
    let mut second = waiter.await;
    assert!(second.is(Computed));
    sources.take(1).send("report");
    assert!(second.rest().await.is("report"));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn after_a_panic_of_the_body_nobody_hangs_and_the_next_one_leads() {
    let (app, origin, sources) = fed(origin_only().http_layer());
    let mut readers = open_many(&app, 3).await;
    let source = sources.take(0);
    source.send("repo");
    settle().await;
    source.panic();
    for rest in rests(&mut readers).await {
        assert_eq!((rest.text(), rest.kind()), ("repo", Some(BodyErrorKind::Ended)));
    }
    let mut next = open(&app, get("/report")).await;
    sources.take(1).send("report");
    assert!(next.rest().await.is("report"));
    assert!(send(&app, get("/report")).await.is(Hit));
    assert_eq!(origin.calls(), 2);
}

/// Where a body is when it is cut off.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// Nothing has come.
    AtFirst,
    /// Some has come, and some of it was read.
    Kept,
    /// It is over its limit, and the source is waited for.
    Passing,
    /// It is over its limit, and a reader is.
    HeldUp,
    /// The same, and another waits for it.
    Stalling,
}

async fn bring_to(cut: Cut, cache: &HttpStampede) -> (App, Source, Vec<Reading>) {
    let (app, _, sources) = fed(cache.http_layer().max_body(64 * 1024));
    let mut readers = open_many(&app, 3).await;
    let source = sources.take(0);
    let chunks = match cut {
        Cut::AtFirst => 0,
        Cut::Kept => 2,
        Cut::Passing | Cut::HeldUp | Cut::Stalling => 5,
    };
    (0..chunks).for_each(|_| source.send("x".repeat(16 * 1024)));
    settle().await;
    let reads = match cut {
        Cut::Passing => 3,
        Cut::Kept | Cut::Stalling => 1,
        Cut::AtFirst | Cut::HeldUp => 0,
    };
    for reader in &mut readers[..reads] {
        reader.now();
    }
    settle().await;
    (app, source, readers)
}

#[tokio::test(start_paused = true)]
async fn wherever_the_task_that_reads_a_body_is_dropped_nobody_hangs_and_nothing_is_stored() {
    for cut in [Cut::AtFirst, Cut::Kept, Cut::Passing, Cut::HeldUp, Cut::Stalling] {
        let cache = origin_only();
        let (app, source, mut readers) = bring_to(cut, &cache).await;
        let waiting = spawn({
            let mut last = readers.pop().unwrap();
            async move { last.rest().await }
        });
        settle().await;
        assert_eq!(cache.shutdown(secs(1)).await, 1, "{cut:?}: it was running");
        assert!(source.is_dropped(), "{cut:?}");
        let mut all = rests(&mut readers).await;
        all.push(waiting.await.unwrap());
        assert!(all.iter().all(|rest| rest.kind() == Some(BodyErrorKind::Ended)), "{cut:?}");
        let stats = cache.stats();
        assert_eq!((stats.flights, stats.waiting, stats.entries), (0, 0, 0), "{cut:?}");
        let after = open(&app, get("/report")).await;
        assert!(after.is(Alone), "{cut:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_lets_a_body_finish_within_its_deadline() {
    let cache = origin_only();
    let (_app, source, mut readers) = bring_to(Cut::Kept, &cache).await;
    let shutdown = spawn({
        let cache = cache.clone();
        async move { cache.shutdown(secs(5)).await }
    });
    pass(secs(2)).await;
    drop(source);
    assert_eq!(shutdown.await.unwrap(), 0);
    assert!(rests(&mut readers).await.iter().all(|rest| rest.error.is_none()));
}

#[tokio::test(start_paused = true)]
async fn what_is_invalidated_while_it_arrives_is_finished_and_not_stored() {
    type Invalidate = fn(HttpStampede) -> futures_util::future::BoxFuture<'static, ()>;
    let ways: [Invalidate; 2] = [
        |cache| {
            Box::pin(async move {
                cache.invalidate_path("/report").await;
            })
        },
        |cache| {
            Box::pin(async move {
                cache.invalidate_all().await;
            })
        },
    ];
    for invalidate in ways {
        let cache = origin_only();
        let (app, origin, sources) = fed(cache.http_layer());
        let mut readers = open_many(&app, 3).await;
        let source = sources.take(0);
        source.send("o");
        settle().await;
        invalidate(cache).await;
        let mut next = open(&app, get("/report")).await;
        assert!(next.is(Computed), "it never joins a flight begun before");
        source.send("ld");
        drop(source);
        assert!(rests(&mut readers).await.iter().all(|rest| rest.is("old")));
        settle().await;
        let mut late = open(&app, get("/report")).await;
        assert!(late.is(Joined));
        sources.take(1).send("new");
        assert!(next.rest().await.is("new") && late.rest().await.is("new"));
        let hit = send(&app, get("/report")).await;
        assert!(hit.is(Hit) && hit.text() == "new");
        assert_eq!(origin.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_while_a_body_arrives_ends_its_use() {
    let sources = Sources::default();
    let origin = Origin::new({
        let sources = sources.clone();
        move |call| match call.parts.method.as_str() {
            "GET" => Answer::ok("max-age=60", sources.body()),
            _ => Answer::status(204),
        }
    });
    let app = layered(origin_only().http_layer(), &origin);
    let mut reader = open(&app, get("/report")).await;
    let source = sources.take(0);
    source.send("o");
    settle().await;
    send(&app, request("PUT", "/report", &[])).await;
    source.send("ld");
    drop(source);
    assert!(reader.rest().await.is("old"));
    settle().await;
    assert!(!open(&app, get("/report")).await.is(Hit));
}

#[tokio::test(start_paused = true)]
async fn who_comes_when_an_arriving_answer_is_no_longer_fresh_does_not_wait_for_its_end() {
    let sources = Sources::default();
    let origin = Origin::new({
        let sources = sources.clone();
        move |_| Answer::ok("max-age=2", sources.body())
    });
    let layer = origin_only().http_layer().body_join_timeout(secs(30));
    let app = layered(layer, &origin);
    let mut first = open(&app, get("/report")).await;
    let old = sources.take(0);
    pass(secs(3)).await;
    let mut late = open_many(&app, 10).await;
    assert!(late.iter().all(|reading| reading.took == WORK) && origin.calls() == 2);
    assert!(late[0].is(Computed) && late[1..].iter().all(|reading| reading.is(Joined)));
    old.send("old");
    drop(old);
    assert!(first.rest().await.is("old"));
    let new = sources.take(1);
    new.send("new");
    drop(new);
    assert!(rests(&mut late).await.iter().all(|rest| rest.is("new")));
    assert!(send(&app, get("/report")).await.is(Hit));
}
