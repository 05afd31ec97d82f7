//! Bodies that a test feeds, and clients that read them frame by frame.

use std::error::Error as _;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, Request, response::Parts};
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;
use tower::ServiceExt;
use tower_stampede::{BodyError, BodyErrorKind, CacheOutcome, HttpService, ResponseBody};

use crate::kit::http::*;

enum Act {
    Data(Bytes),
    Trailers,
    Fail,
    Panic,
}

/// What the test sees of a body, and does with it. Dropped, the body ends.
pub(crate) struct Source {
    acts: UnboundedSender<Act>,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    taken: AtomicUsize,
    dropped: AtomicBool,
}

impl Source {
    pub(crate) fn send(&self, data: impl Into<Bytes>) {
        self.act(Act::Data(data.into()));
    }

    pub(crate) fn trailers(&self) {
        self.act(Act::Trailers);
    }

    pub(crate) fn fail(&self) {
        self.act(Act::Fail);
    }

    pub(crate) fn panic(&self) {
        self.act(Act::Panic);
    }

    fn act(&self, act: Act) {
        // A body that was dropped takes nothing any more.
        let _ = self.acts.send(act);
    }

    /// How many frames were read from it.
    pub(crate) fn taken(&self) -> usize {
        self.seen.taken.load(Ordering::SeqCst)
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.seen.dropped.load(Ordering::SeqCst)
    }
}

struct Fed {
    acts: UnboundedReceiver<Act>,
    seen: Arc<Seen>,
}

impl Drop for Fed {
    fn drop(&mut self) {
        self.seen.dropped.store(true, Ordering::SeqCst);
    }
}

impl http_body::Body for Fed {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let Some(act) = ready!(self.acts.poll_recv(cx)) else { return Poll::Ready(None) };
        self.seen.taken.fetch_add(1, Ordering::SeqCst);
        Poll::Ready(Some(match act {
            Act::Data(data) => Ok(Frame::data(data)),
            Act::Trailers => {
                let name = http::HeaderName::from_static("x-sum");
                let fields = [(name, HeaderValue::from_static("7"))];
                Ok(Frame::trailers(fields.into_iter().collect::<HeaderMap>()))
            }
            Act::Fail => Err(std::io::Error::other("reset")),
            Act::Panic => panic!("the body panics, as the test told it"),
        }))
    }
}

/// The bodies of an origin, in the order of its calls.
#[derive(Clone, Default)]
pub(crate) struct Sources(Arc<Mutex<Vec<Option<Source>>>>);

impl Sources {
    pub(crate) fn body(&self) -> Body {
        let (acts, received) = unbounded_channel();
        let seen = Arc::<Seen>::default();
        self.0.lock().unwrap().push(Some(Source { acts, seen: Arc::clone(&seen) }));
        Body::new(Fed { acts: received, seen })
    }

    /// Takes the body of the n-th call.
    pub(crate) fn take(&self, n: usize) -> Source {
        self.0.lock().unwrap()[n].take().expect("it is taken once")
    }

    /// An origin whose bodies these are.
    pub(crate) fn origin(
        &self,
        head: impl Fn(&Call, Answer) -> Answer + Send + Sync + 'static,
    ) -> Origin {
        let sources = self.clone();
        Origin::new(move |call| head(call, Answer::ok("max-age=60", sources.body())))
    }
}

/// The first call's body, an origin with it, and a cache in front of it.
pub(crate) fn fed(layer: tower_stampede::HttpLayer) -> (App, Origin, Sources) {
    let sources = Sources::default();
    let origin = sources.origin(|_, answer| answer);
    (layered(layer, &origin), origin, sources)
}

pub(crate) type App = HttpService<Origin>;

/// A client that has the head of its response.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) head: Parts,
    pub(crate) body: ResponseBody<Body>,
    /// How many bytes it has read.
    pub(crate) read: usize,
    /// How long it has waited for the head.
    pub(crate) took: Duration,
}

/// How the rest of a body was.
#[derive(Debug)]
pub(crate) struct Rest {
    pub(crate) bytes: Vec<u8>,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) error: Option<BodyError>,
}

impl Rest {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.bytes).unwrap()
    }

    pub(crate) fn kind(&self) -> Option<BodyErrorKind> {
        self.error.as_ref().map(BodyError::kind)
    }

    /// The texts of the error's sources.
    pub(crate) fn sources(&self) -> Vec<String> {
        let mut source = self.error.as_ref().and_then(|error| error.source());
        let mut texts = Vec::new();
        while let Some(error) = source {
            texts.push(error.to_string());
            source = error.source();
        }
        texts
    }

    /// Whether it is this, in full.
    pub(crate) fn is(&self, text: &str) -> bool {
        self.error.is_none() && self.trailers.is_none() && self.text() == text
    }
}

pub(crate) async fn open(app: &App, request: Request<Body>) -> Reading {
    let from = Instant::now();
    let (head, body) = app.clone().oneshot(request).await.unwrap().into_parts();
    Reading { head, body, read: 0, took: from.elapsed() }
}

pub(crate) async fn open_many(app: &App, n: usize) -> Vec<Reading> {
    futures_util::future::join_all((0..n).map(|_| open(app, get("/report")))).await
}

impl Reading {
    pub(crate) fn is(&self, outcome: CacheOutcome) -> bool {
        outcome_of(&self.head) == Some(outcome)
    }

    /// The next frame's data, if it is there.
    pub(crate) fn next(&mut self) -> Option<String> {
        let frame = self.body.frame().now_or_never()??;
        let data = frame.unwrap().into_data().unwrap();
        self.read += data.len();
        Some(String::from_utf8(data.to_vec()).unwrap())
    }

    /// Waits for the next frame and returns its length.
    pub(crate) async fn next_frame(&mut self) -> usize {
        self.body.frame().await.unwrap().unwrap().into_data().unwrap().len()
    }

    /// Reads what is there.
    pub(crate) fn now(&mut self) -> String {
        std::iter::from_fn(|| self.next()).collect()
    }

    pub(crate) async fn rest(&mut self) -> Rest {
        let mut rest = Rest { bytes: Vec::new(), trailers: None, error: None };
        while let Some(frame) = self.body.frame().await {
            match frame.map(Frame::into_data) {
                Ok(Ok(data)) => rest.bytes.extend_from_slice(&data),
                Ok(Err(other)) => rest.trailers = other.into_trailers().ok(),
                Err(error) => rest.error = Some(error),
            }
        }
        rest
    }
}

pub(crate) async fn rests(readers: &mut [Reading]) -> Vec<Rest> {
    futures_util::future::join_all(readers.iter_mut().map(Reading::rest)).await
}

/// Lets every task do what can be done now.
pub(crate) async fn settle() {
    pass(ms(1)).await;
}
