//! What happens to a stored response that the service has confirmed.

use std::sync::Arc;

use http::{Response, StatusCode, header, response::Parts};
use http_body::Body;

use crate::http::body::{Content, ResponseBody};
use crate::http::flow::fill::{self, ArrivalTime};
use crate::http::flow::lead::{Head, OriginOutcome};
use crate::http::flow::lookup::HttpCaller;
use crate::http::flow::origin_call::{Confirmation, OriginAnswer, RenewedResponse};
use crate::http::rules::codings::Coding;
use crate::http::rules::lifetime::Times;
use crate::http::rules::request::{RequestFacts, RequestMethod};
use crate::http::rules::steering;
use crate::http::rules::storable::{DeclineReason, Plan, ResponseFacts, content_length};
use crate::http::rules::validation::merge;
use crate::http::stored::response::{CachedResponse, StoredEntry, variant_of};
use crate::invalidation::ASKED_NOW;
use crate::key::Tag;

impl Head {
    /// Judges a confirmed response from the start, as if it had come whole: it
    /// is stored again and handed over, or is removed.
    pub(super) fn confirm<B: Body, E>(
        mut self,
        confirmed: Confirmation,
        times: Times,
    ) -> OriginOutcome<B, E> {
        let renewed = confirmed.renew(times.response);
        match self.caller.judge_renewed(&renewed, times) {
            Ok((plan, tags)) => {
                // Its body came in answer to another request.
                let asked = self.caller.asked_of(&renewed.entry);
                Arc::make_mut(&mut self.caller.request).asked = asked;
                if fill::fingerprint_of(&self.caller, &plan) != variant_of(&renewed.entry) {
                    fill::unstore(&self.caller, &renewed.entry);
                }
                let stored = self.fill(&renewed.head, renewed.body.clone(), &plan, tags);
                OriginOutcome::Response { response: renewed.response(), stored, why: None }
            }
            Err(why) => {
                if ends(&renewed.entry, why) {
                    fill::unstore(&self.caller, &renewed.entry);
                    self.lead.discard_remote_value();
                }
                self.decline_response(renewed.response(), why)
            }
        }
    }
}

impl<B: Body> OriginAnswer<B> {
    /// Makes the answer to one that went alone. The stored response stays as it is:
    /// the others ask for themselves.
    pub(super) fn for_one(
        self,
        caller: &HttpCaller,
        received: ArrivalTime,
    ) -> Response<ResponseBody<B>> {
        match self {
            Self::Response(response) => {
                let (head, body) = response.into_parts();
                caller.freshen(&head, received);
                Response::from_parts(head, ResponseBody::inner(body))
            }
            Self::Confirmed(confirmed) => {
                let renewed = confirmed.renew(received.wall);
                if let Err(why) = caller.judge_renewed(&renewed, received.times())
                    && ends(&renewed.entry, why)
                {
                    fill::unstore(caller, &renewed.entry);
                }
                renewed.response()
            }
        }
    }
}

/// Returns whether a stored response that may not be stored any more is to go: not where that
/// concerns one request, by its credentials or by what a layer further in has received of it.
fn ends(entry: &StoredEntry, why: DeclineReason) -> bool {
    let stored = entry.value.response();
    match why {
        DeclineReason::Nested => false,
        DeclineReason::Credentials => stored.is_none_or(|stored| !stored.facts.from.is_anonymous()),
        _ => true,
    }
}

/// Returns as which coding an entry is selected, where codings select it.
fn coding_of(entry: &StoredEntry) -> Option<Coding> {
    let facts = &entry.value.response()?.facts;
    let list = facts.vary.as_ref()?;
    list.contains(&header::ACCEPT_ENCODING).then_some(facts.coding)
}

impl HttpCaller {
    fn judge_renewed(
        &self,
        renewed: &RenewedResponse,
        times: Times,
    ) -> Result<(Plan, Box<[Tag]>), DeclineReason> {
        let RenewedResponse { entry, head, body, cache_for, .. } = renewed;
        let asked = self.asked_of(entry);
        let (length, cache_for) = (Some(body.len() as u64), cache_for.as_ref());
        let config = &self.request.rules.config;
        let facts = ResponseFacts { asked: &asked, parts: head, length, cache_for, config, times };
        let mut plan = facts.judge()?;
        fill::keep_beside_coded(self, &mut plan);
        // The body came in answer to another request.
        plan.selected_as = coding_of(entry);
        let said = cache_for.map_or(&[][..], |said| &said.tags);
        let own = steering::tags(&head.headers, said, &self.request.group_origin, config)?;
        Ok((plan, self.tags_of(entry, &own)?))
    }

