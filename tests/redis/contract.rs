//! Redis keeps the contract of a remote.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tower_stampede::Key;
use tower_stampede::remote::contract::{self, ContractServer};
use tower_stampede::remote::{Record, Redis, Remote, Version};
use tower_stampede::remote_contract;

use crate::kit::redis::{Reply, Server};

/// The two sets of the invalidation log.
const LOG: &str = "stampede:2:contract:{#contract}:tags";
const KEYS_OF_LOG: &str = "stampede:2:contract:{#contract}:keys";

/// A server of its own for every sentence.
struct Fresh {
    server: Server,
    /// What the names of the key's records begin with.
    name: String,
}

impl Fresh {
    /// Learns the name of the key's value by looking.
    async fn start() -> Self {
        let fresh = Self { server: Server::start(), name: String::new() };
        let remote = ContractServer::connect(&fresh).await;
        let envelope = contract::envelope(Version::new(1).unwrap(), "probe");
        remote.put(&contract::key(), contract::LONG, envelope).await.unwrap();
        let names = fresh.server.cli(&["KEYS", "*"]);
        let [name] = names.parts() else { panic!("a put leaves one record: {names:?}") };
        let name = name.text().strip_suffix('v').expect("ends in v").to_owned();
        fresh.server.cli(&["FLUSHALL"]);
        Self { name, ..fresh }
    }

    fn name(&self, key: &Key, record: Record) -> String {
        assert_eq!(*key, contract::key(), "the only one whose name is known");
        let ending = match record {
            Record::Value => 'v',
            Record::Lock => 'l',
            Record::Right => 'r',
            other => panic!("what is {other:?}?"),
        };
        format!("{}{ending}", self.name)
    }

    fn lock(&self, key: &Key) -> String {
        self.name(key, Record::Lock)
    }
}

impl ContractServer for Fresh {
    async fn connect(&self) -> Arc<dyn Remote> {
        Redis::lazy(&self.server.url()).unwrap().namespace("stampede").remote("contract").unwrap()
    }

    async fn lose(&self, key: &Key, record: Record) {
        self.server.cli(&["DEL", &self.name(key, record)]);
    }

    async fn set_value(&self, key: &Key, envelope: Bytes) {
        let name = self.name(key, Record::Value);
        self.server.cli(&[b"SET", name.as_bytes(), &envelope]);
    }

    async fn set_foreign_value(&self, key: &Key) {
        let name = self.name(key, Record::Value);
        self.server.cli(&["DEL", &name]);
        assert_eq!(self.server.cli(&["RPUSH", &name, "x"]), Reply::Int(1));
    }

    async fn lock_as_stranger(&self, key: &Key, lease: Duration) -> bool {
        let millis = lease.as_millis().to_string();
        !self.server.cli(&["SET", &self.lock(key), "stranger", "NX", "PX", &millis]).is_nil()
    }

    async fn unlock_as_stranger(&self, key: &Key) -> bool {
        const COMPARE_AND_DELETE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] \
             then return redis.call('del', KEYS[1]) else return 0 end";
        let lock = self.lock(key);
        self.server.cli(&["EVAL", COMPARE_AND_DELETE, "1", &lock, "stranger"]) == Reply::Int(1)
    }

    async fn stretch_lease(&self, key: &Key, left: Duration) {
        let millis = left.as_millis().to_string();
        let done = self.server.cli(&["PEXPIRE", &self.lock(key), &millis]);
        assert_eq!(done, Reply::Int(1), "no lease to stretch");
    }

    async fn out_of_memory(&self, full: bool) {
        let most = if full { "1" } else { "0" };
        self.server.cli(&["CONFIG", "SET", "maxmemory", most]);
    }

    async fn flush(&self) {
        self.server.cli(&["FLUSHALL"]);
    }

    async fn lose_log(&self) {
        self.server.cli(&["DEL", LOG]);
    }

    async fn lose_keys_of_log(&self) {
        assert_eq!(self.server.cli(&["DEL", KEYS_OF_LOG]), Reply::Int(1), "no keys to lose");
    }

    async fn roll_back_log(&self, lost: u64) {
        const DROP_LAST: &str = "local top = redis.call('zrevrangebyscore', KEYS[1], 2^52, 0, \
             'withscores', 'limit', 0, 1) \
             local last = math.floor(top[2]) - ARGV[1] \
             for _, set in ipairs(KEYS) do \
               redis.call('zremrangebyscore', set, '(' .. last, '(4503599627370496') \
             end \
             redis.call('zadd', KEYS[1], last + 0.5, top[1]) \
             return last";
        let lost = lost.to_string();
        let last = self.server.cli(&["EVAL", DROP_LAST, "2", LOG, KEYS_OF_LOG, &lost]);
        assert!(matches!(last, Reply::Int(1..)), "{last:?}");
    }

    async fn fail_over_log(&self) {
        // The promotion of a replica gives it another replication id.
        self.server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
        self.server.cli(&["REPLICAOF", "NO", "ONE"]);
    }

    async fn bound_log(&self, _: usize, _: usize) -> (usize, usize) {
        (100_000, 4096)
    }
}

remote_contract!(
    #[tokio::test]
    Fresh::start()
);
