//! Generations: what an invalidation in the remote ends at once.

use crate::http::rules::vary::Fingerprint;
use crate::key::{Key, KeyBuf, KeyKind};
use crate::lease::grant::Token;

/// A random number in an index. It is a part of the keys of all that the index leads to. An
/// invalidation removes the index; a later one has another number, and nothing leads any more to
/// what stood under the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation([u8; 16]);

impl Generation {
    /// Makes one that no process has made before.
    pub(crate) fn random() -> Self {
        Self(Token::random().to_bytes())
    }

    #[cfg(feature = "remote")]
    pub(crate) fn from_wire(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    #[cfg(feature = "remote")]
    pub(crate) fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Returns the key in the remote of what these generations lead to, for requests with this
/// primary key: a variant, or without one a response or an index.
pub(crate) fn leaf_key(
    generations: impl IntoIterator<Item = Generation>,
    primary: &Key,
    variant: Option<Fingerprint>,
) -> Key {
    let mut parts = KeyBuf::new();
    parts.push(variant.as_ref().map_or(&[], |variant| variant.as_bytes()));
    parts.push_part(primary.as_bytes());
    generations.into_iter().for_each(|generation| parts.push(&generation.0));
    let digest = blake3::hash(parts.as_bytes());
    let kind = if variant.is_some() { b"v" } else { b"p" };
    Key::from_encoded(&[&KeyKind::Leaf.start()[..], kind, digest.as_bytes()].concat())
}
