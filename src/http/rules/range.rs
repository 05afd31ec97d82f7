//! Which part of a body a client asks for (RFC 9110, 14).

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};

use crate::http::rules::conditions::{EntityTag, entity_tag, only, only_date, unquoted_tag};
use crate::http::rules::members::number;

/// The longest `Range` that is read.
const MAX_RANGE_BYTES: usize = 2 << 10;

/// A set with more ranges is ignored (RFC 9110, 14.2): each range costs a comparison with all
/// others.
const MAX_RANGES: usize = 32;

/// Two parts with a smaller gap between them are sent as one. The head of a part takes more
/// bytes than that (RFC 9110, 15.3.7.2).
const MIN_GAP: u64 = 80;

/// What a request gets of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    Whole,
    Part(Part),
    /// Two or more that do not overlap, in the order in which the client asked for them.
    Parts(Vec<Part>),
    /// It asks for nothing that there is.
    Unsatisfiable,
    /// What it gets is known once more of the body has come.
    Later,
}

/// What is known of the length of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    Known(u64),
    /// So much has come.
    AtLeast(u64),
}

/// A part of a body; never empty, and never past its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    first: u64,
    last: u64,
    /// The length of the whole body, once it is known.
    complete: Option<u64>,
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
        let complete = complete.map_or("*".into(), |complete| complete.to_string());
        let value = HeaderValue::try_from(format!("bytes {first}-{last}/{complete}"));
        value.expect("digits are visible ASCII")
    }

    fn is_near(&self, other: &Self) -> bool {
        let is_soon_after = |a: &Self, b: &Self| a.first <= b.last.saturating_add(MIN_GAP);
        is_soon_after(self, other) && is_soon_after(other, self)
    }

    fn joined(&self, other: &Self) -> Self {
        let (first, last) = (self.first.min(other.first), self.last.max(other.last));
        Self { first, last, ..*self }
    }
}

/// The `Content-Range` of a 416.
pub(super) fn unsatisfied(complete: u64) -> HeaderValue {
    HeaderValue::try_from(format!("bytes */{complete}")).expect("digits are visible ASCII")
}

/// Reads the ranges of a GET whose whole answer is a 200 of this length.
///
/// An unreadable range is ignored, and so are more ranges than [`MAX_RANGES`]: the whole is
/// always a right answer (RFC 9110, 14.2).
pub(super) fn cut(
    request: &HeaderMap,
    response: &HeaderMap,
    length: Length,
    now: SystemTime,
) -> Cut {
    let asked = RangeSet::of(request).filter(|_| has_same(request, response, now));
    match (asked, length) {
        (Some(asked), Length::Known(complete)) => asked.cut(complete),
        (Some(asked), Length::AtLeast(come)) => asked.cut_early(come),
        (None, _) => Cut::Whole,
    }
}

/// Returns how much of a body must have come before a request gets its part, whatever the whole
/// length is.
pub(crate) fn bytes_needed(request: &HeaderMap) -> u64 {
    match RangeSet::of(request).as_ref().map(|asked| &asked.0[..]) {
        Some([RangeRequest::From { last, .. }]) => last.saturating_add(1),
        _ => u64::MAX,
    }
}

/// Returns whether a request counts in another unit than bytes. What such a range means, the
/// service alone knows.
pub(crate) fn is_of_other_unit(request: &HeaderMap) -> bool {
    let is_token = |unit: &[u8]| {
        !unit.is_empty() && unit.iter().all(|&b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
    };
    let unit = only(request, &header::RANGE).and_then(|line| split(line.as_bytes()));
    unit.is_some_and(|(unit, _)| is_token(unit) && !is_bytes(unit))
}

fn split(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let equals = line.iter().position(|&b| b == b'=')?;
    Some((&line[..equals], &line[equals + 1..]))
}

fn is_bytes(unit: &[u8]) -> bool {
    unit.eq_ignore_ascii_case(b"bytes")
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
        Cut::Part(Part { first, last, complete: Some(complete) })
    }
}

/// The ranges of one request, in its order.
#[derive(Debug)]
struct RangeSet(Vec<RangeRequest>);

impl RangeSet {
    fn of(request: &HeaderMap) -> Option<Self> {
        let line = only(request, &header::RANGE).filter(|line| line.len() <= MAX_RANGE_BYTES);
        Self::read(line?.as_bytes())
    }

