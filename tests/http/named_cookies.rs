//! Cookies that do not count, by their names.

use axum::Router;
use axum::routing::any;
use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{HttpLayer, HttpStampede};

use crate::kit::http::*;

fn numbered() -> Origin {
    Origin::new(|call| Answer::ok("max-age=60", call.n.to_string()))
}

fn ignoring(cache: &HttpStampede) -> HttpLayer {
    cache.http_layer().ignore_cookies(["_ga", "_gid", "_ga_*"])
}

fn cookies(lines: &[&str]) -> http::Request<axum::body::Body> {
    let fields: Vec<_> = lines.iter().map(|line| ("cookie", *line)).collect();
    with("http://a/page", &fields)
}

#[tokio::test(start_paused = true)]
async fn analytics_cookies_do_not_switch_the_cache_off() {
    let (cache, origin) = (with_ttl(60), numbered());
    let app = ignoring(&cache).layer(origin.clone());
    let visitors: [&[&str]; 6] = [
        &["_ga=1"],
        &["_ga=2; _gid=3"],
        &["_ga_X1=4", "_gid=\"5;"],
        &[],
        &[" _ga = x;_gid="],
        &["_ga=1; _ga=2"],
    ];
    for visitor in visitors {
        assert_eq!(send(&app, cookies(visitor)).await.text(), "0", "{visitor:?}");
    }
    assert_eq!(origin.calls(), 1);
    assert_eq!(origin.last().header("cookie"), None);
}

#[tokio::test(start_paused = true)]
async fn other_cookies_are_credentials_and_reach_the_origin_without_the_ignored_ones() {
    let (cache, origin) = (with_ttl(60), numbered());
    let app = ignoring(&cache).layer(origin.clone());
    for (n, line) in ["_ga=1; sid=alice; _gid=2", "sid=bob; _ga=1"].into_iter().enumerate() {
        let reply = send(&app, cookies(&[line])).await;
        assert_eq!(reply.text(), n.to_string());
        assert!(reply.cache_status().ends_with("detail=credentials:cookie"));
    }
    let seen: Vec<_> =
        origin.seen().iter().map(|call| call.header("cookie").unwrap().to_owned()).collect();
    assert_eq!(seen, ["sid=alice", "sid=bob"]);
    // What has no name, or only looks like one, counts.
    for line in ["_ga", "_GA=1", "x=_ga=1", "_gat=1"] {
        assert!(!send(&app, cookies(&[line])).await.is(Hit), "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_that_varies_by_cookie_is_selected_by_the_cookies_that_count() {
    let cache = origin_only();
    let origin = Origin::new(|call| {
        let said = format!("{} {}", call.n, call.header("cookie").unwrap_or("none"));
        Answer::ok("public, max-age=60", said).header("vary", "cookie")
    });
    let app = ignoring(&cache).layer(origin.clone());
    for (line, expected) in [
        ("lang=de", "0 lang=de"),
        ("_ga=1; lang=de", "0 lang=de"),
        ("lang=de; _gid=7", "0 lang=de"),
        ("lang=en; _gid=7", "1 lang=en"),
        ("_gid=7", "2 none"),
        ("_ga=8; _ga_Y=9", "2 none"),
    ] {
        assert_eq!(send(&app, cookies(&[line])).await.text(), expected, "{line}");
    }
    assert_eq!(send(&app, cookies(&["_ga=1", "lang=de"])).await.text(), "0 lang=de");
}

#[tokio::test(start_paused = true)]
async fn other_methods_are_forwarded_with_all_cookies() {
    let (cache, origin) = (with_ttl(60), numbered());
    let app = ignoring(&cache).layer(origin.clone());
    send(&app, request("POST", "http://a/page", &[("cookie", "_ga=1; a=2")])).await;
    assert_eq!(origin.last().header("cookie"), Some("_ga=1; a=2"));
    send(&app, request("HEAD", "http://a/page", &[("cookie", "_ga=1; a=2")])).await;
    assert_eq!(origin.last().header("cookie"), Some("a=2"));
}

#[tokio::test(start_paused = true)]
async fn the_response_to_a_post_with_an_ignored_cookie_is_not_stored_for_gets() {
    let cache = with_ttl(60);
    let origin = Origin::new(|call| {
        let body = format!("{} {}", call.parts.method, call.header("cookie").unwrap_or("none"));
        Answer::ok("public, max-age=60", body).header("content-location", "http://a/page")
    });
    let app = ignoring(&cache).not_a_credential(["cookie"]).store_post_responses(true);
    let app = app.layer(origin.clone());
    send(&app, request("POST", "http://a/page", &[("cookie", "_ga=evil")])).await;
    assert_eq!(send(&app, cookies(&[])).await.text(), "GET none");
}

// ===== Layers inside each other =====

fn page(origin: &Origin) -> axum::routing::MethodRouter {
    let origin = origin.clone();
    any(move |request| origin.clone().handle(request))
}

#[tokio::test(start_paused = true)]
async fn behind_a_layer_that_counts_a_cookie_it_counts_though_the_inner_layer_ignores_it() {
    let (cache, origin) = (with_ttl(60), numbered());
    let inner = page(&origin).layer(ignoring(&cache));
    let app = Router::new().route("/page", inner).layer(cache.http_layer());
    for n in 0..3 {
        let reply = send(&app, with("/page", &[("cookie", "_ga=1")])).await;
        assert_eq!(reply.text(), n.to_string());
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_that_varies_by_cookie_is_not_shared_where_one_layer_counts_it() {
    let cache = origin_only();
    let origin = Origin::new(|call| {
        let said = format!("{} {}", call.n, call.header("cookie").unwrap_or("none"));
        Answer::ok("public, max-age=60", said).header("vary", "cookie")
    });
    let inner = page(&origin).layer(ignoring(&cache));
    let app = Router::new().route("/page", inner).layer(cache.http_layer());
    for (n, line) in ["_ga=1", "_ga=2", "_ga=1"].into_iter().enumerate() {
        let reply = send(&app, with("/page", &[("cookie", line)])).await;
        assert_eq!(reply.text(), format!("{n} {line}"));
    }
}

#[tokio::test(start_paused = true)]
async fn what_both_layers_ignore_is_ignored() {
    let (cache, origin) = (with_ttl(60), numbered());
    let inner = page(&origin).layer(ignoring(&cache));
    let app = Router::new().route("/page", inner).layer(ignoring(&cache));
    for line in ["_ga=1", "_ga=2", "_gid=3"] {
        assert_eq!(send(&app, with("/page", &[("cookie", line)])).await.text(), "0");
    }
}

#[tokio::test(start_paused = true)]
async fn a_route_may_ignore_a_cookie_that_the_layer_counts() {
    // Says nothing of a lifetime: what a client with credentials gets is for it alone.
    let origin = Origin::new(|call| Answer::status(200).body(call.n.to_string()));
    let cache = with_ttl(60);
    let layer = cache.http_layer();
    let app = Router::new()
        .route("/page", page(&origin))
        .route("/other", page(&origin))
        .layer(layer.route_rules("/page", |it| it.ignore_cookies(["_ga"])));
    for line in ["_ga=1", "_ga=2"] {
        assert_eq!(send(&app, with("/page", &[("cookie", line)])).await.text(), "0", "{line}");
    }
    assert_eq!(send(&app, with("/page", &[("cookie", "a=1")])).await.text(), "1");
    for n in [2, 3] {
        let reply = send(&app, with("/other", &[("cookie", "_ga=1")])).await;
        assert_eq!(reply.text(), n.to_string());
    }
}
