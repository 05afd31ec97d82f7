//! One call of the origin for several keys.
//!
//! Each key of a batch goes the way of every caller: it has a flight, a lease and a hold of its own.
//! What the keys share is the call of the loader, and the place for it. So nothing that holds for
//! one key has to hold for a batch once more.
//!
//! # What enters
//!
//! A [`Batcher`] has the loader. A caller of several keys makes a [`Gathering`], has a [`Member`]
//! of it for each key that it does not find, and polls the way of each once: what leads, or
//! computes alone, is a part of the batch then. A single caller has a gathering for its key alone,
//! or, where there is a window, none.
//!
//! # What happens
//!
//! ```text
//! keys that lead ─┐                     ┌─ cleared ─────────── call ─┐
//!                 ├─ one driver's task ─┤                            ├─ a reply for each
//! keys alone ─────┘                     └─ late ─ open round ─ call ─┘
//! ```
//!
//! A key is late that has waited for another process, or whose caller has waited for another
//! caller. Late keys of all callers share the open round of their batcher, for 5 ms, as single
//! callers do for `batch_window`. A caller whose driver is gone (its runtime has ended) asks anew.
//!
//! # Reading order
//!
//! - `cache::seat`: what the question of a key knows of its batch.
//! - `round`: keys that gather, and the two ways of a key.
//! - `driver`: from keys to calls, and from a call to the ends of its flights.
//! - here: the caller's side.

mod driver;
mod round;

use std::future::{Future, ready};
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot;

use crate::cache::batch::round::{BatchKey, KeyOutcome, Panic, Round, Way};
pub(crate) use crate::cache::batch::round::{BatchLoad, Batcher, KeyToLoad, LoadedPairs};
use crate::cache::call_options::{CallContext, CallOptions};
use crate::cache::computation::{BoxedCall, Compute};
use crate::cache::compute::Answer;
use crate::cache::key_work::{KeyQuestion, KeyWork};
use crate::cache::seat::{AppKey, OpenCall, Seat};
use crate::cache::state::{CacheState, Lookup};
use crate::error::{BoxError, Error, ErrorKind, LoadFailure};
use crate::flight::door::{Lead, LeadOutcome};
use crate::flight::engine::{GRACE, PlaceForOne};
use crate::flight::request::LedFor;
use crate::key::Key;
use crate::mode::Mode;

/// After so many drivers that are gone a caller is told of a shutdown: its own runtime may have ended.
const MAX_DRIVERS: u8 = 8;

/// The round of one caller, as long as it gathers its keys. Dropped, it goes to a driver.
pub(crate) struct Gathering<V: Clone + Send + Sync + 'static> {
    batcher: Arc<Batcher<V>>,
    round: Arc<Round<V>>,
}

impl<V: Clone + Send + Sync + 'static> Gathering<V> {
    pub(crate) fn new(batcher: &Arc<Batcher<V>>) -> Self {
        Self { batcher: Arc::clone(batcher), round: batcher.new_round() }
    }

    /// Returns whether it has as many keys as a call may have.
    pub(crate) fn is_full(&self) -> bool {
        self.round.is_full()
    }

    pub(crate) fn member(&self, key: Key, app_key: AppKey) -> Member<V> {
        Member::of(&self.batcher, (key, app_key), Some(&self.round))
    }
}

impl<V: Clone + Send + Sync + 'static> Drop for Gathering<V> {
    fn drop(&mut self) {
        let call = Arc::clone(&self.round.call);
        self.batcher.drive(self.round.take(), Some(call));
    }
}

/// How one key of a batch is computed: with others, by the loader of its batcher.
pub(crate) struct Member<V: Clone + Send + Sync + 'static> {
    key: Key,
    batcher: Arc<Batcher<V>>,
    seat: Arc<Seat>,
    /// The round of its caller.
    own: Option<Arc<Round<V>>>,
    /// Where it computes alone.
    place: Option<PlaceForOne<V>>,
    context: Option<Arc<CallContext<V>>>,
}

impl<V: Clone + Send + Sync + 'static> Clone for Member<V> {
    fn clone(&self) -> Self {
        let (batcher, seat) = (Arc::clone(&self.batcher), Arc::clone(&self.seat));
        let (own, context) = (self.own.clone(), self.context.clone());
        Self { key: self.key.clone(), batcher, seat, own, place: None, context }
    }
}

