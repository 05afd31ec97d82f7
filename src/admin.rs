//! A router for the people who operate an application.
//!
//! [`router`] shows what a cache does, switches it, and purges it. It has **no
//! authentication of its own**: every client that reaches it can read keys, which may hold
//! data of users, and can switch the cache off. Mount it behind yours, or on an address that
//! only operators reach:
//!
//! ```
//! use std::time::Duration;
//! use axum::extract::Request;
//! use axum::http::{StatusCode, header};
//! use axum::middleware::{Next, from_fn};
//! use axum::response::Response;
//! use axum::{Router, routing::get};
//! use tower_stampede::{HttpStampede, Stampede, admin};
//!
//! # async fn page() -> &'static str { "page" }
//! async fn only_operators(request: Request, next: Next) -> Result<Response, StatusCode> {
//!     match request.headers().get(header::AUTHORIZATION) {
//!         Some(shown) if shown == "Bearer of the operators' secret" => Ok(next.run(request).await),
//!         _ => Err(StatusCode::UNAUTHORIZED),
//!     }
//! }
//!
//! let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
//! let app: Router = Router::new()
//!     .route("/page", get(page))
//!     .layer(cache.http_layer())
//!     // After the layer, and so outside of it.
//!     .nest("/admin/cache", admin::router(cache).layer(from_fn(only_operators)));
//! # drop(app);
//! ```
//!
//! | request | answer |
//! | --- | --- |
//! | `GET /stats` | the counts of [`Stats`], by their names |
//! | `GET /health` | `{"health": "up"}`, or `degraded`, or `bypassed`, and in `servers_away` the servers of the remote that do not answer, if any; always a 200: requests are served |
//! | `GET /log` | how far this process follows the invalidation log of the remote: its `epoch` and `position`, and `vouched_ms`, how long local copies are served before it is read again |
//! | `GET /top?limit=20` | the keys, tags and routes that have saved the origin the most time; see [`Top`] |
//! | `GET /mode` | `{"mode": "on"}`, or `observe`, or `off` |
//! | `PUT /mode` with `{"mode": "off"}` | the mode afterwards; after a shutdown it stays `off` |
//! | `POST /purge` with `{"path": "/report"}` | purges every response of a path: all queries, hosts and variants, in layers without a scope; `"scope"` beside it names one |
//! | `POST /purge` with `{"url": "https://a.example/report?id=1"}` | purges every variant and key of one absolute URL, under `http` and `https`, in layers without a scope or those of `"scope"` |
//! | `POST /purge` with `{"key": "user:7"}` | purges one entry; the key of a response, all of its URL |
//! | `POST /purge` with `{"tag": "users"}` | purges all entries with a tag; `*` is everything |
//! | `POST /purge` with `{"group": "news", "origin": "https://a.example"}` | purges the responses of one host that are in a group (`Cache-Groups`), in layers without a scope or those of `"scope"` |
//! | `GET /keys?limit=100&after=…` | the keys in this process, in an order of their own, which is the same in every process |
//!
//! A purge answers what was done: `{"purged": {"tag": "users"}, "local": true, "remote":
//! "done"}`; see [`Invalidation`] for the words. It reaches computations that run, and other
//! processes as any invalidation does. The other requests concern this process alone.
//!
//! With `"soft": true` beside any of them but `key`, entries are not ended but made stale: they
//! are served in their stale windows, which begin now, while one request refreshes each; see
//! [`mark_tag_stale`](crate::Stampede::mark_tag_stale). Of a `url` it is the whole path that
//! becomes stale, with every query and host of the scope.
//!
//! A path is compared byte for byte with the one that clients send, a URL after its host is
//! brought into its normal form. The scheme of a URL is the one that the layer has: `http`
//! unless [`scheme`](crate::HttpLayer::scheme) says otherwise, or requests name another.
//!
//! In `/log` all three are `null` without a remote; `epoch` and `position` before the log was read,
//! and `vouched_ms` while the remote is away: local copies are then served as long as they may.
//!
//! Each of the keys comes with `age_ms`, `ttl_left_ms`, `stale_left_ms`, `bytes`, `version` (the
//! number under which it stands in the remote, or `null`), its `tags` and, for a response, its
//! `url`. The tags that the HTTP layer makes are left out, unless the request says `tags=all`. At
//! most 1000 keys come at once, by default 100. If there are more, `next` has what to say for
//! `after`; else it is `null`. The call looks at every entry of the process, in slices,
//! and holds as many as it returns.
//!
//! Keys and tags are written with `%` and two digits for each byte that is no visible ASCII
//! character, and for `%` itself. A purge reads them the same way.
//!
//! An unreadable request is answered with a 400, another path with a 404 that lists the paths,
//! another method with a 405, a body over 64 KiB with a 413; `error` has the reason. All answers are
//! JSON, and have `Cache-Control: no-store`.

