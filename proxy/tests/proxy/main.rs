//! `stampede-proxy` as a process of its own: clients and origins are
//! sockets in the hands of the tests. Time is real.

mod kit;

#[cfg(unix)]
mod claims;
#[cfg(unix)]
mod commands;
#[cfg(unix)]
mod config;
#[cfg(target_os = "linux")]
mod crowds;
#[cfg(unix)]
mod drain;
#[cfg(unix)]
mod fields;
#[cfg(unix)]
mod limits;
#[cfg(unix)]
mod manifest;
#[cfg(unix)]
mod operation;
#[cfg(unix)]
mod queries;
#[cfg(unix)]
mod readings;
#[cfg(unix)]
mod redis;
#[cfg(unix)]
mod requests;
#[cfg(unix)]
mod responses;
#[cfg(unix)]
mod smuggling;
#[cfg(unix)]
mod steering;
#[cfg(unix)]
mod streams;
#[cfg(unix)]
mod tls;
#[cfg(unix)]
mod vary;
#[cfg(unix)]
mod writes;
