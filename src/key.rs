//! Keys name entries, and tags group entries for invalidation.

mod adapters;
mod kinds;
mod structs;
#[cfg(test)]
mod tests;
mod uri;

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrayvec::ArrayVec;
use bytes::Bytes;

use crate::weigh::Weigh;
pub use adapters::{ByBytes, ByDisplay};
use kinds::ESCAPE;
#[cfg(feature = "http")]
pub(crate) use kinds::VARIANT_HEAD;
pub(crate) use kinds::{KeyKind, bytes_in, bytes_of, is_made_tag, primary_of, text_of};
#[cfg(any(feature = "http", feature = "remote"))]
pub(crate) use uri::is_of_process;
#[cfg(feature = "http")]
pub(crate) use uri::{UriName, UriReach};
#[cfg(feature = "remote")]
pub(crate) use uri::{announced, collected, uncollected};
pub(crate) use uri::{is_plain, uri_tag_of};

/// Longest key that needs no heap memory of its own.
const INLINE: usize = 22;

/// In place of the length of a part that one byte cannot tell; the length
/// follows in four.
const LONG: u8 = u8::MAX;

/// Bytes of a key that is looked up which need no heap memory.
const ON_STACK: usize = 120;

/// Names an entry.
///
/// A key is a string of bytes. Text and a `char` stand for themselves, a number
/// for its decimal digits (`42` and `"42"` are the same key), a tuple for its parts,
/// each with its length, so that `("a", "bc")` and `("ab", "c")` differ. `()`, a `bool`
/// and an `Option` differ from every text. [`ToKey`] says which keys of different types
/// are the same.
/// Keys of up to 22 bytes live inside the `Key`; a clone of a longer one
/// counts a reference.
///
/// # Examples
///
/// ```
/// use tower_stampede::Key;
///
/// assert_eq!(Key::from(42_u64), Key::from("42"));
/// assert_ne!(Key::from(("a", "bc")), Key::from(("ab", "c")));
/// assert_ne!(Key::from(Some("a")), Key::from("a"));
/// ```
#[derive(Clone)]
pub struct Key(Repr);

#[derive(Clone)]
enum Repr {
    Inline { len: u8, bytes: [u8; INLINE] },
    Shared(Arc<[u8]>),
}

impl Key {
    /// Makes a key of these very bytes, as [`as_bytes`](Self::as_bytes)
    /// returned them, without any marks of type or length.
    #[must_use]
    pub fn from_encoded(encoded: &[u8]) -> Self {
        if encoded.len() > INLINE {
            return Self(Repr::Shared(encoded.into()));
        }
        let mut bytes = [0; INLINE];
        bytes[..encoded.len()].copy_from_slice(encoded);
        Self(Repr::Inline { len: encoded.len() as u8, bytes })
    }

    /// Returns the bytes of the key.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Shared(bytes) => bytes,
        }
    }

    /// Returns how many bytes the key occupies on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        match &self.0 {
            Repr::Inline { .. } => 0,
            Repr::Shared(bytes) => Weigh::heap_bytes(bytes),
        }
    }

    /// Returns the hash as log lines and spans carry it.
    pub(crate) fn hash_text(&self) -> String {
        format!("{:016x}", self.stable_hash())
    }

    /// Returns a hash that is the same in every process, for logs and spans.
    #[must_use]
    pub fn stable_hash(&self) -> u64 {
        let digest = blake3::hash(self.as_bytes());
        let [a, b, c, d, e, f, g, h, ..] = *digest.as_bytes();
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

impl PartialEq for Key {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Key {}

// As `[u8]` does it: a map of keys is asked with borrowed bytes.
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl Borrow<[u8]> for Key {
    #[inline]
    fn borrow(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key(\"{}\")", self.as_bytes().escape_ascii())
    }
}

/// Types that can name an entry: text, numbers, bytes, `bool`, `char`, `()`, and
/// tuples and options of them.
///
/// # Which keys of different types are the same
///
/// A key has no mark of its type where it is text, bytes or a number, so that a look-up may borrow
/// and programs in other languages can name it. The same key are:
///
/// - text and its bytes, whatever owns them: `"a"`, a `String`, `b"a"`, `'a'`, and
///   [`ByDisplay`] or [`ByBytes`] of what has that text or these bytes;
/// - a number of any integer type and its decimal digits as text: `7_u64`, `7_i32`, `"7"`;
/// - a reference and what it refers to;
/// - options, and tuples of one length, whose parts are the same key: `(7, "a")` and `("7", "a")`.
///
/// All others differ: `()`, `true`, `"true"`, `None`, `Some(7)`, `7`, `(7, 7)`. With
/// [`key_struct!`](crate::key_struct), keys differ by their types too: take it where caches of
/// several kinds of things share a handle, or a name in a remote.
///
/// ```
/// use tower_stampede::{Key, ToKey};
///
/// assert_eq!(7_u64.to_key(), 7_i32.to_key());
/// assert_eq!(7_u64.to_key(), "7".to_key());
/// assert_ne!(Some(7).to_key(), 7.to_key());
/// assert_ne!(().to_key(), "".to_key());
/// ```
///
/// # Types of your own
///
/// A look-up borrows: the bytes are written to the stack, and a [`Key`] is
/// made only on a miss. For a type of your own, write the parts that
/// distinguish it as a tuple:
///
/// ```
/// use tower_stampede::{KeyBuf, ToKey};
///
/// struct Page { tenant: u32, path: String }
///
/// impl ToKey for Page {
///     fn encode(&self, out: &mut KeyBuf) {
///         (self.tenant, &self.path).encode(out);
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot name a cache entry",
    label = "not a key",
    note = "text, numbers, bytes, `bool`, `char`, `()`, and tuples of up to four of them and options are keys; implement `ToKey` for a type of your own"
)]
pub trait ToKey {
    /// Appends the bytes that distinguish this key from every other.
    fn encode(&self, out: &mut KeyBuf);

