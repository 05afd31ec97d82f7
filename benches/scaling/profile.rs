//! How much is measured.

/// Quick shows that all of it works; full is what may be quoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    Quick,
    Full,
}

impl Profile {
    /// The value of `--profile` among the arguments; full without one.
    pub(crate) fn among(args: &[String]) -> Self {
        let flag = args.iter().position(|arg| arg == "--profile");
        match flag.map(|flag| args.get(flag + 1).map(String::as_str)) {
            None | Some(Some("full")) => Self::Full,
            Some(Some("quick")) => Self::Quick,
            Some(other) => panic!("--profile is quick or full, not {other:?}"),
        }
    }

    pub(crate) fn pick<T>(self, quick: T, full: T) -> T {
        if self == Self::Quick { quick } else { full }
    }
}
