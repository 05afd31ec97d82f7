//! The body of a request on its way to the origin.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::connection::UploadError;
use crate::incoming::ClientBody;

/// Passes a client's body on as it arrives, once the origin wants it.
pub(crate) struct Outgoing {
    body: Option<ClientBody>,
    gate: Option<oneshot::Receiver<()>>,
    progress: Progress,
}

impl Outgoing {
    /// With a `gate`, nothing of the body is asked for before it opens: that
    /// would tell the client to send it.
    pub(crate) fn new(body: Option<ClientBody>, gate: Option<oneshot::Receiver<()>>) -> Self {
        Self { body, gate, progress: Progress::default() }
    }

    pub(crate) fn progress(&self) -> Progress {
        self.progress.clone()
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(gate) = &mut self.gate {
            let opened = ready!(Pin::new(gate).poll(cx));
            if opened.is_err() {
                return Poll::Ready(Some(Err(BodyError::Unwanted)));
            }
            self.gate = None;
        }
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(cx));
        self.progress.note();
        Poll::Ready(frame.map(|frame| frame.map_err(BodyError::Client)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

/// Why a request's body ended early.
#[derive(Debug)]
pub(crate) enum BodyError {
    /// The client broke off, or is too slow.
    Client(UploadError),
    /// The origin answered without it.
    Unwanted,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client(error) => return error.fmt(f),
            Self::Unwanted => "the origin answered without the body",
        })
    }
}

impl Error for BodyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Client(error) => error.source(),
            Self::Unwanted => None,
        }
    }
}

/// The key of a gate. Dropped without a turn, the gate stays closed for good,
/// and the connection, which has not sent its whole body, ends.
#[derive(Clone)]
pub(crate) struct GateKey(Arc<Mutex<Option<oneshot::Sender<()>>>>);

impl GateKey {
    pub(crate) fn new() -> (Self, oneshot::Receiver<()>) {
        let (key, gate) = oneshot::channel();
        (Self(Arc::new(Mutex::new(Some(key)))), gate)
    }

    pub(crate) fn open(&self) {
        let key = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(key) = key {
            // Without a receiver the body is gone.
            let _ = key.send(());
        }
    }
}

/// When the body last moved.
#[derive(Clone)]
pub(crate) struct Progress(Arc<Mutex<Instant>>);

impl Default for Progress {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Progress {
    fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn last(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends once nothing has moved for `limit`: a long upload is no silence.
    pub(crate) async fn silence(&self, limit: Duration) {
        loop {
            let last = self.last();
            let Some(until) = last.checked_add(limit) else { return std::future::pending().await };
            sleep_until(until).await;
            if self.last() == last {
                return;
            }
        }
    }
}
