//! What clients saw.

use std::time::Duration;

use hdrhistogram::Histogram;

/// How one request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Answered,
    /// A 5xx, an answer to another question, or a connection that broke.
    Failed(String),
    /// No answer within its deadline.
    Stuck,
    /// The client left, as it was meant to.
    HungUp,
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) end: End,
    /// Since it was meant to be sent.
    pub(crate) latency: Duration,
    /// How much later than meant the client began.
    pub(crate) late: Duration,
}

/// Later than this is reported as late. Its latency is right all the same: it
/// is counted from when the request was meant to be sent.
pub(crate) const LATE: Duration = Duration::from_millis(10);

#[derive(Clone, Debug)]
pub(crate) struct Tally {
    pub(crate) requests: usize,
    pub(crate) errors: usize,
    pub(crate) stuck: usize,
    pub(crate) hung_up: usize,
    pub(crate) late: usize,
    pub(crate) first_error: Option<String>,
    /// In microseconds, of all that did not hang up. A stuck request counts
    /// with its deadline, which is less than it would have taken.
    latencies: Histogram<u64>,
}

impl Tally {
    pub(crate) fn new() -> Self {
        let latencies = Histogram::new_with_bounds(1, 120_000_000, 3);
        let latencies = latencies.expect("the bounds are in order");
        let first_error = None;
        Self { requests: 0, errors: 0, stuck: 0, hung_up: 0, late: 0, first_error, latencies }
    }

    pub(crate) fn add(&mut self, seen: Seen) {
        self.requests += 1;
        self.late += usize::from(seen.late > LATE);
        match seen.end {
            End::Answered => {}
            End::Failed(why) => {
                self.errors += 1;
                self.first_error.get_or_insert(why);
            }
            End::Stuck => self.stuck += 1,
            End::HungUp => {
                self.hung_up += 1;
                return;
            }
        }
        self.latencies.saturating_record(seen.latency.as_micros() as u64);
    }

    /// In milliseconds; zero if no client waited to the end.
    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        self.latencies.value_at_percentile(percent) as f64 / 1000.0
    }

    /// In milliseconds.
    pub(crate) fn longest(&self) -> f64 {
        self.latencies.max() as f64 / 1000.0
    }

    /// How many latencies there are.
    pub(crate) fn waited(&self) -> u64 {
        self.latencies.len()
    }
}
