//! The hold of a key whose computations fail: no caller computes it for a while.
//!
//! A hold has two ends. Callers with a stale value are served it until the later end, which
//! doubles with each failure in a row, so that a dead origin is called rarely. Callers
//! without a fallback are refused until the earlier end only, which never grows: for them
//! every second of hold is a second of errors.
//!
//! A computation may fail because of what one caller asks besides the key. So a hold is for the
//! callers whose computations have failed, until failures for several callers show that the
//! computation itself fails.
//!
//! A failure that is an answer ("not found") is remembered in the same place. It has one end
//! for all callers.
//!
//! It ends before that with a successful computation, and with everything that says
//! that the data has changed: `invalidate`, `mark_stale` and `put` of the key, and the
//! invalidation of everything or of a tag that was known before the computation. Two minutes
//! after its last end it is forgotten, and with it the number of failures in a row.
//!
//! The errors of all holds together have a bound in bytes. A hold whose error finds no room goes
//! without it; an answer is nothing but its error, and is not remembered then.

use std::time::Duration;

use crate::budget::Reservation;
use crate::clock::Tick;
use crate::error::Error;
use crate::flight::hold_policy::HoldPolicy;
use crate::freshness;
use crate::invalidation::{ASKED_NOW, InvalidationLog};
use crate::key::Tag;

/// A failing key is forgotten this long after its last failure or hold.
const REMEMBERED: Duration = Duration::from_secs(120);

#[derive(Debug, Default)]
pub(crate) struct Hold {
    failures: u32,
    /// Whose computations have failed since the last success.
    failed_for: Vec<Witness>,
    /// Whether it concerns every caller, also one whose computation has not failed.
    is_for_all: bool,
    has_panicked: bool,
    with_fallback_until: Tick,
    without_fallback_until: Tick,
    error: Option<KeptError>,
    tags: Box<[Tag]>,
    /// Number of the invalidation log when the computation began.
    seq: u64,
    remembered_until: Tick,
}

/// So many bytes may the errors take that the holds of a cache repeat.
pub(crate) const MOST_ERROR_BYTES: u64 = 4 << 20;

/// An error, and its part of the room for all.
#[derive(Debug)]
struct KeptError {
    error: Error,
    _room: Reservation,
}

/// After failures for so many different callers, the key is held for every caller: then its
/// computation is at fault, and not what one caller asks.
const WITNESSES: usize = 4;

/// A caller as far as its request may make a computation fail: its client, or a hash of what its
/// request has besides its key. Zero where callers do not differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requester(pub(crate) u64);

#[derive(Debug)]
struct Witness {
    requester: Requester,
    failures: u32,
    is_held: bool,
}

/// What a failure did to the hold of its key.
#[derive(Debug, Default)]
pub(crate) struct FailureCount {
    /// For the caller to drop without the table's lock: an error's `Drop` is the
    /// user's code.
    pub(crate) replaced: Option<Error>,
    /// For how long no caller computes; or, unless it is for all, no caller whose computation has
    /// failed.
    pub(crate) hold: Option<Duration>,
    pub(crate) is_for_all: bool,
}

/// Whether a caller can be served something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldCheck {
    /// It has, or does not know yet.
    WithFallback,
    /// It has nothing.
    WithoutFallback,
    /// It computes despite a failure: the application has asked for a computation by name.
    Ignored,
}

/// For how long a key is still held, and the failure behind it.
#[derive(Clone, Debug)]
pub(crate) struct HeldKey {
    pub(crate) rest: Duration,
    pub(crate) error: Option<Error>,
}

impl HeldKey {
    /// Returns the failure that is the answer, if it is one.
    pub(crate) fn answer(&self) -> Option<&Error> {
        self.error.as_ref().filter(|error| error.is_answer())
    }
}

/// After how many failures in a row a key is left alone for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldRule {
    Never,
    After(u32),
    /// The failure is an answer: every caller gets it for this long.
    Remember(Duration),
}

/// How the failure of a computation is treated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailureRule {
    pub(crate) hold: HoldRule,
    /// Until when the callers have something stale to be served.
    pub(crate) stale_until: Option<Tick>,
    /// Whether every waiter computes for itself.
    pub(crate) each_computes: bool,
}

