//! The leader of a process among the leaders of all processes: before it
//! computes, it looks into the remote and takes the lease.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::grant::Version;
use super::leader::Leader;
use super::lease::{Attempt, Errands};
use super::ports::{Happening, LockAnswer, WakeCause};
use super::shared::{Asked, Away, Found, Shared};
use super::time::Tick;
use super::wakes::Listener;
use super::{Engine, Mode};
use crate::entry::Entry;
use crate::error::{Error, ErrorKind};
use crate::key::Key;

/// How often one look may show another place to look at, and one acquire a
/// value that does not serve.
const MAX_TURNS: u8 = 4;

/// The longest wait without a look: wake-ups can be lost.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Between looks while no wake-up can arrive.
const FIRST_POLL: Duration = Duration::from_millis(25);
const LONGEST_POLL: Duration = Duration::from_millis(250);

/// What a leader looks for in the remote.
pub(crate) trait Wanted<V>: Send {
    /// Returns where it looks now.
    fn key(&self) -> &Key;

    /// Judges what stands there.
    fn judge(&mut self, found: &Arc<Entry<V>>) -> Judged;

    /// Is told that there is nothing to judge, but perhaps something of this
    /// version that cannot be used.
    fn found_nothing(&mut self, _: Option<Version>) {}

    /// Returns whether it computes although a failure has just been shared.
    fn despite_hold(&self) -> bool {
        false
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    /// It answers those who wait.
    Serves,
    /// It says where to look instead; [`Wanted::key`] has changed.
    Elsewhere,
    /// It is to be replaced.
    Useless,
    /// It is to be replaced, and nobody may be served with it any more.
    Expired,
    /// The same, and what replaces it will be shared with nobody.
    ForEach,
}

/// What a leader does while another process holds the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Waits for the other's result.
    Wait,
    /// Leaves the work to the other: nobody waits for this one.
    GiveUp,
    /// Computes nevertheless.
    GoOn,
    /// Looks for a value, and computes without the lease where there is none:
    /// the result is not expected to be one that others may have.
    Apart,
}

/// How a leader goes on.
#[derive(Debug)]
pub(crate) enum Cleared<V> {
    /// It has a place, and the lease if the remote is there: compute.
    Compute,
    /// This is the answer.
    Found(Arc<Entry<V>>),
    /// The computation failed elsewhere; nobody tries again for so long.
    Held(Duration),
    /// Another computes; its lease has so long left.
    LeftToAnother(Duration),
    /// Waited too long for another.
    TimedOut,
    /// No place.
    Refused(Error),
}

enum Turn<V> {
    Done(Cleared<V>),
    /// Look again from the start.
    Again,
    /// Nothing that serves; this version is there.
    Acquire(Option<Version>),
}

