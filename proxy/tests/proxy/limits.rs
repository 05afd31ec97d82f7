//! Clients and origins that are slow, silent or many: how long they may take, and how clients
//! share what the proxy has.

use std::net::Ipv4Addr;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::time::Instant;

use crate::kit::proxy::scripted::{Scripted, fresh};
use crate::kit::proxy::{GIVE_UP, Origin, Peer, Proxy, soon};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const EMPTY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
const SWITCH: &str = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n\
                      Upgrade: websocket\r\n\r\n";
const SWITCHED: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

/// Longer than a request takes that is passed on by mistake.
const A_WHILE: Duration = Duration::from_millis(200);

/// The limit of each test, in milliseconds.
const LIMIT: &str = "300";

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Where another client connects from.
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

// ---- idle connections and heads ----

#[tokio::test]
async fn an_idle_connection_of_http_1_ends() {
    let (_origin, proxy) =
        Scripted::start(&["--idle-timeout-ms", LIMIT], |_| (fresh(), "x".into())).await;
    let mut client = proxy.send(GET).await;
    client.reply().await;
    assert_eq!(client.until_end().await, b"", "the connection ends");
    // With a request under way none is idle.
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &["--idle-timeout-ms", LIMIT]);
    let (mut peer, _, mut client) = origin.request_on_new(&proxy, GET).await;
    tokio::time::sleep(ms(900)).await;
    peer.send(EMPTY).await;
    assert_eq!(client.reply().await.status(), 200);
}

#[tokio::test]
async fn a_connection_of_http_2_that_only_answers_pings_is_idle() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &["--idle-timeout-ms", LIMIT]);
    let stream = TokioIo::new(proxy.connect().await.into_stream());
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).keep_alive_interval(ms(20)).keep_alive_while_idle(true);
    let (_sender, connection) = builder.handshake::<_, Empty<Bytes>>(stream).await.unwrap();
    drop(soon("the end of the connection", connection).await);
}

#[tokio::test]
async fn half_a_head_ends_its_connection_whatever_the_protocol() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &["--header-timeout-ms", LIMIT, "--idle-timeout-ms", LIMIT]);
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    // HEADERS of stream 1 that another frame has to go on.
    let half = [0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82];
    let http2 = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings, &half].concat();
    for begun in [&b""[..], b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\nX: ", b"PRI * HT", &http2] {
        let mut client = proxy.send(begun).await;
        client.until_end().await;
    }
}

// ---- bodies ----

#[tokio::test]
async fn an_upload_that_drips_is_refused_and_leaves_its_origin() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &["--body-read-timeout-ms", LIMIT]);
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n";
    let (mut peer, _, mut client) = origin.request_on_new(&proxy, head).await;
    let dripping = async {
        loop {
            client.send("x").await;
            if !client.is_quiet_for(ms(20)).await {
                return client.head().await;
            }
        }
    };
    assert_eq!(soon("a refusal", dripping).await.status(), 408);
    peer.until_end().await;
}

#[tokio::test]
async fn an_upload_at_the_least_rate_takes_as_long_as_it_takes() {
    let origin = Origin::bind().await;
    // Ten bytes a second are more than one, also where the clock runs on.
    let flags = ["--body-read-timeout-ms", "2000", "--min-rate", "1"];
    let proxy = Proxy::start(&origin, &flags);
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 25\r\n\r\n";
    let (mut peer, _, mut client) = origin.request_on_new(&proxy, head).await;
    for _ in 0..25 {
        client.send("x").await;
        tokio::time::sleep(ms(100)).await;
    }
    peer.bytes(25).await;
    peer.send(EMPTY).await;
    assert_eq!(client.reply().await.status(), 200);
}

/// Sends a body without an end, until the proxy ends the connection.
async fn flood(mut peer: Peer) {
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n").await;
    let sent = peer.send_within(2 * GIVE_UP, &vec![0; 64 << 20]).await;
    assert!(sent < 64 << 20, "somebody takes all of it");
}

#[tokio::test]
async fn a_client_of_http_1_that_does_not_read_a_body_is_cut_off() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &["--body-write-timeout-ms", LIMIT, "--max-body", "1000"]);
    let mut client = proxy.connect_small().await;
    client.send(GET).await;
    let (peer, _) = origin.request().await;
    // The origin learns it before all is sent.
    soon("the end of the body", flood(peer)).await;
}

