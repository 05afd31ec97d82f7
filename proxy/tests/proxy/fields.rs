//! Which fields of a request the proxy drops, joins or brings into one
//! form before it looks the request up.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request};
use http_body_util::{BodyExt, Full, StreamBody};

use crate::kit::proxy::scripted::{Scripted, fresh};
use crate::kit::proxy::{Head, Origin, Proxy, soon};

const EMPTY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
const UNDERSCORES: &[&str] = &["--underscores-in-headers"];

/// The head that the origin sees of a request without a body.
async fn seen(flags: &[&str], request: &str) -> Head {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, flags);
    let mut client = proxy.send(request).await;
    let (mut peer, head) = origin.request().await;
    peer.send(EMPTY).await;
    assert_eq!(client.reply().await.status(), 200);
    head
}

fn get_with(fields: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

/// Names of the fields that are not written by the proxy itself.
fn names(head: &Head) -> Vec<&str> {
    let written =
        ["host", "via", "forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];
    head.but(&written).into_iter().map(|(name, _)| name).collect()
}

// ===== Fields that identify the client =====

/// Greets by one field, and says nothing of a lifetime.
async fn greeting(name: &'static str, flags: &[&str]) -> (Scripted, Proxy) {
    Scripted::start(flags, move |head| {
        let who = head.fields.iter().find(|(own, _)| own == name);
        ("X-Lifetime: none\r\n".into(), who.map_or("anonymous", |(_, value)| value).to_owned())
    })
    .await
}

#[tokio::test]
async fn users_whom_a_proxy_in_front_names_never_share_a_page_that_lives_by_the_flag() {
    for name in ["x-forwarded-user", "remote-user", "x-acme-user"] {
        let flags = ["--ttl-ms", "60000", "--credential-header", "X-Acme-*"];
        let (_origin, proxy) = greeting(name, &flags).await;
        for user in ["alice", "bob", "alice"] {
            let reply = proxy.ask(get_with(&format!("{name}: {user}\r\n"))).await;
            assert_eq!(reply.body, user, "{name}");
            let status = reply.head.get("cache-status").unwrap_or_default().to_owned();
            assert!(status.ends_with(&format!("detail=credentials:{name}")), "{status}");
        }
    }
}

#[tokio::test]
async fn a_name_with_an_underscore_that_the_flag_passes_is_the_credential_it_stands_for() {
    let flags = ["--ttl-ms", "60000", UNDERSCORES[0]];
    let (_origin, proxy) = greeting("x_forwarded_user", &flags).await;
    for user in ["alice", "bob"] {
        let reply = proxy.ask(get_with(&format!("X_Forwarded_User: {user}\r\n"))).await;
        assert_eq!(reply.body, user);
    }
}

#[tokio::test]
async fn a_field_that_is_no_credential_by_flag_is_shared_across() {
    let flags = ["--ttl-ms", "60000", "--not-a-credential", "X-Forwarded-Client-Cert"];
    let (_origin, proxy) = greeting("x-forwarded-client-cert", &flags).await;
    for workload in ["a", "b"] {
        let fields = format!("X-Forwarded-Client-Cert: {workload}\r\n");
        assert_eq!(proxy.ask(get_with(&fields)).await.body, "a");
    }
}

#[tokio::test]
async fn the_response_to_a_post_fills_the_page_only_by_flag() {
    for (flags, expected) in [(&[][..], "of a GET"), (&["--store-post"], "of a POST")] {
        let (_origin, proxy) = Scripted::start(flags, |head| {
            let fields = format!("{}Content-Location: /\r\n", fresh());
            (fields, format!("of a {}", head.start.split(' ').next().unwrap()))
        })
        .await;
        let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(proxy.ask(post).await.body, "of a POST");
        assert_eq!(proxy.ask(get_with("")).await.body, expected, "{flags:?}");
    }
}

// ===== Names that origins read in two ways =====

#[tokio::test]
async fn names_with_other_characters_than_letters_digits_and_hyphens_are_dropped() {
    let fields = "A: 1\r\nX_Forwarded_Port: 1@evil.example\r\nb-2: 1\r\nX.Forwarded.Port: 1\r\n\
                  x!a: 1\r\nx~a: 1\r\nX_Plain: 1\r\nX_Plain: 2\r\n3C: 1\r\n";
    for flags in [&[][..], &["--trust-forwarded"]] {
        assert_eq!(names(&seen(flags, &get_with(fields)).await), ["a", "b-2", "3c"], "{flags:?}");
    }
}

#[tokio::test]
async fn an_underscored_claim_does_not_poison_a_page() {
    let (origin, proxy) = Scripted::start(&[], |head| {
        // As CGI and WSGI read names.
        let port =
            head.fields.iter().find(|(name, _)| name.replace('_', "-") == "x-forwarded-port");
        (fresh(), format!("port {}", port.map_or("80", |(_, value)| value)))
    })
    .await;
    assert_eq!(proxy.ask(get_with("X_Forwarded_Port: 1@evil.example\r\n")).await.body, "port 80");
    assert_eq!(proxy.ask(get_with("")).await.body, "port 80");
    assert_eq!(origin.hits(), 1);
}

#[tokio::test]
async fn a_transfer_encoding_with_an_underscore_is_not_forwarded() {
    for flags in [&[][..], UNDERSCORES] {
        let origin = Origin::bind().await;
        let proxy = Proxy::start(&origin, flags);
        let request = "POST / HTTP/1.1\r\nHost: a\r\nTransfer_Encoding: chunked\r\n\
                       Content_Length: 0\r\nContent-Length: 5\r\n\r\n0\r\n\r\n";
        let mut client = proxy.send(request).await;
        let (mut peer, head) = origin.request().await;
        assert_eq!(names(&head), ["content-length"], "{flags:?}");
        peer.expect("0\r\n\r\n").await;
        peer.send(EMPTY).await;
        assert_eq!(client.reply().await.status(), 200);
    }
}

#[tokio::test]
async fn the_flag_passes_underscores_but_no_second_name_of_a_field_that_the_proxy_reads() {
    let fields = "X_Plain: 1\r\nX_Forwarded_Port: 1\r\nX-Forwarded_For: 1\r\n\
                  Transfer_Encoding: chunked\r\nContent_Length: 9\r\nX_Real_IP: 1\r\n\
                  Keep_Alive: 1\r\nCache_Control: no-cache\r\nProxy_Connection: x\r\n\
                  X.Plain: 1\r\nx!_a: 1\r\n_: 1\r\n";
    let head = seen(UNDERSCORES, &get_with(fields)).await;
    assert_eq!(names(&head), ["x_plain", "_"]);
    // A trusted peer may pass such a name on from its own client.
    let trusting = ["--underscores-in-headers", "--trust-forwarded"];
    let head = seen(&trusting, &get_with(fields)).await;
    assert_eq!(names(&head), ["x_plain", "_"]);
}

#[tokio::test]
async fn http_2_names_are_held_to_the_same_rule() {
    let (origin, proxy) = Scripted::start(&[], |_| (fresh(), String::new())).await;
    let mut http2 = proxy.connect_http2().await;
    let request = Request::get("http://a/").header("x_forwarded_port", "1").header("x-a", "1");
    let request = request.body(Full::<Bytes>::default()).unwrap();
    soon("an answer", http2.send_request(request)).await.unwrap();
    assert_eq!(names(&origin.heads()[0]), ["x-a"]);
}

#[tokio::test]
async fn the_first_dropped_name_and_the_total_are_reported_on_stderr() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start_recorded(&origin, &[]);
    let fields = "X_Secret: value\r\nX_Secret: value\r\nx!a: value\r\n";
    let (mut peer, _, mut client) = origin.request_on_new(&proxy, &get_with(fields)).await;
    peer.send(EMPTY).await;
    client.reply().await;
    client.send(get_with(fields)).await;
    peer.head().await;
    peer.send(EMPTY).await;
    client.reply().await;
    drop((client, peer));
    let stderr = proxy.end_and_read_stderr().await;
    let [first, total] = stderr.lines().collect::<Vec<_>>()[..] else { panic!("{stderr}") };
    assert!(first.contains("`x_secret`"), "{first}");
    assert!(first.contains("--underscores-in-headers"), "{first}");
    assert!(total.contains("dropped 6 request fields"), "{total}");
    assert!(!stderr.contains("value"), "{stderr}");
}

#[tokio::test]
async fn with_the_flag_the_report_says_which_field_the_name_stands_for() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start_recorded(&origin, UNDERSCORES);
    let request = get_with("X_Plain: 1\r\nX_Forwarded_Port: 1\r\n");
    let (mut peer, _, mut client) = origin.request_on_new(&proxy, &request).await;
    peer.send(EMPTY).await;
    client.reply().await;
    drop((client, peer));
    let stderr = proxy.end_and_read_stderr().await;
    let [first, total] = stderr.lines().collect::<Vec<_>>()[..] else { panic!("{stderr}") };
    assert!(first.contains("`x_forwarded_port`"), "{first}");
    assert!(first.contains("`x-forwarded-port`"), "{first}");
    assert!(total.contains("dropped 1 request field "), "{total}");
}

