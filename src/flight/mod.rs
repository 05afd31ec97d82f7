//! Flights: of all callers that miss one key at once, one computes.
//!
//! # What enters
//!
//! A caller that found nothing fresh. Its [`FlightRequest`](request::FlightRequest) names
//! the key, the tags that are known before the computation, and the part that the caller
//! may take. The room knows neither HTTP nor Redis nor moka: it sees the store of this
//! process through [`ports::Store`], and the store of all processes through
//! [`SharedStore`](crate::lease::shared_store::SharedStore).
//!
//! # What leaves
//!
//! By the [`door`]: an answer, the lead, a computation for this caller alone, or a refusal. A caller
//! with the lead has a [`Lead`](lead::Lead). This is a guard: however it goes away, its flight has a
//! verdict and is out of the table.
//!
//! # The states in between
//!
//! ```text
//! caller ── Engine::enter ─┬─ Lead ────── no flight of this key runs
//!                          ├─ Join ────── a flight runs: wait for its verdict
//!                          ├─ Alone ───── the caller may not wait, or must not lead
//!                          ├─ Held ────── the key failed a moment ago
//!                          └─ Overloaded  a bound on waiters is reached
//!
//! flight ── Waiting ─ Computing ─ Arriving ─ Published ─ Settled
//!              └──── Vacant ────────┘  (HTTP: the first leader has failed)
//! ```
//!
//! A flight passes through its phases in this order, and may leave any of them out but the
//! last. The verdict exists from `Published` on. `Settled` means: the flight is out of the
//! table, and its result is stored or never will be. One more fact stands beside the phase:
//! a flight that was *forgotten* goes on for the callers that wait already, and its result
//! is not stored.
//!
//! | verdict | a waiter |
//! |---|---|
//! | `Filled` | takes the value, if it answers this caller's request |
//! | `Declined` | computes for itself, or enters again as after `Abandoned` |
//! | `Failed` | takes a stale value, shares the failure, or computes for itself |
//! | `Abandoned` | enters again; the first to do so leads |
//!
//! A computation holds one of the `max_computations` places, or waits in the queue for one.
//!
//! # Locks
//!
//! A lock is held for a few lines, never over an await. No code of the user runs under a
//! lock of this room: what leaves a map is handed out, and dropped after the lock. The order
//! is: a key of the store, the shard of the table, then the flight or the places.
//!
//! # Reading order
//!
//! Data, each file with one structure and its invariant:
//! - `phase`: one flight and the phase it is in.
//! - `table`: the running flights and the marks of all keys, in shards.
//! - `marks`: what is remembered of a key besides its value, each fact with its own end.
//! - `evidence`: one of them: whether a crowd gains by waiting for one result.
//! - `hold`, `hold_policy`: a key that fails is left alone, with two ends; how long that is.
//! - `vacancy`: what a flight is between two leaders.
//! - `computation`: the part of a flight in a call of the origin.
//! - `queue`: the queue for places, with a line for each client.
//! - `places`: the bound on computations, and which computation lends its place to which.
//!
//! Then the way of a caller:
//! - `door`: the one orchestrator, and all that `http` sees of this room.
//! - `engine`: what the flights of a handle share: table, places, log, clocks, settings.
//! - `admission`: `enter` decides whether a caller leads, joins, computes alone or is refused.
//! - `waiter`: takes a caller from flight to flight until it has a step.
//! - `leader`: what a leader does from the lead to its result.
//! - `lead`, `arrival`: the same as a computation sees it, and as one whose result arrives.
//! - `clearance`: how it finds out whether to compute, where processes share a remote.
//! - `succession`: one more leader of a flight whose first leader has failed.
//! - `end`: every way in which a leader ends, and the one order of steps.
//! - `lending`: in which computation a caller runs, so that it can lend its place.
//! - `forwarding`: a bound on calls of the origin outside of any flight.
//! - `holders`: the computations that share the place of a call.
//! - `adaptive_limit`: how many places there are, where that is found from the times of computations.
//! - `usual_time`: how long they take.
//! - `tasks`: where computations run, and how a shutdown ends them.
//! - `ports`: the store, as the engine sees it.

mod adaptive_limit;
pub(crate) mod admission;
pub(crate) mod arrival;
pub(crate) mod clearance;
pub(crate) mod client_key;
pub(crate) mod computation;
pub(crate) mod door;
pub(crate) mod end;
pub(crate) mod engine;
pub(crate) mod evidence;
#[cfg(feature = "http")]
pub(crate) mod forwarding;
pub(crate) mod hold;
pub(crate) mod hold_policy;
mod holders;
pub(crate) mod lead;
pub(crate) mod leader;
pub(crate) mod lending;
pub(crate) mod marks;
#[cfg(all(test, stampede_model))]
mod model;
pub(crate) mod phase;
pub(crate) mod places;
pub(crate) mod ports;
pub(crate) mod queue;
pub(crate) mod request;
pub(crate) mod succession;
pub(crate) mod table;
pub(crate) mod tasks;
#[cfg(test)]
mod tests;
pub(crate) mod usual_time;
pub(crate) mod vacancy;
pub(crate) mod wait_slot;
pub(crate) mod waiter;
