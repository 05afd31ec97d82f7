//! What one process knows of the remote of one cache, as a machine: no async, no lock, no I/O.
//!
//! # What enters
//!
//! What the driver has seen: a reply of the invalidation log, a message, a subscription, a failed
//! call, a breaker that opens or closes. What this process does: it invalidates, or has told the
//! journal. Each with the number of the connection by which the server with the log is asked, and
//! the time.
//!
//! # What leaves
//!
//! [`Effects`]: what ends in this process, and whether the driver is to read or to tell more. To the
//! hit path: until when local copies may be served. To the coordinator: whether an entry of the
//! remote is alive.
//!
//! # The rules
//!
//! Commands and subscription are two connections, and either may lead to another server at any time:
//! after a failover, or with an address that moves. A server may also be restarted from an old
//! snapshot. [`Rule`] lists what keeps an invalidated value from coming back then. `tests/model.rs`
//! searches this machine with each rule left out, and prints the shortest history that it stops.
//!
//! # Reading order
//!
//! - this file: the machine.
//! - `known`: one life of the log, and how an entry is judged by it.
//! - `journal`: invalidations that the remote was not told yet.
//! - `heard`: what other processes have announced of late.

mod heard;
pub(crate) mod journal;
pub(crate) mod known;

use std::time::Duration;

use crate::clock::Tick;
use crate::key::{Key, Tag};
use crate::lease::grant::{Epoch, Stamp};
use crate::lease::validity::ValidUntil;
use crate::remote::link::heard::Heard;
use crate::remote::link::journal::Journal;
use crate::remote::link::known::{JudgedEntry, Known, Liveness, OwnItems};
use crate::remote::log::{LogHeader, LogItem, LogReply, LogUpdate};

/// How long local copies are valid, from when a read of the log was sent.
pub(super) const VALID_FOR: Duration = Duration::from_secs(2);

/// How often the remote itself checks that its log is the one that this process follows: a
/// failover may have set it back without breaking a connection.
const VERIFY_EVERY: Duration = Duration::from_secs(15);

/// What keeps an invalidated value from coming back. The model leaves them out one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Rule {
    /// A value that came over a connection by which the server has not checked its log is not
    /// judged.
    NewConnectionIsVerified,
    /// A reply makes copies valid only if its connection is still the one in use.
    ReplyIsOfConnectionInUse,
    /// The same where the log is away, and copies are served without limit.
    AwayJudgesNothingUnverified,
    /// What this process has invalidated is told again where the log begins anew: from the beginning
    /// of the call on.
    OwnIsToldAgain,
    /// So is what it has heard of others, by about one process.
    HeardIsToldAgain,
    /// A key is removed and announced over one connection, or both are done again.
    KeyEndsOverOneConnection,
    /// An entry that was stamped before this process has invalidated its key is dead.
    OwnKeysAreRemembered,
}

#[derive(Clone, Debug)]
pub(crate) struct Link {
    /// The connection by which the server with the log is asked. The first one is opened by the
    /// first call.
    connection: u64,
    /// The connection by which that server has last checked its log.
    verified_over: Option<u64>,
    /// When it did; `None`: it is to do so with the next read.
    verified_at: Option<Tick>,
    /// How often another server may have begun to answer, and up to which of these times the server
    /// has checked its log since.
    doubts: u64,
    settled: u64,
    known: Option<Known>,
    max_tags: usize,
    questions: Questions,
    valid: Validity,
    is_away: bool,
    /// Whether local copies are to be dropped once the log is back.
    is_in_doubt: bool,
    /// What the remote must be told before it is asked for what that concerns.
    pub(super) journal: Journal,
    /// What this process itself has invalidated, whether the remote was told or not.
    own: Journal,
    heard: Heard,
    #[cfg(test)]
    without: Vec<Rule>,
}

/// Until when local copies may be served, as far as the log is not away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Validity {
    /// The log was never asked. Nothing here is older than what it would say.
    Unasked,
    NotYet,
    Until(Tick),
    NoMore,
}

