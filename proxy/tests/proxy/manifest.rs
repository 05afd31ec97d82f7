//! What a proxy leaves to the next process, which loads it before it listens.

use rustix::process::Signal;

use crate::kit::proxy::scripted::{Scripted, fresh};
use crate::kit::proxy::{Origin, Proxy};

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: shop\r\nAuthorization: Basic eDp5\r\n\r\n")
}

async fn end(mut proxy: Proxy) {
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.ended().await, Some(0));
}

#[tokio::test]
async fn the_next_process_has_the_pages_before_it_listens_and_asks_without_credentials() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("manifest");
    let flags = ["--manifest", file.to_str().unwrap(), "--ignore-query", "utm_*"];
    let mut url = String::new();
    let start = |origin: &str| {
        origin.clone_into(&mut url);
        Proxy::start_at(origin, &flags)
    };
    let (origin, proxy) = Scripted::start_behind(start, |_| (fresh(), "page".into())).await;
    let targets = ["/a", "/b?x=%20y", "/c?utm_source=mail"];
    for target in targets {
        assert_eq!(proxy.ask(get(target)).await.status(), 200);
    }
    end(proxy).await;
    let of_clients = origin.hits();
    assert_eq!(of_clients, 3);
    // A thread of its own: it listens when the origin has answered.
    let start = tokio::task::spawn_blocking(move || {
        let file = file.to_str().unwrap();
        Proxy::start_at(&url, &["--manifest", file, "--ignore-query", "utm_*"])
    });
    let proxy = start.await.unwrap();
    let heads = origin.heads().split_off(of_clients);
    assert_eq!(heads.len(), 3, "{heads:?}");
    for head in heads {
        assert_eq!((head.get("host"), head.get("authorization")), (Some("shop"), None));
    }
    for target in targets {
        let reply = proxy.ask(get(target)).await;
        assert_eq!((reply.status(), &*reply.body), (200, "page"));
    }
    assert_eq!(origin.hits(), 6);
    end(proxy).await;
}

#[tokio::test]
async fn a_file_that_is_no_manifest_of_the_proxy_is_reported_and_neither_loaded_nor_overwritten() {
    let origin = Origin::bind().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("manifest");
    for (text, reason) in [
        ("tower-stampede-manifest-1 web 0\n", "is of the cache `web`, and not of `proxy`"),
        ("tower-stampede-manifest-9 proxy 0\n", "is of the kind `tower-stampede-manifest-9`"),
        ("tower-stampede-manifest-1 proxy 2\n", "is not whole"),
        ("root:x:0:0:root:/root:/bin/bash\n", "is no manifest"),
    ] {
        std::fs::write(&file, text).unwrap();
        let proxy = Proxy::start_recorded(&origin, &["--manifest", file.to_str().unwrap()]);
        let log = proxy.end_and_read_stderr().await;
        assert!(log.contains(reason) && log.contains("nothing is loaded"), "{log}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    }
}

#[tokio::test]
async fn pages_that_cannot_be_loaded_do_not_hold_the_start_up() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("manifest");
    let flags = ["--manifest", file.to_str().unwrap()];
    let (_origin, proxy) = Scripted::start(&flags, |_| (fresh(), "page".into())).await;
    assert_eq!(proxy.ask(get("/a")).await.status(), 200);
    end(proxy).await;
    let gone = Origin::bind().await;
    let url = gone.url();
    let _port = gone.refuse();
    let proxy = Proxy::start_with(&["--origin", &url, "--manifest", file.to_str().unwrap()]);
    let log = proxy.end_and_read_stderr().await;
    assert!(log.contains("--manifest: loaded 0 of 1 URLs"), "{log}");
}

#[test]
fn a_file_in_a_folder_that_is_missing_is_refused() {
    let output = Proxy::refuse(&["--origin", "http://a", "--manifest", "/no/such/folder/manifest"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("the folder of the file is missing"));
}
