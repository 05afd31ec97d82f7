//! The methods that store, invalidate and mark values, with `await` and without.

use crate::cache::handle::{Invalidation, Stampede};
use crate::computed::Computed;
use crate::key::{Tag, ToKey};
#[cfg(doc)]
use crate::mode::Mode;

impl<V: Clone + Send + Sync + 'static> Stampede<V> {
    /// Stores `value` under `key`, in place of what is there. A computation that
    /// began before this call does not replace it. A hold of the key ends. While
    /// the cache is switched [`Off`](Mode::Off), this invalidates the key instead.
    ///
    /// When several writers put the same key at once, the last one to get here
    /// wins, which need not be the last one to write the database; where that
    /// matters, [`invalidate`](Self::invalidate) instead.
    ///
    /// With a remote, writes of this process to one key arrive there in the order of the calls,
    /// and a put in its order with invalidations of tags: those that are awaited, those whose
    /// callers have gone, and those without `await`. A write waits for those before it. When
    /// one of them makes no progress within three times the `op_timeout`, it is left to the
    /// journal of the process, as during an outage. Only a put whose reply did not come in time
    /// may still be executed in the remote after what came next.
    ///
    /// The remote keeps times in milliseconds. A put that follows the invalidation of one of
    /// its tags (or of everything) within a round trip, the millisecond and the drift of the clocks
    /// may count as invalidated: the next caller computes the value again.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once polled, it is done, here and in the remote.
    pub async fn put<K: ToKey>(&self, key: K, value: V) {
        self.put_with(key, Computed::new(value)).await;
    }

    /// Like [`put`](Self::put), with a value that sets its own lifetime and tags. A stream that still
    /// arrives ([`Producer::begin`](crate::Producer::begin)) is not stored: the older value ends.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once polled, it is done, here and in the remote.
    pub async fn put_with<K: ToKey>(&self, key: K, computed: Computed<V>) {
        self.0.put(key.to_key(), computed).await;
    }

    /// Removes the value of `key`. A running computation goes on for its
    /// waiters; its result is not stored, and later callers start a new one. So a
    /// caller that asks after this has returned never gets the old value. A hold of
    /// the key ends: the next caller computes.
    ///
    /// With a remote this holds in this process from the call on: a caller that would ask the
    /// remote waits until it has been told, for three times the `op_timeout` at most, and
    /// computes then. It holds in other processes once its message has arrived, for the computations that run there too.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once polled, it is done, here and in the remote.
    pub async fn invalidate<K: ToKey>(&self, key: K) -> Invalidation {
        self.0.invalidate(key.to_key()).await
    }

    /// Ends the use of every value that carries `tag`, also of those being
    /// computed now. Costs the same however many there are, with a remote too:
    /// one record and one message.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once polled, it is done, here and in the remote.
    pub async fn invalidate_tag(&self, tag: impl Into<Tag>) -> Invalidation {
        self.invalidate_tags([tag]).await
    }

    /// Ends the use of every value that carries one of the tags: one record for each, and with
    /// a remote one message for all.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_stampede::{Computed, Stampede};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let cache: Stampede<u32> = Stampede::in_memory(Duration::from_secs(60));
    /// cache.put_with("a", Computed::new(1).tag("user:1")).await;
    /// cache.put_with("b", Computed::new(2).tag("team:7")).await;
    /// cache.invalidate_tags(["user:1", "team:7"]).await;
    /// assert_eq!((cache.get("a").await, cache.get("b").await), (None, None));
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// As [`invalidate_tag`](Self::invalidate_tag).
    pub async fn invalidate_tags<T: Into<Tag>>(
        &self,
        tags: impl IntoIterator<Item = T>,
    ) -> Invalidation {
        let tags = tags.into_iter().map(Into::into).collect();
        self.0.invalidate_tags(tags).await
    }

    /// Ends the use of every value, also of those being computed now.
    ///
    /// # Cancel safety
    ///
    /// As [`invalidate_tag`](Self::invalidate_tag).
    pub async fn invalidate_all(&self) -> Invalidation {
        self.invalidate_tag("*").await
    }

    /// Makes the value of `key` stale now, as if its `ttl` had ended: within
    /// the stale windows, which begin now, it is still served while one caller refreshes it. A
    /// running computation and a hold are treated as by [`invalidate`](Self::invalidate): the
    /// computation may have read older data, so later callers do not join it, and its result is
    /// not fresh. A value that is put, or whose computation begins, after the call is fresh.
    ///
    /// Reaches other processes on the same remote, as [`invalidate_tag`](Self::invalidate_tag)
    /// does; the value in the remote counts as stale too. In a process that starts later its stale
    /// windows count from the computation: the moment of the mark is not known there. Processes of
    /// a version that does not know this record ignore it. Over a `PlainStore`, which has no log, it concerns the copy of this
    /// process alone, and [`Invalidation::remote`] is `NoRemote`.
    ///
    /// # Cost
    ///
    /// Two records in the log of the remote, one of them for all keys, and one message. The record
    /// of a key counts among those of tags.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once polled, it is done, here and in the remote.
    pub async fn mark_stale<K: ToKey>(&self, key: K) -> Invalidation {
        self.0.mark_stale(&key.to_key()).await
    }

    /// Like [`put`](Self::put), from where nothing can be awaited: in a `Drop`, or outside of
    /// a runtime.
    ///
    /// This process has the value when the call returns. With a remote, the other processes
    /// are told in the background, in the order of [`put`](Self::put): on the current runtime, or
    /// on the one that has used the cache first. Where there is none, or it ends or stands still
    /// before that, the remote is told that the old value has ended, before this process asks it
    /// again.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_stampede::Stampede;
    ///
    /// let cache: Stampede<u32> = Stampede::in_memory(Duration::from_secs(60));
    /// cache.put_now("k", 1);
    /// assert!(cache.mark_stale_now("k"));
    /// assert!(cache.invalidate_now("k"));
    /// assert!(!cache.invalidate_now("k"), "there is nothing left");
    /// ```
    pub fn put_now<K: ToKey>(&self, key: K, value: V) {
        self.put_with_now(key, Computed::new(value));
    }

    /// Like [`put_now`](Self::put_now), with a value that sets its own lifetime and tags.
    pub fn put_with_now<K: ToKey>(&self, key: K, computed: Computed<V>) {
        self.0.put_in_background(&key.to_key(), computed);
    }

    /// Like [`invalidate`](Self::invalidate), from where nothing can be awaited. Returns
    /// whether this process had something to invalidate. With a remote, the other processes
    /// are told in the background, as by [`put_now`](Self::put_now).
    pub fn invalidate_now<K: ToKey>(&self, key: K) -> bool {
        self.0.invalidate_in_background(&key.to_key())
    }

    /// Like [`invalidate_tags`](Self::invalidate_tags), from where nothing can be awaited; see
    /// [`invalidate_now`](Self::invalidate_now).
    pub fn invalidate_tags_now<T: Into<Tag>>(&self, tags: impl IntoIterator<Item = T>) {
        let tags: Vec<Tag> = tags.into_iter().map(Into::into).collect();
        self.0.invalidate_tags_in_background(&tags);
    }

    /// Like [`mark_stale`](Self::mark_stale), from where nothing can be awaited. Returns whether
    /// this process had something to make stale. With a remote, the other processes are told in
    /// the background, as by [`put_now`](Self::put_now).
    pub fn mark_stale_now<K: ToKey>(&self, key: K) -> bool {
        self.0.mark_stale_in_background(&key.to_key())
    }
}
