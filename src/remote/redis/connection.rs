//! The client crate: no other file names it, so that its next major version
//! is a change to this one.
//!
//! Nothing here is retried, and nothing here waits longer than
//! [`CONNECT_TIMEOUT`] for a connection, unless its caller would. A command is awaited for ever: its
//! caller has a deadline and drops it.

use std::fmt;
use std::future::Future;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
#[cfg(feature = "redis-sentinel")]
use redis::RedisConnectionInfo;
#[cfg(any(feature = "redis-tls-rustls", feature = "redis-tls-native"))]
use redis::TlsCertificates;
use redis::aio::{ConnectionLike, MultiplexedConnection, PubSub, PubSubSink, PubSubStream};
#[cfg(feature = "redis-cluster")]
use redis::cluster::{ClusterClient, ClusterClientBuilder};
#[cfg(feature = "redis-cluster")]
use redis::cluster_async::ClusterConnection;
use redis::io::tcp::{TcpSettings, socket2};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion,
    RedisError, ServerError, Value,
};
use tokio::time::timeout;

use crate::error::ConfigError;
use crate::remote::RemoteErrorKind;
use crate::remote::redis::reply::{CallFailure, Cause, ServerReply};
use crate::remote::redis::tls;

/// How long a connection may take until it is usable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// After how long a silent peer is asked whether it lives, how long sent bytes
/// may stay unacknowledged.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);

/// How many commands may wait to be written; those after them wait in line.
const QUEUE: usize = 1024;

/// A command and its arguments.
#[derive(Clone)]
pub(super) struct Command(Cmd);

impl Command {
    pub(super) fn new(name: &str) -> Self {
        let mut cmd = Cmd::new();
        for word in name.split(' ') {
            cmd.arg(word);
        }
        Self(cmd)
    }

    pub(super) fn arg(mut self, arg: impl AsRef<[u8]>) -> Self {
        self.0.arg(arg.as_ref());
        self
    }

    pub(super) fn args<A: AsRef<[u8]>>(self, args: impl IntoIterator<Item = A>) -> Self {
        args.into_iter().fold(self, Self::arg)
    }
}

/// A script, which the server knows by its digest once it has seen it.
pub(super) struct Script {
    source: &'static str,
    digest: String,
}

impl Script {
    pub(super) fn new(source: &'static str) -> Self {
        Self { source, digest: redis::Script::new(source).get_hash().to_owned() }
    }

    /// Makes the command that loads it.
    pub(super) fn load(&self) -> Command {
        Command::new("SCRIPT LOAD").arg(self.source)
    }

    /// Makes the command that runs it where the server knows it.
    pub(super) fn by_digest(&self, keys: &[&[u8]], args: &[&[u8]]) -> Command {
        Self::call("EVALSHA", &self.digest, keys, args)
    }

    /// Makes the command that runs it anywhere.
    pub(super) fn in_full(&self, keys: &[&[u8]], args: &[&[u8]]) -> Command {
        Self::call("EVAL", self.source, keys, args)
    }

    fn call(name: &str, script: &str, keys: &[&[u8]], args: &[&[u8]]) -> Command {
        Command::new(name).arg(script).arg(keys.len().to_string()).args(keys).args(args)
    }
}

/// Where to connect.
#[derive(Clone)]
pub(super) struct Target {
    servers: Servers,
    /// Certificates in PEM that are trusted instead of the system's.
    roots: Option<Arc<[u8]>>,
}

#[derive(Clone)]
enum Servers {
    Single(Box<ConnectionInfo>),
    #[cfg(feature = "redis-cluster")]
    Cluster(Vec<ConnectionInfo>),
    #[cfg(feature = "redis-sentinel")]
    Sentinel(Vec<ConnectionInfo>, String),
}

impl Target {
    /// Reads a URL. Says why it refuses it, and never quotes it: it may hold a
    /// password.
    pub(super) fn single(url: &str) -> Result<Self, ConfigError> {
        Ok(Self { servers: Servers::Single(Box::new(parse(url)?)), roots: None })
    }

