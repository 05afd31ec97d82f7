//! The door for fuzzers: what reads bytes that others wrote. Not an interface.

use bytes::Bytes;

use crate::StoredResponse;
use crate::key::{Key, Tag};
use crate::lease::grant::{ServerTime, Version};
use crate::remote::codec::ValueForm;
use crate::remote::codec::coding::EnvelopeCoding;
use crate::remote::envelope::{self, Envelope, Kind};
use crate::remote::{Codec, Remotable};

const KEY: &str = "key";

fn coding() -> EnvelopeCoding {
    EnvelopeCoding { number: 1, ..EnvelopeCoding::default() }
}

/// Opens an envelope and reads the response in it. Returns how far it came.
///
/// # Panics
///
/// When what was read does not stand for the bytes it was read from.
#[must_use]
pub fn open(bytes: &Bytes) -> &'static str {
    let key = Key::from(KEY);
    let opened = match envelope::open(bytes, &key, &coding(), bytes.len()) {
        Ok(opened) => opened,
        Err(damage) => return damage.as_str(),
    };
    let number = Version::new(1).expect("1 is a version");
    let again =
        envelope::encode(&opened, &key, &coding(), envelope::version_of(bytes).unwrap_or(number));
    assert_eq!(again.expect("what was read can be written")[20..], bytes[20..]);
    response(&opened.payload)
}

/// Reads a stored response. Returns whether it is one.
///
/// # Panics
///
/// When the value that was read is written as other bytes.
#[must_use]
pub fn response(bytes: &Bytes) -> &'static str {
    let Some(read) = StoredResponse::decode(bytes.clone()) else { return "no response" };
    let written = read.encode().expect("what was read can be written");
    let again = StoredResponse::decode(written.clone()).expect("what was written can be read");
    assert_eq!(format!("{:?}", read.slot()), format!("{:?}", again.slot()));
    assert_eq!(again.encode(), Some(written));
    "response"
}

/// Reads a response, in an envelope or without, and drops it: for counting what
/// that allocates.
pub fn read(bytes: &Bytes) {
    let opened = envelope::open(bytes, &Key::from(KEY), &coding(), bytes.len());
    let payload = opened.map_or_else(|_| bytes.clone(), |opened| opened.payload);
    drop(StoredResponse::decode(payload));
}

/// Returns responses and indexes as bytes.
#[must_use]
pub fn responses() -> Vec<Bytes> {
    crate::http::stored::wire::samples()
}

fn sample() -> Envelope {
    let ms = std::time::Duration::from_millis;
    Envelope {
        kind: Kind::Value,
        started: ServerTime::from_millis(1_700_000_000_000),
        stamp: None,
        fresh: ms(60_000),
        stale_for: ms(600_000),
        stale_if_error: ms(3_600_000),
        kept_longer: ms(600_000),
        age: ms(0),
        took: ms(30),
        tags: ["user:7", "path:/report"].map(Tag::from).to_vec(),
        validator: None,
        payload: Bytes::new(),
    }
}

/// Returns the envelope of a response.
#[must_use]
pub fn wrap(response: Bytes) -> Bytes {
    let envelope = Envelope { payload: response, ..sample() };
    let version = Version::new(42).expect("42 is a version");
    envelope::encode(&envelope, &Key::from(KEY), &coding(), version).expect("two tags fit")
}

/// Puts a right checksum into what is long enough to have one, so that changed
/// bytes come further than to it.
pub fn seal(bytes: &mut [u8]) {
    envelope::seal(bytes);
}

/// A codec at work, without a remote: for measuring what it costs.
#[derive(Debug)]
pub struct Coder<V>(ValueForm<V>);

impl<V> Coder<V> {
    /// Takes a codec as a cache does.
    #[must_use]
    pub fn new(codec: Codec<V>) -> Self {
        Self(ValueForm::new(codec, 0, "shop\ncatalog".into()))
    }

    /// Returns the envelope of a value.
    #[must_use]
    pub fn write(&self, value: &V) -> Option<Bytes> {
        let payload = self.0.write(value, || ())?;
        let envelope = Envelope { payload, ..sample() };
        envelope::encode(&envelope, &Key::from(KEY), &self.0.coding, Version::new(42)?)
    }

    /// Reads the value in an envelope.
    #[must_use]
    pub fn read(&self, bytes: &Bytes) -> Option<V> {
        let opened = envelope::open(bytes, &Key::from(KEY), &self.0.coding, 64 << 20).ok()?;
        self.0.read(opened.payload)
    }
}
