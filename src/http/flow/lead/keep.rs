//! A response that may be stored: its verdict falls with the header section,
//! and its body is read while it arrives.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::response::Parts;

use crate::flight::door::{self, Conclusion, Destination, StoreChange};
use crate::http::body::{CollectEnd, Collection, Limits, ResponseBody, SharedBody, SourceBody};
use crate::http::body::{Content, collect};
use crate::http::flow::fill;
use crate::http::flow::lead::kept_stream::KeptStream;
use crate::http::flow::lead::pump::{ArrivingBody, Pump};
use crate::http::flow::lead::{Head, OriginOutcome, failed, note_kept};
use crate::http::flow::lookup::{HttpCaller, is_validated_by_each};
use crate::http::flow::remote;
use crate::http::rules::decline_reason::is_failure;
use crate::http::rules::request::RequestMethod;
use crate::http::rules::shape::Shape;
use crate::http::rules::storable::{DeclineReason, Plan, UnstoredReason};
use crate::http::rules::streams::CommentFilter;
use crate::http::stored::response::{StoredEntry, StoredResponse};
use crate::key::{Key, Tag};
use crate::lease::hold::FillTarget;
use crate::mode::Mode;

/// The recipients of a response, besides the client whose request was forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recipients {
    /// No other client.
    None,
    /// The waiters: the response is too old for later clients.
    Wave,
    /// All clients, from the store.
    All,
    /// Clients whose requests came before this one was sent; later ones validate it.
    Each,
}

impl Head {
    /// Hands the response over, and stores it once it is complete.
    pub(in crate::http) async fn keep<B: SourceBody, E>(
        self,
        response: Response<B>,
        plan: Plan,
        tags: Box<[Tag]>,
    ) -> OriginOutcome<B, E> {
        let (head, body) = response.into_parts();
        if self.caller.request.asked.method == RequestMethod::Head {
            self.share_head(&head, &plan, tags);
            let response = Response::from_parts(head, ResponseBody::inner(body));
            let stored = Err(UnstoredReason::Method);
            return OriginOutcome::Response { response, stored, why: None };
        }
        let limits = self.limits(&plan);
        let collected = collect(body, &limits).await;
        let why = match &collected.end {
            CollectEnd::Complete => {
                let mut bytes = collected.joined();
                let mut comments = self.comment_filter(&plan, &limits);
                bytes = comments.take(bytes);
                let held = comments.finish();
                if !held.is_empty() {
                    bytes = [bytes, held].concat().into();
                }
                let stored = self.fill(&head, bytes.clone(), &plan, tags);
                let response = Response::from_parts(head, ResponseBody::full(bytes));
                return OriginOutcome::Response { response, stored, why: None };
            }
            CollectEnd::Waits => return self.stream(head, collected, &plan, tags, limits),
            CollectEnd::Refused(why) => *why,
            CollectEnd::Broken(_) => DeclineReason::BrokenOff,
        };
        self.decline_as(head.status, why);
        let response = Response::from_parts(head, collected.into_body());
        OriginOutcome::Response { response, stored: Ok(()), why: Some(why) }
    }

    fn limits(&self, plan: &Plan) -> Limits {
        let rules = &self.caller.request.rules;
        let (idle, join) = (rules.config.body_idle_timeout, rules.config.body_join_timeout);
        Limits {
            bytes: rules.config.max_body,
            declared: plan.length,
            idle,
            // Each reader of a shared stream gets it from the beginning, however long it is silent.
            join: if plan.stream.is_some() { idle } else { join },
            stall: rules.config.stall_timeout,
        }
    }

    /// A cache that only observes leaves the bytes as they are.
    fn is_on(&self) -> bool {
        self.caller.request.cache.engine.mode() == Mode::On
    }

    fn comment_filter(&self, plan: &Plan, limits: &Limits) -> CommentFilter {
        let stream = plan.stream.as_ref().filter(|_| self.is_on());
        stream.map(|stream| stream.comment_filter(limits.declared)).unwrap_or_default()
    }

    /// Makes the entry, and names its recipients.
    fn entry(
        &self,
        head: &Parts,
        body: Content,
        plan: &Plan,
        tags: Box<[Tag]>,
    ) -> (StoredEntry, Recipients) {
        let Self { caller, lead, facts, received, .. } = self;
        let entry = fill::entry(caller, head, body, plan, tags, *received, facts.version);
        let longest = entry.window().useful_until();
        let is_covered = plan.is_shareable() && received.at < longest;
        let share = match received.at < entry.window().kept_until() {
            _ if plan.is_for_wave => Recipients::Wave,
            // No window covers it, or none any more.
            true if !is_covered && plan.terms.lifetime.is_zero() => Recipients::Each,
            true => Recipients::All,
            false if plan.terms.lifetime.is_zero() => Recipients::None,
            false => Recipients::Wave,
        };
        let is_shared = share != Recipients::Each && !plan.is_for_wave;
        if !caller.request.asked.credentials.is_anonymous() && is_shared {
            let least = received.at.plus(caller.request.cache.engine.settings.uncacheable_for());
            lead.note_shared(longest.max(least));
        }
        (entry, share)
    }

    /// Hands the response to a HEAD to the HEADs that wait for it. Nothing is stored: it answers
    /// no GET.
    fn share_head(self, head: &Parts, plan: &Plan, tags: Box<[Tag]>) {
        let (entry, share) = self.entry(head, Content::HeadOnly, plan, tags);
        match share {
            Recipients::Wave | Recipients::All => self.share_with_wave(entry),
            Recipients::None | Recipients::Each => self.decline_unshared(),
        }
    }

