//! How long a response is fresh, and how old it is already (RFC 9111, 4.2).

use std::time::{Duration, SystemTime};

use http::StatusCode;
use http::header::{self, HeaderMap, HeaderValue};

use crate::http::cache_for::CacheFor;
use crate::http::config::HttpConfig;
use crate::http::rules::conditions::only_date;
use crate::http::rules::date;
use crate::http::rules::directives::{Directives, Lifetime, MAX_SECONDS, bounded, seconds};

/// The source of a response's lifetime. Stored responses have its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    CacheFor = 0,
    /// A directive, in whichever field, or `Expires`.
    Origin = 1,
    /// The layer's ttl.
    Layer = 2,
    /// `Last-Modified`, by a rule of thumb (RFC 9111, 4.2.2).
    Heuristic = 3,
}

/// How long a response may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The whole freshness lifetime; `initial_age` of it is already over.
    pub(crate) lifetime: Duration,
    /// Windows that begin with the end of `lifetime`.
    pub(crate) stale_while_revalidate: Duration,
    pub(crate) stale_if_error: Duration,
    pub(crate) source: Source,
    pub(crate) initial_age: Duration,
}

impl Terms {
    /// The terms of a response that must be validated before each use.
    pub(crate) fn never_fresh(source: Source, headers: &HeaderMap, times: Times) -> Self {
        Self {
            lifetime: Duration::ZERO,
            stale_while_revalidate: Duration::ZERO,
            stale_if_error: Duration::ZERO,
            source,
            initial_age: initial_age(headers, source, times),
        }
    }

    /// Returns whether there is a moment at which the response answers a request
    /// without any failure.
    pub(crate) fn cover_a_moment(&self) -> bool {
        !self.lifetime.is_zero() || !self.stale_while_revalidate.is_zero()
    }

    /// Returns whether the response is of use without a validation.
    pub(crate) fn cover_anything(&self) -> bool {
        self.cover_a_moment() || !self.stale_if_error.is_zero()
    }
}

/// When an exchange with the inner service took place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) response: SystemTime,
    /// The time between the two, which no clock that is set can falsify.
    pub(crate) response_delay: Duration,
}

/// Returns the terms of a response; `None` if neither the response, the handler nor the
/// layer states a lifetime.
pub(crate) fn terms(
    status: StatusCode,
    directives: &Directives,
    headers: &HeaderMap,
    cache_for: Option<&CacheFor>,
    config: &HttpConfig,
    times: Times,
) -> Option<Terms> {
    let (source, lifetime) = match chosen(directives, cache_for) {
        Some(chosen) => chosen,
        None => assumed(status, directives, headers, config, times.response)?,
    };
    let born_stale = source == Source::Origin && lifetime <= received_age(headers, times);
    let (revalidate, error) = windows(directives, cache_for, config, born_stale);
    Some(Terms {
        lifetime,
        stale_while_revalidate: revalidate,
        stale_if_error: error,
        source,
        initial_age: initial_age(headers, source, times),
    })
}

/// The lifetime that handler or origin chose.
fn chosen(directives: &Directives, cache_for: Option<&CacheFor>) -> Option<(Source, Duration)> {
    if let Some(cache_for) = cache_for {
        return Some((Source::CacheFor, cache_for.ttl));
    }
    match directives.lifetime {
        Lifetime::Seconds(n) => Some((Source::Origin, Duration::from_secs(n.into()))),
        Lifetime::Stale => Some((Source::Origin, Duration::ZERO)),
        Lifetime::Unsaid => None,
    }
}

/// The lifetime of a response that says nothing.
fn assumed(
    status: StatusCode,
    directives: &Directives,
    headers: &HeaderMap,
    config: &HttpConfig,
    received: SystemTime,
) -> Option<(Source, Duration)> {
    if let Some(ttl) = config.status_ttl.get(&status.as_u16()) {
        return Some((Source::Layer, *ttl));
    }
    if let Some(ttl) = config.ttl {
        return may_take_ttl(status).then_some((Source::Layer, ttl));
    }
    let may = config.heuristics && (directives.public || may_take_heuristics(status));
    let lifetime = heuristic(headers, received).filter(|_| may)?;
    Some((Source::Heuristic, lifetime))
}

/// Whether a response without a lifetime may live by the layer's `ttl`. Errors of
/// the moment may not.
fn may_take_ttl(status: StatusCode) -> bool {
    matches!(status.as_u16(), 200 | 203 | 204 | 300 | 301 | 308 | 404 | 410)
}

/// Statuses that are heuristically cacheable (RFC 9110, 15.1).
fn may_take_heuristics(status: StatusCode) -> bool {
    may_take_ttl(status) || matches!(status.as_u16(), 405 | 414 | 501)
}

