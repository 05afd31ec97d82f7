//! A process: how it comes by a value that it does not have fresh.
//!
//! The rules are those of `src/flight/clearance.rs`, `src/cache/lead.rs`,
//! `src/lease/hold.rs` and `src/remote/sync.rs`: a look, an acquire, a wait
//! that a message or a timer ends, a computation, a fill. The strategies
//! beside ours go the same way and leave out the steps they do not have.

use crate::freshness::Freshness;
use crate::plan::{LEASE, Strategy};
use crate::queue::{MILLISECOND, Moment, SECOND};
use crate::redis::{AcquireOutcome, Token, Value};
use crate::world::{Answer, Event, Purpose, State, World};

/// `LONGEST_WAIT` of `src/flight/clearance.rs`.
const LONGEST_WAIT: Moment = SECOND;

/// `REFRESH_AGAIN` of `src/cache/lead.rs`.
const REFRESH_AGAIN: Moment = 100 * MILLISECOND;

/// `STEADY_AFTER` of `src/remote/sync.rs`.
const STEADY_AFTER: Moment = 10 * SECOND;

/// The shard that holds what a process asks for to see whether all is well.
const PROBED: usize = 0;

/// Reading the clock, giving up a lease that no process holds, reading the invalidation log.
const PROBES: u8 = 3;

