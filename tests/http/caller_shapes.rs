//! Clients of the layer that are polled in unusual ways: an application that calls other services
//! through the layer may read their answers one by one, or not at all.

use std::pin::pin;

use futures_util::{StreamExt, poll, stream};
use tower_stampede::CacheOutcome::*;

use crate::kit::http::*;
use crate::kit::spawn;

#[tokio::test(start_paused = true)]
async fn requests_of_a_stream_that_is_read_slowly_hold_up_no_other_client() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "report").after(ms(20)));
    let app = layered(origin_only().http_layer(), &origin);
    let reads = {
        let app = app.clone();
        let read = move |n: u32| {
            let app = app.clone();
            async move { send(&app, get(&format!("/{n}"))).await }
        };
        spawn(stream::iter(0..6).map(read).buffered(3).for_each(|_| pass(secs(1))))
    };
    pass(ms(1)).await;
    let from = tokio::time::Instant::now();
    for n in 0..3 {
        assert_eq!(send(&app, get(&format!("/{n}"))).await.status, 200);
    }
    assert!(from.elapsed() <= ms(40), "it took {:?}", from.elapsed());
    reads.await.unwrap();
    assert_eq!(origin.calls(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_polled_once_may_wait_for_another_client_of_its_page() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "report").after(ms(20)));
    let app = layered(origin_only().http_layer(), &origin);
    let mut first = pin!(send(&app, get("/report")));
    assert!(poll!(&mut first).is_pending());
    assert!(send(&app, get("/report")).await.is(Joined));
    assert!(first.await.is(Computed));
    assert_eq!(origin.calls(), 1);
}
