//! When requests are meant to be sent.
//!
//! The schedule is fixed before the first request: a slow answer puts off no
//! later request, as it does not keep other people from asking.

use std::time::Duration;

use fastrand::Rng;

/// The same in every run, with the layer and without.
const SEED: u64 = 20_260_914;

/// The most connections at once, unless a load says less.
pub(crate) const MAX_CONNECTIONS: usize = 4000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Arrival {
    pub(crate) at: Duration,
    /// What is asked for: `/item/KEY`.
    pub(crate) key: u64,
    /// Hangs up after this long, unless it has its answer.
    pub(crate) leaves_after: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Load {
    pub(crate) arrivals: Vec<Arrival>,
    /// A request that has no answer after this long is stuck.
    pub(crate) deadline: Duration,
    /// Each request opens a connection; else those of before are used again.
    pub(crate) own_connections: bool,
    /// How many at once. Further requests wait for one, and are as late.
    pub(crate) connections: usize,
}

impl Load {
    /// All at the same moment, each on a connection of its own.
    pub(crate) fn herd(keys: impl Iterator<Item = u64>) -> Self {
        let arrivals = keys.map(|key| Arrival { at: Duration::ZERO, key, leaves_after: None });
        Self { own_connections: true, ..Self::of(arrivals.collect()) }
    }

    /// One after another, with chance intervals as strangers have them (a
    /// Poisson process), for so long.
    pub(crate) fn steady(
        per_second: f64,
        time: Duration,
        mut key: impl FnMut(&mut Rng) -> u64,
    ) -> Self {
        let mut rng = Rng::with_seed(SEED);
        let mut arrivals = Vec::new();
        let mut at = 0.0;
        while at < time.as_secs_f64() {
            let key = key(&mut rng);
            arrivals.push(Arrival { at: Duration::from_secs_f64(at), key, leaves_after: None });
            at -= (1.0 - rng.f64()).ln() / per_second;
        }
        Self::of(arrivals)
    }

    fn of(arrivals: Vec<Arrival>) -> Self {
        let (deadline, connections) = (Duration::from_secs(10), MAX_CONNECTIONS);
        Self { arrivals, deadline, own_connections: false, connections }
    }

    pub(crate) fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// The first three of every ten hang up after `time`.
    pub(crate) fn three_of_ten_leave_after(mut self, time: Duration) -> Self {
        for ten in self.arrivals.chunks_mut(10) {
            ten.iter_mut().take(3).for_each(|arrival| arrival.leaves_after = Some(time));
        }
        self
    }

    pub(crate) fn requests(&self) -> usize {
        self.arrivals.len()
    }

    /// When the last request is meant to be sent.
    pub(crate) fn time(&self) -> Duration {
        self.arrivals.last().map_or(Duration::ZERO, |arrival| arrival.at)
    }
}
