//! What the proxy makes of responses, and of origins that fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::kit::proxy::{GIVE_UP, Origin, Peer, Proxy, Reply, soon};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const FRESH: &str = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n";

/// Longer than a request takes that is passed on by mistake.
const A_WHILE: Duration = Duration::from_millis(100);

/// What a client gets when the origin answers with these bytes, and then
/// leaves the connection as it is.
async fn got(request: &str, response: &str) -> (Reply, Peer) {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let mut client = proxy.send(request).await;
    let (mut peer, _) = origin.request().await;
    peer.send(response).await;
    (client.reply().await, peer)
}

/// How many requests one after the other are sent to see what happens to
/// connections.
const SEVERAL: usize = 5;

/// Answers every request the same, on every connection.
#[derive(Clone, Default)]
struct Counted {
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

impl Counted {
    async fn answer(self, origin: Origin, response: String) {
        loop {
            let mut peer = origin.accept().await;
            self.connections.fetch_add(1, Ordering::SeqCst);
            let (counted, response) = (self.clone(), response.clone());
            tokio::spawn(async move {
                while peer.head_or_end().await.is_some() {
                    counted.requests.fetch_add(1, Ordering::SeqCst);
                    peer.send(&response).await;
                }
            });
        }
    }
}

/// Sends several requests; returns how many connections and requests the
/// origin saw.
async fn several_after(response: &str) -> (usize, usize) {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let counted = Counted::default();
    let answering = tokio::spawn(counted.clone().answer(origin, response.to_owned()));
    for _ in 0..SEVERAL {
        assert_eq!(proxy.ask(GET).await.body, "ab", "{response:?}");
    }
    answering.abort();
    (counted.connections.load(Ordering::SeqCst), counted.requests.load(Ordering::SeqCst))
}

#[tokio::test]
async fn a_connection_is_used_again_after_a_response_that_ends_for_certain() {
    for response in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n2\r\nab\r\n0\r\nx: y\r\n\r\n",
    ] {
        let (connections, requests) = several_after(response).await;
        assert_eq!(requests, SEVERAL);
        // One may be under way back to the pool while the next is sent.
        assert!(connections < SEVERAL, "{response:?}");
    }
}

#[tokio::test]
async fn a_connection_is_not_used_again_where_two_could_read_two_ends() {
    for response in [
        // RFC 9112, 6.3
        "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 7\r\n\r\n2\r\nab\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nab",
        "HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nab",
    ] {
        assert_eq!(several_after(response).await, (SEVERAL, SEVERAL), "{response:?}");
    }
}

#[tokio::test]
async fn a_response_with_two_lengths_is_not_stored() {
    let one = format!("{FRESH}Content-Length: 2\r\n\r\nab");
    assert_eq!(several_after(&one).await, (1, 1));
    let two = format!("{FRESH}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n");
    let two = format!("{two}2\r\nab\r\n0\r\n\r\n");
    assert_eq!(several_after(&two).await, (SEVERAL, SEVERAL));
}

#[tokio::test]
async fn a_response_that_is_followed_by_more_bytes_is_forwarded_and_not_stored() {
    let hidden = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    for response in [
        format!("{FRESH}Content-Length: 2\r\n\r\nabc"),
        format!("{FRESH}Content-Length: 2\r\n\r\nab{hidden}"),
        format!("{FRESH}Content-Length: 2\r\nConnection: close\r\n\r\nab</html>"),
        format!("{}Content-Length: 2\r\n\r\nabc", FRESH.replace("1.1", "1.0")),
    ] {
        assert_eq!(several_after(&response).await, (SEVERAL, SEVERAL), "{response:?}");
    }
    // A chunked response says itself where it ends.
    let chunked = format!("{FRESH}Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n{hidden}");
    assert_eq!(several_after(&chunked).await, (1, 1));
}

#[tokio::test]
async fn a_page_that_is_cut_by_its_length_is_not_stored() {
    for (length, cut) in [(0, 1), (0, 20_000), (50_001, 1), (50_001, 100_000)] {
        let origin = Origin::bind().await;
        let proxy = Proxy::start(&origin, &[]);
        let counted = Counted::default();
        let page = "x".repeat(length + cut);
        let response = format!("{FRESH}Content-Length: {length}\r\n\r\n{page}");
        let answering = tokio::spawn(counted.clone().answer(origin, response));
        for asked in 1..=SEVERAL {
            assert_eq!(proxy.ask(GET).await.body, page[..length]);
            assert_eq!(counted.requests.load(Ordering::SeqCst), asked, "{length} {cut}");
        }
        answering.abort();
    }
}

