//! TLS of the proxy, to clients and to origins.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::kit::proxy::scripted::Scripted;
use crate::kit::proxy::{Head, Proxy, soon};

/// A certificate for `localhost` and its key, as files, and as what signs itself.
struct Certificate {
    folder: TempDir,
    der: CertificateDer<'static>,
    key: Vec<u8>,
}

impl Certificate {
    fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        let key = made.signing_key.serialize_der();
        Self { folder, der: made.cert.der().clone(), key }
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// The flags of a listener with it.
    fn flags(&self) -> Vec<String> {
        let (cert, key) = (self.file("cert.pem"), self.file("key.pem"));
        vec!["--tls-cert".into(), cert, "--tls-key".into(), key]
    }

    /// A client that trusts it and offers these protocols.
    async fn connect(&self, proxy: &Proxy, protocols: &[&[u8]]) -> TlsStream<TcpStream> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.der.clone()).unwrap();
        let builder = rustls::ClientConfig::builder_with_provider(provider());
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let stream = TcpStream::connect(proxy.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
        soon("a handshake", connecting).await.unwrap()
    }

    /// An origin with it, which answers each connection once with its first line.
    async fn origin(&self) -> u16 {
        let builder = rustls::ServerConfig::builder_with_provider(provider());
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let key = PrivateKeyDer::try_from(self.key.clone()).unwrap();
        let config = builder.with_no_client_auth().with_single_cert(vec![self.der.clone()], key);
        let acceptor = TlsAcceptor::from(Arc::new(config.unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                // A proxy that does not trust it ends the handshake.
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                        break;
                    }
                }
                let line = String::from_utf8_lossy(&head).lines().next().unwrap_or("").to_owned();
                let length = line.len();
                let fields = format!("Content-Length: {length}\r\nConnection: close\r\n");
                let answer = format!("HTTP/1.1 200 OK\r\n{fields}\r\n{line}");
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        });
        port
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A page with the fields by which the origin knows the scheme.
fn scheme(head: &Head) -> (String, String) {
    let seen = [head.get("x-forwarded-proto"), head.get("forwarded"), head.get("host")];
    ("Cache-Control: max-age=60\r\n".into(), seen.map(Option::unwrap_or_default).join(" "))
}

async fn text(response: Response<Incoming>) -> String {
    let body = soon("a body", response.into_body().collect()).await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test]
async fn a_client_speaks_http_2_or_1_over_tls_and_the_origin_learns_of_https() {
    let certificate = Certificate::new();
    let flags = certificate.flags();
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let (origin, proxy) = Scripted::start(&flags, scheme).await;

    let stream = certificate.connect(&proxy, &[b"h2", b"http/1.1"]).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.unwrap();
    tokio::spawn(connection);
    let request = Request::get("https://localhost:443/").body(Empty::<Bytes>::new()).unwrap();
    let response = soon("a response", sender.send_request(request)).await.unwrap();
    assert_eq!(response.version(), Version::HTTP_2);
    let seen = text(response).await;
    assert!(seen.starts_with("https for=127.0.0.1;host=\"localhost\";proto=https"), "{seen}");
    assert!(seen.ends_with(" localhost"), "{seen}");

    let stream = certificate.connect(&proxy, &[b"http/1.1"]).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("/").header("host", "localhost").body(Empty::<Bytes>::new());
    let response = soon("a response", sender.send_request(request.unwrap())).await.unwrap();
    assert_eq!(text(response).await, seen, "both have one key");
    assert_eq!(origin.hits(), 1);
}

