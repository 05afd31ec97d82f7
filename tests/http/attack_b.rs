//! An attack on nested layers, admin routes and memory bounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use axum::Router;
use axum::body::Body;
use axum::middleware::{Next, from_fn, map_request};
use axum::routing::any;
use http::Request;
use serde_json::{Value, json};
use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{HttpLayer, HttpStampede, Stampede, admin};

use crate::kit::http::*;

#[derive(Clone)]
struct Seen(String);

fn seen(call: &Call) -> String {
    call.parts.extensions.get::<Seen>().map_or("nothing".into(), |seen| seen.0.clone())
}

/// outer( between( inner( origin ) ) ) at `/page`.
fn nested(
    origin: &Origin,
    inner: HttpLayer,
    outer: HttpLayer,
    between: impl Fn(&Request<Body>) -> String + Clone + Send + Sync + 'static,
) -> Router {
    let handler = origin.clone();
    let route = any(move |request| handler.clone().handle(request)).layer(inner);
    Router::new()
        .route("/page", route)
        .layer(map_request(move |mut request: Request<Body>| {
            let said = between(&request);
            async move {
                request.extensions_mut().insert(Seen(said));
                request
            }
        }))
        .layer(outer)
}

// ===== 1: nested layers =====

/// docs: "Two requests share a response only if they would share it by what either layer has
/// received"; "The rules in force are those of all layers".
#[tokio::test(start_paused = true)]
async fn a_parameter_that_the_outer_layer_counts_keeps_clients_apart_though_the_inner_one_leaves_it_out()
 {
    for query in [None, Some(["tenant", "q"])] {
        let cache = with_ttl(60);
        let origin = Origin::new(|call| Answer::status(200).body(seen(call)));
        let outer = cache.http_layer();
        let outer = if let Some(query) = query { outer.query(query) } else { outer };
        let app = nested(&origin, cache.http_layer().query(["q"]), outer, |request| {
            let query = request.uri().query().unwrap_or_default();
            query.split('&').find(|it| it.starts_with("tenant=")).unwrap_or("none").into()
        });
        for tenant in ["alice", "bob"] {
            let reply = send(&app, get(&format!("/page?tenant={tenant}&q=1"))).await;
            assert_eq!(reply.text(), format!("tenant={tenant}"), "{}", reply.cache_status());
        }
    }
}

/// docs: "A field that a response itself names in `Vary` selects by its value in each of these
/// requests". The outer layer does not ignore cookies.
#[tokio::test(start_paused = true)]
async fn a_response_that_varies_by_cookie_is_not_shared_though_the_inner_layer_ignores_cookies() {
    let cache = with_ttl(60);
    let origin =
        Origin::new(|call| Answer::ok("public, max-age=60", seen(call)).header("vary", "cookie"));
    let app = nested(&origin, cache.http_layer().ignore_cookies(), cache.http_layer(), |request| {
        let cookie = request.headers().get("cookie");
        cookie.map_or("none".into(), |cookie| cookie.to_str().unwrap().into())
    });
    for user in ["user=alice", "user=bob"] {
        let reply = send(&app, with("/page", &[("cookie", user)])).await;
        assert_eq!(reply.text(), user, "{}", reply.cache_status());
    }
}

/// The outer layer says that the order of languages counts.
#[tokio::test(start_paused = true)]
async fn the_order_of_languages_counts_where_the_outer_layer_says_so() {
    let cache = with_ttl(60);
    let origin = Origin::new(|call| {
        Answer::ok("max-age=60", seen(call)).header("vary", "accept-language")
    });
    let outer = cache.http_layer().normalise_accept(false);
    let app = nested(&origin, cache.http_layer(), outer, |request| {
        let languages = request.headers()["accept-language"].to_str().unwrap();
        languages.split(',').next().unwrap().into()
    });
    for (languages, first) in [("de, en", "de"), ("en, de", "en")] {
        let reply = send(&app, with("/page", &[("accept-language", languages)])).await;
        assert_eq!(reply.text(), first, "{}", reply.cache_status());
    }
}

