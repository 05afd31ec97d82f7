//! What happens in each scenario, at one cache.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::proxy_support::stage::{
    CROWD, FAILURE, FRESH, SMALL_CROWD, STALE_MEANWHILE, Stage, ask_on, same, variants,
};
use crate::proxy_support::{Answer, Backend, Crowd, Pace, Proxy, Seen, get};
use crate::scenarios::{ORIGIN, SLOW_ORIGIN};
use crate::servers::nginx::{Nginx, Settings};

/// After so long a lifetime of one second is over in nginx, which counts whole
/// seconds.
const ONE_SECOND_AND_OVER: Duration = Duration::from_millis(2100);

/// An empty cache, and an origin behind it with a thread of its own: the
/// clients shall not keep it from answering.
pub(crate) struct Cache {
    stage: Stage,
    nginx: Option<Nginx>,
}

impl Cache {
    pub(crate) async fn ours(origins: &Handle, answer: &Answer) -> Self {
        let backend = backend(origins, answer).await;
        let stage = Stage { proxies: vec![Proxy::start_at(&backend.url(), &[])], backend };
        Self { stage, nginx: None }
    }

    pub(crate) async fn nginx(origins: &Handle, answer: &Answer, location: &[&str]) -> Self {
        let backend = backend(origins, answer).await;
        let nginx = Nginx::start(Settings { origin: backend.address(), core: None, location });
        let stage = Stage { proxies: vec![Proxy::elsewhere(nginx.address)], backend };
        Self { stage, nginx: Some(nginx) }
    }

    /// Stores a response, and waits until its lifetime is over.
    async fn store_and_expire(&self) {
        if self.nginx.is_none() {
            return self.stage.store_and_expire().await;
        }
        // It cannot be asked whether it is over.
        let stored = self.stage.client().await.ask(get("/")).await;
        assert_eq!(stored.expect("an origin that answers").body, "answer 1 to all");
        sleep(ONE_SECOND_AND_OVER).await;
        assert_eq!(self.stage.backend.hits(), 1);
    }
}

async fn backend(origins: &Handle, answer: &Answer) -> Backend {
    let backend = origins.spawn(Backend::start(answer.clone())).await;
    backend.expect("an origin starts")
}

/// What happened in a scenario.
pub(crate) struct Round {
    pub(crate) hits: usize,
    pub(crate) outcomes: Vec<Result<Seen, String>>,
}

impl Round {
    pub(crate) fn errors(&self) -> usize {
        let is_error = |outcome: &&Result<Seen, String>| match outcome {
            Ok(seen) => seen.status >= 500,
            Err(_) => true,
        };
        self.outcomes.iter().filter(is_error).count()
    }

    pub(crate) fn times(&self, of: fn(&Seen) -> Duration) -> Vec<Duration> {
        let mut times: Vec<_> = self.outcomes.iter().flatten().map(of).collect();
        times.sort_unstable();
        times
    }
}

/// Ends a round; requests before `crowd` do not count.
async fn round(cache: &Cache, before: usize, crowd: Crowd) -> Round {
    let outcomes = crowd.outcomes().await;
    Round { hits: cache.stage.backend.hits() - before, outcomes }
}

pub(crate) async fn cold(cache: Cache) -> Round {
    round(&cache, 0, cache.stage.crowd(same(CROWD))).await
}

pub(crate) async fn cold_failure(cache: Cache) -> Round {
    cold(cache).await
}

pub(crate) async fn private(cache: Cache) -> Round {
    round(&cache, 0, cache.stage.crowd(same(SMALL_CROWD))).await
}

pub(crate) async fn private_again(cache: Cache) -> Round {
    cache.stage.crowd(same(SMALL_CROWD)).outcomes().await;
    round(&cache, SMALL_CROWD, cache.stage.crowd(same(SMALL_CROWD))).await
}

pub(crate) async fn variants_of_50(cache: Cache) -> Round {
    round(&cache, 0, cache.stage.crowd(variants(0, SMALL_CROWD))).await
}

pub(crate) async fn next_variants(cache: Cache) -> Round {
    cache.stage.crowd(variants(0, SMALL_CROWD)).outcomes().await;
    round(&cache, SMALL_CROWD, cache.stage.crowd(variants(SMALL_CROWD, SMALL_CROWD))).await
}

pub(crate) async fn expired(cache: Cache) -> Round {
    cache.store_and_expire().await;
    round(&cache, 1, cache.stage.crowd(same(CROWD))).await
}

pub(crate) async fn refresh_fails(cache: Cache) -> Round {
    cache.store_and_expire().await;
    cache.stage.backend.answers(FAILURE.head(Pace::After(ORIGIN)));
    round(&cache, 1, cache.stage.crowd(same(CROWD))).await
}

pub(crate) async fn origin_refuses(mut cache: Cache) -> Round {
    cache.store_and_expire().await;
    cache.stage.backend.refuse().await;
    round(&cache, 1, cache.stage.crowd(same(CROWD))).await
}

pub(crate) async fn first_hangs_up(cache: Cache) -> Round {
    let first = cache.stage.crowd(same(1));
    cache.stage.backend.until_hits(1).await;
    sleep(Duration::from_millis(50)).await;
    let others = cache.stage.crowd(same(CROWD - 1));
    drop(first);
    round(&cache, 0, others).await
}

pub(crate) async fn slow(cache: Cache) -> Round {
    cache.stage.backend.answers(FRESH.head(Pace::After(SLOW_ORIGIN)));
    round(&cache, 0, cache.stage.crowd(same(SMALL_CROWD))).await
}

pub(crate) async fn stream(cache: Cache) -> Round {
    let pieces = FRESH.then(10, Pace::After(Duration::from_millis(100)));
    cache.stage.backend.answers(pieces.head(Pace::After(ORIGIN)));
    round(&cache, 0, cache.stage.crowd(same(CROWD))).await
}

pub(crate) async fn outage(cache: Cache) -> Round {
    cache.store_and_expire().await;
    cache.stage.backend.cut().await;
    let outcomes = ask_on(&cache.stage, Duration::from_secs(3)).await;
    Round { hits: cache.stage.backend.hits() - 1, outcomes }
}

/// Each client asks twice on its connection; the second request counts. Its
/// refresh takes longer than they do.
pub(crate) async fn after_stale(cache: Cache) -> Round {
    cache.stage.backend.let_go(1);
    let mut first = cache.stage.client().await;
    first.ask(get("/")).await.expect("an origin that answers");
    cache.stage.backend.answers(STALE_MEANWHILE.head(Pace::After(Duration::from_secs(2))));
    while !first.ask(get("/")).await.expect("what is stored").is_stale() {
        sleep(Duration::from_millis(5)).await;
    }
    let mut outcomes = Vec::new();
    for _ in 0..SMALL_CROWD {
        let mut client = cache.stage.client().await;
        let stale = client.ask(get("/")).await.expect("what is stored");
        assert!(stale.is_stale(), "the refresh takes longer");
        outcomes.push(client.ask(get("/")).await);
    }
    Round { hits: cache.stage.backend.hits() - 1, outcomes }
}
