//! The invalidation log and the values in Redis. Nothing here writes.

use std::time::{Duration, Instant};

use redis::Value;

use crate::names::Names;
use crate::servers::{Read, Servers};

/// Positions lie below; what lies above stands for dropped tags.
const FLOORS: &str = "(4503599627370496";

/// Items that one command reads.
const MOST_READ: usize = 1000;

/// How long Redis may take for anything.
const PATIENCE: Duration = Duration::from_secs(2);

/// What begins a value in Redis; all that is read of it.
const HEAD: usize = 120;

/// What was invalidated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Key(Vec<u8>),
    Tag(Vec<u8>),
    /// By an invalidation of everything, or because the log has begun again.
    Everything,
}

/// An invalidation that was announced while we looked.
#[derive(Clone, Debug)]
pub(crate) struct Announced {
    pub(crate) ended: Ended,
    /// It was not announced yet.
    pub(crate) not_before: Instant,
    /// It stood in the log.
    pub(crate) seen: Instant,
}

/// What the log says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) epoch: String,
    pub(crate) last: u64,
    everything: u64,
}

/// The head of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteValue {
    pub(crate) version: u64,
}

/// Reads the log as it grows.
pub(crate) struct LogReader {
    pub(crate) servers: Servers,
    names: Names,
    known: Option<Header>,
    /// When the last complete read was sent.
    read: Option<Instant>,
    /// Reads that found more than they could take: items were passed over.
    pub(crate) gaps: u64,
}

impl LogReader {
    pub(crate) fn new(client: redis::Client, names: Names) -> Self {
        Self { servers: Servers::new(client), names, known: None, read: None, gaps: 0 }
    }

    pub(crate) fn header(&self) -> Option<&Header> {
        self.known.as_ref()
    }

    /// Returns what was announced since the last call. The first call returns nothing: when
    /// that was announced is not known.
    pub(crate) async fn read_on(&mut self) -> Result<Vec<Announced>, String> {
        let sent = Instant::now();
        let result = tokio::time::timeout(PATIENCE, self.read_now(sent)).await;
        let result = result.unwrap_or_else(|_| Err("no answer within 2 s".to_owned()));
        if result.is_err() {
            self.servers.forget();
        }
        result
    }

    async fn read_now(&mut self, sent: Instant) -> Result<Vec<Announced>, String> {
        let from = self.known.as_ref().map(|known| known.last);
        let range = |command: &str, name: &str, from: &str, to: &str, most: usize| {
            let mut command = redis::cmd(command);
            command.arg(name).arg(from).arg(to).arg("WITHSCORES").arg("LIMIT").arg(0).arg(most);
            Read { name: name.into(), command }
        };
        // First the header, then what is new: what comes between the two is read next time.
        let mut reads = vec![range("ZREVRANGEBYSCORE", &self.names.tags, FLOORS, "-inf", 1)];
        if let Some(from) = from {
            let after = format!("({from}");
            let names = [&self.names.tags, &self.names.keys];
            reads.extend(names.map(|name| range("ZRANGEBYSCORE", name, &after, FLOORS, MOST_READ)));
        }
        let replies = self.servers.ask(&reads).await?;
        let (header, items) = replies.split_first().ok_or("an empty reply")?;
        let header = pairs(header).first().and_then(|(member, score)| header_of(member, *score));
        let header = header.ok_or_else(|| {
            format!(
                "there is no invalidation log at {:?}; --namespace and --cache must be those of \
                 the processes, and one of them must have reached Redis",
                self.names.tags
            )
        })?;
        let (known, before) = (self.known.replace(header.clone()), self.read.replace(sent));
        let (Some(known), Some(not_before)) = (known, before) else { return Ok(Vec::new()) };
        let seen = Instant::now();
        let announced = |ended| Announced { ended, not_before, seen };
        if known.epoch != header.epoch {
            return Ok(vec![announced(Ended::Everything)]);
        }
        let mut found = Vec::new();
        if header.everything > known.everything {
            found.push(announced(Ended::Everything));
        }
        for reply in items {
            let pairs = pairs(reply);
            self.gaps += u64::from(pairs.len() >= MOST_READ);
            // What is above the header is read again with the next one.
            let items = pairs.iter().filter(|(_, score)| *score <= header.last as f64);
            found.extend(items.filter_map(|(member, _)| item_of(member)).map(announced));
        }
        Ok(found)
    }

    /// Returns the heads of values, in the order of their names; `None` where there is none.
    pub(crate) async fn values(
        &mut self,
        names: &[Vec<u8>],
    ) -> Result<Vec<Option<RemoteValue>>, String> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let read = |name: &Vec<u8>| {
            let command = redis::cmd("GETRANGE").arg(name).arg(0).arg(HEAD - 1).to_owned();
            Read { name: name.clone(), command }
        };
        let reads: Vec<_> = names.iter().map(read).collect();
        let asked = tokio::time::timeout(PATIENCE, self.servers.ask(&reads)).await;
        let replies = asked.unwrap_or_else(|_| Err("no answer within 2 s".to_owned()))?;
        Ok(replies.iter().map(|reply| bytes(reply).and_then(value_of)).collect())
    }
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

/// Reads members and their scores, from both versions of the server's protocol.
fn pairs(reply: &Value) -> Vec<(&[u8], f64)> {
    let Value::Array(parts) = reply else { return Vec::new() };
    let score = |value: &Value| match value {
        Value::Double(score) => Some(*score),
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    };
    let nested = parts.iter().filter_map(|part| match part {
        Value::Array(pair) => Some((bytes(pair.first()?)?, score(pair.get(1)?)?)),
        _ => None,
    });
    let flat = parts.as_chunks().0.iter();
    let flat = flat.filter_map(|[member, at]| Some((bytes(member)?, score(at)?)));
    nested.chain(flat).collect()
}

/// Reads `h:epoch:server:everything:…` at the last position and a half.
fn header_of(member: &[u8], score: f64) -> Option<Header> {
    let mut fields = std::str::from_utf8(member).ok()?.strip_prefix("h:")?.split(':');
    let epoch = fields.next()?.to_owned();
    let everything = fields.nth(1)?.parse().ok()?;
    Some(Header { epoch, last: score.floor() as u64, everything })
}

/// Reads an item. What makes entries stale ends none, and is passed over.
fn item_of(member: &[u8]) -> Option<Ended> {
    match member.split_first()? {
        (b't', tag) if !tag.starts_with(b"\0m") => Some(Ended::Tag(tag.to_vec())),
        (b'k', key) => Some(Ended::Key(key.to_vec())),
        _ => None,
    }
}

fn value_of(head: &[u8]) -> Option<RemoteValue> {
    let digits = head.strip_prefix(b"ts")?.get(2..18)?;
    Some(RemoteValue { version: std::str::from_utf8(digits).ok()?.parse().ok()? })
}