#[tokio::test]
async fn a_client_that_does_not_finish_the_handshake_is_cut_off() {
    let certificate = Certificate::new();
    let flags = certificate.flags();
    let mut flags: Vec<_> = flags.iter().map(String::as_str).collect();
    flags.extend(["--header-timeout-ms", "300", "--max-connections", "1"]);
    let (_origin, proxy) = Scripted::start(&flags, scheme).await;
    // Nothing; a part of a handshake; what is no TLS at all.
    for begun in [&b""[..], b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"] {
        let mut client = proxy.connect().await;
        client.send(begun).await;
        client.until_end().await;
    }
    // Its place is free again.
    let mut stream = certificate.connect(&proxy, &[b"http/1.1"]).await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut status = [0; 12];
    soon("a response", stream.read_exact(&mut status)).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    // The head of a second request has its time too.
    let mut rest = Vec::new();
    stream.write_all(b"GET / HT").await.unwrap();
    let _ = soon("the end", stream.read_to_end(&mut rest)).await;
}

#[tokio::test]
async fn an_origin_with_https_is_asked_over_tls_and_must_show_a_certificate_that_is_trusted() {
    let certificate = Certificate::new();
    let port = certificate.origin().await;
    let origin = format!("https://localhost:{port}");
    let ca = certificate.file("cert.pem");
    let proxy = Proxy::start_with(&["--origin", &origin, "--origin-ca", &ca]);
    let reply = proxy.ask("GET /x HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert_eq!((reply.status(), &*reply.body), (200, "GET /x HTTP/1.1"));

    let other = Certificate::new();
    let ca = other.file("cert.pem");
    let proxy = Proxy::start_with(&["--origin", &origin, "--origin-ca", &ca]);
    let reply = proxy.ask("GET /x HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert_eq!(reply.status(), 502);
    assert!(reply.head.get("cache-status").unwrap().ends_with("detail=not-reached"));

    // The certificate is for a name, not for this address.
    let ca = certificate.file("cert.pem");
    let origin = format!("https://127.0.0.1:{port}");
    let proxy = Proxy::start_with(&["--origin", &origin, "--origin-ca", &ca]);
    assert_eq!(proxy.ask("GET /x HTTP/1.1\r\nHost: a\r\n\r\n").await.status(), 502);
}

#[tokio::test]
async fn an_idle_connection_over_tls_ends_like_any_other() {
    let certificate = Certificate::new();
    let flags = certificate.flags();
    let mut flags: Vec<_> = flags.iter().map(String::as_str).collect();
    flags.extend(["--idle-timeout-ms", "300"]);
    let (_origin, proxy) = Scripted::start(&flags, scheme).await;
    let mut stream = certificate.connect(&proxy, &[]).await;
    let mut rest = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(120), stream.read_to_end(&mut rest)).await;
    assert!(end.is_ok() && rest.is_empty(), "it ends without a response");
}

#[test]
fn a_key_with_a_passphrase_is_refused_with_a_remedy() {
    let certificate = Certificate::new();
    let block = |kind: &str, rest: &str| {
        format!("-----BEGIN {kind}-----\n{rest}AAAA\n-----END {kind}-----\n")
    };
    for key in [
        block("ENCRYPTED PRIVATE KEY", ""),
        block("RSA PRIVATE KEY", "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\n"),
    ] {
        std::fs::write(certificate.file("key.pem"), key).unwrap();
        let flags = certificate.flags();
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        let check = ["--origin", "http://a", "--check-config"];
        let refused = Proxy::refuse(&[&check, &flags[..]].concat());
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains("has a passphrase") && said.contains("openssl pkey -in"), "{said}");
    }
}

#[tokio::test]
async fn a_handshake_that_never_ends_does_not_hold_the_end_up() {
    let certificate = Certificate::new();
    let flags = certificate.flags();
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let late = ["--drain-timeout-ms", "600000", "--header-timeout-ms", "600000"];
    let (_origin, mut proxy) =
        Scripted::start(&[&flags[..], &late].concat(), |_| (String::new(), "page".into())).await;
    let _idle = TcpStream::connect(proxy.address).await.unwrap();
    // It has accepted the first one when it serves the second.
    drop(certificate.connect(&proxy, &[b"http/1.1"]).await);
    proxy.signal(rustix::process::Signal::TERM);
    assert_eq!(proxy.ended().await, Some(0));
}
