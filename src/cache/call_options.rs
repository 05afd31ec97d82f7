//! What one call asks for beside the settings of its cache, and what its computation sees.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Tick;
use crate::computed::Computed;
use crate::entry::Entry;
use crate::key::Tag;

/// The options of one call.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallOptions {
    pub(super) ttl: Option<Duration>,
    pub(super) stale_for: Option<Duration>,
    pub(super) stale_if_error: Option<Duration>,
    pub(super) tags: Vec<Tag>,
    pub(super) soft_timeout: Option<Duration>,
    pub(super) timeout: Option<Duration>,
    pub(super) skips_local_copy: bool,
    /// Whether it computes where another process does so already.
    pub(super) goes_on: bool,
}

/// The options of a call, and the older value for its computation. The caller and its computation
/// share it.
pub(crate) struct CallContext<V> {
    pub(super) options: CallOptions,
    stored: Mutex<Option<Stored<V>>>,
    /// What the leader has found in the remote.
    found: Mutex<Option<Arc<Entry<V>>>>,
}

impl<V> CallContext<V> {
    pub(super) fn new(options: CallOptions) -> Arc<Self> {
        Arc::new(Self { options, stored: Mutex::default(), found: Mutex::default() })
    }

    /// Shows the computation what is stored.
    pub(super) fn show(&self, stored: Option<Stored<V>>) {
        let before = std::mem::replace(&mut *self.stored.lock(), stored);
        // Without the lock: it may be the last owner of a value.
        drop(before);
    }

    /// Takes note of what the remote has.
    pub(super) fn note_found(&self, found: &Arc<Entry<V>>) {
        let before = self.found.lock().replace(Arc::clone(found));
        drop(before);
    }

    pub(super) fn forget_found(&self) {
        drop(self.found.lock().take());
    }

    pub(super) fn found(&self) -> Option<Arc<Entry<V>>> {
        self.found.lock().clone()
    }

    pub(super) fn take_stored(&self) -> Option<Stored<V>> {
        self.stored.lock().take()
    }

    /// Returns whether the call takes an entry in place of a failure.
    pub(super) fn accepts(&self, entry: &Entry<V>, now: Tick) -> bool {
        let limit = self.options.stale_if_error;
        limit.is_none_or(|limit| now < entry.window().fresh_until.plus(limit))
    }
}

impl<V> Computed<V> {
    /// Adds the options of the call that has computed the value. What the value says itself counts,
    /// and so do the tags that it keeps of the one that it replaces.
    pub(super) fn with_options(mut self, options: &CallOptions) -> Self {
        self.ttl = self.ttl.or(options.ttl);
        self.stale_for = self.stale_for.or(options.stale_for);
        self.stale_if_error = self.stale_if_error.or(options.stale_if_error);
        self.tags.extend_from_slice(&options.tags);
        self
    }
}

/// The older value of a key, as its computation sees it; see
/// [`EntrySelector::get_or_compute_with`](crate::EntrySelector::get_or_compute_with).
///
/// A computation can ask the origin whether this value still stands, and answer
/// [`renewed`](Self::renewed) if it does.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_stampede::{Computed, Stampede, Stored};
///
/// /// Asks the origin for the page, unless it is still this revision.
/// async fn fetch(known: Option<&str>) -> Result<Option<(String, String)>, std::io::Error> {
///     let changed = known != Some("revision 1");
///     Ok(changed.then(|| ("the page".to_owned(), "revision 1".to_owned())))
/// }
///
/// async fn page(stored: Option<Stored<String>>) -> Result<Computed<String>, std::io::Error> {
///     let known = stored.as_ref().and_then(Stored::validator);
///     match (fetch(known).await?, stored) {
///         (None, Some(stored)) => Ok(stored.renewed()),
///         (None, None) => Err(std::io::ErrorKind::InvalidData.into()),
///         (Some((page, revision)), _) => Ok(Computed::new(page).validator(revision)),
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pages: Stampede<String> = Stampede::builder("pages")
///     .ttl(Duration::from_secs(60))
///     .stale_if_error(Duration::from_secs(3600)) // keeps the older value for the next computation
///     .build()?;
/// assert_eq!(*pages.entry("/").get_or_compute_with(page).await?, "the page");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Stored<V> {
    entry: Arc<Entry<V>>,
    age: Duration,
}

impl<V> Stored<V> {
    pub(super) fn new(entry: &Arc<Entry<V>>, now: Tick) -> Self {
        Self { entry: Arc::clone(entry), age: now.since(entry.window().started) }
    }

    /// Returns the value.
    #[must_use]
    pub fn value(&self) -> &V {
        &self.entry.value
    }

    /// Returns the time since its computation began, when this one began.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.age
    }

    /// Returns what [`Computed::validator`] has set.
    #[must_use]
    pub fn validator(&self) -> Option<&str> {
        self.entry.tags.validator()
    }

    /// Returns the same value with a new lifetime: the origin has said that it still stands. It
    /// keeps its tags and its validator, unless other ones are set.
    pub fn renewed(self) -> Computed<V>
    where
        V: Clone,
    {
        let renewed = Computed::plain(self.entry.value.clone());
        match self.validator() {
            Some(validator) => renewed.validator(validator),
            None => renewed,
        }
    }
}
