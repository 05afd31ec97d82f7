//! What serde reports of a type: the names and the kinds of its parts.
//!
//! The type's `Deserialize` is called with made-up data. Each request that it makes of the
//! deserializer is hashed. One pass sees one variant of each enum, so a new enum adds a pass for
//! each of its other variants. Each pass is made twice: with one element, `Some` and 1 everywhere,
//! and with nothing, `None` and 0. The two values are samples of the type.
//!
//! A type may refuse made-up data, contain itself, or be very large. Then a pass ends early, and
//! the hash is that of what was seen so far.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::de::value::Error;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer,
    MapAccess, SeqAccess, VariantAccess, Visitor,
};

/// How deep a type is followed.
const MAX_DEPTH: usize = 64;

/// How many requests are answered for one type, in all passes.
const MAX_REQUESTS: u32 = 50_000;

/// How often a type is followed into itself.
const MAX_REPEATS: usize = 2;

/// A time, because types of times refuse other texts.
const TEXT: &str = "1970-01-01T00:00:00Z";

/// What was found out about a type.
pub(super) struct TypeShape {
    pub(super) hash: blake3::Hasher,
    /// No pass ended early, and all samples were accepted.
    pub(super) is_complete: bool,
    /// A sample was rejected.
    pub(super) has_bad_sample: bool,
}

/// Follows `V`, and has each sample judged: `None` if it does not say anything.
pub(super) fn trace<V: DeserializeOwned>(
    is_human_readable: bool,
    judge: impl Fn(&V) -> Option<bool>,
) -> TypeShape {
    let mut trace = Trace {
        hash: blake3::Hasher::new(),
        requests: 0,
        enums: HashSet::new(),
        routes: vec![Vec::new()],
        route: Vec::new(),
        around: Vec::new(),
        is_empty: false,
        is_human_readable,
    };
    let mut verdicts = Vec::new();
    while let Some(route) = trace.routes.pop() {
        trace.route = route;
        for is_empty in [false, true] {
            trace.is_empty = is_empty;
            trace.around.clear();
            // The code of the user may not expect such data. Then no cache is lost for it.
            let sample = || V::deserialize(&mut trace).ok().and_then(|sample| judge(&sample));
            verdicts.push(catch_unwind(AssertUnwindSafe(sample)).unwrap_or(None));
        }
    }
    TypeShape {
        hash: trace.hash,
        is_complete: verdicts.iter().all(|verdict| *verdict == Some(true)),
        has_bad_sample: verdicts.contains(&Some(false)),
    }
}

/// The name of a struct or an enum, and those of its fields or variants. Empty for other parts.
type Part = (&'static str, &'static [&'static str]);

/// Which variants lead to a place in a type.
type Route = Vec<(Part, usize)>;

struct Trace {
    hash: blake3::Hasher,
    requests: u32,
    /// The enums that were seen.
    enums: HashSet<Part>,
    /// One for each pass that is still to be made.
    routes: Vec<Route>,
    route: Route,
    /// The parts around the current one, and the variants that were chosen.
    around: Route,
    /// Optional parts are left out.
    is_empty: bool,
    is_human_readable: bool,
}

impl Trace {
    fn note(&mut self, kind: &str, names: &[&str]) -> Result<(), Error> {
        self.requests += 1;
        if self.requests > MAX_REQUESTS {
            return Err(Error::custom("too large a type"));
        }
        self.hash.update(&names.len().to_le_bytes());
        for word in [kind].iter().chain(names) {
            self.hash.update(&word.len().to_le_bytes());
            self.hash.update(word.as_bytes());
        }
        Ok(())
    }

    fn repeats(&self, part: Part) -> usize {
        self.around.iter().filter(|(other, _)| *other == part).count()
    }

    /// Goes into a part. Where it is in itself again and again, it is left empty.
    fn within<T>(
        &mut self,
        (part, variant): (Part, usize),
        read: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.around.len() == MAX_DEPTH {
            return Err(Error::custom("too deep a type"));
        }
        let is_empty = self.is_empty;
        self.is_empty |= !part.0.is_empty() && self.repeats(part) >= MAX_REPEATS;
        self.around.push((part, variant));
        let read = read(self);
        self.around.pop();
        self.is_empty = is_empty;
        read
    }

    fn parts<'de, V: Visitor<'de>>(
        &mut self,
        part: Part,
        count: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.within((part, 0), |trace| visitor.visit_seq(Parts { trace, left: count }))
    }

    /// Returns the variant to look at, and plans passes for the others.
    fn choose(&mut self, part: Part) -> Result<usize, Error> {
        let count = part.1.len();
        let repeats = self.repeats(part);
        let planned = self.route.iter().find(|(of, _)| *of == part && repeats == 0);
        let chosen = match planned {
            Some((_, variant)) => *variant,
            // One after the other: some of them must end a type that contains itself.
            None => repeats.checked_rem(count).ok_or_else(|| Error::custom("no variant"))?,
        };
        if self.enums.insert(part) {
            for other in (0..count).rev().filter(|other| *other != chosen) {
                let route = self.around.iter().copied().chain([(part, other)]);
                self.routes.push(route.collect());
            }
        }
        Ok(chosen)
    }
}

macro_rules! scalars {
    ($($method:ident: $visit:ident($full:expr, $empty:expr);)+) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.note(stringify!($method), &[])?;
            visitor.$visit(if self.is_empty { $empty } else { $full })
        }
    )+};
}

