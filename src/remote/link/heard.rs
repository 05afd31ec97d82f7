//! What other processes have announced of late. Where the log begins anew on another server, that
//! server may lack it, and the process that has announced it may be gone, or may be a script
//! in another language that knows nothing of the log. So about one of the processes that have heard of it tells it again: each
//! waits for a random time, and drops what it hears meanwhile.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use crate::clock::Tick;
use crate::lease::grant::Epoch;
use crate::remote::log::LogItem;

/// How long an item is remembered: a planned failover leaves the old primary writable for about
/// eleven seconds.
const REMEMBERED: Duration = Duration::from_secs(30);

/// How many are; one more, and "everything" takes their place.
const MAX_ITEMS: usize = 10_000;

/// Within how long the first process tells an item again.
const SPREAD: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(super) struct Heard {
    /// With the life of the log in which it was announced.
    items: VecDeque<(Tick, Epoch, LogItem)>,
    /// What is to be told again, and when.
    again: Option<(Tick, HashSet<LogItem>)>,
    random: fastrand::Rng,
}

impl Default for Heard {
    fn default() -> Self {
        Self { items: VecDeque::new(), again: None, random: fastrand::Rng::new() }
    }
}

impl Heard {
    /// Notes what was announced in a life of the log. In the current one it need not be told again.
    pub(super) fn note_all(
        &mut self,
        items: &[(u64, LogItem)],
        epoch: Epoch,
        is_current: bool,
        now: Tick,
    ) {
        if is_current && let Some((_, again)) = &mut self.again {
            for (_, item) in items {
                again.remove(item);
            }
        }
        while self.items.front().is_some_and(|(at, ..)| at.plus(REMEMBERED) < now) {
            self.items.pop_front();
        }
        self.items.extend(items.iter().map(|(_, item)| (now, epoch, item.clone())));
        if self.items.len() > MAX_ITEMS {
            self.items = VecDeque::from([(now, epoch, LogItem::Everything)]);
        }
    }

    /// All of this life of the log is known. What was announced in another one, on a server that may
    /// still be asked by others, is to be told again. Returns whether there is more of it than before.
    pub(super) fn is_followed(&mut self, epoch: Epoch, now: Tick) -> bool {
        let mut more = Vec::new();
        for (at, of, item) in &mut self.items {
            if *of != epoch && at.plus(REMEMBERED) >= now {
                more.push(item.clone());
            }
            *of = epoch;
        }
        if more.is_empty() {
            return false;
        }
        let due = now.plus(SPREAD.mul_f64(self.random.f64()));
        self.again.get_or_insert_with(|| (due, HashSet::new())).1.extend(more);
        true
    }

    /// The server has lost the log, and with it every value that could be older.
    pub(super) fn forget(&mut self) {
        self.items.clear();
    }

    /// Returns what is to be told now, once.
    pub(super) fn take_due(&mut self, now: Tick) -> Vec<LogItem> {
        let due = self.again.take_if(|(due, _)| *due <= now);
        due.map(|(_, items)| items.into_iter().collect()).unwrap_or_default()
    }

    /// Returns when something is to be told.
    pub(super) fn next_due(&self) -> Option<Tick> {
        self.again.as_ref().map(|(due, _)| *due)
    }

    /// Feeds all that decides what this does next.
    #[cfg(test)]
    pub(super) fn fingerprint(&self, to: &mut impl std::hash::Hasher) {
        use std::collections::BTreeSet;
        use std::hash::Hash;
        let name = |item: &LogItem| format!("{item:?}");
        let heard = self.items.iter().map(|(_, of, item)| (*of, name(item)));
        let heard = heard.map(|(of, name)| (of.get(), name)).collect::<BTreeSet<_>>();
        let again = self.again.iter().flat_map(|(_, items)| items.iter().map(name));
        (heard, again.collect::<BTreeSet<_>>()).hash(to);
    }
}
