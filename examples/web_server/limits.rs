//! How long a client may take; both servers among the examples have these limits.
//!
//! A connection ends when it is idle for too long, when a head does not arrive, when the client
//! does not read, and, if that is set, when it is old. A request's body ends with an error when
//! it arrives too slowly.
//!
//! Slow is measured by a [`Patience`]: time in which the server waits for the client uses it up,
//! and bytes that move restore it. So a client that pauses ends after the limit, and so does one
//! that sends a byte now and then.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The limits on connections of clients, as the flags set them.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) connections: usize,
    /// The longest header section, in bytes.
    pub(crate) header_bytes: usize,
    /// For the head of a request.
    pub(crate) header: Duration,
    /// Without a request.
    pub(crate) idle: Duration,
    /// For a client that sends too little of a body.
    pub(crate) body_read: Duration,
    /// For a client that reads too little of a body.
    pub(crate) body_write: Duration,
    /// What is not too little, in bytes per second. Zero: any byte.
    pub(crate) min_rate: u64,
    /// How old a connection may become.
    pub(crate) lifetime: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            header_bytes: 16 << 10,
            header: Duration::from_secs(30),
            idle: Duration::from_secs(30),
            body_read: Duration::from_secs(30),
            body_write: Duration::from_secs(30),
            min_rate: 500,
            lifetime: None,
        }
    }
}

impl Limits {
    pub(super) fn reading(&self) -> Patience {
        Patience::new(self.body_read, self.min_rate)
    }

    fn writing(&self) -> Patience {
        Patience::new(self.body_write, self.min_rate)
    }

    /// How often a connection is looked at.
    pub(super) fn tick(&self) -> Duration {
        let shortest = self.header.min(self.idle).min(self.body_write);
        (shortest / 4).max(Duration::from_millis(5))
    }
}

/// How much longer a client may be waited for.
#[derive(Clone, Debug)]
pub(super) struct Patience {
    limit: Duration,
    min_rate: u64,
    left: Duration,
}

impl Patience {
    fn new(limit: Duration, min_rate: u64) -> Self {
        Self { limit, min_rate, left: limit }
    }

    pub(super) fn left(&self) -> Duration {
        self.left
    }

    pub(super) fn waited(&mut self, time: Duration) {
        self.left = self.left.saturating_sub(time);
    }

    /// Restores as much as these bytes take at the least rate.
    pub(super) fn moved(&mut self, bytes: usize) {
        let time = match self.min_rate {
            0 if bytes > 0 => self.limit,
            0 => Duration::ZERO,
            rate => Duration::from_micros((bytes as u64).saturating_mul(1_000_000) / rate),
        };
        self.left = self.left.saturating_add(time).min(self.limit);
    }
}

/// What one connection does now; its stream, its requests and its bodies tell.
#[derive(Debug)]
pub(super) struct Meter {
    limits: Limits,
    from: Instant,
    has_begun: AtomicBool,
    is_http2: AtomicBool,
    /// Requests that are being answered.
    open: AtomicUsize,
    /// Since when there is none, in milliseconds after `from`.
    idle_since: AtomicU64,
    /// Until when the stream must take more.
    stream_until: AtomicU64,
    /// The same for bodies that wait for the client.
    bodies_until: Mutex<HashMap<u64, u64>>,
    exchanges: AtomicU64,
}

const NEVER: u64 = u64::MAX;

impl Meter {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            from: Instant::now(),
            has_begun: AtomicBool::new(false),
            is_http2: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            idle_since: AtomicU64::new(0),
            stream_until: AtomicU64::new(NEVER),
            bodies_until: Mutex::default(),
            exchanges: AtomicU64::new(0),
        })
    }

    pub(super) fn writing(&self) -> Patience {
        self.limits.writing()
    }

    fn millis(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.from).as_millis().try_into().unwrap_or(NEVER)
    }

    fn after(&self, now: Instant, time: Duration) -> u64 {
        let time = time.as_millis().try_into().unwrap_or(NEVER);
        self.millis(now).saturating_add(time)
    }

    /// Says that the stream takes nothing more, and until when it must.
    pub(super) fn stream_waits(&self, now: Instant, left: Duration) {
        self.stream_until.store(self.after(now, left), Ordering::Relaxed);
    }

    pub(super) fn stream_moved(&self, now: Instant) {
        self.stream_until.store(NEVER, Ordering::Relaxed);
        self.idle_since.store(self.millis(now), Ordering::Relaxed);
    }

    /// Begins a request.
    pub(super) fn open(self: &Arc<Self>, is_http2: bool) -> Exchange {
        self.is_http2.store(is_http2, Ordering::Relaxed);
        self.has_begun.store(true, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        let id = self.exchanges.fetch_add(1, Ordering::Relaxed);
        Exchange { meter: Arc::clone(self), id, waits: false }
    }

    /// Returns whether a request of HTTP/2 has come.
    pub(super) fn is_http2(&self) -> bool {
        self.is_http2.load(Ordering::Relaxed)
    }

    /// Returns whether there has been nothing to do for so long.
    pub(super) fn is_idle_for(&self, now: Instant, time: Duration) -> bool {
        let is_quiet = self.open.load(Ordering::Acquire) == 0
            && self.stream_until.load(Ordering::Relaxed) == NEVER;
        let idle = self.millis(now).saturating_sub(self.idle_since.load(Ordering::Relaxed));
        is_quiet && u128::from(idle) >= time.as_millis()
    }

    /// Returns whether the connection has to end.
    fn is_over(&self, now: Instant) -> bool {
        let (now, limits) = (self.millis(now), &self.limits);
        let is_past = |since: u64, limit: Duration| {
            u128::from(now.saturating_sub(since)) >= limit.as_millis()
        };
        let stream_until = self.stream_until.load(Ordering::Relaxed);
        if now >= stream_until {
            return true;
        }
        if self.open.load(Ordering::Relaxed) == 0 && stream_until == NEVER {
            let limit = match self.has_begun.load(Ordering::Relaxed) {
                true => limits.idle,
                false => limits.header.min(limits.idle),
            };
            return is_past(self.idle_since.load(Ordering::Relaxed), limit);
        }
        let bodies = self.bodies_until.lock().unwrap_or_else(PoisonError::into_inner);
        bodies.values().any(|until| now >= *until)
    }

    /// Waits until the connection has to end.
    pub(super) async fn over(&self) {
        let mut ticks = tokio::time::interval(self.limits.tick());
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if self.is_over(Instant::now()) {
                return;
            }
        }
    }
}

