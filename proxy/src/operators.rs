//! The listener for operators: `PURGE`, `/metrics` and the library's router, behind a token, and
//! `/healthz` for all who reach it.

use std::convert::Infallible;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tower::ServiceExt;
use tower_stampede::{HttpStampede, admin};

use crate::front::Proxy;
use crate::status::Status;

/// Where the token is, if no file is named.
pub(crate) const VARIABLE: &str = "STAMPEDE_ADMIN_TOKEN";

/// A shorter one could be guessed.
const LEAST_LENGTH: usize = 16;

/// What is said of a path that is none.
const PATHS: &str = "no such path; there are GET /healthz, /metrics, /stats, /health, /log, /mode, \
                     /keys and /top, PUT /mode, POST /purge, and PURGE of a URI or of *";

/// How long a connection may last, from its first byte to its last.
const LIFETIME: Duration = Duration::from_secs(30);

/// How long the head of a request may take.
const HEAD: Duration = Duration::from_secs(5);

/// The longest body that the router reads, in bytes.
const MOST_BODY: usize = 64 << 10;

/// How many connections at once.
const CONNECTIONS: usize = 64;

/// The hash of the token: two hashes compare in constant time.
#[derive(Clone, Debug)]
pub(crate) struct AdminToken(blake3::Hash);

impl AdminToken {
    /// Reads it from the file, or else from the environment.
    pub(crate) fn read(file: Option<&PathBuf>) -> Result<Self, String> {
        let text = match file {
            Some(file) => std::fs::read_to_string(file)
                .map_err(|error| format!("--admin-token-file: {}: {error}", file.display()))?,
            None => std::env::var(VARIABLE).map_err(|_| {
                format!(
                    "--admin needs a token: name a file with --admin-token-file, or set {VARIABLE}"
                )
            })?,
        };
        let token = text.trim();
        let is_token = token.len() >= LEAST_LENGTH && token.bytes().all(|b| b.is_ascii_graphic());
        match is_token {
            true => Ok(Self(blake3::hash(token.as_bytes()))),
            false => Err(format!(
                "--admin: the token must have at least {LEAST_LENGTH} visible ASCII characters \
                 and no blank"
            )),
        }
    }

    fn is_shown_in(&self, headers: &HeaderMap) -> bool {
        let mut shown = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(shown), None) = (shown.next(), shown.next()) else { return false };
        let Some((scheme, token)) = shown.as_bytes().split_at_checked(7) else { return false };
        // RFC 9110, 11.1 and 11.4: in any case, and one blank or several.
        scheme.eq_ignore_ascii_case(b"bearer ") && blake3::hash(token.trim_ascii_start()) == self.0
    }
}

/// What the listener needs.
struct Operators {
    /// A reload replaces it.
    token: Arc<RwLock<AdminToken>>,
    router: Router,
    cache: HttpStampede,
    /// Its rules say under which URIs responses are stored.
    proxy: Arc<Proxy>,
    status: Arc<Status>,
}

/// Serves operators until it is dropped.
pub(crate) async fn serve(
    listener: TcpListener,
    token: Arc<RwLock<AdminToken>>,
    cache: HttpStampede,
    proxy: Arc<Proxy>,
    status: Arc<Status>,
) {
    let router = admin::router(cache.clone());
    let operators = Arc::new(Operators { token, router, cache, proxy, status });
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(HEAD / 100).await;
            continue;
        };
        let operators = Arc::clone(&operators);
        let service = service_fn(move |request: Request<Incoming>| {
            let operators = Arc::clone(&operators);
            async move { Ok::<_, Infallible>(operators.answer(request).await) }
        });
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(HEAD);
        let serving = server.serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            // What goes wrong on the connection is told to its client.
            let _ = tokio::time::timeout(LIFETIME, serving).await;
            drop(place);
        });
    }
}

