//! The words of labels, of fields of log lines, and of public events.

use std::time::Duration;

/// What a computation without a result meant for its callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FailureEffect {
    pub(crate) callers_got: CallersGot,
    /// For how long no caller computes the key.
    pub(crate) held_for: Option<Duration>,
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
        Cancelled = "cancelled",
        Failed = "failed",
        TimedOut = "timed_out",
        Panicked = "panicked",
        Dropped = "dropped",
    }
}

impl ComputationEnd {
    /// Up to `Declined`, every end has a result.
    pub(crate) const fn has_result(self) -> bool {
        self as usize <= Self::Declined as usize
    }
}

words! {
    /// What happened to a caller that missed in this process.
    pub(crate) enum LocalLock {
        Acquired = "acquired",
        Joined = "joined",
        Held = "held",
        Overloaded = "overloaded",
    }
}

words! {
    /// What happened to a result.
    pub(crate) enum FillResult {
        Stored = "stored",
        Refused = "refused",
        /// Its body had no room while it arrived.
        NoRoom = "no_room",
        Failed = "failed",
    }
}

words! {
    /// What was invalidated.
    pub(crate) enum InvalidationKind {
        Key = "key",
        Tag = "tag",
        All = "all",
        /// A key, by another process.
        Remote = "remote",
    }
}
