//! The origins: pure functions of the request as they see it, and a version.
//!
//! They are honest about `Vary` for ordinary fields, and as naive as real
//! applications about everything else.

use std::hash::{DefaultHasher, Hash, Hasher};

use http::request::Parts;
use http::{HeaderMap, Uri, header};

use crate::kit::codings::accepts;
use crate::kit::spellings;

/// Fields by which naive applications let a proxy choose scheme, host, port,
/// path or method.
pub(crate) const TRUSTED: [&str; 17] = [
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-forwarded-prefix",
    "x-forwarded-scheme",
    "x-forwarded-ssl",
    "x-forwarded-server",
    "x-original-url",
    "x-original-uri",
    "x-original-host",
    "x-rewrite-url",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-host",
    "front-end-https",
    "forwarded",
];

/// Fields that identify the client.
pub(crate) const IDENTITIES: [&str; 19] = [
    "authorization",
    "cookie",
    "x-api-key",
    "proxy-authorization",
    "client-cert",
    "x-auth-token",
    "x-forwarded-user",
    "remote-user",
    "x-auth-request-email",
    "cf-access-jwt-assertion",
    "x-amzn-oidc-data",
    "x-goog-iap-jwt-assertion",
    "x-ms-client-principal-name",
    "x-forwarded-client-cert",
    "x-ssl-client-cert",
    "x-access-token",
    "api-key",
    "x-session-id",
    "x-tenant-id",
];

/// Those of them that have always been credentials to the layer.
pub(crate) const KNOWN_CREDENTIALS: [&str; 6] =
    ["authorization", "cookie", "x-api-key", "proxy-authorization", "client-cert", "x-auth-token"];

/// Fields that an honest origin names in `Vary`.
pub(crate) const VARIED: [&str; 12] = [
    "x-forwarded-for",
    "forwarded",
    "via",
    "accept-language",
    "accept-encoding",
    "cookie",
    "user-agent",
    "x-real-ip",
    "te",
    "connection",
    "x-anything",
    "authorization",
];

/// Fields that no response names and no setting keys.
pub(crate) const UNKEYED: [&str; 3] = ["user-agent", "x-anything", "accept"];

/// Which names of the host an application reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    Field,
    Authority,
    FieldElseAuthority,
    AuthorityElseField,
    Everything,
}

/// How a router reads a path before it chooses a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathReading {
    AsSent,
    /// A target that begins with two slashes has a host.
    Reference,
    /// Bytes are decoded, then dots are followed.
    Decoded,
    /// Twice.
    DecodedTwice,
    /// The path ends at the first semicolon.
    EndsAtSemicolon,
    /// Each segment ends at its first semicolon.
    WithoutParameters,
    /// Backslashes are slashes.
    Backslashes,
}

