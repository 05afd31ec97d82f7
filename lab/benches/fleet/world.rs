//! The simulation: processes, clients, the origin, and time that passes.
//!
//! Clients are no objects. A process that has a fresh value needs no event for
//! its readers; the next event is the first request that finds the value stale,
//! or draws an early refresh. While a request is on its way, the requests that
//! join it are counted by their rate.

use std::time::Duration;

use crate::breaker::Breaker;
use crate::clock::Tick;
use crate::freshness::{self, Freshness, Lifetimes, Window};
use crate::lone::Lone;
use crate::pause::Pause;
use crate::plan::{BREAKER_FAILURES, Fault, Plan, Strategy};
use crate::queue::{MILLISECOND, Moment, Queue, moment, seconds};
use crate::redis::{Redis, Token, Value};
use crate::tally::Tally;

pub(crate) struct World<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) rng: fastrand::Rng,
    pub(crate) queue: Queue<Event>,
    pub(crate) redis: Redis,
    pub(crate) processes: Vec<Process>,
    /// What each process knows of each key: process after process.
    pub(crate) seats: Vec<Seat>,
    pub(crate) values: Vec<Made>,
    pub(crate) tally: Tally,
}

/// A value that was computed, and when.
pub(crate) struct Made {
    pub(crate) window: Window,
    pub(crate) at: Moment,
    /// Of each process that waited for it, how long after the end of the
    /// computation its last waiter had it.
    waits: Vec<Moment>,
}

pub(crate) struct Process {
    pub(crate) breaker: Breaker,
    pub(crate) pace: Pace,
    pub(crate) is_cut_off: bool,
    pub(crate) is_dead: bool,
}

/// How often a remote that is away is probed: `Pace` of `src/remote/sync.rs`.
pub(crate) struct Pace {
    pub(crate) probes: Pause,
    pub(crate) relapses: Pause,
    pub(crate) brought_back: Option<Moment>,
}

