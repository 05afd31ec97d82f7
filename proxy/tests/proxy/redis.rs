//! Two processes of the proxy on one Redis server.

use std::time::Duration;

use crate::kit::proxy::{Origin, Peer, Proxy, soon};
use crate::kit::redis::Server;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Longer than a request takes that is passed on by mistake.
const A_WHILE: Duration = Duration::from_millis(100);

async fn answer(peer: &mut Peer, fields: &str, body: &str) {
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {length}\r\n\r\n");
    peer.send(head + body).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_at_two_proxies_is_one_request_to_the_origin() {
    let (redis, origin) = (Server::start(), Origin::bind().await);
    let url = redis.url();
    let flags = ["--redis", &url, "--namespace", "shop"];
    let (one, two) = (Proxy::start(&origin, &flags), Proxy::start(&origin, &flags));
    let mut crowd = Vec::new();
    for _ in 0..20 {
        crowd.push(one.send(GET).await);
        crowd.push(two.send(GET).await);
    }
    let (mut peer, _) = origin.request().await;
    assert!(!origin.is_asked_within(A_WHILE * 3).await);
    answer(&mut peer, "Cache-Control: max-age=60\r\nX-Many: 1\r\nX-Many: 2\r\n", "ab").await;
    for mut client in crowd {
        let reply = client.reply().await;
        assert_eq!((reply.status(), &*reply.body), (200, "ab"));
        assert_eq!(reply.head.all("x-many"), ["1", "2"]);
    }
    // A client that comes later finds it, at a third process too.
    let three = Proxy::start(&origin, &flags);
    assert_eq!(three.ask(GET).await.body, "ab");
    assert!(peer.is_quiet_for(A_WHILE).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_changed_through_one_proxy_is_new_at_the_other() {
    let (redis, origin) = (Server::start(), Origin::bind().await);
    let url = redis.url();
    let flags = ["--redis", &url];
    let (one, two) = (Proxy::start(&origin, &flags), Proxy::start(&origin, &flags));
    let (mut peer, _, mut client) = origin.request_on_new(&one, GET).await;
    answer(&mut peer, "Cache-Control: max-age=60\r\nConnection: close\r\n", "old").await;
    assert_eq!(client.reply().await.body, "old");
    assert_eq!(two.ask(GET).await.body, "old");
    let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    let (mut peer, _, mut client) = origin.request_on_new(&two, post).await;
    answer(&mut peer, "Connection: close\r\n", "done").await;
    assert_eq!(client.reply().await.body, "done");
    let (mut peer, _, mut client) = origin.request_on_new(&two, GET).await;
    answer(&mut peer, "Cache-Control: max-age=60\r\nConnection: close\r\n", "new").await;
    assert_eq!(client.reply().await.body, "new");
    // There it is known one message later.
    soon("the new one at the other", async { while one.ask(GET).await.body != "new" {} }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_server_it_starts_and_caches_for_itself() {
    let origin = Origin::bind().await;
    let refuses = Origin::bind().await.refuse();
    let nowhere = format!("redis://{}", refuses.local_addr().unwrap());
    let proxy = Proxy::start(&origin, &["--redis", &nowhere]);
    let (mut peer, _, mut client) = origin.request_on_new(&proxy, GET).await;
    answer(&mut peer, "Cache-Control: max-age=60\r\n", "ab").await;
    assert_eq!(client.reply().await.body, "ab");
    assert_eq!(proxy.ask(GET).await.body, "ab");
}
