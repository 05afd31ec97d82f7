//! Log lines through `tracing`, target `tower_stampede`.

use tokio::time::Instant;
use tracing::field::display;
use tracing::{Level, enabled, event};

use crate::key::Key;
use crate::observe::limit::{LeftOut, LineLimit};
use crate::observe::lines::Line;
#[cfg(any(feature = "redis", all(feature = "axum", debug_assertions)))]
use crate::observe::lines::LogMessage;
use crate::observe::rounded::Rounded;

/// Bytes of a key that a line carries; an escaped byte takes up to four characters.
const KEY_BYTES: usize = 200;

/// Writes the lines of one cache.
#[derive(Debug)]
pub(super) struct Log {
    /// Whether lines carry keys.
    has_keys: bool,
    /// Each level has a limit of its own: many notices must not hide a warning.
    notices: LineLimit,
    warnings: LineLimit,
}

impl Log {
    pub(super) fn new(has_keys: bool) -> Self {
        Self { has_keys, notices: LineLimit::default(), warnings: LineLimit::default() }
    }

    /// Writes a line.
    pub(super) fn write(&self, cache: &str, line: &Line<'_>) {
        if is_enabled(line.message.level()) {
            write(Some(cache), self.has_keys, line, LeftOut::default());
        }
    }

    /// Writes a line about a key, unless there were too many. A line with a number of failures is
    /// about that number: the first failure does not keep the second from the log.
    pub(super) fn write_limited(&self, cache: &str, line: &Line<'_>) {
        let Some(key) = line.key.filter(|_| is_enabled(line.message.level())) else { return };
        let number = line.failures.map(u64::to_be_bytes);
        let about = number.as_ref().map_or(key.as_bytes(), |number| &number[..]);
        let limit = match line.message.level() {
            Level::WARN => &self.warnings,
            _ => &self.notices,
        };
        // The lock is free again when the subscriber, which is the user's code, is called.
        let left_out = limit.admit(about, line.message, Instant::now());
        if let Some(left_out) = left_out {
            write(Some(cache), self.has_keys, line, left_out);
        }
    }
}

/// Warns of a server that evicts locks. It belongs to no cache alone.
#[cfg(feature = "redis")]
pub(crate) fn warn_of_policy(server: &str, policy: &str) {
    let policy = Some(policy);
    warn_of_server(server, Line { policy, ..Line::of(LogMessage::LocksAreEvicted) });
}

/// Warns of a server that is of no use before its operator does what `remedy` says.
#[cfg(feature = "redis")]
pub(crate) fn warn_of_connection(server: &str, cause: &str, remedy: &'static str) {
    let (cause, remedy) = (Some(cause), Some(remedy));
    warn_of_server(server, Line { cause, remedy, ..Line::of(LogMessage::Unreachable) });
}

/// Warns of a server that refuses to send messages.
#[cfg(feature = "redis")]
pub(crate) fn warn_of_silence(server: &str, error: &'static str) {
    let error = Some(error);
    warn_of_server(server, Line { error, ..Line::of(LogMessage::Unheard) });
}

#[cfg(feature = "redis")]
fn warn_of_server(server: &str, line: Line<'_>) {
    let line = Line { server: Some(server), ..line };
    crate::error::contain_panic(|| write(None, false, &line, LeftOut::default()));
}

/// Warns of a response that no layer has read what its handler says to. It belongs to no cache.
#[cfg(all(feature = "axum", debug_assertions))]
pub(crate) fn warn_of_unread() {
    let line = Line::of(LogMessage::CacheForUnread);
    crate::error::contain_panic(|| write(None, false, &line, LeftOut::default()));
}

fn is_enabled(level: Level) -> bool {
    match level {
        Level::DEBUG => enabled!(target: "tower_stampede", Level::DEBUG),
        Level::INFO => enabled!(target: "tower_stampede", Level::INFO),
        _ => enabled!(target: "tower_stampede", Level::WARN),
    }
}

fn write(cache: Option<&str>, has_keys: bool, line: &Line<'_>, left_out: LeftOut) {
    let rounded = |duration: Option<_>| duration.map(|duration| display(Rounded(duration)));
    let count = |count: u64| (count > 0).then_some(count);
    macro_rules! write_at {
        ($level:expr) => {
            event!(
                target: "tower_stampede",
                $level,
                cache,
                role = line.role,
                key_hash = line.key.map(hash),
                key = line.key.filter(|_| has_keys).map(escaped),
                server = line.server,
                op = line.op,
                took = rounded(line.took),
                waited = rounded(line.waited),
                lease = rounded(line.lease),
                away_for = rounded(line.away_for),
                lasted = rounded(line.lasted),
                end = line.end,
                error = line.error,
                how = line.how,
                callers_got = line.callers_got,
                held_for = rounded(line.held_for),
                failures = line.failures,
                hidden = line.hidden,
                oldest_stale = rounded(line.oldest_stale),
                policy = line.policy,
                cause = line.cause,
                remedy = line.remedy,
                field = line.field,
                mode = line.mode,
                type_name = line.type_name,
                assumed_bytes = line.assumed_bytes,
                keys = line.keys,
                left_out = count(left_out.same),
                left_out_others = count(left_out.others),
                "{}",
                line.message.text()
            )
        };
    }
    match line.message.level() {
        Level::DEBUG => write_at!(Level::DEBUG),
        Level::INFO => write_at!(Level::INFO),
        _ => write_at!(Level::WARN),
    }
}

pub(super) fn hash(key: &Key) -> impl tracing::Value + use<> {
    display(key.hash_text())
}

/// Writes a key in printable ASCII, cut to a bound.
pub(super) fn escaped(key: &Key) -> impl tracing::Value + use<> {
    let bytes = key.as_bytes();
    let end = if bytes.len() > KEY_BYTES { "..." } else { "" };
    display(format!("\"{}{end}\"", bytes[..bytes.len().min(KEY_BYTES)].escape_ascii()))
}
