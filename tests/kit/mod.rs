//! What the tests share: origins, crowds, servers and processes.
//!
//! Each test binary includes the whole kit and uses a part of it. The rooms:
//!
//! - `origin`: a service that a test controls, a crowd of callers, short names for times.
//! - `http`: an HTTP origin with scripted answers, and clients that look at replies.
//! - `codings`: what `Accept-Encoding` says, read slowly: the reference of the unit tests.
//! - `table`: a table behind a batch loader.
//! - `spawn`: spawns a task, as `tokio::spawn` does, and is compiled faster.
//! - `alone`: runs a part of a test in a process of its own: one that may deadlock or abort.
//! - `cases`: how many cases a random test plays.
//! - `crowd`: a crowd in several processes, and what it costs.
//! - `log`: listens to the lines of `tracing` on one thread.
//! - `remote`: processes on the remote in memory (`remote::Double`), under paused time.
//! - `redis`: real Redis servers, clusters and sentinels, and a TCP proxy that fails on
//!   request. It needs nothing of our crate.
//! - `redis_caches`: caches on one of these servers.
//! - `proxy`: `stampede-proxy` as a process, with clients and origins on sockets.
//! - `spellings`: paths that origins read in several ways.
//!
//! The proxy's tests and the benches include `redis`, `proxy` and `spellings` by their paths: these
//! use no other room.

#![allow(dead_code, unused_imports, unused_macros, reason = "each test binary uses a part")]

pub(crate) mod alone;
pub(crate) mod cases;
#[path = "../../src/http/tests/reference/codings.rs"]
pub(crate) mod codings;
pub(crate) mod crowd;
pub(crate) mod http;
pub(crate) mod log;
pub(crate) mod origin;
#[cfg(unix)]
pub(crate) mod proxy;
#[cfg(unix)]
pub(crate) mod redis;
#[cfg(unix)]
pub(crate) mod redis_caches;
pub(crate) mod remote;
pub(crate) mod spellings;
pub(crate) mod table;

/// Spawns a task whose type is forgotten. `tokio::spawn` is compiled for each future, and the tests
/// spawn a thousand.
pub(crate) fn spawn<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    let task: futures_util::future::BoxFuture<'static, T> = Box::pin(task);
    tokio::spawn(task)
}
