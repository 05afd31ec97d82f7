//! What is remembered of a key besides its value: that it fails, that it may
//! not be stored, that its answers may be shared between credentialed callers.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::Tick;
use crate::error::Error;
use crate::flight::hold_policy::HoldPolicy;
use crate::freshness;
use crate::key::Key;

/// A failing key is forgotten this long after its last failure.
const FAILURES_REMEMBERED: Duration = Duration::from_secs(120);

#[derive(Clone, Debug, Default)]
pub(crate) struct Mark {
    failures: u32,
    panicked: bool,
    held_until: Tick,
    error: Option<Error>,
    uncacheable_until: Tick,
    /// What the last answer said of sharing between callers with credentials.
    shared: bool,
    shared_until: Tick,
    /// When the next background refresh may start: another process refreshes,
    /// or the last refreshes were declined.
    refresh_from: Tick,
    declined_refreshes: u32,
    remembered_until: Tick,
}

impl Mark {
    pub(crate) fn is_uncacheable(&self, now: Tick) -> bool {
        now < self.uncacheable_until
    }

    /// Returns whether answers are shared between callers with credentials, if
    /// that is known.
    pub(crate) fn is_shared(&self, now: Tick) -> Option<bool> {
        (now < self.shared_until).then_some(self.shared)
    }

    /// Returns how long the key is still held, and the failure behind it.
    pub(crate) fn hold(&self, now: Tick) -> Option<(Duration, Option<Error>)> {
        (now < self.held_until).then(|| (self.held_until.since(now), self.error.clone()))
    }

    /// Counts one more failure in a row and returns how many there are now.
    ///
    /// Here and below an error that is replaced goes to the caller: dropping
    /// it may run code of the user's, and the mark's shard is locked.
    pub(crate) fn count_failure(&mut self, now: Tick, error: &Error) -> (u32, Option<Error>) {
        self.failures = self.failures.saturating_add(1);
        let replaced = self.error.replace(error.clone());
        self.remember(now.plus(FAILURES_REMEMBERED));
        (self.failures, replaced)
    }

    pub(crate) fn hold_until(&mut self, until: Tick) {
        self.held_until = until;
        self.remember(until.plus(FAILURES_REMEMBERED));
    }

    /// Notes a panic and returns whether the last computation panicked too.
    pub(crate) fn count_panic(&mut self, now: Tick) -> bool {
        self.remember(now.plus(FAILURES_REMEMBERED));
        std::mem::replace(&mut self.panicked, true)
    }

    #[must_use = "to be dropped without the lock"]
    pub(crate) fn end_of_failures(&mut self) -> Option<Error> {
        self.failures = 0;
        self.panicked = false;
        self.held_until = Tick::default();
        self.error.take()
    }

    pub(crate) fn set_uncacheable(&mut self, until: Tick) {
        self.uncacheable_until = until;
        self.shared_until = Tick::default();
        self.remember(until);
    }

    /// Notes that a result was stored, or may be: what was declined before says
    /// nothing of it.
    pub(crate) fn set_storable(&mut self) {
        self.uncacheable_until = Tick::default();
        self.refresh_from = Tick::default();
        self.declined_refreshes = 0;
    }

    pub(crate) fn set_shared(&mut self, shared: bool, until: Tick) {
        self.shared = shared;
        self.shared_until = until;
        self.remember(until);
    }

    pub(crate) fn no_refresh_before(&mut self, at: Tick) {
        self.refresh_from = at;
        self.remember(at);
    }

    /// Notes that the result of a refresh may not be stored.
    pub(crate) fn pause_refreshes(&mut self, now: Tick, policy: HoldPolicy) {
        self.declined_refreshes = self.declined_refreshes.saturating_add(1);
        let pause = policy.after(self.declined_refreshes, true, freshness::sample());
        self.no_refresh_before(now.plus(pause));
        self.remember(now.plus(pause).plus(FAILURES_REMEMBERED));
    }

    /// Returns whether the last result of a refresh might not be stored.
    pub(crate) fn has_declined_refresh(&self) -> bool {
        self.declined_refreshes > 0
    }

    pub(crate) fn may_refresh(&self, now: Tick) -> bool {
        now >= self.refresh_from
    }

    fn remember(&mut self, until: Tick) {
        self.remembered_until = self.remembered_until.max(until);
    }

    fn is_idle(&self, now: Tick) -> bool {
        now >= self.remembered_until
    }
}

/// A bounded set of marks.
#[derive(Debug)]
pub(crate) struct Marks {
    by_key: HashMap<Key, Mark, foldhash::fast::RandomState>,
    max: usize,
}

impl Marks {
    pub(crate) fn new(max: usize) -> Self {
        Self { by_key: HashMap::default(), max }
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Mark> {
        // Most keys have none, and most shards: no hashing then.
        if self.by_key.is_empty() { None } else { self.by_key.get(key) }
    }

    pub(crate) fn get_mut(&mut self, key: &Key) -> Option<&mut Mark> {
        if self.by_key.is_empty() { None } else { self.by_key.get_mut(key) }
    }

    /// Returns the mark of `key`, new if there is none. At the bound an
    /// arbitrary one makes room: a lost mark costs a computation, no more.
    pub(crate) fn of(&mut self, key: &Key, now: Tick) -> &mut Mark {
        if self.by_key.len() >= self.max && !self.by_key.contains_key(key) {
            drop(self.sweep(now));
            if self.by_key.len() >= self.max
                && let Some(victim) = self.by_key.keys().next().cloned()
            {
                self.by_key.remove(&victim);
            }
        }
        self.by_key.entry(key.clone()).or_default()
    }

    /// Forgets the marks that say nothing any more; returned to be dropped
    /// without the lock.
    pub(crate) fn sweep(&mut self, now: Tick) -> Vec<Mark> {
        self.by_key.extract_if(|_, mark| mark.is_idle(now)).map(|(_, mark)| mark).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const T0: Tick = Tick::from_nanos(0);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_number_of_marks_is_bounded() {
        let mut marks = Marks::new(4);
        for n in 0..100_u32 {
            marks.of(&n.into(), T0).set_uncacheable(T0.plus(SECOND));
        }
        assert!(marks.by_key.len() <= 4);
        assert!(marks.get(&99_u32.into()).is_some(), "the newest is kept");
    }

    #[test]
    fn marks_that_say_nothing_any_more_are_swept() {
        let mut marks = Marks::new(4);
        marks.of(&"a".into(), T0).set_uncacheable(T0.plus(SECOND));
        assert_eq!(marks.sweep(T0).len(), 0);
        assert!(marks.get(&"a".into()).is_some());
        assert_eq!(marks.sweep(T0.plus(SECOND)).len(), 1);
        assert!(marks.get(&"a".into()).is_none());
    }

    #[test]
    fn a_success_ends_the_row_of_failures() {
        let mut mark = Mark::default();
        let error = Error::new(ErrorKind::Inner);
        assert_eq!(mark.count_failure(T0, &error).0, 1);
        assert_eq!(mark.count_failure(T0, &error).0, 2);
        assert!(!mark.count_panic(T0));
        assert!(mark.count_panic(T0));
        assert!(mark.end_of_failures().is_some());
        assert_eq!(mark.count_failure(T0, &error).0, 1);
        assert!(!mark.count_panic(T0));
    }
}
