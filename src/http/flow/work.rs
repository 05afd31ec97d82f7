//! What a request brings to the orchestrator: what it looks for in the remote, and the
//! call of the service.

use std::marker::PhantomData;
use std::sync::Arc;

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::cache::key_work::ReplacedEntry;
use crate::cache::state::Lookup;
use crate::error::Error;
use crate::flight::door::{
    Caller, Conclusion, Fit, FlightResult, Judgement, Lead, Patience, Question, Remember, Search,
    Work,
};
use crate::flight::request::{FlightRequest, Role};
use crate::freshness::{self, Freshness};
use crate::http::body::SourceBody;
use crate::http::flow::lead::{OriginOutcome, ask};
use crate::http::flow::lookup::{
    ClientRequest, HttpCaller, is_validated_by_each, look_held, must_be_validated,
};
use crate::http::flow::remote;
use crate::http::flow::trail::Trail;
use crate::http::rules::decline_reason::is_failure;
use crate::http::rules::request::RequestMethod;
use crate::http::stored::response::{Slot, StoredEntry, StoredResponse, selects};
use crate::key::Key;
use crate::lease::grant::Version;

/// After so many turns all waiters go on.
const MAX_TURNS: u32 = 8;

/// What a request wants.
#[derive(Clone, Copy, Debug)]
enum HttpPurpose {
    /// A response that answers it.
    Answer,
    /// A newer response than this one; no client waits.
    Refresh(ReplacedEntry),
}

/// What the leader's own client gets, once the service was asked.
pub(super) struct LeadResult<B: http_body::Body, E> {
    pub(super) own: OriginOutcome<B, E>,
    /// Found in the remote on the way.
    pub(super) stale: Option<StoredEntry>,
}

/// What a request asks for, and what may answer it.
pub(super) struct HttpQuestion {
    pub(super) caller: HttpCaller,
    purpose: HttpPurpose,
    /// Where it looks in the remote now.
    key: Key,
    /// Found by the search: may be served in place of a failure, or be validated.
    stand_in: Option<StoredEntry>,
    /// The same, once it is in this process.
    pub(super) stale: Option<StoredEntry>,
    /// Whether something good stands there, also what this request may not be answered
    /// with.
    is_occupied: bool,
}

/// One request, and the service that answers it.
pub(super) struct HttpWork<S, Q, B> {
    pub(super) question: HttpQuestion,
    pub(super) service: S,
    pub(super) request: Request<Q>,
    body: PhantomData<fn() -> B>,
}

impl<S, Q, B> HttpWork<S, Q, B> {
    pub(super) fn answering(caller: HttpCaller, service: S, request: Request<Q>) -> Self {
        Self::new(HttpPurpose::Answer, caller, service, request)
    }

    pub(super) fn refreshing(
        caller: HttpCaller,
        replaced: &StoredEntry,
        service: S,
        request: Request<Q>,
    ) -> Self {
        let purpose = HttpPurpose::Refresh(ReplacedEntry::of(replaced));
        Self::new(purpose, caller, service, request)
    }

    fn new(purpose: HttpPurpose, caller: HttpCaller, service: S, request: Request<Q>) -> Self {
        let question = HttpQuestion {
            key: caller.remote_key(),
            caller,
            purpose,
            stand_in: None,
            stale: None,
            is_occupied: false,
        };
        Self { question, service, request, body: PhantomData }
    }
}

impl HttpQuestion {
    fn follow(&mut self, found: &StoredEntry) -> Judgement {
        if !self.caller.is_at_anchor() {
            let max_variants = self.caller.request.rules.config.max_variants;
            remote::learn(
                &self.caller.request.cache,
                &self.caller.request.primary,
                found,
                max_variants,
            );
        }
        self.caller.follow(found);
        let key = self.caller.remote_key();
        if key == self.key {
            return Judgement::Useless;
        }
        self.key = key;
        Judgement::Elsewhere
    }

