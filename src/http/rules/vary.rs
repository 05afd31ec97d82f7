//! Which of several responses of one URI a request selects (RFC 9111, 4.1).

use std::cmp::Reverse;
use std::sync::Arc;

use http::header::{self, HeaderMap, HeaderName};

use crate::http::config::HttpConfig;
use crate::http::rules::codings::{Accepted, Coding, Codings};
use crate::http::rules::decline_reason::DeclineReason;
use crate::http::rules::field_names::is_read_as;
use crate::http::rules::members::is_token;
use crate::http::rules::request::is_too_long;
use crate::key::{KeyKind, VARIANT_HEAD};
use crate::weigh::allocated;
use crate::{Key, KeyBuf};

/// How keys of variants begin; neither primary keys nor user's keys do.
const VARIANT: [u8; 2] = KeyKind::Variant.start();

/// The fields that select a variant: sorted, each once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct VaryList(Arc<[HeaderName]>);

impl VaryList {
    fn new(mut names: Vec<HeaderName>) -> Self {
        names.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
        names.dedup();
        Self(names.into())
    }

    /// Returns the list of a URI that has a coded response: codings select there, also where the
    /// origin does not say so (RFC 9110, 12.5.5, asks it to).
    pub(crate) fn with_codings(list: Option<&Self>) -> Self {
        let names = list.into_iter().flat_map(Self::names).cloned();
        Self::new(names.chain([header::ACCEPT_ENCODING]).collect())
    }

    /// Returns what the list takes in memory; each entry has one of its own.
    pub(crate) fn heap_bytes(&self) -> usize {
        let counts = 2 * size_of::<usize>();
        let names = self.0.iter().map(|name| allocated(name.as_str().len()));
        allocated(counts + size_of_val(&*self.0)) + names.sum::<usize>()
    }

    /// Takes names that another list was made of; `None` if none was.
    #[cfg(feature = "remote")]
    pub(crate) fn from_wire(names: Vec<HeaderName>) -> Option<Self> {
        let is_sorted = names.is_sorted_by(|a, b| a.as_str() < b.as_str());
        (is_sorted && !names.is_empty()).then(|| Self(names.into()))
    }

    pub(crate) fn names(&self) -> &[HeaderName] {
        &self.0
    }

    pub(crate) fn contains(&self, name: &HeaderName) -> bool {
        self.0.binary_search_by(|own| own.as_str().cmp(name.as_str())).is_ok()
    }

    /// Returns whether a field selects a variant: also where CGI reads its name
    /// as one of these.
    pub(crate) fn selects(&self, name: &HeaderName) -> bool {
        self.contains(name) || self.has_as_other(name)
    }

    fn has_as_other(&self, name: &HeaderName) -> bool {
        let name = name.as_str();
        name.contains('_') && self.0.iter().any(|own| is_read_as(name, own.as_str()))
    }
}

/// The most fields that may select a variant: each costs a look-up at every
/// request for its URI. More select nothing that would be asked for again.
pub(crate) const MAX_NAMES: usize = 256;

/// Reads `Vary`; `extra` fields count as if they stood there. Declined is a response whose variant
/// no other request ever selects.
pub(crate) fn parse(
    headers: &HeaderMap,
    extra: &[HeaderName],
) -> Result<Option<VaryList>, DeclineReason> {
    let mut names = extra.to_vec();
    for line in headers.get_all(header::VARY) {
        for member in line.as_bytes().split(|&b| b == b',') {
            let member = member.trim_ascii();
            // What cannot be read may name any field, as `*` does.
            match HeaderName::from_bytes(member) {
                _ if member.is_empty() => {}
                Ok(name) if member != b"*" && names.len() < MAX_NAMES => names.push(name),
                _ => return Err(DeclineReason::VaryAny),
            }
        }
    }
    Ok((!names.is_empty()).then(|| VaryList::new(names)))
}

/// Stands for the selecting fields of a request and their values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint([u8; VARIANT_HEAD]);

