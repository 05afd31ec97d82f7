//! The invalidation log in Redis: two sorted sets of one slot.
//!
//! - `tags`: each tag at the position of its last item; the header at the last position and a
//!   half; above 2^52 the floors that stand for dropped tags.
//! - `keys`: each key at the position of its last item.
//!
//! So one plain command reads what is new, with the header as its last member. `announce.lua`
//! writes both. Neither has a time to live: policies that evict only what has one leave them.

use crate::key::Tag;
use crate::lease::grant::{Epoch, Stamp};
use crate::remote::redis::connection::Command;
use crate::remote::redis::names::LogNames;
use crate::remote::redis::remote::RedisRemote;
use crate::remote::redis::reply::{CallFailure, ServerReply};
use crate::remote::redis::{message, scripts};
use crate::remote::{Call, LogHeader, LogItem, LogPositions, LogReply, RemoteLog, Shard};

/// Tags that the log keeps, and keys.
const MOST_TAGS: usize = 100_000;
const MOST_KEYS: usize = 4096;

/// Items that one call reads, as in `announce.lua`.
const MOST_READ: usize = 1000;

/// Positions lie below.
const FLOORS: &str = "(4503599627370496";

impl RemoteLog for RedisRemote {
    fn announce<'a>(&'a self, items: &'a [LogItem], from: Option<Stamp>) -> Call<'a, LogReply> {
        Box::pin(async move {
            let LogNames { tags, keys } = self.names.log();
            let head = message::announced(self.ear.process);
            let fixed = [
                Epoch::random().to_string(),
                from.map(|from| from.epoch.to_string()).unwrap_or_default(),
                from.map_or(0, |from| from.position).to_string(),
                self.ear.broadcast.clone(),
            ];
            let bounds = [MOST_TAGS, MOST_KEYS].map(|bound| bound.to_string());
            let items: Vec<_> = items.iter().map(message::item_bytes).collect();
            let mut args: Vec<&[u8]> = fixed.iter().map(String::as_bytes).collect();
            args.push(&head);
            args.extend(bounds.iter().map(String::as_bytes));
            args.extend(items.iter().map(Vec::as_slice));
            let names = [tags.as_bytes(), keys.as_bytes()];
            let reply = self.link.run(&scripts::ANNOUNCE, &names, &args).await?;
            let [header @ .., previous, tags, keys, server] = reply.array()? else {
                return Err(CallFailure::nonsense().into());
            };
            let (header, previous) = (read_header(header, server)?, previous.number()?);
            let (tags, keys) = (Part::read(tags)?, Part::read(keys)?);
            Ok(merged(header, previous, tags, keys))
        })
    }

    fn shard(&self) -> Shard {
        Shard::new(self.link.shard_of(|| self.names.log().tags))
    }

    fn read(&self, from: Option<Stamp>) -> Call<'_, Option<LogReply>> {
        Box::pin(async move {
            let LogNames { tags, keys } = self.names.log();
            let Some(from) = from else {
                let header = self.newest_header(&tags).await?;
                return Ok(header.map(|(header, _)| {
                    merged(header, header.last, Part::default(), Part::default())
                }));
            };
            let after = format!("({}", from.position);
            let count = MOST_READ.to_string();
            let range = |name: &str| {
                let args = [name, &after, FLOORS, "WITHSCORES", "LIMIT", "0", &count];
                Command::new("ZRANGEBYSCORE").args(args)
            };
            let mut tags_found = Part::read(&self.link.send(&range(&tags)).await?)?;
            let header = match tags_found.header.take() {
                Some(header) => Some(header),
                None => self.newest_header(&tags).await?,
            };
            let Some((mut header, last_key)) = header else { return Ok(None) };
            if header.epoch != from.epoch {
                return Ok(Some(merged(header, header.last, Part::default(), Part::default())));
            }
            let mut keys_found = Part::default();
            if last_key > from.position {
                keys_found = Part::read(&self.link.send(&range(&keys)).await?)?;
                // Announced again since, a key has moved on; else the keys are lost.
                let newest = keys_found.items.last().map_or(0, |(position, _)| *position);
                if newest < last_key && !keys_found.is_cut() {
                    header.dropped = header.dropped.max(last_key);
                }
                // So many keys since the header was read that some may have been dropped.
                if keys_found.is_cut() {
                    let Some((later, _)) = self.newest_header(&tags).await? else {
                        return Ok(None);
                    };
                    header.dropped = header.dropped.max(later.dropped);
                }
            }
            Ok(Some(merged(header, header.last, tags_found, keys_found)))
        })
    }

    fn positions<'a>(&'a self, tags: &'a [Tag]) -> Call<'a, Option<LogPositions>> {
        Box::pin(async move {
            let name = self.names.log().tags;
            let tags: Vec<_> = tags.iter().map(|tag| [b"t", tag.as_bytes()].concat()).collect();
            let args: Vec<&[u8]> = tags.iter().map(Vec::as_slice).collect();
            let reply = self.link.run(&scripts::POSITIONS, &[name.as_bytes()], &args).await?;
            if matches!(reply, ServerReply::Nil) {
                return Ok(None);
            }
            let [header @ .., positions, server] = reply.array()? else {
                return Err(CallFailure::nonsense().into());
            };
            let header = read_header(header, server)?;
            let positions = positions.array()?.iter().map(ServerReply::number);
            let positions: Vec<_> = positions.collect::<Result<_, _>>()?;
            if positions.len() != tags.len() {
                return Err(CallFailure::nonsense().into());
            }
            Ok(Some(LogPositions { header, positions }))
        })
    }
}

