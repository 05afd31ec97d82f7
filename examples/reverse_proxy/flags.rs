//! The flags, and the cache they describe.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

use http::HeaderValue;
use lexopt::{Arg, Parser};
use tower_stampede::{ConfigError, HttpLayer, HttpStampede, SetCookie, Stampede};

use crate::failure::OriginError;
use crate::fields;
use crate::host::Host;
use crate::own_values::{at_least_one, bytes, exemption, field_pattern, origin, some_time};
use crate::provenance;
use crate::redis::{self, Redis};
use crate::values::{address, milliseconds, namespace, secret, value};

/// What `--help` prints.
pub(crate) const HELP: &str = "\
A caching reverse proxy for any HTTP/1.1 origin.

Usage: reverse_proxy --listen ADDR --origin http://HOST[:PORT] [--flag VALUE]...
       (or --flag=VALUE)

  --listen ADDR                  where to listen; port 0 picks one
                                                              [127.0.0.1:8080]
  --origin URL                   who answers what the cache cannot   [required]
  --redis URL                    share values and locks with all instances that
                                 name the same server and namespace
                                                             [cache in memory]
  --namespace NS                 what all keys in Redis begin with  [stampede]

What is cached
  --ttl-ms N                     lifetime of responses that say nothing; 0: only
                                 what the origin's fields allow            [0]
  --stale-ms N                   then served stale while refreshed         [0]
  --stale-if-error-ms N          then served in place of a failure         [0]
  --stale-if-disconnected-ms N   then served while the origin cannot be reached
                                                                      [600000]
  --set-cookie MODE              responses with Set-Cookie: refuse to store
                                 them, strip the field, or store what is
                                 explicitly cacheable                 [refuse]
  --ignore-cookies               remove Cookie from GET and HEAD requests
  --max-body BYTES               the longest body that is stored     [1048576]
  --pass-ranges                  send ranges to the origin as they are, and do not
                                 ask for the whole of what is not stored
  --credential-header NAME       a request field that identifies the client, or a
                                 pattern like X-Acme-*: responses to such requests
                                 are shared only where the origin permits it. Adds
                                 to the documented list; may be repeated
  --not-a-credential NAME        takes a field or a pattern out of that list; may
                                 be repeated
  --store-post                   store the response to a POST for later GETs
                                 where it says that it is one          [not stored]

Waiting
  --wait-timeout-ms N            how long a request waits for another one's
                                 answer            [lease-ms + compute-timeout-ms]
  --compute-timeout-ms N         how long the origin may be silent before its
                                 response begins                       [30000]
  --connect-timeout-ms N         how long connecting to it may take     [3000]
  --lease-ms N                   how long a leader may be silent        [5000]

Clients
  --allow-host HOST              answer 421 for all other hosts; may be repeated
                                                                         [all]
  --host-header preserve|origin  which Host the origin sees         [preserve]
  --trust-forwarded              keep Forwarded, X-Forwarded-* and their like:
                                 a proxy in front of this one sets them
  --underscores-in-headers       pass request fields whose names contain `_`;
                                 without it they are dropped
  --max-header-bytes BYTES       longer requests get 431               [65536]
  --max-connections N            how many clients at once              [10000]
  --header-timeout-ms N          how long a request's head may take, and how
                                 long a connection may be idle         [30000]
  --help                         this text

Ctrl-C and SIGTERM end it gracefully.
";

/// Room for the fields that the proxy writes into a request.
const WRITTEN_BYTES: usize = 1 << 10;

/// What the command line asks for.
pub(crate) enum Command {
    Serve(Box<Flags>),
    Help,
}

/// Where the origin is: a host and a port.
pub(crate) type Origin = http::uri::Authority;

/// Which `Host` the origin sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostHeader {
    /// The client's.
    Preserve,
    /// The one that `--origin` names.
    Origin,
}