/// A client of HTTP/2 with windows so small that it has to read.
async fn small_http2(
    proxy: &Proxy,
) -> (http2::SendRequest<Empty<Bytes>>, tokio::task::JoinHandle<()>) {
    let stream = TokioIo::new(proxy.connect().await.into_stream());
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(ms(20))
        .initial_stream_window_size(1 << 16);
    let (sender, connection) = builder.handshake(stream).await.unwrap();
    (sender, tokio::spawn(async move { drop(connection.await) }))
}

async fn asked(sender: &mut http2::SendRequest<Empty<Bytes>>) -> http::Response<Incoming> {
    let request = Request::get("http://a/").body(Empty::new()).unwrap();
    soon("a response", sender.send_request(request)).await.unwrap()
}

#[tokio::test]
async fn a_client_of_http_2_that_does_not_read_a_body_is_cut_off() {
    // A stored body too: all of it is there at once.
    for max_body in ["1000", "1000000"] {
        let flags = ["--body-write-timeout-ms", LIMIT, "--max-body", max_body];
        let body = "x".repeat(500_000);
        let (_origin, proxy) = Scripted::start(&flags, move |_| (fresh(), body.clone())).await;
        for _ in 0..2 {
            let (mut sender, connection) = small_http2(&proxy).await;
            let _unread = asked(&mut sender).await;
            soon("the end of the connection", connection).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_client_that_reads_slowly_gets_the_whole_body() {
    // It reads a hundred times as much in a second, also where the clock runs on.
    let flags = ["--body-write-timeout-ms", LIMIT, "--min-rate", "5000"];
    let body = "x".repeat(500_000);
    let (_origin, proxy) = Scripted::start(&flags, move |_| (fresh(), body.clone())).await;
    let (mut sender, _connection) = small_http2(&proxy).await;
    let mut response = asked(&mut sender).await;
    let (mut read, begun) = (0, Instant::now());
    while let Some(frame) = soon("a frame", response.frame()).await {
        read += frame.unwrap().data_ref().map_or(0, Bytes::len);
        tokio::time::sleep(ms(25)).await;
    }
    assert!(begun.elapsed() > ms(600), "it takes longer than the limit");
    assert_eq!(read, 500_000);
}

#[tokio::test]
async fn an_origin_that_pauses_in_a_body_is_given_up() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &["--origin-idle-ms", LIMIT]);
    let (mut peer, _, mut client) = origin.request_on_new(&proxy, GET).await;
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234").await;
    client.head().await;
    assert_eq!(client.until_end().await, b"01234");
    assert_eq!(peer.until_end().await, b"", "the connection to the origin ends, too");
}

// ---- web sockets, and the age of connections ----

async fn web_socket(proxy: &Proxy, origin: &Origin) -> (Peer, Peer) {
    let (mut peer, _, mut client) = origin.request_on_new(proxy, SWITCH).await;
    peer.send(SWITCHED).await;
    assert_eq!(client.head().await.status(), 101);
    (client, peer)
}

#[tokio::test]
async fn a_web_socket_counts_as_a_connection() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &["--max-connections", "1"]);
    let (client, peer) = web_socket(&proxy, &origin).await;
    let mut next = proxy.send(GET).await;
    assert!(!origin.is_asked_within(A_WHILE).await, "the place is taken");
    drop((client, peer));
    let (mut peer, _) = origin.request().await;
    peer.send(EMPTY).await;
    assert_eq!(next.reply().await.status(), 200);
}

#[tokio::test]
async fn a_silent_web_socket_ends_and_one_that_talks_does_not() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &["--websocket-idle-ms", "2000"]);
    let (mut client, mut peer) = web_socket(&proxy, &origin).await;
    for _ in 0..10 {
        peer.send("x").await;
        client.expect("x").await;
        tokio::time::sleep(ms(250)).await;
    }
    assert_eq!(client.until_end().await, b"");
    assert_eq!(peer.until_end().await, b"");
}

