//! D7: on a cluster, a message goes to the processes that wait, and a lease that is given up is
//! one waiting process's affair.

use tower_stampede::Redis;

use crate::kit::origin::{Origin, within};
use crate::kit::redis::{Cluster, eventually, slot_of};
use crate::kit::redis_caches::*;
use crate::kit::spawn;

use super::{has_slot_channels, published};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandoned_lease_wakes_one_process() {
    const WAITING: usize = 6;
    let cluster = Cluster::start();
    let caches: Vec<_> = (0..=WAITING)
        .map(|_| patient_on(Redis::cluster(cluster.urls()).unwrap().namespace("stampede")))
        .collect();
    all_listen(&caches).await;
    let key = fresh_key();
    // It computes inside its caller, and for ever.
    let (computes, begun) = tokio::sync::oneshot::channel();
    let leader = spawn({
        let (cache, key) = (caches[0].clone(), key.clone());
        async move {
            let compute = || async {
                computes.send(()).expect("the test waits for it");
                std::future::pending::<Result<u64, std::io::Error>>().await
            };
            cache.get_or_compute_scoped(&*key, compute).await
        }
    });
    within(LIMIT, begun).await.expect("it computes");
    let others = Gated::new();
    let waiting: Vec<_> = caches[1..].iter().map(|cache| others.ask(cache, &key)).collect();
    let node = &cluster.nodes()[cluster.owner(slot_of(&cluster, &key))];
    eventually("all have registered", || registered(node, &key) == WAITING).await;
    let quiet = published(cluster.nodes());
    // Its caller goes away.
    leader.abort();
    eventually("another process computes", || others.calls() > 0).await;
    let messages = published(cluster.nodes()) - quiet;
    others.open();
    for caller in waiting {
        answer(caller).await;
    }
    assert_eq!(others.calls(), 1);
    // Before Redis 7 the node is told of those alone that hear it there, and wakes all.
    let most = if has_slot_channels(&cluster) { 1 } else { WAITING as i64 };
    assert!((1..=most).contains(&messages), "{messages} for one abandoned lease");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fill_that_no_process_waits_for_is_published_to_none() {
    let cluster = Cluster::start();
    let caches: Vec<_> = (0..6)
        .map(|_| patient_on(Redis::cluster(cluster.urls()).unwrap().namespace("stampede")))
        .collect();
    all_listen(&caches).await;
    let before = published(cluster.nodes());
    let origin = Origin::new();
    for _ in 0..20 {
        load(&caches[0], &origin, fresh_key()).await;
    }
    assert_eq!(published(cluster.nodes()) - before, 0, "messages for 20 fills");
}
