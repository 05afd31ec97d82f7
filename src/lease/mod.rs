//! The right to compute, among the processes that share a store.
//!
//! The room lies inside of `remote`: it knows what a lease is, and nothing of Redis, bytes
//! or connections. `flight` uses it, and `remote` implements what it asks for.
//!
//! # What enters
//!
//! The leader of this process, before it computes: [`Leader::clear`] is given a
//! [`Search`](acquire::Search), which says where to look in the remote and what serves, and
//! a [`Patience`](acquire::Patience), which says what to do while another process computes.
//!
//! # What leaves
//!
//! A [`Clearance`](acquire::Clearance): compute (with a place, and with the lease if the
//! remote answers), a value that was found, a hold, or a reason to stop. A granted lease
//! becomes a [`Lease`](hold::Lease) in the leader. It is a guard: it is renewed while its
//! flight is not overdue, and given up however its leader ends.
//!
//! # The states in between
//!
//! ```text
//! look ──▶ place ──▶ acquire ─┬─ Granted ── compute ── fill, or give up
//!   ▲                         ├─ Hit ────── judge it; serve it, or acquire again
//!   │                         ├─ Held ───── the computation failed elsewhere
//!   │                         └─ Locked ─── leave the place and wait
//!   └── a wake-up, the end of the lease, or about 1 s ───┘
//! ```
//!
//! A wake-up is a hint: the leader looks again. So a lost message costs time, and never
//! an answer. Each wait ends at the leader's deadline. When the remote does not answer,
//! the leader goes on without it, as in a single process.
//!
//! A try whose reply is not known yet is a guard as well ([`Attempt`](hold::Attempt)): the
//! remote may have granted it. Dropped, it is given up by its token.
//!
//! # Reading order
//!
//! - `grant`: tokens, versions and times; what a lease is made of.
//! - `shared_store`: what a remote must be able to do, as the engine sees it.
//! - `acquire`: a leader finds out whether to compute.
//! - `wakes`: which flights of this process wait for which key.
//! - `hold`: a try and a held lease, its renewal, the fill, and how it is given up. (Not the
//!   hold after a failure; that is `flight/hold.rs`.)
//!
//! [`Leader::clear`]: crate::flight::leader::Leader::clear

pub(crate) mod acquire;
#[cfg_attr(
    not(feature = "remote"),
    allow(dead_code, unreachable_pub, reason = "a public part of the remote, if there is one")
)]
pub(crate) mod grant;
pub(crate) mod hold;
#[cfg_attr(not(feature = "remote"), allow(dead_code, reason = "only a remote implements it"))]
pub(crate) mod shared_store;
#[cfg_attr(
    not(feature = "remote"),
    allow(dead_code, unreachable_pub, reason = "a public part of the remote, if there is one")
)]
pub(crate) mod wakes;