    fn judge_response(&mut self, found: &StoredEntry) -> Judgement {
        let serves = match self.purpose {
            HttpPurpose::Answer => true,
            HttpPurpose::Refresh(replaced) if replaced.is_no_older_than(found) => {
                return Judgement::Useless;
            }
            HttpPurpose::Refresh(_) => false,
        };
        let (wishes, now) = (self.caller.request.wishes, self.caller.request.cache.now());
        let freshness = match self.caller.request.cache.judge(found, now) {
            _ if must_be_validated(found) => Freshness::Expired,
            freshness => freshness,
        };
        let meets = wishes.are_met_by(found, now);
        let takes_stale = !self.caller.waits_softly();
        match freshness {
            Freshness::Fresh | Freshness::Early if meets => Judgement::Serves,
            Freshness::Stale if serves && wishes.demand.is_none() && takes_stale => {
                Judgement::Serves
            }
            Freshness::Fresh | Freshness::Early | Freshness::Stale | Freshness::StaleIfError => {
                self.stand_in = serves.then(|| Arc::clone(found));
                Judgement::Useless
            }
            Freshness::Expired => {
                let stored = found.value.response();
                let may_be_validated = stored.is_some_and(|stored| stored.validators().is_some());
                self.stand_in = may_be_validated.then(|| Arc::clone(found));
                if is_validated_by_each(found) { Judgement::ForEach } else { Judgement::Expired }
            }
        }
    }
}

impl Search<StoredResponse> for HttpQuestion {
    fn key(&self) -> &Key {
        &self.key
    }

    fn restart(&mut self) {
        self.caller.trail = Trail::default();
        self.key = self.caller.remote_key();
    }

    fn copy_here(&mut self) -> Option<StoredEntry> {
        let ClientRequest { cache, rules, primary, asked, headers, wishes, .. } =
            &*self.caller.request;
        let now = cache.now();
        let found = look_held(cache, rules, primary.as_bytes(), asked, headers, now);
        match (wishes.judge(found, now).0, &self.purpose) {
            (Lookup::Fresh(entry) | Lookup::Early(entry), HttpPurpose::Answer) => Some(entry),
            (Lookup::Stale(entry), HttpPurpose::Answer) if !self.caller.waits_softly() => {
                Some(entry)
            }
            _ => None,
        }
        .filter(|entry| entry.is_copy_over(now))
    }

    fn way(&self) -> Box<[StoredEntry]> {
        self.caller.trail.way()
    }

    fn signpost(&self, version: Version) -> Option<StoredEntry> {
        self.caller.is_at_anchor().then(|| self.caller.new_anchor(version))
    }

    fn judge(&mut self, found: &StoredEntry) -> Judgement {
        let ClientRequest { asked, headers, rules, .. } = &*self.caller.request;
        match found.value.slot() {
            Slot::Index(_) => self.follow(found),
            Slot::Response(_) if self.caller.is_at_anchor() => Judgement::Useless,
            Slot::Response(stored) => {
                let is_good =
                    !is_failure(stored.status) && self.caller.request.cache.may_stand_in(found);
                let is_selected = selects(stored, asked, headers, &rules.config);
                self.is_occupied = is_good;
                if is_selected { self.judge_response(found) } else { Judgement::Useless }
            }
        }
    }
}

impl Caller<StoredResponse> for HttpQuestion {
    fn flight_request(&mut self) -> FlightRequest {
        self.caller.flight_request()
    }

    fn turns_left_to_others(waiting: u32) -> u32 {
        // By chance, not by order: a client whose requests are never shared must not be the next
        // leader because it came early. In each turn half a waiter goes on, on the average.
        let turn = freshness::sample() * f64::from(waiting) * 2.0;
        (turn as u32 + 1).min(MAX_TURNS)
    }

    fn second_look(&mut self) -> Option<StoredEntry> {
        self.caller.second_look()
    }

    fn fits(&mut self, result: &FlightResult<'_, StoredResponse>) -> Fit {
        self.caller.fits(result)
    }

