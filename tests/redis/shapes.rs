//! Crowds of ranges and HEADs at several processes on one Redis server.

use std::time::Duration;

use axum::body::Body;
use tower_stampede::{HttpService, Redis, Stampede};

use crate::kit::http::{Answer, Origin, Reply, request, try_send, with};
use crate::kit::redis::Server;

const FILE: &str = "http://a/file";
const WORK: Duration = Duration::from_millis(300);

fn processes(server: &Server, origin: &Origin, n: usize) -> Vec<HttpService<Origin>> {
    let one = |_| {
        // So patient that no call times out on a busy machine.
        let redis = Redis::lazy(&server.url())
            .unwrap()
            .namespace("stampede")
            .op_timeout(Duration::from_secs(30));
        let builder = Stampede::builder("web").origin_only().lease(Duration::from_secs(100));
        let builder = builder.wait_timeout(Duration::from_secs(180));
        let cache = builder.redis(redis).build().unwrap();
        tower_layer::Layer::layer(&cache.http_layer(), origin.clone())
    };
    (0..n).map(one).collect()
}

async fn everywhere(
    apps: &[HttpService<Origin>],
    n: usize,
    request: impl Fn(usize) -> http::Request<Body>,
) -> Vec<Reply> {
    let clients: tokio::task::JoinSet<_> = (0..n)
        .flat_map(|i| apps.iter().map(move |app| (i, app)))
        .map(|(i, app)| {
            let (app, request) = (app.clone(), request(i));
            async move { try_send(&app, request).await.expect("a response") }
        })
        .collect();
    clients.join_all().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cold_crowd_of_ranges_at_two_processes_is_one_request() {
    let server = Server::start();
    let origin = Origin::new(|_| Answer::ok("max-age=3600", "0123456789").after(WORK));
    let apps = processes(&server, &origin, 2);
    let replies = everywhere(&apps, 250, |_| with(FILE, &[("range", "bytes=2-3")])).await;
    assert!(replies.iter().all(|reply| reply.status == 206 && reply.text() == "23"));
    assert_eq!((origin.calls(), origin.last().header("range")), (1, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cold_crowd_of_heads_at_two_processes_is_two_requests() {
    let server = Server::start();
    let head = || Answer::ok("max-age=3600", "").header("content-length", "99999999").after(WORK);
    let origin = Origin::new(move |_| head());
    let apps = processes(&server, &origin, 2);
    let replies = everywhere(&apps, 250, |_| request("HEAD", FILE, &[])).await;
    assert!(replies.iter().all(|reply| reply.header("content-length") == Some("99999999")));
    assert_eq!(origin.calls(), 2);
}
