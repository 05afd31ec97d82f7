//! The flags, and the cache they describe.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderValue;
use lexopt::{Arg, Parser};
use tower_stampede::{ConfigError, HttpLayer, HttpStampede, SetCookie, Stampede};

use crate::failure::OriginError;
use crate::fields;
use crate::host::Host;
use crate::limits::Limits;
use crate::own_values::{
    at_most, cookie_name, exemption, field_pattern, lifetime_field, origin, path, tag_field,
};
use crate::provenance;
use crate::redis::{self, Redis};
use crate::values::{
    address, at_least_one, bytes, milliseconds, namespace, secret, some_time, value,
};

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
  --status-ttl STATUS=TIME       lifetime of errors with this status that say
                                 nothing, such as 404=10s or 503=500ms; may be
                                 repeated                               [none]
  --stale-ms N                   then served stale while refreshed         [0]
  --stale-if-error-ms N          then served in place of a failure         [0]
  --stale-if-disconnected-ms N   then served while the origin cannot be reached
                                                                      [600000]
  --set-cookie MODE              responses with Set-Cookie: refuse to store
                                 them, strip the field, or store what is
                                 explicitly cacheable                 [refuse]
  --ignore-cookies               remove Cookie from GET and HEAD requests
  --ignore-cookie NAME           remove this cookie, or all with a name like
                                 _ga_*, from GET and HEAD requests; other cookies
                                 count as ever. May be repeated
  --make-etags                   give stored responses without a validator an
                                 ETag, so that clients get 304
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
  --cache-post PATH              POSTs to this path change nothing: their responses
                                 are stored by the rules for GET, keyed by the
                                 body; may be repeated                       [none]

What the origin says in fields of its responses (docs/steering.md)
  --tags-from FIELD              tags: surrogate-key, xkey, cache-tag or
                                 edge-cache-tag. The field is removed from what
                                 clients get. May be repeated
  --lifetime-from FIELD          what governs before Cache-Control:
                                 surrogate-control, x-accel-expires. Removed too.
                                 May be repeated; the first has priority
  --no-cache-groups              ignore Cache-Groups and Cache-Group-Invalidation

Waiting
  --wait-timeout-ms N            how long a request waits for another one's
                                 answer            [lease-ms + compute-timeout-ms]
  --body-join-timeout-ms N       how long a body that arrives may be silent until
                                 new requests no longer wait for it     [2000]
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
  --client-ipv4-bits N           how much of an address names a client. One client
                                 has at most 7/8 of what --max-computations and
                                 --max-forwarded allow, and clients are served in
                                 turns                                    [32]
  --client-ipv6-bits N           the same for IPv6                        [64]
  --max-computations N           how many requests that others may share go to the
                                 origin at once                         [1024]
  --max-forwarded N              the same for all other requests, until their
                                 response begins                    [no bound]

Connections of clients
  --max-connections N            how many at once, web sockets included [10000]
  --max-header-bytes BYTES       longer requests get 431               [16384]
  --header-timeout-ms N          how long a request's head may take, and how
                                 long a connection may be idle         [30000]
  --idle-timeout-ms N            how long a connection may be without a request;
                                 pings of HTTP/2 are none              [30000]
  --body-read-timeout-ms N       how long a client may pause while it sends a
                                 body                                  [30000]
  --body-write-timeout-ms N      how long a client may pause while it reads a
                                 body                                  [30000]
  --min-rate BYTES               per second; a client that sends or reads less
                                 uses these two times up. 0: any byte ends a
                                 pause                                   [500]
  --max-connection-ms N          how old a connection may become; 0: any age [0]
  --websocket-idle-ms N          how long a web socket may be silent both ways
                                                                      [600000]

Connections to the origin
  --origin-idle-ms N             how long it may pause in a response's body
                                                                      [300000]

Operators
  --admin ADDR                   where operators purge and look; not for clients
                                                                        [none]
  --admin-token-file PATH        a file with the token that they show: at least
                                 16 characters. Without it the token is read from
                                 the environment variable STAMPEDE_ADMIN_TOKEN
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

/// How many bits of an address name a client.
///
/// All 32 of IPv4: neighbours in a network are strangers, and few attackers have a network of
/// 256. 64 of IPv6: that is what one customer has, and may choose from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientBits {
    v4: u32,
    v6: u32,
}

impl Default for ClientBits {
    fn default() -> Self {
        Self { v4: 32, v6: 64 }
    }
}

impl ClientBits {
    /// Returns the network of an address.
    fn network_of(self, address: IpAddr) -> IpAddr {
        match address.to_canonical() {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - self.v4).unwrap_or(0);
                Ipv4Addr::from_bits(v4.to_bits() & mask).into()
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - self.v6).unwrap_or(0);
                Ipv6Addr::from_bits(v6.to_bits() & mask).into()
            }
        }
    }
}