/// docs: "That happens at most four times in a row for each URI."
#[tokio::test(start_paused = true)]
async fn a_crowd_at_a_known_uri_that_is_answered_from_between_is_not_a_call_for_each_client() {
    let (cache, origin) = (with_ttl(10), Origin::new(|_| Answer::status(200).body("route")));
    let (calls, is_closed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let handler = origin.clone();
    let route = any(move |request| handler.clone().handle(request)).layer(cache.rules());
    let (counted, closed) = (Arc::clone(&calls), Arc::clone(&is_closed));
    let app: Router = Router::new()
        .route("/page", route)
        .layer(from_fn(move |request: Request<Body>, next: Next| {
            let (counted, closed) = (Arc::clone(&counted), Arc::clone(&closed));
            async move {
                if closed.load(SeqCst) == 0 {
                    return next.run(request).await;
                }
                counted.fetch_add(1, SeqCst);
                tokio::time::sleep(ms(100)).await;
                http::Response::builder()
                    .header("cache-control", "max-age=3600")
                    .body(Body::from("closed"))
                    .unwrap()
            }
        }))
        .layer(cache.http_layer());
    send(&app, get("/page")).await;
    pass(secs(11)).await;
    is_closed.store(1, SeqCst);
    crowd(&app, 50, |_| get("/page")).await;
    assert!(calls.load(SeqCst) <= 5, "{}", calls.load(SeqCst));
}

/// threats: "a refresh carries only what was keyed; with a rule of `key` or `identity`, all fields
/// but credentials". There is no such rule here.
#[tokio::test(start_paused = true)]
async fn a_refresh_behind_two_layers_without_rules_of_the_application_carries_only_what_was_keyed() {
    for (is_nested, is_rules) in [(false, false), (true, true), (true, false)] {
        let cache = with_ttl(60);
        let origin = Origin::new(|call| {
            let evil = call.header("x-link").unwrap_or("none").to_owned();
            Answer::ok("max-age=10, stale-while-revalidate=600", evil)
        });
        let inner = if is_rules { cache.rules() } else { cache.http_layer().ttl(secs(5)) };
        let app = inner.layer(origin.infallible());
        let ask = async |request| match is_nested {
            true => send(&cache.http_layer().layer(app.clone()), request).await,
            false => send(&app, request).await,
        };
        assert_eq!(ask(get("/page")).await.text(), "none");
        pass(secs(11)).await;
        assert!(ask(with("/page", &[("x-link", "evil")])).await.is(Stale));
        pass(secs(1)).await;
        let victim = ask(get("/page")).await;
        assert!(victim.is(Hit), "{}", victim.cache_status());
        assert_eq!(victim.text(), "none", "nested: {is_nested}, rules: {is_rules}");
    }
}

// ===== 5: admin =====

async fn ask(app: &Router, method: &str, uri: &str, body: String) -> (u16, Value) {
    let mut request = request(method, uri, &[]);
    *request.body_mut() = body.into();
    let reply = send(app, request).await;
    (reply.status, serde_json::from_str(reply.text()).unwrap())
}

async fn keys(app: &Router) -> Vec<String> {
    let (_, said) = ask(app, "GET", "/keys", String::new()).await;
    let keys = said["keys"].as_array().unwrap();
    keys.iter().map(|it| it["key"].as_str().unwrap().to_owned()).collect()
}

/// admin: a purge "reaches computations that run".
#[tokio::test(start_paused = true)]
async fn a_purge_by_the_key_of_a_response_reaches_the_computation_that_runs() {
    for what in ["path", "key"] {
        let cache = with_ttl(10);
        let origin = Origin::new(|call| {
            Answer::status(200).body(format!("version {}", call.n)).after(secs(5))
        });
        let (site, app) = (cache.http_layer().stale_for(secs(60)).layer(origin.clone()), admin::router(cache.clone()));
        send(&site, get("/page")).await;
        let key = keys(&app).await.pop().unwrap();
        pass(secs(11)).await;
        // Served stale: the computation of version 1 runs.
        assert!(send(&site, get("/page")).await.is(Stale));
        pass(secs(1)).await;
        let said = match what {
            "key" => json!({"key": key}),
            _ => json!({"path": "/page"}),
        };
        assert_eq!(ask(&app, "POST", "/purge", said.to_string()).await.0, 200);
        pass(secs(6)).await;
        let reply = send(&site, get("/page")).await;
        assert_eq!(reply.text(), "version 2", "{what}: {}", reply.cache_status());
    }
}

/// The same without anything stored: the operator knows the key from before.
#[tokio::test(start_paused = true)]
async fn a_purge_by_the_key_of_a_response_reaches_the_first_computation() {
    for what in ["path", "key"] {
        let cache = with_ttl(10);
        let origin = Origin::new(|call| {
            Answer::status(200).body(format!("version {}", call.n)).after(secs(5))
        });
        let (site, app) = (cache.http_layer().layer(origin.clone()), admin::router(cache.clone()));
        send(&site, get("/page")).await;
        let key = keys(&app).await.pop().unwrap();
        pass(secs(60)).await;
        let purge = async {
            pass(secs(1)).await;
            let said = match what {
                "key" => json!({"key": key}),
                _ => json!({"path": "/page"}),
            };
            ask(&app, "POST", "/purge", said.to_string()).await
        };
        tokio::join!(send(&site, get("/page")), purge);
        let reply = send(&site, get("/page")).await;
        assert_eq!(reply.text(), "version 2", "{what}: {}", reply.cache_status());
    }
}

/// admin: `POST /purge` with a key "purges one entry".
#[tokio::test(start_paused = true)]
async fn a_purge_by_each_key_of_a_url_with_variants_ends_them_all() {
    let cache = with_ttl(60);
    let origin = Origin::new(|call| {
        Answer::status(200).body(format!("version {}", call.n)).header("vary", "accept-language")
    });
    let (site, app) = (cache.http_layer().layer(origin.clone()), admin::router(cache.clone()));
    for language in ["de", "en"] {
        send(&site, with("/page", &[("accept-language", language)])).await;
    }
    for key in keys(&app).await {
        let (status, _) = ask(&app, "POST", "/purge", json!({"key": key}).to_string()).await;
        assert_eq!(status, 200);
    }
    for (n, language) in ["de", "en"].into_iter().enumerate() {
        let reply = send(&site, with("/page", &[("accept-language", language)])).await;
        assert_eq!(reply.text(), format!("version {}", n + 2), "{}", reply.cache_status());
    }
}

// ===== 4: memory =====

#[global_allocator]
static ALLOCATOR: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn live() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

fn bounded(max_bytes: usize) -> HttpStampede {
    Stampede::builder("test").origin_only().max_bytes(max_bytes as u64).build().unwrap()
}

/// how-it-works: "`max_bytes` bounds memory"; threats: "entries, variants and markers are
/// bounded". Not counted are "values that callers hold, flights and waiters, and about 100 KiB".
#[tokio::test(start_paused = true)]
async fn long_urls_of_a_page_that_may_not_be_stored_take_no_more_than_max_bytes() {
    let before = live();
    let cache = bounded(4 * MIB);
    let origin = tower::service_fn(|_: Request<Body>| async {
        let response = http::Response::builder().header("cache-control", "no-store");
        Ok::<_, std::convert::Infallible>(response.body(Body::from("x")).unwrap())
    });
    let app = cache.http_layer().layer(origin);
    for n in 0..16_000 {
        let path = format!("/account?{n}{}", "x".repeat(7 * KIB));
        send(&app, get(&path)).await;
    }
    let stats = cache.stats();
    assert_eq!((stats.flights, stats.waiting, stats.entries), (0, 0, 0));
    let held = live() - before;
    assert!(held <= 8 * MIB, "{} MiB are held beside {} bytes that count", held / MIB, stats.bytes);
}

/// how-it-works: an entry weighs "the value, and what value, key and tags have on the heap"; the
/// issue: resident growth is at most 1.25 x `max_bytes` for HTTP responses.
#[tokio::test(start_paused = true)]
async fn variants_that_name_fields_in_vary_take_no_more_than_max_bytes() {
    let mut is_over = false;
    for names in [0, 4, 16, 64, 200] {
        let before = live();
        let cache = bounded(8 * MIB);
        let list: Vec<_> = (0..names).map(|n| format!("x-field-number-{n}")).collect();
        let list = list.join(", ");
        let list = if names > 0 { format!("accept, {list}") } else { "accept".to_owned() };
        let origin = tower::service_fn(move |_: Request<Body>| {
            let response = http::Response::builder().header("cache-control", "max-age=600");
            let response = response.header("vary", &list);
            async move {
                Ok::<_, std::convert::Infallible>(response.body(Body::from("x")).unwrap())
            }
        });
        let app = cache.http_layer().layer(origin);
        for n in 0..15_000 {
            let accept = n.to_string();
            send(&app, with(&format!("/page?{}", n / 60), &[("accept", &accept)])).await;
        }
        let counted = cache.stats().bytes;
        let held = live() - before;
        let share = held * 100 / (8 * MIB);
        println!("{names}: {held} bytes are held, {counted} are counted: {share} hundredths");
        is_over |= held > 10 * MIB;
    }
    assert!(!is_over, "see above");
}

// ===== 8: nothing from the network panics =====

mod fuzz {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn no_request_to_nested_layers_panics(
            uris in proptest::collection::vec("(http://|https://|//)?[aA]?(:80|:|@)?/?(page|%7e|\\*)?(\\?[q=&tu%?x]{0,8})?|\\*|a:1", 1..4),
            methods in proptest::collection::vec(0_usize..5, 4),
            fields in proptest::collection::vec((0_usize..12, proptest::collection::vec(prop_oneof![Just(0xff_u8), Just(b','), Just(b'"'), Just(b'='), 0x20..0x7f_u8], 0..12)), 0..5),
        ) {
            const NAMES: [&str; 12] = ["host", "range", "if-none-match", "cookie", "accept-language",
                "accept_language", "cache-control", "x-forwarded-host", "if-modified-since", "x-user", "if-range", "authorization"];
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let cache = with_ttl(60);
                let origin = Origin::new(|_| Answer::ok("public, max-age=5, stale-while-revalidate=60", "ten bytes.")
                    .header("vary", "accept-language, cookie").header("etag", "\"a\"").after(ms(1)));
                let inner = cache.rules().query(["q"]).vary(["x-user"]).layer(origin.infallible());
                let middle = cache.http_layer().query(["q", "t"]).ignore_cookies().honour_request_directives(true).layer(inner);
                let app = cache.http_layer().query([]).store_post_responses(true).layer(middle);
                for (n, uri) in uris.iter().enumerate() {
                    let Ok(uri) = uri.parse::<http::Uri>() else { continue };
                    for _ in 0..3 {
                        let mut request = request(["GET", "HEAD", "POST", "GET", "OPTIONS"][methods[n]], "/", &[]);
                        *request.uri_mut() = uri.clone();
                        for (name, value) in &fields {
                            let Ok(value) = http::HeaderValue::from_bytes(value) else { continue };
                            request.headers_mut().append(NAMES[*name], value);
                        }
                        let response = tower::ServiceExt::oneshot(app.clone(), request).await.unwrap();
                        let _ = http_body_util::BodyExt::collect(response.into_body()).await;
                        pass(secs(3)).await;
                    }
                }
            });
        }
    }
}

