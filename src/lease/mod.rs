//! The right to compute, among the processes that share a store.
//!
//! The room lies inside of `remote`: it knows what a lease is, and nothing of Redis, bytes
//! or connections. `flight` uses it, and `remote` implements what it asks for.
//!
//! # What enters
//!
//! The leader of this process asks for the lease before it computes (`flight/clearance.rs`).
//!
//! # What leaves
//!
//! A granted lease becomes a [`Lease`](hold::Lease) of the leader. It is a guard: it is
//! renewed while its leader needs it, and given up however the leader ends.
//!
//! A try whose reply is not known yet is a guard as well ([`Attempt`](hold::Attempt)): the
//! remote may have granted it. Dropped, it is given up by its token.
//!
//! # Reading order
//!
//! - `grant`: tokens, versions and times; what a lease is made of.
//! - `shared_store`: what a remote must be able to do, as the engine sees it.
//! - `validity`: until when a process may use what it holds.
//! - `wakes`: which flights of this process wait for which key.
//! - `hold`: a try and a held lease, its renewal, the fill, and how it is given up. (Not the
//!   hold after a failure; that is `flight/hold.rs`.)

#[cfg_attr(
    not(feature = "remote"),
    allow(dead_code, unreachable_pub, reason = "a public part of the remote, if there is one")
)]
pub(crate) mod grant;
pub(crate) mod hold;
#[cfg_attr(not(feature = "remote"), allow(dead_code, reason = "only a remote implements it"))]
pub(crate) mod shared_store;
pub(crate) mod validity;
#[cfg_attr(
    not(feature = "remote"),
    allow(dead_code, unreachable_pub, reason = "a public part of the remote, if there is one")
)]
pub(crate) mod wakes;