/// A request that is being answered, until its response is written.
#[derive(Debug)]
pub(super) struct Exchange {
    meter: Arc<Meter>,
    id: u64,
    waits: bool,
}

impl Exchange {
    pub(super) fn patience(&self) -> Patience {
        self.meter.writing()
    }

    /// Says that the client has to take what it was given, within this time.
    pub(super) fn waits(&mut self, now: Instant, left: Duration) {
        self.waits = true;
        self.change(|bodies, id| bodies.insert(id, self.meter.after(now, left)));
    }

    pub(super) fn moved(&mut self) {
        if std::mem::take(&mut self.waits) {
            self.change(|bodies, id| bodies.remove(&id));
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut HashMap<u64, u64>, u64) -> T) {
        let bodies = self.meter.bodies_until.lock();
        change(&mut bodies.unwrap_or_else(PoisonError::into_inner), self.id);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.moved();
        // In this order: a reader that sees no request also sees since when.
        let now = self.meter.millis(Instant::now());
        self.meter.idle_since.store(now, Ordering::Relaxed);
        self.meter.open.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits() -> Limits {
        let (header, idle, body_write) = (SECOND, SECOND * 2, SECOND * 3);
        Limits { header, idle, body_write, ..Limits::default() }
    }

    fn is_over_after(meter: &Meter, time: Duration) -> bool {
        meter.is_over(meter.from + time)
    }

    #[test]
    fn a_client_that_pauses_or_drips_ends_after_the_limit() {
        let mut patience = Patience::new(SECOND * 30, 500);
        let (mut time, pause) = (Duration::ZERO, SECOND * 7 / 10);
        // The connection ends in the first pause that is longer than what is left.
        while patience.left() > pause {
            patience.waited(pause);
            patience.moved(1);
            time += pause;
        }
        time += patience.left();
        assert!(SECOND * 30 < time && time < SECOND * 32, "{time:?}");
        patience.waited(pause);
        assert_eq!(patience.left(), Duration::ZERO);
        patience.moved(1_000_000);
        assert_eq!(patience.left(), SECOND * 30, "what is restored is bounded");
    }

    #[test]
    fn a_client_at_the_least_rate_is_never_too_slow() {
        let mut patience = Patience::new(SECOND * 30, 500);
        for _ in 0..1000 {
            patience.waited(SECOND);
            patience.moved(500);
        }
        assert_eq!(patience.left(), SECOND * 30);
        let mut any = Patience::new(SECOND, 0);
        any.waited(SECOND);
        any.moved(1);
        assert_eq!(any.left(), SECOND, "without a rate any byte will do");
    }

    #[test]
    fn a_connection_without_a_request_ends_and_one_with_a_request_does_not() {
        let meter = Meter::new(limits());
        assert!(!is_over_after(&meter, SECOND / 2) && is_over_after(&meter, SECOND));
        let exchange = meter.open(false);
        assert!(!is_over_after(&meter, SECOND * 99), "the service may take its time");
        drop(exchange);
        assert!(!is_over_after(&meter, SECOND) && is_over_after(&meter, SECOND * 3));
    }

    #[test]
    fn a_connection_is_idle_from_the_end_of_its_last_request() {
        let meter = Meter::new(limits());
        let is_idle_after = |time| meter.is_idle_for(meter.from + time, SECOND);
        assert!(!is_idle_after(SECOND / 2) && is_idle_after(SECOND));
        let exchange = meter.open(true);
        assert!(!is_idle_after(SECOND * 9) && meter.is_http2());
        drop(exchange);
        assert!(is_idle_after(SECOND * 9));
        meter.stream_waits(meter.from, SECOND);
        assert!(!is_idle_after(SECOND * 9), "what is written is no idle connection");
    }

    #[test]
    fn a_stream_or_a_body_that_the_client_does_not_take_ends_the_connection() {
        let meter = Meter::new(limits());
        let (from, mut exchange) = (meter.from, meter.open(false));
        exchange.waits(from, SECOND * 3);
        assert!(!is_over_after(&meter, SECOND * 2) && is_over_after(&meter, SECOND * 3));
        exchange.moved();
        assert!(!is_over_after(&meter, SECOND * 3));
        meter.stream_waits(from, SECOND);
        assert!(is_over_after(&meter, SECOND));
        drop(exchange);
        meter.stream_waits(from, SECOND * 9);
        assert!(!is_over_after(&meter, SECOND * 8), "what is written is no idle connection");
    }
}
