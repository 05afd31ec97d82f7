//! The moments between which an entry is fresh or stale.

use std::time::Duration;

use super::ShortSpan;
use crate::clock::Tick;

/// How long an entry is fresh, and for how long after that it may be served
/// stale. Both stale windows begin where the lifetime ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lifetimes {
    pub(crate) ttl: Duration,
    pub(crate) stale_for: Duration,
    pub(crate) stale_if_error: Duration,
}

/// A longer span is cut off: a hundred years. A reading of the clock leaves room for four of them, so
/// every window keeps its length, also where it is moved.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl Lifetimes {
    fn with_room(self) -> Self {
        Self {
            ttl: self.ttl.min(LONGEST),
            stale_for: self.stale_for.min(LONGEST),
            stale_if_error: self.stale_if_error.min(LONGEST),
        }
    }

    /// Shortens the lifetime by up to `jitter` of itself, so that entries
    /// filled together do not end together.
    pub(crate) fn jittered(mut self, jitter: f64, sample: f64) -> Self {
        // What is cut off is never the whole: a product with 1 could overflow.
        let cut = self.ttl.mul_f64((jitter * sample).clamp(0.0, 1.0 - f64::EPSILON));
        self.ttl = self.ttl.saturating_sub(cut);
        self
    }
}

/// When an entry is fresh, stale and expired; frozen when it is filled.
///
/// A lifetime counts from the end of the computation where the application
/// chose it, and from the start where the origin stated it. See `docs/decisions`,
/// "From which moment does a lifetime count?".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) fresh_until: Tick,
    /// When the computation started, or earlier where the response was older
    /// on arrival. Entries of a key are ordered by it, and HTTP's `Age` counts
    /// from here: a slow computation cannot make old data look young.
    pub(crate) started: Tick,
    pub(crate) stale_until: Tick,
    pub(crate) error_until: Tick,
    /// How long the computation took, in microseconds. There is one in every
    /// entry: a longer time than about an hour is cut off there.
    computed_micros: u32,
    /// How many seconds the entry is kept longer than it may be served.
    kept_longer: u32,
}

impl Window {
    /// Makes the window of lifetimes that count from the end of the
    /// computation.
    pub(crate) fn new(started: Tick, lifetimes: Lifetimes, computed_in: Duration) -> Self {
        Self::counted_from(started.plus(computed_in), started, lifetimes, computed_in)
    }

    /// Makes the window of lifetimes that count from `from`.
    pub(crate) fn counted_from(
        from: Tick,
        started: Tick,
        lifetimes: Lifetimes,
        computed_in: Duration,
    ) -> Self {
        let lifetimes = lifetimes.with_room();
        let end = from.plus(lifetimes.ttl);
        // Without a lifetime there is no moment at which the entry is fresh.
        // `is_never_fresh` says so after every translation to another clock.
        let fresh_until = if lifetimes.ttl.is_zero() { started } else { end };
        let stale_until = |span: Duration| {
            // Without a stale window there is no moment of that either.
            if span.is_zero() { fresh_until } else { end.plus(span) }
        };
        Self {
            started,
            fresh_until,
            stale_until: stale_until(lifetimes.stale_for),
            error_until: stale_until(lifetimes.stale_if_error),
            computed_micros: u32::try_from(computed_in.as_micros()).unwrap_or(u32::MAX),
            kept_longer: 0,
        }
    }

