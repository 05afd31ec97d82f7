//! 500 clients that send requests of one shape at the same moment.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Request, header};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tokio::task::JoinSet;
use tower::{Service, ServiceExt};

use crate::origin::{SINCE, TAG};
use crate::rows::{Condition, Method, Odd, Part, Row, Varying};

pub(crate) const CLIENTS: usize = 500;

/// Ways to accept gzip, and ways not to.
const ENCODINGS: [&str; 20] = [
    "gzip",
    "gzip, deflate",
    "deflate, gzip",
    "gzip, deflate, br",
    "gzip, deflate, br, zstd",
    "br, gzip",
    "GZIP",
    "gzip;q=1.0",
    "gzip;q=0.8, identity;q=0.5",
    "gzip , deflate",
    "x-gzip, gzip",
    "gzip, gzip",
    "*;q=0.1, gzip",
    "gzip;q=0.001",
    "gzip, identity",
    "identity",
    "",
    "gzip;q=0",
    "identity;q=1, gzip;q=0.000",
    "compress",
];

/// Returns whether a request of the crowd accepts gzip: of the spellings above, those of which
/// the origin says so.
pub(crate) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let value = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    let members = value.unwrap_or_default().split(',').map(|member| member.trim().to_lowercase());
    let accepts = |member: String| match member.split_once(";q=") {
        None => member == "gzip",
        Some((coding, weight)) => coding == "gzip" && weight.parse().is_ok_and(|q: f32| q > 0.0),
    };
    members.into_iter().any(accepts)
}

/// What a client got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) client: usize,
    pub(crate) status: u16,
    pub(crate) is_gzip: bool,
    pub(crate) bytes: usize,
}

/// What a crowd got, and how long its last client waited.
pub(crate) struct Replies {
    pub(crate) all: Vec<Reply>,
    pub(crate) took: Duration,
}

/// Sends the requests of a crowd to several services, each client to one of them.
pub(crate) async fn play<S, B>(row: &Row, services: &[S]) -> Replies
where
    S: Service<Request<Full<Bytes>>, Response = http::Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: std::fmt::Debug + Send,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: std::fmt::Debug + Send,
{
    let from = Instant::now();
    let mut clients = JoinSet::new();
    if row.odd != Odd::Nothing {
        let mut odd = request(row, CLIENTS);
        odd.headers_mut().insert("x-odd", header::HeaderValue::from_static("1"));
        let reply = tokio::spawn(ask(CLIENTS, odd, services[0].clone()));
        if row.odd_is_before {
            reply.await.expect("the odd request is answered");
        }
        // The other requests come a moment later.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for client in 0..CLIENTS {
        let service = services[client % services.len()].clone();
        clients.spawn(ask(client, request(row, client), service));
    }
    let all = clients.join_all().await;
    Replies { all, took: from.elapsed() }
}

async fn ask<S, B>(client: usize, request: Request<Full<Bytes>>, service: S) -> Reply
where
    S: Service<Request<Full<Bytes>>, Response = http::Response<B>>,
    S::Error: std::fmt::Debug,
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Debug,
{
    let response = service.oneshot(request).await.expect("the service answers");
    let (head, mut body) = response.into_parts();
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        bytes += frame.expect("the body is complete").data_ref().map_or(0, Bytes::len);
    }
    let is_gzip = head.headers.contains_key(header::CONTENT_ENCODING);
    Reply { client, status: head.status.as_u16(), is_gzip, bytes }
}

/// Makes the request of a client. Each names itself in a field that no rule reads.
pub(crate) fn request(row: &Row, client: usize) -> Request<Full<Bytes>> {
    let method = match row.method {
        Method::Get => "GET",
        Method::Head => "HEAD",
        Method::Query => "QUERY",
        Method::Post => "POST",
    };
    let (name, value) = match row.condition {
        Condition::None => ("x-none", "1"),
        Condition::SameTag => ("if-none-match", TAG),
        Condition::OtherTag => ("if-none-match", "\"other\""),
        Condition::Since => ("if-modified-since", SINCE),
        Condition::IfRange => ("if-range", TAG),
        Condition::NoCache => ("cache-control", "no-cache"),
    };
    let mut request = Request::builder()
        .method(method)
        .uri(format!("/{}", row.number))
        .header("host", "shapes.example")
        .header("user-agent", format!("client-{client}"))
        .header(name, value);
    let range = match row.part {
        Part::Whole => None,
        Part::First => Some("bytes=0-99"),
        Part::Last => Some("bytes=-100"),
        Part::Two => Some("bytes=0-9,20-29"),
        Part::Beyond => Some("bytes=99999999-"),
    };
    if let Some(range) = range {
        request = request.header("range", range);
    }
    match row.varying {
        Varying::Encoding => request = request.header("accept-encoding", encoding(client)),
        Varying::Language => {
            request = request.header("accept-language", if client % 4 < 2 { "de" } else { "en" });
        }
        Varying::Nothing | Varying::Everything => {}
    }
    let body = match row.method {
        Method::Get | Method::Head => Full::default(),
        Method::Query | Method::Post => {
            request = request.header("content-type", "application/graphql");
            Full::from("{ products { name } }")
        }
    };
    request.body(body).expect("the request is good")
}

fn encoding(client: usize) -> &'static str {
    // By pairs: each of two processes has clients of each kind.
    ENCODINGS[client / 2 % ENCODINGS.len()]
}

/// Returns whether a client has said that it takes gzip.
pub(crate) fn takes_gzip(row: &Row, client: usize) -> bool {
    row.varying == Varying::Encoding && accepts_gzip(request(row, client).headers())
}