impl<'de> Deserializer<'de> for &mut Trace {
    type Error = Error;

    scalars! {
        deserialize_bool: visit_bool(true, false);
        deserialize_i8: visit_i8(1, 0);
        deserialize_i16: visit_i16(1, 0);
        deserialize_i32: visit_i32(1, 0);
        deserialize_i64: visit_i64(1, 0);
        deserialize_i128: visit_i128(1, 0);
        deserialize_u8: visit_u8(1, 0);
        deserialize_u16: visit_u16(1, 0);
        deserialize_u32: visit_u32(1, 0);
        deserialize_u64: visit_u64(1, 0);
        deserialize_u128: visit_u128(1, 0);
        deserialize_f32: visit_f32(1.0, 0.0);
        deserialize_f64: visit_f64(1.0, 0.0);
        deserialize_char: visit_char('a', '\0');
        deserialize_str: visit_str(TEXT, "");
        deserialize_string: visit_str(TEXT, "");
        deserialize_identifier: visit_str(TEXT, "");
        deserialize_bytes: visit_bytes(&[1; 16], &[]);
        deserialize_byte_buf: visit_bytes(&[1; 16], &[]);
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        self.note("any", &[])?;
        Err(Error::custom("no kind is asked for"))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.note("unit", &[])?;
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.note("unit struct", &[name])?;
        visitor.visit_unit()
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.note("option", &[])?;
        if self.is_empty {
            return visitor.visit_none();
        }
        self.within((("", &[]), 0), |trace| visitor.visit_some(trace))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.note("newtype struct", &[name])?;
        self.within(((name, &[]), 0), |trace| visitor.visit_newtype_struct(trace))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.note("seq", &[])?;
        let count = usize::from(!self.is_empty);
        self.parts(("", &[]), count, visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        self.note("tuple", &[&len.to_string()])?;
        self.parts(("", &[]), len, visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.note("tuple struct", &[name, &len.to_string()])?;
        self.parts((name, &[]), len, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.note("map", &[])?;
        let left = usize::from(!self.is_empty);
        self.within((("", &[]), 0), |trace| visitor.visit_map(Parts { trace, left }))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.note("struct", &[name])?;
        self.note("fields", fields)?;
        self.parts((name, fields), fields.len(), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.note("enum", &[name])?;
        self.note("variants", variants)?;
        let part = (name, variants);
        let variant = self.choose(part)?;
        self.within((part, variant), |trace| visitor.visit_enum(Variant { trace, variant }))
    }

    fn is_human_readable(&self) -> bool {
        self.is_human_readable
    }
}

/// Elements, fields or entries.
struct Parts<'a> {
    trace: &'a mut Trace,
    left: usize,
}

impl<'de> SeqAccess<'de> for Parts<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        seed.deserialize(&mut *self.trace).map(Some)
    }
}

impl<'de> MapAccess<'de> for Parts<'_> {
    type Error = Error;

    fn next_key_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        self.next_element_seed(seed)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(&mut *self.trace)
    }
}

struct Variant<'a> {
    trace: &'a mut Trace,
    variant: usize,
}

impl<'de> EnumAccess<'de> for Variant<'_> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self), Error> {
        let index: u32 = self.variant.try_into().map_err(Error::custom)?;
        Ok((seed.deserialize(index.into_deserializer())?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        self.trace.note("unit variant", &[])
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        self.trace.note("newtype variant", &[])?;
        seed.deserialize(self.trace)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        self.trace.deserialize_tuple(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.trace.deserialize_struct("", fields, visitor)
    }
}
