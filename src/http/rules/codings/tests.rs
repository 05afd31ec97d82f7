use super::*;
use crate::http::tests::reference::codings as reference;
use http::HeaderName;
use proptest::prelude::*;

fn headers(name: &HeaderName, values: &[&str]) -> HeaderMap {
    let values = values.iter().map(|value| HeaderValue::from_bytes(value.as_bytes()).unwrap());
    values.map(|value| (name.clone(), value)).collect()
}

fn request(values: &[&str]) -> HeaderMap {
    headers(&header::ACCEPT_ENCODING, values)
}

fn of(values: &[&str]) -> Accepted {
    Accepted::of(&request(values), &HttpConfig::default()).unwrap()
}

fn forwarded(values: &[&str]) -> Option<String> {
    let mut headers = request(values);
    reduce(&mut headers, &HttpConfig::default());
    assert!(headers.get_all(header::ACCEPT_ENCODING).iter().count() <= 1);
    headers.get(header::ACCEPT_ENCODING).map(|value| value.to_str().unwrap().to_owned())
}

#[test]
fn spellings_that_mean_the_same_reach_the_origin_as_one() {
    for (values, expected) in [
        (
            &[
                &["gzip"][..],
                &["GZIP;q=1.0"],
                &["gzip;q=0.001"],
                &["gzip ; Q = 0.5"],
                &["x-gzip"],
                &["gzip, gzip"],
                &["gzip", "x-GZIP"],
                &[" ,, gzip,"],
                &["identity, gzip"],
                &["gzip, br;q=0"],
                &["br;q=0.0000, gzip"],
                &["gzip;q=1, foo"],
                &["gzip;level=9"],
                &["identity;q=0.5, gzip, *;q=0"],
                &["gzip, identity;q=bad"],
                &["gzip, br;q=2"],
            ][..],
            "gzip",
        ),
        (&[&["gzip, br"], &["br", "gzip"], &["br;q=0.1,gzip"]], "gzip, br"),
        (
            &[&["*"], &["*;q=0.1"], &["br, *"], &["gzip, deflate, br, zstd"]],
            "gzip, deflate, br, zstd",
        ),
        (&[&["*, gzip;q=0"]], "deflate, br, zstd"),
        (
            &[&[""], &["identity"], &["gzip;q=0"], &["foo"], &["gzip, gzip;q=0"], &["compresss"]],
            "identity",
        ),
        (&[&["gzip, identity;q=0"], &["gzip, *;q=0"], &["*;q=0, gzip;q=1"]], "gzip, identity;q=0"),
        (&[&["*;q=0"], &["identity;q=0"], &["identity;q=0.000, foo"]], "identity;q=0"),
        (&[&["compress, dcb"], &["x-compress;q=1,DCB"]], "compress, dcb"),
    ] {
        for value in values {
            assert_eq!(forwarded(value).as_deref(), Some(expected), "{value:?}");
        }
    }
    assert_eq!(forwarded(&[]), None, "a request without the field stays without it");
}

#[test]
fn the_field_stays_as_it_is_where_the_handler_reads_it() {
    let config = HttpConfig { normalise_accept: false, ..HttpConfig::default() };
    let mut headers = request(&["br;q=0.1", "GZIP"]);
    reduce(&mut headers, &config);
    assert_eq!(headers, request(&["br;q=0.1", "GZIP"]));
}

#[test]
fn a_field_that_is_too_long_accepts_no_coding() {
    let long = format!("gzip, {}", "x,".repeat(MAX_BYTES / 2));
    assert_eq!(forwarded(&[&long]).as_deref(), Some("identity"));
    let long = "gzip,".repeat(MAX_BYTES / 5);
    assert_eq!(forwarded(&[&long]).as_deref(), Some("gzip"));
}

#[test]
fn a_value_that_stands_for_several_requests_is_not_read() {
    let value = HeaderValue::from_bytes(b"\xffgzip").unwrap();
    let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, value)]);
    assert_eq!(Accepted::of(&headers, &HttpConfig::default()), None);
}

#[test]
fn the_coding_of_a_response_is_read_in_any_spelling() {
    for (values, expected) in [
        (&[][..], Coding::Plain),
        (&["identity"], Coding::Plain),
        (&[""], Coding::Plain),
        (&["GZip"], Coding::Gzip),
        (&["x-gzip"], Coding::Gzip),
        (&["identity, br"], Coding::Br),
        (&["gzip, br"], Coding::Other),
        (&["gzip", "gzip"], Coding::Other),
        (&["aes128gcm"], Coding::Other),
    ] {
        let headers = headers(&header::CONTENT_ENCODING, values);
        assert_eq!(Coding::of_response(&headers), expected, "{values:?}");
    }
}

/// Returns whether the answer to `first`, coded so, answers `second` too.
fn shares(first: &[&str], response: Coding, second: &[&str]) -> bool {
    let (first, second) = (of(first), of(second));
    assert!(!first.refuses(response), "it would not be stored");
    let chosen = first.chosen(response);
    let is_same = chosen != Coding::Other || first.as_bytes() == second.as_bytes();
    is_same && second.is_answered_by(chosen)
}

#[test]
fn a_coded_body_answers_requests_that_accept_its_coding() {
    for (second, expected) in [
        (&["gzip;q=0.1, br"][..], true),
        (&["*"], true),
        (&["x-gzip, identity;q=0"], true),
        (&["br"], false),
        (&["*, gzip;q=0"], false),
        (&["identity"], false),
        (&[""], false),
        (&[], false),
    ] {
        assert_eq!(shares(&["gzip"], Coding::Gzip, second), expected, "{second:?}");
    }
}

