//! `SETNX` to lock, `DEL` to unlock, and no expiry.

use std::time::Duration;

use tower_stampede::remote::Acquired;

use crate::clients::{Client, Process, has_set};
use crate::redis_support::{Server, eventually};

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
    a.leads_for(Duration::from_millis(200)).await;
    drop(a);
    let left = b.is_locked_out().await;
    assert!(left <= Duration::from_millis(200));
    eventually("the lease has ended", || server.cli(&["KEYS", "*:l"]).parts().is_empty()).await;
    assert!(matches!(b.acquire(left).await, Acquired::Granted(_)));
}
