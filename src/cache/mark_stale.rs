//! The methods that make values stale by their tags: a *soft purge*.

use crate::cache::handle::{Invalidation, Stampede};
use crate::key::Tag;

impl<V: Clone + Send + Sync + 'static> Stampede<V> {
    /// Makes every value stale now that carries `tag`, as if its `ttl` had ended: a soft purge.
    /// Within its stale windows, which begin now, a value is still served while one caller
    /// refreshes it. A value without such a window is computed again by the next caller.
    ///
    /// Computations that run now, and holds, are treated as by
    /// [`invalidate_tag`](Self::invalidate_tag): later callers do not join them, and their
    /// results are not stored.
    ///
    /// Reaches other processes on the same remote, as [`invalidate_tag`](Self::invalidate_tag)
    /// does; values in the remote count as stale too. Processes of a version that does not know
    /// this record ignore it.
    ///
    /// # Cost
    ///
    /// One record and one message, however many values there are. The record stands beside the
    /// one of `invalidate_tag`: a tag that is both invalidated and made stale takes two places
    /// in the logs. After the first call of this kind, a value that is looked up again once the
    /// log has changed costs one look-up more for each of its tags.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_stampede::{Computed, Stampede};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let cache: Stampede<u32> = Stampede::builder("prices")
    ///     .ttl(Duration::from_secs(60))
    ///     .stale_for(Duration::from_secs(60))
    ///     .build()
    ///     .unwrap();
    /// cache.put_with("a", Computed::new(1).tag("shop:7")).await;
    /// cache.mark_tag_stale("shop:7").await;
    /// let info = cache.lookup("a").expect("it is still there");
    /// assert!(info.ttl_left.is_zero() && !info.stale_left.is_zero());
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once polled, it is done, here and in the remote.
    pub async fn mark_tag_stale(&self, tag: impl Into<Tag>) -> Invalidation {
        self.mark_tags_stale([tag]).await
    }

    /// Makes every value stale now that carries one of the tags; see
    /// [`mark_tag_stale`](Self::mark_tag_stale). One record for each tag, and with a remote one
    /// message for all.
    ///
    /// # Cancel safety
    ///
    /// As [`mark_tag_stale`](Self::mark_tag_stale).
    pub async fn mark_tags_stale<T: Into<Tag>>(
        &self,
        tags: impl IntoIterator<Item = T>,
    ) -> Invalidation {
        let tags: Vec<Tag> = tags.into_iter().map(Into::into).collect();
        self.0.mark_tags_stale(&tags).await
    }

    /// Makes every value stale now; see [`mark_tag_stale`](Self::mark_tag_stale).
    ///
    /// # Cancel safety
    ///
    /// As [`mark_tag_stale`](Self::mark_tag_stale).
    pub async fn mark_all_stale(&self) -> Invalidation {
        self.mark_tag_stale("*").await
    }
}
