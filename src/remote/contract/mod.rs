//! What every implementation of [`Remote`] must do, as tests: the contract suite.
//!
//! The suite lives in the crate, and not beside its tests, because it is a part of what the
//! trait promises: who implements [`Remote`] for another server runs the same sentences as the
//! two implementations here. It is compiled with the feature `test-util` alone.
//!
//! # What enters
//!
//! A server under test, by the trait [`ContractServer`]: it connects processes, and does to the
//! data what others than these processes may do.
//!
//! # What leaves
//!
//! A test for each sentence, made by the macro [`remote_contract`](crate::remote_contract). It panics where
//! the remote does not keep what the sentence says. Each has a server of its own and three
//! processes, on it.
//!
//! The suite is for a remote with the [log](crate::remote::RemoteLog) and the
//! [messages](crate::remote::RemotePush). For one without them, name the sentences that apply:
//! `remote_contract!(#[tokio::test] server(); puts { a_put_ends_the_computation })`. Tests may pause
//! tokio's time if the server's time is tokio's; else they take real time, none more than a few
//! seconds.
//!
//! # Examples
//!
//! Each sentence becomes a test. `Double` stands here for the server of another remote, for
//! which you implement [`ContractServer`].
//!
//! ```
//! use std::future::ready;
//!
//! use tower_stampede::remote::Double;
//! use tower_stampede::remote_contract;
//!
//! remote_contract!(#[tokio::test(start_paused = true)] ready(Double::new()));
//! # fn main() {}
//! ```
//!
//! # Reading order
//!
//! - this file: the server under test, the processes, and the list of all sentences.
//! - `leases`, `fills`, `abandons`, `puts`, `losses`, `foreign_locks`: one key.
//! - `messages`: who is woken, and who is told.
//! - `log`: the invalidation log.

#![allow(
    clippy::unwrap_used,
    clippy::must_use_candidate,
    missing_debug_implementations,
    async_fn_in_trait,
    reason = "a test panics, and is generic over the server alone"
)]

use std::sync::Arc;
use std::time::Duration;

use crate::key::Key;
use crate::remote::{
    AcquireOutcome, FillOutcome, Grant, InvalidatedRecords, LeaseRequest, Listener, LogUpdate,
    Notice, OnNotice, Record, Remote, RemoteError, RemotePush, ServerTime, Shard, Version,
};
use bytes::Bytes;
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;

#[doc(hidden)]
pub mod abandons;
#[doc(hidden)]
pub mod fills;
#[doc(hidden)]
pub mod foreign_locks;
#[doc(hidden)]
pub mod leases;
#[doc(hidden)]
pub mod log;
#[doc(hidden)]
pub mod losses;
#[doc(hidden)]
pub mod messages;
#[doc(hidden)]
pub mod puts;

/// Outlasts every test.
#[doc(hidden)]
pub const LONG: Duration = Duration::from_secs(100);
/// Has passed after [`lapse`].
#[doc(hidden)]
pub const SHORT: Duration = Duration::from_millis(30);
/// Has not passed before two more calls are answered, on a busy machine.
const BRIEF: Duration = Duration::from_secs(2);
/// How long a message may take that must come.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long we wait for a message that must not come.
const QUIET: Duration = Duration::from_millis(50);

/// A fresh server under test, and what others than our processes do to it.
///
/// Only [`key`] is asked for by the methods that take a key.
pub trait ContractServer {
    /// Connects one more process.
    async fn connect(&self) -> Arc<dyn Remote>;
    /// Removes a record of `key`, as an eviction may.
    async fn lose(&self, key: &Key, record: Record);
    /// Overwrites the value of `key` with any bytes, without an end.
    async fn set_value(&self, key: &Key, envelope: Bytes);
    /// Overwrites the value of `key` with one of a foreign type.
    async fn set_foreign_value(&self, key: &Key);
    /// Takes the lock as a client does that knows only the lock (`SET NX PX`). Returns whether
    /// it was free.
    async fn lock_as_stranger(&self, key: &Key, lease: Duration) -> bool;
    /// Gives back that lock by compare and delete. Returns whether it was still there.
    async fn unlock_as_stranger(&self, key: &Key) -> bool;
    /// Sets how much is left of the lease: what a server does whose clock is set back.
    async fn stretch_lease(&self, key: &Key, left: Duration);
    /// Sets whether the server has no memory for anything new.
    async fn out_of_memory(&self, full: bool);
    /// Removes all data.
    async fn flush(&self);
    /// Removes the invalidation log, as an eviction may.
    async fn lose_log(&self);
    /// Removes the part of the log that has the keys.
    async fn lose_keys_of_log(&self);
    /// Removes the last `lost` items of the log, as if they had never been announced.
    async fn roll_back_log(&self, lost: u64);
    /// Lets another server answer that has the whole log.
    async fn fail_over_log(&self);
    /// Asks for small bounds of the log. Returns how many tags and keys it keeps.
    async fn bound_log(&self, tags: usize, keys: usize) -> (usize, usize);
}

