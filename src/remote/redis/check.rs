//! Finds out before the first request what is missing on a server.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::timeout;

use crate::error::{BoxError, ConfigError};
use crate::key::Key;
use crate::remote::redis::connection::Command;
use crate::remote::redis::names::Names;
use crate::remote::redis::pool::Pool;
use crate::remote::redis::reply::{CallFailure, Cause, ServerReply};
use crate::remote::redis::scripts;
use crate::remote::{RemoteError, RemoteErrorKind};

/// How long a server may take for a part of the check.
const LIMIT: Duration = Duration::from_secs(5);

/// How many keys are looked for: a node that has nine tenths of a cluster's slots has all of them
/// once in 10^11 times.
const LOOKS: u32 = 256;

/// Every command that is sent, by itself or by a script.
const COMMANDS: &str = "ping info eval evalsha subscribe get zrange zrangebyscore zrevrange \
    zrevrangebyscore zrem zremrangebyrank zmscore zcard zcount set getrange exists hset hget hmget \
    hkeys hlen hexists hdel pexpire pttl zadd del time publish";

/// Commands that are sent and not needed.
const WELCOME: &str = "client|setname";

/// Why a Redis server cannot be used.
#[derive(Debug)]
pub struct ConnectError {
    what: String,
    kind: Option<RemoteErrorKind>,
    source: Option<BoxError>,
}

impl ConnectError {
    fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), kind: None, source: None }
    }

    fn caused(what: impl Into<String>, failure: CallFailure) -> Self {
        let (kind, source) = (Some(failure.kind), RemoteError::from(failure).into());
        Self { kind, source: Some(source), ..Self::new(what) }
    }

    /// Returns whether all that is missing is the right to keys or channels of
    /// these names.
    fn is_about_names(&self) -> bool {
        let says = |word| self.what.contains(word);
        (says(" access ") || says(" the channel ")) && !says(" run ")
    }

    /// Returns what was wrong with the connection, if that was it.
    #[must_use]
    pub const fn kind(&self) -> Option<RemoteErrorKind> {
        self.kind
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl StdError for ConnectError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}

impl From<ConfigError> for ConnectError {
    fn from(error: ConfigError) -> Self {
        Self { source: Some(error.into()), ..Self::new("the settings are wrong") }
    }
}

/// Writes the least rights that `ACL SETUSER` has to give.
pub(super) fn acl_rules(link: &Pool, prefix: &str) -> String {
    let pattern = escape_glob(prefix);
    // Before Redis 7 a new user may use all channels, and then none can be added.
    let mut rules = format!("resetchannels ~{pattern}* &{pattern}*");
    let own = link.target().own_commands().iter().copied();
    for command in COMMANDS.split(' ').chain(own).chain([WELCOME]) {
        rules.push_str(" +");
        rules.push_str(command);
    }
    rules
}

fn escape_glob(text: &str) -> String {
    let escape =
        |c| matches!(c, '*' | '?' | '[' | ']' | '\\').then_some('\\').into_iter().chain([c]);
    text.chars().flat_map(escape).collect()
}

/// Checks each server that has keys: that it answers, how old it is, and every right that is needed
/// below `namespace`. Without a namespace, which keys and channels the user may use does not count.
pub(super) async fn all(link: &Pool, namespace: Option<&str>) -> Result<(), ConnectError> {
    let names = Names::new(namespace.unwrap_or("any"), "rights")?;
    let found = async { link.nodes().await.map_err(|failure| refused("CLUSTER SLOTS", failure)) };
    let nodes: Vec<_> = limited(found)
        .await?
        .into_iter()
        .map(|(link, key)| {
            let is_of_cluster = key.is_some();
            let key = key.unwrap_or_else(|| Key::from(fastrand::u64(..)));
            NodeCheck { link, key, is_of_cluster, names: &names, is_strict: namespace.is_some() }
        })
        .collect();
    // First all of them: where one is dead, the others may refuse every key.
    for node in &nodes {
        limited(node.server()).await.map_err(|error| node.named(error))?;
    }
    for node in &nodes {
        limited(node.rights()).await.map_err(|error| node.named(error))?;
    }
    Ok(())
}

/// One server, and a key that it has.
struct NodeCheck<'a> {
    link: Pool,
    key: Key,
    is_of_cluster: bool,
    names: &'a Names,
    is_strict: bool,
}

