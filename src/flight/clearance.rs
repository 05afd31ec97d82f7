//! The leader of a process among the leaders of all processes: before it
//! computes, it looks into the remote and takes the lease.
//!
//! ```text
//! look ──▶ place ──▶ acquire ─┬─ Granted ── compute ── fill, or give up
//!   ▲                         ├─ Hit ────── judge it; serve it, or acquire again
//!   │                         ├─ Held ───── the computation failed elsewhere
//!   │                         └─ Locked ─── leave the place and wait
//!   └── a wake-up, the end of the lease, or about 1 s ───┘
//! ```
//!
//! A wake-up is a hint: the leader looks again. So a lost message costs time, and never
//! an answer. Each wait ends at the leader's deadline. When the remote does not answer,
//! the leader goes on without it, as in a single process.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::Tick;
use crate::entry::Entry;
use crate::error::{Error, ErrorKind};
use crate::flight::engine::Engine;
use crate::flight::evidence::{DeclinedFor, RequestTraits};
use crate::flight::hold::HeldKey;
use crate::flight::leader::Leader;
use crate::flight::phase::Verdict;
use crate::key::Key;
use crate::lease::grant::{AcquireOutcome, FillOutcome, Grant, LeaseRequest, Version};
use crate::lease::hold::{Attempt, Errands};
use crate::lease::shared_store::{
    CallerArrival, FillPayload, RemoteValue, SharedStore, Unavailable, UncacheableFor,
};
use crate::lease::wakes::Listener;
use crate::observe::{LockAnswer, Occurrence, WakeCause};

/// How often one look may point to another key before the leader goes on.
const MAX_STEPS: u8 = 8;

/// How often an acquire may return a value that does not serve before the leader goes on.
const MAX_TURNS: u8 = 4;

/// The longest wait without a look: wake-ups can be lost.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The pauses between looks while no wake-up can arrive.
const FIRST_POLL: Duration = Duration::from_millis(25);
const LONGEST_POLL: Duration = Duration::from_millis(250);

/// So many leases may end without a value for a leader that waits. The results do not reach it, and
/// it waits for no other.
const MOST_ENDS: u32 = 2;

/// How long after its end a lease is looked for again. It grows while a remote says again and
/// again that the lease is about to end.
const FIRST_GRACE: Duration = Duration::from_millis(1);

/// A leader's search in the remote.
pub(crate) trait Search<V> {
    /// Returns the key to look under now.
    fn key(&self) -> &Key;

    /// Judges the entry that stands there.
    fn judge(&mut self, found: &Arc<Entry<V>>) -> Judgement;

    /// The remote is asked once more: what was found before may have been invalidated since.
    fn looks(&mut self) {}

    /// Begins anew: what it has found on its way may have gone since.
    fn restart(&mut self) {}

    /// Returns what stands under the keys that have led to this one, in their order. Then an
    /// invalidation removes one of those, and a lease of this one outlives it.
    fn way(&self) -> Box<[Arc<Entry<V>>]> {
        Box::default()
    }

    /// Returns what is to stand under the key, where that is no result of a computation and
    /// only leads to other keys. It is filled at once, under this version.
    fn signpost(&self, _: Version) -> Option<Arc<Entry<V>>> {
        None
    }

    /// Returns a copy that this process has, that answers, and that the remote was to be asked for
    /// again: it serves where the remote does not answer.
    fn copy_here(&mut self) -> Option<Arc<Entry<V>>>;

    /// Returns whether the leader computes although the key is held.
    fn despite_hold(&self) -> bool {
        false
    }

    /// Another process has the lease.
    fn is_leased(&mut self) {}

    /// The leader is about to wait for another process.
    fn give_way(&mut self) {}

