//! What `rediss://` needs beside the client crate.

#[cfg(feature = "redis-tls-rustls")]
pub(super) use self::rustls_needs::{choose_cryptography, system_roots};

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

    use rustls::crypto::{CryptoProvider, ring};

    /// rustls takes what the process has chosen, and panics if that is
    /// nothing: then it is chosen here. This is late, when the first
    /// connection is opened, so that an application can be first.
    pub(in super::super) fn choose_cryptography() {
        if CryptoProvider::get_default().is_none() {
            // An error says that another thread was faster.
            let _ = ring::default_provider().install_default();
        }
    }

    /// Returns the certificates that the system trusts, in PEM, read once. The
    /// client would read them for every connection, fail for a single bad one,
    /// and read none where it is built with both TLS libraries.
    pub(in super::super) fn system_roots() -> Option<&'static [u8]> {
        static ROOTS: OnceLock<Vec<u8>> = OnceLock::new();
        let roots = ROOTS.get_or_init(|| {
            let found = rustls_native_certs::load_native_certs();
            found.certs.iter().flat_map(|cert| to_pem(cert)).collect()
        });
        Some(roots)
    }

    fn to_pem(der: &[u8]) -> Vec<u8> {
        let mut pem = b"-----BEGIN CERTIFICATE-----\n".to_vec();
        for line in der.chunks(48) {
            pem.extend(line.chunks(3).flat_map(base64));
            pem.push(b'\n');
        }
        pem.extend_from_slice(b"-----END CERTIFICATE-----\n");
        pem
    }

    fn base64(three: &[u8]) -> [u8; 4] {
        const DIGITS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let byte = |index| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let digit = |index: usize| match index {
            index if index > three.len() => b'=',
            index => DIGITS[(bits >> (18 - 6 * index)) as usize & 63],
        };
        [0, 1, 2, 3].map(digit)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn base64_is_that_of_the_standard() {
            let encode = |bytes: &[u8]| {
                let digits = bytes.chunks(3).flat_map(base64).collect();
                String::from_utf8(digits).unwrap()
            };
            for (bytes, text) in [
                ("f", "Zg=="),
                ("fo", "Zm8="),
                ("foo", "Zm9v"),
                ("foob", "Zm9vYg=="),
                ("foobar", "Zm9vYmFy"),
            ] {
                assert_eq!(encode(bytes.as_bytes()), text);
            }
            assert_eq!(encode(&[0xff, 0xfe, 0xfd]), "//79");
        }
    }
}