#[tokio::test]
async fn nothing_is_reported_where_nothing_was_dropped() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start_recorded(&origin, &[]);
    let (mut peer, _, mut client) = origin.request_on_new(&proxy, &get_with("X-A: 1\r\n")).await;
    peer.send(EMPTY).await;
    client.reply().await;
    drop((client, peer));
    assert_eq!(proxy.end_and_read_stderr().await, "");
}

// ===== Claims =====

#[tokio::test]
async fn claims_of_clients_that_are_not_trusted_do_not_reach_the_origin() {
    let claims = [
        "CF-Connecting-IP",
        "Client-IP",
        "CloudFront-Forwarded-Proto",
        "Fastly-Client-IP",
        "Front-End-Https",
        "HTTPS",
        "Surrogate-Capability",
        "True-Client-IP",
        "X-Accel-Mapping",
        "X-Client-IP",
        "X-Cluster-Client-IP",
        "X-Envoy-Original-Path",
        "X-Forwarded-Method",
        "X-Forwarded-Path",
        "X-Forwarded-Port",
        "X-Forwarded-Prefix",
        "X-Forwarded-Protocol",
        "X-Forwarded-Scheme",
        "X-Forwarded-Server",
        "X-Forwarded-Ssl",
        "X-Forwarded-Uri",
        "X-HTTP-Method",
        "X-HTTP-Method-Override",
        "X-Host",
        "X-Method-Override",
        "X-Original-Host",
        "X-Original-Method",
        "X-Original-URI",
        "X-Original-URL",
        "X-Real-IP",
        "X-Rewrite-URL",
        "X-Scheme",
        "X-Script-Name",
        "X-Sendfile-Type",
        "X-Url-Scheme",
    ];
    let fields: String = claims.iter().map(|name| format!("{name}: evil\r\n")).collect();
    let head = seen(&[], &get_with(&fields)).await;
    assert_eq!(names(&head), [""; 0]);
    let head = seen(&["--trust-forwarded"], &get_with(&fields)).await;
    assert_eq!(names(&head), claims.map(str::to_ascii_lowercase));
}

