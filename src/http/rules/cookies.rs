//! Cookies that do not count, by their names.

use http::header::{self, HeaderMap, HeaderValue};

/// The names of cookies that are taken out of requests: a name, or the beginning of names before
/// a `*` at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IgnoredCookies(Vec<String>);

impl IgnoredCookies {
    /// Adds names that were checked.
    pub(crate) fn add(&mut self, names: impl IntoIterator<Item = String>) {
        self.0.extend(names);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn has(&self, name: &[u8]) -> bool {
        self.0.iter().any(|own| match own.strip_suffix('*') {
            Some(start) => name.starts_with(start.as_bytes()),
            None => name == own.as_bytes(),
        })
    }

    /// Returns whether a piece between two semicolons is a cookie to ignore. One without `=`
    /// has no name.
    fn is_ignored(&self, piece: &[u8]) -> bool {
        let mut halves = piece.splitn(2, |b| *b == b'=');
        let name = halves.next().unwrap_or_default().trim_ascii();
        halves.next().is_some() && self.has(name)
    }

    /// Returns whether a request carries a cookie to ignore.
    pub(crate) fn concern(&self, headers: &HeaderMap) -> bool {
        !self.is_empty() && headers.get_all(header::COOKIE).iter().any(|line| self.is_in(line))
    }

    fn is_in(&self, line: &HeaderValue) -> bool {
        line.as_bytes().split(|b| *b == b';').any(|piece| self.is_ignored(piece))
    }

    /// Takes the cookies to ignore out of a request. A line without one stays byte for byte; a
    /// line with nothing else goes.
    pub(crate) fn remove_from(&self, headers: &mut HeaderMap) {
        if !self.concern(headers) {
            return;
        }
        let lines: Vec<_> = headers.get_all(header::COOKIE).iter().cloned().collect();
        headers.remove(header::COOKIE);
        for line in lines.into_iter().filter_map(|line| self.without_ignored(line)) {
            // There was room for it.
            let _ = headers.try_append(header::COOKIE, line);
        }
    }

    fn without_ignored(&self, line: HeaderValue) -> Option<HeaderValue> {
        if !self.is_in(&line) {
            return Some(line);
        }
        let pieces = line.as_bytes().split(|b| *b == b';');
        let kept = pieces.filter(|piece| !self.is_ignored(piece)).map(<[u8]>::trim_ascii);
        let kept: Vec<_> = kept.filter(|piece| !piece.is_empty()).collect();
        if kept.is_empty() {
            return None;
        }
        // Made of parts of a value; were it none, the line would stay.
        let mut rest = HeaderValue::from_bytes(&kept.join(&b"; "[..])).unwrap_or(line.clone());
        rest.set_sensitive(line.is_sensitive());
        Some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ignoring(names: &[&str]) -> IgnoredCookies {
        let mut ignored = IgnoredCookies::default();
        ignored.add(names.iter().map(ToString::to_string));
        ignored
    }

    fn rest(ignored: &IgnoredCookies, lines: &[&str]) -> Vec<String> {
        let line =
            |line: &&str| (header::COOKIE, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        let mut headers: HeaderMap = lines.iter().map(line).collect();
        ignored.remove_from(&mut headers);
        let lines = headers.get_all(header::COOKIE).iter();
        lines.map(|line| String::from_utf8_lossy(line.as_bytes()).into_owned()).collect()
    }

    #[test]
    fn ignored_cookies_go_and_the_others_stay_in_their_order() {
        let ignored = ignoring(&["_ga", "_ga_*", "_gid"]);
        for (lines, expected) in [
            (&["_ga=1"][..], &[][..]),
            (&["_ga=1; _gid=2; _ga_X=3"], &[]),
            (&["_ga=1; sid=2; _gid=3; lang=de"], &["sid=2; lang=de"]),
            (&["sid=2; _ga=1"], &["sid=2"]),
            (&["_ga=1;;  ; sid=2"], &["sid=2"]),
            (&["_ga=1", "sid=2", "_gid=1; a=1"], &["sid=2", "a=1"]),
            // Duplicates, blanks, quotes, an empty value, a value with `=`.
            (&["_ga=1; _ga=2"], &[]),
            (&["  _ga  =  1 ;sid=2"], &["sid=2"]),
            (&["_ga=\"1\"; sid=\"a=b\""], &["sid=\"a=b\""]),
            (&["_ga=; _gid=a=b; sid=c=d"], &["sid=c=d"]),
        ] {
            assert_eq!(rest(&ignored, lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn what_is_no_such_cookie_stays_byte_for_byte() {
        let ignored = ignoring(&["_ga", "_ga_*"]);
        for line in [
            "",
            "_GA=1",
            "_gat=1",
            "x_ga=1",
            // Without `=` it is a value without a name.
            "_ga",
            "_ga; sid=1",
            "a=_ga=1",
            "a=1, _ga=2",
            "a=1;b=2 ;  c=3;",
            "\"_ga\"=1",
            "caf\u{e9}=1",
        ] {
            assert_eq!(rest(&ignored, &[line]), [line]);
        }
    }

    proptest! {
        #[test]
        fn no_line_makes_it_panic_and_no_other_cookie_is_lost(lines in prop::collection::vec("[_gaGA=; \"\\\\,\u{e9}x]{0,24}", 0..4)) {
            let ignored = ignoring(&["_ga", "_g*"]);
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            let rest = rest(&ignored, &lines);
            let pieces = |lines: &[&str]| -> Vec<String> {
                let all = lines.iter().flat_map(|line| line.split(';'));
                let named = |piece: &&str| piece.split_once('=').is_some_and(|(name, _)| {
                    name.trim_matches([' ', '\t']).starts_with("_g")
                });
                all.filter(|piece| !named(piece)).map(|piece| piece.trim_ascii().to_owned())
                    .filter(|piece| !piece.is_empty()).collect()
            };
            let before = pieces(&lines);
            let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
            prop_assert_eq!(pieces(&rest), before);
        }
    }
}
