//! The client crate: no other file names it, so that its next major version
//! is a change to this one.
//!
//! Nothing here is retried. A connection has the limit that its caller says; a command is awaited for
//! ever: its caller has a deadline and drops it.

pub(super) mod messages;
mod topology;

use std::future::Future;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::io::tcp::{TcpSettings, socket2};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion,
    RedisConnectionInfo, RedisError, ServerError, Value,
};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::error::ConfigError;
use crate::remote::RemoteErrorKind;
use crate::remote::redis::cluster::slots::slot_of;
pub(super) use crate::remote::redis::connection::messages::ChannelNotice;
pub(super) use crate::remote::redis::connection::messages::Subscription;
use crate::remote::redis::connection::messages::{Messages, Pulse};
use crate::remote::redis::credentials::{Login, RedisCredentials, retry_pause};
use crate::remote::redis::reply::{CallFailure, Cause, ServerReply};
use crate::remote::redis::tls::{self, Certificates};

/// How long a connection may take until it is usable, where nothing else is said.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// After how long a silent peer is asked whether it lives, how long sent bytes
/// may stay unacknowledged.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);

/// The name of our connections at the server, where the application gives none.
const DEFAULT_CLIENT_NAME: &str = "tower-stampede";

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

    /// Returns the slot of its key; `None` where it has none.
    pub(super) fn slot(&self) -> Option<u16> {
        let word = |place: usize| match self.0.args_iter().nth(place)? {
            redis::Arg::Simple(word) => Some(word),
            _ => None,
        };
        let place = match word(0)? {
            b"EVAL" | b"EVALSHA" if word(2)? != b"0" => 3,
            b"GET" | b"GETRANGE" | b"SETNX" | b"GETSET" | b"DEL" => 1,
            b"ZRANGE" | b"ZRANGEBYSCORE" | b"ZREVRANGE" | b"ZREVRANGEBYSCORE" => 1,
            _ => return None,
        };
        word(place).map(slot_of)
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

    /// Returns a number below 64 that is the same each time.
    pub(super) fn number(&self) -> u8 {
        self.digest.bytes().fold(0, |sum: u8, digit| sum.wrapping_mul(31).wrapping_add(digit)) % 64
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
    kind: Kind,
    /// One at least.
    infos: Vec<ConnectionInfo>,
    pub(super) certificates: Certificates,
    /// The name that the server lists our connections by; none is sent where it is empty.
    client_name: Arc<str>,
    /// Who we are, where the URL does not say it.
    pub(super) login: Option<Login>,
}

/// What the named servers are.
#[derive(Clone)]
enum Kind {
    Single,
    Cluster,
    /// Those that know the primary of this name.
    Sentinel(String),
}

impl Target {
    /// Reads a URL. Says why it refuses it, and never quotes it: it may hold a
    /// password.
    pub(super) fn single(url: &str) -> Result<Self, ConfigError> {
        Ok(Self::of(Kind::Single, vec![parse(url)?]))
    }

    /// Takes the configuration of a client.
    pub(super) fn of_client(client: &Client) -> Self {
        Self::of(Kind::Single, vec![own_settings(client.get_connection_info().clone())])
    }

    fn of(kind: Kind, infos: Vec<ConnectionInfo>) -> Self {
        let certificates = Certificates::default();
        Self { kind, infos, certificates, client_name: DEFAULT_CLIENT_NAME.into(), login: None }
    }

    /// Reads the URLs of some nodes of a cluster.
    #[cfg_attr(not(feature = "redis-cluster"), allow(dead_code, reason = "for `Redis::cluster`"))]
    pub(super) fn cluster<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
    ) -> Result<Self, ConfigError> {
        let nodes = parse_all(urls)?;
        let is_alike = |node: &ConnectionInfo| {
            topology::place(node).is_some() && topology::is_alike(node, &nodes[0])
        };
        if !nodes.iter().all(is_alike) {
            return Err(refuse(
                "differs in more than host and port from another node's, or is a socket",
            ));
        }
        Ok(Self::of(Kind::Cluster, nodes))
    }

    /// Reads the URLs of the sentinels that watch the primary of this name.
    #[cfg_attr(not(feature = "redis-sentinel"), allow(dead_code, reason = "for `Redis::sentinel`"))]
    pub(super) fn sentinel<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
        primary: &str,
    ) -> Result<Self, ConfigError> {
        Ok(Self::of(Kind::Sentinel(primary.to_owned()), parse_all(urls)?))
    }

    /// Names the connections; `""` sends no name.
    pub(super) fn with_client_name(mut self, name: &str) -> Self {
        self.client_name = name.into();
        self
    }

    /// Returns the same servers with the credentials of this moment, and when new ones are due.
    async fn authorized(&self) -> Result<(Self, Option<Instant>), CallFailure> {
        let mut target = self.clone();
        let Some(login) = &self.login else { return Ok((target, None)) };
        let (credentials, renewal) = login.ask().await?;
        for info in &mut target.infos {
            *info = info.clone().set_redis_settings(with_user(info.redis_settings(), &credentials));
        }
        Ok((target, renewal))
    }

    /// Connects within `limit`. The credentials have a limit of their own.
    pub(super) async fn connect(&self, limit: Duration) -> Result<Connection, CallFailure> {
        let (target, renewal) = self.authorized().await?;
        // On the heap: the client's futures are large.
        let opening = Box::pin(async {
            let mut connection = Connection::single(target.open_connection().await?.1);
            target.name(&connection).await?;
            connection.keep_authorized(self.login.as_ref(), renewal);
            Ok(connection)
        });
        within(limit, opening).await
    }

    /// Connects, and returns to which server that was.
    async fn open_connection(
        &self,
    ) -> Result<(ConnectionInfo, MultiplexedConnection), CallFailure> {
        match &self.kind {
            Kind::Sentinel(primary) => self.primary(primary).await,
            // Of a cluster each node is a target of its own.
            _ => {
                let info = self.infos.first().ok_or_else(CallFailure::nonsense)?;
                Ok((info.clone(), self.open(info).await?))
            }
        }
    }

    /// Tells the server our name. A user without the right to do so connects all the same.
    async fn name(&self, connection: &Connection) -> Result<(), CallFailure> {
        if self.client_name.is_empty() {
            return Ok(());
        }
        let name = Command::new("CLIENT SETNAME").arg(&*self.client_name);
        match connection.send(&name).await {
            Err(failed) if failed.cause == Cause::Broken => {
                Err(CallFailure::disconnected(format!(
                    "the server ended the connection at once, maybe for its `maxclients` ({failed})"
                )))
            }
            Err(failed) if failed.kind == RemoteErrorKind::Unavailable => Err(failed),
            _ => Ok(()),
        }
    }

    async fn open(&self, info: &ConnectionInfo) -> Result<MultiplexedConnection, CallFailure> {
        self.open_with(info.clone(), connection_config()).await.map_err(failure)
    }

    async fn open_with(
        &self,
        info: ConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, RedisError> {
        self.client(info)?.get_multiplexed_async_connection_with_config(&config).await
    }

    fn client(&self, mut info: ConnectionInfo) -> Result<Client, RedisError> {
        if let ConnectionAddr::TcpTls { tls_params, .. } = info.addr() {
            tls::choose_cryptography();
            // Those of an application's client stay.
            if tls_params.is_none() {
                info = self.certificates.apply(info)?;
            }
        }
        Client::open(info)
    }

    /// Opens a connection that hears what is published on `channels`.
    pub(super) async fn subscribe(
        &self,
        channels: &[&str],
        limit: Duration,
    ) -> Result<Subscription, CallFailure> {
        let (target, renewal) = self.authorized().await?;
        let opening = Box::pin(async {
            let info = match &target.kind {
                Kind::Single => target.infos.first().cloned().ok_or_else(CallFailure::nonsense)?,
                _ => target.open_connection().await?.0,
            };
            target.listen_on(&info, channels).await
        });
        let (mut pulse, messages) = within(limit, opening).await?;
        if let Pulse::Push(connection) = &mut pulse {
            connection.keep_authorized(self.login.as_ref(), renewal);
        }
        Ok(Subscription::new(pulse, messages))
    }

    /// Subscribes in RESP3, where a connection that hears messages also takes commands: its name,
    /// and new credentials. Where the server speaks only RESP2, it has neither.
    async fn listen_on(
        &self,
        info: &ConnectionInfo,
        channels: &[&str],
    ) -> Result<(Pulse, Messages), CallFailure> {
        let (sender, messages) = unbounded_channel();
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let resp3 = info.clone().set_redis_settings(settings);
        match self.open_with(resp3, connection_config().set_push_sender(sender)).await {
            Ok(mut open) => {
                let connection = Connection::single(open.clone());
                self.name(&connection).await?;
                if !channels.is_empty() {
                    open.subscribe(channels).await.map_err(failure)?;
                }
                Ok((Pulse::Push(connection), Messages::Push(messages)))
            }
            Err(error) if lacks_resp3(&error) => {
                let client = self.client(info.clone()).map_err(failure)?;
                let (mut sink, stream) = client.get_async_pubsub().await.map_err(failure)?.split();
                if !channels.is_empty() {
                    sink.subscribe(channels).await.map_err(failure)?;
                }
                Ok((Pulse::Resp2(sink), Messages::Resp2(stream)))
            }
            Err(error) => Err(failure(error)),
        }
    }

    /// Returns the commands that such servers need the right to, besides those of all; and the last
    /// two of a cluster, which are sent and not needed.
    pub(super) fn own_commands(&self) -> &'static [&'static str] {
        match (&self.kind, self.database()) {
            (Kind::Single, 0) => &[],
            (Kind::Single, _) => &["select"],
            (Kind::Cluster, _) => &["asking", "cluster|slots", "ssubscribe", "spublish"],
            (Kind::Sentinel(_), 0) => &["role"],
            (Kind::Sentinel(_), _) => &["role", "select"],
        }
    }

    /// Writes where the servers are, for log lines.
    pub(super) fn address(&self) -> String {
        let servers: Vec<_> = self.infos.iter().map(address).collect();
        let servers = servers.join(", ");
        match &self.kind {
            Kind::Single => servers,
            Kind::Cluster => format!("cluster of {servers}"),
            Kind::Sentinel(primary) => format!("primary {primary} of sentinels {servers}"),
        }
    }

    /// Returns the number of the database; a cluster has but one.
    pub(super) fn database(&self) -> i64 {
        self.infos.first().map_or(0, |info| info.redis_settings().db())
    }
}

