//! TLS, to clients and to origins.

use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::settings::TlsFiles;

/// What the listener speaks besides TLS, the better first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The certificate of the listener, which a reload replaces.
pub(crate) struct Listener(RwLock<TlsAcceptor>);

impl Listener {
    pub(crate) fn new(config: Arc<ServerConfig>) -> Self {
        Self(RwLock::new(config.into()))
    }

    /// Uses another certificate for the connections that come from now on.
    pub(crate) fn replace(&self, config: Arc<ServerConfig>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config.into();
    }

    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
    ) -> io::Result<server::TlsStream<TcpStream>> {
        let acceptor = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        acceptor.accept(stream).await
    }
}

/// Reads the certificate and the key of the listener. The error names the file, and what is
/// wrong with it.
pub(crate) fn server_config(files: &TlsFiles) -> Result<Arc<ServerConfig>, String> {
    let chain = certificates(&files.cert)?;
    let name = files.key.display();
    let text = std::fs::read(&files.key).map_err(|error| format!("{name}: {error}"))?;
    let key = PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        if is_encrypted(&text) {
            return format!(
                "{name}: the key has a passphrase, and the proxy cannot ask for it; write the key \
                 without one: openssl pkey -in {name} -out NEW"
            );
        }
        format!("{name}: {}", read_error(error, "key"))
    })?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth();
    let mut config = builder.with_single_cert(chain, key).map_err(|error| {
        format!("{} and {}: {error}", files.cert.display(), files.key.display())
    })?;
    config.alpn_protocols = PROTOCOLS.map(Vec::from).to_vec();
    Ok(Arc::new(config))
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let name = file.display();
    let read = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| format!("{name}: {}", read_error(error, "certificate")))?;
    if read.is_empty() {
        return Err(format!("{name}: has no certificate; it must be PEM"));
    }
    Ok(read)
}

/// Returns whether a key has a passphrase: as PKCS #8, or as the older formats say it.
fn is_encrypted(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    text.contains("BEGIN ENCRYPTED PRIVATE KEY") || text.contains("Proc-Type: 4,ENCRYPTED")
}

fn read_error(error: rustls::pki_types::pem::Error, what: &str) -> String {
    use rustls::pki_types::pem::Error;
    match error {
        Error::NoItemsFound => format!("has no {what}; it must be PEM"),
        Error::Io(error) => error.to_string(),
        error => format!("{error}; it must be PEM"),
    }
}

/// Trusts the authorities in the file, or those of the system.
pub(crate) fn client_config(authorities: Option<&Path>) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    match authorities {
        Some(file) => {
            for certificate in certificates(file)? {
                roots.add(certificate).map_err(|error| format!("{}: {error}", file.display()))?;
            }
        }
        None => {
            let system = rustls_native_certs::load_native_certs();
            let (_, refused) = roots.add_parsable_certificates(system.certs);
            if roots.is_empty() {
                let first = system.errors.first().map(|error| format!(" ({error})"));
                return Err(format!(
                    "the system has no certificates of authorities{}{}; name a file with \
                     --origin-ca",
                    if refused > 0 { " that can be read" } else { "" },
                    first.unwrap_or_default()
                ));
            }
        }
    }
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    // Origins are asked over HTTP/1.1.
    config.alpn_protocols = vec![PROTOCOLS[1].to_vec()];
    Ok(Arc::new(config))
}

/// Speaks TLS to an origin, whose certificate must be for this host.
pub(crate) async fn connect(
    config: &Arc<ClientConfig>,
    host: &str,
    stream: TcpStream,
) -> io::Result<client::TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    TlsConnector::from(Arc::clone(config)).connect(name, stream).await
}
