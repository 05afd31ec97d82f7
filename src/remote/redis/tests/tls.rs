//! `rediss://`.

use std::path::Path;

use crate::remote::redis::tests::server::{free_port, has_tls, new_folder};
use crate::remote::redis::tests::*;

/// Starts a server with a certificate of its own, in `folder`, that asks clients for one
/// (`yes`), or does not (`no`). It trusts whom it trusts itself by.
fn tls_server(folder: &Path, asks: &str) -> (Server, String, Certificate) {
    let own = certificate();
    let (cert, secret) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&cert, own.pem()).unwrap();
    std::fs::write(&secret, own.key()).unwrap();
    let (cert, secret) = (cert.display().to_string(), secret.display().to_string());
    let port = free_port().to_string();
    let files = ["--tls-cert-file", &cert, "--tls-key-file", &secret, "--tls-ca-cert-file", &cert];
    let tls = ["--tls-port", &port, "--tls-auth-clients", asks];
    let server = Server::with(&[&files[..], &tls].concat());
    (server, format!("rediss://localhost:{port}"), own)
}

struct Certificate(rcgen::CertifiedKey<rcgen::KeyPair>);

impl Certificate {
    fn pem(&self) -> String {
        self.0.cert.pem()
    }

    fn key(&self) -> String {
        self.0.signing_key.serialize_pem()
    }
}

fn certificate() -> Certificate {
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    Certificate(rcgen::generate_simple_self_signed(names).unwrap())
}

#[tokio::test]
async fn tls_needs_nothing_but_the_scheme_and_a_trusted_certificate() {
    if !has_tls() {
        println!(
            "not run: tls_needs_nothing_but_the_scheme_and_a_trusted_certificate: the server has no TLS"
        );
        return;
    }
    let folder = new_folder();
    let (_server, url, own) = tls_server(&folder, "no");
    std::fs::remove_dir_all(folder).unwrap();
    let distrusted = Redis::lazy(&url).unwrap();
    assert_eq!(
        kind(distrusted.open("c").unwrap().probe(Shard::ONLY).await),
        RemoteErrorKind::Connection
    );
    assert!(format!("{distrusted:?}").contains("rediss://localhost"));

    let redis = Redis::lazy(&url).unwrap().root_certificates(own.pem()).unwrap();
    let (remote, _notices) = listening(&redis, "c").await;
    fills(&*remote, &Key::from("k")).await;
    let error = Redis::lazy(&url).unwrap().root_certificates("no PEM").unwrap_err();
    assert_eq!(error.fields(), ["root_certificates"]);
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_gets_ours() {
    if !has_tls() {
        println!("not run: a_server_that_asks_for_a_certificate_gets_ours: the server has no TLS");
        return;
    }
    let folder = new_folder();
    let (_server, url, own) = tls_server(&folder, "yes");
    std::fs::remove_dir_all(folder).unwrap();
    let trusting = || Redis::lazy(&url).unwrap().root_certificates(own.pem()).unwrap();
    let refused = trusting().open("c").unwrap().probe(Shard::ONLY).await;
    assert_eq!(kind(refused), RemoteErrorKind::Connection, "without one");
    let other = certificate();
    let stranger = trusting().client_certificate(other.pem(), other.key()).unwrap();
    let refused = stranger.open("c").unwrap().probe(Shard::ONLY).await;
    assert_eq!(kind(refused), RemoteErrorKind::Connection, "with one of an unknown authority");

    let known = trusting().client_certificate(own.pem(), own.key()).unwrap();
    let (remote, _notices) = listening(&known, "c").await;
    fills(&*remote, &Key::from("k")).await;
}

#[test]
fn a_client_certificate_that_is_none_is_refused_without_being_quoted() {
    let own = certificate();
    let redis = || Redis::lazy("rediss://localhost").unwrap();
    for (chain, key, problem) in [
        ("secret".to_owned(), own.key(), "no certificate"),
        (own.pem(), "secret".to_owned(), "no secret key"),
        (own.pem(), own.pem(), "no secret key"),
    ] {
        let error = redis().client_certificate(chain, key).unwrap_err();
        assert_eq!(error.fields(), ["client_certificate"]);
        assert!(error.to_string().contains(problem) && !error.to_string().contains("secret\""));
    }
    let shown = format!("{:?}", redis().client_certificate(own.pem(), own.key()).unwrap());
    assert_eq!(
        shown,
        r#"Redis { servers: ["rediss://localhost:6379"], namespace: "stampede", .. }"#
    );
}
