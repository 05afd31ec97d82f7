//! Rules for some paths: which requests a rule is for, and what it changes.
//!
//! The first rule that matches is the one. It is compared with a plain form of the path, so that
//! no spelling of a path gets around it.

use std::borrow::Cow;
use std::time::Duration;

use globset::{GlobBuilder, GlobMatcher};
use http::Uri;
use http::uri::PathAndQuery;
use percent_encoding::percent_decode_str;
use tower_stampede::SetCookie;

use super::server::HostPattern;

/// Which paths a rule is for.
#[derive(Clone, Debug)]
pub(crate) enum Paths {
    Prefix(String),
    /// `*` is anything but a slash, `**` anything.
    Glob(GlobMatcher),
}

impl Paths {
    pub(crate) fn prefix(text: &str) -> Result<Self, String> {
        if !text.starts_with('/') {
            return Err("does not begin with `/`; write for example \"/static/\"".into());
        }
        if text.contains('*') {
            return Err("has a `*`, which a `prefix` takes for itself; write it as `glob`".into());
        }
        if text.contains(['?', '#']) {
            return Err("has more than a path; write the path alone, and name parameters in \
                        `query` or `ignore_query`"
                .into());
        }
        if plain_path(text) != text {
            return Err(format!(
                "is no plain path; write \"{}\": requests are compared in this form",
                plain_path(text)
            ));
        }
        Ok(Self::Prefix(text.to_owned()))
    }

    pub(crate) fn glob(text: &str) -> Result<Self, String> {
        if !text.starts_with('/') && !text.starts_with("**/") && text != "**" {
            return Err(
                "does not begin with `/` or `**/`; write for example \"/img/*.png\", or \"**/*.png\" \
                 for all folders"
                    .into(),
            );
        }
        let is_dots = |segment: &str| matches!(segment, "." | "..");
        if text.contains('%') || text.contains("//") || text.split('/').any(is_dots) {
            return Err("matches no plain path: requests are compared decoded, and without empty \
                        and dot segments; write the pattern so"
                .into());
        }
        let glob = GlobBuilder::new(text).literal_separator(true).build();
        let glob = glob.map_err(|error| {
            format!("is no pattern ({}); write for example \"/img/*.png\"", error.kind())
        })?;
        Ok(Self::Glob(glob.compile_matcher()))
    }

    fn match_path(&self, path: &str) -> bool {
        match self {
            Self::Prefix(prefix) => path.starts_with(prefix.as_str()),
            Self::Glob(glob) => glob.is_match(path),
        }
    }

    /// Returns whether this matches all that `other` matches, where that is easy to tell.
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Glob(wide), Self::Glob(narrow)) if wide.glob() == narrow.glob() => true,
            _ => self.as_prefix().is_some_and(|wide| other.begin().starts_with(wide)),
        }
    }

    /// Returns the prefix that means the same, if there is one: `/a/**` is `/a/`. But `/a**` is no
    /// more than `/a*`: only a segment of its own matches slashes.
    fn as_prefix(&self) -> Option<&str> {
        let Self::Glob(glob) = self else { return Some(self.begin()) };
        let begin = glob.glob().glob().strip_suffix("**")?;
        let is_segment = begin.is_empty() || begin.ends_with('/');
        (is_segment && begin == self.begin()).then_some(begin)
    }

    /// Returns what all its paths begin with, as far as that is easy to tell.
    fn begin(&self) -> &str {
        match self {
            Self::Prefix(prefix) => prefix,
            Self::Glob(glob) => {
                let text = glob.glob().glob();
                &text[..text.find(['*', '?', '[', '{', '\\']).unwrap_or(text.len())]
            }
        }
    }
}