// ===== 1: nested layers share only what each of the two would share alone =====

mod differential {
    use super::*;
    use proptest::prelude::{ProptestConfig, Strategy, prop_assert, proptest};

    /// Settings that say which requests share. (`query`, `ignore_cookies` and `normalise_accept`
    /// of an inner `http_layer` have tests of their own above.)
    fn set(layer: HttpLayer, which: usize) -> HttpLayer {
        match which {
            0 => layer.vary(["x-plan"]),
            1 => layer.keyed_headers(["x-sid"]),
            2 => layer.credential_headers(["x-sid"]),
            3 => layer.scope("s"),
            4 => layer.scheme("https"),
            5 => layer.identity(|parts| {
                Some(parts.headers.get("x-plan").map(|it| it.as_bytes().to_vec()))
            }),
            6 => layer.replace_keyed_headers([]),
            7 => layer.not_a_credential("x-user"),
            8 => layer.vary(["cookie"]),
            9 => layer.keyed_headers(["authorization"]),
            10 => layer.identity(|parts| parts.headers.get("x-sid").map(|it| it.as_bytes().to_vec())),
            11 => layer.bypass(|parts| parts.headers.contains_key("x-plan")),
            12 => layer.vary(["accept-language"]),
            13 => layer.query(["q"]),
            14 => layer.ignore_cookies(),
            15 => layer.normalise_accept(false),
            16 => layer.replace_credential_headers(["x-sid"]),
            _ => layer.not_keyed("x-forwarded-host"),
        }
    }

