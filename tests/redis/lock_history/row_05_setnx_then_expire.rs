//! `SETNX`, then `EXPIRE` if that has set.

use super::clients::{Client, LONG, Process, has_set, left_of, our_lock};
use crate::kit::redis::Server;

const TO_LOCK: [&str; 2] = ["SETNX lock 1", "PEXPIRE lock 10000"];

#[test]
fn a_holder_that_dies_between_the_two_locks_the_key_for_ever() {
    let server = Server::start();
    let (mut a, mut b) = (Client::of(&server), Client::of(&server));
    assert!(has_set(&a.say(TO_LOCK[0])));
    drop(a);
    assert!(!has_set(&b.say(TO_LOCK[0])));
    const NEVER: i64 = -1;
    assert_eq!(b.say("PTTL lock").int(), NEVER, "no time will help");
}

#[tokio::test]
async fn ours_is_locked_and_given_an_end_by_one_command() {
    let server = Server::start();
    let a = Process::of(&server).await;
    // Connects, so that what follows is the acquire alone.
    assert_eq!(a.get().await, None);
    let monitor = server.monitor();
    a.leads().await;
    assert_eq!(monitor.count("EVALSHA"), 1, "{:?}", monitor.lines());
    assert_eq!(monitor.lines().len(), 1, "{:?}", monitor.lines());
    assert!(left_of(&server, &our_lock(&server)) <= LONG);
}
