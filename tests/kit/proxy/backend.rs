//! An origin that answers by itself: it counts, it can be held back, and it
//! can die.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::soon;

/// What a request to a variant of its own carries.
pub(crate) const VARIANT: &str = "x-variant";

/// When a part of an answer is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    AtOnce,
    After(Duration),
    /// When the test lets it go.
    WhenLet,
}

/// What the origin answers.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) fields: &'static [(&'static str, &'static str)],
    /// When the header section is sent, with the first part of the body.
    pub(crate) head: Pace,
    /// When each further part of the body is sent.
    pub(crate) rest: Pace,
    pub(crate) further_parts: usize,
}

impl Answer {
    /// A 200 in one piece, with these fields, when the test lets it go.
    pub(crate) const fn ok(fields: &'static [(&'static str, &'static str)]) -> Self {
        Self { status: 200, fields, head: Pace::WhenLet, rest: Pace::AtOnce, further_parts: 0 }
    }

    pub(crate) const fn status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    pub(crate) const fn head(self, head: Pace) -> Self {
        Self { head, ..self }
    }

    pub(crate) const fn then(self, further_parts: usize, rest: Pace) -> Self {
        Self { further_parts, rest, ..self }
    }
}

/// The origin. Its body says the how-manieth request it answers, and which
/// variant was asked for.
pub(crate) struct Backend {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    answer: Mutex<Answer>,
    /// Requests, and connections that were cut instead.
    hits: watch::Sender<usize>,
    gate: Semaphore,
    cuts: AtomicBool,
    connections: Mutex<JoinSet<()>>,
}

impl Backend {
    pub(crate) async fn start(answer: Answer) -> Self {
        let shared = Shared {
            answer: Mutex::new(answer),
            hits: watch::Sender::new(0),
            gate: Semaphore::new(0),
            cuts: AtomicBool::new(false),
            connections: Mutex::new(JoinSet::new()),
        };
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut backend = Self { address, shared: Arc::new(shared), accepting: None };
        backend.listen();
        backend
    }

    fn listen(&mut self) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(self.address).unwrap();
        let listener = socket.listen(8192).unwrap();
        self.address = listener.local_addr().unwrap();
        self.accepting = Some(tokio::spawn(accept(listener, Arc::clone(&self.shared))));
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it answers from now on.
    pub(crate) fn answers(&self, answer: Answer) {
        *self.shared.answer.lock() = answer;
    }

    /// Lets go so many parts that are held back, or will be.
    pub(crate) fn let_go(&self, parts: usize) {
        self.shared.gate.add_permits(parts);
    }

    pub(crate) fn hits(&self) -> usize {
        *self.shared.hits.borrow()
    }

    /// Waits until so many requests have come in all.
    pub(crate) async fn until_hits(&self, hits: usize) {
        let mut seen = self.shared.hits.subscribe();
        let what = format!("{hits} requests to the origin, not {}", self.hits());
        soon(&what, seen.wait_for(|seen| *seen >= hits)).await.unwrap();
    }

    /// From now on connections are accepted, counted and reset; those that are
    /// open too.
    pub(crate) async fn cut(&self) {
        self.shared.cuts.store(true, Ordering::SeqCst);
        self.cut_open_connections().await;
    }

    /// From now on connections are refused; those that are open are cut.
    pub(crate) async fn refuse(&mut self) {
        let accepting = self.accepting.take().expect("it listens");
        accepting.abort();
        // Only then the listener is closed.
        let _ = accepting.await;
        self.cut_open_connections().await;
    }

    async fn cut_open_connections(&self) {
        let mut connections = std::mem::take(&mut *self.shared.connections.lock());
        connections.shutdown().await;
    }

    /// It answers again, at the same address.
    pub(crate) fn revive(&mut self) {
        self.shared.cuts.store(false, Ordering::SeqCst);
        if self.accepting.is_none() {
            self.listen();
        }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.accepting.iter().for_each(JoinHandle::abort);
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        if shared.cuts.load(Ordering::SeqCst) {
            shared.hits.send_modify(|hits| *hits += 1);
            stream.set_zero_linger().unwrap();
        } else {
            let serving = serve(stream, Arc::clone(&shared));
            shared.connections.lock().spawn(serving);
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    stream.set_nodelay(true).unwrap();
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(shared.answer(&request).await) }
    });
    // The other side may leave at any time.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

impl Shared {
    async fn answer(
        self: Arc<Self>,
        request: &Request<Incoming>,
    ) -> Response<StreamBody<impl Stream<Item = Result<Frame<Bytes>, Infallible>> + use<>>> {
        let mut hit = 0;
        self.hits.send_modify(|hits| {
            *hits += 1;
            hit = *hits;
        });
        let answer = self.answer.lock().clone();
        self.wait(answer.head).await;
        let variant = request.headers().get(VARIANT).map_or("all", |value| value.to_str().unwrap());
        let body = parts(format!("answer {hit} to {variant}"), self, &answer);
        let mut response = Response::builder().status(answer.status);
        for field in answer.fields {
            response = response.header(field.0, field.1);
        }
        response.body(StreamBody::new(body)).unwrap()
    }

    async fn wait(&self, pace: Pace) {
        match pace {
            Pace::AtOnce => {}
            Pace::After(time) => tokio::time::sleep(time).await,
            Pace::WhenLet => self.gate.acquire().await.unwrap().forget(),
        }
    }
}

fn parts(
    first: String,
    shared: Arc<Shared>,
    answer: &Answer,
) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + use<> {
    let pace = answer.rest;
    let further = stream::iter(0..answer.further_parts).then(move |_| {
        let shared = Arc::clone(&shared);
        async move {
            shared.wait(pace).await;
            Bytes::from_static(b", and more")
        }
    });
    stream::iter([Bytes::from(first)]).chain(further).map(|data| Ok(Frame::data(data)))
}
