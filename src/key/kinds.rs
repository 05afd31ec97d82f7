//! The kinds of keys and tags that are neither plain text nor plain bytes.

/// First byte of every encoding that is not plain text or plain bytes.
pub(super) const ESCAPE: u8 = 0;

/// The second byte of such an encoding: what it is.
///
/// They stand in one list, those of the layers too, because the keys of applications and of
/// layers can be in one store. The compiler refuses two kinds with one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum KeyKind {
    /// Bytes that begin with the escape themselves.
    Bytes = b'b',
    Tuple = b't',
    False = b'0',
    True = b'1',
    None = b'n',
    Some = b's',
    /// Made by [`key_struct`](crate::key_struct).
    Struct = b'k',
    /// A record that makes entries with a tag stale.
    StaleMark = b'm',
    /// A key, in place of the tag whose entries a record makes stale.
    MarkedKey = b'e',
    /// The hash that stands for a long tag in the log of a process.
    LongTag = b'x',
    /// A request over HTTP that names its host in a field, or nowhere.
    #[cfg(feature = "http")]
    HostInField = b'h',
    /// In its URI alone.
    #[cfg(feature = "http")]
    HostInUri = b'a',
    /// In both.
    #[cfg(feature = "http")]
    HostInBoth = b'c',
    /// One of several responses that `Vary` tells apart.
    #[cfg(feature = "http")]
    Variant = b'v',
    /// A flight of the HTTP layer. It is never stored.
    #[cfg(feature = "http")]
    Flight = b'f',
    /// In the remote: says where the responses of a URI stand that have more in their keys
    /// than the URI.
    #[cfg(feature = "http")]
    Anchor = b'w',
    /// In the remote: a response to which an anchor or an index of variants leads.
    #[cfg(feature = "http")]
    Leaf = b'l',
    /// A tag for a URI.
    #[cfg(feature = "http")]
    UriTag = b'u',
    /// A tag for a path.
    #[cfg(feature = "http")]
    PathTag = b'p',
    /// A tag for a group of responses of one origin.
    #[cfg(feature = "http")]
    GroupTag = b'g',
}

/// Returns whether the HTTP layer has made a tag, for a URI or a path.
pub(crate) fn is_made_tag(tag: &[u8]) -> bool {
    #[cfg(feature = "http")]
    let is_made = [KeyKind::UriTag, KeyKind::PathTag].iter().any(|it| tag.starts_with(&it.start()));
    #[cfg(not(feature = "http"))]
    let is_made = tag.is_empty();
    is_made
}

/// Writes bytes as visible ASCII.
pub(crate) fn text_of(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_graphic() && byte != b'%' {
            text.push(byte.into());
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// Reads what [`text_of`] writes. Other characters stand for their own bytes.
pub(crate) fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
        bytes.push((digit(0)? << 4 | digit(1)?) as u8);
        rest = &after[2..];
    }
    Some(bytes)
}

/// Returns the text or the bytes that a key is made of, if it is made of nothing else.
pub(crate) fn bytes_in(key: &[u8]) -> Option<&[u8]> {
    match key.first() {
        Some(&ESCAPE) => key.strip_prefix(&KeyKind::Bytes.start()),
        _ => Some(key),
    }
}

/// How many bytes stand between the start of a variant's key and the primary key in it.
#[cfg(feature = "http")]
pub(crate) const VARIANT_HEAD: usize = 16;
/// The same for the key of a flight: two bytes for the callers that it is for, and the variant
/// that they expect, if any.
#[cfg(feature = "http")]
pub(crate) const FLIGHT_HEAD: usize = 2 + 1 + 16;

/// Returns the primary key in a key of the HTTP layer: what its entries, their variants and
/// the flights for them have in common.
pub(crate) fn primary_of(key: &[u8]) -> Option<&[u8]> {
    #[cfg(feature = "http")]
    {
        use KeyKind::{Flight, HostInBoth, HostInField, HostInUri, Variant};
        let is_any = |kinds: &[KeyKind]| kinds.iter().any(|kind| key.starts_with(&kind.start()));
        if is_any(&[HostInField, HostInUri, HostInBoth]) {
            return Some(key);
        }
        if is_any(&[Variant]) {
            return key.get(2 + VARIANT_HEAD..);
        }
        if is_any(&[Flight]) {
            return key.get(2 + FLIGHT_HEAD..);
        }
    }
    let _ = key;
    None
}

impl KeyKind {
    /// Returns how encodings of this kind begin.
    #[inline]
    pub(crate) const fn start(self) -> [u8; 2] {
        [ESCAPE, self as u8]
    }
}
