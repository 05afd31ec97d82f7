//! A request that found nothing fresh: it waits, leads or goes alone.

use std::sync::Arc;

use http::{Request, Response};
use http_body::Body;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::cache::state::Lookup;
use crate::entry::ComputationStart;
use crate::error::Error;
use crate::flight::door::{self, AloneReason, Caller, ForwardPlace, Lead, PlaceForOne, RunOutcome};
use crate::http::body::{ResponseBody, SourceBody};
use crate::http::flow::OriginService;
use crate::http::flow::answer::{self, Provenance, answered};
use crate::http::flow::error_response::OriginFailure;
use crate::http::flow::fill::ArrivalTime;
use crate::http::flow::forwarded;
use crate::http::flow::lead::OriginOutcome;
use crate::http::flow::lookup::{ClientRequest, HttpCaller};
use crate::http::flow::origin_call::{OriginAnswer, OriginRequest};
use crate::http::flow::refresh::refresh;
use crate::http::flow::unkeyed::unkeyed_fields;
use crate::http::flow::work::HttpWork;
use crate::http::rules::decline_reason::is_failure;
use crate::http::rules::request::{BypassReason, RequestMethod, Wishes};
use crate::http::rules::shape::{Shape, ask_for_the_whole};
use crate::http::stored::response::{StoredEntry, StoredResponse};
use crate::mode::Mode;
use crate::observe::{Observe, Occurrence};
use crate::outcome::CacheOutcome;

pub(super) async fn serve<S, Q, B>(
    mut caller: HttpCaller,
    look: Lookup<StoredResponse>,
    service: S,
    request: Request<Q>,
) -> Result<Response<ResponseBody<B>>, S::Error>
where
    S: OriginService<Q, B>,
    Q: Body + Send + 'static,
    B: SourceBody,
{
    let look = match look {
        Lookup::Unvouched(_) => Box::pin(caller.look_vouched()).await,
        look => look,
    };
    let soft = caller.wait_softly();
    let (entry, outcome) = match look {
        Lookup::Fresh(entry) | Lookup::Early(entry) => (entry, CacheOutcome::Hit),
        Lookup::Stale(entry) | Lookup::Unvouched(entry)
            if !caller.request.wishes.no_store && soft.is_none() =>
        {
            (entry, CacheOutcome::Stale)
        }
        Lookup::Stale(entry) | Lookup::Unvouched(entry) => {
            caller.stale = Some(entry);
            return answer_in_time(caller, service, request, soft).await;
        }
        Lookup::Miss(stale) => {
            caller.stale = stale;
            return answer_in_time(caller, service, request, soft).await;
        }
    };
    let answer = answered(&caller, &entry, outcome);
    refresh(caller, &entry, service, request);
    Ok(answer)
}

/// Answers a request that found nothing fresh; from `soft` on with something stale, if that
/// may be served. A leader's work goes on, as for a client that hangs up.
async fn answer_in_time<S, Q, B>(
    mut caller: HttpCaller,
    service: S,
    request: Request<Q>,
    soft: Option<Instant>,
) -> Result<Response<ResponseBody<B>>, S::Error>
where
    S: OriginService<Q, B>,
    Q: Body + Send + 'static,
    B: SourceBody,
{
    let late = soft.map(|limit| {
        let asks_in = Arc::new(Mutex::new(caller.key.clone()));
        Arc::make_mut(&mut caller.request).asks_in = Some(Arc::clone(&asks_in));
        (limit, HttpCaller::new(Arc::clone(&caller.request), caller.forward), asks_in)
    });
    let answer = HttpWork::new(caller, service, request).resolve();
    let Some((limit, late, asks_in)) = late else { return answer.await };
    let mut answer = Box::pin(answer);
    if let Ok(answer) = timeout_at(limit, &mut answer).await {
        return answer;
    }
    // It may have learned since that it belongs to another flight.
    let flight = asks_in.lock().clone();
    // What is stored now: what the request has found may have been invalidated.
    match late.fallback() {
        Some(entry) => {
            late.request.cache.engine.keep_going(flight.as_bytes());
            let is_served = late.request.cache.now() < entry.window().served_until();
            let outcome = if is_served { CacheOutcome::Stale } else { CacheOutcome::StaleIfError };
            Ok(answered(&late, &entry, outcome))
        }
        None => answer.await,
    }
}

/// Returns what `Cache-Status` says of a response that one client asked for alone.
pub(crate) fn alone_detail(reason: AloneReason) -> String {
    reason.as_str().replace('_', "-")
}