    /// Returns a number from 0 to 1 by which its looks are spread in time. Leaders with the
    /// same number look together.
    fn spread(&self) -> f64 {
        fastrand::f64()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// It answers the waiters.
    Serves,
    /// It names another key to look under; [`Search::key`] has changed.
    Elsewhere,
    /// It is to be replaced.
    Useless,
    /// It is to be replaced, and no caller may be served with it any more.
    Expired,
    /// The same, and a result of another process would not answer the waiters.
    ForEach,
}

/// What a leader does while another process holds the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Waits for the result of the other process.
    Wait,
    /// Leaves the work to the other process: no caller waits for this leader.
    GiveUp,
    /// Computes nevertheless.
    GoOn,
    /// Looks for a value, and computes without the lease where there is none:
    /// the result is not expected to be shared.
    Apart,
}

/// How a leader goes on.
#[derive(Debug)]
pub(crate) enum Clearance<V> {
    /// It has a place, and the lease if the remote is there: compute.
    Compute,
    /// The remote has a value that answers.
    Found(Arc<Entry<V>>),
    /// The computation failed here, and there is still no value elsewhere.
    Held(HeldKey),
    /// The computation failed elsewhere; it is not tried again for so long.
    HeldElsewhere(Duration),
    /// Another process computes; its lease has so long left.
    LeftToAnother(Duration),
    /// Waited too long for another process.
    TimedOut,
    /// There is no place, or none in time.
    Refused(Error),
}

enum Turn<V> {
    Done(Clearance<V>),
    /// Look again from the start.
    Again,
    /// Nothing that serves; this version is there.
    Acquire(Option<Version>),
}

