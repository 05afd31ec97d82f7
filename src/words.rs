//! Closed sets of words: what metrics, log lines and `Cache-Status` say in one word.

/// Defines an enum whose variants have a word each, with `ALL` and `as_str`.
///
/// The pages that list the words are held against `ALL`: a word cannot be forgotten there.
macro_rules! words {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident {
            $($(#[$doc:meta])* $variant:ident = $word:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $vis enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            /// All of them, in the order of the variants.
            #[allow(dead_code, reason = "for the tests that hold pages against it")]
            $vis const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Returns its word.
            $vis const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }
    };
}
