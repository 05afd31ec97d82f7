//! Rates of currencies over gRPC: a server and a client, each with a cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tower_stampede::{Cache, ConfigError, FailureAction, KeyBuf, Stampede, Stats, ToKey};

pub use generated::rates_client::RatesClient;
pub use generated::rates_server::RatesServer;

mod generated {
    include!(concat!(env!("OUT_DIR"), "/trial.Rates.rs"));
}

/// The request.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Pair {
    #[prost(string, tag = "1")]
    pub from: String,
    #[prost(string, tag = "2")]
    pub to: String,
}

/// The response.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Rate {
    #[prost(double, tag = "1")]
    pub value: f64,
}

impl ToKey for Pair {
    fn encode(&self, out: &mut KeyBuf) {
        (&self.from, &self.to).encode(out);
    }
}

/// What went wrong in the cache, for a client that knows gRPC only.
fn of_cache(error: tower_stampede::Error) -> Status {
    Status::unavailable(error.to_string())
}

/// An unknown currency is an answer; all else may be over in a second.
fn what_to_do(status: &Status) -> FailureAction {
    match status.code() {
        tonic::Code::NotFound => FailureAction::Remember(Duration::from_secs(10)),
        _ => FailureAction::Hold,
    }
}

/// Counts what the server does.
#[derive(Clone, Default)]
pub struct Calls {
    /// Calls of the method by clients.
    pub received: Arc<AtomicUsize>,
    /// Computations of a rate.
    pub computed: Arc<AtomicUsize>,
}

pub struct Rates {
    calls: Calls,
    rates: Cache<Pair, f64, Status>,
}

impl Rates {
    pub fn new(calls: Calls) -> Result<Self, ConfigError> {
        let handle = Stampede::builder("rates").ttl(Duration::from_secs(60)).build()?;
        let computed = Arc::clone(&calls.computed);
        let rates = Cache::with_state(handle, computed, compute).on_failure(what_to_do);
        Ok(Self { calls, rates })
    }
}

async fn compute(computed: Arc<AtomicUsize>, pair: Pair) -> Result<f64, Status> {
    computed.fetch_add(1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(200)).await;
    match (&*pair.from, &*pair.to) {
        ("EUR", "USD") => Ok(1.25),
        _ => Err(Status::not_found(format!("no rate from {} to {}", pair.from, pair.to))),
    }
}

#[tonic::async_trait]
impl generated::rates_server::Rates for Rates {
    async fn latest(&self, request: Request<Pair>) -> Result<Response<Rate>, Status> {
        self.calls.received.fetch_add(1, Ordering::SeqCst);
        let rate = self.rates.get(request.into_inner()).await;
        let value = rate.map_err(|failure| failure.into_error(of_cache))?;
        Ok(Response::new(Rate { value }))
    }
}

/// A client that asks the server once for all its callers.
#[derive(Clone)]
pub struct CachedRates(Cache<Pair, Rate, Status>);

impl CachedRates {
    pub fn new(channel: Channel) -> Result<Self, ConfigError> {
        let handle = Stampede::builder("rates-client").ttl(Duration::from_secs(10)).build()?;
        let ask = |mut client: RatesClient<Channel>, pair| async move {
            client.latest(pair).await.map(Response::into_inner)
        };
        let client = RatesClient::new(channel);
        Ok(Self(Cache::with_state(handle, client, ask).on_failure(what_to_do)))
    }

    pub fn stats(&self) -> Stats {
        self.0.handle().stats()
    }

    pub async fn latest(&self, pair: Pair) -> Result<f64, Status> {
        let rate = self.0.get(pair).await.map_err(|failure| failure.into_error(of_cache))?;
        Ok(rate.value)
    }
}
