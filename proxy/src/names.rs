//! Field names that origins read in two ways.
//!
//! CGI, WSGI and their like make `HTTP_X_FORWARDED_PORT` of `X-Forwarded-Port`
//! and of `X_Forwarded_Port`. A check for the first name misses the second, so
//! the proxy drops such names, as nginx does.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http::header::{HeaderMap, HeaderName};

use crate::fields::{is_plain, retain, role};

/// The most of a name that is reported.
const MAX_REPORTED: usize = 100;

/// Drops fields by their names, and counts them.
#[derive(Debug)]
pub(crate) struct NameFilter {
    passes_underscores: bool,
    dropped: AtomicU64,
    has_reported: AtomicBool,
}

impl NameFilter {
    /// Makes the filter of a process, which lives as long as the process.
    pub(crate) fn of_process(passes_underscores: bool) -> &'static Self {
        let (dropped, has_reported) = (AtomicU64::new(0), AtomicBool::new(false));
        Box::leak(Box::new(Self { passes_underscores, dropped, has_reported }))
    }

    /// Drops the fields whose names can be read in two ways.
    pub(crate) fn apply(&self, headers: &mut HeaderMap) {
        let odd = headers.iter().filter(|(name, _)| !self.passes(name));
        let count = odd.inspect(|(name, _)| self.report_first(name.as_str())).count();
        if count > 0 {
            // A statistic: no other memory depends on it.
            self.dropped.fetch_add(count as u64, Ordering::Relaxed);
            retain(headers, |name| self.passes(name));
        }
    }

    /// Drops what trailers must not bring: such names, and all fields that the
    /// proxy treats in a special way. Some origins merge trailers into the
    /// header section.
    pub(crate) fn apply_to_trailers(&self, trailers: &mut HeaderMap) {
        self.apply(trailers);
        if trailers.keys().any(|name| role(name.as_str()).is_some()) {
            retain(trailers, |name| role(name.as_str()).is_none());
        }
    }

    fn passes(&self, name: &HeaderName) -> bool {
        is_plain(name.as_str()) || self.passes_underscores && has_no_second_reading(name.as_str())
    }

    fn report_first(&self, name: &str) {
        if self.has_reported.swap(true, Ordering::Relaxed) {
            return;
        }
        // Names are visible ASCII.
        let shown = &name[..name.len().min(MAX_REPORTED)];
        let plain = with_hyphens(name);
        if self.passes_underscores && role(&plain).is_some() {
            report(&format!(
                "dropped the request field `{shown}`: origins may read it as `{plain}`, also with \
                 --underscores-in-headers"
            ));
        } else {
            report(&format!(
                "dropped the request field `{shown}`: its name has a character other than \
                 letters, digits and `-`; --underscores-in-headers passes names with `_`"
            ));
        }
    }

    /// Reports how many fields were dropped, if any were.
    pub(crate) fn report_total(&self) {
        match self.dropped.load(Ordering::Relaxed) {
            0 => {}
            1 => report("dropped 1 request field because of its name"),
            n => report(&format!("dropped {n} request fields because of their names")),
        }
    }
}

/// Returns whether `_` is the only odd character of a name, and an origin that
/// reads it as `-` finds no field that the proxy treats in a special way.
fn has_no_second_reading(name: &str) -> bool {
    let plain = with_hyphens(name);
    is_plain(&plain) && role(&plain).is_none()
}

fn with_hyphens(name: &str) -> String {
    name.replace('_', "-")
}

fn report(line: &str) {
    // Without a standard error there is no reader of the report.
    let _ = writeln!(std::io::stderr(), "stampede-proxy: {line}");
}