impl NodeCheck<'_> {
    /// Checks what does not depend on the names of keys.
    async fn server(&self) -> Result<(), ConnectError> {
        self.ask("PING", Command::new("PING")).await?;
        let info = self.ask("INFO", Command::new("INFO").arg("server")).await?;
        let info = info.text().map_err(|failure| ConnectError::caused("no version", failure))?;
        check_version(version_of(info).unwrap_or_default())?;
        self.ask("EVAL", Command::new("EVAL").args(["return 1", "0"])).await.map(drop)
    }

    /// Sends every command.
    async fn rights(&self) -> Result<(), ConnectError> {
        let entry = self.names.entry(&self.key);
        let channel = self.names.broadcast(self.link.target().database());
        let keys = [&*entry.value, &*entry.lock, &*entry.right];
        let args = [channel.as_bytes()];
        match self.ask("EVAL", scripts::CHECK.in_full(&keys, &args)).await {
            Ok(said) => self.none_refused(&said)?,
            // Refused for the keys, before it looks at any command. They need not be declared.
            Err(refusal) => {
                self.judge(Err(refusal))?;
                let args = [&args[..], &keys].concat();
                let said = self.ask("EVAL", scripts::CHECK.in_full(&[], &args)).await?;
                self.none_refused(&said)?;
            }
        }
        match self.link.send(&scripts::CHECK.by_digest(&keys, &args)).await {
            Err(failure) if failure.cause != Cause::NoScript => {
                self.judge(Err(refused("EVALSHA", failure)))?;
            }
            _ => (),
        }
        self.look().await?;
        let range = |name: &str, ends: [&str; 2]| {
            let range = Command::new(name).arg(&entry.value).args(ends);
            range.args(["WITHSCORES", "LIMIT", "0", "1"])
        };
        for (name, ends) in
            [("ZRANGEBYSCORE", ["-inf", "+inf"]), ("ZREVRANGEBYSCORE", ["+inf", "-inf"])]
        {
            self.judge(self.ask(name, range(name, ends)).await.map(drop))?;
        }
        let subscribed = self.link.subscribe(&[&channel, &self.names.inbox(0)]).await.map(drop);
        self.judge(subscribed.map_err(|failure| refused("SUBSCRIBE", failure)))
    }

    /// Looks for values. What is no cluster must have those of all slots.
    async fn look(&self) -> Result<(), ConnectError> {
        let looks = if self.is_of_cluster { 1 } else { LOOKS };
        let keys = (1..looks).map(|_| Key::from(fastrand::u64(..))).chain([self.key.clone()]);
        let looks = keys.map(|key| async move {
            let get = Command::new("GET").arg(self.names.value(&key));
            self.judge(self.ask("GET", get).await.map(drop))
        });
        try_join_all(looks).await.map(drop)
    }

    async fn ask(&self, what: &str, command: Command) -> Result<ServerReply, ConnectError> {
        match self.link.send(&command).await {
            // The slot has left, to a node that is checked, too.
            Err(failure) if self.is_of_cluster && failure.kind == RemoteErrorKind::TryAgain => {
                Ok(ServerReply::Nil)
            }
            reply => reply.map_err(|failure| refused(what, failure)),
        }
    }

    fn judge(&self, outcome: Result<(), ConnectError>) -> Result<(), ConnectError> {
        match outcome {
            Err(error) if !self.is_strict && error.is_about_names() => Ok(()),
            outcome => outcome,
        }
    }

    /// Checks what the script was refused, and names all of it that counts.
    fn none_refused(&self, reply: &ServerReply) -> Result<(), ConnectError> {
        let (pairs, _) = reply.array().unwrap_or_default().as_chunks();
        let said = |[name, said]: &[ServerReply; 2]| {
            Some(format!("{} ({})", name.text().ok()?, said.text().ok()?))
        };
        let refused: Vec<_> = pairs
            .iter()
            .filter_map(said)
            .filter(|refused| self.judge(Err(ConnectError::new(&**refused))).is_err())
            .collect();
        if refused.is_empty() {
            return Ok(());
        }
        Err(ConnectError::new(format!("the server refuses {}", refused.join(", "))))
    }

    /// Says which node of a cluster it was.
    fn named(&self, mut error: ConnectError) -> ConnectError {
        if self.is_of_cluster {
            error.what = format!("{}: {}", self.link.target().address(), error.what);
        }
        error
    }
}

async fn limited<T>(
    check: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    let late = || ConnectError::caused("no answer", CallFailure::late());
    timeout(LIMIT, check).await.unwrap_or_else(|_| Err(late()))
}

fn refused(what: &str, failure: CallFailure) -> ConnectError {
    match (failure.kind, failure.cause) {
        (RemoteErrorKind::Connection, _) => ConnectError::caused("cannot connect", failure),
        (_, Cause::Moved) => ConnectError::caused(
            "the server is a node of a Redis Cluster, and has a part of the keys: use \
             `Redis::cluster`, with the feature `redis-cluster`",
            failure,
        ),
        _ => ConnectError::caused(format!("the server refuses {what} ({failure})"), failure),
    }
}

/// Valkey calls itself a Redis of the version it is compatible with.
fn version_of(info: &str) -> Option<&str> {
    info.lines().find_map(|line| line.strip_prefix("redis_version:")).map(str::trim)
}

fn check_version(version: &str) -> Result<(), ConnectError> {
    let mut parts = version.split('.').map_while(|part| part.parse::<u32>().ok());
    let known = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if known >= (6, 2) {
        return Ok(());
    }
    Err(ConnectError::new(format!("the server has version {version:?}, and 6.2 is needed")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_before_6_2_are_refused() {
        assert!(check_version("6.2.0").is_ok() && check_version("7.0.15").is_ok());
        assert!(check_version("10.0.0").is_ok());
        for old in ["6.0.20", "5.0", "", "x"] {
            assert!(check_version(old).is_err(), "{old:?}");
        }
        assert_eq!(version_of("# Server\r\nredis_version:7.2.4\r\n"), Some("7.2.4"));
    }

    #[test]
    fn a_namespace_with_the_marks_of_a_pattern_gives_no_more_rights() {
        assert_eq!(escape_glob("a*b?[c]\\"), "a\\*b\\?\\[c\\]\\\\");
    }
}
