//! The participants: clients that say what they are told to, and our own
//! processes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tower_stampede::Key;
use tower_stampede::remote::{
    AcquireOutcome, FillOutcome, Grant, InvalidatedRecords, LeaseRequest, Listener, Notice,
    OnNotice, Redis, Remote, Token,
};

use crate::kit::redis::{Reply, Resp, Server, eventually};

/// Outlasts every test.
pub(crate) const LONG: Duration = Duration::from_secs(100);

/// A client of any language, on a connection of its own.
pub(crate) struct Client(Resp);

impl Client {
    pub(crate) fn of(server: &Server) -> Self {
        Self(server.connect().unwrap())
    }

    /// Sends a command, of which blanks part the words.
    pub(crate) fn say(&mut self, command: &str) -> Reply {
        self.0.call(&command.split(' ').collect::<Vec<_>>()).unwrap()
    }

    /// Runs a script on one or more keys.
    pub(crate) fn eval(&mut self, script: &str, keys: &[&str], args: &[&str]) -> Reply {
        let count = keys.len().to_string();
        let words = [&["EVAL", script, &count], keys, args].concat();
        self.0.call(&words).unwrap()
    }

    /// Runs commands as one transaction.
    pub(crate) fn multi(&mut self, commands: &[&str]) -> Vec<Reply> {
        self.say("MULTI");
        for command in commands {
            assert_eq!(self.say(command), Reply::Status("QUEUED".into()));
        }
        self.say("EXEC").parts().to_vec()
    }
}

/// Whether a `SETNX` or a `SET NX` has set.
pub(crate) fn has_set(reply: &Reply) -> bool {
    *reply == Reply::Int(1) || *reply == Reply::Status("OK".into())
}

/// Lets the lease of a lock end now: its holder pauses for so long.
pub(crate) async fn the_lease_ends(server: &Server, lock: &str) {
    server.cli(&["PEXPIRE", lock, "1"]);
    eventually("the lease has ended", || server.cli(&["EXISTS", lock]).int() == 0).await;
}

/// One process with the lock of this crate.
pub(crate) struct Process {
    remote: Arc<dyn Remote>,
    _ears: Arc<dyn OnNotice>,
}

struct NoEars;

impl OnNotice for NoEars {
    fn on_notice(&self, _: Notice) {}
}

impl Process {
    /// Connects and waits until wake-ups arrive.
    pub(crate) async fn of(server: &Server) -> Self {
        let remote =
            Redis::lazy(&server.url()).unwrap().namespace("stampede").remote("history").unwrap();
        let ears: Arc<dyn OnNotice> = Arc::new(NoEars);
        remote.push().unwrap().attach(Arc::downgrade(&ears));
        eventually("wake-ups arrive", || remote.push().unwrap().is_subscribed()).await;
        Self { remote, _ears: ears }
    }

    pub(crate) async fn get(&self) -> Option<Bytes> {
        self.remote.get(&key()).await.unwrap()
    }

    pub(crate) async fn acquire(&self, lease: Duration) -> AcquireOutcome {
        self.remote.acquire(&key(), &LeaseRequest::new(lease, LONG)).await.unwrap()
    }

    pub(crate) async fn leads(&self) -> Grant {
        self.leads_for(LONG).await
    }

    pub(crate) async fn leads_for(&self, lease: Duration) -> Grant {
        match self.acquire(lease).await {
            AcquireOutcome::Granted(grant) => grant,
            other => panic!("not granted: {other:?}"),
        }
    }

    /// What is left of another's lease.
    pub(crate) async fn is_locked_out(&self) -> Duration {
        self.is_locked_out_of(LONG).await
    }

    pub(crate) async fn is_locked_out_of(&self, lease: Duration) -> Duration {
        match self.acquire(lease).await {
            AcquireOutcome::Locked { left, .. } => left,
            other => panic!("not locked out: {other:?}"),
        }
    }

    /// Is locked out, and registered for a wake-up in the same step.
    pub(crate) async fn registers(&self) -> Listener {
        let listener = self.remote.push().unwrap().listen(&key());
        let answer = self.remote.acquire(&key(), &LeaseRequest::new(LONG, LONG).register()).await;
        assert!(matches!(answer.unwrap(), AcquireOutcome::Locked { .. }));
        listener
    }

    pub(crate) async fn renew(&self, grant: &Grant) -> bool {
        self.remote.renew(&key(), grant, &LeaseRequest::new(LONG, LONG)).await.unwrap()
    }

    pub(crate) async fn fill(&self, grant: &Grant, value: &str) -> FillOutcome {
        let envelope = format!("ts10{}{value}", grant.version).into();
        self.remote.fill(&key(), grant, LONG, envelope).await.unwrap()
    }

    pub(crate) async fn release(&self, token: &Token) -> bool {
        self.remote.abandon(&key(), token, None).await.unwrap()
    }

    pub(crate) async fn invalidate(&self) -> InvalidatedRecords {
        self.remote.invalidate(&key()).await.unwrap()
    }

    /// The value without its envelope.
    pub(crate) async fn reads(&self) -> String {
        let envelope = self.get().await.expect("there is a value");
        String::from_utf8(envelope[20..].to_vec()).unwrap()
    }
}

fn key() -> Key {
    Key::from("k")
}

/// The name of our lock, which is there.
pub(crate) fn our_lock(server: &Server) -> String {
    let locks = server.cli(&["KEYS", "*:l"]);
    let [lock] = locks.parts() else { panic!("not one lock: {locks:?}") };
    lock.text()
}

pub(crate) fn left_of(server: &Server, lock: &str) -> Duration {
    let left = server.cli(&["PTTL", lock]).int();
    Duration::from_millis(left.try_into().expect("the lock is there, and has an end"))
}
