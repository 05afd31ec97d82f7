//! Many processes with one remote. The remote is the double in memory, and time is
//! paused; the same on real servers is in the binary `redis`.

#[path = "../kit/mod.rs"]
mod kit;

mod batch_edges;
mod batch_storms;
mod batches;
mod call_option_edges;
mod call_options;
mod clock_steps;
mod codecs;
mod commands;
mod consistency_model;
mod contract;
mod damage;
mod effects;
mod holds;
mod http;
mod invalidation;
mod late_leader;
mod leader;
mod leader_cancellation;
mod lifetimes;
mod log_lines;
mod outage;
mod pending_writes;
mod plain;
mod recovery;
mod round_trips;
mod shards;
mod stale;
mod stale_keys;
mod stale_marks;
mod uncacheable;
mod unshareable;
mod unwanted_work;
mod values;
mod wake_ups;
