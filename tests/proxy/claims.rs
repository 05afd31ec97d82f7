//! Attacks on the example proxy that once worked.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;

use crate::kit::proxy::scripted::{Scripted, fresh, varying};
use crate::kit::proxy::soon;

/// 64 KiB of fields are the default; who allows more must not get a panic:
/// `HeaderMap::with_capacity` has one above 24,576, and counts values.
#[tokio::test]
async fn many_short_fields_within_the_limit_do_not_break_the_connection() {
    let flags = ["--max-header-bytes", "2000000"];
    let (_origin, proxy) = Scripted::start(&flags, |_| (fresh(), "page".into())).await;
    let mut client = proxy.connect_http2().await;
    let mut request = Request::get("http://a/").body(Full::<Bytes>::default()).unwrap();
    request.headers_mut().append("x_y", "1".parse().unwrap());
    for _ in 0..25_000 {
        request.headers_mut().append("a", "1".parse().unwrap());
    }
    let response = soon("an answer", client.send_request(request)).await;
    assert!(response.is_ok(), "{response:?}");
}

/// Fields from which applications take scheme or host, as from those of the
/// proxy's table.
#[tokio::test]
async fn a_claim_of_another_name_does_not_choose_what_others_get() {
    let mut poisoned = Vec::new();
    for name in [
        "cf-visitor",
        "fastly-ssl",
        "x-arr-ssl",
        "x-forwarded-https",
        "x-http-host-override",
        "wl-proxy-ssl",
    ] {
        let (_origin, proxy) = Scripted::start(&[], move |head| {
            (fresh(), head.get(name).unwrap_or("none").to_owned())
        })
        .await;
        proxy.ask(format!("GET / HTTP/1.1\r\nHost: a\r\n{name}: evil\r\n\r\n")).await;
        if proxy.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.body == "evil" {
            poisoned.push(name);
        }
    }
    assert!(poisoned.is_empty(), "{poisoned:?}");
}

/// An honest CGI program: it names in `Vary` what it reads. The flag passes the
/// second name, which it reads too.
#[tokio::test]
async fn with_underscores_a_page_that_varies_by_a_field_is_not_chosen_by_its_second_name() {
    let (_origin, proxy) = Scripted::start(&["--underscores-in-headers"], |head| {
        let mut fields = head.fields.iter();
        let language = fields.find(|(name, _)| name.replace('_', "-") == "accept-language");
        (varying("Accept-Language"), language.map_or("en".into(), |(_, value)| value.clone()))
    })
    .await;
    proxy.ask("GET / HTTP/1.1\r\nHost: a\r\nAccept_Language: evil\r\n\r\n").await;
    assert_eq!(proxy.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.body, "en");
}

#[tokio::test]
async fn a_credential_named_by_flag_is_one_beside_a_wider_exemption() {
    let flags = [
        "--ttl-ms",
        "60000",
        "--not-a-credential",
        "X-Auth-*",
        "--credential-header",
        "X-Auth-User",
    ];
    let (_origin, proxy) = Scripted::start(&flags, |head| {
        (String::new(), head.get("x-auth-user").unwrap_or("nobody").to_owned())
    })
    .await;
    for user in ["eve", "bob"] {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\nX-Auth-User: {user}\r\n\r\n");
        assert_eq!(proxy.ask(request).await.body, user);
    }
}
