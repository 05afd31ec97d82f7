//! D7: on a cluster, a lease that is given up is one waiting process's affair.

use tower_stampede::Redis;

use crate::kit::origin::{Answer, Origin};
use crate::kit::redis::{Cluster, eventually};
use crate::kit::redis_caches::*;

use super::{executed, published};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandoned_lease_wakes_one_process() {
    const WAITING: usize = 6;
    let cluster = Cluster::start();
    let nodes = || cluster.nodes().iter().collect::<Vec<_>>();
    let caches: Vec<_> =
        (0..=WAITING).map(|_| patient_on(Redis::cluster(cluster.urls()).unwrap())).collect();
    all_listen(&caches).await;
    let key = fresh_key();
    let failing = Gated::new();
    failing.origin.next([Answer::Fail]);
    let leader = failing.lead(&caches[0], &key).await;
    let scripts = || executed(nodes(), "evalsha") + executed(nodes(), "eval");
    let (before, own) = (scripts(), Gated::of(&Origin::new()));
    let waiting: Vec<_> = caches[1..].iter().map(|cache| own.ask(cache, &key)).collect();
    eventually("all have asked for the lease", || scripts() >= before + WAITING as i64).await;
    let quiet = published(nodes());
    failing.open();
    assert!(leader.await.unwrap().is_err());
    eventually("another process computes", || own.calls() > 0).await;
    let messages = published(nodes()) - quiet;
    own.open();
    for caller in waiting {
        answer(caller).await;
    }
    assert_eq!(own.calls(), 1);
    assert!(messages <= 1, "{messages} messages for one abandoned lease");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fill_that_no_process_waits_for_is_published_to_none() {
    let cluster = Cluster::start();
    let caches: Vec<_> =
        (0..6).map(|_| patient_on(Redis::cluster(cluster.urls()).unwrap())).collect();
    all_listen(&caches).await;
    let before = published(cluster.nodes());
    let origin = Origin::new();
    for _ in 0..20 {
        load(&caches[0], &origin, fresh_key()).await;
    }
    assert_eq!(published(cluster.nodes()) - before, 0, "messages for 20 fills");
}
