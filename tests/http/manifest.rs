//! Responses that a process leaves to the next one, which asks for them anew.

use tower_stampede::CacheOutcome::*;
use tower_stampede::Manifest;

use crate::kit::http::*;

#[tokio::test(start_paused = true)]
async fn the_next_process_asks_for_the_same_pages_and_serves_them_from_the_first_request_on() {
    let origin = Origin::new(|call| Answer::ok("max-age=600", call.uri()).after(secs(1)));
    let (old, new) = (with_ttl(60), with_ttl(60));
    let app = layered(old.http_layer(), &origin);
    let requests = || {
        let absolute = request("GET", "http://shop.example/c?x=%20y", &[]);
        [with("/a", &[("host", "shop.example")]), get("/b?x=1&y"), absolute]
    };
    for request in requests() {
        send(&app, request).await;
    }
    let text = old.manifest(100).await.to_string();
    let manifest = Manifest::read(&text, "test").unwrap();
    let app = layered(new.http_layer(), &origin);
    assert_eq!((manifest.len(), manifest.replay(app.clone(), 2).await), (3, 0));
    assert_eq!(origin.calls(), 6);
    for request in requests() {
        assert!(send(&app, request).await.is(Hit));
    }
}

#[tokio::test(start_paused = true)]
async fn what_depends_on_credentials_is_not_in_it_and_no_request_has_any() {
    let origin = Origin::new(|_| Answer::ok("public, max-age=600", "page"));
    let cache = with_ttl(60);
    let app = layered(cache.http_layer().keyed_headers(["x-tenant"]), &origin);
    send(&app, get("/open")).await;
    send(&app, with("/tenants", &[("x-tenant", "a")])).await;
    send(&app, with("/mine", &[("authorization", "Basic eDp5")])).await;
    let manifest = cache.manifest(100).await;
    let requests: Vec<_> = manifest.requests().collect();
    let paths: Vec<_> = requests.iter().map(|request| request.uri().path()).collect();
    assert!(paths.contains(&"/open") && !paths.contains(&"/tenants"), "{paths:?}");
    let plain = |request: &http::Request<()>| request.headers().keys().all(|name| name == "host");
    assert!(requests.iter().all(plain));
}

#[tokio::test(start_paused = true)]
async fn it_says_how_many_pages_could_not_be_loaded() {
    let origin = Origin::new(|call| match call.uri().as_str() {
        "/bad" => Answer::status(503),
        _ => Answer::ok("max-age=600", "page"),
    });
    let cache = with_ttl(60);
    let app = layered(cache.http_layer(), &Origin::new(|_| Answer::ok("max-age=600", "page")));
    for page in ["/bad", "/good", "/other"] {
        send(&app, get(page)).await;
    }
    let next = layered(with_ttl(60).http_layer(), &origin);
    assert_eq!(cache.manifest(100).await.replay(next, 8).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_page_whose_handler_panics_does_not_end_the_start_of_the_process() {
    let cache = with_ttl(60);
    let app = layered(cache.http_layer(), &Origin::new(|_| Answer::ok("max-age=600", "page")));
    for page in ["/bad", "/good", "/other"] {
        send(&app, get(page)).await;
    }
    let origin = Origin::new(|call| match call.uri().as_str() {
        "/bad" => panic!("of the handler"),
        _ => Answer::ok("max-age=600", "page"),
    });
    let next = layered(with_ttl(60).http_layer(), &origin);
    assert_eq!(cache.manifest(100).await.replay(next.clone(), 1).await, 1);
    assert!(send(&next, get("/good")).await.is(Hit) && send(&next, get("/other")).await.is(Hit));
}

#[tokio::test(start_paused = true)]
async fn keys_of_which_no_request_can_be_made_are_counted_as_not_loaded() {
    let host = |host: &str| format!("1 1 %00h%00%04http%{:02X}{host}%02/a\n", host.len());
    let rows = [
        "1 1 %00h%00%04http%06a%0D%0Ab:c%02/a\n".to_owned(),
        "1 1 user:7\n".to_owned(),
        "1 1 %00h%00%04http%FFshop%02/a\n".to_owned(),
        host("shop"),
    ];
    let text = format!("tower-stampede-manifest-1 test {}\n{}", rows.len(), rows.concat());
    let manifest = Manifest::read(&text, "test").unwrap();
    let origin = Origin::new(|_| Answer::ok("max-age=600", "page"));
    let app = layered(with_ttl(60).http_layer(), &origin);
    assert_eq!((manifest.len(), manifest.replay(app, 2).await, origin.calls()), (4, 3, 1));
}

#[tokio::test(start_paused = true)]
async fn credentials_in_a_url_are_neither_left_to_the_next_process_nor_replayed() {
    let cache = with_ttl(60);
    let app = layered(cache.http_layer(), &Origin::new(|_| Answer::ok("max-age=600", "page")));
    send(&app, request("GET", "http://user:secret@shop.example/a", &[])).await;
    let text = cache.manifest(100).await.to_string();
    assert!(!text.contains("secret"), "{text}");
    let strange = "tower-stampede-manifest-1 test 1\n1 1 %00a%00%04http%10u:pw@shop.example%02/a\n";
    for request in Manifest::read(strange, "test").unwrap().requests() {
        assert!(!request.uri().to_string().contains("pw"), "{}", request.uri());
    }
}
