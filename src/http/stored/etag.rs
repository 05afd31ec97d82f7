//! Entity tags that the cache makes for responses without a validator.

use http::header::{self, HeaderMap, HeaderValue};

use crate::http::body::Content;
use crate::http::rules::content::push_values;
use crate::key::KeyBuf;

/// Writes a strong entity tag: a hash of the bytes and of what says how to read them (RFC 9110,
/// 8.8.1: representations that differ in their metadata are different ones). Without the whole
/// body there is nothing to hash.
pub(super) fn write(headers: &mut HeaderMap, body: &Content) {
    let Some(bytes) = body.whole() else { return };
    let mut metadata = KeyBuf::default();
    push_values(&mut metadata, headers, &METADATA);
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(metadata.as_bytes().len() as u64).to_be_bytes());
    hasher.update(metadata.as_bytes()).update(bytes);
    let hash = hasher.finalize().to_hex();
    let tag = HeaderValue::try_from(format!("\"{}\"", &hash.as_str()[..HEX]));
    if let Ok(tag) = tag {
        // A map that is full to the brim goes without.
        let _ = headers.try_insert(header::ETAG, tag);
    }
}

const METADATA: [header::HeaderName; 3] =
    [header::CONTENT_ENCODING, header::CONTENT_TYPE, header::CONTENT_LANGUAGE];

/// How much of the hash is kept: 128 bits.
const HEX: usize = 32;