    /// Makes an owned key.
    fn to_key(&self) -> Key {
        let mut buf = KeyBuf::new();
        self.encode(&mut buf);
        Key::from_encoded(buf.as_bytes())
    }
}

/// Collects the bytes of a key; see [`ToKey`].
///
/// Holds up to 120 bytes without allocating.
#[derive(Clone)]
pub struct KeyBuf {
    stack: ArrayVec<u8, ON_STACK>,
    /// Everything, once it is too long for the stack.
    heap: Vec<u8>,
}

impl KeyBuf {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { stack: ArrayVec::new(), heap: Vec::new() }
    }

    /// Encodes `key`, for a look-up that may not need to own it.
    #[inline]
    pub(crate) fn of<K: ToKey + ?Sized>(key: &K) -> Self {
        let mut buf = Self::new();
        key.encode(&mut buf);
        buf
    }

    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        if self.heap.is_empty() { &self.stack } else { &self.heap }
    }

    pub(crate) fn to_key(&self) -> Key {
        Key::from_encoded(self.as_bytes())
    }

    /// Appends raw bytes.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        if !self.heap.is_empty() || self.stack.try_extend_from_slice(bytes).is_err() {
            self.spill(bytes);
        }
    }

    #[cold]
    fn spill(&mut self, bytes: &[u8]) {
        if self.heap.is_empty() {
            self.heap.extend_from_slice(&self.stack);
        }
        self.heap.extend_from_slice(bytes);
    }

    /// Appends the first `len` bytes of `word`; the others are zero.
    #[inline]
    fn push_word(&mut self, word: u64, len: usize) {
        let (bytes, end) = (word.to_le_bytes(), self.stack.len() + len);
        // As a whole: one store, whatever the length.
        if self.heap.is_empty() && self.stack.try_extend_from_slice(&bytes).is_ok() {
            self.stack.truncate(end);
        } else {
            self.push(&bytes[..len]);
        }
    }

    /// Appends one part of several: its length, then its bytes.
    #[inline]
    pub(crate) fn push_part(&mut self, part: &[u8]) {
        self.push_length(part.len());
        self.push(part);
    }

    /// Appends the length of a part whose bytes follow: one byte for nearly
    /// every part, so that more keys live inside the `Key`.
    #[inline]
    pub(crate) fn push_length(&mut self, len: usize) {
        match u8::try_from(len) {
            Ok(short) if short != LONG => self.push(&[short]),
            _ => self.push_long_length(len),
        }
    }

    #[cold]
    fn push_long_length(&mut self, len: usize) {
        let len = u32::try_from(len).expect("a key is shorter than 4 GiB");
        self.push(&[LONG]);
        self.push(&len.to_be_bytes());
    }

    /// Appends ASCII text in lower case.
    #[cfg(feature = "http")]
    pub(crate) fn push_lower_case(&mut self, text: &[u8]) {
        let start = self.as_bytes().len();
        self.push(text);
        let all: &mut [u8] = if self.heap.is_empty() { &mut self.stack } else { &mut self.heap };
        all[start..].make_ascii_lowercase();
    }
}

