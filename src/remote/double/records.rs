//! The records of one key and what each operation does to them: the six
//! scripts of the protocol, as functions of the server's time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::remote::double::clock::{Micros, Now};
use crate::remote::{
    AcquireOutcome, FillOutcome, Grant, InvalidatedRecords, LeaseRequest, Token, Version,
};

/// Where the version's digits lie in an envelope.
const DIGITS: std::ops::Range<usize> = 4..20;

/// A process that waits.
pub(super) type Inbox = usize;

/// The value, the lock and the right to fill of one key.
#[derive(Default)]
pub(super) struct Records {
    value: Option<Value>,
    lock: Option<Lock>,
    right: Option<Right>,
}

/// One of the three records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Record {
    /// The envelope.
    Value,
    /// The lock: the holder of the lease, and for how long.
    Lock,
    /// The right to fill, and the waiting processes.
    Right,
}

struct Value {
    /// None in a value of another type.
    envelope: Option<Bytes>,
    until: Micros,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// A client that knows only the lock.
    Stranger,
    /// No holder: the last computation failed. For how long that was to last.
    Hold(Duration),
    Leader(Token),
}

struct Lock {
    holder: Holder,
    until: Micros,
}

/// The bytes where a value's version is, whatever they are.
type Mark = Bytes;

#[derive(Default)]
struct Right {
    token: Option<Token>,
    granted: Option<Version>,
    /// What there was of a value when it was granted.
    found: Option<Mark>,
    lease: Duration,
    waiting: Vec<Inbox>,
    until: Micros,
}

/// No memory for another record.
pub(super) struct OutOfMemory;

/// The processes that are woken.
pub(super) type Woken = Vec<Inbox>;

impl Records {
    /// Forgets what has expired.
    pub(super) fn expire(&mut self, now: Now) {
        self.value.take_if(|value| now.is_past(value.until));
        self.lock.take_if(|lock| now.is_past(lock.until));
        self.right.take_if(|right| now.is_past(right.until));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.value.is_none() && self.lock.is_none() && self.right.is_none()
    }

    pub(super) fn envelope(&self) -> Option<Bytes> {
        self.value.as_ref().map(|value| value.envelope.clone().unwrap_or_default())
    }

    pub(super) fn acquire(
        &mut self,
        now: Now,
        ask: &LeaseRequest,
        inbox: Option<Inbox>,
        full: bool,
    ) -> Result<AcquireOutcome, OutOfMemory> {
        let version = self.version();
        if version.is_some()
            && version != ask.seen
            && let Some(value) = self.envelope()
        {
            return Ok(AcquireOutcome::Hit { now: now.reading(), value });
        }
        if full {
            return Err(OutOfMemory);
        }
        match self.lock.as_ref().map(|lock| (lock.holder, now.until(lock.until))) {
            None => {
                let (holder, until) = (Holder::Leader(ask.token), now.plus(ask.lease));
                self.lock = Some(Lock { holder, until });
            }
            Some((Holder::Leader(token), _)) if token == ask.token => {}
            Some((holder @ Holder::Hold(hold), left)) => {
                // More is left than was set: the clock was set back.
                if left > hold {
                    self.lock = Some(Lock { holder, until: now.plus(hold) });
                }
                let left = left.min(hold);
                return Ok(AcquireOutcome::Held { now: now.reading(), left });
            }
            Some(_) => return Ok(self.locked(now, ask, inbox)),
        }
        Ok(AcquireOutcome::Granted(self.grant(now, ask)))
    }

    /// The lock is the asker's: the grant it has, or a new one.
    fn grant(&mut self, now: Now, ask: &LeaseRequest) -> Grant {
        let (value, found) = (self.version(), self.mark());
        let right = self.right.get_or_insert_default();
        right.prolong(now, ask.keep);
        if let (Some(token), Some(version)) = (right.token, right.granted)
            && token == ask.token
        {
            return Grant::new(token, version, now.reading());
        }
        let version = now.version_above(value.max(right.granted));
        right.token = Some(ask.token);
        right.granted = Some(version);
        right.found = found;
        right.lease = ask.lease;
        Grant::new(ask.token, version, now.reading())
    }

