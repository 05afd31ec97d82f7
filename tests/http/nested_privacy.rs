//! Nested layers of one handle where a field is removed between them: no client gets the
//! response of another.

use axum::Router;
use axum::body::Body;
use axum::middleware::map_request;
use axum::routing::any;
use http::Request;
use tower_stampede::CacheOutcome::*;
use tower_stampede::HttpLayer;

use crate::kit::http::*;

#[derive(Clone)]
struct Seen(String);

/// Takes a field out of the request, and puts what it says into an extension.
async fn take(name: &'static str, mut request: Request<Body>) -> Request<Body> {
    let value = request.headers_mut().remove(name);
    let value = value.map_or("none".into(), |value| value.as_bytes().escape_ascii().to_string());
    request.extensions_mut().insert(Seen(value));
    request
}

fn seen(call: &Call) -> String {
    call.parts.extensions.get::<Seen>().map_or("nothing".into(), |seen| seen.0.clone())
}

fn behind(name: &'static str, origin: &Origin, inner: HttpLayer, outer: HttpLayer) -> Router {
    let handler = origin.clone();
    let route = any(move |request| handler.clone().handle(request)).layer(inner);
    Router::new()
        .route("/page", route)
        .layer(map_request(move |request| take(name, request)))
        .layer(outer)
}

