//! What flows through the proxy while it flows: bodies, pauses, web
//! sockets, events, and what the origin says before it answers.

use std::time::{Duration, Instant};

use crate::kit::proxy::{Origin, Peer, Proxy};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const EMPTY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
const HINTS: &str = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";

/// Longer than a few bytes take that are not held back.
const A_WHILE: Duration = Duration::from_millis(150);

/// More than all buffers on the way hold together.
const FLOOD: usize = 64 << 20;

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_body_of_any_size_streams_through_in_little_memory() {
    // Sixteen times what the process may grow by.
    const SIZE: u64 = 256 << 20;
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let before = proxy.peak_memory();
    let mut client = proxy.send(GET).await;
    let (mut peer, _) = origin.request().await;
    let sending = tokio::spawn(async move {
        peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n")).await;
        let part = vec![b'x'; 1 << 20];
        for _ in 0..SIZE >> 20 {
            peer.send(&part).await;
        }
    });
    assert_eq!(client.head().await.get("content-length"), Some(&*SIZE.to_string()));
    assert_eq!(client.count_of(SIZE).await, SIZE);
    sending.await.unwrap();
    let grown = proxy.peak_memory() - before;
    assert!(grown < 16 << 20, "{} KiB", grown >> 10);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_upload_of_any_size_streams_through_in_little_memory() {
    const SIZE: u64 = 256 << 20;
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let before = proxy.peak_memory();
    let mut client = proxy.connect().await;
    let sending = tokio::spawn(async move {
        client.send(format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {SIZE}\r\n\r\n")).await;
        let part = vec![b'x'; 1 << 20];
        for _ in 0..SIZE >> 20 {
            client.send(&part).await;
        }
        client.reply().await.status()
    });
    let (mut peer, _) = origin.request().await;
    assert_eq!(peer.count_of(SIZE).await, SIZE);
    peer.send(EMPTY).await;
    assert_eq!(sending.await.unwrap(), 200);
    let grown = proxy.peak_memory() - before;
    assert!(grown < 16 << 20, "{} KiB", grown >> 10);
}

#[tokio::test]
async fn an_origin_is_held_back_while_the_client_does_not_read() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let mut client = proxy.connect_small().await;
    client.send(GET).await;
    let (mut peer, _) = origin.request().await;
    peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {FLOOD}\r\n\r\n")).await;
    let part = vec![b'x'; FLOOD];
    let sent = peer.send_within(A_WHILE * 4, &part).await;
    assert!(sent < FLOOD / 2, "{sent} of {FLOOD} went somewhere");
    // And goes on as soon as it does.
    let reading = tokio::spawn(async move {
        client.head().await;
        client.count_of(FLOOD as u64).await
    });
    peer.send(&part[sent..]).await;
    assert_eq!(reading.await.unwrap(), FLOOD as u64);
}

#[tokio::test]
async fn a_client_is_held_back_while_the_origin_does_not_read() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let head = format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {FLOOD}\r\n\r\n");
    let mut client = proxy.send(head).await;
    let (_peer, _) = origin.request().await;
    let sent = client.send_within(A_WHILE * 4, &vec![b'x'; FLOOD]).await;
    assert!(sent < FLOOD / 2, "{sent} of {FLOOD} went somewhere");
}

#[tokio::test]
async fn an_origin_is_left_when_the_client_of_a_long_body_has_gone() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let mut client = proxy.send(GET).await;
    let (mut peer, _) = origin.request().await;
    peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n").await;
    client.head().await;
    drop(client);
    while peer.send_within(A_WHILE, b"1\r\nb\r\n").await > 0 {}
}

#[tokio::test]
async fn events_arrive_one_by_one() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &["--ttl-ms", "60000"]);
    let mut client = proxy.send(GET).await;
    let (mut peer, _) = origin.request().await;
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
    peer.send(head).await;
    assert_eq!(client.head().await.get("content-type"), Some("text/event-stream"));
    for n in 0..3 {
        peer.send(format!("data: {n}\n\n")).await;
        client.expect(&format!("9\r\ndata: {n}\n\n\r\n")).await;
        assert!(client.is_quiet_for(A_WHILE / 3).await);
    }
    drop(peer);
    client.expect("0\r\n\r\n").await;
}

