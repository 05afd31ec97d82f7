//! Clusters, and primaries that sentinels know.

use redis::aio::MultiplexedConnection;
use redis::{ConnectionAddr, ConnectionInfo, RedisConnectionInfo};

use crate::remote::RemoteErrorKind;
use crate::remote::redis::cluster::Place;
use crate::remote::redis::connection::{Command, Connection, Kind, Target};
use crate::remote::redis::reply::{CallFailure, ServerReply};

impl Target {
    pub(in crate::remote::redis) const fn is_cluster(&self) -> bool {
        matches!(self.kind, Kind::Cluster)
    }

    /// Returns where the servers are that were named.
    pub(in crate::remote::redis) fn places(&self) -> impl Iterator<Item = Place> {
        self.infos.iter().filter_map(place)
    }

    /// Returns one node of the cluster as a target of its own.
    pub(in crate::remote::redis) fn at(&self, place: &Place) -> Self {
        let mut target = self.clone();
        target.kind = Kind::Single;
        target.infos.truncate(1);
        for seed in &mut target.infos {
            let addr = moved(seed.addr(), place.host.clone(), place.port);
            *seed = seed.clone().set_addr(addr);
        }
        target
    }
}

/// Returns where a server is, unless it is a socket.
pub(super) fn place(info: &ConnectionInfo) -> Option<Place> {
    let (ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. }) = info.addr()
    else {
        return None;
    };
    Some(Place { host: host.clone(), port: *port })
}

/// Returns whether two nodes differ in nothing but host and port.
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

impl Target {
    /// Asks all sentinels at once; the first whose primary says that it is one
    /// decides.
    pub(super) async fn primary(
        &self,
        name: &str,
    ) -> Result<(ConnectionInfo, MultiplexedConnection), CallFailure> {
        let asked = self.infos.iter().map(|sentinel| Box::pin(self.primary_by(sentinel, name)));
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
        let Ok([host, port]) = answer.array() else {
            return Err(CallFailure::disconnected("the sentinel knows no primary of this name"));
        };
        let port = port.text()?.parse().map_err(|_| CallFailure::nonsense())?;
        let info = sentinel.clone().set_addr(moved(sentinel.addr(), host.text()?.to_owned(), port));

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
        let user = sentinel.redis_settings().clone().set_db(0);
        let has_password = user.password().is_some();
        match self.open(&sentinel.clone().set_redis_settings(user)).await {
            Err(failure) if failure.kind == RemoteErrorKind::Denied && has_password => {
                let anonymous = RedisConnectionInfo::default().set_skip_set_lib_name();
                self.open(&sentinel.clone().set_redis_settings(anonymous)).await
            }
            opened => opened,
        }
    }
}

fn moved(from: &ConnectionAddr, host: String, port: u16) -> ConnectionAddr {
    match from.clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    }
}