    /// Reads the URLs of some nodes of a cluster.
    #[cfg(feature = "redis-cluster")]
    pub(super) fn cluster<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
    ) -> Result<Self, ConfigError> {
        let nodes = parse_all(urls)?;
        let target = Self { servers: Servers::Cluster(nodes.clone()), roots: None };
        target.cluster_client(&nodes).map_err(|_| {
            refuse("differs in more than host and port from another node's, or is a socket")
        })?;
        Ok(target)
    }

    /// Reads the URLs of the sentinels that watch the primary of this name.
    #[cfg(feature = "redis-sentinel")]
    pub(super) fn sentinel<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
        primary: &str,
    ) -> Result<Self, ConfigError> {
        let servers = Servers::Sentinel(parse_all(urls)?, primary.to_owned());
        Ok(Self { servers, roots: None })
    }

    /// Trusts these certificates, in PEM, instead of the system's.
    #[cfg(any(feature = "redis-tls-rustls", feature = "redis-tls-native"))]
    pub(super) fn with_roots(mut self, pem: &[u8]) -> Result<Self, ConfigError> {
        let any = ConnectionInfo::from_str("rediss://host").and_then(|info| trusting(info, pem));
        let begins = pem.windows(PEM_BEGINS.len()).any(|window| window == PEM_BEGINS);
        if any.is_err() || !begins {
            return Err(ConfigError::new(&["root_certificates"], "is no certificate in PEM"));
        }
        self.roots = Some(pem.into());
        Ok(self)
    }

    /// Connects, and loads `scripts` there, within [`CONNECT_TIMEOUT`] or
    /// `patience`, whichever is longer.
    pub(super) async fn connect(
        &self,
        scripts: &[&Script],
        patience: Duration,
    ) -> Result<Connection, CallFailure> {
        within(self.connect_timeout().max(patience), async {
            let connection = self.open_connection().await?;
            connection.load(scripts).await?;
            Ok(connection)
        })
        .await
    }

    async fn open_connection(&self) -> Result<Connection, CallFailure> {
        match &self.servers {
            Servers::Single(info) => self.open(info).await.map(Connection::Single),
            #[cfg(feature = "redis-cluster")]
            Servers::Cluster(nodes) => {
                let client = self.cluster_client(nodes).map_err(failure)?;
                client.get_async_connection().await.map(Connection::Cluster).map_err(failure)
            }
            #[cfg(feature = "redis-sentinel")]
            Servers::Sentinel(sentinels, primary) => {
                let (_, connection) = self.primary(sentinels, primary).await?;
                Ok(Connection::Single(connection))
            }
        }
    }

    /// A cluster takes several connections after each other, and the dead node
    /// among the living costs one time-out.
    fn connect_timeout(&self) -> Duration {
        match &self.servers {
            #[cfg(feature = "redis-cluster")]
            Servers::Cluster(_) => CONNECT_TIMEOUT * 4,
            _ => CONNECT_TIMEOUT,
        }
    }

    async fn open(&self, info: &ConnectionInfo) -> Result<MultiplexedConnection, CallFailure> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(QUEUE);
        let client = self.client(info)?;
        client.get_multiplexed_async_connection_with_config(&config).await.map_err(failure)
    }

    fn client(&self, info: &ConnectionInfo) -> Result<Client, CallFailure> {
        let mut info = info.clone();
        if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            tls::choose_cryptography();
            if let Some(roots) = self.roots.as_deref().or_else(|| tls::system_roots()) {
                info = trusting(info, roots).map_err(failure)?;
            }
        }
        Client::open(info).map_err(failure)
    }

    /// Opens a connection that hears what is published on `channels`.
    pub(super) async fn subscribe(
        &self,
        channels: &[&str],
        patience: Duration,
    ) -> Result<(Pulse, Messages), CallFailure> {
        within(self.connect_timeout().max(patience), async {
            let pubsub = match &self.servers {
                Servers::Single(info) => self.pubsub(info).await?,
                // What is published on one node reaches all of them.
                #[cfg(feature = "redis-cluster")]
                Servers::Cluster(nodes) => self.pubsub_of_any(nodes).await?,
                #[cfg(feature = "redis-sentinel")]
                Servers::Sentinel(sentinels, primary) => {
                    let (info, _) = self.primary(sentinels, primary).await?;
                    self.pubsub(&info).await?
                }
            };
            let (mut sink, stream) = pubsub.split();
            sink.subscribe(channels).await.map_err(failure)?;
            Ok((Pulse(sink), Messages(stream)))
        })
        .await
    }

    async fn pubsub(&self, info: &ConnectionInfo) -> Result<PubSub, CallFailure> {
        self.client(info)?.get_async_pubsub().await.map_err(failure)
    }

    /// Returns the commands that connecting itself needs the right to.
    pub(super) fn own_commands(&self) -> Vec<&'static str> {
        match &self.servers {
            Servers::Single(info) if info.redis_settings().db() == 0 => vec![],
            Servers::Single(_) => vec!["select"],
            #[cfg(feature = "redis-cluster")]
            Servers::Cluster(_) => vec!["cluster|slots"],
            #[cfg(feature = "redis-sentinel")]
            Servers::Sentinel(sentinels, _) => match sentinels.first() {
                Some(info) if info.redis_settings().db() != 0 => vec!["role", "select"],
                _ => vec!["role"],
            },
        }
    }

    /// Writes where the servers are, for log lines.
    pub(super) fn address(&self) -> String {
        let servers: Vec<_> = self.infos().iter().map(address).collect();
        let servers = servers.join(", ");
        match &self.servers {
            Servers::Single(_) => servers,
            #[cfg(feature = "redis-cluster")]
            Servers::Cluster(_) => format!("cluster of {servers}"),
            #[cfg(feature = "redis-sentinel")]
            Servers::Sentinel(_, primary) => format!("primary {primary} of sentinels {servers}"),
        }
    }

    fn infos(&self) -> &[ConnectionInfo] {
        match &self.servers {
            Servers::Single(info) => std::slice::from_ref(&**info),
            #[cfg(feature = "redis-cluster")]
            Servers::Cluster(infos) => infos,
            #[cfg(feature = "redis-sentinel")]
            Servers::Sentinel(infos, _) => infos,
        }
    }
}

