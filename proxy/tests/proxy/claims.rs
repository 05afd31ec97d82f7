//! Fields by which a client claims a host, a scheme or an identity: the proxy
//! lets none of them choose what other clients get.

use crate::kit::proxy::scripted::{Scripted, fresh, varying};

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
        (String::new(), head.get("x-auth-user").unwrap_or("anonymous").to_owned())
    })
    .await;
    for user in ["eve", "bob"] {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\nX-Auth-User: {user}\r\n\r\n");
        assert_eq!(proxy.ask(request).await.body, user);
    }
}
