//! Running the proxy: flags, HTTP/2 clients, crowds, limits and
//! shutdown.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Version};
use http_body_util::{BodyExt, Empty, Full};
use hyper_util::rt::TokioExecutor;
use rustix::process::Signal;

use crate::kit::proxy::scripted::{Scripted, fresh};
use crate::kit::proxy::{Origin, Proxy, soon};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const EMPTY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// Longer than a request takes that is passed on by mistake.
const A_WHILE: Duration = Duration::from_millis(100);

#[test]
fn flags_that_make_no_sense_end_it_with_a_message_and_code_2() {
    let origin = ["--origin", "http://127.0.0.1:1"];
    for (flags, message) in [
        (&["--origin-is-missing"][..], "unexpected argument '--origin-is-missing'"),
        (&[], "--origin http://HOST:PORT is missing"),
        (&["--origin"], "a value is required for '--origin <URL>'"),
        (&["--origin", "127.0.0.1:1"], "is not an origin"),
        (&["--origin", "http://a/path"], "is not an origin"),
        (&["--origin", "http://u@a"], "is not an origin"),
        (&["--origin", "ftp://a"], "is not an origin"),
        (&["--ttl-ms", "1", "--origin="], "is not an origin"),
        (&["--tls-cert", "/nowhere.pem"], "--tls-cert needs --tls-key"),
        (&["--tls-key", "/nowhere.pem"], "--tls-key needs --tls-cert"),
        (&["--tls-cert", "/nowhere.pem", "--tls-key", "/nowhere.pem"], "/nowhere.pem: No such"),
        (&["--origin-ca", "/nowhere.pem"], "TLS to origins: /nowhere.pem: No such"),
        (&["--ignore-query", "a=b"], "is not the name of a query parameter, nor a pattern"),
        (&["--access-log", "xml"], "is not one of combined, json"),
        (&["--access-log-file", "-"], "--access-log-file is for the lines of --access-log"),
        (&["--config", "/nowhere.toml"], "--config: /nowhere.toml: No such"),
        (&["--status-ttl", "200=1s"], "names no error"),
        (&["--listen", "nowhere"], "'nowhere' for '--listen <ADDR>': is not an address"),
        (&["--ttl-ms", "-1"], "'-1' for '--ttl-ms <N>': is not a whole number"),
        (&["--stale-ms", "x"], "--stale-ms"),
        (&["--stale-if-error-ms", "x"], "--stale-if-error-ms"),
        (&["--stale-if-disconnected-ms", "x"], "--stale-if-disconnected-ms"),
        (&["--set-cookie", "keep"], "is not one of refuse, strip, explicit"),
        (&["--host-header", "x"], "is not one of preserve, origin"),
        (&["--allow-host", "a b"], "is not a host"),
        (&["--max-body", "1M"], "--max-body"),
        (&["--max-header-bytes", "0"], "--max-header-bytes"),
        (&["--credential-header", "a b"], "is not a field name, nor a pattern"),
        (&["--credential-header", "*"], "is not a field name, nor a pattern"),
        (&["--not-a-credential", "x-*-y"], "is not a field name, nor a pattern"),
        (&["--not-a-credential", "Authorization"], "always is a credential"),
        (&["--store-post=yes"], ""),
        (&["--compute-timeout-ms", "0"], "is no time at all"),
        (&["--redis", "http://secret"], "--redis"),
        (&["--ignore-cookies=yes"], ""),
        (&["--ignore-cookie", "*"], "is not the name of a cookie, nor a pattern"),
        (&["--ignore-cookie", "a=b"], "is not the name of a cookie, nor a pattern"),
        (&["--tags-from", "x-tags"], "is not one of surrogate-key, xkey"),
        (&["--lifetime-from", "cache-control"], "is not one of surrogate-control"),
        (&["--admin-token-file", "/x"], "--admin-token-file is for the listener of --admin"),
        (&["--status-ttl", "404=1s", "--status-ttl", "404=2s"], "404 has two times"),
        (&["--status-ttl", "404=1"], "is not a status and a time in ms, s, m or h"),
        (&["--admin", "nowhere"], "'nowhere' for '--admin <ADDR>': is not an address"),
        (&["stray"], "stray"),
    ] {
        let mut all = flags.to_vec();
        if !flags.contains(&"--origin") && !flags.is_empty() {
            all.extend(origin);
        }
        let output = Proxy::refuse(&all);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {said}");
        assert!(said.contains(message), "{flags:?}: {said}");
        assert!(!said.contains("secret"), "{said}");
    }
}