#[tokio::test]
async fn a_connection_that_is_too_old_ends_after_its_request() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &["--max-connection-ms", "3000"]);
    let (mut peer, _, mut client) = origin.request_on_new(&proxy, GET).await;
    tokio::time::sleep(ms(3500)).await;
    peer.send(EMPTY).await;
    assert_eq!(client.reply().await.status(), 200);
    assert_eq!(client.until_end().await, b"", "it is not kept");
    let (mut client, mut peer) = web_socket(&proxy, &origin).await;
    peer.send("x").await;
    assert_eq!(client.until_end().await, b"x");
}

// ---- clients share ----

#[tokio::test]
async fn a_new_key_is_asked_for_next_however_many_slow_urls_another_client_asks_for() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &["--max-computations", "16"]);
    for connection in 0..6 {
        let mut sender = proxy.connect_http2().await;
        for stream in 0..180 {
            let request = Request::get(format!("http://a/slow/{connection}/{stream}"));
            let request = request.body(http_body_util::Full::default()).unwrap();
            tokio::spawn(sender.send_request(request));
        }
        tokio::spawn(async move {
            let _open = sender;
            std::future::pending::<()>().await;
        });
    }
    let mut slow = Vec::new();
    for _ in 0..14 {
        slow.push(origin.request().await);
    }
    assert!(slow.iter().all(|(_, head)| head.start.starts_with("GET /slow/")));
    assert!(!origin.is_asked_within(A_WHILE).await, "one client has 14 of 16 places");
    let mut other = proxy.connect_from(OTHER).await;
    other.send(GET.replace("/ ", "/new ")).await;
    assert_eq!(origin.request().await.1.start, "GET /new HTTP/1.1");
}

#[tokio::test]
async fn with_min_computations_the_proxy_begins_with_so_many_at_once() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &["--min-computations", "3"]);
    let mut slow = Vec::new();
    let mut clients = Vec::new();
    for at in 1..=5 {
        // One client alone would have two of the three.
        let mut client = proxy.connect_from(Ipv4Addr::new(127, 0, 0, at)).await;
        client.send(GET.replace("/ ", &format!("/{at} "))).await;
        clients.push(client);
    }
    for _ in 0..3 {
        slow.push(origin.request().await);
    }
    assert!(!origin.is_asked_within(A_WHILE).await, "two wait in the queue");
}

/// How long to wait for a request that is to come, or not to come.
fn patience(is_to_come: bool) -> Duration {
    if is_to_come { GIVE_UP } else { A_WHILE }
}

/// A request of a client behind a proxy in front of this one.
fn behind_proxy(client: &str, path: &str) -> String {
    GET.replace("/ ", &format!("{path} "))
        .replace("\r\n\r\n", &format!("\r\nX-Forwarded-For: {client}\r\n\r\n"))
}

#[tokio::test]
async fn behind_a_trusted_proxy_clients_are_told_apart_by_the_address_that_it_has_written() {
    for (flags, is_told) in [(&["--trust-forwarded"][..], true), (&[], false)] {
        let origin = Origin::bind().await;
        let flags = [flags, &["--max-computations", "2"]].concat();
        let proxy = Proxy::start(&origin, &flags);
        // What the client itself has written stands before it.
        let first = proxy.send(behind_proxy("9.9.9.9, 192.0.2.1", "/1")).await;
        let _slow = origin.request().await;
        let same = proxy.send(behind_proxy("8.8.8.8, 192.0.2.1", "/2")).await;
        assert!(!origin.is_asked_within(A_WHILE).await, "one client has one of two places");
        let other = proxy.send(behind_proxy("9.9.9.9, 192.0.2.2", "/3")).await;
        assert_eq!(origin.is_asked_within(patience(is_told)).await, is_told);
        drop((first, same, other));
    }
}

#[tokio::test]
async fn addresses_of_one_network_are_one_client_where_a_flag_says_so() {
    for (bits, is_told) in [("32", true), ("24", false)] {
        let origin = Origin::bind().await;
        let flags = ["--max-computations", "2", "--client-ipv4-bits", bits];
        let proxy = Proxy::start(&origin, &flags);
        let first = proxy.send(GET.replace("/ ", "/1 ")).await;
        let _slow = origin.request().await;
        let mut other = proxy.connect_from(OTHER).await;
        other.send(GET.replace("/ ", "/2 ")).await;
        assert_eq!(origin.is_asked_within(patience(is_told)).await, is_told, "{bits}");
        drop((first, other));
    }
}

