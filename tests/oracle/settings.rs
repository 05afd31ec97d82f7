//! Random settings of a layer, and what they hide from every handler.

use std::fmt;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, Method, Uri, header};
use tower_stampede::{HttpLayer, HttpStampede, SetCookie};

use crate::ask::User;
use crate::grammar::Through;
use crate::persona::Kind;

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Settings {
    /// In seconds; `None` is `origin_only`.
    pub(crate) ttl: Option<u64>,
    pub(crate) stale_for: u64,
    pub(crate) stale_if_error: u64,
    pub(crate) vary: Vec<&'static str>,
    pub(crate) keyed: Vec<&'static str>,
    pub(crate) credentials: Vec<&'static str>,
    pub(crate) query: Option<Vec<&'static str>>,
    pub(crate) ignore_cookies: bool,
    /// Ignores cookies with the name `theme`.
    pub(crate) ignore_theme: bool,
    /// The lifetime of 404s and 500s that say nothing, in seconds.
    pub(crate) error_ttl: Option<u64>,
    pub(crate) make_etags: bool,
    /// Adds this field to the key.
    pub(crate) key_field: Option<&'static str>,
    /// Adds the extension `User` to the key; requests without go past.
    pub(crate) identity: bool,
    pub(crate) set_cookie: SetCookie,
    pub(crate) honour: bool,
    /// POSTs change nothing; they do not where the origin has no state.
    pub(crate) safe_posts: bool,
    pub(crate) max_variants: Option<usize>,
    pub(crate) max_body: Option<usize>,
    /// A compressor of tower-http stands around the layer.
    pub(crate) compressor: bool,
    /// Which of [`FLAGS`] the proxy has; the layer has all other settings.
    pub(crate) flags: Option<usize>,
}

/// Flags of the proxies, and of their twins that share nothing.
pub(crate) const FLAGS: [&[&str]; 5] = [
    &["--ttl-ms", "60000"],
    &["--ttl-ms", "40", "--stale-ms", "60000", "--set-cookie", "strip"],
    &["--ttl-ms", "60000", "--trust-forwarded"],
    &[],
    // Town adds the file.
    &["--config"],
];

/// Of those, the one with rules for paths.
pub(crate) const WITH_RULES: usize = 4;

/// Of those, the one with a lifetime that ends soon.
const SHORT: usize = 1;

fn one_of<T: Clone>(rng: &mut fastrand::Rng, list: &[T]) -> T {
    list[rng.usize(..list.len())].clone()
}

impl Settings {
    /// Chooses settings under which the persona must be safe.
    pub(crate) fn random(rng: &mut fastrand::Rng, kind: &Kind, through: Through) -> Self {
        let mut settings = Self::default();
        if through == Through::Proxy {
            let flags = match kind {
                Kind::Refreshed(_) => SHORT,
                Kind::Router(_) => WITH_RULES,
                _ => rng.usize(..WITH_RULES),
            };
            settings.flags = Some(flags);
            return settings;
        }
        let needs_ttl = matches!(kind, Kind::Identity(_) | Kind::Permission(_) | Kind::User);
        if needs_ttl || rng.u8(..4) == 0 {
            settings.ttl = Some(one_of(rng, &[1, 5, 60]));
        }
        let mut rarely = |one_in: u8| rng.u8(..one_in) == 0;
        let [stale, error, vary, keyed, credentials, query, cookies, identity, honour] =
            [4, 6, 8, 16, 16, 8, 8, 12, 12].map(&mut rarely);
        settings.stale_for = if stale { 30 } else { 0 };
        settings.stale_if_error = if error { 30 } else { 0 };
        if vary {
            settings.vary = vec![one_of(rng, &["accept-language", "x-anything", "x-tenant"])];
        }
        if keyed {
            settings.keyed = vec!["x-routing"];
        }
        if credentials {
            settings.credentials = vec!["x-badge"];
        }
        if query {
            settings.query = Some(vec!["q"]);
        }
        settings.ignore_cookies = cookies;
        settings.ignore_theme = rng.u8(..8) == 0;
        settings.error_ttl = (rng.u8(..6) == 0).then_some(5);
        settings.make_etags = rng.u8(..6) == 0;
        settings.identity = identity || matches!(kind, Kind::User);
        settings.honour = honour;
        if matches!(kind, Kind::Sharded) {
            match rng.u8(..3) {
                0 => settings.key_field = Some("x-shard"),
                1 => settings.keyed = vec!["x-shard"],
                _ => settings.vary = vec!["x-shard"],
            }
        }
        settings.safe_posts = matches!(kind, Kind::Methods) && rng.u8(..3) == 0;
        if rng.u8(..12) == 0 {
            settings.max_variants = Some(rng.usize(1..=2));
        }
        if rng.u8(..16) == 0 {
            settings.max_body = Some(4);
        }
        let has_codings = matches!(kind, Kind::Varier(_) | Kind::Precompressed);
        if !has_codings && rng.u8(..8) == 0 {
            settings.compressor = true;
            settings.max_body = None;
        }
        settings.set_cookie =
            one_of(rng, &[SetCookie::Refuse, SetCookie::Strip, SetCookie::Explicit]);
        settings
    }

