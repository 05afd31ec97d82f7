//! Rules for some paths: which requests a rule is for, and what it changes.
//!
//! The first rule that matches is the one. It is compared with every reading of the path, so that
//! no spelling of a path gets around it.

use std::iter;
use std::time::Duration;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use http::Uri;
use http::uri::PathAndQuery;
use percent_encoding::percent_decode_str;
use tower_stampede::{SetCookie, StreamRule};

use super::readings::{folded, plain_path};
use super::server::HostPattern;

/// Which paths a rule is for.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    pattern: Pattern,
    /// What a pattern with stars matches.
    globs: GlobSet,
    /// Of a rule that matches in any case, and with or without a slash at the end: its prefix or
    /// pattern as `folded` makes it.
    lenient: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Prefix(String),
    /// `*` is anything but a slash, `**` anything.
    Glob(String),
}

impl Paths {
    pub(crate) fn all() -> Self {
        let pattern = Pattern::Prefix("/".into());
        Self { pattern, globs: GlobSet::empty(), lenient: None }
    }

    pub(crate) fn prefix(text: &str) -> Result<Self, String> {
        if !text.starts_with('/') {
            return Err("does not begin with `/`; write for example \"/static/\"".into());
        }
        if text.contains('*') {
            return Err("has a `*`, which a `prefix` takes for itself; write it as `glob`".into());
        }
        if text.contains(['?', '#', ';']) {
            return Err("has more than a path; write the path alone, and name parameters in \
                        `query` or `ignore_query`"
                .into());
        }
        let plain = plain_path(text);
        if plain != text {
            return Err(format!(
                "is no plain path; write \"{plain}\": requests are compared in this form"
            ));
        }
        Ok(Self { pattern: Pattern::Prefix(text.to_owned()), ..Self::all() })
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
        if text.contains(['%', ';']) || text.contains("//") || text.split('/').any(is_dots) {
            return Err("matches no plain path: requests are compared decoded, and without empty \
                        and dot segments and parameters; write the pattern so"
                .into());
        }
        let globs = matcher_of(text, None).map_err(|error| {
            format!("is no pattern ({}); write for example \"/img/*.png\"", error.kind())
        })?;
        Ok(Self { pattern: Pattern::Glob(text.to_owned()), globs, lenient: None })
    }

    /// Makes it match in any case, and with or without a slash at the end: for a rule that forbids
    /// to store. Some routers read paths so, as that of Express.
    pub(crate) fn lenient(self) -> Self {
        let (Pattern::Glob(text) | Pattern::Prefix(text)) = &self.pattern;
        let lenient = folded(text);
        let globs = match &self.pattern {
            Pattern::Glob(text) => matcher_of(text, Some(&lenient)).unwrap_or(self.globs),
            Pattern::Prefix(_) => self.globs,
        };
        Self { globs, lenient: Some(lenient), ..self }
    }

    fn match_path(&self, path: &str) -> bool {
        match &self.pattern {
            Pattern::Prefix(prefix) => match &self.lenient {
                None => path.starts_with(prefix.as_str()),
                Some(folded) => {
                    is_leniently_below(path, prefix) || is_leniently_below(path, folded)
                }
            },
            Pattern::Glob(_) => self.globs.is_match(path),
        }
    }

    /// Returns whether this matches all that `other` matches, as far as can be told: by the patterns, or
    /// because it matches all that `other` is tried with.
    fn covers(&self, other: &Self) -> bool {
        self.pattern == other.pattern
            || self.as_prefix().is_some_and(|wide| other.begin().starts_with(wide))
            || other.samples().is_some_and(|paths| paths.iter().all(|path| self.match_path(path)))
    }

