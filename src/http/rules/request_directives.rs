//! What a request's `Cache-Control` asks for (RFC 9111, 5.2.1). `max-stale` is
//! not read: the client does not decide how long a stale response may be served.

use std::time::Duration;

use http::header::{self, HeaderMap};

use crate::http::rules::members::{Directive, Members, number};
use crate::http::rules::request::is_too_long;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestDirectives {
    pub(crate) no_store: bool,
    pub(crate) only_if_cached: bool,
    pub(crate) demand: Demand,
}

/// How new a client wants its answer to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    no_cache: bool,
    max_age: Option<Duration>,
    min_fresh: Option<Duration>,
}

impl Demand {
    pub(crate) const NO_CACHE: Self = Self { no_cache: true, max_age: None, min_fresh: None };

    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether a stored response is new enough, at its age and with so
    /// much of its lifetime left.
    pub(crate) fn accepts(&self, age: Duration, left: Duration) -> bool {
        // An age of zero is one that nothing stored has.
        let is_young = self.max_age.is_none_or(|most| !most.is_zero() && age <= most);
        !self.no_cache && is_young && self.min_fresh.is_none_or(|least| left >= least)
    }

    /// Returns whether only an answer will do that is computed for this request.
    pub(crate) fn accepts_nothing_stored(&self) -> bool {
        self.no_cache || self.max_age.is_some_and(|most| most.is_zero())
    }

    fn take(&mut self, directive: &Directive<'_>) {
        let is = |name: &str| directive.name.eq_ignore_ascii_case(name.as_bytes());
        // What is no number says nothing.
        let seconds = || number(directive.argument.bytes()?).map(Duration::from_secs);
        if is("no-cache") {
            self.no_cache = true;
        } else if is("max-age") {
            self.max_age = least(self.max_age, seconds());
        } else if is("min-fresh") {
            self.min_fresh = self.min_fresh.max(seconds());
        }
    }
}

/// Reads `Cache-Control`. An unreadable field may forbid storing, so nothing is
/// stored then. A field that is too long is not read.
pub(crate) fn read(headers: &HeaderMap) -> RequestDirectives {
    let mut said = RequestDirectives::default();
    if is_too_long(headers, &header::CACHE_CONTROL) {
        said.no_store = true;
        return said;
    }
    let lines = headers.get_all(header::CACHE_CONTROL).into_iter();
    for member in lines.flat_map(|line| Members::of(line.as_bytes())) {
        match member {
            Err(_) => said.no_store = true,
            Ok(directive) if directive.name.eq_ignore_ascii_case(b"no-store") => {
                said.no_store = true;
            }
            Ok(directive) if directive.name.eq_ignore_ascii_case(b"only-if-cached") => {
                said.only_if_cached = true;
            }
            Ok(directive) => said.demand.take(&directive),
        }
    }
    said
}

/// Returns whether `Pragma`, which counts only without `Cache-Control`, asks
/// for a new answer (RFC 9111, 5.4).
pub(crate) fn pragma(headers: &HeaderMap) -> Demand {
    if is_too_long(headers, &header::PRAGMA) {
        return Demand::NO_CACHE;
    }
    let mut lines = headers.get_all(header::PRAGMA).into_iter();
    let is_no_cache = |member: &[u8]| member.trim_ascii().eq_ignore_ascii_case(b"no-cache");
    if lines.any(|line| line.as_bytes().split(|&b| b == b',').any(is_no_cache)) {
        Demand::NO_CACHE
    } else {
        Demand::default()
    }
}

fn least(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn said(line: &str) -> RequestDirectives {
        let mut headers = HeaderMap::new();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_str(line).unwrap());
        read(&headers)
    }

    fn forbids(line: &str) -> (bool, bool) {
        (said(line).no_store, said(line).only_if_cached)
    }

    #[test]
    fn a_request_can_forbid_storing_and_forwarding() {
        // RFC 9111, 5.2.1.5 and 5.2.1.7
        for (line, expected) in [
            ("", (false, false)),
            ("no-cache, max-age=0, max-stale=9", (false, false)),
            ("No-Store", (true, false)),
            ("only-if-cached", (false, true)),
            ("Only-If-Cached, no-store", (true, true)),
            ("max-age=0; x", (true, false)),
        ] {
            assert_eq!(forbids(line), expected, "{line}");
        }
    }

    #[test]
    fn a_demand_is_met_by_what_is_new_enough() {
        // RFC 9111, 5.2.1.1 to 5.2.1.4
        for (line, age, left, expected) in [
            ("", 99, 0, true),
            ("no-cache", 0, 99, false),
            ("max-age=0", 0, 99, false),
            ("max-age=10", 10, 0, true),
            ("max-age=10", 11, 99, false),
            ("max-age=\"10\"", 11, 99, false),
            ("max-age=10, max-age=20", 11, 99, false),
            ("MAX-AGE=99999999999999999999", 99, 0, true),
            ("max-age=x", 99, 0, true),
            ("min-fresh=10", 0, 10, true),
            ("min-fresh=10", 0, 9, false),
            ("max-age=20, min-fresh=10", 11, 10, true),
            ("max-stale", 99, 0, true),
        ] {
            let [age, left] = [age, left].map(Duration::from_secs);
            assert_eq!(said(line).demand.accepts(age, left), expected, "{line}");
        }
        assert!(said("max-stale=9, no-store").demand.is_none());
    }

    #[test]
    fn directives_that_are_too_long_are_not_read() {
        let long = "a,".repeat(300);
        assert_eq!(forbids(&format!("{long}only-if-cached")), (true, false));
        let value = HeaderValue::try_from(long).unwrap();
        assert!(!pragma(&HeaderMap::from_iter([(header::PRAGMA, value)])).is_none());
    }

    #[test]
    fn pragma_knows_one_directive() {
        for (line, expected) in [("no-cache", true), ("x, No-Cache", true), ("x=no-cache", false)] {
            let value = HeaderValue::from_static(line);
            let demand = pragma(&HeaderMap::from_iter([(header::PRAGMA, value)]));
            assert_eq!(!demand.is_none(), expected, "{line}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(lines: Vec<Vec<u8>>) {
            let mut headers = HeaderMap::new();
            for line in lines.into_iter().filter_map(|line| HeaderValue::try_from(line).ok()) {
                headers.append(header::CACHE_CONTROL, line.clone());
                headers.append(header::PRAGMA, line);
            }
            let _ = (read(&headers), pragma(&headers));
        }
    }
}
