//! What a hit costs at most, whatever the client sends.
//!
//! `cargo bench -p tower-stampede-lab --bench costly_requests` counts the instructions of hits by
//! callgrind (valgrind must be installed), for requests of many shapes that are within the bounds
//! of a server: 16 KiB of fields. It prints them beside those of a plain hit, and fails where one
//! takes more than ten times as many. The counts repeat; no clock is read.

use std::env;
use std::process::{Command, ExitCode};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderName, HeaderValue, Request, Response};
use http_body_util::{Empty, Full};
use tower_layer::Layer;
use tower_service::Service;
use tower_stampede::{HttpLayer, HttpStampede, Stampede};

/// What may be sent: the default of the server of hyper for HTTP/2, and of the proxy.
const MOST: usize = 16 << 10;

/// How many times as many instructions as a plain hit.
const BOUND: f64 = 10.0;

/// The difference between a short run and a long one is the hits' own.
const SHORT: usize = 100;
const LONG: usize = 600;

type Fields = Vec<(&'static str, String)>;

/// A request, and the fields that the origin's response varies by.
struct Shape {
    name: &'static str,
    path: String,
    fields: Fields,
    vary: &'static str,
    tune: fn(HttpLayer) -> HttpLayer,
}

fn shape(name: &'static str, fields: Fields) -> Shape {
    let vary = "accept-encoding, accept-language, accept";
    Shape { name, path: "/page".into(), fields, vary, tune: |layer| layer }
}

fn long(part: &str) -> String {
    part.repeat(MOST / part.len() - 8)
}

fn lines(n: usize, name: &'static str, value: &str) -> Fields {
    (0..n).map(|_| (name, value.to_owned())).collect()
}

fn plain() -> Fields {
    [
        ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
        ("accept-encoding", "gzip, deflate, br, zstd"),
        ("accept-language", "en-GB,en;q=0.9,de;q=0.8"),
        ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
        ("referer", "https://www.example.com/"),
        ("sec-fetch-mode", "navigate"),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .into()
}

fn distinct(n: usize, name: impl Fn(usize) -> String) -> Fields {
    (0..n).map(|i| (&*name(i).leak(), "x".to_owned())).collect()
}

fn shapes() -> Vec<Shape> {
    let demanding = |layer: HttpLayer| layer.honour_request_directives(true);
    let listed = |layer: HttpLayer| layer.query(["q", "page", "sort", "lang"]);
    vec![
        shape("plain", plain()),
        shape("a long Accept-Encoding", vec![("accept-encoding", long("a,"))]),
        shape(
            "the longest Accept-Encoding that is sorted",
            vec![("accept-encoding", "b,a,".repeat(127))],
        ),
        shape("a long Accept-Language", vec![("accept-language", long("a;q=0.1,"))]),
        shape("a long Accept", vec![("accept", long("a ,"))]),
        shape("Accept-Encoding in 120 lines", lines(120, "accept-encoding", &"a,".repeat(60))),
        shape("a long Cache-Control", vec![("cache-control", long("a,"))]),
        shape("the longest Cache-Control that is read", vec![("cache-control", "a,".repeat(255))]),
        Shape { tune: demanding, ..shape("a long Pragma", vec![("pragma", long("a,"))]) },
        shape("a long If-None-Match", vec![("if-none-match", long("\"\","))]),
        shape(
            "the longest If-None-Match that is read",
            vec![("if-none-match", "\"\",".repeat(680))],
        ),
        shape("a long Range", vec![("range", format!("bytes={}", long(",")))]),
        shape("a long If-Modified-Since", vec![("if-modified-since", long("Sun, "))]),
        shape("a long Cookie", vec![("cookie", long("a=b; "))]),
        shape("500 lines of Cookie", lines(500, "cookie", "a=b")),
        Shape {
            vary: "cookie",
            ..shape("500 lines of Cookie that select", lines(500, "cookie", "a=b"))
        },
        shape("127 fields", distinct(127, |i| format!("field-{i}"))),
        shape(
            "127 fields like those that are looked for",
            distinct(127, |i| format!("x-f{i:03}arded-host")),
        ),
        shape("127 fields that CGI reads as others", distinct(127, |i| format!("a_{i}_b"))),
        Shape {
            path: format!("/page?{}", "a&".repeat(3000)),
            ..shape("3,000 parameters", plain())
        },
        Shape {
            path: format!("/page?{}", "a&".repeat(250)),
            tune: listed,
            ..shape("250 parameters against a list", plain())
        },
    ]
}

impl Shape {
    fn request(&self) -> Request<Empty<Bytes>> {
        let mut request = Request::get(&self.path).body(Empty::new()).expect("a valid target");
        let headers = request.headers_mut();
        headers.insert("host", HeaderValue::from_static("www.example.com"));
        for (name, value) in &self.fields {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a field name");
            headers.append(name, HeaderValue::try_from(value).expect("a field value"));
        }
        request
    }

    /// Makes a request so many times, and a hit of it where that is asked for. Returns whether all
    /// were hits.
    fn run(&self, times: usize, hits: bool) -> bool {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime starts");
        let _in = runtime.enter();
        let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(600));
        let vary = self.vary;
        let origin = tower::service_fn(move |_: Request<Empty<Bytes>>| async move {
            let response = Response::builder().header("vary", vary).header("etag", "\"x\"");
            let response = response.header("cache-control", "public, max-age=600");
            let body = Full::new(Bytes::from_static(b"page"));
            Ok::<_, std::convert::Infallible>(response.body(body).expect("valid"))
        });
        let mut app = (self.tune)(cache.http_layer()).layer(origin);
        drop(runtime.block_on(app.call(self.request())));
        runtime.block_on(tokio::time::sleep(Duration::from_millis(10)));
        let request = self.request();
        let mut all_hits = true;
        for _ in 0..times {
            let request = std::hint::black_box(request.clone());
            if hits {
                // A hit is ready at once.
                all_hits &= app.call(request).now_or_never().is_some();
            }
        }
        all_hits
    }
}

fn collected(at: usize, times: usize, hits: bool) -> f64 {
    let program = env::current_exe().expect("this program has a path");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(["--shape", &at.to_string(), &times.to_string(), &hits.to_string()])
        .output()
        .expect("valgrind starts");
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().find_map(|line| line.split_once("Collected :"));
    let (_, count) = line.unwrap_or_else(|| panic!("callgrind counts: {said}"));
    count.trim().parse().expect("a count is a number")
}

fn per_hit(at: usize) -> f64 {
    let of =
        |hits| (collected(at, LONG, hits) - collected(at, SHORT, hits)) / (LONG - SHORT) as f64;
    of(true) - of(false)
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().collect();
    if let Some([at, times, hits]) =
        args.iter().position(|arg| arg == "--shape").map(|i| &args[i + 1..])
    {
        let read = |text: &str| text.parse::<usize>().expect("a number");
        shapes()[read(at)].run(read(times), hits == "true");
        return ExitCode::SUCCESS;
    }
    if !args.iter().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    let mut first = None;
    let mut is_bounded = true;
    for (at, shape) in shapes().iter().enumerate() {
        let (count, is_hit) = (per_hit(at), shape.run(3, true));
        let plain = *first.get_or_insert(count);
        let ratio = count / plain;
        // What goes to the origin is paid for there.
        is_bounded &= ratio <= BOUND || !is_hit;
        let note = if is_hit { "" } else { "  (no hit)" };
        println!("{:48} {count:9.0}  {ratio:5.1}{note}", shape.name);
    }
    if is_bounded { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
