//! Bodies that pause while they arrive: which requests wait for them.

use tower_stampede::CacheOutcome::*;
use tower_stampede::remote::{Double, RemoteSettings};
use tower_stampede::{Stampede, StoredResponse};

use super::fed::*;
use crate::kit::http::*;

#[tokio::test(start_paused = true)]
async fn a_body_that_is_silent_for_two_seconds_is_joined_by_no_new_request() {
    let (app, origin, sources) = fed(origin_only().http_layer());
    let mut first = open(&app, get("/report")).await;
    let stalled = sources.take(0);
    stalled.send("half");
    pass(ms(1900)).await;
    let mut second = open(&app, get("/report")).await;
    assert!(second.is(Joined) && origin.calls() == 1, "it is silent for less than that");
    pass(ms(200)).await;
    let mut third = open(&app, get("/report")).await;
    assert!(third.is(Computed) && third.took == WORK && origin.calls() == 2);
    // Requests that come later join the new flight.
    let mut fourth = open(&app, get("/report")).await;
    assert!(fourth.is(Joined));
    let new = sources.take(1);
    new.send("new");
    drop(new);
    assert!(third.rest().await.is("new") && fourth.rest().await.is("new"));
    assert!(send(&app, get("/report")).await.is(Hit));
    // The old flight goes on for its readers, and replaces nothing.
    stalled.send(" and half");
    drop(stalled);
    assert!(first.rest().await.is("half and half") && second.rest().await.is("half and half"));
    assert_eq!(send(&app, get("/report")).await.text(), "new");
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_goes_on_within_two_seconds_is_joined_all_the_time() {
    let (app, origin, sources) = fed(origin_only().http_layer());
    let mut readers = vec![open(&app, get("/report")).await];
    let tokens = sources.take(0);
    for _ in 0..10 {
        tokens.send("token ");
        pass(ms(1900)).await;
        readers.push(open(&app, get("/report")).await);
    }
    drop(tokens);
    assert!(rests(&mut readers).await.iter().all(|rest| rest.is(&"token ".repeat(10))));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_key_has_one_flight_beside_a_silent_one() {
    let (app, origin, sources) = fed(origin_only().http_layer());
    let mut first = open(&app, get("/report")).await;
    let first_body = sources.take(0);
    let mut readers = Vec::new();
    for _ in 0..5 {
        pass(secs(3)).await;
        readers.push(open(&app, get("/report")).await);
    }
    assert_eq!(origin.calls(), 2, "all but the first wait for the second, silent or not");
    // Once the first has ended there is room for another.
    first_body.send("x");
    drop(first_body);
    assert!(first.rest().await.is("x"));
    pass(ms(1)).await;
    assert!(open(&app, get("/report")).await.is(Computed));
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn how_long_a_body_may_be_silent_is_a_setting() {
    let layer = origin_only().http_layer().body_join_timeout(secs(10));
    let (app, origin, sources) = fed(layer);
    let _first = open(&app, get("/report")).await;
    let _body = sources.take(0);
    pass(secs(9)).await;
    assert!(open(&app, get("/report")).await.is(Joined));
    pass(ms(1001)).await;
    assert!(open(&app, get("/report")).await.is(Computed));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_silent_body_keeps_its_key_from_no_other_process() {
    let double = Double::new();
    let sources = Sources::default();
    let origin = sources.origin(|_, answer| answer);
    let process = || {
        let builder = Stampede::<StoredResponse>::builder("web").origin_only();
        let cache = builder.remote(double.process(), RemoteSettings::new()).build().unwrap();
        layered(cache.http_layer(), &origin)
    };
    let apps = [process(), process()];
    let _stalled = open(&apps[0], get("http://a/report")).await;
    let _body = sources.take(0);
    pass(ms(500)).await;
    let other = open(&apps[1], get("http://a/report")).await;
    assert!(other.is(Computed) && other.took < secs(3), "{:?}", other.took);
    assert_eq!(origin.calls(), 2);
}