impl World<'_> {
    fn is_ours(&self) -> bool {
        self.plan.strategy == Strategy::Ours
    }

    /// Looks into Redis, unless it is known to be away.
    pub(crate) fn looks(&mut self, seat: u32) {
        let process = self.process_of(seat);
        if self.is_ours() && !self.processes[process].breaker.allows() {
            return self.computes(seat);
        }
        let turn = self.turns(seat, State::Looking);
        if self.processes[process].is_cut_off {
            return self.hears_nothing(seat, turn, None);
        }
        let found = self.redis.get(self.key_of(seat), self.queue.now);
        let event = Event::Looked { seat, turn, found: found.reply };
        self.hears(seat, turn, found.at, event, None);
    }

    /// Notes the reply, or the end of the patience before it.
    fn hears(
        &mut self,
        seat: u32,
        turn: u32,
        executed: Moment,
        event: Event,
        granted: Option<Token>,
    ) {
        let at = executed + self.plan.costs.one_way;
        if self.is_ours() && at > self.queue.now + self.plan.op_timeout {
            return self.hears_nothing(seat, turn, granted);
        }
        self.queue.note(at, event);
    }

    fn hears_nothing(&mut self, seat: u32, turn: u32, granted: Option<Token>) {
        let at = self.queue.now + self.plan.op_timeout;
        self.queue.note(at, Event::TimedOut { seat, turn, granted });
    }

    pub(crate) fn looked(&mut self, seat: u32, found: Option<Value>) {
        self.processes[self.process_of(seat)].breaker.look_succeeded();
        if let Some(value) = found
            && self.serves(seat, value)
        {
            return self.takes(seat, value);
        }
        let has_lock = self.seat(seat).lease.is_some();
        match self.plan.strategy {
            Strategy::Ours => self.asks(seat, found),
            Strategy::Polling(_) if !has_lock => self.tries_lock(seat),
            Strategy::Polling(_) | Strategy::Coalescing | Strategy::Nothing => self.computes(seat),
        }
    }

    /// Whether a value that was found ends the search: `KeyWanted::judge`.
    fn serves(&mut self, seat: u32, value: Value) -> bool {
        let (purpose, copy) = (self.seat(seat).purpose, self.seat(seat).copy);
        let is_refresh = purpose == Purpose::Refresh;
        let started = |value: Value| self.values[value as usize].window.started;
        if is_refresh && copy.is_some_and(|copy| started(value) <= started(copy)) {
            return false;
        }
        match self.judge(value, self.queue.now) {
            Freshness::Fresh | Freshness::Early => true,
            Freshness::Stale => !is_refresh,
            Freshness::StaleIfError | Freshness::Expired => false,
        }
    }

    /// Asks for the lease.
    fn asks(&mut self, seat: u32, seen: Option<Value>) {
        let (process, now) = (self.process_of(seat), self.queue.now);
        let place = self.seat(seat);
        (place.started, place.seen) = (now, seen);
        if !self.processes[process].breaker.allows() {
            return self.computes(seat);
        }
        let turn = self.turns(seat, State::Asking);
        if self.processes[process].is_cut_off {
            return self.hears_nothing(seat, turn, None);
        }
        let registers = (self.seat(seat).purpose == Purpose::Serve)
            .then_some(u32::try_from(process).expect("counted in 32 bits"));
        let acquired = self.redis.acquire(self.key_of(seat), registers, seen, now);
        let (answer, granted) = match acquired.reply {
            AcquireOutcome::Hit(value) => (Answer::Hit(value), None),
            AcquireOutcome::Granted(token) => (Answer::Granted(token), Some(token)),
            AcquireOutcome::Locked(left) => (Answer::Locked(left), None),
        };
        self.hears(seat, turn, acquired.at, Event::Asked { seat, turn, answer }, granted);
    }

    /// The same for strategies that know only `SET NX PX`.
    fn tries_lock(&mut self, seat: u32) {
        let turn = self.turns(seat, State::Asking);
        let tried = self.redis.set_lock(self.key_of(seat), self.queue.now);
        let answer = tried.reply.map_or(Answer::Locked(LEASE), Answer::Granted);
        self.hears(seat, turn, tried.at, Event::Asked { seat, turn, answer }, None);
    }

    pub(crate) fn asked(&mut self, seat: u32, answer: Answer) {
        self.processes[self.process_of(seat)].breaker.succeeded();
        match answer {
            Answer::Hit(value) if self.serves(seat, value) => self.takes(seat, value),
            Answer::Hit(value) => self.asks(seat, Some(value)),
            Answer::Granted(token) => {
                self.seat(seat).lease = Some(token);
                // A strategy that knows only the lock has not looked since it got it.
                if self.is_ours() { self.computes(seat) } else { self.looks(seat) }
            }
            Answer::Locked(left) => self.gives_way(seat, left),
        }
    }

    /// Another process has the lease.
    fn gives_way(&mut self, seat: u32, left: Moment) {
        let now = self.queue.now;
        if self.seat(seat).purpose == Purpose::Refresh {
            self.seat(seat).no_refresh_before = now + left.min(REFRESH_AGAIN);
            return self.is_answered(seat, None);
        }
        let pause = match self.plan.strategy {
            Strategy::Polling(pause) => pause,
            _ => self.longest_pause(left),
        };
        self.seat(seat).has_waited = true;
        let turn = self.turns(seat, State::Waiting);
        self.queue.note(now + pause, Event::Rings { seat, turn });
    }

    /// `Way::wait`: a little longer than the lease, and a second at most.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a second")]
    fn longest_pause(&mut self, left: Moment) -> Moment {
        let longer = 1.0 + 0.1 * self.rng.f64();
        (left.min(LONGEST_WAIT) as f64 * longer) as Moment + MILLISECOND
    }

    /// A message is a hint: the waiter looks.
    pub(crate) fn pushed(&mut self, seat: u32) {
        let process = &self.processes[self.process_of(seat)];
        let hears = !process.is_dead && !process.is_cut_off;
        if hears && self.seat(seat).state == State::Waiting {
            self.looks(seat);
        }
    }

    /// Redis did not answer in time: this request goes on without it.
    pub(crate) fn timed_out(&mut self, seat: u32, granted: Option<Token>) {
        self.tally.timeouts += 1;
        let process = self.process_of(seat);
        let breaker = &self.processes[process].breaker;
        let has_asked = self.seats[seat as usize].state == State::Asking;
        let opened = if has_asked { breaker.failed() } else { breaker.look_failed() };
        if opened {
            self.is_away(process);
        }
        if has_asked {
            // Without a grant, no process holds this token.
            self.abandons(seat, granted.unwrap_or_default());
        }
        self.computes(seat);
    }

    /// Gives a lease up, past the breaker.
    pub(crate) fn abandons(&mut self, seat: u32, token: Token) {
        if self.processes[self.process_of(seat)].is_cut_off {
            return;
        }
        let key = self.key_of(seat);
        let abandoned = self.redis.abandon(key, token, self.queue.now);
        self.publishes(key, abandoned.reply.map(|to| (to, abandoned.at)).into_iter().collect());
    }

    /// Calls the origin.
    fn computes(&mut self, seat: u32) {
        let now = self.queue.now;
        let (copy, lease) = (self.seat(seat).copy, self.seat(seat).lease);
        if lease.is_none() || !self.is_ours() {
            self.seat(seat).started = now;
        }
        self.calls(seat, copy);
        let turn = self.turns(seat, State::Computing);
        self.queue.note(now + self.plan.origin, Event::Computed { seat, turn });
        if lease.is_some() && self.is_ours() {
            self.queue.note(now + LEASE / 3, Event::Renews { seat, turn });
        }
    }

    pub(crate) fn renews(&mut self, seat: u32) {
        let (turn, lease) = (self.seat(seat).turn, self.seat(seat).lease);
        let (Some(token), now) = (lease, self.queue.now) else { return };
        if !self.processes[self.process_of(seat)].is_cut_off {
            self.redis.renew(self.key_of(seat), token, now);
        }
        self.queue.note(now + LEASE / 3, Event::Renews { seat, turn });
    }

    pub(crate) fn computed(&mut self, seat: u32) {
        let (started, lease) = (self.seat(seat).started, self.seat(seat).lease);
        let value = self.makes(started);
        match (self.plan.strategy, lease) {
            (Strategy::Ours, Some(token)) => self.fills(seat, token, value),
            (Strategy::Ours, None) => (),
            (_, token) => {
                let kept = self.is_kept_for(value);
                self.redis.set(self.key_of(seat), value, kept, token, self.queue.now);
                self.counts_fill();
            }
        }
        self.is_answered(seat, Some(value));
    }

    /// No request waits for the fill itself. One that fails leaves no lease.
    fn fills(&mut self, seat: u32, token: Token, value: Value) {
        let (key, process, now) = (self.key_of(seat), self.process_of(seat), self.queue.now);
        let gives_up = now + self.plan.op_timeout;
        let mut ends = gives_up + 1;
        if !self.processes[process].is_cut_off && self.processes[process].breaker.allows() {
            let kept = self.is_kept_for(value);
            let filled = self.redis.fill(key, token, value, kept, now);
            ends = filled.at + self.plan.costs.one_way;
            if filled.reply.is_some() {
                self.counts_fill();
            }
            self.publishes(key, filled.reply.unwrap_or_default());
        }
        let process = u32::try_from(process).expect("counted in 32 bits");
        let (success, was_sent) =
            (ends <= gives_up, self.processes[process as usize].breaker.allows());
        if !success {
            let at = if was_sent { gives_up } else { now };
            self.queue.note(at, Event::Abandons { seat, token });
        }
        if was_sent {
            self.queue.note(ends.min(gives_up), Event::ErrandEnds { process, success });
        }
    }

    pub(crate) fn count_call(&mut self, process: u32, success: bool) {
        let breaker = &self.processes[process as usize].breaker;
        if success {
            breaker.succeeded();
        } else if breaker.failed() {
            self.is_away(process as usize);
        }
    }

    /// The breaker has opened: `tend_once` of `src/remote/sync.rs`.
    fn is_away(&mut self, process: usize) {
        let now = self.queue.now;
        let pace = &mut self.processes[process].pace;
        let pause = match pace.brought_back.take() {
            Some(at) if now < at + STEADY_AFTER => pace.relapses.lengthen(),
            Some(_) => {
                pace.relapses.reset();
                std::time::Duration::ZERO
            }
            None => std::time::Duration::ZERO,
        };
        self.probes_after(process, pause, PROBES);
    }

    fn probes_after(&mut self, process: usize, pause: std::time::Duration, left: u8) {
        let process = u32::try_from(process).expect("counted in 32 bits");
        let pause = u64::try_from(pause.as_nanos()).expect("seconds");
        self.queue.note(self.queue.now + pause, Event::Probes { process, left });
    }

    pub(crate) fn probes(&mut self, process: u32, left: u8) {
        let now = self.queue.now;
        let gives_up = now + self.plan.op_timeout;
        let is_cut_off = self.processes[process as usize].is_cut_off;
        let executed = if is_cut_off { gives_up } else { self.redis.probe(PROBED, now) };
        let at = executed + self.plan.costs.one_way;
        let event = match left {
            _ if is_cut_off || at > gives_up => Event::BroughtBack { process, success: false },
            0 | 1 => Event::BroughtBack { process, success: true },
            _ => Event::Probes { process, left: left - 1 },
        };
        self.queue.note(at.min(gives_up), event);
    }

    pub(crate) fn brought_back(&mut self, process: u32, success: bool) {
        let now = self.queue.now;
        let tended = &mut self.processes[process as usize];
        if success {
            tended.breaker.close();
            tended.pace.probes.reset();
            tended.pace.brought_back = Some(now);
        } else {
            let pause = tended.pace.probes.lengthen();
            self.probes_after(process as usize, pause, PROBES);
        }
    }
}
