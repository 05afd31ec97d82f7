//! The flags.

use std::ffi::OsString;
use std::time::Duration;

use http::Uri;
use lexopt::{Arg, Parser};

use crate::texts::{milliseconds, namespace};
use crate::values::{secret, value};

/// What `--help` prints.
pub(crate) const HELP: &str = "\
Compares what running processes serve with the invalidation log in Redis.

Usage: inspector --redis URL --cache NAME --process URL... [--flag VALUE]...

  --redis URL          the server that the processes share, or any node of their
                       cluster
  --namespace NS       as the processes have it                        [stampede]
  --cache NAME         the name of their cache, as `Stampede::builder` has it
  --process URL        the router `tower_stampede::admin` of a process, for
                       example http://10.0.0.7:3000/admin; once for each process
  --admin-token SECRET sent as `Authorization: Bearer SECRET` to each of them
  --interval-ms N      how often all are asked                             [1000]
  --seconds N          how long                                              [30]
  --keys N             how many keys of each process are looked at, 1 to 1000;
                       the same ones in all of them                         [100]
  --quiet              print the summary alone
  --json               print the summary as one JSON object
  --help               this text

It writes nothing: a Redis user with +zrangebyscore +zrevrangebyscore +getrange
on the names of the cache is enough. Each interval costs Redis two or three
commands for the log and one for each key; each process four small requests, of
which one looks at every entry that the process holds.

Ends with 0: no process that reports `up` served what was invalidated more than
2 s before; 1: one did; 2: the flags cannot be followed; 3: Redis or a process
could not be asked, or nothing was invalidated meanwhile, and nothing worse was
seen. Ctrl-C ends it early, with the summary.
";

/// Keys that are looked at, at most: what `GET /keys` lists at once.
const MOST_KEYS: usize = 1000;

/// What the command line asks for.
pub(crate) enum Command {
    Inspect(Box<Flags>),
    Help,
}

pub(crate) struct Flags {
    pub(crate) redis: redis::Client,
    pub(crate) namespace: String,
    pub(crate) cache: String,
    pub(crate) processes: Vec<String>,
    pub(crate) admin_token: Option<String>,
    pub(crate) interval: Duration,
    pub(crate) time: Duration,
    pub(crate) keys: usize,
    pub(crate) is_quiet: bool,
    pub(crate) is_json: bool,
}

/// Reads the command line; the error is a sentence that names the flag.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, String> {
    let mut parser = Parser::from_iter(args);
    let (mut redis_client, mut cache, mut processes) = (None, None, Vec::new());
    let (mut names, mut admin_token) = ("stampede".to_owned(), None);
    let (mut interval, mut time, mut keys) = (Duration::from_secs(1), 30, 100);
    let (mut is_quiet, mut is_json) = (false, false);
    while let Some(arg) = parser.next().map_err(|error| error.to_string())? {
        let name = match arg {
            Arg::Long("help") | Arg::Short('h') => return Ok(Command::Help),
            Arg::Long(name) => name.to_owned(),
            other => return Err(other.unexpected().to_string()),
        };
        let from = &mut parser;
        match &*name {
            "redis" => redis_client = Some(secret(&name, from, client)?),
            "namespace" => names = value(&name, from, namespace)?,
            "cache" => cache = Some(value(&name, from, namespace)?),
            "process" => processes.push(value(&name, from, process)?),
            "admin-token" => admin_token = Some(secret(&name, from, token)?),
            "interval-ms" => interval = value(&name, from, pause)?,
            "seconds" => time = value(&name, from, seconds)?,
            "keys" => keys = value(&name, from, count)?,
            "quiet" => is_quiet = true,
            "json" => is_json = true,
            _ => return Err(format!("unknown flag --{name}")),
        }
    }
    let needed = |name: &str, what: &str| format!("--{name} is missing; say {what}");
    if processes.is_empty() {
        return Err(needed("process", "where the admin router of a process listens"));
    }
    Ok(Command::Inspect(Box::new(Flags {
        redis: redis_client.ok_or_else(|| needed("redis", "the URL that the processes use"))?,
        cache: cache.ok_or_else(|| needed("cache", "the name of the cache"))?,
        namespace: names,
        processes,
        admin_token,
        interval,
        time: Duration::from_secs(time),
        keys,
        is_quiet,
        is_json,
    })))
}

/// The URL may hold a password: the error does not quote it.
fn client(url: &str) -> Result<redis::Client, String> {
    redis::Client::open(url)
        .map_err(|_| "is no URL like redis://127.0.0.1:6379/0 that this build can use".into())
}

fn process(url: &str) -> Result<String, String> {
    let uri: Uri = url.parse().map_err(|_| "is no URL like http://127.0.0.1:3000/admin")?;
    if uri.scheme_str() != Some("http") || uri.authority().is_none() || uri.query().is_some() {
        return Err("must be http://HOST:PORT/PATH, without a query: it is asked directly, not \
                    through TLS or a load balancer"
            .into());
    }
    Ok(url.trim_end_matches('/').to_owned())
}

fn token(text: &str) -> Result<String, String> {
    let is_one = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_one.then(|| text.to_owned()).ok_or_else(|| "is not visible ASCII text".into())
}

fn pause(text: &str) -> Result<Duration, String> {
    let pause = milliseconds(text)?;
    let is_one = (Duration::from_millis(50)..=Duration::from_secs(60)).contains(&pause);
    is_one.then_some(pause).ok_or_else(|| "must be from 50 to 60000 milliseconds".into())
}

fn seconds(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (1..=86_400).contains(number));
    number.ok_or_else(|| "is not a whole number of seconds from 1 to 86400".into())
}

fn count(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=MOST_KEYS).contains(number));
    number.ok_or_else(|| format!("is not a whole number from 1 to {MOST_KEYS}"))
}
