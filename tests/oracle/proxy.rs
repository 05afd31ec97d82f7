//! Cases through the proxy: a process, over sockets. Beside each proxy
//! runs a twin with the same flags, whose origin says `no-store` to everything:
//! what a victim gets there is its own answer.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{HeaderValue, Request, Response, header};
use http_body_util::BodyExt;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::ask::Ask;
use crate::case::{Case, When};
use crate::client::Client;
use crate::grammar::{HOST, Through};
use crate::judge::{Exchange, Finding, Reply, Source, foreground_calls, is_same};
use crate::kit::proxy::Proxy;
use crate::kit::spellings::RULES;
use crate::persona::{Kind, Persona};
use crate::running::{Running, exchanges, finish};
use crate::search::Stage;
use crate::settings::{FLAGS, WITH_RULES};
use crate::world::respond;

/// The personas of the cases that run, by the first segment of their paths, or by the first label
/// of their hosts where the path is what counts.
type Origins = Arc<Mutex<HashMap<String, (Persona, usize)>>>;

/// How hosts of cases with a router end. The rules of the second differ.
const OF_ROUTERS: [&str; 2] = [".shop.example", ".open.test"];

struct Pair {
    proxy: Proxy,
    /// The one before an origin that forbids to store anything.
    straight: Proxy,
}

/// Proxies with all flags, their origin, and clients.
pub(crate) struct Town {
    runtime: Runtime,
    origins: Origins,
    pairs: Vec<Pair>,
    client: Client,
    cases: u64,
}

impl Town {
    pub(crate) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let origins = Origins::default();
        let [shared, straight] = [false, true].map(|forbids| {
            let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            runtime.spawn(serve(listener, Arc::clone(&origins), forbids));
            url
        });
        let rules = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(rules.path(), RULES).unwrap();
        let file = rules.path().to_str().unwrap();
        let pair = |(n, flags): (usize, &&[&str])| {
            let flags =
                if n == WITH_RULES { [flags, &[file][..]].concat() } else { flags.to_vec() };
            Pair {
                proxy: Proxy::start_at(&shared, &flags),
                straight: Proxy::start_at(&straight, &flags),
            }
        };
        let pairs = FLAGS.iter().enumerate().map(pair).collect();
        Self { runtime, origins, pairs, client: Client::default(), cases: 0 }
    }
}

async fn serve(listener: TcpListener, origins: Origins, forbids: bool) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        let origins = Arc::clone(&origins);
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let origins = Arc::clone(&origins);
                async move { Ok::<_, Infallible>(answer(&origins, request, forbids).await) }
            });
            let server = hyper::server::conn::http1::Builder::new();
            // The proxy may close its connections at any time.
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(
    origins: &Origins,
    request: Request<hyper::body::Incoming>,
    forbids: bool,
) -> Response<Body> {
    let (mut parts, body) = request.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let label = host.and_then(|host| OF_ROUTERS.iter().find_map(|end| host.strip_suffix(end)));
    let label = label.map(ToOwned::to_owned);
    let is_label = label.is_some();
    let first = || parts.uri.path().split('/').nth(1).unwrap_or_default().to_owned();
    let segment = label.unwrap_or_else(first);
    let found = origins.lock().get_mut(&segment).map(|(persona, calls)| {
        *calls += 1;
        (persona.clone(), *calls - 1)
    });
    let Some((persona, n)) = found else {
        return Response::builder().status(404).body(Body::from("no such case")).unwrap();
    };
    if persona.work > 0 {
        tokio::time::sleep(Duration::from_millis(persona.work)).await;
    }
    // As if there were no segment.
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    if !is_label && let Ok(uri) = path[1 + segment.len()..].parse() {
        parts.uri = uri;
    }
    let answer = persona.answer(&parts, &String::from_utf8_lossy(&body), 0);
    let mut response = respond(&persona, &parts, n, answer);
    if let Some(location) = response.headers_mut().get_mut(header::CONTENT_LOCATION) {
        let path = format!("/{segment}{}", location.to_str().unwrap_or_default());
        *location = HeaderValue::try_from(path).unwrap_or(HeaderValue::from_static("/"));
    }
    if forbids {
        let no_store = HeaderValue::from_static("no-store");
        response.headers_mut().insert(header::CACHE_CONTROL, no_store);
    }
    response
}

