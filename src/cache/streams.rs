//! A value that is a stream: its flight goes on until the last chunk is there, and its callers have
//! it from the first one on.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use crate::cache::entry_selector::EntrySelector;
use crate::cache::handle::Stampede;
use crate::cache::key_work::{BegunCall, KeyFailure};
use crate::cache::state::CacheState;
use crate::computed::Computed;
use crate::entry::{Entry, Tags};
use crate::error::{Error, ErrorKind};
use crate::flight::door::{Lead, within};
use crate::flight::end::Leavings;
use crate::freshness::{Lifetimes, Window};
use crate::key::ToKey;
use crate::stream::rest::{Rest, StreamFlight};
use crate::stream::{Chunks, Producer, Recording};

/// For how long a stream that arrives may be joined: until its end. Its lifetime counts from there.
const WHILE_IT_ARRIVES: Lifetimes = Lifetimes {
    ttl: Duration::from_secs(100 * 365 * 24 * 3600),
    stale_for: Duration::ZERO,
    stale_if_error: Duration::ZERO,
};

impl<T, K> EntrySelector<'_, Stampede<Recording<T>>, K>
where
    T: Clone + Send + Sync + 'static,
    K: ToKey,
{
    /// Returns the chunks of the stream of `key`, from the first one on: of the one that is stored,
    /// of the one that arrives, or of a new one. Of all callers that ask at once, one has `produce`
    /// called. The call returns once the first chunk is there.
    ///
    /// The stream is polled on a task of the cache: it goes on when its callers go away, as fast as
    /// chunks come, and no reader holds it or another reader back. Until it ends it is a
    /// computation: it has its place among [`max_computations`](crate::Builder::max_computations)
    /// and its lease, new callers join it, and an invalidation makes later callers begin another
    /// one. `compute_timeout` ends the wait for the first chunk,
    /// [`Producer::chunk_timeout`] that for each other one. Nothing bounds the whole.
    ///
    /// It is stored once it has ended well, and its lifetime counts from then. Its chunks are kept
    /// while it arrives: see [`Producer::max_bytes`]. In other processes callers wait for its end,
    /// for up to `wait_timeout`, or, with
    /// [`beside_other_processes`](EntrySelector::beside_other_processes), produce for themselves.
    ///
    /// # Errors
    ///
    /// As [`Stampede::get_or_compute`], up to the first chunk. What goes wrong later is an item of
    /// the stream, for all its readers: a [`StreamError`](crate::StreamError). It counts as a failed
    /// computation.
    ///
    /// # Panics
    ///
    /// As [`Stampede::get_or_compute`], up to the first chunk. A panic after that ends the stream
    /// with [`StreamErrorKind::CutOff`](crate::StreamErrorKind::CutOff).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, as [`Stampede::get_or_compute`].
    ///
    /// # Examples
    ///
    /// Opening the stream may wait too:
    ///
    /// ```
    /// use std::{io, time::Duration};
    /// use futures_util::{Stream, TryFutureExt, TryStreamExt, stream};
    /// use tower_stampede::{Recording, Stampede};
    ///
    /// async fn open() -> io::Result<impl Stream<Item = io::Result<u64>>> {
    ///     Ok(stream::iter((1..=3).map(Ok)))
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rows: Stampede<Recording<u64>> = Stampede::in_memory(Duration::from_secs(60));
    /// let chunks = rows.entry("export").tag("orders").get_or_stream(|| open().try_flatten_stream());
    /// assert_eq!(chunks.await?.try_collect::<Vec<_>>().await?, [1, 2, 3]);
    /// # Ok(()) }
    /// ```
    pub fn get_or_stream<F, P>(self, produce: F) -> impl Future<Output = Result<Chunks<T>, Error>>
    where
        F: FnOnce() -> P + Send + 'static,
        P: Into<Producer<T>>,
    {
        let state = Arc::clone(&self.cache.0);
        let slot = Arc::new(Mutex::new(Some(produce)));
        let taken = Arc::clone(&slot);
        let begin = move || {
            let produce = taken.lock().take();
            let producer = produce.map(|produce| produce().into());
            async move {
                match producer {
                    Some(producer) => producer.begin().await,
                    // Not reached: it is called once, and the other caller of it comes after it.
                    None => Err(Error::new(ErrorKind::ShutDown).into()),
                }
            }
        };
        let asked = self.get_or_compute(begin);
        async move {
            let chunks = asked.await?.stream();
            if !chunks.is_late() {
                return Ok(chunks);
            }
            // It has joined a stream whose beginning was given up before it could read.
            let Some(produce) = slot.lock().take() else { return Ok(chunks) };
            let limit = state.engine.settings.compute_timeout();
            let own = tokio::time::timeout(limit, produce().into().begin()).await;
            let own = own.map_err(|_| Error::new(ErrorKind::ComputeTimeout))?;
            let own = own.map_err(Error::of_computation)?;
            own.rest.into_iter().for_each(|rest| state.drive_alone(rest));
            Ok(own.value.stream())
        }
    }
}

