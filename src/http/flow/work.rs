//! What a request brings to the orchestrator: what it looks for in the remote, and the
//! call of the service.

use std::marker::PhantomData;
use std::sync::Arc;

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::cache::key_work::ReplacedEntry;
use crate::cache::state::Lookup;
use crate::flight::door::{
    Caller, Conclusion, Judgement, Lead, Patience, Question, Remember, Search, Work,
};
use crate::flight::request::Role;
use crate::freshness::Freshness;
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

/// What the leader's own client gets, once the service was asked.
pub(super) struct LeadResult<B: http_body::Body, E> {
    pub(super) own: OriginOutcome<B, E>,
    /// Found in the remote on the way.
    pub(super) stale: Option<StoredEntry>,
}

/// One request, and the service that answers it.
pub(super) struct HttpWork<S, Q, B> {
    pub(super) caller: HttpCaller,
    pub(super) service: S,
    pub(super) request: Request<Q>,
    body: PhantomData<fn() -> B>,
}

impl<S, Q, B> HttpWork<S, Q, B> {
    pub(super) fn new(mut caller: HttpCaller, service: S, request: Request<Q>) -> Self {
        caller.restart();
        Self { caller, service, request, body: PhantomData }
    }
}

impl HttpCaller {
    fn follow(&mut self, found: &StoredEntry) -> Judgement {
        if self.is_at_anchor() {
            self.trail.anchor = Some(Arc::clone(found));
        } else {
            remote::learn(self, found);
            self.trail.index = Some(Arc::clone(found));
        }
        let key = self.remote_key();
        if key == self.key {
            return Judgement::Useless;
        }
        self.key = key;
        Judgement::Elsewhere
    }

    fn judge_response(&mut self, found: &StoredEntry) -> Judgement {
        let replaced = self.refreshed.as_ref().map(|it| ReplacedEntry::of(&it.entry));
        if replaced.is_some_and(|replaced| replaced.is_no_older_than(found)) {
            return Judgement::Useless;
        }
        let serves = replaced.is_none();
        let (wishes, now) = (self.request.wishes, self.request.cache.now());
        let freshness = match self.request.cache.judge(found, now) {
            _ if must_be_validated(found) => Freshness::Expired,
            freshness => freshness,
        };
        let meets =
            wishes.are_met_by(found, now) && !wishes.lacks_event(&self.request.headers, found);
        let takes_stale = !self.waits_softly();
        match freshness {
            Freshness::Fresh | Freshness::Early if meets => Judgement::Serves,
            Freshness::Stale if serves && meets && wishes.demand.is_none() && takes_stale => {
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

impl Search<StoredResponse> for HttpCaller {
    fn key(&self) -> &Key {
        &self.key
    }

    fn restart(&mut self) {
        self.trail = Trail::default();
        self.key = self.remote_key();
    }

    fn copy_here(&mut self) -> Option<StoredEntry> {
        let ClientRequest { cache, rules, primary, asked, headers, wishes, .. } = &*self.request;
        let now = cache.now();
        let found = look_held(cache, rules, primary.as_bytes(), asked, headers, now);
        match wishes.judge(found, headers, now).0 {
            _ if self.refreshed.is_some() => None,
            Lookup::Fresh(entry) | Lookup::Early(entry) => Some(entry),
            Lookup::Stale(entry) if !self.waits_softly() => Some(entry),
            _ => None,
        }
        .filter(|entry| entry.is_copy_over(now))
    }

    fn way(&self) -> Box<[StoredEntry]> {
        self.trail.way()
    }

    fn signpost(&self, version: Version) -> Option<StoredEntry> {
        self.is_at_anchor().then(|| self.new_anchor(version))
    }

    fn judge(&mut self, found: &StoredEntry) -> Judgement {
        let ClientRequest { asked, headers, rules, .. } = &*self.request;
        match found.value.slot() {
            Slot::Index(_) => self.follow(found),
            Slot::Response(_) if self.is_at_anchor() => Judgement::Useless,
            Slot::Response(stored) => {
                let is_good = !is_failure(stored.status) && self.request.cache.may_stand_in(found);
                let is_selected = selects(stored, asked, headers, &rules.config);
                self.is_occupied = is_good;
                if is_selected { self.judge_response(found) } else { Judgement::Useless }
            }
        }
    }
}

impl Question<StoredResponse> for HttpCaller {
    fn patience(&mut self) -> Patience {
        let leads_only = |caller: &mut Self| caller.flight_request().role == Role::LeadOnly;
        let method = self.request.asked.method;
        match method {
            _ if self.refreshed.is_some() => Patience::GiveUp,
            // The response to a HEAD is stored nowhere: the lease is for a process that may
            // store one.
            RequestMethod::Head => Patience::Apart,
            // What another process computes may have begun too early: the lease is for a process
            // that may store its result.
            _ if self.reads_fresh() => Patience::GoOn,
            // The flight that it has left has the lease, until its body is complete.
            _ if self.has_left => Patience::GoOn,
            // The remote has one lock for all callers. Callers whose answers are known to be
            // for them alone must not keep it from callers that share.
            _ if leads_only(self) && self.is_not_shared() => Patience::Apart,
            // Answers are not known to be shared with such credentials.
            _ if leads_only(self) => Patience::GoOn,
            RequestMethod::Get => Patience::Wait,
        }
    }

    fn prepare(&mut self, lead: &mut Lead<StoredResponse>) {
        if !self.request.asked.credentials.is_anonymous() {
            lead.keep_hold_local();
        }
        if self.refreshed.is_none() {
            // It may have waited for another response since its look.
            self.look_again();
        }
        self.restart();
    }

    fn keep_stand_in(&mut self, lead: &Lead<StoredResponse>) {
        let found = self.stand_in.take().filter(|found| self.is_news(found));
        if let Some(found) = found {
            let found = remote::adopt(self, &found, &|entry| lead.may_adopt(entry));
            self.stale = Some(Arc::clone(&found));
            self.adopted = Some(found);
        }
    }

    fn adopt(&mut self, lead: &Lead<StoredResponse>, found: StoredEntry) -> StoredEntry {
        remote::adopt(self, &found, &|entry| lead.may_adopt(entry))
    }
}

impl<S, Q, B> Work<StoredResponse> for HttpWork<S, Q, B>
where
    S: Service<Request<Q>, Response = Response<B>> + Clone,
    S::Error: 'static,
    Q: Body + 'static,
    B: SourceBody,
{
    type Question = HttpCaller;
    type Output = LeadResult<B, S::Error>;

    fn question(&mut self) -> &mut HttpCaller {
        &mut self.caller
    }

    async fn call(self, lead: Lead<StoredResponse>) -> Self::Output {
        let Self { mut caller, service, request, .. } = self;
        let stale = caller.adopted.take();
        let is_answer = caller.refreshed.is_none();
        if is_answer && caller.request.wishes.range && caller.has_learned_not_to_share(lead.key()) {
            lead.end(Conclusion::Decline(Remember::NothingOfOthers));
            return LeadResult { own: OriginOutcome::Unasked, stale };
        }
        let facts = lead.facts();
        if facts.is_second {
            caller.trail = Trail::of_way(&facts.way, caller.request.anchor.is_some());
        }
        // The first leader of the flight has looked into the remote.
        let is_occupied = caller.is_occupied || facts.is_second && facts.replaces_value;
        // Also a cache that stores nothing has gauges to set.
        caller.request.cache.tidy_from_now_on();
        let own = ask(caller, (lead, facts), is_occupied, service, request).await;
        LeadResult { own, stale }
    }
}
