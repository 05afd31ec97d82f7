//! Whether the remote answers at all: a slow remote is not an absent one.
//!
//! A call is given up when nothing was answered for as long as the *patience*, or after
//! [`SLOW_LIMIT`]. While other calls are answered, it waits on: the remote has much to do. The
//! patience is `op_timeout` where answers come quickly. Before the first few answers, and where
//! answers have taken long of late, it is up to four times as long: of many processes that start
//! together, each waits for its turn.
//!
//! After a call that was given up, callers wait for `op_timeout` until the remote answers again. The
//! answers may take longer than that from then on. So every fourth probe is waited for as long as
//! can be: no caller waits for it.
//!
//! Looks and writes are told apart. A server can be paused for writes alone, and then it answers
//! looks all the time.

use std::pin::pin;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::observe::RemoteOp;
use crate::remote::{RemoteError, RemoteErrorKind};

/// The longest time that a call may take, besides the allowance for its bytes.
pub(super) const SLOW_LIMIT: Duration = Duration::from_secs(2);

/// The longest patience, in `op_timeout`s.
const MOST_PATIENCE: u32 = 4;

/// How many answers it takes to know how quickly the remote answers: a probe, a read of the log
/// and a look. Of many processes that start together the first call may be answered at once, and
/// the next one has all their calls before it.
const FIRST_ANSWERS: u32 = 3;

/// Of so many calls in a row that were given up, the next probe is waited for as long as can be.
const TRIES_BEFORE_PATIENCE: u32 = 4;

/// How much longer than the slowest of the last answers the next one may take.
const ABOVE_SLOWEST: u32 = 4;

#[derive(Debug)]
pub(super) struct Progress {
    op_timeout: Duration,
    state: Mutex<ProgressState>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ProgressState {
    /// When a write was last answered.
    write_answered: Option<Instant>,
    /// The same for any call.
    answered: Option<Instant>,
    /// How long the slowest of the last answers took.
    slowest: Duration,
    /// How many calls were answered.
    answers: u32,
    /// When the last failure was counted.
    failed: Option<Instant>,
    /// How many calls were given up since the last answer.
    given_up: u32,
}

impl Progress {
    pub(super) fn new(op_timeout: Duration) -> Self {
        Self { op_timeout, state: Mutex::default() }
    }

    fn is_silent(&self) -> bool {
        self.state.lock().given_up > 0
    }

    /// Returns whether this call is a probe that finds out whether answers take longer now.
    fn is_patient(&self, op: RemoteOp) -> bool {
        let given_up = self.state.lock().given_up;
        op == RemoteOp::Probe && given_up > 0 && given_up.is_multiple_of(TRIES_BEFORE_PATIENCE)
    }

    /// Returns how long the remote may be silent.
    pub(super) fn patience(&self) -> Duration {
        let (state, most) = (*self.state.lock(), self.most_patience());
        if state.given_up > 0 {
            self.op_timeout
        } else if state.answers < FIRST_ANSWERS {
            most
        } else {
            self.above_slowest().clamp(self.op_timeout, most)
        }
    }

    /// Waits for the answer to a call, until the remote is silent for too long. `allowance`: for its
    /// bytes; `is_connecting`: whether it waits for a connection.
    pub(super) async fn answer<T>(
        &self,
        op: RemoteOp,
        allowance: Duration,
        is_connecting: impl Fn() -> bool,
        call: impl Future<Output = Result<T, RemoteError>>,
    ) -> Result<T, RemoteError> {
        let from = Instant::now();
        let least = if self.is_patient(op) { self.most_patience() } else { Duration::ZERO };
        let gives_up_at = || {
            let at = self.gives_up_at(op, from, allowance).max(from + least + allowance);
            match is_connecting() {
                true => at.max(from + self.patience_to_connect() + allowance),
                false => at,
            }
        };
        let mut call = pin!(call);
        loop {
            match timeout_at(gives_up_at(), &mut call).await {
                Ok(result) => {
                    use RemoteErrorKind::{Connection, Timeout};
                    let kind = result.as_ref().err().map(RemoteError::kind);
                    if !matches!(kind, Some(Connection | Timeout)) {
                        self.note_answer(op, from, allowance);
                    }
                    return result;
                }
                Err(_) if Instant::now() < gives_up_at() => {}
                Err(_) => {
                    self.state.lock().given_up += 1;
                    return Err(RemoteError::new(RemoteErrorKind::Timeout));
                }
            }
        }
    }

    /// Returns how long a call waits for a connection that is being made: a handshake takes several
    /// round trips, and processor time.
    pub(super) fn patience_to_connect(&self) -> Duration {
        match self.is_silent() {
            true => self.op_timeout,
            false => self.most_patience(),
        }
    }

    /// Returns how long a caller waits that has something to serve: `least`, and longer only
    /// where answers have taken longer of late.
    pub(super) fn patience_with_a_value(&self, least: Duration) -> Duration {
        let least = least.min(self.op_timeout);
        if self.is_silent() {
            return least;
        }
        self.above_slowest().clamp(least, self.most_patience())
    }

    fn above_slowest(&self) -> Duration {
        self.state.lock().slowest.saturating_mul(ABOVE_SLOWEST)
    }

    /// Returns how long the remote may be silent at most.
    pub(super) fn most_patience(&self) -> Duration {
        self.op_timeout.saturating_mul(MOST_PATIENCE)
    }

