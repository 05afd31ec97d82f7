//! The rules for what runs: when a computation may begin, how many at once, and
//! what the store holds after it.

use std::time::Duration;

use crate::case::{How, Kept};
use crate::record::{
    Call, Computation, ComputationEnd, Cut, Facts, Moment, Record, Shelf, Source, What,
};
use crate::world::INSIDE;

impl Record {
    pub(crate) fn computation_begins(&mut self, call: usize) -> usize {
        let begun = self.now();
        let number = self.computations.len();
        let asking = self.calls[call].clone();
        let key = asking.key;
        self.note(begun, format_args!("computation {number} of key {key} begins, for call {call}"));
        self.computations.push(Computation { key, call, begun, ended: None, asks: 0 });
        self.calls[call].own = Some(number);
        self.check_one_at_a_time(number, &asking);
        self.check_is_needed(number, &asking, begun);
        self.check_places(number, begun);
        self.check_is_wanted(number, &asking, begun);
        self.check_is_not_delayed(number, &asking, begun);
        self.check_place_is_lent(number, &asking, begun);
        number
    }

    /// Returns whether a computation may run beside others without a place and
    /// without the lead.
    fn is_apart(&mut self, computation: &Computation, now: Moment) -> bool {
        let call = self.calls[computation.call].clone();
        !self.is_on_since(call.asked)
            || self.key(call.key).is_each_callers
            || self.is_overdue(computation, now)
            || self.has_waited(&call, computation.begun)
            || self.silent_ever.contains(&call.actor)
    }

    fn check_one_at_a_time(&mut self, number: usize, asking: &Call) {
        let own = self.computations[number].clone();
        let begun = own.begun;
        if self.is_apart(&own, begun) {
            return;
        }
        let others: Vec<_> = (0..number)
            .map(|other| (other, self.computations[other].clone()))
            .filter(|(_, other)| other.key == own.key && other.ended.is_none())
            .collect();
        for (place, other) in others {
            // An invalidation while one of them ran, or waited for its place.
            let is_ended = self.is_cut_since(self.calls[other.call].asked, own.key)
                || self.is_cut_since(asking.asked, own.key);
            if !is_ended && !self.is_apart(&other, begun) {
                let detail = format!("computations {place} and {number}: {other:?}, {asking:?}");
                self.violate("one computation of a key runs at a time", detail);
            }
        }
    }

    fn is_cut_since(&self, then: Moment, key: usize) -> bool {
        let is_later = |cut: &Cut| cut.ended.is_none_or(|ended| then.is_before(ended));
        self.cuts.iter().any(|cut| is_later(cut) && cut.what.concerns(key, true))
    }

    /// No computation begins while a fresh value is there.
    fn check_is_needed(&mut self, number: usize, asking: &Call, begun: Moment) {
        if asking.how == How::Refresh {
            return;
        }
        if let Some(facts) = self.certainly_stored(asking, begun) {
            let detail = format!("computation {number}: {facts:?}, {asking:?}");
            self.violate("none begins while a fresh value is there", detail);
        }
    }

    /// Returns the fresh value that was stored when the call began and is now,
    /// if that is certain.
    pub(crate) fn certainly_stored(&mut self, call: &Call, now: Moment) -> Option<Facts> {
        // User code may ask between the end of a computation and its fill.
        let is_inside = call.actor == INSIDE;
        if is_inside || self.settings.max_entries.is_some() || !self.is_on_since(call.asked) {
            return None;
        }
        let key = self.key(call.key);
        let (shelf, is_each_callers) = (key.shelf, key.is_each_callers);
        match shelf {
            Shelf::Holds(facts) if facts.ended.is_before(call.asked) && !is_each_callers => {
                (now.at < facts.ended.at + facts.ttl).then_some(facts)
            }
            _ => None,
        }
    }