#[tokio::test]
async fn a_response_of_http_1_0_is_stored_if_it_is_whole() {
    let head = FRESH.replace("1.1", "1.0");
    assert_eq!(several_after(&format!("{head}Content-Length: 2\r\n\r\nab")).await, (1, 1));
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let (mut peer, _, mut client) = origin.request_on_new(&proxy, GET).await;
    peer.send(format!("{head}Content-Length: 5\r\n\r\nab")).await;
    client.head().await;
    client.expect("ab").await;
    drop(peer);
    assert_eq!(client.until_end().await, b"", "it breaks off");
    // Without a length, its end is the end of the connection.
    let (mut peer, _, mut client) = origin.request_on_new(&proxy, GET).await;
    peer.send(format!("{head}\r\nab")).await;
    drop(peer);
    assert_eq!(client.reply().await.body, "ab");
    assert_eq!(proxy.ask(GET).await.body, "ab");
    assert!(!origin.is_asked_within(A_WHILE).await);
}

#[tokio::test]
async fn responses_are_framed_by_the_body_that_is_there() {
    for (response, length, coding) in [
        ("Content-Length: 2\r\n\r\nab", Some("2"), None),
        ("Content-Length: 2, 2\r\n\r\nab", Some("2"), None),
        ("Content-Length: 2\r\nContent-Length: 2\r\n\r\nab", Some("2"), None),
        ("Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", None, Some("chunked")),
        (
            "Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
            None,
            Some("chunked"),
        ),
    ] {
        let (reply, _) = got(GET, &format!("HTTP/1.1 200 OK\r\n{response}")).await;
        assert_eq!(reply.body, "ab");
        assert_eq!(reply.head.get("content-length"), length, "{response:?}");
        assert_eq!(reply.head.get("transfer-encoding"), coding, "{response:?}");
    }
}

#[tokio::test]
async fn a_length_may_stand_without_a_body_where_none_can_be() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let mut client = proxy.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let (mut peer, _) = origin.request().await;
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n").await;
    assert_eq!(client.head().await.get("content-length"), Some("1234"));
    // The connection is where it should be: the next exchange works.
    client.send(GET).await;
    peer.head().await;
    peer.send("HTTP/1.1 204 No Content\r\n\r\n").await;
    let reply = client.reply().await;
    assert_eq!(reply.head.get("content-length"), None);
    assert_eq!(reply.head.get("transfer-encoding"), None);
    client.send(GET.replace("Host", "If-None-Match: \"x\"\r\nHost")).await;
    peer.head().await;
    peer.send("HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 9\r\n\r\n").await;
    assert_eq!(client.reply().await.status(), 304);
    client.send(GET).await;
    peer.head().await;
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab").await;
    assert_eq!(client.reply().await.body, "ab");
}

#[tokio::test]
async fn a_body_that_breaks_off_is_seen_to_break_off() {
    for (response, begins) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", "ab"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", "2\r\nab\r\n"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\nx\r\n", "2\r\nab\r\n"),
    ] {
        let origin = Origin::bind().await;
        let proxy = Proxy::start(&origin, &[]);
        let mut client = proxy.send(GET).await;
        let (mut peer, _) = origin.request().await;
        peer.send(response).await;
        client.head().await;
        client.expect(begins).await;
        drop(peer);
        assert_eq!(client.until_end().await, b"", "no last chunk after {response:?}");
    }
}

#[tokio::test]
async fn a_body_delimited_by_the_end_of_its_connection_arrives_whole() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    for version in ["HTTP/1.1", "HTTP/1.0"] {
        let mut client = proxy.send(GET).await;
        let (mut peer, _) = origin.request().await;
        peer.send(format!("{version} 200 OK\r\n\r\nab")).await;
        drop(peer);
        let reply = client.reply().await;
        assert_eq!(reply.head.start, "HTTP/1.1 200 OK");
        assert_eq!(reply.body, "ab");
    }
}

