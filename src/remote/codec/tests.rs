use crate::remote::codec::*;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU8;

type Rich = (u64, String, Option<Vec<i32>>, BTreeMap<String, (bool, char)>);

/// A value that serde cannot write.
#[derive(serde::Serialize, serde::Deserialize)]
struct Locked {
    #[serde(serialize_with = "refuse")]
    secret: u8,
}

fn refuse<S: serde::Serializer>(_: &u8, _: S) -> Result<S::Ok, S::Error> {
    Err(serde::ser::Error::custom("not this one"))
}

#[test]
fn a_value_that_cannot_be_written_is_none() {
    let locked = Locked { secret: 1 };
    assert_eq!(locked.encode(), None);
    assert_eq!(locked.secret, 1);
}

#[test]
fn bytes_left_over_are_no_value() {
    assert_eq!(u8::decode(Bytes::from_static(&[7])), Some(7));
    assert_eq!(u8::decode(Bytes::from_static(&[7, 0])), None);
    assert_eq!(u8::decode(Bytes::new()), None);
}

#[test]
fn a_length_that_lies_allocates_nothing() {
    // 2^63 elements, and none of them there.
    let mut bytes = vec![0xff; 8];
    bytes.push(0x7f);
    assert_eq!(Vec::<u64>::decode(bytes.clone().into()), None);
    assert_eq!(String::decode(bytes.into()), None);
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        number: u64, text: String, list: Option<Vec<i32>>, map: BTreeMap<String, (bool, char)>,
    ) {
        let value: Rich = (number, text, list, map);
        let bytes = value.encode().unwrap();
        prop_assert_eq!(Rich::decode(bytes), Some(value));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes: Vec<u8>) {
        let _ = Rich::decode(bytes.into());
    }
}

/// The hash of what serde reports of a type.
fn shape<V: DeserializeOwned>() -> blake3::Hash {
    shape::trace::<V>(false, |_| None).hash.finalize()
}

/// Types that serde calls by the same name.
macro_rules! types {
    ($($kind:ident $name:ident $parts:tt)+) => {
        $(types! { @ $kind $name $parts })+

        fn shapes() -> Vec<(&'static str, blake3::Hash)> {
            vec![$((stringify!($name), shape::<$name>())),+]
        }
    };
    (@ $kind:ident $name:ident ($($field:ty),+)) => {
        #[derive(Deserialize)]
        #[serde(rename = "Shown")]
        #[allow(dead_code, reason = "only its shape counts")]
        $kind $name($($field),+);
    };
    (@ $kind:ident $name:ident $parts:tt) => {
        #[derive(Deserialize)]
        #[serde(rename = "Shown")]
        #[allow(dead_code, reason = "only its shape counts")]
        $kind $name $parts
    };
}

types! {
    struct Plain { first: String, last: String, age: u8 }
    struct Moved { last: String, first: String, age: u8 }
    struct Renamed { first: String, family: String, age: u8 }
    struct Wide { first: String, last: String, age: u16 }
    struct Sparse { first: String, last: String, age: Option<u8> }
    struct Repeated { first: String, last: String, age: Vec<u8> }
    struct Extended { first: String, last: String, age: u8, city: String }
    struct Unnamed (String, String, u8)
    struct OfYears { first: String, last: String, age: Years }
    struct OfMonths { first: String, last: String, age: Months }
    struct OfChars { all: BTreeMap<String, (u8, char)> }
    struct OfBools { all: BTreeMap<String, (u8, bool)> }
    enum OldNew { Old, New }
    enum NewOld { New, Old }
    enum NewWithValue { Old, New(u8) }
    enum NewAt { Old, New { at: u8 } }
    enum NewOn { Old, New { on: u8 } }
    // The last variant of an enum in the last variant of another one.
    enum NewLow { Old, New(Low) }
    enum NewHigh { Old, New(High) }
    struct Years { years: u8 }
    struct Months { months: u8 }
    enum Low { A, B(u8) }
    enum High { A, B(u16) }
}

#[derive(Deserialize)]
#[allow(dead_code, reason = "only its shape counts")]
struct Plainly {
    first: String,
    last: String,
    age: u8,
}

fn number_of<V>(codec: Codec<V>, schema: u32) -> u32 {
    ValueForm::new(codec, schema, String::new()).coding.number
}

