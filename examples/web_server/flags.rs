//! The flags, and the cache they describe.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::{Arg, Parser};
use tower_stampede::{ConfigError, HttpStampede, Stampede};

use crate::limits::Limits;
use crate::redis::{self, Redis};
use crate::texts::{address, at_least_one, bytes, milliseconds, namespace, some_time};
use crate::values::{secret, value};

/// What `--help` prints.
pub(crate) const HELP: &str = "\
A web server whose expensive handler is computed once per herd.

Usage: web_server [--flag VALUE]... (or --flag=VALUE)

  --listen ADDR            where to listen; port 0 picks one  [127.0.0.1:3000]
  --redis URL              share values and locks with all instances that name
                           the same server and namespace     [cache in memory]
  --namespace NS           what all keys in Redis begin with        [stampede]
  --ttl-ms N               how long a report is fresh                   [5000]
  --stale-ms N             then served stale while it is refreshed         [0]
  --stale-if-error-ms N    then served in place of a failure               [0]
  --work-ms N              how long the expensive handler takes          [300]
  --early-beta X           refresh before the end, by chance; 0 is off     [0]
  --wait-timeout-ms N      how long a request waits for another one's computation
                                                [lease-ms + compute-timeout-ms]
  --compute-timeout-ms N   after how long a computation is dropped     [30000]
  --lease-ms N             how long a leader may be silent              [5000]
  --op-timeout-ms N        how long a call to Redis may take             [100]
  --max-waiters N          requests that may wait for one key         [100000]
  --manifest FILE          before it listens, load the pages that the last process
                           has left in this file; leave them there at the end [no]
  --admin-token SECRET     serve statistics, keys, modes and purges under /admin
                           to clients with `Authorization: Bearer SECRET`   [no]

Connections of clients
  --max-connections N      how many at once                            [10000]
  --max-header-bytes BYTES longer header sections get 431              [16384]
  --header-timeout-ms N    how long a request's head may take, and how long a
                           connection may be idle                      [30000]
  --idle-timeout-ms N      how long a connection may be without a request
                                                                       [30000]
  --body-read-timeout-ms N how long a client may pause while it sends a body
                                                                       [30000]
  --body-write-timeout-ms N
                           how long a client may pause while it reads a body
                                                                       [30000]
  --min-rate BYTES         per second; a client that sends or reads less uses
                           these two times up. 0: any byte ends a pause  [500]
  --max-connection-ms N    how old a connection may become; 0: any age     [0]

For the processes that the page starts
  --child                  report computations on stdout, and end when stdin closes
  --keep-redis PORT        run redis-server instead, until stdin closes
  --help                   this text

Ctrl-C and SIGTERM end it gracefully.
";

/// What the command line asks for.
pub(crate) enum Command {
    Serve(Box<Flags>),
    KeepRedis(u16),
    Help,
}

/// The flags and their defaults. `None` leaves it to the library.
#[derive(Clone, Debug)]
pub(crate) struct Flags {
    pub(crate) listen: SocketAddr,
    pub(crate) redis: Option<Redis>,
    pub(crate) namespace: Option<String>,
    pub(crate) ttl: Duration,
    pub(crate) stale: Duration,
    pub(crate) stale_if_error: Duration,
    pub(crate) work: Duration,
    pub(crate) manifest: Option<PathBuf>,
    pub(crate) admin_token: Option<String>,
    pub(crate) limits: Limits,
    pub(crate) is_child: bool,
    early_beta: f64,
    wait_timeout: Option<Duration>,
    compute_timeout: Option<Duration>,
    lease: Option<Duration>,
    op_timeout: Option<Duration>,
    max_waiters: Option<u32>,
}

impl Default for Flags {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 3000)),
            redis: None,
            namespace: None,
            ttl: Duration::from_secs(5),
            stale: Duration::ZERO,
            stale_if_error: Duration::ZERO,
            work: Duration::from_millis(300),
            manifest: None,
            admin_token: None,
            limits: Limits::default(),
            is_child: false,
            early_beta: 0.0,
            wait_timeout: None,
            compute_timeout: None,
            lease: None,
            op_timeout: None,
            max_waiters: None,
        }
    }
}

/// Reads the command line; the error is a sentence that names the flag.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, String> {
    let mut flags = Flags::default();
    let mut parser = Parser::from_iter(args);
    while let Some(arg) = parser.next().map_err(|error| error.to_string())? {
        match arg {
            Arg::Long("help") | Arg::Short('h') => return Ok(Command::Help),
            Arg::Long("child") => flags.is_child = true,
            Arg::Long("keep-redis") => {
                return Ok(Command::KeepRedis(value("keep-redis", &mut parser, port)?));
            }
            Arg::Long(name) => {
                let name = name.to_owned();
                flags.set(&name, &mut parser)?;
            }
            other => return Err(other.unexpected().to_string()),
        }
    }
    Ok(Command::Serve(Box::new(flags)))
}

