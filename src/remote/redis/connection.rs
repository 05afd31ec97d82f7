//! The client crate: no other file names it, so that its next major version
//! is a change to this one.
//!
//! Nothing here is retried, and nothing here waits longer than
//! [`CONNECT_TIMEOUT`] for a connection. A command is awaited for ever: its
//! caller has a deadline and drops it.

use std::fmt;
use std::future::Future;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use redis::aio::{MultiplexedConnection, PubSubSink, PubSubStream};
use redis::io::tcp::{TcpSettings, socket2};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion,
    RedisError, ServerError, Value,
};
use tokio::time::timeout;

use super::reply::{Cause, Failure, Reply};
use crate::error::ConfigError;
use crate::remote::RemoteErrorKind;

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
pub(super) enum Target {
    Single(Box<ConnectionInfo>),
}

impl Target {
    /// Reads a URL. Says why it refuses it, and never quotes it: it may hold a
    /// password.
    pub(super) fn single(url: &str) -> Result<Self, ConfigError> {
        Ok(Self::Single(Box::new(parse(url)?)))
    }

    /// Connects, and loads `scripts` there.
    pub(super) async fn connect(&self, scripts: &[&Script]) -> Result<Connection, Failure> {
        within(CONNECT_TIMEOUT, async {
            let connection = match self {
                Self::Single(info) => Connection::Single(open(info).await?),
            };
            connection.load(scripts).await?;
            Ok(connection)
        })
        .await
    }

    /// Opens a connection that hears what is published on `channels`.
    pub(super) async fn subscribe(&self, channels: &[&str]) -> Result<(Pulse, Messages), Failure> {
        within(CONNECT_TIMEOUT, async {
            let info = match self {
                Self::Single(info) => info,
            };
            let pubsub = client(info)?.get_async_pubsub().await.map_err(failure)?;
            let (mut sink, stream) = pubsub.split();
            sink.subscribe(channels).await.map_err(failure)?;
            Ok((Pulse(sink), Messages(stream)))
        })
        .await
    }

    /// Returns the commands that connecting itself needs the right to.
    pub(super) fn own_commands(&self) -> Vec<&'static str> {
        let Self::Single(info) = self;
        if info.redis_settings().db() == 0 { vec![] } else { vec!["select"] }
    }

    fn servers(&self) -> impl Iterator<Item = String> {
        let infos = match self {
            Self::Single(info) => std::slice::from_ref(&**info),
        };
        infos.iter().map(|info| match info.addr() {
            ConnectionAddr::Tcp(host, port) => format!("redis://{host}:{port}"),
            ConnectionAddr::TcpTls { host, port, .. } => format!("rediss://{host}:{port}"),
            _ => "unix".to_owned(),
        })
    }
}

/// Shows no user, no password and no path.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.servers()).finish()
    }
}

/// An open connection. A clone is the same connection.
#[derive(Clone)]
pub(super) enum Connection {
    Single(MultiplexedConnection),
}

impl Connection {
    /// Sends a command and waits for its reply.
    ///
    /// Dropping the future does not keep the server from executing it.
    pub(super) async fn send(&self, command: &Command) -> Result<Reply, Failure> {
        let value = match self {
            Self::Single(connection) => connection.clone().send_packed_command(&command.0).await,
        };
        reply(value.map_err(failure)?)
    }

    /// Loads `scripts`. A refusal is no failure: it comes again with the first
    /// call, which says what is wrong.
    async fn load(&self, scripts: &[&Script]) -> Result<(), Failure> {
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
    pub(super) async fn beat(&mut self) -> Result<(), Failure> {
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
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let late = || Failure::disconnected("no connection in time");
    timeout(limit, work).await.unwrap_or_else(|_| Err(late()))
}

async fn open(info: &ConnectionInfo) -> Result<MultiplexedConnection, Failure> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(QUEUE);
    client(info)?.get_multiplexed_async_connection_with_config(&config).await.map_err(failure)
}

fn client(info: &ConnectionInfo) -> Result<Client, Failure> {
    Client::open(info.clone()).map_err(failure)
}

fn parse(url: &str) -> Result<ConnectionInfo, ConfigError> {
    let refuse = |reason| ConfigError::new(&["url"], reason);
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

fn reply(value: Value) -> Result<Reply, Failure> {
    Ok(match value {
        Value::Nil => Reply::Nil,
        Value::Int(number) => Reply::Int(number),
        Value::BulkString(bytes) => Reply::Bytes(bytes.into()),
        Value::SimpleString(text) => Reply::Bytes(text.into()),
        Value::Okay => Reply::Bytes(Bytes::from_static(b"OK")),
        Value::Array(items) => {
            Reply::Array(items.into_iter().map(reply).collect::<Result<_, _>>()?)
        }
        Value::ServerError(error) => return Err(refusal(&error)),
        _ => return Err(Failure::nonsense()),
    })
}

fn refusal(error: &ServerError) -> Failure {
    Failure::of_server(error.code(), error.details().unwrap_or_default())
}

fn failure(error: RedisError) -> Failure {
    match ServerError::try_from(error) {
        Ok(error) => refusal(&error),
        Err(error) => client_failure(&error),
    }
}

/// Judges what the client crate found itself.
fn client_failure(error: &RedisError) -> Failure {
    let gone = error.is_unrecoverable_error() || error.is_io_error();
    match error.kind() {
        ErrorKind::AuthenticationFailed => {
            Failure::new(RemoteErrorKind::Denied, Cause::Plain, "wrong user or password")
        }
        _ if gone => Failure::disconnected(error.to_string()),
        _ => Failure::new(RemoteErrorKind::Protocol, Cause::Plain, error.category()),
    }
}
