//! An origin that suffers: it works on so many requests at a time, the others
//! queue. It counts each call when it comes, and finishes what it has begun
//! even if no client waits for it any more, as databases do.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

/// What an origin can do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Work {
    /// On how many requests it works at a time.
    pub(crate) at_once: usize,
    /// How long it works on each.
    pub(crate) takes: Duration,
    pub(crate) status: u16,
    pub(crate) cache_control: Option<&'static str>,
    /// Bytes beside the path of what was asked for.
    pub(crate) body: usize,
}

impl Work {
    /// Answers 200 and says nothing of how long that is fresh.
    pub(crate) const fn new(at_once: usize, takes_ms: u64) -> Self {
        let takes = Duration::from_millis(takes_ms);
        Self { at_once, takes, status: 200, cache_control: None, body: 1024 }
    }

    pub(crate) const fn failing(self) -> Self {
        Self { status: 500, ..self }
    }

    pub(crate) const fn saying(self, cache_control: &'static str) -> Self {
        Self { cache_control: Some(cache_control), ..self }
    }

    pub(crate) const fn body(self, body: usize) -> Self {
        Self { body, ..self }
    }
}

impl std::fmt::Display for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} requests at a time, {} ms each", self.at_once, self.takes.as_millis())
    }
}

/// A request that the origin got, since the load began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) at: Duration,
    pub(crate) key: u64,
}

pub(crate) struct Origin {
    address: SocketAddr,
    shared: Arc<Shared>,
    _accepting: AbortOnDropHandle<()>,
}

struct Shared {
    work: Mutex<Work>,
    places: Semaphore,
    calls: watch::Sender<Vec<(Instant, u64)>>,
}

impl Origin {
    /// Starts one on threads that clients do not use.
    pub(crate) fn start(threads: &Handle, work: Work) -> Self {
        let _entered = threads.enter();
        let listener = listener();
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            places: Semaphore::new(work.at_once),
            work: Mutex::new(work),
            calls: watch::Sender::default(),
        });
        let accepting = threads.spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, _accepting: AbortOnDropHandle::new(accepting) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How it answers from now on; how much at a time stays as it is.
    pub(crate) fn answers(&self, work: Work) {
        *self.shared.work.lock() = work;
    }

    pub(crate) fn calls_since(&self, start: Instant) -> Vec<Call> {
        let calls = self.shared.calls.borrow();
        let since = calls.iter().filter(|(at, _)| *at >= start);
        since.map(|&(at, key)| Call { at: at - start, key }).collect()
    }

    pub(crate) async fn until_called(&self) {
        let mut calls = self.shared.calls.subscribe();
        // It lives as long as we do.
        let _ = calls.wait_for(|calls| !calls.is_empty()).await;
    }
}

/// Listens with room for a herd.
fn listener() -> TcpListener {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    socket.listen(8192).expect("a listener")
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted.expect("a connection");
                connections.spawn(serve(stream, Arc::clone(&shared)));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    stream.set_nodelay(true).expect("a connection of TCP");
    let service = service_fn(move |request| Arc::clone(&shared).answer(request));
    // The other side may leave at any time.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

impl Shared {
    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let path = request.uri().path().to_owned();
        let key = path.rsplit('/').next().and_then(|key| key.parse().ok()).unwrap_or(u64::MAX);
        self.calls.send_modify(|calls| calls.push((Instant::now(), key)));
        let work = self.work.lock().clone();
        // A task: it goes on when the connection is closed.
        let takes = work.takes;
        let working = tokio::spawn(async move {
            let _place = self.places.acquire().await.expect("the semaphore is never closed");
            tokio::time::sleep(takes).await;
        });
        working.await.expect("work does not panic");
        Ok(respond(&path, &work))
    }
}

fn respond(path: &str, work: &Work) -> Response<Full<Bytes>> {
    let mut body = format!("{path} ").into_bytes();
    body.resize(body.len() + work.body, b'x');
    let mut response = Response::builder().status(work.status);
    if let Some(cache_control) = work.cache_control {
        response = response.header("cache-control", cache_control);
    }
    response.body(Full::new(body.into())).expect("the response is good")
}
