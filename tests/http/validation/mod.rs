//! Stored responses are validated, not fetched again (RFC 9111, 4.3).

mod by_each;
mod by_one;
mod head;
mod many_processes;

use tower_stampede::HttpService;

use crate::kit::http::*;

const TAG: &str = "\"v1\"";

fn is_conditional(call: &Call) -> bool {
    call.header("if-none-match").is_some() || call.header("if-modified-since").is_some()
}

/// Answers `max-age=10`, and 304 to a request that names the stored tag.
fn origin() -> Origin {
    Origin::new(|call| match call.header("if-none-match") {
        Some(TAG) => Answer::status(304).header("etag", TAG),
        _ => Answer::ok("max-age=10", "report").header("etag", TAG),
    })
}

/// Fills with `first`, waits until that is stale, and answers as `then` says
/// afterwards.
async fn expired(
    first: impl Fn() -> Answer + Send + Sync + 'static,
    then: impl Fn(&Call) -> Answer + Send + Sync + 'static,
) -> (Origin, HttpService<Origin>) {
    let origin = Origin::new(move |_| first());
    let app = app(&origin);
    assert_eq!(send(&app, get("/report")).await.status, 200);
    pass(secs(11)).await;
    origin.answers(then);
    (origin, app)
}

fn report() -> Answer {
    Answer::ok("max-age=10", "report").header("etag", TAG).header("x-a", "1").header("x-b", "1")
}

fn not_modified() -> Answer {
    Answer::status(304)
}
