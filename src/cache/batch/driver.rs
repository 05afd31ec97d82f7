//! Drives keys to their calls, and the calls themselves: on tasks, so that a caller that goes away
//! or is not polled holds up no other.
//!
//! A driver has all keys that one caller leads, or computes alone. Each key is cleared by itself: it
//! takes its part in the place of the call, and the lease. The call begins when each key has come to
//! a decision: it is cleared, or it has an answer, or it waits for another process.
//!
//! **No call waits for a key that waits for another process.** So batches that hold the leases of
//! each other's keys do not wait in a circle, in one process or in several. A key that has waited is
//! late, and goes to the open round, as the keys of single callers do where there is a window.
//!
//! Each driver with a key in the open round has a timer for its end. The first one takes the round
//! and calls, so no runtime that ends or stands still keeps the keys of the others.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::cache::batch::round::{BatchKey, Batcher, KeyOutcome, Panic, WaitingKey, Way};
use crate::cache::call_options::Stored;
use crate::cache::key_work::{BegunCall, FailedCall, KeyFailure};
use crate::cache::seat::RoundCall;
use crate::computed::Computed;
use crate::error::{Error, ErrorKind, contain_panic};
use crate::flight::door::{self, Cleared, Lead};
use crate::flight::lending;
use crate::flight::places::NoPlace;
use crate::garbage::drop_caught;
use crate::key::Key;
use crate::mode::Mode;
use crate::observe::{self, Occurrence};

/// A key whose call runs.
type BegunKey<V> = BatchKey<V, BegunCall<V>>;

