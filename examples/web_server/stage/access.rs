//! Who may start and kill processes: the page of this server, in a browser on this machine.
//!
//! Four conditions. The server listens on a loopback address, so no other machine connects. `Host`
//! names a loopback address, so no name of a stranger that resolves to this machine passes (DNS
//! rebinding). A browser that says where a request comes from says: from the page itself. And the
//! request shows a token that stands in the page alone, where other sites cannot read it. Another
//! user of the same machine can read the page, and may then do what its buttons do.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderName, StatusCode, header};

use super::Refusal;

/// The field that shows the token. No form can send it, and a script of another site only after
/// a preflight request, which this server does not permit.
const TOKEN: HeaderName = HeaderName::from_static("x-page-token");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// What a request for these routes must show.
#[derive(Debug)]
pub(crate) struct Access {
    token: String,
    port: u16,
}

impl Access {
    /// `None` where the server can be reached from other machines.
    pub(crate) fn new(listening: SocketAddr) -> Option<Self> {
        let is_local = listening.ip().is_loopback();
        is_local.then(|| Self { token: random_token(), port: listening.port() })
    }

    /// Returns the token, for a page that is asked for under a name of this machine.
    pub(crate) fn token_for(&self, headers: &HeaderMap) -> Option<&str> {
        self.has_local_host(headers).then_some(self.token.as_str())
    }

    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let refuse = |reason: &str| Err((StatusCode::FORBIDDEN, format!("{reason}\n")));
        if !self.has_local_host(headers) {
            return refuse("`Host` must name a loopback address and the port of this server");
        }
        let host = text(headers, &header::HOST).unwrap_or_default();
        let is_own = |origin: &str| origin.strip_prefix("http://") == Some(host);
        if text(headers, &header::ORIGIN).is_some_and(|origin| !is_own(origin)) {
            return refuse("`Origin` must be this server");
        }
        if text(headers, &FETCH_SITE).is_some_and(|site| site != "same-origin") {
            return refuse("`Sec-Fetch-Site` must be `same-origin`");
        }
        if text(headers, &TOKEN) != Some(self.token.as_str()) {
            return refuse("`X-Page-Token` must be the token of the page; load the page again");
        }
        Ok(())
    }

    fn has_local_host(&self, headers: &HeaderMap) -> bool {
        let Some(host) = text(headers, &header::HOST) else { return false };
        let name = match host.strip_suffix(&format!(":{}", self.port)) {
            Some(name) => name,
            // A browser leaves out the port of the scheme.
            None if self.port == 80 => host,
            None => return false,
        };
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        let is_loopback = |ip: IpAddr| ip.is_loopback();
        name == "localhost" || address.unwrap_or(name).parse().is_ok_and(is_loopback)
    }
}

/// Refuses what a page of another site sends. Browsers say where a request comes from; other
/// clients say nothing, and are let through. `Sec-Fetch-Site` decides where it is there: a proxy in
/// front may give `Host` another name than `Origin` has.
pub(crate) fn check_site(headers: &HeaderMap, authority: Option<&str>) -> Result<(), Refusal> {
    let refuse = |reason: &str| Err((StatusCode::FORBIDDEN, format!("{reason}\n")));
    if let Some(site) = text(headers, &FETCH_SITE) {
        let is_own = site == "same-origin";
        return if is_own { Ok(()) } else { refuse("`Sec-Fetch-Site` must be `same-origin`") };
    }
    // HTTP/2 names the host in the URI.
    let host = text(headers, &header::HOST).or(authority).unwrap_or_default();
    let is_own = |origin: &str| origin.split_once("://").is_some_and(|(_, name)| name == host);
    if text(headers, &header::ORIGIN).is_some_and(|origin| !is_own(origin)) {
        return refuse("`Origin` must be this server");
    }
    Ok(())
}

/// Returns the only value of a field. One that cannot be read, and several, become a text that
/// no check accepts.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    Some(if values.next().is_some() { "" } else { value.to_str().unwrap_or_default() })
}

/// The hasher of the standard library is keyed by the system's source of random numbers; its
/// output under an unknown key cannot be told in advance.
fn random_token() -> String {
    let keys = RandomState::new();
    let part = |n: u8| {
        let mut hasher = keys.build_hasher();
        hasher.write_u8(n);
        hasher.finish()
    };
    format!("{:016x}{:016x}", part(0), part(1))
}
