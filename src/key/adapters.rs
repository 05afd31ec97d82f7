//! Keys by what a type already has: its text, or its bytes. Nothing is allocated for a
//! look-up.

use std::fmt::{self, Display, Write};

use crate::key::{ESCAPE, KeyBuf, KeyKind, ToKey};

/// A key by the text that `Display` writes, for types such as a UUID or an IP address. The same
/// key as that text.
///
/// # Examples
///
/// ```
/// use std::net::Ipv4Addr;
/// use tower_stampede::{ByDisplay, ToKey};
///
/// assert_eq!(ByDisplay(Ipv4Addr::LOCALHOST).to_key(), "127.0.0.1".to_key());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ByDisplay<T>(pub T);

/// Writes text as a key; the first byte decides how it begins.
struct TextWriter<'a> {
    out: &'a mut KeyBuf,
    is_empty: bool,
}

impl Write for TextWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.is_empty && text.as_bytes().first() == Some(&ESCAPE) {
            self.out.push(&KeyKind::Bytes.start());
        }
        self.is_empty &= text.is_empty();
        self.out.push(text.as_bytes());
        Ok(())
    }
}

impl<T: Display> ToKey for ByDisplay<T> {
    /// # Panics
    ///
    /// When the `Display` of `T` returns an error, which it must not do.
    fn encode(&self, out: &mut KeyBuf) {
        let mut writer = TextWriter { out, is_empty: true };
        write!(writer, "{}", self.0).expect("a `Display` returns no error of its own");
    }
}

/// A key by the bytes that `AsRef` returns. The same key as those bytes.
///
/// # Examples
///
/// ```
/// use std::path::Path;
/// use tower_stampede::{ByBytes, ToKey};
///
/// let path = Path::new("/srv/a.txt");
/// assert_eq!(ByBytes(path.as_os_str().as_encoded_bytes()).to_key(), "/srv/a.txt".to_key());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ByBytes<T>(pub T);

impl<T: AsRef<[u8]>> ToKey for ByBytes<T> {
    #[inline]
    fn encode(&self, out: &mut KeyBuf) {
        self.0.as_ref().encode(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use proptest::prelude::*;

    /// Writes its text in pieces.
    struct Pieces(Vec<String>);

    impl Display for Pieces {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.iter().try_for_each(|piece| f.write_str(piece))
        }
    }

    proptest! {
        #[test]
        fn a_key_by_display_is_the_key_of_the_text(
            pieces in proptest::collection::vec("[\0ab]{0,60}", 0..5),
        ) {
            let text = pieces.concat();
            prop_assert_eq!(ByDisplay(Pieces(pieces)).to_key(), Key::from(text));
        }

        #[test]
        fn a_key_by_bytes_is_the_key_of_the_bytes(bytes: Vec<u8>) {
            prop_assert_eq!(ByBytes(&bytes).to_key(), Key::from(bytes));
        }
    }
}