#[tokio::test]
async fn a_client_of_http_1_0_gets_what_it_understands() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let mut client = proxy.send("GET / HTTP/1.0\r\nHost: a\r\n\r\n").await;
    let (mut peer, _) = origin.request().await;
    peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n").await;
    let reply = client.reply().await;
    // RFC 9112, 2.3: a server says its own version.
    assert_eq!(reply.head.start, "HTTP/1.1 200 OK");
    assert_eq!(reply.head.get("transfer-encoding"), None);
    assert_eq!(reply.body, "ab");
}

#[tokio::test]
async fn fields_of_one_connection_end_here() {
    // RFC 9110, 7.6.1
    let (reply, _) = got(
        GET,
        "HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Hop\r\nKeep-Alive: timeout=5\r\nX-Hop: 1\r\n\
         Proxy-Connection: x\r\nUpgrade: h2c\r\nX-End: 1\r\nContent-Length: 0\r\n\r\n",
    )
    .await;
    for name in ["connection", "keep-alive", "x-hop", "proxy-connection", "upgrade"] {
        assert_eq!(reply.head.get(name), None, "{name}");
    }
    assert_eq!(reply.head.get("x-end"), Some("1"));
}

#[tokio::test]
async fn a_directive_that_connection_names_counts_all_the_same() {
    let response = "HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nConnection: Cache-Control\r\n\
                    Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 2\r\n\r\nab";
    assert_eq!(several_after(response).await.1, SEVERAL);
}

#[tokio::test]
async fn nothing_else_of_a_response_changes() {
    let (reply, _) = got(
        GET,
        "HTTP/1.1 299 As You Like It\r\nConnection: x-hop\r\nDate: sunday, 06-nov-94 08:49:37 gmt\r\n\
         Server: x\r\nSet-Cookie: a=b\r\nX: 1\r\nset-cookie: c=d\r\nx:   2  \r\n\
         Cache-Control: private , x\r\nAge: 7\r\nCache-Status: cdn; fwd=miss\r\nContent-Length: 0\r\n\r\n",
    )
    .await;
    assert_eq!(reply.head.start, "HTTP/1.1 299 As You Like It");
    let expected = [
        ("date", "sunday, 06-nov-94 08:49:37 gmt"),
        ("server", "x"),
        ("set-cookie", "a=b"),
        ("set-cookie", "c=d"),
        ("x", "1"),
        ("x", "2"),
        ("cache-control", "private , x"),
        ("age", "7"),
        ("content-length", "0"),
    ];
    assert_eq!(reply.head.but(&["via", "cache-status"]), expected);
    assert_eq!(reply.head.all("cache-status")[0], "cdn; fwd=miss");
}

#[tokio::test]
async fn trailers_are_forwarded_and_never_become_fields() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let asks = "GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: te\r\n\r\n";
    let mut client = proxy.send(asks).await;
    let (mut peer, _) = origin.request().await;
    let response = format!(
        "{FRESH}Trailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX-Sum: 1\r\n\r\n"
    );
    peer.send(&response).await;
    let head = client.head().await;
    assert_eq!((head.get("x-sum"), head.get("trailer")), (None, Some("X-Sum")));
    assert_eq!(client.chunked().await, (b"ab".to_vec(), vec!["x-sum: 1".to_owned()]));
    // This client does not ask for trailers; and the response was not stored.
    let mut client = proxy.send(GET).await;
    let (mut peer, _) = origin.request_after(peer).await;
    peer.send(&response).await;
    assert_eq!(client.head().await.get("x-sum"), None);
    assert_eq!(client.chunked().await, (b"ab".to_vec(), vec![]));
}

#[tokio::test]
async fn what_makes_no_sense_is_a_bad_gateway() {
    for response in [
        "nonsense\r\n\r\n",
        "HTTP/1.1 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nx",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX : a\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        &format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(300)),
        &format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(1 << 20)),
    ] {
        let origin = Origin::bind().await;
        let proxy = Proxy::start(&origin, &[]);
        let mut client = proxy.send(GET).await;
        let (mut peer, _) = origin.request().await;
        // Until the proxy has read it all, or does not want to.
        peer.send_within(GIVE_UP, response.as_bytes()).await;
        let reply = client.reply().await;
        assert_eq!(reply.status(), 502, "{response:.100?} {reply:?}");
        assert_eq!(reply.head.get("cache-control"), Some("no-store"));
    }
}