/// What one rule changes for its requests.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) name: String,
    /// Where it stands in the file.
    pub(crate) line: usize,
    pub(crate) paths: Paths,
    /// Empty: all.
    pub(crate) hosts: Vec<HostPattern>,
    /// Stores and shares nothing.
    pub(crate) bypass: bool,
    pub(crate) ttl: Option<Duration>,
    pub(crate) status_ttl: Vec<(u16, Duration)>,
    pub(crate) stale: Option<Duration>,
    pub(crate) stale_if_error: Option<Duration>,
    pub(crate) stale_if_disconnected: Option<Duration>,
    /// The query parameters that matter.
    pub(crate) query: Option<Vec<String>>,
    /// Those that are removed; `None`: as the settings say.
    pub(crate) ignored_query: Option<Vec<String>>,
    pub(crate) set_cookie: Option<SetCookie>,
    pub(crate) ignore_cookies: bool,
    pub(crate) ignored_cookies: Vec<String>,
    pub(crate) public: bool,
    pub(crate) vary: Vec<String>,
    pub(crate) tags: Vec<String>,
    pub(crate) max_body: Option<usize>,
    pub(crate) make_etags: Option<bool>,
    pub(crate) cache_posts: bool,
}

impl Rule {
    pub(crate) fn matches(&self, host: &str, path: &str) -> bool {
        let is_host = self.hosts.is_empty() || self.hosts.iter().any(|one| one.matches(host));
        is_host && self.paths.match_path(path)
    }

    /// Returns whether no request is left for `later`.
    pub(crate) fn hides(&self, later: &Self) -> bool {
        let has = |host: &HostPattern| self.hosts.iter().any(|wide| wide.covers(host));
        let covers_hosts =
            self.hosts.is_empty() || !later.hosts.is_empty() && later.hosts.iter().all(has);
        covers_hosts && self.paths.covers(&later.paths)
    }
}

/// Returns a path as an origin may read it: decoded, without empty and dot segments.
///
/// Only for comparison. Key and origin have the path as it was sent.
pub(crate) fn plain_path(path: &str) -> Cow<'_, str> {
    let is_plain = !path.contains('%') && !path.contains("//") && !path.contains("/.");
    if is_plain {
        return Cow::Borrowed(path);
    }
    Cow::Owned(without_dots(&percent_decode_str(path).decode_utf8_lossy()))
}

/// Removes empty segments, and follows those of dots.
fn without_dots(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            _ => segments.push(segment),
        }
    }
    let ends_with_slash = ["/", "/.", "/.."].iter().any(|end| path.ends_with(end));
    let end = if ends_with_slash && !segments.is_empty() { "/" } else { "" };
    format!("/{}{end}", segments.join("/"))
}

/// Returns the other ways in which origins read a path, if there are any.
///
/// A rule that shares pages must not be for a path in one reading only: a link to
/// `/account/..%2fstatic/x` would store the account of the client that follows it, by the rule for
/// `/static/`.
pub(crate) fn other_readings(path: &str) -> Vec<String> {
    let is_read_in_one_way = !path.contains(['%', ';', '\\', '?', '#']) && !path.contains("/.");
    if is_read_in_one_way {
        return Vec::new();
    }
    // Origins that neither decode a slash nor follow dots.
    let kept = path.replace("%2f", "%2F").replace("%2F", "%252F");
    let kept = percent_decode_str(&kept).decode_utf8_lossy();
    let mut literal = kept.split('/').filter(|s| !s.is_empty()).collect::<Vec<_>>().join("/");
    literal.insert(0, '/');
    if kept.ends_with('/') && literal.len() > 1 {
        literal.push('/');
    }
    // Origins that decode twice, end a path at a delimiter, have parameters in segments, or take a
    // backslash for a slash.
    let once = percent_decode_str(path).decode_utf8_lossy();
    let twice = percent_decode_str(&once).decode_utf8_lossy().replace('\\', "/");
    let end = twice.find(|c: char| c.is_control() || c == '?' || c == '#');
    let bare = |segment: &str| segment.split(';').next().unwrap_or_default().to_owned();
    let segments = twice[..end.unwrap_or(twice.len())].split('/').map(bare);
    let lenient = without_dots(&segments.collect::<Vec<_>>().join("/"));
    vec![literal, lenient]
}