    /// Returns paths that it matches: near and far ones. None where it has more than a beginning.
    fn samples(&self) -> Option<Vec<String>> {
        const BELOW: [&str; 4] = ["", "/q", "/q/z7.k", "/q/z7/9/v"];
        let below = |folder: &str| BELOW.map(|rest| format!("{folder}{rest}")).to_vec();
        match &self.pattern {
            Pattern::Prefix(prefix) => {
                let mut paths = below(prefix.strip_suffix('/').unwrap_or(prefix));
                // `/a` is also for `/ab`.
                paths.push(format!("{prefix}q7"));
                Some(paths)
            }
            Pattern::Glob(text) if literal_begin(text) == text => Some(vec![text.clone()]),
            Pattern::Glob(text) => {
                folder_of(text).filter(|folder| literal_begin(folder) == *folder).map(below)
            }
        }
    }

    /// Returns the prefix that it matches all paths of, if there is one: `/a/` for `/a/**`. But
    /// `/a**` is no more than `/a*`: only a segment of its own matches slashes.
    fn as_prefix(&self) -> Option<&str> {
        let Pattern::Glob(text) = &self.pattern else { return Some(self.begin()) };
        let begin = text.strip_suffix("**")?;
        let is_segment = begin.is_empty() || begin.ends_with('/');
        (is_segment && begin == literal_begin(text)).then_some(begin)
    }

    /// Returns what all its paths begin with, as far as that is easy to tell.
    fn begin(&self) -> &str {
        match &self.pattern {
            Pattern::Prefix(prefix) => prefix,
            // `/a/**` matches `/a`, too.
            Pattern::Glob(text) => match folder_of(text) {
                Some(folder) if folder == literal_begin(folder) => folder,
                _ => literal_begin(text),
            },
        }
    }
}

/// Returns the folder whose paths a pattern matches, the folder itself among them.
fn folder_of(glob: &str) -> Option<&str> {
    glob.strip_suffix("/**").filter(|folder| !folder.is_empty())
}

fn literal_begin(glob: &str) -> &str {
    &glob[..glob.find(['*', '?', '[', '{', '\\']).unwrap_or(glob.len())]
}

fn is_leniently_below(path: &str, prefix: &str) -> bool {
    let begin = path.as_bytes().get(..prefix.len());
    let folder = prefix.strip_suffix('/');
    let is_folder = || folder.is_some_and(|folder| folder.eq_ignore_ascii_case(path));
    begin.is_some_and(|begin| begin.eq_ignore_ascii_case(prefix.as_bytes())) || is_folder()
}

