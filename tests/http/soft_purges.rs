//! Responses that are made stale (a soft purge) by URI, by tag, by group, and all.

use serde_json::json;
use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{HttpService, HttpStampede};

use crate::kit::http::*;

const STALE: &str = "max-age=600, stale-while-revalidate=60, stale-if-error=600";

fn pages() -> Origin {
    Origin::new(|call| {
        let answer = Answer::ok(STALE, format!("{} {}", call.uri(), call.n));
        answer.header("cache-groups", "\"g\"").header("surrogate-key", "k")
    })
}

fn site(cache: &HttpStampede, origin: &Origin) -> HttpService<Origin> {
    cache.http_layer().tags_from(["surrogate-key"]).layer(origin.clone())
}

#[tokio::test(start_paused = true)]
async fn a_response_that_was_made_stale_is_served_while_one_request_refreshes_it() {
    let (cache, origin) = (origin_only(), pages());
    let app = site(&cache, &origin);
    let first = send(&app, get("http://a/x")).await;
    cache.mark_path_stale("/x").await;
    let replies = crowd(&app, 50, |_| get("http://a/x")).await;
    assert!(replies.iter().all(|reply| reply.is(Stale) && reply.text() == first.text()));
    let status = replies[0].cache_status();
    assert!(status.ends_with("; hit; ttl=-1"), "{status}");
    pass(secs(1)).await;
    let hit = send(&app, get("http://a/x")).await;
    assert!(hit.is(Hit) && hit.text() != first.text());
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_response_that_was_made_stale_stands_in_for_a_failure_and_is_asked_about() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::ok("max-age=600, stale-if-error=60", "old").header("etag", "\"e\""),
        _ => Answer::status(503),
    });
    let cache = origin_only();
    let app = site(&cache, &origin);
    send(&app, get("http://a/x")).await;
    cache.mark_all_stale().await;
    let reply = send(&app, get("http://a/x")).await;
    assert!(reply.is(StaleIfError) && reply.text() == "old");
    assert_eq!(origin.last().header("if-none-match"), Some("\"e\""));
    pass(secs(61)).await;
    assert_eq!(send(&app, get("http://a/x")).await.status, 503);
}

#[tokio::test(start_paused = true)]
async fn every_variant_is_made_stale_and_stays_to_be_found() {
    let origin = Origin::new(|call| {
        let said = format!("{} {}", call.header("accept-language").unwrap_or("-"), call.n);
        Answer::ok(STALE, said).header("vary", "accept-language")
    });
    let cache = origin_only();
    let app = site(&cache, &origin);
    let ask = |lang| with("http://a/x", &[("accept-language", lang)]);
    for (n, lang) in ["de", "en"].into_iter().enumerate() {
        assert_eq!(send(&app, ask(lang)).await.text(), format!("{lang} {n}"));
    }
    cache.mark_all_stale().await;
    pass(secs(59)).await;
    for (n, lang) in ["de", "en"].into_iter().enumerate() {
        let reply = send(&app, ask(lang)).await;
        assert!(reply.is(Stale) && reply.text() == format!("{lang} {n}"), "{reply:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_variant_with_a_longer_window_than_the_newest_is_found_after_all_were_made_stale() {
    let origin = Origin::new(|call| {
        let lang = call.header("accept-language").unwrap_or("-");
        let lives =
            if lang == "de" { "max-age=10, stale-while-revalidate=600" } else { "max-age=600" };
        Answer::ok(lives, lang.to_owned()).header("vary", "accept-language")
    });
    let cache = origin_only();
    let app = site(&cache, &origin);
    let ask = |lang| with("http://a/x", &[("accept-language", lang)]);
    send(&app, ask("de")).await;
    send(&app, ask("en")).await;
    pass(secs(50)).await;
    cache.mark_all_stale().await;
    // Long enough for a sweep.
    pass(secs(100)).await;
    assert!(send(&app, ask("de")).await.is(Stale));
}

#[tokio::test(start_paused = true)]
async fn operators_make_stale_by_path_url_tag_group_and_everything() {
    use tower_stampede::admin;

    let (cache, origin) = (origin_only(), pages());
    let (app, operators) = (site(&cache, &origin), admin::router(cache.clone()));
    let all = ["http://a/x?1", "http://a/y", "http://b/x"];
    let purge = async |what: serde_json::Value| {
        let mut asked = request("POST", "/purge", &[]);
        *asked.body_mut() = what.to_string().into();
        let reply = send(&operators, asked).await;
        (reply.status, reply.text().to_owned())
    };
    let marked = async |what: serde_json::Value| {
        cache.invalidate_all().await;
        for page in all {
            send(&app, get(page)).await;
        }
        let (status, said) = purge(what).await;
        assert_eq!(status, 200, "{said}");
        let mut found = Vec::new();
        for (n, page) in all.into_iter().enumerate() {
            let reply = send(&app, get(page)).await;
            assert!(reply.is(Stale) || reply.is(Hit), "nothing is ended: {reply:?}");
            found.extend(reply.is(Stale).then_some(n));
        }
        found
    };
    assert_eq!(marked(json!({"path": "/x", "soft": true})).await, [0, 2]);
    // All of its path: values in a remote carry no tag of their URI.
    assert_eq!(marked(json!({"url": "http://a/x?1", "soft": true})).await, [0, 2]);
    assert_eq!(marked(json!({"tag": "k", "soft": true})).await, [0, 1, 2]);
    assert_eq!(marked(json!({"tag": "*", "soft": true})).await, [0, 1, 2]);
    let group = json!({"group": "g", "origin": "http://a", "soft": true});
    assert_eq!(marked(group).await, [0, 1]);
    let other = json!({"group": "g", "origin": "http://a", "scope": "s", "soft": true});
    assert_eq!(marked(other).await, [0; 0]);
    // Not soft: ended.
    let (status, _) = purge(json!({"group": "g", "origin": "http://a", "soft": false})).await;
    assert_eq!(status, 200);
    assert!(!send(&app, get("http://a/y")).await.is(Hit));
    assert!(!send(&app, get("http://b/x")).await.is(Computed));
    for wrong in [
        json!({"key": "k", "soft": true}),
        json!({"path": "/x", "soft": "yes"}),
        json!({"path": "x", "soft": true}),
        json!({"group": "g"}),
        json!({"group": "g", "origin": "a"}),
        json!({"tag": "g", "origin": "http://a"}),
        json!({"soft": true}),
        json!({"tag": "k", "group": "g", "origin": "http://a"}),
    ] {
        let (status, said) = purge(wrong.clone()).await;
        assert_eq!(status, 400, "{wrong} {said}");
    }
}
