//! What goes wrong between processes and Redis, and what happens to requests.

#[cfg(feature = "redis")]
mod hostile;
#[cfg(feature = "redis")]
mod link;
#[cfg(feature = "redis")]
mod memory;
#[cfg(feature = "redis")]
mod records;
#[cfg(feature = "redis")]
mod server;
#[cfg(all(feature = "redis-sentinel", feature = "redis-cluster"))]
mod topology;
