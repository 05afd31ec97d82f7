//! Values as bytes.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A value that can leave the process.
///
/// Every type with serde's `Serialize` and `Deserialize` is one, in the
/// [postcard](https://postcard.jamesmunns.com) format: compact, and not
/// self-describing, so a type whose fields change needs another
/// `schema` number. Implement it by hand for a type without serde, or for a
/// format of your own.
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
}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Remotable for T {
    fn encode(&self) -> Option<Bytes> {
        postcard::to_stdvec(self).ok().map(Bytes::from)
    }

    fn decode(bytes: Bytes) -> Option<Self> {
        match postcard::take_from_bytes(&bytes) {
            Ok((value, [])) => Some(value),
            // Bytes are left over: they were written as another type.
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    type Rich = (u64, String, Option<Vec<i32>>, BTreeMap<String, (bool, char)>);

    /// A value that serde cannot write.
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Locked {
        #[serde(serialize_with = "refuse")]
        secret: u8,
    }

    fn refuse<S: serde::Serializer>(_: &u8, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("not this one"))
    }

    #[test]
    fn a_value_that_cannot_be_written_is_none() {
        let locked = Locked { secret: 1 };
        assert_eq!(locked.encode(), None);
        assert_eq!(locked.secret, 1);
    }

    #[test]
    fn bytes_left_over_are_no_value() {
        assert_eq!(u8::decode(Bytes::from_static(&[7])), Some(7));
        assert_eq!(u8::decode(Bytes::from_static(&[7, 0])), None);
        assert_eq!(u8::decode(Bytes::new()), None);
    }

    #[test]
    fn a_length_that_lies_allocates_nothing() {
        // 2^63 elements, and none of them there.
        let mut bytes = vec![0xff; 8];
        bytes.push(0x7f);
        assert_eq!(Vec::<u64>::decode(bytes.clone().into()), None);
        assert_eq!(String::decode(bytes.into()), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            number: u64, text: String, list: Option<Vec<i32>>, map: BTreeMap<String, (bool, char)>,
        ) {
            let value: Rich = (number, text, list, map);
            let bytes = value.encode().unwrap();
            prop_assert_eq!(Rich::decode(bytes), Some(value));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = Rich::decode(bytes.into());
        }
    }
}