/// Removes the named parameters from a query. Returns nothing where there are none.
pub(crate) fn without_parameters(uri: &Uri, names: &[String]) -> Option<Uri> {
    let query = uri.query()?;
    if names.is_empty() {
        return None;
    }
    let kept: Vec<_> = query.split('&').filter(|pair| !is_named(pair, names)).collect();
    let kept = kept.join("&");
    if kept.len() == query.len() {
        return None;
    }
    let target = if kept.is_empty() { uri.path().into() } else { format!("{}?{kept}", uri.path()) };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(target).ok()?);
    Uri::from_parts(parts).ok()
}

/// Returns whether a parameter is one of these, however its name is spelled.
fn is_named(pair: &str, names: &[String]) -> bool {
    let name = pair.split_once('=').map_or(pair, |(name, _)| name);
    let name = percent_decode_str(name).decode_utf8_lossy();
    names.iter().any(|pattern| match pattern.strip_suffix('*') {
        // All of the query: the cache removes it, where the request may be stored.
        Some("") => false,
        Some(begin) => name.starts_with(begin),
        None => *name == **pattern,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(paths: Paths, hosts: &[&str]) -> Rule {
        Rule {
            name: String::new(),
            line: 1,
            paths,
            hosts: hosts.iter().map(|host| HostPattern::read(host).unwrap()).collect(),
            bypass: false,
            ttl: None,
            status_ttl: Vec::new(),
            stale: None,
            stale_if_error: None,
            stale_if_disconnected: None,
            query: None,
            ignored_query: None,
            set_cookie: None,
            ignore_cookies: false,
            ignored_cookies: Vec::new(),
            public: false,
            vary: Vec::new(),
            tags: Vec::new(),
            max_body: None,
            make_etags: None,
            cache_posts: false,
        }
    }

    fn glob(text: &str) -> Rule {
        rule(Paths::glob(text).unwrap(), &[])
    }

    fn prefix(text: &str) -> Rule {
        rule(Paths::prefix(text).unwrap(), &[])
    }

    #[test]
    fn no_spelling_of_a_path_gets_around_a_rule() {
        let admin = prefix("/admin");
        for path in [
            "/admin",
            "/admin/x",
            "/%61dmin",
            "//admin",
            "/./admin",
            "/x/../admin",
            "/x/%2e%2e/admin",
            "/%2Fadmin",
            "/admin/../admin/",
        ] {
            assert!(admin.matches("a", &plain_path(path)), "{path}");
        }
        for path in ["/", "/x/admin", "/admin/../x", "*", "/adm%69"] {
            assert!(!admin.matches("a", &plain_path(path)), "{path}");
        }
    }

    #[test]
    fn a_plain_path_keeps_its_last_slash() {
        for (path, plain) in [
            ("/", "/"),
            ("/a/", "/a/"),
            ("//", "/"),
            ("/a//b/", "/a/b/"),
            ("/a/.", "/a/"),
            ("/a/b/..", "/a/"),
            ("/..", "/"),
            ("/.hidden", "/.hidden"),
            ("/%ff", "/\u{fffd}"),
        ] {
            assert_eq!(plain_path(path), plain, "{path}");
        }
    }

    #[test]
    fn in_a_glob_one_star_stays_within_a_segment() {
        let one = glob("/img/*.png");
        assert!(one.matches("a", "/img/x.png") && !one.matches("a", "/img/x/y.png"));
        let all = glob("/img/**/*.{png,jpg}");
        assert!(all.matches("a", "/img/x/y/z.jpg") && all.matches("a", "/img/z.png"));
        assert!(!all.matches("a", "/x.png"));
        assert!(glob("**/*.css").matches("a", "/x/y.css"));
        for never in ["/a/[", "a", "*.png", "*", "**.png", "/a%20b/*", "//a/*", "/a/../*"] {
            assert!(Paths::glob(never).is_err(), "{never}");
        }
        assert!(Paths::prefix("/a?b=1").is_err() && Paths::prefix("/a/*").is_err());
    }

    #[test]
    fn a_path_that_origins_read_in_several_ways_has_each_reading() {
        for path in ["/", "/a/b.css", "//a", "*"] {
            assert!(other_readings(path).is_empty(), "{path}");
        }
        for (path, literal, lenient) in [
            ("/a/..%2fs/x", "/a/..%2Fs/x", "/s/x"),
            ("/a;%2F%2e%2E%2fs/x", "/a;%2F..%2Fs/x", "/s/x"),
            ("/a/../s/", "/a/../s/", "/s/"),
            ("/s/..;/a", "/s/..;/a", "/a"),
            ("/s/..%5ca", "/s/..\\a", "/a"),
            ("/s/%252e%252e/a", "/s/%2e%2e/a", "/a"),
            ("/a%3fx.css", "/a?x.css", "/a"),
            ("/a%00.css", "/a\0.css", "/a"),
            ("/a//b%20c/", "/a/b c/", "/a/b c/"),
        ] {
            assert_eq!(other_readings(path), [literal, lenient], "{path}");
        }
    }

    #[test]
    fn a_rule_that_can_never_match_is_known() {
        assert!(prefix("/").hides(&prefix("/a")) && !prefix("/a").hides(&prefix("/")));
        assert!(prefix("/img/").hides(&glob("/img/*.png")));
        assert!(!prefix("/img/x").hides(&glob("/img/*.png")));
        let of_host = rule(Paths::prefix("/").unwrap(), &["a.example"]);
        let of_two = rule(Paths::prefix("/").unwrap(), &["a.example", "b.example"]);
        assert!(prefix("/").hides(&of_host) && !of_host.hides(&prefix("/")));
        assert!(of_two.hides(&of_host) && !of_host.hides(&of_two));
        for all in ["**", "/**"] {
            assert!(glob(all).hides(&prefix("/a")) && glob(all).hides(&glob("/b/*")), "{all}");
        }
        assert!(glob("/a/**").hides(&prefix("/a/b")) && glob("/a/**").hides(&glob("/a/*.png")));
        assert!(!glob("/a/**").hides(&prefix("/a")) && !glob("/*/**").hides(&prefix("/a/b")));
        assert!(!glob("/a**").hides(&prefix("/a/")) && !glob("/a**").hides(&glob("/a/*.png")));
        assert!(!glob("/a/*").hides(&prefix("/a/b")) && !glob("/a/**").hides(&glob("/*/b")));
        let at = |host| rule(Paths::prefix("/").unwrap(), &[host]);
        assert!(
            at("*.example").hides(&at("a.example")) && !at("a.example").hides(&at("*.example"))
        );
        assert!(
            at("*.example").hides(&at("*.a.example")) && !at("*.example").hides(&at("example"))
        );
        assert!(!at("*.a.example").hides(&at("*.example")));
    }

    #[test]
    fn a_pattern_that_hides_a_prefix_matches_all_its_paths() {
        for (wide, narrow) in [("**", "/"), ("/**", "/"), ("/a/**", "/a/")] {
            assert!(glob(wide).hides(&prefix(narrow)), "{wide}");
            for rest in ["", "x", "x/", "x/y.png", ".hidden", "\u{fffd}"] {
                assert!(glob(wide).matches("a", &format!("{narrow}{rest}")), "{wide}: {rest}");
            }
        }
    }

    #[test]
    fn named_parameters_go_and_all_others_stay_as_they_are() {
        let names = ["utm_*", "fbclid", "*"].map(str::to_owned);
        let stripped = |uri: &str| {
            let uri: Uri = uri.parse().unwrap();
            without_parameters(&uri, &names).map(|uri| uri.to_string())
        };
        for (uri, expected) in [
            ("/a?utm_source=x", Some("/a")),
            ("/a?b=1&utm_source=x&c=%20&&d", Some("/a?b=1&c=%20&&d")),
            ("/a?%75tm_x=1&b", Some("/a?b")),
            ("/a?fbclid", Some("/a")),
            ("/a?fbclid2=1&utm", None),
            ("/a", None),
            ("/a?", None),
            ("*", None),
        ] {
            assert_eq!(stripped(uri).as_deref(), expected, "{uri}");
        }
    }
}
