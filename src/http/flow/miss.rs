//! A request that found nothing fresh: it waits, leads or goes alone.

use std::sync::Arc;

use http::{HeaderMap, Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::cache::state::Lookup;
use crate::entry::ComputationStart;
use crate::error::{BoxError, Error};
use crate::flight::engine::Admission;
use crate::flight::leader::Leader;
use crate::flight::waiter::{AloneReason, Caller, Resolver, Step};
use crate::http::body::ResponseBody;
use crate::http::flow::answer::{self, Provenance};
use crate::http::flow::client::credential_detail;
use crate::http::flow::lead::{FoundElsewhere, HttpLeadOutcome, OriginOutcome, lead};
use crate::http::flow::lookup::{HttpCache, HttpCaller, StoredEntry};
use crate::http::flow::origin_call::{OriginReply, OriginRequest};
use crate::http::flow::refresh::refresh;
use crate::http::flow::remote::HttpPurpose;
use crate::http::rules::request::{BypassReason, RequestMethod, Wishes};
use crate::http::rules::shape::{Shape, ask_for_the_whole};
use crate::http::stored::fill::ArrivalTime;
use crate::http::stored::response::StoredResponse;
use crate::mode::Mode;
use crate::outcome::CacheOutcome;

pub(super) async fn serve<S, Q, B>(
    mut caller: HttpCaller,
    look: Lookup<StoredResponse>,
    service: S,
    request: Request<Q>,
) -> Result<Response<ResponseBody<B>>, S::Error>
where
    S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    Q: Body + Send + 'static,
    B: Body + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (entry, outcome) = match look {
        Lookup::Fresh(entry) | Lookup::Early(entry) => (entry, CacheOutcome::Hit),
        Lookup::Stale(entry) if !caller.wishes.no_store => (entry, CacheOutcome::Stale),
        Lookup::Stale(entry) => {
            caller.stale = Some(entry);
            return Miss { caller, service, request }.resolve().await;
        }
        Lookup::Miss(stale) => {
            caller.stale = stale;
            return Miss { caller, service, request }.resolve().await;
        }
    };
    let answer = answered(&caller, &entry, outcome);
    refresh(caller, &entry, service, request);
    Ok(answer)
}

/// Returns how much of a stored response a request gets. Only one that asks
/// for less costs a reading of the clock.
#[inline]
pub(super) fn shape_of(
    cache: &HttpCache,
    wishes: Wishes,
    headers: &HeaderMap,
    entry: &StoredEntry,
) -> Shape {
    let stored = entry.value.response().filter(|_| wishes.is_shaped());
    let Some(stored) = stored else { return Shape::Whole };
    let (length, now) = (stored.body.length(), cache.engine.clock.wall());
    Shape::of(wishes, headers, stored.status, &stored.headers, length, now)
}

pub(super) fn answered<B: Body>(
    caller: &HttpCaller,
    entry: &StoredEntry,
    outcome: CacheOutcome,
) -> Response<ResponseBody<B>> {
    let (method, now) = (caller.asked.method, caller.cache.now());
    let shape = shape_of(&caller.cache, caller.wishes, &caller.headers, entry);
    let status = || answer::status(&caller.rules, entry, outcome, caller.forward, now);
    let mut response = answer::from_entry(&caller.rules, entry, method, shape, status, now);
    let is_said = outcome != CacheOutcome::Hit || caller.rules.config.outcome_on_hits;
    // A refusal has said so already.
    if is_said && response.extensions().is_empty() {
        response.extensions_mut().insert(outcome);
    }
    response
}

/// A request that has to wait, lead or go alone.
struct Miss<S, Q> {
    caller: HttpCaller,
    service: S,
    request: Request<Q>,
}