impl<V: Send + Sync + 'static> Leader<V> {
    /// Finds out whether to compute, and takes the place and the lease for it.
    ///
    /// Cancel safe: dropped at any point, it leaves no lease behind. A try that may have been
    /// granted is given up.
    pub(crate) async fn clear(
        &mut self,
        wanted: &mut impl Search<V>,
        patience: Patience,
    ) -> Clearance<V> {
        if self.is_second {
            // The first leader has looked, and its lease goes on.
            return self.clear_without_remote().await;
        }
        let Some(shared) = self.engine().remote(wanted.key()).map(Arc::clone) else {
            return self.clear_without_remote().await;
        };
        let (deadline, now) = (self.deadline(), Instant::now());
        let compute_timeout = self.engine.settings.compute_timeout();
        let mut way = LeaseWait {
            shared,
            deadline,
            last_start: deadline.checked_sub(compute_timeout).map_or(now, |start| start.max(now)),
            patience,
            poll: FIRST_POLL,
            grace: FIRST_GRACE,
            turns: 0,
            over_value: false,
            wait: None,
            arrival: None,
            ends: 0,
            holder: None,
            took: None,
        };
        match self.clear_with(&mut way, wanted).await {
            Ok(cleared) => cleared,
            Err(Unavailable) => match wanted.copy_here() {
                Some(copy) => Clearance::Found(copy),
                None => self.clear_without_remote().await,
            },
        }
    }

    async fn clear_without_remote(&mut self) -> Clearance<V> {
        if let Some(held) = self.held() {
            return Clearance::Held(held.clone());
        }
        match self.take_place().await {
            Ok(()) => Clearance::Compute,
            Err(error) => Clearance::Refused(error),
        }
    }

    async fn clear_with(
        &mut self,
        way: &mut LeaseWait<V>,
        wanted: &mut impl Search<V>,
    ) -> Result<Clearance<V>, Unavailable> {
        loop {
            wanted.looks();
            let found = way.shared.get(wanted.key(), &mut way.arrival).await?;
            let seen = match self.weigh(way, found, wanted) {
                Turn::Done(cleared) => return Ok(cleared),
                Turn::Again if way.may_turn() => continue,
                Turn::Again => None,
                Turn::Acquire(seen) => seen,
            };
            if let Some(held) = self.held() {
                return Ok(Clearance::Held(held.clone()));
            }
            if way.wait.is_some() && !self.is_wanted() {
                self.pass_wake_up_on(way, wanted.key()).await;
                return Ok(Clearance::Refused(Error::new(ErrorKind::Overloaded)));
            }
            match self.acquire(way, wanted, seen).await? {
                Turn::Done(cleared) => return Ok(cleared),
                Turn::Again | Turn::Acquire(_) if Instant::now() < way.deadline => {
                    way.turns = 0;
                    wanted.restart();
                }
                Turn::Again | Turn::Acquire(_) => return Ok(Clearance::TimedOut),
            }
        }
    }

    /// Asks for the lease until it is granted, is not needed, or is held by another
    /// process; in the last case, waits.
    async fn acquire(
        &mut self,
        way: &mut LeaseWait<V>,
        wanted: &mut impl Search<V>,
        mut seen: Option<Version>,
    ) -> Result<Turn<V>, Unavailable> {
        if let Err(error) = self.take_place().await {
            return Ok(Turn::Done(Clearance::Refused(error)));
        }
        if way.patience == Patience::Apart {
            return Ok(Turn::Done(Clearance::Compute));
        }
        // The place is taken first: a lease that is held while its leader waits in a queue would stop all
        // other processes.
        let errands = self.engine().errands();
        for _ in 0..MAX_TURNS {
            let key = wanted.key().clone();
            let mut ask = way.shared.ask().seen(seen);
            ask.register = way.patience == Patience::Wait && way.shared.is_subscribed();
            // Before the command goes out: a wake-up must find the listener.
            let listener = way.shared.listen(&key);
            let attempt = Attempt::begin(&way.shared, &key, &ask, &errands);
            // Until the answer is known, dropping the try gives the lease up.
            let answer = way.shared.acquire(&key, &ask).await?;
            self.observe(Occurrence::Locked { answer: lock_answer(&answer) });
            let found = match answer {
                AcquireOutcome::Granted(grant) => {
                    if let Some(signpost) = wanted.signpost(grant.version) {
                        let share = FillPayload::Entry(Arc::clone(&signpost));
                        let filled = way.shared.fill(&key, &grant, &share).await?;
                        attempt.was_answered();
                        if filled == FillOutcome::Refused
                            || wanted.judge(&signpost) != Judgement::Elsewhere
                        {
                            self.leave_place();
                            return Ok(Turn::Again);
                        }
                        // Nothing stands where a new signpost leads.
                        seen = None;
                        continue;
                    }
                    self.report_takeover(way, &key, ask.lease);
                    self.take_lease(attempt, grant, &ask, way.over_value, wanted.way());
                    return Ok(Turn::Done(Clearance::Compute));
                }
                AcquireOutcome::Hit { value: found, .. } => {
                    attempt.was_answered();
                    found
                }
                AcquireOutcome::Held { left, .. } => {
                    attempt.was_answered();
                    // Without the lease: the hold stands where the lock would be.
                    let despite = wanted.despite_hold();
                    let cleared =
                        if despite { Clearance::Compute } else { Clearance::HeldElsewhere(left) };
                    return Ok(Turn::Done(cleared));
                }
                AcquireOutcome::Locked { left, holder, .. } => {
                    attempt.was_answered();
                    way.note_holder(holder);
                    wanted.is_leased();
                    let listener = ask.register.then_some(listener);
                    return Ok(self.give_way(way, wanted, (ask.lease, left), listener).await);
                }
            };
            // A value came in between. Where it does not serve, ask once more, over this version.
            match self.weigh(way, found, wanted) {
                Turn::Acquire(version) => seen = version,
                turn => {
                    self.leave_place();
                    return Ok(turn);
                }
            }
        }
        // Values come faster than they can be looked at: not worth a lease.
        Ok(Turn::Done(Clearance::Compute))
    }

    /// The remote may have woken this process alone, to compute next, and no caller is left here.
    /// A lease that is given up wakes another process.
    async fn pass_wake_up_on(&self, way: &LeaseWait<V>, key: &Key) {
        let ask = way.shared.ask();
        let attempt = Attempt::begin(&way.shared, key, &ask, &self.engine().errands());
        let answer = way.shared.acquire(key, &ask).await;
        if answer.is_ok_and(|answer| !matches!(answer, AcquireOutcome::Granted(_))) {
            attempt.was_answered();
        }
    }

    /// Goes on, gives up or waits: another process holds the lease.
    async fn give_way(
        &mut self,
        way: &mut LeaseWait<V>,
        wanted: &mut impl Search<V>,
        (lease, left): (Duration, Duration),
        listener: Option<Listener>,
    ) -> Turn<V> {
        match way.patience {
            Patience::GoOn | Patience::Apart => return Turn::Done(Clearance::Compute),
            Patience::GiveUp => return Turn::Done(Clearance::LeftToAnother(left)),
            Patience::Wait => {}
        }
        let long = way.begin_wait(left, lease);
        if way.has_waited_in_vain(lease) || way.has_dead_holder(lease) {
            return Turn::Done(Clearance::Compute);
        }
        self.leave_place();
        if let Err(error) = self.take_wait_slot() {
            return Turn::Done(Clearance::Refused(error));
        }
        if let Some(waited) = long {
            self.observe(Occurrence::WaitsLong { key: wanted.key(), waited, lease });
        }
        wanted.give_way();
        let cause = way.wait((left, lease), wanted.spread(), listener).await;
        self.observe(Occurrence::Woken { cause });
        if cause == WakeCause::Timer {
            // No process has filled or given up, and the lease may be gone: so may be all else
            // that the remote had. What this leader computes is to be of use to the others.
            way.shared.catch_up().await;
        }
        if Instant::now() < way.deadline { Turn::Again } else { Turn::Done(Clearance::TimedOut) }
    }

    fn weigh(
        &self,
        way: &mut LeaseWait<V>,
        found: RemoteValue<V>,
        wanted: &mut impl Search<V>,
    ) -> Turn<V> {
        way.over_value = false;
        wanted.looks();
        match found {
            RemoteValue::Nothing => Turn::Acquire(None),
            RemoteValue::Useless(version) => Turn::Acquire(version),
            RemoteValue::Uncacheable { whom, until, took, version } => {
                // The marker releases the waiters. It forbids nothing: the next result
                // may be storable, and then it replaces the marker.
                way.took = Some(took);
                self.stop_waiting(way, whom, until);
                Turn::Acquire(version)
            }
            RemoteValue::Entry(entry) => {
                way.took = Some(entry.window().computed_in());
                match wanted.judge(&entry) {
                    Judgement::Serves => Turn::Done(Clearance::Found(entry)),
                    Judgement::Elsewhere => Turn::Again,
                    Judgement::Useless => {
                        way.over_value = true;
                        Turn::Acquire(entry.version)
                    }
                    Judgement::Expired => Turn::Acquire(entry.version),
                    Judgement::ForEach => {
                        if way.patience == Patience::Wait {
                            way.patience = Patience::GoOn;
                        }
                        Turn::Acquire(entry.version)
                    }
                }
            }
        }
    }

    /// Releases the waiters that a marker concerns: a result that is not shared is worth no wait,
    /// here or in another process. A marker for another request than this leader's is no reason
    /// not to wait. Where results stay in their processes, each process needs one of its own, and
    /// its callers wait for that.
    fn stop_waiting(&self, way: &mut LeaseWait<V>, whom: UncacheableFor, until: Tick) {
        way.patience = match (way.patience, whom) {
            (Patience::Wait | Patience::GiveUp, UncacheableFor::OtherProcesses) => Patience::GoOn,
            (Patience::Wait, whom) if self.note_declined(whom, until) => Patience::GoOn,
            (patience, _) => patience,
        };
    }

    /// `over_value` says that the lease is for replacing a value that may yet be of use, `way`
    /// what has led to its key.
    fn take_lease(
        &mut self,
        attempt: Attempt<V>,
        grant: Grant,
        ask: &LeaseRequest,
        over_value: bool,
        way: Box<[Arc<Entry<V>>]>,
    ) {
        self.started.seq = self.engine.log.seq();
        let (flight, watch) = (Arc::clone(&self.flight), self.engine.watch.clone());
        // A leader that is neither polled nor dropped becomes overdue.
        let is_needed = move || !flight.is_overdue(watch.now());
        let mut lease = attempt.was_granted(grant, ask, over_value, is_needed);
        lease.way = way;
        self.lease = Some(Box::new(lease));
    }

    /// Notes what another process says: until then the results of this key are not shared with
    /// `whom`. Returns whether that concerns this leader: then it goes on, since its own result may
    /// be shared. Where no caller like it would wait, it counts for the waiters as a result of this
    /// flight.
    fn note_declined(&self, whom: UncacheableFor, until: Tick) -> bool {
        let (key, now) = (&self.flight.key, self.engine.clock.now());
        self.engine.note(key, |marks| match whom {
            UncacheableFor::EqualRequests(unkeyed) => {
                marks.evidence.decline(RequestTraits { unkeyed, ..self.traits }, until, now);
            }
            UncacheableFor::AllRequests => marks.evidence.decline_all(self.traits, until),
            UncacheableFor::OtherProcesses => {}
        });
        let evidence = self.engine.evidence(key);
        // Otherwise they wait for two leaders of their own: what others have seen is none of them.
        if evidence.lets_pass(self.traits, now) {
            self.flight.publish(Verdict::Declined(DeclinedFor::ByEvidence));
        }
        evidence.concerns(self.traits, now)
    }

    /// Reports a lease that has ended although its holder has neither filled nor given up.
    fn report_takeover(&self, way: &LeaseWait<V>, key: &Key, lease: Duration) {
        if let Some(wait) = way.wait.as_ref().filter(|wait| wait.has_run_out()) {
            let waited = wait.since.elapsed();
            self.observe(Occurrence::TookOver { key, waited, lease });
        }
    }

    fn observe(&self, what: Occurrence<'_>) {
        self.engine().observer.happened(what);
    }
}