/// The flags and their defaults. `None` leaves it to the library.
#[derive(Clone, Debug)]
pub(crate) struct Flags {
    pub(crate) listen: SocketAddr,
    origin: Option<Origin>,
    pub(crate) redis: Option<Redis>,
    pub(crate) namespace: Option<String>,
    ttl: Duration,
    stale: Duration,
    stale_if_error: Duration,
    stale_if_disconnected: Duration,
    set_cookie: SetCookie,
    ignore_cookies: bool,
    max_body: usize,
    pass_ranges: bool,
    credential_headers: Vec<String>,
    not_credentials: Vec<String>,
    store_post: bool,
    wait_timeout: Option<Duration>,
    pub(crate) compute_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    lease: Option<Duration>,
    /// Empty: all.
    pub(crate) allow_host: Vec<String>,
    pub(crate) host_header: HostHeader,
    pub(crate) trust_forwarded: bool,
    pub(crate) underscores_in_headers: bool,
    pub(crate) max_header_bytes: usize,
    pub(crate) max_connections: usize,
    pub(crate) header_timeout: Duration,
}

impl Default for Flags {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            origin: None,
            redis: None,
            namespace: None,
            ttl: Duration::ZERO,
            stale: Duration::ZERO,
            stale_if_error: Duration::ZERO,
            stale_if_disconnected: Duration::from_secs(600),
            set_cookie: SetCookie::Refuse,
            ignore_cookies: false,
            max_body: 1 << 20,
            pass_ranges: false,
            credential_headers: Vec::new(),
            not_credentials: Vec::new(),
            store_post: false,
            wait_timeout: None,
            compute_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(3),
            lease: None,
            allow_host: Vec::new(),
            host_header: HostHeader::Preserve,
            trust_forwarded: false,
            underscores_in_headers: false,
            max_header_bytes: 64 << 10,
            max_connections: 10_000,
            header_timeout: Duration::from_secs(30),
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
            Arg::Long(name) => {
                let name = name.to_owned();
                flags.set(&name, &mut parser)?;
            }
            other => return Err(other.unexpected().to_string()),
        }
    }
    if flags.origin.is_none() {
        return Err("--origin http://HOST:PORT is missing".into());
    }
    Ok(Command::Serve(Box::new(flags)))
}

impl Flags {
    fn set(&mut self, name: &str, from: &mut Parser) -> Result<(), String> {
        match name {
            "listen" => self.listen = value(name, from, address)?,
            "origin" => self.origin = Some(value(name, from, origin)?),
            "redis" => self.redis = Some(secret(name, from, redis::read)?),
            "namespace" => self.namespace = Some(value(name, from, namespace)?),
            "ttl-ms" => self.ttl = value(name, from, milliseconds)?,
            "stale-ms" => self.stale = value(name, from, milliseconds)?,
            "stale-if-error-ms" => self.stale_if_error = value(name, from, milliseconds)?,
            "stale-if-disconnected-ms" => {
                self.stale_if_disconnected = value(name, from, milliseconds)?;
            }
            "set-cookie" => self.set_cookie = value(name, from, set_cookie)?,
            "ignore-cookies" => self.ignore_cookies = true,
            "max-body" => self.max_body = value(name, from, bytes)?,
            "pass-ranges" => self.pass_ranges = true,
            "credential-header" => {
                self.credential_headers.push(value(name, from, field_pattern)?);
            }
            "not-a-credential" => self.not_credentials.push(value(name, from, exemption)?),
            "store-post" => self.store_post = true,
            "wait-timeout-ms" => self.wait_timeout = Some(value(name, from, milliseconds)?),
            "compute-timeout-ms" => self.compute_timeout = value(name, from, some_time)?,
            "connect-timeout-ms" => self.connect_timeout = value(name, from, some_time)?,
            "lease-ms" => self.lease = Some(value(name, from, milliseconds)?),
            "allow-host" => self.allow_host.push(value(name, from, host)?),
            "host-header" => self.host_header = value(name, from, host_header)?,
            "trust-forwarded" => self.trust_forwarded = true,
            "underscores-in-headers" => self.underscores_in_headers = true,
            "max-header-bytes" => self.max_header_bytes = value(name, from, at_least_one)?,
            "max-connections" => self.max_connections = value(name, from, at_least_one)?,
            "header-timeout-ms" => self.header_timeout = value(name, from, some_time)?,
            _ => return Err(format!("unknown flag --{name}")),
        }
        Ok(())
    }

