//! Conditions that a client sets on a response (RFC 9110, 13; RFC 9111, 4.3.2).

use std::time::SystemTime;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use crate::http::rules::date;
use crate::http::rules::request::bytes_of;

/// A validator of one representation (RFC 9110, 8.8.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntityTag<'a> {
    pub(super) is_weak: bool,
    opaque: &'a [u8],
}

impl<'a> EntityTag<'a> {
    /// Reads a tag and nothing else. What stands between its quotation marks
    /// is compared byte for byte, whatever it is.
    pub(super) fn read(text: &'a [u8]) -> Option<Self> {
        Self::split(text).filter(|(_, rest)| rest.is_empty()).map(|(tag, _)| tag)
    }

    fn split(text: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (is_weak, text) = match text {
            [b'W', b'/', text @ ..] => (true, text),
            text => (false, text),
        };
        let text = text.strip_prefix(b"\"")?;
        let end = text.iter().position(|&b| b == b'"')?;
        Some((Self { is_weak, opaque: &text[..end] }, &text[end + 1..]))
    }

    /// Returns whether a text is a tag without quotation marks. Some origins send such tags;
    /// they are compared byte by byte, and with nothing else.
    fn is_unquoted(text: &[u8]) -> bool {
        !matches!(text, [] | [b'"', ..] | [b'W', b'/', b'"', ..])
    }

    /// Compares for use in place of the whole: bytes may differ in nothing.
    pub(super) fn is_same_strongly(&self, other: &Self) -> bool {
        self == other && !self.is_weak
    }

    pub(super) fn is_same_weakly(&self, other: &Self) -> bool {
        self.opaque == other.opaque
    }
}

/// The longest list of entity tags that is read, in bytes: clients name the few responses that
/// they have.
const MAX_TAGS_BYTES: usize = 2 << 10;

/// The members of a list of entity tags.
struct EntityTags<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for EntityTags<'a> {
    type Item = EntityTag<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.rest.iter().position(|b| !matches!(b, b',' | b' ' | b'\t'))?;
        let found = EntityTag::split(&self.rest[start..])
            .filter(|(_, rest)| matches!(rest.trim_ascii_start(), [] | [b',', ..]));
        // What is no tag ends the line: where the next one begins is unknown,
        // and a match too few costs a body, one too many a wrong page.
        self.rest = found.map_or(&[], |(_, rest)| rest);
        found.map(|(tag, _)| tag)
    }
}

/// Returns whether a client that sent these conditions has the response
/// already. Asked for GET and HEAD only, and of a 2xx.
pub(super) fn is_not_modified(request: &HeaderMap, response: &HeaderMap, now: SystemTime) -> bool {
    // RFC 9110, 13.2.2: where there is a tag, dates say nothing.
    if request.contains_key(header::IF_NONE_MATCH) {
        return names_tag_of(request, response);
    }
    let Some(since) = only_date(request, &header::IF_MODIFIED_SINCE, now) else { return false };
    modified(response, now) <= since
}

fn names_tag_of(request: &HeaderMap, response: &HeaderMap) -> bool {
    if only(request, &header::IF_NONE_MATCH).is_some_and(|line| line.as_bytes() == b"*") {
        return true;
    }
    if let Some(ours) = unquoted_tag(response) {
        let theirs = only(request, &header::IF_NONE_MATCH);
        return theirs.is_some_and(|theirs| theirs == ours);
    }
    let Some(ours) = entity_tag(response) else { return false };
    // A match too few costs a body.
    if bytes_of(request, &header::IF_NONE_MATCH) > MAX_TAGS_BYTES {
        return false;
    }
    let lines = request.get_all(header::IF_NONE_MATCH).into_iter();
    lines.flat_map(|line| EntityTags { rest: line.as_bytes() }).any(|tag| tag.is_same_weakly(&ours))
}

/// Returns when a response was last modified, or else made, or else received.
fn modified(response: &HeaderMap, received: SystemTime) -> SystemTime {
    only_date(response, &header::LAST_MODIFIED, received)
        .or_else(|| only_date(response, &header::DATE, received))
        .unwrap_or(received)
}