/// The flags and their defaults. `None` leaves it to the library.
#[derive(Clone, Debug)]
pub(crate) struct Flags {
    pub(crate) listen: SocketAddr,
    origin: Option<Origin>,
    pub(crate) redis: Option<Redis>,
    pub(crate) namespace: Option<String>,
    ttl: Duration,
    status_ttl: Vec<(u16, Duration)>,
    stale: Duration,
    stale_if_error: Duration,
    stale_if_disconnected: Duration,
    set_cookie: SetCookie,
    ignore_cookies: bool,
    ignored_cookies: Vec<String>,
    make_etags: bool,
    tags_from: Vec<String>,
    lifetime_from: Vec<String>,
    cache_groups: bool,
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) admin_token_file: Option<PathBuf>,
    max_body: usize,
    pass_ranges: bool,
    credential_headers: Vec<String>,
    not_credentials: Vec<String>,
    store_post: bool,
    cache_posts: Vec<String>,
    wait_timeout: Option<Duration>,
    body_join_timeout: Duration,
    pub(crate) compute_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    lease: Option<Duration>,
    /// Empty: all.
    pub(crate) allow_host: Vec<String>,
    pub(crate) host_header: HostHeader,
    pub(crate) trust_forwarded: bool,
    pub(crate) underscores_in_headers: bool,
    pub(crate) limits: Limits,
    pub(crate) websocket_idle: Duration,
    pub(crate) origin_idle: Duration,
    max_computations: Option<usize>,
    max_forwarded: Option<usize>,
    client_bits: ClientBits,
}

impl Default for Flags {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            origin: None,
            redis: None,
            namespace: None,
            ttl: Duration::ZERO,
            status_ttl: Vec::new(),
            stale: Duration::ZERO,
            stale_if_error: Duration::ZERO,
            stale_if_disconnected: Duration::from_secs(600),
            set_cookie: SetCookie::Refuse,
            ignore_cookies: false,
            ignored_cookies: Vec::new(),
            make_etags: false,
            tags_from: Vec::new(),
            lifetime_from: Vec::new(),
            cache_groups: true,
            admin: None,
            admin_token_file: None,
            max_body: 1 << 20,
            pass_ranges: false,
            credential_headers: Vec::new(),
            not_credentials: Vec::new(),
            store_post: false,
            cache_posts: Vec::new(),
            wait_timeout: None,
            body_join_timeout: Duration::from_secs(2),
            compute_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(3),
            lease: None,
            allow_host: Vec::new(),
            host_header: HostHeader::Preserve,
            trust_forwarded: false,
            underscores_in_headers: false,
            limits: Limits::default(),
            websocket_idle: Duration::from_secs(600),
            origin_idle: Duration::from_secs(300),
            max_computations: None,
            max_forwarded: None,
            client_bits: ClientBits::default(),
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
    if flags.admin_token_file.is_some() && flags.admin.is_none() {
        return Err("--admin-token-file is for the listener of --admin: say its address".into());
    }
    for (n, (status, _)) in flags.status_ttl.iter().enumerate() {
        if flags.status_ttl[..n].iter().any(|(other, _)| other == status) {
            return Err(format!("--status-ttl: {status} has two times; say it once"));
        }
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
            "status-ttl" => self.status_ttl.push(value(name, from, status_ttl)?),
            "stale-ms" => self.stale = value(name, from, milliseconds)?,
            "stale-if-error-ms" => self.stale_if_error = value(name, from, milliseconds)?,
            "stale-if-disconnected-ms" => {
                self.stale_if_disconnected = value(name, from, milliseconds)?;
            }
            "set-cookie" => self.set_cookie = value(name, from, set_cookie)?,
            "ignore-cookies" => self.ignore_cookies = true,
            "ignore-cookie" => self.ignored_cookies.push(value(name, from, cookie_name)?),
            "make-etags" => self.make_etags = true,
            "tags-from" => self.tags_from.push(value(name, from, tag_field)?),
            "lifetime-from" => self.lifetime_from.push(value(name, from, lifetime_field)?),
            "no-cache-groups" => self.cache_groups = false,
            "admin" => self.admin = Some(value(name, from, address)?),
            "admin-token-file" => {
                self.admin_token_file = Some(value(name, from, |path| Ok(path.into()))?);
            }
            "max-body" => self.max_body = value(name, from, bytes)?,
            "pass-ranges" => self.pass_ranges = true,
            "credential-header" => {
                self.credential_headers.push(value(name, from, field_pattern)?);
            }
            "not-a-credential" => self.not_credentials.push(value(name, from, exemption)?),
            "store-post" => self.store_post = true,
            "cache-post" => self.cache_posts.push(value(name, from, path)?),
            "wait-timeout-ms" => self.wait_timeout = Some(value(name, from, milliseconds)?),
            "body-join-timeout-ms" => self.body_join_timeout = value(name, from, some_time)?,
            "compute-timeout-ms" => self.compute_timeout = value(name, from, some_time)?,
            "connect-timeout-ms" => self.connect_timeout = value(name, from, some_time)?,
            "lease-ms" => self.lease = Some(value(name, from, milliseconds)?),
            "allow-host" => self.allow_host.push(value(name, from, host)?),
            "host-header" => self.host_header = value(name, from, host_header)?,
            "trust-forwarded" => self.trust_forwarded = true,
            "underscores-in-headers" => self.underscores_in_headers = true,
            "websocket-idle-ms" => self.websocket_idle = value(name, from, some_time)?,
            "origin-idle-ms" => self.origin_idle = value(name, from, some_time)?,
            "max-computations" => self.max_computations = Some(value(name, from, at_least_one)?),
            "max-forwarded" => self.max_forwarded = Some(value(name, from, at_least_one)?),
            "client-ipv4-bits" => self.client_bits.v4 = value(name, from, at_most::<32>)?,
            "client-ipv6-bits" => self.client_bits.v6 = value(name, from, at_most::<128>)?,
            _ if self.limits.set(name, from)? => {}
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
        for (status, ttl) in &self.status_ttl {
            cache = cache.status_ttl(*status, *ttl);
        }
        cache = if self.ttl.is_zero() { cache.origin_only() } else { cache.ttl(self.ttl) };
        if let Some(max) = self.max_computations {
            cache = cache.max_computations(max);
        }
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
            .unsent(OriginError::is_unsent)
            .set_cookie(self.set_cookie)
            .max_body(self.max_body)
            .body_join_timeout(self.body_join_timeout)
            .fill_from_ranges(!self.pass_ranges)
            // A request that was admitted must not be too long for the cache.
            .max_header_bytes(self.limits.header_bytes.saturating_add(WRITTEN_BYTES));
        // What is named a credential is one, beside a wider exemption too.
        let names = self.not_credentials.iter();
        let layer = names.fold(layer, |layer, name| layer.not_a_credential(name));
        let names = self.credential_headers.iter().map(String::as_str);
        let layer = layer.credential_headers(names).store_post_responses(self.store_post);
        let layer = self.steer(self.name_clients(self.key_claims(layer)));
        let paths = self.cache_posts.clone();
        let layer =
            layer.cache_posts(move |parts| paths.iter().any(|path| parts.uri.path() == path));
        if self.ignore_cookies { layer.ignore_cookies() } else { layer }
    }