/// Three processes on one server.
#[doc(hidden)]
pub struct ContractWorld<S> {
    pub server: S,
    pub one: ContractProcess,
    pub two: ContractProcess,
    pub three: ContractProcess,
}

impl<S: ContractServer> ContractWorld<S> {
    pub async fn on(server: S) -> Self {
        let one = ContractProcess::on(&server).await;
        let two = ContractProcess::on(&server).await;
        let three = ContractProcess::on(&server).await;
        Self { server, one, two, three }
    }

    pub async fn lose(&self, record: Record) {
        self.server.lose(&key(), record).await;
    }

    /// Nothing of the key is left but perhaps a value, which is returned.
    pub async fn assert_idle(&self) {
        assert!(!self.one.invalidate().await.lease, "a lock or a right is left");
    }
}

/// One process: its client, and what it is told.
#[doc(hidden)]
pub struct ContractProcess {
    pub remote: Arc<dyn Remote>,
    notices: Mutex<mpsc::UnboundedReceiver<Notice>>,
    _ears: Arc<dyn OnNotice>,
}

struct Ears(mpsc::UnboundedSender<Notice>);

impl OnNotice for Ears {
    fn on_notice(&self, notice: Notice) {
        // The test may be over.
        let _ = self.0.send(notice);
    }
}

impl ContractProcess {
    /// Connects and waits until messages arrive.
    async fn on(server: &impl ContractServer) -> Self {
        let remote = server.connect().await;
        let (sender, notices) = mpsc::unbounded_channel();
        let ears: Arc<dyn OnNotice> = Arc::new(Ears(sender));
        let process = Self { remote, notices: Mutex::new(notices), _ears: ears };
        if let Some(push) = process.remote.push() {
            assert!(!push.is_subscribed());
            push.attach(Arc::downgrade(&process._ears));
            assert_eq!(process.notice().await, Notice::Subscribed);
            assert!(push.is_subscribed());
        }
        process
    }

    fn push(&self) -> &dyn RemotePush {
        self.remote.push().expect("a remote with messages")
    }

    pub async fn notice(&self) -> Notice {
        let mut notices = self.notices.lock().await;
        timeout(PATIENCE, notices.recv()).await.expect("no notice came").unwrap()
    }

    /// Waits for what another process has announced.
    pub async fn update(&self) -> LogUpdate {
        match self.notice().await {
            Notice::Announced(update) => update,
            other => panic!("no announcement: {other:?}"),
        }
    }

    pub fn listen(&self) -> Listener {
        self.push().listen(&key())
    }

    pub async fn acquire(&self, ask: &LeaseRequest) -> AcquireOutcome {
        self.remote.acquire(&key(), ask).await.unwrap()
    }

    /// Asks for a long lease and must get it.
    pub async fn lead(&self) -> Grant {
        self.lead_for(LONG).await
    }

    pub async fn lead_for(&self, lease: Duration) -> Grant {
        granted(self.acquire(&ask(lease)).await)
    }

    /// Must find the key locked, and is registered.
    pub async fn wait(&self) -> Listener {
        let listener = self.listen();
        left_of_lock(self.acquire(&ask(LONG).register()).await);
        listener
    }

    /// Asks with a token that is never used again. Must not be granted.
    pub async fn is_locked_out(&self) -> bool {
        match self.acquire(&ask(LONG)).await {
            AcquireOutcome::Locked { .. } => true,
            AcquireOutcome::Granted(_) => false,
            other => panic!("neither locked nor free: {other:?}"),
        }
    }

    pub async fn fill(&self, grant: &Grant) -> FillOutcome {
        self.try_fill(grant).await.unwrap()
    }

    pub async fn try_fill(&self, grant: &Grant) -> Result<FillOutcome, RemoteError> {
        self.remote.fill(&key(), grant, LONG, envelope(grant.version, "filled")).await
    }

    pub async fn renew(&self, grant: &Grant) -> bool {
        self.renew_for(grant, LONG).await
    }

    pub async fn renew_for(&self, grant: &Grant, lease: Duration) -> bool {
        self.remote.renew(&key(), grant, &ask(lease)).await.unwrap()
    }

    pub async fn abandon(&self, grant: &Grant, hold: Option<Duration>) -> bool {
        self.remote.abandon(&key(), &grant.token, hold).await.unwrap()
    }

    /// Returns what was found, whatever the version.
    pub async fn invalidate(&self) -> InvalidatedRecords {
        let found = self.remote.invalidate(&key()).await.unwrap();
        InvalidatedRecords { version: None, ..found }
    }

