//! pingora-cache leaves the order of its steps to the proxy that embeds it:
//! this is what pingora-proxy does with a request, without the proxy.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::Full;
use pingora_cache::cache_control::CacheControl;
use pingora_cache::filters::resp_cacheable;
use pingora_cache::lock::{CacheKeyLockImpl, CacheLock, LockWaitOutcome};
use pingora_cache::predictor::{CacheablePredictor, Predictor};
use pingora_cache::storage::HitHandler;
use pingora_cache::{
    CacheKey, CacheMeta, CacheMetaDefaults, HitStatus, HttpCache, MemCache, NoCacheReason,
    RespCacheable,
};
use pingora_http::ResponseHeader;
use tower::service_fn;

use super::{ENTRIES, Kind, Peer, TTL};
use crate::origin::{Failure, Origin, fields};
use crate::report::Role;
use crate::subject::{Subject, web};

/// Longer than the work takes.
const LOCK: Duration = Duration::from_secs(10);

/// How often pingora-proxy lets a request look again after it has waited.
const RETRIES: usize = 2;

type Answer = Response<Full<Bytes>>;

pub(super) fn peer() -> Peer {
    Peer {
        id: "pingora",
        name: "pingora-cache",
        role: Role::Other,
        kind: Kind::Http,
        crates: &["pingora-cache"],
        configuration: "`HttpCache` with `CacheLock`, `Predictor` and `MemCache`, which is the \
                        store it ships, for tests; steps as in pingora-proxy, written by us",
        has_private_answers: true,
        start: |origin| Box::pin(async move { start(origin) }),
        start_on_redis: None,
    }
}

/// It wants all of this for as long as the process lives.
#[derive(Clone, Copy)]
struct Parts {
    storage: &'static MemCache,
    predictor: &'static (dyn CacheablePredictor + Sync),
    lock: &'static CacheKeyLockImpl,
}

fn start(origin: Origin) -> Arc<dyn Subject> {
    let parts = Parts {
        storage: Box::leak(Box::new(MemCache::new())),
        predictor: Box::leak(Box::new(Predictor::<16>::new(ENTRIES as usize, None))),
        lock: Box::leak(CacheLock::new_boxed(LOCK)),
    };
    web(service_fn(move |request: Request<Full<Bytes>>| {
        let origin = origin.clone();
        async move { respond(parts, &origin, request.uri().path()).await }
    }))
}

async fn respond(parts: Parts, origin: &Origin, path: &str) -> Result<Answer, Failure> {
    let mut cache = HttpCache::new();
    cache.enable(parts.storage, None, Some(parts.predictor), Some(parts.lock), None);
    cache.set_cache_key(CacheKey::new(path, ""));
    if !cache.cacheable_prediction() {
        cache.bypass();
        return origin.respond().await;
    }
    for retries in 0.. {
        if let Some((meta, hit)) = cache.cache_lookup().await.map_err(|_| Failure)? {
            return found(cache, meta, hit).await;
        }
        if !cache.is_cache_locked() {
            cache.cache_miss();
            return lead(cache, origin).await;
        }
        if let Some(reason) = alone(cache.cache_lock_wait().await, retries) {
            cache.disable(reason);
            break;
        }
    }
    origin.respond().await
}

/// Why a request goes on without the cache, or none: then the answer is there,
/// or the lock is free.
fn alone(outcome: LockWaitOutcome, retries: usize) -> Option<NoCacheReason> {
    match outcome {
        LockWaitOutcome::GiveUp | LockWaitOutcome::Abandoned { .. } => {
            Some(NoCacheReason::CacheLockGiveUp)
        }
        LockWaitOutcome::WaitTimeout => Some(NoCacheReason::CacheLockTimeout),
        _ if retries == RETRIES => Some(NoCacheReason::CacheLockRetryLimit),
        _ => None,
    }
}

async fn found(mut cache: HttpCache, meta: CacheMeta, hit: HitHandler) -> Result<Answer, Failure> {
    let headers = meta.headers().clone();
    cache.cache_found(meta, hit, HitStatus::Fresh);
    let mut body = Bytes::new();
    while let Some(piece) = cache.hit_handler().read_body().await.map_err(|_| Failure)? {
        // One piece, but for readers that read while it is written.
        body = if body.is_empty() { piece } else { [body, piece].concat().into() };
    }
    cache.finish_hit_handler().await.map_err(|_| Failure)?;
    let mut response = Response::new(Full::new(body));
    *response.headers_mut() = headers;
    Ok(response)
}

async fn lead(mut cache: HttpCache, origin: &Origin) -> Result<Answer, Failure> {
    let Ok(body) = origin.compute().await else {
        cache.disable(NoCacheReason::UpstreamError);
        return Err(Failure);
    };
    let mut response = Response::new(Full::new(body.clone()));
    *response.headers_mut() = fields(origin.is_private());
    match judge(response.headers()) {
        RespCacheable::Cacheable(meta) => {
            fill(&mut cache, meta, body).await.map_err(|_| Failure)?;
        }
        RespCacheable::Uncacheable(reason) => {
            cache.response_became_uncacheable(reason);
            cache.disable(reason);
        }
    }
    Ok(response)
}

fn judge(fields: &HeaderMap) -> RespCacheable {
    const DEFAULTS: CacheMetaDefaults = CacheMetaDefaults::new(|_| Some(TTL), 0, 0);
    let mut header = ResponseHeader::build(200, None).expect("200 is a status");
    for (name, value) in fields {
        header.append_header(name, value).expect("they were fields before");
    }
    let control = CacheControl::from_resp_headers(&header);
    resp_cacheable(control.as_ref(), header, false, &DEFAULTS)
}

async fn fill(cache: &mut HttpCache, meta: CacheMeta, body: Bytes) -> pingora_error::Result<()> {
    cache.set_cache_meta(meta);
    cache.set_miss_handler().await?;
    if let Some(handler) = cache.miss_handler() {
        handler.write_body(body, true).await?;
    }
    cache.finish_miss_handler().await
}
