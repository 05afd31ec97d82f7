//! Clusters, and primaries that sentinels know.

#[cfg(feature = "redis-sentinel")]
use redis::RedisConnectionInfo;
#[cfg(feature = "redis-sentinel")]
use redis::aio::MultiplexedConnection;
use redis::{ConnectionAddr, ConnectionInfo};

#[cfg(feature = "redis-sentinel")]
use crate::remote::RemoteErrorKind;
#[cfg(feature = "redis-cluster")]
use crate::remote::redis::cluster::Place;
#[cfg(feature = "redis-cluster")]
use crate::remote::redis::connection::Servers;
use crate::remote::redis::connection::Target;
#[cfg(feature = "redis-sentinel")]
use crate::remote::redis::connection::{Command, Connection};
#[cfg(feature = "redis-sentinel")]
use crate::remote::redis::reply::{CallFailure, ServerReply};

#[cfg(feature = "redis-cluster")]
impl Target {
    pub(in crate::remote::redis) const fn is_cluster(&self) -> bool {
        matches!(self.servers, Servers::Cluster(_))
    }

    /// Returns where the servers are that were named.
    pub(in crate::remote::redis) fn places(&self) -> impl Iterator<Item = Place> {
        self.infos().iter().filter_map(place)
    }

    /// Returns one node of the cluster as a target of its own.
    pub(in crate::remote::redis) fn at(&self, place: &Place) -> Self {
        let mut target = self.clone();
        if let Some(seed) = self.infos().first() {
            let addr = moved(seed.addr(), place.host.clone(), place.port);
            target.servers = Servers::Single(Box::new(seed.clone().set_addr(addr)));
        }
        target
    }
}

/// Returns where a server is, unless it is a socket.
#[cfg(feature = "redis-cluster")]
pub(super) fn place(info: &ConnectionInfo) -> Option<Place> {
    let (ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. }) = info.addr()
    else {
        return None;
    };
    Some(Place { host: host.clone(), port: *port })
}

/// Returns whether two nodes differ in nothing but host and port.
#[cfg(feature = "redis-cluster")]
pub(super) fn is_alike(one: &ConnectionInfo, other: &ConnectionInfo) -> bool {
    let (own, others) = (one.redis_settings(), other.redis_settings());
    let is_tls = |info: &ConnectionInfo| match info.addr() {
        ConnectionAddr::TcpTls { insecure, .. } => Some(*insecure),
        _ => None,
    };
    is_tls(one) == is_tls(other)
        && own.db() == others.db()
        && own.username() == others.username()
        && own.password() == others.password()
}

#[cfg(feature = "redis-sentinel")]
impl Target {
    /// Asks all sentinels at once; the first whose primary says that it is one
    /// decides.
    pub(super) async fn primary(
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
        let connection = Connection::single(self.open_sentinel(sentinel).await?);
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
        let role = Connection::single(open.clone()).send(&Command::new("ROLE")).await?;
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

#[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
fn moved(from: &ConnectionAddr, host: String, port: u16) -> ConnectionAddr {
    match from.clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    }
}
