//! The clients: which keys they ask for, how long they wait, and how many are served.

use std::time::Duration;

use tokio::time::Instant;

const TIME_OUT: Duration = Duration::from_secs(1);
const RETRIES: u32 = 3;
const FIRST_BACKOFF: Duration = Duration::from_millis(200);
/// When the cache is flushed, in seconds.
pub(crate) const FLUSH: usize = 10;
/// Seconds that are seen as one: with less, a few clients decide.
const SMOOTH: usize = 3;

/// Which keys are asked for how often.
pub(crate) struct Zipf {
    /// The mean lifetime of a value, in seconds.
    lifetime: f64,
    shares: Vec<f64>,
    sums: Vec<f64>,
}

impl Zipf {
    /// Values live `ttl`, less up to a tenth of it.
    pub(crate) fn new(keys: usize, ttl: Duration) -> Self {
        let weights: Vec<f64> = (1..=keys).map(|rank| 1.0 / rank as f64).collect();
        let sum: f64 = weights.iter().sum();
        let shares: Vec<f64> = weights.iter().map(|it| it / sum).collect();
        let sums = shares.iter().scan(0.0, |sum, it| {
            *sum += it;
            Some(*sum)
        });
        Self { lifetime: 0.95 * ttl.as_secs_f64(), sums: sums.collect(), shares }
    }

    pub(crate) fn draw(&self) -> u64 {
        let at = fastrand::f64();
        self.sums.partition_point(|sum| *sum < at).min(self.sums.len() - 1) as u64
    }

    /// Returns the calls in a second that a warm cache makes under `rate` requests in a second.
    pub(crate) fn warm_calls(&self, rate: f64) -> f64 {
        let ttl = self.lifetime;
        self.shares.iter().map(|it| it * rate / (1.0 + it * rate * ttl)).sum()
    }

    /// Returns the requests in a second under which a warm cache makes `calls` in a second.
    pub(crate) fn rate_for(&self, calls: f64) -> f64 {
        let (mut low, mut high) = (0.0, 1e6);
        for _ in 0..60 {
            let middle = (low + high) / 2.0;
            if self.warm_calls(middle) < calls { low = middle } else { high = middle }
        }
        low
    }

    /// Returns for each key how likely a warm cache has it.
    pub(crate) fn warm_shares(&self, rate: f64) -> Vec<f64> {
        let ttl = self.lifetime;
        self.shares.iter().map(|it| it * rate * ttl / (1.0 + it * rate * ttl)).collect()
    }

    /// Returns how many keys a lifetime's requests ask for.
    pub(crate) fn working_set(&self, rate: f64) -> f64 {
        let ttl = self.lifetime;
        self.shares.iter().map(|it| 1.0 - (-it * rate * ttl).exp()).sum()
    }
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Second {
    pub(crate) asked: u32,
    pub(crate) served: u32,
}

pub(crate) struct Run {
    pub(crate) seconds: Vec<Second>,
    pub(crate) calls: usize,
    pub(crate) wasted: usize,
    pub(crate) most_at_once: usize,
    /// How long the clients took that came from the flush on and were served.
    pub(crate) times: Vec<Duration>,
}

impl Run {
    pub(crate) fn goodput(&self, from: usize, to: usize) -> f64 {
        let seconds = &self.seconds[from..to];
        let asked: u32 = seconds.iter().map(|it| it.asked).sum();
        let served: u32 = seconds.iter().map(|it| it.served).sum();
        f64::from(served) / f64::from(asked.max(1))
    }

    /// Returns after how many seconds the goodput is back for good, if so.
    pub(crate) fn recovered_after(&self) -> Option<usize> {
        let before = self.goodput(2, FLUSH);
        if before < 0.5 {
            return None;
        }
        let enough = 0.99 * before;
        let end = self.seconds.len() - SMOOTH;
        let is_bad = |from: &usize| self.goodput(*from, from + SMOOTH) < enough;
        match (FLUSH..end).rfind(is_bad) {
            None => Some(0),
            Some(last) if last + 1 >= end - 5 => None,
            Some(last) => Some(last + SMOOTH - FLUSH),
        }
    }
}

/// Has clients come by the clock whatever happens, until so many seconds are over: `begin` gets the second and has
/// a client begin. Returns how late one of them was at worst.
#[cfg(unix)]
pub(crate) async fn come(rate: f64, seconds: usize, mut begin: impl FnMut(usize)) -> Duration {
    let began = Instant::now();
    let (mut next, mut latest) = (0.0, Duration::ZERO);
    loop {
        next += -(1.0 - fastrand::f64()).ln() / rate;
        if next >= seconds as f64 {
            return latest;
        }
        let due = began + Duration::from_secs_f64(next);
        tokio::time::sleep_until(due).await;
        latest = latest.max(due.elapsed());
        begin(next as usize);
    }
}

/// One client, with all that it tries. Returns what it has received in time.
pub(crate) async fn client<V, F>(ask: impl Fn() -> F) -> Option<V>
where
    F: Future<Output = Option<V>>,
{
    for attempt in 0..=RETRIES {
        if attempt > 0 {
            let longest = FIRST_BACKOFF * 2_u32.pow(attempt - 1);
            tokio::time::sleep(longest.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
        }
        let asked = Instant::now();
        if let Ok(Some(value)) = tokio::time::timeout(TIME_OUT, ask()).await {
            return Some(value);
        }
        // A client that is refused at once waits, too.
        tokio::time::sleep_until(asked + Duration::from_millis(100)).await;
    }
    None
}