impl<V: Clone + Send + Sync + 'static> Batcher<V> {
    /// Drives these keys on a task: to the call `own`, or to the open round.
    pub(super) fn drive(self: &Arc<Self>, keys: Vec<WaitingKey<V>>, own: Option<Arc<RoundCall>>) {
        if !keys.is_empty() {
            self.engine.drive(Arc::clone(self).drive_all(keys, own));
        }
    }

    async fn drive_all(self: Arc<Self>, keys: Vec<WaitingKey<V>>, own: Option<Arc<RoundCall>>) {
        let mut awaited = Vec::new();
        let mut work: FuturesUnordered<BoxFuture<'static, _>> = FuturesUnordered::new();
        for key in keys {
            if own.is_some() {
                key.seat.await_decision();
                awaited.push(Arc::clone(&key.seat));
            }
            work.push(Arc::clone(&self).prepare(key).boxed());
        }
        if let Some(own) = own {
            let mut ready = Vec::new();
            // The next key that has come to a decision, until all have.
            let mut decided = poll_fn(|cx| match work.poll_next_unpin(cx) {
                Poll::Pending => {
                    while awaited.pop_if(|seat| !seat.is_awaited()).is_some() {}
                    if awaited.is_empty() { Poll::Ready(None) } else { Poll::Pending }
                }
                next => next,
            });
            while let Some(key) = (&mut decided).await {
                ready.extend(key);
            }
            work.push(async move { self.call(&own, ready).await }.map(|()| None).boxed());
        }
        while work.next().await.is_some() {}
    }

    /// Clears a key. Returns it where its own call waits for it; else it goes to the open round.
    async fn prepare(self: Arc<Self>, key: WaitingKey<V>) -> Option<WaitingKey<V>> {
        let (seat, engine) = (Arc::clone(&key.seat), &self.engine);
        let cleared = if key.is_led() {
            // Dropped by a shutdown, the leader ends as one that is lost.
            let name = key.key.clone();
            let clear = observe::leading(&engine.label, &name, key.clear());
            engine.stop.run_until_cancelled(clear).await.flatten()
        } else {
            Some(key)
        };
        let is_in_time = seat.decide();
        let key = cleared?;
        if is_in_time {
            return Some(key);
        }
        self.gather(key).await;
        None
    }

    /// Adds a key to the open round, and calls at its end if no other driver has done so.
    async fn gather(&self, mut key: WaitingKey<V>) {
        let (round, begins_at) = loop {
            // Also where the cache is on again: a caller without a limit shares no call.
            let is_shared = self.engine.mode() == Mode::On && key.way.is_limited();
            let round = if is_shared { self.open_round() } else { self.new_round() };
            if key.join_call(&round.call).await.is_err() {
                let error = self.engine.overloaded(&key.key);
                return key.fail(error).await;
            }
            if !is_shared {
                // No caller is delayed, and none depends on the runtime of another.
                return self.call(&round.call, vec![key]).await;
            }
            match round.push(key, self.longest_gathering()) {
                Ok(begins_at) => break (round, begins_at),
                Err(back) => key = *back,
            }
            self.replace_open(&round);
        };
        tokio::time::sleep_until(begins_at).await;
        self.call(&round.call, round.take()).await;
    }

    /// Calls the loader for those of the keys that are wanted.
    async fn call(&self, call: &RoundCall, keys: Vec<WaitingKey<V>>) {
        let keys: Vec<_> = keys.into_iter().filter_map(BatchKey::begin).collect();
        if keys.iter().any(BatchKey::is_led) {
            self.engine.stop.run_until_cancelled(self.run_loader(call, keys)).await;
        } else if !keys.is_empty() {
            // Callers that compute alone do so also after a shutdown.
            self.run_loader(call, keys).await;
        }
    }

    /// Runs the loader once, at most `compute_timeout` long, and ends each key.
    ///
    /// It is dropped where that is of no use to any caller.
    async fn run_loader(&self, call: &RoundCall, mut keys: Vec<BegunKey<V>>) {
        let engine = &self.engine;
        let (from, count) = (Instant::now(), keys.len() as u64);
        let to_load = |key: &BegunKey<V>| (Arc::clone(&key.seat.app_key), key.stored());
        let keys_to_load = keys.iter().map(to_load).collect();
        let work = async {
            let mut values = HashMap::new();
            for (key, value) in (self.load)(keys_to_load).await? {
                drop_caught(values.insert(key, value));
            }
            Ok::<_, Error>(values)
        };
        let work = lending::within(Arc::clone(&call.scope), work);
        let (limit, begun_in) = (engine.settings.compute_timeout(), engine.mode());
        // The work is dropped before the last key ends, and the place returns.
        let loaded = {
            let mut work = pin!(Some(AssertUnwindSafe(work).catch_unwind()));
            loop {
                let driven = work.as_mut().as_pin_mut().expect("it is dropped where this ends");
                let leaders = keys.iter().filter_map(BatchKey::lead);
                leaders.for_each(|lead| lead.expect_within(limit));
                match tokio::time::timeout(limit, while_wanted(driven, &mut keys)).await {
                    Ok(Some(loaded)) => break Some(loaded),
                    // A panic in its `Drop` is none of the loader.
                    Ok(None) => {
                        contain_panic(|| work.set(None));
                        return keys.into_iter().for_each(BatchKey::cancel);
                    }
                    Err(_) if engine.mode() == Mode::On => {
                        let is_unbounded = |key: &BegunKey<V>| key.is_unbounded(begun_in);
                        let late;
                        (keys, late) = keys.into_iter().partition(is_unbounded);
                        if keys.is_empty() {
                            keys = late;
                            break None;
                        }
                        end_late(late).await;
                    }
                    Err(_) => {}
                }
                // The others go on for their callers.
                keys.iter().filter_map(BatchKey::lead).for_each(Lead::forget);
            }
        };
        let Some(loaded) = loaded else { return end_late(keys).await };
        engine.observer.happened(Occurrence::BatchCalled { keys: count, took: from.elapsed() });
        match loaded {
            Ok(loaded) => self.end_loaded(keys, loaded).await,
            Err(panic) => {
                // One of the callers gets what the loader panicked with.
                let mut panic = Some(panic);
                for key in keys {
                    let text = || Box::new("the loader of a batch panicked") as Panic;
                    key.end_panicked(panic.take().unwrap_or_else(text));
                }
            }
        }
    }

    async fn end_loaded(
        &self,
        keys: Vec<BegunKey<V>>,
        mut loaded: Result<HashMap<Key, Computed<V>>, Error>,
    ) {
        // Together: some tell the remote.
        let ends = FuturesUnordered::new();
        let mut is_told = false;
        for mut key in keys {
            if let (Way::Led(led, _), Err(_)) = (&mut key.way, &loaded)
                && std::mem::replace(&mut is_told, true)
            {
                led.0.is_told_of();
            }
            let result = catch_unwind(AssertUnwindSafe(|| match &mut loaded {
                Ok(values) => {
                    let found = values.remove(&key.key);
                    found.ok_or_else(|| (self.absent)(&key.seat.app_key))
                }
                Err(error) => Err(error.clone()),
            }));
            match result {
                Ok(mut result) => {
                    if key.lead().is_none()
                        && let Ok(computed) = &mut result
                        && let Some(rest) = computed.rest.take()
                    {
                        // For its caller alone: nothing of the stream is kept.
                        rest.drive(None, None).into_iter().for_each(|rest| self.engine.go_on(rest));
                    }
                    ends.push(key.end(result.map_err(KeyFailure::Computation)));
                }
                Err(panic) => key.end_panicked(panic),
            }
        }
        ends.collect::<Vec<()>>().await;
        // Of keys that were not asked for. That is code of the user.
        if let Ok(values) = loaded {
            values.into_values().for_each(drop_caught);
        }
    }
}

