//! What is done to values on their way to the remote: compression, and encryption around it.

#[cfg(feature = "codec-aead")]
mod aead;
#[cfg(not(feature = "codec-aead"))]
#[path = "coding/aead_off.rs"]
mod aead;

use bytes::Bytes;

#[cfg(feature = "codec-aead")]
pub use crate::remote::codec::coding::aead::EncryptionKeys;
#[cfg(not(feature = "codec-aead"))]
pub(crate) use crate::remote::codec::coding::aead::NoKeys as EncryptionKeys;

/// Higher levels take longer than sending what they save.
#[cfg(feature = "codec-zstd")]
const LEVEL: i32 = 1;

/// How the envelopes of a cache are written and read.
#[derive(Debug, Default)]
pub(crate) struct EnvelopeCoding {
    /// The fingerprint of type and codec, and the schema on top.
    pub(crate) number: u32,
    /// Values of more bytes are compressed.
    pub(crate) compressed_above: Option<usize>,
    pub(crate) keys: Option<EncryptionKeys>,
    /// The namespace and the name of the cache.
    pub(crate) scope: String,
}

impl EnvelopeCoding {
    /// Returns the payload compressed, if that makes it shorter.
    pub(crate) fn compress(&self, payload: &[u8]) -> Option<Bytes> {
        let is_long = payload.len() > self.compressed_above?;
        #[cfg(feature = "codec-zstd")]
        if is_long && let Ok(compressed) = zstd::bulk::compress(payload, LEVEL) {
            return (compressed.len() < payload.len()).then(|| compressed.into());
        }
        let _ = is_long;
        None
    }

    /// Reads a compressed payload. Nothing if it is none, or one of more than `max` bytes.
    pub(crate) fn decompress(&self, compressed: &[u8], max: usize) -> Option<Bytes> {
        self.compressed_above?;
        #[cfg(feature = "codec-zstd")]
        return zstd::bulk::decompress(compressed, max).ok().map(Bytes::from);
        #[cfg(not(feature = "codec-zstd"))]
        {
            let _ = (compressed, max);
            None
        }
    }

    /// Encrypts the content of an envelope. `place` is what a reader knows without it.
    pub(crate) fn encrypt(&self, place: [&[u8]; 3], content: &[u8]) -> Option<Vec<u8>> {
        self.keys.as_ref()?.encrypt(&self.associated_data(place), content)
    }

    /// Reads the content of an envelope. Nothing if it was encrypted for another place.
    pub(crate) fn decrypt(&self, place: [&[u8]; 3], encrypted: &[u8]) -> Option<Bytes> {
        self.keys.as_ref()?.decrypt(&self.associated_data(place), encrypted)
    }

    /// Each part after its length, so that no two places have the same bytes.
    fn associated_data(&self, place: [&[u8]; 3]) -> Vec<u8> {
        let mut data = Vec::new();
        for part in [self.scope.as_bytes()].iter().chain(&place) {
            data.extend_from_slice(&(part.len() as u64).to_be_bytes());
            data.extend_from_slice(part);
        }
        data
    }
}
