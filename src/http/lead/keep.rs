//! A response that may be stored: its verdict falls with the header section,
//! and its body is read while it arrives.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::response::Parts;
use http_body::Frame;

use super::pump::{Arrival, Pump};
use super::{Head, Own};
use crate::http::body::{Collected, Limits, ResponseBody, SharedBody, SourceBody, collect};
use crate::http::lookup::{Stored, is_validated_by_each};
use crate::http::storable::{Plan, Refusal};
use crate::http::stored::Content;
use crate::http::{fill, remote};
use crate::key::Tag;

/// What is there of a body, and the rest.
type Arriving<B> = (VecDeque<Frame<Bytes>>, Pin<Box<B>>);

/// To whom a response goes besides the client whose request was forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    /// To nobody.
    Nobody,
    /// To those who wait: it is too old for others.
    Wave,
    /// To everybody, from the store.
    Everybody,
    /// To nobody before the service has confirmed it, which each asks for
    /// itself.
    Each,
}

impl Head {
    /// Hands the response over, and stores it once it is complete.
    pub(in crate::http) async fn keep<B: SourceBody, E>(
        mut self,
        response: Response<B>,
        plan: Plan,
        tags: Box<[Tag]>,
    ) -> Own<B, E> {
        let (head, body) = response.into_parts();
        self.leave_to_each(&plan);
        let limits = self.limits(&plan);
        let collected = collect(body, &limits).await;
        let why = match collected {
            Collected::Complete(bytes) => {
                let stored = self.fill(&head, bytes.clone(), &plan, tags);
                let response = Response::from_parts(head, ResponseBody::full(bytes));
                return Own::Response { response, stored, why: None };
            }
            Collected::Arriving { so_far, rest } => {
                return self.stream(head, (so_far, rest), &plan, tags, limits);
            }
            Collected::Streams { why, .. } => why,
            Collected::Broken { .. } => Refusal::BrokenOff,
        };
        self.decline_as(head.status, why);
        let response = Response::from_parts(head, collected.into_body());
        Own::Response { response, stored: false, why: Some(why) }
    }

    fn limits(&self, plan: &Plan) -> Limits {
        let rules = &self.caller.rules;
        Limits {
            bytes: rules.config.max_body,
            declared: plan.length,
            idle: rules.body_idle_timeout,
            stall: rules.stall_timeout,
        }
    }

    /// Makes the entry, and says to whom it goes.
    fn entry(&self, head: &Parts, body: Content, plan: &Plan, tags: Box<[Tag]>) -> (Stored, Share) {
        let Self { caller, leader, received, .. } = self;
        let version = leader.version();
        let entry = fill::entry(caller, head, body, plan, tags, *received, version);
        let longest = entry.window.useful_until();
        let is_covered = plan.is_shareable() && received.at < longest;
        let share = match received.at < entry.window.kept_until() {
            // No window covers it, or none any more.
            true if !is_covered && plan.terms.lifetime.is_zero() => Share::Each,
            true => Share::Everybody,
            false if plan.terms.lifetime.is_zero() => Share::Nobody,
            false => Share::Wave,
        };
        if !caller.asked.credentials.is_anonymous() && share != Share::Each {
            let least = received.at.plus(caller.cache.engine.settings.uncacheable_for);
            leader.remember_shared(true, longest.max(least));
        }
        (entry, share)
    }

    /// Stores a whole response and hands it over, as far as it may be.
    pub(in crate::http) fn fill(
        mut self,
        head: &Parts,
        body: Bytes,
        plan: &Plan,
        tags: Box<[Tag]>,
    ) -> bool {
        let (entry, share) = self.entry(head, Content::Whole(body), plan, tags);
        match share {
            Share::Nobody => self.decline_unshared(),
            Share::Wave => self.share_with_wave(entry),
            Share::Each => {
                self.leader.leave_to_each();
                return self.store(entry);
            }
            Share::Everybody => return self.store(entry),
        }
        false
    }

    fn share_with_wave(self, entry: Stored) {
        self.leader.publish(entry);
        self.leader.shared_only();
    }

    /// Stores a whole response before it is handed over: a waiter that it does
    /// not fit looks into the index for its own variant at once.
    pub(super) fn store(self, entry: Stored) -> bool {
        let Self { caller, leader, .. } = self;
        let change = fill::store(&caller, &entry, &|| leader.may_store(&entry));
        let stored = change.applied;
        leader.publish(Arc::clone(&entry));
        caller.cache.tidy_from_now_on();
        let places = remote::places(&caller, &entry);
        leader.finish(stored, places, move || fill::unstore(&caller, &entry));
        drop(change.garbage);
        stored
    }

    /// Hands over a response whose body arrives.
    fn stream<B: SourceBody, E>(
        mut self,
        head: Parts,
        (so_far, rest): Arriving<B>,
        plan: &Plan,
        tags: Box<[Tag]>,
        limits: Limits,
    ) -> Own<B, E> {
        let (body, feed) = SharedBody::new(limits.declared);
        let (entry, share) = self.entry(&head, Content::Arriving(Arc::clone(&body)), plan, tags);
        if share == Share::Nobody {
            self.decline_unshared();
            let response = Response::from_parts(head, ResponseBody::streaming(so_far, rest));
            return Own::Response { response, stored: false, why: None };
        }
        if share == Share::Each {
            self.leader.leave_to_each();
        }
        let is_kept = matches!(share, Share::Everybody | Share::Each);
        let stored = is_kept && self.leader.may_store(&entry);
        let engine = Arc::clone(&self.caller.cache.engine);
        // Before anything can be freed.
        let own = ResponseBody::reading(body.reader());
        so_far.into_iter().filter_map(|frame| frame.into_data().ok()).for_each(|d| feed.push(d));
        let arrival = match share {
            Share::Everybody | Share::Each => Some(self.arrive(entry, head.status)),
            Share::Wave | Share::Nobody => {
                self.share_with_wave(entry);
                None
            }
        };
        engine.go_on(Pump::new(arrival, feed, rest, limits).run());
        Own::Response { response: Response::from_parts(head, own), stored, why: None }
    }

    /// Publishes an entry whose body arrives.
    fn arrive(self, entry: Stored, status: http::StatusCode) -> Arrival {
        let Self { caller, leader, .. } = &self;
        fill::announce(caller, &entry, &|| leader.may_store(&entry));
        // From now on requests of this kind may be expected elsewhere.
        let key = caller.expected_flight_key();
        let is_expected = key != *leader.key() && !is_validated_by_each(&entry);
        let beside = if is_expected { leader.beside(key) } else { None };
        if let Some(beside) = &beside {
            beside.publish(Arc::clone(&entry));
        }
        leader.publish(Arc::clone(&entry));
        Arrival::new(self, entry, status, beside)
    }
}