impl<V: Clone + Send + Sync + 'static> Member<V> {
    fn of(
        batcher: &Arc<Batcher<V>>,
        (key, app_key): (Key, AppKey),
        own: Option<&Arc<Round<V>>>,
    ) -> Self {
        let call = own.map_or_else(|| batcher.open_call(), |own| Arc::clone(&own.call));
        let seat = Arc::new(Seat::new(app_key, call, Arc::clone(batcher) as Arc<dyn OpenCall>));
        let (batcher, own) = (Arc::clone(batcher), own.cloned());
        let context = batcher.sees_stored.then(|| CallContext::new(CallOptions::default()));
        Self { key, batcher, seat, own, place: None, context }
    }

    pub(super) fn work(&self, state: &Arc<CacheState<V>>) -> KeyWork<V, Self> {
        let work = KeyWork::serve(state, self.key.clone(), None, self.clone());
        work.with_seat(&self.seat).with_context(self.context.clone())
    }

    /// Takes the key to a driver: that of its caller as long as this gathers, or one of its own.
    /// Returns what happens to the key.
    fn enter(
        &self,
        way: Way<V, KeyQuestion<V>>,
    ) -> oneshot::Receiver<Result<KeyOutcome<V>, Panic>> {
        let (reply, outcome) = oneshot::channel();
        let key = BatchKey { key: self.key.clone(), seat: Arc::clone(&self.seat), way, reply };
        let late = match &self.own {
            Some(own) => own.push(key, Duration::ZERO).err().map(|late| *late),
            None => Some(key),
        };
        self.batcher.drive(late.into_iter().collect(), None);
        outcome
    }

    fn enter_led(
        &self,
        lead: Lead<V>,
        question: KeyQuestion<V>,
    ) -> oneshot::Receiver<Result<KeyOutcome<V>, Panic>> {
        let token = lead.engine().tasks.token();
        self.enter(Way::Led(Box::new((lead, question)), token))
    }

    /// Leads a key that is computed with others.
    fn lead(
        mut lead: Lead<V>,
        work: KeyWork<V, Self>,
    ) -> impl Future<Output = LeadOutcome<V, KeyWork<V, Self>>> + Send {
        let KeyWork { question, compute: member } = work;
        let (engine, interest) = (Arc::clone(lead.engine()), lead.part_from_caller());
        let outcome = member.enter_led(lead, question);
        async move {
            let outcome = match engine.watched(interest, outcome).await {
                Ok(Ok(outcome)) => outcome.unwrap_or_else(|panic| resume_unwind(panic)),
                Ok(Err(_)) => return LeadOutcome::Refused(Error::new(ErrorKind::ShutDown), None),
                Err(error) => return LeadOutcome::Refused(error, None),
            };
            let back = |question| KeyWork { question, compute: member };
            match outcome {
                KeyOutcome::Called(result) => LeadOutcome::Called(result),
                KeyOutcome::Found(entry, question) => LeadOutcome::Found(entry, back(question)),
                KeyOutcome::Refused(error, question) => {
                    LeadOutcome::Refused(error, Some(back(question)))
                }
            }
        }
    }

    /// The same where no caller waits.
    pub(super) fn lead_in_background(
        mut lead: Lead<V>,
        work: KeyWork<V, Self>,
    ) -> impl Future<Output = ()> + Send {
        drop(lead.part_from_caller());
        work.compute.enter_led(lead, work.question).map(drop)
    }

    /// Computes the key outside of any flight.
    async fn compute_alone(mut self) -> Result<V, Error> {
        let engine = Arc::clone(&self.batcher.engine);
        let (settings, gathering) = (&engine.settings, self.batcher.longest_gathering());
        let longest = gathering + settings.wait_timeout() + settings.compute_timeout() + GRACE;
        for _ in 0..MAX_DRIVERS {
            let is_limited = engine.mode() == Mode::On;
            let without_place = || engine.join_without_place(&self.seat.origin_call());
            let mut place = self.place.take().or_else(without_place);
            // The caller waits, and may go away before the call ends.
            let _wait = place.as_mut().map(PlaceForOne::take_wait);
            let outcome = self.enter(Way::Alone { place, is_limited });
            let outcome = match is_limited {
                true => tokio::time::timeout(longest, outcome).await,
                false => Ok(outcome.await),
            };
            match outcome {
                Ok(Ok(Ok(KeyOutcome::Called(result)))) => {
                    return result.map_err(|failed| failed.error);
                }
                Ok(Ok(Err(panic))) => resume_unwind(panic),
                // Its driver is gone.
                Ok(_) => {}
                Err(_) if engine.mode() == Mode::On => {
                    return Err(Error::new(ErrorKind::ComputeTimeout));
                }
                // Switched off since: nothing ends its work now, but this call may stand still with the
                // runtime of another caller.
                Err(_) => {}
            }
        }
        Err(Error::new(ErrorKind::ShutDown))
    }
}