#[tokio::test]
async fn a_body_that_pauses_arrives_as_far_as_it_has_come() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let mut client = proxy.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab").await;
    let (mut peer, _) = origin.request().await;
    peer.expect("ab").await;
    // Both ways at once: the response begins before the request has ended.
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nxy").await;
    client.head().await;
    client.expect("xy").await;
    client.send("cd").await;
    peer.expect("cd").await;
    peer.send("zz").await;
    client.expect("zz").await;
}

#[tokio::test]
async fn a_range_passes_where_ranges_are_to_pass() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &["--pass-ranges"]);
    let ask = "GET / HTTP/1.1\r\nHost: a\r\nRange: bytes=1-2\r\nIf-Range: \"x\"\r\n\r\n";
    let mut client = proxy.send(ask).await;
    let (mut peer, head) = origin.request().await;
    assert_eq!((head.get("range"), head.get("if-range")), (Some("bytes=1-2"), Some("\"x\"")));
    let part = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 1-2/9\r\nETag: \"x\"\r\n";
    peer.send(format!("{part}Content-Length: 2\r\n\r\nbc")).await;
    let reply = client.reply().await;
    assert_eq!(reply.status(), 206);
    assert_eq!(reply.head.get("content-range"), Some("bytes 1-2/9"));
    assert_eq!(reply.body, "bc");
}

async fn switched(proxy: &Proxy, origin: &Origin) -> (Peer, Peer) {
    let ask = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\n\
               Upgrade: WebSocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n";
    let mut client = proxy.send(ask).await;
    let (mut peer, head) = origin.request().await;
    assert_eq!(head.start, "GET /chat HTTP/1.1");
    assert_eq!((head.get("connection"), head.get("upgrade")), (Some("upgrade"), Some("websocket")));
    assert_eq!(head.get("sec-websocket-key"), Some("x"));
    // The first words of the new protocol may come with the head.
    let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                  Sec-WebSocket-Accept: y\r\n\r\nhello";
    peer.send(switch).await;
    let head = client.head().await;
    assert_eq!(head.status(), 101);
    assert_eq!((head.get("connection"), head.get("upgrade")), (Some("upgrade"), Some("websocket")));
    assert_eq!(head.get("sec-websocket-accept"), Some("y"));
    client.expect("hello").await;
    (client, peer)
}

#[tokio::test]
async fn a_web_socket_is_a_connection_of_its_own_both_ways() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    // One is idle in the pool: it is not taken.
    let mut client = proxy.send(GET).await;
    let (mut pooled, _) = origin.request().await;
    pooled.send(EMPTY).await;
    client.reply().await;
    let (mut client, mut peer) = switched(&proxy, &origin).await;
    for n in 0..3 {
        client.send(format!("ping {n}")).await;
        peer.expect(&format!("ping {n}")).await;
        peer.send(format!("pong {n}")).await;
        client.expect(&format!("pong {n}")).await;
    }
    // Closed one way, the other still goes.
    client.finish().await;
    assert_eq!(peer.until_end().await, b"");
    peer.send("bye").await;
    drop(peer);
    assert_eq!(client.until_end().await, b"bye");
}

#[tokio::test]
async fn an_origin_that_will_not_switch_answers_like_any_other() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let ask = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    for (response, status) in [
        ("HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno", 426),
        ("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", 502),
        ("nonsense\r\n\r\n", 502),
    ] {
        let mut client = proxy.send(ask).await;
        let (mut peer, _) = origin.request().await;
        peer.send(response).await;
        assert_eq!(client.reply().await.status(), status, "{response:?}");
    }
}

