//! Who missed and then gets the lock computes, without looking again.

use bytes::Bytes;
use tower_stampede::remote::{AcquireOutcome, FillOutcome};

use super::clients::{Client, LONG, Process, has_set};
use crate::kit::redis::Server;

fn misses(client: &mut Client) -> bool {
    client.say("GET value").is_nil()
}

fn lock(client: &mut Client) -> bool {
    has_set(&client.say("SET lock 1 NX PX 10000"))
}

fn fill(client: &mut Client, value: u32) {
    client.multi(&[&format!("SET value {value}"), "DEL lock"]);
}

#[test]
fn who_missed_before_the_fill_and_locks_after_it_computes_again() {
    let server = Server::start();
    let (mut a, mut b) = (Client::of(&server), Client::of(&server));
    let mut computed = 0;
    assert!(misses(&mut a) && misses(&mut b));
    for client in [&mut a, &mut b] {
        assert!(lock(client));
        computed += 1;
        fill(client, computed);
    }
    assert_eq!(computed, 2);
}

#[tokio::test]
async fn with_ours_who_missed_before_the_fill_is_given_the_value_in_place_of_the_lock() {
    let server = Server::start();
    let (a, b) = (Process::of(&server).await, Process::of(&server).await);
    assert_eq!((a.get().await, b.get().await), (None, None));
    let grant = a.leads().await;
    assert_eq!(a.fill(&grant, "computed once").await, FillOutcome::Stored);
    let AcquireOutcome::Hit { value: envelope, .. } = b.acquire(LONG).await else {
        panic!("no value")
    };
    assert_eq!(envelope.slice(20..), Bytes::from("computed once"));
}