impl<V: Send + Sync + 'static> Leader<V> {
    /// Finds out whether to compute, and takes the place and the lease for it.
    ///
    /// Dropped at any point, it leaves no lease behind: a try that may have
    /// been granted is given up.
    pub(crate) async fn clear(
        &mut self,
        wanted: &mut dyn Wanted<V>,
        patience: Patience,
    ) -> Cleared<V> {
        let deadline = self.deadline();
        let shared = match self.engine().shared.get() {
            Some(shared) if self.engine().mode() == Mode::On => Arc::clone(shared),
            _ => return self.compute_without_lease(deadline).await,
        };
        if !shared.is_up() {
            return self.compute_without_lease(deadline).await;
        }
        let poll = FIRST_POLL;
        let mut way = Way { shared, deadline, patience, poll, turns: 0, over_value: false };
        match self.clear_with(&mut way, wanted).await {
            Ok(cleared) => cleared,
            Err(Away) => self.compute_without_lease(deadline).await,
        }
    }

    async fn compute_without_lease(&mut self, deadline: Instant) -> Cleared<V> {
        match self.take_place(deadline).await {
            Ok(()) => Cleared::Compute,
            Err(error) => Cleared::Refused(error),
        }
    }

    async fn clear_with(
        &mut self,
        way: &mut Way<V>,
        wanted: &mut dyn Wanted<V>,
    ) -> Result<Cleared<V>, Away> {
        loop {
            let found = way.shared.get(wanted.key()).await?;
            let seen = match self.weigh(way, found, wanted) {
                Turn::Done(cleared) => return Ok(cleared),
                Turn::Again if way.may_turn() => continue,
                Turn::Again => None,
                Turn::Acquire(seen) => seen,
            };
            match self.acquire(way, wanted, seen).await? {
                Turn::Done(cleared) => return Ok(cleared),
                Turn::Again | Turn::Acquire(_) if Instant::now() < way.deadline => (),
                Turn::Again | Turn::Acquire(_) => return Ok(Cleared::TimedOut),
            }
        }
    }

    /// Asks for the lease until it is granted, or not needed, or another's;
    /// then waits.
    async fn acquire(
        &mut self,
        way: &mut Way<V>,
        wanted: &mut dyn Wanted<V>,
        mut seen: Option<Version>,
    ) -> Result<Turn<V>, Away> {
        if let Err(error) = self.take_place(way.deadline).await {
            return Ok(Turn::Done(Cleared::Refused(error)));
        }
        if way.patience == Patience::Apart {
            return Ok(Turn::Done(Cleared::Compute));
        }
        let errands = self.engine().errands();
        for _ in 0..MAX_TURNS {
            let key = wanted.key().clone();
            let mut ask = way.shared.ask().seen(seen);
            ask.register = way.patience == Patience::Wait && way.shared.is_subscribed();
            // Before the command goes out: what wakes us must find us.
            let listener = way.shared.listen(&key);
            let attempt = Attempt::begin(&way.shared, &key, &ask, &errands);
            let answer = way.shared.acquire(&key, &ask).await?;
            self.observe(Happening::Locked { answer: lock_answer(&answer) });
            let found = match answer {
                Asked::Granted(grant) => {
                    self.take_lease(attempt, grant, &ask, way.over_value);
                    return Ok(Turn::Done(Cleared::Compute));
                }
                Asked::Hit(found) => {
                    attempt.was_answered();
                    found
                }
                Asked::Held(left) => {
                    attempt.was_answered();
                    // Without the lease, which the hold stands in place of.
                    let despite = wanted.despite_hold();
                    let cleared = if despite { Cleared::Compute } else { Cleared::Held(left) };
                    return Ok(Turn::Done(cleared));
                }
                Asked::Locked(left) => {
                    attempt.was_answered();
                    let listener = ask.register.then_some(listener);
                    return Ok(self.give_way(way, left, listener).await);
                }
            };
            match self.weigh(way, found, wanted) {
                Turn::Acquire(version) => seen = version,
                turn => {
                    self.leave_place();
                    return Ok(turn);
                }
            }
        }
        // Values come faster than they can be looked at: not worth a lease.
        Ok(Turn::Done(Cleared::Compute))
    }

    /// Another holds the lease.
    async fn give_way(
        &mut self,
        way: &mut Way<V>,
        left: Duration,
        listener: Option<Listener>,
    ) -> Turn<V> {
        match way.patience {
            Patience::GoOn | Patience::Apart => return Turn::Done(Cleared::Compute),
            Patience::GiveUp => return Turn::Done(Cleared::LeftToAnother(left)),
            Patience::Wait => self.leave_place(),
        }
        let cause = way.wait(left, listener).await;
        self.observe(Happening::Woken { cause });
        if Instant::now() < way.deadline { Turn::Again } else { Turn::Done(Cleared::TimedOut) }
    }

    fn weigh(&self, way: &mut Way<V>, found: Found<V>, wanted: &mut dyn Wanted<V>) -> Turn<V> {
        way.over_value = false;
        match found {
            Found::Nothing => replace(wanted, None),
            Found::Useless(version) => replace(wanted, version),
            Found::Uncacheable { until, version } => {
                // It lets the crowd pass and forbids nothing: the next answer
                // may be storable, and then it replaces the marker.
                self.go_on_apart(way, until);
                replace(wanted, version)
            }
            Found::Entry(entry) => match wanted.judge(&entry) {
                Judged::Serves => Turn::Done(Cleared::Found(entry)),
                Judged::Elsewhere => Turn::Again,
                Judged::Useless => {
                    way.over_value = true;
                    Turn::Acquire(entry.version)
                }
                Judged::Expired => Turn::Acquire(entry.version),
                Judged::ForEach => {
                    let engine = self.engine();
                    let until = engine.clock.now().plus(engine.settings.uncacheable_for);
                    self.go_on_apart(way, until);
                    Turn::Acquire(entry.version)
                }
            },
        }
    }

    /// Nobody waits for what is not shared, here or in another process.
    fn go_on_apart(&self, way: &mut Way<V>, until: Tick) {
        if way.patience == Patience::Wait {
            self.let_others_pass(until);
            way.patience = Patience::GoOn;
        }
    }

    fn observe(&self, what: Happening<'_>) {
        self.engine().observer.happened(what);
    }
}