    pub(crate) fn origin(&self) -> &Origin {
        self.origin.as_ref().expect("`parse` returns no flags without an origin")
    }

    /// Returns the origin as a value of `Host`, in the form of all others.
    pub(crate) fn origin_host(&self) -> HeaderValue {
        let host = Host::parse(self.origin().as_str()).map(|host| host.normal());
        let value = host.and_then(|host| HeaderValue::try_from(host).ok());
        value.expect("`--origin` was read as a host")
    }

    /// Makes the cache; the error names the flags that cannot be followed.
    pub(crate) fn cache(&self) -> Result<HttpStampede, String> {
        let mut cache = Stampede::builder("proxy")
            .stale_for(self.stale)
            .stale_if_error(self.stale_if_error)
            .compute_timeout(self.compute_timeout);
        cache = if self.ttl.is_zero() { cache.origin_only() } else { cache.ttl(self.ttl) };
        if let Some(wait_timeout) = self.wait_timeout {
            cache = cache.wait_timeout(wait_timeout);
        }
        if let Some(lease) = self.lease {
            cache = cache.lease(lease);
        }
        if let Some(redis) = &self.redis {
            cache = redis::attach(cache, redis.clone(), self.namespace.as_deref());
        }
        cache.build().map_err(|error| explain(&error))
    }

    /// Sets what the flags say of the layer.
    pub(crate) fn tune(&self, layer: HttpLayer) -> HttpLayer {
        let layer = layer
            .stale_if_disconnected(self.stale_if_disconnected)
            .disconnected(OriginError::is_disconnected)
            .set_cookie(self.set_cookie)
            .max_body(self.max_body)
            .fill_from_ranges(!self.pass_ranges)
            // A request that was admitted must not be too long for the cache.
            .max_header_bytes(self.max_header_bytes.saturating_add(WRITTEN_BYTES));
        // What is named a credential is one, beside a wider exemption too.
        let names = self.not_credentials.iter();
        let layer = names.fold(layer, |layer, name| layer.not_a_credential(name));
        let names = self.credential_headers.iter().map(String::as_str);
        let layer = layer.credential_headers(names).store_post_responses(self.store_post);
        let layer = self.key_claims(layer);
        if self.ignore_cookies { layer.ignore_cookies() } else { layer }
    }

    /// Sets which claims are part of the key: none of clients, since the proxy
    /// removes their claims and writes what follows from the key itself.
    fn key_claims(&self, layer: HttpLayer) -> HttpLayer {
        if !self.trust_forwarded {
            return layer.replace_keyed_headers([]);
        }
        layer
            .replace_keyed_headers(fields::keyed_claims())
            .key(|parts| provenance::forwarded_key(&parts.extensions))
            // The rule reads an extension, which a refresh carries in any case.
            .refresh_headers([])
    }
}

/// Says a refusal of the builder in terms of our flags.
fn explain(error: &ConfigError) -> String {
    let flag = |field: &&str| {
        Some(match *field {
            "ttl" => "--ttl-ms",
            "stale_for" => "--stale-ms",
            "stale_if_error" => "--stale-if-error-ms",
            "wait_timeout" => "--wait-timeout-ms",
            "compute_timeout" => "--compute-timeout-ms",
            "lease" => "--lease-ms",
            "namespace" => "--namespace",
            _ => return None,
        })
    };
    let flags: Vec<_> = error.fields().iter().filter_map(flag).collect();
    format!("{}: {error}", flags.join(" and "))
}

fn set_cookie(text: &str) -> Result<SetCookie, String> {
    match text {
        "refuse" => Ok(SetCookie::Refuse),
        "strip" => Ok(SetCookie::Strip),
        "explicit" => Ok(SetCookie::Explicit),
        _ => Err("is not one of refuse, strip, explicit".into()),
    }
}

fn host_header(text: &str) -> Result<HostHeader, String> {
    match text {
        "preserve" => Ok(HostHeader::Preserve),
        "origin" => Ok(HostHeader::Origin),
        _ => Err("is not one of preserve, origin".into()),
    }
}

fn host(text: &str) -> Result<String, String> {
    let host = Host::parse(text).ok_or("is not a host like www.example.com")?;
    Ok(host.normal())
}
