//! Nested layers of one handle where a field is removed between them: no client gets the
//! response of another.

use axum::Router;
use axum::body::Body;
use axum::middleware::map_request;
use axum::routing::{MethodRouter, any};
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
    Router::new()
        .route("/page", plain_route(origin).layer(inner))
        .layer(map_request(move |request| take(name, request)))
        .layer(outer)
}

fn field(request: &Request<Body>, name: &str) -> String {
    request.headers().get(name).map_or("none".into(), |it| it.to_str().unwrap().to_owned())
}

fn tenant(request: &Request<Body>) -> String {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').find(|it| it.starts_with("tenant=")).unwrap_or("none").into()
}

fn plain_route(origin: &Origin) -> MethodRouter {
    let handler = origin.clone();
    any(move |request| handler.clone().handle(request))
}

fn plain(origin: &Origin) -> Router {
    Router::new().route("/page", plain_route(origin))
}

/// Puts what `between` reads into an extension, and leaves the request as it is.
fn says(
    origin: &Origin,
    inner: HttpLayer,
    outer: HttpLayer,
    between: impl Fn(&Request<Body>) -> String + Clone + Send + Sync + 'static,
) -> Router {
    Router::new()
        .route("/page", plain_route(origin).layer(inner))
        .layer(map_request(move |mut request: Request<Body>| {
            let said = between(&request);
            request.extensions_mut().insert(Seen(said));
            std::future::ready(request)
        }))
        .layer(outer)
}