use std::any::TypeId;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{RawQuery, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Map, Value, json};

use crate::cache::inspect::{Cursor, EntryInfo};
use crate::http::StoredResponse;
use crate::http::rules::key::url_of;
use crate::http::rules::steering::GroupOrigin;
use crate::http::rules::target::{self, path_tag};
use crate::key::{self, text_of};
use crate::{Announcement, Health, Invalidation, Key, Mode, Savings, Stampede, Stats, Tag, Top};

/// What is said of a path that is none.
const PATHS: &str = "no such path; there are GET /stats, /top, /health, /log, /mode and /keys, PUT \
                     /mode, and POST /purge";

/// The longest body that is read.
const MAX_BODY: usize = 64 << 10;

/// How many keys come at once, unless the request says so, and at most.
const KEYS: usize = 100;
const MAX_KEYS: usize = 1000;

/// The same of keys, tags and routes that have saved the most.
const TOP: usize = 20;
const MAX_TOP: usize = 128;

const MODES: [(&str, Mode); 3] = [("on", Mode::On), ("observe", Mode::Observe), ("off", Mode::Off)];

type Answer = Result<Value, Refused>;

/// A request that is not carried out, and why.
struct Refused(StatusCode, String);

fn bad(why: impl Into<String>) -> Refused {
    Refused(StatusCode::BAD_REQUEST, why.into())
}

/// Makes a router that shows, switches and purges `cache`. It authenticates no client;
/// [this module](self) has the requests that it takes.
///
/// It must stand outside of the cache's own layer, as in the example of the module. Inside,
/// its answers are not stored either, but it reports on requests of its own.
///
/// It has its own state, and can be nested in a router with any state `S`, before or after
/// its `with_state`.
///
/// # Cost
///
/// Nothing but memory for the routes until a request comes. `GET /keys` takes time in
/// proportion to the number of entries.
pub fn router<V, S>(cache: Stampede<V>) -> Router<S>
where
    V: Clone + Send + Sync + 'static,
    S: Clone + Send + Sync + 'static,
{
    Router::new()
        .route("/stats", get(async |State(cache): State<Stampede<V>>| said(Ok(stats(&cache)))))
        .route("/health", get(async |State(cache): State<Stampede<V>>| said(Ok(health(&cache)))))
        .route(
            "/top",
            get(async |State(cache): State<Stampede<V>>, RawQuery(query): RawQuery| {
                said(top(&cache, query.as_deref().unwrap_or_default()))
            }),
        )
        .route("/log", get(async |State(cache): State<Stampede<V>>| said(Ok(log(&cache)))))
        .route(
            "/mode",
            get(async |State(cache): State<Stampede<V>>| said(Ok(mode(&cache)))).put(
                async |State(cache): State<Stampede<V>>, body: Body| {
                    said(set_mode(&cache, body).await)
                },
            ),
        )
        .route(
            "/purge",
            post(async |State(cache): State<Stampede<V>>, body: Body| {
                said(purge(&cache, body).await)
            }),
        )
        .route(
            "/keys",
            get(async |State(cache): State<Stampede<V>>, RawQuery(query): RawQuery| {
                said(keys(&cache, query.as_deref().unwrap_or_default()).await)
            }),
        )
        // Of this router alone: where it is nested, another one could be stored.
        .fallback(async || said(Err(Refused(StatusCode::NOT_FOUND, PATHS.into()))))
        .method_not_allowed_fallback(async || {
            said(Err(Refused(StatusCode::METHOD_NOT_ALLOWED, "not with this method".into())))
        })
        .layer(map_response(no_store))
        .with_state(cache)
}

