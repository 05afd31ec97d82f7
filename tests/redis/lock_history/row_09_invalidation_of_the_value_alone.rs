//! The value is written only by who has the lock, in one script. To invalidate,
//! the value is deleted.

use tower_stampede::remote::FillOutcome;

use super::clients::{Client, Process, has_set};
use crate::kit::redis::{Reply, Server};

const SET_IF_MINE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then \
                           redis.call('set', KEYS[2], ARGV[2]); \
                           return redis.call('del', KEYS[1]) else return 0 end";

fn lock(client: &mut Client, token: &str) -> bool {
    has_set(&client.say(&format!("SET lock {token} NX PX 10000")))
}

fn fill(client: &mut Client, token: &str, value: &str) -> bool {
    client.eval(SET_IF_MINE, &["lock", "value"], &[token, value]) == Reply::Int(1)
}

fn invalidate(client: &mut Client) {
    client.say("DEL value");
}

#[test]
fn what_was_read_before_an_invalidation_is_stored_after_it() {
    let server = Server::start();
    let (mut a, mut writer) = (Client::of(&server), Client::of(&server));
    let database = "old";
    assert!(lock(&mut a, "a"));
    let read_by_a = database;

    let database = "new";
    invalidate(&mut writer);

    assert!(fill(&mut a, "a", read_by_a));
    assert_ne!(a.say("GET value").text(), database, "until it expires");
}

#[tokio::test]
async fn with_ours_an_invalidation_ends_the_right_to_fill() {
    let server = Server::start();
    let (a, writer) = (Process::of(&server).await, Process::of(&server).await);
    let database = "old";
    let grant = a.leads().await;
    let read_by_a = database;

    let database = "new";
    assert!(writer.invalidate().await.lease);

    assert_eq!(a.fill(&grant, read_by_a).await, FillOutcome::Refused);
    assert_eq!(a.get().await, None);
    // A caller that asks now computes anew, at once.
    let grant = writer.leads().await;
    assert_eq!(writer.fill(&grant, database).await, FillOutcome::Stored);
    assert_eq!(a.reads().await, "new");
}
