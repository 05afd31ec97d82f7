//! The parts of a lease on a key, for every kind of remote: token, version, stamp, grant, and
//! the answer to a request. The engine and the remote use the same types.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU64;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

/// Versions from 2^52 on are not versions: Lua's numbers lose digits there.
const VERSIONS: u64 = 1 << 52;

/// Marks one try to get a lease: 128 random bits, made by the client.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(u128);

impl Token {
    /// Makes a new token: a count of this process under a secret that the
    /// operating system gave it. So no two processes make the same token, and
    /// no attacker can guess the next one.
    #[must_use]
    pub fn random() -> Self {
        static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let half = |which: u8| u128::from(SECRET.hash_one((count, which)));
        Self(half(0) << 64 | half(1))
    }

    #[cfg_attr(not(feature = "http"), allow(dead_code, reason = "HTTP's generations"))]
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

/// Writes 32 hexadecimal digits.
impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

// A token is the right to write: not in logs.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Orders the values of one key between two invalidations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(NonZeroU64);

impl Version {
    /// Takes a number as a version, if it is one: above 0 and below 2^52.
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) if number.get() < VERSIONS => Some(Self(number)),
            _ => None,
        }
    }

    /// Reads 16 decimal digits.
    #[must_use]
    pub fn from_digits(digits: &[u8]) -> Option<Self> {
        if digits.len() != 16 || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        Self::new(digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

/// Writes 16 decimal digits.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016}", self.0)
    }
}

/// A reading of the remote's clock, in milliseconds since the UNIX epoch. Only
/// readings of the same remote are ever compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerTime(u64);

impl ServerTime {
    /// Takes milliseconds since the UNIX epoch.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Returns milliseconds since the UNIX epoch.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }
}

/// Names one life of the invalidation log: a log that was lost begins again under another.
///
/// Nothing that a computation of one epoch has made is used in another: what was invalidated
/// between the two is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch(NonZeroU64);

impl Epoch {
    /// Makes a new epoch, which no other process makes.
    #[must_use]
    pub fn random() -> Self {
        Self(NonZeroU64::MIN | Token::random().0 as u64)
    }

    /// Takes a number as an epoch: any but 0.
    #[must_use]
    pub fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// Reads 16 hexadecimal digits.
    #[must_use]
    pub fn from_digits(digits: &[u8]) -> Option<Self> {
        if digits.len() != 16 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        Self::new(u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

/// Writes 16 hexadecimal digits.
impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// How far a process has applied the invalidation log. An entry carries the stamp that its
/// process had before the computation began: what the log says after that ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// The life of the log.
    pub epoch: Epoch,
    /// The number of the last item that was applied; items count from 1.
    pub position: u64,
}

impl Stamp {
    /// Makes a stamp.
    #[must_use]
    pub const fn new(epoch: Epoch, position: u64) -> Self {
        Self { epoch, position }
    }
}

/// The right to fill a key, until the lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The token it was granted to.
    pub token: Token,
    /// The version under which to fill.
    pub version: Version,
    /// The remote's time when it was granted; the computation starts after it.
    pub now: ServerTime,
    /// How far the process had applied the invalidation log when it asked. A remote leaves it
    /// empty: it is the caller's.
    pub stamp: Option<Stamp>,
}

impl Grant {
    /// Makes a grant.
    #[must_use]
    pub const fn new(token: Token, version: Version, now: ServerTime) -> Self {
        Self { token, version, now, stamp: None }
    }

