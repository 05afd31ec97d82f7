//! Values as bytes.

pub(crate) mod coding;
mod digest;
mod shape;

use std::any::type_name;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::remote::codec::coding::{EncryptionKeys, EnvelopeCoding};
use crate::remote::codec::digest::digest;
use crate::remote::codec::shape::TypeShape;

/// A value that can leave the process.
///
/// Every type with serde's `Serialize` and `Deserialize` is one, in the
/// [postcard](https://postcard.jamesmunns.com) format: compact, and not
/// self-describing. What serde reports of the type (names of fields and
/// variants, their order and kinds) is part of each value in the remote, so
/// values of a type whose fields have changed are a miss. Where only the meaning
/// changes, raise [`Builder::schema`](crate::Builder::schema). Implement it by
/// hand for a type without serde, or for a format of your own.
///
/// # What postcard cannot bring over
///
/// Types with `#[serde(flatten)]`, `tag`, `untagged`, `skip_serializing_if` or
/// `skip_serializing`, and `serde_json::Value`. Such values stay in their process, and a line at
/// WARN says so once for each cache. The cache finds out by itself: it writes and reads made-up
/// values of the type when it is built, and the real ones at its first 16 fills and at one in
/// 1,000 later, at every fill if the type refuses made-up values. [`Codec::json`] takes most of
/// these types.
///
/// A field with `#[serde(skip)]` is left out on purpose: other processes get its default.
///
/// A type that contains itself is read by recursion, as deep
/// as the bytes say: give it a format of your own if others may write to the
/// remote.
///
/// # Examples
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use tower_stampede::Remotable;
///
/// #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
/// struct User {
///     id: u64,
///     name: String,
/// }
///
/// let user = User { id: 7, name: "Ada".into() };
/// let bytes = user.encode().unwrap();
/// assert_eq!(User::decode(bytes), Some(user));
/// ```
///
/// By hand:
///
/// ```
/// use bytes::Bytes;
/// use tower_stampede::Remotable;
///
/// #[derive(Clone)]
/// struct Page(Bytes);
///
/// impl Remotable for Page {
///     fn encode(&self) -> Option<Bytes> {
///         Some(self.0.clone())
///     }
///
///     fn decode(bytes: Bytes) -> Option<Self> {
///         Some(Self(bytes))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot leave the process",
    label = "not a value that a remote can hold",
    note = "derive serde's `Serialize` and `Deserialize` for it, or implement `Remotable` by hand"
)]
pub trait Remotable: Sized + Send + Sync + 'static {
    /// Writes the value. `None` keeps it in this process alone: every other
    /// process computes its own.
    fn encode(&self) -> Option<Bytes>;

    /// Reads a value. `None` is a miss.
    ///
    /// The bytes may come from an older program, or from any client that may write
    /// to the remote: any bytes must be handled. They are whole: a checksum was right. A
    /// `Bytes` taken out of them as a slice costs nothing and keeps all of them
    /// in memory.
    fn decode(bytes: Bytes) -> Option<Self>;

    /// Returns how a cache writes this type, unless [`Builder::codec`](crate::Builder::codec) says
    /// it. A type with a form of its own that other languages read gives it a number:
    /// `Codec::new(Self::encode, Self::decode).fingerprint(0)`.
    fn codec() -> Codec<Self> {
        Codec::new(Self::encode, Self::decode)
    }
}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Remotable for T {
    fn encode(&self) -> Option<Bytes> {
        Postcard::write(self)
    }

    fn decode(bytes: Bytes) -> Option<Self> {
        Postcard::read(&bytes)
    }

    fn codec() -> Codec<Self> {
        Codec::postcard()
    }
}

/// How a cache writes its values for other processes, and reads theirs.
///
/// A cache takes [`Remotable::codec`] unless [`Builder::codec`](crate::Builder::codec) names
/// another one: postcard for serde types.
///
/// # The fingerprint
///
/// Each value in the remote carries a number of 32 bits. A value with another number is a miss. It
/// is made of the codec, the path of the type and what serde reports of the type, and
/// [`Builder::schema`](crate::Builder::schema) is added to it. So two types under one name, or a
/// type before and after a change of its fields, never read each other's values. A type that was
/// moved to another module, and perhaps another version of the compiler, is another type: its
/// values are computed again.
///
/// [`fingerprint`](Self::fingerprint) replaces the number by one that you choose: for programs in
/// other languages, and for two programs that each define the type for themselves. Then keeping
/// types apart is up to you.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_stampede::Stampede;
/// use tower_stampede::remote::Codec;
///
/// // Every program that shares this cache writes and reads the number 7.
/// let cache: Stampede<String> = Stampede::builder("greetings")
///     .ttl(Duration::from_secs(60))
///     .codec(Codec::postcard().fingerprint(7))
///     .build()?;
/// # Ok::<(), tower_stampede::ConfigError>(())
/// ```
#[must_use]
pub struct Codec<V> {
    encode: fn(&V) -> Option<Bytes>,
    decode: fn(Bytes) -> Option<V>,
    /// Nothing is known of a form of your own.
    serde: Option<Serde<V>>,
    fingerprint: Option<u32>,
    compressed_above: Option<usize>,
    keys: Option<EncryptionKeys>,
}