#[tokio::test]
async fn an_origin_that_cannot_be_reached_is_a_bad_gateway() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    // It breaks off before its head has ended, in any of three ways.
    for partial in ["", "HTTP/1.1 200 OK\r\nX: "] {
        let mut client = proxy.send(GET.replace("/ ", "/a ")).await;
        let (mut peer, _) = origin.request().await;
        peer.send(partial).await;
        drop(peer);
        assert_eq!(client.reply().await.status(), 502, "{partial:?}");
        let mut client = proxy.send(GET.replace("/ ", "/b ")).await;
        let (mut peer, _) = origin.request().await;
        peer.send(partial).await;
        peer.reset();
        assert!(matches!(client.reply().await.status(), 502 | 503), "{partial:?}");
    }
    // It is gone.
    let _refuses = origin.refuse();
    assert_eq!(proxy.ask(GET).await.status(), 502);
    assert_eq!(proxy.ask("POST /c HTTP/1.1\r\nHost: a\r\n\r\n").await.status(), 502);
    // No name server knows where the origin is.
    let proxy = Proxy::start_at("http://origin.invalid", &[]);
    assert_eq!(proxy.ask(GET).await.status(), 502);
}

#[tokio::test]
async fn something_stale_stands_in_for_an_origin_that_cannot_be_reached() {
    for (flags, directives, status) in [
        (&[][..], "max-age=1", 200),
        (&["--stale-if-disconnected-ms", "0"], "max-age=1", 502),
        (&["--stale-if-disconnected-ms", "1"], "max-age=1", 502),
        // RFC 9111, 5.2.2.2
        (&[], "max-age=1, must-revalidate", 504),
        (&[], "max-age=1, proxy-revalidate", 504),
        (&[], "s-maxage=1", 504),
    ] {
        let origin = Origin::bind().await;
        let proxy = Proxy::start(&origin, flags);
        let (mut peer, _, mut client) = origin.request_on_new(&proxy, GET).await;
        let head = format!("HTTP/1.1 200 OK\r\nCache-Control: {directives}\r\nAge: 0\r\n");
        peer.send(format!("{head}Content-Length: 2\r\n\r\nab")).await;
        assert_eq!(client.reply().await.body, "ab");
        drop((origin, peer));
        // The process has a clock of its own: here time has to pass.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        let reply = proxy.ask(GET).await;
        assert_eq!(reply.status(), status, "{flags:?} {directives} {reply:?}");
        assert_eq!(reply.body == "ab", status == 200);
    }
}

#[tokio::test]
async fn an_origin_that_says_nothing_is_a_time_out() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &["--compute-timeout-ms", "1000"]);
    for request in [
        GET,
        "GET /x HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx",
        "OPTIONS / HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        let mut client = proxy.send(request).await;
        let _silent = origin.request().await;
        assert_eq!(client.reply().await.status(), 504, "{request:?}");
    }
}

#[tokio::test]
async fn an_upload_that_takes_long_is_no_silence() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &["--compute-timeout-ms", "2000"]);
    let mut client = proxy.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\n").await;
    let (mut peer, _) = origin.request().await;
    for _ in 0..8 {
        assert!(client.is_quiet_for(3 * A_WHILE).await);
        client.send("x").await;
        peer.expect("x").await;
    }
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    assert_eq!(client.reply().await.status(), 200);
}

#[tokio::test]
async fn a_connection_that_cannot_be_made_in_time_is_a_bad_gateway() {
    // An address that no host answers for, RFC 5737; refused at once where
    // there is no way to it, which is the same answer.
    let proxy = Proxy::start_at("http://192.0.2.1:9", &["--connect-timeout-ms", "100"]);
    let reply = soon("an answer", proxy.ask(GET)).await;
    assert_eq!(reply.status(), 502);
    let said = |reply: &Reply| reply.head.get("cache-status").map(str::to_owned);
    let miss = "tower-stampede; fwd=miss; detail=not-reached";
    assert_eq!(said(&reply).as_deref(), Some(miss));
    let reply = proxy.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").await;
    assert_eq!(said(&reply), Some(miss.replace("miss", "method")));
}

