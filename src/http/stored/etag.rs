//! Entity tags that the cache makes for responses without a validator.

use http::header::{self, HeaderMap, HeaderValue};

use crate::http::stored::response::Content;
use crate::key::KeyBuf;

/// Writes a strong entity tag: a hash of the coding and the bytes. The bytes of two codings
/// differ, but for an empty body. Without the whole body there is nothing to hash.
pub(super) fn write(headers: &mut HeaderMap, body: &Content) {
    let Some(bytes) = body.whole() else { return };
    let mut codings = KeyBuf::default();
    for coding in headers.get_all(header::CONTENT_ENCODING) {
        codings.push_part(coding.as_bytes());
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(codings.as_bytes().len() as u64).to_be_bytes());
    hasher.update(codings.as_bytes()).update(bytes);
    let hash = hasher.finalize().to_hex();
    let tag = HeaderValue::try_from(format!("\"{}\"", &hash.as_str()[..HEX]));
    if let Ok(tag) = tag {
        // A map that is full to the brim goes without.
        let _ = headers.try_insert(header::ETAG, tag);
    }
}

/// How much of the hash is kept: 128 bits.
const HEX: usize = 32;
