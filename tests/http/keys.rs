//! What tells requests apart, and what is hidden because it does not.

use axum::extract::{OriginalUri, RawQuery};
use axum::routing::get as on_get;
use axum::{Extension, Router};
use http::HeaderMap;
use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::HttpLayer;

use crate::kit::http::*;

#[tokio::test(start_paused = true)]
async fn two_hosts_never_share() {
    let origin = Origin::new(|call| {
        let host = call.header("host").map(str::to_owned);
        let host = host.or(call.parts.uri.authority().map(ToString::to_string));
        Answer::ok("public, max-age=60", host.unwrap_or_default())
    });
    let app = app(&origin);
    let hosts = ["a.example", "b.example", "a.example:8080", "a.example.", "xa.example"];
    for _ in 0..2 {
        let replies = crowd(&app, 50, |i| with("/report", &[("host", hosts[i % 5])])).await;
        for (i, reply) in replies.iter().enumerate() {
            assert_eq!(reply.text(), hosts[i % 5]);
        }
    }
    assert_eq!(origin.calls(), 5);
    // Other ways to write one host are one host.
    assert!(send(&app, with("/report", &[("host", "A.Example:80")])).await.is(Hit));
    assert_eq!(origin.calls(), 5);
}

#[tokio::test(start_paused = true)]
async fn the_service_sees_the_host_as_it_is_keyed() {
    // Applications build links and redirects from what they see of the host.
    let origin = Origin::new(|call| {
        let uri = &call.parts.uri;
        let authority = uri.authority().map_or("-", |authority| authority.as_str());
        Answer::ok("max-age=60", format!("{:?} {authority} {}", call.header("host"), uri.path()))
    });
    let app = app(&origin);
    for host in
        ["VICTIM.example:80", "victim.example:00000080", "victim.example:", "Victim.Example"]
    {
        let reply = send(&app, with("/A/b", &[("host", host)])).await;
        assert_eq!(reply.text(), "Some(\"victim.example\") - /A/b", "{host}");
    }
    assert_eq!(origin.calls(), 1);
    for uri in [
        "http://VICTIM.example:80/A/b",
        "http://victim.example/A/b",
        "http://victim.EXAMPLE:080/A/b",
    ] {
        let reply = send(&app, get(uri)).await;
        assert_eq!(reply.text(), "None victim.example /A/b", "{uri}");
    }
    assert_eq!(origin.calls(), 2);
    // Another port, and other digits for it.
    for host in ["Victim.example:08080", "victim.example:8080"] {
        let reply = send(&app, with("/A/b", &[("host", host)])).await;
        assert_eq!(reply.text(), "Some(\"victim.example:8080\") - /A/b", "{host}");
    }
    assert_eq!(origin.calls(), 3);
    // What is not cached is forwarded in the same form.
    let past = with("/A/b", &[("host", "VICTIM.example:80"), ("if-match", "*")]);
    assert_eq!(send(&app, past).await.text(), "Some(\"victim.example\") - /A/b");
    // Path and query are not touched.
    send(&app, with("/%41/../b//?Q=%2f&", &[("host", "VICTIM.example")])).await;
    assert_eq!(origin.last().uri(), "/%41/../b//?Q=%2f&");
}

#[tokio::test(start_paused = true)]
async fn where_the_host_stands_is_part_of_the_key() {
    // A handler sees whether the URI names the host, the field does, or both.
    let origin = Origin::new(|call| {
        Answer::ok("max-age=60", format!("{} {:?}", call.uri(), call.header("host")))
    });
    let app = app(&origin);
    let spellings = [
        ("http://a/report", &[][..], "http://a/report None"),
        ("/report", &[("host", "a")], "/report Some(\"a\")"),
        ("http://a/report", &[("host", "a")], "http://a/report Some(\"a\")"),
        ("https://a/report", &[], "https://a/report None"),
        ("/report", &[], "/report None"),
    ];
    for outcome in [Computed, Hit] {
        for (uri, fields, seen) in spellings {
            let reply = send(&app, with(uri, fields)).await;
            assert_eq!(reply.text(), seen);
            assert!(reply.is(outcome), "{uri} {fields:?}");
        }
    }
    // A write invalidates all of them, however it is spelled.
    send(&app, request("POST", "/report", &[("host", "A:80")])).await;
    for (uri, fields, _) in &spellings[..3] {
        assert!(send(&app, with(uri, fields)).await.is(Computed), "{uri} {fields:?}");
    }
}

