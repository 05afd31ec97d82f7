//! A crowd in several processes that asks for one key, and what that costs: the longest wait, failed
//! requests, computations. For results that do not reach the other processes.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::Instant;
use tower_stampede::{Builder, Computed, Remotable, Stampede};

use crate::kit::origin::{Origin, SECOND, settings};
use crate::kit::spawn;

/// How long the work takes, and a lease without a renewal.
pub(crate) const WORK: Duration = SECOND;

/// The callers of one process.
pub(crate) const CALLERS: usize = 20;

/// Larger values stay in their process.
pub(crate) const MAX_BYTES: usize = 1000;

/// A value of so many bytes; `None` cannot be encoded.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Report(pub(crate) Option<Bytes>);

impl Report {
    pub(crate) fn of(bytes: usize) -> Computed<Self> {
        Computed::new(Self(Some(vec![b'x'; bytes].into())))
    }

    pub(crate) fn small() -> Computed<Self> {
        Self::of(10)
    }
}

impl Remotable for Report {
    fn encode(&self) -> Option<Bytes> {
        self.0.clone()
    }

    fn decode(bytes: Bytes) -> Option<Self> {
        Some(Self(Some(bytes)))
    }
}

/// The cache of each process.
pub(crate) fn reports() -> Builder<Report> {
    let times = |builder: Builder<Report>| builder.lease(WORK).compute_timeout(4 * SECOND);
    times(settings()).wait_timeout(5 * SECOND)
}

/// What a crowd has met.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowd {
    pub(crate) longest: Duration,
    pub(crate) failed: usize,
    pub(crate) computations: usize,
}

impl Crowd {
    /// Lets [`CALLERS`] callers of each process ask for `k` within `spread`. Each computation takes
    /// as long as `origin` says, and then `makes` its result.
    pub(crate) async fn ask(
        caches: &[Stampede<Report>],
        spread: Duration,
        origin: &Origin,
        makes: fn() -> Computed<Report>,
    ) -> Self {
        let before = origin.calls();
        let callers = (0..CALLERS * caches.len()).map(|n| {
            let (cache, origin) = (caches[n % caches.len()].clone(), origin.clone());
            let pause = spread.mul_f64(n as f64 / (CALLERS * caches.len()) as f64);
            spawn(async move {
                tokio::time::sleep(pause).await;
                let asked = Instant::now();
                let compute = move || async move { origin.load().await.map(|_| makes()) };
                let answer = cache.get_or_compute_with("k", compute).await;
                (answer.is_err(), asked.elapsed())
            })
        });
        let answers = join_all(callers).await;
        let answers: Vec<_> = answers.into_iter().map(|answer| answer.unwrap()).collect();
        Self {
            longest: answers.iter().map(|(_, took)| *took).max().unwrap(),
            failed: answers.iter().filter(|(failed, _)| *failed).count(),
            computations: origin.calls() - before,
        }
    }

    #[track_caller]
    pub(crate) fn waits_at_most(self, longest: Duration, computations: usize) {
        let is_within = self.longest <= longest && self.computations <= computations;
        assert!(is_within && self.failed == 0, "{self:?}");
    }
}
