//! What a key of the HTTP layer says of the URI that it is for.
//!
//! Every such key begins, or holds a key that begins, with scope, scheme, host and resource:
//! the *name* of a URI. From the name follow the tag by which a process finds what it holds of
//! the URI, and the keys by which a write ends in the remote what stands there.

#[cfg(any(feature = "http", feature = "remote"))]
use crate::key::Key;
use crate::key::Tag;
#[cfg(feature = "http")]
use crate::key::kinds::{FLIGHT_HEAD, KeyKind, VARIANT_HEAD};
#[cfg(feature = "http")]
use crate::key::{KeyBuf, LONG};

/// A key that is longer is announced by the tag of its URI: any client may write to any URI, and
/// every process carries and reads what the log has of it.
#[cfg(all(feature = "http", feature = "remote"))]
const LONGEST_ANNOUNCED: usize = 256;

/// Returns the tag of the URI that a key of the HTTP layer is for, or that stands for such a key
/// in an announcement; `None` for other keys.
pub(crate) fn uri_tag_of(key: &[u8]) -> Option<Tag> {
    #[cfg(feature = "http")]
    {
        let is_tag = key.len() == URI_TAG_LEN && key.starts_with(&KeyKind::UriTag.start());
        let tag = is_tag.then(|| Tag::from_encoded(key));
        tag.or_else(|| UriName::of_key(key).map(|name| name.tag()))
    }
    #[cfg(not(feature = "http"))]
    {
        let _ = key;
        None
    }
}

/// Returns whether a tag is for the entries of one process: it is not told to the remote.
#[cfg(any(feature = "http", feature = "remote"))]
pub(crate) fn is_of_process(tag: &Tag) -> bool {
    #[cfg(feature = "http")]
    return tag.as_bytes().starts_with(&KeyKind::UriTag.start());
    #[cfg(not(feature = "http"))]
    {
        let _ = tag;
        false
    }
}

/// Returns the key that stands for `key` in a list of what the remote is to be told later: one
/// key for all that a write to a URI ends. `None` for a key that others stand for.
#[cfg(feature = "remote")]
pub(crate) fn collected(key: Key) -> Option<Key> {
    #[cfg(feature = "http")]
    {
        if key.as_bytes().starts_with(&KeyKind::Anchor.start()) {
            return None;
        }
        if let Some(mut name) = UriName::of_key(key.as_bytes()) {
            if SCHEMES.contains(&name.scheme) {
                name.scheme = SCHEMES[0];
            }
            return name.primary_keys().next();
        }
    }
    Some(key)
}

/// Returns the keys that one of [`collected`] stands for.
#[cfg(feature = "remote")]
pub(crate) fn uncollected(key: &Key) -> Vec<Key> {
    #[cfg(feature = "http")]
    if let Some(name) = UriName::of_key(key.as_bytes()) {
        let schemes =
            if SCHEMES.contains(&name.scheme) { &SCHEMES[..] } else { &[name.scheme][..] };
        let mut keys = Vec::new();
        for scheme in schemes {
            let name = UriName { scheme, ..name };
            keys.extend(name.primary_keys().chain([name.anchor()]));
        }
        return keys;
    }
    vec![key.clone()]
}

/// Returns the keys of which other processes are told where `keys` have ended in the remote: of
/// those of one URI the first, which names all of it, or the tag of the URI where that is long.
#[cfg(feature = "remote")]
pub(crate) fn announced(keys: &[Key]) -> Vec<Key> {
    let mut uris = Vec::new();
    let is_told = |key: &&Key| match uri_tag_of(key.as_bytes()) {
        Some(tag) if uris.contains(&tag) => false,
        Some(tag) => {
            uris.push(tag);
            true
        }
        None => !is_anchor(key),
    };
    keys.iter().filter(is_told).map(shortened).collect()
}

#[cfg(feature = "remote")]
fn shortened(key: &Key) -> Key {
    #[cfg(feature = "http")]
    if key.as_bytes().len() > LONGEST_ANNOUNCED
        && let Some(tag) = uri_tag_of(key.as_bytes())
    {
        return Key::from_encoded(tag.as_bytes());
    }
    key.clone()
}