impl Hold {
    /// Returns for how long a caller is held, if it is.
    pub(crate) fn check(
        &self,
        now: Tick,
        check: HoldCheck,
        requester: Requester,
        log: &InvalidationLog,
    ) -> Option<HeldKey> {
        let is_witness = |witness: &Witness| witness.requester == requester && witness.is_held;
        if !self.is_for_all && !self.failed_for.iter().any(is_witness) {
            return None;
        }
        let until = match check {
            HoldCheck::WithFallback => self.with_fallback_until,
            HoldCheck::WithoutFallback => self.without_fallback_until,
            HoldCheck::Ignored => return None,
        };
        let is_held = now < until && self.stands(log);
        let error = || self.error.as_ref().map(|kept| kept.error.clone());
        is_held.then(|| HeldKey { rest: until.since(now), error: error() })
    }

    /// Returns whether any caller without a fallback is held.
    #[cfg_attr(not(feature = "http"), allow(dead_code, reason = "HTTP's HEAD"))]
    pub(crate) fn is_begun(&self, now: Tick, log: &InvalidationLog) -> bool {
        now < self.without_fallback_until && self.stands(log)
    }

    /// Returns whether nothing says that the data has changed since.
    fn stands(&self, log: &InvalidationLog) -> bool {
        // An answer is a copy of what was read: a missed invalidation ends it.
        let is_doubted = || self.is_answer() && log.is_doubted(self.seq);
        !log.is_dead(&self.tags, self.seq, ASKED_NOW) && !is_doubted()
    }

    fn is_answer(&self) -> bool {
        self.error.as_ref().is_some_and(|kept| kept.error.is_answer())
    }

    /// Counts a failure of a computation that began at `seq`. The error is kept if there is `room`
    /// for it.
    pub(crate) fn count_failure(
        &mut self,
        (now, seq): (Tick, u64),
        requester: Requester,
        tags: &[Tag],
        (error, room): (&Error, Option<Reservation>),
        rule: FailureRule,
        policy: HoldPolicy,
    ) -> FailureCount {
        let kept = room.map(|room| KeptError { error: error.clone(), _room: room });
        let least = match rule.hold {
            HoldRule::After(least) => least,
            // Such a failure does not count towards a hold. It ends a row that does.
            HoldRule::Never => {
                return FailureCount { replaced: self.end_row(), ..FailureCount::default() };
            }
            HoldRule::Remember(_) if kept.is_none() => {
                return FailureCount { replaced: self.end_row(), ..FailureCount::default() };
            }
            HoldRule::Remember(span) => {
                let replaced = self.end_row();
                let until = now.plus(span);
                *self = Self {
                    is_for_all: true,
                    with_fallback_until: until,
                    without_fallback_until: until,
                    error: kept,
                    tags: tags.into(),
                    seq,
                    remembered_until: until,
                    ..Self::default()
                };
                return FailureCount { replaced, ..FailureCount::default() };
            }
        };
        // A row of failures: an old one is forgotten, and an answer that was remembered is none.
        let mut replaced = self.forget_if_old(now).or_else(|| self.end_answer());
        self.failures = self.failures.saturating_add(1);
        let before = std::mem::replace(&mut self.error, kept);
        replaced = before.map(|kept| kept.error).or(replaced);
        self.remember(now);
        let mut hold = None;
        if self.is_held_after(least, requester) {
            let serves_stale = rule.stale_until.is_some();
            let longest = policy.after(self.failures, serves_stale, freshness::sample());
            // The later end is for callers that are served a stale value: it comes no
            // later than the end of that value.
            let end = now.plus(longest);
            let end = rule.stale_until.map_or(end, |stale_until| end.min(stale_until));
            self.tags = tags.into();
            self.seq = seq;
            self.begin(now, end, policy);
            hold = Some(end.since(now));
        }
        FailureCount { replaced, hold, is_for_all: self.is_for_all }
    }

