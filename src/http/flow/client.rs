//! The response for the client whose own request was forwarded for all.

use std::borrow::Cow;
use std::sync::Arc;

use http::header::{self, HeaderName};
use http::{HeaderMap, Response};
use http_body::Body;

use crate::error::Error;
use crate::http::body::ResponseBody;
use crate::http::flow::answer::{self, Provenance, answered};
use crate::http::flow::error_response::RefusalReason;
use crate::http::flow::lead::OriginOutcome;
use crate::http::flow::lookup::{ClientRequest, HttpCaller};
use crate::http::rules::decline_reason::DeclineReason;
use crate::http::rules::shape::Shape;
use crate::http::stored::response::StoredEntry;
use crate::observe::{Observe, Occurrence};
use crate::outcome::CacheOutcome;

/// What the leader's own client needs once the leader has gone to work.
pub(super) struct OriginClient {
    pub(super) caller: HttpCaller,
    /// Its request went to the service with its conditions: the service has judged them.
    sent_as_is: bool,
}

fn has_validator(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ETAG) || headers.contains_key(header::LAST_MODIFIED)
}

/// The longest field name that is repeated to a client or in a log line.
const MAX_NAMED: usize = 64;

impl HttpCaller {
    /// Returns how much this client gets of the response that it led to, which
    /// is for others too.
    pub(super) fn shape_of_own<B: Body>(&self, response: &Response<ResponseBody<B>>) -> Shape {
        let content = response.body().content();
        self.shape_of(response.status(), response.headers(), content.as_ref()).0
    }

    /// Returns what `Cache-Status` says of a response that is not stored.
    fn refusal_detail(&self, why: DeclineReason) -> Cow<'static, str> {
        match &self.request.credential {
            Some(name) if why == DeclineReason::Credentials => self.credential_detail(name).into(),
            _ => why.as_str().into(),
        }
    }

    /// Returns what `Cache-Status` says where a credential keeps a response from
    /// being shared.
    pub(super) fn credential_detail(&self, name: &HeaderName) -> String {
        self.warn_of_credential(name);
        let detail = DeclineReason::Credentials.as_str();
        // A pattern matches names of any length, which the client chooses.
        if name.as_str().len() > MAX_NAMED { detail.into() } else { format!("{detail}:{name}") }
    }

    /// Warns where it may be a surprise: that `Authorization` and `Cookie` are
    /// credentials is none, but where an identity stands for them.
    fn warn_of_credential(&self, name: &HeaderName) {
        let ClientRequest { cache, rules, .. } = &*self.request;
        let field = name.as_str().get(..MAX_NAMED).unwrap_or(name.as_str());
        if rules.has_identity {
            if rules.identity_watch.count() {
                cache.observer.happened(Occurrence::IdentityUncovered { field });
            }
        } else if !matches!(*name, header::AUTHORIZATION | header::COOKIE) {
            cache.observer.happened(Occurrence::CredentialRefused { field });
        }
    }

    pub(super) fn for_client(&self, sent_as_is: bool) -> OriginClient {
        let mut caller = Self::new(Arc::clone(&self.request), self.forward);
        caller.stale.clone_from(&self.stale);
        OriginClient { sent_as_is, caller }
    }
}

impl OriginClient {
    /// Takes what the leader has found on its way.
    pub(super) fn with_stale(mut self, stale: Option<StoredEntry>) -> Self {
        self.caller.stale = stale.or(self.caller.stale);
        self
    }

    fn fail<B: Body, E>(&self, error: E, failure: Error) -> Result<Response<ResponseBody<B>>, E> {
        let caller = &self.caller;
        if let Some(entry) = caller.in_hand_for(&failure) {
            return Ok(answered(caller, &entry, CacheOutcome::StaleIfError));
        }
        caller.instead_of(error, failure)
    }

    pub(super) fn receive<B: Body, E>(
        self,
        own: OriginOutcome<B, E>,
        outcome: CacheOutcome,
    ) -> Result<Response<ResponseBody<B>>, E> {
        let caller = &self.caller;
        let stale = |found: Option<StoredEntry>| {
            let entry = found.or_else(|| caller.in_hand())?;
            Some(answered(caller, &entry, CacheOutcome::StaleIfError))
        };
        let came =
            |stored, detail| Provenance { stored, ..Provenance::of(caller, outcome, detail) };
        match own {
            OriginOutcome::Response { response, stored, why } => {
                let detail = match (why, stored) {
                    (Some(why), _) => Some(caller.refusal_detail(why)),
                    (None, stored) => stored.err().map(|why| why.as_str().into()),
                };
                let is_stored = detail.is_none();
                if is_stored {
                    caller.request.rules.identity_watch.end();
                }
                // What is not stored is compared by its own validators only.
                let is_compared =
                    why.is_none() || !self.sent_as_is && has_validator(response.headers());
                let shape = if is_compared { caller.shape_of_own(&response) } else { Shape::Whole };
                let came = came(is_stored, detail.as_deref());
                Ok(answer::from_service(&caller.request.rules, response, &shape, came))
            }
            OriginOutcome::Failed { response, stand_in } => {
                Ok(stale(stand_in).unwrap_or_else(|| {
                    let failed = Some(RefusalReason::Failed.as_str());
                    let (rules, came) = (&caller.request.rules, came(false, failed));
                    answer::from_service(rules, response, &Shape::Whole, came)
                }))
            }
            OriginOutcome::Error { error, failure } => self.fail(error, failure),
            OriginOutcome::Unasked => unreachable!("a client of a part sends its own request"),
            OriginOutcome::Nothing(error) => {
                Ok(stale(None).unwrap_or_else(|| answer::refusal(&caller.request.rules, error)))
            }
        }
    }
}
