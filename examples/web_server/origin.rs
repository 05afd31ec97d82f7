//! The expensive work, and who counts how often it is done.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Of how many ids the calls are counted one by one; the total counts all.
const MAX_IDS: usize = 50_000;

/// Whether the layer stands before a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Protected,
    Unprotected,
}

/// Stands for a slow database.
#[derive(Debug)]
pub(crate) struct Origin {
    work: Duration,
    failing: AtomicBool,
    version: AtomicU64,
    protected: Calls,
    unprotected: Calls,
}

/// What one lane has seen.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    requests: AtomicU64,
    counted: Mutex<Counted>,
}

/// The calls of one lane.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) total: u64,
    pub(crate) per_id: BTreeMap<String, u64>,
}

/// What the work yields.
#[derive(Debug)]
pub(crate) struct Report {
    /// Rises by one per call of the origin.
    pub(crate) version: u64,
    /// Milliseconds since 1970.
    pub(crate) computed_at: u128,
    /// When the work began.
    pub(crate) began: Instant,
}

/// The work failed because it was told to.
#[derive(Debug)]
pub(crate) struct Failed;

impl Origin {
    pub(crate) fn new(work: Duration) -> Self {
        Self {
            work,
            failing: AtomicBool::new(false),
            version: AtomicU64::new(0),
            protected: Calls::default(),
            unprotected: Calls::default(),
        }
    }

    /// Works for `work`, or as long as usual.
    pub(crate) async fn compute(
        &self,
        lane: Lane,
        id: &str,
        work: Option<Duration>,
    ) -> Result<Report, Failed> {
        // Counted when it begins: work that is given up has cost as much.
        self.calls(lane).count(id);
        let version = self.version.fetch_add(1, Ordering::Relaxed) + 1;
        let began = Instant::now();
        tokio::time::sleep(work.unwrap_or(self.work)).await;
        if self.is_failing() {
            return Err(Failed);
        }
        let computed_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Report { version, computed_at: computed_at.as_millis(), began })
    }

    pub(crate) fn calls(&self, lane: Lane) -> &Calls {
        match lane {
            Lane::Protected => &self.protected,
            Lane::Unprotected => &self.unprotected,
        }
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    pub(crate) fn set_failing(&self, failing: bool) {
        self.failing.store(failing, Ordering::Relaxed);
    }
}

impl Calls {
    /// Counts a request of a client, however it will be answered.
    pub(crate) fn asked(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    pub(crate) fn total(&self) -> u64 {
        self.with(|counted| counted.total)
    }

    pub(crate) fn of(&self, id: &str) -> u64 {
        self.with(|counted| counted.per_id.get(id).copied().unwrap_or_default())
    }

    pub(crate) fn snapshot(&self) -> Counted {
        self.with(|counted| counted.clone())
    }

    fn count(&self, id: &str) {
        self.with(|counted| {
            counted.total += 1;
            if let Some(calls) = counted.per_id.get_mut(id) {
                *calls += 1;
            } else if counted.per_id.len() < MAX_IDS {
                counted.per_id.insert(id.to_owned(), 1);
            }
        });
    }

    fn with<T>(&self, f: impl FnOnce(&mut Counted) -> T) -> T {
        // Counts stay right whatever panicked between them.
        f(&mut self.counted.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}