impl<V: Clone + Send + Sync + 'static, Q> BatchKey<V, Q> {
    fn lead(&self) -> Option<&Lead<V>> {
        match &self.way {
            Way::Led(led, _) => Some(&led.0),
            Way::Alone { .. } => None,
        }
    }

    fn is_led(&self) -> bool {
        self.lead().is_some()
    }
}

impl<V: Clone + Send + Sync + 'static> WaitingKey<V> {
    /// Takes the place and the lease of a key that its caller leads. Returns nothing where it needs
    /// no call.
    async fn clear(self) -> Option<Self> {
        let Self { key, seat, way, reply } = self;
        let Way::Led(led, token) = way else { return Some(Self { key, seat, way, reply }) };
        let (lead, mut question) = *led;
        let outcome = match door::clear(lead, &mut question).await {
            Cleared::Call(lead) => {
                // It waits for the others.
                lead.expect_within(lead.engine().settings.compute_timeout());
                let way = Way::Led(Box::new((lead, question)), token);
                return Some(Self { key, seat, way, reply });
            }
            Cleared::Found(found, leavings) => {
                let outcome = KeyOutcome::Found(found, question);
                answer(reply, Ok(outcome), leavings).await;
                return None;
            }
            Cleared::Refused(error) => KeyOutcome::Refused(error, question),
        };
        drop_caught(reply.send(Ok(outcome)));
        None
    }

    /// Makes the key a part of a call, and waits for the place of that.
    async fn join_call(&mut self, call: &RoundCall) -> Result<(), NoPlace> {
        match &mut self.way {
            Way::Led(led, _) => led.0.move_to_call(&call.origin_call).await,
            Way::Alone { place: Some(place), .. } => place.move_to_call(&call.origin_call).await,
            Way::Alone { place: None, .. } => Ok(()),
        }
    }

    /// The key's part in the call begins. Returns nothing where no caller wants it.
    fn begin(self) -> Option<BegunKey<V>> {
        let Self { key, seat, way, reply } = self;
        let way = match way {
            Way::Led(led, _) if !led.0.is_wanted() => return None,
            Way::Alone { .. } if reply.is_closed() => return None,
            Way::Alone { place, is_limited } => Way::Alone { place, is_limited },
            Way::Led(led, token) => {
                let (mut lead, question) = *led;
                let begun = question.begin(&mut lead);
                lead.begin();
                Way::Led(Box::new((lead, begun)), token)
            }
        };
        Some(BatchKey { key, seat, way, reply })
    }

    async fn fail(self, error: Error) {
        if let Some(begun) = self.begin() {
            begun.end(Err(KeyFailure::Engine(error))).await;
        }
    }
}

