//! What the last results of a key say of the next: whether a crowd gains by waiting for one.
//!
//! A result that may not be shared is the word of one request. The origin may have answered so
//! because of a field that is no part of the key, which any client may send. So it counts for the
//! requests that equal it in those fields, and for all requests only after a second, different
//! request has had such a result.
//!
//! Two different requests can come from one client, too. While a result that may be shared was
//! seen lately, what earlier crowds have seen therefore counts for equal requests only: each crowd
//! waits for two leaders of its own ([`Resolver`](crate::flight::waiter::Resolver)). The second
//! one's request equals the last request that was shared, or is chosen by chance. So a crowd costs
//! one call more for each leader that has such a result, and its size only where both had one.

use crate::clock::Tick;

/// A caller, as far as the evidence concerns it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestTraits {
    /// A hash of what its request has besides the key.
    pub(crate) unkeyed: u64,
    /// Until when the result of the key that it knows, and that may be shared, counts as seen
    /// lately.
    pub(crate) shared_until: Tick,
}

/// Which callers a result that may not be shared concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeclinedFor {
    All,
    /// Those whose requests have this hash. The others go by the [`Evidence`].
    Equal(u64),
    /// Those that the [`Evidence`] lets pass.
    ByEvidence,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Evidence {
    /// The last request whose result might not be shared, and until when that counts.
    declined: u64,
    declined_until: Tick,
    /// Until when the same of two different requests counts for all.
    all_until: Tick,
    /// The last request whose result might be shared, and until when that counts as seen lately.
    shared: u64,
    shared_until: Tick,
}

impl Evidence {
    /// Returns whether a caller gains nothing by waiting for another's result. Where the results
    /// of equal requests might be shared and might not, something else decided, such as an address:
    /// they say nothing of the next.
    pub(crate) fn lets_pass(&self, who: RequestTraits, now: Tick) -> bool {
        let is_of = self.is_of(who, now) && !self.is_like_shared(who, now);
        is_of || self.lets_all_pass(who, now)
    }

    /// Returns the same for callers of which nothing is known but what `who` has seen.
    pub(crate) fn lets_all_pass(&self, who: RequestTraits, now: Tick) -> bool {
        now < self.all_until && now >= who.shared_until && !self.is_shared(now)
    }

    /// Returns whether this request equals the last one whose result might be shared.
    pub(crate) fn is_like_shared(&self, who: RequestTraits, now: Tick) -> bool {
        self.is_shared(now) && self.shared == who.unkeyed
    }

    /// Returns whether the result of this request, or of any, will hardly be shared.
    pub(crate) fn concerns(&self, who: RequestTraits, now: Tick) -> bool {
        self.is_of(who, now) || now < self.all_until
    }

    fn is_of(&self, who: RequestTraits, now: Tick) -> bool {
        now < self.declined_until && self.declined == who.unkeyed
    }

    /// Returns whether a result that may be shared was seen lately.
    pub(crate) fn is_shared(&self, now: Tick) -> bool {
        now < self.shared_until
    }

    /// Returns whether the last result of any request might not be shared.
    pub(crate) fn is_declined(&self, now: Tick) -> bool {
        now < self.declined_until.max(self.all_until)
    }

    /// Notes, until `until`, that the result of a request may not be shared. What its caller knows
    /// counts for later callers too: by then it may be gone from the store.
    pub(crate) fn decline(&mut self, who: RequestTraits, until: Tick, now: Tick) {
        let is_second = now < self.declined_until && self.declined != who.unkeyed;
        (self.declined, self.declined_until) = (who.unkeyed, until);
        self.shared_until = self.shared_until.max(who.shared_until);
        if is_second || now < self.all_until {
            self.decline_all(who, until);
        }
    }

    /// Notes the same of all requests. What was seen before that is not extended by it.
    pub(crate) fn decline_all(&mut self, who: RequestTraits, until: Tick) {
        self.all_until = until;
        self.shared_until = self.shared_until.max(who.shared_until).min(until);
    }

    /// Notes a result that may be shared: what was declined before says nothing any more.
    pub(crate) fn share(&mut self, unkeyed: u64, until: Tick) {
        *self = Self { shared: unkeyed, shared_until: until, ..Self::default() };
    }

    pub(crate) fn is_old(&self, now: Tick) -> bool {
        !self.is_declined(now) && !self.is_shared(now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Tick = Tick::from_nanos(0);

    fn in_secs(secs: u64) -> Tick {
        NOW.plus(Duration::from_secs(secs))
    }

    fn request(unkeyed: u64) -> RequestTraits {
        RequestTraits { unkeyed, ..RequestTraits::default() }
    }

    #[test]
    fn one_declined_result_counts_for_equal_requests_and_two_different_ones_for_all() {
        let mut evidence = Evidence::default();
        evidence.decline(request(1), in_secs(30), NOW);
        evidence.decline(request(1), in_secs(30), NOW);
        assert!(evidence.lets_pass(request(1), NOW));
        assert!(!evidence.lets_pass(request(2), NOW));
        evidence.decline(request(3), in_secs(30), NOW);
        assert!(evidence.lets_pass(request(2), NOW));
        assert!(!evidence.lets_pass(request(2), in_secs(30)));
    }

    #[test]
    fn while_a_shared_result_was_seen_lately_declined_ones_count_for_equal_requests_only() {
        let mut evidence = Evidence::default();
        evidence.share(7, in_secs(100));
        for attacker in 1..=9 {
            evidence.decline(request(attacker), in_secs(30), NOW);
        }
        assert!(evidence.lets_pass(request(9), NOW), "its own");
        assert!(!evidence.lets_pass(request(99), NOW));
        assert!(evidence.is_like_shared(request(7), NOW));
    }

    #[test]
    fn what_was_shared_is_forgotten_a_span_after_it_is_declined_for_all() {
        let mut evidence = Evidence::default();
        evidence.share(7, in_secs(3600));
        for at in 0..30 {
            evidence.decline(request(at), in_secs(at + 30), in_secs(at));
        }
        assert!(!evidence.lets_pass(request(99), in_secs(30)));
        assert!(evidence.lets_pass(request(99), in_secs(31)));
        let who = RequestTraits { shared_until: in_secs(32), ..request(99) };
        assert!(!evidence.lets_pass(who, in_secs(31)), "the caller knows one itself");
    }
}