/// Shows no user, no password and no path.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.infos().iter().map(address)).finish()
    }
}

/// Writes where a server is: no user, no password and no path.
fn address(info: &ConnectionInfo) -> String {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) => format!("redis://{host}:{port}"),
        ConnectionAddr::TcpTls { host, port, .. } => format!("rediss://{host}:{port}"),
        _ => "unix".to_owned(),
    }
}

#[cfg(feature = "redis-cluster")]
impl Target {
    /// The client connects to the nodes again by itself, as often as it tries
    /// a command; so it needs to know when a node is dead.
    fn cluster_client(&self, nodes: &[ConnectionInfo]) -> Result<ClusterClient, RedisError> {
        let builder = ClusterClient::builder(nodes.to_vec())
            .connection_timeout(CONNECT_TIMEOUT / 2)
            .response_timeout(CONNECT_TIMEOUT * 2)
            .overall_response_timeout(None)
            .retries(3)
            .min_retry_wait(5)
            .max_retry_wait(50)
            .tcp_settings(tcp_settings());
        self.trusting_cluster(builder, nodes).build()
    }

    #[cfg(feature = "redis-tls-rustls")]
    fn trusting_cluster(
        &self,
        builder: ClusterClientBuilder,
        nodes: &[ConnectionInfo],
    ) -> ClusterClientBuilder {
        if !nodes.iter().any(|node| matches!(node.addr(), ConnectionAddr::TcpTls { .. })) {
            return builder;
        }
        tls::choose_cryptography();
        match self.roots.as_deref().or_else(|| tls::system_roots()) {
            Some(roots) => builder.certs(certificates(roots)),
            None => builder,
        }
    }

    /// The other TLS library of the client has no such setting for a cluster.
    #[cfg(not(feature = "redis-tls-rustls"))]
    #[expect(clippy::unused_self, reason = "as with the other TLS library")]
    fn trusting_cluster(
        &self,
        builder: ClusterClientBuilder,
        _: &[ConnectionInfo],
    ) -> ClusterClientBuilder {
        builder
    }