    /// Returns the request that a renewed response counts as the answer to. The body came
    /// for one request, the fields for another; so the credentials of both count.
    fn asked_of(&self, entry: &StoredEntry) -> RequestFacts {
        let from = entry.value.response().map(|stored| stored.facts.from).unwrap_or_default();
        RequestFacts {
            method: RequestMethod::Get,
            credentials: self.request.asked.credentials | from,
        }
    }

    /// Returns the tags of a renewed response: a 304 need not repeat them.
    fn tags_of(&self, entry: &StoredEntry, own: &[Tag]) -> Result<Box<[Tag]>, DeclineReason> {
        let mut tags = self.request.tags.to_vec();
        for tag in entry.tags.iter().chain(own) {
            if !tags.contains(tag) {
                tags.push(tag.clone());
            }
        }
        // And one for all groups, where it is in any.
        let most = self.request.rules.config.max_tags.saturating_add(1 + self.request.tags.len());
        if tags.len() > most { Err(DeclineReason::TooManyTags) } else { Ok(tags.into()) }
    }

    /// Brings what is stored up to date with the response to a HEAD (RFC 9111,
    /// 4.3.5).
    pub(super) fn freshen(&self, head: &Parts, received: ArrivalTime) {
        let is_head =
            self.request.asked.method == RequestMethod::Head && head.status == StatusCode::OK;
        // Beside a cookie the other fields may be for one person too.
        let is_for_all = !head.headers.contains_key(header::SET_COOKIE);
        let Some(entry) = self.stale.as_ref().filter(|_| is_head && is_for_all) else { return };
        let new = match self.freshened(entry, head, received) {
            // RFC 9111, 5.2.1.5: no part of what it brought is stored.
            Freshening::Renewed(_) if self.request.wishes.no_store => return,
            Freshening::Renewed(new) => new,
            Freshening::Stale => {
                Arc::new(entry.with_window(entry.window().stale_from(received.at)))
            }
            Freshening::Gone => return fill::unstore(self, entry),
        };
        let log = &self.request.cache.engine.log;
        let (seq, tags) = (received.started.seq, &new.tags);
        let allowed = || !log.is_doubted(seq) && !log.is_dead(tags, seq, ASKED_NOW);
        let change = self.request.cache.local.update(&fill::key_of(self, entry), |current| {
            // Another response that was stored meanwhile is newer.
            let is_same = current.is_some_and(|current| Arc::ptr_eq(current, entry));
            (is_same && allowed()).then(|| Arc::clone(&new))
        });
        change.finish();
    }

    fn freshened(&self, entry: &StoredEntry, head: &Parts, received: ArrivalTime) -> Freshening {
        let stored = entry.value.response().filter(|stored| is_about(stored, head));
        let body = stored.and_then(|stored| stored.body.whole());
        let Some((stored, body)) = stored.zip(body) else { return Freshening::Stale };
        let mut parts = head.clone();
        parts.headers = merge(&stored.headers, &head.headers, received.wall);
        let renewed = RenewedResponse::new(Arc::clone(entry), parts, body.clone());
        let (plan, tags) = match self.judge_renewed(&renewed, received.times()) {
            Ok(judged) => judged,
            Err(why) if ends(entry, why) => return Freshening::Gone,
            Err(_) => return Freshening::Stale,
        };
        if fill::fingerprint_of(self, &plan) != stored.facts.fingerprint {
            // It belongs under another key, and a HEAD fills none.
            return Freshening::Gone;
        }
        let RenewedResponse { head, body, .. } = renewed;
        let new =
            fill::entry(self, &head, Content::Whole(body), &plan, tags, received, entry.version);
        Freshening::Renewed(new)
    }
}

/// What a HEAD makes of a stored response.
enum Freshening {
    Renewed(StoredEntry),
    /// It is about another one.
    Stale,
    /// It may not be stored any more.
    Gone,
}

fn is_about(stored: &CachedResponse, head: &Parts) -> bool {
    let length = stored.body.length();
    let is_as_long = content_length(&head.headers).is_ok_and(|n| n.is_none() || n == length);
    is_as_long && stored.validators().is_some_and(|ours| ours.agree_with(&head.headers))
}
