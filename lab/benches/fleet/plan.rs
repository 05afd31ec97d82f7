//! What is simulated.

use std::time::Duration;

use crate::costs::Costs;
use crate::freshness::EarlyRefresh;
use crate::queue::{MILLISECOND, Moment, SECOND, moment, seconds};

/// What processes do about a value that is not fresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strategy {
    /// Every request looks into Redis, and computes if there is nothing.
    Nothing,
    /// One request of each process does, and the others of it wait.
    Coalescing,
    /// The same behind `SET NX PX`, looking again and again with this pause
    /// while another process has the lock.
    Polling(Moment),
    /// Lease, fill and wake-up as in `src/remote`.
    Ours,
}

/// When the clients of a process ask for a key.
#[derive(Debug, Clone)]
pub(crate) enum Arrivals {
    /// So many times a second, each independent of all others.
    Poisson(f64),
    /// At these moments, so many at once.
    Waves(Vec<Moment>, u32),
}

/// What goes wrong.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// A shard answers nothing for a while, then everything it was asked.
    Freeze { shard: usize, from: Moment, lasts: Moment },
    /// The process that computes this key dies, as soon as there is one.
    KillLeader { key: u32, from: Moment },
    /// The first so many processes reach no shard any more.
    CutOff { processes: u32, from: Moment },
    /// A lock that no process will ever give up, as a dead process leaves it.
    DeadLock { key: u32, lasts: Moment },
}

/// One run of the simulation.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) strategy: Strategy,
    pub(crate) processes: u32,
    pub(crate) keys: u32,
    pub(crate) shards: usize,
    pub(crate) arrivals: Arrivals,
    pub(crate) ttl: Duration,
    pub(crate) stale_for: Duration,
    pub(crate) jitter: f64,
    pub(crate) early: Option<EarlyRefresh>,
    /// What the origin takes for one call.
    pub(crate) origin: Moment,
    pub(crate) costs: Costs,
    pub(crate) faults: Vec<Fault>,
    pub(crate) op_timeout: Moment,
    /// Processes start at any moment of this time, one after the other.
    pub(crate) start_within: Moment,
    /// From here on fills, messages and waits are counted.
    pub(crate) count_from: Moment,
    pub(crate) until: Moment,
    pub(crate) seed: u64,
}

/// The default of `Builder::lease`.
pub(crate) const LEASE: Moment = 5 * SECOND;

/// The default of `RemoteSettings::op_timeout`.
const OP_TIMEOUT: Moment = 100 * MILLISECOND;

/// The default of `RemoteSettings::breaker_failures`.
pub(crate) const BREAKER_FAILURES: u32 = 3;

/// The default of the builder's `early_refresh_share`.
pub(crate) const EARLY_SHARE: f64 = 0.25;

impl Plan {
    /// One key that one process wants once a second; everything else as the
    /// product's settings are by default.
    pub(crate) fn new(strategy: Strategy, costs: &Costs, seed: u64) -> Self {
        Self {
            strategy,
            processes: 1,
            keys: 1,
            shards: 1,
            arrivals: Arrivals::Poisson(1.0),
            ttl: Duration::from_secs(60),
            stale_for: Duration::ZERO,
            jitter: 0.1,
            early: None,
            origin: 200 * MILLISECOND,
            costs: costs.clone(),
            faults: Vec::new(),
            op_timeout: OP_TIMEOUT,
            start_within: 0,
            count_from: 0,
            until: 60 * SECOND,
            seed,
        }
    }

    /// Refreshes early with this `beta`; 0 is off.
    pub(crate) fn early(mut self, beta: f64) -> Self {
        self.early = (beta > 0.0).then_some(EarlyRefresh { beta, max_share: EARLY_SHARE });
        self
    }
}

impl Arrivals {
    /// Returns when a client asks next, and how many do at once.
    pub(crate) fn after(&self, now: Moment, rng: &mut fastrand::Rng) -> Option<(Moment, u32)> {
        match self {
            Self::Poisson(rate) => {
                let pause = -(1.0 - rng.f64()).ln() / rate;
                Some((now + moment(pause).max(1), 1))
            }
            Self::Waves(moments, callers) => {
                moments.iter().find(|at| **at > now).map(|at| (*at, *callers))
            }
        }
    }

    /// Returns how many ask in this time; of independent ones the mean.
    pub(crate) fn within(&self, from: Moment, to: Moment) -> f64 {
        match self {
            Self::Poisson(rate) => rate * seconds(to.saturating_sub(from)),
            Self::Waves(moments, callers) => {
                let waves = moments.iter().filter(|at| **at > from && **at <= to).count();
                waves as f64 * f64::from(*callers)
            }
        }
    }

    /// Draws whether any client asks in this time.
    pub(crate) fn any_within(&self, from: Moment, to: Moment, rng: &mut fastrand::Rng) -> bool {
        match self {
            Self::Poisson(_) => rng.f64() < 1.0 - (-self.within(from, to)).exp(),
            Self::Waves(..) => self.within(from, to) > 0.0,
        }
    }
}
