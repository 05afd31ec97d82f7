//! The leader of an HTTP flight: from the request to the verdict.

mod keep;
mod kept_stream;
mod pump;

use std::sync::Arc;

use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use tower_service::Service;

use crate::clock::Tick;
use crate::error::Error;
use crate::flight::door::{
    self, Caller, Conclusion, FailureRule, FlightFacts, HoldRule, Kept, Lead, Remember, Successor,
};
use crate::http::body::{ResponseBody, SourceBody};
use crate::http::cache_for::CacheFor;
use crate::http::flow::error_response::OriginFailure;
use crate::http::flow::fill::{self, ArrivalTime};
use crate::http::flow::lookup::{ClientRequest, HttpCaller};
use crate::http::flow::origin_call::{OriginAnswer, OriginRequest};
use crate::http::rules::decline_reason::{ends_refreshed, is_failure, is_gone, is_of_target};
use crate::http::rules::lifetime::{Source, Times};
use crate::http::rules::request::RequestMethod;
use crate::http::rules::steering;
use crate::http::rules::storable::{Decision, DeclineReason, Plan, ResponseFacts, UnstoredReason};
use crate::http::stored::response::{HttpCache, StoredEntry, StoredResponse};
use crate::key::{Key, Tag};
use crate::observe::{Observe, Occurrence};

/// What the leader's own client gets.
pub(super) enum OriginOutcome<B: Body, E> {
    /// The service's response, complete or still arriving. Without a reason to decline it,
    /// `stored` says whether it is stored.
    Response {
        response: Response<ResponseBody<B>>,
        stored: Result<(), UnstoredReason>,
        why: Option<DeclineReason>,
    },
    /// The service answered with a failure; a stale response may be served in its place.
    Failed { response: Response<ResponseBody<B>>, stand_in: Option<StoredEntry> },
    /// The service's own error, and the failure that waiters learn of.
    Error { error: E, failure: Error },
    /// There is no response: no place, or too late.
    Nothing(Error),
    /// The service was not asked for the whole: another process knows that it is for no other
    /// client, and this one wants a part.
    Unasked,
}

/// Asks the service and leaves a verdict.
pub(super) async fn ask<S, Q, B>(
    caller: HttpCaller,
    (mut lead, facts): (Lead<StoredResponse>, FlightFacts<StoredResponse>),
    occupied: bool,
    service: S,
    request: Request<Q>,
) -> OriginOutcome<B, S::Error>
where
    S: Service<Request<Q>, Response = Response<B>> + Clone,
    S::Error: 'static,
    Q: Body + 'static,
    B: SourceBody,
{
    let fallback = caller.fallback().map(|entry| entry.window());
    let stale_until = fallback.map(|window| window.useful_until());
    lead.on_panic(rule(HoldRule::Never, stale_until));
    lead.set_fallback(fallback);
    // The second transport error in a row begins a hold; the first may be a single lost
    // connection.
    let transport = rule(HoldRule::After(2), stale_until);
    let question = OriginRequest::new(&caller, service, request);
    match lead.compute(question.put(&caller.request.cache)).await {
        Err(timeout) => {
            lead.end(Conclusion::Fail { error: timeout.clone(), rule: transport, result: None });
            OriginOutcome::Nothing(timeout)
        }
        Ok(Err(error)) => {
            let failure = caller.request.rules.transport_failure(&error);
            let stale_until = caller.stands_in_until(&failure);
            if stale_until.is_some() && caller.fallback().is_none() {
                // What may be served here, other processes may not know of.
                lead.keep_hold_local();
            }
            let rule = rule(HoldRule::After(2), stale_until);
            let end = Conclusion::Fail { error: failure.clone(), rule, result: None };
            // A single lost connection fails one client, and not its crowd.
            lead.pass_on_or_end(stale_until.is_none().then_some(Successor::Any), end);
            OriginOutcome::Error { error, failure }
        }
        Ok(Ok(reply)) => {
            lead.has_head();
            // A body may ask this application for other pages, too.
            let scope = lead.scope();
            let received = ArrivalTime::now(&caller.request.cache, facts.started);
            let times = received.times();
            let head = Head { caller, lead, facts, received, stale_until, occupied };
            match reply {
                OriginAnswer::Response(response) => {
                    door::within(scope, head.decide(response, times)).await
                }
                OriginAnswer::Confirmed(confirmed) => head.confirm(confirmed, times),
            }
        }
    }
}

