//! D1: the invalidation log is evicted or deleted. Its absence must not read as "nothing was
//! ever invalidated".

use crate::kit::origin::Origin;
use crate::kit::redis::{Server, eventually};
use crate::kit::redis_caches::*;

use super::{names, tagged};

/// Deletes all our keys but those of this entry, as an eviction may.
fn lose_all_but(server: &Server, entry: &str) {
    let (kept, lost): (Vec<_>, Vec<_>) =
        names(server).into_iter().partition(|name| name.contains(entry));
    assert!(!kept.is_empty(), "the names of an entry's keys contain its key");
    for name in lost {
        server.cli(&["DEL", &name]);
    }
}

/// A process that fills one entry, and another one.
async fn two_and_an_entry(server: &Server, origin: &Origin) -> Vec<Cache> {
    let caches = processes(2, &server.url());
    all_listen(&caches).await;
    assert_eq!(tagged(&caches[0], origin, "the-entry").await, 1);
    eventually("the entry is stored", || {
        names(server).iter().any(|name| name.contains("the-entry"))
    })
    .await;
    caches
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_log_brings_no_invalidated_tag_back() {
    let (server, origin) = (Server::start(), Origin::new());
    let caches = two_and_an_entry(&server, &origin).await;
    caches[1].invalidate_tag("t").await;
    lose_all_but(&server, "the-entry");
    let new = process(&server.url());
    assert_eq!(tagged(&new, &origin, "the-entry").await, 2, "1 was invalidated");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_log_brings_nothing_back_after_an_invalidation_of_everything() {
    let (server, origin) = (Server::start(), Origin::new());
    let caches = two_and_an_entry(&server, &origin).await;
    caches[1].invalidate_all().await;
    lose_all_but(&server, "the-entry");
    let new = process(&server.url());
    assert_eq!(tagged(&new, &origin, "the-entry").await, 2, "1 was invalidated");
}

/// Other clients write until half of the entries are gone.
async fn under_pressure(policy: &str) {
    const ENTRIES: usize = 200;
    let server = Server::configured(&["maxmemory 24mb", &format!("maxmemory-policy {policy}")]);
    let origin = Origin::new();
    let caches = processes(2, &server.url());
    all_listen(&caches).await;
    for n in 0..ENTRIES {
        tagged(&caches[0], &origin, &format!("entry-{n}-")).await;
    }
    let left = || -> Vec<String> {
        let names = names(&server);
        let keys = (0..ENTRIES).map(|n| format!("entry-{n}-"));
        keys.filter(|key| names.iter().any(|name| name.contains(key))).collect()
    };
    eventually("all entries are stored", || left().len() == ENTRIES).await;
    caches[1].invalidate_tag("t").await;

    let mut others = server.connect().unwrap();
    let (value, mut n) = ("x".repeat(1024), 0);
    while left().len() > ENTRIES / 2 {
        for _ in 0..500 {
            others.call(&["SET", &format!("other:{n}"), &value, "PX", "600000"]).unwrap();
            n += 1;
        }
        assert!(n < 200_000, "the server evicts");
    }
    let left = left();
    let (new, before) = (process(&server.url()), origin.calls() as u64);
    let mut old = 0;
    for key in &left {
        old += usize::from(tagged(&new, &origin, key).await <= before);
    }
    assert_eq!(old, 0, "of {} invalidated entries a new process serves so many", left.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_process_serves_nothing_invalidated_after_evictions_by_lru() {
    under_pressure("allkeys-lru").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_process_serves_nothing_invalidated_after_evictions_by_lfu() {
    under_pressure("allkeys-lfu").await;
}
