//! Cases through the layer, in process and in virtual time.

use std::time::Duration;

use axum::body::{Body, Bytes};
use http::{Request, Response, header};
use http_body_util::BodyExt;
use tokio::runtime::Runtime;
use tower_http::compression::Compression;
use tower_layer::Layer;
use tower_service::Service;
use tower_stampede::{CacheOutcome, HttpService, HttpStampede, Stampede};

use crate::ask::Ask;
use crate::case::{Case, When};
use crate::judge::{Exchange, Reply, Source};
use crate::running::{Running, exchanges, finish};
use crate::world::World;

/// So many cases share a cache, each under a scope of its own.
const CASES_PER_CACHE: u64 = 2048;

/// A thread's runtime, whose clock stands still unless all its tasks wait.
pub(crate) struct Lab {
    runtime: Runtime,
    cache: HttpStampede,
    cases: u64,
}

impl Lab {
    pub(crate) fn new() -> Self {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        let cache = runtime.block_on(async { cache() });
        Self { runtime, cache, cases: 0 }
    }

    /// Runs a case from its beginning.
    pub(crate) fn run(&mut self, case: &Case) -> Vec<Exchange> {
        fastrand::seed(case.seed);
        let number = self.cases;
        self.cases += 1;
        let Self { runtime, cache: kept, .. } = self;
        runtime.block_on(async move {
            if number.is_multiple_of(CASES_PER_CACHE) {
                *kept = cache();
            }
            let scope = (!number.is_multiple_of(CASES_PER_CACHE)).then(|| number.to_string());
            let world = World::new(&case.persona, &case.settings);
            let service = case.settings.layer(kept, scope).layer(world.clone());
            let service = Cached::new(service, case.settings.compressor);
            Play { case, world, service }.play().await
        })
    }
}

fn cache() -> HttpStampede {
    Stampede::builder("oracle").origin_only().jitter(0.0).build().unwrap()
}

struct Play<'a> {
    case: &'a Case,
    world: World,
    service: Cached,
}

/// The origin behind a layer, which a compressor may stand around.
#[derive(Clone)]
enum Cached {
    Alone(HttpService<World>),
    Compressed(Compression<HttpService<World>>),
}

impl Cached {
    fn new(service: HttpService<World>, has_compressor: bool) -> Self {
        match has_compressor {
            false => Self::Alone(service),
            true => Self::Compressed(Compression::new(service)),
        }
    }

    /// Returns the response to a request, and where it came from.
    async fn reply(self, request: Request<Body>) -> Option<Reply> {
        match self {
            Self::Alone(mut service) => {
                let response = service.call(request).await.ok()?;
                let outcome = CacheOutcome::of(&response);
                read(response, outcome).await
            }
            Self::Compressed(mut service) => {
                let response = service.call(request).await.ok()?;
                let outcome = response.extensions().get().copied();
                let is_compressed = response.headers().contains_key(header::CONTENT_ENCODING);
                let reply = read(response, outcome).await?;
                Some(Reply { is_compressed, ..reply })
            }
        }
    }
}

async fn read<B: http_body::Body<Data = Bytes>>(
    response: Response<B>,
    outcome: Option<CacheOutcome>,
) -> Option<Reply> {
    let (head, body) = response.into_parts();
    let source = match outcome {
        Some(CacheOutcome::Hit) => Source::Hit,
        Some(CacheOutcome::Stale | CacheOutcome::StaleIfError) => Source::Stale,
        Some(CacheOutcome::Joined) => Source::Joined,
        _ => Source::Own,
    };
    let body = body.collect().await.ok()?.to_bytes();
    Some(Reply::new(head.status.as_u16(), &head.headers, source, &body))
}

impl Play<'_> {
    async fn play(&self) -> Vec<Exchange> {
        let steps = &self.case.steps;
        let mut running: Vec<Running> = Vec::with_capacity(steps.len());
        let mut floors = Vec::new();
        for (n, step) in steps.iter().enumerate() {
            let pause = match step.when {
                When::After(pause) => {
                    finish(&mut running).await;
                    pause
                }
                When::Meanwhile(pause) => pause,
            };
            if pause > 0 {
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            note_answered(&mut running, &self.world, &mut floors).await;
            let Some(request) = step.ask.request(&self.case.persona) else { continue };
            let exchange = self.exchange(n, &step.ask, &floors);
            let sending = send(
                self.service.clone(),
                self.world.clone(),
                request,
                step.ask.hangs_up,
                exchange,
            );
            let is_crowded =
                steps.get(n + 1).is_some_and(|next| matches!(next.when, When::Meanwhile(_)));
            if is_crowded {
                running.push(Running::Sent(tokio::spawn(sending)));
                tokio::task::yield_now().await;
            } else {
                running.push(Running::Done(Box::new(sending.await)));
            }
        }
        finish(&mut running).await;
        exchanges(running)
    }

    fn exchange(&self, step: usize, ask: &Ask, floors: &[(String, u64)]) -> Exchange {
        let seen =
            ask.is_victim.then(|| ask.seen_by_origin(&self.case.persona, &self.case.settings));
        let seen = seen.flatten();
        let mut floor = 0;
        if !floors.is_empty()
            && let Some(seen) = &seen
        {
            let resource = self.world.resource(seen);
            let of_it = floors.iter().filter(|(name, _)| Some(name) == resource.as_ref());
            floor = of_it.map(|(_, version)| *version).max().unwrap_or_default();
        }
        Exchange { step, reply: None, seen, versions: (floor, floor) }
    }
}

/// Notes the writes whose answers have come: from now on no client may get
/// what was before them.
async fn note_answered(running: &mut [Running], world: &World, floors: &mut Vec<(String, u64)>) {
    if !world.is_stateful() {
        return;
    }
    for one in running {
        let Some(reply) = one.if_done().await.and_then(|done| done.reply.as_ref()) else {
            continue;
        };
        if let (Some(call), Source::Own) = (reply.call, reply.source) {
            floors.extend(world.state.lock().calls[call].wrote.iter().cloned());
        }
    }
}

async fn send(
    service: Cached,
    world: World,
    request: Request<Body>,
    hangs_up: Option<u64>,
    mut exchange: Exchange,
) -> Exchange {
    let reading = service.reply(request);
    exchange.reply = match hangs_up {
        None => reading.await,
        Some(after) => {
            tokio::time::timeout(Duration::from_millis(after), reading).await.ok().flatten()
        }
    };
    if world.is_stateful() {
        let resource = exchange.seen.as_ref().and_then(|seen| world.resource(seen));
        exchange.versions.1 = world.version(resource.as_ref()).max(exchange.versions.0);
    }
    exchange
}