/// RFC 9111, 4.2.2: a tenth of the time for which it has not changed, a day at most: no
/// client should wait longer for a change.
fn heuristic(headers: &HeaderMap, received: SystemTime) -> Option<Duration> {
    const DAY: Duration = Duration::from_secs(86_400);
    let date = valid_date(headers, received).unwrap_or(received);
    let modified = only_date(headers, &header::LAST_MODIFIED, received)?;
    let unchanged = date.duration_since(modified).ok()?;
    Some((unchanged / 10).min(DAY)).filter(|lifetime| !lifetime.is_zero())
}

/// Returns what `Expires` says (RFC 9111, 5.3). Nonsense and repetition mean
/// that it is over.
pub(crate) fn expires(headers: &HeaderMap, received: SystemTime) -> Lifetime {
    if !headers.contains_key(header::EXPIRES) {
        return Lifetime::Unsaid;
    }
    let Some(expires) = only_date(headers, &header::EXPIRES, received) else {
        return Lifetime::Stale;
    };
    let date = valid_date(headers, received).unwrap_or(received);
    let seconds = date::epoch_seconds(expires).saturating_sub(date::epoch_seconds(date));
    Lifetime::Seconds(bounded(seconds))
}

/// The stale windows: for each, the response's own word, else the layer's.
fn windows(
    directives: &Directives,
    cache_for: Option<&CacheFor>,
    config: &HttpConfig,
    born_stale: bool,
) -> (Duration, Duration) {
    let whole = |n: Option<u32>| n.map(|n| Duration::from_secs(n.into()));
    let (revalidate, error, is_allowed) = match cache_for {
        // It sets lifetimes, and so windows; `s-maxage` is still obeyed.
        Some(cache_for) => {
            let allowed = directives.allows_our_window();
            (cache_for.stale_for, cache_for.stale_if_error, allowed)
        }
        None => (
            whole(directives.stale_while_revalidate),
            whole(directives.stale_if_error),
            directives.allows_stale(),
        ),
    };
    let window = |said: Option<Duration>, ours: Duration| match said {
        _ if !is_allowed => Duration::ZERO,
        Some(said) => said,
        None if directives.allows_our_window() => ours,
        None => Duration::ZERO,
    };
    // What came without any freshness left, its origin does not want reused;
    // only a window of its own says otherwise.
    let stale_for = if born_stale { Duration::ZERO } else { config.stale_for };
    (window(revalidate, stale_for), window(error, config.stale_if_error))
}

/// RFC 9111, 4.2.3: `corrected_initial_age`.
///
/// For a lifetime that was chosen here the time the response took does not
/// make it older: such a lifetime counts from the arrival of the response.
fn initial_age(headers: &HeaderMap, source: Source, times: Times) -> Duration {
    let delay = match source {
        Source::Origin | Source::Heuristic => times.response_delay,
        Source::CacheFor | Source::Layer => Duration::ZERO,
    };
    let corrected = age_value(headers).saturating_add(delay);
    corrected.max(received_age(headers, times)).min(Duration::from_secs(MAX_SECONDS.into()))
}

/// How old the response says it is, however long it took to come.
fn received_age(headers: &HeaderMap, times: Times) -> Duration {
    age_value(headers).max(apparent_age(headers, times.response))
}

/// RFC 9111, 5.1: of several members the first counts; nonsense does not.
fn age_value(headers: &HeaderMap) -> Duration {
    let line = headers.get(header::AGE).map_or(&[][..], HeaderValue::as_bytes);
    let first = line.split(|&b| b == b',').next().unwrap_or_default();
    Duration::from_secs(seconds(first.trim_ascii()).unwrap_or_default().into())
}

/// In whole seconds, as `Date` is.
fn apparent_age(headers: &HeaderMap, response: SystemTime) -> Duration {
    let Some(date) = valid_date(headers, response) else { return Duration::ZERO };
    let (date, response) = (date::epoch_seconds(date), date::epoch_seconds(response));
    Duration::from_secs(response.saturating_sub(date))
}

