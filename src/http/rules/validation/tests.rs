use crate::http::body::Content;
use crate::http::rules::validation::*;
use http::HeaderName;
use proptest::prelude::*;
use std::time::Duration;

use crate::http::config::HttpConfig;
use crate::http::stored::response::CachedResponse;
use crate::http::tests::storable::{anonymous, decide, response};

const DAY: &str = "Wed, 01 Jan 2020 00:00:00 GMT";
const NEXT_DAY: &str = "Thu, 02 Jan 2020 00:00:00 GMT";
const RECEIVED: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

type Fields<'a> = &'a [(&'a str, &'a str)];

fn headers(fields: Fields<'_>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        let name = HeaderName::try_from(*name).unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

fn shown(headers: &HeaderMap) -> Vec<(&str, &str)> {
    let fields = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
    let mut fields: Vec<_> = fields.collect();
    // Stable: values of one name stay in their order.
    fields.sort_by_key(|(name, _)| *name);
    fields
}

fn received() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(784_111_777)
}

fn of(fields: Fields<'_>) -> Option<Validators> {
    Validators::of(&headers(fields))
}

#[test]
fn the_validators_of_a_response_are_asked_about_as_they_were_sent() {
    for (row, stored, asked) in [
        ("9111 4.3.1 tag", vec![("etag", "\"a\"")], vec![("if-none-match", "\"a\"")]),
        ("not quoted", vec![("etag", "a")], vec![("if-none-match", "a")]),
        ("9110 8.8.3 weak", vec![("etag", "W/\"a\"")], vec![("if-none-match", "W/\"a\"")]),
        ("9111 4.3.1 date", vec![("last-modified", DAY)], vec![("if-modified-since", DAY)]),
        (
            "9111 4.3.1 both",
            vec![("etag", "\"a\""), ("last-modified", DAY)],
            vec![("if-modified-since", DAY), ("if-none-match", "\"a\"")],
        ),
        (
            "9110 13.1.3 no date",
            vec![("etag", "\"a\""), ("last-modified", "yesterday")],
            vec![("if-none-match", "\"a\"")],
        ),
    ] {
        let mut request = headers(&[
            ("accept", "*/*"),
            ("if-none-match", "\"mine\""),
            ("if-none-match", "\"mine too\""),
            ("if-modified-since", NEXT_DAY),
            ("if-match", "*"),
            ("if-unmodified-since", NEXT_DAY),
            ("if-range", "\"mine\""),
        ]);
        ask(&mut request, &of(&stored).unwrap());
        let mut expected = vec![("accept", "*/*")];
        expected.extend(asked);
        assert_eq!(shown(&request), expected, "{row}");
    }
}

#[test]
fn what_identifies_nothing_is_no_validator() {
    for stored in [
        vec![],
        vec![("etag", "")],
        vec![("etag", "\"a")],
        vec![("etag", "\"a\"b")],
        vec![("etag", "W/\"a")],
        vec![("etag", "\"a\""), ("etag", "\"b\"")],
        vec![("last-modified", "yesterday")],
        vec![("last-modified", DAY), ("last-modified", NEXT_DAY)],
        vec![("date", DAY)],
    ] {
        assert_eq!(of(&stored), None, "{stored:?}");
    }
}

#[test]
fn only_a_stored_200_is_validated() {
    for status in [200, 203, 204, 301, 404, 410] {
        let fields = [("cache-control", "max-age=1"), ("etag", "\"a\"")];
        let head = response(status, &fields);
        let Ok(plan) = decide(&anonymous(), &head, None, &HttpConfig::default()) else {
            panic!("{status} is stored")
        };
        let asked = anonymous();
        let stored =
            CachedResponse::new(&head, Content::Whole("x".into()), &plan, &asked, None, received());
        assert_eq!(stored.validators().is_some(), status == 200, "{status}");
    }
}

#[test]
fn a_304_is_about_the_stored_response_or_about_none() {
    let tag = |tag| vec![("etag", tag)];
    for (row, stored, not_modified, confirmed) in [
        ("9111 4.3.4 none in it", tag("\"a\""), vec![], true),
        ("9111 4.3.4 the same strong one", tag("\"a\""), tag("\"a\""), true),
        ("9111 4.3.4 another strong one", tag("\"a\""), tag("\"b\""), false),
        ("9110 8.8.3.2 strong for a weak one", tag("W/\"a\""), tag("\"a\""), false),
        ("9110 8.8.3.2 weak for a strong one", tag("\"a\""), tag("W/\"a\""), true),
        ("9110 8.8.3.2 weak for a weak one", tag("W/\"a\""), tag("W/\"a\""), true),
        ("9111 4.3.4 another weak one", tag("W/\"a\""), tag("W/\"b\""), false),
        ("9111 4.3.4 one where none was", vec![("last-modified", DAY)], tag("\"a\""), false),
        ("not quoted", tag("a"), tag("a"), true),
        ("not quoted, another", tag("a"), tag("b"), false),
        ("quoted on one side", tag("a"), tag("\"a\""), false),
        ("quoted on the other side", tag("\"a\""), tag("a"), false),
        ("several tags", tag("\"a\""), vec![("etag", "\"a\""), ("etag", "\"b\"")], false),
        ("same date", vec![("last-modified", DAY)], vec![("last-modified", DAY)], true),
        ("other date", vec![("last-modified", DAY)], vec![("last-modified", NEXT_DAY)], false),
        ("a date where none was", tag("\"a\""), vec![("last-modified", DAY)], false),
        (
            "9111 4.3.4 the tag decides",
            vec![("etag", "\"a\""), ("last-modified", DAY)],
            vec![("etag", "\"a\""), ("last-modified", NEXT_DAY)],
            true,
        ),
    ] {
        let confirms = of(&stored).unwrap().are_confirmed_by(&headers(&not_modified));
        assert_eq!(confirms, confirmed, "{row}");
    }
}