fn connection_config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(QUEUE)
}

/// Replaces user and password. Without a user, it is the server's default one.
fn with_user(
    settings: &RedisConnectionInfo,
    credentials: &RedisCredentials,
) -> RedisConnectionInfo {
    let settings = RedisConnectionInfo::default()
        .set_db(settings.db())
        .set_protocol(settings.protocol())
        .set_skip_set_lib_name()
        .set_password(credentials.password());
    match credentials.user() {
        Some(user) => settings.set_username(user),
        None => settings,
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

/// An open connection. A clone is the same connection.
#[derive(Clone)]
pub(super) struct Connection {
    link: MultiplexedConnection,
    /// The task that authorizes it anew.
    renewal: Option<Arc<AbortOnDropHandle<()>>>,
}

impl Connection {
    const fn single(link: MultiplexedConnection) -> Self {
        Self { link, renewal: None }
    }

    /// Sends a command and waits for its reply.
    ///
    /// Dropping the future does not keep the server from executing it.
    pub(super) async fn send(&self, command: &Command) -> Result<ServerReply, CallFailure> {
        let value = self.link.clone().req_packed_command(&command.0).await;
        reply(value.map_err(failure)?)
    }

    /// The same to a node that is about to take the key over.
    pub(super) async fn send_asking(&self, command: Command) -> Result<ServerReply, CallFailure> {
        // Together: nothing may come between the two.
        let mut both = redis::pipe();
        both.cmd("ASKING").ignore().add_command(command.0);
        let values = self.link.clone().req_packed_commands(&both, 1, 1).await;
        let value = values.map_err(failure)?.pop().ok_or_else(CallFailure::nonsense)?;
        reply(value)
    }

    /// Begins to authorize this connection anew before each expiry, for as long as it is open.
    fn keep_authorized(&mut self, login: Option<&Login>, renewal: Option<Instant>) {
        let (Some(login), Some(renewal)) = (login, renewal) else { return };
        // Without the task's handle: a task that holds itself never ends.
        let (bare, login) = (Self::single(self.link.clone()), login.clone());
        let renewal = tokio::spawn(async move { bare.authorize_regularly(&login, renewal).await });
        self.renewal = Some(Arc::new(AbortOnDropHandle::new(renewal)));
    }

    /// Sends `AUTH` before each expiry; after a failure again, at growing intervals. Other
    /// commands go on meanwhile: a refused `AUTH` leaves the connection as it was.
    async fn authorize_regularly(&self, login: &Login, mut renewal: Instant) {
        let mut backoff = retry_pause();
        loop {
            sleep_until(renewal).await;
            let authorized = async {
                let (credentials, next) = login.ask().await?;
                let mut auth = Command::new("AUTH");
                if let Some(user) = credentials.user() {
                    auth = auth.arg(user);
                }
                self.send(&auth.arg(credentials.password())).await.map(|_| next)
            };
            match authorized.await {
                Ok(Some(next)) => (renewal, backoff) = (next, retry_pause()),
                // These are valid for ever.
                Ok(None) => return,
                Err(_) => sleep(backoff.lengthen()).await,
            }
        }
    }
}

async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, CallFailure>>,
) -> Result<T, CallFailure> {
    let late = || CallFailure::disconnected("no connection in time");
    timeout(limit, work).await.unwrap_or_else(|_| Err(late()))
}

fn refuse(reason: &'static str) -> ConfigError {
    ConfigError::new(&["url"], reason)
}

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
    Ok(own_settings(info))
}

