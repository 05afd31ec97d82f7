//! Fields that identify the client: responses to requests that carry one are for
//! that client alone, unless the origin or the application permits to share them.

use tower_stampede::CacheOutcome::*;
use tower_stampede::HttpLayer;

use crate::kit::http::*;

/// One field of each provider that `http-hostile.md` and the list name.
const IDENTITY_FIELDS: [&str; 41] = [
    "api-key",
    "cf-access-authenticated-user-email",
    "cf-access-jwt-assertion",
    "client-cert",
    "client-cert-chain",
    "dpop",
    "impersonate-user",
    "oidc-claim-sub",
    "oidc_claim_sub",
    "proxy-authorization",
    "remote-email",
    "remote-user",
    "ssl-client-subject-dn",
    "tailscale-user-login",
    "x-access-token",
    "x-amzn-mtls-clientcert-serial-number",
    "x-amzn-oidc-data",
    "x-amzn-oidc-identity",
    "x-api-key",
    "x-auth-request-email",
    "x-auth-request-user",
    "x-auth-token",
    "x-authentik-username",
    "x-client-cert",
    "x-consumer-id",
    "x-forwarded-client-cert",
    "x-forwarded-email",
    "x-forwarded-tls-client-cert-info",
    "x-forwarded-user",
    "x-goog-authenticated-user-email",
    "x-goog-iap-jwt-assertion",
    "x-hasura-user-id",
    "x-ms-client-principal",
    "x-ms-client-principal-name",
    "x-remote-user",
    "x-session-id",
    "x-ssl-client-cert",
    "x-ssl-client-s-dn",
    "x-tenant-id",
    "x-user-id",
    "x_forwarded_user",
];

/// Answers with the value of one field, and says nothing of its lifetime.
fn greets_by(name: &'static str) -> Origin {
    Origin::new(move |call| {
        Answer::status(200).body(call.header(name).unwrap_or("anonymous").to_owned())
    })
}

