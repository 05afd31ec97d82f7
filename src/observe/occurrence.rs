//! The occurrences that the engine and its surroundings report.
//!
//! [`table`](super::table) says what follows from each.

use std::time::Duration;

use crate::key::{Key, Tag};
use crate::mode::Mode;

/// Receives what the engine does. An implementation must neither block nor
/// panic.
pub(crate) trait Observe: Send + Sync + 'static {
    fn happened(&self, what: Occurrence<'_>);
}

/// One thing that happened.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Occurrence<'a> {
    /// The computation of a flight ended.
    Computed { key: &'a Key, took: Duration, end: ComputationEnd, failure: Option<FailureEffect> },
    /// The leader was neither polled nor dropped for longer than its time-out: it was given up.
    Deposed { key: &'a Key },
    /// A caller computed for itself, outside any flight. `reason` is a word of
    /// a closed set. With `timed_out` it got an error.
    ComputedAlone { key: &'a Key, reason: &'static str, took: Duration, timed_out: bool },
    /// One call for several keys ended.
    BatchCalled { keys: u64, took: Duration },
    /// A result was not stored: it was invalidated meanwhile, or its leader was
    /// deposed.
    FillRefused { key: &'a Key },
    /// A response was passed on unshared: bodies that arrive take as many bytes as they may.
    BodyRefused { key: &'a Key },
    /// A caller took the lead.
    Led,
    /// A caller joined a running computation.
    Joined,
    /// A caller stopped waiting after `took`, with or without an answer.
    Waited { took: Duration },
    /// A caller gave up waiting.
    WaitTimedOut { key: &'a Key },
    /// A caller was refused at a bound on waiters or computations.
    Overloaded { key: &'a Key },
    /// A caller was refused by a hold.
    Held { key: &'a Key },
    /// The cache could have answered, and did not because it only observes.
    WouldHaveAnswered,
    /// A request was forwarded uncached. `reason` is a word of a closed set.
    Bypassed { reason: &'static str },
    /// This process invalidated a key.
    Invalidated { key: &'a Key },
    /// This process invalidated a tag, or everything, or made it stale: then `tag` is a mark.
    TagInvalidated { tag: &'a Tag },
    /// Another process invalidated or put a key.
    InvalidatedElsewhere { key: &'a Key },
    /// The cache was switched.
    ModeChanged { mode: Mode },
    /// Another process still computes the key, after a wait of more than `lease`.
    WaitsLong { key: &'a Key, waited: Duration, lease: Duration },
    /// The lease ended because its holder did not renew it, and this process has it now.
    TookOver { key: &'a Key, waited: Duration, lease: Duration },
    /// The remote answered an acquire.
    Locked { answer: LockAnswer },
    /// A leader that waits for another process looks again.
    Woken { cause: WakeCause },
    /// A call to the remote ended.
    RemoteCalled { op: RemoteOp, took: Duration, error: Option<&'static str> },
    /// The cache was built with a remote.
    RemoteAttached,
    /// The remote is not asked any more: the last call failed so, if a call was made.
    RemoteAway { server: &'a str, failure: Option<(RemoteOp, &'static str)> },
    /// The remote is asked again. `is_last`: no other server of it is away.
    RemoteBack { server: &'a str, away_for: Duration, is_last: bool },
    /// A value in the remote cannot be used.
    Damaged { how: &'static str },
    /// A result stays in this process: it is too large or cannot be encoded.
    Unshareable { key: &'a Key },
    /// A cache was built that can neither weigh its values nor has a bound on their number.
    Unweighed { type_name: &'a str, max_entries: u64 },
    /// A request was not read, because the layer cannot make a body of this type.
    BodyTypeUnknown { type_name: &'a str },
    /// A response was not shared because its request carries this field.
    CredentialRefused { field: &'a str },
    /// Many responses were stored, and no write has passed a layer of the handle.
    NoWriteSeen,
}

/// What a computation without a result meant for its callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FailureEffect {
    pub(crate) callers_got: CallersGot,
    /// For how long no caller computes the key.
    pub(crate) held_for: Option<Duration>,
    /// No caller waited for the computation: its failure reaches none.
    pub(crate) is_refresh: bool,
}

words! {
    /// What the callers of a failed computation got.
    pub(crate) enum CallersGot {
        StaleValue = "the stale value",
        Failure = "the error",
        /// Each waiter computes for itself.
        OwnComputations = "computations of their own",
        /// The leader's caller got the failure; one of the waiters computes for the others.
        NextResult = "the result of one more computation (its own caller: the error)",
        /// The leader's caller got the panic.
        NewComputation = "a new computation (its own caller: the panic)",
    }
}

words! {
    /// A kind of call to the remote.
    #[derive(PartialOrd, Ord)]
    #[non_exhaustive]
    pub enum RemoteOp {
        /// Reads the value of a key.
        Get = "get",
        /// Asks for the lease of a key.
        Acquire = "acquire",
        /// Stores a value under a lease.
        Fill = "fill",
        /// Prolongs a lease.
        Renew = "renew",
        /// Gives a lease up.
        Abandon = "abandon",
        /// Removes the value and the lease of a key.
        Invalidate = "invalidate",
        /// Stores a value without a lease.
        Put = "put",
        /// Appends to the invalidation log.
        Announce = "announce",
        /// Reads what is new in the invalidation log.
        ReadLog = "read_log",
        /// Asks the invalidation log for the positions of tags.
        ReadPositions = "read_positions",
        /// Asks whether the remote answers.
        Probe = "probe",
    }
}

words! {
    /// The remote's answer to an acquire.
    pub(crate) enum LockAnswer {
        Acquired = "acquired",
        Hit = "hit",
        Locked = "locked",
        Held = "held",
    }
}

words! {
    /// Why a leader that waits for another process looks again.
    pub(crate) enum WakeCause {
        /// A wake-up arrived.
        Push = "push",
        /// No wake-up arrived in time.
        Timer = "timer",
        /// No wake-up can arrive at the moment.
        Poll = "poll",
    }
}

words! {
    /// How the computation of a flight ended.
    pub(crate) enum ComputationEnd {
        Stored = "stored",
        Shared = "shared",
        Declined = "declined",
        Failed = "failed",
        TimedOut = "timed_out",
        Panicked = "panicked",
        Dropped = "dropped",
    }
}

impl ComputationEnd {
    /// From `Failed` on, every end is a failure.
    pub(super) const fn is_failure(self) -> bool {
        self as usize >= Self::Failed as usize
    }
}
