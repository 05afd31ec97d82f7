//! A number that two values have in common if serde writes the same of them.
//!
//! Fields count with their names, so a value that was read from the wrong places differs, also
//! where both have the same bytes. Elements and entries count in any order: a `HashMap` that was
//! read again has another one.

use std::hash::{BuildHasher, Hash};

use foldhash::fast::FixedState;
use serde::Serialize;
use serde::de::value::Error;
use serde::ser::{self, Serializer};

/// Returns the number of a value, or nothing if serde refuses to write it.
pub(super) fn digest<T: Serialize>(value: &T, is_human_readable: bool) -> Option<u64> {
    value.serialize(Digest { is_human_readable }).ok()
}

fn hash(value: impl Hash) -> u64 {
    FixedState::default().hash_one(value)
}

#[derive(Clone, Copy)]
struct Digest {
    is_human_readable: bool,
}

macro_rules! scalars {
    ($($method:ident($value:ident: $type:ty) $hashed:expr;)+) => {$(
        fn $method(self, $value: $type) -> Result<u64, Error> {
            Ok(hash($hashed))
        }
    )+};
}

macro_rules! compounds {
    ($($method:ident($($argument:ident: $type:ty),*) $variant:expr;)+) => {$(
        fn $method(self, $($argument: $type),*) -> Result<Parts, Error> {
            Ok(Parts { digest: self, variant: $variant, key: 0, sum: 0 })
        }
    )+};
}

impl Serializer for Digest {
    type Ok = u64;
    type Error = Error;
    type SerializeSeq = Parts;
    type SerializeTuple = Parts;
    type SerializeTupleStruct = Parts;
    type SerializeTupleVariant = Parts;
    type SerializeMap = Parts;
    type SerializeStruct = Parts;
    type SerializeStructVariant = Parts;

    // Of all widths alike: a value that describes itself may be read in another one.
    scalars! {
        serialize_bool(value: bool) value;
        serialize_i8(value: i8) i128::from(value);
        serialize_i16(value: i16) i128::from(value);
        serialize_i32(value: i32) i128::from(value);
        serialize_i64(value: i64) i128::from(value);
        serialize_i128(value: i128) value;
        serialize_u8(value: u8) i128::from(value);
        serialize_u16(value: u16) i128::from(value);
        serialize_u32(value: u32) i128::from(value);
        serialize_u64(value: u64) i128::from(value);
        serialize_u128(value: u128) value;
        serialize_f32(value: f32) value.to_bits();
        serialize_f64(value: f64) value.to_bits();
        serialize_char(value: char) value;
        serialize_str(value: &str) value;
        serialize_bytes(value: &[u8]) value;
        serialize_unit_struct(_name: &'static str) ();
    }

    fn serialize_none(self) -> Result<u64, Error> {
        Ok(hash(()))
    }

    fn serialize_unit(self) -> Result<u64, Error> {
        Ok(hash(()))
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<u64, Error> {
        Ok(hash((1, value.serialize(self)?)))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<u64, Error> {
        value.serialize(self)
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        variant: u32,
        _: &'static str,
    ) -> Result<u64, Error> {
        Ok(hash((variant, ())))
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        variant: u32,
        _: &'static str,
        value: &T,
    ) -> Result<u64, Error> {
        Ok(hash((variant, value.serialize(self)?)))
    }

    compounds! {
        serialize_seq(_len: Option<usize>) 0;
        serialize_tuple(_len: usize) 0;
        serialize_tuple_struct(_name: &'static str, _len: usize) 0;
        serialize_tuple_variant(_of: &'static str, at: u32, _name: &'static str, _len: usize) at;
        serialize_map(_len: Option<usize>) 0;
        serialize_struct(_name: &'static str, _len: usize) 0;
        serialize_struct_variant(_of: &'static str, at: u32, _name: &'static str, _len: usize) at;
    }

    fn is_human_readable(&self) -> bool {
        self.is_human_readable
    }
}

/// Elements, entries or fields, in any order.
struct Parts {
    digest: Digest,
    variant: u32,
    /// The key of the entry whose value comes next.
    key: u64,
    sum: u64,
}

impl Parts {
    fn add<T: Serialize + ?Sized>(&mut self, name: impl Hash, value: &T) -> Result<(), Error> {
        let part = hash((name, value.serialize(self.digest)?));
        self.sum = self.sum.wrapping_add(part);
        Ok(())
    }

    fn finish(&self) -> u64 {
        hash((self.variant, self.sum))
    }
}

macro_rules! parts {
    ($($of:ident: $method:ident($($name:ident)?);)+) => {$(
        impl ser::$of for Parts {
            type Ok = u64;
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(
                &mut self,
                $($name: &'static str,)?
                value: &T,
            ) -> Result<(), Error> {
                self.add(($($name)?), value)
            }

            fn end(self) -> Result<u64, Error> {
                Ok(self.finish())
            }
        }
    )+};
}

parts! {
    SerializeSeq: serialize_element();
    SerializeTuple: serialize_element();
    SerializeTupleStruct: serialize_field();
    SerializeTupleVariant: serialize_field();
    SerializeStruct: serialize_field(name);
    SerializeStructVariant: serialize_field(name);
}

impl ser::SerializeMap for Parts {
    type Ok = u64;
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        self.key = key.serialize(self.digest)?;
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.add(self.key, value)
    }

    fn end(self) -> Result<u64, Error> {
        Ok(self.finish())
    }
}