impl<S, Q, B> HttpWork<S, Q, B>
where
    S: OriginService<Q, B>,
    Q: Body + Send + 'static,
    B: SourceBody,
{
    async fn resolve(mut self) -> Result<Response<ResponseBody<B>>, S::Error> {
        let engine = Arc::clone(&self.caller.request.cache.engine);
        let is_on = engine.mode() == Mode::On;
        if is_on && self.caller.request.wishes.only_if_cached {
            return Ok(answer::not_cached(&self.caller.request.rules));
        }
        if is_on && self.caller.request.wishes.no_store {
            return self.forward_uncached(BypassReason::NoStore).await;
        }
        if !is_on && !self.fills_while_observing() {
            let is_observing = engine.mode() == Mode::Observe;
            let reason = if is_observing { AloneReason::Observe } else { AloneReason::Off };
            return self.forward_unprotected(reason).await;
        }
        // What tells this request from others with the same key.
        let unkeyed = unkeyed_fields(&self.caller, self.request.headers());
        self.caller.unkeyed = unkeyed;
        // What the client needs once the leader has gone to work, and its request for a part.
        let (mut client, mut own) = (None, None);
        // Runs in the caller, before the work goes to its task: the task-local values are there.
        let lead_by = |lead: Lead<StoredResponse>, mut work: Self| {
            own = work.own_request();
            let sent_as_is = !is_on || work.forwards_conditions();
            if !sent_as_is {
                ask_for_the_whole(work.request.headers_mut());
            }
            client = Some(work.caller.for_client(sent_as_is));
            let context;
            (context, work) = work.take_context();
            door::from_task(lead.on_task(|lead| work.lead_in(context, lead)))
        };
        let outcome = if is_on {
            door::run(&engine, self, lead_by).await
        } else {
            door::run_unprotected(&engine, self, lead_by).await
        };
        match (outcome, client) {
            // The part that it asks for has not arrived yet.
            (RunOutcome::Answer(entry, outcome, work), _) if work.caller.has_to_wait(&entry) => {
                work.answer_later(&entry, outcome).await
            }
            (RunOutcome::Answer(entry, outcome, work), _) => {
                Ok(answered(&work.caller, &entry, outcome))
            }
            // It has led. The work is gone with its task; what the client needs was kept.
            (RunOutcome::Called(result, outcome), Some(client)) => match own {
                Some(own) => own.answer_part(client, result, outcome).await,
                None => client.with_stale(result.stale).receive(result.own, outcome),
            },
            (RunOutcome::Found(entry, work), _) => Ok(work.answer_found(&entry)),
            (RunOutcome::Alone(reason @ (AloneReason::Observe | AloneReason::Off), _, work), _) => {
                own.map_or(work, |own| *own).forward_unprotected(reason).await
            }
            (RunOutcome::Alone(reason, place, work), _) => {
                // On the heap, as below: layers stand inside each other, and so do the polls.
                Box::pin(work.forward_alone(reason, place)).await
            }
            // It was to lead, and got no place or no lease in time.
            (RunOutcome::Refused(error, work), Some(client)) => {
                let stale = work.and_then(|work| {
                    work.caller.adopted.clone().or_else(|| work.caller.fallback())
                });
                client
                    .with_stale(stale)
                    .receive(OriginOutcome::Nothing(error), CacheOutcome::Refused)
            }
            (RunOutcome::Refused(error, Some(work)), None)
            | (RunOutcome::Remembered(error, work), _) => {
                let error = work.caller.told_of(error);
                Ok(answer::refusal(&work.caller.request.rules, error))
            }
            (RunOutcome::Called(..) | RunOutcome::Refused(_, None), None) => {
                unreachable!("the client of a leader is kept")
            }
        }
    }

    /// Returns whether the answer may be stored while the handle observes. A request that
    /// asks for less is forwarded as it is.
    fn fills_while_observing(&mut self) -> bool {
        let ClientRequest { cache, wishes, asked, .. } = &*self.caller.request;
        if cache.engine.mode() != Mode::Observe {
            return false;
        }
        let is_plain = *wishes == Wishes::default() && asked.method == RequestMethod::Get;
        if self.caller.second_look().is_some() {
            let observer = &self.caller.request.cache.observer;
            observer.happened(Occurrence::WouldHaveAnswered);
        }
        is_plain
    }

    /// Asks for what no flight had for this client.
    async fn forward_alone(
        mut self,
        reason: AloneReason,
        place: Option<PlaceForOne<StoredResponse>>,
    ) -> Result<Response<ResponseBody<B>>, S::Error> {
        self.caller.look_again();
        if !self.caller.wants_less() {
            // Known before it is asked: the answer may change what is known.
            let caller = &self.caller;
            let detail = caller.refused_credential().map(|name| caller.credential_detail(name));
            let detail = detail.unwrap_or_else(|| alone_detail(reason));
            let came = Provenance::of(&self.caller, CacheOutcome::Alone, Some(&detail));
            return Box::pin(self.forward(came, reason, place)).await;
        }
        // A response may have come between the first look and the look into the table.
        if let Some(entry) = self.caller.second_look() {
            return Ok(answered(&self.caller, &entry, CacheOutcome::Hit));
        }
        let is_head = self.caller.request.asked.method == RequestMethod::Head;
        let reason = match self.caller.request.wishes.last_event {
            true => BypassReason::LastEventId,
            false if is_head => BypassReason::Method,
            false => BypassReason::Range,
        };
        self.forward_uncached(reason).await
    }

    /// Sends the request as it is; the answer is for this client alone.
    pub(super) async fn forward_uncached(
        self,
        reason: BypassReason,
    ) -> Result<Response<ResponseBody<B>>, S::Error> {
        self.caller.request.cache.observer.bypass_reason(reason.as_str());
        Box::pin(self.forward(Provenance::bypass(reason), AloneReason::Bypass, None)).await
    }

    /// The same while the handle observes or is switched off.
    async fn forward_unprotected(
        self,
        reason: AloneReason,
    ) -> Result<Response<ResponseBody<B>>, S::Error> {
        let detail = alone_detail(reason);
        let came = Provenance::of(&self.caller, CacheOutcome::Alone, Some(&detail));
        Box::pin(self.forward(came, reason, None)).await
    }

    /// Returns whether the client's conditions go to the service as they are: where answers
    /// are known not to be shared, a 304 for this client is all that can be saved. A
    /// stored response has conditions of its own.
    fn forwards_conditions(&self) -> bool {
        let caller = &self.caller;
        caller.request.wishes.condition && caller.stale.is_none() && caller.is_not_shared()
    }

    /// Answers with what the remote has.
    fn answer_found(self, entry: &StoredEntry) -> Response<ResponseBody<B>> {
        let Self { caller, service, request, .. } = self;
        if caller.request.cache.now() < entry.window().fresh_until {
            return answered(&caller, entry, CacheOutcome::Hit);
        }
        let answer = answered(&caller, entry, CacheOutcome::Stale);
        refresh(caller, entry, service, request);
        answer
    }

    /// Asks the service for this client alone. A failure is answered stale where that is
    /// allowed.
    async fn forward(
        self,
        came: Provenance<'_>,
        reason: AloneReason,
        place: Option<PlaceForOne<StoredResponse>>,
    ) -> Result<Response<ResponseBody<B>>, S::Error> {
        let Self { caller, service, request, .. } = self;
        let (request, forwarding) = match place {
            // It has one of the places for computations.
            Some(_) => (request, ForwardPlace::NOT_NEEDED),
            None => {
                let (parts, body) = request.into_parts();
                match forwarded::take_place(&caller.request.cache, &caller.request.rules, &parts)
                    .await
                {
                    Ok(forwarding) => (Request::from_parts(parts, body), forwarding),
                    Err(error) => return Ok(caller.refused(error)),
                }
            }
        };
        let started = ComputationStart {
            tick: caller.request.cache.now(),
            seq: caller.request.cache.engine.log.seq(),
        };
        let question = OriginRequest::new(&caller, service, request);
        let is_ours = question.is_conditional();
        let put = forwarding.drive(question.put(&caller.request.cache));
        let call = caller.request.cache.engine.compute_alone(put, place).await;
        let received = ArrivalTime::now(&caller.request.cache, started);
        let (key, took, timed_out) = (&caller.request.primary, received.delay(), call.is_err());
        let reason = reason.as_str();
        let alone = Occurrence::ComputedAlone { key, reason, took, timed_out };
        caller.request.cache.observer.happened(alone);
        let failure = match &call {
            Ok(Ok(OriginAnswer::Response(response))) if is_failure(response.status()) => {
                Some(Error::inner_error(OriginFailure::Status(response.status())))
            }
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(caller.request.rules.transport_failure(error)),
            Err(late) => Some(late.clone()),
        };
        match &failure {
            None => caller.request.cache.observer.note_success(),
            Some(failure) => {
                if let Some(entry) = caller.hides(failure) {
                    return Ok(answered(&caller, &entry, CacheOutcome::StaleIfError));
                }
            }
        }
        match call {
            Ok(Ok(reply)) => {
                let response = reply.for_one(&caller, received);
                // The condition that went out was ours: its own comes now.
                let shape = if is_ours { caller.shape_of_own(&response) } else { Shape::Whole };
                Ok(answer::from_service(&caller.request.rules, response, &shape, came))
            }
            Ok(Err(error)) => {
                let failure = caller.request.rules.transport_failure(&error);
                caller.instead_of(error, failure)
            }
            Err(late) => Ok(answer::refusal(&caller.request.rules, late)),
        }
    }
}

impl HttpCaller {
    /// Returns what is served in place of a failure outside of any flight, and reports it.
    fn hides(&self, failure: &Error) -> Option<StoredEntry> {
        let ClientRequest { cache, primary: key, .. } = &*self.request;
        self.stands_in_for(failure).inspect(|entry| {
            let stale = entry.window().stale_age(cache.now());
            let observer = &cache.observer;
            observer.happened(Occurrence::FailureHidden { key, error: failure, stale });
        })
    }

    /// Answers a request that the cache refuses to forward.
    fn refused<B: Body>(&self, error: Error) -> Response<ResponseBody<B>> {
        match self.hides(&error) {
            Some(entry) => answered(self, &entry, CacheOutcome::StaleIfError),
            None => answer::refusal(&self.request.rules, error),
        }
    }
}