    pub(crate) fn layer(&self, cache: &HttpStampede, scope: Option<String>) -> HttpLayer {
        let mut layer = cache.http_layer().set_cookie(self.set_cookie);
        layer = match self.ttl {
            Some(ttl) => layer.ttl(Duration::from_secs(ttl)),
            None => layer.origin_only(),
        };
        layer = layer.stale_for(Duration::from_secs(self.stale_for));
        layer = layer.stale_if_error(Duration::from_secs(self.stale_if_error));
        layer = layer.honour_request_directives(self.honour);
        if let Some(scope) = scope {
            layer = layer.scope(scope);
        }
        if !self.vary.is_empty() {
            layer = layer.vary(self.vary.iter().copied());
        }
        if !self.keyed.is_empty() {
            layer = layer.keyed_headers(self.keyed.iter().copied());
        }
        if !self.credentials.is_empty() {
            layer = layer.credential_headers(self.credentials.iter().copied());
        }
        if let Some(max_variants) = self.max_variants {
            layer = layer.max_variants(max_variants);
        }
        if let Some(max_body) = self.max_body {
            layer = layer.max_body(max_body);
        }
        if let Some(query) = &self.query {
            layer = layer.query(query.iter().copied());
        }
        if self.ignore_cookies {
            layer = layer.ignore_cookies(["*"]);
        }
        if self.ignore_theme {
            layer = layer.ignore_cookies(["theme"]);
        }
        if let Some(ttl) = self.error_ttl {
            let ttl = Duration::from_secs(ttl);
            layer = layer.status_ttl(404, ttl).status_ttl(500, ttl);
        }
        layer = layer.make_etags(self.make_etags).outcome_on_hits(self.compressor);
        if let Some(name) = self.key_field {
            layer = layer.key(move |parts: &Parts| {
                format!("{:?}", parts.headers.get_all(name).iter().collect::<Vec<_>>())
            });
        }
        if self.identity {
            layer = layer.identity(|parts: &Parts| {
                parts.extensions.get::<User>().map(|user| user.0.to_owned())
            });
        }
        if self.safe_posts {
            layer = layer.cache_posts(|_| true);
        }
        // As the documentation asks of an application with such rules.
        if self.key_field.is_some() || self.identity {
            layer = layer.refresh_headers(self.key_field);
        }
        layer
    }

    /// Removes what the settings are documented to hide from every handler.
    pub(crate) fn hide(&self, parts: &mut Parts) {
        let is_cached_post = self.safe_posts && parts.method == Method::POST;
        if !matches!(parts.method.as_str(), "GET" | "HEAD" | "QUERY") && !is_cached_post {
            return;
        }
        if self.ignore_cookies {
            parts.headers.remove(header::COOKIE);
        }
        if self.ignore_theme && matches!(parts.method, Method::GET | Method::HEAD) {
            hide_theme(&mut parts.headers);
        }
        parts.uri = self.without_query(&parts.uri);
    }

    pub(crate) fn without_query(&self, uri: &Uri) -> Uri {
        let (Some(allowed), Some(query)) = (&self.query, uri.query()) else { return uri.clone() };
        let name = |parameter: &str| parameter.split('=').next().unwrap_or_default().to_owned();
        let kept: Vec<_> = query.split('&').filter(|one| allowed.contains(&&*name(one))).collect();
        let mut resource = uri.path().to_owned();
        if !kept.is_empty() {
            resource = format!("{resource}?{}", kept.join("&"));
        }
        let mut parts = uri.clone().into_parts();
        parts.path_and_query = Some(resource.parse().unwrap());
        Uri::from_parts(parts).unwrap()
    }