/// What serde can say of a type.
struct Serde<V> {
    follow: fn() -> TypeShape,
    digest: fn(&V) -> Option<u64>,
}

impl<V> Codec<V> {
    /// Takes a form of your own: see [`Remotable::encode`] and [`Remotable::decode`] for what the
    /// two must do. Of the type only the path is in the fingerprint. The cache does not check that
    /// it reads what it has written.
    pub fn new(encode: fn(&V) -> Option<Bytes>, decode: fn(Bytes) -> Option<V>) -> Self {
        Self { encode, decode, serde: None, fingerprint: None, compressed_above: None, keys: None }
    }

    /// Compresses values of more than `bytes` bytes with zstd, where that makes them shorter. Both
    /// kinds are read, and a value has at most
    /// [`RemoteSettings::max_value_bytes`](crate::remote::RemoteSettings::max_value_bytes) when it
    /// is unpacked.
    ///
    /// A process without this setting reads compressed values as a miss. To begin with compression
    /// without misses, deploy `compress_above(usize::MAX)` first: it only reads. Clients in other
    /// languages do not read compressed values: where they share the cache, leave it off.
    ///
    /// The size of a compressed value says something of its content. Do not compress secrets
    /// together with text that a stranger chooses, if the stranger can see the size.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_stampede::{HttpStampede, Redis, Remotable, StoredResponse};
    ///
    /// let pages = HttpStampede::builder("pages")
    ///     .ttl(Duration::from_secs(60))
    ///     .codec(StoredResponse::codec().compress_above(1024))
    ///     .redis(Redis::lazy("redis://127.0.0.1/")?.namespace("shop"))
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "codec-zstd")]
    #[cfg_attr(docsrs, doc(cfg(feature = "codec-zstd")))]
    pub const fn compress_above(mut self, bytes: usize) -> Self {
        self.compressed_above = Some(bytes);
        self
    }

    /// Encrypts values, after compression. Values that are not encrypted are a miss then. See
    /// [`EncryptionKeys`].
    #[cfg(feature = "codec-aead")]
    #[cfg_attr(docsrs, doc(cfg(feature = "codec-aead")))]
    pub fn encrypt(mut self, keys: EncryptionKeys) -> Self {
        self.keys = Some(keys);
        self
    }

    /// Sets the number that values carry, in place of the computed one. Numbers below 2³¹ are
    /// never computed. [`Builder::schema`](crate::Builder::schema) is added to it.
    pub const fn fingerprint(mut self, fingerprint: u32) -> Self {
        self.fingerprint = Some(fingerprint);
        self
    }

    /// Returns whether the value comes back from its bytes. Fields count by their names: bytes that
    /// were read in the wrong places may be written as the same bytes again.
    fn brings_back(&self, serde: &Serde<V>, value: &V, bytes: &Bytes) -> bool {
        let is_same = || {
            let read = (self.decode)(bytes.clone());
            read.is_some_and(|read| (serde.digest)(&read) == (serde.digest)(value))
        };
        // A type may write how much time is left: once more, before all sharing ends.
        is_same() || is_same()
    }
}

impl Codec<Bytes> {
    /// Takes the bytes as they are, for values that are bytes already.
    pub fn bytes() -> Self {
        Self::new(|value| Some(value.clone()), Some)
    }
}

impl<V: Serialize + DeserializeOwned> Codec<V> {
    /// Takes [postcard](https://postcard.jamesmunns.com): compact, without the names of fields.
    pub fn postcard() -> Self {
        Self::of::<Postcard>()
    }

    /// Takes JSON, which programs in other languages read, and which writes every type that
    /// serde can describe.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_stampede::Stampede;
    /// use tower_stampede::remote::Codec;
    ///
    /// let cache: Stampede<serde_json::Value> = Stampede::builder("documents")
    ///     .ttl(Duration::from_secs(60))
    ///     .codec(Codec::json())
    ///     .build()?;
    /// # Ok::<(), tower_stampede::ConfigError>(())
    /// ```
    #[cfg(feature = "codec-json")]
    #[cfg_attr(docsrs, doc(cfg(feature = "codec-json")))]
    pub fn json() -> Self {
        Self::of::<Json>()
    }

    fn of<F: Format>() -> Self {
        let serde = Serde {
            follow: || {
                let judge = |sample: &V| {
                    let codec = Self::of::<F>();
                    let bytes = F::write(sample)?;
                    Some(codec.brings_back(codec.serde.as_ref()?, sample, &bytes))
                };
                let mut shape = shape::trace::<V>(F::IS_HUMAN_READABLE, judge);
                shape.hash.update(F::NAME);
                shape
            },
            digest: |value| digest(value, F::IS_HUMAN_READABLE),
        };
        Self { serde: Some(serde), ..Self::new(F::write, |bytes| F::read(&bytes)) }
    }
}