fn own_settings(info: ConnectionInfo) -> ConnectionInfo {
    // The library's name is no command a user with the least rights may send.
    let settings = info.redis_settings().clone();
    let settings = settings.set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name();
    info.set_redis_settings(settings).set_tcp_settings(tcp_settings())
}

const HAS_TLS: bool = cfg!(any(feature = "redis-tls-rustls", feature = "redis-tls-native"));

fn tcp_settings() -> TcpSettings {
    let keepalive = socket2::TcpKeepalive::new().with_time(PEER_TIMEOUT);
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = settings.set_user_timeout(PEER_TIMEOUT);
    settings
}

fn reply(value: Value) -> Result<ServerReply, CallFailure> {
    Ok(match value {
        Value::Nil => ServerReply::Nil,
        Value::Int(number) => ServerReply::Int(number),
        Value::BulkString(bytes) => ServerReply::Bytes(bytes.into()),
        Value::SimpleString(text) => ServerReply::Bytes(text.into()),
        // A subscription that is confirmed, in RESP3.
        Value::Push { .. } => ServerReply::Nil,
        Value::Okay => ServerReply::Bytes(Bytes::from_static(b"OK")),
        Value::Array(items) => {
            ServerReply::Array(items.into_iter().map(reply).collect::<Result<_, _>>()?)
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

/// Returns whether a server refused the protocol, or does not know the command that asks for it.
fn lacks_resp3(error: &RedisError) -> bool {
    error.kind() == ErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || error.detail().is_some_and(|detail| detail.contains("unknown command"))
}

/// Judges what the client crate found itself.
fn client_failure(error: &RedisError) -> CallFailure {
    let gone = error.is_unrecoverable_error() || error.is_io_error();
    match error.kind() {
        ErrorKind::AuthenticationFailed => {
            CallFailure::new(RemoteErrorKind::Denied, Cause::Plain, "wrong user or password")
        }
        // TLS that is refused is such a thing too.
        kind if gone || kind == ErrorKind::Client => CallFailure::disconnected(error.to_string()),
        _ => CallFailure::new(RemoteErrorKind::Protocol, Cause::Plain, error.category()),
    }
}
