//! Lifetimes of errors, for caches of HTTP responses.

use std::time::Duration;

use crate::cache::builder::Builder;
use crate::cache::builder::checks::refuse;
use crate::error::ConfigError;
use crate::settings::SettingNames;

/// Returns the rule that a lifetime of `status` breaks, if it breaks one.
pub(crate) fn refusal(status: u16, ttl: Duration) -> Option<String> {
    match status {
        400..600 if ttl.is_zero() => Some(format!(
            "the lifetime of {status} is 0 s; leave it out: an error without a lifetime goes to \
             the clients that wait for it, and is not stored"
        )),
        428 | 429 | 431 | 511 => Some(format!(
            "{status} is never stored (RFC 6585); leave it out: clients that wait for the same \
             response get it"
        )),
        400..600 => None,
        _ => Some(format!(
            "{status} is no error; name a status from 400 to 599, and set `ttl` for the others"
        )),
    }
}

impl<V: Clone + Send + Sync + 'static> Builder<V> {
    /// Sets the lifetime of HTTP responses with the status `status`, an error from 400 to 599,
    /// that say nothing of their lifetime. The default of
    /// [`HttpLayer::status_ttl`](crate::HttpLayer::status_ttl), which says more. May be called
    /// once per status. Defaults to none.
    ///
    /// A cache that stores no HTTP responses ignores it.
    pub fn status_ttl(mut self, status: u16, ttl: Duration) -> Self {
        self.settings.status_ttl.insert(status, ttl);
        self
    }

    pub(super) fn check_status_ttl(&self) -> Result<(), ConfigError> {
        const FIELDS: SettingNames = &["status_ttl"];
        let refusal =
            self.settings.status_ttl.iter().find_map(|(status, ttl)| refusal(*status, *ttl));
        refusal.map_or(Ok(()), |reason| Err(refuse(FIELDS, reason)))
    }
}
