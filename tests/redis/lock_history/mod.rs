//! The history of the refresh lock as running knowledge: one module per form.
//!
//! Each has a few lines that lock as people did, the steps in which that goes
//! wrong, forced in this order on a real server, and the same steps with ours.
//! `docs/redis.md` tells the story.

mod clients;

mod row_01_setnx_and_del;
mod row_02_a_time_and_del;
mod row_03_a_time_and_getset;
mod row_04_setnx_and_expire_at_once;
mod row_05_setnx_then_expire;
mod row_06_set_nx_ex_and_del;
mod row_07_token_compared_then_del;
mod row_08_token_and_plain_set;
mod row_09_invalidation_of_the_value_alone;
mod row_10_subscribing_after_the_look;
mod row_all_no_second_look;
