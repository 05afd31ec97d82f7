//! The one way to the remote: a deadline around every call, and a breaker
//! behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::observe::{Observe, Occurrence, RemoteOp};
use crate::remote::breaker::Breaker;
use crate::remote::journal::Journal;
use crate::remote::progress::Progress;
use crate::remote::{Call, Remote, RemoteErrorKind, RemoteSettings};

/// How long the search for servers that do not answer may take.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(5);

const MIB: f64 = 1024.0 * 1024.0;

pub(super) struct Guard {
    pub(super) remote: Arc<dyn Remote>,
    pub(super) settings: RemoteSettings,
    /// What the remote must be told before it is asked again.
    pub(super) journal: Journal,
    /// Whether it is being told that: what is invalidated meanwhile is told at once, or a
    /// stream of invalidations would keep it away for ever.
    is_returning: AtomicBool,
    breaker: Breaker,
    pub(super) progress: Progress,
    /// Where the remote is, for log lines.
    server: String,
    /// Since when it is not asked.
    away_since: Mutex<Option<Instant>>,
    observer: Arc<dyn Observe>,
    /// Whether an outage has begun that was not looked into yet.
    has_begun_outage: AtomicBool,
    /// Wakes the task that brings a remote back.
    pub(super) tend: Arc<Notify>,
    /// Whether a call has failed since the remote last checked its log: the next connection
    /// may lead to another server.
    pub(super) may_have_moved: AtomicBool,
    /// Bytes of the largest value seen: how much a read may have to carry.
    largest: AtomicUsize,
}

/// Why a call came to nothing; `None` when it was not made.
pub(super) type RemoteFailure = Option<RemoteErrorKind>;

impl Guard {
    pub(super) fn new(
        remote: Arc<dyn Remote>,
        settings: RemoteSettings,
        observer: Arc<dyn Observe>,
    ) -> Self {
        Self {
            server: remote.address(),
            away_since: Mutex::new(None),
            remote,
            journal: Journal::new(settings.max_journal),
            is_returning: AtomicBool::new(false),
            breaker: Breaker::new(settings.breaker_failures),
            progress: Progress::new(settings.op_timeout),
            settings,
            observer,
            has_begun_outage: AtomicBool::new(false),
            tend: Arc::new(Notify::new()),
            may_have_moved: AtomicBool::new(false),
            largest: AtomicUsize::new(0),
        }
    }

    /// Returns whether the remote may be asked: it answered last time, and has
    /// been told everything it must know.
    pub(super) fn is_open(&self) -> bool {
        self.breaker.allows() && self.journal.is_empty()
    }