/// One case on its way through.
struct Play<'a> {
    case: &'a Case,
    client: &'a Client,
    segment: String,
    proxy: SocketAddr,
    straight: SocketAddr,
}

impl Play<'_> {
    async fn play(&self) -> (Vec<Exchange>, Vec<Finding>) {
        let steps = &self.case.steps;
        let mut running = Vec::with_capacity(steps.len());
        for (n, step) in steps.iter().enumerate() {
            let (When::After(pause) | When::Meanwhile(pause)) = step.when;
            if matches!(step.when, When::After(_)) {
                finish(&mut running).await;
            }
            if pause > 0 {
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            let (client, ask) = (self.client.clone(), self.at_case(&step.ask));
            let proxy = self.proxy;
            let sending = async move {
                let reply = client.send(proxy, &ask).await;
                Exchange { step: n, reply, seen: None, versions: (0, 0) }
            };
            let next = steps.get(n + 1);
            if next.is_some_and(|next| matches!(next.when, When::Meanwhile(_))) {
                running.push(Running::Sent(tokio::spawn(sending)));
                tokio::task::yield_now().await;
            } else {
                running.push(Running::Done(Box::new(sending.await)));
            }
        }
        finish(&mut running).await;
        let exchanges = exchanges(running);
        let findings = self.judge(&exchanges).await;
        (exchanges, findings)
    }

    /// Targets begin with the segment that tells the origin its persona. For a router that would be
    /// another path: there the host does.
    fn at_case(&self, ask: &Ask) -> Ask {
        if let Kind::Router(_) = self.case.persona.kind {
            let is_open = self.case.seed.is_multiple_of(2);
            let host = format!("{}{}", self.segment, OF_ROUTERS[usize::from(is_open)]);
            let mut ask = ask.clone();
            if ask.get("host") == Some(HOST) {
                ask.set("Host", &host);
            }
            if ask.authority == HOST {
                ask.authority = host;
            }
            return ask;
        }
        Ask { target: format!("/{}{}", self.segment, ask.target), ..ask.clone() }
    }

    async fn judge(&self, exchanges: &[Exchange]) -> Vec<Finding> {
        let foreground = foreground_calls(exchanges);
        let mut findings = Vec::new();
        for exchange in exchanges {
            let ask = &self.case.steps[exchange.step].ask;
            let Some(reply) = exchange.reply.as_ref().filter(|_| ask.is_victim) else { continue };
            let Some(call) = reply.call else { continue };
            let mut asks = vec![self.at_case(ask)];
            if let Kind::Refreshed(name) = self.case.persona.kind {
                if foreground.contains(&call) {
                    continue;
                }
                asks.push(asks[0].clone());
                asks[1].remove(name);
            }
            let mut expected = Vec::new();
            for ask in &asks {
                expected.extend(self.client.send(self.straight, ask).await);
            }
            let leaks_cookie = reply.sets_cookie && reply.source != Source::Own;
            let is_own = expected.is_empty() || expected.iter().any(|own| is_same(ask, reply, own));
            if leaks_cookie || !is_own {
                let expected: Vec<_> = expected.iter().map(Reply::shown).collect();
                let (step, got) = (exchange.step, reply.shown());
                findings.push(Finding { step, got, expected: expected.join(", or ") });
            }
        }
        findings
    }
}

impl Stage for Town {
    const THROUGH: Through = Through::Proxy;

    fn run(&mut self, case: &Case) -> (Vec<Exchange>, Vec<Finding>) {
        self.cases += 1;
        let segment = format!("r{}", self.cases);
        self.origins.lock().insert(segment.clone(), (case.persona.clone(), 0));
        let pair = &self.pairs[case.settings.flags.unwrap_or_default()];
        let (proxy, straight) = (pair.proxy.address, pair.straight.address);
        let play = Play { case, client: &self.client, segment: segment.clone(), proxy, straight };
        let played = self.runtime.block_on(play.play());
        self.origins.lock().remove(&segment);
        played
    }
}
