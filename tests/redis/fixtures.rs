//! The fixtures do what the fault tests rely on.

use std::time::{Duration, Instant};

use crate::kit::redis::*;

fn status(text: &str) -> Reply {
    Reply::Status(text.to_owned())
}

#[test]
fn a_server_starts_answers_and_is_gone_when_dropped() {
    let server = Server::start();
    assert_eq!(server.cli(&["SET", "k", "v"]), status("OK"));
    assert_eq!(server.cli(&["GET", "k"]), Reply::Bulk(b"v".to_vec()));
    assert!(server.cli(&["GET", "absent"]).is_nil());
    let port = server.port();
    drop(server);
    assert!(Resp::connect(port).is_err());
}

#[test]
fn a_restarted_server_is_empty_and_has_its_port_and_settings() {
    let server = Server::configured(&["maxmemory-policy allkeys-lfu", "requirepass secret"]);
    assert!(server.url().starts_with("redis://:secret@127.0.0.1:"));
    let mut client = server.connect().unwrap();
    client.call(&["SET", "k", "v"]).unwrap();
    server.kill();
    assert!(client.call(&["GET", "k"]).is_err());
    assert!(server.try_cli(&["PING"]).is_err());
    server.restart();
    assert!(server.cli(&["GET", "k"]).is_nil());
    let policy = server.cli(&["CONFIG", "GET", "maxmemory-policy"]);
    assert_eq!(policy.parts()[1].text(), "allkeys-lfu");
    let refused = Resp::connect(server.port()).unwrap().call(&["PING"]).unwrap();
    assert!(refused.text().starts_with("NOAUTH"));
}

#[test]
fn users_have_the_rights_they_are_given() {
    let server = Server::configured(&["user guest on >pass ~* &* -@all +get"]);
    let mut guest = server.connect().unwrap();
    assert_eq!(guest.call(&["AUTH", "guest", "pass"]).unwrap(), status("OK"));
    assert!(guest.call(&["GET", "k"]).unwrap().is_nil());
    assert!(guest.call(&["SET", "k", "v"]).unwrap().text().starts_with("NOPERM"));
}

#[test]
fn a_frozen_server_does_not_answer_until_it_thaws() {
    let server = Server::start();
    let mut client = server.connect().unwrap();
    server.freeze();
    client.send(&["PING"]).unwrap();
    let stream = client.stream().unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert!(client.read().is_err());
    server.thaw();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(client.read().unwrap(), status("PONG"));
    server.freeze();
}

#[test]
fn a_replica_has_the_data_and_refuses_writes() {
    let primary = Server::start();
    primary.cli(&["SET", "k", "v"]);
    let replica = Server::replica_of(&primary);
    assert_eq!(replica.cli(&["GET", "k"]).text(), "v");
    assert!(replica.cli(&["SET", "k", "w"]).text().starts_with("READONLY"));
}

#[test]
fn a_monitor_counts_what_clients_send_and_not_what_scripts_call() {
    let server = Server::start();
    server.cli(&["SET", "before", "v"]);
    let monitor = server.monitor();
    server.cli(&["SET", "k", "v"]);
    server.cli(&["EVAL", "return redis.call('get', KEYS[1])", "1", "k"]);
    server.cli(&["get", "k"]);
    assert_eq!(monitor.commands(), ["SET", "EVALSHA", "GET"], "a script, in full or not");
    assert_eq!(monitor.count("GET"), 1);
    monitor.forget();
    assert!(monitor.counts().is_empty());
}

#[test]
fn a_cluster_serves_every_slot_and_hands_one_over() {
    let cluster = Cluster::start();
    assert_eq!(cluster.urls().len(), 3);
    let slot = slot_of(&cluster, "{k}:v");
    assert_eq!(slot, slot_of(&cluster, "{k}:l"));
    let from = cluster.owner(slot);
    let to = (from + 1) % 3;
    let [old, new] = [from, to].map(|n| &cluster.nodes()[n]);
    assert_eq!(old.cli(&["SET", "{k}:v", "v"]), status("OK"));
    assert!(new.cli(&["GET", "{k}:v"]).text().starts_with("MOVED"));

    let migration = cluster.begin_migration(slot, to);
    assert_eq!(migration.move_keys(), 1);
    assert!(old.cli(&["GET", "{k}:v"]).text().starts_with("ASK"));
    migration.finish();
    assert_eq!(cluster.owner(slot), to);
    assert_eq!(new.cli(&["GET", "{k}:v"]).text(), "v");
    assert!(old.cli(&["GET", "{k}:v"]).text().starts_with("MOVED"));

    cluster.migrate_slot(slot, from);
    assert_eq!(old.cli(&["GET", "{k}:v"]).text(), "v");
}

#[test]
fn sentinels_name_another_primary_after_a_failover_and_after_a_death() {
    let sentinels = Sentinels::start();
    assert_eq!(sentinels.urls().len(), 3);
    let (first, second) = (sentinels.primary().port(), sentinels.replica().port());
    sentinels.failover();
    assert_eq!(sentinels.primary().port(), second);
    assert_eq!(sentinels.primary().cli(&["SET", "k", "v"]), status("OK"));

    let other = Sentinels::with(1);
    let heir = other.replica().port();
    let dead = other.kill_primary().port();
    assert_eq!(other.primary().port(), heir);
    assert_ne!(dead, heir);
    assert_ne!(first, second);
}

