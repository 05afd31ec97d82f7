//! What the scenarios of crowds have in common: who is asked, and for what.

use std::iter::repeat_with;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Answer, Ask, Backend, Client, Crowd, Proxy, Seen, VARIANT, get, get_with, soon};

pub(crate) const CROWD: usize = 500;

/// Where each client costs a request to the origin.
pub(crate) const SMALL_CROWD: usize = 50;

pub(crate) const FRESH: Answer = Answer::ok(&[("cache-control", "max-age=60")]);
pub(crate) const SHORT: Answer = Answer::ok(&[("cache-control", "max-age=1")]);
pub(crate) const STALE_IF_ERROR: Answer =
    Answer::ok(&[("cache-control", "max-age=1, stale-if-error=600")]);
pub(crate) const STALE_MEANWHILE: Answer =
    Answer::ok(&[("cache-control", "max-age=1, stale-while-revalidate=600, stale-if-error=600")]);
pub(crate) const PRIVATE: Answer = Answer::ok(&[("cache-control", "private")]);
pub(crate) const VARYING: Answer =
    Answer::ok(&[("cache-control", "max-age=60"), ("vary", VARIANT)]);
pub(crate) const FAILURE: Answer = Answer::ok(&[]).status(500);

pub(crate) fn same(count: usize) -> impl Iterator<Item = Ask> {
    repeat_with(|| get("/")).take(count)
}

/// Requests for so many variants, from `first` on.
pub(crate) fn variants(first: usize, count: usize) -> impl Iterator<Item = Ask> {
    (first..first + count).map(|n| get_with("/", VARIANT, &n.to_string()))
}

/// An origin, and proxies in front of it.
pub(crate) struct Stage {
    pub(crate) backend: Backend,
    pub(crate) proxies: Vec<Proxy>,
}

impl Stage {
    pub(crate) async fn new(answer: Answer, flags: &[&str]) -> Self {
        Self::with_proxies(1, answer, flags).await
    }

    pub(crate) async fn with_proxies(count: usize, answer: Answer, flags: &[&str]) -> Self {
        let _ = rlimit::increase_nofile_limit(u64::MAX);
        let backend = Backend::start(answer).await;
        let proxies = repeat_with(|| Proxy::start_at(&backend.url(), flags)).take(count);
        Self { proxies: proxies.collect(), backend }
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.proxies.iter().map(|proxy| proxy.address).collect()
    }

    /// A crowd at all proxies.
    pub(crate) fn crowd(&self, requests: impl IntoIterator<Item = Ask>) -> Crowd {
        Crowd::ask(&self.addresses(), requests)
    }

    /// Sends a crowd, and waits until the origin has so many requests in all
    /// and all other clients wait for them.
    #[cfg(target_os = "linux")]
    pub(crate) async fn gather(&self, requests: impl Iterator<Item = Ask>, hits: usize) -> Crowd {
        let crowd = self.crowd(requests);
        crowd.has_asked().await;
        self.backend.until_hits(hits).await;
        self.is_idle().await;
        assert_eq!(self.backend.hits(), hits, "requests to the origin");
        crowd
    }

    #[cfg(target_os = "linux")]
    pub(crate) async fn is_idle(&self) {
        for proxy in &self.proxies {
            proxy.is_idle().await;
        }
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.proxies[0].address).await
    }

    /// Stores a response, and waits until its lifetime is over.
    pub(crate) async fn store_and_expire(&self) {
        self.backend.let_go(1);
        let mut client = self.client().await;
        assert_eq!(client.ask(get("/")).await.unwrap().body, "answer 1 to all");
        let expired = async {
            let ask = || get_with("/", "cache-control", "only-if-cached");
            while client.ask(ask()).await.unwrap().status == 200 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon("the end of a lifetime", expired).await;
        assert_eq!(self.backend.hits(), 1);
    }
}

/// A client that asks again and again.
async fn ask_until(until: Instant, address: SocketAddr) -> Vec<Result<Seen, String>> {
    let (mut client, mut outcomes) = (Client::connect(address).await, Vec::new());
    while Instant::now() < until {
        let outcome = client.ask(get("/")).await;
        if outcome.is_err() {
            client = Client::connect(address).await;
        }
        outcomes.push(outcome);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    outcomes
}

/// Many of them, for so long.
pub(crate) async fn ask_on(stage: &Stage, time: Duration) -> Vec<Result<Seen, String>> {
    let (until, address) = (Instant::now() + time, stage.proxies[0].address);
    let clients: JoinSet<_> = (0..SMALL_CROWD).map(|_| ask_until(until, address)).collect();
    clients.join_all().await.into_iter().flatten().collect()
}
