//! The settings, from flags and the configuration file, and the cache that they describe.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use http::uri::Scheme;
use tower_stampede::{ConfigError, HttpStampede, SetCookie, Stampede, StreamRule};

use crate::access_log::{Destination, Format};
use crate::host::Host;
use crate::limits::Limits;
use crate::redis::{self, Redis};
use crate::rules::Rule;
use crate::server::{HostHeader, Origins, default_port};

/// The name of the cache, in metrics and in manifests.
pub(crate) const CACHE: &str = "proxy";

/// How many bits of an address name a client.
///
/// All 32 of IPv4: neighbours in a network are strangers, and few attackers have a network of
/// 256. 64 of IPv6: that is what one customer has, and may choose from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ClientBits {
    pub(crate) v4: u32,
    pub(crate) v6: u32,
}

impl Default for ClientBits {
    fn default() -> Self {
        Self { v4: 32, v6: 64 }
    }
}

impl ClientBits {
    /// Returns the network of an address.
    pub(crate) fn network_of(self, address: IpAddr) -> IpAddr {
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

/// The files of the listener's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// The settings and their defaults. `None` leaves it to the library.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) listen: SocketAddr,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) origins: Origins,
    pub(crate) origin_ca: Option<PathBuf>,
    pub(crate) redis: Option<Redis>,
    /// Its URL may hold a password; this only tells whether it has changed.
    pub(crate) redis_url: Option<blake3::Hash>,
    pub(crate) namespace: Option<String>,
    pub(crate) ttl: Duration,
    pub(crate) status_ttl: Vec<(u16, Duration)>,
    pub(crate) stale: Duration,
    pub(crate) stale_if_error: Duration,
    pub(crate) stale_if_disconnected: Duration,
    /// Names and patterns of query parameters; `*` for all.
    pub(crate) ignored_query: Vec<String>,
    pub(crate) set_cookie: SetCookie,
    pub(crate) ignore_cookies: bool,
    pub(crate) ignored_cookies: Vec<String>,
    pub(crate) make_etags: bool,
    pub(crate) share_streams: Option<StreamRule>,
    pub(crate) tags_from: Vec<String>,
    pub(crate) lifetime_from: Vec<String>,
    pub(crate) cache_groups: bool,
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) admin_token_file: Option<PathBuf>,
    pub(crate) access_log: Option<Format>,
    pub(crate) access_log_file: Destination,
    pub(crate) manifest: Option<PathBuf>,
    pub(crate) drain_delay: Duration,
    pub(crate) drain_timeout: Duration,
    pub(crate) max_bytes: Option<u64>,
    pub(crate) max_body: usize,
    pub(crate) pass_ranges: bool,
    pub(crate) credential_headers: Vec<String>,
    pub(crate) not_credentials: Vec<String>,
    pub(crate) store_post: bool,
    pub(crate) cache_posts: Vec<String>,
    pub(crate) wait_timeout: Option<Duration>,
    pub(crate) body_join_timeout: Duration,
    pub(crate) compute_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) lease: Option<Duration>,
    /// Empty: all.
    pub(crate) allow_host: Vec<String>,
    pub(crate) host_header: HostHeader,
    pub(crate) trust_forwarded: bool,
    pub(crate) underscores_in_headers: bool,
    pub(crate) limits: Limits,
    pub(crate) websocket_idle: Duration,
    pub(crate) origin_idle: Duration,
    pub(crate) max_computations: Option<usize>,
    pub(crate) min_computations: Option<usize>,
    pub(crate) max_forwarded: Option<usize>,
    pub(crate) client_bits: ClientBits,
    pub(crate) rules: Vec<Rule>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            tls: None,
            origins: Origins::default(),
            origin_ca: None,
            redis: None,
            redis_url: None,
            namespace: None,
            ttl: Duration::ZERO,
            status_ttl: Vec::new(),
            stale: Duration::ZERO,
            stale_if_error: Duration::ZERO,
            stale_if_disconnected: Duration::from_secs(600),
            ignored_query: Vec::new(),
            set_cookie: SetCookie::Refuse,
            ignore_cookies: false,
            ignored_cookies: Vec::new(),
            make_etags: false,
            share_streams: None,
            tags_from: Vec::new(),
            lifetime_from: Vec::new(),
            cache_groups: true,
            admin: None,
            admin_token_file: None,
            access_log: None,
            access_log_file: Destination::Stdout,
            manifest: None,
            drain_delay: Duration::ZERO,
            drain_timeout: Duration::from_secs(10),
            max_bytes: None,
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
            min_computations: None,
            max_forwarded: None,
            client_bits: ClientBits::default(),
            rules: Vec::new(),
        }
    }
}

