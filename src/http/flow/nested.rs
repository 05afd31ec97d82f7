//! Layers of one handle inside each other: the outer one caches, the inner one passes on.
//!
//! The outer layer leaves a mark in each request that it forwards. A layer of the same handle that
//! finds the mark passes the request and its response on as they are. So one layer stores, and
//! there is one flight.
//!
//! The rules of the inner layer do nothing, but for two things. A write ends what is stored by
//! either layer: an invalidation that is lost lets a page be served for too long. And what the inner layer keeps apart, the outer
//! one does not share. If they might tell two clients apart that the outer layer takes for one,
//! the inner layer says so in the mark, and the response is for its client alone. It says so in
//! the marks of other handles, too. The mark is in the request, since a layer between the two may
//! make a response of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::{self, HeaderMap, HeaderName};
use http::request::Parts;
use http::{Extensions, Method, Request, Response, Uri};
use tower_service::Service;

use crate::http::flow::content;
use crate::http::layer::rules::Rules;
use crate::http::rules::key::received_uri;
use crate::http::rules::request::is_unsafe;
use crate::http::rules::storable::ForOneClient;
use crate::http::rules::vary::{self, VaryList};
use crate::http::stored::response::HttpCache;
use crate::tower::oneshot::Oneshot;

/// The marks of the layers that a request has come through, the outermost first.
#[derive(Clone)]
struct Marks(Vec<Arc<Mark>>);

/// What a layer leaves in a request.
pub(super) struct Mark {
    /// Where the handle's state is in memory. The layer that left the mark keeps it alive while
    /// the request is on its way.
    cache: usize,
    rules: Arc<Rules>,
    /// The request is a POST that changes nothing, by its head and its body.
    is_safe_post: bool,
    /// `None` where the layer forwards the request uncached.
    /// The URI as received, in normal form, and the fields.
    sent: Option<(Uri, HeaderMap)>,
    /// A layer further in keeps the response for the client of this request.
    is_for_one: AtomicBool,
}

/// What a layer takes a request for that it sends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestPurpose {
    /// Its response may be shared.
    Shared,
    /// It is forwarded uncached.
    Uncached,
    /// It is forwarded, and may change something.
    Write,
}

fn place(cache: &Arc<HttpCache>) -> usize {
    Arc::as_ptr(cache).addr()
}

/// Returns whether the request has come through a layer of the same handle.
#[inline]
pub(super) fn is_inside(extensions: &Extensions, cache: &Arc<HttpCache>) -> bool {
    let marks = extensions.get::<Marks>();
    marks.is_some_and(|marks| marks.0.iter().any(|mark| mark.cache == place(cache)))
}

/// Leaves the mark of a layer in a request in the form in which it is sent.
pub(super) fn mark(
    parts: &mut Parts,
    cache: &Arc<HttpCache>,
    rules: &Arc<Rules>,
    purpose: RequestPurpose,
) {
    let sent = || (received_uri(parts).clone(), parts.headers.clone());
    let sent = (purpose == RequestPurpose::Shared).then(sent);
    let mark = Mark {
        cache: place(cache),
        rules: Arc::clone(rules),
        is_safe_post: parts.method == Method::POST && purpose != RequestPurpose::Write,
        sent,
        is_for_one: AtomicBool::new(false),
    };
    parts.extensions.get_or_insert_with(|| Marks(Vec::new())).0.push(Arc::new(mark));
}

/// Calls the service with a request that a layer has marked.
pub(super) async fn call<S, Q, B>(service: S, request: Request<Q>) -> Result<Response<B>, S::Error>
where
    S: Service<Request<Q>, Response = Response<B>>,
{
    let mark = request.extensions().get::<Marks>().and_then(|marks| marks.0.last().cloned());
    let mut response = Oneshot::new(service, request).await?;
    if mark.is_some_and(|mark| mark.is_for_one.load(Ordering::Acquire)) {
        response.extensions_mut().insert(ForOneClient);
    }
    Ok(response)
}

impl Mark {
    /// Returns which fields something between the layers has set; `None` where an inner layer with
    /// `rules` might tell two clients apart by what it has received, whose requests the outer layer
    /// has sent as one.
    fn changed(&self, parts: &Parts, rules: &Rules) -> Option<Vec<HeaderName>> {
        // The key of any other request has its body, which this layer does not read.
        let has_no_body = matches!(parts.method, Method::GET | Method::HEAD);
        let sent = self.sent.as_ref().filter(|_| has_no_body && rules.share_like(&self.rules));
        let (uri, headers) = sent?;
        if received_uri(parts) != uri {
            return None;
        }
        let is_changed =
            |name: &&HeaderName| !parts.headers.get_all(*name).iter().eq(headers.get_all(*name));
        let changed: Vec<_> = parts.headers.keys().filter(is_changed).cloned().collect();
        let config = &rules.config;
        let counts = |name: &HeaderName| {
            *name == header::HOST || config.keys(name) || config.is_credential(name)
        };
        (!changed.iter().any(counts)).then_some(changed)
    }
}

/// A request that an inner layer passes on.
pub(super) struct Passage {
    marks: Marks,
    outer: Option<Arc<Mark>>,
    /// Fields that something between the layers has set.
    changed: Vec<HeaderName>,
}

impl Passage {
    /// Compares a request with the one that the outer layer has sent. Without `rules`, it is not
    /// known which rules the inner layer has for it.
    pub(super) fn of(parts: &Parts, cache: &Arc<HttpCache>, rules: Option<&Rules>) -> Self {
        let marks = parts.extensions.get::<Marks>().cloned().unwrap_or(Marks(Vec::new()));
        let outer = marks.0.iter().rfind(|mark| mark.cache == place(cache)).cloned();
        let changed =
            outer.as_ref().zip(rules).and_then(|(outer, rules)| outer.changed(parts, rules));
        let is_for_one = changed.is_none();
        let passage = Self { changed: changed.unwrap_or_default(), outer, marks };
        if is_for_one {
            passage.keep_for_one();
        }
        passage
    }

    /// Returns whether the request may change something, by the word of both layers. Where the body
    /// says so, the outer one has read it.
    pub(super) fn is_write(&self, parts: &Parts, rules: &Rules) -> bool {
        let is_safe = content::is_safe_post(parts, rules) && rules.post_key.is_none();
        let is_safe_outside = self.outer.as_ref().is_some_and(|outer| outer.is_safe_post);
        is_unsafe(&parts.method) && !is_safe && !is_safe_outside
    }

    fn keep_for_one(&self) {
        self.marks.0.iter().for_each(|mark| mark.is_for_one.store(true, Ordering::Release));
    }

    /// Judges the response: where its `Vary` names a field that the outer layer has not received
    /// so, it is not the one that the outer layer would take it for.
    pub(super) fn end<B>(self, response: &Response<B>) {
        let selects = |list: VaryList| self.changed.iter().any(|name| list.selects(name));
        let list = vary::parse(response.headers(), &[]);
        if list.map_or(true, |list| list.is_some_and(selects)) {
            self.keep_for_one();
        }
    }
}