/// Messages that tell of items which this process has not read. Until a read of the log that is
/// sent after such a message, this process does not know what is alive.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Questions {
    /// How many there were.
    count: u64,
    /// The number of the last one that told of another epoch.
    of_epoch: u64,
    /// Up to which number a read has answered them.
    answered: u64,
}

/// A call that asks the log, as it was when the call was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Asked {
    sent: Tick,
    over: u64,
    pub(crate) stamp: Option<Stamp>,
    question: u64,
    doubts: u64,
    /// Whether the server is to check its log.
    pub(crate) verifies: bool,
}

impl Asked {
    /// The same of a call by which the server checks its log: an announcement.
    pub(super) fn verifying(self) -> Self {
        Self { verifies: true, ..self }
    }
}

/// What follows from an event.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// Every local copy is dropped: items may have been missed for good.
    pub(crate) drops_copies: bool,
    /// Ends locally, in this order. With the positions, as far as they are of this life of the log: an
    /// own item is read as one of another process where its reply comes later.
    pub(crate) items: Vec<(u64, LogItem)>,
    /// The log is to be read, or to be told something, now.
    pub(crate) tends: bool,
    /// All of the log is applied, and it is the log that is asked from now on.
    pub(crate) is_complete: bool,
    /// More is to be read.
    is_behind: bool,
    /// The log has lost items that this process has applied: it must begin again.
    is_rolled_back: bool,
}

impl Effects {
    fn of_items(items: Vec<(u64, LogItem)>) -> Self {
        Self { items, ..Self::default() }
    }

    fn behind(self) -> Self {
        Self { is_behind: true, ..self }
    }
}

impl Link {
    /// Makes the link of a process that has asked nothing yet. It remembers at most `max_tags` tags
    /// of the log, and at most `max_journal` invalidations of its own.
    pub(crate) fn new(max_tags: usize, max_journal: usize) -> Self {
        Self {
            connection: 0,
            verified_over: None,
            verified_at: None,
            doubts: 0,
            settled: 0,
            known: None,
            max_tags,
            questions: Questions::default(),
            valid: Validity::Unasked,
            is_away: false,
            is_in_doubt: false,
            journal: Journal::new(max_journal),
            own: Journal::new(max_journal),
            heard: Heard::default(),
            #[cfg(test)]
            without: Vec::new(),
        }
    }

