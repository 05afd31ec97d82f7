//! What the tests of many processes share: processes on one double in memory,
//! and the commands they send. Time is paused.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tower_stampede::remote::{
    AcquireOutcome, Double, DoubleProcess, Grant, LeaseRequest, Remote, RemoteOp, RemoteSettings,
};
use tower_stampede::{Builder, Error, Key, Stampede};

use crate::kit::origin::{MINUTE, Origin, all_have_run, settings};
use crate::kit::spawn;

/// One process: its cache and its way to the remote.
#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) cache: Stampede<u64>,
    pub(crate) client: Arc<DoubleProcess>,
}

impl Deref for Process {
    type Target = Stampede<u64>;

    fn deref(&self) -> &Stampede<u64> {
        &self.cache
    }
}

impl Process {
    pub(crate) fn on(double: &Double) -> Self {
        Self::with(double, settings())
    }

    pub(crate) fn with(double: &Double, builder: Builder<u64>) -> Self {
        Self::with_remote(double, builder, RemoteSettings::new())
    }

    pub(crate) fn with_remote(
        double: &Double,
        builder: Builder<u64>,
        remote: RemoteSettings,
    ) -> Self {
        let client = double.process();
        let cache = builder.remote(Arc::clone(&client) as _, remote).build().unwrap();
        Self { cache, client }
    }

    /// Returns `n` processes that have subscribed and read the log.
    pub(crate) async fn several(n: usize, double: &Double) -> Vec<Self> {
        Self::several_with(n, double, settings).await
    }

    pub(crate) async fn several_with(
        n: usize,
        double: &Double,
        builder: impl Fn() -> Builder<u64>,
    ) -> Vec<Self> {
        let processes: Vec<_> = (0..n).map(|_| Self::with(double, builder())).collect();
        for process in &processes {
            process.prepare(double).await;
        }
        processes
    }

    /// Does what is done once per process, and forgets the commands for it.
    pub(crate) async fn prepare(&self, double: &Double) {
        assert_eq!(self.cache.get("nothing is here").await, None);
        all_have_run().await;
        double.forget_calls();
    }

    pub(crate) async fn load(&self, origin: &Origin) -> u64 {
        self.cache.get_or_compute("k", origin.compute()).await.unwrap()
    }

    /// Asks on a task of its own.
    pub(crate) fn spawn(&self, origin: &Origin) -> JoinHandle<Result<u64, Error>> {
        let (cache, compute) = (self.cache.clone(), origin.compute());
        spawn(async move { cache.get_or_compute("k", compute).await })
    }

    /// Asks with a computation that lives in the caller.
    pub(crate) fn spawn_scoped(&self, origin: &Origin) -> JoinHandle<Result<u64, Error>> {
        let (cache, compute) = (self.cache.clone(), origin.compute());
        spawn(async move { cache.get_or_compute_scoped("k", compute).await })
    }
}

/// Commands for values, in alphabet's order and without those that were not
/// sent. Set-up is not among them: it happens once per process.
pub(crate) fn commands(double: &Double) -> Vec<(RemoteOp, usize)> {
    let setup = [RemoteOp::Probe, RemoteOp::ReadLog];
    double.all_calls().into_iter().filter(|(op, _)| !setup.contains(op)).collect()
}

/// A process that takes the lease of `k` and is never heard of again.
pub(crate) async fn lock_and_die(double: &Double, lease: Duration) -> (Arc<DoubleProcess>, Grant) {
    let dead = double.process();
    let ask = LeaseRequest::new(lease, MINUTE);
    let Ok(AcquireOutcome::Granted(grant)) = dead.acquire(&k(), &ask).await else {
        panic!("the lease is free");
    };
    double.forget_calls();
    (dead, grant)
}

/// The key that most tests are about.
pub(crate) fn k() -> Key {
    Key::from("k")
}
