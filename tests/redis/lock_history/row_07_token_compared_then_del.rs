//! `SET NX PX` with a token; to unlock, `GET`, compare, `DEL`.

use super::clients::{Client, Process, has_set, our_lock, the_lease_ends};
use crate::kit::redis::Server;

fn lock(client: &mut Client, token: &str) -> bool {
    has_set(&client.say(&format!("SET lock {token} NX PX 10000")))
}

fn is_mine(client: &mut Client, token: &str) -> bool {
    client.say("GET lock").text() == token
}

fn delete(client: &mut Client) {
    client.say("DEL lock");
}

#[tokio::test]
async fn a_lease_that_ends_after_the_comparison_unlocks_the_next_holders_lock() {
    let server = Server::start();
    let [mut a, mut b, mut c] = [(); 3].map(|()| Client::of(&server));
    assert!(lock(&mut a, "a"));
    assert!(is_mine(&mut a, "a"));
    the_lease_ends(&server, "lock").await;
    assert!(lock(&mut b, "b"));
    delete(&mut a);
    assert!(lock(&mut c, "c"), "and B believes to have it");
}

#[tokio::test]
async fn with_ours_nothing_comes_between_the_comparison_and_the_release() {
    let server = Server::start();
    let (a, b) = (Process::of(&server).await, Process::of(&server).await);
    let c = Process::of(&server).await;
    let late = a.leads().await;
    assert!(a.renew(&late).await, "it is A's at this moment");
    the_lease_ends(&server, &our_lock(&server)).await;
    let grant = b.leads().await;
    assert!(!a.release(&late.token).await);
    c.is_locked_out().await;
    assert!(b.renew(&grant).await);
}