    /// Returns the same settings with one of them as it is by default, for
    /// each that is not.
    pub(crate) fn simpler(&self, kind: &Kind) -> Vec<Self> {
        let mut simpler = Vec::new();
        if self.flags.is_some() {
            return simpler;
        }
        let mut with = |change: &dyn Fn(&mut Self)| {
            let mut other = self.clone();
            change(&mut other);
            if other != *self {
                simpler.push(other);
            }
        };
        with(&|other| other.stale_for = 0);
        with(&|other| other.stale_if_error = 0);
        with(&|other| other.max_variants = None);
        with(&|other| other.max_body = None);
        with(&|other| other.compressor = false);
        if !matches!(kind, Kind::Sharded) {
            with(&|other| other.vary.clear());
            with(&|other| other.keyed.clear());
        }
        with(&|other| other.credentials.clear());
        with(&|other| other.query = None);
        with(&|other| other.ignore_cookies = false);
        with(&|other| other.ignore_theme = false);
        with(&|other| other.error_ttl = None);
        with(&|other| other.make_etags = false);
        with(&|other| other.set_cookie = SetCookie::Refuse);
        with(&|other| other.honour = false);
        with(&|other| other.safe_posts = false);
        if !matches!(kind, Kind::Identity(_) | Kind::Permission(_) | Kind::User) {
            with(&|other| other.ttl = None);
        }
        if !matches!(kind, Kind::User) {
            with(&|other| other.identity = false);
        }
        simpler
    }
}

/// Takes `theme` out of the lines of `Cookie` that have it, as the documentation says.
fn hide_theme(headers: &mut HeaderMap) {
    let is_theme =
        |piece: &str| piece.split_once('=').is_some_and(|(name, _)| name.trim() == "theme");
    let lines: Vec<_> = headers.get_all(header::COOKIE).iter().cloned().collect();
    headers.remove(header::COOKIE);
    for line in lines {
        let text = String::from_utf8_lossy(line.as_bytes()).into_owned();
        if !text.split(';').any(is_theme) {
            headers.append(header::COOKIE, line);
            continue;
        }
        let kept = text.split(';').filter(|piece| !is_theme(piece)).map(str::trim);
        let kept: Vec<_> = kept.filter(|piece| !piece.is_empty()).collect();
        if !kept.is_empty() {
            headers.append(header::COOKIE, kept.join("; ").parse().expect("parts of a value"));
        }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(flags) = self.flags {
            return write!(f, "{}", FLAGS[flags].join(" "));
        }
        match self.ttl {
            Some(ttl) => write!(f, "ttl {ttl} s")?,
            None => f.write_str("origin_only")?,
        }
        if self.stale_for > 0 {
            write!(f, ", stale_for {} s", self.stale_for)?;
        }
        if self.stale_if_error > 0 {
            write!(f, ", stale_if_error {} s", self.stale_if_error)?;
        }
        let lists = [
            ("vary", &self.vary),
            ("keyed_headers", &self.keyed),
            ("credential_headers", &self.credentials),
        ];
        for (name, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
            write!(f, ", {name} {list:?}")?;
        }
        if let Some(query) = &self.query {
            write!(f, ", query {query:?}")?;
        }
        if let Some(field) = self.key_field {
            write!(f, ", key by the field {field}")?;
        }
        let flags = [
            ("ignore_cookies", self.ignore_cookies),
            ("ignore_cookies theme", self.ignore_theme),
            ("status_ttl 5 s of 404 and 500", self.error_ttl.is_some()),
            ("make_etags", self.make_etags),
            ("identity by the extension User", self.identity),
            ("honour_request_directives", self.honour),
            ("cache_posts", self.safe_posts),
            ("CompressionLayer around it", self.compressor),
        ];
        for (name, _) in flags.into_iter().filter(|(_, is_set)| *is_set) {
            write!(f, ", {name}")?;
        }
        for (name, most) in [("max_variants", self.max_variants), ("max_body", self.max_body)] {
            if let Some(most) = most {
                write!(f, ", {name} {most}")?;
            }
        }
        if self.set_cookie != SetCookie::Refuse {
            write!(f, ", set_cookie {:?}", self.set_cookie)?;
        }
        Ok(())
    }
}
