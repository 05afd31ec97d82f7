//! The right to compute, among the processes that share a store.

pub(crate) mod acquire;
#[cfg_attr(
    not(feature = "remote"),
    allow(dead_code, unreachable_pub, reason = "a public part of the remote, if there is one")
)]
pub(crate) mod grant;
pub(crate) mod hold;
#[cfg_attr(
    not(feature = "remote"),
    allow(dead_code, reason = "nobody implements it without a remote")
)]
pub(crate) mod shared_store;
#[cfg_attr(
    not(feature = "remote"),
    allow(dead_code, unreachable_pub, reason = "a public part of the remote, if there is one")
)]
pub(crate) mod wakes;
