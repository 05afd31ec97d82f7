//! The rules for what a caller gets: values, failures, refusals, and when.

use std::collections::BTreeSet;
use std::time::Duration;

use tower_stampede::ErrorKind;

use crate::case::How;
use crate::record::{
    Call, CallEnd, ComputationEnd, Facts, FailureFacts, Moment, Record, Source, What,
};
use crate::world::INSIDE;

/// A caller is answered this much later than the sum of the time-outs at most.
const SLACK: Duration = Duration::from_millis(10);

/// Two panics that are further apart are not in a row.
const PANICS_IN_A_ROW: Duration = Duration::from_secs(600);

impl Record {
    pub(crate) fn call_begins(
        &mut self,
        key: usize,
        how: How,
        actor: usize,
        parent: Option<usize>,
    ) -> usize {
        let asked = self.now();
        let number = self.calls.len();
        self.note(asked, format_args!("call {number} of caller {actor} begins: {how:?} key {key}"));
        if let Some(parent) = parent {
            self.computations[parent].asks += 1;
        }
        let is_any_running = self.computations.iter().any(|one| one.ended.is_none());
        if actor == INSIDE && how != How::Get && is_any_running {
            // Polled once inside a callback, which does not wait for it: it may have been lent
            // the place of the computation that called back.
            self.deserted += 1;
        }
        let jumped = self.jumped;
        let (own, ended, dropped) = (None, None, false);
        self.calls.push(Call { key, how, actor, parent, asked, jumped, own, ended, dropped });
        number
    }

    pub(crate) fn call_ends(&mut self, number: usize, end: &CallEnd) {
        let now = self.now();
        self.note(now, format_args!("call {number} ends: {end:?}"));
        let call = self.calls[number].clone();
        match end {
            CallEnd::Value(facts) => {
                self.check_value(number, &call, facts, now);
                self.check_duration(number, &call, now);
            }
            CallEnd::Nothing => {
                self.check_nothing(number, &call, now);
                self.check_duration(number, &call, now);
            }
            CallEnd::Refused(kind, failure) => {
                self.check_refusal(number, &call, *kind, *failure, now);
                self.check_duration(number, &call, now);
            }
            CallEnd::Panicked => self.check_panic(number, &call),
            CallEnd::Dropped => {}
        }
        let ended = &mut self.calls[number];
        ended.ended = Some(now);
        ended.dropped = matches!(end, CallEnd::Dropped);
        if let Some(parent) = call.parent {
            self.computations[parent].asks -= 1;
            // Its place may be lent to what goes on.
            let goes_on = self
                .computations
                .iter()
                .any(|one| one.key == call.key && one.ended.is_none() && one.call != number);
            let own_goes_on = call.own.is_some_and(|own| self.computations[own].ended.is_none());
            let has_not_begun = call.own.is_none() && matches!(end, CallEnd::Dropped);
            if goes_on || own_goes_on || has_not_begun {
                self.deserted += 1;
            }
        }
    }

    fn check_value(&mut self, number: usize, call: &Call, facts: &Facts, now: Moment) {
        let is_own = facts.source == Source::Call(number);
        let detail = |what: &str| format!("call {number}: {what}: {facts:?}, {call:?}");
        if facts.key != call.key {
            self.violate("a caller gets values of its key only", detail("another key"));
        }
        if facts.do_not_store && !is_own {
            self.violate("what is not to be stored goes to its own caller only", detail("shared"));
        }
        if call.how == How::Refresh && facts.begun.is_before(call.asked) {
            self.violate(
                "a refresh means a computation that begins after the call",
                detail("older"),
            );
        }
        if !is_own && self.is_not_on_since(call.asked) {
            self.violate("a cache that is not on answers no caller", detail("another call's"));
        }
        self.check_cuts(call, facts, &detail);
        // User code may ask between the end of a computation and its verdict.
        let is_within = call.actor == INSIDE && call.asked.at == facts.ended.at;
        if facts.ended.is_before(call.asked) && !is_within {
            self.check_window(call, facts, now, &detail);
            self.check_no_wait(call, facts, now, &detail);
            self.check_youth(call, facts, now, &detail);
        }
    }

