//! Responses of our own.

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Response, StatusCode};

/// Makes a response that says in one line what is wrong. No cache may store it.
pub(crate) fn page(status: StatusCode, reason: &str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(format!("{status}: {reason}\n")));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, text);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
