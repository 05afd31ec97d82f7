//! Many processes on real Redis servers, which the tests start on free ports. Time
//! is real.

#![cfg(unix)]

#[path = "../kit/mod.rs"]
mod kit;

mod batches;
mod commands;
mod connection_log;
mod consistency;
mod contract;
mod edges;
mod examples;
mod faults;
mod fixtures;
mod foreign_locks;
mod herd;
mod http_writes;
mod inspector;
mod invalidation;
mod invalidation_log;
mod legacy_lock;
mod lock;
mod lock_history;
mod operator_log;
mod processes;
mod shapes;
mod shutdown;
mod unshareable;
