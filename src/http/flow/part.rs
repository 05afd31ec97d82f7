//! A range request: it leads to the whole, which is for others too, and gets its part of it.
//!
//! A leader with a range asks for the whole. Where that is not for others, or is too long, the
//! response is dropped, and the client's own request is sent ([`HttpWork::own_request`]).
//! So a client costs at most one call more than its own.
//!
//! What arrives with a known length is cut while it arrives. Without one, the client waits for
//! the bytes of its range, and for the end where the range counts from there or has none; so
//! does a client with several ranges. It waits for as long as a caller waits for a computation,
//! and for no more than `max_body` bytes. Then its own request is sent.

use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;

use crate::http::body::{Content, Gathered, Reader, ResponseBody, SourceBody};
use crate::http::flow::OriginService;
use crate::http::flow::answer::answered;
use crate::http::flow::client::OriginClient;
use crate::http::flow::content;
use crate::http::flow::fill;
use crate::http::flow::lead::OriginOutcome;
use crate::http::flow::lookup::HttpCaller;
use crate::http::flow::work::{HttpWork, LeadResult};
use crate::http::layer::rules::Rules;
use crate::http::rules::content::RequestContent;
use crate::http::rules::range::{bytes_needed, is_of_other_unit};
use crate::http::rules::request::BypassReason;
use crate::http::rules::shape::Shape;
use crate::http::stored::response::StoredEntry;
use crate::outcome::CacheOutcome;

/// Returns whether the service may be asked for the whole on behalf of a range: then the
/// request may have to be sent twice.
#[cold]
pub(super) fn may_fill_from_range<Q: Body + 'static>(parts: &Parts, rules: &Rules) -> bool {
    let content = RequestContent::of_request(parts).map(|content| &content.bytes);
    rules.config.fill_from_ranges
        && !is_of_other_unit(&parts.headers)
        && content::spare::<Q>(rules, content).is_some()
}

impl HttpCaller {
    /// Returns whether more of a body has to come before this client's part is cut out of it.
    pub(super) fn has_to_wait(&self, entry: &StoredEntry) -> bool {
        let stored = entry.value.response().filter(|_| self.request.wishes.range);
        stored.is_some_and(|it| self.shape_of(it.status, &it.headers, Some(&it.body)).1)
    }

    /// Returns what this client gets of a response, and whether it has to wait for that.
    pub(super) fn shape_of(
        &self,
        status: StatusCode,
        response: &HeaderMap,
        body: Option<&Content>,
    ) -> (Shape, bool) {
        if !self.request.wishes.is_shaped() {
            return (Shape::Whole, false);
        }
        let now = self.request.cache.engine.clock.wall();
        Shape::of(self.request.wishes, &self.request.headers, status, response, body, now)
    }

    /// Waits for as much of a body as this client's part is cut out of. Lost is also what comes
    /// too late.
    async fn gather(&self, reader: Option<&Reader>) -> Gathered {
        let Some(reader) = reader else { return Gathered::Lost };
        let patience = self.request.cache.engine.settings.wait_timeout();
        let gathered = reader.gather(bytes_needed(&self.request.headers));
        tokio::time::timeout(patience, gathered).await.unwrap_or(Gathered::Lost)
    }

    /// Returns a response out of which this client's part can be cut, if it wants one.
    async fn cuttable<B: Body>(
        &self,
        response: Response<ResponseBody<B>>,
    ) -> Option<Response<ResponseBody<B>>> {
        let (head, body) = response.into_parts();
        let is_there = !self.shape_of(head.status, &head.headers, body.content().as_ref()).1;
        match if is_there { Gathered::Enough } else { self.gather(body.reader()).await } {
            Gathered::Enough => Some(Response::from_parts(head, body)),
            Gathered::Whole(whole) => Some(Response::from_parts(head, ResponseBody::full(whole))),
            Gathered::Lost => None,
        }
    }
}

impl<S, Q, B> HttpWork<S, Q, B>
where
    S: OriginService<Q, B>,
    Q: Body + Send + 'static,
    B: SourceBody,
{
    /// Returns the request of a client that asks for a part, before it is made a request for
    /// the whole.
    pub(super) fn own_request(&self) -> Option<Box<Self>> {
        let Self { caller, service, request, .. } = self;
        let body = caller
            .request
            .wishes
            .range
            .then(|| content::spare(&caller.request.rules, caller.request.content.as_ref()));
        let body = body.flatten()?;
        let mut own = Request::new(body);
        own.method_mut().clone_from(request.method());
        own.uri_mut().clone_from(request.uri());
        *own.version_mut() = request.version();
        own.headers_mut().clone_from(request.headers());
        own.extensions_mut().clone_from(request.extensions());
        Some(Box::new(Self::new(caller.for_client(true).caller, service.clone(), own)))
    }

    /// Answers a client that has waited for a flight, once enough of the body has come.
    pub(super) async fn answer_later(
        mut self,
        entry: &StoredEntry,
        outcome: CacheOutcome,
    ) -> Result<Response<ResponseBody<B>>, S::Error> {
        let whole = match self.caller.gather(self.caller.claim.as_ref()).await {
            Gathered::Enough => Some(Arc::clone(entry)),
            Gathered::Whole(whole) => fill::completed(&self.caller, entry, Content::Whole(whole)),
            Gathered::Lost => None,
        };
        match whole {
            Some(entry) => Ok(answered(&self.caller, &entry, outcome)),
            None => {
                // A reader that reads nothing would hold up the others.
                self.caller.claim = None;
                self.forward_uncached(BypassReason::Range).await
            }
        }
    }

    /// Answers the client whose range has led to the whole.
    pub(super) async fn answer_part(
        self,
        client: OriginClient,
        result: LeadResult<B, S::Error>,
        outcome: CacheOutcome,
    ) -> Result<Response<ResponseBody<B>>, S::Error> {
        let own = match result.own {
            OriginOutcome::Response { response, stored, why } if response.status().is_success() => {
                let cuttable = match why {
                    None => self.caller.cuttable(response).await,
                    Some(_) => {
                        // Before its own request is sent: the service need not go on.
                        drop(response);
                        None
                    }
                };
                let Some(response) = cuttable else {
                    return self.forward_uncached(BypassReason::Range).await;
                };
                OriginOutcome::Response { response, stored, why }
            }
            OriginOutcome::Unasked => return self.forward_uncached(BypassReason::Range).await,
            own => own,
        };
        client.with_stale(result.stale).receive(own, outcome)
    }
}
