//! Settings of what a crowd shares, and for how long it waits.

use std::time::Duration;

use crate::cache::builder::status_ttl::refusal;
use crate::http::layer::HttpLayer;

impl HttpLayer {
    /// Sets the lifetime of responses with the status `status`, an error from 400 to 599, that
    /// say nothing of their lifetime: counted from the arrival of the head, before
    /// [`ttl`](Self::ttl) and [`heuristics`](Self::heuristics). May be called once per status.
    /// Defaults to the handle's [`status_ttl`](crate::Builder::status_ttl).
    ///
    /// Without it, an error that says nothing goes to the clients that wait for it, and is not
    /// stored; under a `ttl`, 404 and 410 live as long as any page.
    ///
    /// An error that one client's request has caused, by a field that is neither keyed nor
    /// named in `Vary`, is then an answer to all clients for so long. Where clients wait whose
    /// requests differ, one of them asks once more before such an error is stored, but for 404,
    /// 405, 410, 414 and 503. A client that comes alone can still store it. So keep the
    /// lifetimes of 400 and of 5xx short. A 408, 500, 502, 503 or 504 replaces nothing that
    /// may be served.
    ///
    /// # Panics
    ///
    /// If `status` is no error, or one that RFC 6585 forbids to store (428, 429, 431, 511), or `ttl`
    /// is zero.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_stampede::{HttpStampede, Stampede};
    ///
    /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
    /// let layer = cache
    ///     .http_layer()
    ///     .status_ttl(404, Duration::from_secs(10))
    ///     .status_ttl(503, Duration::from_secs(1));
    /// # drop(layer);
    /// ```
    #[track_caller]
    pub fn status_ttl(self, status: u16, ttl: Duration) -> Self {
        if let Some(refusal) = refusal(status, ttl) {
            panic!("`status_ttl`: {refusal}");
        }
        self.change(move |rules| {
            rules.config.status_ttl.insert(status, ttl);
        })
    }

    /// Sets for how long a body that arrives may be silent until no more requests join it. The
    /// next request then computes again, in a second flight of the same key, which later
    /// requests join. The clients that read the silent body go on reading it, at most
    /// [`body_idle_timeout`](Self::body_idle_timeout) long; its end is not stored in
    /// place of a newer response. A key has at most two flights at once for this reason: where
    /// the second one is silent as well, requests join it until the first one has ended.
    ///
    /// With a remote the lease of the silent flight is given up, so that other processes do not
    /// wait for it either. Defaults to 2 s: an origin that sends the head and half of the body,
    /// and then nothing, must not stop a page for all clients.
    pub fn body_join_timeout(self, timeout: Duration) -> Self {
        self.change(move |rules| rules.body_join_timeout = timeout)
    }
}
