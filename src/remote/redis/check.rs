//! Finds out before the first request what is missing on a server.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use tokio::time::timeout;

use crate::error::ConfigError;
use crate::key::Key;
use crate::remote::redis::connection::Command;
use crate::remote::redis::names::Names;
use crate::remote::redis::pool::Pool;
use crate::remote::redis::reply::{CallFailure, Cause, ServerReply};
use crate::remote::redis::scripts;
use crate::remote::{RemoteError, RemoteErrorKind};

/// How long a check may take.
const LIMIT: Duration = Duration::from_secs(5);

/// Every command that is sent, by itself or by a script.
const COMMANDS: [&str; 31] = [
    "ping",
    "info",
    "eval",
    "evalsha",
    "subscribe",
    "get",
    "zrange",
    "zrangebyscore",
    "zrevrange",
    "zrevrangebyscore",
    "zrem",
    "zremrangebyrank",
    "zscore",
    "zcard",
    "zcount",
    "set",
    "getrange",
    "exists",
    "hset",
    "hget",
    "hmget",
    "hkeys",
    "hlen",
    "hexists",
    "hdel",
    "pexpire",
    "pttl",
    "zadd",
    "del",
    "time",
    "publish",
];

/// Commands that are sent and not needed.
const WELCOME: [&str; 1] = ["client|setname"];

/// Why a Redis server cannot be used.
#[derive(Debug)]
pub struct ConnectError {
    what: String,
    source: Option<Source>,
}

#[derive(Debug)]
enum Source {
    Config(ConfigError),
    Remote(RemoteError),
}

impl ConnectError {
    fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), source: None }
    }

    fn caused(what: impl Into<String>, failure: CallFailure) -> Self {
        Self { what: what.into(), source: Some(Source::Remote(failure.into())) }
    }

    /// Returns whether all that is missing is the right to keys or channels of
    /// these names.
    pub(super) fn is_about_names(&self) -> bool {
        let says = |word| self.what.contains(word);
        (says(" access ") || says(" the channel ")) && !says(" run ")
    }

    /// Returns what was wrong with the connection, if that was it.
    #[must_use]
    pub fn kind(&self) -> Option<RemoteErrorKind> {
        match &self.source {
            Some(Source::Remote(error)) => Some(error.kind()),
            _ => None,
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl StdError for ConnectError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self.source.as_ref()? {
            Source::Config(error) => Some(error),
            Source::Remote(error) => Some(error),
        }
    }
}

impl From<ConfigError> for ConnectError {
    fn from(error: ConfigError) -> Self {
        Self { what: "the settings are wrong".to_owned(), source: Some(Source::Config(error)) }
    }
}

/// Writes the least rights that `ACL SETUSER` has to give.
pub(super) fn acl_rules(link: &Pool, prefix: &str) -> String {
    let pattern = escape_glob(prefix);
    // Before Redis 7 a new user may use all channels, and then none can be added.
    let mut rules = format!("resetchannels ~{pattern}* &{pattern}*");
    let target = link.target();
    let own = target.own_commands().into_iter().chain(target.welcome_commands().iter().copied());
    for command in COMMANDS.into_iter().chain(own).chain(WELCOME) {
        rules.push_str(" +");
        rules.push_str(command);
    }
    rules
}

