//! `rediss://`.

use std::path::Path;

use crate::remote::redis::tests::server::{free_port, has_tls, new_folder};
use crate::remote::redis::tests::*;

/// Starts a server with the certificate [`OWN`], in `folder`, that asks clients for one
/// (`yes`), or does not (`no`). It trusts clients with the same certificate.
fn tls_server(folder: &Path, asks: &str) -> (Server, String) {
    let (cert, secret) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&cert, OWN.pem).unwrap();
    std::fs::write(&secret, OWN.key).unwrap();
    let (cert, secret) = (cert.display().to_string(), secret.display().to_string());
    let port = free_port().to_string();
    let files = ["--tls-cert-file", &cert, "--tls-key-file", &secret, "--tls-ca-cert-file", &cert];
    let tls = ["--tls-port", &port, "--tls-auth-clients", asks];
    let server = Server::with(&[&files[..], &tls].concat());
    (server, format!("rediss://localhost:{port}"))
}

/// A certificate for `localhost` and `127.0.0.1`, signed by itself, that does not expire before 4096.
/// `rcgen::generate_simple_self_signed` made both. The keys protect nothing.
#[derive(Clone, Copy)]
struct Certificate {
    pem: &'static str,
    key: &'static str,
}

const OWN: Certificate = Certificate {
    pem: include_str!("certificates/localhost.pem"),
    key: include_str!("certificates/localhost.key"),
};

const STRANGER: Certificate = Certificate {
    pem: include_str!("certificates/stranger.pem"),
    key: include_str!("certificates/stranger.key"),
};

#[tokio::test]
async fn tls_needs_nothing_but_the_scheme_and_a_trusted_certificate() {
    if !has_tls() {
        println!(
            "not run: tls_needs_nothing_but_the_scheme_and_a_trusted_certificate: the server has no TLS"
        );
        return;
    }
    let folder = new_folder();
    let (_server, url) = tls_server(&folder, "no");
    std::fs::remove_dir_all(folder).unwrap();
    let distrusted = Redis::lazy(&url).unwrap().namespace("stampede");
    assert_eq!(
        kind(distrusted.open("c").unwrap().probe(Shard::ONLY).await),
        RemoteErrorKind::Connection
    );
    assert!(format!("{distrusted:?}").contains("rediss://localhost"));

    let redis =
        Redis::lazy(&url).unwrap().namespace("stampede").root_certificates(OWN.pem).unwrap();
    let (remote, _notices) = listening(&redis, "c").await;
    fills(&*remote, &Key::from("k")).await;
    let error =
        Redis::lazy(&url).unwrap().namespace("stampede").root_certificates("no PEM").unwrap_err();
    assert_eq!(error.fields(), ["root_certificates"]);
}

#[tokio::test]
async fn the_certificates_of_an_applications_client_are_used() {
    use redis::{ClientTlsConfig, TlsCertificates};

    if !has_tls() {
        println!("not run: the_certificates_of_an_applications_client_are_used: no TLS");
        return;
    }
    let folder = new_folder();
    let (_server, url) = tls_server(&folder, "yes");
    std::fs::remove_dir_all(folder).unwrap();
    crate::remote::redis::tls::choose_cryptography();
    let (client_cert, client_key) = (OWN.pem.into(), OWN.key.into());
    let own = TlsCertificates {
        client_tls: Some(ClientTlsConfig { client_cert, client_key }),
        root_cert: Some(OWN.pem.into()),
    };
    let client = redis::Client::build_with_tls(&*url, own).unwrap();
    let (remote, _notices) = listening(&Redis::from_client(&client).namespace("shop"), "c").await;
    fills(&*remote, &Key::from("k")).await;
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_gets_ours() {
    if !has_tls() {
        println!("not run: a_server_that_asks_for_a_certificate_gets_ours: the server has no TLS");
        return;
    }
    let folder = new_folder();
    let (_server, url) = tls_server(&folder, "yes");
    std::fs::remove_dir_all(folder).unwrap();
    let trusting =
        || Redis::lazy(&url).unwrap().namespace("stampede").root_certificates(OWN.pem).unwrap();
    let refused = trusting().open("c").unwrap().probe(Shard::ONLY).await;
    assert_eq!(kind(refused), RemoteErrorKind::Connection, "without one");
    let stranger = trusting().client_certificate(STRANGER.pem, STRANGER.key).unwrap();
    let refused = stranger.open("c").unwrap().probe(Shard::ONLY).await;
    assert_eq!(kind(refused), RemoteErrorKind::Connection, "with one of an unknown authority");

    let known = trusting().client_certificate(OWN.pem, OWN.key).unwrap();
    let (remote, _notices) = listening(&known, "c").await;
    fills(&*remote, &Key::from("k")).await;
}

#[test]
fn a_client_certificate_that_is_none_is_refused_without_being_quoted() {
    let redis = || Redis::lazy("rediss://localhost").unwrap().namespace("stampede");
    for (chain, key, problem) in [
        ("secret", OWN.key, "no certificate"),
        (OWN.pem, "secret", "no secret key"),
        (OWN.pem, OWN.pem, "no secret key"),
    ] {
        let error = redis().client_certificate(chain, key).unwrap_err();
        assert_eq!(error.fields(), ["client_certificate"]);
        assert!(error.to_string().contains(problem) && !error.to_string().contains("secret\""));
    }
    let shown = format!("{:?}", redis().client_certificate(OWN.pem, OWN.key).unwrap());
    assert_eq!(shown, r#"Redis { servers: "rediss://localhost:6379", namespace: "stampede", .. }"#);
}