impl<V: Clone + Send + Sync + 'static> Compute<V> for Member<V> {
    type Own = V;
    type Error = BoxError;
    type Call = BoxedCall<V>;

    fn call(self) -> BoxedCall<V> {
        Box::pin(async { Ok((None, self.compute_alone().await.map_err(LoadFailure)?)) })
    }

    fn takes_place(&mut self, place: &mut Option<PlaceForOne<V>>) -> bool {
        self.place = place.take();
        true
    }
}

impl<V: Clone + Send + Sync + 'static> CacheState<V> {
    /// Answers one caller of a typed cache with a batch loader. Without a look it gets a value whose
    /// computation began after the call.
    pub(super) async fn answer_by_batcher(
        self: &Arc<Self>,
        (key, lookup): (Key, Option<Lookup<V>>),
        app_key: AppKey,
        batcher: &Arc<Batcher<V>>,
        context: Option<Arc<CallContext<V>>>,
    ) -> Result<Answer<V, V>, Error> {
        let (mut member, own) = single(batcher, key.clone(), app_key);
        member.context = context.or(member.context);
        let (context, is_fresh_read) = (member.context.clone(), lookup.is_none());
        let answer = self.answer_in_batch(lookup, member);
        match is_fresh_read {
            true => begin_and(own, self.read_in_time(&key, context.as_deref(), answer)).await,
            false => begin_and(own, answer).await,
        }
    }

    /// Answers a caller of one key of a batch.
    pub(super) async fn answer_in_batch(
        self: &Arc<Self>,
        mut lookup: Option<Lookup<V>>,
        member: Member<V>,
    ) -> Result<Answer<V, V>, Error> {
        let (mut drivers, is_fresh_read) = (1..MAX_DRIVERS, lookup.is_none());
        loop {
            let in_background = |lead, work| {
                drop(Member::lead_in_background(lead, work));
                ready(None)
            };
            let refresh_by = (LedFor::Refresh, in_background);
            let lead = |lead, work| self.counting_panics(Member::lead(lead, work));
            let answer = match lookup {
                Some(lookup) => self.answer(member.work(self), lookup, lead, refresh_by).await,
                None => self.read_fresh(member.work(self), lead).await,
            };
            if !self.is_driver_lost(&answer) || drivers.next().is_none() {
                return answer;
            }
            lookup = (!is_fresh_read).then(|| self.look(member.key.as_bytes()));
        }
    }

    /// Returns whether a key has no answer because the runtime of its driver has ended.
    fn is_driver_lost(&self, answer: &Result<Answer<V, V>, Error>) -> bool {
        let is_lost = |error: &Error| error.kind() == ErrorKind::ShutDown;
        answer.as_ref().is_err_and(is_lost) && !self.engine.stop.is_cancelled()
    }
}

/// Returns how a single caller computes: in the open round where there is a window, else at once.
fn single<V: Clone + Send + Sync + 'static>(
    batcher: &Arc<Batcher<V>>,
    key: Key,
    app_key: AppKey,
) -> (Member<V>, Option<Gathering<V>>) {
    if !batcher.window.is_zero() {
        return (Member::of(batcher, (key, app_key), None), None);
    }
    let own = Gathering::new(batcher);
    (own.member(key, app_key), Some(own))
}

/// Polls an answer once, which begins what it needs, and goes on.
async fn begin_and<G, F: Future>(own: G, answer: F) -> F::Output {
    let mut answer = pin!(answer);
    match futures_util::poll!(answer.as_mut()) {
        Poll::Ready(output) => output,
        Poll::Pending => {
            drop(own);
            answer.await
        }
    }
}