    fn check_places(&mut self, number: usize, begun: Moment) {
        let own = self.computations[number].clone();
        if self.is_apart(&own, begun) {
            return;
        }
        let running: Vec<_> = (0..=number)
            .map(|other| (other, self.computations[other].clone()))
            .filter(|(_, other)| other.ended.is_none() && other.asks == 0)
            .collect();
        let mut placed = Vec::new();
        for (place, other) in running {
            if !self.is_apart(&other, begun) {
                placed.push(place);
            }
        }
        let limit = self.settings.max_computations + self.deserted;
        if placed.len() > limit {
            let detail = format!("computations {placed:?}, limit {limit}");
            self.violate("at most `max_computations` run at once", detail);
        }
    }

    /// A computation that was queued does not begin for callers who are gone.
    fn check_is_wanted(&mut self, number: usize, asking: &Call, begun: Moment) {
        let Some(gone) = asking.ended.filter(|_| asking.dropped) else { return };
        let ran = |other: &&Computation| {
            other.begun.is_before(gone)
                && other.ended.is_none_or(|(ended, _)| gone.is_before(ended))
        };
        // Without a queue the computation had a place, and only its task had not run yet.
        let was_full =
            self.computations.iter().filter(ran).count() >= self.settings.max_computations;
        // A jump of the clock before the task has run is no time in a queue: the place may be
        // one that its caller's computation has lent.
        let passed = (begun.at - asking.asked.at).saturating_sub(self.jumped - asking.jumped);
        let was_queued = was_full && passed > Duration::ZERO && gone.at < begun.at;
        let others = || {
            self.calls.iter().any(|other| {
                other.key == asking.key
                    && other.asked != asking.asked
                    && other.ended.is_none_or(|ended| ended.at == begun.at)
            })
        };
        if was_queued && !others() {
            let detail = format!("computation {number}: {asking:?}");
            self.violate("no computation begins for callers who are gone", detail);
        }
    }

    /// Where the cache is not on, callers compute at once.
    fn check_is_not_delayed(&mut self, number: usize, asking: &Call, begun: Moment) {
        let waited = begun.at - asking.asked.at;
        let is_free = self.silent_ever.contains(&asking.actor);
        if self.is_not_on_since(asking.asked) && waited > self.jumped - asking.jumped && !is_free {
            let detail = format!("computation {number} after {waited:?}: {asking:?}");
            self.violate("a cache that is not on delays no caller", detail);
        }
    }

    /// What a computation asks for begins at once: it has a place already.
    fn check_place_is_lent(&mut self, number: usize, asking: &Call, begun: Moment) {
        let waited = begun.at - asking.asked.at;
        if waited > self.jumped - asking.jumped
            && self.is_lent_a_place(self.computations[number].call, begun)
        {
            let detail = format!("computation {number} after {waited:?}: {asking:?}");
            self.violate("a computation lends its place to what it asks for", detail);
        }
    }

    /// Returns whether a call comes from a computation with a place, and meets no
    /// other caller of its key.
    pub(crate) fn is_lent_a_place(&mut self, number: usize, now: Moment) -> bool {
        let call = self.calls[number].clone();
        let Some(parent) = call.parent else { return false };
        let parent = self.computations[parent].clone();
        let meets = |other: &Call| {
            other.key == call.key
                && other.asked != call.asked
                && (other.ended.is_none_or(|ended| call.asked.is_before(ended))
                    || other.own.is_none()
                    || other.own.is_some_and(|own| {
                        let end = self.computations[own].ended;
                        end.is_none_or(|(ended, _)| call.asked.is_before(ended))
                    }))
        };
        let is_alone = !self.calls.iter().any(meets);
        is_alone
            && self.deserted == 0
            && self.is_on_since(call.asked)
            && !self.silent_ever.contains(&call.actor)
            && !self.is_apart(&parent, now)
    }

