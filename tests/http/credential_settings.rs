//! Several settings name one field: whether it counts as a credential then.

use tower_stampede::CacheOutcome::*;

use crate::kit::http::*;

fn who(call: &Call, name: &str) -> Answer {
    Answer::status(200).body(call.header(name).unwrap_or("anonymous").to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_cookie_that_is_named_a_credential_after_its_exemption_is_one() {
    let origin = Origin::new(|call| {
        Answer::status(200).body(call.header("cookie").unwrap_or("anonymous").to_owned())
    });
    let layer = with_ttl(60).http_layer().not_a_credential(["cookie"]);
    let app = layered(layer.credential_headers(["cookie"]), &origin);
    for user in ["sid=eve", "sid=bob"] {
        assert_eq!(send(&app, with("/page", &[("cookie", user)])).await.text(), user);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cookie_that_is_named_in_a_replaced_list_after_its_exemption_is_a_credential() {
    let origin = Origin::new(|call| {
        Answer::status(200).body(call.header("cookie").unwrap_or("anonymous").to_owned())
    });
    let layer = with_ttl(60).http_layer().not_a_credential(["cookie"]);
    let app = layered(layer.replace_credential_headers(["cookie", "x-api-key"]), &origin);
    for user in ["sid=eve", "sid=bob"] {
        assert_eq!(send(&app, with("/page", &[("cookie", user)])).await.text(), user);
    }
}

#[tokio::test(start_paused = true)]
async fn a_credential_that_is_keyed_and_then_not_keyed_is_a_credential_again() {
    let origin = Origin::new(|call| {
        Answer::status(200).body(call.header("x-api-key").unwrap_or("anonymous").to_owned())
    });
    let layer = with_ttl(60).http_layer().keyed_headers(["x-api-key"]).not_keyed(["x-api-key"]);
    let app = layered(layer, &origin);
    for user in ["eve", "bob"] {
        assert_eq!(send(&app, with("/page", &[("x-api-key", user)])).await.text(), user);
    }
}

/// A later setter decides, also where one names a pattern and the other a member of it.
#[tokio::test(start_paused = true)]
async fn the_order_of_setters_with_a_pattern_and_its_member_is_kept() {
    for (name, is_shared) in [("x-acme-a", false), ("x-acme-b", true), ("x_acme_b", false)] {
        let origin = Origin::new(move |call| {
            Answer::status(200).body(call.header(name).unwrap_or("anonymous").to_owned())
        });
        let layer = with_ttl(60)
            .http_layer()
            .credential_headers(["x-acme-*"])
            .not_a_credential(["x-acme-b"])
            .vary(["x-acme-c"]);
        let app = layered(layer, &origin);
        send(&app, with("/page", &[(name, "eve")])).await;
        let reply = send(&app, with("/page", &[(name, "bob")])).await;
        assert_eq!(reply.text() == "eve", is_shared, "{name}");
    }
}

/// All fields of a service mesh are exempted, and one of them is named again.
#[tokio::test(start_paused = true)]
async fn a_field_that_is_named_a_credential_after_a_wider_exemption_is_one() {
    let origin = Origin::new(|call| who(call, "x-auth-user"));
    let layer = with_ttl(60).http_layer().not_a_credential(["x-auth-*"]);
    let app = layered(layer.credential_headers(["x-auth-user"]), &origin);
    for user in ["eve", "bob"] {
        assert_eq!(send(&app, with("/page", &[("x-auth-user", user)])).await.text(), user);
    }
}

#[tokio::test(start_paused = true)]
async fn a_field_in_vary_is_no_credential_though_it_is_named_among_them() {
    for name in ["x-api-key", "authorization", "cookie"] {
        let origin = Origin::new(move |call| who(call, name));
        let layer = with_ttl(60).http_layer().credential_headers([name]).vary([name]);
        let app = layered(layer, &origin);
        send(&app, with("/page", &[(name, "me")])).await;
        let reply = send(&app, with("/page", &[(name, "me")])).await;
        assert!(reply.is(Hit), "{name}: {}", reply.cache_status());
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_names_the_field_though_it_is_named_twice() {
    let origin = Origin::new(|call| who(call, "authorization"));
    // The list as the call wanted it when it still replaced the defaults.
    let layer = with_ttl(60).http_layer().credential_headers(["authorization", "x-api-key"]);
    let app = layered(layer.vary(["authorization"]), &origin);
    let reply = send(&app, with("/page", &[("authorization", "me")])).await;
    let status = reply.cache_status();
    assert!(
        !status.contains("credentials") || status.contains("credentials:authorization"),
        "{status}"
    );
}

#[tokio::test(start_paused = true)]
async fn ignored_cookies_are_no_credentials_though_the_field_is_named_among_them() {
    let origin = Origin::new(|call| who(call, "cookie"));
    let layer =
        with_ttl(60).http_layer().credential_headers(["cookie", "x-sid"]).ignore_cookies(["*"]);
    let app = layered(layer, &origin);
    send(&app, with("/page", &[("cookie", "_ga=1")])).await;
    let reply = send(&app, with("/page", &[("cookie", "_ga=2")])).await;
    assert!(reply.is(Hit), "{}", reply.cache_status());
}

#[tokio::test(start_paused = true)]
async fn common_spellings_of_authorization_are_credentials() {
    let names = ["x-authorization", "x-original-authorization", "authentication", "x-auth"];
    let shared: Vec<_> = {
        let mut shared = Vec::new();
        for name in names {
            let origin = Origin::new(move |call| who(call, name));
            let app = layered(with_ttl(60).http_layer(), &origin);
            send(&app, with("/page", &[(name, "eve")])).await;
            if send(&app, with("/page", &[(name, "bob")])).await.text() != "bob" {
                shared.push(name);
            }
        }
        shared
    };
    assert!(shared.is_empty(), "shared across users: {shared:?}");
}

#[tokio::test(start_paused = true)]
async fn credentials_are_seen_in_whatever_line_they_stand() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", format!("{}", call.n)));
    let long = "x".repeat(64);
    let longer = "x".repeat(65);
    let layer = origin_only().http_layer().credential_headers(["x-api-key", &*long]);
    let app = layered(layer, &origin);
    assert_eq!(send(&app, get("/report")).await.text(), "0");
    let anonymous: [&[(&str, &str)]; 2] = [&[(&*longer, "1")], &[("x-api-kez", "1")]];
    for fields in anonymous {
        assert_eq!(send(&app, with("/report", fields)).await.text(), "0", "{fields:?}");
    }
    let known: [&[(&str, &str)]; 5] = [
        &[("AUTHORIZATION", "a")],
        &[("authorization", ""), ("authorization", "b")],
        &[("X-Api-Key", "1")],
        &[("x-api-key", "1"), ("x-api-key", "2")],
        &[(&*long, "1")],
    ];
    for fields in known {
        assert_ne!(send(&app, with("/report", fields)).await.text(), "0", "{fields:?}");
    }
}
