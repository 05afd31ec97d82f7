//! What is known, before the service is asked, of whether its answer will be shared.

use http::HeaderName;

use crate::flight::door::RequestTraits;
use crate::http::flow::lookup::HttpCaller;
use crate::key::Key;

impl HttpCaller {
    /// Returns whether answers are known to be shared between requests with such
    /// credentials. Without that knowledge each request goes straight to the service: a
    /// crowd must not wait for an answer that none of it may have.
    pub(super) fn may_share(&self, flight: &Key) -> bool {
        if self.request.asked.credentials.is_anonymous() || self.request.rules.config.public {
            return true;
        }
        let engine = &self.request.cache.engine;
        engine.evidence(flight).is_shared(engine.clock.now()) || self.stale_permits()
    }

    /// Returns whether the last answer is known to be for one caller alone.
    pub(super) fn is_not_shared(&self) -> bool {
        self.is_known_unshared(&self.flight_key())
    }

    /// Returns whether a leader knows by now that its answer is for one caller alone: that is noted
    /// for the flight it leads, and by what it has read of variants it may belong to another.
    pub(super) fn has_learned_not_to_share(&self, led: &Key) -> bool {
        self.request.cache.engine.lets_pass(led, self.traits()) || self.is_not_shared()
    }

    pub(super) fn is_known_unshared(&self, flight: &Key) -> bool {
        let engine = &self.request.cache.engine;
        match self.may_share(flight) {
            true => engine.lets_pass(flight, self.traits()),
            false => engine.evidence(flight).is_declined(engine.clock.now()),
        }
    }

    pub(super) fn traits(&self) -> RequestTraits {
        let span = self.request.cache.engine.settings.uncacheable_for();
        let stale = self.stale.as_ref().filter(|_| self.stale_permits());
        let shared_until = stale.map(|entry| entry.window().served_until().plus(span));
        RequestTraits { unkeyed: self.unkeyed, shared_until: shared_until.unwrap_or_default() }
    }

    /// Returns the credential because of which its answer is not shared, if
    /// that is known.
    pub(super) fn refused_credential(&self) -> Option<&HeaderName> {
        let name = self.request.credential.as_ref()?;
        (!self.may_share(&self.flight_key())).then_some(name)
    }

    /// Returns whether the stored response permits sharing. That it may answer
    /// this request is not enough, if it came from a request without credentials.
    fn stale_permits(&self) -> bool {
        let stored = self.stale.as_ref().and_then(|entry| entry.value.response());
        stored.is_some_and(|stored| stored.facts.permits.contains(self.request.asked.credentials))
    }
}