#[test]
fn a_head_is_about_the_stored_response_if_its_validators_agree() {
    let stored = [("etag", "\"a\""), ("last-modified", DAY)];
    for (row, head, agrees) in [
        ("9111 4.3.5 both", vec![("etag", "\"a\""), ("last-modified", DAY)], true),
        ("9111 4.3.5 only received ones count", vec![("etag", "\"a\"")], true),
        (
            "9111 4.3.5 one of them differs",
            vec![("etag", "\"a\""), ("last-modified", NEXT_DAY)],
            false,
        ),
        ("9111 4.3.5 another tag", vec![("etag", "\"b\"")], false),
        ("a weak tag says too little", vec![("etag", "W/\"a\"")], false),
        ("none says nothing", vec![], false),
    ] {
        assert_eq!(of(&stored).unwrap().agree_with(&headers(&head)), agrees, "{row}");
    }
}

#[test]
fn the_fields_of_a_304_replace_the_stored_ones_but_not_those_of_its_own_message() {
    for (row, stored, not_modified, merged) in [
        (
            "9111 3.2 replaced, added, kept",
            vec![("x-a", "1"), ("x-b", "1")],
            vec![("x-b", "2"), ("x-c", "2")],
            vec![("date", RECEIVED), ("x-a", "1"), ("x-b", "2"), ("x-c", "2")],
        ),
        (
            "repeated fields survive in order",
            vec![("vary", "a"), ("x-a", "1"), ("x-a", "2"), ("x-b", "1"), ("x-b", "2")],
            vec![("x-b", "4"), ("x-b", "3"), ("x-b", "4")],
            vec![
                ("date", RECEIVED),
                ("vary", "a"),
                ("x-a", "1"),
                ("x-a", "2"),
                ("x-b", "4"),
                ("x-b", "3"),
                ("x-b", "4"),
            ],
        ),
        (
            "9111 3.2 what describes the body, and cookies",
            vec![("content-length", "36"), ("content-encoding", "br"), ("set-cookie", "a=b")],
            vec![
                ("content-length", "10"),
                ("content-encoding", "gzip"),
                ("content-range", "bytes 0-1/2"),
                ("set-cookie", "a=c"),
            ],
            vec![
                ("content-encoding", "br"),
                ("content-length", "36"),
                ("date", RECEIVED),
                ("set-cookie", "a=b"),
            ],
        ),
        (
            "9111 3.1 connection fields",
            vec![("x-mine", "1")],
            vec![
                ("connection", "x-mine, close"),
                ("x-mine", "2"),
                ("keep-alive", "timeout=5"),
                ("transfer-encoding", "chunked"),
                ("upgrade", "h2c"),
                ("te", "trailers"),
                ("proxy-connection", "close"),
                ("proxy-authenticate", "Basic"),
                ("proxy-authentication-info", "x"),
                ("proxy-authorization", "x"),
            ],
            vec![("date", RECEIVED), ("x-mine", "1")],
        ),
        (
            "9111 5.1 the stored age is over",
            vec![("age", "7"), ("cache-status", "")],
            vec![],
            vec![("date", RECEIVED)],
        ),
        (
            "9111 4.2.3 the new one counts",
            vec![("age", "7"), ("date", DAY)],
            vec![("age", "3"), ("date", NEXT_DAY)],
            vec![("age", "3"), ("date", NEXT_DAY)],
        ),
        (
            "9110 6.6.1 a date that is none is of when it came",
            vec![("date", DAY)],
            vec![("date", "today")],
            vec![("date", RECEIVED)],
        ),
        (
            "9211 2 what caches before us wrote stays",
            vec![("cache-status", "Upstream; hit")],
            vec![],
            vec![("cache-status", "Upstream; hit"), ("date", RECEIVED)],
        ),
    ] {
        let merged_now = merge(&headers(&stored), &headers(&not_modified), received());
        assert_eq!(shown(&merged_now), merged, "{row}");
    }
}

fn any_headers() -> impl Strategy<Value = HeaderMap> {
    let names = prop::sample::select(vec![
        "etag",
        "last-modified",
        "connection",
        "age",
        "date",
        "x-a",
        "content-length",
        "cache-status",
    ]);
    let field = (names, any::<Vec<u8>>());
    prop::collection::vec(field, 0..12).prop_map(|fields| {
        let fields = fields.into_iter().filter_map(|(name, value)| {
            Some((HeaderName::from_static(name), HeaderValue::from_bytes(&value).ok()?))
        });
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, value);
        }
        headers
    })
}

proptest! {
    #[test]
    fn whatever_the_fields_are_the_length_and_encoding_of_the_body_stay(
        stored in any_headers(), newer in any_headers(),
    ) {
        let merged = merge(&stored, &newer, received());
        let lengths = |headers: &HeaderMap| -> Vec<_> {
            headers.get_all(header::CONTENT_LENGTH).iter().cloned().collect()
        };
        prop_assert_eq!(lengths(&merged), lengths(&stored));
        prop_assert!(merged.get_all(header::DATE).iter().count() == 1);
        if let Some(validators) = Validators::of(&stored) {
            prop_assert!(validators.are_confirmed_by(&HeaderMap::new()));
            let _ = validators.agree_with(&newer);
        }
    }
}
