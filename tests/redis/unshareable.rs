//! Results that do not reach the other processes, on a real server: 8 processes with 20 callers each,
//! 1 s of work. The lines that it prints are those of the table in `docs/redis.md`; the
//! bounds are for busy machines.

use std::time::Duration;

use tower_stampede::{Computed, Redis, Stampede};

use crate::kit::crowd::{Crowd, MAX_BYTES, Report, WORK, reports};
use crate::kit::origin::{MS, Origin, SECOND};
use crate::kit::redis::{Server, eventually};
use crate::kit::redis_caches::Meanwhile;

const SPREAD: Duration = Duration::from_millis(50);

async fn processes(server: &Server, n: usize, max_bytes: usize) -> Vec<Stampede<Report>> {
    let redis = || Redis::lazy(&server.url()).unwrap().namespace("stampede").op_timeout(300 * MS);
    let process = |_| reports().redis(redis().max_value_bytes(max_bytes)).build().unwrap();
    let caches: Vec<_> = (0..n).map(process).collect();
    for cache in &caches {
        assert_eq!(cache.get("nothing is here").await, None);
    }
    let is_up = |cache: &Stampede<Report>| cache.health() == tower_stampede::Health::Up;
    eventually("every process is well", || caches.iter().all(is_up)).await;
    caches
}

/// Asserts that no request has failed or waited until its time-out.
fn is_bounded(what: &str, crowd: Crowd, computations: usize) {
    println!("{what}: {crowd:?}");
    assert!(crowd.failed == 0 && crowd.computations <= computations, "{what}: {crowd:?}");
    assert!(crowd.longest < 4 * SECOND, "{what}: {crowd:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_cannot_be_shared_is_computed_once_in_each_process_and_no_request_fails() {
    fn too_large() -> Computed<Report> {
        Report::of(MAX_BYTES + 1)
    }
    let (server, origin) = (Server::start(), Origin::taking(WORK));
    let caches = processes(&server, 8, MAX_BYTES).await;
    is_bounded("too large", Crowd::ask(&caches, SPREAD, &origin, too_large).await, 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tag_that_ends_faster_than_the_work_costs_one_computation_for_all_that_wait() {
    let (server, origin) = (Server::start(), Origin::taking(WORK));
    let caches = processes(&server, 9, MAX_BYTES).await;
    let writer = caches[8].clone();
    let ending = Meanwhile::every(200 * MS, move || {
        let writer = writer.clone();
        async move { _ = writer.invalidate_tag("t").await }
    });
    let crowd = Crowd::ask(&caches[..8], SPREAD, &origin, || Report::small().tag("t")).await;
    assert!(ending.end().await >= 4);
    // The first item may come between two processes that ask.
    is_bounded("a tag every 200 ms", crowd, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_room_for_small_writes_alone_keeps_no_process_waiting_for_another() {
    const LARGE: usize = 4 << 20;
    let server = Server::configured(&["maxmemory-policy noeviction"]);
    let origin = Origin::taking(WORK);
    let caches = processes(&server, 8, 16 << 20).await;
    let used: usize =
        server.cli(&["INFO", "memory"]).field("used_memory").unwrap().parse().unwrap();
    server.cli(&["CONFIG", "SET", "maxmemory", &(used + LARGE / 2).to_string()]);
    let crowd = Crowd::ask(&caches, SPREAD, &origin, || Report::of(LARGE)).await;
    is_bounded("no memory for the value", crowd, 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_runs_full_while_processes_wait_keeps_none_waiting_for_another() {
    let server = Server::configured(&["maxmemory-policy noeviction"]);
    let origin = Origin::taking(WORK);
    let caches = processes(&server, 8, MAX_BYTES).await;
    let filling = tokio::spawn({
        let origin = origin.clone();
        async move {
            eventually("one computes", || origin.calls() == 1).await;
            tokio::time::sleep(WORK / 2).await;
            server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
            server
        }
    });
    let crowd = Crowd::ask(&caches, SPREAD, &origin, Report::small).await;
    drop(filling.await.unwrap());
    is_bounded("no memory at all", crowd, 8);
}