#[cfg(feature = "remote")]
fn is_anchor(key: &Key) -> bool {
    #[cfg(feature = "http")]
    return key.as_bytes().starts_with(&KeyKind::Anchor.start());
    #[cfg(not(feature = "http"))]
    {
        let _ = key;
        false
    }
}

/// Returns whether a key is of no response over HTTP, or says nothing but the URI of one.
pub(crate) fn is_plain(key: &[u8]) -> bool {
    #[cfg(feature = "http")]
    return match super::primary_of(key) {
        Some(primary) => primary == key && UriName::is_all_of(key),
        None => !key.starts_with(&KeyKind::Anchor.start()),
    };
    #[cfg(not(feature = "http"))]
    !key.is_empty()
}

/// The schemes of HTTP. A write to a URI may concern both.
#[cfg(all(feature = "http", any(feature = "remote", test)))]
const SCHEMES: [&[u8]; 2] = [b"http", b"https"];

/// A URI as the keys of its responses name it.
#[cfg(feature = "http")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UriName<'a> {
    pub(crate) scope: &'a [u8],
    pub(crate) scheme: &'a [u8],
    /// In normal form.
    pub(crate) host: &'a [u8],
    /// Path and query, with the parameters that count.
    pub(crate) resource: &'a [u8],
}

/// How long the tag of a URI is: its kind, and half of a digest.
#[cfg(feature = "http")]
const URI_TAG_LEN: usize = 2 + 16;

/// Where a request may name its host.
#[cfg(feature = "http")]
const PLACES: [KeyKind; 3] = [KeyKind::HostInField, KeyKind::HostInUri, KeyKind::HostInBoth];

#[cfg(feature = "http")]
impl<'a> UriName<'a> {
    /// Reads the name in a key of an entry, or of a flight. `None` for keys of other kinds.
    pub(crate) fn of_key(key: &'a [u8]) -> Option<Self> {
        Self::split(key).map(|(name, _)| name)
    }

    /// Returns the name in a key, and what the key says beside it.
    fn split(key: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let key = match key.split_at_checked(2)? {
            (start, rest) if start == KeyKind::Variant.start() => rest.get(VARIANT_HEAD..)?,
            (start, rest) if start == KeyKind::Flight.start() => rest.get(FLIGHT_HEAD..)?,
            _ => key,
        };
        let rest = PLACES.iter().find_map(|place| key.strip_prefix(&place.start()))?;
        let (scope, rest) = read_part(rest)?;
        let (scheme, rest) = read_part(rest)?;
        let (host, rest) = read_part(rest)?;
        let (resource, rest) = read_part(rest)?;
        Some((Self { scope, scheme, host, resource }, rest))
    }

    /// Returns whether a primary key says nothing but the name, and where the host is named.
    pub(crate) fn is_all_of(primary: &'a [u8]) -> bool {
        Self::split(primary).is_some_and(|(_, rest)| rest.is_empty())
    }

    /// Returns the tag that every entry of the URI carries.
    pub(crate) fn tag(&self) -> Tag {
        let digest = self.digest();
        let start = KeyKind::UriTag.start();
        Tag::from_encoded(&[&start[..], &digest[..URI_TAG_LEN - start.len()]].concat())
    }

    /// Returns the keys of the responses that have no more in their keys than the URI.
    pub(crate) fn primary_keys(&self) -> impl Iterator<Item = Key> {
        PLACES.iter().map(|place| {
            let mut key = KeyBuf::new();
            key.push(&place.start());
            for part in [self.scope, self.scheme, self.host, self.resource] {
                key.push_part(part);
            }
            key.to_key()
        })
    }

    /// Returns the key that leads to all other responses of the URI.
    pub(crate) fn anchor(&self) -> Key {
        let digest = self.digest();
        Key::from_encoded(&[&KeyKind::Anchor.start()[..], &digest].concat())
    }

