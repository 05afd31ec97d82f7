//! What all that is compared has in common.

use std::fmt::Display;
use std::hint::black_box;
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::{Arc, Mutex};

use bytes::{Buf, Bytes};
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body::Body;
use http_body_util::BodyExt;
use tower::{Service, ServiceExt};

use crate::origin::{Origin, call_of};

/// A cache with the work behind it.
pub(crate) trait Subject: Send + Sync {
    /// One caller asks for one key. Returns the number of the call that made
    /// the answer.
    fn ask(&self, key: u64) -> BoxFuture<'static, Result<u64, String>>;

    /// Asks for keys that are in memory, one after the other. Requests are made
    /// before the future is polled, so that they do not count.
    fn hits(&self, keys: &[u64]) -> BoxFuture<'static, ()>;
}

/// A cache of values, asked with a key and a function.
pub(crate) trait Cache: Clone + Send + Sync + 'static {
    type Error: Display + Send;

    fn get(
        &self,
        key: u64,
        origin: &'static Origin,
    ) -> impl Future<Output = Result<Bytes, Self::Error>> + Send;
}

struct Function<C> {
    cache: C,
    // As long as the process: caches that compute on a task of their own would
    // otherwise clone it for each hit, and the others would not.
    origin: &'static Origin,
}

pub(crate) fn function<C: Cache>(cache: C, origin: &Origin) -> Arc<dyn Subject> {
    Arc::new(Function { cache, origin: Box::leak(Box::new(origin.clone())) })
}

impl<C: Cache> Subject for Function<C> {
    fn ask(&self, key: u64) -> BoxFuture<'static, Result<u64, String>> {
        let (cache, origin) = (self.cache.clone(), self.origin);
        Box::pin(async move {
            let value = cache.get(key, origin).await.map_err(|error| error.to_string())?;
            call_of(value).ok_or_else(|| "no answer of the origin's".to_owned())
        })
    }

    fn hits(&self, keys: &[u64]) -> BoxFuture<'static, ()> {
        let (cache, origin, keys) = (self.cache.clone(), self.origin, keys.to_vec());
        Box::pin(async move {
            for key in keys {
                black_box(cache.get(key, origin).await.is_ok());
            }
        })
    }
}

/// A service of HTTP requests with bodies `B`.
struct Web<S, B> {
    // Not all services are `Sync`.
    service: Mutex<S>,
    body: PhantomData<fn() -> B>,
}

pub(crate) fn web<S, B, R>(service: S) -> Arc<dyn Subject>
where
    S: Service<Request<B>, Response = Response<R>, Error: Display, Future: Send>,
    S: Clone + Send + 'static,
    B: Default + Send + 'static,
    R: Body<Data: Send, Error: Send> + Send + 'static,
{
    Arc::new(Web { service: Mutex::new(service), body: PhantomData })
}

impl<S: Clone, B: Default> Web<S, B> {
    fn service(&self) -> S {
        self.service.lock().expect("cloning does not panic").clone()
    }

    fn request(key: u64) -> Request<B> {
        // Absolute, as clients' caches want it; the others take that as well.
        let request = Request::get(format!("http://example.org/report/{key}"));
        let request = request.header("host", "example.org");
        request.body(B::default()).expect("the request is good")
    }
}

impl<S, B, R> Subject for Web<S, B>
where
    S: Service<Request<B>, Response = Response<R>, Error: Display, Future: Send>,
    S: Clone + Send + 'static,
    B: Default + Send + 'static,
    R: Body<Data: Send, Error: Send> + Send + 'static,
{
    fn ask(&self, key: u64) -> BoxFuture<'static, Result<u64, String>> {
        let (service, request) = (self.service(), Self::request(key));
        Box::pin(async move {
            let response = service.oneshot(request).await.map_err(|error| error.to_string())?;
            if !response.status().is_success() {
                return Err(response.status().to_string());
            }
            drain(response).await.ok_or_else(|| "the body broke off".to_owned())
        })
    }

    fn hits(&self, keys: &[u64]) -> BoxFuture<'static, ()> {
        let mut service = self.service();
        let requests: Vec<_> = keys.iter().map(|&key| Self::request(key)).collect();
        Box::pin(async move {
            for request in requests {
                let ready = service.ready().await;
                let Ok(response) = ready.ok().expect("it is ready").call(request).await else {
                    panic!("a hit is no error");
                };
                black_box(drain(response).await);
            }
        })
    }
}

/// Reads the body to its end.
async fn drain<R: Body>(response: Response<R>) -> Option<u64> {
    let mut body = pin!(response.into_body());
    let mut call = None;
    while let Some(frame) = body.frame().await {
        let data = frame.ok()?.into_data().ok();
        call = call.or(data.filter(Buf::has_remaining).and_then(call_of));
    }
    call
}
