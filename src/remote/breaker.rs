//! Whether requests may ask the remote.

use std::mem;

use parking_lot::Mutex;

/// Opens after failures in a row. It has no timer: a task probes the remote and
/// closes it, so a request's own success or failure never does.
///
/// A look that succeeds ends no row but that of looks: a server that takes no
/// writes answers looks, and there is one between any two leases it refuses.
#[derive(Debug)]
pub(crate) struct Breaker {
    failures: u32,
    state: Mutex<BreakerState>,
}

#[derive(Debug, Default)]
struct BreakerState {
    is_open: bool,
    /// Failures in a row, those of looks apart.
    failed: u32,
    /// Looks that failed in a row.
    looks: u32,
}

impl Breaker {
    /// Makes a closed breaker that opens at the `failures`th failure in a row.
    pub(crate) fn new(failures: u32) -> Self {
        Self { failures: failures.max(1), state: Mutex::default() }
    }

    /// Returns whether the remote may be asked.
    pub(crate) fn allows(&self) -> bool {
        !self.state.lock().is_open
    }

    /// Ends a row of failures. A success that began before the breaker opened
    /// says nothing of now, so it does not close it.
    pub(crate) fn succeeded(&self) {
        let mut state = self.state.lock();
        (state.failed, state.looks) = (0, 0);
    }

    /// Ends a row of failed looks.
    pub(crate) fn look_succeeded(&self) {
        self.state.lock().looks = 0;
    }

    /// Counts a failure. Returns whether the breaker opened by it.
    pub(crate) fn failed(&self) -> bool {
        self.count(1, 0)
    }

    /// Counts a look that failed. Returns whether the breaker opened by it.
    pub(crate) fn look_failed(&self) -> bool {
        self.count(0, 1)
    }

    fn count(&self, failed: u32, looks: u32) -> bool {
        let mut state = self.state.lock();
        state.failed = state.failed.saturating_add(failed);
        state.looks = state.looks.saturating_add(looks);
        let is_last = state.failed.saturating_add(state.looks) >= self.failures;
        is_last && !mem::replace(&mut state.is_open, true)
    }

    /// Opens at once. Returns whether it was closed.
    pub(crate) fn trip(&self) -> bool {
        !mem::replace(&mut self.state.lock().is_open, true)
    }

    /// Closes. Returns whether it was open.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.state.lock();
        state.is_open && mem::take(&mut *state).is_open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_at_the_last_of_the_failures_in_a_row_and_says_so_once() {
        let breaker = Breaker::new(3);
        let opened: Vec<_> = (0..5).map(|_| breaker.failed()).collect();
        assert_eq!(opened, [false, false, true, false, false]);
        assert!(!breaker.allows());
    }

    #[test]
    fn a_success_ends_the_row() {
        let breaker = Breaker::new(2);
        for _ in 0..10 {
            assert!(!breaker.failed());
            breaker.succeeded();
        }
        assert!(breaker.allows());
        assert!(!breaker.failed());
        assert!(breaker.failed());
    }

    #[test]
    fn a_look_that_succeeds_ends_the_row_of_looks_alone() {
        let breaker = Breaker::new(3);
        for _ in 0..10 {
            assert!(!breaker.look_failed());
            assert!(!breaker.look_failed());
            breaker.look_succeeded();
        }
        assert!(!breaker.failed());
        breaker.look_succeeded();
        assert!(!breaker.failed());
        breaker.look_succeeded();
        assert!(breaker.failed(), "no lease three times, whatever can be read");
    }

    #[test]
    fn failures_of_both_kinds_add_up_and_other_successes_end_both() {
        let breaker = Breaker::new(3);
        assert!(!breaker.look_failed());
        assert!(!breaker.failed());
        breaker.succeeded();
        assert!(!breaker.failed());
        assert!(!breaker.look_failed());
        assert!(breaker.look_failed());
        assert!(!breaker.look_failed() && !breaker.failed(), "open already");
        assert!(breaker.close());
        assert!(!breaker.look_failed() && !breaker.failed(), "it counts anew");
    }

    #[test]
    fn only_closing_closes_it() {
        let breaker = Breaker::new(1);
        assert!(breaker.failed());
        breaker.succeeded();
        assert!(!breaker.allows(), "that success began before");
        assert!(breaker.close());
        assert!(breaker.allows());
        assert!(!breaker.close());
    }

    #[test]
    fn it_counts_anew_after_it_was_closed() {
        let breaker = Breaker::new(2);
        breaker.failed();
        assert!(breaker.trip());
        assert!(!breaker.trip());
        assert!(!breaker.failed(), "open already");
        breaker.close();
        assert!(!breaker.failed());
        assert!(breaker.failed());
    }

    #[test]
    fn closing_a_closed_one_forgets_no_failure() {
        let breaker = Breaker::new(2);
        breaker.failed();
        assert!(!breaker.close());
        assert!(breaker.failed());
    }

    #[test]
    fn no_number_of_failures_is_out_of_bounds() {
        assert!(Breaker::new(0).failed());
        let patient = Breaker::new(u32::MAX);
        assert!(!patient.failed());
        assert!(patient.allows());
    }

    #[test]
    fn of_many_that_fail_at_once_one_opens_it() {
        let breaker = Breaker::new(8);
        let opened = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| (0..100).filter(|_| breaker.failed()).count()))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
        });
        assert_eq!(opened, 1);
    }
}
