//! How many computations to run at once, as their times tell.
//!
//! An origin answers as fast as it can up to some concurrency. Above it each call takes longer, and
//! nothing more is done; far above it less is done. The limit begins at its lower end. It doubles
//! while computations queue and take no longer than usual, until they first do; from there
//! it grows by a twentieth. When they take longer than is tolerated it falls, by as much as they do.
//!
//! Times are compared by windows, each long enough that chance explains no more than a few percent of
//! its mean. The computations that ran when the limit changed belong to no window. What a
//! computation takes on an origin that is not overloaded is learned from the shorter windows. An
//! origin may also have become slower for good. Then the limit falls to its lower end, and the time
//! that is measured there is the new usual time.

use std::time::Duration;

/// A mean that is higher than usual by this factor says that the origin is overloaded.
const TOLERANCE: f64 = 1.3;
/// A window is complete when the standard error of its mean is below this share of it.
const LARGEST_ERROR: f64 = 0.05;
/// The fewest and the most computations of a window.
const LEAST_SAMPLES: f64 = 16.0;
const MOST_SAMPLES: f64 = 1000.0;

#[derive(Debug)]
pub(super) struct AdaptiveLimit {
    least: f64,
    most: f64,
    limit: f64,
    /// Seconds that a computation takes on an origin that is not overloaded. Zero: not known.
    usual: f64,
    /// Whether no computation has taken longer than usual yet.
    is_starting: bool,
    /// How many computations ran when the limit changed, at most, and have not ended since.
    left_over: usize,
    window: Window,
}

/// The times of some computations, in seconds.
#[derive(Debug, Default)]
struct Window {
    count: f64,
    sum: f64,
    squares: f64,
}

impl Window {
    fn add(&mut self, secs: f64) {
        self.count += 1.0;
        self.sum += secs;
        self.squares += secs * secs;
    }

    fn mean(&self) -> f64 {
        self.sum / self.count
    }

    fn standard_error(&self) -> f64 {
        let variance = self.squares / self.count - self.mean().powi(2);
        (variance.max(0.0) / self.count).sqrt()
    }
}

impl AdaptiveLimit {
    pub(super) fn new(least: usize, most: usize) -> Self {
        Self {
            least: least as f64,
            most: most as f64,
            limit: least as f64,
            usual: 0.0,
            is_starting: true,
            left_over: 0,
            window: Window::default(),
        }
    }

    pub(super) fn get(&self) -> usize {
        self.limit as usize
    }

    /// Notes how long a computation has taken, and whether any has queued since the limit last
    /// changed. Returns whether a window has ended.
    pub(super) fn note(&mut self, took: Duration, has_queued: bool) -> bool {
        if self.left_over > 0 {
            self.left_over -= 1;
            return false;
        }
        self.window.add(took.as_secs_f64());
        let Window { count, .. } = self.window;
        if count < LEAST_SAMPLES.max(self.limit) {
            return false;
        }
        let (mean, error) = (self.window.mean(), self.window.standard_error());
        let is_slow = self.usual > 0.0 && mean > TOLERANCE * self.usual;
        let is_clear = is_slow && mean - 3.0 * error > TOLERANCE * self.usual;
        if error > LARGEST_ERROR * mean && count < MOST_SAMPLES.max(self.limit) && !is_clear {
            return false;
        }
        self.window = Window::default();
        if self.usual == 0.0 || self.limit <= self.least {
            // The limit cannot fall any further: this is what the origin can do.
            self.usual = mean;
            self.is_starting = true;
        } else if mean < self.usual || !has_queued {
            self.usual += (mean - self.usual) / 16.0;
        }
        if has_queued {
            self.step(mean);
        }
        true
    }

    fn step(&mut self, mean: f64) {
        let before = self.get();
        let ratio = TOLERANCE * self.usual / mean.max(f64::MIN_POSITIVE);
        let next = if ratio < 1.0 {
            self.is_starting = false;
            self.limit * ratio.clamp(0.5, 0.95)
        } else if self.is_starting {
            self.limit * 2.0
        } else {
            self.limit + (self.limit / 20.0).max(1.0)
        };
        self.limit = next.clamp(self.least, self.most);
        self.left_over = if self.get() == before { 0 } else { before };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets an origin answer under the limit until `windows` have ended. `took` says how long a
    /// computation takes while so many run.
    fn after(limit: &mut AdaptiveLimit, windows: usize, took: impl Fn(f64) -> f64) -> usize {
        for _ in 0..windows {
            let mut at = 0_u32;
            let mut note = || {
                at += 1;
                // From a half to one and a half.
                let part = 0.5 + f64::from(at * 7 % 11) / 10.0;
                let secs = part * took(limit.limit);
                limit.note(Duration::from_secs_f64(secs), true)
            };
            while !note() {}
        }
        limit.get()
    }

    /// With 20 workers: calls above that share them.
    fn shared(concurrency: f64) -> f64 {
        0.1 * (concurrency / 20.0).max(1.0)
    }

    #[test]
    fn the_limit_finds_the_concurrency_above_which_calls_take_longer() {
        let mut limit = AdaptiveLimit::new(4, 1024);
        let found = after(&mut limit, 20, shared);
        assert!((17..=30).contains(&found), "{found}");
        let later = after(&mut limit, 200, shared);
        assert!((17..=30).contains(&later), "{later}");
    }

    #[test]
    fn an_origin_that_never_slows_down_gets_the_most() {
        let mut limit = AdaptiveLimit::new(4, 1024);
        assert_eq!(after(&mut limit, 8, |_| 0.1), 1024);
    }

    #[test]
    fn computations_that_ran_when_the_limit_changed_say_nothing_of_the_new_one() {
        let mut limit = AdaptiveLimit::new(4, 1024);
        let mut note = |times: usize, millis| {
            (0..times).for_each(|_| {
                limit.note(Duration::from_millis(millis), true);
            });
            limit.get()
        };
        assert_eq!(note(16, 100), 8);
        assert_eq!((note(4, 10_000), note(16, 100)), (8, 16));
    }

    #[test]
    fn a_limit_at_which_nothing_queues_stays() {
        let mut limit = AdaptiveLimit::new(4, 1024);
        after(&mut limit, 20, shared);
        let before = limit.get();
        for at in 0..10_000 {
            limit.note(Duration::from_millis(100 + at % 3), false);
        }
        assert_eq!(limit.get(), before);
    }

    #[test]
    fn an_origin_that_is_slower_for_good_gets_as_much_as_before_again() {
        let mut limit = AdaptiveLimit::new(4, 1024);
        after(&mut limit, 20, shared);
        let lowest = after(&mut limit, 3, |it| 3.0 * shared(it));
        assert!(lowest < 10, "{lowest}");
        let later = after(&mut limit, 60, |it| 3.0 * shared(it));
        assert!((17..=30).contains(&later), "{later}");
    }

    #[test]
    fn the_limit_stays_within_its_ends() {
        let mut limit = AdaptiveLimit::new(4, 6);
        assert_eq!(after(&mut limit, 3, |_| 0.1), 6);
        assert_eq!(after(&mut limit, 9, |_| 5.0).max(4), limit.get());
        let mut one = AdaptiveLimit::new(1, 1);
        assert_eq!(after(&mut one, 9, shared), 1);
        assert!((0..100).all(|_| one.note(Duration::ZERO, true) || one.get() == 1));
    }
}