async fn no_store(mut response: Response) -> Response {
    let no_store = HeaderValue::from_static("no-store");
    response.headers_mut().insert(header::CACHE_CONTROL, no_store);
    response
}

fn said(answer: Answer) -> Response {
    let (status, value) = match answer {
        Ok(value) => (StatusCode::OK, value),
        Err(Refused(status, why)) => (status, json!({"error": why})),
    };
    let json = HeaderValue::from_static("application/json");
    (status, [(header::CONTENT_TYPE, json)], value.to_string()).into_response()
}

fn stats<V: Clone + Send + Sync + 'static>(cache: &Stampede<V>) -> Value {
    macro_rules! figures {
        ($($name:ident)+) => {{
            // Without `..`: a new figure has to be shown here.
            let Stats { $($name,)+ oldest_stale, origin_time_saved } = cache.stats();
            let seconds = |time: std::time::Duration| json!(time.as_secs_f64());
            let oldest = ("oldest_stale_seconds", seconds(oldest_stale));
            let saved = ("origin_seconds_saved", seconds(origin_time_saved));
            Value::from_iter([$((stringify!($name), json!($name)),)+ oldest, saved])
        }};
    }
    figures! {
        hits stale stale_if_error computed joined alone bypassed refused
        would_have_answered computations failures batch_calls refused_fills refused_bodies
        wait_timeouts overloaded held invalidations wakes_by_push wakes_by_timer
        wakes_by_poll remote_calls remote_errors damaged evictions entries bytes
        arriving_bytes flights waiting computation_limit
    }
}

fn top<V: Clone + Send + Sync + 'static>(cache: &Stampede<V>, query: &str) -> Answer {
    let limit = match query.strip_prefix("limit=") {
        Some(limit) => limit.parse().ok().filter(|limit| (1..=MAX_TOP).contains(limit)),
        None => query.is_empty().then_some(TOP),
    };
    let limit = limit.ok_or_else(|| bad("`limit` must be a number from 1 to 128"))?;
    let listed = |rows: Vec<(String, Savings)>| {
        let row = |(name, it): &(String, Savings)| {
            json!({
                "name": name,
                "hits": it.hits,
                "joined": it.joined,
                "origin_seconds_saved": it.origin_time_saved.as_secs_f64(),
                "waited_seconds": it.waited.as_secs_f64(),
                "bytes": it.bytes,
            })
        };
        rows.iter().map(row).collect::<Vec<_>>()
    };
    let Top { keys, tags, routes } = cache.top(limit);
    Ok(json!({"keys": listed(keys), "tags": listed(tags), "routes": listed(routes)}))
}

fn health<V: Clone + Send + Sync + 'static>(cache: &Stampede<V>) -> Value {
    let health = match cache.health() {
        Health::Up => "up",
        Health::Degraded => "degraded",
        Health::Bypassed => "bypassed",
    };
    match cache.servers_away() {
        away if away.is_empty() => json!({"health": health}),
        away => json!({"health": health, "servers_away": away}),
    }
}

fn log<V: Clone + Send + Sync + 'static>(cache: &Stampede<V>) -> Value {
    let (applied, vouched) = cache.0.log_state();
    json!({
        "epoch": applied.map(|applied| applied.epoch.to_string()),
        "position": applied.map(|applied| applied.position),
        "vouched_ms": vouched.map(millis),
    })
}

fn mode<V: Clone + Send + Sync + 'static>(cache: &Stampede<V>) -> Value {
    let word = cache.mode().as_str();
    json!({ "mode": word })
}