#[tokio::test]
async fn every_flag_of_the_contract_is_followed() {
    let origin = Origin::bind().await;
    let flags = "--namespace x --ttl-ms 0 --stale-ms 0 --stale-if-error-ms 0 \
                 --stale-if-disconnected-ms 600000 --set-cookie explicit --ignore-cookies \
                 --max-body 10 --max-connections 5 --wait-timeout-ms 1000 --lease-ms 500";
    let proxy = Proxy::start(&origin, &flags.split_whitespace().collect::<Vec<_>>());
    let ask = "GET / HTTP/1.1\r\nHost: a\r\nCookie: a=b\r\n\r\n";
    let (mut peer, head, mut client) = origin.request_on_new(&proxy, ask).await;
    assert_eq!(head.get("cookie"), None);
    // Ten bytes are stored, eleven are not; explicitly cacheable cookies are.
    let fresh = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nSet-Cookie: a=b\r\n";
    peer.send(format!("{fresh}Content-Length: 11\r\n\r\n01234567890")).await;
    assert_eq!(client.reply().await.body, "01234567890");
    client.send(ask).await;
    let (mut peer, _) = origin.request_after(peer).await;
    peer.send(format!("{fresh}Content-Length: 10\r\n\r\n0123456789")).await;
    assert_eq!(client.reply().await.body, "0123456789");
    let stored = proxy.ask(GET).await;
    assert_eq!((&*stored.body, stored.head.get("set-cookie")), ("0123456789", Some("a=b")));
}

#[tokio::test]
async fn with_a_ttl_what_says_nothing_is_stored() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &["--ttl-ms", "60000"]);
    let (mut peer, _, mut client) = origin.request_on_new(&proxy, GET).await;
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab").await;
    client.reply().await;
    assert_eq!(proxy.ask(GET).await.body, "ab");
}

#[tokio::test]
async fn a_crowd_is_one_request_to_the_origin() {
    let origin = Origin::bind().await;
    let proxy = Arc::new(Proxy::start(&origin, &[]));
    let crowd: Vec<_> = (0..200)
        .map(|_| {
            let proxy = Arc::clone(&proxy);
            tokio::spawn(async move { proxy.ask(GET).await })
        })
        .collect();
    let (mut peer, _) = origin.request().await;
    // A client that comes late is answered from the store.
    assert!(!origin.is_asked_within(A_WHILE * 3).await);
    let fresh = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 2\r\n\r\nab";
    peer.send(fresh).await;
    for client in crowd {
        let reply = soon("an answer", client).await.unwrap();
        assert_eq!((reply.status(), &*reply.body), (200, "ab"));
    }
    assert!(peer.is_quiet_for(A_WHILE).await);
}

#[tokio::test]
async fn what_is_private_goes_to_the_origin_in_parallel() {
    let origin = Origin::bind().await;
    let proxy = Arc::new(Proxy::start(&origin, &[]));
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let answering = tokio::spawn(async move {
        loop {
            let (mut peer, _) = origin.request().await;
            let n = count.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                tokio::time::sleep(A_WHILE).await;
                let body = format!("{n:03}");
                let head = "HTTP/1.1 200 OK\r\nCache-Control: private\r\nConnection: close\r\n";
                peer.send(format!("{head}Content-Length: 3\r\n\r\n{body}")).await;
            });
        }
    });
    let crowd: Vec<_> = (0..50)
        .map(|_| {
            let proxy = Arc::clone(&proxy);
            tokio::spawn(async move { proxy.ask(GET).await.body })
        })
        .collect();
    let mut bodies = Vec::new();
    for client in crowd {
        bodies.push(soon("an answer", client).await.unwrap());
    }
    answering.abort();
    bodies.sort();
    bodies.dedup();
    assert_eq!((bodies.len(), asked.load(Ordering::SeqCst)), (50, 50), "nobody got another's");
}

#[tokio::test]
async fn a_client_may_speak_http_2() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let mut sender = proxy.connect_http2().await;
    let request = Request::post("http://a.example/x?y").header("te", "trailers");
    let answer = sender.send_request(request.body(Full::from("abc")).unwrap());
    let answer = tokio::spawn(answer);
    let (mut peer, head) = origin.request().await;
    assert_eq!(head.start, "POST /x?y HTTP/1.1");
    assert_eq!(head.get("host"), Some("a.example"));
    assert!(head.get("via").unwrap().starts_with("2 "));
    assert_eq!(head.get("content-length"), Some("3"));
    peer.expect("abc").await;
    let fields = "Connection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: x\r\nTrailer: X-Sum\r\n";
    let body = "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n";
    // An early hint has no way to this client, and does no harm.
    peer.send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n").await;
    peer.send(format!("HTTP/1.1 200 OK\r\n{fields}{body}")).await;
    let answer = soon("an answer", answer).await.unwrap().unwrap();
    assert_eq!((answer.version(), answer.status().as_u16()), (Version::HTTP_2, 200));
    for name in ["connection", "x-hop", "keep-alive", "transfer-encoding"] {
        assert!(!answer.headers().contains_key(name), "{name}");
    }
    let body = soon("its body", answer.into_body().collect()).await.unwrap();
    assert_eq!(body.trailers().unwrap()["x-sum"], "1");
    assert_eq!(body.to_bytes(), "ok");
}

