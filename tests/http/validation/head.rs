//! A HEAD brings what is stored up to date.

use tower_stampede::CacheOutcome::*;

use super::{TAG, expired, is_conditional, not_modified, report};
use crate::kit::http::*;

async fn head_answered(head: impl Fn() -> Answer + Send + Sync + 'static) -> (Origin, Reply) {
    let (origin, app) = expired(report, move |call| match call.parts.method.as_str() {
        "HEAD" => head(),
        _ => Answer::ok("max-age=10", "new"),
    })
    .await;
    send(&app, request("HEAD", "/report", &[])).await;
    assert_eq!(origin.last().parts.method, "HEAD");
    let reply = send(&app, get("/report")).await;
    (origin, reply)
}

#[tokio::test(start_paused = true)]
async fn a_head_about_the_same_response_renews_it() {
    for length in [None, Some("6")] {
        let (origin, reply) = head_answered(move || {
            let head = Answer::ok("max-age=100", "").header("etag", TAG).header("x-b", "2");
            match length {
                Some(length) => head.header("content-length", length),
                None => head,
            }
        })
        .await;
        assert!(reply.is(Hit) && reply.text() == "report", "{length:?}");
        assert_eq!((reply.header("x-a"), reply.header("x-b")), (Some("1"), Some("2")));
        assert_eq!(origin.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_about_another_response_or_one_that_is_not_stored_renews_nothing() {
    type Case = (&'static str, fn() -> Answer);
    let cases: [Case; 6] = [
        ("no validator", || Answer::ok("max-age=100", "")),
        ("another tag", || Answer::ok("max-age=100", "").header("etag", "\"v2\"")),
        ("another length", || {
            Answer::ok("max-age=100", "").header("etag", TAG).header("content-length", "7")
        }),
        ("no-store", || Answer::ok("no-store", "").header("etag", TAG)),
        ("a cookie", || {
            Answer::ok("max-age=100", "").header("etag", TAG).header("set-cookie", "id=1")
        }),
        ("not a 200", || {
            Answer::status(410).header("etag", TAG).header("cache-control", "max-age=100")
        }),
    ];
    for (what, head) in cases {
        let (origin, reply) = head_answered(head).await;
        assert_eq!(reply.text(), "new", "{what}");
        assert_eq!(origin.calls(), 3, "{what}");
        assert_eq!(is_conditional(&origin.last()), what != "no-store", "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_asks_without_conditions_of_ours() {
    let (origin, app) = expired(report, |_| not_modified()).await;
    send(&app, request("HEAD", "/report", &[])).await;
    assert!(!is_conditional(&origin.last()));
}