#[tokio::test]
async fn proxy_never_reaches_the_origin() {
    // CGI programs would find it in HTTP_PROXY.
    for flags in [&[][..], &["--trust-forwarded"]] {
        let head = seen(flags, &get_with("Proxy: http://evil.example\r\n")).await;
        assert_eq!(names(&head), [""; 0], "{flags:?}");
    }
}

#[tokio::test]
async fn trailers_cannot_bring_what_the_head_of_a_request_may_not() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let request = "POST / HTTP/1.1\r\nHost: a\r\n\
                   Trailer: X-Sum, X-Forwarded-Host, X_Forwarded_Host, Forwarded, Via\r\n\
                   Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Sum: 1\r\n\
                   X-Forwarded-Host: evil\r\nX_Forwarded_Host: evil\r\nForwarded: host=evil\r\n\
                   Via: 1.1 evil\r\n\r\n";
    let mut client = proxy.send(request).await;
    let (mut peer, _) = origin.request().await;
    assert_eq!(peer.chunked().await, (b"a".to_vec(), vec!["x-sum: 1".to_owned()]));
    peer.send(EMPTY).await;
    client.reply().await;
}

#[tokio::test]
async fn trailers_of_http_2_are_held_to_the_same_rule() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let stream = proxy.connect().await.into_stream();
    let (mut http2, connection) = hyper::client::conn::http2::handshake(
        hyper_util::rt::TokioExecutor::new(),
        hyper_util::rt::TokioIo::new(stream),
    )
    .await
    .unwrap();
    tokio::spawn(connection);
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("1"));
    trailers.insert("x-forwarded-host", HeaderValue::from_static("evil"));
    let frames =
        [http_body::Frame::data(Bytes::from_static(b"a")), http_body::Frame::trailers(trailers)];
    let frames = frames.map(Ok::<_, std::convert::Infallible>);
    let body = StreamBody::new(futures_util::stream::iter(frames));
    let request = Request::post("http://a/").header("trailer", "x-sum, x-forwarded-host");
    let answer = tokio::spawn(http2.send_request(request.body(body).unwrap()));
    let (mut peer, _) = origin.request().await;
    assert_eq!(peer.chunked().await, (b"a".to_vec(), vec!["x-sum: 1".to_owned()]));
    peer.send(EMPTY).await;
    soon("an answer", answer).await.unwrap().unwrap();
}