impl<V: Clone + Send + Sync + 'static> CacheState<V> {
    /// Lets a stream go on for its one caller: nothing of it is kept.
    pub(super) fn drive_alone(&self, rest: Rest<V>) {
        rest.drive(None, None).into_iter().for_each(|rest| self.engine.go_on(rest));
    }
}

impl<V: Clone + Send + Sync + 'static> BegunCall<V> {
    /// Hands out a value that arrives, and lets its flight go on until it is whole.
    pub(super) async fn end_arriving(
        self,
        lead: Lead<V>,
        computed: Computed<V>,
        rest: Rest<V>,
    ) -> Leavings<V> {
        if !computed.storable {
            self.state.drive_alone(rest);
            return self.end_computed(lead, Some(computed)).await;
        }
        let facts = lead.facts();
        let shown = self.with_options(computed.clone());
        let window = Window::new(facts.started.tick, WHILE_IT_ARRIVES, Duration::ZERO);
        let tags = Tags::new(shown.tags.into(), None);
        let entry = Arc::new(Entry::new(shown.value, window, tags, facts.started.seq));
        let (state, scope) = (Arc::clone(&self.state), lead.scope());
        let leavings = lead.publish(&entry);
        let flight = Box::new(ArrivingValue { lead, begun: self, computed, entry });
        let reserved = state.values.arriving.reserve(0);
        let rest = rest.drive(Some(flight), reserved);
        if let Some(rest) = rest {
            state.engine.go_on(within(scope, rest));
        }
        leavings
    }
}

/// The flight of a value that arrives.
struct ArrivingValue<V: Clone + Send + Sync + 'static> {
    lead: Lead<V>,
    begun: BegunCall<V>,
    /// What the whole is made of.
    computed: Computed<V>,
    /// What its callers have.
    entry: Arc<Entry<V>>,
}

impl<V: Clone + Send + Sync + 'static> StreamFlight<V> for ArrivingValue<V> {
    fn goes_on(&self, limit: Duration) {
        self.lead.expect_within(limit);
    }

    fn is_of_use(&self) -> bool {
        self.lead.may_store(&self.entry)
    }

    fn complete(self: Box<Self>, whole: V, keeps: bool) -> BoxFuture<'static, ()> {
        let Self { lead, begun, computed, .. } = *self;
        let mut computed = Computed { value: whole, ..computed };
        if !keeps {
            // For its readers alone.
            let none = Some(Duration::ZERO);
            (computed.ttl, computed.stale_for, computed.stale_if_error) = (none, none, none);
        }
        Box::pin(async move { drop(begun.end_computed(lead, Some(computed)).await) })
    }

    fn fail(self: Box<Self>, error: Error) -> BoxFuture<'static, ()> {
        self.end_failed(KeyFailure::Computation(error))
    }

    fn is_late(self: Box<Self>) -> BoxFuture<'static, ()> {
        self.end_failed(KeyFailure::Engine(Error::new(ErrorKind::ComputeTimeout)))
    }

    fn decline(self: Box<Self>) -> BoxFuture<'static, ()> {
        // What its callers have is fresh for ever. What is noted of the key must not be.
        let arriving = self.entry.value.clone();
        self.complete(arriving, false)
    }
}

impl<V: Clone + Send + Sync + 'static> ArrivingValue<V> {
    fn end_failed(self, failure: KeyFailure) -> BoxFuture<'static, ()> {
        let Self { lead, begun, .. } = self;
        Box::pin(async move { drop(begun.end_failed(lead, failure).await) })
    }
}