/// A layer between router and cache that gives the request another URI.
fn rewritten(uri: &str, received: &str) -> http::Request<axum::body::Body> {
    let mut request = get(uri);
    request.extensions_mut().insert(OriginalUri(received.parse().unwrap()));
    request
}

#[tokio::test(start_paused = true)]
async fn a_uri_that_a_layer_has_rewritten_is_part_of_the_key() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.uri()));
    let app = app(&origin);
    let requests = [
        ("/page", "/page"),
        ("/t/north/page", "/page"),
        ("/t/south/page", "/page"),
        ("/page?tenant=north", "/page"),
        ("/page?tenant=south", "/page"),
        ("http://north/page", "/page"),
        ("http://south/page", "/page"),
        // A part of the path taken away, as by `nest`.
        ("/page", "/t/north/page"),
        ("/t/north/page", "/t/north/page"),
        ("/north/page", "/t/north/page"),
        ("/page", "/t/south/page"),
    ];
    for outcome in [Computed, Hit] {
        for (uri, received) in requests {
            let reply = send(&app, rewritten(uri, received)).await;
            assert_eq!(reply.text(), uri, "{received}");
            assert!(reply.is(outcome), "{uri} {received}: {:?}", reply.outcome);
        }
    }
    assert_eq!(origin.calls(), requests.len());
}

