//! Whether a stored response is what a request wants: how new, and with the event that it names.

use http::{HeaderMap, StatusCode};

use crate::cache::state::Lookup;
use crate::clock::Tick;
use crate::entry::Entry;
use crate::http::flow::forward::Forward;
use crate::http::rules::request::Wishes;
use crate::http::rules::streams::is_event_stream;
use crate::http::stored::response::{CachedResponse, StoredResponse};

impl Wishes {
    /// Returns whether a request names an event that an event stream does not have, or not yet.
    pub(super) fn lacks_event(self, headers: &HeaderMap, entry: &Entry<StoredResponse>) -> bool {
        let stored = entry.value.response().filter(|_| self.last_event);
        let is_stream =
            |it: &&CachedResponse| it.status == StatusCode::OK && is_event_stream(&it.headers);
        stored.filter(is_stream).is_some_and(|it| it.body.resume_at(headers).is_none())
    }

    /// Returns whether the entry is as new as the client wants it.
    pub(super) fn are_met_by(self, entry: &Entry<StoredResponse>, now: Tick) -> bool {
        let window = entry.window();
        self.demand.is_none_or(|demand| {
            demand.accepts(now.since(window.started), window.fresh_until.since(now))
        })
    }

    /// What is not new enough is a miss, with something in hand.
    pub(super) fn judge(
        self,
        (look, forward): (Lookup<StoredResponse>, Forward),
        headers: &HeaderMap,
        now: Tick,
    ) -> (Lookup<StoredResponse>, Forward) {
        match look {
            Lookup::Fresh(entry) | Lookup::Early(entry) | Lookup::Stale(entry)
                if self.lacks_event(headers, &entry) =>
            {
                (Lookup::Miss(Some(entry)), Forward::Request)
            }
            Lookup::Fresh(entry) | Lookup::Early(entry) if !self.are_met_by(&entry, now) => {
                (Lookup::Miss(Some(entry)), Forward::Request)
            }
            // Without `max-stale`, nothing stale is what it wants.
            Lookup::Stale(entry) if self.demand.is_some() => {
                (Lookup::Miss(Some(entry)), Forward::Stale)
            }
            look => (look, forward),
        }
    }
}