    const FIELDS: [(&str, &str); 15] = [
        ("host", "a"),
        ("host", "b"),
        ("cookie", "u=1"),
        ("cookie", "u=2"),
        ("authorization", "alice"),
        ("authorization", "bob"),
        ("accept-language", "de, en"),
        ("accept-language", "en, de"),
        ("x-sid", "1"),
        ("x-sid", "2"),
        ("x-plan", "1"),
        ("x-plan", "2"),
        ("x-user", "1"),
        ("x-user", "2"),
        ("x-forwarded-host", "c"),
    ];
    const URIS: [&str; 4] = ["/page?q=1", "/page?q=1&t=1", "/page?q=1&t=2", "/page?q=2"];
    const CONTROL: [&str; 3] = ["", "max-age=60", "public, max-age=60"];
    const VARY: [&str; 4] = ["", "accept-language", "cookie", "x-plan"];
    const REMOVED: [&str; 6] = ["x-none", "cookie", "authorization", "x-sid", "x-plan", "accept-language"];

    fn made(uri: usize, fields: &[usize]) -> Request<Body> {
        let mut request = get(URIS[uri]);
        for field in fields {
            let (name, value) = FIELDS[*field];
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        request
    }

    fn behind(inside: Router, removed: &'static str, outer: Option<HttpLayer>) -> Router {
        let app = inside.layer(map_request(move |mut request: Request<Body>| async move {
            request.headers_mut().remove(removed);
            request
        }));
        match outer {
            Some(outer) => app.layer(outer),
            None => app,
        }
    }

    fn route(origin: &Origin, inner: Option<HttpLayer>) -> Router {
        let handler = origin.clone();
        let route: axum::routing::MethodRouter =
            any(move |request| handler.clone().handle(request));
        Router::new().route("/page", match inner {
            Some(inner) => route.layer(inner),
            None => route,
        })
    }

    async fn shares(app: &Router, origin: &Origin, is_warm: bool, one: [(usize, &[usize]); 2]) -> bool {
        if is_warm {
            send(app, get("/page?warm")).await;
        }
        let before = origin.calls();
        for (uri, fields) in one {
            send(app, made(uri, fields)).await;
        }
        origin.calls() == before + 1
    }

    fn sets(base: HttpLayer, settings: &[usize]) -> HttpLayer {
        settings.iter().fold(base, |layer, which| set(layer, *which))
    }

    fn fields() -> impl Strategy<Value = Vec<usize>> {
        proptest::collection::vec(0..FIELDS.len(), 0..3)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 4000, ..ProptestConfig::default() })]

        #[test]
        fn nested_layers_share_what_each_of_them_would_share_alone(
            is_rules: bool,
            is_warm: bool,
            outer in proptest::collection::vec(0_usize..18, 0..3),
            inner in proptest::collection::vec(0_usize..18, 0..3),
            (control, vary, removed) in (0_usize..3, 0_usize..4, 0_usize..6),
            common in fields(),
            one in fields(),
            other in fields(),
            (uri, other_uri) in (0_usize..4, 0_usize..4),
        ) {
            // Known already.
            let known = |which: &usize| matches!(which, 13 | 14 | 15);
            let inner: Vec<_> = inner.into_iter().filter(|it| is_rules || !known(it)).collect();
            let outer: Vec<_> = outer.into_iter().filter(|it| is_rules || !matches!(*it, 14 | 15)).collect();
            let (one, other) = ([&common[..], &one].concat(), [&common[..], &other].concat());
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let origin = Origin::new(move |_| {
                    let mut answer = Answer::status(200).body("x").after(ms(1));
                    if !CONTROL[control].is_empty() { answer = answer.header("cache-control", CONTROL[control]); }
                    if !VARY[vary].is_empty() { answer = answer.header("vary", VARY[vary]); }
                    answer
                });
                let pair = [(uri, &one[..]), (other_uri, &other[..])];
                let cache = with_ttl(60);
                let own = if is_rules { cache.rules() } else { cache.http_layer() };
                let app = behind(route(&origin, Some(sets(own, &inner))), REMOVED[removed], Some(sets(cache.http_layer(), &outer)));
                if !shares(&app, &origin, is_warm, pair).await {
                    return Ok(());
                }
                // Alone, each with the rules that count there.
                // A rule of the application is asked where it stands.
                let data = |all: &[usize]| all.iter().copied().filter(|it| !matches!(it, 5 | 10 | 11)).collect::<Vec<_>>();
                let both = ([&outer[..], &data(&inner)].concat(), [&data(&outer)[..], &inner].concat());
                let (at_outer, at_inner) = if is_rules { (&both.0, &both.1) } else { (&outer, &inner) };
                let (first, second) = (with_ttl(60), with_ttl(60));
                let app = behind(route(&origin, None), REMOVED[removed], Some(sets(first.http_layer(), at_outer)));
                prop_assert!(shares(&app, &origin, is_warm, pair).await, "at the outer place");
                let app = behind(route(&origin, Some(sets(second.http_layer(), at_inner))), REMOVED[removed], None);
                prop_assert!(shares(&app, &origin, is_warm, pair).await, "at the inner place");
                Ok(())
            })?;
        }
    }
}