async fn set_mode<V: Clone + Send + Sync + 'static>(cache: &Stampede<V>, body: Body) -> Answer {
    let said = object(body).await?;
    let word = text(&said, "mode")?;
    let named = MODES.iter().find(|(known, _)| Some(*known) == word);
    let (_, named) = named.ok_or_else(|| bad("`mode` must be `on`, `observe` or `off`"))?;
    cache.set_mode(*named);
    Ok(mode(cache))
}

/// Reads a scheme and a host, and no more: groups belong to all pages of a host.
fn origin_of(text: &str) -> Option<Uri> {
    let uri = target::normal_url(text)?;
    let is_all = uri.path_and_query().is_none_or(|resource| resource.as_str() == "/");
    // The fragment is no part of a `Uri`.
    (is_all && !text.contains('#')).then_some(uri)
}

async fn purge<V: Clone + Send + Sync + 'static>(cache: &Stampede<V>, body: Body) -> Answer {
    let said = object(body).await?;
    let scope = text(&said, "scope")?;
    let origin = text(&said, "origin")?;
    let is_soft = match said.get("soft") {
        None => false,
        Some(soft) => soft.as_bool().ok_or_else(|| bad("`soft` must be `true` or `false`"))?,
    };
    // One kind of thing is purged at a time. All that is said wrongly is refused before anything is
    // purged.
    let known = ["path", "url", "key", "tag", "group"];
    let beside = ["scope", "soft", "origin"];
    let mut given = said.keys().filter(|name| !beside.contains(&name.as_str()));
    let (Some(name), None) = (given.next(), given.next()) else {
        let what = "say one of `path`, `url`, `key`, `tag` and `group`, and beside it no more than \
                    `scope`, `origin` and `soft`";
        return Err(bad(what));
    };
    if !known.contains(&name.as_str()) {
        return Err(bad("say one of `path`, `url`, `key`, `tag` and `group`"));
    }
    if said.get(name).and_then(Value::as_str) == Some("") {
        return Err(bad("what is to be purged has a name; `*` as `tag` is everything"));
    }
    if name == "path" && text(&said, name)?.is_some_and(|path| path.contains(['?', '#'])) {
        return Err(bad("`path` has no query; say a `url`, or the path alone"));
    }
    let what = text(&said, name)?.unwrap_or_default();
    if scope.is_some() && matches!(name.as_str(), "key" | "tag") {
        return Err(bad("`scope` stands beside `path`, `url` or `group`"));
    }
    if origin.is_some() != (name == "group") {
        return Err(bad("`origin` stands beside `group`, and nowhere else"));
    }
    let state = &cache.0;
    let done = match (name.as_str(), is_soft) {
        ("key", true) => return Err(bad("`soft` stands beside all but `key`")),
        ("key", false) => state.invalidate(Key::from_encoded(&bytes_of(what)?)).await,
        ("url", false) => {
            let uri = absolute(what)?;
            let scheme = uri.scheme_str().unwrap_or_default();
            state.invalidate_uris(state.queries.reach(&uri, (scheme, true), scope)).await.0
        }
        (_, true) => state.mark_tags_stale(&[tag_of(name, what, scope, origin)?]).await,
        (_, false) => state.invalidate_tags(Box::new([tag_of(name, what, scope, origin)?])).await,
    };
    let Invalidation { local, remote } = done;
    let remote = match remote {
        Announcement::NoRemote => "no_remote",
        Announcement::Done => "done",
        Announcement::Queued => "queued",
    };
    Ok(json!({"purged": said, "local": local, "remote": remote}))
}

/// Returns the tag of what is to be ended or made stale.
fn tag_of(
    name: &str,
    what: &str,
    scope: Option<&str>,
    origin: Option<&str>,
) -> Result<Tag, Refused> {
    match name {
        "path" if !what.starts_with('/') => Err(bad("`path` must begin with `/`")),
        "path" => Ok(path_tag(scope, what)),
        // Values in the remote carry no tag of their URI: the one of its path.
        "url" => Ok(path_tag(scope, absolute(what)?.path())),
        "group" => {
            let origin = origin.and_then(origin_of).ok_or_else(|| {
                bad("`origin` must be a scheme and a host, such as `https://a.example`, \
                     without a path or a query")
            })?;
            Ok(GroupOrigin::of_url(&origin, scope).group(what))
        }
        _ => Ok(Tag::from_encoded(&bytes_of(what)?)),
    }
}

