//! A manifest of responses is loaded by requests.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use futures_util::stream::{self, StreamExt};
use http::{HeaderValue, Request, Response, Uri, header};
use http_body::Body;
use http_body_util::BodyExt;
use tower_service::Service;

use crate::cache::manifest::Manifest;
use crate::key::{KeyKind, UriName};

impl Manifest {
    /// Returns a `GET` for each response, that which is worth the most first. None has credentials:
    /// what depends on them is in no manifest.
    pub fn requests(&self) -> impl Iterator<Item = Request<()>> {
        self.encoded_keys().filter_map(|key| request_for(key.as_bytes()))
    }

    /// Sends these requests to a service with the layer in it, `limit` at once (at least one), and reads
    /// the responses to their ends. Returns how many keys gave no response, or one with a status from
    /// 500 on; a request that panics gives none. With axum, pass a clone of the `Router`.
    ///
    /// It takes as long as the service does: put a timeout around it, so that an origin that hangs
    /// does not hold the start of the process.
    ///
    /// # Cancel safety
    ///
    /// A dropped call begins no further requests.
    pub async fn replay<S, Q, B>(&self, service: S, limit: usize) -> usize
    where
        S: Service<Request<Q>, Response = Response<B>> + Clone,
        Q: Default,
        B: Body,
    {
        let send = |request: Request<()>| {
            let mut service = service.clone();
            let load = async move {
                if std::future::poll_fn(|cx| service.poll_ready(cx)).await.is_err() {
                    return true;
                }
                let Ok(response) = service.call(request.map(|()| Q::default())).await else {
                    return true;
                };
                let has_failed = response.status().is_server_error();
                let mut body = std::pin::pin!(response.into_body());
                while let Some(frame) = body.frame().await {
                    if frame.is_err() {
                        return true;
                    }
                }
                has_failed
            };
            // The panic of one page must not end each process that starts with the manifest.
            AssertUnwindSafe(load).catch_unwind().map(|has_failed| has_failed.unwrap_or(true))
        };
        let sent = stream::iter(self.requests()).map(send).buffer_unordered(limit.max(1));
        let loaded = sent.filter(|has_failed| std::future::ready(!has_failed)).count().await;
        self.len() - loaded
    }
}

/// Makes the request whose response stands under a key, in the form in which it named its host.
fn request_for(key: &[u8]) -> Option<Request<()>> {
    let UriName { scheme, host, resource, .. } = UriName::of_key(key)?;
    let [scheme, host, resource] = [scheme, host, resource].map(str::from_utf8);
    let (scheme, host, resource) = (scheme.ok()?, host.ok()?, resource.ok()?);
    let is_of = |kind: KeyKind| key.starts_with(&kind.start());
    let mut request = Request::new(());
    *request.uri_mut() = match is_of(KeyKind::HostInField) {
        true => resource.parse().ok()?,
        false => {
            let uri = Uri::builder().scheme(scheme).authority(host).path_and_query(resource);
            uri.build().ok()?
        }
    };
    if !is_of(KeyKind::HostInUri) && !host.is_empty() {
        request.headers_mut().insert(header::HOST, HeaderValue::from_str(host).ok()?);
    }
    Some(request)
}