/// While a stale response can be served, every failure begins a hold.
fn rule(hold: HoldRule, stale_until: Option<Tick>) -> FailureRule {
    let hold = if stale_until.is_some() { HoldRule::After(1) } else { hold };
    FailureRule { hold, stale_until, each_computes: false }
}

/// A leader whose response has its header section.
pub(super) struct Head {
    pub(super) caller: HttpCaller,
    pub(super) lead: Lead<StoredResponse>,
    pub(super) facts: FlightFacts<StoredResponse>,
    pub(super) received: ArrivalTime,
    pub(super) stale_until: Option<Tick>,
    /// The remote has a usable response in the place where this one would go.
    pub(super) occupied: bool,
}

impl Head {
    async fn decide<B: SourceBody, E>(
        self,
        mut response: Response<B>,
        times: Times,
    ) -> OriginOutcome<B, E> {
        let cache_for = CacheFor::take_from(response.extensions_mut());
        let tags = match self.tags(response.headers(), cache_for.as_ref()) {
            Ok(tags) => tags,
            Err(why) => return self.decline(response, why),
        };
        let (head, body) = response.into_parts();
        let (status, length) = (head.status, body.size_hint().exact());
        let ClientRequest { asked, rules, .. } = &*self.caller.request;
        let (parts, cache_for, config) = (&head, cache_for.as_ref(), &rules.config);
        let facts = ResponseFacts { asked, parts, length, cache_for, config, times };
        let decision = self.judge(facts);
        let shareable = || facts.judge_unstored();
        let shareable = (is_error(status) || is_gone(status)).then(shareable).flatten();
        let response = Response::from_parts(head, body);
        let why = match decision {
            Ok(plan) if !is_failure(status) && fill::is_refused(&self.caller, &plan) => {
                DeclineReason::Coding
            }
            // A failure that may be stored is stored, unless it would replace a usable
            // response.
            Ok(plan)
                if !is_failure(status)
                    || plan.is_chosen() && !self.would_replace_something_good(&plan) =>
            {
                return self.keep_chosen(response, plan, tags).await;
            }
            Ok(_) => DeclineReason::Status,
            Err(why) => why,
        };
        self.leave_unstored(response, why, shareable.map(|plan| (plan, tags))).await
    }

    /// Answers with a response that is not stored. It may end the stored one.
    async fn leave_unstored<B: SourceBody, E>(
        mut self,
        response: Response<B>,
        why: DeclineReason,
        shareable: Option<(Plan, Box<[Tag]>)>,
    ) -> OriginOutcome<B, E> {
        let (status, is_get) =
            (response.status(), self.caller.request.asked.method == RequestMethod::Get);
        let refreshed = self.caller.refreshed.as_ref();
        if refreshed.is_some_and(|it| it.is_for_all && ends_refreshed(status, why)) {
            return self.end_refreshed(response, why).await;
        }
        // One client's own request may have fields that are not in the key, so only what would be
        // shared counts.
        if is_gone(status) && shareable.is_some() && is_get {
            self.end_stored().await;
        }
        if is_error(status) {
            self.answer_error(response, why, shareable).await
        } else {
            self.decline(response, why)
        }
    }

    fn judge(&self, facts: ResponseFacts<'_>) -> Decision {
        let mut decision = match facts.asked.method {
            RequestMethod::Head => {
                self.caller.freshen(facts.parts, self.received);
                facts.judge_head()
            }
            RequestMethod::Get => facts.judge(),
        };
        if let Ok(plan) = &mut decision {
            fill::keep_beside_coded(&self.caller, plan);
        }
        decision
    }

    /// Ends the flight of a refresh whose answer ends what it was to replace. That answer is for
    /// no client: the next request leads, with all its fields.
    async fn end_refreshed<B: Body, E>(
        mut self,
        response: Response<B>,
        why: DeclineReason,
    ) -> OriginOutcome<B, E> {
        self.end_stored().await;
        self.lead.end(Conclusion::NotShared);
        let response = response.map(ResponseBody::inner);
        OriginOutcome::Response { response, stored: Ok(()), why: Some(why) }
    }

