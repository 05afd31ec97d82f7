//! The command line.
//!
//! Each flag is optional here: what is not given comes from the configuration file, or else is
//! the default of [`Settings`].

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use tower_stampede::SetCookie;

use crate::access_log::{Destination, Format};
use crate::command::Command;
use crate::own_values::{
    at_most, cookie_name, exemption, field_pattern, host, host_header, lifetime_field, origin,
    path, query_name, set_cookie, status_ttl, tag_field,
};
use crate::server::{HostHeader, Server};
use crate::settings::Settings;
use crate::texts::{address, at_least_one, bytes, milliseconds, namespace, some_time};

/// A caching reverse proxy for any HTTP/1.1 origin.
///
/// It stores what the origin's own fields allow, and asks the origin once however many clients
/// want the same.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "stampede-proxy",
    version,
    args_override_self = true,
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    max_term_width = 100,
    after_help = "Ctrl-C and SIGTERM end it gracefully. SIGHUP reads the configuration file, the \
                  certificates and the access log's file anew. docs/reverse-proxy.md has the \
                  details."
)]
pub(crate) struct Args {
    /// Read the settings from this TOML file; flags override it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Check the flags, the file and all files that it names, print all errors, and end: with 0,
    /// or with 2 where there are errors
    #[arg(long)]
    pub(crate) check_config: bool,
    /// Where to listen; port 0 picks one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    listen: Option<SocketAddr>,
    /// Which server answers what the cache cannot: http://HOST[:PORT] or https://HOST[:PORT].
    /// Required, here or in the file. Beside origins of the file with hosts it is the origin of
    /// all other hosts
    #[arg(long, value_name = "URL", value_parser = origin)]
    origin: Option<Server>,
    /// Share values and locks with all instances that name the same server and namespace
    /// [default: a cache in memory]
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// What all keys in Redis begin with [default: stampede]
    #[arg(long, value_name = "NS", value_parser = namespace)]
    namespace: Option<String>,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    steering: SteeringArgs,
    #[command(flatten)]
    waiting: WaitingArgs,
    #[command(flatten)]
    clients: ClientArgs,
    #[command(flatten)]
    connections: ConnectionArgs,
    #[command(flatten)]
    operators: OperatorArgs,
    /// What to do in place of serving.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "TLS")]
struct TlsArgs {
    /// The certificate chain of the listener, as PEM: clients then speak TLS, with HTTP/2 or
    /// HTTP/1.1
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// The private key of that certificate, as PEM
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// The authorities, as PEM, that sign the certificates of origins with https
    /// [default: those of the system]
    #[arg(long, value_name = "FILE")]
    origin_ca: Option<PathBuf>,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "What is cached")]
struct CacheArgs {
    /// Lifetime of responses that say nothing; 0: only what the origin's fields allow
    /// [default: 0]
    #[arg(long, value_name = "N", value_parser = milliseconds, allow_negative_numbers = true)]
    ttl_ms: Option<Duration>,
    /// Lifetime of errors with this status that say nothing, such as 404=10s or 503=500ms; may
    /// be repeated [default: none]
    #[arg(long, value_name = "STATUS=TIME", value_parser = status_ttl)]
    status_ttl: Vec<(u16, Duration)>,
    /// Then served stale while refreshed [default: 0]
    #[arg(long, value_name = "N", value_parser = milliseconds, allow_negative_numbers = true)]
    stale_ms: Option<Duration>,
    /// Then served in place of a failure [default: 0]
    #[arg(long, value_name = "N", value_parser = milliseconds, allow_negative_numbers = true)]
    stale_if_error_ms: Option<Duration>,
    /// Then served while the origin cannot be reached [default: 600000]
    #[arg(long, value_name = "N", value_parser = milliseconds, allow_negative_numbers = true)]
    stale_if_disconnected_ms: Option<Duration>,
    /// Remove this query parameter, or all with a name like utm_*, from every request. Without
    /// NAME, or for `*`: requests for one path share one response, and the origin gets GET and
    /// HEAD without a query. May be repeated [default: none]
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "*",
          value_parser = query_name)]
    ignore_query: Vec<String>,
    /// Responses with Set-Cookie: `refuse` to store them, `strip` the field, or store what is
    /// cacheable by an `explicit` word of the origin [default: refuse]
    #[arg(long, value_name = "MODE", value_parser = set_cookie)]
    set_cookie: Option<SetCookie>,
    /// Remove Cookie from GET and HEAD requests
    #[arg(long)]
    ignore_cookies: bool,
    /// Remove this cookie, or all with a name like _ga_*, from GET and HEAD requests; other
    /// cookies count as ever. May be repeated
    #[arg(long, value_name = "NAME", value_parser = cookie_name)]
    ignore_cookie: Vec<String>,
    /// Give stored responses without a validator an ETag, so that clients get 304
    #[arg(long)]
    make_etags: bool,
    /// The longest body that is stored [default: 1048576]
    #[arg(long, value_name = "BYTES", value_parser = bytes, allow_negative_numbers = true)]
    max_body: Option<usize>,
    /// Send ranges to the origin as they are, and do not ask for the whole of what is not stored
    #[arg(long)]
    pass_ranges: bool,
    /// A request field that identifies the client, or a pattern like X-Acme-*: responses to such
    /// requests are shared only where the origin permits it. Adds to the documented list; may be
    /// repeated
    #[arg(long, value_name = "NAME", value_parser = field_pattern)]
    credential_header: Vec<String>,
    /// Takes a field or a pattern out of that list; may be repeated
    #[arg(long, value_name = "NAME", value_parser = exemption)]
    not_a_credential: Vec<String>,
    /// Store the response to a POST for later GETs where it says that it is one
    #[arg(long)]
    store_post: bool,
    /// POSTs to this path change nothing: their responses are stored by the rules for GET, keyed
    /// by the body; may be repeated [default: none]
    #[arg(long, value_name = "PATH", value_parser = path)]
    cache_post: Vec<String>,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "What the origin says in fields of its responses (docs/http.md)")]
