//! What the proxy makes of requests: which it refuses, and what the
//! origin sees of the others.

use std::time::Duration;

use crate::kit::proxy::{Head, Origin, Proxy};

const EMPTY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// Longer than a request takes that is passed on by mistake.
const A_WHILE: Duration = Duration::from_millis(100);

/// Every request gets its status, and the origin hears of none.
async fn refused(flags: &[&str], table: &[(&str, u16)]) {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, flags);
    for (request, status) in table {
        let reply = proxy.ask(request).await;
        assert_eq!(reply.status(), *status, "{request:?} {reply:?}");
    }
    assert!(!origin.is_asked_within(A_WHILE).await);
}

/// What the origin sees of a request without a body.
async fn seen(flags: &[&str], request: &str) -> Head {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, flags);
    let mut client = proxy.send(request).await;
    let (mut peer, head) = origin.request().await;
    peer.send(EMPTY).await;
    assert_eq!(client.reply().await.status(), 200);
    head
}

#[tokio::test]
async fn a_request_is_for_exactly_one_valid_host() {
    refused(
        &[],
        &[
            ("GET / HTTP/1.1\r\n\r\n", 400), // RFC 9112, 3.2
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost:\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: user@a\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a:99999\r\n\r\n", 400),
            ("GET http://a/ HTTP/1.1\r\n\r\n", 400),
            ("GET http://user@a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ],
    )
    .await;
}

#[tokio::test]
async fn an_absolute_target_replaces_the_host() {
    // RFC 9112, 3.2.2
    let head = seen(&[], "GET http://a.example:81/x?y HTTP/1.1\r\nHost: b\r\n\r\n").await;
    assert_eq!(head.start, "GET /x?y HTTP/1.1");
    assert_eq!(head.get("host"), Some("a.example:81"));
}

#[tokio::test]
async fn the_origin_sees_the_clients_host_unless_told_otherwise() {
    let request = "GET / HTTP/1.1\r\nHost: www.example.com\r\n\r\n";
    assert_eq!(seen(&[], request).await.get("host"), Some("www.example.com"));
    let head = seen(&["--host-header", "origin"], request).await;
    assert!(head.get("host").unwrap().starts_with("127.0.0.1:"));
    assert_eq!(head.get("x-forwarded-host"), Some("www.example.com"));
}

#[tokio::test]
async fn a_request_of_http_1_0_without_a_host_is_for_the_origins() {
    let head = seen(&[], "GET / HTTP/1.0\r\n\r\n").await;
    assert_eq!(head.start, "GET / HTTP/1.1");
    assert!(head.get("host").unwrap().starts_with("127.0.0.1:"));
}

#[tokio::test]
async fn other_hosts_than_the_allowed_are_misdirected() {
    let flags = ["--allow-host", "a.example", "--allow-host", "B:8080"];
    refused(&flags, &[("GET / HTTP/1.1\r\nHost: a.example:81\r\n\r\n", 421)]).await;
    seen(&flags, "GET / HTTP/1.1\r\nHost: A.example\r\n\r\n").await;
    seen(&flags, "GET / HTTP/1.1\r\nHost: b:8080\r\n\r\n").await;
}

#[tokio::test]
async fn a_request_without_a_host_is_misdirected_unless_the_origins_host_is_allowed() {
    for request in ["GET / HTTP/1.0\r\n\r\n", "POST / HTTP/1.0\r\nContent-Length: 0\r\n\r\n"] {
        refused(&["--allow-host", "a.example"], &[(request, 421)]).await;
    }
    let origin = Origin::bind().await;
    let host = origin.address().to_string();
    let proxy = Proxy::start(&origin, &["--allow-host", "a.example", "--allow-host", &host]);
    let (_, head, _client) = origin.request_on_new(&proxy, "GET / HTTP/1.0\r\n\r\n").await;
    assert_eq!(head.get("host"), Some(host.as_str()));
}

#[tokio::test]
async fn connection_cannot_take_away_what_a_request_means() {
    let names =
        ["Host", "authorization", "Cookie", "Cache-Control", "Content-Length", "Transfer-Encoding"];
    let table: Vec<_> = names
        .iter()
        .map(|name| format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: x, {name}\r\n\r\n"))
        .chain(["GET / HTTP/1.1\r\nHost: a\r\nConnection: a b\r\n\r\n".to_owned()])
        .collect();
    let table: Vec<_> = table.iter().map(|request| (request.as_str(), 400)).collect();
    refused(&[], &table).await;
}

#[tokio::test]
async fn what_connection_names_ends_here_and_the_exchange_is_not_shared() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let request = "GET / HTTP/1.1\r\nHost: a\r\nX-Hop: 1\r\nX-End: 1\r\nConnection: X-Hop\r\n\r\n";
    let fresh = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 1\r\n\r\n";
    let mut peer = origin.request_on_new(&proxy, request).await;
    assert_eq!(peer.1.get("x-hop"), None);
    assert_eq!(peer.1.get("connection"), None);
    assert_eq!(peer.1.get("x-end"), Some("1"));
    peer.0.send(format!("{fresh}1")).await;
    assert_eq!(peer.2.reply().await.body, "1");
    // The next one asks for itself.
    let mut client = proxy.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    peer.0.head().await;
    peer.0.send(format!("{fresh}2")).await;
    assert_eq!(client.reply().await.body, "2");
    // And that is stored, as nothing was taken from its request.
    assert_eq!(proxy.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.body, "2");
}

#[tokio::test]
async fn fields_of_one_connection_end_here() {
    // RFC 9110, 7.6.1
    let head = seen(
        &[],
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade, HTTP2-Settings, TE\r\n\
         Keep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nUpgrade: h2c\r\n\
         HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nTE: gzip, trailers\r\n\r\n",
    )
    .await;
    for name in ["keep-alive", "proxy-connection", "upgrade", "http2-settings"] {
        assert_eq!(head.get(name), None, "{name}");
    }
    // What we say ourselves: that we take trailers, which the client does too.
    assert_eq!(head.get("te"), Some("trailers"));
    assert_eq!(head.get("connection"), Some("te"));
}

#[tokio::test]
async fn an_offer_of_h2c_does_not_keep_a_request_from_the_cache() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\n\
                   Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n";
    let mut client = proxy.send(request).await;
    let (mut peer, _) = origin.request().await;
    peer.send("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 1\r\n\r\n1").await;
    assert_eq!(client.reply().await.body, "1");
    assert_eq!(proxy.ask(request).await.body, "1");
}

#[tokio::test]
async fn what_a_client_claims_of_its_way_is_replaced() {
    let request = "GET / HTTP/1.1\r\nHost: a\r\nForwarded: for=6.6.6.6;host=evil\r\n\
                   X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Host: evil\r\n\
                   X-Forwarded-Proto: https\r\nX-Forwarded-Port: 1\r\nX-Forwarded-Prefix: /x\r\n\
                   X-Original-URL: /admin\r\nX-Rewrite-URL: /admin\r\nX-HTTP-Method: DELETE\r\n\
                   X-HTTP-Method-Override: DELETE\r\nX-Host: evil\r\n\r\n";
    let head = seen(&[], request).await;
    assert_eq!(head.get("forwarded"), Some("for=127.0.0.1;host=\"a\";proto=http"));
    assert_eq!(head.get("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(head.get("x-forwarded-host"), Some("a"));
    assert_eq!(head.get("x-forwarded-proto"), Some("http"));
    for name in [
        "x-forwarded-port",
        "x-forwarded-prefix",
        "x-original-url",
        "x-rewrite-url",
        "x-http-method",
        "x-http-method-override",
        "x-host",
    ] {
        assert_eq!(head.get(name), None, "{name}");
    }
    // From a proxy that is trusted they are kept, and the way gets longer.
    let head = seen(&["--trust-forwarded"], request).await;
    assert_eq!(head.all("x-forwarded-for"), ["6.6.6.6", "127.0.0.1"]);
    assert_eq!(head.get("x-forwarded-host"), Some("evil"));
    assert_eq!(head.get("x-original-url"), Some("/admin"));
}

#[tokio::test]
async fn nothing_else_of_a_request_changes() {
    let head = seen(
        &[],
        // In this order: a field that ends here leaves no gap.
        "GET /a//b/../%7e?x=1&&y HTTP/1.1\r\nHost: a\r\nAccept: text/html ;q=0.5 , */*\r\n\
         X-Many: 1\r\nKeep-Alive: x\r\nCookie: a=b; c=d\r\nX-Many: 2\r\nAuthorization: Basic x\r\n\
         Cache-Control: no-cache\r\nX-Latin: caf\u{e9}\r\n\r\n",
    )
    .await;
    assert_eq!(head.start, "GET /a//b/../%7e?x=1&&y HTTP/1.1");
    let ours = ["via", "forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];
    let expected = [
        ("host", "a"),
        ("accept", "text/html ;q=0.5 , */*"),
        ("x-many", "1"),
        ("x-many", "2"),
        ("cookie", "a=b; c=d"),
        ("authorization", "Basic x"),
        ("cache-control", "no-cache"),
        ("x-latin", "caf\u{e9}"),
    ];
    assert_eq!(head.but(&ours), expected);
}

#[tokio::test]
async fn every_method_passes_but_connect() {
    refused(&[], &[("CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", 501)]).await;
    for method in ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "get", "BREW"] {
        let head = seen(&[], &format!("{method} /x HTTP/1.1\r\nHost: a\r\n\r\n")).await;
        assert_eq!(head.start, format!("{method} /x HTTP/1.1"));
    }
    let head = seen(&[], "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert_eq!(head.start, "OPTIONS * HTTP/1.1");
}

/// RFC 9112, 3.2.4.
#[tokio::test]
async fn an_asterisk_is_the_target_of_options_alone() {
    for method in ["GET", "POST", "PURGE", "QUERY", "TRACE"] {
        let request = format!("{method} * HTTP/1.1\r\nHost: a\r\n\r\n");
        refused(&["--ttl-ms", "60000"], &[(&request, 400)]).await;
    }
}

#[tokio::test]
async fn a_host_that_is_no_name_in_dns_is_refused() {
    for host in ["app%2Eexample", "app%2eexample:80", "a..b", "app.example..", ".app", "[1:2]"] {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        refused(&[], &[(&request, 400)]).await;
    }
}

#[tokio::test]
async fn trace_is_never_cached() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let mut peer = None;
    for body in ["1", "2"] {
        let mut client = proxy.send("TRACE / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let mut at = match peer.take() {
            Some(peer) => peer,
            None => origin.accept().await,
        };
        at.head().await;
        let fresh = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 1\r\n\r\n";
        at.send(format!("{fresh}{body}")).await;
        assert_eq!(client.reply().await.body, body);
        peer = Some(at);
    }
}

#[tokio::test]
async fn max_forwards_is_counted_down_and_the_last_hop_answers() {
    // RFC 9110, 7.6.2
    let head = seen(&[], "OPTIONS / HTTP/1.1\r\nHost: a\r\nMax-Forwards: 10\r\n\r\n").await;
    assert_eq!(head.get("max-forwards"), Some("9"));
    let head = seen(&[], "GET / HTTP/1.1\r\nHost: a\r\nMax-Forwards: 10\r\n\r\n").await;
    assert_eq!(head.get("max-forwards"), Some("10"), "it is about TRACE and OPTIONS only");
    refused(
        &[],
        &[
            ("OPTIONS / HTTP/1.1\r\nHost: a\r\nMax-Forwards: 0\r\n\r\n", 204),
            ("TRACE / HTTP/1.1\r\nHost: a\r\nMax-Forwards: x\r\n\r\n", 400),
        ],
    )
    .await;
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let request = "TRACE /x HTTP/1.1\r\nHost: a\r\nMax-Forwards: 0\r\nCookie: secret\r\n\r\n";
    let reply = proxy.ask(request).await;
    assert_eq!(reply.head.get("content-type"), Some("message/http"));
    assert_eq!(reply.body, "TRACE /x HTTP/1.1\r\nhost: a\r\nmax-forwards: 0\r\n\r\n");
}

#[tokio::test]
async fn a_request_that_comes_back_is_a_loop() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let mut client = proxy.send("GET / HTTP/1.0\r\nHost: a\r\nVia: 1.1 fred\r\n\r\n").await;
    let (mut peer, head) = origin.request().await;
    let [fred, us] = head.all("via")[..] else { panic!("{head:?}") };
    assert_eq!(fred, "1.1 fred");
    let name = us.strip_prefix("1.0 ").expect("received as HTTP/1.0");
    // While the first is under way: it must not wait for itself.
    let back = format!("GET / HTTP/1.1\r\nHost: a\r\nVia: 1.1 fred, 1.0 {name}\r\n\r\n");
    assert_eq!(proxy.ask(back).await.status(), 508);
    peer.send("HTTP/1.1 200 OK\r\nVia: 1.1 varnish\r\nContent-Length: 0\r\n\r\n").await;
    let reply = client.reply().await;
    assert_eq!(reply.head.all("via"), ["1.1 varnish", &format!("1.1 {name}")]);
}

#[tokio::test]
async fn too_many_bytes_of_fields_are_refused() {
    let long = "x".repeat(15_000);
    let fits = format!("GET / HTTP/1.1\r\nHost: a\r\nA: {long}\r\n\r\n");
    assert_eq!(seen(&[], &fits).await.get("a").unwrap().len(), 15_000);
    let over = format!("GET / HTTP/1.1\r\nHost: a\r\nA: {long}\r\nB: {long}\r\n\r\n");
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "a: b\r\n".repeat(200));
    let uri = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(66_000));
    refused(&[], &[(&over, 431), (&many, 431), (&uri, 431)]).await;
    refused(&["--max-header-bytes", "65536"], &[(&uri, 414)]).await;
    let small = "GET / HTTP/1.1\r\nHost: a\r\nA: 0123456789\r\n\r\n";
    refused(&["--max-header-bytes", "20"], &[(small, 431)]).await;
}

