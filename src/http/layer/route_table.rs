//! Settings of single routes of a layer, by the path of the request.
//!
//! A rule must hold for every way in which a router may read a path: `/%61ccount`, `/account/` and
//! `//account` can lead to the handler of `/account`. So where no router has said which route it
//! is, a path counts only if all its readings have the same rules. Any other path is *ambiguous*,
//! and its request is forwarded uncached.
//!
//! A route that axum has matched leaves fewer readings, but more than one: a handler gets parameters
//! decoded, `nest_service` takes `/account/` for `/account`, and a layer in front of a nested router
//! may have rewritten the path.

use std::borrow::Cow;
use std::sync::Arc;

use http::request::Parts;
use matchit::{InsertError, Router};

use crate::http::rules::key::{path, received_uri};

#[derive(Clone, Default)]
pub(super) struct Patterns {
    /// Leads to the place of a pattern in `all`.
    router: Router<usize>,
    /// The same for folded patterns, and leads to the first one of several.
    folded: Router<usize>,
    all: Vec<Pattern>,
    /// Some pattern is not its own folded form.
    has_unfolded: bool,
}

#[derive(Clone)]
struct Pattern {
    folded: String,
    /// The first pattern that has the same folded form.
    first: usize,
}

/// The rules of the routes of a layer.
pub(in crate::http) struct RouteTable<R> {
    pub(super) patterns: Patterns,
    /// In the order of the patterns.
    pub(super) rules: Vec<Arc<R>>,
}

/// A path that may lead to routes with different rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) struct AmbiguousPath;

impl Patterns {
    pub(super) fn add(&mut self, pattern: &str) -> Result<(), String> {
        let next = self.all.len();
        let refuse = |error| match error {
            InsertError::Conflict { with } => format!(
                "claims a route that `{with}` claims; give each route one rule, with all its \
                 settings"
            ),
            error => format!("is no pattern ({error}); write for example `/users/{{id}}`"),
        };
        self.router.insert(pattern, next).map_err(refuse)?;
        check(pattern)?;
        let named = with_plain_names(pattern);
        let folded = fold(&named);
        self.has_unfolded |= folded != named;
        let first = self.all.iter().position(|known| known.folded == folded).unwrap_or(next);
        if first == next {
            self.folded.insert(folded.as_str(), next).map_err(refuse)?;
        }
        self.all.push(Pattern { folded, first });
        Ok(())
    }

    fn find(&self, path: &str) -> Option<usize> {
        self.router.at(path).ok().map(|found| *found.value)
    }

    /// Returns whether a router may read `path` as another one, which has other rules.
    fn is_ambiguous(&self, path: &str, found: Option<usize>) -> bool {
        let Some(decoded) = plain(path) else { return true };
        // PHP reads no path where a port is wrong. Applications show their front page then.
        self.is_other(&decoded, found) || may_be_port(&decoded) && self.is_other("/", found)
    }

    /// The same for a path that axum has matched.
    fn is_ambiguous_though_routed(&self, path: &str, found: Option<usize>) -> bool {
        if !self.has_unfolded && is_plain_and_folded(path) {
            return false;
        }
        with_decoded_segments(path).is_none_or(|decoded| self.is_other(&decoded, found))
    }

    /// Returns whether a decoded path has other rules in its folded form.
    fn is_other(&self, decoded: &str, found: Option<usize>) -> bool {
        let own = found.map(|found| self.all[found].first);
        self.folded.at(&fold(decoded)).ok().map(|found| *found.value) != own
    }
}

impl<R> RouteTable<R> {
    /// Returns the rules of a request's route; `None` where it has those of the layer.
    pub(in crate::http) fn find(&self, parts: &Parts) -> Result<Option<&Arc<R>>, AmbiguousPath> {
        let path = path(received_uri(parts));
        let found = self.patterns.find(path);
        let is_ambiguous = match is_routed(parts) {
            true => self.patterns.is_ambiguous_though_routed(path, found),
            false => self.patterns.is_ambiguous(path, found),
        };
        if is_ambiguous {
            return Err(AmbiguousPath);
        }
        Ok(found.map(|found| &self.rules[found]))
    }
}

