//! What is served when the service cannot be reached (RFC 9111, 4.2.4).

use std::any::Any;

use http::Response;
use http_body::Body;

use crate::clock::Tick;
use crate::error::Error;
use crate::flight::door::Caller;
use crate::http::body::ResponseBody;
use crate::http::flow::answer;
use crate::http::flow::error_response::OriginFailure;
use crate::http::flow::lookup::HttpCaller;
use crate::http::layer::rules::Rules;
use crate::http::stored::response::StoredEntry;
use crate::mode::Mode;

impl Rules {
    /// Returns the failure that waiters learn of: never the service's own
    /// error, which belongs to its own caller.
    pub(super) fn transport_failure<E: 'static>(&self, error: &E) -> Error {
        let is_disconnected = self.disconnected.as_ref().is_none_or(|is| is(error as &dyn Any));
        Error::inner_error(match is_disconnected {
            true => OriginFailure::Disconnected,
            false => OriginFailure::Transport,
        })
    }
}

/// Returns whether a failure, or the one that a hold repeats, says that the
/// service is out of reach.
fn is_disconnected(failure: &Error) -> bool {
    failure.inner() == Some(&OriginFailure::Disconnected)
}

impl HttpCaller {
    /// Returns until when `entry` may be served while the service is out of
    /// reach; `None` if that is forbidden or not wished for.
    fn disconnected_until(&self, entry: &StoredEntry) -> Option<Tick> {
        let longest = self.request.rules.config.stale_if_disconnected;
        let stored = entry.value.response()?;
        let may_be_stale = !longest.is_zero() && stored.facts.directives.allows_stale();
        may_be_stale.then(|| entry.window().fresh_until.plus(longest))
    }

    fn serves_disconnected(&self, entry: &StoredEntry) -> bool {
        let until = self.disconnected_until(entry);
        let now = self.request.cache.now();
        let is_alive = || self.request.cache.engine.log.is_alive(entry);
        until.is_some_and(|until| now < until) && is_alive() && !self.lacks_event(entry)
    }

    /// Returns the entry that this caller has found so far, if it may be served in place
    /// of `failure`.
    pub(super) fn in_hand_for(&self, failure: &Error) -> Option<StoredEntry> {
        let serves =
            |entry: &StoredEntry| is_disconnected(failure) && self.serves_disconnected(entry);
        self.in_hand().or_else(|| self.stale.clone().filter(serves))
    }

    /// Returns what this request selects, if it may be served in place of
    /// `failure`.
    pub(super) fn stands_in_for(&self, failure: &Error) -> Option<StoredEntry> {
        self.fallback().or_else(|| {
            let is_on = self.request.cache.engine.mode() == Mode::On;
            let entry = self.stale.clone().or_else(|| self.found());
            let entry = entry.filter(|_| is_on && is_disconnected(failure))?;
            self.serves_disconnected(&entry).then_some(entry)
        })
    }

    /// Returns until when something may be served in place of `failure`.
    pub(super) fn stands_in_until(&self, failure: &Error) -> Option<Tick> {
        let entry = self.stands_in_for(failure)?;
        let longer = self.disconnected_until(&entry).filter(|_| is_disconnected(failure));
        Some(
            longer.map_or(entry.window().useful_until(), |end| {
                end.max(entry.window().useful_until())
            }),
        )
    }

    /// Returns the result for the client whose own request failed: the service's
    /// error, unless our own response has to take its place.
    pub(super) fn instead_of<B: Body, E>(
        &self,
        error: E,
        failure: Error,
    ) -> Result<Response<ResponseBody<B>>, E> {
        let told = self.told_of(failure);
        let is_ours = told.inner() == Some(&OriginFailure::MustRevalidate);
        if is_ours { Ok(answer::refusal(&self.request.rules, told)) } else { Err(error) }
    }

    /// Returns the failure as this caller learns it: where the stored response
    /// must not be served stale, only a 504 is allowed (RFC 9111,
    /// 5.2.2.2).
    pub(super) fn told_of(&self, failure: Error) -> Error {
        let forbids = |entry: &StoredEntry| {
            let stored = entry.value.response();
            stored.is_some_and(|stored| !stored.facts.directives.allows_stale())
        };
        let is_told_apart = self.request.rules.disconnected.is_some() && is_disconnected(&failure);
        if is_told_apart && self.stale.as_ref().is_some_and(forbids) {
            Error::inner_error(OriginFailure::MustRevalidate)
        } else {
            failure
        }
    }
}
