//! A body that arrives in one process, and clients that wait for it in another.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::stream;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tower_stampede::CacheOutcome::*;
use tower_stampede::remote::Double;

use super::*;
use crate::kit::http::*;
use crate::kit::spawn;

type Feeder = Arc<Mutex<Option<UnboundedSender<&'static str>>>>;

/// An origin whose first body the test feeds.
fn fed(vary: Option<&'static str>) -> (Origin, Feeder) {
    let (send, received) = unbounded_channel();
    let received = Mutex::new(Some(received));
    let origin = Origin::new(move |call| {
        let body = match received.lock().unwrap().take() {
            Some(received) => Body::from_stream(stream::unfold(received, |mut received| async {
                let text = received.recv().await?;
                Some((Ok::<_, std::io::Error>(Bytes::from(text)), received))
            })),
            None => Body::from(format!("call {}", call.n)),
        };
        let answer = Answer::ok("max-age=600", body);
        vary.into_iter().fold(answer, |answer, name| answer.header("vary", name))
    });
    (origin, Arc::new(Mutex::new(Some(send))))
}

fn feed(feeder: &Feeder, text: &'static str) {
    feeder.lock().unwrap().as_ref().unwrap().send(text).unwrap();
}

fn end(feeder: &Feeder) {
    feeder.lock().unwrap().take();
}

fn asking(app: &App) -> tokio::task::JoinHandle<Reply> {
    let app = app.clone();
    spawn(async move { send(&app, get("/report")).await })
}

#[tokio::test(start_paused = true)]
async fn a_body_of_one_process_is_stored_for_all_when_it_is_complete() {
    for vary in [None, Some("accept-language")] {
        let double = Double::new();
        let (origin, feeder) = fed(vary);
        let apps = processes(&double, &origin, 3);
        let first = asking(&apps[0]);
        pass(WORK + ms(10)).await;
        let elsewhere = asking(&apps[1]);
        // Longer than a lease: it is renewed while the body arrives.
        for _ in 0..20 {
            feed(&feeder, "drip ");
            pass(secs(1)).await;
        }
        assert!(!elsewhere.is_finished());
        end(&feeder);
        let first = first.await.unwrap();
        assert_eq!((first.took, first.text()), (WORK, &*"drip ".repeat(20)));
        assert_eq!(elsewhere.await.unwrap().text(), "drip ".repeat(20));
        pass(ms(10)).await;
        assert_eq!(send(&apps[2], get("/report")).await.text(), "drip ".repeat(20));
        assert!(send(&apps[0], get("/report")).await.is(Hit));
        assert_eq!(origin.calls(), 1, "{vary:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_breaks_off_leaves_its_lease_to_another_process() {
    let double = Double::new();
    let (origin, feeder) = fed(None);
    let apps = processes(&double, &origin, 2);
    let cut = joined(&double, settings());
    let first = asking(&cut.http_layer().layer(origin.clone()));
    pass(WORK + ms(10)).await;
    feed(&feeder, "half");
    let elsewhere = asking(&apps[0]);
    pass(secs(1)).await;
    assert_eq!(cut.shutdown(ms(10)).await, 1);
    let first = first.await.unwrap();
    assert!(first.broken && first.text() == "half");
    assert_eq!(elsewhere.await.unwrap().text(), "call 1");
    pass(ms(10)).await;
    assert_eq!(send(&apps[1], get("/report")).await.text(), "call 1");
    assert_eq!(origin.calls(), 2);
}