    /// Removes the response that an answer takes the place of, which is not stored itself: here
    /// and in the remote. What was stored there after the request was sent stays here.
    async fn end_stored(&mut self) {
        let Self { caller, lead, facts, .. } = self;
        let refreshed = caller.refreshed.as_ref().map(|refreshed| &refreshed.entry);
        let Some(entry) = refreshed.or(caller.stale.as_ref()) else { return };
        if !lead.is_current() {
            return;
        }
        fill::unstore(caller, entry);
        lead.discard_remote_value();
        if let Some(key) = facts.leased_key.clone() {
            caller.request.cache.remove_in_remote(key).await;
        }
    }

    /// Stores a response. An error that lives by the layer's word alone may be the fault of
    /// this one request.
    async fn keep_chosen<B: SourceBody, E>(
        self,
        response: Response<B>,
        plan: Plan,
        tags: Box<[Tag]>,
    ) -> OriginOutcome<B, E> {
        let by_layer = plan.terms.source == Source::Layer;
        let successor = successor(response.status(), None).filter(|_| by_layer);
        match self.pass_on(response.status(), successor) {
            None => own_error(response.map(ResponseBody::inner), DeclineReason::Status),
            Some(head) => head.keep(response, plan, tags).await,
        }
    }

    /// Answers with an error that is not stored. One that may be the fault of this one request
    /// goes to its client; a waiter with another request leads next. Any other goes to the
    /// clients that wait, as far as they may have it.
    async fn answer_error<B: SourceBody, E>(
        self,
        response: Response<B>,
        why: DeclineReason,
        shareable: Option<(Plan, Box<[Tag]>)>,
    ) -> OriginOutcome<B, E> {
        let status = response.status();
        let is_covered =
            is_failure(status) && (self.stale_until.is_some() || self.caller.fallback().is_some());
        let is_refresh = self.caller.refreshed.is_some();
        let concerns_all = !is_covered && !is_refresh && why != DeclineReason::Credentials;
        let why_not = shareable.is_none().then_some(why);
        let successor = successor(status, why_not).filter(|_| concerns_all);
        let Some(head) = self.pass_on(status, successor) else {
            return own_error(response.map(ResponseBody::inner), why);
        };
        match shareable.filter(|_| concerns_all) {
            Some((plan, tags)) => {
                let outcome = head.keep(response, plan, tags).await;
                match outcome {
                    OriginOutcome::Response { response, .. } => own_error(response, why),
                    outcome => outcome,
                }
            }
            None if is_failure(status) => head.fail(response, status),
            None => head.decline(response, why),
        }
    }

    /// Leaves the flight to a waiter that may lead next. Returns the leader where there is none.
    fn pass_on(self, status: StatusCode, successor: Option<Successor>) -> Option<Self> {
        let Some(successor) = successor else { return Some(self) };
        let end = if is_failure(status) {
            failed(status, self.stale_until)
        } else {
            Conclusion::Decline(Remember::Nothing)
        };
        let Self { caller, lead, facts, received, stale_until, occupied } = self;
        let lead = lead.pass_on(successor, end)?;
        Some(Self { caller, lead, facts, received, stale_until, occupied })
    }

    fn tags(
        &self,
        headers: &HeaderMap,
        cache_for: Option<&CacheFor>,
    ) -> Result<Box<[Tag]>, DeclineReason> {
        let said = cache_for.map_or(&[][..], |said| &said.tags);
        let ClientRequest { rules, group_origin, .. } = &*self.caller.request;
        let own = steering::tags(headers, said, group_origin, &rules.config)?;
        Ok(self.caller.request.tags.iter().cloned().chain(own).collect())
    }

    /// Returns whether something usable is stored already where a response
    /// would go: also what this request itself may not be answered with.
    fn would_replace_something_good(&self, plan: &Plan) -> bool {
        if self.occupied || self.stale_until.is_some() {
            return true;
        }
        let Head { caller, .. } = self;
        let found = fill::place(caller, plan);
        found.is_some_and(|entry| {
            let is_good = entry.value.response().is_none_or(|stored| !is_failure(stored.status));
            is_good && caller.request.cache.may_stand_in(&entry)
        })
    }

    fn fail<B: Body, E>(self, response: Response<B>, status: StatusCode) -> OriginOutcome<B, E> {
        // Another request may have filled the store meanwhile.
        let stand_in = self.caller.fallback();
        self.lead.end(failed(status, self.stale_until));
        OriginOutcome::Failed { response: response.map(ResponseBody::inner), stand_in }
    }