impl Flags {
    fn set(&mut self, name: &str, from: &mut Parser) -> Result<(), String> {
        match name {
            "listen" => self.listen = value(name, from, address)?,
            "redis" => self.redis = Some(secret(name, from, redis::read)?),
            "namespace" => self.namespace = Some(value(name, from, namespace)?),
            "ttl-ms" => self.ttl = value(name, from, lifetime)?,
            "stale-ms" => self.stale = value(name, from, milliseconds)?,
            "stale-if-error-ms" => self.stale_if_error = value(name, from, milliseconds)?,
            "work-ms" => self.work = value(name, from, milliseconds)?,
            "manifest" => self.manifest = Some(value(name, from, |file| Ok(file.into()))?),
            "admin-token" => self.admin_token = Some(secret(name, from, token)?),
            "early-beta" => self.early_beta = value(name, from, factor)?,
            "wait-timeout-ms" => self.wait_timeout = Some(value(name, from, milliseconds)?),
            "compute-timeout-ms" => self.compute_timeout = Some(value(name, from, milliseconds)?),
            "lease-ms" => self.lease = Some(value(name, from, milliseconds)?),
            "op-timeout-ms" => self.op_timeout = Some(value(name, from, milliseconds)?),
            "max-waiters" => self.max_waiters = Some(value(name, from, count)?),
            _ if set_limit(&mut self.limits, name, from)? => {}
            _ => return Err(format!("unknown flag --{name}")),
        }
        Ok(())
    }

    /// Makes the cache; the error names the flags that cannot be followed.
    pub(crate) fn cache(&self) -> Result<HttpStampede, String> {
        let mut cache = Stampede::builder("web")
            .ttl(self.ttl)
            .stale_for(self.stale)
            .stale_if_error(self.stale_if_error)
            // Times are to be foreseeable here; keep the default in earnest.
            .jitter(0.0);
        if self.early_beta > 0.0 {
            cache = cache.early_refresh(self.early_beta);
        }
        if let Some(wait_timeout) = self.wait_timeout {
            cache = cache.wait_timeout(wait_timeout);
        }
        if let Some(compute_timeout) = self.compute_timeout {
            cache = cache.compute_timeout(compute_timeout);
        }
        if let Some(lease) = self.lease {
            cache = cache.lease(lease);
        }
        if let Some(max_waiters) = self.max_waiters {
            cache = cache.max_waiters(max_waiters);
        }
        if let Some(redis) = &self.redis {
            cache = redis::attach(cache, redis.clone(), self.namespace.as_deref(), self.op_timeout);
        }
        cache.build().map_err(|error| explain(&error))
    }
}

/// Reads a flag of the limits. Returns whether it is one.
fn set_limit(limits: &mut Limits, name: &str, from: &mut Parser) -> Result<bool, String> {
    match name {
        "max-connections" => limits.connections = value(name, from, at_least_one)?,
        "max-header-bytes" => limits.header_bytes = value(name, from, at_least_one)?,
        "header-timeout-ms" => limits.header = value(name, from, some_time)?,
        "idle-timeout-ms" => limits.idle = value(name, from, some_time)?,
        "body-read-timeout-ms" => limits.body_read = value(name, from, some_time)?,
        "body-write-timeout-ms" => limits.body_write = value(name, from, some_time)?,
        "min-rate" => limits.min_rate = value(name, from, bytes)? as u64,
        "max-connection-ms" => {
            let lifetime = value(name, from, milliseconds)?;
            limits.lifetime = Some(lifetime).filter(|lifetime| !lifetime.is_zero());
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// Says a refusal of the builder in terms of our flags.
fn explain(error: &ConfigError) -> String {
    let flag = |field: &&str| {
        Some(match *field {
            "ttl" => "--ttl-ms",
            "stale_for" => "--stale-ms",
            "stale_if_error" => "--stale-if-error-ms",
            "early_refresh" => "--early-beta",
            "wait_timeout" => "--wait-timeout-ms",
            "compute_timeout" => "--compute-timeout-ms",
            "lease" => "--lease-ms",
            "op_timeout" => "--op-timeout-ms",
            "max_waiters" => "--max-waiters",
            "namespace" => "--namespace",
            _ => return None,
        })
    };
    let flags: Vec<_> = error.fields().iter().filter_map(flag).collect();
    format!("{}: {error}", flags.join(" and "))
}

fn lifetime(text: &str) -> Result<Duration, String> {
    match milliseconds(text)? {
        Duration::ZERO => Err("is no time at all: nothing would be stored".into()),
        time => Ok(time),
    }
}

fn token(text: &str) -> Result<String, String> {
    let is_visible = text.bytes().all(|byte| byte.is_ascii_graphic());
    let is_one = is_visible && !text.is_empty();
    is_one.then(|| text.to_owned()).ok_or_else(|| "is not visible ASCII text".into())
}

fn port(text: &str) -> Result<u16, String> {
    let port = text.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| "is not a port from 1 to 65535".into())
}

fn count(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("is not a whole number up to {}", u32::MAX))
}

fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor: &f64| factor.is_finite() && *factor >= 0.0);
    factor.ok_or_else(|| "is not a factor of 0 or more".into())
}
