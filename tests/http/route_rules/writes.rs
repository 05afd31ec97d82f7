//! Writes, and responses that are keyed by bodies, at routes with rules.

use axum::body::Body;
use tower_stampede::CacheOutcome::*;
use tower_stampede::HttpLayer;

use super::{echo, routes, site};
use crate::kit::http::*;

#[tokio::test(start_paused = true)]
async fn a_write_ends_what_a_route_has_stored_whatever_its_other_parameters() {
    let (cache, origin) = (with_ttl(60), echo());
    let app = site(&origin, cache.http_layer(), |it| it.query(["q"]));
    for q in 1..=2 {
        send(&app, get(&format!("/search?q={q}&x=1"))).await;
    }
    send(&app, request("POST", "/search?x=2&q=1", &[])).await;
    assert!(send(&app, get("/search?q=1&x=3")).await.is(Computed));
    assert!(send(&app, get("/search?q=2&x=3")).await.is(Hit), "another resource");
    cache.invalidate_path("/search").await;
    assert!(send(&app, get("/search?q=2")).await.is(Computed));
}

/// Its own route, another one of the layer, another layer of the handle.
#[tokio::test(start_paused = true)]
async fn a_write_ends_what_is_stored_of_its_uri_by_other_rules() {
    let (cache, origin) = (with_ttl(60), echo());
    let app = site(&origin, cache.http_layer(), |it| it.query(["q"]).vary(["x-plan"]));
    let plain = routes(&origin).layer(cache.http_layer());
    let apps = [&app, &plain];
    for app in apps {
        send(app, get("/search?q=1")).await;
    }
    send(&app, request("DELETE", "/search?q=1", &[])).await;
    for app in apps {
        assert!(send(app, get("/search?q=1")).await.is(Computed));
    }
    send(&plain, request("DELETE", "/search?q=1", &[])).await;
    for app in apps {
        assert!(send(app, get("/search?q=1")).await.is(Computed));
    }
    // The write names the route in a field of its response, from a route without rules.
    origin.answers(|call| match call.parts.method.as_str() {
        "POST" => Answer::status(201).header("location", "/search?q=1"),
        _ => Answer::status(200).body(call.uri()),
    });
    send(&app, request("POST", "/plain", &[("host", "x")])).await;
    let ask = || with("/search?q=1", &[("host", "x")]);
    send(&app, ask()).await;
    assert!(send(&app, ask()).await.is(Hit));
    send(&app, request("POST", "/plain", &[("host", "x")])).await;
    assert!(send(&app, ask()).await.is(Computed));
}

#[tokio::test(start_paused = true)]
async fn a_route_decides_which_of_its_writes_invalidate() {
    let (cache, origin) = (with_ttl(60), echo());
    let app = site(&origin, cache.http_layer(), |it| it.invalidate_if(|_, _| false));
    for (path, outcome) in [("/search", Hit), ("/plain", Computed)] {
        send(&app, get(path)).await;
        send(&app, request("POST", path, &[])).await;
        assert!(send(&app, get(path)).await.is(outcome), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_response_to_a_post_is_stored_for_gets_by_the_rules_of_its_route() {
    let origin = Origin::new(|call| {
        let path = call.parts.uri.path().to_owned();
        Answer::ok("max-age=60", call.n.to_string()).header("content-location", &path)
    });
    let cache = origin_only();
    let layer = post_storing(&cache).route_rules("/search", HttpLayer::private);
    let layer = layer.route_rules("/items/{id}", |it| it.query([]));
    let app = routes(&origin).layer(layer);
    for (path, is_stored) in [("/search", false), ("/items/1", true), ("/plain", true)] {
        send(&app, request("POST", path, &[("host", "x")])).await;
        let reply = send(&app, with(path, &[("host", "x")])).await;
        assert_eq!(reply.is(Hit), is_stored, "{path}: {}", reply.cache_status());
    }
}

#[tokio::test(start_paused = true)]
async fn a_route_may_key_posts_by_their_bodies() {
    let (cache, origin) = (
        with_ttl(60),
        Origin::new(|call| Answer::status(200).body(format!("{:?} {}", call.body, call.n))),
    );
    let app = site(&origin, cache.http_layer(), |it| it.cache_posts(|_| true));
    let post =
        |path: &str, body: &'static str| request("POST", path, &[]).map(|_| Body::from(body));
    for body in ["a", "b"] {
        let first = send(&app, post("/search", body)).await;
        let again = send(&app, post("/search", body)).await;
        assert!(again.is(Hit) && again.text() == first.text(), "{}", again.cache_status());
    }
    send(&app, post("/plain", "a")).await;
    assert!(send(&app, post("/plain", "a")).await.is(Bypass));
}

/// The list of the route makes the key; a write may pass a layer with another list.
#[tokio::test(start_paused = true)]
async fn a_write_finds_what_a_route_has_stored_whichever_parameters_its_own_layer_counts() {
    type Names = Option<&'static [&'static str]>;
    let lists: [(Names, Names); 4] = [
        (None, Some(&["q", "tenant"])),
        (Some(&["tenant", "q"]), Some(&["q"])),
        (Some(&["tenant"]), Some(&["q"])),
        (Some(&["q"]), Some(&["q", "tenant"])),
    ];
    fn counting(layer: HttpLayer, names: Names) -> HttpLayer {
        match names {
            Some(names) => layer.query(names.iter().copied()),
            None => layer,
        }
    }
    for (of_layer, of_route) in lists {
        for is_by_route in [false, true] {
            let (cache, origin) = (with_ttl(60), echo());
            let layer = counting(cache.http_layer(), of_layer);
            let plain = routes(&origin).layer(layer.clone());
            let app = site(&origin, layer, move |it| counting(it, of_route));
            let writes = if is_by_route { &app } else { &plain };
            let uri = "/search?tenant=alice&q=1&utm=3";
            send(&app, get(uri)).await;
            assert!(send(&app, get(uri)).await.is(Hit));
            let which = format!("{of_layer:?} {of_route:?} {is_by_route}");
            send(writes, request("POST", "/search?tenant=alice&q=2", &[])).await;
            assert!(send(&app, get(uri)).await.is(Hit), "{which}: of another page");
            send(writes, request("POST", uri, &[])).await;
            assert!(send(&app, get(uri)).await.is(Computed), "{which}");
        }
    }
}
