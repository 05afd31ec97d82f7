//! Clients that ask when they are meant to, whatever happened to earlier requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::arrivals::{Arrival, Load};
use super::tally::{End, Seen, Tally};

/// Part of what a response is stored under; the tests' own client says it too.
const HOST: &str = "a";

/// Plays a load that begins at `start` to servers in turn.
pub(crate) async fn play(servers: &[SocketAddr], load: &Load, start: Instant) -> Tally {
    let pools: Vec<_> = servers.iter().map(|&server| Pool::new(server)).collect();
    let places = Arc::new(Semaphore::new(load.connections));
    let mut clients = JoinSet::new();
    for (arrival, pool) in load.arrivals.iter().zip(pools.iter().cycle()) {
        let intended = start + arrival.at;
        if intended > Instant::now() {
            sleep_until(intended.into()).await;
        }
        let client = Client {
            arrival: *arrival,
            intended,
            deadline: load.deadline,
            own_connection: load.own_connections,
            pool: Arc::clone(pool),
            places: Arc::clone(&places),
        };
        clients.spawn(client.ask());
    }
    let mut tally = Tally::new();
    while let Some(seen) = clients.join_next().await {
        tally.add(seen.expect("a client does not panic"));
    }
    tally
}

struct Client {
    arrival: Arrival,
    intended: Instant,
    deadline: Duration,
    own_connection: bool,
    pool: Arc<Pool>,
    places: Arc<Semaphore>,
}

impl Client {
    async fn ask(self) -> Seen {
        let late = self.intended.elapsed();
        let patience = self.arrival.leaves_after.unwrap_or(self.deadline);
        let end = match timeout(patience.saturating_sub(late), self.answer()).await {
            Ok(Ok(())) => End::Answered,
            Ok(Err(why)) => End::Failed(why),
            Err(_) if self.arrival.leaves_after.is_some() => End::HungUp,
            Err(_) => End::Stuck,
        };
        Seen { end, latency: self.intended.elapsed(), late }
    }

    async fn answer(&self) -> Result<(), String> {
        let _place = self.places.acquire().await.expect("the semaphore is never closed");
        let mut connection = self.pool.take(self.own_connection).await?;
        connection.ask(self.arrival.key).await?;
        self.pool.give(connection);
        Ok(())
    }
}

/// Connections to one server that no client uses just now.
struct Pool {
    server: SocketAddr,
    idle: Mutex<Vec<Connection>>,
}

impl Pool {
    fn new(server: SocketAddr) -> Arc<Self> {
        Arc::new(Self { server, idle: Mutex::default() })
    }

    async fn take(&self, new: bool) -> Result<Connection, String> {
        let idle = if new { None } else { self.take_idle() };
        if let Some(connection) = idle {
            return Ok(connection);
        }
        Connection::open(self.server).await.map_err(|error| format!("connecting: {error}"))
    }

    /// Leaves out those that the server has closed meanwhile.
    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock();
        std::iter::from_fn(|| idle.pop()).find(|connection| !connection.sender.is_closed())
    }

    fn give(&self, connection: Connection) {
        self.idle.lock().push(connection);
    }
}

struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    _driver: AbortOnDropHandle<()>,
}

impl Connection {
    async fn open(server: SocketAddr) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let driver = tokio::spawn(async {
            // The next request on the connection learns of its end.
            let _ = connection.await;
        });
        Ok(Self { sender, _driver: AbortOnDropHandle::new(driver) })
    }

    /// Asks for an item, and reads the answer to its end.
    async fn ask(&mut self, key: u64) -> Result<(), String> {
        let text = |error: hyper::Error| error.to_string();
        let path = path(key);
        let request = Request::get(&path).header("host", HOST).body(Empty::new());
        let request = request.expect("the path is good");
        self.sender.ready().await.map_err(text)?;
        let response = self.sender.send_request(request).await.map_err(text)?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(text)?.to_bytes();
        if !status.is_success() {
            return Err(status.to_string());
        }
        let is_ours = body.strip_prefix(path.as_bytes()).is_some_and(|rest| rest.starts_with(b" "));
        if is_ours { Ok(()) } else { Err("an answer to another question".into()) }
    }
}

pub(crate) fn path(key: u64) -> String {
    format!("/item/{key}")
}