    /// A value that was ended before the caller asked must not reach it.
    fn check_cuts(&mut self, call: &Call, facts: &Facts, detail: &dyn Fn(&str) -> String) {
        let ends_it = |(number, cut): &(usize, &crate::record::Cut)| {
            let is_over = cut.ended.is_some_and(|ended| ended.is_before(call.asked));
            is_over
                && cut.what.concerns(facts.key, facts.tagged)
                && match cut.what {
                    What::Put(_) => {
                        facts.source != Source::Put(*number)
                            && cut.ended.is_some_and(|ended| facts.begun.is_before(ended))
                    }
                    What::Stale(_) => {
                        facts.begun.is_before(cut.begun) && cut.begun.is_before(facts.ended)
                    }
                    What::Key(_) | What::Tag | What::All => facts.begun.is_before(cut.begun),
                }
        };
        let Some((_, cut)) = self.cuts.iter().enumerate().find(ends_it) else { return };
        let rule = match cut.what {
            What::Put(_) => "after a put no caller gets an older value",
            What::Stale(_) => "after a mark no caller gets what was being computed",
            _ => "after an invalidation no caller gets an older value",
        };
        let detail = detail(&format!("after {cut:?}"));
        self.violate(rule, detail);
    }

    /// A value that was there when the caller asked comes in its windows only.
    fn check_window(
        &mut self,
        call: &Call,
        facts: &Facts,
        now: Moment,
        detail: &dyn Fn(&str) -> String,
    ) {
        let fresh_until = self.fresh_until(facts, call.asked);
        // Where it is fresh for no time, nothing is stale after it.
        let (stale_for, stale_if_error) = match facts.ttl.is_zero() {
            true => (0, 0),
            false => (self.settings.stale_for, self.settings.stale_if_error),
        };
        let stale_until = fresh_until + Duration::from_millis(stale_for);
        let error_until = fresh_until + Duration::from_millis(stale_if_error);
        if now.at < fresh_until || now.at < stale_until {
            return;
        }
        if call.how == How::Get || now.at >= error_until {
            let until = stale_until.max(error_until);
            let detail = detail(&format!("at {:?}, of use until {until:?}", now.at));
            self.violate("no value is served outside its windows", detail);
        } else if !self.has_failed_since(call, facts, now) && !self.is_circular(call) {
            let detail = detail(&format!("at {:?}, stale until {stale_until:?}", now.at));
            self.violate("`stale_if_error` is for failures", detail);
        }
    }

    /// A caller that finds a value it may have does not wait.
    fn check_no_wait(
        &mut self,
        call: &Call,
        facts: &Facts,
        now: Moment,
        detail: &dyn Fn(&str) -> String,
    ) {
        let stale_until =
            self.fresh_until(facts, call.asked) + Duration::from_millis(self.settings.stale_for);
        let jumped = self.jumped - call.jumped;
        let computes_at_once =
            call.own.is_some_and(|own| self.computations[own].begun.at <= call.asked.at + jumped);
        let has_waited = now.at > call.asked.at + jumped && !computes_at_once;
        let is_free = self.silent_ever.contains(&call.actor) || !self.is_on_since(call.asked);
        if has_waited && !is_free && call.asked.at < stale_until && !facts.ttl.is_zero() {
            let detail = detail(&format!("at {:?}, stale until {stale_until:?}", now.at));
            self.violate("a caller that finds a stale value does not wait", detail);
        }
    }

    fn has_failed_since(&self, call: &Call, facts: &Facts, now: Moment) -> bool {
        let failed = self.computations.iter().any(|one| {
            one.key == facts.key
                && one.ended.is_some_and(|(ended, end)| {
                    end != ComputationEnd::Value && facts.ended.is_before(ended)
                })
        });
        failed || self.has_waited(call, now) || self.is_full(call, now)
    }

    /// No value replaces a younger one.
    fn check_youth(
        &mut self,
        call: &Call,
        facts: &Facts,
        now: Moment,
        detail: &dyn Fn(&str) -> String,
    ) {
        let newest = &mut self.key(facts.key).newest;
        match *newest {
            Some((younger, served)) if facts.begun.is_before(younger.begun) => {
                if served.is_before(call.asked) {
                    let detail = detail(&format!("younger: {younger:?}, served at {served:?}"));
                    self.violate("an older value never replaces a younger one", detail);
                }
            }
            Some((same, _)) if same.begun == facts.begun => {}
            _ => *newest = Some((*facts, now)),
        }
    }

    fn check_nothing(&mut self, number: usize, call: &Call, now: Moment) {
        if let Some(facts) = self.certainly_stored(call, now) {
            let detail = format!("call {number} got nothing: {facts:?}, {call:?}");
            self.violate("a fresh value is found", detail);
        }
    }