#[tokio::test]
async fn forwarded_requests_have_a_bound_where_a_flag_sets_one() {
    let origin = Origin::bind().await;
    let flags = ["--max-forwarded", "2", "--wait-timeout-ms", "500"];
    let proxy = Proxy::start(&origin, &flags);
    let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    let (_slow, _, _first) = origin.request_on_new(&proxy, post).await;
    let mut second = proxy.send(post).await;
    assert!(!origin.is_asked_within(A_WHILE).await, "one client has one of two places");
    let mut other = proxy.connect_from(OTHER).await;
    other.send(post).await;
    let _answered = origin.request().await;
    let refused = second.reply().await;
    assert_eq!((refused.status(), refused.head.get("retry-after")), (503, Some("1")));
    let said = refused.head.get("cache-status").unwrap();
    assert!(said.ends_with("; detail=overloaded"), "{said}");
}

// ---- what a request may cost ----

#[tokio::test]
async fn what_costs_more_to_read_than_to_send_is_refused() {
    let (origin, proxy) = Scripted::start(&[], |_| (fresh(), "x".into())).await;
    let names = vec!["a"; 2000].join(",");
    for (field, status) in [
        (format!("Connection: {names}"), 431),
        (format!("TE: {names}"), 431),
        (format!("Connection: te\r\nTE: {}", "x,".repeat(600)), 431),
        (format!("A: {}", "x".repeat(16 << 10)), 431),
        (format!("A: {}", "x".repeat(15 << 10)), 200),
        ("Connection: close, x-one".to_owned(), 200),
    ] {
        let reply = proxy.ask(format!("GET / HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n")).await;
        assert_eq!(reply.status(), status, "{}", &field[..20]);
    }
    assert_eq!(origin.hits(), 2, "the page, and the request that is not shared");
}

#[tokio::test]
async fn http_2_has_the_same_bounds_on_fields_and_a_line_for_each_cookie() {
    let (_origin, proxy) = Scripted::start(&[], |_| (fresh(), "x".into())).await;
    let mut sender = proxy.connect_http2().await;
    for (name, lines, value, status) in
        [("a", 200, "x", 431), ("a", 50, "x", 200), ("cookie", 200, "a=b", 200)]
    {
        let mut request = Request::get("http://a/").body(http_body_util::Full::default()).unwrap();
        for _ in 0..lines {
            request.headers_mut().append(name, value.parse().unwrap());
        }
        let response = soon("a response", sender.send_request(request)).await.unwrap();
        assert_eq!(response.status(), status, "{lines} lines of {name}");
    }
    let mut request = Request::get("http://a/").body(http_body_util::Full::default()).unwrap();
    request.headers_mut().append("a", "x".repeat(17 << 10).parse().unwrap());
    let response = soon("a response", sender.send_request(request)).await;
    assert!(response.is_err() || response.unwrap().status() == 431);
}

#[tokio::test]
async fn a_response_with_a_header_section_over_the_bound_is_forwarded_and_not_stored() {
    for (bytes, calls) in [(15 << 10, 1), (18 << 10, 2)] {
        let large = format!("{}X-Large: {}\r\n", fresh(), "x".repeat(bytes));
        let (origin, proxy) = Scripted::start(&[], move |_| (large.clone(), "page".into())).await;
        for _ in 0..2 {
            let reply = proxy.ask(GET).await;
            assert_eq!(
                (reply.body.as_str(), reply.head.get("x-large").unwrap().len()),
                ("page", bytes)
            );
        }
        assert_eq!(origin.hits(), calls, "{bytes}");
    }
}

// ---- the other server ----

#[tokio::test]
async fn operators_of_the_web_server_write_the_scheme_of_the_token_in_any_case() {
    let server = Proxy::start_web_server(&["--admin-token", "an-operators-secret"]);
    for (shown, status) in [
        ("Bearer an-operators-secret", 200),
        ("bearer an-operators-secret", 200),
        ("BEARER  an-operators-secret", 200),
        ("Bearer AN-OPERATORS-SECRET", 401),
        ("Basic an-operators-secret", 401),
        ("an-operators-secret", 401),
    ] {
        let request =
            format!("GET /admin/mode HTTP/1.1\r\nHost: a\r\nAuthorization: {shown}\r\n\r\n");
        assert_eq!(server.ask(&request).await.status(), status, "{shown}");
    }
}

