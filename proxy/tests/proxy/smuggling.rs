//! Messages that two readers could read in two ways, from clients and from
//! origins: refused, or forwarded in one form; and the next client gets the
//! answer to its own request.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::timeout;

use crate::kit::proxy::{Head, Origin, Peer, Proxy, soon};

/// Longer than a request takes that is passed on by mistake.
const A_WHILE: Duration = Duration::from_millis(50);

const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";

/// An origin that answers every request with its target, to be stored; but
/// some as they are told to.
#[derive(Clone)]
struct Echo {
    heads: Arc<Mutex<Vec<Head>>>,
    answers: Arc<Vec<(String, Vec<u8>)>>,
}

impl Echo {
    /// Starts it, and a proxy in front of it.
    async fn start(answers: Vec<(String, Vec<u8>)>) -> (Self, Proxy) {
        let origin = Origin::bind().await;
        let proxy = Proxy::start(&origin, &["--compute-timeout-ms", "10000"]);
        let echo = Self { heads: Arc::default(), answers: Arc::new(answers) };
        let serving = echo.clone();
        tokio::spawn(async move {
            loop {
                let peer = origin.accept().await;
                tokio::spawn(serving.clone().serve(peer));
            }
        });
        (echo, proxy)
    }

    async fn serve(self, mut peer: Peer) {
        while let Some(head) = peer.head_or_end().await {
            let target = head.start.split(' ').nth(1).unwrap().to_owned();
            let lengths = (head.get("content-length"), head.get("transfer-encoding"));
            let (length, is_chunked) = match lengths {
                (None, None) => (0, false),
                (Some(length), None) => (length.parse().unwrap(), false),
                (None, Some("chunked")) => (0, true),
                other => panic!("no one frame: {other:?}"),
            };
            self.heads.lock().unwrap().push(head);
            if is_chunked {
                let (_, trailers) = peer.chunked().await;
                assert!(trailers.is_empty(), "nobody announced any: {trailers:?}");
            }
            peer.bytes(length).await;
            let told = self.answers.iter().find(|(path, _)| *path == target);
            match told {
                Some((_, answer)) => drop(peer.send_within(4 * A_WHILE, answer).await),
                None => peer.send(echo(&target)).await,
            }
        }
    }

    /// The targets it was asked for.
    fn targets(&self) -> Vec<String> {
        let heads = self.heads.lock().unwrap();
        heads.iter().map(|head| head.start.split(' ').nth(1).unwrap().to_owned()).collect()
    }
}

fn echo(target: &str) -> String {
    let length = target.len();
    format!(
        "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: {length}\r\n\r\n{target}"
    )
}

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")
}

/// The first answer to these bytes: its status, or none.
async fn status_of(proxy: &Proxy, request: &[u8]) -> Option<u16> {
    let mut client = proxy.connect().await;
    client.send_within(4 * A_WHILE, request).await;
    let head = timeout(6 * A_WHILE, client.head_or_end()).await.ok()??;
    Some(head.status())
}

/// The proxy answers other clients, of what is stored and of what is not, with
/// what they asked for.
async fn is_sound(proxy: &Proxy, n: usize, after: &str) {
    for target in ["/stored", &format!("/new-{n}"), "/stored"] {
        let reply = soon("an answer", proxy.ask(get(target))).await;
        assert_eq!((reply.status(), &*reply.body), (200, target), "after {after:.200?}");
    }
}