/// Returns the tag of a response, if it has exactly one.
pub(super) fn entity_tag(response: &HeaderMap) -> Option<EntityTag<'_>> {
    EntityTag::read(only(response, &header::ETAG)?.as_bytes())
}

/// Returns the tag of a response, if it has exactly one, and that has no quotation marks.
pub(super) fn unquoted_tag(response: &HeaderMap) -> Option<&HeaderValue> {
    only(response, &header::ETAG).filter(|tag| EntityTag::is_unquoted(tag.as_bytes()))
}

/// Returns whether a response has a tag by which it can be told from others.
pub(super) fn has_tag(response: &HeaderMap) -> bool {
    entity_tag(response).is_some() || unquoted_tag(response).is_some()
}

/// Returns the date in a field that stands there once; an invalid one is none.
pub(super) fn only_date(
    headers: &HeaderMap,
    name: &HeaderName,
    now: SystemTime,
) -> Option<SystemTime> {
    date::parse(only(headers, name)?.as_bytes(), now)
}

/// Returns the value of a field that stands there once.
pub(super) fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next()?;
    lines.next().is_none().then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderName;
    use proptest::prelude::*;
    use std::time::{Duration, UNIX_EPOCH};

    const EARLIER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const THEN: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const LATER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(784_111_777)
    }

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let fields = fields.iter().map(|&(name, value)| {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            (HeaderName::from_static(name), value)
        });
        fields.collect()
    }

    fn not_modified(request: &[(&'static str, &str)], response: &[(&'static str, &str)]) -> bool {
        is_not_modified(&headers(request), &headers(response), now())
    }

    #[test]
    fn tags_that_are_too_long_match_nothing() {
        let matches = |tags: usize| {
            let line = "\"x\",".repeat(tags) + "\"y\"";
            not_modified(&[("if-none-match", &line)], &[("etag", "\"y\"")])
        };
        assert!(matches(100));
        assert!(!matches(1000), "a body that was not needed");
    }

    #[test]
    fn tags_are_compared_weakly_and_in_lists() {
        // RFC 9110, 8.8.3.2 (the table), 13.1.2, 5.6.1 (lists)
        for (etag, line, expected) in [
            ("\"a\"", "\"a\"", true),
            ("W/\"a\"", "W/\"a\"", true),
            ("W/\"a\"", "\"a\"", true),
            ("\"a\"", "W/\"a\"", true),
            ("W/\"a\"", "W/\"b\"", false),
            ("\"a\"", "\"A\"", false),
            ("\"\"", "\"\"", true),
            ("\"a\"", "\"b\", \"a\"", true),
            ("\"a\"", "\"a\",\"b\"", true),
            ("\"a\"", " ,, \"b\" ,\tW/\"a\" ,", true),
            ("\"a, b\"", "\"c\", \"a, b\"", true),
            ("\"b\"", "\"a, \"b\"", false),
            ("\"é\"", "\"é\"", true),
            ("\"a\"", "*", true),
            ("x", "*", true),
            ("\"a\"", "*, \"a\"", false),
            ("\"a\"", "a", false),
            // Not quoted: byte by byte.
            ("a", "a", true),
            ("a", "b", false),
            ("a", "A", false),
            ("a", "\"a\"", false),
            ("a", "W/a", false),
            ("a", "a, b", false),
            ("a", "b, a", false),
            ("a, b", "a, b", true),
            ("a, b", "a,b", false),
            ("W/a", "W/a", true),
            ("W/a", "a", false),
            ("w/\"a\"", "w/\"a\"", true),
            ("\"a", "\"a", false),
            ("\"a\"", "\"a\"x", false),
            ("\"a\"", "x, \"a\"", false),
            ("\"a\"", "\"a", false),
            ("\"a\"", "", false),
        ] {
            let found = not_modified(&[("if-none-match", line)], &[("etag", etag)]);
            assert_eq!(found, expected, "{etag} {line}");
        }
    }

    #[test]
    fn lists_go_on_over_lines_and_a_star_stands_alone() {
        let etag = [("etag", "\"b\"")];
        let ask = |second| not_modified(&[("if-none-match", "\"a\""), second], &etag);
        assert!(ask(("if-none-match", "\"b\"")));
        assert!(!ask(("if-none-match", "*")));
        assert!(!not_modified(&[("if-none-match", "\"a\"")], &[]), "there is no tag");
        let twice = [("etag", "\"a\""), ("etag", "\"a\"")];
        assert!(!not_modified(&[("if-none-match", "\"a\"")], &twice), "there are two");
    }

    #[test]
    fn dates_count_where_there_is_no_tag() {
        // RFC 9110, 13.1.3 and 13.2.2; RFC 9111, 4.3.2
        let asked = |since| [("if-modified-since", since)];
        for (since, response, expected) in [
            (THEN, &[("last-modified", THEN)][..], true),
            (LATER, &[("last-modified", THEN)], true),
            (EARLIER, &[("last-modified", THEN)], false),
            ("Sunday, 06-Nov-94 08:49:37 GMT", &[("last-modified", THEN)], true),
            ("Sun Nov  6 08:49:37 1994", &[("last-modified", THEN)], true),
            (THEN, &[("last-modified", THEN), ("date", LATER)], true),
            (THEN, &[("date", THEN)], true),
            (THEN, &[("date", LATER)], false),
            (THEN, &[], true),
            (EARLIER, &[], false),
            (THEN, &[("last-modified", "x"), ("date", LATER)], false),
            (
                THEN,
                &[("last-modified", EARLIER), ("last-modified", EARLIER), ("date", LATER)],
                false,
            ),
            ("x", &[("last-modified", THEN)], false),
            ("0", &[("last-modified", THEN)], false),
        ] {
            assert_eq!(not_modified(&asked(since), response), expected, "{since} {response:?}");
        }
    }

    #[test]
    fn a_date_that_stands_there_twice_is_ignored() {
        let twice = [("if-modified-since", THEN), ("if-modified-since", THEN)];
        assert!(!not_modified(&twice, &[("last-modified", THEN)]));
    }

    #[test]
    fn a_tag_goes_before_a_date_also_where_it_is_none() {
        let response = [("etag", "\"a\""), ("last-modified", THEN)];
        for (tag, since, expected) in
            [("\"a\"", EARLIER, true), ("\"b\"", LATER, false), ("x", LATER, false)]
        {
            let request = [("if-none-match", tag), ("if-modified-since", since)];
            assert_eq!(not_modified(&request, &response), expected, "{tag} {since}");
        }
        assert!(!not_modified(&[], &response), "nothing was asked");
    }

    #[test]
    fn only_equal_strong_tags_are_strongly_the_same() {
        // RFC 9110, 8.8.3.2
        for (a, b, expected) in [
            ("\"a\"", "\"a\"", true),
            ("W/\"a\"", "W/\"a\"", false),
            ("W/\"a\"", "\"a\"", false),
            ("\"a\"", "\"b\"", false),
        ] {
            let [a, b] = [a, b].map(|tag| EntityTag::read(tag.as_bytes()).unwrap());
            assert_eq!(a.is_same_strongly(&b), expected, "{a:?} {b:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(lines: Vec<Vec<u8>>, etag: Vec<u8>, tags in "[W/\", *a]{0,20}") {
            let mut request = HeaderMap::new();
            let lines = lines.into_iter().chain([tags.into_bytes()]);
            for line in lines.filter_map(|line| HeaderValue::try_from(line).ok()) {
                request.append(header::IF_NONE_MATCH, line.clone());
                request.append(header::IF_MODIFIED_SINCE, line);
            }
            let mut response = HeaderMap::new();
            if let Ok(etag) = HeaderValue::try_from(etag) {
                response.insert(header::ETAG, etag);
            }
            let _ = is_not_modified(&request, &response, now());
        }
    }
}