    fn wants_computation_from(&self) -> Option<u64> {
        self.caller.wants_computation_from()
    }

    fn fallback(&self) -> Option<StoredEntry> {
        self.caller.fallback()
    }

    fn fallback_for(&self, failure: &Error) -> Option<StoredEntry> {
        self.caller.stands_in_for(failure)
    }
}

impl Question<StoredResponse> for HttpQuestion {
    fn patience(&mut self) -> Patience {
        let caller = &mut self.caller;
        let leads_only = |caller: &mut HttpCaller| caller.flight_request().role == Role::LeadOnly;
        match self.purpose {
            HttpPurpose::Refresh(_) => Patience::GiveUp,
            // The response to a HEAD is stored nowhere: the lease is for a process that may
            // store one.
            HttpPurpose::Answer if caller.request.asked.method == RequestMethod::Head => {
                Patience::Apart
            }
            // What another process computes may have begun too early: the lease is for a process
            // that may store its result.
            HttpPurpose::Answer if caller.reads_fresh() => Patience::GoOn,
            // The flight that it has left has the lease, until its body is complete.
            HttpPurpose::Answer if caller.has_left => Patience::GoOn,
            // The remote has one lock for all callers. Callers whose answers are known to be
            // for them alone must not keep it from callers that share.
            HttpPurpose::Answer if leads_only(caller) && caller.is_not_shared() => Patience::Apart,
            // Answers are not known to be shared with such credentials.
            HttpPurpose::Answer if leads_only(caller) => Patience::GoOn,
            HttpPurpose::Answer => Patience::Wait,
        }
    }

    fn prepare(&mut self, lead: &mut Lead<StoredResponse>) {
        if !self.caller.request.asked.credentials.is_anonymous() {
            lead.keep_hold_local();
        }
        if matches!(self.purpose, HttpPurpose::Answer) {
            // It may have waited for another response since its look.
            self.caller.look_again();
        }
        self.restart();
    }

    fn keep_stand_in(&mut self, lead: &Lead<StoredResponse>) {
        let found = self.stand_in.take().filter(|found| self.caller.is_news(found));
        if let Some(found) = found {
            let found = remote::adopt(&self.caller, &found, &|entry| lead.may_adopt(entry));
            self.caller.stale = Some(Arc::clone(&found));
            self.stale = Some(found);
        }
    }

    fn adopt(&mut self, lead: &Lead<StoredResponse>, found: StoredEntry) -> StoredEntry {
        remote::adopt(&self.caller, &found, &|entry| lead.may_adopt(entry))
    }
}

impl<S, Q, B> Work<StoredResponse> for HttpWork<S, Q, B>
where
    S: Service<Request<Q>, Response = Response<B>> + Clone,
    S::Error: 'static,
    Q: Body + 'static,
    B: SourceBody,
{
    type Question = HttpQuestion;
    type Output = LeadResult<B, S::Error>;

    fn question(&mut self) -> &mut HttpQuestion {
        &mut self.question
    }

    async fn call(self, lead: Lead<StoredResponse>) -> Self::Output {
        let Self { question, service, request, .. } = self;
        let HttpQuestion { mut caller, purpose, stale, is_occupied, .. } = question;
        let is_answer = matches!(purpose, HttpPurpose::Answer);
        if is_answer && caller.request.wishes.range && caller.has_learned_not_to_share(lead.key()) {
            lead.end(Conclusion::Decline(Remember::NothingOfOthers));
            return LeadResult { own: OriginOutcome::Unasked, stale };
        }
        let facts = lead.facts();
        if facts.is_second {
            caller.trail = Trail::of_way(&facts.way, caller.request.anchor.is_some());
        }
        // The first leader of the flight has looked into the remote.
        let is_occupied = is_occupied || facts.is_second && facts.replaces_value;
        // Also a cache that stores nothing has gauges to set.
        caller.request.cache.tidy_from_now_on();
        let own = ask(caller, (lead, facts), is_occupied, service, request).await;
        LeadResult { own, stale }
    }
}
