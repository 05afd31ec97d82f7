//! The settings of an HTTP layer: one row of a table for each, in groups.
//!
//! # What enters
//!
//! The values that the setters of `HttpLayer` get, or those of the table `http` in a file.
//!
//! # What leaves
//!
//! [`HttpSettings`], which a file fills: a field for each row. The configuration of a layer and the
//! setters follow from the same rows, in `http/config.rs` and `http/layer.rs`.
//!
//! # The rows
//!
//! [`each_http_setting`] in `table.rs` has them. A row is
//! `name: Type as "reader" = default, alike;`
//! or `name: Type as "reader", check function;`
//!
//! - `reader` is the function in [`file`](crate::settings::file) that reads it from a file, and says
//!   what the setter takes: `names` any list of texts, `text` a text, `flag` nothing, `statuses` a
//!   status and a lifetime.
//! - `alike`: two layers of one handle that differ in it share the same responses among the same
//!   clients.
//! - With a `default`, the configuration has a field of this name and type. Without one, the method
//!   of this name in `http/layer/set.rs` applies the value.
//! - The check is a function in [`checks`]. A setter panics with what it returns; for a file,
//!   `Builder::build` returns it.
//!
//! A file is applied in the order of the rows: what it names as a credential or as a part of the key
//! is one, whatever it takes out.

pub(crate) mod checks;
mod streams;
mod table;

use std::time::Duration;

pub(crate) use streams::EndRule;
pub use streams::{StreamReplay, StreamRule};
pub(crate) use table::each_http_setting;

#[cfg(feature = "serde")]
use crate::settings::file::{
    duration, plain, plain as flag, plain as names, plain as text, size, statuses,
};
use crate::settings::{SettingNames, StatusTtl};

/// What happens to a response with `Set-Cookie`.
///
/// A cookie is nearly always meant for one person; a shared cache that replays
/// it logs strangers in as that person. So the default is to store no such
/// response.
///
/// # Examples
///
/// ```
/// use tower_stampede::SetCookie;
///
/// assert_eq!(SetCookie::default(), SetCookie::Refuse);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum SetCookie {
    /// It is not stored and not shared.
    #[default]
    Refuse,
    /// It is stored without its cookies; only the client whose request was
    /// forwarded receives them.
    Strip,
    /// It is stored with its cookies if the origin itself gave it an explicit
    /// lifetime, the request carried no credentials, and no cookie is
    /// `HttpOnly` or named `__Host-…`, `__Secure-…` or `__Http-…`.
    /// Otherwise it is not stored.
    Explicit,
}

macro_rules! http_settings {
    ($($heading:literal {$(
        $(#[$doc:meta])*
        $name:ident: $type:ty as $reader:tt $(= $default:expr $(, $alike:ident)?)? $(, check $check:path)?;
    )+})+) => {
        /// The settings of the HTTP layers of a cache as a configuration file has them, in the table
        /// `http` of [`Settings`](crate::Settings).
        ///
        /// Each is a setting of [`HttpLayer`](crate::HttpLayer) with the same name, which says what
        /// it means. Those that take functions are set in the code. `status_ttl` is a table of
        /// lifetimes by status. All are optional. What a file names as a credential or as a part of
        /// the key is one, whatever else the file takes out.
        #[derive(Clone, Debug, Default, PartialEq)]
        #[cfg_attr(
            feature = "serde",
            derive(serde::Deserialize),
            serde(default, deny_unknown_fields)
        )]
        #[non_exhaustive]
        #[allow(missing_docs, reason = "each is a setting of the layer with the same name")]
        pub(crate) struct HttpSettings {
            $($(
                #[cfg_attr(feature = "serde", serde(deserialize_with = $reader))]
                pub(crate) $name: Option<$type>,
            )+)+
        }

        impl HttpSettings {
            /// Returns the first setting that cannot work, and why.
            pub(crate) fn refusal(&self) -> Option<(SettingNames, String)> {
                $($($(
                    if let Some(why) = self.$name.as_ref().and_then(|value| $check(value)) {
                        return Some((&[concat!("http.", stringify!($name))], why));
                    }
                )?)+)+
                let both = self.ttl.is_some() && self.origin_only == Some(true);
                both.then(|| (&["http.ttl", "http.origin_only"][..], checks::TWO_LIFETIMES.into()))
            }
        }
    };
}

each_http_setting!(http_settings);