// ===== 2: one call for each key and window =====

mod calls {
    use super::*;

    fn answer(call: &Call) -> Answer {
        if call.header("if-none-match").is_some() {
            return Answer::status(304).header("etag", "\"a\"").header("cache-control", "max-age=10");
        }
        Answer::ok("max-age=10", "ten bytes.").header("etag", "\"a\"")
    }

    fn handler(origin: &Origin) -> axum::routing::MethodRouter {
        let origin = origin.clone();
        any(move |request| origin.clone().handle(request))
    }

    async fn slow(request: Request<Body>, next: Next) -> http::Response<Body> {
        tokio::time::sleep(ms(30)).await;
        next.run(request).await
    }

    fn apps(origin: &Origin) -> Vec<(&'static str, Router)> {
        let (a, b) = (with_ttl(60), with_ttl(60));
        let route = |layer: HttpLayer| Router::new().route("/page", handler(origin).layer(layer));
        let layer = with_ttl(60).http_layer();
        let c = with_ttl(60);
        vec![
            ("two handles", route(b.http_layer()).layer(a.http_layer())),
            ("two handles, three layers", route(a.rules()).layer(b.http_layer()).layer(a.http_layer())),
            (
                "merged",
                Router::new()
                    .merge(route(c.rules()).layer(c.http_layer().query([])))
                    .route("/other", handler(origin))
                    .layer(c.http_layer().query(["q"])),
            ),
            ("one layer twice", route(layer.clone()).layer(layer)),
            (
                "fallback",
                Router::new()
                    .route("/other", handler(origin))
                    .fallback_service(handler(origin).layer(with_ttl(60).http_layer()))
                    .layer(from_fn(slow))
                    .layer(with_ttl(60).http_layer()),
            ),
            (
                "fallback of one handle",
                {
                    let c = with_ttl(60);
                    Router::new()
                        .route("/other", handler(origin))
                        .fallback_service(handler(origin).layer(c.rules()))
                        .layer(from_fn(slow))
                        .layer(c.http_layer())
                },
            ),
            (
                "nested router of one handle",
                {
                    let c = with_ttl(60);
                    Router::new()
                        .nest("/sub", Router::new().route("/x", handler(origin)).layer(c.http_layer()))
                        .merge(route(c.rules()))
                        .layer(from_fn(slow))
                        .layer(c.http_layer())
                },
            )
        ]
    }