impl RedisRemote {
    /// Returns the header, and the position of the last key.
    async fn newest_header(&self, tags: &str) -> Result<Option<(LogHeader, u64)>, CallFailure> {
        let args = [tags, FLOORS, "-inf", "WITHSCORES", "LIMIT", "0", "1"];
        let reply = self.link.send(&Command::new("ZREVRANGEBYSCORE").args(args)).await?;
        Ok(Part::read(&reply)?.header)
    }
}

/// What was read of one of the two sets.
#[derive(Debug, Default)]
struct Part {
    items: Vec<(u64, LogItem)>,
    /// With the position of the last key.
    header: Option<(LogHeader, u64)>,
    read: usize,
}

impl Part {
    /// Reads members and their scores. A member that makes no sense must not hide the others.
    fn read(reply: &ServerReply) -> Result<Self, CallFailure> {
        let (pairs, _) = reply.array()?.as_chunks();
        let mut part = Self { read: pairs.len(), ..Self::default() };
        for [member, score] in pairs {
            let (member, score) = (member.bytes()?, score.text()?);
            match read_written_header(member, score) {
                Some(header) => part.header = Some(header),
                None => {
                    let item = message::read_item(member);
                    part.items.extend(score.parse().ok().zip(item));
                }
            }
        }
        Ok(part)
    }

    fn is_cut(&self) -> bool {
        self.read >= MOST_READ
    }

    /// Returns up to where it is complete; `None`: to the end.
    fn complete_to(&self) -> Option<u64> {
        self.is_cut().then(|| self.items.last().map_or(0, |(position, _)| *position))
    }
}

fn merged(header: LogHeader, previous: u64, tags: Part, keys: Part) -> LogReply {
    let ends = [tags.complete_to(), keys.complete_to()];
    let complete_to = ends.into_iter().flatten().min().unwrap_or(previous).min(previous);
    let mut missed: Vec<_> = tags.items.into_iter().chain(keys.items).collect();
    missed.sort_unstable_by_key(|(position, _)| *position);
    missed.retain(|(position, _)| *position <= complete_to || complete_to == previous);
    LogReply { header, previous, missed, complete_to }
}

/// Reads the header that a script has replied, and the server that has written it.
fn read_header(fields: &[ServerReply], server: &ServerReply) -> Result<LogHeader, CallFailure> {
    let [epoch, last, everything, everything_stale, dropped] = fields else {
        return Err(CallFailure::nonsense());
    };
    Ok(LogHeader {
        epoch: Epoch::from_digits(epoch.bytes()?).ok_or_else(CallFailure::nonsense)?,
        server: read_server(server.text()?),
        last: last.number()?,
        everything: everything.number()?,
        everything_stale: everything_stale.number()?,
        dropped: dropped.number()?,
    })
}

/// Reads the header as `announce.lua` writes it: `h:epoch:server:everything:everything
/// stale:last key:dropped`, at the last position and a half.
fn read_written_header(member: &[u8], score: &str) -> Option<(LogHeader, u64)> {
    let last = score.strip_suffix(".5")?.parse().ok()?;
    let mut fields = std::str::from_utf8(member).ok()?.strip_prefix("h:")?.split(':');
    let epoch = Epoch::from_digits(fields.next()?.as_bytes())?;
    let server = read_server(fields.next()?);
    let mut numbers = fields.map(|field| field.parse().ok());
    let mut number = || numbers.next().flatten();
    let (everything, everything_stale) = (number()?, number()?);
    let (last_key, dropped) = (number()?, number()?);
    Some((LogHeader { epoch, server, last, everything, everything_stale, dropped }, last_key))
}

/// Reads the server's name as `announce.lua` writes it: run id and replication id, or zeros where
/// the user may not ask for them.
fn read_server(name: &str) -> u64 {
    let number = |id: &str| u64::from_str_radix(id.get(..16).unwrap_or(id), 16).unwrap_or(0);
    name.split('-').map(number).fold(0, |all, id| all.rotate_left(1) ^ id)
}
