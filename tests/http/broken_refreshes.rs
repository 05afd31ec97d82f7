//! Clients that wait for a refresh whose body breaks off.

use bytes::Bytes;
use futures_util::stream;

use axum::body::Body;
use tower_stampede::{HttpService, Stampede};

use crate::kit::http::*;
use crate::kit::spawn;

fn broken_at_once() -> Body {
    Body::from_stream(stream::iter([Err::<Bytes, _>("broken")]))
}

/// Returns an application with a stale page, whose refresh has begun. Its body breaks off after so many
/// seconds; later requests get another page.
async fn refreshing(fields: &'static str, obeys_clients: bool, after: u64) -> HttpService<Origin> {
    let origin = Origin::new(move |_| Answer::ok(fields, "page"));
    let layer = origin_only().http_layer().honour_request_directives(obeys_clients);
    let app = layered(layer, &origin);
    send(&app, get("/page")).await;
    origin.answers(move |call| match call.n {
        1 => Answer::ok(fields, broken_at_once()).after(secs(after)),
        _ => Answer::ok(fields, "new"),
    });
    pass(secs(19)).await;
    assert_eq!(send(&app, get("/page")).await.text(), "page");
    app
}

/// The window of the stale response ends while its refresh runs. Its body breaks off once.
#[tokio::test(start_paused = true)]
async fn clients_that_wait_for_a_refresh_whose_body_breaks_off_get_the_page_of_the_next_request() {
    let fields = "max-age=10, stale-while-revalidate=10";
    let app = refreshing(fields, false, 2).await;
    pass(ms(1200)).await;
    let replies = crowd(&app, 50, |_| get("/page")).await;
    let statuses: Vec<_> = replies.iter().map(|reply| reply.status).collect();
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
}

/// The same where the client takes nothing stale, within the window.
#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_stale_gets_a_page_though_a_refresh_breaks_off() {
    let fields = "max-age=10, stale-while-revalidate=600";
    let app = refreshing(fields, true, 2).await;
    pass(ms(200)).await;
    let strict = |_| with("/page", &[("cache-control", "max-age=5")]);
    let waiting = spawn({
        let app = app.clone();
        async move { send(&app, strict(0)).await }
    });
    pass(secs(2)).await;
    let reply = waiting.await.unwrap();
    assert_eq!((reply.status, reply.text()), (200, "new"), "waited: {reply:?}");
}

/// And where it comes just after it.
#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_stale_is_not_held_by_a_refresh_that_broke_off() {
    let fields = "max-age=10, stale-while-revalidate=600";
    let app = refreshing(fields, true, 0).await;
    pass(ms(200)).await;
    let reply = send(&app, with("/page", &[("cache-control", "max-age=5")])).await;
    assert_eq!((reply.status, reply.text()), (200, "new"), "{reply:?}");
}

/// A client that wants a part waits for the whole.
#[tokio::test(start_paused = true)]
async fn a_client_that_wants_a_part_and_waits_for_a_refresh_that_breaks_off_gets_it() {
    let fields = "max-age=10, stale-while-revalidate=10";
    let app = refreshing(fields, false, 2).await;
    pass(ms(1200)).await;
    let reply = send(&app, with("/page", &[("range", "bytes=0-1")])).await;
    assert!([200, 206].contains(&reply.status), "{reply:?}");
}

/// A response with `must-revalidate` is refreshed early alone. Clients that come after its end wait for that.
#[tokio::test(start_paused = true)]
async fn clients_of_what_must_be_validated_get_a_page_though_its_early_refresh_breaks_off() {
    let fields = "max-age=10, must-revalidate";
    let origin = Origin::new(move |_| Answer::ok(fields, "page").after(secs(4)));
    let builder = Stampede::builder("test").origin_only().early_refresh(1e6);
    let app = layered(builder.build().unwrap().http_layer(), &origin);
    send(&app, get("/page")).await;
    origin.answers(move |call| match call.n {
        1 => Answer::ok(fields, broken_at_once()).after(secs(12)),
        _ => Answer::ok(fields, "new"),
    });
    while origin.calls() < 2 {
        assert_eq!(send(&app, get("/page")).await.text(), "page");
        pass(ms(10)).await;
    }
    pass(secs(10)).await;
    assert_eq!(origin.calls(), 2);
    let replies = crowd(&app, 50, |_| get("/page")).await;
    let statuses: Vec<_> = replies.iter().map(|reply| reply.status).collect();
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?} {:?}", replies[0]);
}
