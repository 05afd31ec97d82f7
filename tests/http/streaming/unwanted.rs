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
async fn a_body_that_arrives_goes_on_without_readers_and_is_stored() {
    let (app, origin, sources) = fed(cancelling().http_layer());
    let readers = open_many(&app, 3).await;
    let source = sources.take(0);
    source.send("one ");
    settle().await;
    drop(readers);
    settle().await;
    source.send("two");
    drop(source);
    settle().await;
    let next = send(&app, get("/report")).await;
    assert!(next.is(Hit) && next.text() == "one two" && origin.calls() == 1);
}