/// One process and one key.
pub(crate) struct Seat {
    /// The copy in the process's memory.
    pub(crate) copy: Option<Value>,
    pub(crate) state: State,
    /// What was noted for an earlier turn is void.
    pub(crate) turn: u32,
    pub(crate) purpose: Purpose,
    /// When the request began that the others join.
    pub(crate) since: Moment,
    pub(crate) first_callers: u32,
    pub(crate) has_waited: bool,
    /// When the computation began, as the value's age counts it.
    pub(crate) started: Moment,
    pub(crate) lease: Option<Token>,
    /// What stands in Redis and does not serve.
    pub(crate) seen: Option<Value>,
    pub(crate) no_refresh_before: Moment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Idle,
    Looking,
    Asking,
    Waiting,
    Computing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Serve,
    Refresh,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Event {
    Arrives {
        seat: u32,
        turn: u32,
        callers: u32,
        finds: Freshness,
    },
    Looked {
        seat: u32,
        turn: u32,
        found: Option<Value>,
    },
    Asked {
        seat: u32,
        turn: u32,
        answer: Answer,
    },
    TimedOut {
        seat: u32,
        turn: u32,
        granted: Option<Token>,
    },
    /// A wake-up, which is for whichever turn is there.
    Pushed {
        seat: u32,
    },
    /// A timer, or a pause between two looks.
    Rings {
        seat: u32,
        turn: u32,
    },
    Computed {
        seat: u32,
        turn: u32,
    },
    Renews {
        seat: u32,
        turn: u32,
    },
    /// A lease is given up whose fill failed.
    Abandons {
        seat: u32,
        token: Token,
    },
    /// A command that no request waits for was answered, or not.
    ErrandEnds {
        process: u32,
        success: bool,
    },
    /// One of the commands that bring the remote back; so many are left.
    Probes {
        process: u32,
        left: u8,
    },
    BroughtBack {
        process: u32,
        success: bool,
    },
    /// A request of a process that does not coalesce.
    LoneLooked {
        lone: Lone,
        found: Option<Value>,
    },
    LoneComputed {
        lone: Lone,
        started: Moment,
    },
    Fails(Fault),
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Answer {
    Hit(Value),
    Granted(Token),
    Locked(Moment),
}

/// Runs a plan to its end. The same plan has the same outcome, always.
pub(crate) fn run(plan: &Plan) -> Tally {
    // The product's own random pauses are drawn from the thread's generator.
    fastrand::seed(plan.seed);
    let mut world = World::new(plan);
    world.starts();
    for fault in &plan.faults {
        world.queue.note(fault.begins(), Event::Fails(*fault));
    }
    while let Some(event) = world.queue.next_before(plan.until) {
        world.tally.events += 1;
        world.happens(event);
    }
    world.end()
}

impl<'a> World<'a> {
    fn new(plan: &'a Plan) -> Self {
        Self {
            plan,
            rng: fastrand::Rng::with_seed(plan.seed),
            queue: Queue::new(),
            redis: Redis::new(&plan.costs, plan.shards, plan.keys, plan.processes),
            processes: (0..plan.processes).map(|_| Process::new()).collect(),
            seats: (0..plan.processes * plan.keys).map(|_| Seat::new()).collect(),
            values: Vec::new(),
            tally: Tally::new(plan.keys),
        }
    }

    fn starts(&mut self) {
        for process in 0..self.plan.processes {
            let from = moment(self.rng.f64() * seconds(self.plan.start_within));
            for key in 0..self.plan.keys {
                self.expects_after(self.seat_of(process, key), from);
            }
        }
    }

    fn end(mut self) -> Tally {
        let waits = self.values.into_iter().map(|made| made.waits);
        self.tally.fan_out = waits.filter(|waits| !waits.is_empty()).collect();
        self.tally.commands = self.redis.commands();
        self.tally.busy = self.redis.busy();
        self.tally
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Arrives { seat, turn, callers, finds } if self.is_current(seat, turn) => {
                self.arrives(seat, callers, finds);
            }
            Event::Looked { seat, turn, found } if self.is_current(seat, turn) => {
                self.looked(seat, found);
            }
            Event::Asked { seat, turn, answer } if self.is_current(seat, turn) => {
                self.asked(seat, answer);
            }
            Event::TimedOut { seat, turn, granted } if self.is_current(seat, turn) => {
                self.timed_out(seat, granted);
            }
            Event::Pushed { seat } => self.pushed(seat),
            Event::Rings { seat, turn } if self.is_current(seat, turn) => self.looks(seat),
            Event::Computed { seat, turn } if self.is_current(seat, turn) => self.computed(seat),
            Event::Renews { seat, turn } if self.is_current(seat, turn) => self.renews(seat),
            Event::Abandons { seat, token } => self.abandons(seat, token),
            Event::ErrandEnds { process, success } => self.count_call(process, success),
            Event::Probes { process, left } => self.probes(process, left),
            Event::BroughtBack { process, success } => self.brought_back(process, success),
            Event::LoneLooked { lone, found } => self.lone_looked(lone, found),
            Event::LoneComputed { lone, started } => self.lone_computed(lone, started),
            Event::Fails(fault) => self.fails(fault),
            _ => (),
        }
    }

    fn is_current(&self, seat: u32, turn: u32) -> bool {
        self.seats[seat as usize].turn == turn && !self.processes[self.process_of(seat)].is_dead
    }

    pub(crate) fn seat(&mut self, seat: u32) -> &mut Seat {
        &mut self.seats[seat as usize]
    }

    pub(crate) fn key_of(&self, seat: u32) -> u32 {
        seat % self.plan.keys
    }

    pub(crate) fn process_of(&self, seat: u32) -> usize {
        (seat / self.plan.keys) as usize
    }

    pub(crate) fn seat_of(&self, process: u32, key: u32) -> u32 {
        process * self.plan.keys + key
    }

    pub(crate) fn counts_fill(&mut self) {
        self.tally.fills += u64::from(self.queue.now >= self.plan.count_from);
    }

    /// Goes over into another state. Returns the number of the new turn.
    pub(crate) fn turns(&mut self, seat: u32, state: State) -> u32 {
        let seat = self.seat(seat);
        seat.state = state;
        seat.turn += 1;
        seat.turn
    }

    /// Judges a value with the product's own policy.
    pub(crate) fn judge(&mut self, value: Value, at: Moment) -> Freshness {
        let window = &self.values[value as usize].window;
        let rng = &mut self.rng;
        let sample = || 1.0 - rng.f64();
        let (now, early) = (Tick::from_nanos(at), self.plan.early.as_ref());
        freshness::decide(window.fresh_until, || *window, now, early, sample)
    }

    /// Notes the next request that does not simply read the copy.
    pub(crate) fn expects_next(&mut self, seat: u32) {
        self.expects_after(seat, self.queue.now);
    }

    fn expects_after(&mut self, seat: u32, from: Moment) {
        let copy = self.seat(seat).copy;
        let mut at = copy.map_or(from, |copy| from.max(self.is_quiet_until(copy)));
        loop {
            let Some((next, callers)) = self.plan.arrivals.after(at, &mut self.rng) else { return };
            at = next;
            let finds = copy.map_or(Freshness::Expired, |copy| self.judge(copy, at));
            let waits = at < self.seat(seat).no_refresh_before;
            let matters = match finds {
                Freshness::Fresh => false,
                Freshness::Early | Freshness::Stale => !waits,
                Freshness::StaleIfError | Freshness::Expired => true,
            };
            if matters {
                let turn = self.seat(seat).turn;
                self.queue.note(at, Event::Arrives { seat, turn, callers, finds });
                return;
            }
        }
    }

    /// Until then reads of the copy have no consequence: with early refresh,
    /// nearly none before 25 times `beta` and the computation's time, e^-25.
    fn is_quiet_until(&self, copy: Value) -> Moment {
        let window = &self.values[copy as usize].window;
        let lead = self.plan.early.map_or(Duration::ZERO, |early| {
            let reach = window.computed_in().mul_f64(25.0 * early.beta);
            reach.min(window.lifetime().mul_f64(early.max_share))
        });
        window.fresh_until.minus(lead).as_nanos()
    }

    /// Makes a value that was computed since `started`.
    pub(crate) fn makes(&mut self, started: Moment) -> Value {
        let lifetimes = Lifetimes {
            ttl: self.plan.ttl,
            stale_for: self.plan.stale_for,
            stale_if_error: Duration::ZERO,
        };
        let lifetimes = lifetimes.jittered(self.plan.jitter, 1.0 - self.rng.f64());
        let took = Duration::from_nanos(self.queue.now - started);
        let window = Window::new(Tick::from_nanos(started), lifetimes, took);
        self.values.push(Made { window, at: self.queue.now, waits: Vec::new() });
        Value::try_from(self.values.len() - 1).expect("counted in 32 bits")
    }

    /// How long a value that is stored now is kept in Redis.
    pub(crate) fn is_kept_for(&self, value: Value) -> Moment {
        let kept_until = self.values[value as usize].window.kept_until().as_nanos();
        kept_until.saturating_sub(self.queue.now).max(MILLISECOND)
    }

    /// Counts a call of the origin that begins now.
    pub(crate) fn calls(&mut self, seat: u32, copy: Option<Value>) {
        let (key, now) = (self.key_of(seat), self.queue.now);
        let ends = copy.map_or(0, |copy| self.values[copy as usize].window.fresh_until.as_nanos());
        let ttl = u64::try_from(self.plan.ttl.as_nanos()).expect("a lifetime in 64 bits");
        self.tally.called(key, now, ends.saturating_sub(now), ttl);
    }

    /// The request is answered with a value from elsewhere.
    pub(crate) fn takes(&mut self, seat: u32, value: Value) {
        let waiters = self.waiters(seat);
        let made_at = self.values[value as usize].at;
        let counts = made_at >= self.plan.count_from;
        let place = self.seat(seat);
        if counts && place.has_waited && place.since < made_at {
            let costs = &self.plan.costs;
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]
            let waking = (waiters * costs.wake as f64) as Moment;
            let after = self.queue.now + costs.hand_over + waking - made_at;
            self.values[value as usize].waits.push(after);
        }
        self.is_answered(seat, Some(value));
    }