    fn check_duration(&mut self, number: usize, call: &Call, now: Moment) {
        let once = self.settings.wait_timeout + self.settings.compute_timeout;
        // A fresh read may wait for an older computation first.
        let limit = if call.how == How::Refresh { once * 2 } else { once };
        let limit = Duration::from_millis(limit) + SLACK + (self.jumped - call.jumped);
        let took = now.at - call.asked.at;
        let is_free = self.silent_ever.contains(&call.actor) || self.was_off_since(call.asked);
        if took > limit && !is_free {
            let detail = format!("call {number} took {took:?}, limit {limit:?}: {call:?}");
            self.violate("a call ends within `wait_timeout` and `compute_timeout`", detail);
        }
    }

    fn check_panic(&mut self, number: usize, call: &Call) {
        let end = call.own.and_then(|own| self.computations[own].ended);
        if !matches!(end, Some((_, ComputationEnd::Panicked))) && crate::panics::is_none_noted() {
            let detail = format!("call {number}: {call:?}, {end:?}");
            self.violate("only the caller of a computation that panics does", detail);
        }
    }

    /// Returns whether a computation of the call's key waits for the computation that asks, directly
    /// or through others.
    fn is_circular(&self, call: &Call) -> bool {
        let Some(parent) = call.parent else {
            // A callback runs inside of some computation, or of none.
            return call.actor == INSIDE && self.computations.iter().any(|one| one.ended.is_none());
        };
        let running = |key: usize| {
            let all = self.computations.iter().enumerate();
            all.filter(move |(_, one)| one.key == key && one.ended.is_none()).map(|(at, _)| at)
        };
        let (mut next, mut seen) = (running(call.key).collect::<Vec<_>>(), BTreeSet::new());
        while let Some(at) = next.pop() {
            if at == parent {
                return true;
            }
            // A callback may run inside of this one, which waits then for what it asks for.
            let waits = |other: &&Call| {
                let is_of_it = other.parent == Some(at) || other.actor == INSIDE;
                is_of_it && other.ended.is_none() && !other.dropped
            };
            let keys = self.calls.iter().filter(waits).map(|other| other.key);
            next.extend(keys.flat_map(running).filter(|at| seen.insert(*at)));
        }
        false
    }

    fn check_refusal(
        &mut self,
        number: usize,
        call: &Call,
        kind: ErrorKind,
        failure: Option<FailureFacts>,
        now: Moment,
    ) {
        let detail = format!("call {number}: {kind:?} of {failure:?}, {call:?}");
        self.held += u64::from(kind == ErrorKind::Held);
        if let Some(failure) = failure
            && failure.key != call.key
        {
            self.violate("a caller gets failures of its key only", detail.clone());
        }
        let is_bypassed = self.is_not_on_since(call.asked);
        let is_own = |failure: FailureFacts| call.own == Some(failure.computation);
        if is_bypassed && !self.is_own_end(call, kind, failure) {
            self.violate("a cache that is not on refuses no caller", detail);
            return;
        }
        if matches!(kind, ErrorKind::WaitTimeout | ErrorKind::Overloaded)
            && call.own.is_none()
            && self.is_lent_a_place(number, now)
        {
            self.violate("a computation lends its place to what it asks for", detail);
            return;
        }
        match kind {
            ErrorKind::Inner => {
                let is_new = failure.is_some_and(|failure| {
                    is_own(failure)
                        || self.computations[failure.computation]
                            .ended
                            .is_some_and(|(ended, _)| call.asked.is_before(ended))
                });
                if !is_new {
                    self.violate("a failure goes to those who waited for it", detail);
                }
            }
            ErrorKind::Held if call.how == How::Refresh => {
                self.violate("a refresh does not wait for a hold", detail);
            }
            ErrorKind::Held => self.check_hold(call, detail, now),
            ErrorKind::WaitTimeout if !self.has_waited(call, now) => {
                self.violate("a caller waits for its own `wait_timeout`", detail);
            }
            ErrorKind::Overloaded if !self.has_waited(call, now) && !self.is_full(call, now) => {
                self.violate("a caller is turned away at a full bound only", detail);
            }
            ErrorKind::ComputeTimeout if !self.has_timed_out(call, now) => {
                self.violate("a time-out is of a computation that ran too long", detail);
            }
            ErrorKind::Cycle if !self.is_circular(call) => {
                self.violate("only a computation that waits for itself is told so", detail);
            }
            ErrorKind::Panicked if !self.has_panicked_twice(call) => {
                self.violate("only the second panic in a row is shared", detail);
            }
            ErrorKind::WaitTimeout
            | ErrorKind::Overloaded
            | ErrorKind::ComputeTimeout
            | ErrorKind::Cycle
            | ErrorKind::Panicked => {}
            _ => self.violate("there is no other refusal", detail),
        }
    }