#[test]
fn types_that_differ_in_a_name_an_order_or_a_kind_have_another_shape() {
    let all = shapes();
    for (at, (name, shape)) in all.iter().enumerate() {
        for (other, its_shape) in &all[at + 1..] {
            assert_ne!(shape, its_shape, "{name} and {other}");
        }
    }
    assert_eq!(all, shapes(), "each time the same");
    assert_ne!(shape::<Plain>(), shape::<Plainly>(), "the name of the type");
    let number = |schema| number_of(Codec::<u8>::postcard(), schema);
    assert_ne!(number(0), number_of(Codec::<u16>::postcard(), 0));
    assert_eq!(number(3), number(0) + 3);
    assert!(number(0) >= 1 << 31);
    assert_eq!(number_of(Codec::<u8>::postcard().fingerprint(4), 3), 7);
    #[cfg(feature = "codec-json")]
    assert_ne!(number(0), number_of(Codec::<u8>::json(), 0));
}

#[derive(Deserialize)]
#[allow(dead_code, reason = "only their shapes count")]
enum Term {
    Sum(Box<Term>, Box<Term>),
    Named { name: String, of: Box<Term> },
    Literal(f64),
}

#[derive(Deserialize)]
#[allow(dead_code, reason = "only their shapes count")]
struct Folder<Size> {
    children: Vec<Folder<Size>>,
    parent: Option<Box<Folder<Size>>>,
    by_name: HashMap<String, Folder<Size>>,
    size: Size,
}

/// No value of it exists.
#[derive(Deserialize)]
#[allow(dead_code, reason = "only its shape counts")]
struct Endless(Box<Endless>);

#[derive(Deserialize)]
enum Never {}

#[test]
fn a_type_that_contains_itself_has_no_value_or_refuses_has_a_shape() {
    assert_eq!(shape::<Term>(), shape::<Term>());
    // What stands behind the recursion is seen, too.
    assert_ne!(shape::<Folder<u8>>(), shape::<Folder<u16>>());
    assert_eq!(shape::<Endless>(), shape::<Endless>());
    assert_ne!(shape::<Never>(), shape::<Endless>());
    assert_ne!(shape::<(NonZeroU8, u8)>(), shape::<(NonZeroU8, u16)>());
    // Addresses refuse the text; what was asked for before it counts.
    assert_ne!(shape::<(u8, std::path::PathBuf)>(), shape::<(u16, std::path::PathBuf)>());
}

/// What its samples say of a type: whether they were all taken, and whether one was read as
/// another value.
fn samples<V: Remotable>() -> (bool, bool) {
    let form = ValueForm::new(V::codec(), 0, String::new());
    (form.is_proven, form.is_lossy())
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Page {
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
    offset: u64,
    ids: Vec<u64>,
}

#[derive(Clone, Serialize, Deserialize)]
#[allow(dead_code, reason = "only its samples count")]
struct Account {
    id: u64,
    #[serde(skip_serializing, default)]
    password: String,
    roles: Vec<String>,
}

/// Its author has thought of good data only.
#[derive(Clone, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
struct Trusting(u32);

impl From<String> for Trusting {
    fn from(text: String) -> Self {
        Self(text.parse().expect("a number"))
    }
}

impl From<Trusting> for String {
    fn from(value: Trusting) -> Self {
        value.0.to_string()
    }
}

#[test]
fn samples_show_which_types_postcard_brings_over() {
    assert_eq!(samples::<Rich>(), (true, false));
    assert_eq!(samples::<(HashMap<u8, f64>, Result<char, ()>, [u8; 4])>(), (true, false));
    assert_eq!(samples::<std::time::Duration>(), (true, false));
    assert_eq!(samples::<Page>(), (false, true));
    assert_eq!(samples::<Account>(), (false, true));
    // Refuses 0, and says nothing of other values.
    assert_eq!(samples::<(NonZeroU8, u8)>(), (false, false));
    assert_eq!(samples::<Locked>(), (false, false));
    assert_eq!(samples::<(u8, Trusting)>(), (false, false));
}

/// The bytes are the same again, and the value is not.
#[test]
fn a_value_that_was_read_in_the_wrong_places_differs_though_its_bytes_are_the_same() {
    let page = Page { next: None, offset: 1, ids: vec![5, 0] };
    let bytes = page.encode().unwrap();
    let read = Page::decode(bytes.clone()).unwrap();
    assert_eq!(read, Page { next: Some(2), offset: 5, ids: vec![] });
    assert_eq!(read.encode().unwrap(), bytes);
    assert_ne!(digest(&read, false), digest(&page, false));
}

#[test]
fn the_order_of_a_map_is_no_difference_and_each_entry_is_one() {
    let map = |last: u64| {
        let maps = (0..8).map(|n| (0..20).map(|key| (key, n + key)).collect());
        let mut maps: Vec<HashMap<u64, u64>> = maps.collect();
        maps[7].insert(19, last);
        maps
    };
    for _ in 0..100 {
        assert_eq!(digest(&map(0), false), digest(&map(0), false));
        assert_ne!(digest(&map(0), false), digest(&map(1), false));
    }
}
