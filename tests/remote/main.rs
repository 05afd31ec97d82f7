//! Many processes with one remote. The remote is the double in memory, and time is
//! paused; the same on real servers is in the binary `redis`.

#![cfg(feature = "test-util")]

#[path = "../kit/mod.rs"]
mod kit;

#[cfg(feature = "remote")]
mod batch_edges;
mod batch_storms;
#[cfg(feature = "remote")]
mod batches;
#[cfg(feature = "remote")]
mod clock_steps;
#[cfg(feature = "remote")]
mod commands;
#[cfg(feature = "remote")]
mod consistency_model;
mod contract;
#[cfg(feature = "remote")]
mod damage;
#[cfg(all(feature = "remote", feature = "test-util"))]
mod holds;
#[cfg(all(feature = "http", feature = "axum", feature = "remote"))]
mod http;
#[cfg(feature = "remote")]
mod invalidation;
#[cfg(feature = "remote")]
mod late_leader;
#[cfg(feature = "remote")]
mod leader;
#[cfg(feature = "remote")]
mod leader_cancellation;
#[cfg(feature = "remote")]
mod lifetimes;
#[cfg(all(feature = "remote", feature = "tracing"))]
mod log_lines;
#[cfg(feature = "remote")]
mod outage;
#[cfg(feature = "remote")]
mod pending_writes;
#[cfg(feature = "remote")]
mod recovery;
#[cfg(feature = "remote")]
mod shards;
#[cfg(feature = "remote")]
mod stale;
#[cfg(feature = "remote")]
mod stale_marks;
#[cfg(feature = "remote")]
mod uncacheable;
#[cfg(feature = "remote")]
mod values;
#[cfg(feature = "remote")]
mod wake_ups;