    /// Returns whether a call ended by its own computation alone.
    fn is_own_end(&self, call: &Call, kind: ErrorKind, failure: Option<FailureFacts>) -> bool {
        match kind {
            ErrorKind::Inner => {
                failure.is_some_and(|failure| call.own == Some(failure.computation))
            }
            ErrorKind::ComputeTimeout => call.own.is_some() && !self.was_off_since(call.asked),
            _ => false,
        }
    }

    /// A hold lasts for `hold` after the last failure, and ends with an
    /// invalidation of the key, a `put`, or a success.
    fn check_hold(&mut self, call: &Call, detail: String, now: Moment) {
        let last = self.computations.iter().filter(|one| one.key == call.key);
        let failures = last
            .clone()
            .filter_map(|one| one.ended.filter(|(_, end)| end.holds()).map(|(ended, _)| ended));
        let Some(failed) = failures.max_by_key(|ended| ended.order) else {
            self.violate("a hold follows a failure", detail);
            return;
        };
        let hold = Duration::from_millis(self.settings.hold);
        if now.at >= failed.at + hold {
            let detail = format!("failed at {failed:?}, now {now:?}, {detail}");
            self.violate("who has no fallback is held for `hold` at most", detail);
            return;
        }
        let ending = self.cuts.iter().find(|cut| {
            matches!(cut.what, What::Key(_) | What::Put(_))
                && cut.what.concerns(call.key, false)
                && failed.is_before(cut.begun)
                && cut.ended.is_some_and(|ended| ended.is_before(call.asked))
        });
        if let Some(cut) = ending {
            let detail = format!("failed at {failed:?}, then {cut:?}, {detail}");
            self.violate("a hold ends with an invalidation of its key or a put", detail);
        }
    }

    /// Returns whether callers may be turned away: enough others wait or queue.
    fn is_full(&self, call: &Call, now: Moment) -> bool {
        let others = self.calls.iter().filter(|other| {
            let waits = other.ended.is_none() && other.asked != call.asked;
            waits || self.is_left_in_queue(other, now)
        });
        let of_key = others.clone().filter(|other| other.key == call.key).count();
        of_key >= self.settings.max_waiters as usize
            || others.count() >= self.settings.max_waiters_in_all
    }

    /// Returns whether a computation without its caller may be queued. After a jump of the
    /// clock it leaves the queue when it runs next, which is later.
    fn is_left_in_queue(&self, call: &Call, now: Moment) -> bool {
        let passed = (now.at - call.asked.at).saturating_sub(self.jumped - call.jumped);
        call.ended.is_some()
            && call.own.is_none()
            && passed <= Duration::from_millis(self.settings.wait_timeout)
    }

    fn has_timed_out(&self, call: &Call, now: Moment) -> bool {
        // The call of a batch that began while the cache was not on has no time-out of its own. Once
        // the cache is on, its callers have this bound, and the call is dropped after they know.
        let settings = &self.settings;
        let bound = Duration::from_millis(settings.wait_timeout + settings.compute_timeout);
        let is_late_batch = call.how == How::Batch
            && now.at.saturating_sub(call.asked.at) >= bound + Duration::from_secs(1)
            && self.computations.iter().any(|one| one.key == call.key && one.ended.is_none());
        is_late_batch
            || !self.silent_ever.is_empty()
            || self.jumped > Duration::ZERO
            || self.computations.iter().any(|one| {
                one.key == call.key
                    && one.ended.is_some_and(|(ended, end)| {
                        end == ComputationEnd::TimedOut && call.asked.is_before(ended)
                    })
            })
    }

    fn has_panicked_twice(&self, call: &Call) -> bool {
        let panics = self.computations.iter().filter(|one| {
            one.key == call.key && matches!(one.ended, Some((_, ComputationEnd::Panicked)))
        });
        let mut ends: Vec<_> = panics.filter_map(|one| one.ended).map(|(at, _)| at).collect();
        ends.sort_by_key(|ended| ended.order);
        ends.windows(2)
            .any(|pair| call.asked.is_before(pair[1]) && pair[1].at - pair[0].at < PANICS_IN_A_ROW)
    }
}