// ===== One form of host and target =====

/// Answers as many frameworks do: with a URL built from `Host`.
fn redirect(head: &Head) -> (String, String) {
    let target = head.start.split(' ').nth(1).unwrap();
    let host = head.get("host").unwrap();
    (format!("{}Location: http://{host}/login\r\n", fresh()), format!("{host} {target}"))
}

#[tokio::test]
async fn every_way_to_write_a_host_reaches_the_origin_in_one_form() {
    // Each at a new proxy: the first request decides what is stored.
    for (target, host) in [
        ("/a?b", "victim"),
        ("/a?b", "victim:80"),
        ("/a?b", "VICTIM"),
        ("/a?b", "victim:00000080"),
        ("/a?b", "victim:"),
        ("http://VICTIM:80/a?b", "other:81"),
        ("http://victim/a?b", "victim"),
        ("https://victim/a?b", "other"),
    ] {
        let (origin, proxy) = Scripted::start(&[], redirect).await;
        let shape = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        for request in [&*shape, "GET /a?b HTTP/1.1\r\nHost: victim\r\n\r\n"] {
            let reply = proxy.ask(request).await;
            assert_eq!(reply.body, "victim /a?b", "{shape:?}");
            assert_eq!(reply.head.get("location"), Some("http://victim/login"), "{shape:?}");
        }
        let [head] = &origin.heads()[..] else { panic!("{shape:?} has another key") };
        assert_eq!(head.get("x-forwarded-host"), Some("victim"), "{shape:?}");
        assert!(head.get("forwarded").unwrap().contains("host=\"victim\""), "{shape:?}");
    }
}

