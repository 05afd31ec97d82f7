//! An origin that answers each request with a page made from its head.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Head, Origin, Peer, Proxy};

/// Makes the answer to a request: field lines, each with its line end, and a
/// body.
type Script = dyn Fn(&Head) -> (String, String) + Send + Sync;

/// An origin that follows a script and remembers the heads of its requests.
#[derive(Clone)]
pub(crate) struct Scripted {
    heads: Arc<Mutex<Vec<Head>>>,
    script: Arc<Script>,
}

impl Scripted {
    /// Starts the origin, and a proxy with these flags in front of it.
    pub(crate) async fn start(
        flags: &[&str],
        script: impl Fn(&Head) -> (String, String) + Send + Sync + 'static,
    ) -> (Self, Proxy) {
        Self::start_behind(|origin| Proxy::start_at(origin, flags), script).await
    }

    /// Starts the origin, and the proxy that `start` makes for its URL.
    pub(crate) async fn start_behind(
        start: impl FnOnce(&str) -> Proxy,
        script: impl Fn(&Head) -> (String, String) + Send + Sync + 'static,
    ) -> (Self, Proxy) {
        let origin = Origin::bind().await;
        let proxy = start(&origin.url());
        let scripted = Self { heads: Arc::default(), script: Arc::new(script) };
        let serving = scripted.clone();
        tokio::spawn(async move {
            loop {
                let peer = origin.accept().await;
                tokio::spawn(serving.clone().serve(peer));
            }
        });
        (scripted, proxy)
    }

    async fn serve(self, mut peer: Peer) {
        while let Some(head) = peer.head_or_end().await {
            let length = head.get("content-length").map_or(0, |length| length.parse().unwrap());
            peer.bytes(length).await;
            let (fields, body) = (self.script)(&head);
            // Before the answer: a test counts when its client has the answer.
            self.heads.lock().unwrap_or_else(PoisonError::into_inner).push(head);
            let length = body.len();
            let answer =
                format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {length}\r\n\r\n{body}");
            peer.send(answer).await;
        }
    }

    /// The heads of all requests so far.
    pub(crate) fn heads(&self) -> Vec<Head> {
        self.heads.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many requests the origin has answered.
    pub(crate) fn hits(&self) -> usize {
        self.heads().len()
    }
}

/// Field lines of a page that lives for a minute.
pub(crate) fn fresh() -> String {
    "Cache-Control: public, max-age=60\r\n".to_owned()
}

/// Field lines of a page that lives for a minute and varies by a field.
pub(crate) fn varying(by: &str) -> String {
    format!("{}Vary: {by}\r\n", fresh())
}
