use bytes::{BufMut, Bytes};
use http::StatusCode;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use crate::http::config::HttpConfig;
use crate::http::rules::codings::{Coding, Codings};
use crate::http::rules::directives::{Directives, Lifetime, MAX_SECONDS};
use crate::http::rules::fields::HOP_BY_HOP;
use crate::http::rules::lifetime::Source;
use crate::http::rules::request::Credentials;
use crate::http::rules::request::{RequestFacts, RequestMethod};
use crate::http::rules::vary::fingerprint;
use crate::http::rules::vary::{Fingerprint, VaryList};
use crate::http::stored::generation::Generation;
use crate::http::stored::response::{
    CachedResponse, Facts, Index, MAX_LISTS, StoredResponse, selects,
};
use crate::http::stored::wire::*;
use crate::remote::Remotable;
use proptest::prelude::*;

const NAMES: [&str; 6] =
    ["accept-encoding", "accept-language", "cookie", "x-a", "x-b", "authorization"];

fn name(name: &'static str) -> HeaderName {
    HeaderName::from_static(name)
}

fn directives() -> impl Strategy<Value = Directives> {
    let lifetime = prop_oneof![
        Just(Lifetime::Unsaid),
        Just(Lifetime::Stale),
        (0..=MAX_SECONDS).prop_map(Lifetime::Seconds),
    ];
    let window = || proptest::option::of(0..=MAX_SECONDS);
    let flags = 0..1_u16 << Directives::FLAGS;
    (flags, lifetime, window(), window()).prop_map(|(flags, lifetime, swr, sie)| Directives {
        lifetime,
        stale_while_revalidate: swr,
        stale_if_error: sie,
        ..Directives::of_flag_bits(flags).unwrap()
    })
}

fn credentials() -> impl Strategy<Value = Credentials> {
    (0..8_u8).prop_map(|bits| Credentials::from_wire(bits).unwrap())
}

fn lists() -> impl Strategy<Value = VaryList> {
    proptest::sample::subsequence(NAMES.to_vec(), 1..=NAMES.len()).prop_map(|names| {
        let mut names: Vec<_> = names.into_iter().map(name).collect();
        names.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        VaryList::from_wire(names).unwrap()
    })
}

/// Fields of a request: some of those that select, each with one of few values.
fn asking() -> impl Strategy<Value = HeaderMap> {
    let values = proptest::option::of(proptest::sample::select(&["", "1", "2"][..]));
    proptest::collection::vec(values, NAMES.len()).prop_map(|values| {
        let fields = NAMES.into_iter().zip(values);
        fields.filter_map(|(n, v)| Some((name(n), HeaderValue::from_static(v?)))).collect()
    })
}

prop_compose! {
    fn facts()(
        (directives, permits, from) in (directives(), credentials(), credentials()),
        explicit: bool,
        source in proptest::sample::select(
            &[Source::CacheFor, Source::Origin, Source::Layer, Source::Heuristic][..]
        ),
        status in proptest::sample::select(&[200, 204, 301, 401, 404, 503, 999][..]),
        varies in proptest::option::of((lists(), asking())),
        coding in (0..10_u8).prop_map(|byte| Coding::from_wire(byte).unwrap()),
    ) -> Facts {
        let status = StatusCode::from_u16(status).unwrap();
        let (vary, fingerprint) = varies
            .map(|(list, asking)| {
                let print = fingerprint(&list, &asking, &HttpConfig::default(), coding);
                (list, print)
            })
            .unzip();
        let coding = if fingerprint.is_some() { coding } else { Coding::Other };
        Facts { directives, permits, from, explicit, source, status, vary, coding, fingerprint }
    }
}

/// Any bytes that a field may have, `Age` and an empty `Cache-Status` too.
fn fields() -> impl Strategy<Value = HeaderMap> {
    let names = prop_oneof![
        Just("age".to_owned()),
        Just("cache-status".to_owned()),
        Just("set-cookie".to_owned()),
        "[a-z0-9!#$%&'*+.^_`|~-]{1,90}",
    ];
    let values = proptest::collection::vec(any::<u8>(), 0..50);
    proptest::collection::vec((names, values, any::<bool>()), 0..20).prop_map(|fields| {
        let fields = fields.into_iter().filter_map(|(name, value, is_sensitive)| {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            let mut value = HeaderValue::from_bytes(&value).ok()?;
            value.set_sensitive(is_sensitive);
            (!HOP_BY_HOP.contains(&name) && name != header::CONTENT_LENGTH).then_some((name, value))
        });
        let mut headers = HeaderMap::new();
        fields.for_each(|(name, value)| {
            headers.append(name, value);
        });
        headers
    })
}

prop_compose! {
    fn responses()(facts in facts(), headers in fields(), body: Vec<u8>) -> CachedResponse {
        CachedResponse::from_wire(headers, body.into(), facts)
    }
}