impl<V: Clone + Send + Sync + 'static> BegunKey<V> {
    fn stored(&self) -> Option<Stored<V>> {
        match &self.way {
            Way::Led(led, _) => led.1.stored(),
            Way::Alone { .. } => None,
        }
    }

    /// Returns whether the work for it has no time-out. `begun_in` is the mode in which the call
    /// began.
    fn is_unbounded(&self, begun_in: Mode) -> bool {
        self.lead().map_or(begun_in != Mode::On, Lead::is_unbounded)
    }

    /// Waits until the key is of no use: without a flight or a place of its own, it is computed
    /// for its caller alone.
    async fn wait_until_needless(&mut self) {
        match &self.way {
            Way::Led(led, _) => led.0.wait_until_needless().await,
            Way::Alone { .. } => self.reply.closed().await,
        }
    }

    fn is_needless(&self) -> bool {
        self.lead().map_or_else(|| self.reply.is_closed(), Lead::is_needless)
    }

    /// Ends the key's part, and tells its caller.
    async fn end(self, result: Result<Computed<V>, KeyFailure>) {
        let Self { way, reply, .. } = self;
        let Way::Led(led, _token) = way else {
            let failed = |failure: KeyFailure| FailedCall::alone(failure.into_error());
            let result = result.map(|computed| computed.value).map_err(failed);
            return answer(reply, Ok(KeyOutcome::Called(result)), ()).await;
        };
        let end = async {
            let (lead, begun) = *led;
            match result {
                Ok(mut computed) => {
                    // The clone is stored: it has no spare capacity.
                    let stored = computed.value.clone();
                    let own = std::mem::replace(&mut computed.value, stored);
                    let leavings = match computed.rest.take() {
                        Some(rest) => {
                            let leavings = begun.end_arriving(lead, computed, rest).await;
                            return (Ok(own), (leavings, None));
                        }
                        None => begun.end_computed(lead, Some(computed)).await,
                    };
                    (Ok(own), (leavings, Some(begun)))
                }
                Err(failure) => {
                    let (failed, leavings) = begun.end_failed(lead, failure).await;
                    (Err(failed), (leavings, Some(begun)))
                }
            }
        };
        match AssertUnwindSafe(end).catch_unwind().await {
            Ok((result, rest)) => answer(reply, Ok(KeyOutcome::Called(result)), rest).await,
            Err(panic) => answer(reply, Err(panic), ()).await,
        }
    }

    fn cancel(self) {
        if let Way::Led(led, _token) = self.way {
            led.0.cancel();
        }
    }

    fn end_panicked(self, panic: Panic) {
        if let Way::Led(led, _token) = self.way {
            led.0.end_panicked(&*panic);
        }
        drop_caught(self.reply.send(Err(panic)));
    }
}

/// Tells the caller of a key what has happened to it. To drop the rest of the flight runs code of the
/// user, and so does an answer that no caller takes: the other keys of the driver end first, and their
/// callers have their turn.
async fn answer<V: Clone + Send + Sync + 'static>(
    reply: oneshot::Sender<Result<KeyOutcome<V>, Panic>>,
    outcome: Result<KeyOutcome<V>, Panic>,
    rest: impl Send,
) {
    let unsent = reply.send(outcome).err();
    tokio::task::yield_now().await;
    drop_caught((unsent, rest));
}

/// Drives the call until it ends, or none of its keys is of use.
async fn while_wanted<V: Clone + Send + Sync + 'static, F: Future + Unpin>(
    mut work: F,
    keys: &mut [BegunKey<V>],
) -> Option<F::Output> {
    let mut needless = pin!(async {
        loop {
            for key in &mut *keys {
                key.wait_until_needless().await;
            }
            // A key that had no caller may have one again.
            if keys.iter().all(|key| key.is_needless()) {
                return;
            }
        }
    });
    poll_fn(|cx| match work.poll_unpin(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => needless.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// Ends keys whose time is over.
async fn end_late<V: Clone + Send + Sync + 'static>(keys: Vec<BegunKey<V>>) {
    let error = Error::new(ErrorKind::ComputeTimeout);
    let ends = keys.into_iter().map(|key| key.end(Err(KeyFailure::Engine(error.clone()))));
    ends.collect::<FuturesUnordered<_>>().collect::<Vec<()>>().await;
}