#[tokio::test]
async fn early_hints_reach_the_client_before_the_origin_answers() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let mut client = proxy.send(GET).await;
    let (mut peer, _) = origin.request().await;
    for n in 0..2 {
        let hints =
            format!("HTTP/1.1 103 Early Hints\r\nLink: </{n}>\r\nConnection: x\r\nX: 1\r\n\r\n");
        peer.send(hints).await;
        let head = client.head().await;
        assert_eq!(head.start, "HTTP/1.1 103 Early Hints");
        assert_eq!(head.get("link"), Some(&*format!("</{n}>")));
        assert_eq!((head.get("connection"), head.get("x")), (None, None));
        assert!(head.get("via").unwrap().starts_with("1.1 "));
    }
    // Together with the response: still before it.
    let rest = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    peer.send(format!("HTTP/1.1 102 Processing\r\n\r\n{HINTS}{rest}")).await;
    assert_eq!(client.head().await.status(), 102);
    assert_eq!(client.head().await.status(), 103);
    assert_eq!(client.reply().await.body, "ok");
}

#[tokio::test]
async fn early_hints_stand_with_their_request_among_pipelined_ones() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let requests: String = (0..5).map(|n| GET.replace("/ ", &format!("/{n} "))).collect();
    let mut client = proxy.send(requests).await;
    let mut peer = origin.accept().await;
    for n in 0..5 {
        let (next, head) = origin.request_after(peer).await;
        peer = next;
        assert_eq!(head.start, format!("GET /{n} HTTP/1.1"));
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{n}");
        if n % 2 == 0 {
            peer.send(HINTS).await;
            assert_eq!(client.head().await.status(), 103, "{n}");
        }
        peer.send(answer).await;
        let reply = client.reply().await;
        assert_eq!((reply.status(), reply.body), (200, n.to_string()));
    }
}

#[tokio::test]
async fn early_hints_wait_for_a_client_that_reads_the_response_before() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let mut client = proxy.connect_small().await;
    client.send(format!("{GET}{GET}")).await;
    let (mut peer, _) = origin.request().await;
    let large = "x".repeat(8 << 20);
    peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", large.len())).await;
    let sending = async {
        peer.send(&large).await;
        let (mut peer, _) = origin.request_after(peer).await;
        peer.send(HINTS).await;
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        peer
    };
    let (first, _peer) = tokio::join!(client.reply(), sending);
    assert!(first.body == large, "nothing stands in between");
    assert_eq!(client.head().await.status(), 103);
    assert_eq!(client.reply().await.body, "ok");
}

#[tokio::test]
async fn only_the_client_whose_request_was_sent_gets_early_hints() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let mut leader = proxy.send(GET).await;
    let (mut peer, _) = origin.request().await;
    let mut waiter = proxy.send(GET).await;
    let mut old = proxy.send(GET.replace("1.1", "1.0")).await;
    assert!(waiter.is_quiet_for(A_WHILE).await);
    peer.send(HINTS).await;
    assert_eq!(leader.head().await.status(), 103);
    let fresh = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 2\r\n\r\nok";
    peer.send(fresh).await;
    assert_eq!(leader.reply().await.body, "ok");
    assert_eq!(waiter.reply().await.status(), 200);
    assert_eq!(old.reply().await.status(), 200);
    assert_eq!(proxy.ask(GET).await.status(), 200, "nor are they stored");
}

#[tokio::test]
async fn a_client_of_http_1_0_gets_no_early_hints() {
    // RFC 9110, 15.2
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let mut client = proxy.send(GET.replace("1.1", "1.0")).await;
    let (mut peer, _) = origin.request().await;
    peer.send(format!("{HINTS}{EMPTY}")).await;
    assert_eq!(client.head().await.status(), 200);
}

