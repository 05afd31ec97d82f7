//! The origin in process, and what it remembers of its requests.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use http::request::Parts;
use http::{HeaderValue, Request, Response, header};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tower_service::Service;
use tower_stampede::CacheFor;

use crate::persona::{Answer, Kind, Persona, is_write, resource};
use crate::settings::Settings;

/// The field that tells which request a response was the answer to.
pub(crate) const CALL: &str = "x-call";

/// The field that stands for the whole answer.
pub(crate) const DIGEST: &str = "x-digest";

/// One request that the origin got.
pub(crate) struct Call {
    /// What it wrote, and the state of that from then on.
    pub(crate) wrote: Vec<(String, u64)>,
}

#[derive(Default)]
pub(crate) struct State {
    /// The state of each resource; 0 at the beginning.
    pub(crate) versions: HashMap<String, u64>,
    pub(crate) calls: Vec<Call>,
}

/// An origin of one persona.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) persona: Arc<Persona>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) state: Arc<Mutex<State>>,
}

/// The service itself failed.
#[derive(Debug)]
pub(crate) struct Failed;

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the origin failed, as the case asks")
    }
}

impl std::error::Error for Failed {}

impl World {
    pub(crate) fn new(persona: &Persona, settings: &Settings) -> Self {
        Self {
            persona: Arc::new(persona.clone()),
            settings: Arc::new(settings.clone()),
            state: Arc::default(),
        }
    }

    /// Returns whether writes change what it answers.
    pub(crate) fn is_stateful(&self) -> bool {
        matches!(self.persona.kind, Kind::Versions)
    }

    /// Returns the name of what a request reads or changes.
    pub(crate) fn resource(&self, seen: &Parts) -> Option<String> {
        let mut seen = seen.clone();
        seen.uri = self.settings.without_query(&seen.uri);
        resource(&seen)
    }

    pub(crate) fn version(&self, resource: Option<&String>) -> u64 {
        let state = self.state.lock();
        resource.and_then(|name| state.versions.get(name)).copied().unwrap_or_default()
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, Failed> {
        let (parts, body) = request.into_parts();
        let body = if http_body::Body::is_end_stream(&body) {
            Bytes::new()
        } else {
            body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default()
        };
        let persona = Arc::clone(&self.persona);
        let n = {
            let mut state = self.state.lock();
            state.calls.push(Call { wrote: Vec::new() });
            state.calls.len() - 1
        };
        let early = (!persona.reads_late).then(|| self.evaluate(n, &parts, &body));
        if persona.work > 0 {
            tokio::time::sleep(Duration::from_millis(persona.work)).await;
        }
        if persona.fails > 0 && n as u64 % persona.fails == persona.fails - 1 {
            if n.is_multiple_of(2) {
                return Err(Failed);
            }
            let failure = Response::builder().status(503).body("no".into());
            return Ok(failure.expect("a valid response"));
        }
        let answer = early.unwrap_or_else(|| self.evaluate(n, &parts, &body));
        Ok(respond(&persona, &parts, n, answer))
    }

    /// Does what a write asks, and returns the answer.
    fn evaluate(&self, n: usize, parts: &Parts, body: &[u8]) -> Answer {
        let body = String::from_utf8_lossy(body);
        let is_stateful = self.is_stateful();
        let resource = is_stateful.then(|| self.resource(parts)).flatten();
        let mut state = self.state.lock();
        let version = resource.as_ref().and_then(|name| state.versions.get(name)).copied();
        let version = version.unwrap_or_default();
        if !is_stateful || !is_write(parts) {
            return self.persona.answer(parts, &body, version);
        }
        let answer = self.persona.answer(parts, &body, version + 1);
        let names_other = answer.location.is_some() || answer.ends_group;
        let other = resource.as_ref().filter(|_| names_other);
        // The resource that the answer names has no query.
        let path = other.and_then(|name| name.split('?').next());
        let other = path.map(|path| path.replace("/form", "/page"));
        let touched = resource.into_iter().chain(other).filter(|_| answer.status < 400);
        for name in touched {
            let version = state.versions.entry(name.clone()).or_default();
            *version += 1;
            let version = *version;
            state.calls[n].wrote.push((name, version));
        }
        answer
    }
}

/// Makes the response; to an HTTP client's eyes it is complete and honest.
pub(crate) fn respond(
    persona: &Persona,
    parts: &Parts,
    n: usize,
    answer: Answer,
) -> Response<Body> {
    let digest = answer.digest();
    let etag = format!("\"{digest}\"");
    let is_known = persona.has_etag && answer.status == 200 && asks_for_others(parts, &etag);
    let mut response = Response::new(Body::empty());
    *response.status_mut() = http::StatusCode::from_u16(answer.status).expect("a valid status");
    let text = |text: &str| HeaderValue::from_str(text).expect("a valid value");
    let headers = response.headers_mut();
    headers.insert(CALL, n.into());
    headers.insert(DIGEST, text(&digest));
    if !persona.cache_control.is_empty() {
        headers.insert(header::CACHE_CONTROL, text(&persona.cache_control));
    }
    if let Some(vary) = persona.vary() {
        headers.insert(header::VARY, text(&vary));
    }
    if let Some(location) = answer.location.as_ref().filter(|text| is_visible(text)) {
        headers.insert(header::LOCATION, text(location));
    }
    if let Some(coding) = answer.content_encoding {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding));
    }
    if let Some(location) = answer.content_location.as_ref().filter(|text| is_visible(text)) {
        headers.insert(header::CONTENT_LOCATION, text(location));
    }
    let group = HeaderValue::from_static("\"pages\"");
    if answer.ends_group {
        headers.insert("cache-group-invalidation", group);
    } else if persona.groups {
        headers.insert("cache-groups", group);
    }
    if persona.has_etag && answer.status == 200 {
        headers.insert(header::ETAG, text(&etag));
    }
    if persona.sets_cookie {
        headers.insert(header::SET_COOKIE, text(&format!("sid={n}; HttpOnly")));
    }
    if let Some(secs) = persona.cache_for {
        response.extensions_mut().insert(CacheFor::new(Duration::from_secs(secs)));
    }
    if is_known {
        *response.status_mut() = http::StatusCode::NOT_MODIFIED;
    } else if parts.method != http::Method::HEAD {
        *response.body_mut() = body(persona, answer.body);
    }
    response
}

fn body(persona: &Persona, text: String) -> Body {
    if !persona.streams || text.len() < 2 {
        return text.into();
    }
    let text = Bytes::from(text);
    let (first, second) = (text.slice(..1), text.slice(1..));
    let later = futures_util::stream::once(async move {
        tokio::time::sleep(Duration::from_millis(30)).await;
        Ok(second)
    });
    let first = futures_util::stream::once(async move { Ok::<_, Infallible>(first) });
    Body::from_stream(futures_util::StreamExt::chain(first, later))
}

fn is_visible(text: &str) -> bool {
    text.bytes().all(|b| (b' '..=b'~').contains(&b))
}

fn asks_for_others(parts: &Parts, etag: &str) -> bool {
    let mut tags = parts.headers.get_all(header::IF_NONE_MATCH).iter();
    tags.any(|line| line.to_str().is_ok_and(|line| line.contains(etag)))
}

impl Service<Request<Body>> for World {
    type Response = Response<Body>;
    type Error = Failed;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Failed>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().answer(request))
    }
}
