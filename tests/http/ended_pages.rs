//! Which answers that are not stored end the stored response, and which leave it in its window.

use tower_stampede::CacheOutcome::*;
use tower_stampede::HttpService;

use crate::kit::http::*;

const SWR: &str = "max-age=10, stale-while-revalidate=86400";
const ON_ERROR: &str = "max-age=10, stale-if-error=86400";

/// Statuses and `Cache-Control`.
const ENDS: [(u16, &str); 12] = [
    (404, ""),
    (410, ""),
    (451, ""),
    (301, ""),
    (308, ""),
    (404, "no-store"),
    (410, "private"),
    (308, "private"),
    (200, "private"),
    (200, "no-store"),
    (204, "private, max-age=60"),
    (200, "no-cache"),
];

const ENDS_NOTHING: [(u16, &str); 12] = [
    (401, ""),
    (403, ""),
    (403, "private"),
    (302, ""),
    (302, "no-store"),
    (307, "private"),
    (400, "no-store"),
    (406, ""),
    (429, "no-store"),
    (500, "no-store"),
    (503, "private"),
    (200, ""),
];

fn says(status: u16, control: &str) -> Answer {
    let answer = Answer::status(status);
    let is_redirect = (300..400).contains(&status);
    let answer = if is_redirect { answer.header("location", "/elsewhere") } else { answer };
    if control.is_empty() { answer } else { answer.header("cache-control", control) }
}

/// A page that has been stale for a second.
async fn stale_page(control: &'static str) -> (HttpService<Origin>, Origin) {
    let origin = Origin::new(move |_| Answer::ok(control, "old"));
    let app = app(&origin);
    send(&app, get("/page")).await;
    pass(secs(11)).await;
    (app, origin)
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_a_refresh_that_says_the_page_is_gone_or_for_no_cache_ends_it() {
    for (status, control) in ENDS {
        let (app, origin) = stale_page(SWR).await;
        origin.answers(move |_| says(status, control));
        assert!(send(&app, get("/page")).await.is(Stale), "{status} {control}");
        pass(secs(1)).await;
        let reply = send(&app, get("/page")).await;
        assert_eq!((reply.status, reply.text()), (status, ""), "{control}");
        origin.answers(|_| Answer::status(503));
        assert_eq!(send(&app, get("/page")).await.status, 503, "{status} {control}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_refresh_is_told_as_one_client_leaves_the_page_in_its_window() {
    for (status, control) in ENDS_NOTHING {
        let (app, origin) = stale_page(SWR).await;
        origin.answers(move |_| says(status, control));
        for _ in 0..100 {
            assert!(send(&app, get("/page")).await.is(Stale), "{status} {control}");
            pass(secs(36)).await;
        }
        assert!(origin.calls() < 70, "{} calls in an hour: {status} {control}", origin.calls());
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_page_has_ended_a_crowd_is_one_call() {
    let (app, origin) = stale_page(SWR).await;
    origin.answers(|_| Answer::status(410));
    send(&app, get("/page")).await;
    pass(secs(1)).await;
    let before = origin.calls();
    let replies = crowd(&app, 50, |_| get("/page")).await;
    assert!(replies.iter().all(|reply| reply.status == 410));
    assert_eq!(origin.calls() - before, 1);
}

#[tokio::test(start_paused = true)]
async fn a_page_that_a_client_was_told_is_gone_does_not_come_back_in_an_outage() {
    for status in [404, 410, 301, 308] {
        let (app, origin) = stale_page(ON_ERROR).await;
        origin.answers(move |_| says(status, ""));
        assert_eq!(send(&app, get("/page")).await.status, status);
        origin.answers(|_| Answer::status(503));
        assert_eq!(send(&app, get("/page")).await.status, 503, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_client_cannot_end_a_page_by_a_field_that_is_not_keyed() {
    for (status, control) in [
        (404, "private"),
        (410, "no-store"),
        (301, "private"),
        (200, "private"),
        (200, "no-store"),
        (451, ""),
        (401, ""),
    ] {
        let (app, origin) = stale_page(ON_ERROR).await;
        origin.answers(move |call| match call.header("x-odd") {
            Some(_) => says(status, control),
            None => Answer::status(503),
        });
        let own = send(&app, with("/page", &[("x-odd", "1")])).await;
        assert_eq!(own.status, status);
        let head = request("HEAD", "/page", &[("x-odd", "1")]);
        send(&app, head).await;
        let reply = send(&app, get("/page")).await;
        assert!(reply.is(StaleIfError), "{status} {control}: {}", reply.cache_status());
    }
}

#[tokio::test(start_paused = true)]
async fn a_refresh_with_fields_that_are_not_keyed_ends_a_page_by_what_is_for_all_alone() {
    for (status, control, ends) in [
        (404, "", true),
        (301, "", true),
        (404, "private", false),
        (451, "", false),
        (200, "private", false),
        (200, "no-store", false),
    ] {
        for rule in 0..3 {
            let origin = Origin::new(|_| Answer::ok(SWR, "old"));
            let layer = origin_only().http_layer();
            let layer = match rule {
                0 => layer.refresh_headers(["x-odd"]),
                1 => layer.replace_keyed_headers(["x-odd"]).not_keyed(["x-odd"]),
                _ => layer.key(|_| "one"),
            };
            let app = layered(layer, &origin);
            let ask = || with("/page", &[("x-odd", "1")]);
            send(&app, ask()).await;
            pass(secs(11)).await;
            origin.answers(move |call| {
                assert!(call.header("x-odd").is_some());
                says(status, control)
            });
            assert!(send(&app, ask()).await.is(Stale));
            pass(secs(1)).await;
            let is_stale = send(&app, ask()).await.is(Stale);
            assert_eq!(is_stale, !ends, "{rule} {status} {control}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_that_has_ended_leaves_its_variants_alone() {
    let origin = Origin::new(|_| Answer::ok(SWR, "old").header("vary", "accept-language"));
    let app = app(&origin);
    let ask = |language| with("/page", &[("accept-language", language)]);
    send(&app, ask("de")).await;
    send(&app, ask("en")).await;
    pass(secs(11)).await;
    origin.answers(|call| match call.header("accept-language") {
        Some("de") => Answer::status(410),
        _ => Answer::status(503),
    });
    assert!(send(&app, ask("de")).await.is(Stale));
    pass(secs(1)).await;
    assert_eq!(send(&app, ask("de")).await.status, 410);
    assert!(send(&app, ask("en")).await.is(Stale));
}
