//! Which part of a body a client asks for (RFC 9110, 14).

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};

use crate::http::rules::conditions::{EntityTag, entity_tag, only, only_date, unquoted_tag};

/// The longest `Range` that is read.
const MAX_RANGE_BYTES: usize = 2 << 10;

/// What a request gets of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    Whole,
    Part(Part),
    /// It asks for nothing that there is.
    Unsatisfiable,
}

/// A part of a body; never empty, and never past its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    first: u64,
    last: u64,
    complete: u64,
}

impl Part {
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    pub(super) fn length(&self) -> u64 {
        self.last - self.first + 1
    }

    /// Cuts the part out of the body whose length it was made for.
    pub(super) fn of(&self, body: &Bytes) -> Bytes {
        let at = |position: u64| usize::try_from(position).unwrap_or(usize::MAX).min(body.len());
        body.slice(at(self.first)..at(self.last + 1))
    }

    pub(super) fn content_range(&self) -> HeaderValue {
        let Self { first, last, complete } = self;
        let value = HeaderValue::try_from(format!("bytes {first}-{last}/{complete}"));
        value.expect("digits are visible ASCII")
    }
}

/// The `Content-Range` of a 416.
pub(super) fn unsatisfied(complete: u64) -> HeaderValue {
    HeaderValue::try_from(format!("bytes */{complete}")).expect("digits are visible ASCII")
}

/// Reads the ranges of a GET whose whole answer is a 200 of `complete` bytes.
///
/// What cannot be read is ignored, and so are several ranges at once: the
/// whole is always a right answer (RFC 9110, 14.2).
pub(super) fn cut(
    request: &HeaderMap,
    response: &HeaderMap,
    complete: u64,
    now: SystemTime,
) -> Cut {
    let line = only(request, &header::RANGE).filter(|line| line.len() <= MAX_RANGE_BYTES);
    let asked = line.and_then(|line| one_of_bytes(line.as_bytes()));
    match asked {
        Some(asked) if has_same(request, response, now) => asked.cut(complete),
        _ => Cut::Whole,
    }
}

#[derive(Clone, Copy, Debug)]
enum RangeRequest {
    From { first: u64, last: u64 },
    Last(u64),
}

impl RangeRequest {
    fn cut(self, complete: u64) -> Cut {
        let (first, last) = match self {
            Self::From { first, .. } if first >= complete => return Cut::Unsatisfiable,
            Self::From { first, last } => (first, last.min(complete - 1)),
            Self::Last(0) => return Cut::Unsatisfiable,
            // Of nothing it is all, and no `Content-Range` can say so.
            Self::Last(_) if complete == 0 => return Cut::Whole,
            Self::Last(length) => (complete.saturating_sub(length), complete - 1),
        };
        Cut::Part(Part { first, last, complete })
    }
}

/// Reads a set of exactly one range of bytes.
fn one_of_bytes(line: &[u8]) -> Option<RangeRequest> {
    let equals = line.iter().position(|&b| b == b'=')?;
    let (unit, set) = (&line[..equals], &line[equals + 1..]);
    if !unit.eq_ignore_ascii_case(b"bytes") {
        return None;
    }
    let mut ranges = set.split(|&b| b == b',').map(<[u8]>::trim_ascii).filter(|r| !r.is_empty());
    let range = ranges.next()?;
    if ranges.next().is_some() { None } else { read(range) }
}

fn read(range: &[u8]) -> Option<RangeRequest> {
    let dash = range.iter().position(|&b| b == b'-')?;
    match (&range[..dash], &range[dash + 1..]) {
        ([], length) => number(length).map(RangeRequest::Last),
        (first, []) => number(first).map(|first| RangeRequest::From { first, last: u64::MAX }),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(RangeRequest::From { first, last })
        }
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let add = |n: u64, b: &u8| n.saturating_mul(10).saturating_add(u64::from(b - b'0'));
    is_number.then(|| digits.iter().fold(0, add))
}

