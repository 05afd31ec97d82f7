//! The engine: what the flights of a handle share. Its entrance is in `admission`.
//!
//! It knows neither HTTP nor Redis nor the store that it fills; it sees them through
//! ports. Time is a parameter.

mod alone;
mod invalidation;
mod vouching;

use std::cell::OnceCell;
use std::num::NonZeroU64;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::budget::ByteBudget;
use crate::clock::{Clock, Tick};
use crate::entry::Entry;
use crate::error::{Error, ErrorKind};
use crate::flight::client_key::ClientKey;
use crate::flight::computation::{Computation, OriginCall};
use crate::flight::evidence::{Evidence, RequestTraits};
use crate::flight::hold::{HeldKey, HoldCheck, MOST_ERROR_BYTES};
use crate::flight::lending::{self, Scope, Wait};
use crate::flight::marks::Marks;
use crate::flight::phase::{Flight, SharedFailure, Verdict};
use crate::flight::places::{NoPlace, Places};
use crate::flight::ports::Store;
use crate::flight::request::FlightRequest;
use crate::flight::table::{Removed, Table, TableShard};
use crate::flight::usual_time::UsualTime;
use crate::flight::wait_slot::WaitSlot;
use crate::invalidation::{ASKED_NOW, InvalidationLog};
use crate::key::Key;
use crate::lease::shared_store::SharedStore;
use crate::lease::validity::ValidUntil;
use crate::mode::Mode;
use crate::observe::{CacheLabel, Observe, Occurrence};
use crate::settings::Settings;
use crate::sync::{Arc, AtomicUsize, Mutex, Ordering};

pub(crate) use alone::PlaceForOne;

/// How long after its own time-out a leader counts as overdue. Its own timer comes first;
/// only a leader that is no longer polled gets this far.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

pub(crate) struct Engine<V> {
    pub(crate) label: CacheLabel,
    /// All are checked when the handle is built.
    pub(crate) settings: Settings,
    pub(crate) clock: Clock,
    /// Tells when a leader is overdue: always the timers' own clock, which a test that
    /// sets the time by hand does not move.
    pub(crate) watch: Clock,
    pub(crate) log: InvalidationLog,
    pub(crate) table: Table<V>,
    pub(crate) local: Arc<dyn Store<V>>,
    /// Set once while the handle is built, if there is one.
    pub(crate) shared: OnceLock<Arc<dyn SharedStore<V>>>,
    pub(crate) observer: Arc<dyn Observe>,
    pub(crate) places: Arc<Places>,
    /// The shares of `max_refreshes`; no refresh waits for one.
    pub(crate) refreshes: Places,
    /// The room for the errors that holds repeat.
    pub(super) errors: std::sync::Arc<ByteBudget>,
    waiting: Arc<AtomicUsize>,
    pub(super) usual_time: UsualTime,
    mode: AtomicU8,
    /// Until then the remote vouches for the local copies, in nanoseconds of `clock`. Without a
    /// remote that is for ever.
    valid_until: AtomicU64,
    /// Held while the mode changes.
    switching: Mutex<()>,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
    /// The runtime of the first task, for errands from outside of any.
    pub(super) runtime: OnceLock<tokio::runtime::Handle>,
}