#[tokio::test]
async fn nothing_after_a_shape_that_smuggles_is_read_as_a_request() {
    let hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";
    for (shape, status) in [
        // RFC 9112, 6.1 to 6.3
        ("Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
        ("Content-Length: 5, 6\r\n\r\n", 400),
        ("Content-Length: +5\r\n\r\n", 400),
        ("Content-Length: 0x5\r\n\r\n", 400),
        ("Content-Length: \r\n\r\n", 400),
        ("Transfer-Encoding: chunked, identity\r\n\r\n", 400),
        ("Transfer-Encoding: xchunked\r\n\r\n", 400),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
        ("Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        // RFC 9112, 5.1, 5.2 and 2.2
        ("Content-Length : 5\r\n\r\n", 400),
        ("X: a\r\n b\r\n\r\n", 400),
        ("X: a\rb\r\n\r\n", 400),
        ("X: a\0b\r\n\r\n", 400),
        (" X: a\r\n\r\n", 400),
    ] {
        let origin = Origin::bind().await;
        let proxy = Proxy::start(&origin, &[]);
        let mut client = proxy.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{shape}{hidden}")).await;
        assert_eq!(client.reply().await.status(), status, "{shape:?}");
        let hears = origin.is_asked_within(A_WHILE).await;
        assert!(!hears || status == 501, "{shape:?}");
    }
}

#[tokio::test]
async fn both_lengths_are_forwarded_as_one_and_the_connection_ends() {
    // RFC 9112, 6.1: "the server MUST close the connection after responding".
    for fields in [
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        "Content-Length: 3\r\nTransfer-Encoding: Chunked\r\nContent-Length: 4\r\n",
    ] {
        let origin = Origin::bind().await;
        let proxy = Proxy::start(&origin, &[]);
        let hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";
        let request = format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n2\r\nab\r\n0\r\n\r\n");
        let mut client = proxy.send(request + hidden).await;
        let (mut peer, head) = origin.request().await;
        assert_eq!(head.get("content-length"), None);
        assert_eq!(head.get("transfer-encoding"), Some("chunked"));
        assert_eq!(peer.chunked().await.0, b"ab");
        peer.send(EMPTY).await;
        assert_eq!(client.reply().await.status(), 200);
        assert!(client.head_or_end().await.is_none(), "the connection ends");
        assert!(peer.is_quiet_for(A_WHILE).await, "{fields}");
    }
}

#[tokio::test]
async fn bodies_are_forwarded_in_the_frame_that_fits() {
    for (method, request, length, coding, sent) in [
        ("POST", "Content-Length: 3\r\n\r\nabc", Some("3"), None, "abc"),
        ("POST", "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", Some("3"), None, "abc"),
        ("POST", "Content-Length: 0\r\n\r\n", Some("0"), None, ""),
        ("DELETE", "\r\n", None, None, ""),
        ("GET", "Content-Length: 3\r\n\r\nabc", Some("3"), None, "abc"),
        (
            "GET",
            "Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\n\r\n",
            None,
            Some("chunked"),
            "abc",
        ),
        (
            "PUT",
            "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n",
            None,
            Some("chunked"),
            "abc",
        ),
    ] {
        let origin = Origin::bind().await;
        let proxy = Proxy::start(&origin, &[]);
        let mut client = proxy.send(format!("{method} / HTTP/1.1\r\nHost: a\r\n{request}")).await;
        let (mut peer, head) = origin.request().await;
        assert_eq!(head.get("content-length"), length, "{request}");
        assert_eq!(head.get("transfer-encoding"), coding, "{request}");
        match coding {
            Some(_) => assert_eq!(peer.chunked().await.0, sent.as_bytes()),
            None => peer.expect(sent).await,
        }
        peer.send(EMPTY).await;
        assert_eq!(client.reply().await.status(), 200);
    }
}

#[tokio::test]
async fn trailers_of_a_request_are_forwarded_behind_its_body() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let request = "POST / HTTP/1.1\r\nHost: a\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\
                   \r\n1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n";
    let mut client = proxy.send(request).await;
    let (mut peer, head) = origin.request().await;
    assert_eq!(head.get("x-sum"), None);
    assert_eq!(peer.chunked().await, (b"a".to_vec(), vec!["x-sum: 1".to_owned()]));
    peer.send(EMPTY).await;
    client.reply().await;
}

#[tokio::test]
async fn a_head_that_does_not_come_ends_the_connection() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &["--header-timeout-ms", "100"]);
    for beginning in ["", "GET / HT", "GET / HTTP/1.1\r\nHost: a\r\nX: ", "PRI * HTTP/2.0\r\n"] {
        let mut client = proxy.send(beginning).await;
        client.until_end().await;
    }
    // One that trickles in: each byte on its own is no excuse.
    let mut client = proxy.send("GET / HTTP/1.1\r\nHost: a\r\n").await;
    while client.send_within(A_WHILE / 5, b"x").await == 1 && client.is_quiet_for(A_WHILE / 5).await
    {
    }
    client.until_end().await;
}