impl Fingerprint {
    #[cfg(feature = "remote")]
    pub(crate) fn from_wire(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    pub(crate) fn as_bytes(&self) -> &[u8; VARIANT_HEAD] {
        &self.0
    }
}

type Value = smallvec::SmallVec<[u8; 128]>;

/// Returns what a request accepts, where codings select a variant.
pub(crate) fn accepted(
    list: &VaryList,
    headers: &HeaderMap,
    config: &HttpConfig,
) -> Option<Accepted> {
    if list.contains(&header::ACCEPT_ENCODING) { Accepted::of(headers, config) } else { None }
}

/// Returns by which codings the response to a request is looked for. `known` are those of the
/// URI.
pub(crate) fn codings(
    list: &VaryList,
    headers: &HeaderMap,
    config: &HttpConfig,
    known: Codings,
) -> Codings {
    match accepted(list, headers, config) {
        Some(accepted) => accepted.among(known),
        None => Codings::NONE.with(Coding::Other),
    }
}

/// Takes the fingerprint of a request and of the `coding` of its response. Absent fields
/// differ from empty ones. Where the field `Accept-Encoding` selects, `coding` stands for it;
/// [`Coding::Other`] stands for all that the request accepts.
pub(crate) fn fingerprint(
    list: &VaryList,
    headers: &HeaderMap,
    config: &HttpConfig,
    coding: Coding,
) -> Fingerprint {
    let mut parts = KeyBuf::default();
    let mut value = Value::new();
    for name in list.names() {
        parts.push_part(name.as_str().as_bytes());
        if *name == header::ACCEPT_ENCODING
            && let Some(accepted) = Accepted::of(headers, config)
        {
            // No byte that says whether a field is there.
            parts.push(&[2, coding.as_byte()]);
            if coding == Coding::Other {
                parts.push(&accepted.as_bytes());
            }
            continue;
        }
        let is_ignored = config.ignore_cookies && *name == header::COOKIE;
        let is_present = !is_ignored && headers.contains_key(name);
        parts.push(&[u8::from(is_present)]);
        if is_present {
            value.clear();
            // Long lists are compared as they are.
            let form = match Form::of(name, config) {
                Form::List | Form::Preferences if is_too_long(headers, name) => Form::Verbatim,
                form => form,
            };
            form.write(headers, name, &mut value);
            parts.push_part(&value);
        }
    }
    push_read_as_others(&mut parts, list, headers);
    let mut short = [0; 16];
    short.copy_from_slice(&blake3::hash(parts.as_bytes()).as_bytes()[..16]);
    Fingerprint(short)
}

/// Appends the fields that services behind CGI read as one of the list:
/// `Accept_Language` as `Accept-Language`.
fn push_read_as_others(parts: &mut KeyBuf, list: &VaryList, headers: &HeaderMap) {
    let others = headers.keys().filter(|name| list.has_as_other(name));
    let mut others: smallvec::SmallVec<[&HeaderName; 4]> = others.collect();
    others.sort_unstable_by_key(|name| name.as_str());
    for name in others {
        for value in headers.get_all(name) {
            parts.push_part(name.as_str().as_bytes());
            parts.push_part(value.as_bytes());
        }
    }
}

/// Returns the key under which a variant is stored.
pub(crate) fn variant_key(primary: &[u8], fingerprint: Fingerprint) -> Key {
    let mut key = KeyBuf::default();
    key.push(&VARIANT);
    key.push(&fingerprint.0);
    key.push(primary);
    key.to_key()
}

/// How the value of a field is brought into normal form.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// As it is: not a list, so a comma in it means nothing.
    Verbatim,
    /// HTTP/2 may split it at its semicolons (RFC 9113, 8.2.3).
    Cookie,
    /// A list: its lines joined, no whitespace around its commas.
    List,
    /// A list of preferences with weights (RFC 9110, 12.4.2).
    Preferences,
}