    /// Sets which requests are of one client, and what one client may take.
    fn name_clients(&self, layer: HttpLayer) -> HttpLayer {
        let (bits, is_trusted) = (self.client_bits, self.trust_forwarded);
        let layer = layer.client(move |parts| {
            let address = provenance::client(&parts.headers, is_trusted)?;
            Some(bits.network_of(address))
        });
        match self.max_forwarded {
            Some(max) => layer.max_forwarded(max),
            None => layer,
        }
    }

    /// Sets by which fields the origin steers.
    fn steer(&self, layer: HttpLayer) -> HttpLayer {
        fn texts(all: &[String]) -> impl Iterator<Item = &str> {
            all.iter().map(String::as_str)
        }
        layer
            .tags_from(texts(&self.tags_from))
            .lifetime_from(texts(&self.lifetime_from))
            .cache_groups(self.cache_groups)
            .make_etags(self.make_etags)
            .ignore_cookies_named(texts(&self.ignored_cookies))
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
            "status_ttl" => "--status-ttl",
            "stale_for" => "--stale-ms",
            "stale_if_error" => "--stale-if-error-ms",
            "max_computations" => "--max-computations",
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

/// Reads a lifetime by status, such as `404=10s`.
fn status_ttl(text: &str) -> Result<(u16, Duration), String> {
    const RULE: &str = "is not a status and a time in ms, s, m or h, such as 404=10s";
    let (status, time) = text.split_once('=').ok_or(RULE)?;
    let unit_at = time.find(|c: char| !c.is_ascii_digit()).ok_or(RULE)?;
    let (number, unit) = time.split_at(unit_at);
    let number: u32 = number.parse().map_err(|_| RULE)?;
    let unit = match unit {
        "ms" => Duration::from_millis(1),
        "s" => Duration::from_secs(1),
        "m" => Duration::from_secs(60),
        "h" => Duration::from_secs(3600),
        _ => return Err(RULE.into()),
    };
    // Which statuses and times may be, the library says.
    Ok((status.parse().map_err(|_| RULE)?, unit * number))
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