#[tokio::test]
async fn a_flood_of_early_hints_is_cut_and_the_response_comes() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let mut client = proxy.connect_small().await;
    client.send(GET).await;
    let (mut peer, _) = origin.request().await;
    let hints = format!("HTTP/1.1 103 Early Hints\r\nX: {}\r\n\r\n", "y".repeat(8 << 10));
    for _ in 0..2000 {
        peer.send(&hints).await;
    }
    peer.send(EMPTY).await;
    let mut hints = 0;
    while client.head().await.status() == 103 {
        hints += 1;
    }
    assert!((1..2000).contains(&hints), "{hints}");
}

/// How long the proxy waits for the word of an origin that may not have one.
const PATIENCE: Duration = Duration::from_secs(2);

const EXPECTS: &str =
    "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";

#[tokio::test]
async fn a_body_held_back_is_sent_once_the_origin_wants_it() {
    // On a busy machine one may take long; not all do.
    let mut quickest = Duration::MAX;
    for _ in 0..5 {
        quickest = quickest.min(time_to_hear_that_the_origin_wants_it().await);
    }
    assert!(quickest < PATIENCE / 2, "because the origin said so: {quickest:?}");
}

async fn time_to_hear_that_the_origin_wants_it() -> Duration {
    // RFC 9110, 10.1.1
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let mut client = proxy.send(EXPECTS).await;
    let (mut peer, head) = origin.request().await;
    assert_eq!(head.get("expect"), Some("100-continue"));
    assert!(client.is_quiet_for(A_WHILE).await, "it is for the origin to say");
    let said = Instant::now();
    peer.send("HTTP/1.1 100 Continue\r\n\r\n").await;
    assert_eq!(client.head().await.status(), 100);
    let took = said.elapsed();
    client.send("abc").await;
    peer.expect("abc").await;
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    let reply = client.reply().await;
    assert_eq!((reply.status(), &*reply.body), (200, "ok"), "one 100 only");
    took
}

#[tokio::test]
async fn a_body_held_back_is_not_sent_where_the_origin_does_not_want_it() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let mut client = proxy.send(EXPECTS).await;
    let (mut peer, _) = origin.request().await;
    peer.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 4\r\n\r\n").await;
    assert_eq!(client.head().await.status(), 413);
    // What it has to say may take its time.
    assert!(client.is_quiet_for(A_WHILE).await);
    peer.send("much").await;
    client.expect("much").await;
    // The origin still waits for a body that never comes: not for another
    // request in its place.
    assert_eq!(peer.until_end().await, b"");
    assert!(client.head_or_end().await.is_none());
}

#[tokio::test]
async fn a_body_held_back_is_sent_to_an_origin_that_never_says() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let mut client = proxy.send(EXPECTS).await;
    let (mut peer, _) = origin.request().await;
    assert_eq!(client.head().await.status(), 100);
    client.send("abc").await;
    peer.expect("abc").await;
    peer.send(EMPTY).await;
    assert_eq!(client.reply().await.status(), 200);
}

#[tokio::test]
async fn a_body_that_does_not_wait_is_not_lost() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let mut client = proxy.send(format!("{EXPECTS}abc")).await;
    let (mut peer, _) = origin.request().await;
    peer.send("HTTP/1.1 100 Continue\r\n\r\n").await;
    peer.expect("abc").await;
    peer.send(EMPTY).await;
    assert_eq!(client.head().await.status(), 100);
    assert_eq!(client.reply().await.status(), 200);
}

#[tokio::test]
async fn a_client_of_http_1_0_expects_nothing() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let mut client = proxy.send(format!("{}abc", EXPECTS.replace("1.1", "1.0"))).await;
    let (mut peer, head) = origin.request().await;
    assert_eq!(head.get("expect"), None);
    peer.expect("abc").await;
    peer.send(EMPTY).await;
    assert_eq!(client.head().await.status(), 200);
}

#[tokio::test]
async fn a_client_that_breaks_off_its_body_leaves_nothing_behind() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let client =
        proxy.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n");
    let client = client.await;
    let (mut peer, _) = origin.request().await;
    peer.expect("1\r\na\r\n").await;
    drop(client);
    // No last chunk: the origin must not take what it has for the whole.
    assert_eq!(peer.until_end().await, b"");
}