#[tokio::test]
async fn a_request_that_met_a_closing_connection_is_sent_once_more() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let mut client = proxy.send(GET).await;
    let (mut peer, _) = origin.request().await;
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    client.reply().await;
    // It reads the second request, and closes as if it had not.
    let mut client = proxy.send(GET).await;
    peer.head().await;
    drop(peer);
    let (mut peer, _) = origin.request().await;
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab").await;
    assert_eq!(client.reply().await.body, "ab");
    // What may not be repeated is not.
    let mut client = proxy.send("POST / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    peer.head().await;
    drop(peer);
    assert_eq!(client.reply().await.status(), 502);
    assert!(!origin.is_asked_within(A_WHILE).await);
}

/// How many connections are kept in the tests of those that are dead.
const KEPT: usize = 12;

/// Answers requests, and sends the start line of each. The first connections answer one request,
/// and end without a word at the second.
async fn answer_on_dead(origin: Origin, seen: tokio::sync::mpsc::UnboundedSender<String>) {
    for number in 0.. {
        let (mut peer, seen) = (origin.accept().await, seen.clone());
        tokio::spawn(async move {
            let mut has_answered = false;
            while let Some(head) = peer.head_or_end().await {
                drop(seen.send(head.start));
                if number < KEPT && has_answered {
                    return;
                }
                peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab").await;
                has_answered = true;
            }
        });
    }
}

/// Sends as many requests at once as there are kept connections, all of them dead. Returns their
/// statuses, and how often the origin saw each.
async fn on_dead_connections(method: &str) -> Vec<(u16, usize)> {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let crowd = async |method: &str, name: &str| {
        let request = |number| format!("{method} /{name}{number} HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut clients = Vec::new();
        for number in 0..KEPT {
            clients.push(proxy.send(request(number)).await);
        }
        clients
    };
    // All of them wait, so that each has a connection.
    let mut clients = crowd("GET", "kept").await;
    let (sender, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let answering = tokio::spawn(answer_on_dead(origin, sender));
    for client in &mut clients {
        assert_eq!(client.reply().await.status(), 200);
    }
    let mut statuses = Vec::new();
    for mut client in crowd(method, "dead").await {
        statuses.push(client.reply().await.status());
    }
    answering.abort();
    let mut starts = Vec::new();
    while let Ok(start) = seen.try_recv() {
        starts.push(start);
    }
    let count = |number| {
        let start = format!("{method} /dead{number} HTTP/1.1");
        starts.iter().filter(|seen| **seen == start).count()
    };
    statuses.into_iter().enumerate().map(|(number, status)| (status, count(number))).collect()
}

#[tokio::test]
async fn no_get_fails_when_all_kept_connections_are_dead() {
    let answers = on_dead_connections("GET").await;
    assert!(answers.iter().all(|(status, _)| *status == 200), "{answers:?}");
    assert!(answers.iter().all(|(_, sent)| *sent <= 2), "{answers:?}");
    assert!(answers.iter().any(|(_, sent)| *sent == 2), "no dead connection was used: {answers:?}");
}

#[tokio::test]
async fn no_post_is_sent_twice_when_all_kept_connections_are_dead() {
    let answers = on_dead_connections("POST").await;
    assert!(answers.iter().all(|(_, sent)| *sent == 1), "{answers:?}");
    assert!(answers.iter().any(|(status, _)| *status == 502), "{answers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_get_fails_at_an_origin_that_answers_one_request_on_each_connection() {
    let origin = Origin::bind().await;
    let proxy = Arc::new(Proxy::start(&origin, &[]));
    let answering = tokio::spawn(async move {
        loop {
            let mut peer = origin.accept().await;
            tokio::spawn(async move {
                if peer.head_or_end().await.is_some() {
                    // It does not say so.
                    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab").await;
                    peer.head_or_end().await;
                }
            });
        }
    });
    let clients = (0..16).map(|client| {
        let proxy = Arc::clone(&proxy);
        tokio::spawn(async move {
            let mut peer = proxy.connect().await;
            for request in 0..50 {
                peer.send(GET.replace("/ ", &format!("/{client}/{request} "))).await;
                let reply = peer.reply().await;
                assert_eq!(reply.status(), 200, "{reply:?}");
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    answering.abort();
}
