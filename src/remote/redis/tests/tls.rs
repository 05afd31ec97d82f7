//! `rediss://`.

use std::path::Path;

use crate::remote::redis::tests::server::{free_port, new_folder};
use crate::remote::redis::tests::*;

/// Starts a server with a certificate of its own, in `folder`.
fn tls_server(folder: &Path) -> (Server, String, String) {
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let (cert, secret) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&secret, made.signing_key.serialize_pem()).unwrap();
    let (cert, secret) = (cert.display().to_string(), secret.display().to_string());
    let port = free_port().to_string();
    let files = ["--tls-cert-file", &cert, "--tls-key-file", &secret, "--tls-ca-cert-file", &cert];
    let tls = ["--tls-port", &port, "--tls-auth-clients", "no"];
    let server = Server::with(&[&files[..], &tls].concat());
    (server, format!("rediss://localhost:{port}"), made.cert.pem())
}

#[tokio::test]
async fn tls_needs_nothing_but_the_scheme_and_a_trusted_certificate() {
    let folder = new_folder();
    let (_server, url, pem) = tls_server(&folder);
    std::fs::remove_dir_all(folder).unwrap();
    let distrusted = Redis::lazy(&url).unwrap();
    assert_eq!(kind(distrusted.open("c").unwrap().probe().await), RemoteErrorKind::Connection);
    assert!(format!("{distrusted:?}").contains("rediss://localhost"));

    let redis = Redis::lazy(&url).unwrap().root_certificates(pem).unwrap();
    let (remote, _notices) = listening(&redis, "c").await;
    fills(&*remote, &Key::from("k")).await;
    let error = Redis::lazy(&url).unwrap().root_certificates("no PEM").unwrap_err();
    assert_eq!(error.fields(), ["root_certificates"]);
}