// ===== From clients =====

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_or_forwarded_in_one_form_hides_no_request() {
    let long = "x".repeat(200 << 10);
    let post = |rest: &str| format!("POST /shape HTTP/1.1\r\nHost: a\r\n{rest}{HIDDEN}");
    let chunked = |body: &str| {
        format!(
            "POST /shape HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}{HIDDEN}"
        )
    };
    let line = |line: &str| format!("{line}\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    let (echo, proxy) = Echo::start(Vec::new()).await;
    is_sound(&proxy, 1_000, "nothing").await;
    for (n, (shape, statuses)) in [
        // RFC 9112, 6.1: chunked once, and last
        (post("Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"), &[400][..]),
        (post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), &[400]),
        (post("Transfer-Encoding: identity\r\n\r\n"), &[400, 501]),
        (post("Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n"), &[400, 501]),
        (post("Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n"), &[400, 501]),
        (post("Transfer-Encoding: chunked;a=b\r\n\r\n0\r\n\r\n"), &[400, 501]),
        (post("Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n"), &[400]),
        (post("Transfer-Encoding: chunked\0\r\n\r\n0\r\n\r\n"), &[400]),
        (post("Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"), &[400]),
        (post("Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n"), &[400]),
        (post("Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"), &[400]),
        (post("Transfer-Encoding:\r\n\r\n"), &[400, 501]),
        (post("Content-Length: 1\r\nTransfer-Encoding: xchunked\r\n\r\n"), &[400, 501]),
        // 6.2
        (post("Content-Length: 5 5\r\n\r\n"), &[400]),
        (post("Content-Length: 5;\r\n\r\n"), &[400]),
        (post("Content-Length: 1e1\r\n\r\n"), &[400]),
        (post("Content-Length: 18446744073709551616\r\n\r\n"), &[400, 413]),
        (post("Content-Length: -0\r\n\r\n"), &[400]),
        // 5.1, 5.2 and RFC 9110, 5.5
        (post("X(: a\r\n\r\n"), &[400]),
        (post("X\0: a\r\n\r\n"), &[400]),
        (post(": a\r\n\r\n"), &[400]),
        (post("X\r\n\r\n"), &[400]),
        (post("X: a\x01b\r\n\r\n"), &[400]),
        (post("X: a\r\n\tb\r\n\r\n"), &[400]),
        (post("X: a\r\rContent-Length: 5\r\n\r\n"), &[400]),
        // 7.1
        (chunked("-1\r\n"), &[400]),
        (chunked("0x1\r\na\r\n0\r\n\r\n"), &[400]),
        (chunked("+1\r\na\r\n0\r\n\r\n"), &[400]),
        (chunked("g\r\n"), &[400]),
        (chunked("\r\n"), &[400]),
        (chunked("10000000000000000\r\n"), &[400]),
        (chunked("1\r\nab\r\n0\r\n\r\n"), &[400]),
        (chunked("1\r\na0\r\n\r\n"), &[400]),
        (chunked(&format!("1;{long}\r\na\r\n0\r\n\r\n")), &[400]),
        // 3 and 2.3
        (line("GET  /shape HTTP/1.1"), &[400]),
        (line("GET /shape\tHTTP/1.1"), &[400]),
        (line("GET /sh ape HTTP/1.1"), &[400]),
        (line("GET /shape HTTP/1.2"), &[400, 505]),
        (line("GET /shape HTTP/01.1"), &[400]),
        (line("GET /shape http/1.1"), &[400]),
        (line("GET /shape HTTP/2.0"), &[400, 505]),
        (line("G(T /shape HTTP/1.1"), &[400]),
        (line("GET /sh\0ape HTTP/1.1"), &[400]),
        (line("GET shape HTTP/1.1"), &[400]),
        ("GET /shape\r\n\r\n".to_owned(), &[400]),
        ("GET /shape HTTP/1.1\rHost: a\r\r".to_owned(), &[400]),
        (format!("POST /shape HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}"), &[400]),
        (format!("\x16\x03\x01\x02\x00\x01{HIDDEN}"), &[400]),
        (format!("{long}{long}{HIDDEN}"), &[400, 414, 431]),
    ]
    .into_iter()
    .enumerate()
    {
        let status = status_of(&proxy, shape.as_bytes()).await;
        // A connection may also end without a response where nothing was asked.
        assert!(status.is_none_or(|status| statuses.contains(&status)), "{status:?} {shape:.200?}");
        is_sound(&proxy, n, &shape).await;
        let targets = echo.targets();
        assert!(!targets.iter().any(|target| target.contains("hidden")), "{shape:.200?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_shapes_that_can_be_read_in_one_way_are_forwarded_in_the_common_one() {
    let (echo, proxy) = Echo::start(Vec::new()).await;
    let hidden_length = HIDDEN.len();
    for (n, (shape, target)) in [
        // RFC 9112, 2.2: a single LF may end a line.
        ("GET /lf HTTP/1.1\nHost: a\n\n".to_owned(), "/lf"),
        ("\r\n\r\nGET /empty-lines HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), "/empty-lines"),
        ("POST /zeros HTTP/1.1\r\nHost: a\r\nContent-Length: 0002\r\n\r\nab".to_owned(), "/zeros"),
        (
            "POST /ext HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
             2;a=b;c=\"d\"\r\nab\r\n000\r\n\r\n"
                .to_owned(),
            "/ext",
        ),
        (
            // What follows the body is no field of the request (6.5).
            "POST /trailers HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
             0\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\nHost: b\r\nCookie: a=b\r\n\r\n"
                .to_owned(),
            "/trailers",
        ),
        (
            // A request in a body is a body, of a GET too.
            format!(
                "GET /body HTTP/1.1\r\nHost: a\r\nContent-Length: {hidden_length}\r\n\r\n{HIDDEN}"
            ),
            "/body",
        ),
        ("GET http://b/absolute HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), "/absolute"),
    ]
    .into_iter()
    .enumerate()
    {
        let reply = proxy.ask(&shape).await;
        assert_eq!((reply.status(), &*reply.body), (200, target), "{shape:?}");
        is_sound(&proxy, n, &shape).await;
        let targets = echo.targets();
        assert_eq!(targets.iter().filter(|seen| *seen == target).count(), 1, "{targets:?}");
        assert!(!targets.iter().any(|target| target.contains("hidden")), "{shape:?}");
    }
    // The one whose authority was another was stored for that one.
    let reply = proxy.ask("GET /absolute HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert_eq!(reply.body, "/absolute");
    let hosts = echo.heads.lock().unwrap();
    let hosts = hosts.iter().filter(|head| head.start.contains("/absolute"));
    assert_eq!(
        hosts.map(|head| head.get("host").unwrap().to_owned()).collect::<Vec<_>>(),
        ["b", "a"]
    );
}

// ===== From the origin =====

const EVIL: &str = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 4\r\n\r\nevil";

#[tokio::test(flavor = "multi_thread")]
async fn whatever_an_origin_answers_the_next_client_gets_its_own_answer() {
    let fresh = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n";
    let long = "x".repeat(10 << 20);
    let shapes: Vec<String> = vec![
        format!("{fresh}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{EVIL}"),
        format!(
            "{fresh}Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n4\r\nevil\r\n0\r\n\r\n{EVIL}"
        ),
        format!("{fresh}Content-Length: 0\r\nContent-Length: 4\r\n\r\n{EVIL}"),
        format!("{fresh}Content-Length: 0, 4\r\n\r\n{EVIL}"),
        format!("{fresh}Content-Length: -1\r\n\r\n{EVIL}"),
        format!("{fresh}Content-Length: 18446744073709551616\r\n\r\n{EVIL}"),
        format!("{fresh}Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n{EVIL}"),
        format!("{fresh}Transfer-Encoding: identity\r\nContent-Length: 0\r\n\r\n{EVIL}"),
        format!("{fresh}Transfer-Encoding: chunked\r\n\r\n-1\r\n{EVIL}"),
        format!("{fresh}Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n{EVIL}"),
        format!("{fresh}Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n{EVIL}"),
        format!("{fresh}Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n{EVIL}"),
        format!("{fresh}Transfer-Encoding: chunked\r\n\r\n1;{long}"),
        format!("{fresh}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{EVIL}"),
        format!("{fresh}X: a\r\n b\r\nContent-Length: 0\r\n\r\n{EVIL}"),
        format!("{fresh}X: a\0b\r\nContent-Length: 0\r\n\r\n{EVIL}"),
        format!("{fresh}Content-Length: 0\r\n\r\n{EVIL}"),
        format!("{fresh}Content-Length: 0\r\n\r\n\r\n\r\n{EVIL}"),
        format!("{fresh}Content-Length: 0\r\n\r\ngarbage"),
        format!(
            "HTTP/1.1 204 No Content\r\nCache-Control: max-age=60\r\nContent-Length: 4\r\n\r\nevil{EVIL}"
        ),
        format!(
            "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nevil\r\n0\r\n\r\n{EVIL}"
        ),
        format!("HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\n{EVIL}"),
        format!("HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n{EVIL}"),
        format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n{EVIL}"
        ),
        format!("HTTP/1.1 099 Low\r\nContent-Length: 0\r\n\r\n{EVIL}"),
        format!("HTTP/1.1 1000 High\r\nContent-Length: 0\r\n\r\n{EVIL}"),
        format!("HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n{EVIL}"),
        format!(
            "{}HTTP/1.1 102 P\r\nX: ",
            "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(2_000)
        ),
        format!("{fresh}X: {long}\r\n\r\n{EVIL}"),
        format!("{fresh}{}", "X: y\r\n".repeat(1 << 20)),
        format!("{fresh}X: no end"),
        format!("{fresh}Content-Length: 100\r\n\r\nshort"),
        format!("{fresh}Transfer-Encoding: chunked\r\n\r\n4\r\nevi"),
        "\0".repeat(100),
        long.clone(),
    ];
    let path = |n: usize| format!("/evil-{n}");
    let answers = shapes.iter().enumerate().map(|(n, shape)| (path(n), shape.clone().into_bytes()));
    let (echo, proxy) = Echo::start(answers.collect()).await;
    is_sound(&proxy, 1_000, "nothing").await;
    for (n, shape) in shapes.iter().enumerate() {
        for method in ["GET", "HEAD"] {
            let request = format!("{method} {} HTTP/1.1\r\nHost: a\r\n\r\n", path(n));
            // Whatever it is, it is one head, and no panic ends the proxy.
            status_of(&proxy, request.as_bytes()).await;
            is_sound(&proxy, n, shape).await;
        }
    }
    assert!(echo.targets().len() >= 2 * shapes.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_nobody_asked_for_is_nobodys() {
    let origin = Origin::bind().await;
    let proxy = Proxy::start(&origin, &[]);
    let mut client = proxy.send(get("/first")).await;
    let (mut idle, _) = origin.request().await;
    idle.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst").await;
    assert_eq!(client.reply().await.body, "first");
    // The connection is in the pool by now; what comes on it is no answer.
    tokio::time::sleep(A_WHILE).await;
    idle.send(EVIL).await;
    tokio::time::sleep(A_WHILE).await;
    let mut client = proxy.send(get("/second")).await;
    let (mut peer, head) = origin.request().await;
    assert!(head.start.contains("/second"));
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecond").await;
    assert_eq!(client.reply().await.body, "second");
}
