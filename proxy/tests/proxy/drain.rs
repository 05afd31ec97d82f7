//! How the proxy stops: no request that is sent may be lost.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::Signal;

use crate::kit::proxy::scripted::{Scripted, fresh};
use crate::kit::proxy::{Origin, Peer, Proxy, soon};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// What one client saw until it was told to leave or the listener was gone.
#[derive(Debug, Default)]
struct Counts {
    answered: usize,
    failed: usize,
    told: usize,
}

/// Asks on connections that it reuses as long as it may.
async fn ask_until_the_end(address: std::net::SocketAddr) -> Counts {
    let mut counts = Counts::default();
    // A connection that is refused carries no request.
    while let Ok(stream) = tokio::net::TcpStream::connect(address).await {
        let mut peer = Peer::of(stream);
        loop {
            peer.send(GET).await;
            let Some(reply) = peer.reply_or_end().await else {
                counts.failed += 1;
                break;
            };
            counts.answered += usize::from(reply.status() == 200);
            counts.failed += usize::from(reply.status() != 200);
            if reply.head.get("connection") == Some("close") {
                counts.told += 1;
                break;
            }
        }
    }
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_a_proxy_under_load_stops() {
    // So long that each of the clients asks meanwhile, and is told to leave.
    let flags = ["--drain-delay-ms", "2000"];
    let (origin, mut proxy) = Scripted::start(&flags, |_| (fresh(), "page".into())).await;
    let clients: Vec<_> = (0..20).map(|_| tokio::spawn(ask_until_the_end(proxy.address))).collect();
    let loaded = async {
        while origin.hits() == 0 {
            tokio::task::yield_now().await;
        }
    };
    soon("the first request", loaded).await;
    proxy.ask(GET).await;
    proxy.signal(Signal::TERM);
    for client in clients {
        let counts = soon("the end of a client", client).await.unwrap();
        assert!(counts.failed == 0 && counts.told > 0, "{counts:?}");
    }
    assert_eq!(proxy.ended().await, Some(0));
}

async fn health(proxy: &Proxy) -> (u16, String) {
    let mut operator = proxy.connect_as_operator().await;
    operator.send("GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    let reply = operator.reply().await;
    (reply.status(), reply.body)
}

#[tokio::test]
async fn while_it_drains_it_says_so_and_still_answers_new_clients() {
    let origin = Origin::bind().await;
    let flags = ["--drain-delay-ms", "600000", "--drain-timeout-ms", "60000"];
    let proxy = Proxy::start_with_token(&origin.url(), &flags, "a-token-for-operators");
    assert_eq!(health(&proxy).await, (200, "ok\n".into()));
    proxy.signal(Signal::TERM);
    let draining = async { while health(&proxy).await != (503, "draining\n".into()) {} };
    soon("the end of health", draining).await;
    // A client that the load balancer still sends, and one of HTTP/2.
    let (mut peer, _, mut client) = origin.request_on_new(&proxy, GET).await;
    peer.send("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 2\r\n\r\nok").await;
    let reply = client.reply().await;
    assert_eq!((&*reply.body, reply.head.get("connection")), ("ok", Some("close")));
    assert_eq!(client.until_end().await, b"");
    let mut sender = proxy.connect_http2().await;
    let request = Request::get("http://a/").body(Full::default()).unwrap();
    let answer = soon("an answer", sender.send_request(request)).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok");
    // GOAWAY follows.
    let told = async {
        while sender.ready().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("the end of the connection", told).await;
}

#[tokio::test]
async fn a_head_that_is_sent_in_part_does_not_hold_the_end_up() {
    let late = ["--drain-timeout-ms", "600000", "--header-timeout-ms", "600000"];
    let (origin, mut proxy) = Scripted::start(&late, |_| (fresh(), "page".into())).await;
    let mut slow = proxy.send("GET /slow HTTP/1.1\r\nHo").await;
    // It has accepted the first one when it answers the second.
    assert_eq!(proxy.ask(GET).await.status(), 200);
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.ended().await, Some(0));
    assert!(slow.until_end().await.is_empty() && origin.hits() == 1);
}

#[tokio::test]
async fn a_response_that_waits_for_its_client_is_not_cut_while_the_proxy_stops() {
    let page = "x".repeat(10_000);
    let late = ["--header-timeout-ms", "600000"];
    let (_origin, mut proxy) = Scripted::start(&late, move |_| (fresh(), page.clone())).await;
    // Stored: now the proxy has the whole body at once.
    assert_eq!(proxy.ask(GET).await.status(), 200);
    let mut client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    client.initial_stream_window_size(4096);
    let stream = TokioIo::new(proxy.connect().await.into_stream());
    let (mut sender, connection) = client.handshake::<_, Full<Bytes>>(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("http://a/").body(Full::default()).unwrap();
    let answer = soon("an answer", sender.send_request(request)).await.unwrap();
    let mut slow = proxy.send("GET /slow HTTP/1.1\r\nHo").await;
    // It has accepted the slow one when it answers the next.
    assert_eq!(proxy.ask(GET).await.status(), 200);
    proxy.signal(Signal::TERM);
    assert!(slow.until_end().await.is_empty(), "the time for half a head is over");
    let body = soon("the body", answer.into_body().collect()).await.unwrap();
    assert_eq!(body.to_bytes().len(), 10_000);
    assert_eq!(proxy.ended().await, Some(0));
}

#[tokio::test]
async fn a_request_that_follows_at_once_on_a_kept_connection_is_answered() {
    let (_origin, mut proxy) = Scripted::start(&[], |_| (fresh(), "page".into())).await;
    let mut client = proxy.send(GET).await;
    assert_eq!(client.reply().await.head.get("connection"), None);
    proxy.signal(Signal::TERM);
    // The proxy may have been told by now, or not: both must answer.
    client.send(GET).await;
    assert_eq!(client.reply().await.status(), 200);
    assert_eq!(proxy.ended().await, Some(0));
}

#[tokio::test]
async fn a_response_that_is_cut_off_has_its_line_in_the_access_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let origin = Origin::bind().await;
    let to_log = ["--access-log", "json", "--access-log-file", log.to_str().unwrap()];
    let mut proxy = Proxy::start(&origin, &[&["--drain-timeout-ms", "50"], &to_log[..]].concat());
    let (mut peer, _, mut client) = origin.request_on_new(&proxy, GET).await;
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").await;
    client.head().await;
    client.expect("half").await;
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.ended().await, Some(0));
    let line: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&log).unwrap()).unwrap();
    assert_eq!((&line["bytes"], &line["complete"]), (&4.into(), &false.into()));
}

