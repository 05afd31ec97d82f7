//! Crowds at the proxy, on real connections. Origins hold their answers
//! back until the test lets go, so that a count of requests depends on no clock.

use std::collections::HashSet;
use std::iter::repeat_with;
use std::time::{Duration, Instant};

use crate::kit::proxy::stage::{
    CROWD, FAILURE, FRESH, PRIVATE, SHORT, SMALL_CROWD, STALE_IF_ERROR, STALE_MEANWHILE, Stage,
    VARYING, ask_on, same, variants,
};
use crate::kit::proxy::{Pace, Seen, get, get_with, soon};

/// A hold of a second, shortened by a tenth.
const SHORTEST_HOLD: Duration = Duration::from_millis(900);

#[track_caller]
fn assert_all(seen: &[Seen], status: u16, body: &str) {
    for seen in seen {
        assert_eq!((seen.status, &*seen.body), (status, body), "{:?}", seen.fields);
    }
}

fn bodies(seen: &[Seen]) -> HashSet<&str> {
    seen.iter().map(|seen| &*seen.body).collect()
}

async fn a_cold_crowd_asks_once(stage: Stage) {
    let crowd = stage.gather(same(CROWD), 1).await;
    stage.backend.let_go(1);
    let seen = crowd.seen().await;
    assert_eq!(seen.len(), CROWD);
    assert_all(&seen, 200, "answer 1 to all");
    assert_eq!(stage.backend.hits(), 1);
}

#[tokio::test]
async fn a_cold_crowd_is_one_request() {
    a_cold_crowd_asks_once(Stage::new(FRESH, &[]).await).await;
}

#[tokio::test]
async fn a_cold_crowd_of_ranges_is_one_request() {
    let stage = Stage::new(FRESH, &[]).await;
    let ranges = || repeat_with(|| get_with("/", "range", "bytes=0-5, -3"));
    let crowd = stage.gather(ranges().take(CROWD), 1).await;
    stage.backend.let_go(1);
    let seen = crowd.seen().await;
    // The two parts of so short a body are close enough to be one.
    assert_eq!(seen.len(), CROWD);
    assert_all(&seen, 206, "answer 1 to all");
    assert_all(&stage.crowd([get_with("/", "range", "bytes=-3")]).seen().await, 206, "all");
    assert_eq!(stage.backend.hits(), 1);
}

#[tokio::test]
async fn ranges_that_are_passed_are_a_request_for_each() {
    let stage = Stage::new(FRESH, &["--pass-ranges"]).await;
    let ranges = || repeat_with(|| get_with("/", "range", "bytes=0-5"));
    let crowd = stage.gather(ranges().take(SMALL_CROWD), SMALL_CROWD).await;
    stage.backend.let_go(SMALL_CROWD);
    // This origin knows no ranges.
    assert!(crowd.seen().await.iter().all(|seen| seen.status == 200));
}

#[tokio::test]
async fn a_cold_crowd_of_heads_is_one_request() {
    let stage = Stage::new(FRESH, &[]).await;
    let head = || {
        let mut head = get("/");
        *head.method_mut() = http::Method::HEAD;
        head
    };
    let crowd = stage.gather(repeat_with(head).take(CROWD), 1).await;
    stage.backend.let_go(1);
    assert_all(&crowd.seen().await, 200, "");
    assert_eq!(stage.backend.hits(), 1);
}

#[tokio::test]
async fn a_crowd_after_the_lifetime_is_one_request_and_gets_nothing_stale() {
    let stage = Stage::new(SHORT, &[]).await;
    stage.store_and_expire().await;
    let crowd = stage.gather(same(CROWD), 2).await;
    stage.backend.let_go(1);
    assert_all(&crowd.seen().await, 200, "answer 2 to all");
    assert_eq!(stage.backend.hits(), 2);
}

#[tokio::test]
async fn a_refresh_that_fails_is_one_request_and_an_error_for_nobody() {
    let stage = Stage::new(STALE_IF_ERROR, &[]).await;
    stage.store_and_expire().await;
    stage.backend.answers(FAILURE);
    let crowd = stage.gather(same(CROWD), 2).await;
    let failed_at = Instant::now();
    // Whatever is asked after that fails at once.
    stage.backend.let_go(1 + CROWD);
    let seen = crowd.seen().await;
    assert_all(&seen, 200, "answer 1 to all");
    assert!(seen.iter().all(Seen::is_stale));
    // And the clients that come next do not ask again so soon.
    assert_all(&stage.crowd(same(CROWD)).seen().await, 200, "answer 1 to all");
    let holds = failed_at.elapsed().div_duration_f64(SHORTEST_HOLD) as usize;
    let hits = stage.backend.hits();
    assert!((2..=2 + holds).contains(&hits), "{hits} requests within {holds} holds");
}

#[tokio::test]
async fn an_origin_that_refuses_connections_is_an_error_for_nobody() {
    let mut stage = Stage::new(STALE_IF_ERROR, &[]).await;
    stage.store_and_expire().await;
    stage.backend.refuse().await;
    let seen = stage.crowd(same(CROWD)).seen().await;
    assert_all(&seen, 200, "answer 1 to all");
    assert!(seen.iter().all(Seen::is_stale));
}

