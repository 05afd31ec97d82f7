//! Key types of the application.

use crate::key::{KeyBuf, KeyKind, ToKey};

/// Declares a key type: a struct whose path and fields are the key. It derives `Clone`,
/// `Debug`, `PartialEq`, `Eq` and `Hash`, and implements [`ToKey`](crate::ToKey).
///
/// Keys of two such types differ, also where their fields are equal: caches of several kinds
/// of things can share one handle. Each field must be a key itself.
///
/// The key has the path of the module and the name of the type. Two types of one name differ if
/// they stand in two modules; inside of two functions of one module they do not. Processes that
/// share a remote share the values of a type only if its path is the same in all of them: a type
/// of a library crate has one path in all programs. A type that is renamed, or moved to another
/// module, names other entries, and what was stored before is computed once more. For a key that
/// must stay as it is, implement [`ToKey`](crate::ToKey) by hand.
///
/// # Examples
///
/// ```
/// use tower_stampede::{Key, ToKey, key_struct};
///
/// key_struct! {
///     /// A user.
///     #[derive(Copy)]
///     pub struct UserId(pub u64);
/// }
/// key_struct! {
///     pub struct Page {
///         pub tenant: u32,
///         pub path: String,
///     }
/// }
///
/// assert_ne!(UserId(7).to_key(), Key::from(7_u64));
/// let page = Page { tenant: 1, path: "/a".to_owned() };
/// assert_eq!(page.to_key(), page.clone().to_key());
/// ```
///
/// A text is no borrowed form of a struct around it: the name of the type is missing. With
/// [`Cache::get_borrowed`](crate::Cache::get_borrowed), a caller looks up a struct that it
/// keeps; without one, it makes it, or the text itself is the key of the cache.
///
/// ```
/// use std::time::Duration;
/// use tower_stampede::{Cache, Failure, Stampede, key_struct};
///
/// key_struct! {
///     pub struct Token(pub String);
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Failure<std::io::Error>> {
/// let handle = Stampede::in_memory(Duration::from_secs(60));
/// let lengths = Cache::new(handle, |token: Token| async move { Ok(token.0.len()) });
/// let token = Token("abc".to_owned());
/// // `get_borrowed("abc")` does not compile.
/// assert_eq!(lengths.get_borrowed(&token).await?, 3);
/// assert_eq!(lengths.get(Token("abcd".to_owned())).await?, 4);
///
/// let handle = Stampede::in_memory(Duration::from_secs(60));
/// let lengths = Cache::new(handle, |token: String| async move { Ok(token.len()) });
/// assert_eq!(lengths.get_borrowed("abc").await?, 3);
/// # Ok(()) }
/// ```
#[macro_export]
macro_rules! key_struct {
    ($(#[$meta:meta])* $vis:vis struct $name:ident($(#[$of_field:meta])* $field_vis:vis $type:ty);) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        $vis struct $name($(#[$of_field])* $field_vis $type);

        impl $crate::ToKey for $name {
            fn encode(&self, out: &mut $crate::KeyBuf) {
                out.push_struct(concat!(module_path!(), "::", stringify!($name)), &[&self.0]);
            }
        }
    };
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$of_field:meta])* $field_vis:vis $field:ident: $type:ty),+ $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        $vis struct $name {
            $($(#[$of_field])* $field_vis $field: $type),+
        }

        impl $crate::ToKey for $name {
            fn encode(&self, out: &mut $crate::KeyBuf) {
                out.push_struct(concat!(module_path!(), "::", stringify!($name)), &[$(&self.$field),+]);
            }
        }
    };
}

impl KeyBuf {
    /// Appends a struct: its name, then its fields. For [`key_struct`](crate::key_struct).
    #[doc(hidden)]
    pub fn push_struct(&mut self, name: &str, fields: &[&dyn ToKey]) {
        self.push(&KeyKind::Struct.start());
        self.push_part(name.as_bytes());
        for field in fields {
            self.push_part(KeyBuf::of(*field).as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::key::{Key, ToKey};

    key_struct! {
        struct One(u64);
    }
    key_struct! {
        struct Other(u64);
    }
    key_struct! {
        struct Pair { left: String, right: Option<bool> }
    }

    #[test]
    fn keys_of_two_types_differ_and_those_of_one_type_by_their_fields() {
        let pair = |left: &str, right| Pair { left: left.to_owned(), right }.to_key();
        let all = [
            One(7).to_key(),
            Other(7).to_key(),
            One(8).to_key(),
            Key::from(7_u64),
            Key::from(("One", 7_u64)),
            pair("a", None),
            pair("a", Some(true)),
            pair("", None),
            Key::from(One(7).to_key().as_bytes()),
        ];
        for (i, key) in all.iter().enumerate() {
            assert!(!all[..i].contains(key), "{key:?}");
        }
        assert_eq!(One(7).to_key(), One(7).to_key());
    }
}