    /// Keeps the entry for so long after it may be served no more, in whole
    /// seconds rounded up: the origin may yet confirm its value.
    #[cfg_attr(
        not(any(feature = "http", feature = "remote")),
        allow(dead_code, reason = "who keeps entries longer")
    )]
    pub(crate) fn kept_longer(mut self, longer: Duration) -> Self {
        let seconds = longer.as_secs().saturating_add(u64::from(longer.subsec_nanos() > 0));
        self.kept_longer = u32::try_from(seconds).unwrap_or(u32::MAX);
        self
    }

    /// Returns how long the computation took; early refresh leads by it.
    pub(crate) fn computed_in(&self) -> Duration {
        Duration::from_micros(self.computed_micros.into())
    }

    /// Returns the window of the same entry, stale from `now` on.
    pub(crate) fn stale_from(mut self, now: Tick) -> Self {
        let early_by = self.fresh_until.since(now);
        self.fresh_until = self.fresh_until.minus(early_by);
        self.stale_until = self.stale_until.minus(early_by);
        self.error_until = self.error_until.minus(early_by);
        self
    }

    /// Returns for how long after its computation the entry is fresh.
    ///
    /// Early refresh takes its share of this. It is longer by the age that a
    /// response had on arrival.
    pub(crate) fn lifetime(&self) -> Duration {
        self.fresh_until.since(self.started.plus(self.computed_in()))
    }

    /// Returns how old the entry is, if it is stale.
    pub(crate) fn stale_age(&self, now: Tick) -> Option<Duration> {
        (now >= self.fresh_until).then(|| now.since(self.started))
    }

    /// Returns whether the entry was given no lifetime at all. An entry whose
    /// lifetime was over on arrival was given one.
    pub(crate) fn is_never_fresh(&self) -> bool {
        self.fresh_until <= self.started
    }

    /// Returns the moment after which the entry answers no request, unless the origin fails.
    pub(crate) fn served_until(&self) -> Tick {
        self.fresh_until.max(self.stale_until)
    }

    /// Returns the moment after which the entry may not be served any more.
    pub(crate) fn useful_until(&self) -> Tick {
        self.fresh_until.max(self.stale_until).max(self.error_until)
    }

    /// Returns the moment after which the entry is of no use.
    pub(crate) fn kept_until(&self) -> Tick {
        self.useful_until().plus(Duration::from_secs(self.kept_longer.into()))
    }
}

/// A window as an entry stores it: the spans after the lifetime in eight decimal digits each.
// Ordered as `Entry` says.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PackedWindow {
    fresh_until: Tick,
    started: Tick,
    stale_for: ShortSpan,
    stale_if_error: ShortSpan,
    computed_micros: u32,
    kept_longer: u32,
}

impl From<Window> for PackedWindow {
    fn from(window: Window) -> Self {
        let after = |until: Tick| match until {
            Tick::MAX => ShortSpan::MAX,
            until => ShortSpan::new(until.since(window.fresh_until)),
        };
        Self {
            fresh_until: window.fresh_until,
            started: window.started,
            stale_for: after(window.stale_until),
            stale_if_error: after(window.error_until),
            computed_micros: window.computed_micros,
            kept_longer: window.kept_longer,
        }
    }
}