    #[tokio::test(start_paused = true)]
    async fn crowds_of_all_kinds_are_one_call_for_each_window() {
        let origin = Origin::new(answer);
        let names: Vec<_> = (0..7).collect();
        for n in names {
            let origin = origin.clone();
            let list = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| apps(&origin)));
            let Ok(list) = list else { panic!("the router cannot be built") };
            let (name, app) = list.into_iter().nth(n).unwrap();
            for window in 0..4 {
                let before = origin.calls();
                // Some hang up at once.
                let leaving: Vec<_> = (0..5)
                    .map(|_| {
                        let app = app.clone();
                        tokio::spawn(async move { send(&app, get("/page?q=1")).await })
                    })
                    .collect();
                pass(ms(10)).await;
                leaving.iter().for_each(|client| client.abort());
                let replies = crowd(&app, 40, |n| match n % 4 {
                    0 => with("/page?q=1", &[("if-none-match", "\"a\"")]),
                    1 => with("/page?q=1", &[("range", "bytes=0-3")]),
                    2 => request("HEAD", "/page?q=1", &[]),
                    _ => get("/page?q=1"),
                })
                .await;
                for (n, reply) in replies.iter().enumerate() {
                    let expected = [304, 206, 200, 200][n % 4];
                    assert_eq!(reply.status, expected, "{name} {n} {}", reply.cache_status());
                    assert_eq!(reply.body.len(), [0, 4, 0, 10][n % 4], "{name} {n}");
                }
                assert_eq!(origin.calls(), before + 1, "{name}, window {window}");
                pass(secs(11)).await;
            }
        }
    }
}

