//! Redis at its edges: what must hold when the log is lost, clocks differ, shards are away,
//! messages are lost and many processes start together. One file per defect.
//!
//! These tests name none of our keys: they find keys by what the test itself has named.

mod abandoned_leases;
mod clock_skew;
mod crowd_at_start;
mod leftovers;
mod lost_log;
mod lost_messages;
mod memory;
mod moved_servers;
mod probes;
mod sick_shard;
mod slot_channels;
mod slow_calls;
mod strangers;
mod subscribers;

use crate::kit::redis::Cluster;
use tower_stampede::Computed;

use crate::kit::origin::Origin;
use crate::kit::redis::Server;
use crate::kit::redis_caches::Cache;

/// The names of all keys on a server.
fn names(server: &Server) -> Vec<String> {
    server.cli(&["KEYS", "*"]).parts().iter().map(crate::kit::redis::Reply::text).collect()
}

/// One request for `key`, with the tag `t`.
async fn tagged(cache: &Cache, origin: &Origin, key: &str) -> u64 {
    let load = origin.compute();
    let compute = move || async move { load().await.map(|value| Computed::new(value).tag("t")) };
    cache.get_or_compute_with(key, compute).await.expect("no request fails because of Redis")
}

/// How often the servers have executed a command, calls by scripts included.
fn executed<'a>(servers: impl IntoIterator<Item = &'a Server>, command: &str) -> i64 {
    let of = |server: &Server| {
        let stats = server.cli(&["INFO", "commandstats"]).text();
        let start = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&start)).map(str::to_owned);
        line.map_or(0, |line| line.split(',').next().unwrap().parse::<i64>().unwrap())
    };
    servers.into_iter().map(of).sum()
}

fn has_slot_channels(cluster: &Cluster) -> bool {
    let said = cluster.nodes()[0].cli(&["COMMAND", "INFO", "SSUBSCRIBE"]);
    !said.parts()[0].is_nil()
}

/// How many messages the servers were asked to publish, sharded ones included.
fn published<'a>(servers: impl IntoIterator<Item = &'a Server> + Clone) -> i64 {
    executed(servers.clone(), "publish") + executed(servers, "spublish")
}