/// Returns whether axum has found the one route of a request: it compares paths byte for byte, but
/// for their parameters. Behind a wildcard something else may read the path once more.
fn is_routed(parts: &Parts) -> bool {
    matched_path(parts).is_some_and(|matched| !matched.contains("{*"))
}

/// Returns the path of axum's route, where its router stands outside of the layer.
pub(in crate::http) fn matched_path(parts: &Parts) -> Option<&str> {
    #[cfg(feature = "axum")]
    let matched = parts.extensions.get::<axum::extract::MatchedPath>().map(|it| it.as_str());
    #[cfg(not(feature = "axum"))]
    let matched = {
        let _ = parts;
        None
    };
    matched
}

/// Refuses patterns that match no plain path: their requests would all be forwarded uncached.
fn check(pattern: &str) -> Result<(), String> {
    let mut path = String::new();
    for (at, piece) in pattern.split(['{', '}']).enumerate() {
        // A parameter stands between every other pair.
        path.push_str(if at % 2 == 0 { piece } else { "x" });
    }
    let is_graphic = |path: &str| path.bytes().all(|b| b.is_ascii_graphic() && b != b'%');
    let has_braces = pattern.contains("{{") || pattern.contains("}}");
    if !path.starts_with('/') || !is_graphic(&path) || plain(&path).is_none() || has_braces {
        return Err("is no plain path; begin it with `/`, and write neither encoded characters \
                    nor `;`, `\\`, `?`, `#`, nor empty segments or segments that end in a dot"
            .into());
    }
    if pattern.split('/').any(|segment| segment.starts_with([':', '*'])) {
        return Err("is written for axum 0.7; write `{name}` and `{*name}`".into());
    }
    Ok(())
}

/// Returns a pattern whose parameters have one name.
fn with_plain_names(pattern: &str) -> String {
    let pieces = pattern.split(['{', '}']).enumerate().map(|(at, piece)| match piece {
        _ if at % 2 == 0 => piece,
        name if name.starts_with('*') => "{*name}",
        _ => "{name}",
    });
    pieces.collect()
}

/// Returns the form in which paths are alike that some routers take for one: Express ignores case
/// and the slash at the end, and `NormalizePathLayer` removes it. Letters such as the Kelvin sign
/// have an ASCII letter as their other case.
fn fold(path: &str) -> String {
    let trimmed = path.trim_end_matches('/');
    match trimmed {
        "" if path.starts_with('/') => "/".into(),
        _ if trimmed.is_ascii() => trimmed.to_ascii_lowercase(),
        _ => trimmed.to_uppercase().to_lowercase(),
    }
}

/// Returns whether a path is read in one way alone, letters included.
fn is_plain_and_folded(path: &str) -> bool {
    let mut before = 0;
    let mut is_plain = |b: u8| {
        let is_empty_or_dot = before == b'/' && matches!(b, b'/' | b'.');
        before = b;
        b.is_ascii() && !b.is_ascii_uppercase() && b != b'%' && !is_empty_or_dot
    };
    (path.len() < 2 || !path.ends_with('/')) && path.bytes().all(&mut is_plain)
}

/// Returns a path with each segment decoded by itself: an encoded slash stays within its parameter.
/// `None` where a segment is empty or a dot segment, or no UTF-8.
fn with_decoded_segments(path: &str) -> Option<String> {
    let (body, end) = match path.strip_suffix('/') {
        Some(body) => (body, "/"),
        None => (path, ""),
    };
    let mut all = String::with_capacity(path.len());
    for segment in body.split('/').skip(1) {
        let decoded = decode(segment)?;
        if matches!(&*decoded, "" | "." | "..") {
            return None;
        }
        all.push('/');
        // What stands for the slash is in no pattern.
        all.push_str(&decoded.replace('/', "%"));
    }
    Some(all + end)
}

