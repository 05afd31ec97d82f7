//! D2: the nodes of a cluster disagree about the time. Order must not depend on it.

use std::time::Duration;

use tokio::sync::watch;
use tower_stampede::{Computed, Redis};

use crate::kit::origin::{Origin, within};
use crate::kit::redis::{Cluster, eventually, slot_of};
use crate::kit::redis_caches::*;
use crate::kit::spawn;

use super::tagged;

/// The place of the node whose clock is 400 ms ahead.
const AHEAD: usize = 2;

/// Reads, then a tag is invalidated, then the fill is stored. Returns what is served after.
async fn fill_after_invalidation(cluster: &Cluster, namespace: &str) -> [u64; 2] {
    let process = || hasty_on(Redis::cluster(cluster.urls()).unwrap().namespace(namespace));
    let caches = [process(), process()];
    all_listen(&caches).await;
    let on_the_node = |key: &String| cluster.owner(slot_of(cluster, key)) == AHEAD;
    let key = std::iter::repeat_with(fresh_key).find(on_the_node).unwrap();

    let (origin, open) = (Origin::new(), watch::Sender::new(false));
    let leader = {
        let (cache, origin, key) = (caches[0].clone(), origin.clone(), key.clone());
        let mut open = open.subscribe();
        spawn(async move {
            let compute = move || {
                let loading = origin.load();
                async move {
                    open.wait_for(|open| *open).await.expect("the door is there");
                    loading.await.map(|value| Computed::new(value).tag("t"))
                }
            };
            cache.get_or_compute_with(&*key, compute).await
        })
    };
    eventually("it computes", || origin.calls() == 1).await;
    caches[1].invalidate_tag("t").await;
    open.send_replace(true);
    answer(leader).await;
    let new = process();
    let served = [tagged(&new, &origin, &key).await, tagged(&caches[1], &origin, &key).await];
    // The leading process has its own copy until the message arrives.
    let leading = || async { tagged(&caches[0], &origin, &key).await };
    let has_heard = async {
        while leading().await == 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(LIMIT, has_heard).await;
    served
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fill_is_as_old_as_its_read_whatever_the_clocks_of_the_nodes_say() {
    let Some(cluster) = Cluster::with_a_clock_ahead(AHEAD, "+0.4s") else {
        println!(
            "not run: a_fill_is_as_old_as_its_read...: needs libfaketime, and a server that starts under it"
        );
        return;
    };
    // The log is on another node in some of these namespaces.
    let mut old = Vec::new();
    for n in 0..6 {
        let served = fill_after_invalidation(&cluster, &format!("skew{n}")).await;
        old.extend(served.contains(&1).then_some((n, served)));
    }
    assert!(old.is_empty(), "1 is old; (namespace, [new, invalidating process]): {old:?}");
}