    async fn pubsub_of_any(&self, nodes: &[ConnectionInfo]) -> Result<PubSub, CallFailure> {
        let first = fastrand::usize(..nodes.len());
        let mut failed = CallFailure::nonsense();
        for node in nodes[first..].iter().chain(&nodes[..first]) {
            match within(CONNECT_TIMEOUT, self.pubsub(node)).await {
                Ok(pubsub) => return Ok(pubsub),
                Err(failure) => failed = failure,
            }
        }
        Err(failed)
    }
}

#[cfg(feature = "redis-sentinel")]
impl Target {
    /// Asks all sentinels at once; the first whose primary says that it is one
    /// decides.
    async fn primary(
        &self,
        sentinels: &[ConnectionInfo],
        name: &str,
    ) -> Result<(ConnectionInfo, MultiplexedConnection), CallFailure> {
        let asked = sentinels.iter().map(|sentinel| Box::pin(self.primary_by(sentinel, name)));
        let (found, _) = futures_util::future::select_ok(asked).await?;
        Ok(found)
    }

    async fn primary_by(
        &self,
        sentinel: &ConnectionInfo,
        name: &str,
    ) -> Result<(ConnectionInfo, MultiplexedConnection), CallFailure> {
        let connection = Connection::Single(self.open_sentinel(sentinel).await?);
        let ask = Command::new("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name);
        let answer = connection.send(&ask).await?;
        let address = match answer.array() {
            Ok([host, port]) => (host.text()?.to_owned(), port.text()?.parse().ok()),
            _ => {
                return Err(CallFailure::disconnected(
                    "the sentinel knows no primary of this name",
                ));
            }
        };
        let (host, Some(port)) = address else { return Err(CallFailure::nonsense()) };
        let info = sentinel.clone().set_addr(moved(sentinel.addr(), host, port));

        let open = self.open(&info).await?;
        let role = Connection::Single(open.clone()).send(&Command::new("ROLE")).await?;
        match role.array()?.first().map(ServerReply::text) {
            Some(Ok("master")) => Ok((info, open)),
            _ => Err(CallFailure::disconnected("the sentinel's primary is a replica by now")),
        }
    }

    /// The user is one of the primary; a sentinel may know others, or none.
    async fn open_sentinel(
        &self,
        sentinel: &ConnectionInfo,
    ) -> Result<MultiplexedConnection, CallFailure> {
        let settings = RedisConnectionInfo::default().set_skip_set_lib_name();
        let anonymous = sentinel.clone().set_redis_settings(settings.clone());
        let user = sentinel.redis_settings();
        let Some(password) = user.password() else { return self.open(&anonymous).await };
        let mut settings = settings.set_password(password);
        if let Some(name) = user.username() {
            settings = settings.set_username(name);
        }
        match self.open(&sentinel.clone().set_redis_settings(settings)).await {
            Err(failure) if failure.kind == RemoteErrorKind::Denied => self.open(&anonymous).await,
            opened => opened,
        }
    }
}

#[cfg(feature = "redis-cluster")]
impl Target {
    /// Returns the primaries of a cluster that do not answer now.
    pub(super) async fn silent_servers(&self) -> Vec<String> {
        let Servers::Cluster(named) = &self.servers else { return Vec::new() };
        let asked = named.iter().map(|node| Box::pin(self.primaries_by(node)));
        let known = futures_util::future::select_ok(asked).await;
        let primaries = known.map_or_else(|_| named.clone(), |(known, _)| known);
        let asked = primaries.iter().map(|node| async move {
            let answered = within(CONNECT_TIMEOUT, async {
                Connection::Single(self.open(node).await?).send(&Command::new("PING")).await
            });
            answered.await.is_err().then(|| address(node))
        });
        futures_util::future::join_all(asked).await.into_iter().flatten().collect()
    }

