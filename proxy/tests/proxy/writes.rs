//! Which writes through the proxy end what is stored, and which do not.

use std::time::Duration;

use crate::kit::proxy::{Origin, Peer, Proxy, soon};

const GET: &str = "GET /hot HTTP/1.1\r\nHost: a\r\n\r\n";

/// Long enough for the proxy to see that a client has gone.
const A_WHILE: Duration = Duration::from_millis(300);

/// Starts a proxy that has stored a page.
async fn warm() -> (Origin, Proxy) {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let (mut peer, _, mut client) = origin.request_on_new(&proxy, GET).await;
    let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nConnection: close\r\n";
    peer.send(format!("{head}Content-Length: 3\r\n\r\nold")).await;
    assert_eq!(client.reply().await.body, "old");
    assert!(is_stored(&origin, &proxy).await);
    (origin, proxy)
}

async fn is_stored(origin: &Origin, proxy: &Proxy) -> bool {
    let mut client = proxy.send(GET).await;
    tokio::select! {
        reply = client.reply() => reply.body == "old",
        (mut peer, _) = origin.request() => {
            peer.send("HTTP/1.1 500 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
            client.reply().await;
            false
        }
    }
}

/// Sends a write, which the origin reads and does not answer. Then the client hangs up.
async fn hang_up(origin: &Origin, proxy: &Proxy, request: &str, body: &str) {
    let client = proxy.send(request).await;
    let (mut peer, _): (Peer, _) = origin.request().await;
    peer.expect(body).await;
    drop(client);
    // The proxy gives the request up.
    soon("the end of the request", peer.until_end()).await;
    tokio::time::sleep(A_WHILE).await;
}

#[tokio::test]
async fn half_a_body_and_a_client_that_hangs_up_end_nothing() {
    for method in ["POST", "WHATEVER"] {
        let (origin, proxy) = warm().await;
        let length = format!("{method} /hot HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\nhalf");
        hang_up(&origin, &proxy, &length, "half").await;
        let chunked = format!(
            "{method} /hot HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"
        );
        hang_up(&origin, &proxy, &chunked, "4\r\nhalf\r\n").await;
        assert!(is_stored(&origin, &proxy).await, "{method}");
    }
}

#[tokio::test]
async fn a_whole_request_of_a_client_that_hangs_up_ends_the_page() {
    for (rest, body) in [
        ("Content-Length: 5\r\n\r\nwhole", "whole"),
        ("Transfer-Encoding: chunked\r\n\r\n5\r\nwhole\r\n0\r\n\r\n", "5\r\nwhole\r\n0\r\n\r\n"),
        ("\r\n", ""),
    ] {
        let (origin, proxy) = warm().await;
        let request = format!("POST /hot HTTP/1.1\r\nHost: a\r\n{rest}");
        hang_up(&origin, &proxy, &request, body).await;
        assert!(!is_stored(&origin, &proxy).await, "{rest:?}");
    }
}

#[tokio::test]
async fn writes_while_the_origin_refuses_connections_end_nothing_and_a_broken_connection_does() {
    let (origin, proxy) = warm().await;
    let post = "POST /hot HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    let (peer, _, mut client) = origin.request_on_new(&proxy, post).await;
    drop(peer);
    assert_eq!(client.reply().await.status(), 502);
    assert!(!is_stored(&origin, &proxy).await, "it may have been carried out");

    let (origin, proxy) = warm().await;
    let _refuses = origin.refuse();
    for n in 0..100 {
        assert_eq!(proxy.ask(post.replace("/hot", &format!("/{n}"))).await.status(), 502);
        assert_eq!(proxy.ask(post).await.status(), 502);
        let with_body = post.replace("0\r\n\r\n", "4\r\n\r\nbody");
        assert_eq!(proxy.ask(with_body).await.status(), 502);
    }
    assert_eq!(proxy.ask(GET).await.body, "old");
}
