//! Encryption by XChaCha20-Poly1305.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..4 | the number of the key |
//! | 4..28 | nonce, random |
//! | 28.. | the encrypted content, and 16 bytes by which it is authenticated |

use std::fmt;

use bytes::Bytes;
use chacha20poly1305::aead::{Aead, Generate, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};

/// The keys with which a cache encrypts what it writes to the remote.
///
/// The first key writes, and all read. A value is encrypted with XChaCha20-Poly1305, and bound to
/// its key, its cache, the namespace, its type, its times and its flags: a client that may write to
/// the remote cannot make a value, change one, or put it in another place. It can bring back an
/// older value of the same key until its lifetime ends, and remove values.
///
/// The value, its tags and its key are encrypted. Not encrypted are the names of records, which
/// carry the key, the log of invalidations and the messages, which carry keys and tags, and the
/// sizes and times of values.
///
/// # A new key, without a flush
///
/// Each step must have reached every process before the next one begins:
///
/// 1. `EncryptionKeys::new(1, old).and_read(2, new)`: all can read the new key.
/// 2. `EncryptionKeys::new(2, new).and_read(1, old)`: it writes.
/// 3. `EncryptionKeys::new(2, new)`, when the values of the old key have ended.
///
/// A value of an unknown key is a miss, and is replaced. So is one that is not encrypted.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_stampede::remote::{Codec, EncryptionKeys};
/// use tower_stampede::{Redis, Stampede};
///
/// # fn secret(name: &str) -> [u8; 32] { [name.len() as u8; 32] }
/// // 32 random bytes each, from your store of secrets.
/// let keys = EncryptionKeys::new(2, &secret("new")).and_read(1, &secret("old"));
/// let cache: Stampede<String> = Stampede::builder("users")
///     .ttl(Duration::from_secs(60))
///     .codec(Codec::postcard().encrypt(keys))
///     .redis(Redis::lazy("redis://127.0.0.1/")?.namespace("shop"))
///     .build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct EncryptionKeys(Vec<(u32, XChaCha20Poly1305)>);

impl EncryptionKeys {
    /// Takes the key that writes, and its number. The number is not secret, and stands in front of
    /// each value. The key must be random: a password is none.
    pub fn new(number: u32, key: &[u8; 32]) -> Self {
        Self(Vec::new()).and_read(number, key)
    }

    /// Adds a key that only reads. Of two keys with one number, the first counts.
    pub fn and_read(mut self, number: u32, key: &[u8; 32]) -> Self {
        self.0.push((number, XChaCha20Poly1305::new(key.into())));
        self
    }

    pub(crate) fn encrypt(&self, associated_data: &[u8], content: &[u8]) -> Option<Vec<u8>> {
        let (number, cipher) = self.0.first()?;
        let nonce = XNonce::try_generate().ok()?;
        let payload = Payload { msg: content, aad: associated_data };
        let encrypted = cipher.encrypt(&nonce, payload).ok()?;
        Some([&number.to_be_bytes()[..], &nonce, &encrypted].concat())
    }

    pub(crate) fn decrypt(&self, associated_data: &[u8], encrypted: &[u8]) -> Option<Bytes> {
        let (number, rest) = encrypted.split_first_chunk()?;
        let (nonce, content) = rest.split_first_chunk::<24>()?;
        let number = u32::from_be_bytes(*number);
        let (_, cipher) = self.0.iter().find(|(known, _)| *known == number)?;
        let payload = Payload { msg: content, aad: associated_data };
        cipher.decrypt(nonce.into(), payload).ok().map(Bytes::from)
    }
}

/// Shows the numbers alone.
impl fmt::Debug for EncryptionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().map(|(number, _)| number)).finish()
    }
}
