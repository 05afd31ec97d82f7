//! What the servers are measured against: an axum handler that answers the
//! same bytes and does nothing else; small applications with the layer at its two places;
//! and the origin behind the proxies.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Path as Id;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use axum::routing::get;
use axum::serve::ListenerExt;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpSocket};
use tower_stampede::Stampede;

use crate::proxy_support::Seen;

/// One route, as the example `web_server` has it.
pub(crate) const ROUTE: &str = "/report/{id}";
pub(crate) const PATH: &str = "/report/1";

/// What hyper writes by itself.
const WRITTEN_ANYWAY: [HeaderName; 3] =
    [header::DATE, header::CONTENT_LENGTH, header::TRANSFER_ENCODING];

/// A response as the bare handler gives it.
#[derive(Serialize, Deserialize)]
pub(crate) struct Sample {
    fields: Vec<(String, String)>,
    body: String,
}

impl Sample {
    /// What a small application answers.
    pub(crate) fn of_application(bytes: usize) -> Self {
        let fields = [("content-type", "text/plain"), ("cache-control", "max-age=3600")];
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        Self { fields, body: "x".repeat(bytes) }
    }

    /// The same as what another server answered.
    pub(crate) fn of(seen: &Seen) -> Self {
        let ours = seen.fields.iter().filter(|(name, _)| !WRITTEN_ANYWAY.contains(name));
        let text = |value: &HeaderValue| value.to_str().expect("visible ASCII").to_owned();
        Self {
            fields: ours.map(|(name, value)| (name.to_string(), text(value))).collect(),
            body: seen.body.clone(),
        }
    }

    pub(crate) fn write(&self, path: &Path) {
        let text = serde_json::to_string(self).expect("strings are JSON");
        std::fs::write(path, text).expect("a file");
    }

    fn read(path: &str) -> Self {
        let text = std::fs::read_to_string(path).expect("a file");
        serde_json::from_str(&text).expect("what was written")
    }

    fn headers(&self) -> HeaderMap {
        let field = |(name, value): &(String, String)| {
            let name: HeaderName = name.parse().expect("the name of a field");
            (name, HeaderValue::from_str(value).expect("the value of a field"))
        };
        self.fields.iter().map(field).collect()
    }
}

/// What answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum App {
    /// A handler and no cache.
    Bare,
    /// The layer behind axum's router.
    RouteLayer,
    /// The layer in front of it.
    InFront,
}

impl App {
    const ALL: [Self; 3] = [Self::Bare, Self::RouteLayer, Self::InFront];

    /// The flag with which this program is that server.
    pub(crate) fn flag(self) -> &'static str {
        match self {
            Self::Bare => "--bare",
            Self::RouteLayer => "--route-layer",
            Self::InFront => "--in-front",
        }
    }

    pub(crate) fn of(flag: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|app| app.flag() == flag)
    }
}

/// The process that answers without any work, with as many workers and the
/// same settings of TCP as the examples.
#[tokio::main]
pub(crate) async fn process(app: App, sample: &str) {
    // For as long as the process lives: a handler that owns its answer would clone it once more
    // for each request.
    let sample: &'static Sample = Box::leak(Box::new(Sample::read(sample)));
    let headers: &'static HeaderMap = Box::leak(Box::new(sample.headers()));
    let body: &'static Bytes = Box::leak(Box::new(Bytes::from_static(sample.body.as_bytes())));
    // Built by hand: of a tuple, axum inserts one field after the other, which
    // takes longer than to clone all of them. It reads its parameter, as an application does.
    let answer = move |Id(id): Id<String>| {
        let mut response = Response::new(Body::from(body.clone()));
        *response.headers_mut() = headers.clone();
        std::hint::black_box(id);
        std::future::ready(response)
    };
    let listener = listener();
    println!("{}", listener.local_addr().expect("it is bound"));
    std::io::stdout().flush().expect("the parent reads it");
    let router = Router::new().route(ROUTE, get(answer));
    let layer = Stampede::in_memory(Duration::from_secs(3600)).http_layer();
    match app {
        App::Bare => serve(listener, router).await,
        App::RouteLayer => serve(listener, router.route_layer(layer)).await,
        App::InFront => {
            let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
            let app = layer.in_front_of(router).into_make_service();
            axum::serve(listener, app).await.expect("it serves until the process ends");
        }
    }
}

fn listener() -> TcpListener {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("a socket of our own");
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    socket.listen(8192).expect("a listener")
}

async fn serve(listener: TcpListener, router: Router) {
    // A connection that will not have it is served with the delay.
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    axum::serve(listener, router).await.expect("it serves until the process ends");
}

/// An origin of one cacheable object, in this process: it is asked once.
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    calls: Arc<AtomicUsize>,
}

impl Origin {
    pub(crate) async fn start(bytes: usize) -> Self {
        let calls = Arc::new(AtomicUsize::new(0));
        let (counted, body) = (Arc::clone(&calls), Bytes::from("x".repeat(bytes)));
        let fields =
            [(header::CACHE_CONTROL, "max-age=3600"), (header::CONTENT_TYPE, "text/plain")];
        let answer = move || {
            counted.fetch_add(1, Ordering::Relaxed);
            std::future::ready((fields, body.clone()))
        };
        let listener = listener();
        let address = listener.local_addr().expect("it is bound");
        tokio::spawn(serve(listener, Router::new().route(ROUTE, get(answer))));
        Self { address, calls }
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }
}