#[tokio::test]
async fn other_ports_are_forwarded_as_plain_numbers() {
    for (host, form) in [
        ("A.example:08080", "a.example:8080"),
        ("a.example:443", "a.example:443"),
        ("a:0081", "a:81"),
        ("[2001:DB8::1]:0081", "[2001:db8::1]:81"),
        ("[::1]:80", "[::1]"),
        ("a:0", "a:0"),
        ("a:00", "a:0"),
    ] {
        let head = seen(&[], &format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        assert_eq!(head.get("host"), Some(form), "{host}");
    }
}

#[tokio::test]
async fn path_and_query_are_forwarded_byte_for_byte() {
    for (target, seen_as) in [
        ("/A%2f%2F/../b//?X=%41&&", "/A%2f%2F/../b//?X=%41&&"),
        ("http://a/A%2f/./?", "/A%2f/./?"),
        ("http://a", "/"),
        ("http://a?b", "/?b"),
    ] {
        let head = seen(&[], &format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")).await;
        assert_eq!(head.start, format!("GET {seen_as} HTTP/1.1"), "{target}");
    }
}

#[tokio::test]
async fn a_target_without_a_path_has_the_key_of_the_root() {
    let (origin, proxy) = Scripted::start(&[], redirect).await;
    assert_eq!(proxy.ask("GET http://a?b HTTP/1.1\r\nHost: a\r\n\r\n").await.body, "a /?b");
    assert_eq!(proxy.ask("GET /?b HTTP/1.1\r\nHost: a\r\n\r\n").await.body, "a /?b");
    assert_eq!(origin.hits(), 1);
}

#[tokio::test]
async fn an_authority_of_http_2_is_forwarded_in_the_same_form() {
    for authority in ["victim", "VICTIM:80", "victim:00080", "victim:"] {
        let (origin, proxy) = Scripted::start(&[], redirect).await;
        let mut http2 = proxy.connect_http2().await;
        let uri = format!("http://{authority}/a?b");
        let request = Request::get(&uri).body(Full::<Bytes>::default()).unwrap();
        let answer = soon("an answer", http2.send_request(request)).await.unwrap();
        let page = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(page, "victim /a?b", "{authority}");
        let plain = proxy.ask("GET /a?b HTTP/1.1\r\nHost: victim\r\n\r\n").await;
        assert_eq!((&*plain.body, origin.hits()), ("victim /a?b", 1), "{authority}");
    }
}

#[tokio::test]
async fn a_request_of_http_1_0_without_a_host_gets_the_origins_in_the_same_form() {
    let origin = Origin::bind().await;
    let url = format!("http://LOCALHOST:0{}", origin.address().port());
    let proxy = Proxy::start_at(&url, &[]);
    let mut client = proxy.send("GET / HTTP/1.0\r\n\r\n").await;
    let (mut peer, head) = origin.request().await;
    peer.send(EMPTY).await;
    client.reply().await;
    let expected = format!("localhost:{}", origin.address().port());
    assert_eq!(head.get("host"), Some(&*expected));
}

// ===== Cookies =====

#[tokio::test]
async fn cookie_crumbs_of_http_2_are_joined() {
    // RFC 9113, 8.2.3
    let (origin, proxy) = Scripted::start(&[], |_| (fresh(), String::new())).await;
    let mut http2 = proxy.connect_http2().await;
    let mut request = Request::get("http://a/").header("x-before", "1").header("cookie", "a=b");
    for crumb in ["c=d", "e=\"f\""] {
        request = request.header("cookie", crumb);
    }
    let request = request.header("x-after", "1").body(Full::<Bytes>::default()).unwrap();
    soon("an answer", http2.send_request(request)).await.unwrap();
    let heads = origin.heads();
    assert_eq!(heads[0].all("cookie"), ["a=b; c=d; e=\"f\""]);
    assert_eq!(names(&heads[0]), ["x-before", "cookie", "x-after"]);
}

#[tokio::test]
async fn a_page_that_varies_by_cookie_is_one_for_crumbs_and_for_the_joined_line() {
    let (origin, proxy) = Scripted::start(&[], |head| {
        let fields = "Cache-Control: public, max-age=60\r\nVary: Cookie\r\n";
        (fields.to_owned(), head.all("cookie").join("|"))
    })
    .await;
    let crumbs = get_with("Cookie: a=b\r\nX-Other: 1\r\nCookie: c=d\r\n");
    assert_eq!(proxy.ask(crumbs).await.body, "a=b; c=d");
    assert_eq!(proxy.ask(get_with("Cookie: a=b; c=d\r\n")).await.body, "a=b; c=d");
    assert_eq!(origin.hits(), 1);
    assert_eq!(proxy.ask(get_with("Cookie: c=d\r\nCookie: a=b\r\n")).await.body, "c=d; a=b");
}