/// The facts that a leader keeps from look to look.
struct LeaseWait<V: Send + Sync + 'static> {
    shared: Arc<dyn SharedStore<V>>,
    deadline: Instant,
    /// When a computation has to begin so that it ends before the deadline.
    last_start: Instant,
    patience: Patience,
    poll: Duration,
    grace: Duration,
    turns: u8,
    /// Whether it has waited for another process: its own caller may be gone since.
    wait: Option<ForeignLease>,
    /// Whether the remote has a value that does not serve and may yet be of use, for
    /// example in place of a failure.
    over_value: bool,
    /// When the callers came that this leader looks for.
    arrival: Option<CallerArrival>,
    /// How many leases of others have ended while it waited.
    ends: u32,
    /// The version of the lease that was last seen.
    holder: Option<Version>,
    /// How long the last computation took of which it knows.
    took: Option<Duration>,
}

/// A lease of another process, as seen by a leader that waits for it.
struct ForeignLease {
    since: Instant,
    /// When it ends unless it is renewed, by the last look; `None`: too far away to count.
    ends: Option<Instant>,
    is_reported: bool,
    /// When its holder was last seen to be alive: it was new, or had been renewed.
    alive_at: Instant,
    /// When it ends, as it was seen then.
    ended_then: Option<Instant>,
    /// What the last look has said to be left.
    left: Duration,
}

