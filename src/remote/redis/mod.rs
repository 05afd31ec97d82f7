//! Redis as the remote of many processes.

mod names;