#[test]
fn a_plain_body_answers_requests_that_do_not_refuse_it() {
    for (first, second, expected) in [
        (&["gzip, br"][..], &["gzip"][..], true),
        (&["gzip"], &["gzip, br"], true),
        (&["gzip"], &["br"], true),
        (&["gzip"], &[], true),
        (&["gzip"], &["gzip, identity;q=0"], false),
        (&["gzip"], &["gzip, *;q=0"], false),
        // Of the first, the origin does not know whether it compresses for the second.
        (&["identity"], &["gzip"], false),
        (&[], &["gzip, br"], false),
        (&["br"], &["gzip"], false),
        (&["identity"], &["br"], true),
        (&["identity"], &[], true),
        (&[], &["gzip;q=0"], true),
    ] {
        assert_eq!(shares(first, Coding::Plain, second), expected, "{first:?} {second:?}");
    }
}

#[test]
fn a_coding_that_was_not_accepted_answers_only_requests_that_accept_the_same() {
    for (first, response, second, expected) in [
        (&[][..], Coding::Gzip, &[][..], true),
        (&[], Coding::Gzip, &["identity"], false),
        (&[], Coding::Gzip, &["gzip"], false),
        (&["identity"], Coding::Gzip, &["identity"], true),
        (&["identity"], Coding::Gzip, &["identity, gzip;q=0"], false),
        (&["gzip"], Coding::Other, &["GZIP"], true),
        (&["gzip"], Coding::Other, &["gzip, *;q=0"], false),
        (&["gzip"], Coding::Other, &["gzip, br"], false),
    ] {
        let found = shares(first, response, second);
        assert_eq!(found, expected, "{first:?} {response:?} {second:?}");
    }
}

#[test]
fn an_answer_to_a_request_that_refuses_plain_bodies_is_for_its_like() {
    // The origin may have answered with an error, and have coded that.
    assert!(!shares(&["gzip, identity;q=0"], Coding::Gzip, &["gzip"]));
    assert!(shares(&["gzip, identity;q=0"], Coding::Gzip, &["GZIP, identity;q=0.0"]));
    assert!(of(&["gzip, identity;q=0"]).refuses(Coding::Plain));
}

#[test]
fn the_preferred_coding_of_those_that_are_known_is_looked_for_first() {
    let known = |all: &[Coding]| all.iter().fold(Codings::NONE, |known, one| known.with(*one));
    let among = |values: &[&str], all: &[Coding]| -> Vec<_> {
        of(values).among(known(all)).iter().collect()
    };
    use Coding::{Bare, Br, Gzip, Other, Plain};
    assert_eq!(among(&["gzip, br"], &[Gzip, Br]), [Br, Gzip]);
    assert_eq!(among(&["gzip"], &[Gzip, Br]), [Gzip]);
    assert_eq!(among(&["gzip"], &[Gzip, Plain]), [Plain, Gzip], "it compresses no more");
    assert_eq!(among(&["gzip"], &[Plain, Gzip]), [Gzip, Plain]);
    assert_eq!(among(&["identity"], &[Gzip, Plain, Bare]), [Plain, Bare]);
    assert_eq!(among(&[], &[Gzip]), [Bare], "what is not known");
    assert_eq!(among(&["br, gzip"], &[]), [Gzip]);
    assert_eq!(among(&["gzip"], &[Bare]), [Gzip]);
    assert_eq!(among(&["identity;q=0"], &[Plain]), [Other]);
}

fn member() -> impl Strategy<Value = String> {
    const NAMES: &[&str] =
        &["gzip", "X-GZIP", "br", "zstd", "deflate", "identity", "*", "foo", "dcz", ""];
    const WEIGHTS: &[&str] = &["", "", ";q=0", "; Q=0.00 ", ";q=0.001", " ;q=1"];
    let (names, weights) = (proptest::sample::select(NAMES), proptest::sample::select(WEIGHTS));
    (names, weights).prop_map(|(name, weight)| format!("{name}{weight}"))
}

proptest! {
    #[test]
    fn what_the_reference_refuses_is_refused_and_what_is_taken_is_acceptable(
        lines in proptest::collection::vec(proptest::collection::vec(member(), 0..5), 0..3),
    ) {
        let lines: Vec<_> = lines.iter().map(|members| members.join(",")).collect();
        let accepted = of(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        for (coding, name) in Coding::NAMED {
            prop_assert_eq!(accepted.refuses(coding), reference::refuses(&lines, name), "{}", name);
            let may = reference::accepts(&lines, name);
            prop_assert!(may || !accepted.is_answered_by(coding), "{}", name);
        }
        let plain = reference::accepts(&lines, "identity");
        prop_assert_eq!(accepted.is_answered_by(Coding::Plain), plain);
        prop_assert!(plain || !accepted.is_answered_by(Coding::Bare));
    }

    #[test]
    fn no_bytes_make_it_panic(lines: Vec<Vec<u8>>) {
        let lines = lines.into_iter().filter_map(|line| HeaderValue::try_from(line).ok());
        let mut headers: HeaderMap = lines.map(|line| (header::ACCEPT_ENCODING, line)).collect();
        reduce(&mut headers, &HttpConfig::default());
        let again = headers.clone();
        reduce(&mut headers, &HttpConfig::default());
        prop_assert_eq!(headers, again, "the form that the origin gets is its own");
    }
}