impl Form {
    fn of(name: &HeaderName, config: &HttpConfig) -> Self {
        match *name {
            header::COOKIE => Self::Cookie,
            header::AUTHORIZATION | header::USER_AGENT | header::REFERER | header::ORIGIN => {
                Self::Verbatim
            }
            header::ACCEPT_LANGUAGE if config.normalise_accept => Self::Preferences,
            _ if config.credential_headers.names(name) => Self::Verbatim,
            _ => Self::List,
        }
    }

    fn write(self, headers: &HeaderMap, name: &HeaderName, out: &mut Value) {
        for (i, line) in headers.get_all(name).iter().enumerate() {
            let line = line.as_bytes().trim_ascii();
            match self {
                _ if i == 0 => {}
                Self::Verbatim => out.extend_from_slice(b"\n"),
                Self::Cookie => out.extend_from_slice(b"; "),
                Self::List | Self::Preferences => out.push(b','),
            }
            match self {
                Self::Verbatim | Self::Cookie => out.extend_from_slice(line),
                Self::List | Self::Preferences => write_list(line, out),
            }
        }
        if self == Self::Preferences {
            sort_preferences(out);
        }
    }
}

/// Copies a list without the whitespace around its commas.
fn write_list(line: &[u8], out: &mut Value) {
    let (mut quoted, mut escaped) = (false, false);
    let mut start = out.len();
    for &b in line {
        let separates = b == b',' && !quoted;
        if separates {
            trim_end(out, start);
            start = out.len() + 1;
        }
        let leads = matches!(b, b' ' | b'\t') && out.len() == start;
        if separates || !leads {
            out.push(b);
        }
        quoted ^= b == b'"' && !escaped;
        escaped = quoted && b == b'\\' && !escaped;
    }
}

fn trim_end(out: &mut Value, start: usize) {
    while out.len() > start && out.last().is_some_and(|b| matches!(b, b' ' | b'\t')) {
        out.pop();
    }
}

/// Sorts by weight alone. Members of equal weight keep their order: services may take it for
/// the order of preference (RFC 9110, 12.5.4). What is no such list stays as it is.
fn sort_preferences(value: &mut Value) {
    value.make_ascii_lowercase();
    let members = value.split(|&b| b == b',').filter(|member| !member.is_empty());
    let Some(mut members) = members.map(preference).collect::<Option<Vec<_>>>() else { return };
    members.sort_by_key(|(weight, _)| *weight);
    let mut sorted = Value::new();
    for (Reverse(weight), name) in members {
        sorted.extend_from_slice(name);
        sorted.extend_from_slice(&[b';', (weight >> 8) as u8, weight as u8]);
    }
    *value = sorted;
}

/// Reads `name [";q=" weight]`, the weight in thousandths.
fn preference(member: &[u8]) -> Option<(Reverse<u16>, &[u8])> {
    let mut halves = member.splitn(2, |&b| b == b';');
    let name = halves.next()?.trim_ascii();
    let weight = match halves.next() {
        None => 1000,
        Some(weight) => thousandths(weight.trim_ascii().strip_prefix(b"q=")?)?,
    };
    let is_name = !name.is_empty() && name.iter().all(|&b| is_token(b));
    is_name.then_some((Reverse(weight), name))
}