#[tokio::test]
async fn a_cold_crowd_shares_one_failure() {
    let stage = Stage::new(FAILURE, &[]).await;
    let crowd = stage.gather(same(CROWD), 1).await;
    stage.backend.let_go(1);
    let seen = crowd.seen().await;
    assert_eq!(seen.len(), CROWD);
    let is_shared = |seen: &Seen| (seen.status, seen.body.as_str()) == (500, "answer 1 to all");
    assert!(seen.iter().all(is_shared), "{:?}", bodies(&seen));
    assert_eq!(stage.backend.hits(), 1);
}

#[tokio::test]
async fn a_first_client_that_hangs_up_leaves_its_request_to_the_others() {
    let stage = Stage::new(FRESH, &[]).await;
    let first = stage.gather(same(1), 1).await;
    let others = stage.gather(same(CROWD - 1), 1).await;
    drop(first);
    stage.is_idle().await;
    stage.backend.let_go(1);
    assert_all(&others.seen().await, 200, "answer 1 to all");
    assert_eq!(stage.backend.hits(), 1);
}

async fn a_private_crowd_asks_in_parallel(stage: Stage) {
    let crowd = stage.gather(same(SMALL_CROWD), 1).await;
    stage.backend.let_go(1);
    // All others while none of them is answered.
    stage.backend.until_hits(SMALL_CROWD).await;
    stage.backend.let_go(SMALL_CROWD - 1);
    let seen = crowd.seen().await;
    assert!(seen.iter().all(|seen| seen.status == 200));
    assert_eq!(bodies(&seen).len(), SMALL_CROWD, "nobody sees another one's answer");
    assert_eq!(stage.backend.hits(), SMALL_CROWD);
    // The clients of the next crowd do not wait for each other.
    let crowd = stage.gather(same(SMALL_CROWD), 2 * SMALL_CROWD).await;
    stage.backend.let_go(SMALL_CROWD);
    assert_eq!(bodies(&crowd.seen().await).len(), SMALL_CROWD);
    assert_eq!(stage.backend.hits(), 2 * SMALL_CROWD);
}

#[tokio::test]
async fn a_crowd_for_what_is_private_asks_in_parallel() {
    a_private_crowd_asks_in_parallel(Stage::new(PRIVATE, &[]).await).await;
}

async fn a_crowd_of_variants_asks_in_parallel(stage: Stage) {
    let crowd = stage.gather(variants(0, SMALL_CROWD), 1).await;
    stage.backend.let_go(1);
    stage.backend.until_hits(SMALL_CROWD).await;
    stage.backend.let_go(SMALL_CROWD - 1);
    let seen = crowd.seen().await;
    assert_eq!(stage.backend.hits(), SMALL_CROWD);
    let is_of = |n: usize| seen.iter().any(|seen| seen.body.ends_with(&format!(" to {n}")));
    assert!((0..SMALL_CROWD).all(is_of), "{:?}", bodies(&seen));
    // Now that it is known by what they differ, ten clients for each of fifty
    // others are fifty requests at once.
    let others = repeat_with(|| variants(SMALL_CROWD, SMALL_CROWD)).take(10).flatten();
    let crowd = stage.gather(others, 2 * SMALL_CROWD).await;
    stage.backend.let_go(SMALL_CROWD);
    let seen = crowd.seen().await;
    assert_eq!((seen.len(), bodies(&seen).len()), (CROWD, SMALL_CROWD));
    assert_eq!(stage.backend.hits(), 2 * SMALL_CROWD);
}

#[tokio::test]
async fn a_crowd_of_variants_is_one_request_each_in_parallel() {
    a_crowd_of_variants_asks_in_parallel(Stage::new(VARYING, &[]).await).await;
}

#[tokio::test]
async fn an_origin_that_takes_many_leases_is_asked_once() {
    let flags = ["--lease-ms", "500", "--compute-timeout-ms", "120000"];
    let stage = Stage::new(FRESH.head(Pace::After(Duration::from_secs(3))), &flags).await;
    let seen = stage.crowd(same(SMALL_CROWD)).seen().await;
    assert_all(&seen, 200, "answer 1 to all");
    assert_eq!(stage.backend.hits(), 1);
}

#[tokio::test]
async fn whoever_waits_reads_a_body_while_it_arrives() {
    let stage = Stage::new(FRESH.then(1, Pace::WhenLet), &[]).await;
    let early = stage.gather(same(CROWD), 1).await;
    stage.backend.let_go(1);
    early.has_begun().await;
    let late = stage.crowd(same(SMALL_CROWD));
    late.has_begun().await;
    stage.backend.let_go(1);
    assert_all(&early.seen().await, 200, "answer 1 to all, and more");
    assert_all(&late.seen().await, 200, "answer 1 to all, and more");
    assert_eq!(stage.backend.hits(), 1);
}

