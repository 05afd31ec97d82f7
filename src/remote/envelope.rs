//! The bytes around a value in the remote.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..2 | magic |
//! | 2 | format |
//! | 3 | flags: 1 = not to be shared, 2 = the payload is compressed, 4 = the rest is encrypted, 8 = there is a validator |
//! | 4..20 | the version in decimal digits, which a put replaces in the server |
//! | 20..28 | checksum over everything but the version and itself |
//! | 28..84 | started at, fresh, stale, stale if error, took, age, kept longer; each in ms |
//! | 84..96 | number of type, codec and schema; length of the key; number of tags |
//! | 96..104 | length of the payload |
//! | 104..120 | the stamp: epoch and position in the invalidation log; 0 where there is no log |
//! | 120.. | tags, and the validator if there is one, each with its length; key; payload. Encrypted, as `codec/coding/aead.rs` says |
//!
//! Numbers are big-endian. Whatever is read is untrusted: nothing is allocated
//! before the lengths and the checksum are right. The checksum finds damage; it
//! does not stop an attacker that may write to the remote.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::computed::MAX_VALIDATOR;
use crate::key::{Key, Tag};
use crate::lease::grant::{Epoch, ServerTime, Stamp, Version};
use crate::remote::codec::coding::EnvelopeCoding;

const MAGIC: [u8; 2] = *b"ts";
const FORMAT: u8 = 3;
const UNCACHEABLE: u8 = 1;
const COMPRESSED: u8 = 2;
const ENCRYPTED: u8 = 4;
const WITH_VALIDATOR: u8 = 8;

/// Where the version stands; the scripts in the server know it too.
const VERSION: std::ops::Range<usize> = 4..20;
const CHECKSUM: std::ops::Range<usize> = 20..28;
/// Length of everything that has a fixed place.
const HEAD: usize = 120;

/// An entry with more tags stays in its process.
const MAX_TAGS: usize = 4096;

/// What is shared of an entry.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) kind: Kind,
    /// The remote's time when the computation started.
    pub(crate) started: ServerTime,
    /// How far its process had applied the invalidation log before the computation.
    pub(crate) stamp: Option<Stamp>,
    /// How old the value was then: an origin may answer from a cache.
    pub(crate) age: Duration,
    /// How long the value is fresh, counted from when it was of age zero: `age`
    /// before `started`. It includes the time of the computation where the
    /// lifetime counts from its end. The stale windows begin where it ends.
    pub(crate) fresh: Duration,
    pub(crate) stale_for: Duration,
    pub(crate) stale_if_error: Duration,
    /// How much longer than it may be served the value is kept.
    pub(crate) kept_longer: Duration,
    /// How long the computation took.
    pub(crate) took: Duration,
    pub(crate) tags: Vec<Tag>,
    /// What the origin knows this state of the data by.
    pub(crate) validator: Option<Box<str>>,
    pub(crate) payload: Bytes,
}

/// What an envelope says of its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Value,
    /// Answers of this key may not be shared: every caller computes.
    Uncacheable,
}

words! {
    /// Why bytes from the remote are not one of our envelopes. This counts as a miss.
    pub(crate) enum Damage {
        Short = "short",
        Magic = "magic",
        /// Another format, an unknown flag, or lengths that contradict each other.
        Format = "format",
        Checksum = "checksum",
        /// The value is of another type, codec or schema.
        Schema = "schema",
        /// It is not encrypted as it should be, or not for this place, or by an unknown key.
        Decryption = "decryption",
        /// Another key's value.
        Key = "key",
        TooLarge = "too_large",
        /// The value cannot be made of the bytes inside.
        Payload = "payload",
    }
}

