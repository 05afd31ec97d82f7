//! The origin cannot be reached: what is served, to whom, and how often the
//! origin is tried.

use tower_stampede::CacheOutcome::*;

use crate::kit::http::*;

const KEEPS: u64 = 600;

/// An app whose origin answers once with `directives`, and is gone then.
fn app_that_loses_its_origin(directives: &'static str) -> (App, Origin) {
    app_with(directives, |_: &OriginError| true)
}

type App = tower_stampede::HttpService<Origin>;

fn app_with(
    directives: &'static str,
    is: impl Fn(&OriginError) -> bool + Send + Sync + 'static,
) -> (App, Origin) {
    let origin = Origin::new(move |call| match call.n {
        0 => Answer::ok(directives, "report"),
        _ => Answer::error(),
    });
    let layer = origin_only().http_layer().stale_if_disconnected(secs(KEEPS)).disconnected(is);
    (layered(layer, &origin), origin)
}

#[tokio::test(start_paused = true)]
async fn a_crowd_is_served_stale_while_the_origin_is_out_of_reach() {
    let (app, origin) = app_that_loses_its_origin("max-age=10");
    send(&app, get("/report")).await;
    pass(secs(11)).await;
    let replies = crowd(&app, 100, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| reply.is(StaleIfError) && reply.text() == "report"));
    assert_eq!(origin.calls(), 2, "one attempt for all of them");
}

#[tokio::test(start_paused = true)]
async fn a_dead_origin_sees_a_handful_of_attempts_and_nobody_an_error() {
    let (app, origin) = app_that_loses_its_origin("max-age=10");
    send(&app, get("/report")).await;
    pass(secs(11)).await;
    for _ in 0..600 {
        assert!(send(&app, get("/report")).await.is(StaleIfError));
        pass(ms(100)).await;
    }
    assert!(origin.calls() < 1 + 10, "{} calls in a minute", origin.calls());
}

#[tokio::test(start_paused = true)]
async fn what_is_older_than_the_window_is_not_served() {
    let (app, _) = app_that_loses_its_origin("max-age=10");
    send(&app, get("/report")).await;
    pass(secs(10 + KEEPS + 1)).await;
    assert!(try_send(&app, get("/report")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn what_forbids_to_be_served_stale_becomes_a_504() {
    // RFC 9111, 5.2.2.2, 5.2.2.8, 5.2.2.10
    for directives in ["max-age=10, must-revalidate", "max-age=10, proxy-revalidate", "s-maxage=10"]
    {
        let (app, origin) = app_that_loses_its_origin(directives);
        send(&app, get("/report")).await;
        pass(secs(11)).await;
        let replies = crowd(&app, 10, |_| get("/report")).await;
        for reply in replies {
            assert_eq!(reply.status, 504, "{directives}");
            assert!(reply.cache_status().contains("must-revalidate"), "{}", reply.cache_status());
        }
        assert_eq!(origin.calls(), 3, "{directives}: two leaders");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_that_is_no_disconnection_is_passed_on() {
    let (app, _) = app_with("max-age=10", |_| false);
    send(&app, get("/report")).await;
    pass(secs(11)).await;
    assert!(try_send(&app, get("/report")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn without_the_setting_nothing_is_served_past_its_windows() {
    let origin = Origin::new(move |call| match call.n {
        0 => Answer::ok("max-age=10", "report"),
        _ => Answer::error(),
    });
    let app = app(&origin);
    send(&app, get("/report")).await;
    pass(secs(11)).await;
    assert!(try_send(&app, get("/report")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn an_origin_that_answers_503_is_not_out_of_reach() {
    let origin = Origin::new(move |call| match call.n {
        0 => Answer::ok("max-age=10", "report"),
        _ => Answer::status(503),
    });
    let layer = origin_only().http_layer().stale_if_disconnected(secs(KEEPS));
    let app = layered(layer, &origin);
    send(&app, get("/report")).await;
    pass(secs(11)).await;
    assert_eq!(send(&app, get("/report")).await.status, 503);
}