    /// Stores a whole response and hands it over, as far as it may be.
    pub(in crate::http) fn fill(
        self,
        head: &Parts,
        body: Bytes,
        plan: &Plan,
        tags: Box<[Tag]>,
    ) -> Result<(), UnstoredReason> {
        let is_complete = plan.stream.as_ref().is_none_or(|stream| stream.is_complete(&body));
        let (entry, share) = self.entry(head, Content::Whole(body), plan, tags);
        match share {
            Recipients::All | Recipients::Each if is_complete => return self.store(&entry),
            Recipients::None | Recipients::Each => self.decline_unshared(),
            Recipients::All | Recipients::Wave => self.share_with_wave(entry),
        }
        Err(if is_complete { UnstoredReason::Expired } else { UnstoredReason::Incomplete })
    }

    fn share_with_wave(self, entry: StoredEntry) {
        let status = entry.value.response().map(|stored| stored.status);
        let end = match status.filter(|status| is_failure(*status)) {
            Some(status) => failed(status, self.stale_until).with_result(entry),
            None => Conclusion::Share(entry),
        };
        self.lead.end(end);
    }

    /// Stores a whole response before it is handed over: a waiter that it does
    /// not fit looks into the index for its own variant at once.
    fn store(self, entry: &StoredEntry) -> Result<(), UnstoredReason> {
        let Self { caller, lead, .. } = self;
        let cache = Arc::clone(&caller.request.cache);
        note_kept(&cache, lead.store_at(entry, caller))
    }

    /// Hands over a response whose body arrives.
    fn stream<B: SourceBody, E>(
        self,
        head: Parts,
        collected: Collection<B>,
        plan: &Plan,
        tags: Box<[Tag]>,
        limits: Limits,
    ) -> OriginOutcome<B, E> {
        let expected = limits.declared.unwrap_or(0).max(collected.bytes);
        let Some(reserved) = self.caller.request.cache.values.arriving.reserve(expected) else {
            let (status, why) = (head.status, DeclineReason::NoRoom);
            self.decline_as(status, why);
            let response = Response::from_parts(head, collected.into_body());
            let stored = Err(UnstoredReason::Expired);
            return OriginOutcome::Response { response, stored, why: Some(why) };
        };
        let (body, feed) = SharedBody::new(limits.declared, reserved);
        let stream = plan.stream.as_ref().filter(|_| self.is_on());
        let heartbeat = stream.and_then(|stream| stream.heartbeat(limits.declared));
        let content = Content::Arriving(Arc::clone(&body), heartbeat);
        let (entry, share) = self.entry(&head, content, plan, tags);
        if share == Recipients::None {
            self.decline_unshared();
            let response = Response::from_parts(head, collected.into_body());
            let stored = Err(UnstoredReason::Expired);
            return OriginOutcome::Response { response, stored, why: None };
        }
        let stored = match share {
            Recipients::Wave | Recipients::None => Err(UnstoredReason::Expired),
            _ if !self.lead.may_store(&entry) => Err(UnstoredReason::Invalidated),
            Recipients::All | Recipients::Each => Ok(()),
        };
        let scope = self.lead.scope();
        let cache = Arc::clone(&self.caller.request.cache);
        // Before anything can be freed.
        // A part is cut out of the bytes alone.
        let (shape, waits) = self.caller.shape_of(head.status, &head.headers, None);
        let of_own = heartbeat.filter(|_| !waits && matches!(shape, Shape::Whole));
        let own = ResponseBody::live(body.reader_from_start(true), of_own, 0);
        let mut comments = self.comment_filter(plan, &limits);
        for data in collected.so_far.into_iter().filter_map(|frame| frame.into_data().ok()) {
            let data = comments.take(data);
            if !data.is_empty() {
                // There is room: it is reserved.
                feed.push(data);
            }
        }
        let arrival = match share {
            Recipients::All | Recipients::Each => {
                let stream = plan.stream.clone().map(|it| KeptStream::new(it, &feed, &limits));
                Some(self.arrive(&entry, head.status, stream))
            }
            Recipients::Wave | Recipients::None => {
                self.share_with_wave(entry);
                None
            }
        };
        let source = (collected.rest, comments);
        let pump = Pump::new(arrival, feed, source, limits, Arc::clone(&cache));
        cache.engine.go_on(door::within(scope, pump.run()));
        OriginOutcome::Response { response: Response::from_parts(head, own), stored, why: None }
    }

    /// Publishes an entry whose body arrives.
    fn arrive(
        self,
        entry: &StoredEntry,
        status: http::StatusCode,
        stream: Option<KeptStream>,
    ) -> ArrivingBody {
        let Self { caller, lead, stale_until, .. } = self;
        let is_for_each = is_validated_by_each(entry);
        let arrival = lead.arrive(Arc::clone(entry), caller, |caller, allowed| {
            fill::announce(caller, entry, allowed);
            // From now on requests of this kind may be expected elsewhere.
            (!is_for_each).then(|| caller.expected_flight_key())
        });
        ArrivingBody { arrival, status, stale_until, stream }
    }
}

impl Destination<StoredResponse> for HttpCaller {
    fn store(
        &self,
        entry: &StoredEntry,
        allowed: &dyn Fn() -> bool,
    ) -> StoreChange<StoredResponse> {
        fill::store(self, entry, allowed)
    }

    fn targets(&self, entry: &StoredEntry, leased: &Key) -> Vec<FillTarget<StoredResponse>> {
        remote::fill_targets(self, entry, leased)
    }

    fn unstore(&self, entry: &StoredEntry) {
        fill::unstore(self, entry);
    }
}
