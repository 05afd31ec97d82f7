#[cfg(all(feature = "codec-aead", feature = "codec-zstd"))]
mod coded;

use crate::remote::envelope::*;
use proptest::prelude::*;

const MAX: usize = 1 << 20;

fn version() -> Version {
    Version::new(42).unwrap()
}

fn plain(number: u32) -> EnvelopeCoding {
    EnvelopeCoding { number, ..EnvelopeCoding::default() }
}

fn sample() -> Envelope {
    Envelope {
        kind: Kind::Value,
        started: ServerTime::from_millis(1_700_000_000_000),
        stamp: Epoch::new(5).map(|epoch| Stamp::new(epoch, 6)),
        fresh: Duration::from_secs(60),
        stale_for: Duration::from_secs(600),
        stale_if_error: Duration::from_secs(3600),
        kept_longer: Duration::from_secs(600),
        took: Duration::from_millis(30),
        age: Duration::from_millis(40),
        tags: vec!["user:7".into(), "*x".into()],
        validator: None,
        payload: Bytes::from_static(b"the value"),
    }
}

fn written(envelope: &Envelope) -> Bytes {
    encode(envelope, &"k".into(), &plain(3), version()).unwrap()
}

fn damage(bytes: &[u8]) -> Option<Damage> {
    open(&Bytes::copy_from_slice(bytes), &"k".into(), &plain(3), MAX).err()
}

/// The same bytes under a checksum that is right.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    seal(&mut bytes);
    bytes
}

fn with(at: usize, new: &[u8]) -> Vec<u8> {
    let mut bytes = written(&sample()).to_vec();
    bytes[at..at + new.len()].copy_from_slice(new);
    sealed(bytes)
}

fn spans() -> impl Strategy<Value = Duration> {
    any::<u64>().prop_map(Duration::from_millis)
}

fn tags() -> impl Strategy<Value = Vec<Tag>> {
    proptest::collection::vec(any::<Vec<u8>>().prop_map(Tag::from), 0..9)
}