/// There is nothing to judge, but perhaps something to replace.
fn replace<V>(wanted: &mut dyn Wanted<V>, version: Option<Version>) -> Turn<V> {
    wanted.found_nothing(version);
    Turn::Acquire(version)
}

/// What a leader takes along from look to look.
struct Way<V: Send + Sync + 'static> {
    shared: Arc<dyn Shared<V>>,
    deadline: Instant,
    patience: Patience,
    poll: Duration,
    turns: u8,
    /// Whether a value stands there that does not serve and may yet be of use,
    /// as by standing in for a failure.
    over_value: bool,
}

impl<V: Send + Sync + 'static> Way<V> {
    fn may_turn(&mut self) -> bool {
        self.turns += 1;
        self.turns <= MAX_TURNS
    }

    /// Waits for a wake-up, or for the time after which a look is due.
    async fn wait(&mut self, left: Duration, listener: Option<Listener>) -> WakeCause {
        let Some(mut listener) = listener else {
            tokio::time::sleep_until(self.until(self.poll.mul_f64(0.8 + 0.4 * fastrand::f64())))
                .await;
            self.poll = (self.poll * 2).min(LONGEST_POLL);
            return WakeCause::Poll;
        };
        // A little later than the lease ends: then it has ended.
        let pause = left.min(LONGEST_WAIT).mul_f64(1.0 + 0.1 * fastrand::f64());
        let until = self.until(pause + Duration::from_millis(1));
        match tokio::time::timeout_at(until, listener.woken()).await {
            Ok(()) => WakeCause::Push,
            Err(_) => WakeCause::Timer,
        }
    }

    fn until(&self, pause: Duration) -> Instant {
        self.deadline.min(Instant::now() + pause)
    }
}

fn lock_answer<V>(asked: &Asked<V>) -> LockAnswer {
    match asked {
        Asked::Granted(_) => LockAnswer::Acquired,
        Asked::Hit(_) => LockAnswer::Hit,
        Asked::Locked(_) => LockAnswer::Locked,
        Asked::Held(_) => LockAnswer::Held,
    }
}

impl<V: Send + Sync + 'static> Engine<V> {
    fn errands(&self) -> Errands {
        Errands { tasks: self.tasks.clone(), runtime: tokio::runtime::Handle::current() }
    }

    /// Gives up waiting for another process.
    pub(crate) fn waited_too_long(&self, key: &Key) -> Error {
        self.observer.happened(Happening::WaitTimedOut { key });
        Error::retry_in(ErrorKind::WaitTimeout, self.settings.hold.first)
    }
}