    fn read(line: &[u8]) -> Option<Self> {
        let (_, set) = split(line).filter(|(unit, _)| is_bytes(unit))?;
        let members = set.split(|&b| b == b',').map(<[u8]>::trim_ascii).filter(|r| !r.is_empty());
        let mut ranges = Vec::new();
        for member in members {
            if ranges.len() == MAX_RANGES {
                return None;
            }
            ranges.push(read(member)?);
        }
        (!ranges.is_empty()).then_some(Self(ranges))
    }

    /// Cuts a part out of a body of unknown length, of which so much has come.
    fn cut_early(self, come: u64) -> Cut {
        match self.0[..] {
            [RangeRequest::From { first, last }] if last < come => {
                Cut::Part(Part { first, last, complete: None })
            }
            _ => Cut::Later,
        }
    }

    /// Ranges of which there is nothing are left out, and parts that overlap or are close to
    /// each other become one, in the place of the first (RFC 9110, 15.3.7.2).
    fn cut(self, complete: u64) -> Cut {
        let mut parts: Vec<Part> = Vec::new();
        for range in self.0 {
            let mut new = match range.cut(complete) {
                Cut::Part(part) => part,
                Cut::Unsatisfiable => continue,
                cut => return cut,
            };
            let mut place = parts.len();
            while let Some(near) = parts.iter().position(|part| part.is_near(&new)) {
                new = parts.remove(near).joined(&new);
                place = near.min(place);
            }
            parts.insert(place.min(parts.len()), new);
        }
        match parts[..] {
            [] => Cut::Unsatisfiable,
            [part] => Cut::Part(part),
            _ => Cut::Parts(parts),
        }
    }
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
pub(super) mod tests {
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
        cut(&headers(request), &headers(response), Length::Known(n), now)
    }

    fn part(first: u64, last: u64, complete: u64) -> Cut {
        Cut::Part(Part { first, last, complete: Some(complete) })
    }

    /// Returns all parts that a request gets of a body.
    pub(in crate::http::rules) fn parts_of(range: &str, complete: u64) -> Vec<Part> {
        match asked(&[("range", range)], &[], complete) {
            Cut::Part(part) => vec![part],
            Cut::Parts(parts) => parts,
            Cut::Whole | Cut::Unsatisfiable | Cut::Later => Vec::new(),
        }
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
    fn what_cannot_be_read_is_the_whole() {
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
            "bytes=0-1,x",
            "bytes=0-1, 2-1",
        ] {
            assert_eq!(asked(&[("range", range)], &[], 10), Cut::Whole, "{range}");
        }
        let twice = [("range", "bytes=0-1"), ("range", "bytes=0-1")];
        assert_eq!(asked(&twice, &[], 10), Cut::Whole);
        assert_eq!(asked(&[("range", "bytes=-5")], &[], 0), Cut::Whole, "all there is");
        assert_eq!(asked(&[("if-range", "\"a\"")], &[("etag", "\"a\"")], 10), Cut::Whole);
    }

    #[test]
    fn several_ranges_are_parts_that_do_not_overlap_in_the_order_of_the_request() {
        let sent = |range: &str| {
            let parts = parts_of(range, 1000);
            parts.iter().map(|part| (part.first, part.last)).collect::<Vec<_>>()
        };
        for (range, expected) in [
            ("bytes=0-1,500-501", &[(0, 1), (500, 501)][..]),
            ("bytes=500-501 , 0-1, ", &[(500, 501), (0, 1)]),
            ("bytes=0-9,5-14", &[(0, 14)]),
            ("bytes=5-14,0-9", &[(0, 14)]),
            ("bytes=0-9,0-9,0-9", &[(0, 9)]),
            ("bytes=0-9,10-19", &[(0, 19)]),
            ("bytes=0-9,89-90", &[(0, 90)]),
            ("bytes=0-9,90-91", &[(0, 9), (90, 91)]),
            ("bytes=0-0,900-901,300-301,1-299", &[(0, 301), (900, 901)]),
            ("bytes=900-901,0-0,-50,300-301", &[(900, 999), (0, 0), (300, 301)]),
            ("bytes=0-1,1000-1001,-0", &[(0, 1)]),
            ("bytes=0-,0-,0-,0-", &[(0, 999)]),
        ] {
            assert_eq!(sent(range), expected, "{range}");
        }
        let none = asked(&[("range", "bytes=1000-,2000-")], &[], 1000);
        assert_eq!(none, Cut::Unsatisfiable);
        assert_eq!(asked(&[("range", "bytes=-1,0-1")], &[], 0), Cut::Whole, "all there is");
    }

