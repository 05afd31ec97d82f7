//! The origins, and which of them answers for which host.

use http::HeaderValue;
use http::uri::{Authority, Scheme};

use super::host::Host;

/// Which `Host` the origin sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostHeader {
    /// The client's.
    Preserve,
    /// The one in the URL of the origin.
    Origin,
}

/// One origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) scheme: Scheme,
    pub(crate) authority: Authority,
    /// The authority as a value of `Host`, in the form of all others.
    pub(crate) host: HeaderValue,
    /// `None`: as the settings say for all.
    pub(crate) host_header: Option<HostHeader>,
}

impl Server {
    /// Makes it of the parts of its URL, unless they name no host.
    pub(crate) fn new(scheme: Scheme, authority: Authority) -> Option<Self> {
        let host = Host::parse(authority.as_str(), default_port(&scheme))?;
        let host = HeaderValue::try_from(host.normal()).ok()?;
        Some(Self { scheme, authority, host, host_header: None })
    }
}

/// Returns the port that a URL with this scheme need not name.
pub(crate) fn default_port(scheme: &Scheme) -> u16 {
    if *scheme == Scheme::HTTPS { 443 } else { 80 }
}

/// A host, or all hosts below a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostPattern {
    /// In lower case, without a port.
    Exact(String),
    /// What the host must end with: the dot and the domain.
    Below(String),
}

impl HostPattern {
    /// Reads `www.example.com` or `*.example.com`.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        const RULE: &str = "is not a host like www.example.com, nor a pattern like *.example.com";
        let (name, is_pattern) = match text.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (text, false),
        };
        let host = Host::parse(name, 80).ok_or(RULE)?;
        if host.name().len() != name.len() {
            return Err("names a port; leave it out: a pattern holds for all ports".into());
        }
        let name = bare_name(&host.normal()).to_owned();
        let is_host = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
            Some(address) => !is_pattern && address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => name.split('.').all(is_label),
        };
        if !is_host {
            return Err(RULE.into());
        }
        Ok(if is_pattern { Self::Below(format!(".{name}")) } else { Self::Exact(name) })
    }

    pub(crate) fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(host) => name == host,
            Self::Below(end) => name.len() > end.len() && name.ends_with(end.as_str()),
        }
    }

    /// Returns whether this matches all hosts that `other` matches.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        match other {
            Self::Exact(host) => self.matches(host),
            Self::Below(narrow) => {
                matches!(self, Self::Below(wide) if narrow.ends_with(wide.as_str()))
            }
        }
    }
}

impl std::fmt::Display for HostPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exact(host) => f.write_str(host),
            Self::Below(end) => write!(f, "*{end}"),
        }
    }
}

/// Returns the name in a `Host` of the normal form, without port and final dot.
pub(crate) fn name_of(host: &HeaderValue) -> &str {
    let text = host.to_str().unwrap_or_default();
    let end = match text.strip_prefix('[') {
        Some(literal) => literal.find(']').map_or(text.len(), |end| end + 2),
        None => text.find(':').unwrap_or(text.len()),
    };
    bare_name(&text[..end])
}

/// Returns whether a client would name a host so. Of other names, such as `a,b`, the operator means
/// something else.
fn is_label(label: &str) -> bool {
    !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
}

/// Without the dot at the end of an absolute domain name.
fn bare_name(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

/// All origins.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins {
    by_host: Vec<(HostPattern, Server)>,
    default: Option<Server>,
}

impl Origins {
    /// Sets the origin of all hosts that no other origin has.
    pub(crate) fn set_default(&mut self, server: Server) {
        self.default = Some(server);
    }

    pub(crate) fn add(&mut self, host: HostPattern, server: Server) {
        self.by_host.push((host, server));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_host.is_empty() && self.default.is_none()
    }

    pub(crate) fn default_server(&self) -> Option<&Server> {
        self.default.as_ref()
    }

    /// Returns all of them, each once for every host that it has.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Server> {
        self.by_host.iter().map(|(_, server)| server).chain(&self.default)
    }

    /// Returns the origin of a host: the one that names it, else the one with the longest domain
    /// above it, else the default.
    pub(crate) fn of(&self, host: Option<&HeaderValue>) -> Option<&Server> {
        if self.by_host.is_empty() {
            return self.default.as_ref();
        }
        let name = host.map(name_of).unwrap_or_default();
        let length = |pattern: &HostPattern| match pattern {
            HostPattern::Exact(_) => usize::MAX,
            HostPattern::Below(end) => end.len(),
        };
        let matching = self.by_host.iter().filter(|(pattern, _)| pattern.matches(name));
        let found = matching.max_by_key(|(pattern, _)| length(pattern));
        found.map(|(_, server)| server).or(self.default.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &'static str) -> Server {
        Server::new(Scheme::HTTP, Authority::from_static(name)).unwrap()
    }

    fn origins() -> Origins {
        let mut origins = Origins::default();
        for (host, name) in [
            ("*.example.com", "below"),
            ("WWW.example.com", "exact"),
            ("*.img.example.com", "images"),
        ] {
            origins.add(HostPattern::read(host).unwrap(), server(name));
        }
        origins
    }

    fn found<'a>(origins: &'a Origins, host: &'static str) -> Option<&'a str> {
        let host = HeaderValue::from_static(host);
        origins.of(Some(&host)).map(|server| server.authority.as_str())
    }

    #[test]
    fn the_exact_host_wins_then_the_longest_domain_then_the_default() {
        let mut origins = origins();
        for (host, expected) in [
            ("www.example.com", Some("exact")),
            ("www.example.com:8443", Some("exact")),
            ("www.example.com.", Some("exact")),
            ("a.example.com", Some("below")),
            ("a.b.example.com", Some("below")),
            ("a.img.example.com:81", Some("images")),
            ("img.example.com", Some("below")),
            ("example.com", None),
            (".example.com", None),
            ("badexample.com", None),
            ("[::1]:80", None),
            ("", None),
        ] {
            assert_eq!(found(&origins, host), expected, "{host}");
        }
        origins.set_default(server("default"));
        assert_eq!(found(&origins, "example.com"), Some("default"));
        assert_eq!(origins.of(None).map(|server| server.authority.as_str()), Some("default"));
        assert_eq!(origins.all().count(), 4);
    }

    #[test]
    fn what_is_no_host_and_no_pattern_is_refused() {
        for text in ["", "*", "*.", "a.*.b", "a*", "a b", "a:80", "http://a", "*.a:1"] {
            assert!(HostPattern::read(text).is_err(), "{text}");
        }
        assert_eq!(HostPattern::read("[::1]").unwrap(), HostPattern::Exact("[::1]".into()));
    }
}