    /// Counts a failure for `requester`. Returns whether a hold begins by it: for this requester
    /// after `least` failures, for all after failures for several.
    fn is_held_after(&mut self, least: u32, requester: Requester) -> bool {
        let known = self.failed_for.iter().position(|known| known.requester == requester);
        if known.is_none() && self.failed_for.len() >= WITNESSES {
            // It is for all already.
            return true;
        }
        let known = known.unwrap_or(self.failed_for.len());
        if known == self.failed_for.len() {
            self.failed_for.push(Witness { requester, failures: 0, is_held: false });
        }
        let witness = &mut self.failed_for[known];
        witness.failures = witness.failures.saturating_add(1);
        witness.is_held |= witness.failures >= least;
        let is_held = witness.is_held;
        self.is_for_all |= is_held && requester == Requester::default();
        self.is_for_all |= self.failed_for.len() >= WITNESSES;
        is_held || self.is_for_all
    }

    /// Holds the key because a computation elsewhere has failed.
    #[must_use = "to be dropped without the table's lock"]
    pub(crate) fn adopt(
        &mut self,
        now: Tick,
        seq: u64,
        rest: Duration,
        policy: HoldPolicy,
    ) -> Option<Error> {
        let replaced = self.end_answer();
        self.tags = Box::default();
        self.seq = seq;
        self.is_for_all = true;
        self.begin(now, now.plus(rest), policy);
        replaced
    }

    /// Forgets an answer: what failed later says nothing of it.
    #[must_use = "to be dropped without the table's lock"]
    pub(crate) fn end_answer(&mut self) -> Option<Error> {
        if self.is_answer() { self.end_row() } else { None }
    }

    fn begin(&mut self, now: Tick, end: Tick, policy: HoldPolicy) {
        // A failure of a caller without a fallback leaves the later end as it is.
        self.with_fallback_until = self.with_fallback_until.max(end);
        self.without_fallback_until = end.min(now.plus(policy.first));
        self.remember(end);
    }

    /// Notes a panic and returns whether the computation before this one panicked too.
    pub(crate) fn count_panic(&mut self, now: Tick) -> bool {
        if self.is_old(now) {
            self.has_panicked = false;
        }
        self.remember(now);
        std::mem::replace(&mut self.has_panicked, true)
    }

    /// Returns whether the last computation panicked.
    pub(crate) fn has_panicked(&self, now: Tick) -> bool {
        self.has_panicked && !self.is_old(now)
    }

    /// Notes that the computation has not panicked, whatever else.
    pub(crate) fn end_panics(&mut self) {
        self.has_panicked = false;
    }

    /// Ends the row of failures, and the hold.
    #[must_use = "to be dropped without the table's lock"]
    pub(crate) fn end_row(&mut self) -> Option<Error> {
        std::mem::take(self).error.map(|kept| kept.error)
    }

    /// Lets go of the error, if no caller is held any more.
    pub(crate) fn take_error_if_over(&mut self, now: Tick) -> Option<Error> {
        let is_over = now >= self.with_fallback_until.max(self.without_fallback_until);
        let kept = if is_over { self.error.take() } else { None };
        kept.map(|kept| kept.error)
    }

    fn forget_if_old(&mut self, now: Tick) -> Option<Error> {
        if self.is_old(now) { self.end_row() } else { None }
    }

    fn remember(&mut self, from: Tick) {
        self.remembered_until = self.remembered_until.max(from.plus(REMEMBERED));
    }