/// Returns whether what the client has a part of is this response (RFC 9110,
/// 13.1.5): parts of different ones must never be put together.
fn has_same(request: &HeaderMap, response: &HeaderMap, now: SystemTime) -> bool {
    if !request.contains_key(header::IF_RANGE) {
        return true;
    }
    let is_same = |ours: &HeaderValue| {
        !ours.as_bytes().starts_with(b"W/") && only(request, &header::IF_RANGE) == Some(ours)
    };
    if unquoted_tag(response).is_some_and(is_same) {
        return true;
    }
    let tag = only(request, &header::IF_RANGE).and_then(|line| EntityTag::read(line.as_bytes()));
    match tag {
        Some(tag) => entity_tag(response).is_some_and(|ours| ours.is_same_strongly(&tag)),
        None => {
            let theirs = only_date(request, &header::IF_RANGE, now);
            theirs.is_some() && theirs == strong_date(response, now)
        }
    }
}

/// Returns `Last-Modified` where it cannot have been followed by another
/// change in the same second (RFC 9110, 8.8.2.2).
fn strong_date(response: &HeaderMap, now: SystemTime) -> Option<SystemTime> {
    let modified = only_date(response, &header::LAST_MODIFIED, now)?;
    let made = only_date(response, &header::DATE, now)?;
    let apart = made.duration_since(modified).ok()?;
    (apart >= Duration::from_secs(1)).then_some(modified)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderName;
    use proptest::prelude::*;
    use std::time::UNIX_EPOCH;

    const EARLIER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const THEN: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const LATER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let fields = fields.iter().map(|&(name, value)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        });
        fields.collect()
    }

    fn asked(request: &[(&'static str, &str)], response: &[(&'static str, &str)], n: u64) -> Cut {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_777);
        cut(&headers(request), &headers(response), n, now)
    }

    fn part(first: u64, last: u64, complete: u64) -> Cut {
        Cut::Part(Part { first, last, complete })
    }

    #[test]
    fn one_range_is_cut_out() {
        // RFC 9110, 14.1.2
        for (range, complete, expected) in [
            ("bytes=0-0", 10, part(0, 0, 10)),
            ("bytes=0-499", 10_000, part(0, 499, 10_000)),
            ("bytes=500-999", 10_000, part(500, 999, 10_000)),
            ("bytes=-500", 10_000, part(9_500, 9_999, 10_000)),
            ("bytes=9500-", 10_000, part(9_500, 9_999, 10_000)),
            ("BYTES=1-2", 10, part(1, 2, 10)),
            ("bytes=5-99", 10, part(5, 9, 10)),
            ("bytes=-99", 10, part(0, 9, 10)),
            ("bytes=0-", 10, part(0, 9, 10)),
            ("bytes= ,1-2 ,, ", 10, part(1, 2, 10)),
            ("bytes=0-99999999999999999999999", 10, part(0, 9, 10)),
            ("bytes=-99999999999999999999999", 10, part(0, 9, 10)),
        ] {
            assert_eq!(asked(&[("range", range)], &[], complete), expected, "{range}");
        }
    }

    #[test]
    fn what_there_is_nothing_of_is_unsatisfiable() {
        // RFC 9110, 14.1.2 and 15.5.17
        for (range, complete) in [
            ("bytes=10-", 10),
            ("bytes=10-20", 10),
            ("bytes=-0", 10),
            ("bytes=0-0", 0),
            ("bytes=99999999999999999999999-", 10),
        ] {
            assert_eq!(asked(&[("range", range)], &[], complete), Cut::Unsatisfiable, "{range}");
        }
        assert_eq!(unsatisfied(10), "bytes */10");
    }

    #[test]
    fn what_cannot_be_read_or_is_many_is_the_whole() {
        // RFC 9110, 14.2: "MUST ignore" and "MAY ignore"
        for range in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=,",
            "bytes=2-1",
            "bytes=a-b",
            "bytes=+1-2",
            "bytes=1 - 2",
            "bytes=1--2",
            "bytes =1-2",
            "items=0-1",
            "bytes=0-1,3-4",
            "bytes=0-1, -1",
        ] {
            assert_eq!(asked(&[("range", range)], &[], 10), Cut::Whole, "{range}");
        }
        let twice = [("range", "bytes=0-1"), ("range", "bytes=0-1")];
        assert_eq!(asked(&twice, &[], 10), Cut::Whole);
        assert_eq!(asked(&[("range", "bytes=-5")], &[], 0), Cut::Whole, "all there is");
        assert_eq!(asked(&[("if-range", "\"a\"")], &[("etag", "\"a\"")], 10), Cut::Whole);
    }

    #[test]
    fn parts_of_different_responses_are_not_put_together() {
        // RFC 9110, 13.1.5 and 8.8.2.2
        let dated = &[("last-modified", THEN), ("date", LATER)][..];
        for (if_range, response, same) in [
            ("\"a\"", &[("etag", "\"a\"")][..], true),
            ("\"b\"", &[("etag", "\"a\"")], false),
            ("W/\"a\"", &[("etag", "W/\"a\"")], false),
            ("\"a\"", &[("etag", "W/\"a\"")], false),
            ("\"a\"", &[], false),
            ("\"a\", \"b\"", &[("etag", "\"a\"")], false),
            ("*", &[("etag", "\"a\"")], false),
            (THEN, dated, true),
            ("Sunday, 06-Nov-94 08:49:37 GMT", dated, true),
            (EARLIER, dated, false),
            (LATER, dated, false),
            (THEN, &[("last-modified", THEN), ("date", THEN)], false),
            (THEN, &[("last-modified", THEN)], false),
            (THEN, &[("date", LATER)], false),
            ("x", &[("last-modified", "x"), ("date", LATER)], false),
            ("", &[], false),
            ("a", &[("etag", "a")], true),
            ("a", &[("etag", "b")], false),
            ("a", &[("etag", "\"a\"")], false),
            ("\"a\"", &[("etag", "a")], false),
            ("W/a", &[("etag", "W/a")], false),
        ] {
            let found = asked(&[("range", "bytes=0-1"), ("if-range", if_range)], response, 10);
            let expected = if same { part(0, 1, 10) } else { Cut::Whole };
            assert_eq!(found, expected, "{if_range} {response:?}");
        }
        let twice = [("range", "bytes=0-1"), ("if-range", "\"a\""), ("if-range", "\"a\"")];
        assert_eq!(asked(&twice, &[("etag", "\"a\"")], 10), Cut::Whole);
    }

    proptest! {
        #[test]
        fn a_part_is_a_true_slice(range in "(bytes=)?[0-9a, -]{0,12}", body: Vec<u8>) {
            let complete = body.len() as u64;
            let Cut::Part(part) = asked(&[("range", &range)], &[], complete) else { return Ok(()) };
            let (first, last) = (part.first as usize, part.last as usize);
            let slice = part.of(&Bytes::from(body.clone()));
            prop_assert_eq!(&slice[..], &body[first..=last]);
            prop_assert_eq!(slice.len() as u64, part.length());
            let said = format!("bytes {first}-{last}/{complete}");
            prop_assert_eq!(part.content_range(), said.as_str());
        }

        #[test]
        fn no_bytes_make_it_panic(range: Vec<u8>, if_range: Vec<u8>, complete: u64) {
            let fields = [(header::RANGE, range), (header::IF_RANGE, if_range)];
            let fields = fields.into_iter().filter_map(|(name, value)| {
                Some((name, HeaderValue::try_from(value).ok()?))
            });
            let _ = cut(&fields.collect(), &HeaderMap::new(), complete, UNIX_EPOCH);
        }
    }
}