#[tokio::test]
async fn requests_of_one_http_2_connection_share_a_computation_and_differ_in_their_errors() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let sender = proxy.connect_http2().await;
    let send = |host: &str| {
        let mut request = Request::get("http://a.example/").body(Full::default()).unwrap();
        request.headers_mut().insert("host", host.parse().unwrap());
        tokio::spawn(sender.clone().send_request(request))
    };
    let (one, two, odd) = (send("a.example"), send("a.example:80"), send("b.example"));
    // RFC 9113, 8.3.1
    assert_eq!(soon("a refusal", odd).await.unwrap().unwrap().status(), 400);
    let (mut peer, _) = origin.request().await;
    assert!(!origin.is_asked_within(A_WHILE).await);
    let fresh = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 2\r\n\r\nab";
    peer.send(fresh).await;
    for answer in [one, two] {
        let answer = soon("an answer", answer).await.unwrap().unwrap();
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ab");
    }
}

#[tokio::test]
async fn too_many_fields_of_http_2_are_refused() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &["--max-header-bytes", "1000"]);
    let mut sender = proxy.connect_http2().await;
    let request = Request::get("http://a/").header("x", "y".repeat(2000));
    let answer = sender.send_request(request.body(Full::default()).unwrap());
    assert_eq!(soon("a refusal", answer).await.unwrap().status(), 431);
}

#[tokio::test]
async fn clients_over_the_limit_wait_for_a_place() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &["--max-connections", "1"]);
    let (mut peer, _, mut first) = origin.request_on_new(&proxy, GET).await;
    let mut second = proxy.send(GET.replace("/ ", "/2 ")).await;
    assert!(!origin.is_asked_within(A_WHILE).await);
    peer.send(EMPTY).await;
    first.reply().await;
    drop(first);
    assert_eq!(peer.head().await.start, "GET /2 HTTP/1.1");
    peer.send(EMPTY).await;
    assert_eq!(second.reply().await.status(), 200);
}

#[tokio::test]
async fn open_requests_are_answered_before_it_ends() {
    for signal in [Signal::TERM, Signal::INT] {
        let origin = Origin::bind().await;
        let mut proxy = Proxy::start(&origin, &[]);
        // One that is idle, one that waits, one that streams, one of HTTP/2.
        let mut idle = proxy.connect().await;
        let (mut slow, _, mut waits) = origin.request_on_new(&proxy, GET).await;
        let (mut long, _, mut streams) =
            origin.request_on_new(&proxy, &GET.replace("/ ", "/s ")).await;
        long.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab").await;
        streams.head().await;
        streams.expect("ab").await;
        let _http2 = proxy.connect_http2().await;
        proxy.signal(signal);
        assert!(idle.head_or_end().await.is_none());
        slow.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        let reply = waits.reply().await;
        assert_eq!(reply.body, "ok");
        assert_eq!(reply.head.get("connection"), Some("close"));
        long.send("cd").await;
        streams.expect("cd").await;
        assert_eq!(proxy.ended().await, Some(0));
    }
}

#[tokio::test]
async fn an_address_that_is_taken_is_an_error_of_the_start() {
    let origin = Origin::bind().await;
    let taken = origin.address().to_string();
    let output = Proxy::refuse(&["--listen", &taken, "--origin", "http://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("cannot listen on"));
}

#[tokio::test]
async fn a_client_of_many_requests_is_never_answered_late_or_out_of_order() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let answering = tokio::spawn(async move {
        let mut peer = origin.accept().await;
        while let Some(head) = peer.head_or_end().await {
            let path = head.start.split(' ').nth(1).unwrap().to_owned();
            let fresh = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n";
            let answer = format!("{fresh}Content-Length: {}\r\n\r\n{path}", path.len());
            peer.send(answer).await;
        }
    });
    let mut client = proxy.connect().await;
    for n in 0..200 {
        let path = format!("/{}", n % 7);
        client.send(GET.replace("/ ", &format!("{path} "))).await;
        assert_eq!(client.reply().await.body, path);
    }
    drop(client);
    drop(proxy);
    soon("the end of the connection", answering).await.unwrap();
}

#[tokio::test]
async fn the_ordinary_client_of_hyper_gets_on_with_it() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build_http();
    let uri = format!("http://{}/x", proxy.address);
    let request = Request::get(uri).body(Empty::<Bytes>::new()).unwrap();
    let answer = tokio::spawn(client.request(request));
    let (mut peer, _) = origin.request().await;
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    let answer = soon("an answer", answer).await.unwrap().unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok");
}

/// 16 KiB of fields are the default. More must not be a panic: `HeaderMap::with_capacity` has one
/// above 24,576, and counts values.
#[tokio::test]
async fn many_short_fields_within_the_limit_do_not_break_the_connection() {
    let flags = ["--max-header-bytes", "2000000"];
    let (_origin, proxy) = Scripted::start(&flags, |_| (fresh(), "page".into())).await;
    let mut client = proxy.connect_http2().await;
    let mut request = Request::get("http://a/").body(Full::<Bytes>::default()).unwrap();
    request.headers_mut().append("x_y", "1".parse().unwrap());
    for _ in 0..25_000 {
        request.headers_mut().append("a", "1".parse().unwrap());
    }
    let response = soon("an answer", client.send_request(request)).await;
    assert!(response.is_ok(), "{response:?}");
}