fn absolute(url: &str) -> Result<Uri, Refused> {
    let why = "`url` must be absolute: a scheme, a host and a path";
    target::normal_url(url).ok_or_else(|| bad(why))
}

async fn keys<V: Clone + Send + Sync + 'static>(cache: &Stampede<V>, query: &str) -> Answer {
    let (mut limit, mut after, mut has_made_tags) = (KEYS, None, false);
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        match parameter.split_once('=') {
            Some(("limit", said)) => {
                let said = said.parse().ok().filter(|limit| (1..=MAX_KEYS).contains(limit));
                limit = said.ok_or_else(|| bad("`limit` must be a number from 1 to 1000"))?;
            }
            Some(("after", said)) => {
                let said = Cursor::read(said);
                after = Some(said.ok_or_else(|| bad("`after` must be a `next` of before"))?);
            }
            Some(("tags", "all")) => has_made_tags = true,
            _ => return Err(bad("the parameters are `limit`, `after` and `tags=all`")),
        }
    }
    let (found, next) = Arc::clone(&cache.0).entries_after(after, limit).await;
    // Only a response has a URL.
    let has_urls = TypeId::of::<V>() == TypeId::of::<StoredResponse>();
    let keys = found.iter();
    let keys: Vec<_> = keys.map(|(key, info)| entry(key, info, has_urls, has_made_tags)).collect();
    Ok(json!({"keys": keys, "next": next.map(|next| next.to_string())}))
}

fn entry(key: &Key, info: &EntryInfo, has_urls: bool, has_made_tags: bool) -> Value {
    let tags = info.tags.iter().map(Tag::as_bytes);
    let tags = tags.filter(|tag| has_made_tags || !key::is_made_tag(tag));
    let tags: Vec<_> = tags.map(text_of).collect();
    let mut entry = json!({
        "key": text_of(key.as_bytes()),
        "age_ms": millis(info.age),
        "ttl_left_ms": millis(info.ttl_left),
        "stale_left_ms": millis(info.stale_left),
        "bytes": info.bytes,
        "version": info.version,
        "tags": tags,
    });
    let url = has_urls.then(|| url_of(key.as_bytes())).flatten();
    if let (Some(entry), Some(url)) = (entry.as_object_mut(), url) {
        entry.insert("url".into(), url.into());
    }
    entry
}

fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Reads a JSON object.
async fn object(body: Body) -> Result<Map<String, Value>, Refused> {
    let too_large =
        |_| Refused(StatusCode::PAYLOAD_TOO_LARGE, "the body is over 64 KiB, or broke off".into());
    let bytes = to_bytes(body, MAX_BODY).await.map_err(too_large)?;
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(said)) => Ok(said),
        Ok(_) => Err(bad("the body must be a JSON object")),
        Err(error) => Err(bad(format!("the body is no JSON: {error}"))),
    }
}

fn text<'a>(said: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>, Refused> {
    match said.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(bad(format!("`{name}` must be a string"))),
    }
}

/// Reads what [`text_of`] writes. Other characters stand for their own bytes.
fn bytes_of(text: &str) -> Result<Vec<u8>, Refused> {
    let why = "a `%` is followed by two hexadecimal digits; `%` itself is `%25`";
    key::bytes_of(text).ok_or_else(|| bad(why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_key_is_read_as_it_was_written(bytes: Vec<u8>) {
            let text = text_of(&bytes);
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert_eq!(bytes_of(&text).ok(), Some(bytes));
        }

        #[test]
        fn no_text_makes_it_panic(text in ".*|[%0-9a-zé]{0,12}") {
            let _ = bytes_of(&text);
            let _ = target::normal_url(&text);
            let _ = Cursor::read(&text);
            let _ = url_of(text.as_bytes());
        }
    }
}
