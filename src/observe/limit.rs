//! How many lines about keys get into the log.
//!
//! An outage touches every key: without a limit the log would have a line per request, at
//! the moment when an operator has to read it. Lines that are left out are counted, and the
//! next line says how many.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::observe::lines::LogMessage;

/// A message is written at most once in this time for one key.
pub(super) const PER_KEY: Duration = Duration::from_secs(60);

/// At most [`MOST`] lines are written in this time, whatever their keys.
const SPAN: Duration = Duration::from_secs(1);
pub(super) const MOST: u32 = 10;

/// The lines that were left out since the last line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// With the same message about the same key.
    pub(super) same: u64,
    /// Any others of the same level.
    pub(super) others: u64,
}

/// The limit of one level in one cache.
///
/// A key gets into the table when its line is written, and leaves it a minute later. So the
/// table has no more entries than lines that are written in a minute: 600, and the lines that
/// wait for the next tidying.
#[derive(Debug, Default)]
pub(super) struct LineLimit(Mutex<Recent>);

#[derive(Debug, Default)]
struct Recent {
    /// By the hash of the key: two keys of one hash share a line.
    written: HashMap<(u64, LogMessage), Written, foldhash::fast::RandomState>,
    span_began: Option<Instant>,
    in_span: u32,
    /// Left out and not yet told of.
    others: u64,
}

#[derive(Debug)]
struct Written {
    at: Instant,
    left_out: u64,
}

impl LineLimit {
    /// Returns what to say of lines left out, if a line is to be written now.
    pub(super) fn admit(&self, key: &[u8], message: LogMessage, now: Instant) -> Option<LeftOut> {
        let mut recent = self.0.lock();
        let hash = recent.written.hasher().hash_one(key);
        recent.admit((hash, message), now)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.lock().written.len()
    }
}

impl Recent {
    fn admit(&mut self, about: (u64, LogMessage), now: Instant) -> Option<LeftOut> {
        if let Some(written) = self.written.get_mut(&about)
            && now.duration_since(written.at) < PER_KEY
        {
            written.left_out += 1;
            return None;
        }
        if self.span_began.is_none_or(|began| now.duration_since(began) >= SPAN) {
            (self.span_began, self.in_span) = (Some(now), 0);
            self.forget_old(about, now);
        }
        if self.in_span >= MOST {
            self.others += 1;
            return None;
        }
        self.in_span += 1;
        let before = self.written.insert(about, Written { at: now, left_out: 0 });
        let same = before.map_or(0, |written| written.left_out);
        Some(LeftOut { same, others: std::mem::take(&mut self.others) })
    }

    /// Forgets keys whose minute is over, at most once a second. Their counts are told of with
    /// the next line.
    fn forget_old(&mut self, but: (u64, LogMessage), now: Instant) {
        let others = &mut self.others;
        self.written.retain(|about, written| {
            let stays = *about == but || now.duration_since(written.at) < PER_KEY;
            *others += if stays { 0 } else { written.left_out };
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LogMessage::{ComputationPanicked, ComputationTimedOut};

    const NONE: LeftOut = LeftOut { same: 0, others: 0 };

    #[test]
    fn a_message_about_a_key_comes_once_a_minute_and_says_how_many_were_left_out() {
        let (limit, start) = (LineLimit::default(), Instant::now());
        let at = |secs| start + Duration::from_secs(secs);
        let ask = |key: &str, secs| limit.admit(key.as_bytes(), ComputationTimedOut, at(secs));
        assert_eq!(ask("a", 0), Some(NONE));
        assert_eq!(ask("a", 1), None);
        assert_eq!(ask("a", 59), None);
        assert_eq!(ask("b", 59), Some(NONE), "another key has a line of its own");
        let other = limit.admit(b"a", ComputationPanicked, at(59));
        assert_eq!(other, Some(NONE), "and so has another message");
        assert_eq!(ask("a", 60), Some(LeftOut { same: 2, others: 0 }));
        assert_eq!(ask("a", 120), Some(NONE), "what was told is not told again");
    }

    #[test]
    fn a_second_has_ten_lines_whatever_the_keys_and_no_count_is_lost() {
        let (limit, start) = (LineLimit::default(), Instant::now());
        let mut told = 0;
        let mut written = 0;
        for second in 0..300 {
            for n in 0..100_u64 {
                let now = start + Duration::from_secs(second);
                let key = (second * 1000 + n % 50).to_be_bytes();
                if let Some(left_out) = limit.admit(&key, ComputationTimedOut, now) {
                    written += 1;
                    told += left_out.same + left_out.others;
                }
            }
            assert!(limit.len() <= 610, "{}", limit.len());
        }
        assert_eq!(written, 3000);
        // Two minutes later every count that was left has been told.
        let late = start + Duration::from_secs(420);
        let last = limit.admit(b"last", ComputationTimedOut, late).unwrap();
        assert_eq!(told + last.same + last.others, 300 * 100 - 3000);
    }
}