#[tokio::test(start_paused = true)]
async fn a_tenant_in_a_rewritten_path_keeps_tenants_apart_behind_an_axum_router() {
    async fn to_tenant(
        mut request: axum::extract::Request,
        next: axum::middleware::Next,
    ) -> axum::response::Response {
        let tenant = request.headers().get("x-shop").unwrap().to_str().unwrap();
        *request.uri_mut() = format!("/{tenant}{}", request.uri().path()).parse().unwrap();
        next.run(request).await
    }
    let show = |request: axum::extract::Request| async move { request.uri().to_string() };
    let app: Router = Router::new()
        .route("/page", on_get(show))
        .layer(with_ttl(60).http_layer())
        .layer(axum::middleware::from_fn(to_tenant));
    for (shop, outcome) in [("north", Computed), ("south", Computed), ("north", Hit)] {
        let reply = send(&app, with("/page", &[("x-shop", shop)])).await;
        assert_eq!(reply.text(), format!("/{shop}/page"));
        assert!(reply.is(outcome));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_for_two_hosts_goes_past_the_cache() {
    let origin = Origin::new(|_| Answer::ok("public, max-age=60", "report"));
    let app = app(&origin);
    send(&app, with("/report", &[("host", "a")])).await;
    for fields in [
        &[("host", "A:80"), ("host", "b")][..],
        &[("host", "a"), ("host", "a")],
        &[("host", "")],
        &[("host", "a b")],
        &[("host", "u@a")],
    ] {
        assert!(send(&app, with("/report", fields)).await.is(Bypass), "{fields:?}");
        let last = origin.last();
        let hosts: Vec<_> = last.parts.headers.get_all("host").iter().collect();
        let sent: Vec<_> = fields.iter().map(|(_, host)| *host).collect();
        assert_eq!(hosts, sent, "it is forwarded as it came");
    }
    assert!(send(&app, with("http://b/report", &[("host", "a")])).await.is(Bypass));
    assert_eq!(origin.calls(), 7);
    assert!(send(&app, with("/report", &[("host", "a")])).await.is(Hit));
}

#[tokio::test(start_paused = true)]
async fn fields_that_change_where_a_request_leads_are_part_of_the_key() {
    for name in [
        "forwarded",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-forwarded-port",
        "x-forwarded-prefix",
        "x-original-url",
        "x-rewrite-url",
        "x-http-method",
        "x-http-method-override",
        "x-host",
        "x-forwarded-scheme",
        "x-forwarded-ssl",
        "x-forwarded-server",
        "x-forwarded-uri",
        "x-original-host",
        "x-original-uri",
        "x-method-override",
        "front-end-https",
        "x_forwarded_host",
        "X_Original_Url",
    ] {
        let origin = Origin::new(move |call| {
            Answer::ok("public, max-age=60", call.header(name).unwrap_or("none").to_owned())
        });
        let app = app(&origin);
        // The attacker comes first, and a crowd at the same time.
        let replies = crowd(&app, 20, |i| match i {
            0 => with("/report", &[(name, "evil")]),
            _ => get("/report"),
        });
        for (i, reply) in replies.await.iter().enumerate() {
            assert_eq!(reply.text(), if i == 0 { "evil" } else { "none" }, "{name}");
        }
        assert_eq!(send(&app, get("/report")).await.text(), "none");
        assert_eq!(send(&app, with("/report", &[(name, "other")])).await.text(), "other");
        assert_eq!(origin.calls(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_field_that_a_trusted_proxy_sets_may_be_left_out_of_the_key() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "report"));
    let app = layered(origin_only().http_layer().replace_keyed_headers(["x-host"]), &origin);
    send(&app, with("/report", &[("x-forwarded-host", "a")])).await;
    assert!(send(&app, with("/report", &[("x-forwarded-host", "b")])).await.is(Hit));
    assert!(!send(&app, with("/report", &[("x-host", "b")])).await.is(Hit));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn naming_more_keyed_fields_adds_to_the_default_ones() {
    for name in ["x-shop", "x-region", "x-forwarded-host"] {
        let origin = Origin::new(|_| Answer::ok("max-age=60", "report"));
        let layer = origin_only().http_layer().keyed_headers(["x-shop"]);
        let app = layered(layer.keyed_headers(["x-region"]), &origin);
        send(&app, with("/report", &[(name, "a")])).await;
        assert!(!send(&app, with("/report", &[(name, "b")])).await.is(Hit), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_call_takes_a_field_out_of_the_key() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "report"));
    let app = layered(origin_only().http_layer().not_keyed(["forwarded"]), &origin);
    crowd(&app, 10, |i| with("/report", &[("forwarded", &format!("for=10.0.0.{i}"))])).await;
    assert_eq!(origin.calls(), 1);
    assert!(!send(&app, with("/report", &[("x-forwarded-host", "b")])).await.is(Hit));
}

#[test]
fn a_setting_that_takes_names_refuses_patterns_and_what_is_no_name() {
    type Setting = fn(&str) -> HttpLayer;
    let tries: [(&str, Setting); 7] = [
        ("vary", |name| origin_only().http_layer().vary([name])),
        ("keyed_headers", |name| origin_only().http_layer().keyed_headers([name])),
        ("refresh_headers", |name| origin_only().http_layer().refresh_headers([name])),
        ("not_keyed", |name| origin_only().http_layer().not_keyed([name])),
        ("targeted_fields", |name| origin_only().http_layer().targeted_fields([name])),
        ("credential_headers", |name| origin_only().http_layer().credential_headers([name])),
        ("not_a_credential", |name| origin_only().http_layer().not_a_credential([name])),
    ];
    for (setting, call) in tries {
        for name in ["x acme", "*", "x-*-y", "x-my-*"] {
            let takes_patterns = setting.contains("credential") && name == "x-my-*";
            let panic = std::panic::catch_unwind(|| drop(call(name))).err();
            assert_eq!(panic.is_none(), takes_patterns, "{setting} {name}");
            let Some(panic) = panic else { continue };
            let said = panic.downcast_ref::<String>().unwrap();
            assert!(said.contains(&format!("`{setting}`")) && said.contains(name), "{said}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn naming_more_fields_that_vary_adds_to_those_named_before() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "report"));
    let app = layered(origin_only().http_layer().vary(["x-a"]).vary(["x-b"]), &origin);
    send(&app, with("/report", &[("x-a", "1"), ("x-b", "1")])).await;
    for fields in [[("x-a", "2"), ("x-b", "1")], [("x-a", "1"), ("x-b", "2")]] {
        assert!(!send(&app, with("/report", &fields)).await.is(Hit), "{fields:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_address_of_a_client_is_not_part_of_the_key() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "report"));
    let app = app(&origin);
    crowd(&app, 100, |i| with("/report", &[("x-forwarded-for", &i.to_string())])).await;
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn path_and_query_are_compared_as_received() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.uri()));
    let app = app(&origin);
    let uris = ["/a", "/a/", "/A", "/%61", "/a?", "/a?x", "/a?x=", "/a?y&x", "/a?x&y", "/"];
    for uri in uris {
        assert_eq!(send(&app, get(uri)).await.text(), uri);
    }
    assert_eq!(origin.calls(), uris.len());
    for uri in uris {
        assert_eq!(send(&app, get(uri)).await.text(), uri);
    }
    assert_eq!(origin.calls(), uris.len());
}

#[tokio::test(start_paused = true)]
async fn parameters_outside_the_list_are_neither_keyed_nor_seen() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.uri()));
    let app = layered(origin_only().http_layer().query(["q", "page"]), &origin);
    let first = send(&app, get("/s?utm=1&q=a&%71=evil&Q=2&page=3&callback=x")).await;
    assert_eq!(first.text(), "/s?q=a&page=3");
    assert!(send(&app, get("/s?q=a&callback=evil&page=3")).await.is(Hit));
    assert!(!send(&app, get("/s?q=a&q=b&page=3")).await.is(Hit));
    assert_eq!(send(&app, get("/s?utm")).await.text(), "/s");
    assert!(send(&app, get("/s")).await.is(Hit));
    // Who goes past the cache is not let into another's key either.
    let past = send(&app, with("/s?q=a&utm=1", &[("if-match", "*")])).await;
    assert_eq!(past.text(), "/s?q=a");
    assert_eq!(origin.calls(), 4);
    // A write sees what was sent to it.
    send(&app, request("POST", "/s?utm=1", &[])).await;
    assert_eq!(origin.last().uri(), "/s?utm=1");
}

#[tokio::test(start_paused = true)]
async fn an_axum_handler_sees_removed_parameters_nowhere() {
    async fn show(
        RawQuery(query): RawQuery,
        OriginalUri(original): OriginalUri,
        request: axum::extract::Request,
    ) -> String {
        let extension = request.extensions().get::<OriginalUri>().map(|uri| uri.0.to_string());
        format!("{query:?} {original} {extension:?} {}", request.uri())
    }
    let layer = with_ttl(60).http_layer().query(["q"]);
    let plain: Router = Router::new().route("/s", on_get(show)).layer(layer.clone());
    let nested = Router::new().nest("/v1", Router::new().route("/s", on_get(show)).layer(layer));
    let ask = "/s?evil=1&q=a";
    let expected = "Some(\"q=a\") /s?q=a Some(\"/s?q=a\") /s?q=a";
    assert_eq!(send(&plain, get(ask)).await.text(), expected);
    let reply = send(&nested, get(&format!("/v1{ask}"))).await;
    let expected = "Some(\"q=a\") /v1/s?q=a Some(\"/v1/s?q=a\") /s?q=a";
    assert_eq!(reply.text(), expected);
    assert!(!reply.text().contains("evil"));
}

#[tokio::test(start_paused = true)]
async fn ignored_cookies_are_neither_keyed_nor_seen_nor_credentials() {
    let origin = Origin::new(|call| {
        let cookie = call.header("cookie").unwrap_or("none").to_owned();
        Answer::ok("max-age=60", cookie).header("vary", "cookie")
    });
    let app = layered(with_ttl(60).http_layer().ignore_cookies(["*"]), &origin);
    let replies = crowd(&app, 100, |i| with("/report", &[("cookie", &i.to_string())])).await;
    assert!(replies.iter().all(|reply| reply.text() == "none"));
    assert_eq!(origin.calls(), 1);
    // What goes past the cache does not see them either, a write does.
    let past = [("cookie", "mine"), ("if-match", "*")];
    assert_eq!(send(&app, with("/report", &past)).await.text(), "none");
    send(&app, request("POST", "/report", &[("cookie", "mine")])).await;
    assert_eq!(origin.last().header("cookie"), Some("mine"));
}

#[tokio::test(start_paused = true)]
async fn the_identity_of_the_asker_keeps_answers_apart() {
    #[derive(Clone)]
    struct User(u32);
    let origin = Origin::new(|call| {
        let user = call.parts.extensions.get::<User>().map_or(0, |user| user.0);
        Answer::ok("max-age=60", user.to_string())
    });
    let layer = origin_only().http_layer().identity(|parts| {
        let user = parts.extensions.get::<User>()?;
        Some(user.0)
    });
    let app = layered(layer, &origin);
    let ask = |user: usize| {
        let mut request = get("/report");
        if user > 0 {
            request.extensions_mut().insert(User(user as u32));
        }
        request
    };
    let replies = crowd(&app, 90, |i| ask(1 + i % 3)).await;
    for (i, reply) in replies.iter().enumerate() {
        assert_eq!(reply.text(), (1 + i % 3).to_string());
    }
    assert_eq!(origin.calls(), 3);
    // A client without an identity: past the cache.
    let replies = crowd(&app, 10, |_| ask(0)).await;
    assert!(replies.iter().all(|reply| reply.is(Bypass) && reply.text() == "0"));
    assert_eq!(origin.calls(), 13);
}

#[tokio::test(start_paused = true)]
async fn parts_of_the_key_do_not_run_into_each_other() {
    let origin = Origin::new(|call| {
        let of = |name| call.header(name).unwrap_or_default().to_owned();
        Answer::ok("max-age=60", format!("{}|{}", of("a"), of("b")))
    });
    let field = |name: &'static str| {
        move |parts: &http::request::Parts| {
            parts.headers.get(name).map_or(String::new(), |v| v.to_str().unwrap().to_owned())
        }
    };
    let app = layered(origin_only().http_layer().key(field("a")).key(field("b")), &origin);
    for (a, b) in [("x", "yz"), ("xy", "z"), ("xyz", ""), ("", "xyz")] {
        let reply = send(&app, with("/report", &[("a", a), ("b", b)])).await;
        assert_eq!(reply.text(), format!("{a}|{b}"));
    }
    assert_eq!(origin.calls(), 4);
}

#[tokio::test(start_paused = true)]
async fn requests_that_the_users_rule_names_go_past_the_cache() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.n.to_string()));
    let layer = origin_only().http_layer().bypass(|parts| parts.headers.contains_key("x-admin"));
    let app = layered(layer, &origin);
    send(&app, get("/report")).await;
    let admin = send(&app, with("/report", &[("x-admin", "1")])).await;
    assert!(admin.is(Bypass) && admin.text() == "1");
    assert_eq!(send(&app, get("/report")).await.text(), "0");
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_too_long_goes_past_the_cache_whoever_made_it_long() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.n.to_string()));
    let layer = origin_only().http_layer().max_key_bytes(100).key(|parts| {
        parts.headers.get("x-tenant").map_or(String::new(), |v| v.to_str().unwrap().to_owned())
    });
    let app = layered(layer, &origin);
    let long = "x".repeat(200);
    assert!(send(&app, get(&format!("/{long}"))).await.is(Bypass));
    assert!(send(&app, with("/report", &[("x-tenant", &long)])).await.is(Bypass));
    assert!(send(&app, get("/report")).await.is(Computed));
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn layers_with_different_scopes_on_one_handle_never_mix() {
    let cache = origin_only();
    let origins = ["a", "b", ""].map(|name| Origin::new(move |_| Answer::ok("max-age=60", name)));
    let apps = [
        layered(cache.http_layer().scope("a"), &origins[0]),
        layered(cache.http_layer().scope("b"), &origins[1]),
        layered(cache.http_layer(), &origins[2]),
    ];
    for _ in 0..2 {
        for (app, name) in apps.iter().zip(["a", "b", ""]) {
            assert_eq!(send(app, get("/report")).await.text(), name);
        }
    }
    assert_eq!(origins.map(|origin| origin.calls()), [1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn two_nested_routers_on_one_handle_never_mix() {
    let cache = with_ttl(60);
    let inner = |name: &'static str| {
        let origin = Origin::new(move |_| Answer::status(200).body(name));
        let handle = origin.clone();
        let handler = on_get(move |request| handle.clone().handle(request));
        (Router::new().route("/report", handler).layer(cache.http_layer()), origin)
    };
    let ((users, a), (orders, b)) = (inner("users"), inner("orders"));
    let app = Router::new().nest("/users", users).nest("/orders", orders);
    for _ in 0..2 {
        let replies = crowd(&app, 100, |i| get(["/users/report", "/orders/report"][i % 2])).await;
        for (i, reply) in replies.iter().enumerate() {
            assert_eq!(reply.text(), ["users", "orders"][i % 2]);
        }
    }
    assert_eq!((a.calls(), b.calls()), (1, 1));
    // Each is invalidated by its own path.
    cache.invalidate_path("/users/report").await;
    send(&app, get("/users/report")).await;
    send(&app, get("/orders/report")).await;
    assert_eq!((a.calls(), b.calls()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn identity_in_an_extension_keeps_users_apart_behind_an_axum_layer() {
    #[derive(Clone)]
    struct User(String);
    async fn profile(Extension(User(name)): Extension<User>) -> String {
        name
    }
    async fn log_in(
        headers: HeaderMap,
        mut request: axum::extract::Request,
        next: axum::middleware::Next,
    ) -> axum::response::Response {
        let name = headers.get("x-name").unwrap().to_str().unwrap().to_owned();
        request.extensions_mut().insert(User(name));
        next.run(request).await
    }
    let layer = with_ttl(60)
        .http_layer()
        .identity(|parts| parts.extensions.get::<User>().map(|user| user.0.clone()));
    let app: Router = Router::new()
        .route("/me", on_get(profile))
        .layer(layer)
        .layer(axum::middleware::from_fn(log_in));
    for (name, outcome) in [("alice", Computed), ("bob", Computed), ("alice", Hit)] {
        let reply = send(&app, with("/me", &[("x-name", name)])).await;
        assert_eq!(reply.text(), name);
        assert!(reply.is(outcome));
    }
}

#[tokio::test(start_paused = true)]
async fn layers_made_of_one_handle_share_what_they_may() {
    let cache = origin_only();
    let origin = Origin::new(|_| Answer::ok("max-age=60", "report"));
    let (a, b) = (cache.http_layer().layer(origin.clone()), layered(cache.http_layer(), &origin));
    send(&a, get("/report")).await;
    assert!(send(&b, get("/report")).await.is(Hit));
    assert_eq!(origin.calls(), 1);
}