impl ForeignLease {
    /// Notes what a look has found. A lock without an end is said to last for a whole lease, each
    /// time: that is no sign of a holder.
    fn note(&mut self, left: Duration, lease: Duration, now: Instant) {
        self.ends = now.checked_add(left);
        let is_endless = [left, self.left].map(|left| left.as_millis()) == [lease.as_millis(); 2];
        let is_renewed = match (self.ends, self.ended_then) {
            (Some(ends), Some(then)) => ends > then + lease / 10,
            _ => false,
        };
        if is_renewed && !is_endless {
            (self.alive_at, self.ended_then) = (now, self.ends);
        }
        self.left = left;
    }

    /// Returns whether it has ended without a renewal. A holder that fills or gives up wakes
    /// the waiting processes, and then it ends earlier.
    fn has_run_out(&self) -> bool {
        self.ends.is_some_and(|ends| Instant::now() >= ends)
    }
}

impl<V: Send + Sync + 'static> LeaseWait<V> {
    /// Notes what a look has found. Returns how long the leader has waited where that is worth
    /// a report: once, when it is longer than `lease`.
    fn begin_wait(&mut self, left: Duration, lease: Duration) -> Option<Duration> {
        let now = Instant::now();
        let ends = now.checked_add(left);
        let (ended_then, is_reported) = (ends, false);
        let new = ForeignLease { since: now, ends, is_reported, alive_at: now, ended_then, left };
        let wait = self.wait.get_or_insert(new);
        wait.note(left, lease, now);
        let waited = now - wait.since;
        if wait.is_reported || waited <= lease {
            return None;
        }
        wait.is_reported = true;
        Some(waited)
    }

    /// Notes which lease stands in the way: another one than before says that one has ended, and
    /// that its result did not reach this leader.
    fn note_holder(&mut self, holder: Option<Version>) {
        let before = std::mem::replace(&mut self.holder, holder);
        self.ends += u32::from(before.is_some() && before != holder);
    }

    /// Returns whether it has waited as long as a computation takes, and the results of others do
    /// not reach it. After one end that is not known: an invalidation may have come in between.
    fn has_waited_in_vain(&self, lease: Duration) -> bool {
        let waited = self.wait.as_ref().map_or(Duration::ZERO, |wait| wait.since.elapsed());
        self.ends >= MOST_ENDS && waited >= self.took.unwrap_or(lease)
    }

    /// Returns whether the lease is of a process that is gone, as far as one can see, and it is time
    /// to compute.
    fn has_dead_holder(&self, lease: Duration) -> bool {
        self.gives_up_at(lease).is_some_and(|at| Instant::now() >= at)
    }

    /// Returns until when a lease that is not renewed is waited for: until a computation has to
    /// begin, and as long as a lease of this process lasts, with what its end may come late.
    fn gives_up_at(&self, lease: Duration) -> Option<Instant> {
        let alive_at = self.wait.as_ref()?.alive_at;
        Some(self.last_start.max(alive_at.checked_add(lease + lease / 10)?))
    }

    fn may_turn(&mut self) -> bool {
        self.turns += 1;
        self.turns <= MAX_STEPS
    }

    /// Waits for a wake-up, or for the time after which a look is due.
    async fn wait(
        &mut self,
        (left, lease): (Duration, Duration),
        spread: f64,
        listener: Option<Listener>,
    ) -> WakeCause {
        let Some(mut listener) = listener else {
            let until = self.until(self.poll.mul_f64(0.8 + 0.4 * spread), lease);
            tokio::time::sleep_until(until).await;
            self.poll = (self.poll * 2).min(LONGEST_POLL);
            return WakeCause::Poll;
        };
        // A little later than the lease ends: then it has ended.
        let pause = left.min(LONGEST_WAIT).mul_f64(1.0 + 0.1 * spread);
        let until = self.until(pause + self.grace, lease);
        let is_about_to_end = left <= self.grace;
        self.grace = if is_about_to_end { (self.grace * 2).min(LONGEST_POLL) } else { FIRST_GRACE };
        match tokio::time::timeout_at(until, listener.woken()).await {
            Ok(()) => WakeCause::Push,
            Err(_) => WakeCause::Timer,
        }
    }

    fn until(&self, pause: Duration, lease: Duration) -> Instant {
        let until = self.deadline.min(Instant::now() + pause);
        self.gives_up_at(lease).map_or(until, |at| until.min(at))
    }
}

fn lock_answer<V>(asked: &AcquireOutcome<V>) -> LockAnswer {
    match asked {
        AcquireOutcome::Granted(_) => LockAnswer::Acquired,
        AcquireOutcome::Hit { .. } => LockAnswer::Hit,
        AcquireOutcome::Locked { .. } => LockAnswer::Locked,
        AcquireOutcome::Held { .. } => LockAnswer::Held,
    }
}

impl<V: Send + Sync + 'static> Engine<V> {
    fn errands(&self) -> Errands {
        Errands { tasks: self.tasks.clone(), runtime: tokio::runtime::Handle::current() }
    }

    /// Gives up waiting for another process.
    pub(crate) fn waited_too_long(&self, key: &Key) -> Error {
        self.observer.happened(Occurrence::WaitTimedOut { key });
        Error::retry_in(ErrorKind::WaitTimeout, self.settings.hold())
    }
}
