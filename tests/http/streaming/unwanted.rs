//! Responses that no client waits for any more, with `cancel_unwanted`.

use std::time::Duration;

use super::fed::*;
use crate::kit::http::*;
use crate::kit::spawn;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{HttpStampede, Stampede};

fn cancelling() -> HttpStampede {
    Stampede::builder("web").origin_only().jitter(0.0).cancel_unwanted(0.5).build().unwrap()
}

fn assert_quiet(cache: &HttpStampede) {
    let stats = cache.stats();
    assert_eq!((stats.flights, stats.waiting), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_clients_have_left_before_the_head_is_cancelled() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "page").after(Duration::from_secs(9)));
    let cache = cancelling();
    let app = layered(cache.http_layer(), &origin);
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let app = app.clone();
            spawn(async move { send(&app, get("/p")).await })
        })
        .collect();
    pass(Duration::from_secs(1)).await;
    clients[1..].iter().for_each(|client| client.abort());
    pass(Duration::from_secs(1)).await;
    assert_eq!((origin.calls(), cache.stats().flights), (1, 1), "one client waits");
    clients[0].abort();
    settle().await;
    assert_quiet(&cache);
    let reply = send(&app, get("/p")).await;
    assert!(reply.is(Computed) && origin.calls() == 2);
}

#[tokio::test(start_paused = true)]
async fn a_body_whose_readers_have_left_is_dropped_and_the_next_client_gets_all_of_another() {
    let cache = cancelling();
    let (app, origin, sources) = fed(cache.http_layer());
    let mut readers = open_many(&app, 3).await;
    let source = sources.take(0);
    source.send("one ");
    settle().await;
    readers.truncate(1);
    settle().await;
    assert!(!source.is_dropped(), "one client reads");
    readers.clear();
    settle().await;
    assert!(source.is_dropped());
    assert_quiet(&cache);
    let mut next = open(&app, get("/report")).await;
    assert!(next.is(Computed) && origin.calls() == 2);
    let source = sources.take(1);
    source.send("two");
    drop(source);
    assert!(next.rest().await.is("two"));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_has_arrived_for_its_share_of_the_expected_time_goes_on() {
    let (app, _, sources) = fed(cancelling().http_layer());
    let mut first = open(&app, get("/0")).await;
    pass(Duration::from_secs(10)).await;
    sources.take(0).send("all");
    assert!(first.rest().await.is("all"));
    for (call, stays, is_dropped) in [(1, 4, true), (2, 6, false)] {
        let reader = open(&app, get(&format!("/{call}"))).await;
        let source = sources.take(call);
        source.send("one ");
        pass(Duration::from_secs(stays)).await;
        drop(reader);
        settle().await;
        assert_eq!(source.is_dropped(), is_dropped, "its client has left after {stays} s");
    }
}