    /// Returns when a call is given up that was sent at `sent` and may take `allowance` longer
    /// for its bytes, unless the remote answers something before.
    pub(super) fn gives_up_at(&self, op: RemoteOp, sent: Instant, allowance: Duration) -> Instant {
        let state = *self.state.lock();
        let answered = if is_look(op) { state.answered } else { state.write_answered };
        let silent = sent.max(answered.unwrap_or(sent)) + self.patience() + allowance;
        let limit = SLOW_LIMIT.max(self.op_timeout) + allowance;
        silent.min(sent + limit)
    }

    /// Takes note of an answer to a call, also of one that is an error.
    pub(super) fn note_answer(&self, op: RemoteOp, sent: Instant, allowance: Duration) {
        let mut state = self.state.lock();
        let now = Instant::now();
        state.given_up = 0;
        state.answered = Some(now);
        if !is_look(op) {
            state.write_answered = Some(now);
        }
        state.answers = state.answers.saturating_add(1);
        let took = now.saturating_duration_since(sent).saturating_sub(allowance);
        state.slowest = took.max(state.slowest - state.slowest / 8);
    }

    /// Returns whether the failure of a call that was sent at `sent` is one more: calls that
    /// were on their way together fail together.
    pub(super) fn is_one_more_failure(&self, sent: Instant) -> bool {
        let mut state = self.state.lock();
        let counts = state.failed.is_none_or(|failed| failed <= sent);
        if counts {
            state.failed = Some(Instant::now());
        }
        counts
    }
}

const fn is_look(op: RemoteOp) -> bool {
    matches!(op, RemoteOp::Get | RemoteOp::ReadLog | RemoteOp::ReadPositions)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const NONE: Duration = Duration::ZERO;

    async fn pass(time: Duration) {
        tokio::time::advance(time).await;
    }

    fn left(progress: &Progress, op: RemoteOp, sent: Instant) -> Duration {
        progress.gives_up_at(op, sent, NONE).saturating_duration_since(Instant::now())
    }

    /// Returns the progress of a remote that has answered quickly so far.
    fn known() -> Progress {
        let progress = Progress::new(100 * MS);
        for _ in 0..FIRST_ANSWERS {
            progress.note_answer(RemoteOp::Get, Instant::now(), NONE);
        }
        progress
    }

    #[tokio::test(start_paused = true)]
    async fn before_the_first_answers_and_after_slow_ones_it_is_more_patient() {
        let progress = Progress::new(100 * MS);
        for _ in 0..FIRST_ANSWERS {
            assert_eq!(progress.patience(), 400 * MS);
            progress.note_answer(RemoteOp::Get, Instant::now(), NONE);
        }
        assert_eq!(progress.patience(), 100 * MS);
        let sent = Instant::now();
        pass(80 * MS).await;
        progress.note_answer(RemoteOp::Get, sent, NONE);
        assert_eq!(progress.patience(), 320 * MS);
        for _ in 0..30 {
            progress.note_answer(RemoteOp::Get, Instant::now(), NONE);
        }
        assert_eq!(progress.patience(), 100 * MS);
        let sent = Instant::now();
        pass(80 * MS).await;
        progress.note_answer(RemoteOp::Get, sent, 80 * MS);
        assert_eq!(progress.patience(), 100 * MS, "its bytes have taken the time");
    }

    #[tokio::test(start_paused = true)]
    async fn after_calls_that_were_given_up_every_fourth_probe_is_waited_for_longer() {
        let progress = known();
        for op in [RemoteOp::Probe, RemoteOp::Get] {
            let slow = || async {
                tokio::time::sleep(300 * MS).await;
                Ok(())
            };
            let begun = Instant::now();
            while progress.answer(op, NONE, || false, slow()).await.is_err() {
                if begun.elapsed() > 5000 * MS {
                    break;
                }
            }
            let took = if op == RemoteOp::Probe { 700 * MS } else { 300 * MS };
            assert_eq!(begun.elapsed(), took, "{op:?}: the probe has told how long answers take");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn while_the_remote_answers_a_call_may_take_two_seconds_and_no_more() {
        let progress = known();
        progress.note_answer(RemoteOp::Fill, Instant::now(), NONE);
        let sent = Instant::now();
        for _ in 0..39 {
            assert_eq!(left(&progress, RemoteOp::Acquire, sent).min(100 * MS), 100 * MS);
            pass(50 * MS).await;
            progress.note_answer(RemoteOp::Fill, Instant::now(), NONE);
        }
        assert_eq!(left(&progress, RemoteOp::Acquire, sent), 50 * MS);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_to_looks_say_nothing_of_writes() {
        let progress = known();
        pass(MS).await;
        let sent = Instant::now();
        progress.note_answer(RemoteOp::Fill, sent, NONE);
        pass(60 * MS).await;
        progress.note_answer(RemoteOp::Get, Instant::now(), NONE);
        assert_eq!(left(&progress, RemoteOp::Acquire, sent), 40 * MS);
        assert_eq!(left(&progress, RemoteOp::Get, sent), 100 * MS);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_were_on_their_way_together_are_one_failure() {
        let progress = known();
        let sent = Instant::now();
        pass(100 * MS).await;
        let counted = (0..3).filter(|_| progress.is_one_more_failure(sent)).count();
        assert_eq!(counted, 1);
        let sent = Instant::now();
        pass(MS).await;
        assert!(progress.is_one_more_failure(sent));
    }
}