/// How a layer between router and cache rewrites the URI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rewrite {
    AddPrefix,
    StripPrefix,
    ReplacePath,
    ChangeQuery,
    ChangeAuthority,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Writes links to itself into the page.
    Links(Reading),
    /// Redirects to another path on the same host.
    Redirector(Reading, u16),
    /// Believes what `X-Forwarded-*` and their like say.
    Gateway,
    /// Names in `Vary` what it reads.
    Varier(Vec<&'static str>),
    /// Shows the client's identity, and says nothing of a lifetime.
    Identity(&'static str),
    /// Writes directives that permit to share in some combinations; shows the
    /// client's identity where they do not.
    Permission(Option<&'static str>),
    Tenant(Rewrite),
    /// Reads `Cookie` as a CGI program does, and says `Vary: Cookie`.
    CookieReader,
    Methods,
    /// Shows a state that writes change.
    Versions,
    /// May be served stale while it is refreshed, and reads a field that
    /// nothing keys.
    Refreshed(&'static str),
    /// The same with a field that a setting of the layer keys.
    Sharded,
    /// Shows the user whom an extension names.
    User,
    /// Has its pages coded and not coded, and names no `Vary`.
    Precompressed,
    /// Has pages of users and pages for all, by its reading of the path. Rules of the proxy say
    /// which of them are shared.
    Router(PathReading),
}

impl Kind {
    pub(crate) const COUNT: usize = 15;

    pub(crate) const NAMES: [&str; Self::COUNT] = [
        "links",
        "redirector",
        "gateway",
        "varier",
        "identity",
        "permission",
        "tenant",
        "cookie-reader",
        "methods",
        "versions",
        "refreshed",
        "sharded",
        "user",
        "precompressed",
        "router",
    ];

    pub(crate) fn index(&self) -> usize {
        match self {
            Self::Links(_) => 0,
            Self::Redirector(..) => 1,
            Self::Gateway => 2,
            Self::Varier(_) => 3,
            Self::Identity(_) => 4,
            Self::Permission(_) => 5,
            Self::Tenant(_) => 6,
            Self::CookieReader => 7,
            Self::Methods => 8,
            Self::Versions => 9,
            Self::Refreshed(_) => 10,
            Self::Sharded => 11,
            Self::User => 12,
            Self::Precompressed => 13,
            Self::Router(_) => 14,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Persona {
    pub(crate) kind: Kind,
    pub(crate) cache_control: String,
    /// The lifetime that its handler sets by `CacheFor`, in seconds.
    pub(crate) cache_for: Option<u64>,
    pub(crate) has_etag: bool,
    /// Sets a cookie for its client.
    pub(crate) sets_cookie: bool,
    /// How long it takes, in virtual milliseconds.
    pub(crate) work: u64,
    /// Whether it reads its state when it begins, or when it answers.
    pub(crate) reads_late: bool,
    /// One in so many requests fails; 0 for none.
    pub(crate) fails: u64,
    /// Sends its body in two parts.
    pub(crate) streams: bool,
    /// Reads `_` in field names as `-`, as CGI programs do.
    pub(crate) folds: bool,
    /// Its pages are long enough for several parts.
    pub(crate) is_long: bool,
    /// The status of its pages: with one of an error, the pages are error pages.
    pub(crate) status: u16,
    /// Says in `Cache-Groups` that its pages belong together, and which of them a write changes
    /// in `Cache-Group-Invalidation` in place of `Location`.
    pub(crate) groups: bool,
}

/// What an origin says.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) location: Option<String>,
    pub(crate) content_location: Option<String>,
    pub(crate) content_encoding: Option<&'static str>,
    /// A write that changes the pages of the group.
    pub(crate) ends_group: bool,
    pub(crate) body: String,
}

impl Answer {
    fn ok(body: impl Into<String>) -> Self {
        Self { status: 200, body: body.into(), ..Self::default() }
    }

    /// Stands for the whole answer in the replies that have no body.
    pub(crate) fn digest(&self) -> String {
        let mut hasher = DefaultHasher::new();
        (self.status, &self.location, &self.body).hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }
}

/// What a long page has besides its text.
const LONG: usize = 600;

impl Persona {
    /// Returns what this origin answers. A write has been done already:
    /// `version` is the state after it.
    pub(crate) fn answer(&self, seen: &Parts, body: &str, version: u64) -> Answer {
        let answer = self.page(seen, body, version);
        if answer.status != 200 || is_write(seen) {
            return answer;
        }
        let rest = if self.is_long { ".".repeat(LONG) } else { String::new() };
        Answer { status: self.status, body: answer.body + &rest, ..answer }
    }

    fn page(&self, seen: &Parts, body: &str, version: u64) -> Answer {
        let path = seen.uri.path();
        match &self.kind {
            Kind::Links(reading) => Answer::ok(format!("<a href={}>", reading.link(seen))),
            Kind::Redirector(reading, status) => Answer {
                status: *status,
                location: Some(format!("{}/next", reading.link(seen))),
                ..Answer::default()
            },
            Kind::Gateway => Answer::ok(self.trusted(&seen.headers)),
            Kind::Varier(names) => {
                let values = names.iter().map(|name| meaning(name, &seen.headers));
                let body = values.collect::<Vec<_>>().join(" | ");
                let is_coded = names.contains(&"accept-encoding") && codes(&seen.headers);
                Answer { content_encoding: is_coded.then_some("gzip"), ..Answer::ok(body) }
            }
            Kind::Identity(name) | Kind::Permission(Some(name)) => Answer::ok(format!(
                "for {}",
                raw(&seen.headers, name).unwrap_or("anonymous".into())
            )),
            Kind::Permission(None) => Answer::ok("for all"),
            Kind::Tenant(Rewrite::ChangeAuthority) => Answer::ok(format!("page {}", seen.uri)),
            Kind::Tenant(_) => {
                Answer::ok(format!("page {:?}", seen.uri.path_and_query().map(ToString::to_string)))
            }
            Kind::CookieReader => {
                Answer::ok(raw(&seen.headers, "cookie").unwrap_or("no cookie".into()))
            }
            Kind::Methods => methods(seen, body),
            Kind::Versions => versions(seen, version, self.groups),
            Kind::Refreshed(name) => Answer::ok(raw(&seen.headers, name).unwrap_or("-".into())),
            Kind::Sharded => Answer::ok(raw(&seen.headers, "x-shard").unwrap_or("-".into())),
            Kind::Precompressed if codes(&seen.headers) => {
                Answer { content_encoding: Some("gzip"), ..Answer::ok("gzip") }
            }
            Kind::Precompressed => Answer::ok("not coded"),
            Kind::User => {
                let user = seen.extensions.get::<crate::ask::User>();
                Answer::ok(format!("{user:?} at {path}"))
            }
            Kind::Router(reading) => {
                let page = spellings::page(&reading.read(path));
                let cookie = raw(&seen.headers, "cookie").unwrap_or("anonymous".into());
                let host = raw(&seen.headers, "host").unwrap_or_default();
                let whose = if spellings::is_public(page, &host) { "all" } else { &cookie };
                Answer::ok(format!("{page} of {whose}"))
            }
        }
    }

    /// Returns the value of `Vary`.
    pub(crate) fn vary(&self) -> Option<String> {
        match &self.kind {
            Kind::Varier(names) => Some(names.join(", ")),
            Kind::CookieReader => Some("Cookie".into()),
            _ => None,
        }
    }

    fn trusted(&self, headers: &HeaderMap) -> String {
        let mut page = String::new();
        for trusted in TRUSTED {
            // A proxy writes its client's address into this one.
            if self.folds && trusted == "forwarded" {
                continue;
            }
            let is_it =
                |name: &str| name == trusted || self.folds && name.replace('_', "-") == trusted;
            let fields = headers.iter().filter(|(name, _)| is_it(name.as_str()));
            for (_, value) in fields {
                page += &format!("{trusted}={} ", String::from_utf8_lossy(value.as_bytes()));
            }
        }
        page
    }
}

impl Reading {
    fn link(self, seen: &Parts) -> String {
        let path = seen.uri.path_and_query().map_or("/", |path| path.as_str());
        let field = raw(&seen.headers, "host");
        let authority = seen.uri.authority().map(ToString::to_string);
        let host = match self {
            Self::Field => field,
            Self::Authority => authority,
            Self::FieldElseAuthority => field.or(authority),
            Self::AuthorityElseField => authority.or(field),
            Self::Everything => {
                let host = field.unwrap_or("none".into());
                return format!("{} (Host {host})", seen.uri);
            }
        };
        format!("http://{}{path}", host.unwrap_or_default())
    }
}

impl PathReading {
    pub(crate) const ALL: [Self; 7] = [
        Self::AsSent,
        Self::Reference,
        Self::Decoded,
        Self::DecodedTwice,
        Self::EndsAtSemicolon,
        Self::WithoutParameters,
        Self::Backslashes,
    ];

    pub(crate) fn read(self, path: &str) -> String {
        match self {
            Self::AsSent => path.to_owned(),
            Self::Reference => match path.strip_prefix("//") {
                Some(rest) => rest.find('/').map_or("/", |at| &rest[at..]).to_owned(),
                None => path.to_owned(),
            },
            Self::Decoded => without_dots(&decoded(path)),
            Self::DecodedTwice => without_dots(&decoded(&decoded(path))),
            Self::EndsAtSemicolon => path.split(';').next().unwrap_or_default().to_owned(),
            Self::WithoutParameters => {
                let segments = path.split('/').map(|one| one.split(';').next().unwrap_or_default());
                without_dots(&decoded(&segments.collect::<Vec<_>>().join("/")))
            }
            Self::Backslashes => without_dots(&path.replace('\\', "/")),
        }
    }
}

fn decoded(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('%') {
        bytes.extend_from_slice(before.as_bytes());
        match after.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(b'%');
                rest = after;
            }
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}

fn without_dots(path: &str) -> String {
    let mut kept = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

impl Rewrite {
    /// Returns the URI that the router hands on.
    pub(crate) fn apply(self, received: &Uri, headers: &HeaderMap) -> Option<Uri> {
        let tenant = headers.get("x-tenant").and_then(|value| value.to_str().ok());
        let tenant = tenant.unwrap_or("none");
        let (path, query) = (received.path(), received.query());
        let rest = |path: &str| match query {
            Some(query) => format!("{path}?{query}"),
            None => path.to_owned(),
        };
        let resource = match self {
            Self::AddPrefix => rest(&format!("/t/{tenant}{path}")),
            Self::StripPrefix => rest(match path.strip_prefix("/t") {
                Some(shorter) if tenant == "a" => shorter,
                Some(shorter) if tenant == "b" => shorter.strip_prefix("/t").unwrap_or(shorter),
                _ => path,
            }),
            Self::ReplacePath => rest(&format!("/{tenant}/page")),
            Self::ChangeQuery => format!("{path}?q={tenant}"),
            Self::ChangeAuthority => rest(path),
        };
        let mut parts = received.clone().into_parts();
        parts.path_and_query = Some(resource.parse().ok()?);
        if self == Self::ChangeAuthority {
            parts.scheme = Some(http::uri::Scheme::HTTP);
            parts.authority = Some(format!("{tenant}.internal").parse().ok()?);
        }
        Uri::from_parts(parts).ok()
    }
}

fn methods(seen: &Parts, body: &str) -> Answer {
    match seen.method.as_str() {
        "GET" | "HEAD" if body.is_empty() => Answer::ok("the page"),
        "GET" | "HEAD" => Answer::ok(format!("the page for {body:?}")),
        "POST" => Answer {
            content_location: seen.uri.path_and_query().map(ToString::to_string),
            ..Answer::ok(format!("what came of {body:?}"))
        },
        other => {
            let kind = raw(&seen.headers, "content-type").unwrap_or_default();
            Answer::ok(format!("the answer to {other} with {body:?} of type {kind:?}"))
        }
    }
}

/// A write to `/form` changes `/page`, and says so.
fn versions(seen: &Parts, version: u64, groups: bool) -> Answer {
    if !is_write(seen) {
        return Answer::ok(format!("version {version} of {}", seen.uri.path()));
    }
    match seen.uri.path() {
        _ if seen.method == "PATCH" => Answer { status: 405, ..Answer::ok("not so") },
        path if path.ends_with("/form") && groups => {
            Answer { ends_group: true, ..Answer::ok(format!("wrote version {version}")) }
        }
        path if path.ends_with("/form") => Answer {
            status: 303,
            location: Some(path.replace("/form", "/page")),
            body: format!("wrote version {version}"),
            ..Answer::default()
        },
        _ => Answer::ok(format!("wrote version {version}")),
    }
}

pub(crate) fn is_write(seen: &Parts) -> bool {
    !matches!(seen.method.as_str(), "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PROPFIND" | "QUERY")
}

/// Returns what a request reads or changes: scheme, host, path and query in
/// normal form; `None` where the host could be several, as under two `Host` lines.
pub(crate) fn resource(seen: &Parts) -> Option<String> {
    let scheme = seen.uri.scheme_str().unwrap_or("http");
    let authority = seen.uri.authority().map(|host| host.as_str().to_ascii_lowercase());
    let mut hosts: Vec<_> = authority.into_iter().collect();
    let fields = seen.headers.get_all(header::HOST);
    if fields.iter().nth(1).is_some() {
        return None;
    }
    for host in fields {
        hosts.push(host.to_str().ok()?.to_ascii_lowercase());
    }
    let default = if scheme == "https" { 443_u16 } else { 80 };
    for host in &mut hosts {
        if let Some((name, port)) = host.rsplit_once(':')
            && (port.is_empty() || port.parse() == Ok(default))
        {
            *host = name.to_owned();
        }
    }
    hosts.dedup();
    let path = seen.uri.path_and_query().map_or("/", |path| path.as_str());
    (hosts.len() <= 1).then(|| format!("{scheme}://{}{path}", hosts.pop().unwrap_or_default()))
}

/// The lines of a field as a CGI program gets them.
pub(crate) fn raw(headers: &HeaderMap, name: &str) -> Option<String> {
    let lines = headers.get_all(name).iter();
    let lines: Vec<_> = lines.map(|line| String::from_utf8_lossy(line.as_bytes())).collect();
    (!lines.is_empty()).then(|| lines.join(", "))
}

/// Returns whether an origin that knows `gzip` codes its answer.
fn codes(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::ACCEPT_ENCODING).iter();
    let lines: Vec<_> =
        lines.map(|line| String::from_utf8_lossy(line.as_bytes()).into_owned()).collect();
    accepts(&lines, "gzip")
}

/// What the value of a field means: what RFC 9111, 4.1, lets a cache treat as
/// equal is equal here. To many services the first of several languages is the
/// preferred one (RFC 9110, 12.5.4).
fn meaning(name: &str, headers: &HeaderMap) -> String {
    let lines = headers.get_all(name).iter();
    let lines: Vec<_> = lines.map(|line| String::from_utf8_lossy(line.as_bytes())).collect();
    if lines.is_empty() && name != "accept-encoding" {
        return "absent".into();
    }
    let members = || lines.iter().flat_map(|line| line.split(',')).map(str::trim);
    match name {
        "cookie" => lines.join("; "),
        "authorization" | "user-agent" => lines.join("\n"),
        "accept-language" => preferences(members()),
        // What the origin makes of it.
        "accept-encoding" if codes(headers) => "gzip".into(),
        "accept-encoding" => "not coded".into(),
        // The versions alone: a proxy calls itself as it likes.
        "via" => members()
            .map(|one| one.split(' ').next().unwrap_or_default())
            .collect::<Vec<_>>()
            .join(","),
        _ => members().collect::<Vec<_>>().join(","),
    }
}

fn preferences<'a>(members: impl Iterator<Item = &'a str>) -> String {
    let members: Vec<_> =
        members.filter(|one| !one.is_empty()).map(str::to_ascii_lowercase).collect();
    let read = |member: &String| {
        let (name, weight) = match member.split_once(';') {
            None => (&**member, 1.0),
            Some((name, weight)) => (name, weight.trim().strip_prefix("q=")?.parse().ok()?),
        };
        let weight: f64 = weight;
        Some(((weight * 1000.0) as i64, name.trim().to_owned()))
    };
    let Some(mut read) = members.iter().map(read).collect::<Option<Vec<_>>>() else {
        return members.join(",").replace([' ', '\t'], "");
    };
    // Stable: languages of equal weight keep their order.
    read.sort_by_key(|(weight, _)| -weight);
    format!("{read:?}")
}
