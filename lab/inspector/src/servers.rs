//! Where the names are: on one server, or on the nodes of a cluster, which say so themselves.

use std::collections::{BTreeMap, HashMap};

use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, ConnectionAddr, RedisError, RedisResult, Value};

/// How often a command follows a slot that moves.
const MOST_ROUNDS: usize = 4;

/// A command that reads `name`.
pub(crate) struct Read {
    pub(crate) name: Vec<u8>,
    pub(crate) command: Cmd,
}

/// The server of the URL, and the nodes that it names.
pub(crate) struct Servers {
    first: Client,
    /// By `HOST:PORT`; `None` is the server of the URL.
    connections: HashMap<Option<String>, MultiplexedConnection>,
    /// Where the names are that another node has.
    places: HashMap<Vec<u8>, String>,
    pub(crate) commands: u64,
}

impl Servers {
    pub(crate) fn new(first: Client) -> Self {
        let (connections, places) = (HashMap::new(), HashMap::new());
        Self { first, connections, places, commands: 0 }
    }

    /// Begins anew with the server of the URL.
    pub(crate) fn forget(&mut self) {
        self.connections.clear();
        self.places.clear();
    }

    /// Returns the replies, in the order of the commands.
    pub(crate) async fn ask(&mut self, reads: &[Read]) -> Result<Vec<Value>, String> {
        let mut replies = vec![Value::Nil; reads.len()];
        let mut open: Vec<_> = (0..reads.len()).collect();
        for _ in 0..MOST_ROUNDS {
            let mut by_place: BTreeMap<_, Vec<usize>> = BTreeMap::new();
            for n in std::mem::take(&mut open) {
                by_place.entry(self.places.get(&reads[n].name).cloned()).or_default().push(n);
            }
            for (place, numbers) in by_place {
                let mut commands = redis::pipe();
                for n in &numbers {
                    commands.add_command(reads[*n].command.clone());
                }
                commands.ignore_errors();
                self.commands += numbers.len() as u64;
                let mut connection = self.connection(place).await?;
                let said: RedisResult<Vec<RedisResult<Value>>> =
                    commands.query_async(&mut connection).await;
                for (n, reply) in numbers.into_iter().zip(said.map_err(|error| explain(&error))?) {
                    match reply {
                        Ok(reply) => replies[n] = reply,
                        Err(error) => {
                            let (address, _) =
                                error.redirect_node().ok_or_else(|| explain(&error))?;
                            self.places.insert(reads[n].name.clone(), address.to_owned());
                            open.push(n);
                        }
                    }
                }
            }
            if open.is_empty() {
                return Ok(replies);
            }
        }
        Err("the nodes of the cluster do not agree on which of them has a slot".to_owned())
    }

    async fn connection(&mut self, place: Option<String>) -> Result<MultiplexedConnection, String> {
        if let Some(connection) = self.connections.get(&place) {
            return Ok(connection.clone());
        }
        let client = match &place {
            Some(address) => self.at(address).map_err(|error| explain(&error))?,
            None => self.first.clone(),
        };
        let opened = client.get_multiplexed_async_connection().await;
        let connection = opened.map_err(|error| match &place {
            Some(address) => format!("the node {address}: {}", explain(&error)),
            None => explain(&error),
        })?;
        self.connections.insert(place, connection.clone());
        Ok(connection)
    }

    /// Returns a node as a client of its own; without a host, it is that of the URL.
    fn at(&self, address: &str) -> RedisResult<Client> {
        let info = self.first.get_connection_info();
        let (named, number) = address.rsplit_once(':').unwrap_or((address, ""));
        let number = number.parse().unwrap_or(6379);
        let mut addr = info.addr().clone();
        if let ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } =
            &mut addr
        {
            *port = number;
            if !named.is_empty() {
                named.clone_into(host);
            }
        }
        Client::open(info.clone().set_addr(addr))
    }
}

/// Says what to do about it. The error of a connection may hold the address, and no password.
fn explain(error: &RedisError) -> String {
    const LOGIN: &str = "; say redis://USER:PASSWORD@HOST:PORT, with the user's password";
    if error.kind() == redis::ErrorKind::AuthenticationFailed {
        return format!("{error}{LOGIN}");
    }
    let remedy = match error.code() {
        Some("NOPERM") => {
            "; the user needs +zrangebyscore +zrevrangebyscore +getrange on the names"
        }
        Some("CLUSTERDOWN") => "; a node of the cluster is away: look again when it is back",
        Some("NOAUTH" | "WRONGPASS") => LOGIN,
        _ => "",
    };
    format!("{error}{remedy}")
}