    #[cfg(test)]
    fn holds(&self, rule: Rule) -> bool {
        !self.without.contains(&rule)
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "the model leaves rules out")]
    const fn holds(&self, _: Rule) -> bool {
        true
    }

    /// Takes note of the connection by which the server with the log is asked now.
    pub(super) fn is_asked_over(&mut self, connection: u64) {
        self.connection = connection;
    }

    /// Returns how far the log was applied; `None` before it was read.
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        self.known.as_ref().map(|known| known.applied)
    }

    /// Returns until when local copies may be served; `None` without limit: the log is away, or was
    /// never asked.
    pub(super) fn valid_until(&self) -> ValidUntil {
        match self.valid {
            Validity::Unasked if !self.is_away => ValidUntil::UNASKED,
            _ if self.is_away => ValidUntil::FOR_EVER,
            Validity::Until(until) => ValidUntil::at(until),
            Validity::Unasked | Validity::NotYet => ValidUntil::NOT_YET,
            Validity::NoMore => ValidUntil::NO_MORE,
        }
    }

    /// Returns whether the log is known, its server was asked over the connection that is in use,
    /// and what this process knows of it is up to date.
    pub(super) fn is_prepared(&self, now: Tick) -> bool {
        let is_trusted = self.is_verified()
            || !self.holds(Rule::NewConnectionIsVerified)
            || self.is_away && !self.holds(Rule::AwayJudgesNothingUnverified);
        self.known.is_some() && is_trusted && self.valid_until().covers(now)
    }

    fn is_verified(&self) -> bool {
        self.verified_over == Some(self.connection)
    }

    /// Returns whether `over`, the connection when a call was sent, is the one in use. A remote that
    /// opens its first connection with the first call may count it from then on.
    fn is_in_use(&self, over: u64) -> bool {
        over == self.connection || (over, self.connection) == (0, 1)
    }

    /// Returns whether the log may be on another server than when it was last checked.
    pub(super) fn is_in_question(&self, now: Tick) -> bool {
        let is_due = self.verified_at.is_none_or(|at| now >= at.plus(VERIFY_EVERY));
        is_due || self.doubts > self.settled || !self.is_verified()
    }

    /// Begins a call that asks the log.
    pub(super) fn asks(&self, now: Tick) -> Asked {
        Asked {
            sent: now,
            over: self.connection,
            stamp: self.stamp(),
            question: self.questions.count,
            doubts: self.doubts,
            verifies: self.is_in_question(now),
        }
    }

    /// Returns whether what was done over the connection of `asked` was done over the one that is in
    /// use now.
    pub(super) fn is_over_one_connection(&self, asked: &Asked) -> bool {
        self.is_in_use(asked.over) || !self.holds(Rule::KeyEndsOverOneConnection)
    }

    /// Takes what the log has replied to a read, or to an announcement of `own` items.
    pub(super) fn is_answered(
        &mut self,
        asked: &Asked,
        reply: &LogReply,
        own: OwnItems<'_>,
        now: Tick,
    ) -> Effects {
        let is_in_use = self.is_in_use(asked.over) || !self.holds(Rule::ReplyIsOfConnectionInUse);
        if asked.verifies && is_in_use {
            self.verified_over = Some(self.connection);
            self.verified_at = Some(asked.sent);
            self.settled = asked.doubts;
        }
        let mut effects = self.take_reply(asked.stamp, reply, own, now);
        if effects.is_rolled_back {
            self.verified_at = None;
        }
        let is_verified = self.is_verified() || !self.holds(Rule::NewConnectionIsVerified);
        effects.is_complete =
            !effects.is_behind && !effects.is_rolled_back && is_in_use && is_verified;
        let epoch = reply.header.epoch;
        if self.epoch() == Some(epoch) {
            self.heard.note_all(&effects.items, epoch, true, now);
        }
        if effects.is_complete {
            self.questions.answered = self.questions.answered.max(asked.question);
            self.valid = Validity::Until(asked.sent.plus(VALID_FOR));
            let holds = self.holds(Rule::HeardIsToldAgain);
            effects.tends |= holds && self.heard.is_followed(epoch, now);
        }
        effects
    }

    /// Gives up to read what was missed, and goes on from where the log is now.
    pub(super) fn skips_to(&mut self, header: &LogHeader, asked: &Asked) -> Effects {
        self.known = Some(Known::new(header));
        self.questions.answered = self.questions.answered.max(asked.question);
        self.has_gap()
    }

    /// Takes a message: what another process has announced.
    pub(super) fn is_told(&mut self, update: &LogUpdate, now: Tick) -> Effects {
        let mut effects = self.take_update(update, now);
        effects.tends = effects.is_behind;
        let is_current = self.epoch() == Some(update.epoch);
        self.heard.note_all(&effects.items, update.epoch, is_current, now);
        effects
    }

    /// The subscription was made, perhaps at another server. Messages were missed.
    pub(super) fn is_subscribed(&mut self) -> Effects {
        self.verified_at = None;
        if !self.is_away {
            self.valid = match self.valid {
                Validity::Unasked | Validity::NotYet => Validity::NotYet,
                Validity::Until(_) | Validity::NoMore => Validity::NoMore,
            };
        }
        Effects { tends: true, ..Effects::default() }
    }

    /// A call to the server with the log has failed: the next one may reach another server.
    pub(super) fn has_failed(&mut self) {
        self.doubts += 1;
    }

    /// The log lacks what this process has applied: with the next read it is to begin again.
    pub(super) fn has_lost_items(&mut self) -> Effects {
        self.verified_at = None;
        Effects { tends: true, ..Effects::default() }
    }

    /// The log is not asked until it is back. Local copies are all there is meanwhile.
    pub(super) fn is_away(&mut self) -> Effects {
        self.is_away = true;
        Effects::default()
    }

    /// The log is asked again, and was read before.
    pub(super) fn is_back(&mut self) -> Effects {
        self.is_away = false;
        let drops_copies = std::mem::take(&mut self.is_in_doubt);
        Effects { drops_copies, ..Effects::default() }
    }

    /// The task that has looked after the link is gone, and messages with it.
    pub(super) fn is_unattended(&mut self) -> Effects {
        self.verified_at = None;
        Effects { drops_copies: true, ..Effects::default() }
    }

    /// Items may have been missed for good. While the log is away, dropping all copies would make
    /// every process compute.
    fn has_gap(&mut self) -> Effects {
        self.is_in_doubt = self.is_away;
        Effects { drops_copies: !self.is_away, ..Effects::default() }
    }

    /// This process begins to invalidate keys.
    pub(super) fn invalidates_keys(&mut self, keys: &[Key]) {
        self.own.note_keys(keys);
    }

    /// This process begins to invalidate tags.
    pub(super) fn invalidates_tags(&mut self, tags: &[Tag]) {
        self.own.note_tags(tags);
    }

    /// Moves what was heard, and was not heard again since the log began anew, to the journal.
    pub(super) fn tells_again(&mut self, now: Tick) -> Effects {
        let items: Vec<_> = self.heard.take_due(now).into_iter().map(|item| (0, item)).collect();
        for (_, item) in &items {
            match item.clone().into_tag() {
                Ok(tag) => self.journal.note_tags(&[tag]),
                // Of a long URI only the tag was announced, and not which keys it has.
                Err(key) if is_uri_tag(&key) => self.journal.note_tags(&[Tag::from("*")]),
                Err(key) => self.journal.note_keys(&[key]),
            }
        }
        Effects { tends: !items.is_empty(), ..Effects::of_items(items) }
    }

    /// Returns when [`tells_again`](Self::tells_again) has something to do.
    pub(super) fn next_due(&self) -> Option<Tick> {
        self.heard.next_due()
    }

    /// Returns whether the log is still the one by which a computation was stamped.
    pub(super) fn is_of_this_epoch(&self, stamp: Option<Stamp>) -> bool {
        self.epoch() == stamp.map(|stamp| stamp.epoch)
    }

    fn epoch(&self) -> Option<Epoch> {
        self.stamp().map(|stamp| stamp.epoch)
    }

    /// Judges an entry that was read over the connection in use, or an earlier one. Where this
    /// process is behind, the log is to be read, and the entry to be judged again.
    pub(super) fn judge(&self, entry: JudgedEntry<'_>, now: Tick) -> Liveness {
        if self.is_to_be_told_of(entry) {
            // The entry may have been computed before or after the invalidation.
            return Liveness::Dead;
        }
        let liveness = self.judge_by_log(entry);
        if liveness == Liveness::Dead || liveness != Liveness::Behind && self.is_prepared(now) {
            return liveness;
        }
        if !self.is_away {
            return Liveness::Behind;
        }
        if !self.is_verified() && self.holds(Rule::AwayJudgesNothingUnverified) {
            // It is perhaps of a server that lacks what has ended it.
            return Liveness::Unknown;
        }
        self.judge_behind(entry)
    }

    /// Returns whether the remote does not know yet of something that has ended an entry, perhaps.
    fn is_to_be_told_of(&self, entry: JudgedEntry<'_>) -> bool {
        let is_told = self.journal.is_empty();
        !is_told
            && (self.journal.has_any_of(entry.tags)
                || self.journal.has_any_of(&entry.marks())
                || self.journal.concerns(entry.key))
    }

    /// Takes from the log where it has the last stale mark of a key.
    pub(super) fn is_told_of_marked_keys(&mut self, said: &LogHeader, position: u64) {
        // A late reply does not know of what this process has missed since.
        let is_enough =
            |known: &&mut Known| known.applied.epoch == said.epoch && known.since <= said.last;
        if let Some(known) = self.known.as_mut().filter(is_enough) {
            known.note_marked_keys(position);
        }
    }

    /// Returns up to where this process has heard of the log, for a caller that comes now; `None` where
    /// the log, or this process, does not know of all that was invalidated before.
    pub(super) fn arrival(&self, now: Tick) -> Option<Stamp> {
        let known = self.known.as_ref()?;
        (self.is_prepared(now) && self.journal.is_empty()).then(|| known.heard())
    }

    /// Returns whether an entry that has ended, or has become stale, was as it is computed for a
    /// caller that came when this process had heard of the log up to `arrived`. Then the caller may
    /// have it: what ended it came after the caller.
    pub(super) fn was_alive(&self, entry: JudgedEntry<'_>, arrived: Stamp, now: Tick) -> bool {
        let (Some(known), Some(stamp)) = (&self.known, entry.stamp) else { return false };
        self.is_prepared(now)
            && self.questions.answered >= self.questions.count
            && !self.is_to_be_told_of(entry)
            && known.was_alive(entry, stamp, arrived)
    }

    fn judge_by_log(&self, entry: JudgedEntry<'_>) -> Liveness {
        let Some(known) = &self.known else { return Liveness::Behind };
        // Stored by a process that had not read the log.
        let Some(stamp) = entry.stamp else { return Liveness::Dead };
        if stamp.epoch != known.applied.epoch || stamp.position > known.applied.position {
            return Liveness::Behind;
        }
        match known.judge(entry, stamp) {
            Liveness::Dead => Liveness::Dead,
            _ if self.questions.answered < self.questions.count => Liveness::Behind,
            liveness => liveness,
        }
    }

    /// Judges an entry that the log should be read for, while the log is away. A computation that
    /// was stamped later than what this process knows is one that nothing known has ended.
    fn judge_behind(&self, entry: JudgedEntry<'_>) -> Liveness {
        let is_epoch_in_question = self.questions.answered < self.questions.of_epoch;
        match (&self.known, entry.stamp) {
            (Some(known), Some(stamp))
                if stamp.epoch == known.applied.epoch && !is_epoch_in_question =>
            {
                known.judge(entry, stamp)
            }
            _ => Liveness::Unknown,
        }
    }

    /// Another epoch: the server has lost its log, and with it all values that were stamped by it. Or
    /// another server answers, which may lack what this process was told was done.
    fn begins_epoch(&mut self, header: &LogHeader) -> Effects {
        let left = self.known.replace(Known::new(header)).map(|known| known.server);
        let mut effects = self.has_gap();
        if left.is_none_or(|left| left == header.server && left != 0) {
            self.heard.forget();
            return effects;
        }
        if self.holds(Rule::OwnIsToldAgain) {
            self.journal.note_all(&self.own);
        }
        effects.tends = true;
        effects
    }

    fn take_reply(
        &mut self,
        asked: Option<Stamp>,
        reply: &LogReply,
        own: OwnItems<'_>,
        now: Tick,
    ) -> Effects {
        let header = &reply.header;
        let first = reply.previous.saturating_add(1);
        let max_tags = self.max_tags;
        let own = match self.holds(Rule::OwnKeysAreRemembered) {
            true => own,
            false => OwnItems { ended: &[], ..own },
        };
        if self.epoch() != Some(header.epoch) {
            // A process never returns to an epoch that it has left: the reply may be late.
            if self.known.is_some() && self.epoch() != asked.map(|asked| asked.epoch) {
                return Effects::default().behind();
            }
            let effects = self.begins_epoch(header);
            if let Some(known) = &mut self.known {
                known.note_own(first, own, now, max_tags);
            }
            return effects;
        }
        let Some(known) = &mut self.known else { return Effects::default() };
        // Where nothing is between what is applied and the own items, they end nothing that they
        // have not ended before. Else they hide what others have announced of the same tags, as the
        // log has only the last item of each tag.
        let is_gapless = known.applied.position >= reply.previous;
        if is_gapless {
            known.note_own(first, own, now, max_tags);
        }
        let at = |(n, item): (usize, &LogItem)| (first.saturating_add(n as u64), item.clone());
        let end_again =
            if is_gapless { Vec::new() } else { own.items.iter().enumerate().map(at).collect() };
        let asked = asked.filter(|asked| asked.epoch == header.epoch);
        let is_rolled_back = is_rolled_back(header, asked);
        let Some(asked) = asked.filter(|_| !is_rolled_back) else {
            known.note_own(first, own, now, max_tags);
            let is_behind = !is_rolled_back && known.applied.position < header.last;
            return Effects { is_behind, is_rolled_back, ..Effects::of_items(end_again) };
        };
        if known.applied.position.max(asked.position) < header.dropped {
            // Dropped items cannot be read any more.
            *known = Known::new(header);
            return self.has_gap();
        }
        // The reply says all from `asked` on, as far as it reaches.
        let mut items = known.take_header(header, now);
        for (position, item) in &reply.missed {
            if known.note(*position, item, now, max_tags) {
                items.push((*position, item.clone()));
            }
        }
        let is_complete = reply.complete_to >= reply.previous;
        if !is_complete {
            items.extend(end_again);
        }
        known.note_own(first, own, now, max_tags);
        let complete_to = if is_complete { header.last } else { reply.complete_to };
        // Where messages have brought this process further than the call was sent from, the
        // reply is as complete.
        known.applied.position = known.applied.position.max(complete_to);
        Effects { is_behind: known.applied.position < header.last, ..Effects::of_items(items) }
    }

    fn take_update(&mut self, update: &LogUpdate, now: Tick) -> Effects {
        // What it says has ended in any case.
        let of_other_life = update.items.iter().cloned().map(|item| (0, item)).collect();
        let Some(known) = &mut self.known else {
            return Effects::of_items(of_other_life).behind();
        };
        let last = update.previous.saturating_add(update.items.len() as u64);
        if known.applied.epoch != update.epoch {
            self.questions.count += 1;
            self.questions.of_epoch = self.questions.count;
            return Effects::of_items(of_other_life).behind();
        }
        if last <= known.applied.position {
            return Effects::default();
        }
        let mut effects = Effects::default();
        for (n, item) in update.items.iter().enumerate() {
            let position = update.previous.saturating_add(n as u64).saturating_add(1);
            if known.note(position, item, now, self.max_tags) {
                effects.items.push((position, item.clone()));
            }
        }
        // What was announced between the two comes with the next read.
        effects.is_behind = update.previous > known.applied.position;
        if effects.is_behind {
            self.questions.count += 1;
        } else {
            known.applied.position = last;
        }
        effects
    }
}

/// Returns whether a log says less than a process had applied when it asked.
pub(super) fn is_rolled_back(header: &LogHeader, asked: Option<Stamp>) -> bool {
    asked.is_some_and(|asked| asked.epoch == header.epoch && header.last < asked.position)
}

/// Returns whether a key of the log stands for a URI that is too long for it.
fn is_uri_tag(key: &Key) -> bool {
    crate::key::is_of_process(&Tag::from_encoded(key.as_bytes()))
}

/// Returns what is said of keys in the log: one key stands for all that a write to a URI ends.
pub(super) fn items_of_keys(keys: &[Key]) -> Vec<LogItem> {
    crate::key::announced(keys).into_iter().map(LogItem::Key).collect()
}

/// Returns what is said of tags in the log. With the stale mark of a key comes the record by which
/// processes that begin to follow the log later know that there is one.
pub(super) fn items_of_tags(tags: &[Tag]) -> Vec<LogItem> {
    let marks_a_key = tags.iter().any(|tag| tag.marked_key().is_some());
    let last = marks_a_key.then(Tag::of_marked_keys);
    tags.iter().cloned().chain(last).map(LogItem::from).collect()
}

#[cfg(test)]
mod tests;