/// Writes an envelope. `None` if it has too many tags: without them it would
/// outlive their invalidation; or if it cannot be encrypted. Durations are cut to whole milliseconds.
pub(crate) fn encode(
    envelope: &Envelope,
    key: &Key,
    coding: &EnvelopeCoding,
    version: Version,
) -> Option<Bytes> {
    let tags = u32::try_from(envelope.tags.len()).ok().filter(|n| *n <= MAX_TAGS as u32)?;
    let key_len = u32::try_from(key.as_bytes().len()).ok()?;
    let compressed = coding.compress(&envelope.payload);
    let payload = compressed.as_ref().unwrap_or(&envelope.payload);
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    let mut out = BytesMut::with_capacity(encoded_len(envelope, key));
    out.put_slice(&MAGIC);
    out.put_u8(FORMAT);
    out.put_u8(
        flag(envelope.kind == Kind::Uncacheable, UNCACHEABLE)
            | flag(compressed.is_some(), COMPRESSED)
            | flag(coding.keys.is_some(), ENCRYPTED)
            | flag(envelope.validator.is_some(), WITH_VALIDATOR),
    );
    out.put_slice(version.to_string().as_bytes());
    out.put_u64(0);
    out.put_u64(envelope.started.as_millis());
    let Envelope { fresh, stale_for, stale_if_error, took, age, kept_longer, .. } = envelope;
    for span in [fresh, stale_for, stale_if_error, took, age, kept_longer] {
        out.put_u64(u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
    }
    out.put_u32(coding.number);
    out.put_u32(key_len);
    out.put_u32(tags);
    out.put_u64(payload.len() as u64);
    out.put_u64(envelope.stamp.map_or(0, |stamp| stamp.epoch.get()));
    out.put_u64(envelope.stamp.map_or(0, |stamp| stamp.position));
    let tags = envelope.tags.iter().map(Tag::as_bytes);
    for label in tags.chain(envelope.validator.as_deref().map(str::as_bytes)) {
        out.put_u32(u32::try_from(label.len()).ok()?);
        out.put_slice(label);
    }
    out.put_slice(key.as_bytes());
    out.put_slice(payload);
    if coding.keys.is_some() {
        let content = out.split_off(HEAD);
        let encrypted = coding.encrypt(place(&out, key), &content)?;
        out.put_slice(&encrypted);
    }
    seal(&mut out);
    Some(out.freeze())
}

/// Returns how many bytes [`encode`] writes, without compression and encryption.
pub(crate) fn encoded_len(envelope: &Envelope, key: &Key) -> usize {
    let tags: usize = envelope.tags.iter().map(|tag| 4 + tag.as_bytes().len()).sum();
    let validator = envelope.validator.as_ref().map_or(0, |text| 4 + text.len());
    HEAD + tags + validator + key.as_bytes().len() + envelope.payload.len()
}

/// Reads the envelope of `key`. Its payload is a slice of `bytes`; one of more
/// than `max_bytes` counts as damage.
pub(crate) fn open(
    bytes: &Bytes,
    key: &Key,
    coding: &EnvelopeCoding,
    max_bytes: usize,
) -> Result<Envelope, Damage> {
    let mut head = bytes.get(..HEAD).ok_or(Damage::Short)?;
    if head[..2] != MAGIC {
        return Err(Damage::Magic);
    }
    let flags = head[3];
    let has = |flag| flags & flag != 0;
    if head[2] != FORMAT || has(!(UNCACHEABLE | COMPRESSED | ENCRYPTED | WITH_VALIDATOR)) {
        return Err(Damage::Format);
    }
    head.advance(CHECKSUM.end);
    let started = ServerTime::from_millis(head.get_u64());
    let [fresh, stale_for, stale_if_error, took, age, kept_longer] =
        std::array::from_fn(|_| Duration::from_millis(head.get_u64()));
    let (number, key_len, tags) = (head.get_u32(), head.get_u32(), head.get_u32());
    let payload_len = head.get_u64();
    let (epoch, position) = (Epoch::new(head.get_u64()), head.get_u64());
    if payload_len > max_bytes as u64 {
        return Err(Damage::TooLarge);
    }
    if bytes[CHECKSUM] != checksum(bytes) {
        return Err(Damage::Checksum);
    }
    if number != coding.number {
        return Err(Damage::Schema);
    }
    if has(ENCRYPTED) != coding.keys.is_some() {
        return Err(Damage::Decryption);
    }
    let mut rest = bytes.slice(HEAD..);
    if has(ENCRYPTED) {
        rest = coding.decrypt(place(bytes, key), &rest).ok_or(Damage::Decryption)?;
    }
    let tags = read_tags(&mut rest, tags).ok_or(Damage::Format)?;
    let validator = has(WITH_VALIDATOR).then(|| read_validator(&mut rest).ok_or(Damage::Format));
    let validator = validator.transpose()?;
    let named = take(&mut rest, key_len).ok_or(Damage::Format)?;
    if rest.len() as u64 != payload_len {
        return Err(Damage::Format);
    }
    if named != key.as_bytes() {
        return Err(Damage::Key);
    }
    if has(COMPRESSED) {
        rest = coding.decompress(&rest, max_bytes).ok_or(Damage::Payload)?;
    }
    Ok(Envelope {
        kind: if has(UNCACHEABLE) { Kind::Uncacheable } else { Kind::Value },
        started,
        stamp: epoch.map(|epoch| Stamp::new(epoch, position)),
        age,
        fresh,
        stale_for,
        stale_if_error,
        kept_longer,
        took,
        tags,
        validator,
        payload: rest,
    })
}

/// Returns what an encrypted content is bound to: all of the head but the version and the
/// checksum, and the key.
fn place<'a>(bytes: &'a [u8], key: &'a Key) -> [&'a [u8]; 3] {
    [&bytes[..VERSION.start], &bytes[CHECKSUM.end..HEAD], key.as_bytes()]
}

