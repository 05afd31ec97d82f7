//! What the callers really want: work that takes its time, and counts how often
//! it is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::Full;
use tower::{Service, service_fn};

/// How long the work takes where there is a crowd.
pub(crate) const WORK: Duration = Duration::from_millis(100);

const BODY: usize = 1024;

/// How the work ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Script {
    /// The same answer each time, without any work: where hits are measured,
    /// the bare service shall cost no more than it must.
    AtOnce,
    /// Each time another answer, as all that follow.
    Answers,
    FailsOnce,
    Fails,
    PanicsOnce,
    /// Answers that are for one caller alone: `no-store`.
    Private,
}

/// Cheap to clone; clones count together.
#[derive(Clone)]
pub(crate) struct Origin(Arc<Work>);

struct Work {
    script: Script,
    calls: AtomicUsize,
    prepared: Bytes,
}

#[derive(Debug, Clone)]
pub(crate) struct Failure;

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the work failed")
    }
}

impl std::error::Error for Failure {}

impl Origin {
    pub(crate) fn new(script: Script) -> Self {
        Self(Arc::new(Work { script, calls: AtomicUsize::new(0), prepared: body(0) }))
    }

    pub(crate) fn calls(&self) -> usize {
        self.0.calls.load(Ordering::Relaxed)
    }

    pub(crate) fn is_private(&self) -> bool {
        self.0.script == Script::Private
    }

    /// Counts from the moment it is first polled, so that a future that no
    /// caller drives is no call.
    pub(crate) async fn compute(&self) -> Result<Bytes, Failure> {
        let call = self.0.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if self.0.script == Script::AtOnce {
            return Ok(self.0.prepared.clone());
        }
        tokio::time::sleep(WORK).await;
        match self.0.script {
            Script::Fails => Err(Failure),
            Script::FailsOnce if call == 1 => Err(Failure),
            Script::PanicsOnce if call == 1 => panic!("as the scenario wants it"),
            _ => Ok(body(call)),
        }
    }

    pub(crate) async fn respond(&self) -> Result<Response<Full<Bytes>>, Failure> {
        let mut response = Response::new(Full::new(self.compute().await?));
        *response.headers_mut() = fields(self.is_private());
        Ok(response)
    }

    /// The same as a service of HTTP requests.
    pub(crate) fn service<B: Send + 'static>(
        &self,
    ) -> impl Service<
        Request<B>,
        Response = Response<Full<Bytes>>,
        Error = Failure,
        Future: Send + 'static,
    > + Clone
    + Send
    + Sync
    + 'static {
        let origin = self.clone();
        service_fn(move |_: Request<B>| {
            let origin = origin.clone();
            async move { origin.respond().await }
        })
    }
}

/// 1 KiB that says of which call it is.
fn body(call: usize) -> Bytes {
    let mut bytes = vec![b'x'; BODY];
    bytes[..8].copy_from_slice(&(call as u64).to_be_bytes());
    bytes.into()
}

/// The call that made this answer.
pub(crate) fn call_of(mut body: impl Buf) -> Option<u64> {
    body.try_get_u64().ok()
}

pub(crate) fn fields(is_private: bool) -> HeaderMap {
    let lifetime = if is_private { "no-store" } else { "max-age=3600" };
    let mut fields = HeaderMap::new();
    fields.insert("content-type", HeaderValue::from_static("application/json"));
    fields.insert("etag", HeaderValue::from_static("\"1\""));
    fields.insert("cache-control", HeaderValue::from_static(lifetime));
    fields
}
