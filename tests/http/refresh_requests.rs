//! What a background refresh sends: what the response was selected by, and
//! nothing else of the client that happened to trigger it.

use tower_stampede::CacheOutcome::*;
use tower_stampede::{CacheFor, HttpLayer};

use crate::kit::http::*;

const DIRECTIVES: &str = "max-age=10, stale-while-revalidate=60";

/// Lets a response become stale, has `client` trigger its refresh, and returns
/// the request that the service got.
async fn refreshed_by(layer: HttpLayer, answer: fn(&Call) -> Answer, client: Fields) -> Call {
    let origin = Origin::new(answer);
    let app = layered(layer, &origin);
    send(&app, with("/page", client)).await;
    pass(secs(11)).await;
    let reply = send(&app, with("/page", client)).await;
    assert!(reply.is(Stale), "{reply:?}");
    pass(secs(1)).await;
    assert_eq!(origin.calls(), 2);
    assert!(send(&app, with("/page", client)).await.is(Hit));
    origin.last()
}

type Fields = &'static [(&'static str, &'static str)];

fn names(call: &Call) -> Vec<&str> {
    let mut names: Vec<_> = call.parts.headers.keys().map(http::HeaderName::as_str).collect();
    names.sort_unstable();
    names
}

#[tokio::test(start_paused = true)]
async fn a_refresh_carries_no_field_that_selects_nothing() {
    const EVIL: Fields = &[
        ("host", "a"),
        ("user-agent", "evil"),
        ("accept", "text/evil"),
        ("accept-language", "xx"),
        ("x-anything", "evil"),
        ("x-forwarded-for", "6.6.6.6"),
        ("referer", "http://evil/"),
    ];
    let page = |_: &Call| Answer::ok(DIRECTIVES, "page");
    let call = refreshed_by(origin_only().http_layer(), page, EVIL).await;
    assert_eq!(names(&call), ["host"]);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_carries_the_fields_that_were_keyed() {
    const CLIENT: Fields = &[
        ("host", "a"),
        ("accept-language", "de"),
        ("x-forwarded-proto", "https"),
        ("x-shop", "north"),
        ("x-mine", "1"),
        ("user-agent", "evil"),
    ];
    let page = |_: &Call| Answer::ok(DIRECTIVES, "page").header("vary", "accept-language, x-mine");
    let layer = origin_only().http_layer().vary(["x-shop"]);
    let call = refreshed_by(layer, page, CLIENT).await;
    let expected = ["accept-language", "host", "x-forwarded-proto", "x-mine", "x-shop"];
    assert_eq!(names(&call), expected);
    assert_eq!(call.header("accept-language"), Some("de"));
}

#[tokio::test(start_paused = true)]
async fn a_refresh_carries_the_fields_that_the_layer_is_told_to_keep() {
    const CLIENT: Fields = &[("traceparent", "00-1"), ("x-one", "1"), ("x-other", "2")];
    let page = |_: &Call| Answer::ok(DIRECTIVES, "page");
    let layer = origin_only().http_layer().refresh_headers(["traceparent"]);
    let call = refreshed_by(layer.refresh_headers(["x-one"]), page, CLIENT).await;
    assert_eq!(names(&call), ["traceparent", "x-one"]);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_carries_the_fields_that_a_rule_of_the_application_reads() {
    const CLIENT: Fields =
        &[("x-a", "1"), ("x-tenant", "north"), ("x-b", "2"), ("x-region", "eu"), ("x-c", "3")];
    let page = |call: &Call| {
        let tenant = call.header("x-tenant").unwrap_or("anonymous").to_owned();
        Answer::ok(DIRECTIVES, tenant)
    };
    let field = |name: &'static str| {
        move |parts: &http::request::Parts| {
            parts.headers.get(name).map(|value| value.to_str().unwrap().to_owned())
        }
    };
    let layer = || {
        let layer = origin_only().http_layer().not_a_credential(["x-tenant"]);
        layer.identity(field("x-tenant")).key(move |parts| field("x-region")(parts).unwrap())
    };
    // Which fields a rule reads, the layer cannot see.
    let call = refreshed_by(layer(), page, CLIENT).await;
    assert_eq!(names(&call), ["x-a", "x-b", "x-c", "x-region", "x-tenant"]);
    // Here the application has named them.
    let layer = layer().refresh_headers(["x-tenant", "x-region"]);
    assert_eq!(names(&refreshed_by(layer, page, CLIENT).await), ["x-region", "x-tenant"]);
}

#[tokio::test(start_paused = true)]
async fn a_head_triggers_no_refresh_where_rules_have_not_seen_the_get() {
    let origin = Origin::new(|_| Answer::ok(DIRECTIVES, "page"));
    let app = layered(origin_only().http_layer().key(|parts| parts.headers.len()), &origin);
    send(&app, get("/page")).await;
    pass(secs(11)).await;
    assert!(send(&app, request("HEAD", "/page", &[])).await.is(Stale));
    pass(secs(1)).await;
    assert_eq!(origin.calls(), 1);
    assert!(send(&app, get("/page")).await.is(Stale));
    pass(secs(1)).await;
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_carries_credentials_only_where_the_response_came_by_them() {
    const CLIENT: Fields = &[("authorization", "me"), ("cookie", "a=b"), ("x-api-key", "1")];
    let page = |_: &Call| Answer::ok("public, max-age=10, stale-while-revalidate=60", "page");
    let call = refreshed_by(origin_only().http_layer(), page, CLIENT).await;
    assert_eq!(names(&call), ["authorization", "cookie", "x-api-key"]);
    // Here the response came without any.
    let origin = Origin::new(page);
    let app = app(&origin);
    send(&app, get("/page")).await;
    pass(secs(11)).await;
    assert!(send(&app, with("/page", CLIENT)).await.is(Stale));
    pass(secs(1)).await;
    assert_eq!(names(&origin.last()), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn extensions_stay_in_a_refresh_except_those_that_the_application_names() {
    #[derive(Clone)]
    struct State;
    #[derive(Clone)]
    struct User;
    let origin = Origin::new(|_| Answer::ok(DIRECTIVES, "page"));
    let layer = origin_only().http_layer().refresh_without_extension::<User>();
    let app = layered(layer, &origin);
    let ask = || {
        let mut request = get("/page");
        request.extensions_mut().insert(State);
        request.extensions_mut().insert(User);
        request
    };
    for after in [0, 11] {
        pass(secs(after)).await;
        send(&app, ask()).await;
        pass(secs(1)).await;
    }
    let calls = origin.seen();
    let has = |call: &Call| {
        let extensions = &call.parts.extensions;
        (extensions.get::<State>().is_some(), extensions.get::<User>().is_some())
    };
    assert_eq!(calls.iter().map(has).collect::<Vec<_>>(), [(true, true), (true, false)]);
}

#[tokio::test(start_paused = true)]
async fn a_field_that_is_taken_out_of_the_key_stays_in_a_refresh() {
    const CLIENT: Fields = &[("x-forwarded-proto", "https"), ("forwarded", "for=1.2.3.4")];
    let page = |_: &Call| Answer::ok(DIRECTIVES, "page");
    let layer = origin_only().http_layer().not_keyed(["x-forwarded-proto"]);
    let call = refreshed_by(layer.not_keyed(["forwarded"]), page, CLIENT).await;
    assert_eq!(names(&call), ["forwarded", "x-forwarded-proto"]);
    let layer = origin_only().http_layer().replace_keyed_headers([]);
    assert_eq!(names(&refreshed_by(layer, page, CLIENT).await), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn an_early_refresh_carries_no_more_than_a_late_one() {
    let origin = Origin::new(|_| {
        Answer::status(200).body("page").extension(CacheFor::new(secs(10))).after(secs(2))
    });
    let cache =
        tower_stampede::Stampede::builder("test").origin_only().early_refresh(1e6).build().unwrap();
    let app = layered(cache.http_layer(), &origin);
    let client = [("x-anything", "evil"), ("host", "a")];
    send(&app, with("/page", &client)).await;
    // The last quarter of 10 s after the arrival.
    pass(secs(8)).await;
    assert!(send(&app, with("/page", &client)).await.is(Hit));
    pass(secs(3)).await;
    assert_eq!(origin.calls(), 2);
    assert_eq!(names(&origin.last()), ["host"]);
}

#[tokio::test(start_paused = true)]
async fn each_variant_is_refreshed_as_itself_when_the_fields_of_vary_have_changed() {
    // Some responses name another field: both lists are known by then.
    let origin = Origin::new(|call| {
        let language = call.header("accept-language").unwrap_or("none").to_owned();
        let vary = if language == "de" { "accept-language" } else { "accept-language, accept" };
        Answer::ok(DIRECTIVES, language).header("vary", vary)
    });
    let app = app(&origin);
    let ask = |language: &str| {
        with("/page", &[("accept-language", language), ("accept", "text/html"), ("x-evil", "1")])
    };
    for language in ["de", "en"] {
        send(&app, ask(language)).await;
    }
    pass(secs(11)).await;
    for language in ["de", "en"] {
        assert!(send(&app, ask(language)).await.is(Stale));
    }
    pass(secs(1)).await;
    assert_eq!(origin.calls(), 4);
    for language in ["de", "en"] {
        let reply = send(&app, ask(language)).await;
        assert!(reply.is(Hit) && reply.text() == language, "{reply:?}");
    }
    assert!(origin.seen()[2..].iter().all(|call| call.header("x-evil").is_none()));
}