impl PackedWindow {
    #[inline]
    pub(crate) fn computed_micros(&self) -> u32 {
        self.computed_micros
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn fresh_until(&self) -> Tick {
        self.fresh_until
    }

    pub(crate) fn started(&self) -> Tick {
        self.started
    }

    pub(crate) fn get(&self) -> Window {
        let after = |span: ShortSpan| match span {
            ShortSpan::ZERO => self.fresh_until,
            span => self.fresh_until.plus(span.get()),
        };
        Window {
            fresh_until: self.fresh_until,
            started: self.started,
            stale_until: after(self.stale_for),
            error_until: after(self.stale_if_error),
            computed_micros: self.computed_micros,
            kept_longer: self.kept_longer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn marking_stale_moves_every_window_forward_and_keeps_its_length() {
        let lifetimes =
            Lifetimes { ttl: SECOND * 10, stale_for: SECOND * 5, stale_if_error: SECOND * 20 };
        let window = Window::new(Tick::from_nanos(0), lifetimes, SECOND);
        let marked = window.stale_from(Tick::from_nanos(4_000_000_000));
        assert_eq!(marked.fresh_until, Tick::from_nanos(4_000_000_000));
        assert_eq!(marked.stale_until.since(marked.fresh_until), SECOND * 5);
        assert_eq!(marked.error_until.since(marked.fresh_until), SECOND * 20);
        assert_eq!(window.stale_from(Tick::from_nanos(11_000_000_000)), window, "already stale");
    }

    #[test]
    fn marking_stale_keeps_the_windows_of_a_lifetime_without_end() {
        let ever = Duration::MAX;
        for (stale_for, stale_if_error) in [(SECOND * 5, SECOND * 20), (ever, SECOND), (ever, ever)]
        {
            let lifetimes = Lifetimes { ttl: ever, stale_for, stale_if_error };
            let window = Window::new(Tick::from_nanos(7), lifetimes, SECOND);
            let stored = PackedWindow::from(window).get();
            assert_eq!(stored, window);
            let now = Tick::from_nanos(4_000_000_000);
            let marked = stored.stale_from(now);
            assert_eq!(marked.fresh_until, now);
            assert_eq!(marked.stale_until.since(now), stale_for.min(LONGEST));
            assert_eq!(marked.error_until.since(now), stale_if_error.min(LONGEST));
        }
    }

    #[test]
    fn an_entry_is_kept_longer_than_it_is_useful_and_marking_it_stale_changes_neither_length() {
        let lifetimes =
            Lifetimes { ttl: SECOND * 10, stale_for: SECOND * 5, stale_if_error: SECOND * 20 };
        let window = Window::new(Tick::from_nanos(0), lifetimes, SECOND);
        assert_eq!(window.kept_until(), window.useful_until());
        let kept = window.kept_longer(SECOND / 2 + SECOND * 9);
        assert_eq!(kept.useful_until(), window.useful_until());
        assert_eq!(kept.kept_until(), Tick::from_nanos(41_000_000_000));
        let marked = kept.stale_from(Tick::from_nanos(4_000_000_000));
        assert_eq!(marked.kept_until().since(marked.useful_until()), SECOND * 10);
        let for_ever = window.kept_longer(Duration::MAX);
        assert!(for_ever.kept_until() > window.useful_until());
    }

    #[test]
    fn a_lifetime_counts_from_the_end_of_the_computation_or_from_the_moment_given() {
        let at = |seconds: u64| Tick::from_nanos(seconds * 1_000_000_000);
        let lifetimes = Lifetimes { ttl: SECOND * 3, stale_for: SECOND, stale_if_error: SECOND };
        let ours = Window::new(at(10), lifetimes, SECOND * 5);
        assert_eq!((ours.started, ours.fresh_until, ours.stale_until), (at(10), at(18), at(19)));
        assert_eq!(ours.lifetime(), SECOND * 3);
        let marked = ours.stale_from(at(16));
        assert_eq!(marked.lifetime(), SECOND, "fresh from 15 s to 16 s");
        // RFC 9111, 4.2.3: of 8 s, 5 were over when the response arrived.
        let stated = Lifetimes { ttl: SECOND * 8, ..lifetimes };
        let origin = Window::counted_from(at(10), at(10), stated, SECOND * 5);
        assert_eq!((origin.fresh_until, origin.stale_until), (at(18), at(19)));
        assert_eq!(origin.lifetime(), SECOND * 3);
    }

    #[test]
    fn only_an_entry_that_was_given_no_lifetime_is_never_fresh() {
        let window = |ttl, stale_for, took| {
            Window::new(
                Tick::from_nanos(7),
                Lifetimes { ttl, stale_for, stale_if_error: Duration::ZERO },
                took,
            )
        };
        let zero = Duration::ZERO;
        assert!(window(zero, zero, SECOND).is_never_fresh());
        assert_eq!(window(zero, zero, SECOND).useful_until(), Tick::from_nanos(7));
        let only_stale = window(zero, SECOND * 2, SECOND);
        assert!(only_stale.is_never_fresh());
        assert_eq!(only_stale.stale_until, Tick::from_nanos(3_000_000_007), "from the end");
        assert!(!window(SECOND, zero, SECOND).is_never_fresh());
        let over_on_arrival = Window::counted_from(
            Tick::from_nanos(7),
            Tick::from_nanos(7),
            Lifetimes { ttl: SECOND, stale_for: zero, stale_if_error: zero },
            SECOND * 2,
        );
        assert!(!over_on_arrival.is_never_fresh());
        assert!(over_on_arrival.lifetime().is_zero());
    }

    #[test]
    fn a_window_is_no_larger_than_five_moments() {
        assert!(size_of::<Window>() <= 40);
    }

    #[test]
    fn a_computation_of_any_length_has_a_length() {
        let lifetimes = Lifetimes { ttl: SECOND, stale_for: SECOND, stale_if_error: SECOND };
        let took = |time| Window::new(Tick::from_nanos(0), lifetimes, time).computed_in();
        assert_eq!(took(SECOND * 3), SECOND * 3);
        assert!(took(Duration::MAX) > SECOND * 3600);
    }

    proptest! {
        #[test]
        fn jitter_only_shortens_and_never_by_more_than_its_share(
            ttl in 0_u64..=u64::MAX / 4, jitter in 0.0_f64..1.0, sample in 0.0_f64..=1.0,
        ) {
            let ttl = Duration::from_nanos(ttl);
            let lifetimes = Lifetimes { ttl, stale_for: SECOND, stale_if_error: SECOND };
            let jittered = lifetimes.jittered(jitter, sample);
            prop_assert!(jittered.ttl <= ttl + SECOND / 1000);
            prop_assert!(jittered.ttl + SECOND / 1000 >= ttl.mul_f64(1.0 - jitter));
            prop_assert_eq!(jittered.stale_for, lifetimes.stale_for);
        }
    }
}