    async fn primaries_by(
        &self,
        node: &ConnectionInfo,
    ) -> Result<Vec<ConnectionInfo>, CallFailure> {
        let slots = within(CONNECT_TIMEOUT, async {
            let connection = Connection::Single(self.open(node).await?);
            connection.send(&Command::new("CLUSTER SLOTS")).await
        });
        let mut primaries: Vec<ConnectionInfo> = Vec::new();
        for range in slots.await?.array()? {
            let primary = range.array()?.get(2).ok_or_else(CallFailure::nonsense)?;
            let [host, port, ..] = primary.array()? else { return Err(CallFailure::nonsense()) };
            let port = u16::try_from(port.number()?).map_err(|_| CallFailure::nonsense())?;
            let place = moved(node.addr(), host.text()?.to_owned(), port);
            if primaries.iter().all(|known| *known.addr() != place) {
                primaries.push(node.clone().set_addr(place));
            }
        }
        Ok(primaries)
    }
}

#[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
fn moved(from: &ConnectionAddr, host: String, port: u16) -> ConnectionAddr {
    match from.clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    }
}

/// An open connection. A clone is the same connection.
#[derive(Clone)]
pub(super) enum Connection {
    Single(MultiplexedConnection),
    #[cfg(feature = "redis-cluster")]
    Cluster(ClusterConnection),
}

impl Connection {
    /// Sends a command and waits for its reply.
    ///
    /// Dropping the future does not keep the server from executing it.
    pub(super) async fn send(&self, command: &Command) -> Result<ServerReply, CallFailure> {
        let value = match self {
            Self::Single(connection) => connection.clone().req_packed_command(&command.0).await,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(connection) => connection.clone().req_packed_command(&command.0).await,
        };
        reply(value.map_err(failure)?)
    }

    /// Returns whether what is broken is connected to again without us.
    pub(super) const fn heals_itself(&self) -> bool {
        match self {
            Self::Single(_) => false,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(_) => true,
        }
    }

    /// Loads `scripts`. A refusal is no failure: it comes again with the first
    /// call, which says what is wrong.
    async fn load(&self, scripts: &[&Script]) -> Result<(), CallFailure> {
        let loads = scripts.iter().map(|script| {
            let load = script.load();
            async move { self.send(&load).await }
        });
        for loaded in futures_util::future::join_all(loads).await {
            match loaded {
                Err(failed) if failed.cause == Cause::Broken => return Err(failed),
                _ => (),
            }
        }
        Ok(())
    }
}

/// Tells whether a subscribed connection still lives.
pub(super) struct Pulse(PubSubSink);

impl Pulse {
    pub(super) async fn beat(&mut self) -> Result<(), CallFailure> {
        self.0.ping::<Value>().await.map(drop).map_err(failure)
    }
}

/// What arrives on the channels of a subscribed connection, which is closed
/// when this is dropped.
pub(super) struct Messages(PubSubStream);

impl Messages {
    /// Returns the next message and its channel; nothing when the connection
    /// is gone.
    pub(super) async fn next(&mut self) -> Option<(String, Bytes)> {
        let message = self.0.next().await?;
        Some((
            message.get_channel_name().to_owned(),
            Bytes::copy_from_slice(message.get_payload_bytes()),
        ))
    }
}

async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, CallFailure>>,
) -> Result<T, CallFailure> {
    let late = || CallFailure::disconnected("no connection in time");
    timeout(limit, work).await.unwrap_or_else(|_| Err(late()))
}

/// Makes `info` trust certificates in PEM.
#[cfg(any(feature = "redis-tls-rustls", feature = "redis-tls-native"))]
fn trusting(info: ConnectionInfo, roots: &[u8]) -> Result<ConnectionInfo, RedisError> {
    let client = Client::build_with_tls(info, certificates(roots))?;
    Ok(client.get_connection_info().clone())
}

#[cfg(not(any(feature = "redis-tls-rustls", feature = "redis-tls-native")))]
fn trusting(info: ConnectionInfo, _: &[u8]) -> Result<ConnectionInfo, RedisError> {
    Ok(info)
}

#[cfg(any(feature = "redis-tls-rustls", feature = "redis-tls-native"))]
fn certificates(roots: &[u8]) -> TlsCertificates {
    TlsCertificates { client_tls: None, root_cert: Some(roots.to_vec()) }
}

#[cfg(any(feature = "redis-tls-rustls", feature = "redis-tls-native"))]
const PEM_BEGINS: &[u8] = b"-----BEGIN CERTIFICATE-----";

