//! Values as bytes.

mod shape;

use std::any::type_name;
use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

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
/// Some types postcard cannot write (`#[serde(flatten)]`: they stay in their
/// process) or not read back (`#[serde(untagged)]`, `skip_serializing_if`,
/// `serde_json::Value`: a miss each time). Test that `decode(encode(value))`
/// returns the value. A type that contains itself is read by recursion, as deep
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
/// [`fingerprint`](Self::fingerprint) replaces the number by one that you choose, for programs in
/// other languages. Then keeping types apart is up to you.
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
    pub(crate) encode: fn(&V) -> Option<Bytes>,
    pub(crate) decode: fn(Bytes) -> Option<V>,
    hash_type: fn() -> blake3::Hasher,
    fingerprint: Option<u32>,
}

impl<V> Codec<V> {
    /// Takes a form of your own: see [`Remotable::encode`] and [`Remotable::decode`] for what the
    /// two must do. Of the type only the path is in the fingerprint.
    pub fn new(encode: fn(&V) -> Option<Bytes>, decode: fn(Bytes) -> Option<V>) -> Self {
        Self { encode, decode, hash_type: blake3::Hasher::new, fingerprint: None }
    }

    /// Sets the number that values carry, in place of the computed one. Numbers below 2³¹ are
    /// never computed. [`Builder::schema`](crate::Builder::schema) is added to it.
    pub const fn fingerprint(mut self, fingerprint: u32) -> Self {
        self.fingerprint = Some(fingerprint);
        self
    }

    /// Returns what values carry in a cache with this `schema`.
    pub(crate) fn number(&self, schema: u32) -> u32 {
        self.fingerprint.unwrap_or_else(|| self.compute_fingerprint()).wrapping_add(schema)
    }

    /// The upper half of the numbers is for computed ones: a program from before them writes its
    /// `schema`, which is a small number.
    fn compute_fingerprint(&self) -> u32 {
        let mut hash = (self.hash_type)();
        hash.update(type_name::<V>().as_bytes());
        let [a, b, c, d, ..] = *hash.finalize().as_bytes();
        u32::from_be_bytes([a, b, c, d]) | 1 << 31
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
        Self {
            encode: F::write,
            decode: |bytes| F::read(&bytes),
            hash_type: || {
                let mut hash = shape::trace::<V>(F::IS_HUMAN_READABLE);
                hash.update(F::NAME);
                hash
            },
            fingerprint: None,
        }
    }
}

impl<V> fmt::Debug for Codec<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Codec").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
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