    /// The lock is another's.
    fn locked(&mut self, now: Now, ask: &LeaseRequest, inbox: Option<Inbox>) -> AcquireOutcome {
        self.cap(now, ask.lease);
        if let Some(inbox) = inbox {
            let right = self.right.get_or_insert_default();
            right.prolong(now, ask.keep);
            right.register(inbox);
        }
        let left = self.lock.as_ref().map_or(Duration::ZERO, |lock| now.until(lock.until));
        let waiting = self.right.as_ref().map_or(0, |right| right.waiting.len());
        let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
        let holder = self.right.as_ref().and_then(|right| right.granted);
        AcquireOutcome::Locked { now: now.reading(), left, waiting, holder }
    }

    /// A lease that has more left than it can have: the server's clock was set
    /// back. Never done to a stranger's lock.
    fn cap(&mut self, now: Now, lease: Duration) {
        let (Some(lock), Some(right)) = (&mut self.lock, &self.right) else { return };
        let ours = right.token.is_some_and(|token| lock.holder == Holder::Leader(token));
        if ours && now.until(lock.until) > lease.max(right.lease) {
            lock.until = now.plus(right.lease);
        }
    }

    pub(super) fn fill(
        &mut self,
        now: Now,
        grant: &Grant,
        ttl: Duration,
        envelope: Bytes,
        full: bool,
    ) -> Result<(FillOutcome, Woken), OutOfMemory> {
        if self.version() == Some(grant.version) {
            return Ok((FillOutcome::StoredBefore, Woken::new()));
        }
        let granted = self.is_granted(&grant.token, grant.version);
        let right_lost = self.holds(&grant.token) && self.right_token().is_none();
        let allowed = (granted && self.is_undisturbed()) || right_lost;
        if allowed && full {
            return Err(OutOfMemory);
        }
        self.unlock(&grant.token);
        if allowed {
            self.value = Some(Value { envelope: Some(envelope), until: now.plus(ttl) });
            return Ok((FillOutcome::Stored, self.forget_right()));
        }
        // Only the value was changed: no other operation will wake the waiting processes.
        let woken = if granted { self.forget_right() } else { Woken::new() };
        Ok((FillOutcome::Refused, woken))
    }

    pub(super) fn renew(&mut self, now: Now, grant: &Grant, ask: &LeaseRequest) -> bool {
        let mine = self.right_token() == Some(grant.token);
        if mine && !self.is_granted(&grant.token, grant.version) {
            return false;
        }
        let retakes = self.lock.is_none() && mine && self.is_undisturbed();
        if !self.holds(&grant.token) && !retakes {
            return false;
        }
        let (holder, until) = (Holder::Leader(grant.token), now.plus(ask.lease));
        self.lock = Some(Lock { holder, until });
        let found = self.mark();
        let right = self.right.get_or_insert_default();
        right.prolong(now, ask.keep);
        right.lease = ask.lease;
        if right.token.is_none() {
            right.token = Some(grant.token);
            right.granted = Some(grant.version);
            right.found = found;
        }
        true
    }

    pub(super) fn abandon(
        &mut self,
        now: Now,
        token: &Token,
        hold: Option<Duration>,
        hearing: &[Inbox],
        full: bool,
    ) -> (bool, Woken) {
        let mine = self.right_token() == Some(*token);
        if !mine && !self.holds(token) {
            return (false, Woken::new());
        }
        self.unlock(token);
        if mine && let Some(right) = &mut self.right {
            right.token = None;
        }
        let Some(hold) = hold else {
            let first = self.right.as_mut().and_then(|right| right.first_of(hearing));
            return (true, first.into_iter().collect());
        };
        if self.lock.is_none() && !full && !hold.is_zero() {
            self.lock = Some(Lock { holder: Holder::Hold(hold), until: now.plus(hold) });
        }
        let waiting = self.right.as_mut().map(|right| std::mem::take(&mut right.waiting));
        (true, waiting.unwrap_or_default())
    }