fn escape_glob(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// Checks what does not depend on the names of keys: that a server answers,
/// how old it is, and that it runs scripts.
pub(super) async fn server(link: &Pool) -> Result<(), ConnectError> {
    limited(async {
        ask(link, "PING", Command::new("PING")).await?;
        let info = ask(link, "INFO", Command::new("INFO").arg("server")).await?;
        let info = info.text().map_err(|failure| ConnectError::caused("no version", failure))?;
        check_version(version_of(info).unwrap_or_default())?;
        let script = Command::new("EVAL").args(["return 1", "0"]);
        ask(link, "EVAL", script).await.map(drop)
    })
    .await
}

/// Checks every right that is needed below `namespace`.
pub(super) async fn rights(link: &Pool, namespace: &str) -> Result<(), ConnectError> {
    let names = Names::new(namespace, "rights")?;
    limited(try_commands(link, &names, |outcome| outcome)).await
}

/// Checks the right to every command, whatever the names: which keys and channels the user may
/// use is known with the namespace.
pub(super) async fn commands(link: &Pool) -> Result<(), ConnectError> {
    let names = Names::new("stampede", "rights")?;
    let but_names = |outcome| match outcome {
        Err(error) if ConnectError::is_about_names(&error) => Ok(()),
        outcome => outcome,
    };
    limited(try_commands(link, &names, but_names)).await
}

/// Sends every command, and judges each outcome by `judge`.
async fn try_commands(
    link: &Pool,
    names: &Names,
    judge: impl Fn(Result<(), ConnectError>) -> Result<(), ConnectError>,
) -> Result<(), ConnectError> {
    let entry = names.entry(&Key::from(fastrand::u64(..)));
    let channel = names.broadcast();
    let keys = [&*entry.value, &*entry.lock, &*entry.right];
    let args = [channel.as_bytes()];
    match ask(link, "EVAL", scripts::CHECK.in_full(&keys, &args)).await {
        Ok(said) => none_refused(&said, &judge)?,
        // Refused for the keys, before it looks at any command. They need not be declared.
        Err(refusal) => {
            judge(Err(refusal))?;
            let args = [&args[..], &keys].concat();
            let said = ask(link, "EVAL", scripts::CHECK.in_full(&[], &args)).await?;
            none_refused(&said, &judge)?;
        }
    }
    // On a cluster, any node may be the one that knows it.
    match link.send(&scripts::CHECK.by_digest(&keys, &args)).await {
        Err(failure) if failure.cause != Cause::NoScript => {
            judge(Err(refused_by_server("EVALSHA", failure)))?;
        }
        _ => (),
    }

    let get = Command::new("GET").arg(&entry.value);
    judge(ask(link, "GET", get).await.map(drop))?;
    let range = |name: &str, ends: [&str; 2]| {
        let range = Command::new(name).arg(&entry.value).args(ends);
        range.args(["WITHSCORES", "LIMIT", "0", "1"])
    };
    let upwards = range("ZRANGEBYSCORE", ["-inf", "+inf"]);
    judge(ask(link, "ZRANGEBYSCORE", upwards).await.map(drop))?;
    let downwards = range("ZREVRANGEBYSCORE", ["+inf", "-inf"]);
    judge(ask(link, "ZREVRANGEBYSCORE", downwards).await.map(drop))?;
    let subscribed = link.subscribe(&[&channel, &names.inbox(0)]).await.map(drop);
    judge(subscribed.map_err(|failure| refused_by_server("SUBSCRIBE", failure)))
}

async fn limited(
    check: impl Future<Output = Result<(), ConnectError>>,
) -> Result<(), ConnectError> {
    let late = || ConnectError::caused("no answer", CallFailure::late());
    timeout(LIMIT, check).await.unwrap_or_else(|_| Err(late()))
}

async fn ask(link: &Pool, what: &str, command: Command) -> Result<ServerReply, ConnectError> {
    link.send(&command).await.map_err(|failure| refused_by_server(what, failure))
}

fn refused_by_server(what: &str, failure: CallFailure) -> ConnectError {
    if failure.kind == RemoteErrorKind::Connection {
        return ConnectError::caused("cannot connect", failure);
    }
    ConnectError::caused(format!("the server refuses {what} ({failure})"), failure)
}

/// Checks what the script was refused, and names all of it that `judge` does not forgive.
fn none_refused(
    reply: &ServerReply,
    judge: impl Fn(Result<(), ConnectError>) -> Result<(), ConnectError>,
) -> Result<(), ConnectError> {
    let (pairs, _) = reply.array().unwrap_or_default().as_chunks();
    let refused: Vec<_> = pairs
        .iter()
        .filter_map(|[name, said]| Some(format!("{} ({})", name.text().ok()?, said.text().ok()?)))
        .filter(|refused| judge(Err(ConnectError::new(&**refused))).is_err())
        .collect();
    if refused.is_empty() {
        return Ok(());
    }
    Err(ConnectError::new(format!("the server refuses {}", refused.join(", "))))
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
