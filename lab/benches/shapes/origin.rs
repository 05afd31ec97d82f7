//! The service behind the cache. It works for a while, and answers as the row says.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use tower::Service;

use crate::crowd::accepts_gzip;
use crate::rows::{Answer, Odd, Row, Size, State, Varying};

/// What each request takes before its head is sent.
pub(crate) const WORK: Duration = Duration::from_millis(400);
/// The most that the layer keeps.
pub(crate) const MAX_BODY: usize = 2 << 20;
pub(crate) const TAG: &str = "\"now\"";
pub(crate) const SINCE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

pub(crate) type OriginBody = UnsyncBoxBody<Bytes, Infallible>;

/// Answers the requests of all rows, each at a path of its own.
#[derive(Clone)]
pub(crate) struct Origin {
    rows: Arc<Vec<(Row, AtomicUsize)>>,
}

impl Origin {
    pub(crate) fn new(rows: &[Row]) -> Self {
        Self { rows: Arc::new(rows.iter().map(|row| (*row, AtomicUsize::new(0))).collect()) }
    }

    /// Returns how many requests a row has cost.
    pub(crate) fn calls(&self, row: &Row) -> usize {
        self.of(row.number).1.load(Ordering::Relaxed)
    }

    fn of(&self, number: usize) -> &(Row, AtomicUsize) {
        let found = self.rows.iter().find(|(row, _)| row.number == number);
        found.expect("each request is for a row")
    }
}

impl Service<Request<Full<Bytes>>> for Origin {
    type Response = Response<OriginBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        let number = request.uri().path().trim_start_matches('/').parse();
        let (row, calls) = self.of(number.expect("the path is the number of a row"));
        let is_first = calls.fetch_add(1, Ordering::Relaxed) == 0;
        let is_early = is_first && row.state == State::Expired;
        let response = match request.headers().contains_key("x-odd") {
            true => odd(row),
            false if is_early => early(row),
            false => answer(row, &request),
        };
        Box::pin(async move {
            tokio::time::sleep(WORK).await;
            Ok(response)
        })
    }
}

/// What is stored before the crowd comes, and has expired by then.
fn early(row: &Row) -> Response<OriginBody> {
    let mut response = Response::new(Full::from("early").boxed_unsync());
    let headers = response.headers_mut();
    set(headers, header::CACHE_CONTROL, "max-age=1, must-revalidate");
    set(headers, header::ETAG, "\"early\"");
    vary(headers, row);
    response
}

fn odd(row: &Row) -> Response<OriginBody> {
    let mut response = Response::new(Full::from("odd").boxed_unsync());
    let headers = response.headers_mut();
    set(headers, header::CACHE_CONTROL, "max-age=60");
    match row.odd {
        Odd::Nothing => {}
        Odd::NoStore => set(headers, header::CACHE_CONTROL, "no-store"),
        Odd::Cookie => set(headers, header::SET_COOKIE, "a=b"),
        Odd::Varies => set(headers, header::VARY, "*"),
        Odd::Events => set(headers, header::CONTENT_TYPE, "text/event-stream"),
        Odd::Found => {
            headers.remove(header::CACHE_CONTROL);
            set(headers, header::LOCATION, "/elsewhere");
            *response.status_mut() = StatusCode::FOUND;
        }
    }
    response
}

