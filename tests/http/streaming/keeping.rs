//! Bodies that are stored when they are complete.

use http_body::Body as _;
use tower_stampede::CacheOutcome::*;
use tower_stampede::Stampede;

use super::fed::*;
use crate::kit::http::*;
use crate::kit::spawn;

#[tokio::test(start_paused = true)]
async fn the_leaders_client_and_all_who_wait_read_the_first_chunk_before_the_second_is_sent() {
    let (app, origin, sources) = fed(origin_only().http_layer());
    let from = tokio::time::Instant::now();
    let mut readers = open_many(&app, 10).await;
    assert_eq!(from.elapsed(), WORK, "no caller waits longer than for the header section");
    let source = sources.take(0);
    assert!(readers.iter_mut().all(|reader| reader.next().is_none()));
    source.send("one ");
    settle().await;
    assert!(readers.iter_mut().all(|reader| reader.next().unwrap() == "one "));
    source.send("two");
    drop(source);
    assert!(rests(&mut readers).await.iter().all(|rest| rest.is("two")));
    assert_eq!(readers.iter().filter(|reader| reader.is(Joined)).count(), 9);
    assert_eq!(origin.calls(), 1);
    let hit = send(&app, get("/report")).await;
    assert!(hit.is(Hit) && hit.text() == "one two" && hit.declared == Some(7));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_waits_is_woken_by_each_chunk() {
    let (app, _, sources) = fed(origin_only().http_layer());
    let mut readers = open_many(&app, 3).await;
    let source = sources.take(0);
    let all = spawn(async move { rests(&mut readers).await });
    for chunk in ["a", "b", "c"] {
        pass(secs(1)).await;
        source.send(chunk);
    }
    drop(source);
    assert!(all.await.unwrap().iter().all(|rest| rest.is("abc")));
}

#[tokio::test(start_paused = true)]
async fn who_comes_in_the_middle_of_a_body_gets_all_of_it_at_once() {
    let (app, origin, sources) = fed(origin_only().http_layer());
    let mut first = open(&app, get("/report")).await;
    let source = sources.take(0);
    source.send("one ");
    source.send("x".repeat(3000));
    settle().await;
    let from = tokio::time::Instant::now();
    let mut late = open(&app, get("/report")).await;
    assert!(late.is(Joined) && from.elapsed().is_zero());
    assert!(late.now().starts_with("one xxx"));
    source.send("two");
    drop(source);
    assert!(late.rest().await.is("two"));
    assert!(first.rest().await.text().ends_with("xtwo"));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn up_to_the_limit_a_slow_reader_holds_nobody_back_and_misses_nothing() {
    let cache = origin_only();
    let (app, _, sources) = fed(cache.http_layer());
    let mut readers = open_many(&app, 2).await;
    let source = sources.take(0);
    for _ in 0..1000 {
        source.send("x".repeat(1000));
    }
    drop(source);
    let fast = readers[1].rest().await;
    assert!(fast.bytes.len() == 1_000_000 && fast.error.is_none());
    assert!(send(&app, get("/report")).await.is(Hit));
    pass(secs(50)).await;
    assert!(cache.stats().bytes >= 1_000_000, "it counts for what it holds");
    assert_eq!(readers[0].rest().await.bytes.len(), 1_000_000);
}

#[tokio::test(start_paused = true)]
async fn when_clients_go_away_the_others_get_it_all_and_it_is_stored() {
    for leaves in [0..1, 1..3, 0..3, 0..4] {
        let (app, origin, sources) = fed(origin_only().http_layer());
        let mut readers = open_many(&app, 4).await;
        let source = sources.take(0);
        source.send("one ");
        settle().await;
        drop(readers.drain(leaves));
        pass(secs(5)).await;
        source.send("two");
        drop(source);
        assert!(rests(&mut readers).await.iter().all(|rest| rest.is("one two")));
        settle().await;
        assert_eq!(send(&app, get("/report")).await.text(), "one two");
        assert_eq!(origin.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_declared_length_is_exact_from_the_first_byte_to_the_last() {
    let sources = Sources::default();
    let origin = sources.origin(|_, answer| answer.header("content-length", "7"));
    let app = layered(origin_only().http_layer(), &origin);
    let mut readers = open_many(&app, 2).await;
    let source = sources.take(0);
    for reader in &readers {
        assert_eq!(reader.head.headers["content-length"], "7");
        assert_eq!(reader.body.size_hint().exact(), Some(7));
    }
    source.send("one ");
    settle().await;
    for reader in &mut readers {
        assert_eq!(reader.next().unwrap(), "one ");
        assert_eq!(reader.body.size_hint().exact(), Some(3));
        assert!(!reader.body.is_end_stream());
    }
    source.send("two");
    // The source does not end, and need not.
    for reader in &mut readers {
        assert!(reader.rest().await.is("two"));
        assert!(reader.body.is_end_stream());
        assert_eq!(reader.body.size_hint().exact(), Some(0));
    }
    assert!(source.is_dropped());
    assert!(send(&app, get("/report")).await.is(Hit));
}

#[tokio::test(start_paused = true)]
async fn without_a_declared_length_only_what_has_come_is_known_of_it() {
    let (app, _, sources) = fed(origin_only().http_layer());
    let mut readers = open_many(&app, 2).await;
    let source = sources.take(0);
    source.send("one ");
    settle().await;
    let hint = readers[0].body.size_hint();
    assert_eq!((hint.lower(), hint.upper()), (4, None));
    drop(source);
    settle().await;
    assert_eq!(readers[0].body.size_hint().exact(), Some(4));
    assert!(!readers[0].body.is_end_stream());
    assert_eq!(readers[0].next().unwrap(), "one ");
    assert!(readers[0].body.is_end_stream());
    assert!(readers[1].rest().await.is("one "));
}

#[tokio::test(start_paused = true)]
async fn who_reads_on_after_the_whole_was_joined_goes_on_where_it_was() {
    let (app, _, sources) = fed(origin_only().http_layer());
    let mut readers = open_many(&app, 3).await;
    let source = sources.take(0);
    source.send("a".repeat(600));
    settle().await;
    assert_eq!(readers[0].next().unwrap().len(), 600);
    source.send("small");
    settle().await;
    assert_eq!(readers[1].now().len(), 605);
    source.send("b".repeat(600));
    drop(source);
    settle().await;
    assert!(readers[0].rest().await.is(&("small".to_owned() + &"b".repeat(600))));
    assert!(readers[1].rest().await.is(&"b".repeat(600)));
    assert_eq!(readers[2].rest().await.bytes.len(), 1205);
}

#[tokio::test(start_paused = true)]
async fn a_body_may_take_longer_than_any_time_out_as_long_as_it_goes_on() {
    let cache = Stampede::builder("test").origin_only().compute_timeout(secs(2));
    let cache = cache.wait_timeout(secs(3)).build().unwrap();
    let sources = Sources::default();
    let origin = sources.origin(|_, answer| answer.header("cache-control", "s-maxage=600"));
    let app = layered(cache.http_layer().body_join_timeout(secs(30)), &origin);
    let mut readers = vec![open(&app, get("/report")).await];
    let source = sources.take(0);
    for _ in 0..20 {
        pass(secs(20)).await;
        source.send("drip ");
        readers.push(open(&app, get("/report")).await);
    }
    drop(source);
    for rest in rests(&mut readers).await {
        assert!(rest.is(&"drip ".repeat(20)));
    }
    assert_eq!(origin.calls(), 1);
    assert!(send(&app, get("/report")).await.is(Hit));
}

#[tokio::test(start_paused = true)]
async fn a_thousand_clients_read_one_body() {
    let (app, origin, sources) = fed(origin_only().http_layer());
    let mut readers = open_many(&app, 1000).await;
    let source = sources.take(0);
    let all = spawn(async move { rests(&mut readers).await });
    for n in 0..100 {
        source.send(format!("{n:03}"));
        settle().await;
    }
    drop(source);
    let expected: String = (0..100).map(|n| format!("{n:03}")).collect();
    assert!(all.await.unwrap().iter().all(|rest| rest.is(&expected)));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lifetime_shorter_than_the_work_is_shared_with_those_who_wait_and_not_stored() {
    let sources = Sources::default();
    let origin = Origin::new({
        let sources = sources.clone();
        move |_| Answer::ok("max-age=1", sources.body()).after(secs(2))
    });
    let app = layered(origin_only().http_layer(), &origin);
    let mut readers = open_many(&app, 10).await;
    let source = sources.take(0);
    source.send("one ");
    settle().await;
    assert!(readers.iter_mut().all(|reader| reader.next().unwrap() == "one "));
    assert_eq!(origin.calls(), 1);
    let from = tokio::time::Instant::now();
    assert!(open(&app, get("/report")).await.is(Computed), "to this one it is a look-up");
    assert_eq!(from.elapsed(), secs(2), "and it does not wait for a body it may not have");
    drop(source);
    assert!(rests(&mut readers).await.iter().all(|rest| rest.is("")));
}

#[tokio::test(start_paused = true)]
async fn what_a_refresh_brings_is_stored_when_it_is_complete_and_nobody_waits_for_it() {
    let sources = Sources::default();
    let origin = Origin::new({
        let sources = sources.clone();
        move |call| match call.n {
            0 => Answer::ok("max-age=1, stale-while-revalidate=60", "old"),
            _ => Answer::ok("max-age=60", sources.body()),
        }
    });
    let app = layered(origin_only().http_layer(), &origin);
    send(&app, get("/report")).await;
    pass(secs(2)).await;
    for _ in 0..3 {
        let reply = send(&app, get("/report")).await;
        assert!(reply.is(Stale) && reply.text() == "old" && reply.took.is_zero());
        pass(WORK * 2).await;
    }
    let source = sources.take(0);
    source.send("new");
    drop(source);
    settle().await;
    let reply = send(&app, get("/report")).await;
    assert!(reply.is(Hit) && reply.text() == "new");
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_head_in_the_middle_of_a_body_waits_for_none_of_it() {
    let sources = Sources::default();
    let origin = Origin::new({
        let sources = sources.clone();
        move |call| match call.parts.method.as_str() {
            "GET" => Answer::ok("max-age=60", sources.body()),
            _ => Answer::ok("max-age=60", ""),
        }
    });
    let app = layered(origin_only().http_layer(), &origin);
    let mut reader = open(&app, get("/report")).await;
    let source = sources.take(0);
    source.send("one ");
    settle().await;
    let head = send(&app, request("HEAD", "/report", &[])).await;
    assert!(head.status == 200 && head.body.is_empty() && head.took <= WORK);
    source.send("two");
    drop(source);
    assert!(reader.rest().await.is("one two"));
    let head = send(&app, request("HEAD", "/report", &[])).await;
    assert!(head.is(Hit) && head.header("content-length") == Some("7"));
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_post_is_stored_when_its_body_is_complete() {
    let sources = Sources::default();
    let origin = sources.origin(|_, answer| answer.header("content-location", "/report"));
    let app = layered(post_storing(&origin_only()), &origin);
    let mut reader = open(&app, request("POST", "/report", &[])).await;
    let source = sources.take(0);
    source.send("one ");
    settle().await;
    assert_eq!(reader.next().unwrap(), "one ");
    source.send("two");
    drop(source);
    assert!(reader.rest().await.is("two"));
    let hit = send(&app, get("/report")).await;
    assert!(hit.is(Hit) && hit.text() == "one two");
    assert_eq!(origin.calls(), 1);
}