impl<S, Q, B> Miss<S, Q>
where
    S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    Q: Body + Send + 'static,
    B: Body + Send + 'static,
    B::Error: Into<BoxError>,
{
    async fn resolve(mut self) -> Result<Response<ResponseBody<B>>, S::Error> {
        let engine = Arc::clone(&self.caller.cache.engine);
        if engine.mode() != Mode::On {
            return self.off_duty().await;
        }
        if self.caller.wishes.only_if_cached {
            return Ok(answer::not_cached(&self.caller.rules));
        }
        if self.caller.wishes.no_store {
            return self.go_past(BypassReason::NoStore).await;
        }
        let mut ticket = Resolver::new(&engine, engine.log.seq());
        match ticket.resolve(&mut self.caller).await {
            Step::Answer(entry, _) if self.caller.cannot_cut(&entry) => {
                self.caller.claim = None;
                self.go_past(BypassReason::Range).await
            }
            Step::Answer(entry, outcome) => Ok(answered(&self.caller, &entry, outcome)),
            Step::Refuse(error) => {
                let error = self.caller.told_of(error);
                Ok(answer::refusal(&self.caller.rules, error))
            }
            Step::Lead(leader) => {
                if !self.forwards_conditions() {
                    ask_for_the_whole(self.request.headers_mut());
                }
                self.lead(leader, CacheOutcome::Computed).await
            }
            Step::Alone(why) => {
                let key = self.caller.flight_key();
                match self.caller.cache.place_to_go_alone(why, &key) {
                    Ok(_place) => self.go_unshared(why).await,
                    Err(error) => Ok(answer::refusal(&self.caller.rules, error)),
                }
            }
        }
    }

    /// Asks for what no flight had for this client.
    async fn go_unshared(
        mut self,
        why: AloneReason,
    ) -> Result<Response<ResponseBody<B>>, S::Error> {
        self.caller.look_again();
        if !self.caller.joins_only() {
            // Known before it is asked: the answer may change what is known.
            let detail = self.caller.refused_credential().map(credential_detail);
            let came = self.came_alone(detail.as_deref());
            return self.go_alone(came, why.as_str()).await;
        }
        // Somebody may have filled between our look and our way to the table.
        if let Some(entry) = self.caller.second_look() {
            return Ok(answered(&self.caller, &entry, CacheOutcome::Hit));
        }
        let is_head = self.caller.asked.method == RequestMethod::Head;
        self.go_past(if is_head { BypassReason::Method } else { BypassReason::Range }).await
    }

    /// Sends the request as it is; the answer is for this client alone.
    async fn go_past(self, reason: BypassReason) -> Result<Response<ResponseBody<B>>, S::Error> {
        self.caller.cache.observer.bypass_reason(reason.as_str());
        self.go_alone(Provenance::bypass(reason), "bypass").await
    }

    /// Returns whether the client's conditions go to the service as they are:
    /// where answers are known not to be shared, a 304 for this client is all
    /// that can be saved. What is stored has conditions of its own.
    fn forwards_conditions(&self) -> bool {
        let Self { caller, .. } = self;
        caller.wishes.condition && caller.stale.is_none() && caller.is_not_shared()
    }

    /// Asks the service whatever is stored, and stores where nobody else asks.
    async fn off_duty(mut self) -> Result<Response<ResponseBody<B>>, S::Error> {
        let engine = Arc::clone(&self.caller.cache.engine);
        if engine.mode() == Mode::Observe {
            if self.caller.second_look().is_some() {
                self.caller.cache.observer.would_have_answered();
            }
            let mut boarding = self.caller.boarding().without_waiting();
            boarding.despite_hold = true;
            // What asks for less goes as it is, and fills nothing.
            let is_plain = self.caller.wishes == Wishes::default();
            if is_plain && let Admission::Lead(leader) = engine.enter(&boarding, &mut None) {
                return self.lead(leader, CacheOutcome::Alone).await;
            }
        }
        let came = self.came_alone(Some("off"));
        self.go_alone(came, AloneReason::Off.as_str()).await
    }

    async fn lead(
        self,
        leader: Leader<StoredResponse>,
        outcome: CacheOutcome,
    ) -> Result<Response<ResponseBody<B>>, S::Error> {
        let Self { caller, service, request } = self;
        let mut client = caller.for_client();
        let engine = Arc::clone(&caller.cache.engine);
        let key = leader.key().clone();
        let work = lead(caller, leader, HttpPurpose::Answer, service, request);
        match engine.detached(&key, work).await {
            Ok(HttpLeadOutcome::Own { own, stale }) => {
                client.caller.stale = stale.or(client.caller.stale);
                client.receive(own, outcome)
            }
            Ok(HttpLeadOutcome::Back(back)) => {
                let FoundElsewhere { caller, service, request, found } = *back;
                Ok(Miss { caller, service, request }.answer_found(&found))
            }
            Err(_) => client.receive(OriginOutcome::shut_down(), outcome),
        }
    }

    /// Answers with what the remote has.
    fn answer_found(self, entry: &StoredEntry) -> Response<ResponseBody<B>> {
        let Self { caller, service, request } = self;
        if caller.cache.now() < entry.window.fresh_until {
            return answered(&caller, entry, CacheOutcome::Hit);
        }
        let answer = answered(&caller, entry, CacheOutcome::Stale);
        refresh(caller, entry, service, request);
        answer
    }

    /// Asks the service for this client alone. A failure is answered stale
    /// where that is allowed.
    async fn go_alone(
        self,
        came: Provenance<'_>,
        why: &'static str,
    ) -> Result<Response<ResponseBody<B>>, S::Error> {
        let Self { caller, service, request } = self;
        let limit = caller.cache.engine.settings.compute_timeout;
        let started =
            ComputationStart { tick: caller.cache.now(), seq: caller.cache.engine.log.seq() };
        let question = OriginRequest::new(&caller, service, request);
        let is_ours = question.is_conditional();
        let call = tokio::time::timeout(limit, question.put(&caller.cache)).await;
        let received = ArrivalTime::now(&caller.cache, started);
        caller.cache.observer.computed_alone(received.delay(), why);
        let failed = match &call {
            Ok(Ok(OriginReply::Response(response))) => answer::is_failure(response.status()),
            Ok(Ok(OriginReply::Confirmed(_))) => false,
            Ok(Err(_)) | Err(_) => true,
        };
        if let Some(entry) = caller.fallback().filter(|_| failed) {
            return Ok(answered(&caller, &entry, CacheOutcome::StaleIfError));
        }
        match call {
            Ok(Ok(reply)) => {
                let response = reply.for_one(&caller, received);
                let fwd_status = Some(response.status());
                // The condition that went out was ours: its own comes now.
                let shape = if is_ours { caller.shape_of_own(&response) } else { Shape::Whole };
                let came = Provenance { fwd_status, ..came };
                Ok(answer::from_service(&caller.rules, answer::shaped(response, shape), came))
            }
            Ok(Err(error)) => {
                let failure = caller.rules.transport_failure(&error);
                match caller.stands_in_for(&failure) {
                    Some(entry) => Ok(answered(&caller, &entry, CacheOutcome::StaleIfError)),
                    None => caller.instead_of(error, failure),
                }
            }
            Err(_) => {
                let error = Error::new(crate::ErrorKind::ComputeTimeout);
                Ok(answer::refusal(&caller.rules, error))
            }
        }
    }
}

impl<S, Q> Miss<S, Q> {
    fn came_alone<'a>(&self, detail: Option<&'a str>) -> Provenance<'a> {
        Provenance {
            fwd: self.caller.forward.as_str(),
            stored: false,
            collapsed: false,
            detail,
            fwd_status: None,
            outcome: CacheOutcome::Alone,
        }
    }
}
