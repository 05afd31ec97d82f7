//! The page for people.

use std::sync::{Arc, LazyLock};

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{Html, IntoResponse};

use crate::origin::Lane;
use crate::{App, redis};

/// The page in one piece: it needs nothing but itself.
static PAGE: LazyLock<String> = LazyLock::new(|| {
    let scripts = concat!(include_str!("page_timeline.js"), include_str!("page.js"));
    include_str!("page.html")
        .replace("/* page.css */", include_str!("page.css"))
        .replace("/* page.js */", scripts)
});
/// The browser lets the page ask for nothing else.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
     connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; \
     frame-ancestors 'none'";

/// `GET /`
pub(crate) async fn show(State(app): State<Arc<App>>, asked: HeaderMap) -> impl IntoResponse {
    let stats = app.cache.stats();
    let (without, with) = (app.origin.calls(Lane::Unprotected), app.origin.calls(Lane::Protected));
    let row = |what: &str, without: String, with: String| {
        format!("<tr><th scope=\"row\">{what}</th><td>{without}</td><td>{with}</td></tr>\n")
    };
    let ours = |what, count: u64| row(what, "–".into(), count.to_string());
    let redis = redis::state(&app.cache, app.flags.redis.as_ref());
    // Our numbers and words: nothing here comes from a client.
    let rows = [
        row("Requests", without.requests().to_string(), with.requests().to_string()),
        row("Calls of the origin", without.total().to_string(), with.total().to_string()),
        ours("Answered from memory", stats.hits),
        ours("Answered stale", stats.stale + stats.stale_if_error),
        ours("Answered by waiting", stats.joined),
        ours("Waiting now", stats.waiting as u64),
        row("Redis", "–".into(), redis.into()),
    ];
    let headers = [(header::CACHE_CONTROL, "no-store"), (header::CONTENT_SECURITY_POLICY, POLICY)];
    // Of hexadecimal digits: nothing to escape.
    let token = app.stages.as_ref().and_then(|stages| stages.access.token_for(&asked));
    let page = PAGE.replace("<!-- rows -->", &rows.concat());
    (headers, Html(page.replace("<!-- token -->", token.unwrap_or_default())))
}