/// Makes what matches a pattern: leniently, if it is given in its folded form, too.
fn matcher_of(text: &str, folded: Option<&str>) -> Result<GlobSet, globset::Error> {
    let is_lenient = folded.is_some();
    let glob = |text: &str| {
        GlobBuilder::new(text).literal_separator(true).case_insensitive(is_lenient).build()
    };
    let mut globs = GlobSetBuilder::new();
    for text in iter::once(text).chain(folded.filter(|_| !text.is_ascii())) {
        globs.add(glob(text)?);
        let beside = match (folder_of(text), text.strip_suffix('/')) {
            (Some(folder), _) => Some(folder.to_owned()),
            (None, Some("")) => None,
            (None, Some(file)) if is_lenient => Some(file.to_owned()),
            (None, None) if is_lenient => Some(format!("{text}/")),
            (None, _) => None,
        };
        if let Some(beside) = beside {
            globs.add(glob(&beside)?);
        }
    }
    globs.build()
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
    pub(crate) share_streams: Option<StreamRule>,
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
    use crate::readings::readings;

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
            share_streams: None,
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
        let matches_one = |path: &str| {
            let readings = readings(path, None).unwrap_or_default().of_servers;
            readings.iter().any(|reading| admin.matches("a", reading))
        };
        for path in [
            "/admin",
            "/admin/x",
            "/%61dmin",
            "//admin",
            "//x/admin",
            "/\\x/admin",
            "/./admin",
            "/x/../admin",
            "/x/%2e%2e/admin",
            "/%2Fadmin",
            "/(S(1))/admin",
            "/x/;/..;/../admin",
            "/%EF%BC%8Fadmin",
        ] {
            assert!(matches_one(path), "{path}");
        }
        for path in ["/", "/x/admin", "/adm%69", "/x"] {
            assert!(!matches_one(path), "{path}");
        }
    }

    #[test]
    fn a_rule_that_forbids_matches_in_any_case_and_with_or_without_the_last_slash() {
        let lenient = |paths: Paths| rule(paths.lenient(), &[]);
        let file = lenient(Paths::glob("/Account").unwrap());
        let folder = lenient(Paths::glob("/account/").unwrap());
        let all = lenient(Paths::glob("/account/**").unwrap());
        let begin = lenient(Paths::prefix("/account/").unwrap());
        for path in ["/account", "/account/", "/Account", "/ACCOUNT/"] {
            for rule in [&file, &folder, &all, &begin] {
                assert!(rule.matches("a", path), "{path}: {rule:?}");
            }
        }
        for path in ["/accounts", "/x/account", "/accoun", "/"] {
            for rule in [&file, &folder, &all, &begin] {
                assert!(!rule.matches("a", path), "{path}: {rule:?}");
            }
        }
        let accent = lenient(Paths::glob("/Caf\u{e9}/**").unwrap());
        let cyrillic = lenient(Paths::prefix("/\u{414}\u{430}/").unwrap());
        for (path, rule) in [
            ("/Caf\u{e9}", &accent),
            ("/CAF\u{c9}/x", &accent),
            ("/cafe\u{301}/x", &accent),
            ("/cafe", &accent),
            ("/\u{434}\u{430}", &cyrillic),
            ("/\u{414}\u{410}/x", &cyrillic),
        ] {
            let forms = [path.to_owned(), folded(path)];
            assert!(forms.iter().any(|form| rule.matches("a", form)), "{path}: {rule:?}");
            assert!(!forms.iter().any(|form| begin.matches("a", form)), "{path}");
        }
        assert!(all.matches("a", "/account/X/y") && begin.matches("a", "/ACCOUNT/x"));
        assert!(!glob("/account").matches("a", "/account/"));
        assert!(!glob("/account").matches("a", "/Account"));
    }

    #[test]
    fn a_pattern_for_all_below_a_folder_matches_the_folder_itself() {
        for (pattern, folder) in [("/x/**", "/x"), ("/{a,b}/**", "/b"), ("**/c/**", "/d/c")] {
            let rule = glob(pattern);
            assert!(rule.matches("a", folder), "{pattern}");
            assert!(rule.matches("a", &format!("{folder}/")), "{pattern}");
            assert!(rule.matches("a", &format!("{folder}/y/z")), "{pattern}");
            assert!(!rule.matches("a", &format!("{folder}y")), "{pattern}");
        }
        assert!(!prefix("/x/").hides(&glob("/x/**")), "one path is left");
        assert!(prefix("/x").hides(&glob("/x/**")) && glob("/x/**").hides(&glob("/x/**")));
    }

    #[test]
    fn in_a_glob_one_star_stays_within_a_segment() {
        let one = glob("/img/*.png");
        assert!(one.matches("a", "/img/x.png") && !one.matches("a", "/img/x/y.png"));
        let all = glob("/img/**/*.{png,jpg}");
        assert!(all.matches("a", "/img/x/y/z.jpg") && all.matches("a", "/img/z.png"));
        assert!(!all.matches("a", "/x.png"));
        assert!(glob("**/*.css").matches("a", "/x/y.css"));
        for never in ["/a/[", "a", "*.png", "*", "**.png", "/a%20b/*", "//a/*", "/a/../*", "/a;*"] {
            assert!(Paths::glob(never).is_err(), "{never}");
        }
        assert!(Paths::prefix("/a?b=1").is_err() && Paths::prefix("/a/*").is_err());
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
        assert!(!glob("/a/**").hides(&prefix("/a")) && glob("/*/**").hides(&prefix("/a/b")));
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
