//! `SET NX PX` to lock, `DEL` to unlock, whichever client has the lock.

use tower_stampede::remote::FillOutcome;

use super::clients::{Client, Process, has_set, our_lock, the_lease_ends};
use crate::kit::redis::Server;

fn lock(client: &mut Client) -> bool {
    has_set(&client.say("SET lock 1 NX PX 10000"))
}

fn unlock(client: &mut Client) {
    client.say("DEL lock");
}

#[tokio::test]
async fn who_works_past_its_lease_unlocks_the_next_holders_lock() {
    let server = Server::start();
    let [mut a, mut b, mut c] = [(); 3].map(|()| Client::of(&server));
    assert!(lock(&mut a));
    the_lease_ends(&server, "lock").await;
    assert!(lock(&mut b));
    unlock(&mut a);
    assert!(lock(&mut c), "and B believes to have it");
}

#[tokio::test]
async fn with_ours_who_worked_past_its_lease_cannot_unlock_the_next_holders_lock() {
    let server = Server::start();
    let (a, b) = (Process::of(&server).await, Process::of(&server).await);
    let c = Process::of(&server).await;
    let late = a.leads().await;
    the_lease_ends(&server, &our_lock(&server)).await;
    let grant = b.leads().await;
    assert_eq!(a.fill(&late, "late").await, FillOutcome::Refused);
    assert!(!a.release(&late.token).await);
    c.is_locked_out().await;
    assert!(b.renew(&grant).await);
}