    #[test]
    fn a_part_of_a_body_without_a_length_is_cut_once_its_bytes_have_come() {
        let early = |range: &str, come| {
            let now = UNIX_EPOCH;
            let request = headers(&[("range", range)]);
            assert_eq!(bytes_needed(&request) <= come, come >= 10 && range == "bytes=2-9");
            cut(&request, &headers(&[]), Length::AtLeast(come), now)
        };
        let part = Part { first: 2, last: 9, complete: None };
        assert_eq!(early("bytes=2-9", 10), Cut::Part(part));
        assert_eq!(part.content_range(), "bytes 2-9/*");
        for (range, come) in [
            ("bytes=2-9", 9),
            ("bytes=2-", 10),
            ("bytes=-2", 10),
            ("bytes=0-1,8-9", 10),
            ("bytes=20-30", 10),
        ] {
            assert_eq!(early(range, come), Cut::Later, "{range}");
        }
        assert_eq!(early("items=0-1", 10), Cut::Whole);
    }

    #[test]
    fn a_set_of_too_many_ranges_is_ignored() {
        let ranges = |n: u64| {
            let ranges = (0..n).map(|i| format!("{0}-{0}", i * 100));
            format!("bytes={}", ranges.collect::<Vec<_>>().join(","))
        };
        assert_eq!(parts_of(&ranges(MAX_RANGES as u64), 10_000).len(), MAX_RANGES);
        let many = asked(&[("range", &ranges(MAX_RANGES as u64 + 1))], &[], 10_000);
        assert_eq!(many, Cut::Whole);
    }

    #[test]
    fn other_units_are_told_from_what_cannot_be_read() {
        for (range, expected) in [
            ("items=0-1", true),
            ("seconds=1-2", true),
            ("bytes=0-1", false),
            ("BYTES=x", false),
            ("bytes", false),
            ("", false),
            ("=0-1", false),
            ("by tes=0-1", false),
        ] {
            assert_eq!(is_of_other_unit(&headers(&[("range", range)])), expected, "{range}");
        }
        assert!(!is_of_other_unit(&headers(&[])));
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
        fn parts_hold_what_was_asked_for_and_never_overlap(
            ranges in proptest::collection::vec((0_u64..1200, 0_u64..1200), 1..MAX_RANGES),
            complete in 1_u64..1000,
        ) {
            let ranges: Vec<_> = ranges.into_iter().map(|(a, b)| (a.min(b), a.max(b))).collect();
            let text: Vec<_> = ranges.iter().map(|(a, b)| format!("{a}-{b}")).collect();
            let parts = parts_of(&format!("bytes={}", text.join(",")), complete);
            let holds = |at: u64| parts.iter().filter(|p| p.first <= at && at <= p.last).count();
            let is_asked = |at: u64| ranges.iter().any(|&(a, b)| a <= at && at <= b);
            for part in &parts {
                prop_assert!(part.first <= part.last && part.last < complete);
                prop_assert_eq!(part.complete, Some(complete));
                prop_assert!(is_asked(part.first) && is_asked(part.last));
            }
            for at in 0..complete {
                prop_assert!(holds(at) <= 1);
                prop_assert!(!is_asked(at) || holds(at) == 1);
            }
        }

        #[test]
        fn neighbouring_parts_put_together_are_the_body(
            body in proptest::collection::vec(any::<u8>(), 1..500),
            cuts in proptest::collection::vec(0_usize..500, 0..8),
        ) {
            let whole = Bytes::from(body);
            let mut cuts: Vec<_> = cuts.into_iter().map(|at| at % whole.len()).collect();
            cuts.extend([0, whole.len()]);
            cuts.sort_unstable();
            cuts.dedup();
            let mut joined = Vec::new();
            for ends in cuts.windows(2) {
                let range = format!("bytes={}-{}", ends[0], ends[1] - 1);
                for part in parts_of(&range, whole.len() as u64) {
                    joined.extend_from_slice(&part.of(&whole));
                }
            }
            prop_assert_eq!(&joined[..], &whole[..]);
        }

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
            let request = fields.collect();
            for length in [Length::Known(complete), Length::AtLeast(complete)] {
                let _ = cut(&request, &HeaderMap::new(), length, UNIX_EPOCH);
            }
            let _ = (bytes_needed(&request), is_of_other_unit(&request));
        }
    }
}
