//! The remote against real servers, which the tests start and stop.

mod acl;
#[cfg(feature = "redis-cluster")]
mod cluster;
mod credentials;
mod faults;
mod protocol;
#[cfg(feature = "redis-sentinel")]
mod sentinel;
mod server;
#[cfg(any(feature = "redis-tls-rustls", feature = "redis-tls-native"))]
mod tls;
mod words;

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::key::Key;
use crate::lease::grant::{Grant, LeaseRequest, Version};
use crate::lease::wakes::Listener;
use crate::remote::redis::Redis;
use crate::remote::redis::tests::server::Server;
use crate::remote::{
    AcquireOutcome, LogItem, LogReply, LogUpdate, Notice, OnNotice, Remote, RemoteErrorKind,
    RemoteLog, RemotePush, Shard,
};

const LEASE: Duration = Duration::from_secs(5);
const KEEP: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(30);

fn ask() -> LeaseRequest {
    LeaseRequest::new(LEASE, KEEP)
}

/// An envelope as far as the remote knows it.
fn envelope(version: impl Into<Option<Version>>, body: &str) -> Bytes {
    let number = version.into().map_or(0, Version::get);
    format!("TEST{number:016}{body}").into()
}

async fn granted(remote: &dyn Remote, key: &Key, ask: &LeaseRequest) -> Grant {
    match remote.acquire(key, ask).await.unwrap() {
        AcquireOutcome::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

fn push(remote: &dyn Remote) -> &dyn RemotePush {
    remote.push().unwrap()
}

fn log(remote: &dyn Remote) -> &dyn RemoteLog {
    remote.log().unwrap()
}

async fn announce(remote: &dyn Remote, items: &[LogItem]) -> LogReply {
    log(remote).announce(items, None).await.unwrap()
}

fn tag(name: &str) -> LogItem {
    LogItem::Tag(name.into())
}

/// Takes an entry through its life.
async fn fills(remote: &dyn Remote, key: &Key) {
    let grant = granted(remote, key, &ask()).await;
    remote.fill(key, &grant, TTL, envelope(grant.version, "x")).await.unwrap();
    assert!(remote.get(key).await.unwrap().is_some());
}

/// How long anything may take that must happen, on a busy machine.
const GIVE_UP: Duration = Duration::from_secs(120);

/// Waits until `is` holds; fails after two minutes.
async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is() {
        assert!(begun.elapsed() < GIVE_UP, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until a call succeeds; fails after two minutes.
async fn until_ok<T>(what: &str, call: impl AsyncFn() -> Option<T>) -> T {
    let begun = std::time::Instant::now();
    while begun.elapsed() < GIVE_UP {
        let tried = tokio::time::timeout(Duration::from_secs(2), call()).await;
        if let Ok(Some(done)) = tried {
            return done;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never: {what}");
}

/// Waits to be woken; fails after two minutes.
async fn woken(listener: &mut Listener) {
    tokio::time::timeout(GIVE_UP, listener.woken()).await.expect("woken");
}

/// Keeps every notice.
#[derive(Default)]
struct Notices(Mutex<Vec<Notice>>);

impl OnNotice for Notices {
    fn on_notice(&self, notice: Notice) {
        self.0.lock().push(notice);
    }
}

impl Notices {
    fn count(&self, notice: &Notice) -> usize {
        self.0.lock().iter().filter(|seen| *seen == notice).count()
    }

    /// What other processes have announced, in order.
    fn announced(&self) -> Vec<LogItem> {
        let notices = self.0.lock();
        let updates = notices.iter().filter_map(|notice| match notice {
            Notice::Announced(update) => Some(&update.items),
            _ => None,
        });
        updates.flatten().cloned().collect()
    }
}

/// Opens a cache that listens, and waits until it does.
async fn listening(redis: &Redis, cache: &str) -> (Arc<dyn Remote>, Arc<Notices>) {
    let remote = redis.open(cache).unwrap();
    let notices = Arc::new(Notices::default());
    let listener: Arc<dyn OnNotice> = notices.clone();
    push(&*remote).attach(Arc::downgrade(&listener) as Weak<dyn OnNotice>);
    until("subscribed", || push(&*remote).is_subscribed()).await;
    until("told so", || notices.count(&Notice::Subscribed) == 1).await;
    (remote, notices)
}

fn kind<T: std::fmt::Debug>(result: Result<T, crate::remote::RemoteError>) -> RemoteErrorKind {
    result.unwrap_err().kind()
}

fn version(number: u64) -> Version {
    Version::new(number).unwrap()
}
