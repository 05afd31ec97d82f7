//! Many processes wait for one fill.

use std::time::Duration;

use crate::processes::{Cache, Leader, listens, process, registered, wait};
use crate::redis_support::{Server, eventually};

pub(crate) const SIZES: [usize; 3] = [10, 100, 1000];
pub(crate) const ROUNDS: usize = 9;

/// How long each of so many waited, over all rounds.
pub(crate) struct Inboxes {
    pub(crate) count: usize,
    pub(crate) samples: Vec<Duration>,
    /// The last one of each round.
    pub(crate) last: Vec<Duration>,
}

pub(crate) async fn inboxes(server: &Server) -> Vec<Inboxes> {
    let mut caches = Vec::new();
    for _ in 0..=SIZES[SIZES.len() - 1] {
        caches.push(process(&server.url()).await);
    }
    listens(&caches).await;
    let (leads, waiting) = caches.split_first().expect("there is one");
    let mut found = SIZES.map(|count| Inboxes { count, samples: Vec::new(), last: Vec::new() });
    // What is done for the first time takes longer.
    for count in SIZES {
        round(server, leads, &waiting[..count], "first").await;
    }
    // In turn, so that a drift of the machine's speed hits all sizes.
    for n in 0..ROUNDS {
        for inboxes in &mut found {
            let samples = round(server, leads, &waiting[..inboxes.count], &n.to_string()).await;
            inboxes.last.extend(samples.iter().max());
            inboxes.samples.extend(samples);
        }
    }
    found.into()
}

async fn round(server: &Server, leads: &Cache, waiting: &[Cache], name: &str) -> Vec<Duration> {
    let key = format!("inboxes-{}-{name}", waiting.len());
    let leader = Leader::begin(leads, &key).await;
    let waiters: Vec<_> = waiting.iter().map(|cache| wait(cache, &key)).collect();
    eventually("all wait", || registered(server, &key) == waiting.len()).await;
    let filled = leader.fill().await;
    let mut samples = Vec::new();
    for waiter in waiters {
        samples.push(waiter.await.unwrap().saturating_duration_since(filled));
    }
    samples
}
