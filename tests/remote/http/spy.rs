//! A remote that remembers all the bytes it is given.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tower_stampede::Key;
use tower_stampede::remote::{
    AcquireOutcome, Call, Double, DoubleProcess, FillOutcome, Grant, InvalidatedRecords,
    LeaseRequest, Remote, RemoteErrorKind, RemoteLog, RemotePush, ServerTime, Shard, Token,
    Version,
};

/// Everything that was ever written into a remote.
#[derive(Clone, Default)]
pub(crate) struct Written(Arc<Mutex<Vec<Bytes>>>);

impl Written {
    pub(crate) fn contains(&self, text: &str) -> bool {
        let all = self.0.lock().unwrap();
        all.iter().any(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes()))
    }

    pub(crate) fn process(&self, double: &Double) -> Arc<dyn Remote> {
        Arc::new(Spy { inner: double.process(), written: self.clone() })
    }

    fn note(&self, bytes: &Bytes) {
        self.0.lock().unwrap().push(bytes.clone());
    }
}

struct Spy {
    inner: Arc<DoubleProcess>,
    written: Written,
}

impl Remote for Spy {
    fn get<'a>(&'a self, key: &'a Key) -> Call<'a, Option<Bytes>> {
        self.inner.get(key)
    }

    fn acquire<'a>(&'a self, key: &'a Key, ask: &'a LeaseRequest) -> Call<'a, AcquireOutcome> {
        self.inner.acquire(key, ask)
    }

    fn fill<'a>(
        &'a self,
        key: &'a Key,
        grant: &'a Grant,
        ttl: Duration,
        envelope: Bytes,
    ) -> Call<'a, FillOutcome> {
        self.written.note(&envelope);
        self.inner.fill(key, grant, ttl, envelope)
    }

    fn renew<'a>(
        &'a self,
        key: &'a Key,
        grant: &'a Grant,
        ask: &'a LeaseRequest,
    ) -> Call<'a, bool> {
        self.inner.renew(key, grant, ask)
    }

    fn abandon<'a>(
        &'a self,
        key: &'a Key,
        token: &'a Token,
        hold: Option<Duration>,
    ) -> Call<'a, bool> {
        self.inner.abandon(key, token, hold)
    }

    fn invalidate<'a>(&'a self, key: &'a Key) -> Call<'a, InvalidatedRecords> {
        self.inner.invalidate(key)
    }

    fn put<'a>(
        &'a self,
        key: &'a Key,
        ttl: Duration,
        envelope: Bytes,
    ) -> Call<'a, (ServerTime, Version)> {
        self.written.note(&envelope);
        self.inner.put(key, ttl, envelope)
    }

    fn probe(&self, shard: Shard) -> Call<'_, ServerTime> {
        self.inner.probe(shard)
    }

    fn log(&self) -> Option<&dyn RemoteLog> {
        self.inner.log()
    }

    fn push(&self) -> Option<&dyn RemotePush> {
        self.inner.push()
    }

    fn suspect(&self, shard: Shard, kind: RemoteErrorKind) {
        self.inner.suspect(shard, kind);
    }
}
