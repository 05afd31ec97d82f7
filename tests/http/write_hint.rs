//! The hint in the log of a handle whose layers see no write.

use axum::Router;
use axum::routing::get as on_get;
use tower_stampede::HttpStampede;
use tracing::Level;

use crate::kit::http::*;
use crate::kit::log::TextLog;

const HINT: &str = "seen no write";

fn hints(log: &TextLog) -> usize {
    log.lines().iter().filter(|line| line.contains(HINT)).count()
}

/// Has `pages` responses stored by a layer around GET alone.
async fn store(cache: &HttpStampede, pages: usize) {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "page"));
    let app = layered(cache.http_layer(), &origin);
    for page in 0..pages {
        send(&app, get(&format!("http://x/{page}"))).await;
    }
    assert_eq!(origin.calls(), pages);
}

#[tokio::test(start_paused = true)]
async fn a_handle_that_stores_and_sees_no_write_says_so_once() {
    let log = TextLog::default();
    let _listening = log.listen(Level::DEBUG);
    let cache = origin_only();
    store(&cache, 99).await;
    assert_eq!(hints(&log), 0);
    let origin = Origin::new(|_| Answer::ok("max-age=60", "page"));
    let app = layered(cache.http_layer(), &origin);
    for page in 0..200 {
        send(&app, get(&format!("http://x/more/{page}"))).await;
    }
    assert_eq!(hints(&log), 1);
}

/// The layer is around GET alone, as in S19 of the list of threats: the POST does not pass it.
#[tokio::test(start_paused = true)]
async fn a_write_beside_a_layer_of_one_method_does_not_count_as_seen() {
    let log = TextLog::default();
    let _listening = log.listen(Level::DEBUG);
    let cache = origin_only();
    let page = on_get(async || ([("cache-control", "max-age=60")], "page"));
    let route = page.layer(cache.http_layer()).post(async || "saved");
    let app = Router::new().route("/{page}", route);
    for page in 0..100 {
        send(&app, request("POST", &format!("http://x/{page}"), &[])).await;
        send(&app, get(&format!("http://x/{page}"))).await;
    }
    assert_eq!(hints(&log), 1);
}

#[tokio::test(start_paused = true)]
async fn a_handle_that_sees_a_write_or_an_invalidation_gives_no_hint() {
    let log = TextLog::default();
    let _listening = log.listen(Level::DEBUG);
    let seen = origin_only();
    let origin = Origin::new(|_| Answer::ok("max-age=60", "page"));
    send(&layered(seen.http_layer(), &origin), request("POST", "http://x/", &[])).await;
    store(&seen, 200).await;
    let invalidated = origin_only();
    invalidated.invalidate_path("/").await;
    store(&invalidated, 200).await;
    let tagged = origin_only();
    tagged.invalidate_tag("product").await;
    store(&tagged, 200).await;
    assert_eq!(hints(&log), 0, "{}", log.text());
}
