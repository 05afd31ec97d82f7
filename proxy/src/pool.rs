//! Connections to origins, kept between requests.
//!
//! A connection belongs to one exchange until the response is read to its end: only then may
//! another request use it. So whatever comes over it before that is of this exchange. The pool of
//! hyper-util gives a connection away once hyper has read the response, and has no way to ask for a
//! new connection.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use crate::connector::Connector;
use crate::failure::OriginError;
use crate::outgoing::Outgoing;
use crate::traffic::Traffic;

/// How long an idle connection is kept.
const IDLE: Duration = Duration::from_secs(60);

/// The most idle connections that are kept for an origin.
const MAX_IDLE: usize = 1024;

/// Twice the usual number.
const MAX_FIELDS: usize = 200;

type Address = (Scheme, Authority);

/// The connections that wait for a request.
pub(crate) struct Pool {
    connector: Connector,
    idle: Mutex<IdleConnections>,
}

#[derive(Default)]
struct IdleConnections {
    /// The one that has waited longest comes first.
    by_origin: HashMap<Address, Vec<(Instant, OriginConnection)>>,
    is_swept: bool,
}

/// A connection that one exchange has to itself.
pub(crate) struct OriginConnection {
    address: Address,
    sender: http1::SendRequest<Outgoing>,
    traffic: Traffic,
    is_reused: bool,
}

impl Pool {
    pub(crate) fn new(connector: Connector) -> Arc<Self> {
        Arc::new(Self { connector, idle: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, IdleConnections> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a connection that has waited, or else a new one.
    pub(crate) async fn take(&self, to: &Uri) -> Result<OriginConnection, OriginError> {
        match self.take_idle(to) {
            Some(connection) => Ok(connection),
            None => self.connect(to).await,
        }
    }

    /// Takes the connection that was used last: the origin may be about to close the others.
    fn take_idle(&self, to: &Uri) -> Option<OriginConnection> {
        let address = address(to)?;
        let mut idle = self.lock();
        let connections = idle.by_origin.get_mut(&address)?;
        let open = std::iter::from_fn(|| connections.pop());
        let mut open = open.filter(|(_, connection)| connection.sender.is_ready());
        open.next().map(|(_, connection)| connection)
    }

    pub(crate) async fn connect(&self, to: &Uri) -> Result<OriginConnection, OriginError> {
        let no_origin = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
        let address = address(to).ok_or_else(|| OriginError::connect(no_origin()))?;
        let stream = self.connector.connect(to).await.map_err(OriginError::connect)?;
        let traffic = stream.traffic();
        let mut builder = http1::Builder::new();
        let handshake = builder.max_headers(MAX_FIELDS).handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(OriginError::of_connection)?;
        // What goes wrong on it is told to the exchange that has it.
        tokio::spawn(connection);
        Ok(OriginConnection { address, sender, traffic, is_reused: false })
    }

    /// Keeps a connection whose response has been read to its end.
    pub(crate) fn give_back(self: &Arc<Self>, mut connection: OriginConnection) {
        if connection.sender.is_ready() {
            return self.keep(connection);
        }
        let pool = Arc::clone(self);
        tokio::spawn(async move {
            // The end of the request may still be on its way.
            if connection.sender.ready().await.is_ok() {
                pool.keep(connection);
            }
        });
    }

    fn keep(self: &Arc<Self>, mut connection: OriginConnection) {
        connection.is_reused = true;
        let mut idle = self.lock();
        let connections = idle.by_origin.entry(connection.address.clone()).or_default();
        if connections.len() < MAX_IDLE {
            connections.push((Instant::now(), connection));
        }
        if !std::mem::replace(&mut idle.is_swept, true) {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Closes the connections that have waited too long; returns whether there are others.
    fn close_old(&self) -> bool {
        let mut idle = self.lock();
        idle.by_origin.retain(|_, connections| {
            connections.retain(|(since, connection)| {
                since.elapsed() < IDLE && !connection.sender.is_closed()
            });
            !connections.is_empty()
        });
        idle.is_swept = !idle.by_origin.is_empty();
        idle.is_swept
    }
}

/// Runs as long as there are idle connections.
async fn sweep(pool: Weak<Pool>) {
    loop {
        tokio::time::sleep(IDLE / 4).await;
        if !pool.upgrade().is_some_and(|pool| pool.close_old()) {
            return;
        }
    }
}

fn address(uri: &Uri) -> Option<Address> {
    Some((uri.scheme()?.clone(), uri.authority()?.clone()))
}

impl OriginConnection {
    /// Returns whether it has carried a request before.
    pub(crate) fn is_reused(&self) -> bool {
        self.is_reused
    }

    /// Sends a request, whose target is in origin form. If nothing of it was written, the error
    /// has it.
    pub(crate) async fn send(
        &mut self,
        request: Request<Outgoing>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Outgoing>>> {
        self.traffic.begin();
        self.sender.try_send_request(request).await
    }

    /// Returns whether more bytes have come than a body of this length has. What comes later is
    /// not seen.
    pub(crate) fn has_more_than(&self, length: u64) -> bool {
        self.traffic.has_more_than(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    struct Place {
        listener: TcpListener,
        uri: Uri,
        pool: Arc<Pool>,
    }

    impl Place {
        async fn new() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let uri = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
            let pool = Pool::new(Connector::new(None, Duration::from_secs(60)));
            Self { listener, uri, pool }
        }

        /// A connection that waits, and the origin's end.
        async fn idle(&self) -> TcpStream {
            let mut connection = self.pool.connect(&self.uri).await.unwrap();
            connection.sender.ready().await.unwrap();
            self.pool.give_back(connection);
            self.listener.accept().await.unwrap().0
        }
    }

    #[tokio::test]
    async fn the_connection_that_was_used_last_is_taken_again_unless_it_is_closed() {
        let place = Place::new().await;
        let (_first, second) = (place.idle().await, place.idle().await);
        drop(second);
        let is_closed = || {
            let idle = place.pool.lock();
            idle.by_origin.values().flatten().any(|(_, kept)| kept.sender.is_closed())
        };
        let closes = async {
            while !is_closed() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), closes).await.expect("it closes");
        let taken = place.pool.take(&place.uri).await.unwrap();
        assert!(taken.is_reused() && !taken.sender.is_closed());
        assert!(!place.pool.take(&place.uri).await.unwrap().is_reused(), "there is no other");
    }

    #[tokio::test]
    async fn a_connection_that_has_waited_too_long_is_closed() {
        let place = Place::new().await;
        let mut origin = place.idle().await;
        tokio::time::pause();
        tokio::time::advance(IDLE * 2).await;
        assert_eq!(origin.read(&mut [0]).await.unwrap(), 0);
        let idle = place.pool.lock();
        assert!(idle.by_origin.is_empty() && !idle.is_swept, "and nothing is left to look at");
    }
}