    /// Returns the grant for a result that was computed under `other`: it is as old as that one.
    pub(crate) const fn for_result_of(self, other: &Self) -> Self {
        Self { now: other.now, stamp: other.stamp, ..self }
    }
}

/// The answer to an acquire. `T` is what stands for the value: the envelope's bytes for a
/// remote.
#[derive(Clone, PartialEq, Eq)]
pub enum AcquireOutcome<T = Bytes> {
    /// There is a value that the caller has not seen: no lease is needed.
    Hit {
        /// The remote's time.
        now: ServerTime,
        /// The value.
        value: T,
    },
    /// The caller has the lease.
    Granted(Grant),
    /// Another process holds the lease, for so long if it is not renewed.
    Locked {
        /// The remote's time.
        now: ServerTime,
        /// What is left of the lease.
        left: Duration,
        /// How many processes have registered for a wake-up, the caller's included; 0 where
        /// the remote does not count them.
        waiting: u32,
        /// The version that was granted to the holder, where the remote knows it. Another one says
        /// that the lease before has ended.
        holder: Option<Version>,
    },
    /// The last computation failed; no process computes for so long.
    Held {
        /// The remote's time.
        now: ServerTime,
        /// What is left of the hold.
        left: Duration,
    },
}

impl<T> AcquireOutcome<T> {
    /// Returns the remote's time.
    #[must_use]
    pub const fn now(&self) -> ServerTime {
        match self {
            Self::Hit { now, .. } | Self::Locked { now, .. } | Self::Held { now, .. } => *now,
            Self::Granted(grant) => grant.now,
        }
    }
}

// A value is the user's: not in logs.
impl<T> fmt::Debug for AcquireOutcome<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hit { now, .. } => write!(f, "Hit({now:?}, ..)"),
            Self::Granted(grant) => write!(f, "Granted({grant:?})"),
            Self::Locked { now, left, waiting, holder } => {
                write!(f, "Locked({now:?}, {left:?}, {waiting} waiting, {holder:?})")
            }
            Self::Held { now, left } => write!(f, "Held({now:?}, {left:?})"),
        }
    }
}

/// A leader's request for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseRequest {
    /// A new token for every try; the same one to repeat a call whose reply
    /// was lost.
    pub token: Token,
    /// How long the lease holds without a renewal.
    pub lease: Duration,
    /// How long the record of the right to fill is kept: longer than leases
    /// and values.
    pub keep: Duration,
    /// Whether to be woken when the key is filled or abandoned by another.
    pub register: bool,
    /// The version of the value that is there and does not serve.
    pub seen: Option<Version>,
}

impl LeaseRequest {
    /// Asks with a new token, without registering, whatever value is there.
    #[must_use]
    pub fn new(lease: Duration, keep: Duration) -> Self {
        Self { token: Token::random(), lease, keep, register: false, seen: None }
    }

    /// Asks to be woken.
    #[must_use]
    pub fn register(mut self) -> Self {
        self.register = true;
        self
    }

    /// Says which value does not serve.
    #[must_use]
    pub fn seen(mut self, seen: Option<Version>) -> Self {
        self.seen = seen;
        self
    }
}

/// The result of a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FillOutcome {
    /// Stored.
    Stored,
    /// Stored already, by an earlier try whose reply was lost.
    StoredBefore,
    /// Not stored: superseded, invalidated, or the value was changed by others.
    Refused,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_sixteen_digits_below_two_to_the_52nd() {
        let top = Version::new(VERSIONS - 1).unwrap();
        assert_eq!(Version::from_digits(top.to_string().as_bytes()), Some(top));
        assert_eq!(Version::from_digits(b"4503599627370496"), None);
        assert_eq!(Version::from_digits(b"9999999999999999"), None);
        assert_eq!(Version::from_digits(b"0000000000000000"), None);
        assert_eq!(Version::from_digits(b"000000000000001"), None);
        assert_eq!(Version::from_digits(b"00000000000000 1"), None);
        assert_eq!(Version::from_digits(b"-000000000000001"), None);
        assert_eq!(Version::from_digits(b"0000000000000042").map(Version::get), Some(42));
    }

    #[test]
    fn a_token_is_written_in_full_and_never_logged() {
        let token = Token::random();
        assert_eq!(token.to_string().len(), 32);
        assert_eq!(format!("{token:?}"), "Token(..)");
        assert_ne!(token, Token::random());
    }
}
