//! The router for operators: what it shows, switches and purges, and what it refuses.

use std::collections::BTreeSet;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::get as on_get;
use http::Request;
use proptest::prelude::*;
use serde_json::{Value, json};
use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{Computed, Key, Mode, Stampede, admin};

use crate::kit::http::*;
use crate::kit::spawn;

fn put(method: &str, uri: &str, body: impl Into<Body>) -> Request<Body> {
    let mut request = request(method, uri, &[]);
    *request.body_mut() = body.into();
    request
}

async fn ask(app: &Router, request: Request<Body>) -> (u16, Value) {
    let reply = send(app, request).await;
    assert_eq!(reply.header("cache-control"), Some("no-store"), "{reply:?}");
    assert_eq!(reply.header("content-type"), Some("application/json"), "{reply:?}");
    (reply.status, serde_json::from_str(reply.text()).expect("JSON"))
}

async fn purge(app: &Router, what: Value) -> Value {
    let (status, said) = ask(app, put("POST", "/purge", what.to_string())).await;
    assert_eq!(status, 200, "{said}");
    assert_eq!(said["purged"], what);
    said
}

#[tokio::test(start_paused = true)]
async fn it_shows_counts_health_and_mode_and_switches_the_mode() {
    let (cache, origin) = (with_ttl(60), Origin::new(|_| Answer::status(200)));
    let (site, app) = (cache.http_layer().layer(origin.clone()), admin::router(cache.clone()));
    send(&site, get("/page")).await;
    send(&site, get("/page")).await;
    let (status, stats) = ask(&app, get("/stats")).await;
    assert_eq!((status, &stats["hits"], &stats["entries"]), (200, &json!(1), &json!(1)));
    assert_eq!(ask(&app, get("/health")).await, (200, json!({"health": "up"})));
    for (mode, health) in [("observe", "bypassed"), ("off", "bypassed"), ("on", "up")] {
        let said = json!({"mode": mode});
        assert_eq!(ask(&app, put("PUT", "/mode", said.to_string())).await, (200, said.clone()));
        assert_eq!(ask(&app, get("/mode")).await, (200, said));
        assert_eq!(ask(&app, get("/health")).await, (200, json!({"health": health})));
    }
    cache.shutdown(secs(1)).await;
    let said = ask(&app, put("PUT", "/mode", r#"{"mode": "on"}"#)).await;
    assert_eq!(said, (200, json!({"mode": "off"})));
}

#[tokio::test(start_paused = true)]
async fn it_says_what_has_saved_the_most_by_key_tag_and_route() {
    let origin = Origin::new(|call| {
        Answer::ok("max-age=60", "page").header("cache-tag", &call.uri()[1..2]).after(secs(2))
    });
    let cache = with_ttl(60);
    let app = admin::router(cache.clone());
    let layered = cache.http_layer().tags_from(["cache-tag"]).layer(origin.clone());
    for (page, hits) in [("/items/7", 32), ("/items/8", 16), ("/about", 16)] {
        for _ in 0..=hits {
            send(&layered, get(page)).await;
        }
    }
    let (status, top) = ask(&app, get("/top?limit=2")).await;
    let listed = |kind: &str| -> Vec<(String, f64)> {
        let rows = top[kind].as_array().unwrap().iter();
        let saved = |row: &Value| row["origin_seconds_saved"].as_f64().unwrap();
        rows.map(|row| (row["name"].as_str().unwrap().to_owned(), saved(row))).collect()
    };
    assert_eq!((status, listed("keys").len()), (200, 2));
    assert!(listed("keys")[0].0.ends_with("/items/7") && listed("keys")[0].1 == 64.0);
    assert_eq!(listed("routes"), [("/items/".to_owned(), 96.0), ("/about".to_owned(), 32.0)]);
    assert_eq!(listed("tags"), [("i".to_owned(), 96.0), ("a".to_owned(), 32.0)]);
    for wrong in ["/top?limit=0", "/top?limit=129", "/top?n=2"] {
        assert_eq!(ask(&app, get(wrong)).await.0, 400, "{wrong}");
    }
}

#[tokio::test(start_paused = true)]
async fn it_lists_the_tags_of_the_layer_where_they_are_asked_for_and_has_no_log_without_a_remote() {
    let (cache, origin) = (with_ttl(60), Origin::new(|_| Answer::status(200)));
    let site = cache.http_layer().tags(["own"]).layer(origin.clone());
    let app = admin::router(cache.clone());
    send(&site, get("/page")).await;
    let (_, few) = ask(&app, get("/keys")).await;
    assert_eq!(few["keys"][0]["tags"], json!(["own"]));
    assert_eq!(few["keys"][0]["version"], json!(null));
    let (_, all) = ask(&app, get("/keys?tags=all&limit=5")).await;
    let tags = all["keys"][0]["tags"].as_array().unwrap();
    let is_of_path = |tag: &Value| tag.as_str().unwrap().starts_with("%00p");
    assert!(tags.contains(&json!("own")) && tags.iter().any(is_of_path), "{all}");
    assert_eq!(ask(&app, get("/keys?tags=some")).await.0, 400);
    let nothing = json!({"epoch": null, "position": null, "vouched_ms": null});
    assert_eq!(ask(&app, get("/log")).await, (200, nothing));
}

#[tokio::test(start_paused = true)]
async fn it_purges_by_path_url_key_and_tag() {
    let (cache, origin) = (with_ttl(60), Origin::new(|_| Answer::status(200)));
    let layer = cache.http_layer().query(["q"]).tags(["site tag"]);
    let (site, app) = (layer.layer(origin.clone()), admin::router(cache.clone()));
    let pages = ["http://a/x?q=1&u=1", "http://a/x?q=2", "http://b/x?q=1", "http://a/y"];
    let purged = async |what: Value| {
        for page in pages {
            send(&site, get(page)).await;
        }
        let said = purge(&app, what).await;
        assert_eq!((&said["local"], &said["remote"]), (&json!(true), &json!("no_remote")));
        let mut gone = Vec::new();
        for (n, page) in pages.into_iter().enumerate() {
            gone.extend((!send(&site, get(page)).await.is(Hit)).then_some(n));
        }
        gone
    };
    assert_eq!(purged(json!({"path": "/x"})).await, [0, 1, 2]);
    assert_eq!(purged(json!({"path": "/x", "scope": "other"})).await, [0; 0]);
    assert_eq!(purged(json!({"url": "HTTP://A:80/x?q=1&u=2"})).await, [0]);
    assert_eq!(purged(json!({"tag": "site%20tag"})).await, [0, 1, 2, 3]);
    assert_eq!(purged(json!({"tag": "*"})).await, [0, 1, 2, 3]);
    assert_eq!(purged(json!({"path": "/none"})).await, [0; 0]);
    let (_, listed) = ask(&app, get("/keys")).await;
    let found = listed["keys"].as_array().unwrap().iter().find(|it| it["url"] == "http://b/x?q=1");
    let key = found.expect("it is stored")["key"].clone();
    assert_eq!(purged(json!({"key": key})).await, [2]);
    let said = purge(&app, json!({"key": "nothing"})).await;
    assert_eq!(said["local"], json!(false));
}

#[tokio::test(start_paused = true)]
async fn it_lists_every_key_once_page_by_page() {
    let cache = Stampede::<String>::builder("test").ttl(secs(60)).jitter(0.0);
    let cache = cache.stale_for(secs(30)).build().unwrap();
    let app = admin::router(cache.clone());
    for n in 0..95_u32 {
        cache.put_with(("user", n), Computed::new("x".repeat(10)).tag("users")).await;
    }
    cache.put("a key\n", "x".into()).await;
    cache.put("invalidated", "x".into()).await;
    cache.invalidate("invalidated").await;
    pass(secs(20)).await;
    for limit in [1, 10, 32, 95, 96, 97, 1000] {
        let (mut keys, mut after, mut pages) = (BTreeSet::new(), String::new(), 0);
        loop {
            let (status, said) = ask(&app, get(&format!("/keys?limit={limit}{after}"))).await;
            assert_eq!(status, 200, "{said}");
            let page = said["keys"].as_array().unwrap();
            assert!(page.len() <= limit);
            for entry in page {
                assert_eq!(entry["age_ms"], 20_000);
                assert_eq!(
                    (&entry["ttl_left_ms"], &entry["stale_left_ms"]),
                    (&json!(40_000), &json!(70_000))
                );
                assert!(keys.insert(entry["key"].as_str().unwrap().to_owned()), "{entry}");
            }
            pages += 1;
            let Some(next) = said["next"].as_str() else { break };
            after = format!("&after={next}");
        }
        assert_eq!((keys.len(), pages), (96, 96_usize.div_ceil(limit)), "{limit}");
        assert!(keys.contains("a%20key%0A") && keys.contains("%00t%04user%017"), "{keys:?}");
    }
    purge(&app, json!({"key": "%00t%04user%017"})).await;
    assert_eq!(cache.get(("user", 7)).await, None);
    assert_eq!(cache.stats().hits, 0, "to list is no use");
}

#[tokio::test(start_paused = true)]
async fn a_key_of_a_response_is_listed_with_its_url_in_every_layer() {
    let (cache, origin) =
        (with_ttl(60), Origin::new(|_| Answer::status(200).header("vary", "accept-language")));
    let site = cache.http_layer().route_rules("/news", |it| it.query(["q"]).tags(["news"]));
    let site = site.layer(origin.infallible());
    let other = cache.http_layer().scheme("https").layer(origin.infallible());
    send(&site, with("/news?q=1&u=2", &[("host", "a")])).await;
    send(&other, get("https://b/plain")).await;
    let (_, said) = ask(&admin::router(cache), get("/keys")).await;
    let entries = said["keys"].as_array().unwrap();
    let urls: BTreeSet<_> = entries.iter().map(|it| it["url"].as_str().unwrap()).collect();
    assert_eq!(urls, BTreeSet::from(["http://a/news?q=1", "https://b/plain"]), "{said}");
    assert!(entries.iter().any(|it| it["tags"] == json!(["news"])), "{said}");
}

#[tokio::test(start_paused = true)]
async fn it_answers_what_it_cannot_read_with_the_reason() {
    let cache = with_ttl(60);
    let app = admin::router(cache.clone());
    let huge = "9".repeat(400);
    for query in [
        "limit=0",
        "limit=1001",
        "limit=-1",
        "limit=1e3",
        "limit=",
        "limit=%31",
        "after=",
        "after=%00",
        "after=xyz",
        "after=+0000000000000000000000000000000",
        "offset=1",
        "limit",
        &format!("limit={huge}"),
        &format!("after={huge}"),
    ] {
        let (status, said) = ask(&app, get(&format!("/keys?{query}"))).await;
        assert!(status == 400 && said["error"].is_string(), "{query}: {said}");
    }
    let deep = "[".repeat(60_000);
    for body in [
        "",
        "{",
        "null",
        "[]",
        "\"x\"",
        "{}",
        r#"{"key": 1}"#,
        r#"{"key": null}"#,
        &deep,
        r#"{"key": "a", "tag": "b"}"#,
        r#"{"key": "%"}"#,
        r#"{"key": "%4"}"#,
        r#"{"tag": "%zz"}"#,
        r#"{"key": "%é"}"#,
        r#"{"path": ""}"#,
        r#"{"path": "x"}"#,
        r#"{"path": "/x?a=1"}"#,
        r#"{"tag": ""}"#,
        r#"{"url": "/x"}"#,
        r#"{"url": "http://"}"#,
        r#"{"url": "http://a b/"}"#,
        r#"{"scope": "x"}"#,
        r#"{"tag": "a", "scope": "x"}"#,
        r#"{"path": "/", "scope": 7}"#,
        r#"{"all": "yes"}"#,
        r#"{"group": "g", "origin": "http://a/shop"}"#,
        r#"{"group": "g", "origin": "http://a/?x"}"#,
        r#"{"group": "g", "origin": "http://a#x"}"#,
        r#"{"group": "g", "origin": "/"}"#,
        r#"{"group": "g", "origin": "a.example"}"#,
    ] {
        let (status, said) = ask(&app, put("POST", "/purge", body.to_owned())).await;
        assert!(status == 400 && said["error"].is_string(), "{body:.40}: {said}");
    }
    for body in ["", "{}", r#"{"mode": "ON"}"#, r#"{"mode": true}"#, "\u{0}"] {
        let (status, said) = ask(&app, put("PUT", "/mode", body)).await;
        assert!(status == 400 && said["error"].is_string(), "{body}: {said}");
    }
    let long = format!(r#"{{"key": "{}"}}"#, "x".repeat(64 << 10));
    assert_eq!(ask(&app, put("POST", "/purge", long)).await.0, 413);
    let broken = futures_util::stream::iter([Ok("{"), Err(std::io::Error::other("gone"))]);
    assert_eq!(ask(&app, put("POST", "/purge", Body::from_stream(broken))).await.0, 413);
    let (status, said) = ask(&app, get("/nothing")).await;
    let named = said["error"].as_str().unwrap().split([' ', ',']).filter(|it| it.starts_with('/'));
    for path in named {
        assert_ne!(ask(&app, get(path)).await.0, 404, "{path}");
    }
    assert_eq!((status, said["error"].to_string().matches('/').count()), (404, 8), "{said}");
    for wrong in [put("POST", "/stats", ""), put("GET", "/purge", ""), get("/nothing")] {
        let reply = send(&app, wrong).await;
        assert!(matches!(reply.status, 404 | 405), "{reply:?}");
        assert_eq!(reply.header("cache-control"), Some("no-store"));
    }
    assert_eq!((cache.mode(), cache.stats().invalidations), (Mode::On, 0));
}

#[tokio::test(start_paused = true)]
async fn its_answers_are_not_stored_by_the_cache_itself() {
    let cache = with_ttl(60);
    let app: Router = Router::new()
        .nest("/admin", admin::router(cache.clone()))
        .route("/page", on_get(async || "page"))
        .layer(cache.http_layer().ttl(secs(60)));
    for _ in 0..2 {
        for path in ["/admin/stats", "/admin/keys", "/admin/mode", "/admin/health", "/admin/no"] {
            assert!(!send(&app, get(path)).await.is(Hit), "{path}");
        }
    }
    assert_eq!(cache.stats().entries, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_request_makes_it_panic(
        body in "\\PC{0,40}|\\{\"(key|tag|path|url|mode|scope)\": ?\"[/%a-f0-9:é\\\\]{0,20}\"\\}",
        query in "(limit|after)?=?[0-9a-f%+&=]{0,40}",
        method in 0_usize..4,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let app = admin::router(with_ttl(60));
            let method = ["GET", "PUT", "POST", "DELETE"][method];
            for path in ["/stats", "/top", "/health", "/mode", "/purge", "/keys"] {
                let reply = send(&app, put(method, &format!("{path}?{query}"), body.clone())).await;
                prop_assert!(matches!(reply.status, 200 | 400 | 405), "{:?}", reply);
            }
            Ok(())
        })?;
    }
}

/// The answers are JSON, says the module.
#[tokio::test(start_paused = true)]
async fn a_method_that_it_does_not_take_is_answered_with_json_too() {
    let app = admin::router(with_ttl(60));
    for (method, uri, allowed) in [
        ("DELETE", "/stats", "GET,HEAD"),
        ("GET", "/purge", "POST"),
        ("POST", "/mode", "GET,HEAD,PUT"),
    ] {
        let reply = send(&app, request(method, uri, &[])).await;
        assert_eq!(reply.header("allow"), Some(allowed));
        let (status, said) = ask(&app, request(method, uri, &[])).await;
        assert_eq!((status, said["error"].is_string()), (405, true), "{method} {uri}");
    }
}

/// Only a response has a URL. A key of bytes that begins with a zero is escaped by a byte that
/// no key of the HTTP layer begins with.
#[tokio::test(start_paused = true)]
async fn a_key_of_bytes_in_a_cache_of_numbers_is_listed_without_a_url() {
    let cache = Stampede::<u32>::in_memory(secs(60));
    cache.put(7_u64.to_be_bytes(), 1).await;
    let response = [&b"\0h\0\x04http\x01a\x02/x"[..]].concat();
    cache.put(Key::from_encoded(&response), 1).await;
    let app = admin::router(cache);
    let (_, listed) = ask(&app, get("/keys")).await;
    assert_eq!(listed["keys"].as_array().map(Vec::len), Some(2));
    assert!(!listed.to_string().contains("url"), "{listed}");
}

#[tokio::test(start_paused = true)]
async fn it_can_be_nested_before_the_outer_router_has_its_state() {
    let app = Router::new()
        .route("/number", on_get(async |State(n): State<u32>| n.to_string()))
        .nest("/admin", admin::router(with_ttl(60)))
        .with_state(7_u32);
    assert_eq!(send(&app, get("/number")).await.text(), "7");
    assert_eq!(ask(&app, get("/admin/health")).await, (200, json!({"health": "up"})));
}

#[tokio::test(start_paused = true)]
async fn a_purge_by_the_key_of_a_response_reaches_a_refresh_and_a_first_computation() {
    for stale in [60, 0] {
        let cache = with_ttl(10);
        let versions = Origin::new(|call| {
            Answer::status(200).body(format!("version {}", call.n)).after(secs(5))
        });
        let layer = cache.http_layer().stale_for(secs(stale));
        let (site, app) = (layer.layer(versions), admin::router(cache.clone()));
        send(&site, get("/page")).await;
        let (_, listed) = ask(&app, get("/keys")).await;
        let key = listed["keys"][0]["key"].clone();
        pass(secs(11)).await;
        // The computation of version 1 runs, in the background or in the foreground.
        let asked = spawn({
            let site = site.clone();
            async move { send(&site, get("/page")).await }
        });
        pass(secs(1)).await;
        purge(&app, json!({ "key": key })).await;
        asked.await.unwrap();
        pass(secs(6)).await;
        assert_eq!(send(&site, get("/page")).await.text(), "version 2", "stale for {stale} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_purge_by_each_key_of_a_url_with_variants_ends_them_all() {
    let cache = with_ttl(60);
    let versions = Origin::new(|call| {
        Answer::status(200).body(format!("version {}", call.n)).header("vary", "accept-language")
    });
    let (site, app) = (cache.http_layer().layer(versions), admin::router(cache.clone()));
    for language in ["de", "en"] {
        send(&site, with("/page", &[("accept-language", language)])).await;
    }
    let (_, listed) = ask(&app, get("/keys")).await;
    for entry in listed["keys"].as_array().unwrap() {
        purge(&app, json!({ "key": entry["key"] })).await;
    }
    for (n, language) in [(2, "de"), (3, "en")] {
        let reply = send(&site, with("/page", &[("accept-language", language)])).await;
        assert_eq!(reply.text(), format!("version {n}"));
    }
}
