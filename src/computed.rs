//! A value with its own lifetime and tags.

use std::time::Duration;

use crate::entry::Entry;
use crate::key::Tag;
use crate::stream::rest::Rest;

/// The longest validator, in bytes.
pub(crate) const MAX_VALIDATOR: usize = 64 << 10;

/// A value with its own lifetime and tags; see
/// [`Stampede::get_or_compute_with`](crate::Stampede::get_or_compute_with).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_stampede::Computed;
///
/// let price = Computed::new(42).ttl(Duration::from_secs(5)).tag("item:7");
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Computed<V> {
    pub(crate) value: V,
    pub(crate) ttl: Option<Duration>,
    pub(crate) stale_for: Option<Duration>,
    pub(crate) stale_if_error: Option<Duration>,
    pub(crate) tags: Vec<Tag>,
    pub(crate) validator: Option<Box<str>>,
    pub(crate) storable: bool,
    /// Whether the tags are those of the value that is replaced: it was made of a plain value,
    /// and no tag was added.
    pub(crate) inherits_tags: bool,
    /// Of a stream: what is yet to come.
    pub(crate) rest: Option<Rest<V>>,
}

impl<V> Computed<V> {
    /// Takes a value that is kept by the cache's own settings.
    pub fn new(value: V) -> Self {
        Self {
            value,
            ttl: None,
            stale_for: None,
            stale_if_error: None,
            tags: Vec::new(),
            validator: None,
            storable: true,
            inherits_tags: false,
            rest: None,
        }
    }

    /// Takes a value from a caller that cannot set lifetime or tags.
    pub(crate) fn plain(value: V) -> Self {
        Self { inherits_tags: true, ..Self::new(value) }
    }

    /// Gives the value the tags of the one that it replaces, unless it may name its own.
    pub(crate) fn with_tags_of(mut self, replaced: Option<&Entry<V>>) -> Self {
        if self.inherits_tags
            && let Some(replaced) = replaced
        {
            self.tags = replaced.tags.to_vec();
        }
        self
    }

    /// Sets how long the value is fresh, counted from the end of the
    /// computation or, with `put_with`, from the call: the value is at most
    /// `ttl` + `compute_timeout` older than what the computation reads. Zero means: it goes to the callers that
    /// wait for it now, and is not kept, unless the value also sets its own
    /// `stale_for` or `stale_if_error`. An older value of the key ends.
    /// Defaults to the cache's `ttl`.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Sets for how long after that it may be served while it is refreshed.
    /// Defaults to the cache's `stale_for`.
    pub fn stale_for(mut self, stale_for: Duration) -> Self {
        self.stale_for = Some(stale_for);
        self
    }

    /// Sets for how long after that it may be served in place of a failure.
    /// Defaults to the cache's `stale_if_error`.
    pub fn stale_if_error(mut self, stale_if_error: Duration) -> Self {
        self.stale_if_error = Some(stale_if_error);
        self
    }

    /// Adds a tag by which the value can be invalidated.
    pub fn tag(mut self, tag: impl Into<Tag>) -> Self {
        self.tags.push(tag.into());
        self.inherits_tags = false;
        self
    }

    /// Sets what the origin knows this state of the data by: an entity tag, a date, the number of a
    /// revision. It is stored with the value, also in the remote, and the next computation of the
    /// key can ask the origin whether that state still stands: see [`Stored`](crate::Stored). The
    /// cache does not read it. At most 64 KiB: a longer one is not kept.
    pub fn validator(mut self, validator: impl Into<Box<str>>) -> Self {
        self.validator = Some(validator.into()).filter(|text| text.len() <= MAX_VALIDATOR);
        self
    }

    /// Keeps the value from being stored or handed to any other caller. The waiters
    /// compute for themselves, in parallel, and for `uncacheable_for` the
    /// next callers do not wait for each other. An older value of the key ends, also
    /// in the remote; given to `put_with`, that is all it does.
    pub fn do_not_store(mut self) -> Self {
        self.storable = false;
        self
    }
}

/// A plain value, as a loader may return it. Where it refreshes a value, it keeps the tags of that
/// one; [`Computed::new`] says that it has none but those that are added.
impl<V> From<V> for Computed<V> {
    fn from(value: V) -> Self {
        Self::plain(value)
    }
}