/// Reads a `qvalue` (RFC 9110, 12.4.2).
fn thousandths(text: &[u8]) -> Option<u16> {
    let (whole, digits) = match text {
        [whole @ (b'0' | b'1')] => (whole, &[][..]),
        [whole @ (b'0' | b'1'), b'.', digits @ ..] if digits.len() <= 3 => (whole, digits),
        _ => return None,
    };
    let mut weight = u16::from(whole - b'0') * 1000;
    for (digit, unit) in digits.iter().zip([100, 10, 1]) {
        weight += u16::from(digit.is_ascii_digit().then(|| digit - b'0')?) * unit;
    }
    (weight <= 1000).then_some(weight)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::rules::request::MAX_LIST_BYTES;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let fields = fields.iter().map(|&(name, value)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        });
        fields.collect()
    }

    fn list(names: &[&'static str]) -> VaryList {
        VaryList::new(names.iter().copied().map(HeaderName::from_static).collect())
    }

    fn print(name: &'static str, values: &[&str]) -> Fingerprint {
        let fields: Vec<_> = values.iter().map(|value| (name, *value)).collect();
        fingerprint(&list(&[name]), &headers(&fields), &HttpConfig::default(), Coding::Other)
    }

    #[test]
    fn a_list_that_is_too_long_is_compared_as_it_is() {
        let of = |lines: &[&str]| print("accept-language", lines);
        let last = "b;q=0.1";
        let many = "a,".repeat((MAX_LIST_BYTES - last.len()) / 2 - 1);
        assert_eq!(of(&[&format!("{many}{last}")]), of(&[&format!("{last},{many}")]), "sorted");
        let many = "a,".repeat(MAX_LIST_BYTES / 2);
        assert_ne!(of(&[&format!("{many}{last}")]), of(&[&format!("{last},{many}")]), "not sorted");
        // All lines count together.
        let half = "a,".repeat(MAX_LIST_BYTES / 4);
        assert_ne!(of(&[&half, last, &half]), of(&[last, &half, &half]));
    }

    #[test]
    fn vary_is_read_from_all_lines_sorted_and_without_repetition() {
        let vary = parse(&headers(&[("vary", "B, a,, "), ("vary", "b"), ("vary", "")]), &[]);
        assert_eq!(vary, Ok(Some(list(&["a", "b"]))));
        assert_eq!(parse(&headers(&[("vary", " , ")]), &[]), Ok(None));
        let extra = parse(&headers(&[("vary", "b")]), &[header::ACCEPT]);
        assert_eq!(extra, Ok(Some(list(&["accept", "b"]))));
    }

    #[test]
    fn a_star_in_any_position_matches_nothing() {
        // RFC 9110, 12.5.5
        for lines in [&["*"][..], &["a, *"], &["*, a"], &["a", " * "], &["a b"], &["a;*"]] {
            let fields: Vec<_> = lines.iter().map(|line| ("vary", *line)).collect();
            assert_eq!(parse(&headers(&fields), &[]), Err(DeclineReason::VaryAny), "{lines:?}");
        }
    }

    #[test]
    fn more_fields_than_are_worth_looking_at_match_nothing() {
        let names: Vec<_> = (0..=MAX_NAMES).map(|n| format!("a{n}")).collect();
        let vary = |names: &[String]| parse(&headers(&[("vary", &names.join(","))]), &[]);
        assert_eq!(vary(&names), Err(DeclineReason::VaryAny));
        assert!(matches!(vary(&names[1..]), Ok(Some(_))));
    }

    #[test]
    fn values_that_mean_the_same_have_one_fingerprint() {
        for (name, values) in [
            ("foo", &[&["1,2"][..], &["1", "2"], &["1 ,\t2"], &[" 1, 2 "]][..]),
            ("foo", &[&["\"a , b\",c"], &["\"a , b\" , c"]]),
            ("cookie", &[&["a=1; b=2"], &["a=1", "b=2"]]),
            ("accept-encoding", &[&["gzip, br"], &["br,GZIP"], &["br;q=1.0", "gzip;q=1"]]),
            ("accept-encoding", &[&["gzip;q=0.5, br"], &["br;q=0.1, gzip ; q=1.0"]]),
            ("accept-language", &[&["de, en;q=0.8, fr;q=0.8"], &["en;q=0.8,DE", "fr;q=0.800"]]),
        ] {
            for other in values {
                assert_eq!(print(name, values[0]), print(name, other), "{name} {other:?}");
            }
        }
    }

    #[test]
    fn values_that_differ_have_different_fingerprints() {
        for (name, values) in [
            (
                "foo",
                &[&[][..], &[""], &["a"], &["A"], &["a b"], &["ab"], &["a,b"], &["\"a,b\""]][..],
            ),
            ("foo", &[&["\"a,b\""], &["\"a, b\""]]),
            ("user-agent", &[&["a,b"], &["a, b"]]),
            ("cookie", &[&["a=1,2"], &["a=1, 2"]]),
            (
                "accept-encoding",
                &[&[], &[""], &["gzip"], &["gzip;q=0"], &["gzip, br"], &["identity;q=0"]],
            ),
            ("accept-language", &[&["de, en;q=0.5"], &["en, de;q=0.5"], &["de;q=2"]]),
            ("accept-language", &[&["de, en"], &["en, de"]]),
            ("accept-language", &[&["fr", "de;q=0.5, en;q=0.5"], &["fr, en;q=0.5", "de;q=0.5"]]),
        ] {
            for (i, a) in values.iter().enumerate() {
                for b in &values[..i] {
                    assert_ne!(print(name, a), print(name, b), "{name} {a:?} {b:?}");
                }
            }
        }
    }

    #[test]
    fn the_order_of_all_preferences_counts_when_the_handler_reads_it() {
        let config = HttpConfig { normalise_accept: false, ..HttpConfig::default() };
        let print = |value| {
            let headers = headers(&[("accept-language", value)]);
            fingerprint(&list(&["accept-language"]), &headers, &config, Coding::Other)
        };
        assert_ne!(print("de, en;q=0.5"), print("en;q=0.5, de"));
        assert_eq!(print("de, en;q=0.5"), print("de,en;q=0.5"));
    }

    #[test]
    fn ignored_cookies_count_as_absent() {
        let config = HttpConfig { ignore_cookies: true, ..HttpConfig::default() };
        let print = |fields: &[_]| {
            fingerprint(&list(&["cookie"]), &headers(fields), &config, Coding::Other)
        };
        assert_eq!(print(&[("cookie", "a=1")]), print(&[]));
    }

    #[test]
    fn fields_do_not_run_into_each_other() {
        let print = |fields: &[_]| {
            let config = HttpConfig::default();
            fingerprint(&list(&["a", "b"]), &headers(fields), &config, Coding::Other)
        };
        assert_ne!(print(&[("a", "x")]), print(&[("b", "x")]));
        assert_ne!(print(&[("a", "b")]), print(&[("b", "b")]));
        assert_ne!(print(&[("a", "x"), ("b", "yz")]), print(&[("a", "xy"), ("b", "z")]));
    }

    #[test]
    fn variants_have_keys_of_their_own() {
        let (a, b) = (print("foo", &["a"]), print("foo", &["b"]));
        assert_ne!(variant_key(b"k", a), variant_key(b"k", b));
        assert_ne!(variant_key(b"k", a), variant_key(b"l", a));
    }

    proptest! {
        #[test]
        fn no_value_makes_it_panic(vary: Vec<u8>, value: Vec<u8>) {
            let (vary, value) = (HeaderValue::from_bytes(&vary).ok(), HeaderValue::from_bytes(&value).ok());
            let names = ["vary", "accept-encoding", "foo"].map(HeaderName::from_static);
            let values = [vary, value.clone(), value];
            let fields = names.into_iter().zip(values).filter_map(|(n, v)| Some((n, v?)));
            let fields: HeaderMap = fields.collect();
            let _ = parse(&fields, &[]);
            let list = list(&["accept-encoding", "foo"]);
            let _ = fingerprint(&list, &fields, &HttpConfig::default(), Coding::Other);
        }

        #[test]
        fn the_order_of_equals_never_shows(names in prop::collection::vec("[a-z]{1,3}", 1..6)) {
            let mut reversed = names.clone();
            reversed.reverse();
            let (a, b) = (names.join(", "), reversed.join(","));
            prop_assert_eq!(print("accept-encoding", &[&a]), print("accept-encoding", &[&b]));
        }
    }
}