    pub async fn put(&self) -> (ServerTime, Version) {
        self.try_put().await.unwrap()
    }

    pub async fn try_put(&self) -> Result<(ServerTime, Version), RemoteError> {
        let anything = Version::new(1).unwrap();
        self.remote.put(&key(), LONG, envelope(anything, "put")).await
    }

    pub async fn value(&self) -> Option<Bytes> {
        self.remote.get(&key()).await.unwrap()
    }
}

/// The key of almost all sentences.
pub fn key() -> Key {
    Key::from("k")
}

/// A new token.
#[doc(hidden)]
pub fn ask(lease: Duration) -> LeaseRequest {
    LeaseRequest::new(lease, 2 * LONG)
}

#[doc(hidden)]
pub fn envelope(version: Version, payload: &str) -> Bytes {
    format!("SP10{version}{payload}").into()
}

#[doc(hidden)]
pub fn version_of(envelope: &[u8]) -> Option<Version> {
    Version::from_digits(envelope.get(4..20)?)
}

/// So long after `version` that no clock reaches it during a test.
#[doc(hidden)]
pub fn long_after(version: Version) -> Version {
    Version::new(version.get() + 1_000_000_000_000).unwrap()
}

#[doc(hidden)]
pub fn granted(acquired: AcquireOutcome) -> Grant {
    match acquired {
        AcquireOutcome::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

#[doc(hidden)]
pub fn hit(acquired: AcquireOutcome) -> Bytes {
    match acquired {
        AcquireOutcome::Hit { value, .. } => value,
        other => panic!("no hit: {other:?}"),
    }
}

#[doc(hidden)]
pub fn left_of_lock(acquired: AcquireOutcome) -> Duration {
    match acquired {
        AcquireOutcome::Locked { left, .. } => left,
        other => panic!("not locked: {other:?}"),
    }
}

#[doc(hidden)]
pub fn left_of_hold(acquired: AcquireOutcome) -> Duration {
    match acquired {
        AcquireOutcome::Held { left, .. } => left,
        other => panic!("not held: {other:?}"),
    }
}

#[doc(hidden)]
pub async fn woken(listener: &mut Listener) {
    timeout(PATIENCE, listener.woken()).await.expect("not woken");
}

#[doc(hidden)]
pub async fn is_left_alone(listener: &mut Listener) -> bool {
    timeout(QUIET, listener.woken()).await.is_err()
}

/// Lets a [`SHORT`] time pass for the server.
#[doc(hidden)]
pub async fn lapse() {
    tokio::time::sleep(3 * SHORT).await;
}

/// Makes a test of every sentence of the contract of a remote:
/// `remote_contract!(#[tokio::test] server())`, where `server()` is a future of a fresh
/// [`ContractServer`](crate::remote::contract::ContractServer). The example is
/// [there](crate::remote::contract).
#[doc(hidden)]
#[macro_export]
macro_rules! remote_contract {
    (#[$test:meta] $server:expr) => {
        $crate::remote_contract! { #[$test] $server;
            leases {
                a_free_key_is_granted_to_who_asks_first
                an_acquire_sent_twice_is_one_grant
                another_token_is_locked_out_for_what_is_left_of_the_lease
                a_lease_that_is_not_renewed_passes_to_the_next_who_asks
                who_lost_the_lease_to_another_can_do_nothing_to_it
                a_renewed_lease_lasts_longer
                a_lease_that_lapsed_with_nobody_after_it_is_renewed
                a_value_that_was_not_seen_is_a_hit
                a_value_that_was_seen_is_refreshed_under_a_higher_version
                a_value_that_replaced_the_seen_one_is_a_hit
                a_lease_ends_in_time_though_the_clock_was_set_back
                a_longer_lease_of_the_holder_is_respected
                a_renewal_says_how_long_the_lease_may_be
                a_grant_is_above_the_version_of_a_value_from_the_future
                a_grant_is_above_the_grants_before_it
                the_remotes_time_never_goes_back
            }
            fills {
                a_fill_stores_the_envelope_as_it_is_and_leaves_neither_lock_nor_right
                a_fill_sent_twice_is_stored_once
                a_fill_without_a_grant_is_refused
                a_fill_under_another_version_is_refused_and_frees_the_lock
                a_late_fill_that_nobody_came_before_is_stored
                a_fill_that_another_grant_came_before_is_refused
                a_fill_after_an_invalidation_is_refused
                an_acquire_that_arrives_after_an_invalidation_does_not_revive_the_old_right
                a_value_is_gone_after_its_ttl
                a_value_of_another_type_is_bytes_of_none_and_filled_over
                a_damaged_value_is_no_hit_and_filled_over
                digits_that_are_no_version_do_not_freeze_the_version
                bytes_of_every_kind_and_number_come_back
                keys_of_every_kind_are_kept_apart
                an_invalidation_says_what_it_found
                without_memory_an_acquire_and_a_fill_say_so
            }
            losses {
                without_the_right_a_fill_goes_by_the_lock
                without_the_right_others_stay_locked_out
                without_the_right_a_repeated_acquire_is_a_newer_grant
                without_the_right_a_renewal_puts_it_back
                without_the_right_an_invalidation_still_ends_the_computation
                without_the_right_an_abandon_frees_the_lock
                without_the_right_a_new_waiter_is_woken
                without_the_lock_a_renewal_takes_it_again
                without_the_lock_a_repeated_acquire_is_the_same_grant
                without_the_lock_another_may_take_it_and_is_safe_from_the_first
                without_both_nothing_is_allowed
                without_the_value_its_refresh_goes_on
                after_a_flush_nothing_is_allowed_and_nothing_is_locked
            }
            abandons {
                an_abandon_frees_the_lock_and_wakes_one_process
                an_abandon_by_who_has_nothing_does_nothing
                a_hold_keeps_everybody_out_until_it_is_over
                a_hold_wakes_every_process
                an_abandon_for_all_wakes_every_process_and_keeps_none_out
                a_hold_ends_the_right_to_fill_and_to_renew
                a_hold_is_not_ended_by_a_second_abandon
                a_hold_ends_in_time_though_the_clock_was_set_back
                a_hold_keeps_strangers_out
                a_hold_is_ended_by_an_invalidation
                a_hold_is_set_though_the_lock_was_lost
                without_memory_an_abandon_ends_the_right_and_wakes
            }
            puts {
                a_put_is_stored_under_a_version_of_the_remote
                a_put_ends_the_computation
                a_put_is_above_every_version_before_it
                a_put_is_found_by_who_has_seen_an_older_value
                a_put_value_is_gone_after_its_ttl
                without_memory_a_put_says_so_and_drops_the_old_value
            }
            foreign_locks {
                a_strangers_lock_locks_us_out
                a_strangers_lock_is_safe_from_us
                a_strangers_lock_is_ended_by_an_invalidation_and_by_a_put
                a_strangers_released_lock_is_ours_to_take
                our_lock_keeps_a_stranger_out
                a_strangers_lock_is_never_shortened
                a_strangers_value_ends_our_right
                a_strangers_value_written_without_the_lock_ends_our_right_and_wakes
                a_strangers_lock_alone_does_not_end_our_right
                a_waiter_for_a_strangers_lock_is_woken_by_us
                a_hold_leaves_a_strangers_lock_alone
            }
            messages {
                a_fill_wakes_every_process_that_waits_and_no_other
                a_waiter_of_a_lost_leader_is_woken_by_the_next
                an_invalidation_wakes_every_process_that_waits
                a_put_wakes_every_process_that_waits
                who_did_not_register_is_not_woken
                another_key_wakes_nobody
                a_process_that_is_locked_out_learns_how_many_wait
                what_is_done_to_a_key_is_told_to_nobody
            }
            log {
                there_is_no_log_before_the_first_announcement
                items_are_numbered_one_by_one
                who_reads_gets_what_others_have_announced_since
                who_announces_gets_what_others_have_announced_before
                everything_stands_in_the_header_alone
                nothing_was_missed_since_a_position_of_another_epoch
                a_process_that_has_missed_much_reads_on_from_where_a_reply_is_complete
                each_tag_has_the_position_of_its_last_item
                a_dropped_tag_counts_as_announced_at_its_position_or_later
                the_tags_that_stay_have_their_exact_positions_where_others_were_dropped
                a_process_that_missed_a_dropped_key_is_told
                a_tag_that_is_announced_again_is_not_the_oldest
                a_lost_log_begins_again_under_another_epoch
                a_flush_takes_the_log_along
                lost_keys_are_a_gap_for_who_has_not_applied_them
                a_log_that_lacks_what_a_process_has_applied_begins_again
                after_a_failover_the_log_begins_again_though_nothing_seems_to_lack
                processes_that_announce_at_once_share_one_order
                an_announcement_is_told_to_the_others_and_not_to_its_own_process
                an_announcement_of_nothing_is_told_to_nobody
                items_of_every_kind_of_bytes_come_back
                without_memory_announcements_are_taken_and_told
                the_log_is_not_touched_by_what_is_done_to_keys
            }
        }
    };
    (#[$test:meta] $server:expr; $($area:ident { $($sentence:ident)* })*) => {
        $(
            mod $area {
                use super::*;
                $(
                    #[$test]
                    async fn $sentence() {
                        let world = $crate::remote::contract::ContractWorld::on($server.await).await;
                        $crate::remote::contract::$area::$sentence(&world).await;
                    }
                )*
            }
        )*
    };
}
