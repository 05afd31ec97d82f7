//! What goes wrong between processes and Redis, and what happens to requests.

mod hostile;
mod link;
mod memory;
mod records;
mod server;
mod topology;
