//! An entry: a value in the store, with its window, its tags and its weight.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Tick;
use crate::freshness::{PackedWindow, ShortSpan, Window};
use crate::garbage::{self, BinId};
use crate::key::{Key, Tag};
use crate::lease::grant::Version;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::weigh::allocated;

/// When a computation started: by the clock, and by the invalidation log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ComputationStart {
    pub(crate) tick: Tick,
    pub(crate) seq: u64,
}

/// The weight of an entry that is heavier than the store can count. It is not
/// stored.
pub(crate) const TOO_HEAVY: u32 = u32::MAX;

/// The counts of an `Arc` and the labels in it, without what they hold.
const SHARED_LABELS: usize = 2 * size_of::<usize>() + size_of::<Labels>();

/// A use of this number comes to the ledger of the cache, and each that follows by as many.
pub(crate) const NOTED_USE: u32 = 16;

/// From here on a count of uses is so great that it does not become less.
const MANY_USES: u32 = 1 << 31;

/// No span: as [`ShortSpan::MAX`], longer than any.
const NEVER: u32 = ShortSpan::MAX.code();

/// The tags of an entry and its validator, in the space of one reference.
#[derive(Clone, Default)]
pub(crate) struct Tags(Option<Arc<Labels>>);

struct Labels {
    tags: Box<[Tag]>,
    validator: Option<Box<str>>,
}

impl Tags {
    pub(crate) fn new(tags: Box<[Tag]>, validator: Option<Box<str>>) -> Self {
        let is_empty = tags.is_empty() && validator.is_none();
        Self((!is_empty).then(|| Arc::new(Labels { tags, validator })))
    }

    pub(crate) fn validator(&self) -> Option<&str> {
        self.0.as_ref()?.validator.as_deref()
    }
}

impl From<Box<[Tag]>> for Tags {
    fn from(tags: Box<[Tag]>) -> Self {
        Self::new(tags, None)
    }
}

impl From<Vec<Tag>> for Tags {
    fn from(tags: Vec<Tag>) -> Self {
        tags.into_boxed_slice().into()
    }
}

impl Deref for Tags {
    type Target = [Tag];

    fn deref(&self) -> &[Tag] {
        self.0.as_deref().map_or(&[], |labels| &labels.tags)
    }
}

/// A value with the moments between which it may be used.
///
/// The order of the fields is fixed, also that of the window: the fields that a hit reads
/// stand together, in one or two cache lines. With many entries, few lines are in the
/// processor's cache.
#[repr(C)]
pub(crate) struct Entry<V> {
    /// The last sequence number at which the tags were looked up and found
    /// alive: as long as the log has not moved since, a hit looks nothing up.
    alive_at: AtomicU64,
    /// How long after its start it became stale, because it was marked so; the code of a
    /// [`ShortSpan`], or [`NEVER`]. Counted from the start: what the code cuts off then depends on
    /// the age of the entry, and not on its lifetime.
    marked_stale_after: AtomicU32,
    /// For how long after its start it is used as a copy of what the remote has; [`NEVER`]: as
    /// long as it lasts.
    copied_for: AtomicU32,
    /// As it was filled; [`window`](Self::window) is what counts.
    filled: PackedWindow,
    /// How often it, and what it has replaced, was found by a request. What two threads count at
    /// once may be one.
    uses: AtomicU32,
    pub(crate) value: V,
    pub(crate) tags: Tags,
    /// Sequence number of the invalidation log when the computation started.
    pub(crate) started_seq: u64,
    /// The weight of the entry against the bound on memory, or
    /// [`TOO_HEAVY`].
    pub(crate) weight: u32,
    /// The bin of the store that the entry was filled into. A number fits beside
    /// the weight; a reference would make every entry larger.
    bin: AtomicU32,
    /// The version under which it stands in the remote, if it does.
    pub(crate) version: Option<Version>,
    /// Takes the entry over when its store lets go of it. Known here, the store and all that
    /// holds it need no bounds on `V`.
    discard: fn(Self),
}

impl<V: Send + Sync + 'static> Entry<V> {
    pub(crate) fn new(value: V, window: Window, tags: impl Into<Tags>, started_seq: u64) -> Self {
        let alive_at = AtomicU64::new(started_seq);
        let bin = AtomicU32::new(BinId::NONE.0);
        let (marked_stale_after, copied_for) = (AtomicU32::new(NEVER), AtomicU32::new(NEVER));
        let (weight, version, discard) = (1, None, garbage::discard as fn(Self));
        Self {
            alive_at,
            marked_stale_after,
            copied_for,
            filled: window.into(),
            uses: AtomicU32::new(0),
            value,
            tags: tags.into(),
            started_seq,
            weight,
            bin,
            version,
            discard,
        }
    }
}

impl<V> Entry<V> {
    /// Drops the entry where no code of the user may run: its value goes into a bin.
    pub(crate) fn discard(self) {
        (self.discard)(self);
    }

    pub(crate) fn with_version(mut self, version: Option<Version>) -> Self {
        self.version = version;
        self
    }

    /// Sets the weight: what every entry takes in its store, the value with its `heap_bytes`, key
    /// and tags.
    pub(crate) fn with_weight(
        mut self,
        every_entry: usize,
        heap_bytes: usize,
        key: &Key,
        least: u32,
    ) -> Self {
        let parts = [size_of::<V>(), heap_bytes, key.heap_bytes(), self.tag_bytes()];
        let bytes = parts.into_iter().fold(every_entry, usize::saturating_add);
        self.weight = u32::try_from(bytes).unwrap_or(TOO_HEAVY).max(least);
        self
    }

