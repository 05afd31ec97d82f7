//! A page that the answer to a refresh has ended is gone for all processes.

use tower_stampede::CacheOutcome::*;
use tower_stampede::remote::Double;

use super::{process, processes};
use crate::kit::http::{Answer, Origin, pass, secs, send, with};

#[tokio::test(start_paused = true)]
async fn a_page_that_a_refresh_has_ended_is_found_by_no_process() {
    for vary in ["", "accept-language"] {
        let double = Double::new();
        let page = move |_: &_| {
            let swr = "max-age=10, stale-while-revalidate=86400";
            Answer::ok(swr, "old").header("vary", vary)
        };
        let origin = Origin::new(page);
        let apps = processes(&double, &origin, 2);
        let ask = || with("http://a/page", &[("accept-language", "de")]);
        for app in &apps {
            assert_eq!(send(app, ask()).await.text(), "old");
        }
        assert_eq!(origin.calls(), 1);
        pass(secs(11)).await;
        origin.answers(|_| Answer::status(410));
        assert!(send(&apps[0], ask()).await.is(Stale));
        pass(secs(1)).await;
        assert_eq!(send(&apps[0], ask()).await.status, 410, "{vary:?}");
        let fresh = process(&double, &origin);
        assert_eq!(send(&fresh, ask()).await.status, 410, "{vary:?}");
        // The other process has a copy; it learns of it, or asks for itself.
        send(&apps[1], ask()).await;
        pass(secs(1)).await;
        assert_eq!(send(&apps[1], ask()).await.status, 410, "{vary:?}");
    }
}
