//! How much of a response a request gets: conditions first, then the range
//! (RFC 9110, 13.2.2).

use std::time::SystemTime;

use bytes::Bytes;
use http::StatusCode;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http_body::Body;

use crate::http::body::{Content, ResponseBody};
use crate::http::rules::codings::accepts_a_coding;
use crate::http::rules::conditions::is_not_modified;
use crate::http::rules::multipart::Multipart;
use crate::http::rules::range::{self, Cut, Length, Part};
use crate::http::rules::request::Wishes;
use crate::http::rules::streams::is_event_stream;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Whole,
    NotModified,
    Part(Part),
    /// Cut out of bytes that are all there.
    Parts(Box<Multipart>),
    /// What follows the first `skip` bytes of an event stream.
    Resumed {
        skip: u64,
        is_over: bool,
    },
    /// Of a body of this length it asks for nothing that there is.
    Unsatisfiable(u64),
}

/// Fields that describe the body which a 304 does not have. Everything else
/// stays: what belongs to the exchange, such as permission to read it from
/// another origin, is needed with a 304 too (RFC 9110, 15.4.5).
const OF_THE_BODY: [HeaderName; 10] = [
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
];

/// Returns whether a field says who may read the response, whatever is in it.
fn is_of_the_exchange(name: &HeaderName) -> bool {
    *name == header::VARY || name.as_str().starts_with("access-control-")
}

impl Shape {
    /// Returns the shape of a response for one request, and whether more of the body has to come
    /// before it gets its part. Of a `body` that arrives at most one part is cut out.
    pub(crate) fn of(
        wishes: Wishes,
        request: &HeaderMap,
        status: StatusCode,
        response: &HeaderMap,
        body: Option<&Content>,
        now: SystemTime,
    ) -> (Self, bool) {
        if wishes.condition && status.is_success() && is_not_modified(request, response, now) {
            return (Self::NotModified, false);
        }
        if wishes.last_event && status == StatusCode::OK && is_event_stream(response) {
            let resumed = body.and_then(|body| body.resume_at(request));
            let resumed = resumed.map(|(skip, is_over)| Self::Resumed { skip, is_over });
            return (resumed.unwrap_or(Self::Whole), false);
        }
        if !wishes.range || status != StatusCode::OK {
            return (Self::Whole, false);
        }
        let length = body.map_or(Length::AtLeast(0), Content::length_so_far);
        let is_whole = body.is_some_and(|body| body.whole().is_some());
        let shape = match (cut(request, response, length, now), length) {
            (Cut::Part(part), _) => Self::Part(part),
            (Cut::Parts(parts), Length::Known(length)) if is_whole => {
                Multipart::of(parts, response, length)
                    .map_or(Self::Whole, |parts| Self::Parts(Box::new(parts)))
            }
            (Cut::Unsatisfiable, Length::Known(length)) => Self::Unsatisfiable(length),
            (Cut::Parts(_) | Cut::Later, _) => return (Self::Whole, true),
            (Cut::Whole | Cut::Unsatisfiable, _) => Self::Whole,
        };
        (shape, false)
    }

    #[inline]
    pub(crate) fn status(&self, whole: StatusCode) -> StatusCode {
        match self {
            // To a client that would connect again for ever: there is no more.
            Self::Resumed { is_over: true, .. } => StatusCode::NO_CONTENT,
            Self::Whole | Self::Resumed { .. } => whole,
            Self::NotModified => StatusCode::NOT_MODIFIED,
            Self::Part(_) | Self::Parts(_) => StatusCode::PARTIAL_CONTENT,
            Self::Unsatisfiable(_) => StatusCode::RANGE_NOT_SATISFIABLE,
        }
    }

    /// Returns the fields of an answer of this shape.
    #[inline]
    pub(crate) fn fields(&self, whole: &HeaderMap) -> HeaderMap {
        if matches!(self, Self::Whole) { whole.clone() } else { self.changed(whole) }
    }

