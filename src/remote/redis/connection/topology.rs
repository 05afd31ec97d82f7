//! Clusters, and primaries that sentinels know.

#[cfg(feature = "redis-sentinel")]
use redis::RedisConnectionInfo;
#[cfg(feature = "redis-cluster")]
use redis::RedisError;
#[cfg(feature = "redis-sentinel")]
use redis::aio::MultiplexedConnection;
#[cfg(feature = "redis-cluster")]
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::{ConnectionAddr, ConnectionInfo};

#[cfg(feature = "redis-sentinel")]
use crate::remote::RemoteErrorKind;
#[cfg(feature = "redis-cluster")]
use crate::remote::redis::connection::{
    Authorized, CONNECT_TIMEOUT, Listening, Servers, address, tcp_settings, within,
};
use crate::remote::redis::connection::{Command, Connection, Target};
use crate::remote::redis::reply::CallFailure;
#[cfg(feature = "redis-sentinel")]
use crate::remote::redis::reply::ServerReply;
#[cfg(all(feature = "redis-cluster", feature = "redis-tls-rustls"))]
use crate::remote::redis::tls;

#[cfg(feature = "redis-cluster")]
impl Target {
    /// The client connects to the nodes again by itself, as often as it tries
    /// a command; so it needs to know when a node is dead.
    pub(super) fn cluster_client(
        &self,
        nodes: &[ConnectionInfo],
    ) -> Result<ClusterClient, RedisError> {
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
        match self.certificates.for_client() {
            Some(certificates) => builder.certs(certificates),
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

    pub(super) async fn listen_on_any(
        &self,
        nodes: &[ConnectionInfo],
        channels: &[&str],
    ) -> Result<Listening, CallFailure> {
        let first = fastrand::usize(..nodes.len());
        let mut failed = CallFailure::nonsense();
        for node in nodes[first..].iter().chain(&nodes[..first]) {
            match within(CONNECT_TIMEOUT, self.listen_on(node, channels)).await {
                Ok(listening) => return Ok(listening),
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

#[cfg(feature = "redis-cluster")]
impl Target {
    /// Returns the primaries of a cluster that do not answer now.
    pub(in crate::remote::redis) async fn silent_servers(&self) -> Vec<String> {
        let Ok(Authorized { target, .. }) = self.authorized().await else { return Vec::new() };
        target.silent_primaries().await
    }

    async fn silent_primaries(&self) -> Vec<String> {
        let Servers::Cluster(named) = &self.servers else { return Vec::new() };
        let asked = named.iter().map(|node| Box::pin(self.primaries_by(node)));
        let known = futures_util::future::select_ok(asked).await;
        let primaries = known.map_or_else(|_| named.clone(), |(known, _)| known);
        let asked = primaries.iter().map(|node| async move {
            let answered = within(CONNECT_TIMEOUT, async {
                Connection::single(self.open(node).await?).send(&Command::new("PING")).await
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
            let connection = Connection::single(self.open(node).await?);
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