    /// Ends the flight where the response is stored for none, for a while.
    pub(super) fn decline_unshared(self) {
        self.lead.end(match self.caller.refreshed {
            Some(_) => Conclusion::DeclineRefresh(None),
            None => Conclusion::Decline(Remember::Here),
        });
    }

    /// Ends the flight without storing; the response streams through.
    fn decline<B: Body, E>(self, response: Response<B>, why: DeclineReason) -> OriginOutcome<B, E> {
        self.decline_response(response.map(ResponseBody::inner), why)
    }

    pub(super) fn decline_response<B: Body, E>(
        self,
        response: Response<ResponseBody<B>>,
        why: DeclineReason,
    ) -> OriginOutcome<B, E> {
        let status = response.status();
        self.decline_as(status, why);
        OriginOutcome::Response { response, stored: Ok(()), why: Some(why) }
    }

    fn decline_as(self, status: StatusCode, why: DeclineReason) {
        let Self { caller, lead, facts, stale_until, .. } = self;
        lead.end(caller.declined(status, why, stale_until));
        note_declined(&caller.request.cache, &facts.key, why);
    }
}

impl HttpCaller {
    /// Returns what a flight has come to whose response is not stored.
    fn declined(
        &self,
        status: StatusCode,
        why: DeclineReason,
        stale_until: Option<Tick>,
    ) -> Conclusion<StoredResponse> {
        if self.refreshed.is_some() {
            let has_failed = why == DeclineReason::BrokenOff;
            return Conclusion::DeclineRefresh(
                has_failed.then(|| Error::inner_error(OriginFailure::BrokenOff)),
            );
        }
        if is_failure(status) {
            return failed(status, stale_until);
        }
        Conclusion::Decline(match why {
            DeclineReason::BrokenOff | DeclineReason::Coding => return Conclusion::NotShared,
            DeclineReason::Credentials => Remember::Here,
            DeclineReason::NoRoom => Remember::Nothing,
            _ if !why.marks_uncacheable(status) => Remember::NothingOfOthers,
            _ if self.request.asked.credentials.is_anonymous() => Remember::Everywhere,
            // Says nothing of requests without credentials, and in the remote there is
            // one word for both.
            _ => Remember::Here,
        })
    }
}

/// Takes note of whether a response is kept.
fn note_kept(cache: &Arc<HttpCache>, kept: Kept) -> Result<(), UnstoredReason> {
    cache.tidy_from_now_on();
    match kept {
        Kept::Stored => {
            if cache.writes.count() {
                cache.observer.happened(Occurrence::NoWriteSeen);
            }
            Ok(())
        }
        Kept::Superseded => Err(UnstoredReason::Superseded),
        Kept::Invalidated => Err(UnstoredReason::Invalidated),
    }
}

fn note_declined(cache: &HttpCache, key: &Key, why: DeclineReason) {
    if why == DeclineReason::NoRoom {
        cache.observer.happened(Occurrence::BodyRefused { key });
    }
}

/// Returns the end of a flight whose response is a failure.
pub(super) fn failed(status: StatusCode, stale_until: Option<Tick>) -> Conclusion<StoredResponse> {
    let error = Error::inner_error(OriginFailure::Status(status));
    Conclusion::Fail { error, rule: rule(HoldRule::Never, stale_until), result: None }
}

fn is_error(status: StatusCode) -> bool {
    status.is_client_error() || status.is_server_error()
}

/// Returns which waiter may lead next where the service has answered with an error, which is not
/// shared for the reason `why`.
///
/// A service that has too much to do gets no further request, and "log in" is for each client
/// alone. What concerns the URI is no fault of one request.
fn successor(status: StatusCode, why: Option<DeclineReason>) -> Option<Successor> {
    match status.as_u16() {
        401 | 403 | 407 | 429 | 503 => None,
        400..600 => {
            let is_of_uri = why.map_or(is_of_target(status), |why| why.concerns_target(status));
            (!is_of_uri).then_some(Successor::OtherRequest)
        }
        _ => None,
    }
}

/// Returns an error for the client whose request was forwarded.
fn own_error<B: Body, E>(
    response: Response<ResponseBody<B>>,
    why: DeclineReason,
) -> OriginOutcome<B, E> {
    if is_failure(response.status()) {
        OriginOutcome::Failed { response, stand_in: None }
    } else {
        OriginOutcome::Response { response, stored: Ok(()), why: Some(why) }
    }
}