/// request that reaches the route, where the field is gone.
#[tokio::test(start_paused = true)]
async fn a_field_in_vary_of_the_outer_layer_keeps_clients_apart_though_it_is_removed_between() {
    for name in ["x-user", "authorization", "x-plan"] {
        let cache = with_ttl(60);
        let origin = Origin::new(|call| Answer::status(200).body(seen(call)));
        let app = behind(name, &origin, cache.rules(), cache.http_layer().vary([name]));
        for user in ["alice", "bob"] {
            let reply = send(&app, with("/page", &[(name, user)])).await;
            assert_eq!(reply.text(), user, "{name} {}", reply.cache_status());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_credential_in_vary_of_a_route_keeps_clients_apart_though_it_is_removed_between() {
    for name in ["x-user", "authorization"] {
        let cache = with_ttl(60);
        let origin = Origin::new(|call| Answer::status(200).body(seen(call)));
        let app = behind(name, &origin, cache.rules().vary([name]), cache.http_layer());
        for user in ["alice", "bob"] {
            let reply = send(&app, with("/page", &[(name, user)])).await;
            assert_eq!(reply.text(), user, "{name} {}", reply.cache_status());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_field_in_the_responses_vary_keeps_clients_apart_though_it_is_removed_between() {
    for name in ["accept-language", "authorization", "x-plan"] {
        for is_rules in [true, false] {
            let cache = with_ttl(60);
            let origin = Origin::new(move |call| {
                Answer::ok("public, max-age=60", seen(call)).header("vary", name)
            });
            let inner = if is_rules { cache.rules() } else { cache.http_layer() };
            let app = behind(name, &origin, inner, cache.http_layer());
            for user in ["de", "en"] {
                let reply = send(&app, with("/page", &[(name, user)])).await;
                assert_eq!(reply.text(), user, "{name} {is_rules} {}", reply.cache_status());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_field_that_the_innermost_of_three_layers_names_counts_where_the_outermost_has_it() {
    for is_credential in [true, false] {
        for has_rules_between in [false, true] {
            let cache = with_ttl(60);
            let origin = Origin::new(|call| Answer::status(200).body(seen(call)));
            let rules = match is_credential {
                true => cache.rules().credential_headers(["x-sid"]),
                false => cache.rules().keyed_headers(["x-sid"]),
            };
            let handler = origin.clone();
            let mut route = any(move |request| handler.clone().handle(request)).layer(rules);
            if has_rules_between {
                route = route.layer(cache.rules().ttl(secs(5)));
            }
            let app: Router = Router::new()
                .route("/page", route)
                .layer(map_request(|request| take("x-sid", request)))
                .layer(cache.http_layer());
            for user in ["alice", "bob"] {
                let reply = send(&app, with("/page", &[("x-sid", user)])).await;
                let which = format!("credential: {is_credential}, between: {has_rules_between}");
                assert_eq!(reply.text(), user, "{which} {}", reply.cache_status());
            }
        }
    }
}

/// An inner `http_layer` does not take over what the outer one counts, and the other way round.
#[tokio::test(start_paused = true)]
async fn a_credential_of_either_layer_counts_though_it_is_removed_between() {
    for is_inner in [true, false] {
        let cache = with_ttl(60);
        let origin = Origin::new(|call| Answer::status(200).body(seen(call)));
        let (plain, strict) =
            (cache.http_layer(), cache.http_layer().credential_headers(["x-sid"]));
        let (inner, outer) = if is_inner { (strict, plain) } else { (plain, strict) };
        let app = behind("x-sid", &origin, inner, outer);
        for user in ["alice", "bob"] {
            let reply = send(&app, with("/page", &[("x-sid", user)])).await;
            assert_eq!(reply.text(), user, "inner: {is_inner}, {}", reply.cache_status());
        }
    }
}

/// The outer layer counts it as no credential, because it keys it.
#[tokio::test(start_paused = true)]
async fn a_credential_that_a_route_no_longer_keys_is_a_credential_again() {
    for name in ["x-user", "authorization"] {
        let cache = with_ttl(60);
        let origin = Origin::new(move |call| {
            Answer::status(200).body(call.header(name).unwrap_or("none").to_owned())
        });
        let (inner, outer) =
            (cache.rules().replace_keyed_headers([]), cache.http_layer().keyed_headers([name]));
        let app = behind("x-other", &origin, inner, outer);
        for user in ["alice", "bob"] {
            let reply = send(&app, with("/page", &[(name, user)])).await;
            assert_eq!(reply.text(), user, "{name}: {}", reply.cache_status());
        }
    }
}

/// It is sent for one variant, and replaces that one.
#[tokio::test(start_paused = true)]
async fn a_refresh_replaces_the_variant_that_is_selected_by_a_field_from_further_out() {
    let cache = with_ttl(60);
    let origin = Origin::new(|call| {
        let page = format!("{} {}", seen(call), call.n);
        Answer::ok("max-age=10, stale-while-revalidate=600", page).header("vary", "accept-language")
    });
    let app = behind("accept-language", &origin, cache.rules(), cache.http_layer());
    let ask = |language| with("/page", &[("accept-language", language)]);
    assert_eq!(send(&app, ask("de")).await.text(), "de 0");
    assert_eq!(send(&app, ask("en")).await.text(), "en 1");
    assert!(send(&app, ask("de")).await.is(Hit));
    pass(secs(11)).await;
    let stale = send(&app, ask("de")).await;
    assert!(stale.is(Stale) && stale.text() == "de 0", "{}", stale.text());
    pass(secs(1)).await;
    let new = send(&app, ask("de")).await;
    assert!(new.is(Hit) && new.text() == "de 2", "{} {}", new.text(), new.cache_status());
    assert_eq!(send(&app, ask("en")).await.text(), "en 1");
}

/// A layer between may remove what no rule and no `Vary` names.
#[tokio::test(start_paused = true)]
async fn requests_that_differ_in_nothing_that_counts_share() {
    let cache = with_ttl(60);
    let origin =
        Origin::new(|_| Answer::status(200).body("page").header("vary", "accept-language"));
    let app = behind("x-trace", &origin, cache.rules(), cache.http_layer());
    for n in 0..3 {
        let trace = n.to_string();
        send(&app, with("/page", &[("x-trace", &trace), ("accept-language", "de")])).await;
    }
    assert_eq!(origin.calls(), 1);
    send(&app, with("/page", &[("accept-language", "en")])).await;
    assert_eq!(origin.calls(), 2);
}

/// The POST does not pass the layer of the GET. Before the first GET the outer layer cannot know
/// of it.
#[tokio::test(start_paused = true)]
async fn the_response_to_a_post_beside_a_private_get_is_not_stored_for_gets() {
    use axum::routing::get as on_get;
    for (of_route, gets_before) in [(true, 0), (true, 1), (false, 0), (false, 1)] {
        let cache = with_ttl(60);
        let origin = Origin::new(|call| {
            let body = format!("{} {}", call.parts.method, call.header("x-name").unwrap_or("none"));
            Answer::ok("max-age=60", body).header("content-location", "/me")
        });
        let (one, two) = (origin.clone(), origin.clone());
        let inner = if of_route { cache.rules() } else { cache.http_layer() };
        let route = on_get(move |request| one.clone().handle(request))
            .layer(inner.private())
            .post(move |request| two.clone().handle(request));
        let app: Router = Router::new().route("/me", route).layer(post_storing(&cache));
        let fields = |name| [("host", "x"), ("x-name", name)];
        for _ in 0..gets_before {
            send(&app, with("/me", &fields("bob"))).await;
        }
        send(&app, request("POST", "/me", &fields("alice"))).await;
        let bob = send(&app, with("/me", &fields("bob"))).await;
        assert_eq!(bob.text(), "GET bob", "{of_route} {gets_before}: {}", bob.cache_status());
    }
}
