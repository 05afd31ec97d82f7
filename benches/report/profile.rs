//! How much is measured.

/// Quick has enough rounds to compare each figure with its bound. Full has more, and other
/// software beside ours: a release quotes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    Quick,
    Full,
}

impl Profile {
    /// The value of `--profile` among the arguments; full without one.
    pub(crate) fn among(args: &[String]) -> Self {
        let Some(at) = args.iter().position(|arg| arg == "--profile") else { return Self::Full };
        let name = args.get(at + 1).map_or("nothing", String::as_str);
        Self::named(name).unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn named(name: &str) -> Result<Self, String> {
        match name {
            "quick" => Ok(Self::Quick),
            "full" => Ok(Self::Full),
            _ => Err(format!("--profile is quick or full, not {name}")),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.pick("quick", "full")
    }

    pub(crate) fn pick<T>(self, quick: T, full: T) -> T {
        if self == Self::Quick { quick } else { full }
    }

    /// What the part says of a quick run.
    pub(crate) fn note(self) -> Option<String> {
        self.pick(Some("The quick profile: shorter and smaller than the full one.".into()), None)
    }
}
