//! `SETNX` with the time of expiry as value; who finds that it has passed
//! deletes the lock and tries again.

use super::clients::{Client, Process, has_set, our_lock, the_lease_ends};
use crate::kit::redis::Server;

const PAST: i64 = 1_000;
const NOW: i64 = 2_000;
const LATER: i64 = 3_000;

fn lock(client: &mut Client) -> bool {
    has_set(&client.say(&format!("SETNX lock {LATER}")))
}

fn sees_an_expired_lock(client: &mut Client) -> bool {
    client.say("GET lock").int() < NOW
}

#[test]
fn two_who_see_the_expired_lock_both_get_it() {
    let server = Server::start();
    let (mut a, mut b) = (Client::of(&server), Client::of(&server));
    // Its holder died.
    a.say(&format!("SET lock {PAST}"));
    assert!(!lock(&mut a) && sees_an_expired_lock(&mut a));
    assert!(!lock(&mut b) && sees_an_expired_lock(&mut b));

    a.say("DEL lock");
    assert!(lock(&mut a));
    // This is the lock of A, and no longer the expired one.
    b.say("DEL lock");
    assert!(lock(&mut b), "and A believes to have it");
}

#[tokio::test]
async fn with_ours_one_of_the_two_gets_it() {
    let server = Server::start();
    let dead = Process::of(&server).await;
    let (a, b) = (Process::of(&server).await, Process::of(&server).await);
    dead.leads().await;
    a.is_locked_out().await;
    b.is_locked_out().await;

    the_lease_ends(&server, &our_lock(&server)).await;
    let grant = a.leads().await;
    b.is_locked_out().await;
    assert!(a.renew(&grant).await);
}