    fn waiters(&self, seat: u32) -> f64 {
        let seat = &self.seats[seat as usize];
        let joined = self.plan.arrivals.within(seat.since, self.queue.now);
        f64::from(seat.first_callers) + joined
    }

    /// Ends the flight of a seat: with a value, or without, for a refresh that
    /// is left to another.
    pub(crate) fn is_answered(&mut self, seat: u32, value: Option<Value>) {
        self.counts_waiting(seat);
        self.turns(seat, State::Idle);
        let now = self.queue.now;
        let place = self.seat(seat);
        let was = (place.purpose, place.copy);
        place.copy = value.or(place.copy);
        if let ((Purpose::Refresh, Some(old)), None) = (was, value) {
            // Requests that came after the end of the old value look for
            // themselves.
            let ended = self.values[old as usize].window.useful_until().as_nanos();
            if ended < now && self.plan.arrivals.any_within(ended, now, &mut self.rng) {
                return self.begins(seat, Purpose::Serve, 1);
            }
        }
        self.expects_next(seat);
    }

    fn counts_waiting(&mut self, seat: u32) {
        let now = self.queue.now;
        let place = &self.seats[seat as usize];
        let (since, callers) = match (place.purpose, place.copy) {
            (Purpose::Serve, _) => (place.since, f64::from(place.first_callers)),
            (Purpose::Refresh, copy) => {
                let ends = copy
                    .map_or(0, |copy| self.values[copy as usize].window.useful_until().as_nanos());
                (place.since.max(ends), 0.0)
            }
        };
        if since >= now || since < self.plan.count_from {
            return;
        }
        let joined = self.plan.arrivals.within(since, now);
        let span = seconds(now - since);
        self.tally.waited += callers + joined;
        self.tally.waited_for += callers * span + joined * span / 2.0;
        if callers + joined > 0.0 {
            self.tally.longest_wait = self.tally.longest_wait.max(now - since);
        }
    }