impl<V> fmt::Debug for Codec<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Codec")
            .field("fingerprint", &self.fingerprint)
            .field("compressed_above", &self.compressed_above)
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}

/// After how many fills of a cache only one in [`RARELY`] is checked.
const FIRST_FILLS: u64 = 16;
const RARELY: u64 = 1000;

/// A codec at work in one cache.
pub(crate) struct ValueForm<V> {
    codec: Codec<V>,
    pub(crate) coding: EnvelopeCoding,
    /// Made-up values of the type were read as they were written.
    is_proven: bool,
    /// A value was not. Those of other processes are then not to be trusted either.
    is_lossy: AtomicBool,
    fills: AtomicU64,
}

impl<V> ValueForm<V> {
    /// `scope` is the namespace and the name of the cache.
    pub(crate) fn new(mut codec: Codec<V>, schema: u32, scope: String) -> Self {
        let shape = codec.serde.as_ref().map(|serde| (serde.follow)());
        let mut hash = blake3::Hasher::new();
        let (mut is_proven, mut is_lossy) = (true, false);
        if let Some(shape) = shape {
            (is_proven, is_lossy) = (shape.is_complete, shape.has_bad_sample);
            hash = shape.hash;
        }
        hash.update(type_name::<V>().as_bytes());
        let [a, b, c, d, ..] = *hash.finalize().as_bytes();
        // The upper half is for computed numbers: a program from before them writes its schema,
        // which is a small number.
        let computed = u32::from_be_bytes([a, b, c, d]) | 1 << 31;
        let number = codec.fingerprint.unwrap_or(computed).wrapping_add(schema);
        let (compressed_above, keys) = (codec.compressed_above, codec.keys.take());
        let coding = EnvelopeCoding { number, compressed_above, keys, scope };
        Self { codec, coding, is_proven, is_lossy: is_lossy.into(), fills: AtomicU64::new(0) }
    }

    /// Returns whether values stay in their process because they would not come back as they are.
    pub(crate) fn is_lossy(&self) -> bool {
        self.is_lossy.load(Ordering::Relaxed)
    }

    /// Writes a value. Warns if serde cannot write it, or not so that it is read as it was.
    pub(crate) fn write(&self, value: &V, warn: impl FnOnce()) -> Option<Bytes> {
        if self.is_lossy() {
            return None;
        }
        let bytes = (self.codec.encode)(value);
        let Some(serde) = &self.codec.serde else { return bytes };
        let is_good = bytes
            .as_ref()
            .map(|bytes| !self.is_check_due() || self.codec.brings_back(serde, value, bytes));
        if is_good != Some(true) {
            // A value that cannot be written is no reason to distrust others.
            self.is_lossy.fetch_or(is_good.is_some(), Ordering::Relaxed);
            warn();
            return None;
        }
        bytes
    }

    fn is_check_due(&self) -> bool {
        let fills = self.fills.fetch_add(1, Ordering::Relaxed);
        !self.is_proven || fills < FIRST_FILLS || fills.is_multiple_of(RARELY)
    }

    pub(crate) fn read(&self, bytes: Bytes) -> Option<V> {
        if self.is_lossy() { None } else { (self.codec.decode)(bytes) }
    }
}

impl<V> fmt::Debug for ValueForm<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueForm").field("coding", &self.coding).finish_non_exhaustive()
    }
}

/// A format that serde knows.
trait Format {
    const NAME: &'static [u8];
    const IS_HUMAN_READABLE: bool;

    fn write<V: Serialize>(value: &V) -> Option<Bytes>;

    /// Reads a value, and nothing if bytes are left over: they were written as another type.
    fn read<V: DeserializeOwned>(bytes: &[u8]) -> Option<V>;
}

struct Postcard;

impl Format for Postcard {
    const NAME: &'static [u8] = b"postcard";
    const IS_HUMAN_READABLE: bool = false;

    fn write<V: Serialize>(value: &V) -> Option<Bytes> {
        postcard::to_stdvec(value).ok().map(Bytes::from)
    }

    fn read<V: DeserializeOwned>(bytes: &[u8]) -> Option<V> {
        match postcard::take_from_bytes(bytes) {
            Ok((value, [])) => Some(value),
            _ => None,
        }
    }
}

#[cfg(feature = "codec-json")]
struct Json;

#[cfg(feature = "codec-json")]
impl Format for Json {
    const NAME: &'static [u8] = b"json";
    const IS_HUMAN_READABLE: bool = true;

    fn write<V: Serialize>(value: &V) -> Option<Bytes> {
        serde_json::to_vec(value).ok().map(Bytes::from)
    }

    fn read<V: DeserializeOwned>(bytes: &[u8]) -> Option<V> {
        serde_json::from_slice(bytes).ok()
    }
}

#[cfg(test)]
mod tests;
