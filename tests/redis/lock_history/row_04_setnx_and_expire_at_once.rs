//! `SETNX` and `EXPIRE` in one transaction.

use std::time::Duration;

use super::clients::{Client, Process, has_set, left_of, our_lock};
use crate::kit::redis::{Server, eventually};

const LEASE: Duration = Duration::from_secs(60);
/// More than one transaction takes.
const A_WHILE: Duration = Duration::from_millis(200);

/// Returns whether it was locked, and what is left of the lease then.
fn lock(client: &mut Client) -> (bool, Duration) {
    let lease = format!("PEXPIRE lock {}", LEASE.as_millis());
    let replies = client.multi(&["SETNX lock 1", &lease, "PTTL lock"]);
    let left = replies[2].int().try_into().unwrap();
    (has_set(&replies[0]), Duration::from_millis(left))
}

#[tokio::test]
async fn who_asks_in_vain_prolongs_the_lock_of_the_dead() {
    let server = Server::start();
    let (mut a, mut b) = (Client::of(&server), Client::of(&server));
    assert!(lock(&mut a).0);
    drop(a);
    for _ in 0..2 {
        let some_time_passes = || left_of(&server, "lock") <= LEASE - A_WHILE;
        eventually("some time passes", some_time_passes).await;
        let (is_locked, left) = lock(&mut b);
        assert!(!is_locked);
        assert!(left > LEASE - A_WHILE, "it never ends while somebody asks");
    }
}

#[tokio::test]
async fn with_ours_who_asks_in_vain_does_not_prolong_the_lock() {
    let server = Server::start();
    let (a, b) = (Process::of(&server).await, Process::of(&server).await);
    a.leads_for(LEASE).await;
    drop(a);
    let lock = our_lock(&server);
    for n in 1..=2 {
        let passed = A_WHILE * n;
        let some_time_passes = || left_of(&server, &lock) <= LEASE - passed;
        eventually("some time passes", some_time_passes).await;
        assert!(b.is_locked_out_of(LEASE).await <= LEASE - passed);
        assert!(left_of(&server, &lock) <= LEASE - passed, "the lock was prolonged");
    }
}
