//! `Vary` and the cache key of the proxy see every field that the
//! origin sees.

use std::net::Ipv4Addr;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};

use crate::kit::proxy::scripted::{Scripted, fresh, varying};
use crate::kit::proxy::{Head, Proxy, soon};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// A GET of `/` with further field lines.
fn get_with(fields: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

/// The values of a field as the origin sees them, in one line.
fn value_of(head: &Head, name: &str) -> String {
    format!("<{}>", head.all(name).join("|"))
}

/// Starts an origin whose page shows one field and varies by it.
async fn origin_that_varies_by(name: &'static str, flags: &[&str]) -> (Scripted, Proxy) {
    Scripted::start(flags, move |head| (varying(name), value_of(head, name))).await
}

async fn ask_from(proxy: &Proxy, address: [u8; 4], request: &str) -> String {
    let mut client = proxy.connect_from(Ipv4Addr::from(address)).await;
    client.send(request).await;
    client.reply().await.body
}

// ===== Vary =====

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_page_that_varies_by_the_clients_address_is_not_shared_between_addresses() {
    for name in ["x-forwarded-for", "forwarded"] {
        let (origin, proxy) = origin_that_varies_by(name, &[]).await;
        for _ in 0..2 {
            for address in ["127.0.0.1", "127.0.0.2"] {
                let from = address.parse::<Ipv4Addr>().unwrap().octets();
                let page = ask_from(&proxy, from, GET).await;
                assert!(page.contains(address), "{name}: {address} got {page}");
            }
        }
        assert_eq!(origin.hits(), 2, "{name}: the second round is answered from the store");
    }
}

#[tokio::test]
async fn a_page_that_varies_by_via_is_not_shared_between_http_versions() {
    let (origin, proxy) = origin_that_varies_by("via", &[]).await;
    let mut http2 = proxy.connect_http2().await;
    for _ in 0..2 {
        let page = proxy.ask("GET / HTTP/1.0\r\nHost: a\r\n\r\n").await.body;
        assert!(page.starts_with("<1.0 stampede-"), "{page}");
        let page = proxy.ask(GET).await.body;
        assert!(page.starts_with("<1.1 stampede-"), "{page}");
        let request = Request::get("http://a/").body(Full::<Bytes>::default()).unwrap();
        let answer = soon("an answer", http2.send_request(request)).await.unwrap();
        let page = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(page.starts_with(b"<2 stampede-"), "{page:?}");
    }
    assert_eq!(origin.hits(), 3);
}

#[tokio::test]
async fn a_page_that_varies_by_what_the_proxy_says_of_its_connection_fits_each_client() {
    for name in ["connection", "te"] {
        let (origin, proxy) = origin_that_varies_by(name, &[]).await;
        for _ in 0..2 {
            let with_trailers = proxy.ask(get_with("TE: trailers\r\n")).await.body;
            assert_ne!(with_trailers, "<>", "{name}");
            assert_eq!(proxy.ask(GET).await.body, "<>", "{name}");
        }
        assert_eq!(origin.hits(), 2, "{name}");
    }
}

#[tokio::test]
async fn a_page_that_varies_by_the_length_is_stored_for_the_length_the_origin_saw() {
    let (origin, proxy) = origin_that_varies_by("content-length", &[]).await;
    for fields in ["Content-Length: 00\r\n", "Content-Length: 0\r\n"] {
        assert_eq!(proxy.ask(get_with(fields)).await.body, "<0>");
    }
    assert_eq!(origin.hits(), 1);
    assert_eq!(proxy.ask(GET).await.body, "<>");
}

#[tokio::test]
async fn a_page_that_varies_by_host_and_scheme_is_shared_by_all_clients() {
    let (origin, proxy) =
        Scripted::start(&[], |_| (varying("X-Forwarded-Host, X-Forwarded-Proto"), "x".into()))
            .await;
    for n in 2..10 {
        ask_from(&proxy, [127, 0, 0, 1], &get_with(&format!("X-Forwarded-Host: {n}\r\n"))).await;
    }
    assert_eq!(origin.hits(), 1);
}

// ===== The key, for clients that are not trusted =====

#[cfg(target_os = "linux")]
#[tokio::test]
async fn clients_with_different_addresses_and_claims_share_one_page() {
    let (origin, proxy) = Scripted::start(&[], |_| (fresh(), "page".into())).await;
    for n in 1..20 {
        let claims = format!(
            "Forwarded: for=10.0.0.{n};host=h{n}\r\nX-Forwarded-For: 10.0.0.{n}\r\n\
             X-Forwarded-Port: {n}\r\n"
        );
        assert_eq!(ask_from(&proxy, [127, 0, 0, n], &get_with(&claims)).await, "page");
        assert_eq!(ask_from(&proxy, [127, 0, 0, n], GET).await, "page");
    }
    assert_eq!(origin.hits(), 1);
}

#[tokio::test]
async fn an_expectation_without_a_body_does_not_reach_the_origin() {
    let (origin, proxy) = Scripted::start(&[], |head| (fresh(), value_of(head, "expect"))).await;
    assert_eq!(proxy.ask(get_with("Expect: nonsense\r\n")).await.body, "<>");
    assert_eq!(proxy.ask(GET).await.body, "<>");
    assert_eq!(origin.hits(), 1);
}

// ===== The key, for a trusted peer =====

const TRUST: &[&str] = &["--trust-forwarded"];

#[tokio::test]
async fn trusted_claims_that_can_change_the_answer_are_part_of_the_key() {
    for name in [
        "cloudfront-forwarded-proto",
        "forwarded",
        "front-end-https",
        "https",
        "surrogate-capability",
        "x-accel-mapping",
        "x-envoy-original-path",
        "x-forwarded-host",
        "x-forwarded-method",
        "x-forwarded-path",
        "x-forwarded-port",
        "x-forwarded-prefix",
        "x-forwarded-proto",
        "x-forwarded-protocol",
        "x-forwarded-scheme",
        "x-forwarded-server",
        "x-forwarded-ssl",
        "x-forwarded-uri",
        "x-host",
        "x-http-method",
        "x-http-method-override",
        "x-method-override",
        "x-original-host",
        "x-original-method",
        "x-original-uri",
        "x-original-url",
        "x-rewrite-url",
        "x-scheme",
        "x-script-name",
        "x-sendfile-type",
        "x-url-scheme",
    ] {
        let (origin, proxy) =
            Scripted::start(TRUST, move |head| (fresh(), value_of(head, name))).await;
        for _ in 0..2 {
            for value in ["a", "b"] {
                let page = proxy.ask(get_with(&format!("{name}: {value}\r\n"))).await.body;
                assert!(page.starts_with(&format!("<{value}")), "{name}: {value} got {page}");
            }
        }
        assert_eq!(origin.hits(), 2, "{name}: the second round is answered from the store");
    }
}

#[tokio::test]
async fn trusted_addresses_are_forwarded_but_are_not_part_of_the_key() {
    for name in ADDRESSES {
        let (origin, proxy) =
            Scripted::start(TRUST, move |head| (fresh(), value_of(head, name))).await;
        for value in ["10.0.0.1", "10.0.0.2"] {
            let page = proxy.ask(get_with(&format!("{name}: {value}\r\n"))).await.body;
            assert!(page.starts_with("<10.0.0.1"), "{name}: {page}");
        }
        assert_eq!(origin.hits(), 1, "{name}");
    }
}

#[tokio::test]
async fn a_page_that_varies_by_a_trusted_address_is_not_shared_between_addresses() {
    for name in ADDRESSES {
        let (origin, proxy) = origin_that_varies_by(name, TRUST).await;
        for value in ["10.0.0.1", "10.0.0.2", "10.0.0.1"] {
            let page = proxy.ask(get_with(&format!("{name}: {value}\r\n"))).await.body;
            assert!(page.starts_with(&format!("<{value}")), "{name}: {value} got {page}");
        }
        assert_eq!(origin.hits(), 2, "{name}");
    }
}

const ADDRESSES: [&str; 8] = [
    "cf-connecting-ip",
    "client-ip",
    "fastly-client-ip",
    "true-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-forwarded-for",
    "x-real-ip",
];

#[cfg(target_os = "linux")]
#[tokio::test]
async fn two_trusted_proxies_that_say_the_same_share_one_page() {
    let (origin, proxy) = Scripted::start(TRUST, |_| (fresh(), "page".into())).await;
    for fields in ["", "Forwarded: host=public;proto=https\r\n"] {
        for n in 1..5 {
            assert_eq!(ask_from(&proxy, [127, 0, 0, n], &get_with(fields)).await, "page");
        }
    }
    assert_eq!(origin.hits(), 2, "one page for each claim");
}

#[tokio::test]
async fn a_trusted_host_that_repeats_the_requests_own_is_the_same_key() {
    let (origin, proxy) = Scripted::start(TRUST, |_| (fresh(), "page".into())).await;
    proxy.ask(GET).await;
    proxy.ask(get_with("X-Forwarded-Host: a\r\nX-Forwarded-Proto: http\r\n")).await;
    assert_eq!(origin.hits(), 1);
}

#[tokio::test]
async fn what_the_proxy_writes_does_not_make_a_request_too_long_for_the_cache() {
    let limit = 1000;
    let flags = ["--max-header-bytes", &limit.to_string()];
    let (origin, proxy) = Scripted::start(&flags, |_| (fresh(), "page".into())).await;
    // Each field counts with four bytes for its separators.
    let padding = "x".repeat(limit - "hosta".len() - "a".len() - 8);
    for _ in 0..2 {
        assert_eq!(proxy.ask(get_with(&format!("A: {padding}\r\n"))).await.body, "page");
    }
    assert_eq!(origin.hits(), 1);
    assert_eq!(proxy.ask(get_with(&format!("A: {padding}x\r\n"))).await.status(), 431);
}

// ===== Refreshes in the background =====

#[tokio::test]
async fn a_background_refresh_carries_nothing_of_the_client_that_triggered_it() {
    for flags in [&[][..], &["--trust-forwarded"], &["--host-header", "origin"]] {
        let (origin, proxy) = Scripted::start(flags, |_| {
            ("Cache-Control: max-age=0, stale-while-revalidate=60\r\n".into(), "page".into())
        })
        .await;
        proxy.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let evil = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 6.6.6.6\r\nUser-Agent: evil\r\n\
                    X-Anything: evil\r\n\r\n";
        assert_eq!(proxy.ask(evil).await.body, "page", "{flags:?}");
        soon("the refresh", async {
            while origin.hits() < 2 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let head = &origin.heads()[1];
        let mut names: Vec<_> = head.fields.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        let expected = ["forwarded", "host", "via", "x-forwarded-host", "x-forwarded-proto"];
        assert_eq!(names, expected, "{flags:?}");
        assert_eq!(head.get("forwarded"), Some("host=\"a\";proto=http"), "{flags:?}");
    }
}