/// Returns a path decoded, where routers read it as this or as it stands. `None` where they may
/// read it in more ways: with other segments, or decoded twice.
fn plain(path: &str) -> Option<Cow<'_, str>> {
    let decoded = decode(path)?;
    let slashes = |text: &str| text.bytes().filter(|b| *b == b'/').count();
    // 0xEF begins full-width characters, which some take for ASCII.
    let is_special =
        |b: u8| b < b' ' || matches!(b, b'%' | b';' | b'\\' | b'?' | b'#' | 0x7F | 0xEF);
    // Dot segments; Windows has no names that end in a dot or in a blank; sessions of ASP.NET.
    let is_other = |segment: &str| {
        segment.ends_with(['.', ' ']) || segment.starts_with('(') && segment.ends_with("))")
    };
    let is_plain = slashes(&decoded) == slashes(path)
        && !decoded.contains("//")
        && !decoded.bytes().any(is_special)
        && !decoded.split('/').any(is_other);
    is_plain.then_some(decoded)
}

/// Decodes what is percent-encoded. `None` where that is no UTF-8: what stands there depends on a
/// character set.
fn decode(path: &str) -> Option<Cow<'_, str>> {
    let mut pieces = path.split('%');
    let begin = pieces.next()?;
    if begin.len() == path.len() {
        return Some(path.into());
    }
    let mut decoded = begin.as_bytes().to_vec();
    for piece in pieces {
        let digits =
            piece.get(..2).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))?;
        decoded.push(u8::from_str_radix(digits, 16).ok()?);
        decoded.extend_from_slice(&piece.as_bytes()[2..]);
    }
    String::from_utf8(decoded).ok().map(Cow::Owned)
}