    #[cold]
    fn changed(&self, whole: &HeaderMap) -> HeaderMap {
        let mut whole = whole.clone();
        match self {
            Self::Whole => whole,
            Self::NotModified => {
                OF_THE_BODY.iter().for_each(|name| drop(whole.remove(name)));
                if whole.contains_key(header::ETAG) {
                    whole.remove(header::LAST_MODIFIED);
                }
                whole
            }
            Self::Part(part) => {
                remove_what_says_of_the_whole(&mut whole);
                put(&mut whole, header::CONTENT_LENGTH, HeaderValue::from(part.length()));
                put(&mut whole, header::CONTENT_RANGE, part.content_range());
                whole
            }
            Self::Parts(parts) => {
                remove_what_says_of_the_whole(&mut whole);
                whole.remove(header::CONTENT_RANGE);
                put(&mut whole, header::CONTENT_LENGTH, HeaderValue::from(parts.length()));
                put(&mut whole, header::CONTENT_TYPE, parts.content_type());
                whole
            }
            Self::Resumed { is_over, .. } => {
                if *is_over {
                    OF_THE_BODY.iter().for_each(|name| drop(whole.remove(name)));
                }
                remove_what_says_of_the_whole(&mut whole);
                let names =
                    [header::CONTENT_LENGTH, header::ETAG, header::LAST_MODIFIED, header::EXPIRES];
                names.iter().for_each(|name| drop(whole.remove(name)));
                // A cache behind us would take it for the whole.
                put(&mut whole, header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
                whole
            }
            // Nothing of the stored response but what belongs to the exchange: with its lifetime,
            // a cache behind us would keep the refusal in its place.
            Self::Unsatisfiable(length) => {
                let mut own = HeaderMap::new();
                for (name, value) in whole.iter().filter(|(name, _)| is_of_the_exchange(name)) {
                    own.append(name, value.clone());
                }
                put(&mut own, header::CONTENT_RANGE, range::unsatisfied(*length));
                own
            }
        }
    }

    #[inline]
    pub(crate) fn body<B: Body>(&self, whole: &Content) -> ResponseBody<B> {
        match (self, whole) {
            (Self::Whole, whole) => whole.to_body(),
            (Self::Resumed { skip, .. }, whole) => whole.after(*skip),
            (Self::Part(part), Content::Whole(bytes) | Content::Paced(bytes, _)) => {
                ResponseBody::full(part.of(bytes))
            }
            (Self::Part(part), Content::Arriving(body, _)) => {
                ResponseBody::reading_part(body.reader(), part.first(), part.length())
            }
            (Self::Parts(parts), Content::Whole(bytes) | Content::Paced(bytes, _)) => {
                ResponseBody::pieces(parts.pieces(bytes))
            }
            (_, _) => ResponseBody::full(Bytes::new()),
        }
    }
}

/// Reads the range of a request. Several parts are for requests that accept no coding: the head
/// of a `multipart/byteranges` has no `Content-Range` (RFC 9110, 15.3.7.2), so a layer around
/// the cache that compresses would code it. Any other request may get the whole (14.2).
fn cut(request: &HeaderMap, response: &HeaderMap, length: Length, now: SystemTime) -> Cut {
    match range::cut(request, response, length, now) {
        Cut::Parts(_) if accepts_a_coding(request) => Cut::Whole,
        cut => cut,
    }
}

/// Removes fields that were made of the whole body, or of how it was sent.
fn remove_what_says_of_the_whole(headers: &mut HeaderMap) {
    let names = ["content-md5", "content-digest", "trailer", "transfer-encoding"];
    names.iter().for_each(|name| drop(headers.remove(*name)));
}

/// A map that is full to the brim goes without.
fn put(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    let _ = headers.try_insert(name, value);
}

/// Fields by which a request asks for less than the whole.
pub(crate) const ASKS_FOR_LESS: [HeaderName; 4] =
    [header::IF_NONE_MATCH, header::IF_MODIFIED_SINCE, header::IF_RANGE, header::RANGE];

/// Makes a request ask for the whole response: it is for all clients.
pub(crate) fn ask_for_the_whole(request: &mut HeaderMap) {
    ASKS_FOR_LESS.iter().for_each(|name| drop(request.remove(name)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let fields = fields
            .iter()
            .map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        fields.collect()
    }

    fn shape(request: &[(&'static str, &'static str)], status: u16) -> Shape {
        let wishes = Wishes { condition: true, range: true, ..Wishes::default() };
        let response = headers(&[("etag", "\"a\"")]);
        let status = StatusCode::from_u16(status).unwrap();
        let now = SystemTime::UNIX_EPOCH;
        Shape::of(
            wishes,
            &headers(request),
            status,
            &response,
            Some(&Content::Whole(Bytes::from_static(b"0123456789"))),
            now,
        )
        .0
    }

    #[test]
    fn conditions_go_before_ranges_and_concern_some_statuses_only() {
        // RFC 9110, 13.2.1, 13.2.2 and 14.2; RFC 9111, 4.3.2
        let both = &[("if-none-match", "\"a\""), ("range", "bytes=0-1")];
        assert_eq!(shape(both, 200), Shape::NotModified);
        assert_eq!(shape(both, 203), Shape::NotModified);
        for status in [301, 404, 410, 500] {
            assert_eq!(shape(both, status), Shape::Whole, "{status}");
        }
        let differs = &[("if-none-match", "\"b\""), ("range", "bytes=0-1")];
        assert!(matches!(shape(differs, 200), Shape::Part(_)));
        assert_eq!(shape(differs, 203), Shape::Whole, "a part of a 200 alone");
        let past = &[("if-none-match", "\"b\""), ("range", "bytes=10-")];
        assert_eq!(shape(past, 200), Shape::Unsatisfiable(10));
    }

    #[test]
    fn a_304_says_nothing_of_a_body_and_keeps_what_else_there_is() {
        // RFC 9110, 15.4.5
        let whole = headers(&[
            ("cache-control", "max-age=1"),
            ("content-location", "/a"),
            ("date", "x"),
            ("etag", "\"a\""),
            ("expires", "x"),
            ("vary", "a"),
            ("age", "1"),
            ("access-control-allow-origin", "*"),
            ("last-modified", "x"),
            ("content-type", "x"),
            ("content-length", "9"),
            ("content-encoding", "gzip"),
            ("content-language", "de"),
            ("content-digest", "x"),
        ]);
        let left = Shape::NotModified.fields(&whole);
        let names: Vec<_> = left.keys().map(HeaderName::as_str).collect();
        for name in ["cache-control", "content-location", "date", "etag", "expires", "vary", "age"]
        {
            assert!(names.contains(&name), "{name}");
        }
        assert!(names.contains(&"access-control-allow-origin"));
        assert_eq!(names.len(), 8, "{names:?}");
        let undated = Shape::NotModified.fields(&headers(&[("last-modified", "x")]));
        assert!(undated.contains_key("last-modified"), "there is no better validator");
    }

    #[test]
    fn a_request_for_the_whole_keeps_its_other_fields() {
        let mut request = headers(&[
            ("if-none-match", "x"),
            ("if-modified-since", "x"),
            ("if-range", "x"),
            ("range", "x"),
            ("accept", "x"),
        ]);
        ask_for_the_whole(&mut request);
        assert_eq!(request.keys().collect::<Vec<_>>(), ["accept"]);
    }
}