    pub(super) fn invalidate(&mut self, now: Now) -> (InvalidatedRecords, Woken) {
        let value = self.value.take().is_some();
        let right = self.right_token().is_some();
        let lease = self.lock.take().is_some() || right;
        let version = Some(now.version_above(None));
        (InvalidatedRecords { value, lease, version }, self.forget_right())
    }

    /// Stores a value whose version is written here. The caller has looked at
    /// its length.
    pub(super) fn put(
        &mut self,
        now: Now,
        ttl: Duration,
        envelope: &[u8],
        full: bool,
    ) -> (Result<Version, OutOfMemory>, Woken) {
        let granted = self.right.as_ref().and_then(|right| right.granted);
        let version = now.version_above(self.version().max(granted));
        let (_, woken) = self.invalidate(now);
        if full {
            return (Err(OutOfMemory), woken);
        }
        let mut envelope = BytesMut::from(envelope);
        envelope[DIGITS].copy_from_slice(version.to_string().as_bytes());
        self.value = Some(Value { envelope: Some(envelope.freeze()), until: now.plus(ttl) });
        (Ok(version), woken)
    }

    fn mark(&self) -> Option<Mark> {
        let envelope = self.envelope()?;
        let end = envelope.len().min(DIGITS.end);
        Some(envelope.slice(DIGITS.start.min(end)..end))
    }

    fn version(&self) -> Option<Version> {
        Version::from_digits(&self.mark()?)
    }

    fn right_token(&self) -> Option<Token> {
        self.right.as_ref()?.token
    }

    fn is_granted(&self, token: &Token, version: Version) -> bool {
        let right = self.right.as_ref();
        right.is_some_and(|r| r.token == Some(*token) && r.granted == Some(version))
    }

    /// Whether only holders of the right have written the value.
    fn is_undisturbed(&self) -> bool {
        let found = self.right.as_ref().and_then(|right| right.found.as_ref());
        self.value.is_none() || self.mark().as_ref() == found
    }

    fn holds(&self, token: &Token) -> bool {
        self.lock.as_ref().is_some_and(|lock| lock.holder == Holder::Leader(*token))
    }

    fn unlock(&mut self, token: &Token) {
        self.lock.take_if(|lock| lock.holder == Holder::Leader(*token));
    }

    fn forget_right(&mut self) -> Woken {
        self.right.take().map(|right| right.waiting).unwrap_or_default()
    }
}

impl Right {
    fn prolong(&mut self, now: Now, keep: Duration) {
        self.until = self.until.max(now.plus(keep));
    }

    fn register(&mut self, inbox: Inbox) {
        if !self.waiting.contains(&inbox) {
            self.waiting.push(inbox);
        }
    }

    /// The first that still hears; those before it are forgotten.
    fn first_of(&mut self, hearing: &[Inbox]) -> Option<Inbox> {
        while !self.waiting.is_empty() {
            let first = self.waiting.remove(0);
            if hearing.contains(&first) {
                return Some(first);
            }
        }
        None
    }
}

/// What others than the protocol's clients do to the records.
impl Records {
    pub(super) fn lose(&mut self, record: Record) {
        match record {
            Record::Value => self.value = None,
            Record::Lock => self.lock = None,
            Record::Right => self.right = None,
        }
    }

    pub(super) fn overwrite(&mut self, envelope: Option<Bytes>) {
        self.value = Some(Value { envelope, until: Micros::NEVER });
    }

    /// `SET NX PX` by a client that knows only the lock.
    pub(super) fn lock_for_stranger(&mut self, now: Now, lease: Duration) -> bool {
        if self.lock.is_some() {
            return false;
        }
        self.lock = Some(Lock { holder: Holder::Stranger, until: now.plus(lease) });
        true
    }

    /// That client's compare-and-delete.
    pub(super) fn unlock_by_stranger(&mut self) -> bool {
        self.lock.take_if(|lock| lock.holder == Holder::Stranger).is_some()
    }

    pub(super) fn stretch_lease(&mut self, now: Now, left: Duration) {
        if let Some(lock) = &mut self.lock {
            lock.until = now.plus(left);
        }
    }
}
