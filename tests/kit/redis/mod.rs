//! Real Redis processes for tests, started on free ports and stopped on drop,
//! and a TCP proxy that does what networks do.
//!
//! Everything but [`eventually`] blocks, for milliseconds; clusters and
//! sentinels for seconds.

#![allow(dead_code, unused_imports, reason = "every test binary uses its own part")]

mod cluster;
mod fake;
mod monitor;
mod proxy;
mod resp;
mod sentinel;
mod server;

use std::time::{Duration, Instant};

pub(crate) use cluster::{Cluster, Migration, slot_of};
pub(crate) use fake::{FakeNode, Said};
pub(crate) use monitor::Monitor;
pub(crate) use proxy::Proxy;
pub(crate) use resp::{Reply, Resp};
pub(crate) use sentinel::Sentinels;
pub(crate) use server::Server;

/// How long anything may take that must happen, on a machine that is ten times slower than ours.
/// A wait ends as soon as it has happened.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `happened`; panics with `what` when it takes two minutes.
pub(crate) async fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !happened() {
        assert!(Instant::now() < give_up, "waited in vain: {what}");
        tokio::time::sleep(PAUSE).await;
    }
}

/// The same, blocking the thread.
pub(crate) fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !happened() {
        assert!(Instant::now() < give_up, "waited in vain: {what}");
        std::thread::sleep(PAUSE);
    }
}