impl<V: Send + Sync + 'static> Engine<V> {
    pub(crate) fn new(
        label: CacheLabel,
        settings: Settings,
        clock: Clock,
        local: Arc<dyn Store<V>>,
        observer: Arc<dyn Observe>,
    ) -> Self {
        Self {
            places: Arc::new(Places::new(settings.min_computations, settings.max_computations())),
            refreshes: Places::new(None, settings.max_refreshes()),
            log: InvalidationLog::new(settings.max_logged_tags()),
            label,
            settings,
            clock,
            watch: Clock::runtime(),
            table: Table::new(),
            local,
            shared: OnceLock::new(),
            observer,
            errors: ByteBudget::new(MOST_ERROR_BYTES),
            waiting: Arc::new(AtomicUsize::new(0)),
            usual_time: UsualTime::new(),
            mode: AtomicU8::new(Mode::On as u8),
            valid_until: AtomicU64::new(ValidUntil::UNASKED.nanos()),
            switching: Mutex::new(()),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            runtime: OnceLock::new(),
        }
    }

    #[inline]
    pub(crate) fn mode(&self) -> Mode {
        Mode::from_u8(self.mode.load(Ordering::Relaxed))
    }

    /// Switches the mode, unless the handle is shut down. Returns whether it did.
    pub(crate) fn set_mode(&self, mode: Mode) -> bool {
        let switching = self.switching.lock();
        let is_open = !self.tasks.is_closed();
        if is_open {
            self.mode.store(mode as u8, Ordering::Relaxed);
        }
        drop(switching);
        if self.mode() != Mode::On {
            // A leader in the queue needs no place any more.
            self.places.wake_queue();
        }
        is_open
    }

    /// Switches the handle off, for the shutdown. Returns whether that was new.
    pub(super) fn switch_off_for_good(&self) -> bool {
        let _switching = self.switching.lock();
        let before = self.mode.swap(Mode::Off as u8, Ordering::Relaxed);
        self.tasks.close();
        before != Mode::Off as u8
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns the remote, if there is one and it is worth asking for `key`.
    pub(crate) fn remote(&self, key: &Key) -> Option<&Arc<dyn SharedStore<V>>> {
        // In this order: to ask whether it is up begins to listen to other processes. What an
        // observing process stores must hear of their invalidations.
        self.shared.get().filter(|shared| shared.is_up(key) && self.mode() == Mode::On)
    }

    /// Returns the flight that a caller may join. A flight whose result is known to be dead
    /// for this caller is none, nor is a flight whose leader is silent or that the caller has
    /// left.
    pub(super) fn current_flight(
        &self,
        shard: &TableShard<V>,
        request: &FlightRequest,
    ) -> Option<Arc<Flight<V>>> {
        let flight = shard.flight(request.key.as_bytes())?;
        let is_left = request.left.is_some_and(|left| left.get() == flight.id);
        (!is_left && self.may_be_joined(flight)).then(|| Arc::clone(flight))
    }

    fn may_be_joined(&self, flight: &Flight<V>) -> bool {
        // Once it is published, its tags are known although it is not settled.
        let is_published_dead = match flight.verdict() {
            Some(Verdict::Filled(entry)) => {
                self.log.is_dead(&entry.tags, entry.started_seq, ASKED_NOW)
            }
            _ => false,
        };
        let is_dead = is_published_dead || self.log.is_dead(&flight.tags, flight.seq, ASKED_NOW);
        // What began while the cache was not on may take for ever.
        let is_unbounded = self.mode() == Mode::On && flight.is_unbounded();
        let is_silent = flight.is_overdue(self.watch.now());
        let has_paused = flight.has_paused(self.watch.now());
        !is_dead && !is_unbounded && !is_silent && !has_paused
    }

    /// Returns whether there is a flight of a key that a caller may join: then none leads
    /// another one. Takes no place, and no key of its own.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "HTTP's stale hits"))]
    pub(crate) fn has_flight_for(&self, key: &[u8]) -> bool {
        let shard = self.table.shard_of(key).lock();
        shard.flight(key).is_some_and(|flight| self.may_be_joined(flight))
    }

    /// Lets the work for a key go on without callers, also where it still waits for its turn.
    pub(crate) fn keep_going(&self, key: &[u8]) {
        let shard = self.table.shard_of(key).lock();
        // Not work without a time-out, from before the cache was switched on: its callers bound it.
        if let Some(flight) = shard.flight(key).filter(|flight| !flight.is_unbounded()) {
            flight.keep_wanted();
        }
    }

    /// Returns the computation that runs for a key, or is to.
    pub(crate) fn running(&self, key: &Key) -> Option<Arc<Computation>> {
        let shard = self.table.shard(key).lock();
        shard.flight(key.as_bytes()).map(|flight| Arc::clone(&flight.computation))
    }

    /// Serves `entry` in place of the result of a computation. It is reported unless a failure of that
    /// computation was, or the entry is no stale one.
    pub(crate) fn hide_once(
        &self,
        key: &Key,
        computation: Option<&Computation>,
        error: &Error,
        entry: &Entry<V>,
    ) {
        let is_stale = entry.window().stale_age(self.clock.now()).is_some();
        if is_stale && computation.is_none_or(Computation::report_once) {
            self.report_hidden(key, error, entry);
        }
    }

    /// Reports a failure in whose place `entry` is served.
    pub(crate) fn report_hidden(&self, key: &Key, error: &Error, entry: &Entry<V>) {
        let stale = entry.window().stale_age(self.clock.now());
        self.observer.happened(Occurrence::FailureHidden { key, error, stale });
    }

    /// Returns whether there is a flight that a caller may join.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "HTTP's HEAD"))]
    pub(crate) fn has_flight(&self, request: &FlightRequest) -> bool {
        let shard = self.table.shard(&request.key).lock();
        self.current_flight(&shard, request).is_some()
    }

    pub(super) fn new_computation(&self, request: &FlightRequest) -> Arc<Computation> {
        // Until it computes, a leader may wait for a place that long.
        let overdue_at = self.watch.now().plus(self.settings.wait_timeout()).plus(GRACE);
        let id = self.table.next_number();
        Arc::new(match &request.call {
            Some(call) => {
                request.rank.into_iter().for_each(|rank| call.take_rank(rank.get()));
                Computation::of_call(id, overdue_at, Arc::clone(call))
            }
            None => {
                let call = OriginCall::new(id, request.rank);
                let client = request.client.or_else(|| self.client_of_caller());
                Computation::of_call(id, overdue_at, Arc::new(call.for_client(client)))
            }
        })
    }

    /// Returns the client of the computation in which the caller runs: what it asks for is for
    /// that client.
    pub(super) fn client_of_caller(&self) -> Option<ClientKey> {
        lending::computation_of_caller(&self.places)?.client()
    }

    /// Returns the scope of a call, in which what it asks of this handle borrows its place.
    pub(crate) fn scope_of(&self, call: &Arc<OriginCall>) -> Arc<Scope> {
        let (id, never) = (self.table.next_number(), Tick::from_nanos(u64::MAX));
        let computation = Arc::new(Computation::of_call(id, never, Arc::clone(call)));
        Scope::new(&self.places, &computation, lending::scope_of_caller())
    }

    /// Moves a computation to another call, and waits for no place: it needs none.
    pub(super) fn move_to_call_now(&self, computation: &Arc<Computation>, call: &Arc<OriginCall>) {
        self.places.move_to(&self.refreshes, computation, call, self.watch.now());
    }

    /// Moves a computation to another call, and waits for the place of that call until
    /// `deadline`.
    ///
    /// Cancel safe: the owner of the computation has to release it.
    pub(super) async fn move_to_call(
        &self,
        computation: &Arc<Computation>,
        call: &Arc<OriginCall>,
        deadline: Instant,
        is_wanted: impl Fn() -> bool,
    ) -> Result<(), NoPlace> {
        self.move_to_call_now(computation, call);
        let gives_up = || match self.mode() {
            _ if !is_wanted() => Some(NoPlace::Unwanted),
            Mode::On => None,
            Mode::Observe | Mode::Off => Some(NoPlace::NotNeeded),
        };
        self.places.wait(computation, deadline, &self.watch, gives_up).await
    }

    /// Makes a call of the origin that serves several flights.
    pub(crate) fn shared_call(&self) -> Arc<OriginCall> {
        let call = OriginCall::new(self.table.next_number(), None);
        Arc::new(call.for_client(self.client_of_caller()))
    }

    pub(super) fn begin_flight(
        &self,
        shard: &mut TableShard<V>,
        request: &FlightRequest,
        computation: Arc<Computation>,
        removed: &mut Removed<V>,
    ) -> Arc<Flight<V>> {
        let (number, places) = (self.table.next_number(), Arc::clone(&self.places));
        let now = self.watch.now();
        let paused = shard.flight(request.key.as_bytes()).filter(|flight| flight.has_paused(now));
        let flight = Flight::new(number, request, self.log.seq(), computation, places, paused);
        let flight = Arc::new(flight);
        *removed = self.table.insert(shard, Arc::clone(&flight));
        flight
    }

    /// Returns what a computation has of the bounds.
    pub(super) fn release(&self, computation: &Computation) {
        let now = self.watch.now();
        self.places.release(computation, now);
        self.refreshes.release(computation, now);
    }

    /// Says that the caller waits for a flight.
    pub(crate) fn wait_for(&self, flight: &Flight<V>) -> Wait {
        Wait::new(&self.places, &flight.computation)
    }

    /// Takes a slot among the callers that wait, if the bound allows one more.
    pub(crate) fn take_slot(&self) -> Option<WaitSlot> {
        WaitSlot::take(&self.waiting, self.settings.max_waiters_in_all())
    }

    /// Returns how many computations may run at once now.
    pub(crate) fn computation_limit(&self) -> usize {
        self.places.adaptive_limit().unwrap_or_else(|| self.settings.max_computations())
    }

    pub(crate) fn overloaded(&self, key: &Key) -> Error {
        self.refuses(Occurrence::Overloaded { key });
        Error::retry_in(ErrorKind::Overloaded, self.settings.hold())
    }

    pub(crate) fn held(&self, key: &Key, held: HeldKey) -> Error {
        self.refuses(Occurrence::Held { key });
        Error::held(held.rest, held.error)
    }

    /// Reports a refusal. A cache that is not on refuses no caller: it computes for itself.
    fn refuses(&self, refusal: Occurrence<'_>) {
        if self.mode() == Mode::On {
            self.observer.happened(refusal);
        }
    }

    /// Ends the flight of a leader that is silent: it is neither polled nor dropped.
    pub(crate) fn depose(&self, flight: &Arc<Flight<V>>) {
        if let Some(vacancy) = flight.take_vacancy() {
            // No waiter that may lead is polled.
            return vacancy.end();
        }
        flight.forget();
        let mut shard = self.table.shard(&flight.key).lock();
        let removed = self.table.remove(&mut shard, flight);
        drop(shard);
        self.end_deposed(flight);
        drop(removed);
    }

    fn end_deposed(&self, flight: &Flight<V>) {
        if let Some(vacancy) = flight.take_vacancy() {
            return vacancy.end();
        }
        let error = Error::new(ErrorKind::ComputeTimeout);
        let leftover = flight.settle(Verdict::Failed(SharedFailure::unreported(error)));
        flight.wake();
        self.release(&flight.computation);
        if leftover.verdict.is_none() {
            self.observer.happened(Occurrence::Deposed { key: &flight.key });
        }
        drop(leftover);
    }

    /// Drops what left the table. A flight that was replaced because its leader is silent
    /// ends with that. A flight that a caller has left, or that has paused, goes on for its
    /// readers only, and needs no place.
    pub(super) fn retire(&self, removed: Removed<V>, left: Option<NonZeroU64>) {
        if let Some(flight) = &removed.flight {
            if flight.is_overdue(self.watch.now()) {
                self.end_deposed(flight);
            } else if left.is_some_and(|left| left.get() == flight.id)
                || flight.has_paused(self.watch.now())
            {
                self.release(&flight.computation);
            }
        }
        drop(removed);
    }

    /// Returns whether any caller of `key` without a fallback is held.
    #[cfg_attr(not(feature = "http"), allow(dead_code, reason = "HTTP's HEAD"))]
    pub(crate) fn has_hold(&self, key: &Key) -> bool {
        self.is_marked(key, |marks, now| marks.hold.is_begun(now, &self.log))
    }

    /// Returns whether a caller without a fallback is held.
    pub(crate) fn is_held(&self, request: &FlightRequest) -> bool {
        let requester = request.requester();
        self.is_marked(&request.key, |marks, now| {
            marks.hold.check(now, HoldCheck::WithoutFallback, requester, &self.log).is_some()
        })
    }

    /// Forgets the flight and the hold of `key`. Returns whether there was a flight.
    pub(crate) fn forget(&self, key: &Key) -> bool {
        let (had_flight, removed) = self.table.forget(key);
        drop(removed);
        self.table.forget_related(key) || had_flight
    }

    /// Ends the local use of `key`, and returns whether there was one.
    pub(crate) fn drop_here(&self, key: &Key) -> bool {
        // In this order: a fill that is not refused is removed.
        let had_flight = self.forget(key);
        self.local.remove(key).finish() || had_flight
    }

    /// Stores `entry`, whatever a flight of the key computes.
    pub(crate) fn put_here(&self, key: &Key, entry: Arc<Entry<V>>) {
        // Under the lock of the key in the store: a computation that began before this has
        // stored its result already, and is overwritten, or will not store it. Only once,
        // though the store asks again when it has stored the entry: a computation that
        // began between the two may have replaced it, and its result stays.
        let removed = OnceCell::new();
        let change = self.local.fill(key, entry, &|| {
            removed.get_or_init(|| self.table.forget(key));
            true
        });
        drop((removed, change));
    }

    /// Returns whether something holds of the marks of a key.
    fn is_marked(&self, key: &Key, with: impl FnOnce(&Marks, Tick) -> bool) -> bool {
        let now = self.clock.now();
        self.table.read_marks(key, |marks| with(marks, now)).unwrap_or(false)
    }

    /// Returns what is known of the results of a key.
    pub(crate) fn evidence(&self, key: &Key) -> Evidence {
        self.table.read_marks(key, |marks| marks.evidence).unwrap_or_default()
    }

    /// Returns whether a caller gains nothing by waiting for another's result.
    pub(crate) fn lets_pass(&self, key: &Key, who: RequestTraits) -> bool {
        self.evidence(key).lets_pass(who, self.clock.now())
    }

    /// Returns whether the last refresh of the key was declined, and the next one waits.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "HTTP's credentials"))]
    pub(crate) fn has_declined_refresh(&self, key: &Key) -> bool {
        self.is_marked(key, |marks, now| marks.refresh_pause.has_declined(now))
    }

    /// Returns whether a caller's request equals the last one whose result might be shared.
    pub(crate) fn is_like_shared(&self, request: &FlightRequest) -> bool {
        self.evidence(&request.key).is_like_shared(request.traits, self.clock.now())
    }

    /// Changes the marks of a key.
    pub(crate) fn note(&self, key: &Key, note: impl FnOnce(&mut Marks)) {
        let mut shard = self.table.shard(key).lock();
        let (marks, removed) = shard.marks.of(key, self.clock.now());
        note(marks);
        drop(shard);
        drop(removed);
    }

    /// Forgets old marks and old invalidations.
    pub(crate) fn sweep(&self, longest_kept: Duration) {
        let now = self.clock.now();
        self.table.sweep(now);
        let running = self.settings.compute_timeout() * 2 + self.settings.wait_timeout();
        self.log.trim(now, longest_kept.saturating_add(running));
        self.log.live.sweep();
    }
}

impl<V: Send + Sync + 'static> std::fmt::Debug for Engine<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("table", &self.table).finish_non_exhaustive()
    }
}