    /// Notes the end, and returns what the value says of itself if it is one.
    pub(crate) fn computation_ends(
        &mut self,
        number: usize,
        end: ComputationEnd,
        kept: Kept,
    ) -> Facts {
        let now = self.now();
        let Computation { key, call, begun, .. } = self.computations[number].clone();
        let limit = Duration::from_millis(self.settings.compute_timeout);
        let end = match end {
            ComputationEnd::Dropped if now.at >= begun.at + limit => ComputationEnd::TimedOut,
            end => end,
        };
        self.note(now, format_args!("computation {number} of key {key} ends: {end:?}"));
        let mut facts = self.facts(key, Source::Call(call), begun, now, kept);
        if end == ComputationEnd::Value {
            facts.tagged |= self.keeps_tag(&self.calls[call].clone(), now);
            self.shelve_computed(number, facts, now);
        }
        let asking = self.calls[call].clone();
        let is_cut_off = end == ComputationEnd::Dropped
            && asking.own == Some(number)
            && asking.how != How::Scoped
            && asking.ended.is_none();
        let own = self.computations[number].clone();
        if is_cut_off && !self.is_apart(&own, now) {
            let detail = format!("computation {number}: {asking:?}");
            self.violate("no work is dropped while its caller waits", detail);
        }
        let declines = end == ComputationEnd::Value && facts.do_not_store;
        let leaves = end == ComputationEnd::Failed(tower_stampede::FailureAction::EachItself);
        if declines || leaves {
            self.key(key).is_each_callers = true;
        }
        self.computations[number].ended = Some((now, end));
        facts
    }

    /// Returns whether a refresh replaces a value with the tag.
    fn keeps_tag(&mut self, call: &Call, now: Moment) -> bool {
        let is_roomy = self.settings.max_entries.is_none();
        let is_refresh = call.how == How::Refresh && self.is_on_since(call.asked);
        match self.key(call.key).shelf {
            Shelf::Holds(facts) => {
                is_roomy
                    && is_refresh
                    && facts.tagged
                    && facts.ended.is_before(call.asked)
                    && now.at < facts.ended.at + facts.ttl
            }
            _ => false,
        }
    }

    fn shelve_computed(&mut self, number: usize, facts: Facts, now: Moment) {
        if facts.do_not_store || facts.ttl.is_zero() {
            // It is newer than a value that stood there, which ends.
            self.key(facts.key).shelf = Shelf::Unknown;
            return;
        }
        self.key(facts.key).was_tagged |= facts.tagged;
        let computation = self.computations[number].clone();
        let asked = self.calls[computation.call].asked;
        let is_certain = !facts.heavy
            && !self.is_apart(&computation, now)
            && !self.is_cut_since(asked, facts.key);
        self.key(facts.key).shelf = if is_certain { Shelf::Holds(facts) } else { Shelf::Unknown };
    }

    pub(crate) fn cut_begins(&mut self, what: What) -> usize {
        let begun = self.now();
        self.note(begun, format_args!("{what:?} begins"));
        self.cuts.push(Cut { what, begun, ended: None });
        self.cuts.len() - 1
    }

    pub(crate) fn cut_ends(&mut self, number: usize) {
        let now = self.now();
        self.cuts[number].ended = Some(now);
        let what = self.cuts[number].what;
        self.note(now, format_args!("{what:?} ends"));
        let shelf = match what {
            // The caller that puts says what is on the shelf then.
            What::Put(_) => return,
            What::Stale(_) => Shelf::Unknown,
            What::Key(_) | What::Tag | What::All => Shelf::Empty,
        };
        for (key, state) in &mut self.keys {
            // Without the tag a value stays, unless it has inherited the tag.
            if what.concerns(*key, true) {
                state.shelf = match (what, state.shelf) {
                    (What::Tag, Shelf::Holds(facts)) if !facts.tagged && !state.was_tagged => {
                        state.shelf
                    }
                    (What::Tag, Shelf::Holds(facts)) if !facts.tagged => Shelf::Unknown,
                    (What::Tag, Shelf::Unknown) => Shelf::Unknown,
                    _ => shelf,
                };
            }
        }
    }

    pub(crate) fn shelve_put(&mut self, facts: Facts) {
        // Certain from here on, not from the beginning of the `put`.
        let facts = Facts { ended: self.now(), ..facts };
        self.key(facts.key).was_tagged |= facts.tagged;
        let is_stored =
            self.mode != tower_stampede::Mode::Off && !facts.do_not_store && !facts.ttl.is_zero();
        self.key(facts.key).shelf = match (is_stored, facts.heavy) {
            (true, false) => Shelf::Holds(facts),
            (true, true) => Shelf::Unknown,
            (false, _) => Shelf::Empty,
        };
    }
}