fn may_be_port(path: &str) -> bool {
    path.split(':')
        .skip(1)
        .any(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '/') || rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(all: &[&str]) -> Patterns {
        let mut patterns = Patterns::default();
        all.iter().for_each(|one| patterns.add(one).unwrap());
        patterns
    }

    /// Returns the pattern that a path has, or that it is ambiguous.
    fn find(patterns: &Patterns, path: &str) -> Result<Option<usize>, AmbiguousPath> {
        let found = patterns.find(path);
        if patterns.is_ambiguous(path, found) { Err(AmbiguousPath) } else { Ok(found) }
    }

    const SITE: [&str; 6] =
        ["/account", "/account/{*page}", "/users/{id}", "/users/me", "/@{name}", "/"];

    #[test]
    fn a_path_has_the_rules_of_its_most_specific_pattern() {
        let site = patterns(&SITE);
        for (path, expected) in [
            ("/account", Some(0)),
            ("/account/a/b.css", Some(1)),
            ("/users/1", Some(2)),
            ("/users/caf%C3%A9%20x", Some(2)),
            ("/users/a%3Ab", Some(2)),
            ("/users/me", Some(3)),
            ("/@ada", Some(4)),
            ("/", Some(5)),
            ("/about", None),
            ("/.well-known/x", None),
            ("/users", None),
            ("/accounts", None),
            ("*", None),
        ] {
            assert_eq!(find(&site, path), Ok(expected), "{path}");
        }
    }

    /// Each row is a path that some router takes for one with a rule.
    #[test]
    fn a_spelling_of_a_path_with_a_rule_is_ambiguous() {
        let all = ["/account", "/users/{id}", "/users/me", "/@{name}", "/", "/key", "/site"];
        let site = patterns(&all);
        for path in [
            "/%61ccount",
            "/Account",
            "/account/",
            "/account//",
            "//account",
            "//host/account",
            "/x/../account",
            "/x/..%2faccount",
            "/x/%2e%2E/account",
            "/./account",
            "/account/.",
            "/account;x=1",
            "/account%3Bx",
            "/static\\..\\account",
            "/static%5caccount",
            "/%2561ccount",
            "/account%00",
            "/account%20",
            "/account.",
            "/account%3fx.css",
            "/account%23",
            "/(S(abc))/account",
            "/%EF%BD%81ccount",
            "/%u0061ccount",
            "/%ff",
            "/%",
            "/users/m%65",
            "/users/ME",
            "/users/me/",
            "/%40ada",
            "/static/x:80",
            "/static/x%3a80",
            // In the other case: the Kelvin sign, a long s and a dotless i.
            "/\u{212A}ey",
            "/%C5%BFite",
            "/s%C4%B1te",
        ] {
            assert_eq!(find(&site, path), Err(AmbiguousPath), "{path}");
        }
    }

    #[test]
    fn a_path_that_axum_has_matched_is_ambiguous_if_a_handler_may_read_it_as_another_one() {
        let site = patterns(&["/account", "/users/{id}", "/users/me", "/pages/x/"]);
        for (path, expected) in [
            ("/account", false),
            ("/account/", true),
            ("/Account", true),
            ("/%61ccount", true),
            ("//account", true),
            ("/x/%2e%2E/account", true),
            ("/users/m%65", true),
            ("/users/ME", true),
            ("/users/me/", true),
            ("/users/%ff", true),
            ("/pages/x", true),
            ("/pages/x/", false),
            ("/users/A", false),
            ("/users/a%2Fb", false),
            ("/users/a%2F..%2Fme", false),
            ("/users/a;b", false),
            ("/users/a.", false),
            ("/users/x:80", false),
            ("/about", false),
            ("/", false),
            ("*", false),
        ] {
            let found = site.find(path);
            assert_eq!(site.is_ambiguous_though_routed(path, found), expected, "{path}");
        }
        let plain = patterns(&["/account"]);
        for path in ["/account/", "/%61ccount", "//account", "/x/../account", "/ACCOUNT"] {
            assert!(plain.is_ambiguous_though_routed(path, plain.find(path)), "{path}");
        }
    }

    #[test]
    fn spellings_that_lead_to_the_same_rules_are_not_ambiguous() {
        let all = ["/account", "/account/", "/a/{*rest}", "/users/{id}", "/users/{name}/"];
        let site = patterns(&all);
        for (path, expected) in [
            ("/account", Some(0)),
            ("/account/", Some(1)),
            ("/ABOUT", None),
            ("/about/", None),
            ("/%61bout", None),
            ("/x:80", None),
            ("/a/B%63", Some(2)),
            ("/users/B", Some(3)),
            ("/users/b/", Some(4)),
        ] {
            assert_eq!(find(&site, path), Ok(expected), "{path}");
        }
    }

    #[test]
    fn two_patterns_for_one_route_are_refused_by_name() {
        for (first, second) in [
            ("/a", "/a"),
            ("/users/{id}", "/users/{name}"),
            ("/users/{id}", "/users/{*rest}"),
            ("/Users/{id}", "/users/{*rest}"),
        ] {
            let mut patterns = patterns(&[first]);
            let why = patterns.add(second).unwrap_err();
            assert!(why.contains("claims a route that `/"), "{first} {second}: {why}");
        }
    }

    #[test]
    fn what_no_plain_path_matches_is_refused() {
        for pattern in [
            "",
            "a",
            "a/b",
            "/a b",
            "/caf\u{e9}",
            "/%61",
            "/a;b",
            "/a\\b",
            "/a?b",
            "//a",
            "/a/../b",
            "/a.",
            "/{a}-b",
            "/{*a}/b",
            "/{",
            "/{}",
            "/a}",
            "/{{a}}",
            "/:id",
            "/*rest",
        ] {
            assert!(Patterns::default().add(pattern).is_err(), "{pattern}");
        }
    }
}