    /// Returns whether nothing is to be remembered any more.
    pub(crate) fn is_old(&self, now: Tick) -> bool {
        now >= self.remembered_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const T0: Tick = Tick::from_nanos(1_000_000_000_000);
    const SECOND: Duration = Duration::from_secs(1);
    const POLICY: HoldPolicy = HoldPolicy { first: SECOND, longest: Duration::from_secs(60) };
    const RULE: FailureRule =
        FailureRule { hold: HoldRule::After(1), stale_until: None, each_computes: false };

    fn fail(hold: &mut Hold, now: Tick, rule: FailureRule) -> Option<Duration> {
        fail_for(hold, now, 0, rule)
    }

    fn fail_for(hold: &mut Hold, now: Tick, requester: u64, rule: FailureRule) -> Option<Duration> {
        let error = Error::new(ErrorKind::Inner);
        hold.count_failure((now, 0), Requester(requester), &[], (&error, None), rule, POLICY).hold
    }

    fn rest(hold: &Hold, now: Tick, check: HoldCheck) -> Option<Duration> {
        rest_for(hold, now, 0, check)
    }

    fn rest_for(hold: &Hold, now: Tick, requester: u64, check: HoldCheck) -> Option<Duration> {
        let log = InvalidationLog::new(10);
        hold.check(now, check, Requester(requester), &log).map(|held| held.rest)
    }

    #[test]
    fn failures_of_one_requester_hold_that_one_and_failures_of_several_hold_all() {
        let (mut hold, rule) = (Hold::default(), FailureRule { hold: HoldRule::After(2), ..RULE });
        let is_held =
            |hold: &Hold, who| rest_for(hold, T0, who, HoldCheck::WithoutFallback).is_some();
        for _ in 0..10 {
            fail_for(&mut hold, T0, 1, rule);
        }
        assert!(is_held(&hold, 1) && !is_held(&hold, 2));
        assert_eq!(fail_for(&mut hold, T0, 2, rule), None, "its first failure");
        assert!(!is_held(&hold, 2));
        fail_for(&mut hold, T0, 3, rule);
        assert!(!is_held(&hold, 5));
        assert!(fail_for(&mut hold, T0, 4, rule).is_some(), "the fourth requester");
        assert!([1, 2, 5].iter().all(|who| is_held(&hold, *who)));
        drop(hold.end_row());
        assert!(!is_held(&hold, 1), "after a success");
    }

    #[test]
    fn a_hold_grows_for_callers_with_a_fallback_only() {
        let mut hold = Hold::default();
        let stale = FailureRule { stale_until: Some(T0.plus(SECOND * 1000)), ..RULE };
        for _ in 0..6 {
            fail(&mut hold, T0, stale);
        }
        assert!(rest(&hold, T0, HoldCheck::WithFallback).unwrap() > SECOND * 20);
        assert_eq!(rest(&hold, T0, HoldCheck::WithoutFallback), Some(SECOND));
        assert_eq!(rest(&hold, T0, HoldCheck::Ignored), None);
    }

    #[test]
    fn a_hold_ends_with_what_its_callers_are_served() {
        let mut hold = Hold::default();
        let stale = FailureRule { stale_until: Some(T0.plus(SECOND / 2)), ..RULE };
        fail(&mut hold, T0, stale);
        assert_eq!(rest(&hold, T0, HoldCheck::WithFallback), Some(SECOND / 2));
    }

    #[test]
    fn failures_two_minutes_apart_are_not_in_a_row() {
        let mut hold = Hold::default();
        let second = FailureRule { hold: HoldRule::After(2), ..RULE };
        assert_eq!(fail(&mut hold, T0, second), None);
        assert_eq!(fail(&mut hold, T0.plus(REMEMBERED), second), None);
        assert!(fail(&mut hold, T0.plus(REMEMBERED), second).is_some());
    }

    #[test]
    fn panics_two_minutes_apart_are_not_in_a_row() {
        let mut hold = Hold::default();
        assert!(!hold.count_panic(T0));
        assert!(!hold.count_panic(T0.plus(REMEMBERED)));
        assert!(hold.count_panic(T0.plus(REMEMBERED)));
    }

    #[test]
    fn the_invalidation_of_a_tag_that_was_known_before_ends_the_hold() {
        let log = InvalidationLog::new(10);
        let mut hold = Hold::default();
        let error = Error::new(ErrorKind::Inner);
        let tags = [Tag::from("a")];
        let all = Requester::default();
        hold.count_failure((T0, log.seq()), all, &tags, (&error, None), RULE, POLICY);
        log.append("b".into(), T0).expect("there is room");
        assert!(hold.check(T0, HoldCheck::WithFallback, all, &log).is_some());
        log.append("a".into(), T0).expect("there is room");
        assert!(hold.check(T0, HoldCheck::WithFallback, all, &log).is_none());
    }
}