impl Settings {
    pub(crate) fn set_tls(&mut self, cert: PathBuf, key: PathBuf) {
        self.tls = Some(TlsFiles { cert, key });
    }

    /// An age of zero is any age.
    pub(crate) fn some_age(age: Duration) -> Option<Duration> {
        Some(age).filter(|age| !age.is_zero())
    }

    pub(crate) fn set_redis(&mut self, url: &str) -> Result<(), String> {
        self.redis = Some(redis::read(url)?);
        self.redis_url = Some(blake3::hash(url.as_bytes()));
        Ok(())
    }

    /// Returns a line about what was read.
    pub(crate) fn summary(&self) -> String {
        let origins = self.origins.all().count();
        format!("{origins} origin(s) by host, {} rule(s), {}", self.rules.len(), self.scheme())
    }

    /// Returns what clients speak.
    pub(crate) fn scheme(&self) -> Scheme {
        if self.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP }
    }

    /// Returns its name.
    pub(crate) fn scheme_name(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Brings the hosts into the form in which requests have them.
    pub(crate) fn normalise_hosts(&mut self) {
        let default = default_port(&self.scheme());
        for host in &mut self.allow_host {
            if let Some(read) = Host::parse(host, default) {
                *host = read.normal();
            }
        }
    }

    /// Returns what the flags contradict among each other, in words of the flags.
    pub(crate) fn contradictions(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.origins.is_empty() {
            wrong.push(
                "--origin http://HOST:PORT is missing: name an origin there, or as `[[origin]]` \
                 in the file of --config"
                    .into(),
            );
        }
        if let Some(admin) = self.admin.filter(|admin| is_same_place(*admin, self.listen)) {
            wrong.push(format!(
                "--admin {admin} (`admin.listen`) is where clients are served, too; name another \
                 port"
            ));
        }
        for (n, (status, _)) in self.status_ttl.iter().enumerate() {
            if self.status_ttl[..n].iter().any(|(other, _)| other == status) {
                wrong.push(format!("--status-ttl: {status} has two times; say it once"));
            }
        }
        if self.store_post && !self.rules.is_empty() {
            wrong.push(
                "--store-post (`cache.store_post`) stores nothing beside rules; remove it, or the \
                 rules"
                    .into(),
            );
        }
        wrong
    }

    /// Makes the cache; the error names the settings that cannot be followed.
    pub(crate) fn cache(&self) -> Result<HttpStampede, String> {
        let mut cache = Stampede::builder(CACHE)
            .stale_for(self.stale)
            .stale_if_error(self.stale_if_error)
            .compute_timeout(self.compute_timeout);
        cache = if self.ttl.is_zero() { cache.origin_only() } else { cache.ttl(self.ttl) };
        if let Some(max) = self.max_bytes {
            cache = cache.max_bytes(max);
        }
        if let Some(max) = self.max_computations {
            cache = cache.max_computations(max);
        }
        if let Some(min) = self.min_computations {
            cache = cache.min_computations(min);
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
}

/// Returns whether two listeners cannot have these addresses.
fn is_same_place(one: SocketAddr, other: SocketAddr) -> bool {
    let has_all = |at: SocketAddr| at.ip().is_unspecified();
    let is_same_address = one.ip() == other.ip() || has_all(one) || has_all(other);
    one.port() != 0 && one.port() == other.port() && is_same_address
}

/// Says a refusal of the builder in terms of the flags.
fn explain(error: &ConfigError) -> String {
    let flag = |field: &&str| {
        Some(match *field {
            "ttl" => "--ttl-ms",
            "stale_for" => "--stale-ms",
            "stale_if_error" => "--stale-if-error-ms",
            "max_bytes" => "`cache.max_bytes`",
            "max_computations" => "--max-computations",
            "min_computations" => "--min-computations",
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