impl Default for KeyBuf {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for KeyBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyBuf(\"{}\")", self.as_bytes().escape_ascii())
    }
}

impl ToKey for Key {
    #[inline]
    fn encode(&self, out: &mut KeyBuf) {
        out.push(self.as_bytes());
    }

    fn to_key(&self) -> Key {
        self.clone()
    }
}

impl ToKey for [u8] {
    #[inline]
    fn encode(&self, out: &mut KeyBuf) {
        if self.first() == Some(&ESCAPE) {
            out.push(&KeyKind::Bytes.start());
        }
        out.push(self);
    }
}

impl ToKey for str {
    #[inline]
    fn encode(&self, out: &mut KeyBuf) {
        self.as_bytes().encode(out);
    }
}

impl<T: ToKey + ?Sized> ToKey for &T {
    fn encode(&self, out: &mut KeyBuf) {
        (**self).encode(out);
    }
}

macro_rules! key_like {
    ($as:ty: $($t:ty),+) => {$(
        impl ToKey for $t {
            #[inline]
            fn encode(&self, out: &mut KeyBuf) {
                <$as as ToKey>::encode(self, out);
            }
        }
    )+};
}

key_like!(str: String, Box<str>, Arc<str>, Cow<'_, str>);
key_like!([u8]: Vec<u8>, Bytes, Arc<[u8]>);

impl<const N: usize> ToKey for [u8; N] {
    fn encode(&self, out: &mut KeyBuf) {
        self.as_slice().encode(out);
    }
}

macro_rules! number_keys {
    ($($t:ty),+) => {$(
        impl ToKey for $t {
            // Always: whether it is a call depends on code far away, and costs a hit 20 instructions.
            #[cfg_attr(not(debug_assertions), inline(always))]
            fn encode(&self, out: &mut KeyBuf) {
                match u32::try_from(*self).ok().and_then(short_decimal) {
                    Some((digits, len)) => out.push_word(digits, len),
                    None => push_long_decimal(*self, out),
                }
            }
        }
    )+};
}

// Not inlined: with it, what encodes a short number would not be either.
#[inline(never)]
fn push_long_decimal(number: impl itoa::Integer, out: &mut KeyBuf) {
    out.push(itoa::Buffer::new().format(number).as_bytes());
}

/// Returns the decimal digits of a number that has eight at most, the first one
/// in the lowest byte, and how many there are.
///
/// Digits that are stored one by one and read together for the hash and the
/// comparison cost a hit 8 ns of 180; from here they are stored as one word.
#[inline]
fn short_decimal(mut number: u32) -> Option<(u64, usize)> {
    if number >= 100_000_000 {
        return None;
    }
    let digit = |digit: u32| u64::from(b'0') + u64::from(digit);
    let pair = |pair: u32| digit(pair / 10) | digit(pair % 10) << 8;
    let (mut digits, mut len) = (0, 0);
    while number >= 100 {
        digits = digits << 16 | pair(number % 100);
        number /= 100;
        len += 2;
    }
    Some(if number < 10 {
        (digits << 8 | digit(number), len + 1)
    } else {
        (digits << 16 | pair(number), len + 2)
    })
}

number_keys!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

/// The key of a cache of one value.
impl ToKey for () {
    #[inline]
    fn encode(&self, out: &mut KeyBuf) {
        out.push(&KeyKind::Tuple.start());
    }
}

impl ToKey for bool {
    #[inline]
    fn encode(&self, out: &mut KeyBuf) {
        let kind = if *self { KeyKind::True } else { KeyKind::False };
        out.push(&kind.start());
    }
}

impl ToKey for char {
    #[inline]
    fn encode(&self, out: &mut KeyBuf) {
        self.encode_utf8(&mut [0; 4]).encode(out);
    }
}

impl<T: ToKey> ToKey for Option<T> {
    fn encode(&self, out: &mut KeyBuf) {
        match self {
            None => out.push(&KeyKind::None.start()),
            Some(key) => {
                out.push(&KeyKind::Some.start());
                key.encode(out);
            }
        }
    }
}

macro_rules! tuple_keys {
    ($($name:ident $index:tt),+) => {
        impl<$($name: ToKey),+> ToKey for ($($name,)+) {
            fn encode(&self, out: &mut KeyBuf) {
                out.push(&KeyKind::Tuple.start());
                $(out.push_part(KeyBuf::of(&self.$index).as_bytes());)+
            }
        }
    };
}

tuple_keys!(A 0, B 1);
tuple_keys!(A 0, B 1, C 2);
tuple_keys!(A 0, B 1, C 2, D 3);

macro_rules! key_from {
    ($(($($generics:tt)*) $t:ty),+ $(,)?) => {$(
        impl<$($generics)*> From<$t> for Key {
            fn from(value: $t) -> Self {
                value.to_key()
            }
        }
    )+};
}

key_from!(
    () u8, () u16, () u32, () u64, () u128, () usize,
    () i8, () i16, () i32, () i64, () i128, () isize,
    () &str, () String, () Box<str>, () Arc<str>, () Cow<'_, str>,
    () (), () bool, () char, (T: ToKey) Option<T>,
    () &[u8], () Vec<u8>, () Bytes, () Arc<[u8]>, (const N: usize) [u8; N],
    (A: ToKey, B: ToKey) (A, B),
    (A: ToKey, B: ToKey, C: ToKey) (A, B, C),
    (A: ToKey, B: ToKey, C: ToKey, D: ToKey) (A, B, C, D),
);

/// Groups entries that are invalidated together; see
/// [`Stampede::invalidate_tag`](crate::Stampede::invalidate_tag).
///
/// Made from whatever makes a [`Key`]. The tag `*` is reserved: every entry
/// carries it.
///
/// # Examples
///
/// ```
/// use tower_stampede::Tag;
///
/// assert_eq!(Tag::from("user:7"), Tag::from(String::from("user:7")));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tag(Key);

impl Tag {
    /// Returns the bytes of the tag.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Returns whether this is the reserved tag that every entry carries.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.as_bytes() == b"*"
    }

    /// Makes a tag of these very bytes.
    #[must_use]
    pub fn from_encoded(encoded: &[u8]) -> Self {
        Self(Key::from_encoded(encoded))
    }

    /// Makes a tag whose clones are counted in `bytes`, however short they are.
    #[cfg_attr(not(feature = "http"), allow(dead_code, reason = "HTTP's URIs"))]
    pub(crate) fn counted(bytes: Arc<[u8]>) -> Self {
        Self(Key(Repr::Shared(bytes)))
    }

    /// Returns the tag whose record says that entries with this one are stale, not dead. It
    /// stands in logs beside the others, those of remotes too; no entry carries it.
    pub(crate) fn stale_mark(&self) -> Self {
        Self(Key::from_encoded(&[&KeyKind::StaleMark.start(), self.as_bytes()].concat()))
    }

    /// Returns the tag that this is the stale mark of.
    pub(crate) fn marked(&self) -> Option<Self> {
        self.as_bytes().strip_prefix(&KeyKind::StaleMark.start()).map(Self::from_encoded)
    }

    /// Returns the stale mark of what stands under one key.
    pub(crate) fn mark_of_key(key: &Key) -> Self {
        let tag = [&KeyKind::MarkedKey.start(), key.as_bytes()].concat();
        Self::from_encoded(&tag).stale_mark()
    }

    /// Returns the key that this is the stale mark of.
    #[cfg(feature = "remote")]
    pub(crate) fn marked_key(&self) -> Option<Key> {
        let tag = self.as_bytes().strip_prefix(&KeyKind::StaleMark.start())?;
        tag.strip_prefix(&KeyKind::MarkedKey.start()).map(Key::from_encoded)
    }

    /// Returns the tag whose record says where the log of a remote has the last stale mark of a key.
    #[cfg(feature = "remote")]
    pub(crate) fn of_marked_keys() -> Self {
        Self::from_encoded(&KeyKind::MarkedKey.start())
    }

    /// Returns whether this concerns every entry: as the tag of all, or as its stale mark.
    pub(crate) fn concerns_all(&self) -> bool {
        self.is_everything() || self.marked().is_some_and(|tag| tag.is_everything())
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }
}

impl<K: Into<Key>> From<K> for Tag {
    fn from(value: K) -> Self {
        Self(value.into())
    }
}

impl Borrow<[u8]> for Tag {
    fn borrow(&self) -> &[u8] {
        self.as_bytes()
    }
}