    /// Says into which store the entry is filled.
    pub(crate) fn belongs_to(&self, bin: BinId) {
        self.bin.store(bin.0, Ordering::Relaxed);
    }

    /// Returns where the entry goes when its store lets go of it.
    pub(crate) fn bin(&self) -> BinId {
        BinId(self.bin.load(Ordering::Relaxed))
    }

    fn tag_bytes(&self) -> usize {
        let Some(labels) = self.tags.0.as_deref() else { return 0 };
        let heap = labels.tags.iter().map(Tag::heap_bytes).sum::<usize>();
        let validator = labels.validator.as_deref().map_or(0, |text| allocated(text.len()));
        let each = allocated(size_of_val(&*labels.tags)).saturating_add(heap);
        // The tags and the validator, and what refers to them.
        each.saturating_add(validator).saturating_add(allocated(SHARED_LABELS))
    }

    /// Counts a use. Returns whether the ledger is to know of it.
    #[inline]
    pub(crate) fn count_use(&self) -> bool {
        // Past the greatest number it goes on at the half: to have been used most is not forgotten.
        let uses = self.uses();
        self.uses.store(uses.wrapping_add(1) | uses & MANY_USES, Ordering::Relaxed);
        self.is_noted_use()
    }

    /// Returns whether the ledger is to know of the last use.
    #[inline]
    pub(crate) fn is_noted_use(&self) -> bool {
        self.uses().is_multiple_of(NOTED_USE)
    }

    #[inline]
    pub(crate) fn uses(&self) -> u32 {
        self.uses.load(Ordering::Relaxed)
    }

    /// Goes on with the uses of what it replaces.
    pub(crate) fn inherit_uses(&self, uses: u32) {
        self.uses.store(uses, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn alive_at(&self) -> u64 {
        // Acquire: a reader that finds the number finds the mark that was set before it.
        self.alive_at.load(Ordering::Acquire)
    }

    /// Remembers that no invalidation up to `seq` concerns the entry. A higher number from
    /// before stays.
    pub(crate) fn found_alive_at(&self, seq: u64) {
        self.alive_at.fetch_max(seq, Ordering::Release);
    }

    /// Returns the moments between which the entry may be used.
    #[inline]
    pub(crate) fn window(&self) -> Window {
        match self.marked_stale_after.load(Ordering::Relaxed) {
            NEVER => self.filled.get(),
            _ => self.filled.get().stale_from(self.fresh_until()),
        }
    }

    /// Returns when its computation started.
    #[inline]
    pub(crate) fn started(&self) -> Tick {
        self.filled.started()
    }

    /// Returns how long its computation took, in microseconds.
    #[inline]
    pub(crate) fn computed_micros(&self) -> u32 {
        self.filled.computed_micros()
    }

    /// Returns how long its computation took.
    #[inline]
    pub(crate) fn computed_in(&self) -> Duration {
        self.filled.get().computed_in()
    }

    /// Returns the moment after which the store need not keep it. A mark changes nothing: an
    /// index of variants must not go before the variants.
    pub(crate) fn kept_until(&self) -> Tick {
        self.filled.get().kept_until()
    }

    /// Limits its use as a copy, where it stands in the remote too.
    pub(crate) fn keep_copy_until(&self, at: Tick) {
        if self.version.is_some() {
            let span = ShortSpan::new(at.since(self.filled.started()));
            self.copied_for.store(span.code(), Ordering::Relaxed);
        }
    }

    /// Says that the remote does not have it, and will not.
    pub(crate) fn is_no_copy(&self) {
        self.copied_for.store(NEVER, Ordering::Relaxed);
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn fresh_until(&self) -> Tick {
        match self.marked_stale_after.load(Ordering::Relaxed) {
            NEVER => self.filled.fresh_until(),
            code => self.filled.started().plus(ShortSpan::from_code(code).get()),
        }
    }

    /// Returns whether the remote is to be asked before it is used again.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn is_copy_over(&self, now: Tick) -> bool {
        match self.copied_for.load(Ordering::Relaxed) {
            NEVER => false,
            code => now >= self.filled.started().plus(ShortSpan::from_code(code).get()),
        }
    }

    /// Makes the entry stale from `at` on. An earlier mark stays.
    pub(crate) fn mark_stale(&self, at: Tick) {
        if at < self.filled.fresh_until() {
            let after = ShortSpan::new(at.since(self.filled.started()));
            self.marked_stale_after.fetch_min(after.code(), Ordering::Relaxed);
        }
    }
}

impl<V: Clone> Entry<V> {
    /// Returns the same entry under another window.
    #[cfg_attr(not(feature = "http"), allow(dead_code, reason = "HTTP's validation by a HEAD"))]
    pub(crate) fn with_window(&self, window: Window) -> Self {
        Self {
            value: self.value.clone(),
            filled: window.into(),
            tags: self.tags.clone(),
            started_seq: self.started_seq,
            alive_at: AtomicU64::new(self.alive_at()),
            marked_stale_after: AtomicU32::new(NEVER),
            copied_for: AtomicU32::new(NEVER),
            uses: AtomicU32::new(self.uses()),
            weight: self.weight,
            version: self.version,
            bin: AtomicU32::new(BinId::NONE.0),
            discard: self.discard,
        }
    }
}

// Values are the user's and may be secret or large: never printed.
impl<V> fmt::Debug for Entry<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("window", &self.window())
            .field("tags", &&*self.tags)
            .finish_non_exhaustive()
    }
}