fn refuse(reason: &'static str) -> ConfigError {
    ConfigError::new(&["url"], reason)
}

#[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
fn parse_all<U: AsRef<str>>(
    urls: impl IntoIterator<Item = U>,
) -> Result<Vec<ConnectionInfo>, ConfigError> {
    let infos: Vec<_> =
        urls.into_iter().map(|url| parse(url.as_ref())).collect::<Result<_, _>>()?;
    if infos.is_empty() { Err(refuse("is missing")) } else { Ok(infos) }
}

fn parse(url: &str) -> Result<ConnectionInfo, ConfigError> {
    let Some((scheme, _)) = url.split_once("://") else {
        return Err(refuse("is not a URL"));
    };
    match scheme {
        "redis" | "valkey" | "unix" | "redis+unix" | "valkey+unix" => (),
        "rediss" | "valkeys" if HAS_TLS => (),
        "rediss" | "valkeys" => {
            return Err(refuse("needs the feature `redis-tls-rustls` or `redis-tls-native`"));
        }
        _ => return Err(refuse("has another scheme than redis, rediss, valkey, valkeys or unix")),
    }
    let info = ConnectionInfo::from_str(url)
        .map_err(|_| refuse("has no valid host, port, user, password or database number"))?;
    // The library's name is no command a user with the least rights may send.
    let settings = info.redis_settings().clone();
    let settings = settings.set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name();
    Ok(info.set_redis_settings(settings).set_tcp_settings(tcp_settings()))
}

const HAS_TLS: bool = cfg!(any(feature = "redis-tls-rustls", feature = "redis-tls-native"));

fn tcp_settings() -> TcpSettings {
    let keepalive = socket2::TcpKeepalive::new().with_time(PEER_TIMEOUT);
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    with_user_timeout(settings)
}

#[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
fn with_user_timeout(settings: TcpSettings) -> TcpSettings {
    settings.set_user_timeout(PEER_TIMEOUT)
}

#[cfg(not(any(target_os = "android", target_os = "fuchsia", target_os = "linux")))]
fn with_user_timeout(settings: TcpSettings) -> TcpSettings {
    settings
}

fn reply(value: Value) -> Result<ServerReply, CallFailure> {
    Ok(match value {
        Value::Nil => ServerReply::Nil,
        Value::Int(number) => ServerReply::Int(number),
        Value::BulkString(bytes) => ServerReply::Bytes(bytes.into()),
        Value::SimpleString(text) => ServerReply::Bytes(text.into()),
        Value::Okay => ServerReply::Bytes(Bytes::from_static(b"OK")),
        Value::Array(items) => {
            ServerReply::Array(items.into_iter().map(reply).collect::<Result<_, _>>()?)
        }
        // What each node of a cluster says, by its address.
        Value::Map(pairs) => {
            let items = pairs.into_iter().flat_map(|(address, said)| [address, said]);
            ServerReply::Array(items.map(reply).collect::<Result<_, _>>()?)
        }
        Value::ServerError(error) => return Err(refusal(&error)),
        _ => return Err(CallFailure::nonsense()),
    })
}

fn refusal(error: &ServerError) -> CallFailure {
    CallFailure::of_server(error.code(), error.details().unwrap_or_default())
}

fn failure(error: RedisError) -> CallFailure {
    match ServerError::try_from(error) {
        Ok(error) => refusal(&error),
        Err(error) => client_failure(&error),
    }
}

/// Judges what the client crate found itself.
fn client_failure(error: &RedisError) -> CallFailure {
    let gone = error.is_unrecoverable_error() || error.is_io_error();
    match error.kind() {
        ErrorKind::AuthenticationFailed => {
            CallFailure::new(RemoteErrorKind::Denied, Cause::Plain, "wrong user or password")
        }
        // TLS that is refused is such a thing too.
        ErrorKind::Client => CallFailure::disconnected(error.to_string()),
        _ if gone => CallFailure::disconnected(error.to_string()),
        _ => CallFailure::new(RemoteErrorKind::Protocol, Cause::Plain, error.category()),
    }
}
