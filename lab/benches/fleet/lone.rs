//! Processes that do not coalesce: each request looks and computes for itself.

use crate::freshness::Freshness;
use crate::queue::{Moment, seconds};
use crate::redis::Value;
use crate::world::{Event, State, World};

/// A request on its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lone {
    seat: u32,
    began: Moment,
    /// Whether its client waits: an early refresh has answered already.
    waits: bool,
    /// The copy that did not serve.
    based_on: Option<Value>,
}

impl World<'_> {
    pub(crate) fn arrives_alone(&mut self, seat: u32, callers: u32, finds: Freshness) {
        let (key, now, based_on) = (self.key_of(seat), self.queue.now, self.seat(seat).copy);
        let lone = Lone { seat, began: now, waits: finds == Freshness::Expired, based_on };
        for _ in 0..callers {
            if !lone.waits {
                self.lone_computes(lone);
                continue;
            }
            let looked = self.redis.get(key, now);
            let at = looked.at + self.plan.costs.one_way;
            self.queue.note(at, Event::LoneLooked { lone, found: looked.reply });
        }
        self.expects_next(seat);
    }

    pub(crate) fn lone_looked(&mut self, lone: Lone, found: Option<Value>) {
        let news = found.filter(|found| Some(*found) != lone.based_on);
        if let Some(value) = news
            && self.judge(value, self.queue.now) == Freshness::Fresh
        {
            return self.lone_has(lone, value);
        }
        self.lone_computes(lone);
    }

    /// An early refresh goes here at once, as its paper has it.
    fn lone_computes(&mut self, lone: Lone) {
        self.calls(lone.seat, lone.based_on);
        let (now, ends) = (self.queue.now, self.queue.now + self.plan.origin);
        self.queue.note(ends, Event::LoneComputed { lone, started: now });
    }

    pub(crate) fn lone_computed(&mut self, lone: Lone, started: Moment) {
        let value = self.makes(started);
        let kept = self.is_kept_for(value);
        self.redis.set(self.key_of(lone.seat), value, kept, None, self.queue.now);
        self.counts_fill();
        self.lone_has(lone, value);
    }

    fn lone_has(&mut self, lone: Lone, value: Value) {
        if lone.waits && lone.began >= self.plan.count_from {
            let span = self.queue.now - lone.began;
            self.tally.waited += 1.0;
            self.tally.waited_for += seconds(span);
            self.tally.longest_wait = self.tally.longest_wait.max(span);
        }
        // The first one that is there is kept.
        if self.seat(lone.seat).copy == lone.based_on {
            self.seat(lone.seat).copy = Some(value);
            self.turns(lone.seat, State::Idle);
            self.expects_next(lone.seat);
        }
    }
}
