//! The same, but who finds the lock expired takes it over by `GETSET`: it is
//! the next holder if the time it gets back is still the expired one.

use std::time::Duration;

use super::clients::{Client, LONG, Process, has_set, left_of, our_lock, the_lease_ends};
use crate::kit::redis::Server;

const LEASE: i64 = 1_000;

/// A client with a clock of its own, as every machine has.
struct Clocked {
    client: Client,
    now: i64,
    deadline: i64,
}

impl Clocked {
    fn at(server: &Server, now: i64) -> Self {
        Self { client: Client::of(server), now, deadline: now + LEASE }
    }

    fn lock(&mut self) -> bool {
        has_set(&self.client.say(&format!("SETNX lock {}", self.deadline)))
    }

    fn sees_an_expired_lock(&mut self) -> bool {
        self.client.say("GET lock").int() < self.now
    }

    fn take_over(&mut self) -> bool {
        self.client.say(&format!("GETSET lock {}", self.deadline)).int() < self.now
    }

    fn holds(&mut self) -> bool {
        self.client.say("GET lock").int() == self.deadline
    }
}

#[test]
fn the_loser_of_a_take_over_destroys_the_winners_mark_and_prolongs_its_lock() {
    let server = Server::start();
    let (mut a, mut b) = (Clocked::at(&server, 10_000), Clocked::at(&server, 10_700));
    // Its holder died.
    a.client.say("SET lock 9000");
    assert!(!a.lock() && a.sees_an_expired_lock());
    assert!(!b.lock() && b.sees_an_expired_lock());

    assert!(a.take_over());
    assert!(!b.take_over(), "as it should be");
    assert!(!a.holds(), "and may not delete what it does not hold");
    assert_eq!(a.client.say("GET lock").int(), a.deadline + 700, "everybody waits for longer");
}

#[test]
fn a_clock_that_is_a_lease_ahead_takes_a_valid_lock() {
    let server = Server::start();
    let (mut a, mut b) = (Clocked::at(&server, 10_000), Clocked::at(&server, 11_001));
    assert!(a.lock());
    assert!(!b.lock() && b.sees_an_expired_lock());
    assert!(b.take_over(), "and A believes to have it");
}

#[tokio::test]
async fn with_ours_the_loser_changes_nothing() {
    let server = Server::start();
    let dead = Process::of(&server).await;
    let (a, b) = (Process::of(&server).await, Process::of(&server).await);
    dead.leads().await;
    let lock = our_lock(&server);
    a.is_locked_out().await;
    b.is_locked_out().await;
    the_lease_ends(&server, &lock).await;

    let grant = a.leads().await;
    let before = left_of(&server, &lock);
    b.is_locked_out().await;
    assert!(left_of(&server, &lock) <= before, "the lock was prolonged");
    assert_eq!(server.cli(&["GET", &lock]).text(), grant.token.to_string());
    assert!(a.release(&grant.token).await);
}

/// There is no clock but the server's; all that a client says is how long.
#[tokio::test]
async fn with_ours_nobody_takes_a_valid_lock_however_short_a_lease_is_asked_for() {
    let server = Server::start();
    let (a, b) = (Process::of(&server).await, Process::of(&server).await);
    let grant = a.leads().await;
    for lease in [Duration::from_millis(1), LONG, LONG * 1000] {
        b.is_locked_out_of(lease).await;
    }
    assert!(a.renew(&grant).await);
}
