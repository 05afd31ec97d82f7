//! A lock without fault: `SET NX PX` with a token, compared and deleted by one
//! script. The value is written with a plain `SET`.

use tower_stampede::remote::FillOutcome;

use super::clients::{Client, Process, has_set, our_lock, the_lease_ends};
use crate::kit::redis::{Reply, Server};

const COMPARE_AND_DELETE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then \
                                  return redis.call('del', KEYS[1]) else return 0 end";

fn lock(client: &mut Client, token: &str) -> bool {
    has_set(&client.say(&format!("SET lock {token} NX PX 10000")))
}

fn unlock(client: &mut Client, token: &str) -> bool {
    client.eval(COMPARE_AND_DELETE, &["lock"], &[token]) == Reply::Int(1)
}

fn write(client: &mut Client, value: &str) {
    client.say(&format!("SET value {value}"));
}

#[tokio::test]
async fn a_late_leader_overwrites_a_newer_value() {
    let server = Server::start();
    let (mut a, mut b) = (Client::of(&server), Client::of(&server));
    let mut database = "old";
    assert!(lock(&mut a, "a"));
    let read_by_a = database;
    the_lease_ends(&server, "lock").await;

    database = "new";
    assert!(lock(&mut b, "b"));
    write(&mut b, database);
    assert!(unlock(&mut b, "b"));

    write(&mut a, read_by_a);
    assert!(!unlock(&mut a, "a"), "the lock is right");
    assert_eq!(b.say("GET value").text(), "old", "the value is not");
}

#[tokio::test]
async fn with_ours_the_late_fill_is_refused() {
    let server = Server::start();
    let (a, b) = (Process::of(&server).await, Process::of(&server).await);
    let mut database = "old";
    let late = a.leads().await;
    let read_by_a = database;
    the_lease_ends(&server, &our_lock(&server)).await;

    database = "new";
    let grant = b.leads().await;
    assert_eq!(b.fill(&grant, database).await, FillOutcome::Stored);

    assert_eq!(a.fill(&late, read_by_a).await, FillOutcome::Refused);
    assert_eq!(b.reads().await, "new");
}

/// A lease that ran out is no reason to throw work away.
#[tokio::test]
async fn with_ours_a_late_fill_that_nobody_came_before_is_stored() {
    let server = Server::start();
    let a = Process::of(&server).await;
    let late = a.leads().await;
    the_lease_ends(&server, &our_lock(&server)).await;
    assert_eq!(a.fill(&late, "late").await, FillOutcome::Stored);
    assert_eq!(a.reads().await, "late");
}