#[tokio::test]
async fn half_a_head_and_idle_connections_end_at_the_web_server_too() {
    let flags = ["--header-timeout-ms", LIMIT, "--idle-timeout-ms", LIMIT];
    let server = Proxy::start_web_server(&flags);
    for begun in ["", "GET / HTTP/1.1\r\nHost: a\r\n", "PRI * HT"] {
        server.send(begun).await.until_end().await;
    }
    let mut client = server.send("GET /stats HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert_eq!(client.reply().await.status(), 200);
    assert_eq!(client.until_end().await, b"");
}

#[tokio::test]
async fn no_page_of_another_site_has_the_web_server_do_anything() {
    let server = Proxy::start_web_server(&[]);
    let ask = |method: &str, target: &str, fields: &str| {
        let host = server.address;
        let head = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
        let server = &server;
        async move { server.send(&head).await.reply().await.status() }
    };
    let own = format!("Origin: http://{}\r\nSec-Fetch-Site: same-origin\r\n", server.address);
    for target in ["/fail?on=false", "/invalidate/1"] {
        for other in [
            "Origin: http://other.example\r\n",
            "Origin: null\r\n",
            "Sec-Fetch-Site: cross-site\r\n",
            "Sec-Fetch-Site: same-site\r\n",
        ] {
            assert_eq!(ask("POST", target, other).await, 403, "{target}: {other}");
        }
        // A proxy in front may have changed the host.
        let renamed = "Origin: http://front.example\r\nSec-Fetch-Site: same-origin\r\n";
        for good in ["", &own, renamed] {
            assert_eq!(ask("POST", target, good).await, 200, "{target}: {good}");
        }
    }
    assert_eq!(ask("POST", "/demo/herd", "Sec-Fetch-Site: cross-site\r\n").await, 403);
    // A link of another site may lead here.
    assert_eq!(ask("GET", "/", "Sec-Fetch-Site: cross-site\r\n").await, 200);
}

#[test]
fn limits_that_make_no_sense_end_both_servers_with_a_message_and_code_2() {
    for (flag, value, message) in [
        ("--idle-timeout-ms", "0", "is no time at all"),
        ("--body-read-timeout-ms", "x", "is not a whole number of milliseconds"),
        ("--body-write-timeout-ms", "0", "is no time at all"),
        ("--min-rate", "fast", "is not a whole number of bytes"),
        ("--max-connection-ms", "-1", "is not a whole number of milliseconds"),
        ("--max-header-bytes", "0", "is not a whole number above 0"),
    ] {
        let ours = Proxy::refuse(&["--origin", "http://127.0.0.1:1", flag, value]);
        is_refused(&ours, flag, &format!("'{value}' for '{flag}"), message);
        let other = Proxy::refuse_web_server(&[flag, value]);
        is_refused(&other, flag, &format!("{flag}: \"{value}\" "), message);
    }
    for (flag, value, message) in [
        ("--websocket-idle-ms", "0", "is no time at all"),
        ("--origin-idle-ms", "0", "is no time at all"),
        ("--max-computations", "0", "is not a whole number above 0"),
        ("--min-computations", "0", "is not a whole number above 0"),
        ("--max-forwarded", "0", "is not a whole number above 0"),
        ("--client-ipv4-bits", "33", "is not a whole number from 1 to 32"),
        ("--client-ipv4-bits", "0", "is not a whole number from 1 to 32"),
        ("--client-ipv6-bits", "x", "is not a whole number from 1 to 128"),
    ] {
        let output = Proxy::refuse(&["--origin", "http://127.0.0.1:1", flag, value]);
        is_refused(&output, flag, &format!("'{value}' for '{flag}"), message);
    }
}

/// The message names the flag and the value, and then the rule.
fn is_refused(output: &std::process::Output, flag: &str, named: &str, rule: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{flag}: {said}");
    assert!(said.contains(named) && said.contains(rule), "{flag}: {said}");
}