    /// Makes a call that carries about `bytes`, unless the remote is away.
    ///
    /// Cancel safe as far as the remote's own call is; a dropped one counts
    /// neither as success nor as failure.
    pub(super) async fn call<'a, T>(
        &self,
        op: RemoteOp,
        bytes: usize,
        call: impl FnOnce() -> Call<'a, T>,
    ) -> Result<T, RemoteFailure> {
        if !self.is_open() {
            return Err(None);
        }
        let sent = Instant::now();
        let result = self.attempt(op, bytes, call()).await;
        self.count(op, sent, result.as_ref().err().copied());
        result.map_err(Some)
    }

    /// The same for an invalidation, which a remote takes as soon as it answers again.
    pub(super) async fn write<'a, T>(
        &self,
        op: RemoteOp,
        bytes: usize,
        call: impl FnOnce() -> Call<'a, T>,
    ) -> Result<T, RemoteFailure> {
        if self.is_open() || !self.is_returning.load(Ordering::Relaxed) {
            return self.call(op, bytes, call).await;
        }
        self.attempt(op, bytes, call()).await.map_err(Some)
    }

    /// Says whether the remote is being brought back.
    pub(super) fn set_returning(&self, is_returning: bool) {
        self.is_returning.store(is_returning, Ordering::Relaxed);
    }

    /// Counts a call as the breaker does.
    pub(super) fn count(&self, op: RemoteOp, sent: Instant, failure: RemoteFailure) {
        if failure.is_some() && !self.progress.is_one_more_failure(sent) {
            return;
        }
        let opened = match (op, failure) {
            (RemoteOp::Get, None) => return self.breaker.look_succeeded(),
            (_, None) => return self.breaker.succeeded(),
            (RemoteOp::Get, Some(_)) => self.breaker.look_failed(),
            (_, Some(_)) => self.breaker.failed(),
        };
        if opened {
            self.is_away(failure.map(|kind| (op, kind.as_str())));
        }
    }

    /// The same without the breaker: for calls in the background.
    pub(super) async fn attempt<T>(
        &self,
        op: RemoteOp,
        bytes: usize,
        call: Call<'_, T>,
    ) -> Result<T, RemoteErrorKind> {
        let (from, allowance) = (Instant::now(), self.allowance(bytes));
        let mut call = std::pin::pin!(call);
        let result = loop {
            let until = self.progress.gives_up_at(op, from, allowance);
            match tokio::time::timeout_at(until, &mut call).await {
                Ok(result) => {
                    let result = result.map_err(|error| error.kind());
                    if !matches!(
                        result,
                        Err(RemoteErrorKind::Connection | RemoteErrorKind::Timeout)
                    ) {
                        self.progress.note_answer(op, from, allowance);
                    }
                    break result;
                }
                Err(_) if Instant::now() < self.progress.gives_up_at(op, from, allowance) => {}
                Err(_) => {
                    self.progress.note_silence();
                    break Err(RemoteErrorKind::Timeout);
                }
            }
        };
        let error = result.as_ref().err().copied();
        if let Some(kind) = error {
            use RemoteErrorKind::{Connection, ReadOnly, Timeout, Unavailable};
            if matches!(kind, Connection | ReadOnly | Timeout | Unavailable) {
                self.may_have_moved.store(true, Ordering::Relaxed);
            }
            self.remote.suspect(kind);
        }
        let error = error.map(RemoteErrorKind::as_str);
        self.observer.happened(Occurrence::RemoteCalled { op, took: from.elapsed(), error });
        result
    }

    /// Returns how much longer a call may take that carries so many bytes.
    fn allowance(&self, bytes: usize) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "an allowance, not a count")]
        let mib = bytes as f64 / MIB;
        self.settings.op_timeout_per_mib.mul_f64(mib)
    }

    /// Returns how long one call may take while the remote is silent.
    pub(super) fn deadline(&self, bytes: usize) -> Duration {
        self.progress.patience() + self.allowance(bytes)
    }

    pub(super) fn observe(&self, what: Occurrence<'_>) {
        self.observer.happened(what);
    }

    /// Returns how much a read may have to carry.
    pub(super) fn largest(&self) -> usize {
        self.largest.load(Ordering::Relaxed)
    }

    /// Takes note of the size of a value. One that is too large to be taken
    /// does not prolong the calls after it.
    pub(super) fn has_seen(&self, bytes: usize) {
        let bytes = bytes.min(self.settings.max_value_bytes);
        self.largest.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Asks nothing more until the remote has been told what is in the journal.
    pub(super) fn trip(&self, op: RemoteOp, failure: RemoteFailure) {
        // The task that brings the remote back looks at the journal again before it
        // stops. It need not be woken by every invalidation.
        if self.breaker.trip() {
            self.is_away(failure.map(|kind| (op, kind.as_str())));
        }
    }

    fn is_away(&self, failure: Option<(RemoteOp, &'static str)>) {
        *self.away_since.lock() = Some(Instant::now());
        self.observer.happened(Occurrence::RemoteAway { server: &self.server, failure });
        self.has_begun_outage.store(true, Ordering::Relaxed);
        self.tend.notify_one();
    }

    /// Returns whether an outage has begun since the last time.
    pub(super) fn has_begun_outage(&self) -> bool {
        self.has_begun_outage.swap(false, Ordering::Relaxed)
    }

    /// Finds out which of several servers fail.
    pub(super) async fn report_silent_servers(&self) {
        let found = tokio::time::timeout(SEARCH_TIMEOUT, self.remote.silent_servers()).await;
        let silent = found.ok().and_then(Result::ok).unwrap_or_default().join(", ");
        if !silent.is_empty() {
            self.observer.happened(Occurrence::ServersSilent { server: &silent });
        }
    }

    pub(super) fn close(&self) {
        if self.breaker.close() {
            let since = self.away_since.lock().take();
            let away_for = since.map(|since| since.elapsed()).unwrap_or_default();
            self.observer.happened(Occurrence::RemoteBack { server: &self.server, away_for });
        }
    }
}
