//! D7: on a cluster, a message goes to the processes that wait.

use tower_stampede::Redis;

use crate::kit::origin::Origin;
use crate::kit::redis::Cluster;
use crate::kit::redis_caches::*;

use super::published;

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