impl Operators {
    /// Answers one request. Without the token nothing of it is read but its head.
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        // Load balancers ask without a token; the answer is one word.
        if is_read && request.uri().path() == "/healthz" {
            return self.status.health();
        }
        if !self.is_shown_in(request.headers()) {
            let answer = said(StatusCode::UNAUTHORIZED, &json!({"error": "no token, or another"}));
            let (mut head, body) = answer.into_parts();
            head.headers
                .insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
            return Response::from_parts(head, body);
        }
        if is_read && request.uri().path() == "/metrics" {
            return self.status.metrics(&self.cache.stats());
        }
        let (parts, body) = request.into_parts();
        if parts.method == Method::POST && parts.uri.path() == "/purge" {
            return self.purge_by_json(parts, Body::new(body)).await;
        }
        if parts.method.as_str() != "PURGE" {
            let answer = self.pass(Request::from_parts(parts, Body::new(body))).await;
            return match answer.status() {
                StatusCode::NOT_FOUND => said(StatusCode::NOT_FOUND, &json!({"error": PATHS})),
                _ => answer,
            };
        }
        let purges = match purges(&parts.uri, &parts.headers) {
            Ok(purges) => purges,
            Err(why) => return said(StatusCode::BAD_REQUEST, &json!({"error": why})),
        };
        let mut last = said(StatusCode::OK, &json!({}));
        for purge in purges {
            last = self.purge(purge).await;
            if !last.status().is_success() {
                break;
            }
        }
        last
    }

    /// Answers a purge that the router reads, with the URLs under which responses are stored.
    async fn purge_by_json(&self, parts: Parts, body: Body) -> Response<Body> {
        let Ok(body) = axum::body::to_bytes(body, MOST_BODY).await else {
            let why = json!({"error": "the body is over 64 KiB, or broke off"});
            return said(StatusCode::PAYLOAD_TOO_LARGE, &why);
        };
        match serde_json::from_slice(&body) {
            Ok(Value::Object(purge)) => self.purge(purge).await,
            _ => self.pass(Request::from_parts(parts, Body::from(body))).await,
        }
    }

    /// Purges what `purge` names: a URL in each form under which responses to requests for it may
    /// be stored. Where Redis has not heard of all of them yet, the answer says so.
    async fn purge(&self, mut purge: Map<String, Value>) -> Response<Body> {
        let uri = purge.get("url").and_then(Value::as_str).and_then(|url| url.parse().ok());
        // A URL that cannot be read stays: the router says what is wrong with it.
        let uris = uri.and_then(|uri| self.proxy.live().stored_uris(&uri)).unwrap_or_default();
        let Some((own, others)) = uris.split_last() else { return self.pass_purge(&purge).await };
        let mut queued = None;
        for uri in others {
            purge.insert("url".into(), uri.to_string().into());
            let answer = self.pass_purge(&purge).await;
            if answer.status() != StatusCode::OK {
                return answer;
            }
            let (head, body) = answer.into_parts();
            let body = axum::body::to_bytes(body, MOST_BODY).await.unwrap_or_default();
            if serde_json::from_slice(&body).is_ok_and(|it: Value| it["remote"] == "queued") {
                queued = Some(Response::from_parts(head, Body::from(body)));
            }
        }
        purge.insert("url".into(), own.to_string().into());
        let answer = self.pass_purge(&purge).await;
        queued.filter(|_| answer.status().is_success()).unwrap_or(answer)
    }

    async fn pass_purge(&self, purge: &Map<String, Value>) -> Response<Body> {
        let mut request = Request::new(Body::from(Value::Object(purge.clone()).to_string()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static("/purge");
        self.pass(request).await
    }

    fn is_shown_in(&self, headers: &HeaderMap) -> bool {
        self.token.read().unwrap_or_else(PoisonError::into_inner).is_shown_in(headers)
    }

    async fn pass(&self, request: Request<Body>) -> Response<Body> {
        match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// Returns what a `PURGE` asks for, in the words of `POST /purge`: all tags in `Surrogate-Key`
/// and `Cache-Tag`, or everything for `*`, or one URI. `Soft-Purge: 1` makes it stale instead.
fn purges(uri: &Uri, headers: &HeaderMap) -> Result<Vec<Map<String, Value>>, &'static str> {
    let is_soft = match headers.get("soft-purge").map(header::HeaderValue::as_bytes) {
        None | Some(b"0") => false,
        Some(b"1") => true,
        Some(_) => return Err("`Soft-Purge` must be 0 or 1"),
    };
    let purge = |name: &str, what: &str| {
        let mut purge = Map::new();
        purge.insert(name.into(), what.into());
        purge.insert("soft".into(), is_soft.into());
        purge
    };
    let (mut purges, mut names_tags) = (Vec::new(), false);
    for (field, ends) in [("surrogate-key", &[' ', '\t'][..]), ("cache-tag", &[','])] {
        for line in headers.get_all(field) {
            names_tags = true;
            let line = line.to_str().map_err(|_| "tags must be visible ASCII")?;
            let tags = line.split(ends).map(str::trim).filter(|tag| !tag.is_empty() && *tag != "*");
            // There a `%` begins an encoded byte.
            purges.extend(tags.map(|tag| purge("tag", &tag.replace('%', "%25"))));
        }
    }
    if names_tags {
        return if purges.is_empty() { Err("the field names no tag") } else { Ok(purges) };
    }
    if uri.path() == "*" {
        return Ok(vec![purge("tag", "*")]);
    }
    let authority = uri.authority().map(http::uri::Authority::as_str);
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = authority.or(host).ok_or("say the host: in the URI, or in `Host`")?;
    let scheme = uri.scheme_str().unwrap_or("http");
    let resource = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    Ok(vec![purge("url", &format!("{scheme}://{host}{resource}"))])
}

fn said(status: StatusCode, what: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(what.to_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let json = header::HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    response
}

/// Says where operators are served; scripts read this line.
pub(crate) fn announce(address: SocketAddr) -> io::Result<()> {
    writeln!(io::stdout().lock(), "operators on http://{address}")
}
