//! How keys are encoded, and which of them differ.

use super::*;
use proptest::prelude::*;

#[test]
fn short_keys_need_no_heap_and_long_ones_count_it() {
    assert_eq!(Key::from("x".repeat(INLINE)).heap_bytes(), 0);
    // The bytes, two counts of references, and what the allocator adds.
    assert_eq!(Key::from("x".repeat(INLINE + 1)).heap_bytes(), 48);
}

#[test]
fn a_buffer_that_outgrows_the_stack_keeps_every_byte() {
    let mut buf = KeyBuf::new();
    let mut expected = Vec::new();
    for n in 0..300_u32 {
        let part = vec![n as u8; n as usize % 7];
        buf.push(&part);
        expected.extend_from_slice(&part);
        assert_eq!(buf.as_bytes(), expected);
    }
}

#[test]
fn bytes_that_look_like_a_tuple_are_not_taken_for_one() {
    let tuple = Key::from(("a", "b"));
    assert_ne!(tuple, Key::from(tuple.as_bytes()));
}

#[test]
fn a_key_made_of_a_key_is_that_key() {
    let key = Key::from((1_u8, "x"));
    assert_eq!(key.to_key(), key);
    assert_eq!(KeyBuf::of(&key).to_key(), key);
}

#[test]
fn keys_of_other_kinds_differ_from_texts_and_from_each_other() {
    let all = [
        Key::from(true),
        Key::from(false),
        Key::from("true"),
        Key::from(1_u8),
        Key::from(0_u8),
        Key::from(None::<u8>),
        Key::from(Some(0_u8)),
        Key::from(Some("")),
        Key::from(Some(Some(""))),
        Key::from(Some(None::<u8>)),
        Key::from(Some(true)),
        Key::from(""),
        Key::from((Some("a"), "b")),
        Key::from((Some(("a", "b")), None::<u8>)),
        Key::from(()),
        Key::from(Some(())),
        Key::from(((), ())),
    ];
    for (i, key) in all.iter().enumerate() {
        assert!(!all[..i].contains(key), "{key:?}");
    }
    assert_eq!(Key::from('ä'), Key::from("ä"));
    assert_eq!(Key::from('\0'), Key::from("\0"));
    for key in [Key::from(true), Key::from(Some(1_u8)), Key::from(None::<u8>)] {
        assert_ne!(Key::from(key.as_bytes()), key, "bytes are not taken for it");
    }
}

/// As the documentation of [`ToKey`] says it.
#[test]
fn keys_of_different_types_are_the_same_where_they_have_no_mark_of_their_type() {
    let seven = [
        7_u8.to_key(),
        7_u64.to_key(),
        7_i32.to_key(),
        7_i128.to_key(),
        7_usize.to_key(),
        "7".to_key(),
        '7'.to_key(),
        String::from("7").to_key(),
        b"7".to_key(),
        vec![b'7'].to_key(),
        ByDisplay(7).to_key(),
        ByBytes("7").to_key(),
    ];
    assert!(seven.iter().all(|key| *key == seven[0]), "{seven:?}");
    assert_eq!((7, "a").to_key(), ("7", b"a").to_key());
    assert_eq!(Some(7).to_key(), Some("7").to_key());
    let others = [().to_key(), Some(7).to_key(), (7, 7).to_key(), true.to_key(), (-7).to_key()];
    for (i, key) in others.iter().enumerate() {
        assert!(!seven.contains(key) && !others[..i].contains(key), "{key:?}");
    }
}

#[test]
fn parts_of_any_length_are_told_apart() {
    let lengths = [0, 1, 254, 255, 256, 65_535, 65_536];
    let keys = lengths.map(|len| Key::from((vec![LONG; len], "x")));
    for (i, key) in keys.iter().enumerate() {
        assert!(!keys[..i].contains(key), "{}", lengths[i]);
    }
    assert_eq!(keys[3].as_bytes()[..7], [ESCAPE, b't', LONG, 0, 0, 0, 255]);
}

#[test]
fn a_number_of_any_length_stands_for_its_decimal_digits() {
    let powers = (0..39).map(|n| 10_u128.pow(n));
    for number in powers.flat_map(|power| [power - 1, power, power + 1, power * 3 / 2]) {
        assert_eq!(Key::from(number).as_bytes(), number.to_string().as_bytes());
    }
    for number in [i64::MIN, -100_000_000, -10, -1, 0, 9, 10, 99, 100] {
        assert_eq!(Key::from(number).as_bytes(), number.to_string().as_bytes());
    }
}

#[test]
fn numbers_in_a_row_keep_every_digit_on_the_stack_and_beyond() {
    let (mut buf, mut expected) = (KeyBuf::new(), String::new());
    for number in (0..400_u32).map(|n| n * n * 7) {
        number.encode(&mut buf);
        expected += &number.to_string();
        assert_eq!(buf.as_bytes(), expected.as_bytes());
    }
}

/// Reads back the parts that follow each other; nothing where there is
/// something else.
fn parts_of(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut parts = Vec::new();
    while let Some((&first, after)) = bytes.split_first() {
        let (len, after) = match first {
            LONG => {
                let (len, after) = after.split_first_chunk()?;
                (u32::from_be_bytes(*len) as usize, after)
            }
            short => (usize::from(short), after),
        };
        let (part, after) = after.split_at_checked(len)?;
        parts.push(part);
        bytes = after;
    }
    Some(parts)
}

fn bytes_around_a_long_length() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![0..4_usize, 110..130_usize, 250..260_usize].prop_flat_map(|len| {
        proptest::collection::vec(prop_oneof![Just(0), Just(LONG), any::<u8>()], len)
    })
}

proptest! {
    // What can be read back is not the key of anything else.
    #[test]
    fn a_tuple_can_be_read_back_from_its_key(
        a in bytes_around_a_long_length(),
        b in bytes_around_a_long_length(),
        n: u32,
    ) {
        let outer = Key::from((&a, (&b, n), &b));
        let [a, b, n] = [Key::from(a), Key::from(b), Key::from(n)];
        let parts = outer.as_bytes().strip_prefix(&KeyKind::Tuple.start()).and_then(parts_of);
        let parts = parts.expect("parts and nothing else");
        prop_assert_eq!(parts.len(), 3);
        prop_assert_eq!((parts[0], parts[2]), (a.as_bytes(), b.as_bytes()));
        let inner = parts[1].strip_prefix(&KeyKind::Tuple.start()).and_then(parts_of);
        prop_assert_eq!(inner, Some(vec![b.as_bytes(), n.as_bytes()]));
    }

    #[test]
    fn a_number_is_the_same_key_as_its_text(short in 0..200_000_000_u32, long: u64, signed: i32) {
        prop_assert_eq!(Key::from(short), Key::from(short.to_string()));
        prop_assert_eq!(Key::from(long), Key::from(long.to_string()));
        prop_assert_eq!(Key::from(signed), Key::from(signed.to_string()));
    }

    #[test]
    fn tuples_of_different_parts_are_different_keys(a: (String, String), b: (String, String)) {
        prop_assert_eq!(a == b, Key::from(a) == Key::from(b));
    }

    #[test]
    fn text_of_different_content_is_a_different_key(a: Vec<u8>, b: Vec<u8>) {
        prop_assert_eq!(a == b, Key::from(a) == Key::from(b));
    }
}