struct SteeringArgs {
    /// Tags: surrogate-key, xkey, cache-tag or edge-cache-tag. The field is removed from what
    /// clients get. May be repeated
    #[arg(long, value_name = "FIELD", value_parser = tag_field)]
    tags_from: Vec<String>,
    /// What governs before Cache-Control: surrogate-control, x-accel-expires. Removed too. May be
    /// repeated; the first has priority
    #[arg(long, value_name = "FIELD", value_parser = lifetime_field)]
    lifetime_from: Vec<String>,
    /// Ignore Cache-Groups and Cache-Group-Invalidation
    #[arg(long)]
    no_cache_groups: bool,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Waiting")]
struct WaitingArgs {
    /// How long a request waits for another one's answer
    /// [default: lease-ms + compute-timeout-ms]
    #[arg(long, value_name = "N", value_parser = milliseconds, allow_negative_numbers = true)]
    wait_timeout_ms: Option<Duration>,
    /// How long a body that arrives may be silent until new requests no longer wait for it
    /// [default: 2000]
    #[arg(long, value_name = "N", value_parser = some_time, allow_negative_numbers = true)]
    body_join_timeout_ms: Option<Duration>,
    /// How long the origin may be silent before its response begins [default: 30000]
    #[arg(long, value_name = "N", value_parser = some_time, allow_negative_numbers = true)]
    compute_timeout_ms: Option<Duration>,
    /// How long connecting to it may take, TLS included [default: 3000]
    #[arg(long, value_name = "N", value_parser = some_time, allow_negative_numbers = true)]
    connect_timeout_ms: Option<Duration>,
    /// How long a leader may be silent [default: 5000]
    #[arg(long, value_name = "N", value_parser = milliseconds, allow_negative_numbers = true)]
    lease_ms: Option<Duration>,
    /// How long the origin may pause in a response's body [default: 300000]
    #[arg(long, value_name = "N", value_parser = some_time, allow_negative_numbers = true)]
    origin_idle_ms: Option<Duration>,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Clients")]
struct ClientArgs {
    /// Answer 421 for all other hosts; may be repeated [default: all]
    #[arg(long, value_name = "HOST", value_parser = host)]
    allow_host: Vec<String>,
    /// Which Host the origin sees: preserve or origin [default: preserve]
    #[arg(long, value_name = "MODE", value_parser = host_header)]
    host_header: Option<HostHeader>,
    /// Keep Forwarded, X-Forwarded-* and their like: a proxy in front of this one sets them
    #[arg(long)]
    trust_forwarded: bool,
    /// Pass request fields whose names contain `_`; without it they are dropped
    #[arg(long)]
    underscores_in_headers: bool,
    /// How much of an address names a client. One client has at most 7/8 of what
    /// --max-computations and --max-forwarded allow, and clients are served in turns
    /// [default: 32]
    #[arg(long, value_name = "N", value_parser = at_most::<32>, allow_negative_numbers = true)]
    client_ipv4_bits: Option<u32>,
    /// The same for IPv6 [default: 64]
    #[arg(long, value_name = "N", value_parser = at_most::<128>, allow_negative_numbers = true)]
    client_ipv6_bits: Option<u32>,
    /// How many requests that others may share go to the origin at once [default: 1024]
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    max_computations: Option<usize>,
    /// Find how many by how long they take, from N up to --max-computations [default: a fixed number]
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    min_computations: Option<usize>,
    /// The same for all other requests, until their response begins [default: no bound]
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    max_forwarded: Option<usize>,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Connections of clients")]
struct ConnectionArgs {
    /// How many at once, web sockets included [default: 10000]
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    max_connections: Option<usize>,
    /// Requests with a longer header section get 431, and responses with one that is 1 KiB longer
    /// than this are not stored [default: 16384]
    #[arg(long, value_name = "BYTES", value_parser = at_least_one, allow_negative_numbers = true)]
    max_header_bytes: Option<usize>,
    /// How long a TLS handshake and a request's head may take, and how long a connection may be
    /// idle [default: 30000]
    #[arg(long, value_name = "N", value_parser = some_time, allow_negative_numbers = true)]
    header_timeout_ms: Option<Duration>,
    /// How long a connection may be without a request; pings of HTTP/2 are none [default: 30000]
    #[arg(long, value_name = "N", value_parser = some_time, allow_negative_numbers = true)]
    idle_timeout_ms: Option<Duration>,
    /// How long a client may pause while it sends a body [default: 30000]
    #[arg(long, value_name = "N", value_parser = some_time, allow_negative_numbers = true)]
    body_read_timeout_ms: Option<Duration>,
    /// How long a client may pause while it reads a body [default: 30000]
    #[arg(long, value_name = "N", value_parser = some_time, allow_negative_numbers = true)]
    body_write_timeout_ms: Option<Duration>,
    /// Per second; a client that sends or reads less uses these two times up. 0: any byte ends a
    /// pause [default: 500]
    #[arg(long, value_name = "BYTES", value_parser = bytes, allow_negative_numbers = true)]
    min_rate: Option<usize>,
    /// How old a connection may become; 0: any age [default: 0]
    #[arg(long, value_name = "N", value_parser = milliseconds, allow_negative_numbers = true)]
    max_connection_ms: Option<Duration>,
    /// How long a web socket may be silent both ways [default: 600000]
    #[arg(long, value_name = "N", value_parser = some_time, allow_negative_numbers = true)]
    websocket_idle_ms: Option<Duration>,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Operators")]
struct OperatorArgs {
    /// Where operators purge (PURGE /page, PURGE *, POST /purge) and look (/stats, /keys), and
    /// where /healthz and /metrics are; not for clients [default: none]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    admin: Option<SocketAddr>,
    /// A file with the token that operators show: at least 16 characters. Without it the token is
    /// read from the environment variable STAMPEDE_ADMIN_TOKEN
    #[arg(long, value_name = "PATH")]
    admin_token_file: Option<PathBuf>,
    /// Write a line for each request: combined or json [default: none]
    #[arg(long, value_name = "FORMAT", value_parser = Format::read)]
    access_log: Option<Format>,
    /// The file of these lines; `-` is the standard output [default: -]
    #[arg(long, value_name = "PATH", value_parser = Destination::read)]
    access_log_file: Option<Destination>,
    /// Leave the keys of the stored responses to the next process, in this file, and load those
    /// that are in it before serving [default: none]
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// How long new connections are still accepted after SIGTERM, while /healthz answers 503
    /// [default: 0]
    #[arg(long, value_name = "N", value_parser = milliseconds, allow_negative_numbers = true)]
    drain_delay_ms: Option<Duration>,
    /// How long open requests may take to end after that [default: 10000]
    #[arg(long, value_name = "N", value_parser = some_time, allow_negative_numbers = true)]
    drain_timeout_ms: Option<Duration>,
}

/// Takes the flags that are given.
macro_rules! take {
    ($($flag:expr => $setting:expr),+ $(,)?) => {$(
        if let Some(value) = $flag {
            $setting = value;
        }
    )+};
}

/// The same for settings that have no default here.
macro_rules! take_some {
    ($($flag:expr => $setting:expr),+ $(,)?) => {$(
        if $flag.is_some() {
            $setting = $flag;
        }
    )+};
}

/// The same for flags that may be repeated: they replace the list of the file.
macro_rules! take_list {
    ($($flag:expr => $setting:expr),+ $(,)?) => {$(
        if !$flag.is_empty() {
            $setting = $flag;
        }
    )+};
}

/// The same for flags without a value.
macro_rules! take_flag {
    ($($flag:expr => $setting:expr),+ $(,)?) => {$(
        $setting |= $flag;
    )+};
}

impl Args {
    /// Puts what is given into the settings, over what the file says. Returns what is wrong.
    pub(crate) fn apply(self, to: &mut Settings) -> Vec<String> {
        let mut wrong = Vec::new();
        take!(self.listen => to.listen);
        if let Some(server) = self.origin {
            to.origins.set_default(server);
        }
        if let Some(url) = self.redis {
            // The URL may hold a password: it is not shown.
            if let Err(reason) = to.set_redis(&url) {
                wrong.push(format!("--redis: {reason}"));
            }
        }
        take_some!(self.namespace => to.namespace);
        self.tls.apply(to, &mut wrong);
        self.cache.apply(to);
        take_list!(
            self.steering.tags_from => to.tags_from,
            self.steering.lifetime_from => to.lifetime_from,
        );
        to.cache_groups &= !self.steering.no_cache_groups;
        let waiting = self.waiting;
        take_some!(waiting.wait_timeout_ms => to.wait_timeout, waiting.lease_ms => to.lease);
        take!(
            waiting.body_join_timeout_ms => to.body_join_timeout,
            waiting.compute_timeout_ms => to.compute_timeout,
            waiting.connect_timeout_ms => to.connect_timeout,
            waiting.origin_idle_ms => to.origin_idle,
        );
        self.clients.apply(to);
        self.connections.apply(to);
        self.operators.apply(to, &mut wrong);
        wrong
    }
}

impl TlsArgs {
    fn apply(self, to: &mut Settings, wrong: &mut Vec<String>) {
        match (self.tls_cert, self.tls_key) {
            (Some(cert), Some(key)) => to.set_tls(cert, key),
            (None, None) => {}
            (Some(_), None) => wrong.push("--tls-cert needs --tls-key: name the key's file".into()),
            (None, Some(_)) => {
                wrong.push("--tls-key needs --tls-cert: name the certificate's file".into());
            }
        }
        take_some!(self.origin_ca => to.origin_ca);
    }
}

impl CacheArgs {
    fn apply(self, to: &mut Settings) {
        take!(
            self.ttl_ms => to.ttl,
            self.stale_ms => to.stale,
            self.stale_if_error_ms => to.stale_if_error,
            self.stale_if_disconnected_ms => to.stale_if_disconnected,
            self.set_cookie => to.set_cookie,
            self.max_body => to.max_body,
        );
        take_list!(
            self.status_ttl => to.status_ttl,
            self.ignore_query => to.ignored_query,
            self.ignore_cookie => to.ignored_cookies,
            self.credential_header => to.credential_headers,
            self.not_a_credential => to.not_credentials,
            self.cache_post => to.cache_posts,
        );
        take_flag!(
            self.ignore_cookies => to.ignore_cookies,
            self.make_etags => to.make_etags,
            self.pass_ranges => to.pass_ranges,
            self.store_post => to.store_post,
        );
    }
}

impl ClientArgs {
    fn apply(self, to: &mut Settings) {
        take_list!(self.allow_host => to.allow_host);
        take!(
            self.host_header => to.host_header,
            self.client_ipv4_bits => to.client_bits.v4,
            self.client_ipv6_bits => to.client_bits.v6,
        );
        take_flag!(
            self.trust_forwarded => to.trust_forwarded,
            self.underscores_in_headers => to.underscores_in_headers,
        );
        take_some!(
            self.max_computations => to.max_computations,
            self.min_computations => to.min_computations,
            self.max_forwarded => to.max_forwarded,
        );
    }
}

impl ConnectionArgs {
    fn apply(self, to: &mut Settings) {
        let limits = &mut to.limits;
        take!(
            self.max_connections => limits.connections,
            self.max_header_bytes => limits.header_bytes,
            self.header_timeout_ms => limits.header,
            self.idle_timeout_ms => limits.idle,
            self.body_read_timeout_ms => limits.body_read,
            self.body_write_timeout_ms => limits.body_write,
            self.min_rate.map(|rate| rate as u64) => limits.min_rate,
            self.max_connection_ms.map(Settings::some_age) => limits.lifetime,
            self.websocket_idle_ms => to.websocket_idle,
        );
    }
}

impl OperatorArgs {
    fn apply(self, to: &mut Settings, wrong: &mut Vec<String>) {
        take_some!(
            self.admin => to.admin,
            self.admin_token_file => to.admin_token_file,
            self.access_log => to.access_log,
            self.manifest => to.manifest,
        );
        if self.access_log_file.is_some() && to.access_log.is_none() {
            wrong.push(
                "--access-log-file is for the lines of --access-log: say combined or json there"
                    .into(),
            );
        }
        take!(
            self.access_log_file => to.access_log_file,
            self.drain_delay_ms => to.drain_delay,
            self.drain_timeout_ms => to.drain_timeout,
        );
        if to.admin_token_file.is_some() && to.admin.is_none() {
            wrong.push("--admin-token-file is for the listener of --admin: say its address".into());
        }
    }
}
