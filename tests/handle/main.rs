//! The cache as an application holds it, in one process and without HTTP: herds,
//! leaders, failures, bounds, invalidation, operation, and the layer over tower
//! services. Time is paused.

#[path = "../kit/mod.rs"]
mod kit;

mod batch_callers;
mod batch_edges;
mod batch_storm;
mod batches;
mod blocking;
mod bounds;
mod call_option_edges;
mod call_options;
mod caller_shapes;
mod cancellation;
mod circles;
mod dropped_values;
mod evictions;
mod failures;
mod forms;
mod fresh_reads;
mod herd;
mod hidden_failures;
mod holds;
mod invalidation;
mod invalidation_log;
mod invalidation_model;
mod invalidation_stress;
mod keep_fresh;
mod keep_popular;
mod late;
mod leader;
mod leader_edges;
mod ledger;
mod linearizability;
mod log_bound;
mod log_lines;
mod lookup;
mod manifest;
mod modes;
mod observer;
mod operation;
mod places;
mod reads_and_writes;
mod services;
mod stale_marks;
mod store_drops;
mod storms;
mod stream_cuts;
mod stream_edges;
mod streams;
mod surface_edges;
mod telemetry;
mod typed;
mod unwanted_work;
mod user_code;
mod weights;