    fn arrives(&mut self, seat: u32, callers: u32, finds: Freshness) {
        if self.plan.strategy == Strategy::Nothing {
            return self.arrives_alone(seat, callers, finds);
        }
        let purpose = match finds {
            Freshness::Early | Freshness::Stale => Purpose::Refresh,
            _ => Purpose::Serve,
        };
        self.begins(seat, purpose, callers);
    }

    pub(crate) fn begins(&mut self, seat: u32, purpose: Purpose, callers: u32) {
        let now = self.queue.now;
        let place = self.seat(seat);
        place.purpose = purpose;
        place.since = now;
        place.first_callers = callers;
        place.has_waited = false;
        place.lease = None;
        self.looks(seat);
    }

    /// Sends messages on their way.
    pub(crate) fn publishes(&mut self, key: u32, messages: Vec<(u32, Moment)>) {
        if self.queue.now >= self.plan.count_from {
            self.tally.messages += messages.len() as u64;
        }
        for (process, leaves) in messages {
            let seat = self.seat_of(process, key);
            self.queue.note(leaves + self.plan.costs.one_way, Event::Pushed { seat });
        }
    }
}

impl Process {
    fn new() -> Self {
        let pause = || Pause::of_millis(100, 5_000);
        let pace = Pace { probes: pause(), relapses: pause(), brought_back: None };
        let breaker = Breaker::new(BREAKER_FAILURES);
        Self { breaker, pace, is_cut_off: false, is_dead: false }
    }
}

impl Seat {
    const fn new() -> Self {
        Self {
            copy: None,
            state: State::Idle,
            turn: 0,
            purpose: Purpose::Serve,
            since: 0,
            first_callers: 0,
            has_waited: false,
            started: 0,
            lease: None,
            seen: None,
            no_refresh_before: 0,
        }
    }
}
