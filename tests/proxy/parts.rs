//! Parts of the example proxy that have tests of their own: `cargo test` builds
//! examples, but does not run what they test.

#![allow(dead_code, unreachable_pub, reason = "the example uses what is not tested here")]

#[path = "../../examples/reverse_proxy/access_log.rs"]
mod access_log;
#[path = "../../examples/reverse_proxy/fields.rs"]
mod fields;
#[path = "../../examples/reverse_proxy/host.rs"]
mod host;
#[path = "../../examples/reverse_proxy/provenance.rs"]
mod provenance;
#[path = "../../examples/reverse_proxy/rules.rs"]
mod rules;
#[path = "../../examples/reverse_proxy/server.rs"]
mod server;
#[path = "../../examples/reverse_proxy/via.rs"]
mod via;
#[path = "../../examples/reverse_proxy/wire.rs"]
mod wire;