fn answer(row: &Row, request: &Request<Full<Bytes>>) -> Response<OriginBody> {
    let mut headers = HeaderMap::new();
    let (status, lifetime) = match row.answer {
        Answer::Lifetime => (200, Some("max-age=60")),
        Answer::NoLifetime => (200, None),
        Answer::Validated => (200, Some("no-cache")),
        Answer::NoStore => (200, Some("no-store")),
        Answer::Private => (200, Some("private, max-age=60")),
        Answer::Moved => (301, None),
        Answer::Missing => (404, None),
        Answer::Gone => (410, None),
        Answer::Failed => (500, None),
        Answer::Unavailable => (503, None),
    };
    let mut status = StatusCode::from_u16(status).expect("a status");
    if let Some(lifetime) = lifetime {
        set(&mut headers, header::CACHE_CONTROL, lifetime);
    }
    vary(&mut headers, row);
    let mut fill = b'x';
    if row.varying == Varying::Encoding && accepts_gzip(request.headers()) {
        set(&mut headers, header::CONTENT_ENCODING, "gzip");
        fill = b'z';
    }
    let mut body = content(fill).slice(..length(row.size));
    if status == StatusCode::OK {
        set(&mut headers, header::ETAG, TAG);
        set(&mut headers, header::LAST_MODIFIED, SINCE);
        set(&mut headers, header::ACCEPT_RANGES, "bytes");
        if is_unmodified(request.headers()) {
            status = StatusCode::NOT_MODIFIED;
            body = Bytes::new();
        } else if let Some(part) = part(request, &body) {
            status = StatusCode::PARTIAL_CONTENT;
            let range = format!("bytes {}-{}/{}", part.0, part.1, body.len());
            set(&mut headers, header::CONTENT_RANGE, &range);
            body = body.slice(part.0..=part.1);
        }
    }
    let is_chunked = row.size == Size::Chunked && status != StatusCode::NOT_MODIFIED;
    if !is_chunked {
        set(&mut headers, header::CONTENT_LENGTH, &body.len().to_string());
    }
    let body = match request.method() == Method::HEAD || body.is_empty() {
        true => Full::default().boxed_unsync(),
        false if is_chunked => chunked(&body),
        false => Full::new(body).boxed_unsync(),
    };
    let mut response = Response::new(body);
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    response
}

/// Returns the longest body of one fill, made once.
fn content(fill: u8) -> &'static Bytes {
    static CONTENTS: [OnceLock<Bytes>; 2] = [OnceLock::new(), OnceLock::new()];
    let content = &CONTENTS[usize::from(fill == b'z')];
    content.get_or_init(|| Bytes::from(vec![fill; length(Size::TooLarge)]))
}

pub(crate) fn length(size: Size) -> usize {
    match size {
        Size::Empty => 0,
        Size::Small => 1 << 10,
        Size::Chunked => 1 << 20,
        Size::TooLarge => 3 << 20,
    }
}

fn vary(headers: &mut HeaderMap, row: &Row) {
    match row.varying {
        Varying::Nothing => {}
        Varying::Encoding => set(headers, header::VARY, "Accept-Encoding"),
        Varying::Language => set(headers, header::VARY, "Accept-Language"),
        Varying::Everything => set(headers, header::VARY, "*"),
    }
}

fn set(headers: &mut HeaderMap, name: header::HeaderName, value: &str) {
    headers.insert(name, value.parse().expect("a value"));
}

fn is_unmodified(headers: &HeaderMap) -> bool {
    match headers.get(header::IF_NONE_MATCH) {
        Some(tag) => tag == TAG,
        None => headers.get(header::IF_MODIFIED_SINCE).is_some_and(|since| since == SINCE),
    }
}

/// Reads a single range. A server may ignore all others (RFC 9110, 14.2).
fn part(request: &Request<Full<Bytes>>, body: &Bytes) -> Option<(usize, usize)> {
    if request.method() != Method::GET {
        return None;
    }
    let range = request.headers().get(header::RANGE)?.to_str().ok()?;
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let end = body.len().checked_sub(1)?;
    let part = match (first.parse::<usize>(), last.parse::<usize>()) {
        (Ok(first), Ok(last)) => (first, last.min(end)),
        (Ok(first), Err(_)) if last.is_empty() => (first, end),
        (Err(_), Ok(count)) if first.is_empty() => ((end + 1).saturating_sub(count), end),
        _ => return None,
    };
    (part.0 <= part.1).then_some(part)
}

/// A body whose length is known at its end.
fn chunked(body: &Bytes) -> OriginBody {
    let piece = |at: usize| body.slice(at..body.len().min(at + (64 << 10)));
    let pieces: Vec<_> = (0..body.len()).step_by(64 << 10).map(piece).collect();
    let frames = pieces.into_iter().map(|piece| Ok(Frame::data(piece)));
    BodyExt::boxed_unsync(StreamBody::new(stream::iter(frames)))
}