/// docs: "Where the handle has made several layers that differ, it is not stored for GETs: the
/// POST may not pass the layer that the GETs pass." axum makes the service of such a layer when
/// the first request comes.
#[tokio::test(start_paused = true)]
async fn the_response_to_a_post_is_not_stored_for_gets_wherever_axum_has_put_the_layer_of_the_get() {
    use axum::handler::Handler;
    use axum::routing::get as on_get;
    let mut wrong = Vec::new();
    for (name, of_route) in [("method", true), ("handler", true), ("method", false), ("handler", false)] {
        let cache = with_ttl(60);
        let origin = Origin::new(|call| {
            let body = format!("{} {}", call.parts.method, call.header("x-name").unwrap_or("none"));
            Answer::ok("max-age=60", body).header("content-location", "/me")
        });
        let (one, two) = (origin.clone(), origin.clone());
        let inner = if of_route { cache.rules() } else { cache.http_layer() }.private();
        let page = move |request: Request<Body>| one.clone().handle(request);
        let route = match name {
            "method" => on_get(page).route_layer(inner),
            _ => on_get(page.layer(inner)),
        };
        let route = route.post(move |request: Request<Body>| two.clone().handle(request));
        let app: Router = Router::new().route("/me", route).layer(post_storing(&cache));
        let fields = |name| [("host", "x"), ("x-name", name)];
        send(&app, request("POST", "/me", &fields("alice"))).await;
        let bob = send(&app, with("/me", &fields("bob"))).await;
        if bob.text() != "GET bob" {
            wrong.push(format!("{name}, rules: {of_route}: {} ({})", bob.text(), bob.cache_status()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The same layers in their ordinary use: made for each request, they are still one.
#[tokio::test(start_paused = true)]
async fn a_layer_of_a_handler_is_one_layer_for_all_requests() {
    use axum::handler::Handler;
    use axum::routing::get as on_get;
    let cache = with_ttl(60);
    let origin = Origin::new(|call| Answer::status(200).body(call.uri()));
    let one = origin.clone();
    let page = move |request: Request<Body>| one.clone().handle(request);
    let app: Router = Router::new()
        .route("/page", on_get(page.layer(cache.rules().query(["q"]))))
        .layer(cache.http_layer());
    for n in 0..20 {
        crowd(&app, 20, |m| get(&format!("/page?q=1&u={n}{m}"))).await;
    }
    assert_eq!(origin.calls(), 1);
}

/// Bodies of all kinds, clients that leave at any time, and purges meanwhile.
#[tokio::test(start_paused = true)]
async fn bytes_of_arriving_bodies_stay_below_their_bound_and_all_come_back() {
    fn random(n: &AtomicUsize, below: usize) -> usize {
        let n = n.fetch_add(1, SeqCst) as u64;
        (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize % below
    }
    let seed = Arc::new(AtomicUsize::new(1));
    let cache: HttpStampede = Stampede::builder("test")
        .origin_only()
        .max_arriving_bytes(100_000)
        .max_bytes(1 << 20)
        .compute_timeout(secs(20))
        .build()
        .unwrap();
    let own = Arc::clone(&seed);
    let origin = tower::service_fn(move |_: Request<Body>| {
        let own = Arc::clone(&own);
        async move {
            tokio::time::sleep(ms(random(&own, 300) as u64)).await;
            let chunks = random(&own, 30);
            let size = [1, 600, 3000][random(&own, 3)];
            let end = random(&own, 4);
            let stream = futures_util::stream::unfold(0, move |at| {
                let own = Arc::clone(&own);
                async move {
                    tokio::time::sleep(ms(random(&own, 200) as u64)).await;
                    if at < chunks {
                        return Some((Ok(bytes::Bytes::from(vec![b'x'; size])), at + 1));
                    }
                    match end {
                        0 => Some((Err(std::io::Error::other("broken")), at + 1)),
                        1 => std::future::pending().await,
                        _ => None,
                    }
                }
            });
            let response = http::Response::builder().header("cache-control", "max-age=1");
            let response =
                if end == 3 { response.header("content-length", chunks * size) } else { response };
            Ok::<_, std::convert::Infallible>(response.body(Body::from_stream(stream)).unwrap())
        }
    });
    let inner = cache.rules().max_body(60_000).layer(origin);
    let app = cache.http_layer().layer(inner);
    let mut clients = Vec::new();
    for n in 0..3000 {
        let (app, own) = (app.clone(), Arc::clone(&seed));
        clients.push(tokio::spawn(async move {
            let path = format!("/{}", random(&own, 20));
            let life = ms(random(&own, 6000) as u64);
            let _ = tokio::time::timeout(life, async {
                let response = tower::ServiceExt::oneshot(app, get(&path)).await.unwrap();
                if random(&own, 5) == 0 {
                    tokio::time::sleep(secs(5)).await;
                }
                let _ = http_body_util::BodyExt::collect(response.into_body()).await;
            })
            .await;
        }));
        if n % 50 == 0 {
            cache.invalidate_path(&format!("/{}", n % 20)).await;
        }
        pass(ms(20)).await;
        let arriving = cache.stats().arriving_bytes;
        assert!(arriving <= 100_000, "{arriving}");
    }
    for client in clients {
        client.await.unwrap();
    }
    pass(secs(600)).await;
    let stats = cache.stats();
    assert_eq!((stats.arriving_bytes, stats.flights, stats.waiting), (0, 0, 0));
}