#[tokio::test]
async fn a_file_that_is_never_read_to_its_end_does_not_hold_the_end_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.toml");
    let pipe = |path: &std::path::Path| {
        std::process::Command::new("mkfifo").arg(path).status().unwrap().success()
    };
    std::fs::write(&path, "").unwrap();
    let origin = Origin::bind().await;
    let mut proxy = Proxy::start(&origin, &["--config", path.to_str().unwrap()]);
    std::fs::remove_file(&path).unwrap();
    assert!(pipe(&path));
    proxy.signal(Signal::HUP);
    // The reload has begun once a writer finds it as the reader.
    let writer = tokio::net::unix::pipe::OpenOptions::new();
    let opened = async {
        loop {
            match writer.open_sender(&path) {
                Ok(writer) => return writer,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let _writer = soon("the reload", opened).await;
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.ended().await, Some(0));
    // Nor does a check wait for a reader of the access log.
    let checked = |log: &Path| {
        let to_log = ["--access-log", "json", "--access-log-file", log.to_str().unwrap()];
        let flags = [&["--origin", "http://a", "--check-config"], &to_log[..]].concat();
        let output = Proxy::refuse(&flags);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let log = folder.path().join("log");
    assert!(pipe(&log));
    let (code, said) = checked(&log);
    assert!(code == Some(2) && said.contains("is a named pipe"), "{said}");
    assert_eq!(checked(&folder.path().join("new.log")), (Some(0), String::new()));
    let (code, said) = checked(&folder.path().join("no folder/new.log"));
    assert!(code == Some(2) && said.contains("no folder/new.log: "), "{said}");
}
