//! Fields of a response by which the origin steers: tags, groups and lifetimes.

use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{CacheFor, HttpLayer, HttpService, Stampede};

use crate::kit::http::*;

fn steered(cache: &tower_stampede::HttpStampede) -> HttpLayer {
    let layer = cache.http_layer().tags_from(["surrogate-key", "cache-tag"]);
    layer.lifetime_from(["surrogate-control", "x-accel-expires"])
}

/// A page, in a field's groups, at every URI; a POST says which groups end.
fn grouped(groups: &'static str, ended: &'static str) -> Origin {
    Origin::new(move |call| match call.parts.method.as_str() {
        "GET" => Answer::ok("max-age=600", call.n.to_string()).header("cache-groups", groups),
        _ => Answer::ok("no-store", "done").header("cache-group-invalidation", ended),
    })
}

async fn is_hit(app: &HttpService<Origin>, uri: &str) -> bool {
    send(app, get(uri)).await.is(Hit)
}

fn post(uri: &str) -> http::Request<axum::body::Body> {
    request("POST", uri, &[])
}

// ===== Groups =====

#[tokio::test(start_paused = true)]
async fn the_response_to_a_post_ends_the_groups_that_it_names() {
    // RFC 9875, 3
    let origin = grouped("\"news\", \"all\"", "\"news\";x=1");
    let app = app(&origin);
    for page in ["http://a/1", "http://a/2"] {
        send(&app, get(page)).await;
        assert!(is_hit(&app, page).await);
    }
    origin.answers(|_| Answer::ok("max-age=600", "other").header("cache-groups", "\"sport\""));
    send(&app, get("http://a/3")).await;
    origin.answers(|_| Answer::ok("no-store", "x").header("cache-group-invalidation", "\"news\""));
    let reply = send(&app, post("http://a/edit")).await;
    assert_eq!(reply.header("cache-group-invalidation"), Some("\"news\""), "passed on");
    assert!(is_hit(&app, "http://a/3").await, "of another group");
    assert!(!is_hit(&app, "http://a/1").await && !is_hit(&app, "http://a/2").await);
}