prop_compose! {
    fn envelopes()(
        is_value: bool,
        started: u64,
        stamp: (u64, u64),
        (fresh, stale_for, stale_if_error) in (spans(), spans(), spans()),
        (took, age, kept_longer) in (spans(), spans(), spans()),
        tags in tags(),
        validator: Option<String>,
        payload: Vec<u8>,
    ) -> Envelope {
        let kind = if is_value { Kind::Value } else { Kind::Uncacheable };
        let started = ServerTime::from_millis(started);
        let payload = payload.into();
        Envelope {
            kind,
            started,
            fresh,
            stale_for,
            stale_if_error,
            kept_longer,
            took,
            age,
            tags,
            validator: validator.map(Into::into),
            payload,
            stamp: Epoch::new(stamp.0).map(|epoch| Stamp::new(epoch, stamp.1)),
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        envelope in envelopes(), key: Vec<u8>, schema: u32, number in 1..1_u64 << 52,
    ) {
        let (key, version) = (Key::from(key), Version::new(number));
        let bytes = encode(&envelope, &key, &plain(schema), version.unwrap()).unwrap();
        prop_assert_eq!(bytes.len(), encoded_len(&envelope, &key));
        prop_assert_eq!(version_of(&bytes), version);
        let opened = open(&bytes, &key, &plain(schema), MAX).unwrap();
        prop_assert_eq!(version_of(&bytes), version);
        prop_assert_eq!(opened, envelope);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes: Vec<u8>, tail: Vec<u8>) {
        prop_assert!(damage(&bytes).is_some());
        let mut known = b"ts\x02\x000000000000000042".to_vec();
        known.extend(bytes.iter().chain(&tail).chain(&[0; HEAD]));
        prop_assert!(damage(&known).is_some());
        // A right checksum, so that everything behind it is reached.
        let _ = damage(&sealed(known));
    }

    #[test]
    fn a_checksum_over_nonsense_opens_nothing_that_writes_other_bytes(
        envelope in envelopes(), at: prop::sample::Index, new: u8,
    ) {
        let mut bytes = written(&envelope).to_vec();
        let at = at.index(bytes.len());
        bytes[at] = new;
        let bytes = Bytes::from(sealed(bytes));
        if let Ok(opened) = open(&bytes, &"k".into(), &plain(3), MAX) {
            let version = version_of(&bytes).unwrap_or(version());
            let again = encode(&opened, &"k".into(), &plain(3), version).unwrap();
            prop_assert_eq!(&again[VERSION.end..], &bytes[VERSION.end..]);
        }
    }
}

#[test]
fn every_changed_byte_outside_the_version_is_damage() {
    let bytes = written(&sample());
    for at in (0..bytes.len()).filter(|at| !VERSION.contains(at)) {
        for flip in 1..=255 {
            let mut changed = bytes.to_vec();
            changed[at] ^= flip;
            assert!(damage(&changed).is_some(), "byte {at} changed by {flip:#x}");
        }
    }
}

#[test]
fn every_truncation_and_every_addition_is_damage() {
    let mut bytes = written(&sample()).to_vec();
    for len in 0..bytes.len() {
        assert!(damage(&bytes[..len]).is_some(), "{len} bytes");
    }
    bytes.push(0);
    assert_eq!(damage(&bytes), Some(Damage::Checksum));
    assert_eq!(damage(&sealed(bytes)), Some(Damage::Format));
}

#[test]
fn a_server_may_replace_the_version_and_nothing_else_changes() {
    let mut bytes = written(&sample()).to_vec();
    bytes[VERSION].copy_from_slice(b"0000000000000099");
    let opened = open(&Bytes::from(bytes.clone()), &"k".into(), &plain(3), MAX).unwrap();
    assert_eq!(version_of(&bytes), Version::new(99));
    assert_eq!(opened, sample());
    // Digits that are none: the value stands, only its version is unknown.
    bytes[VERSION].copy_from_slice(b"9999999999999999");
    assert!(open(&Bytes::from(bytes.clone()), &"k".into(), &plain(3), MAX).is_ok());
    assert_eq!(version_of(&bytes), None);
}

#[test]
fn each_kind_of_damage_has_its_name() {
    let bytes = written(&sample());
    let find = |key: &str, schema, max| open(&bytes, &key.into(), &plain(schema), max).unwrap_err();
    for (damage, expected) in [
        (damage(b"").unwrap(), "short"),
        (damage(&bytes[..HEAD - 1]).unwrap(), "short"),
        (damage(&with(0, b"xx")).unwrap(), "magic"),
        (damage(&with(2, &[1])).unwrap(), "format"),
        (damage(&with(2, &[2])).unwrap(), "format"),
        (damage(&with(2, &[4])).unwrap(), "format"),
        (damage(&with(3, &[8])).unwrap(), "format"),
        (damage(&with(3, &[2])).unwrap(), "payload"),
        (damage(&with(3, &[4])).unwrap(), "decryption"),
        (damage(&bytes[..bytes.len() - 1]).unwrap(), "checksum"),
        (find("k", 4, MAX), "schema"),
        (find("other", 3, MAX), "key"),
        (find("k", 3, 8), "too_large"),
    ] {
        assert_eq!(damage.as_str(), expected);
    }
    assert!(open(&bytes, &"k".into(), &plain(3), 9).is_ok(), "as large as allowed");
}

#[test]
fn lengths_that_lie_are_damage_even_under_a_right_checksum() {
    let huge = u32::MAX.to_be_bytes();
    for (at, what) in [(88, "key"), (92, "tags"), (HEAD, "first tag")] {
        assert_eq!(damage(&with(at, &huge)), Some(Damage::Format), "{what}");
    }
    assert_eq!(damage(&with(96, &u64::MAX.to_be_bytes())), Some(Damage::TooLarge));
    assert_eq!(damage(&with(96, &8_u64.to_be_bytes())), Some(Damage::Format));
}

#[test]
fn an_envelope_with_too_many_tags_is_not_written() {
    let with_tags = |count: u32| Envelope { tags: (0..count).map(Tag::from).collect(), ..sample() };
    assert!(encode(&with_tags(4096), &"k".into(), &plain(3), version()).is_some());
    assert!(encode(&with_tags(4097), &"k".into(), &plain(3), version()).is_none());
}

#[test]
fn the_payload_is_a_slice_of_what_was_read() {
    let bytes = written(&sample());
    let payload = open(&bytes, &"k".into(), &plain(3), MAX).unwrap().payload;
    assert!(bytes.as_ptr_range().contains(&payload.as_ptr()));
}

#[test]
fn a_duration_too_long_for_its_place_stays_the_longest() {
    let envelope = Envelope { fresh: Duration::MAX, ..sample() };
    let opened = open(&written(&envelope), &"k".into(), &plain(3), MAX).unwrap();
    assert_eq!(opened.fresh, Duration::from_millis(u64::MAX));
}

#[test]
fn an_envelope_is_never_printed_with_its_value() {
    assert!(!format!("{:?}", sample()).contains("the value"));
}

#[test]
fn the_page_for_other_languages_shows_what_is_written() {
    const PAGE: &str = include_str!("../../../docs/protocol-for-other-languages.md");
    let (_, table) = PAGE.split_once("| bytes | content | example |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let shown: String = rows.map(|row| row.split('`').nth_back(1).unwrap()).collect();

    let envelope = Envelope {
        started: ServerTime::from_millis(1_764_072_000_000),
        stamp: Epoch::new(0xa1).map(|epoch| Stamp::new(epoch, 6)),
        fresh: Duration::from_millis(60_030),
        stale_for: Duration::from_secs(600),
        stale_if_error: Duration::ZERO,
        kept_longer: Duration::ZERO,
        took: Duration::from_millis(30),
        age: Duration::ZERO,
        tags: vec!["users".into()],
        payload: Bytes::from_static(b"Ada"),
        ..sample()
    };
    let version = Version::new(1_764_072_000_000_000).unwrap();
    let written = encode(&envelope, &"user:7".into(), &plain(0), version).unwrap();
    let written: String = written.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(shown, written);
}