prop_compose! {
    fn indexes()(
        lists in proptest::collection::vec(lists(), 0..=MAX_LISTS), prints: Vec<[u8; 16]>,
        codings in (0..1_u16 << 10).prop_map(|bits| Codings::from_wire(bits).unwrap()),
        number: [u8; 16],
    ) -> Index {
        let variants = prints.into_iter().map(Fingerprint::from_wire).collect();
        let generation = Some(Generation::from_wire(number));
        Index { lists, variants, codings, generation, ..Index::default() }
    }
}

fn slots() -> impl Strategy<Value = StoredResponse> {
    prop_oneof![responses().prop_map(Into::into), indexes().prop_map(Into::into)]
}

fn shown(stored: &StoredResponse) -> String {
    format!("{:?}", stored.slot())
}

proptest! {
    #[test]
    fn what_is_written_is_read(stored in slots()) {
        let bytes = stored.encode().unwrap();
        let read = StoredResponse::decode(bytes.clone()).unwrap();
        prop_assert_eq!(shown(&read), shown(&stored));
        prop_assert_eq!(read.encode(), Some(bytes), "marks that are not shown");
    }

    #[test]
    fn a_response_that_was_read_answers_the_same_requests(
        stored in responses(), asking in asking(), carried in credentials(), is_head: bool,
    ) {
        let method = if is_head { RequestMethod::Head } else { RequestMethod::Get };
        let asked = RequestFacts { method, credentials: carried };
        let stored = StoredResponse::from(stored);
        let read = StoredResponse::decode(stored.encode().unwrap()).unwrap();
        for config in [
            HttpConfig::default(),
            HttpConfig { ignore_cookies: true, normalise_accept: false, ..HttpConfig::default() },
        ] {
            let answers = |it: &StoredResponse| selects(it.response().unwrap(), &asked, &asking, &config);
            prop_assert_eq!(answers(&read), answers(&stored));
        }
    }

    #[test]
    fn no_bytes_make_it_panic(kind in 0..6_u8, mut bytes: Vec<u8>) {
        bytes.insert(0, kind);
        let _ = StoredResponse::decode(bytes.into());
    }

    #[test]
    fn changed_bytes_are_refused_or_a_response_like_any_other(
        stored in slots(), changes: Vec<(prop::sample::Index, u8)>,
    ) {
        let mut bytes = stored.encode().unwrap().to_vec();
        for (at, new) in changes {
            let at = at.index(bytes.len());
            bytes[at] = new;
        }
        if let Some(read) = StoredResponse::decode(bytes.into()) {
            let again = StoredResponse::decode(read.encode().unwrap()).unwrap();
            prop_assert_eq!(shown(&read), shown(&again));
        }
    }

    #[test]
    fn a_response_cut_short_or_longer_is_refused(stored in slots(), cut: prop::sample::Index) {
        let bytes = stored.encode().unwrap();
        prop_assert!(StoredResponse::decode(bytes.slice(..cut.index(bytes.len()))).is_none());
        let longer = [&bytes[..], &[0]].concat();
        prop_assert!(StoredResponse::decode(longer.into()).is_none());
    }
}

fn plain_facts() -> Facts {
    Facts {
        directives: Directives::default(),
        permits: Credentials::NONE,
        from: Credentials::NONE,
        explicit: true,
        source: Source::Origin,
        status: StatusCode::OK,
        vary: None,
        coding: Coding::Other,
        fingerprint: None,
    }
}

fn plain(fields: &[(&'static str, &'static str)]) -> StoredResponse {
    let fields = fields.iter().map(|&(n, v)| (name(n), HeaderValue::from_static(v)));
    let body = Bytes::from_static(b"body");
    CachedResponse::from_wire(fields.collect(), body, plain_facts()).into()
}

fn read(stored: &StoredResponse) -> Option<StoredResponse> {
    StoredResponse::decode(stored.encode().unwrap())
}

#[test]
fn repeated_fields_and_the_places_for_our_own_keep_their_order() {
    let fields =
        [("set-cookie", "b"), ("set-cookie", "a"), ("x", "1"), ("age", "0"), ("cache-status", "")];
    let read = read(&plain(&fields)).unwrap();
    let headers = &read.response().unwrap().headers;
    let found: Vec<_> = headers.iter().map(|(n, v)| (n.as_str(), v.to_str().unwrap())).collect();
    assert_eq!(found, fields);
}

#[test]
fn the_body_is_a_slice_of_what_was_read() {
    let bytes = plain(&[]).encode().unwrap();
    let read = StoredResponse::decode(bytes.clone()).unwrap();
    assert!(
        bytes.as_ptr_range().contains(&read.response().unwrap().body.whole().unwrap().as_ptr())
    );
}

#[test]
fn a_content_length_that_is_not_the_bodys_is_refused() {
    assert!(read(&plain(&[("content-length", "4")])).is_some());
    assert!(read(&plain(&[("content-length", "3")])).is_none());
    assert!(read(&plain(&[("content-length", "4"), ("content-length", "5")])).is_none());
}

