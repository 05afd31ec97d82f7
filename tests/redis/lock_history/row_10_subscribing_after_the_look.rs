//! Who finds the key locked subscribes, and waits for the message that the
//! value is there.

use std::time::Duration;

use tokio::time::timeout;
use tower_stampede::remote::FillOutcome;

use super::clients::{Client, Process, has_set};
use crate::kit::redis::Server;

fn lock(client: &mut Client) -> bool {
    has_set(&client.say("SET lock 1 NX PX 10000"))
}

/// Returns how many have heard of it.
fn fill(client: &mut Client) -> i64 {
    client.multi(&["SET value 1", "DEL lock", "PUBLISH filled 1"])[2].int()
}

#[test]
fn who_subscribes_after_the_message_waits_for_ever() {
    let server = Server::start();
    let (mut a, mut b) = (Client::of(&server), Client::of(&server));
    assert!(lock(&mut a));
    assert!(!lock(&mut b));
    assert_eq!(fill(&mut a), 0, "nobody has heard of it");
    b.say("SUBSCRIBE filled");
    let waiting = a.say("PUBSUB NUMSUB filled");
    assert_eq!(waiting.parts()[1].int(), 1, "B waits, and nobody will say it again");
}

#[tokio::test]
async fn with_ours_who_was_locked_out_is_registered_already() {
    let server = Server::start();
    let (a, b) = (Process::of(&server).await, Process::of(&server).await);
    let grant = a.leads().await;
    let mut registered = b.registers().await;
    assert_eq!(a.fill(&grant, "value").await, FillOutcome::Stored);
    // It begins to wait only now.
    let woken = timeout(Duration::from_secs(60), registered.woken());
    woken.await.expect("the message was missed");
    assert_eq!(b.reads().await, "value");
}