/// A client that goes through the proxy.
fn through(proxy: &Proxy) -> Resp {
    Resp::connect(proxy.port()).unwrap()
}

/// Returns whether the client hears nothing for a while, or the end. A test that expects a message waits
/// longer.
fn hears_nothing(client: &mut Resp) -> bool {
    let stream = client.stream().unwrap();
    let usual = stream.read_timeout().unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let heard = client.read();
    stream.set_read_timeout(usual).unwrap();
    heard.is_err()
}

/// Whether a command gets no reply.
fn is_unanswered(client: &mut Resp, command: &[&str]) -> bool {
    client.send(command).is_err() || hears_nothing(client)
}

#[test]
fn a_proxy_counts_commands_by_name_and_in_order() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut client = through(&proxy);
    let large = vec![b'*'; 300_000];
    client.call(&[b"set", &b"k"[..], &large]).unwrap();
    client.send(&["GET", "k"]).unwrap();
    client.call(&["get", "k"]).unwrap();
    // The reply to the second one: then both have passed.
    client.read().unwrap();
    assert_eq!(proxy.commands(), ["SET", "GET", "GET"]);
    assert_eq!((proxy.count("GET"), proxy.counts()["SET"]), (2, 1));
    proxy.forget_commands();
    assert!(proxy.commands().is_empty());
    assert_eq!((proxy.accepted(), proxy.open()), (1, 1));
}

#[test]
fn a_proxy_cuts_in_the_middle_of_a_reply() {
    let server = Server::start();
    server.cli(&["SET", "k", "0123456789"]);
    let proxy = Proxy::start(server.port());
    let mut client = through(&proxy);
    client.call(&["PING"]).unwrap();
    proxy.cut_after(8);
    client.send(&["GET", "k"]).unwrap();
    assert_eq!(client.line().unwrap(), "$10");
    assert_eq!(client.line().unwrap(), "012");
    assert!(client.line().is_err());
    proxy.pass();
    assert_eq!(through(&proxy).call(&["GET", "k"]).unwrap().text(), "0123456789");
}

#[test]
fn a_proxy_delays_loses_and_half_opens() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut client = through(&proxy);
    let delay = Duration::from_millis(50);
    proxy.delay(delay);
    let start = Instant::now();
    client.call(&["PING"]).unwrap();
    assert!(start.elapsed() >= delay);
    proxy.pass();

    proxy.stall();
    assert!(is_unanswered(&mut client, &["INCR", "stalled"]));
    assert!(is_unanswered(&mut through(&proxy), &["PING"]));
    assert!(server.cli(&["GET", "stalled"]).is_nil());
    proxy.pass();
    assert_eq!(client.read().unwrap(), Reply::Int(1));

    proxy.lose_replies();
    assert!(is_unanswered(&mut client, &["INCR", "done"]));
    assert_eq!(server.cli(&["GET", "done"]).text(), "1");
    proxy.pass();
    assert!(client.call(&["PING"]).is_err(), "closed: its replies are out of step");

    let mut client = through(&proxy);
    proxy.swallow();
    assert!(is_unanswered(&mut client, &["INCR", "never"]));
    assert!(server.cli(&["GET", "never"]).is_nil());
}

#[test]
fn a_proxy_cuts_and_refuses_connections() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut client = through(&proxy);
    client.call(&["PING"]).unwrap();
    proxy.refuse_connections(true);
    assert!(through(&proxy).call(&["PING"]).is_err());
    client.call(&["PING"]).unwrap();
    proxy.cut();
    assert!(client.call(&["PING"]).is_err());
    proxy.pass();
    through(&proxy).call(&["PING"]).unwrap();
}

#[tokio::test]
async fn a_proxy_tells_subscribers_from_others() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let (mut plain, mut subscriber) = (through(&proxy), through(&proxy));
    plain.call(&["PING"]).unwrap();
    subscriber.call(&["SUBSCRIBE", "c"]).unwrap();
    assert_eq!(server.clients("pubsub"), 1);

    proxy.mute_subscribers(true);
    server.cli(&["PUBLISH", "c", "lost"]);
    assert!(hears_nothing(&mut subscriber));
    proxy.mute_subscribers(false);
    server.cli(&["PUBLISH", "c", "heard"]);
    assert_eq!(subscriber.read().unwrap().parts()[2].text(), "heard");

    proxy.cut_subscribers();
    assert!(subscriber.read().is_err());
    plain.call(&["PING"]).unwrap();
    eventually("the server sees it, too", || server.clients("pubsub") == 0).await;

    proxy.block_subscribers(true);
    assert!(through(&proxy).call(&["SUBSCRIBE", "c"]).is_err());
    plain.call(&["PING"]).unwrap();
    proxy.block_subscribers(false);
    through(&proxy).call(&["SUBSCRIBE", "c"]).unwrap();
}