    fn digest(&self) -> [u8; 32] {
        let mut all = KeyBuf::new();
        for part in [self.scope, self.scheme, self.host, self.resource] {
            all.push_part(part);
        }
        *blake3::hash(all.as_bytes()).as_bytes()
    }
}

/// Reads what [`KeyBuf::push_part`] writes.
#[cfg(feature = "http")]
fn read_part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&short, rest) = bytes.split_first()?;
    if short != LONG {
        return rest.split_at_checked(short.into());
    }
    let (long, rest) = rest.split_first_chunk()?;
    rest.split_at_checked(u32::from_be_bytes(*long) as usize)
}

#[cfg(all(test, feature = "http"))]
mod tests {
    use super::*;

    fn name(scheme: &'static str) -> UriName<'static> {
        UriName { scope: b"s", scheme: scheme.as_bytes(), host: b"x", resource: b"/page?a" }
    }

    #[test]
    fn every_key_of_a_uri_has_its_name() {
        let name = name("http");
        for key in name.primary_keys() {
            assert_eq!(UriName::of_key(key.as_bytes()), Some(name));
            assert!(UriName::is_all_of(key.as_bytes()));
            // A part that an application adds, a variant, a flight.
            let more = [key.as_bytes(), b"more"].concat();
            assert!(!UriName::is_all_of(&more));
            let variant = [&KeyKind::Variant.start()[..], &[7; VARIANT_HEAD], &more].concat();
            let flight = [&KeyKind::Flight.start()[..], &[7; FLIGHT_HEAD], &more].concat();
            for key in [&more[..], &variant, &flight] {
                assert_eq!(UriName::of_key(key), Some(name));
                assert_eq!(uri_tag_of(key), Some(name.tag()));
            }
            for cut in 0..key.as_bytes().len() {
                assert_eq!(UriName::of_key(&key.as_bytes()[..cut]), None);
            }
        }
        for key in [&b""[..], b"user:7", b"\0", name.anchor().as_bytes()] {
            assert_eq!(UriName::of_key(key), None);
        }
    }

    #[test]
    #[cfg(feature = "remote")]
    fn one_key_stands_for_all_that_a_write_ends() {
        let (http, https) = (name("http"), name("https"));
        let of = |name: UriName<'_>| name.primary_keys().collect::<Vec<_>>();
        let all = [of(http), of(https), vec![http.anchor(), https.anchor()]].concat();
        let mut collected: Vec<_> = all.iter().cloned().filter_map(super::collected).collect();
        collected.dedup();
        assert_eq!(collected, [of(http)[0].clone()]);
        let mut back = uncollected(&collected[0]);
        back.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
        let mut all = all;
        all.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
        assert_eq!(back, all);
        let resource = "/long".repeat(100);
        let long = UriName { resource: resource.as_bytes(), ..http };
        let told = announced(&of(long));
        assert_eq!(told, [Key::from_encoded(long.tag().as_bytes())]);
        assert_eq!(announced(&told), told);
        assert_eq!(uri_tag_of(told[0].as_bytes()), Some(long.tag()));
        let other = Key::from("user:7");
        assert_eq!(super::collected(other.clone()), Some(other.clone()));
        assert_eq!(uncollected(&other), [other]);
    }
}

/// Everything that a write to some URIs ends.
#[cfg(feature = "http")]
#[derive(Debug, Default)]
pub(crate) struct UriReach {
    /// What entries and computations of this process carry.
    pub(crate) tags: Vec<Tag>,
    /// Where something may stand in the remote that leads to responses, or is one.
    pub(crate) keys: Vec<Key>,
}

#[cfg(feature = "http")]
impl UriReach {
    /// Adds what has the name of a URI, under every scheme in `schemes`.
    pub(crate) fn add(&mut self, name: UriName<'_>, schemes: &[&str]) {
        for scheme in schemes {
            let name = UriName { scheme: scheme.as_bytes(), ..name };
            self.tags.push(name.tag());
            self.keys.extend(name.primary_keys().chain([name.anchor()]));
        }
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.tags.extend(other.tags);
        self.keys.extend(other.keys);
    }
}
