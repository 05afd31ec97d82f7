//! Pure functions of RFC 9110, 9111, 5861 and 9213.

pub(crate) mod conditions;
pub(crate) mod credentials;
pub(crate) mod date;
pub(crate) mod decline_reason;
pub(crate) mod directives;
pub(crate) mod field_names;
pub(crate) mod fields;
pub(crate) mod host;
pub(crate) mod key;
pub(crate) mod lifetime;
pub(crate) mod members;
pub(crate) mod range;
pub(crate) mod request;
pub(crate) mod request_directives;
pub(crate) mod shape;
pub(crate) mod storable;
pub(crate) mod target;
pub(crate) mod targeted;
pub(crate) mod validation;
pub(crate) mod vary;