#[tokio::test(start_paused = true)]
async fn a_response_under_a_ttl_is_never_shared_across_identity_fields() {
    for name in IDENTITY_FIELDS {
        let origin = greets_by(name);
        let app = layered(with_ttl(60).http_layer(), &origin);
        let clients = ["alice", "bob", "alice"];
        for client in clients {
            let reply = send(&app, with("/me", &[(name, client)])).await;
            assert_eq!(reply.text(), client, "{name}");
        }
        let replies = crowd(&app, 30, |i| with("/me", &[(name, clients[i % 2])])).await;
        for (i, reply) in replies.iter().enumerate() {
            assert_eq!(reply.text(), clients[i % 2], "{name}");
        }
        // Nor do they get what a client without the field got, and it is not theirs.
        assert_eq!(send(&app, get("/me")).await.text(), "anonymous", "{name}");
        assert_eq!(send(&app, with("/me", &[(name, "alice")])).await.text(), "alice", "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn fields_that_only_look_like_credentials_share() {
    for name in [
        "x-forwarded-for",
        "x-request-id",
        "x-user-agent",
        "x-real-ip",
        "remote-addr",
        "x-ssl",
        "x-authority",
        "user-agent",
        "accept",
        "traceparent",
    ] {
        let origin = Origin::new(|_| Answer::ok("max-age=60", "page"));
        let app = app(&origin);
        send(&app, with("/page", &[(name, "a")])).await;
        assert!(send(&app, with("/page", &[(name, "b")])).await.is(Hit), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_published_name_and_pattern_counts_as_a_credential() {
    for pattern in HttpLayer::CREDENTIAL_HEADERS {
        let name: &'static str = match pattern.strip_suffix('*') {
            Some(start) => format!("{start}anything").leak(),
            None => pattern,
        };
        let origin = greets_by(name);
        let app = layered(with_ttl(60).http_layer(), &origin);
        send(&app, with("/me", &[(name, "alice")])).await;
        assert_eq!(send(&app, with("/me", &[(name, "bob")])).await.text(), "bob", "{name}");
        assert_eq!(origin.calls(), 2, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn naming_more_credentials_adds_to_the_published_ones() {
    for name in ["x-badge", "x-acme-user", "x-api-key", "x-forwarded-user"] {
        let origin = greets_by(name);
        let layer = with_ttl(60).http_layer();
        let app = layered(layer.credential_headers(["x-badge", "x-acme-*"]), &origin);
        send(&app, with("/me", &[(name, "alice")])).await;
        assert_eq!(send(&app, with("/me", &[(name, "bob")])).await.text(), "bob", "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_call_that_says_so_replaces_the_published_credentials() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "page"));
    let layer = origin_only().http_layer().replace_credential_headers(["x-badge"]);
    let app = layered(layer, &origin);
    send(&app, with("/page", &[("x-forwarded-user", "alice")])).await;
    assert!(send(&app, with("/page", &[("x-forwarded-user", "bob")])).await.is(Hit));
    assert!(!send(&app, with("/page", &[("x-badge", "bob")])).await.is(Hit));
    // These two count whatever the list.
    assert!(!send(&app, with("/page", &[("authorization", "bob")])).await.is(Hit));
}

#[tokio::test(start_paused = true)]
async fn one_call_exempts_a_field_that_every_request_carries() {
    // A service mesh names the calling workload, not the user.
    for exempted in ["x-forwarded-client-cert", "x-forwarded-*"] {
        let origin = Origin::new(|_| Answer::ok("max-age=60", "page"));
        let layer = origin_only().http_layer().not_a_credential([exempted]);
        let app = layered(layer, &origin);
        let name = "x-forwarded-client-cert";
        send(&app, with("/page", &[(name, "By=spiffe://a")])).await;
        assert!(send(&app, with("/page", &[(name, "By=spiffe://b")])).await.is(Hit));
        assert!(!send(&app, with("/page", &[("x-api-key", "me")])).await.is(Hit));
        assert_eq!(origin.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_field_that_is_part_of_the_key_is_no_credential_and_keeps_clients_apart() {
    let layers: [fn(&'static str) -> HttpLayer; 2] = [
        |name| with_ttl(60).http_layer().vary([name]),
        |name| with_ttl(60).http_layer().keyed_headers([name]),
    ];
    for layer in layers {
        for name in ["x-tenant-id", "x-forwarded-user", "cookie", "authorization"] {
            let origin = greets_by(name);
            let app = layered(layer(name), &origin);
            for (client, outcome) in
                [("alice", Computed), ("bob", Computed), ("alice", Hit), ("bob", Hit)]
            {
                let reply = send(&app, with("/me", &[(name, client)])).await;
                assert_eq!(reply.text(), client, "{name}");
                assert!(reply.is(outcome), "{name}: {reply:?}");
            }
            // A client without it has a key of its own, too.
            assert_eq!(send(&app, get("/me")).await.text(), "anonymous", "{name}");
            assert_eq!(origin.calls(), 3, "{name}");
            // Another credential beside it still counts.
            let both = [(name, "alice"), ("x-api-key", "me")];
            assert!(!send(&app, with("/me", &both)).await.is(Hit), "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_names_the_field_in_cache_status() {
    for (fields, named) in [
        (&[("x-forwarded-user", "alice")][..], "x-forwarded-user"),
        (&[("x-ssl-client-s-dn", "CN=alice")], "x-ssl-client-s-dn"),
        (&[("cookie", "a=b")], "cookie"),
        (&[("authorization", "alice")], "authorization"),
        (&[("authorization", "alice"), ("x-api-key", "1")], "x-api-key"),
    ] {
        let app = layered(with_ttl(60).http_layer(), &greets_by("x"));
        // At first sight, and once it is known that answers are not shared.
        for _ in 0..2 {
            let reply = send(&app, with("/me", fields)).await;
            let detail = format!("; detail=credentials:{named}");
            assert!(reply.cache_status().ends_with(&detail), "{}", reply.cache_status());
        }
        // The same for clients that ask at the same time.
        for reply in crowd(&app, 5, |_| with("/other", fields)).await {
            assert!(reply.cache_status().ends_with(named), "{}", reply.cache_status());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn permission_to_share_needs_a_lifetime_of_the_origins_own() {
    for directives in ["must-revalidate", "public", "public, must-revalidate", "proxy-revalidate"] {
        for name in ["authorization", "cookie", "x-forwarded-user"] {
            let origin = Origin::new(move |call| {
                Answer::ok(directives, call.header(name).unwrap_or("anonymous").to_owned())
            });
            let app = layered(with_ttl(60).http_layer(), &origin);
            for client in ["alice", "bob"] {
                let reply = send(&app, with("/me", &[(name, client)])).await;
                assert_eq!(reply.text(), client, "{directives}, {name}");
            }
            assert_eq!(send(&app, get("/me")).await.text(), "anonymous", "{directives}, {name}");
            // A heuristic lifetime is not the origin's own word either.
            let modified = "Sun, 06 Nov 1994 08:49:37 GMT";
            let origin = Origin::new(move |call| {
                Answer::ok(directives, call.header(name).unwrap_or("anonymous").to_owned())
                    .header("last-modified", modified)
            });
            let app = layered(origin_only().http_layer(), &origin);
            for client in ["alice", "bob"] {
                let reply = send(&app, with("/me", &[(name, client)])).await;
                assert_eq!(reply.text(), client, "{directives}, {name}");
            }
        }
    }
}
