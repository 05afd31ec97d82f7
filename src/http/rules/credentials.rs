//! Kinds of credentials in a request, as far as a shared cache tells them apart.

use std::ops::BitOr;

use http::header::{self, HeaderName};

/// A set of kinds of credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Credentials(u8);

impl Credentials {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const AUTHORIZATION: Self = Self(1);
    pub(crate) const COOKIE: Self = Self(2);
    /// Any other field that the configuration names.
    pub(crate) const OTHER: Self = Self(4);
    pub(crate) const ALL: Self = Self(7);

    /// Returns the kind of a field that is known to carry credentials.
    pub(crate) fn of(name: &HeaderName) -> Self {
        match *name {
            header::AUTHORIZATION => Self::AUTHORIZATION,
            header::COOKIE => Self::COOKIE,
            _ => Self::OTHER,
        }
    }

    #[cfg(feature = "remote")]
    pub(crate) fn to_wire(self) -> u8 {
        self.0
    }

    /// Returns `None` for a kind that this program does not know.
    #[cfg(feature = "remote")]
    pub(crate) fn from_wire(bits: u8) -> Option<Self> {
        (bits & !Self::ALL.0 == 0).then_some(Self(bits))
    }

    pub(crate) fn is_anonymous(self) -> bool {
        self == Self::NONE
    }

    pub(crate) fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the class of flights and markers: 0 without, 1 with
    /// credentials. Whether two credentialed requests may share is decided
    /// for each of them at the hand-over.
    pub(crate) fn class(self) -> u8 {
        u8::from(!self.is_anonymous())
    }
}

impl BitOr for Credentials {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