/// Returns the one `Date` of a response if it is valid.
pub(crate) fn valid_date(headers: &HeaderMap, now: SystemTime) -> Option<SystemTime> {
    only_date(headers, &header::DATE, now)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::http::rules::targeted::governing;
    use http::HeaderName;
    use proptest::prelude::*;
    use std::time::UNIX_EPOCH;

    pub(in crate::http) fn times(delay: u64) -> Times {
        let request = UNIX_EPOCH + Duration::from_secs(784_111_777);
        let response_delay = Duration::from_secs(delay);
        Times { response: request + response_delay, response_delay }
    }

    fn judge(
        fields: &[(&'static str, &str)],
        cache_for: Option<&CacheFor>,
        delay: u64,
    ) -> Option<Terms> {
        let fields = fields.iter().map(|&(name, value)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        });
        let headers: HeaderMap = fields.collect();
        let config = HttpConfig {
            ttl: Some(secs(60)),
            stale_for: secs(5),
            stale_if_error: secs(6),
            ..HttpConfig::default()
        };
        let directives = governing(&headers, &config, times(delay).response).directives;
        terms(StatusCode::OK, &directives, &headers, cache_for, &config, times(delay))
    }

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn the_first_source_that_says_something_governs_alone() {
        let cache_for = CacheFor::new(secs(7));
        for (line, cache_for, lifetime, source) in [
            ("max-age=10", Some(&cache_for), 7, Source::CacheFor),
            ("max-age=10", None, 10, Source::Origin),
            ("max-age=x", None, 0, Source::Origin),
            ("public", None, 60, Source::Layer),
            ("", None, 60, Source::Layer),
        ] {
            let terms = judge(&[("cache-control", line)], cache_for, 0).unwrap();
            assert_eq!((terms.lifetime, terms.source), (secs(lifetime), source), "{line}");
        }
    }

    /// The lifetime of a 200 that was received at `times(0)`, with a ttl of 60 s.
    fn lives(fields: &[(&'static str, &str)]) -> u64 {
        judge(fields, None, 0).unwrap().lifetime.as_secs()
    }

    #[test]
    fn expires_counts_from_date_where_no_directive_sets_a_lifetime() {
        let (date, then) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:50:07 GMT");
        for (section, fields, expected) in [
            ("9111, 4.2.1", &[("expires", then), ("date", date)][..], 30),
            ("9111, 5.3", &[("expires", then), ("date", "Sun, 06 Nov 1994 08:50:00 GMT")], 7),
            ("9111, 5.3", &[("expires", date), ("date", date)], 0),
            ("9111, 5.3", &[("expires", date), ("date", then)], 0),
            // RFC 9110, 6.6.1: without a valid `Date`, the time of receipt.
            ("9110, 6.6.1", &[("expires", then)], 30),
            ("9110, 6.6.1", &[("expires", then), ("date", "foo")], 30),
            ("9110, 6.6.1", &[("expires", then), ("date", date), ("date", date)], 30),
            // Nonsense and repetition are over.
            ("9111, 5.3", &[("expires", "0"), ("date", date)], 0),
            ("9111, 5.3", &[("expires", "")], 0),
            ("9111, 5.3", &[("expires", "Sun, 06 Nov 1994 08:50:07 UTC")], 0),
            ("9111, 4.2.1", &[("expires", then), ("expires", then)], 0),
            ("9111, 4.2.1", &[("expires", then), ("expires", "0")], 0),
            // Every form, in any case.
            ("9111, 4.2", &[("expires", "sunday, 06-nov-94 08:50:07 gmt")], 30),
            ("9110, 5.6.7", &[("expires", "Sun Nov  6 08:50:07 1994")], 30),
            ("9111, 1.2.2", &[("expires", "Fri, 31 Dec 9999 23:59:59 GMT")], MAX_SECONDS.into()),
            ("9110, 5.6.7", &[("expires", "Fri, 31 Dec 1000000 23:59:59 GMT")], 0),
            // Directives come first, valid or not.
            ("9111, 5.3", &[("cache-control", "max-age=9"), ("expires", "0")], 9),
            ("9111, 5.3", &[("cache-control", "max-age=0"), ("expires", then)], 0),
            ("9111, 4.2.1", &[("cache-control", "max-age=x"), ("expires", then)], 0),
            ("9111, 4.2.1", &[("cache-control", "max-age=0, s-maxage=9"), ("expires", "0")], 9),
            ("9111, 5.3", &[("cache-control", "public, must-revalidate"), ("expires", then)], 30),
            ("9213, 2.2", &[("cdn-cache-control", "public"), ("expires", then)], 60),
        ] {
            assert_eq!(lives(fields), expected, "RFC {section}: {fields:?}");
        }
    }

    #[test]
    fn the_other_directives_count_beside_expires() {
        let then = ("expires", "Sun, 06 Nov 1994 08:50:07 GMT");
        let said = judge(&[then, ("cache-control", "stale-while-revalidate=9")], None, 0);
        assert_eq!(said.unwrap().stale_while_revalidate, secs(9));
        let said = judge(&[then, ("cache-control", "must-revalidate")], None, 0);
        assert_eq!(said.unwrap().stale_while_revalidate, secs(0));
    }

    fn assumed_of(status: u16, fields: &[(&'static str, &str)]) -> Option<Terms> {
        let fields = fields.iter().map(|&(name, value)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        });
        let (headers, config): (HeaderMap, _) = (fields.collect(), HttpConfig::default());
        let status = StatusCode::from_u16(status).unwrap();
        let said = governing(&headers, &config, times(0).response).directives;
        terms(status, &said, &headers, None, &config, times(0))
    }

    #[test]
    fn a_tenth_of_the_time_without_a_change_is_assumed_at_most_a_day() {
        // RFC 9111, 4.2.2
        let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        for (modified, expected) in [
            ("Sun, 06 Nov 1994 08:49:27 GMT", Some(secs(1))),
            ("Sun, 06 Nov 1994 08:49:36 GMT", Some(Duration::from_millis(100))),
            ("Sat, 05 Nov 1994 08:49:37 GMT", Some(secs(8_640))),
            ("Thu, 06 Oct 1994 08:49:37 GMT", Some(secs(86_400))),
            ("Mon, 01 Jan 0001 00:00:00 GMT", Some(secs(86_400))),
            ("Sun, 06 Nov 1994 08:49:37 GMT", None),
            ("Mon, 07 Nov 1994 08:49:37 GMT", None),
            ("yesterday", None),
        ] {
            let terms = assumed_of(200, &[date, ("last-modified", modified)]);
            assert_eq!(terms.map(|it| it.lifetime), expected, "{modified}");
            assert!(terms.is_none_or(|it| it.source == Source::Heuristic));
        }
        let twice = [("last-modified", "Sat, 05 Nov 1994 08:49:37 GMT"); 2];
        assert_eq!(assumed_of(200, &twice), None);
    }

    #[test]
    fn it_is_assumed_of_lasting_statuses_and_public_ones_that_say_nothing() {
        let modified = ("last-modified", "Sat, 05 Nov 1994 08:49:37 GMT");
        let lives = |status, line: Option<&str>| {
            let fields = line.map(|line| ("cache-control", line)).into_iter().chain([modified]);
            let terms = assumed_of(status, &fields.collect::<Vec<_>>());
            terms.is_some_and(|terms| terms.source == Source::Heuristic)
        };
        // RFC 9110, 15.1
        let lasting: Vec<_> = (200..600).filter(|status| lives(*status, None)).collect();
        assert_eq!(lasting, [200, 203, 204, 300, 301, 308, 404, 405, 410, 414, 501]);
        // RFC 9111, 5.2.2.9
        assert!(lives(599, Some("public")) && lives(302, Some("public")));
        for explicit in ["max-age=9", "s-maxage=0", "public, max-age=x"] {
            assert!(!lives(200, Some(explicit)), "{explicit}");
        }
    }

    #[test]
    fn nothing_is_assumed_where_there_is_a_ttl_or_it_is_switched_off() {
        let modified = ("last-modified", "Sat, 05 Nov 1994 08:49:37 GMT");
        assert_eq!(judge(&[modified], None, 0).unwrap().source, Source::Layer);
        let config = HttpConfig { heuristics: false, ..HttpConfig::default() };
        let headers =
            HeaderMap::from_iter([(header::LAST_MODIFIED, HeaderValue::from_static(modified.1))]);
        let said = Directives::default();
        assert_eq!(terms(StatusCode::OK, &said, &headers, None, &config, times(0)), None);
    }

    #[test]
    fn only_lasting_statuses_take_the_ttl_of_the_layer() {
        let config = HttpConfig { ttl: Some(secs(60)), ..HttpConfig::default() };
        let (none, empty) = (Directives::default(), HeaderMap::new());
        let taking = (200..600).filter(|&status| {
            let status = StatusCode::from_u16(status).unwrap();
            terms(status, &none, &empty, None, &config, times(0)).is_some()
        });
        assert_eq!(taking.collect::<Vec<_>>(), [200, 203, 204, 300, 301, 308, 404, 410]);
    }

    #[test]
    fn a_layer_without_ttl_leaves_it_to_the_origin() {
        let (none, empty) = (Directives::default(), HeaderMap::new());
        let config = HttpConfig::default();
        assert_eq!(terms(StatusCode::OK, &none, &empty, None, &config, times(0)), None);
    }

    #[test]
    fn stale_windows_are_the_responses_own_else_the_layers_unless_forbidden() {
        for (line, revalidate, error) in [
            ("max-age=1", 5, 6),
            ("max-age=1, stale-while-revalidate=0", 0, 6),
            ("max-age=1, stale-if-error=9", 5, 9),
            ("max-age=1, stale-if-error=x", 5, 0),
            ("max-age=1, must-revalidate, stale-while-revalidate=9", 0, 0),
            ("max-age=1, proxy-revalidate", 0, 0),
            ("s-maxage=1", 0, 0),
            ("max-age=0", 0, 6),
            ("max-age=x", 0, 6),
            ("max-age=0, stale-while-revalidate=9", 9, 6),
            // Each window is permitted for itself.
            ("s-maxage=1, stale-while-revalidate=9", 9, 0),
        ] {
            let terms = judge(&[("cache-control", line)], None, 0).unwrap();
            let windows = (terms.stale_while_revalidate, terms.stale_if_error);
            assert_eq!(windows, (secs(revalidate), secs(error)), "{line}");
        }
    }

    #[test]
    fn cache_for_sets_windows_but_lifts_no_prohibition() {
        let said = CacheFor::new(secs(1)).stale_for(secs(8));
        for (line, revalidate, error) in [
            ("", 8, 6),
            ("max-age=1, stale-while-revalidate=9, stale-if-error=9", 8, 6),
            ("must-revalidate", 0, 0),
            ("s-maxage=1", 0, 0),
            ("s-maxage=1, stale-while-revalidate=9", 0, 0),
        ] {
            let terms = judge(&[("cache-control", line)], Some(&said), 0).unwrap();
            let windows = (terms.stale_while_revalidate, terms.stale_if_error);
            assert_eq!(windows, (secs(revalidate), secs(error)), "{line}");
        }
    }

    #[test]
    fn age_is_the_first_number_of_the_first_line() {
        // RFC 9111, 5.1 and 1.2.2
        for (value, age) in [
            ("10", 10),
            ("10, 20", 10),
            ("x, 20", 0),
            ("-1", 0),
            ("1.5", 0),
            ("", 0),
            ("18446744073709551615", u64::from(MAX_SECONDS)),
        ] {
            let fields = [("cache-control", "max-age=1"), ("age", value), ("age", "99")];
            assert_eq!(judge(&fields, None, 0).unwrap().initial_age, secs(age), "{value}");
        }
    }

    #[test]
    fn the_initial_age_is_the_larger_of_what_fields_and_clock_say() {
        // RFC 9111, 4.2.3; the response of `times(3)` arrives at 08:49:40.
        for (date, age, expected) in [
            ("Sun, 06 Nov 1994 08:49:40 GMT", "0", 3),
            ("Sun, 06 Nov 1994 08:49:00 GMT", "0", 40),
            ("Sun, 06 Nov 1994 08:49:00 GMT", "100", 103),
            ("Sun, 06 Nov 2094 08:49:00 GMT", "0", 3),
            ("nonsense", "0", 3),
            ("Mon, 01 Jan 0001 00:00:00 GMT", "0", 784_111_780),
        ] {
            let fields = [("cache-control", "max-age=1"), ("date", date), ("age", age)];
            assert_eq!(judge(&fields, None, 3).unwrap().initial_age, secs(expected), "{date}");
        }
    }

    #[test]
    fn a_lifetime_of_ours_begins_when_the_response_is_there() {
        assert_eq!(judge(&[], None, 3).unwrap().initial_age, secs(0));
        let cache_for = CacheFor::new(secs(1));
        assert_eq!(judge(&[("age", "2")], Some(&cache_for), 3).unwrap().initial_age, secs(2));
    }

    proptest! {
        #[test]
        fn no_fields_make_it_panic(
            age: Vec<u8>,
            date: Vec<u8>,
            dates in proptest::collection::vec("[A-Z][a-z]{2}, [0-3][0-9] (Jan|Feb|Dec) [0-9]{4} [0-2][0-9]:00:00 GMT", 2),
            delay: u64,
        ) {
            let [modified, over] = [0, 1].map(|i| dates[i].clone().into_bytes());
            let fields = [(header::AGE, age), (header::DATE, date), (header::LAST_MODIFIED, modified), (header::EXPIRES, over)];
            let fields = fields.into_iter().filter_map(|(n, v)| Some((n, HeaderValue::from_bytes(&v).ok()?)));
            let times = Times { response_delay: Duration::from_secs(delay), ..times(0) };
            for source in [Source::Origin, Source::Layer, Source::Heuristic] {
                let headers = fields.clone().collect();
                let age = initial_age(&headers, source, times);
                prop_assert!(age <= Duration::from_secs(MAX_SECONDS.into()));
                let _ = (expires(&headers, times.response), heuristic(&headers, times.response));
            }
        }
    }
}
