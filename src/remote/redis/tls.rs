//! What `rediss://` needs beside the client crate.

#[cfg(any(feature = "redis-tls-rustls", feature = "redis-tls-native"))]
use redis::{Client, ClientTlsConfig, TlsCertificates};
use redis::{ConnectionInfo, RedisError};

#[cfg(any(feature = "redis-tls-rustls", feature = "redis-tls-native"))]
use crate::error::ConfigError;
#[cfg(feature = "redis-tls-rustls")]
pub(super) use crate::remote::redis::tls::rustls_needs::choose_cryptography;
#[cfg(feature = "redis-tls-rustls")]
use crate::remote::redis::tls::rustls_needs::system_roots;

/// The certificates that a connection shows and trusts, in PEM.
#[derive(Clone, Default)]
pub(super) struct Certificates {
    /// Those that are trusted instead of the system's.
    #[cfg(any(feature = "redis-tls-rustls", feature = "redis-tls-native"))]
    roots: Option<Vec<u8>>,
    /// Our own chain, and its secret key.
    #[cfg(any(feature = "redis-tls-rustls", feature = "redis-tls-native"))]
    own: Option<ClientTlsConfig>,
}

#[cfg(any(feature = "redis-tls-rustls", feature = "redis-tls-native"))]
impl Certificates {
    pub(super) fn with_roots(mut self, pem: &[u8]) -> Result<Self, ConfigError> {
        self.roots = Some(pem.into());
        if !has_certificate(pem) || !self.are_read() {
            return Err(ConfigError::new(&["root_certificates"], "is no certificate in PEM"));
        }
        Ok(self)
    }

    pub(super) fn with_own(mut self, chain: &[u8], key: &[u8]) -> Result<Self, ConfigError> {
        let refuse = |reason| Err(ConfigError::new(&["client_certificate"], reason));
        self.own = Some(ClientTlsConfig { client_cert: chain.into(), client_key: key.into() });
        if !has_certificate(chain) {
            return refuse("has no certificate in PEM as its first argument");
        }
        if !self.are_read() {
            return refuse("has no secret key in PEM (PKCS #8) as its second argument");
        }
        Ok(self)
    }

    /// Returns whether the TLS library can read all of them.
    fn are_read(&self) -> bool {
        let any = "rediss://host".parse::<ConnectionInfo>();
        any.and_then(|info| self.apply(info)).is_ok()
    }

    /// Makes connections to `info` show and trust these.
    pub(super) fn apply(&self, info: ConnectionInfo) -> Result<ConnectionInfo, RedisError> {
        let root_cert = self.roots.clone().or_else(|| system_roots().map(<[u8]>::to_vec));
        let client_tls = self.own.clone();
        if root_cert.is_none() && client_tls.is_none() {
            return Ok(info);
        }
        let certificates = TlsCertificates { client_tls, root_cert };
        Ok(Client::build_with_tls(info, certificates)?.get_connection_info().clone())
    }
}

#[cfg(any(feature = "redis-tls-rustls", feature = "redis-tls-native"))]
fn has_certificate(pem: &[u8]) -> bool {
    const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
    pem.windows(BEGIN.len()).any(|window| window == BEGIN)
}

#[cfg(not(any(feature = "redis-tls-rustls", feature = "redis-tls-native")))]
impl Certificates {
    #[expect(clippy::unused_self, reason = "as with a TLS library")]
    pub(super) const fn apply(&self, info: ConnectionInfo) -> Result<ConnectionInfo, RedisError> {
        Ok(info)
    }
}

/// The system's own library brings its cryptography and its certificates.
#[cfg(not(feature = "redis-tls-rustls"))]
pub(super) const fn choose_cryptography() {}

#[cfg(all(feature = "redis-tls-native", not(feature = "redis-tls-rustls")))]
const fn system_roots() -> Option<&'static [u8]> {
    None
}

#[cfg(feature = "redis-tls-rustls")]
mod rustls_needs {
    use std::sync::OnceLock;

    use base64::Engine;
    use rustls::crypto::{CryptoProvider, ring};

    /// rustls takes what the process has chosen, and panics if that is
    /// nothing: then it is chosen here. This is late, when the first
    /// connection is opened, so that an application can be first.
    pub(in crate::remote::redis) fn choose_cryptography() {
        if CryptoProvider::get_default().is_none() {
            // An error says that another thread was faster.
            let _ = ring::default_provider().install_default();
        }
    }

    /// Returns the certificates that the system trusts, in PEM, read once. The
    /// client would read them for every connection, fail for a single bad one,
    /// and read none where it is built with both TLS libraries.
    pub(in crate::remote::redis) fn system_roots() -> Option<&'static [u8]> {
        static ROOTS: OnceLock<Vec<u8>> = OnceLock::new();
        let roots = ROOTS.get_or_init(|| {
            let found = rustls_native_certs::load_native_certs();
            found.certs.iter().flat_map(|cert| to_pem(cert).into_bytes()).collect()
        });
        Some(roots)
    }

    fn to_pem(der: &[u8]) -> String {
        // RFC 7468: 64 digits to a line.
        let line = |bytes| base64::engine::general_purpose::STANDARD.encode(bytes) + "\n";
        let lines: String = der.chunks(48).map(line).collect();
        format!("-----BEGIN CERTIFICATE-----\n{lines}-----END CERTIFICATE-----\n")
    }
}
