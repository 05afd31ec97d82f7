//! The cache as an application holds it, in one process and without HTTP: herds,
//! leaders, failures, bounds, invalidation, operation, and the layer over tower
//! services. Time is paused.

#[path = "../kit/mod.rs"]
mod kit;

mod bounds;
mod cancellation;
mod failures;
mod herd;
mod invalidation;
mod invalidation_model;
mod invalidation_stress;
mod leader;
mod operation;
mod reads_and_writes;
mod services;
#[cfg(all(feature = "metrics", feature = "tracing"))]
mod telemetry;
