//! `SETNX` to lock, `DEL` to unlock, and no expiry.

use std::time::Duration;

use tokio::time::timeout;
use tower_stampede::remote::AcquireOutcome;

use super::clients::{Client, LONG, Process, has_set, left_of, our_lock};
use crate::kit::redis::Server;

fn lock(client: &mut Client) -> bool {
    has_set(&client.say("SETNX lock 1"))
}

#[test]
fn a_holder_that_dies_locks_the_key_for_ever() {
    let server = Server::start();
    let (mut a, mut b) = (Client::of(&server), Client::of(&server));
    assert!(lock(&mut a));
    drop(a);
    assert!(!lock(&mut b));
    const NEVER: i64 = -1;
    assert_eq!(b.say("PTTL lock").int(), NEVER, "no time will help");
}

#[tokio::test]
async fn with_ours_the_next_gets_it_when_the_lease_of_the_dead_has_ended() {
    let server = Server::start();
    let (a, b) = (Process::of(&server).await, Process::of(&server).await);
    const LEASE: Duration = Duration::from_millis(200);
    a.leads_for(LEASE).await;
    drop(a);
    let asks_until_it_leads = async {
        while let AcquireOutcome::Locked { left, .. } = b.acquire(LONG).await {
            assert!(left <= LEASE);
            tokio::time::sleep(left).await;
        }
    };
    timeout(Duration::from_secs(120), asks_until_it_leads).await.expect("locked for ever");
    assert!(left_of(&server, &our_lock(&server)) > LEASE, "B has it, and its lease too");
}
