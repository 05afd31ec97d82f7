//! Many processes on real Redis servers, which the tests start on free ports. Time
//! is real.

#![cfg(unix)]

#[path = "../kit/mod.rs"]
mod kit;

#[cfg(feature = "redis")]
mod batches;
#[cfg(feature = "redis")]
mod commands;
#[cfg(feature = "redis")]
mod consistency;
#[cfg(all(feature = "redis", feature = "test-util"))]
mod contract;
#[cfg(feature = "redis")]
mod edges;
mod faults;
mod fixtures;
#[cfg(feature = "redis")]
mod foreign_locks;
#[cfg(feature = "redis")]
mod herd;
#[cfg(all(feature = "redis", feature = "axum"))]
mod http_writes;
#[cfg(all(feature = "redis", feature = "admin"))]
mod inspector;
#[cfg(feature = "redis")]
mod invalidation;
#[cfg(feature = "redis")]
mod invalidation_log;
#[cfg(feature = "redis-legacy-lock")]
mod legacy_lock;
#[cfg(feature = "redis")]
mod lock;
#[cfg(all(feature = "redis", feature = "test-util"))]
mod lock_history;
#[cfg(all(feature = "redis", feature = "tracing"))]
mod operator_log;
#[cfg(all(feature = "redis", feature = "axum"))]
mod processes;
#[cfg(all(feature = "redis", feature = "axum"))]
mod shapes;