/// Returns the version of what stands in the remote, damaged or not.
pub(crate) fn version_of(bytes: &[u8]) -> Option<Version> {
    Version::from_digits(bytes.get(VERSION)?)
}

fn read_tags(rest: &mut Bytes, count: u32) -> Option<Vec<Tag>> {
    // A bound on the work, whatever number stands there.
    let count = usize::try_from(count).ok().filter(|count| *count <= MAX_TAGS)?;
    (0..count).map(|_| Some(Tag::from_encoded(&read_label(rest)?))).collect()
}

fn read_validator(rest: &mut Bytes) -> Option<Box<str>> {
    let text = read_label(rest).filter(|text| text.len() <= MAX_VALIDATOR)?;
    std::str::from_utf8(&text).ok().map(Into::into)
}

fn read_label(rest: &mut Bytes) -> Option<Bytes> {
    let len = take(rest, 4)?.get_u32();
    take(rest, len)
}

fn take(rest: &mut Bytes, len: u32) -> Option<Bytes> {
    let len = usize::try_from(len).ok().filter(|len| *len <= rest.len())?;
    Some(rest.split_to(len))
}

/// Writes the checksum into its place.
pub(crate) fn seal(bytes: &mut [u8]) {
    if bytes.len() >= HEAD {
        let sum = checksum(bytes);
        bytes[CHECKSUM].copy_from_slice(&sum);
    }
}

/// 64 bits of BLAKE3, which the crate has for keys anyway.
fn checksum(bytes: &[u8]) -> [u8; 8] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&bytes[..VERSION.start]);
    hasher.update(&bytes[CHECKSUM.end..]);
    let digest = *hasher.finalize().as_bytes();
    std::array::from_fn(|i| digest[i])
}

// The payload is the user's and may be secret or large: never printed.
impl std::fmt::Debug for Envelope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Envelope")
            .field("kind", &self.kind)
            .field("started", &self.started)
            .field("fresh", &self.fresh)
            .field("tags", &self.tags.len())
            .field("bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
