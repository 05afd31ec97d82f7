//! QUERY, and POSTs that change nothing, in many processes.

use http::Request;
use tower_layer::Layer;
use tower_stampede::CacheOutcome;
use tower_stampede::remote::Double;

use super::{everywhere, joined, settings};
use crate::kit::http::{Answer, Origin, get, request, send};

fn echo() -> Origin {
    Origin::new(|call| {
        let body = String::from_utf8_lossy(&call.body).into_owned();
        Answer::ok("max-age=60", format!("{} {body}", call.parts.method))
    })
}

fn ask(method: &str, body: &'static str) -> Request<axum::body::Body> {
    let mut request = request(method, "http://a/x", &[("content-type", "text/plain")]);
    *request.body_mut() = body.into();
    request
}

#[tokio::test(start_paused = true)]
async fn a_crowd_at_many_processes_is_one_computation_per_body() {
    let (double, origin) = (Double::new(), echo());
    let process = || {
        let layer = joined(&double, settings()).http_layer().cache_posts(|_| true);
        layer.layer(origin.clone())
    };
    let apps: Vec<_> = (0..4).map(|_| process()).collect();
    let asks = [("QUERY", "a"), ("QUERY", "b"), ("POST", "a")];
    let replies = everywhere(&apps, 125, |i| ask(asks[i % 3].0, asks[i % 3].1)).await;
    for (i, reply) in replies.iter().enumerate() {
        let (method, body) = asks[i / 4 % 3];
        assert_eq!(reply.text(), format!("{method} {body}"));
    }
    assert_eq!(origin.calls(), 3);
    // A process that knows nothing finds them.
    let fresh = process();
    for (method, body) in asks {
        assert!(send(&fresh, ask(method, body)).await.is(CacheOutcome::Hit));
    }
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_write_at_one_process_ends_the_queries_of_its_uri_at_all() {
    let (double, origin) = (Double::new(), echo());
    let process = || joined(&double, settings()).http_layer().layer(origin.clone());
    let apps: Vec<_> = (0..2).map(|_| process()).collect();
    for app in &apps {
        send(app, ask("QUERY", "a")).await;
        send(app, get("http://a/x")).await;
    }
    assert_eq!(origin.calls(), 2);
    send(&apps[0], ask("POST", "new")).await;
    origin.answers(|_| Answer::ok("max-age=60", "new"));
    for app in &apps {
        assert_eq!(send(app, ask("QUERY", "a")).await.text(), "new");
        assert_eq!(send(app, get("http://a/x")).await.text(), "new");
    }
}