const OUTAGE: Duration = Duration::from_secs(3);

async fn seen_in(stage: &Stage, time: Duration) -> Vec<Seen> {
    let outcomes = soon("clients that ask on", ask_on(stage, time)).await;
    outcomes.into_iter().map(|outcome| outcome.expect("a response")).collect()
}

/// At most two for each hold since then, and one before.
fn assert_a_handful_of_attempts(stage: &Stage, begun: Instant) {
    let holds = begun.elapsed().div_duration_f64(SHORTEST_HOLD).ceil() as usize;
    let attempts = stage.backend.hits() - 1;
    assert!((1..=1 + 2 * holds).contains(&attempts), "{attempts} attempts within {holds} holds");
}

async fn an_outage_is_a_handful_of_requests(stage: Stage) {
    stage.store_and_expire().await;
    stage.backend.cut().await;
    let begun = Instant::now();
    let seen = seen_in(&stage, OUTAGE).await;
    assert!(seen.len() > SMALL_CROWD, "they ask again and again");
    assert_all(&seen, 200, "answer 1 to all");
    assert_a_handful_of_attempts(&stage, begun);
}

async fn is_new_after_the_outage(stage: &mut Stage) {
    stage.backend.answers(STALE_MEANWHILE.head(Pace::AtOnce));
    stage.backend.revive();
    let mut client = stage.client().await;
    let new = async {
        while client.ask(get("/")).await.unwrap().body == "answer 1 to all" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("a new response", new).await;
}

#[tokio::test]
async fn an_outage_is_a_handful_of_requests_and_an_error_for_nobody() {
    an_outage_is_a_handful_of_requests(Stage::new(STALE_IF_ERROR, &[]).await).await;
}

#[tokio::test]
async fn an_origin_that_fails_for_a_while_is_asked_a_handful_of_times() {
    let stage = Stage::new(STALE_IF_ERROR, &[]).await;
    stage.store_and_expire().await;
    stage.backend.answers(FAILURE.head(Pace::AtOnce));
    let begun = Instant::now();
    let seen = seen_in(&stage, OUTAGE).await;
    assert_all(&seen, 200, "answer 1 to all");
    assert_a_handful_of_attempts(&stage, begun);
}

#[tokio::test]
async fn after_an_outage_the_origin_is_asked_again() {
    let mut stage = Stage::new(STALE_MEANWHILE, &[]).await;
    stage.backend.let_go(1);
    assert_eq!(stage.client().await.ask(get("/")).await.unwrap().status, 200);
    stage.backend.refuse().await;
    let seen = seen_in(&stage, OUTAGE).await;
    assert_all(&seen, 200, "answer 1 to all");
    assert!(seen.iter().any(Seen::is_stale));
    is_new_after_the_outage(&mut stage).await;
}

#[tokio::test]
async fn the_next_request_on_a_connection_that_was_served_stale_is_never_late() {
    let stage = Stage::new(STALE_MEANWHILE, &[]).await;
    stage.backend.let_go(1);
    let mut clients = Vec::new();
    for _ in 0..SMALL_CROWD {
        clients.push(stage.client().await);
    }
    let stale = async {
        while !clients[0].ask(get("/")).await.unwrap().is_stale() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("something stale", stale).await;
    stage.backend.until_hits(2).await;
    // Its refresh runs, and runs on.
    for client in &mut clients {
        for _ in 0..3 {
            let seen = soon("an answer", client.ask(get("/"))).await.unwrap();
            assert_eq!(seen.body, "answer 1 to all");
            assert!(seen.is_stale());
        }
    }
    assert_eq!(stage.backend.hits(), 2);
    stage.backend.let_go(1);
    // It has been on its way for so long that it may be stale already.
    let new = async { while clients[0].ask(get("/")).await.unwrap().body == "answer 1 to all" {} };
    soon("a new response", new).await;
}

mod with_redis {
    use super::*;
    use crate::kit::proxy::Answer;
    use crate::kit::redis::Server;

    /// Runs a scenario with `--redis`.
    async fn play<F: Future<Output = ()>>(
        proxies: usize,
        answer: Answer,
        scenario: impl FnOnce(Stage) -> F,
    ) {
        let redis = Server::start();
        let flags = ["--redis", &redis.url()];
        scenario(Stage::with_proxies(proxies, answer, &flags).await).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_cold_crowd_is_one_request() {
        play(1, FRESH, a_cold_crowd_asks_once).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_cold_crowd_at_two_proxies_is_one_request() {
        play(2, FRESH, a_cold_crowd_asks_once).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_crowd_for_what_is_private_asks_in_parallel() {
        play(1, PRIVATE, a_private_crowd_asks_in_parallel).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_crowd_of_variants_is_one_request_each_in_parallel() {
        play(1, VARYING, a_crowd_of_variants_asks_in_parallel).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_outage_is_a_handful_of_requests_and_an_error_for_nobody() {
        play(1, STALE_IF_ERROR, an_outage_is_a_handful_of_requests).await;
    }
}
