//! The history of the refresh lock as running knowledge: one module per form.
//!
//! Each has a few lines that lock as people did, the steps in which that goes
//! wrong, forced in this order on a real server, and the same steps with ours.
//! `docs/the-lock.md` tells the story.

#![cfg(all(unix, feature = "redis", feature = "test-util"))]
#![allow(clippy::unwrap_used, reason = "a test, also in its helpers")]

#[path = "kit/mod.rs"]
mod kit;

#[path = "lock_history/clients.rs"]
mod clients;

#[path = "lock_history/row_01_setnx_and_del.rs"]
mod row_01_setnx_and_del;
#[path = "lock_history/row_02_a_time_and_del.rs"]
mod row_02_a_time_and_del;
#[path = "lock_history/row_03_a_time_and_getset.rs"]
mod row_03_a_time_and_getset;
#[path = "lock_history/row_04_setnx_and_expire_at_once.rs"]
mod row_04_setnx_and_expire_at_once;
#[path = "lock_history/row_05_setnx_then_expire.rs"]
mod row_05_setnx_then_expire;
#[path = "lock_history/row_06_set_nx_ex_and_del.rs"]
mod row_06_set_nx_ex_and_del;
#[path = "lock_history/row_07_token_compared_then_del.rs"]
mod row_07_token_compared_then_del;
#[path = "lock_history/row_08_token_and_plain_set.rs"]
mod row_08_token_and_plain_set;
#[path = "lock_history/row_09_invalidation_of_the_value_alone.rs"]
mod row_09_invalidation_of_the_value_alone;
#[path = "lock_history/row_10_subscribing_after_the_look.rs"]
mod row_10_subscribing_after_the_look;
#[path = "lock_history/row_all_no_second_look.rs"]
mod row_all_no_second_look;