#[test]
fn fields_and_statuses_that_are_never_stored_are_refused() {
    for name in ["connection", "transfer-encoding", "te", "trailer", "upgrade"] {
        assert!(read(&plain(&[(name, "x")])).is_none(), "{name}");
    }
    for status in [100, 101, 206, 304] {
        let facts = Facts { status: StatusCode::from_u16(status).unwrap(), ..plain_facts() };
        let stored = CachedResponse::from_wire(HeaderMap::new(), Bytes::new(), facts);
        assert!(read(&stored.into()).is_none(), "{status}");
    }
}

#[test]
fn unknown_marks_are_refused() {
    let bytes = plain(&[("x", "1")]).encode().unwrap();
    // kind, first flags, lifetime, windows, permits, from, explicit, source, varies
    for at in [0, 3, 5, 6, 7, 8, 9, 10, 11, 12] {
        let mut changed = bytes.to_vec();
        changed[at] = 0xf0;
        assert!(StoredResponse::decode(changed.into()).is_none(), "byte {at}");
    }
}

#[test]
fn names_and_values_that_http_forbids_are_refused() {
    let bytes = plain(&[("x-name", "value")]).encode().unwrap();
    let place = |what: &[u8]| bytes.windows(what.len()).position(|w| w == what).unwrap();
    for (at, new) in [
        (place(b"x-name"), b'X'),
        (place(b"x-name"), b' '),
        (place(b"x-name"), 0),
        (place(b"value"), b'\n'),
        (place(b"value"), b'\r'),
        (place(b"value"), 0),
        (place(b"value"), 0x7f),
    ] {
        let mut changed = bytes.to_vec();
        changed[at] = new;
        assert!(StoredResponse::decode(changed.into()).is_none(), "{new:#x}");
    }
}

#[test]
fn lists_that_are_unsorted_empty_or_too_long_are_refused() {
    let index = |names: &[&str]| {
        let mut bytes = [&[INDEX][..], &[7; 16], &[1]].concat();
        bytes.put_u16(names.len() as u16);
        for name in names {
            bytes.put_u16(name.len() as u16);
            bytes.put_slice(name.as_bytes());
        }
        // No codings, no variants.
        bytes.put_u32(0);
        StoredResponse::decode(bytes.into())
    };
    assert!(index(&["a", "b"]).is_some());
    assert!(index(&["b", "a"]).is_none());
    assert!(index(&["a", "a"]).is_none());
    assert!(index(&[]).is_none());
    let many: Vec<_> = (1000..1257).map(|n| format!("x{n}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    assert!(index(&many[..256]).is_some());
    assert!(index(&many).is_none());
    assert!(StoredResponse::decode([&[INDEX][..], &[7; 16], &[5]].concat().into()).is_none());
}

#[test]
fn codings_that_are_none_are_refused() {
    let index = |codings: u16| {
        let [a, b] = codings.to_be_bytes();
        StoredResponse::decode([&[INDEX][..], &[7; 16], &[0, a, b, 0, 0]].concat().into())
    };
    assert!(index(0x83ff).is_some());
    assert!(index(0x0400).is_none());
    let list = VaryList::from_wire(vec![header::ACCEPT_ENCODING]);
    let fingerprint = Some(Fingerprint::from_wire([7; 16]));
    let facts = Facts { vary: list, fingerprint, coding: Coding::Gzip, ..plain_facts() };
    let stored = CachedResponse::from_wire(HeaderMap::new(), Bytes::new(), facts).into();
    let bytes = StoredResponse::encode(&stored).unwrap();
    assert!(StoredResponse::decode(bytes.clone()).is_some());
    let at = bytes.windows(16).position(|w| w == [7; 16]).unwrap() - 1;
    let mut changed = bytes.to_vec();
    changed[at] = 10;
    assert!(StoredResponse::decode(changed.into()).is_none());
}

#[test]
fn numbers_of_things_that_are_not_there_are_refused() {
    let fields = [&plain(&[]).encode().unwrap()[..13], &[0x3f, 0xff]].concat();
    assert!(StoredResponse::decode(fields.into()).is_none());
    let index = [&[INDEX][..], &[7; 16], &[0, 0, 0, 0xff, 0xff]].concat();
    assert!(StoredResponse::decode(index.into()).is_none());
}

#[test]
fn what_could_not_be_read_is_not_written() {
    let alone = VaryList::from_wire(vec![name("x-a")]);
    let stored = CachedResponse::from_wire(
        HeaderMap::new(),
        Bytes::new(),
        Facts { vary: alone, ..plain_facts() },
    );
    assert_eq!(StoredResponse::from(stored).encode(), None);

    let mut headers = HeaderMap::new();
    (0..=MAX_FIELDS).for_each(|_| {
        headers.append("x", HeaderValue::from_static(""));
    });
    let stored = CachedResponse::from_wire(headers, Bytes::new(), plain_facts());
    assert_eq!(StoredResponse::from(stored).encode(), None);

    let variants = vec![Fingerprint::from_wire([0; 16]); 1 << 16];
    let generation = Some(Generation::from_wire([7; 16]));
    let index = Index { variants, generation, ..Index::default() };
    assert_eq!(StoredResponse::from(index).encode(), None);
    assert_eq!(StoredResponse::from(Index::default()).encode(), None, "of this process alone");
}