/// The request that reaches the route has lost the field.
#[tokio::test(start_paused = true)]
async fn a_field_in_vary_of_the_outer_layer_keeps_clients_apart_though_it_is_removed_between() {
    for name in ["x-user", "authorization", "x-plan"] {
        let cache = with_ttl(60);
        let origin = Origin::new(|call| Answer::status(200).body(seen(call)));
        let app = behind(name, &origin, cache.http_layer(), cache.http_layer().vary([name]));
        for user in ["alice", "bob"] {
            let reply = send(&app, with("/page", &[(name, user)])).await;
            assert_eq!(reply.text(), user, "{name} {}", reply.cache_status());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_credential_in_vary_of_the_inner_layer_keeps_clients_apart_though_it_is_removed_between()
{
    for name in ["x-user", "authorization"] {
        let cache = with_ttl(60);
        let origin = Origin::new(|call| Answer::status(200).body(seen(call)));
        let app = behind(name, &origin, cache.http_layer().vary([name]), cache.http_layer());
        for user in ["alice", "bob"] {
            let reply = send(&app, with("/page", &[(name, user)])).await;
            assert_eq!(reply.text(), user, "{name} {}", reply.cache_status());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_field_in_the_responses_vary_keeps_clients_apart_though_it_is_removed_between() {
    for name in ["accept-language", "authorization", "x-plan"] {
        let cache = with_ttl(60);
        let origin = Origin::new(move |call| {
            Answer::ok("public, max-age=60", seen(call)).header("vary", name)
        });
        let app = behind(name, &origin, cache.http_layer(), cache.http_layer());
        for user in ["de", "en"] {
            let reply = send(&app, with("/page", &[(name, user)])).await;
            assert_eq!(reply.text(), user, "{name} {}", reply.cache_status());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_field_that_the_innermost_of_three_layers_names_counts_where_the_outermost_has_it() {
    for is_credential in [true, false] {
        for has_one_between in [false, true] {
            let cache = with_ttl(60);
            let origin = Origin::new(|call| Answer::status(200).body(seen(call)));
            let rules = match is_credential {
                true => cache.http_layer().credential_headers(["x-sid"]),
                false => cache.http_layer().keyed_headers(["x-sid"]),
            };
            let handler = origin.clone();
            let mut route = any(move |request| handler.clone().handle(request)).layer(rules);
            if has_one_between {
                route = route.layer(cache.http_layer().ttl(secs(5)));
            }
            let app: Router = Router::new()
                .route("/page", route)
                .layer(map_request(|request| take("x-sid", request)))
                .layer(cache.http_layer());
            for user in ["alice", "bob"] {
                let reply = send(&app, with("/page", &[("x-sid", user)])).await;
                let which = format!("credential: {is_credential}, between: {has_one_between}");
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

/// It is sent for one variant, and replaces that one.
#[tokio::test(start_paused = true)]
async fn a_refresh_replaces_the_variant_that_is_selected_by_a_field_from_further_out() {
    let cache = with_ttl(60);
    let origin = Origin::new(|call| {
        let page = format!("{} {}", seen(call), call.n);
        Answer::ok("max-age=10, stale-while-revalidate=600", page).header("vary", "accept-language")
    });
    let app = behind("accept-language", &origin, cache.http_layer(), cache.http_layer());
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

/// Returns the fields that the service got in the refresh behind two layers.
async fn refreshed_by(inner: HttpLayer, outer: HttpLayer, client: &[(&str, &str)]) -> Vec<String> {
    let origin = Origin::new(|_| {
        Answer::ok("public, max-age=10, stale-while-revalidate=600", "page")
            .header("vary", "x-lang")
    });
    let app = plain(&origin).layer(inner).layer(outer);
    send(&app, with("/page", client)).await;
    pass(secs(11)).await;
    let reply = send(&app, with("/page", client)).await;
    assert!(reply.is(Stale), "{}", reply.cache_status());
    pass(secs(1)).await;
    assert_eq!(origin.calls(), 2);
    let reply = send(&app, with("/page", client)).await;
    assert!(reply.is(Hit), "{}", reply.cache_status());
    let last = origin.last();
    let names = last.parts.headers.keys().map(|name| name.as_str().to_owned());
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    names
}

/// Without what is keyed the service would answer another request. All other fields are of one
/// client.
#[tokio::test(start_paused = true)]
async fn a_refresh_through_two_layers_carries_what_they_key_and_nothing_else() {
    let fields = [("host", "a"), ("x-lang", "de"), ("x-plan", "1"), ("x-link", "evil")];
    let cache = with_ttl(60);
    let names = refreshed_by(cache.http_layer().ttl(secs(5)), cache.http_layer(), &fields).await;
    assert_eq!(names, ["host", "x-lang"]);
    for is_vary in [false, true] {
        let cache = with_ttl(60);
        let keys = ["x-plan"];
        let layer = match is_vary {
            true => cache.http_layer().vary(keys),
            false => cache.http_layer().keyed_headers(keys),
        };
        let names = refreshed_by(layer.clone(), layer, &fields).await;
        assert_eq!(names, ["host", "x-lang", "x-plan"], "{is_vary}");
    }
}

/// A layer between may remove what no rule and no `Vary` names.
#[tokio::test(start_paused = true)]
async fn requests_that_differ_in_nothing_that_counts_share() {
    let cache = with_ttl(60);
    let origin =
        Origin::new(|_| Answer::status(200).body("page").header("vary", "accept-language"));
    let app = behind("x-trace", &origin, cache.http_layer(), cache.http_layer());
    for n in 0..3 {
        let trace = n.to_string();
        send(&app, with("/page", &[("x-trace", &trace), ("accept-language", "de")])).await;
    }
    assert_eq!(origin.calls(), 1);
    send(&app, with("/page", &[("accept-language", "en")])).await;
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_parameter_that_the_outer_layer_counts_keeps_clients_apart_though_the_inner_one_leaves_it_out()
 {
    for names in [None, Some(["tenant", "q"])] {
        let cache = with_ttl(60);
        let origin = Origin::new(|call| Answer::status(200).body(seen(call)));
        let outer = cache.http_layer();
        let outer = if let Some(names) = names { outer.query(names) } else { outer };
        let app = says(&origin, cache.http_layer().query(["q"]), outer, tenant);
        for tenant in ["alice", "bob"] {
            let reply = send(&app, get(&format!("/page?tenant={tenant}&q=1"))).await;
            assert_eq!(reply.text(), format!("tenant={tenant}"), "{}", reply.cache_status());
        }
    }
}

/// The outer layer does not ignore cookies, so they select where the response says so.
#[tokio::test(start_paused = true)]
async fn a_response_that_varies_by_cookie_is_not_shared_though_the_inner_layer_ignores_cookies() {
    for is_removed in [false, true] {
        let cache = with_ttl(60);
        let origin = Origin::new(|call| {
            Answer::ok("public, max-age=60", seen(call)).header("vary", "cookie")
        });
        let (inner, outer) = (cache.http_layer().ignore_cookies(["*"]), cache.http_layer());
        let app = match is_removed {
            true => behind("cookie", &origin, inner, outer),
            false => says(&origin, inner, outer, |request| field(request, "cookie")),
        };
        for user in ["user=alice", "user=bob"] {
            let reply = send(&app, with("/page", &[("cookie", user)])).await;
            assert_eq!(reply.text(), user, "{is_removed} {}", reply.cache_status());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_outermost_of_three_layers_counts_cookies_that_the_innermost_ignores() {
    for is_removed in [false, true] {
        let cache = with_ttl(60);
        let origin = Origin::new(|call| {
            Answer::ok("public, max-age=60", seen(call)).header("vary", "cookie, accept-language")
        });
        let rules = cache.http_layer().ignore_cookies(["*"]).normalise_accept(true);
        let route = Router::new().route("/page", plain_route(&origin).layer(rules));
        let inside = route.layer(cache.http_layer());
        let inside = match is_removed {
            true => inside.layer(map_request(|request| take("cookie", request))),
            false => inside.layer(map_request(async |mut request: Request<Body>| {
                let said = field(&request, "cookie");
                request.extensions_mut().insert(Seen(said));
                request
            })),
        };
        let app = inside.layer(cache.http_layer().normalise_accept(false));
        for user in ["user=alice", "user=bob"] {
            let reply = send(&app, with("/page", &[("cookie", user)])).await;
            assert_eq!(reply.text(), user, "{is_removed} {}", reply.cache_status());
        }
        for languages in ["de, en", "en, de"] {
            let reply = send(&app, with("/page", &[("accept-language", languages)])).await;
            assert!(reply.is(Computed), "{}", reply.cache_status());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_order_of_languages_counts_where_either_layer_says_so() {
    for is_inner in [false, true] {
        let cache = with_ttl(60);
        let origin = Origin::new(|call| {
            Answer::ok("max-age=60", seen(call)).header("vary", "accept-language")
        });
        let (plain, strict) = (cache.http_layer(), cache.http_layer().normalise_accept(false));
        let (inner, outer) = if is_inner { (strict, plain) } else { (plain, strict) };
        let app = says(&origin, inner, outer, |request| {
            field(request, "accept-language").split(',').next().unwrap().into()
        });
        for (languages, first) in [("de, en", "de"), ("en, de", "en")] {
            let reply = send(&app, with("/page", &[("accept-language", languages)])).await;
            assert_eq!(reply.text(), first, "{is_inner} {}", reply.cache_status());
        }
    }
}

/// As a list the two values would be one.
#[tokio::test(start_paused = true)]
async fn the_values_of_a_credential_are_told_apart_to_the_byte_where_either_layer_names_it() {
    for is_inner in [false, true] {
        let cache = with_ttl(60);
        let origin = Origin::new(|call| {
            Answer::ok("public, max-age=60", seen(call)).header("vary", "x-api-key")
        });
        let (strict, lax) = (cache.http_layer(), cache.http_layer().replace_credential_headers([]));
        let (inner, outer) = if is_inner { (strict, lax) } else { (lax, strict) };
        let app = says(&origin, inner, outer, |request| field(request, "x-api-key"));
        for key in ["a,b", "a, b"] {
            let reply = send(&app, with("/page", &[("x-api-key", key)])).await;
            assert_eq!(reply.text(), key, "{is_inner} {}", reply.cache_status());
        }
    }
}

/// The inner layer has received it.
#[tokio::test(start_paused = true)]
async fn a_field_that_the_layers_name_counts_where_something_between_has_added_it() {
    for (which, is_alike) in
        ["vary", "keyed", "credential"].map(|it| [(it, false), (it, true)]).concat()
    {
        let cache = with_ttl(60);
        let origin = Origin::new(|call| {
            Answer::status(200).body(call.header("x-member").unwrap_or("none").to_owned())
        });
        let outer = cache.http_layer();
        let outer = match which {
            "vary" => outer.vary(["x-member"]),
            "keyed" => outer.keyed_headers(["x-member"]),
            _ => outer.credential_headers(["x-member"]),
        };
        let inner = if is_alike { outer.clone() } else { cache.http_layer() };
        let route = plain(&origin).layer(inner);
        let app = route
            .layer(map_request(async |mut request: Request<Body>| {
                // As a layer does that knows the client by its connection.
                let member = request.extensions().get::<Seen>().unwrap().0.parse().unwrap();
                request.headers_mut().insert("x-member", member);
                request
            }))
            .layer(outer);
        for user in ["alice", "bob"] {
            let mut request = get("/page");
            request.extensions_mut().insert(Seen(user.into()));
            let reply = send(&app, request).await;
            assert_eq!(reply.text(), user, "{which} {is_alike} {}", reply.cache_status());
        }
    }
}

/// The POST does not pass the layer of the GET. Before the first GET the outer layer cannot know
/// of it.
#[tokio::test(start_paused = true)]
async fn the_response_to_a_post_beside_a_private_get_is_not_stored_for_gets() {
    use axum::routing::get as on_get;
    for gets_before in [0, 1] {
        let cache = with_ttl(60);
        let origin = Origin::new(|call| {
            let body = format!("{} {}", call.parts.method, call.header("x-name").unwrap_or("none"));
            Answer::ok("max-age=60", body).header("content-location", "/me")
        });
        let (one, two) = (origin.clone(), origin.clone());
        let route = on_get(move |request| one.clone().handle(request))
            .layer(cache.http_layer().private())
            .post(move |request| two.clone().handle(request));
        let app: Router = Router::new().route("/me", route).layer(post_storing(&cache));
        let fields = |name| [("host", "x"), ("x-name", name)];
        for _ in 0..gets_before {
            send(&app, with("/me", &fields("bob"))).await;
        }
        send(&app, request("POST", "/me", &fields("alice"))).await;
        let bob = send(&app, with("/me", &fields("bob"))).await;
        assert_eq!(bob.text(), "GET bob", "{gets_before}: {}", bob.cache_status());
    }
}

/// axum gives such a layer its service when the first GET comes.
#[tokio::test(start_paused = true)]
async fn the_response_to_a_post_is_not_stored_for_gets_wherever_axum_has_put_the_layer_of_the_get()
{
    use axum::handler::Handler;
    use axum::routing::get as on_get;
    for place in ["method", "handler"] {
        for kind in ["layer", "clone"] {
            let cache = with_ttl(60);
            let origin = Origin::new(|call| {
                let name = call.header("x-name").unwrap_or("none");
                let body = format!("{} {name}", call.parts.method);
                Answer::ok("max-age=60", body).header("content-location", "/me")
            });
            let (one, two) = (origin.clone(), origin.clone());
            let outer = post_storing(&cache);
            let inner = match kind {
                "layer" => cache.http_layer(),
                _ => outer.clone(),
            };
            let inner = inner.private();
            let page = move |request: Request<Body>| one.clone().handle(request);
            let route = match place {
                "method" => on_get(page).route_layer(inner),
                _ => on_get(page.layer(inner)),
            };
            let route = route.post(move |request: Request<Body>| two.clone().handle(request));
            let app: Router = Router::new().route("/me", route).layer(outer);
            let fields = |name| [("host", "x"), ("x-name", name)];
            send(&app, request("POST", "/me", &fields("alice"))).await;
            let bob = send(&app, with("/me", &fields("bob"))).await;
            assert_eq!(bob.text(), "GET bob", "{place}, {kind}: {}", bob.cache_status());
        }
    }
}

/// A layer has many services and clones; they are one layer as long as no setting is changed.
#[tokio::test(start_paused = true)]
async fn the_response_to_a_post_is_stored_where_all_layers_of_the_handle_are_one() {
    let cache = with_ttl(60);
    let origin = Origin::new(|call| {
        Answer::ok("max-age=60", call.parts.method.to_string()).header("content-location", "/page")
    });
    let layer = post_storing(&cache).stale_for(secs(5)).max_variants(3);
    let _other = plain(&origin).layer(layer.clone());
    let app = plain(&origin).layer(layer.clone());
    send(&app, request("POST", "/page", &[("host", "x")])).await;
    let reply = send(&app, with("/page", &[("host", "x")])).await;
    assert_eq!(reply.text(), "POST", "{}", reply.cache_status());
    // From now on there are two.
    let _third = layer.private();
    send(&app, request("POST", "/page", &[("host", "x")])).await;
    let reply = send(&app, with("/page", &[("host", "x")])).await;
    assert_eq!(reply.text(), "GET", "{}", reply.cache_status());
}