#[tokio::test(start_paused = true)]
async fn groups_of_another_host_scheme_or_scope_are_not_ended() {
    let origin = grouped("\"g\"", "\"g\"");
    let cache = origin_only();
    let app = layered(cache.http_layer(), &origin);
    let scoped = layered(cache.http_layer().scope("s"), &origin);
    let pages = ["http://a/1", "http://b/1", "https://a/1", "http://a:8080/1"];
    let fill = async || {
        for page in pages {
            send(&app, get(page)).await;
        }
        send(&scoped, get("http://a/1")).await;
    };
    fill().await;
    send(&app, post("http://a/edit")).await;
    assert!(!is_hit(&app, pages[0]).await);
    for page in &pages[1..] {
        assert!(is_hit(&app, page).await, "{page}");
    }
    assert!(is_hit(&scoped, "http://a/1").await);
    fill().await;
    send(&scoped, post("http://a/edit")).await;
    assert!(!is_hit(&scoped, "http://a/1").await);
    for page in pages {
        assert!(is_hit(&app, page).await, "{page}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_to_a_safe_method_and_an_error_end_no_group() {
    // RFC 9875, 3: "MUST be ignored on responses to requests that have a safe method"
    for (method, status, ends) in [
        ("GET", 200, false),
        ("HEAD", 200, false),
        ("OPTIONS", 200, false),
        ("TRACE", 200, false),
        ("POST", 404, false),
        ("POST", 500, false),
        ("POST", 200, true),
        ("POST", 303, true),
        ("DELETE", 204, true),
        ("WHATEVER", 200, true),
    ] {
        let origin = grouped("\"g\"", "");
        let app = app(&origin);
        send(&app, get("http://a/1")).await;
        origin.answers(move |_| Answer::status(status).header("cache-group-invalidation", "\"g\""));
        send(&app, request(method, "http://a/other", &[])).await;
        assert_eq!(is_hit(&app, "http://a/1").await, !ends, "{method} {status}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_request_says_of_groups_and_tags_is_nothing() {
    let origin = grouped("\"g\"", "\"other\"");
    let cache = origin_only();
    let app = steered(&cache).layer(origin.clone());
    send(&app, get("http://a/1")).await;
    let fields = [
        ("cache-group-invalidation", "\"g\""),
        ("cache-groups", "\"g\""),
        ("surrogate-key", "g"),
        ("x-accel-expires", "0"),
    ];
    send(&app, request("POST", "http://a/edit", &fields)).await;
    send(&app, request("PURGE", "http://a/2", &fields)).await;
    assert!(send(&app, with("http://a/1", &fields)).await.is(Hit));
}

#[tokio::test(start_paused = true)]
async fn an_invalidation_field_that_is_no_list_of_strings_ends_nothing() {
    for ended in ["g", "\"g\", x", "(\"g\")", "\"g\",", "\"g"] {
        let origin = grouped("\"g\"", ended);
        let app = app(&origin);
        send(&app, get("http://a/1")).await;
        send(&app, post("http://a/edit")).await;
        assert!(is_hit(&app, "http://a/1").await, "{ended}");
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_groups_are_not_stored_and_end_every_group_of_the_host_at_one_record() {
    let many: &'static str = vec!["\"x\""; 10_000].join(",").leak();
    let cache = origin_only();
    let origin = grouped("\"g\"", many);
    let app = layered(cache.http_layer().max_header_bytes(1 << 20), &origin);
    send(&app, get("http://a/1")).await;
    send(&app, get("http://b/1")).await;
    let before = cache.stats().invalidations;
    send(&app, post("http://a/edit")).await;
    assert!(cache.stats().invalidations <= before + 2, "the URI, and all groups");
    assert!(!is_hit(&app, "http://a/1").await);
    assert!(is_hit(&app, "http://b/1").await);
    let origin = grouped(many, "");
    let app = layered(origin_only().http_layer().max_header_bytes(1 << 20), &origin);
    let reply = send(&app, get("http://a/1")).await;
    assert!(reply.cache_status().ends_with("detail=too-many-tags"), "{}", reply.cache_status());
}

#[tokio::test(start_paused = true)]
async fn groups_that_the_layer_does_not_count_end_nothing() {
    let origin = grouped("\"g\"", "\"g\"");
    let app = layered(origin_only().http_layer().cache_groups(false), &origin);
    send(&app, get("http://a/1")).await;
    send(&app, post("http://a/edit")).await;
    assert!(is_hit(&app, "http://a/1").await);
}

#[tokio::test(start_paused = true)]
async fn a_response_that_was_revalidated_stays_in_its_groups_and_keeps_its_tags() {
    let origin = Origin::new(|call| match call.parts.method.as_str() {
        "POST" => Answer::status(200).header("cache-group-invalidation", "\"g\""),
        _ if call.header("if-none-match").is_some() => {
            Answer::status(304).header("cache-control", "max-age=10")
        }
        _ => Answer::ok("max-age=10", call.n.to_string())
            .header("etag", "\"e\"")
            .header("cache-groups", "\"g\"")
            .header("surrogate-key", "t"),
    });
    let cache = origin_only();
    let app = steered(&cache).layer(origin.clone());
    for round in 0..2 {
        send(&app, get("http://a/1")).await;
        pass(secs(11)).await;
        send(&app, get("http://a/1")).await;
        assert!(origin.last().header("if-none-match").is_some());
        assert!(is_hit(&app, "http://a/1").await);
        if round == 0 {
            send(&app, post("http://a/edit")).await;
        } else {
            cache.invalidate_tag("t").await;
        }
        assert!(!is_hit(&app, "http://a/1").await, "{round}");
        pass(secs(700)).await;
    }
}

// ===== Tags =====

#[tokio::test(start_paused = true)]
async fn tags_in_fields_are_read_and_removed_from_what_every_client_gets() {
    let cache = origin_only();
    let origin = Origin::new(|call| {
        let answer = Answer::ok("max-age=600", call.n.to_string());
        answer.header("surrogate-key", "shop item:7").header("cache-tag", "c1, c 2")
    });
    let app = steered(&cache).layer(origin.clone());
    for tag in ["shop", "item:7", "c1", "c 2"] {
        let replies = [send(&app, get("http://a/1")).await, send(&app, get("http://a/1")).await];
        assert!(replies[1].is(Hit));
        for reply in replies {
            assert_eq!((reply.header("surrogate-key"), reply.header("cache-tag")), (None, None));
        }
        cache.invalidate_tag(tag).await;
        assert!(!is_hit(&app, "http://a/1").await, "{tag}");
    }
    cache.invalidate_tag("c").await;
    assert!(is_hit(&app, "http://a/1").await);
}

#[tokio::test(start_paused = true)]
async fn what_is_addressed_to_the_cache_is_removed_from_each_kind_of_answer() {
    let fields = ["surrogate-key", "cache-tag", "surrogate-control", "x-accel-expires"];
    let origin = Origin::new(move |call| {
        let cache_control = if call.uri().ends_with("x") { "no-store" } else { "max-age=60" };
        let answer = Answer::ok(cache_control, vec![b'x'; 10]);
        let answer = answer.header("surrogate-key", "a").header("cache-tag", "b");
        answer.header("surrogate-control", "content=\"ESI/1.0\"").header("x-accel-expires", "?")
    });
    let cache = origin_only();
    let small = steered(&cache).max_body(5).layer(origin.clone());
    let app = steered(&cache).layer(origin.clone());
    let mut replies = vec![send(&small, get("http://a/large")).await];
    for request in [
        get("http://a/1"),
        get("http://a/1"),
        get("http://a/x"),
        with("http://a/2", &[("range", "bytes=0-1")]),
        with("http://a/3", &[("if-match", "*")]),
        request("HEAD", "http://a/4", &[]),
        post("http://a/5"),
        request("OPTIONS", "http://a/6", &[]),
    ] {
        replies.push(send(&app, request).await);
    }
    replies.extend(crowd(&app, 3, |_| get("http://a/7")).await);
    for reply in replies {
        let left: Vec<_> = fields.iter().filter(|name| reply.header(name).is_some()).collect();
        assert!(left.is_empty(), "{left:?} in {reply:?}");
    }
    // Without the settings they mean nothing, and are passed on.
    let plain = app_without(&origin).await;
    assert!(fields.iter().all(|name| plain.header(name).is_some()), "{plain:?}");
}

async fn app_without(origin: &Origin) -> Reply {
    send(&app(origin), get("http://a/1")).await
}

#[tokio::test(start_paused = true)]
async fn an_outer_layer_removes_what_is_addressed_to_it_from_answers_of_an_inner_one() {
    let cache = origin_only();
    let origin = Origin::new(|_| Answer::ok("max-age=60", "x").header("surrogate-key", "a"));
    let inner = cache.http_layer().layer(origin.infallible());
    let app = steered(&cache).layer(axum::Router::new().fallback_service(inner));
    for _ in 0..4 {
        assert_eq!(send(&app, get("http://a/1")).await.header("surrogate-key"), None);
    }
}

#[tokio::test(start_paused = true)]
async fn more_tags_than_allowed_or_one_that_is_too_long_are_not_stored() {
    for keys in
        [vec!["k"; 70].join("0 "), (0..65).map(|n| format!("k{n} ")).collect(), "k".repeat(1025)]
    {
        let is_distinct = !keys.starts_with("k0 k0");
        let origin = Origin::new(move |_| {
            Answer::ok("max-age=60", "x").header("cache-tag", "c").header("surrogate-key", &keys)
        });
        let cache = origin_only();
        let app = steered(&cache).layer(origin.clone());
        let reply = send(&app, get("http://a/1")).await;
        assert_eq!(reply.cache_status().ends_with("detail=too-many-tags"), is_distinct);
    }
}

#[tokio::test(start_paused = true)]
async fn tags_in_fields_stand_beside_those_of_a_handler() {
    let cache = origin_only();
    let origin = Origin::new(|_| {
        let said = CacheFor::new(secs(60)).tag("said");
        Answer::status(200).extension(said).header("surrogate-key", "field")
    });
    let app = steered(&cache).layer(origin.clone());
    for tag in ["said", "field"] {
        send(&app, get("http://a/1")).await;
        assert!(is_hit(&app, "http://a/1").await);
        cache.invalidate_tag(tag).await;
        assert!(!is_hit(&app, "http://a/1").await, "{tag}");
    }
}

// ===== Lifetimes =====

/// For how many seconds a response with these fields is fresh; `None`: it is not stored.
async fn lifetime(fields: &'static [(&'static str, &'static str)]) -> Option<i64> {
    let origin = Origin::new(move |_| {
        let answer = Answer::status(200).after(ms(0));
        fields.iter().fold(answer, |answer, (name, value)| answer.header(name, value))
    });
    let cache = origin_only();
    let app = steered(&cache).layer(origin.clone());
    send(&app, get("http://a/1")).await;
    let reply = send(&app, get("http://a/1")).await;
    let ttl = reply.cache_status().split("ttl=").nth(1);
    ttl.map(|ttl| ttl.parse().unwrap())
}

#[tokio::test(start_paused = true)]
async fn lifetimes_by_name_govern_in_the_order_of_the_setting() {
    const CC: (&str, &str) = ("cache-control", "max-age=9");
    for (fields, expected) in [
        (&[CC][..], Some(9)),
        (&[CC, ("surrogate-control", "max-age=60")], Some(60)),
        (&[CC, ("surrogate-control", "max-age=60;varnish, content=\"ESI/1.0\"")], Some(60)),
        (&[CC, ("surrogate-control", "no-store")], None),
        (&[CC, ("x-accel-expires", "30")], Some(30)),
        (&[CC, ("x-accel-expires", "0")], None),
        (&[("x-accel-expires", "30")], Some(30)),
        (&[("cache-control", "no-store, private"), ("x-accel-expires", "30")], Some(30)),
        (&[CC, ("x-accel-expires", "@1")], None),
        (&[CC, ("cdn-cache-control", "max-age=20"), ("x-accel-expires", "30")], Some(30)),
        (&[("surrogate-control", "max-age=60"), ("x-accel-expires", "30")], Some(60)),
        // A field that cannot be read is treated as absent.
        (&[CC, ("surrogate-control", "max-age=60+600")], Some(9)),
        (&[CC, ("x-accel-expires", "-1")], Some(9)),
        (&[CC, ("x-accel-expires", "off")], Some(9)),
        (&[CC, ("x-accel-expires", "")], Some(9)),
        (&[CC, ("x-accel-expires", "1.5")], Some(9)),
        (&[CC, ("x-accel-expires", "@")], Some(9)),
        (&[CC, ("x-accel-expires", "+30")], Some(9)),
        (&[CC, ("x-accel-expires", "30"), ("x-accel-expires", "31")], Some(9)),
        (&[CC, ("surrogate-control", "max-age=x"), ("x-accel-expires", "30")], Some(30)),
        (&[CC, ("x-accel-expires", "99999999999999999999999999")], Some(1 << 31)),
    ] {
        assert_eq!(lifetime(fields).await, expected, "{fields:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_zero_in_x_accel_expires_forbids_to_store_what_could_be_validated_too() {
    let origin = Origin::new(|_| {
        Answer::ok("max-age=60", "x").header("etag", "\"e\"").header("x-accel-expires", "0")
    });
    let cache = origin_only();
    let app = steered(&cache).layer(origin.clone());
    for _ in 0..2 {
        let reply = send(&app, get("http://a/1")).await;
        assert!(reply.cache_status().ends_with("detail=no-store"), "{}", reply.cache_status());
    }
    assert_eq!(origin.last().header("if-none-match"), None);
}

#[tokio::test(start_paused = true)]
async fn a_unix_time_in_x_accel_expires_ends_the_lifetime() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let at: &'static str = format!("@{}", now.as_secs() + 100).leak();
    let left = lifetime(&*vec![("x-accel-expires", at)].leak()).await.unwrap();
    assert!((95..=100).contains(&left), "{left}");
}

#[tokio::test(start_paused = true)]
async fn stale_windows_of_cache_control_count_beside_x_accel_expires() {
    let origin = Origin::new(|call| {
        Answer::ok("stale-while-revalidate=60", call.n.to_string()).header("x-accel-expires", "10")
    });
    let cache = origin_only();
    let app = steered(&cache).layer(origin.clone());
    send(&app, get("http://a/1")).await;
    pass(secs(11)).await;
    assert!(send(&app, get("http://a/1")).await.is(Stale));
}

#[tokio::test(start_paused = true)]
async fn a_lifetime_by_name_shares_nothing_with_credentials() {
    let origin = Origin::new(|call| {
        Answer::ok("private", call.n.to_string()).header("x-accel-expires", "60")
    });
    let cache = origin_only();
    let app = steered(&cache).layer(origin.clone());
    let of_alice = with("http://a/1", &[("authorization", "alice")]);
    assert_eq!(send(&app, of_alice).await.text(), "0");
    assert_eq!(send(&app, get("http://a/1")).await.text(), "1");
}

#[test]
fn settings_that_name_no_such_field_end_at_start_up() {
    let cache: tower_stampede::HttpStampede = Stampede::in_memory(secs(60));
    type Set = fn(HttpLayer) -> HttpLayer;
    let wrong: [(Set, &str); 4] = [
        (|layer| layer.tags_from(["x-tags"]), "`tags_from`: `x-tags` is not one of"),
        (|layer| layer.tags_from(["a b"]), "`tags_from`: `a b` is no field name"),
        (|layer| layer.lifetime_from(["expires"]), "`lifetime_from`: `expires` is read"),
        (|layer| layer.ignore_cookies(["a=b"]), "`ignore_cookies`: `a=b` is no name"),
    ];
    for (set, message) in wrong {
        let layer = cache.http_layer();
        let set = std::panic::AssertUnwindSafe(move || drop(set(layer)));
        let panic = std::panic::catch_unwind(set).unwrap_err();
        let said = panic.downcast_ref::<String>().expect("a message");
        assert!(said.starts_with(message), "{said}");
    }
}
