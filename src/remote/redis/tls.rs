//! What `rediss://` needs beside the client crate.

#[cfg(feature = "redis-tls-rustls")]
pub(super) use crate::remote::redis::tls::rustls_needs::{choose_cryptography, system_roots};

/// The system's own library brings its cryptography and its certificates.
#[cfg(not(feature = "redis-tls-rustls"))]
pub(super) const fn choose_cryptography() {}

#[cfg(not(feature = "redis-tls-rustls"))]
pub(super) const fn system_roots() -> Option<&'static [u8]> {
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
