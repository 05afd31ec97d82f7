//! What every implementation of [`Remote`] must do, one function a sentence,
//! for two processes and more on one server.
//!
//! `contract!` makes a test of each sentence for one implementation.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;
use tower_stampede::Key;
use tower_stampede::remote::{
    AcquireOutcome, FillOutcome, Grant, InvalidatedRecords, LeaseRequest, Listener, Notice,
    OnNotice, Record, Remote, RemoteError, ServerTime, Version,
};

pub(crate) mod abandons;
pub(crate) mod fills;
pub(crate) mod foreign_locks;
pub(crate) mod leases;
pub(crate) mod losses;
pub(crate) mod messages;
pub(crate) mod puts;
pub(crate) mod tags;

/// Outlasts every test.
pub(crate) const LONG: Duration = Duration::from_secs(100);
/// Has passed after [`lapse`].
pub(crate) const SHORT: Duration = Duration::from_millis(30);
/// How long a message may take that must come.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long we wait for a message that must not come.
const QUIET: Duration = Duration::from_millis(50);

/// A fresh server, and what others than our processes do to it.
pub(crate) trait Server {
    async fn connect(&self) -> Arc<dyn Remote>;
    async fn lose(&self, key: &Key, record: Record);
    async fn set_value(&self, key: &Key, envelope: Bytes);
    async fn set_foreign_value(&self, key: &Key);
    /// `SET lock NX PX`.
    async fn lock_as_stranger(&self, key: &Key, lease: Duration) -> bool;
    /// Compare and delete.
    async fn unlock_as_stranger(&self, key: &Key) -> bool;
    async fn stretch_lease(&self, key: &Key, left: Duration);
    async fn out_of_memory(&self, full: bool);
    async fn flush(&self);
}

/// Three processes on one server.
pub(crate) struct World<S> {
    pub(crate) server: S,
    pub(crate) one: Process,
    pub(crate) two: Process,
    pub(crate) three: Process,
}

impl<S: Server> World<S> {
    pub(crate) async fn on(server: S) -> Self {
        let one = Process::on(&server).await;
        let two = Process::on(&server).await;
        let three = Process::on(&server).await;
        Self { server, one, two, three }
    }

    pub(crate) async fn lose(&self, record: Record) {
        self.server.lose(&key(), record).await;
    }

    /// Nothing of the key is left but perhaps a value, which is returned.
    pub(crate) async fn assert_idle(&self) {
        assert!(!self.one.invalidate().await.lease, "a lock or a right is left");
    }
}

/// One process: its client, and what it is told.
pub(crate) struct Process {
    pub(crate) remote: Arc<dyn Remote>,
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

impl Process {
    /// Connects and waits until messages arrive.
    async fn on(server: &impl Server) -> Self {
        let remote = server.connect().await;
        let (sender, notices) = mpsc::unbounded_channel();
        let ears: Arc<dyn OnNotice> = Arc::new(Ears(sender));
        assert!(!remote.is_subscribed());
        remote.attach(Arc::downgrade(&ears));
        let process = Self { remote, notices: Mutex::new(notices), _ears: ears };
        assert_eq!(process.notice().await, Notice::Subscribed);
        assert!(process.remote.is_subscribed());
        process
    }

    pub(crate) async fn notice(&self) -> Notice {
        let mut notices = self.notices.lock().await;
        timeout(PATIENCE, notices.recv()).await.expect("no notice came").unwrap()
    }

    pub(crate) async fn acquire(&self, ask: &LeaseRequest) -> AcquireOutcome {
        self.remote.acquire(&key(), ask).await.unwrap()
    }

    /// Asks for a long lease and must get it.
    pub(crate) async fn lead(&self) -> Grant {
        self.lead_for(LONG).await
    }

    pub(crate) async fn lead_for(&self, lease: Duration) -> Grant {
        granted(self.acquire(&ask(lease)).await)
    }

    /// Must find the key locked, and is registered.
    pub(crate) async fn wait(&self) -> Listener {
        let listener = self.remote.listen(&key());
        left_of_lock(self.acquire(&ask(LONG).register()).await);
        listener
    }

    /// Asks with a token that is never used again. Must not be granted.
    pub(crate) async fn is_locked_out(&self) -> bool {
        match self.acquire(&ask(LONG)).await {
            AcquireOutcome::Locked { .. } => true,
            AcquireOutcome::Granted(_) => false,
            other => panic!("neither locked nor free: {other:?}"),
        }
    }

    pub(crate) async fn fill(&self, grant: &Grant) -> FillOutcome {
        self.try_fill(grant).await.unwrap()
    }

    pub(crate) async fn try_fill(&self, grant: &Grant) -> Result<FillOutcome, RemoteError> {
        self.remote.fill(&key(), grant, LONG, envelope(grant.version, "filled")).await
    }

    pub(crate) async fn renew(&self, grant: &Grant) -> bool {
        self.renew_for(grant, LONG).await
    }

    pub(crate) async fn renew_for(&self, grant: &Grant, lease: Duration) -> bool {
        self.remote.renew(&key(), grant, &ask(lease)).await.unwrap()
    }

    pub(crate) async fn abandon(&self, grant: &Grant, hold: Option<Duration>) -> bool {
        self.remote.abandon(&key(), &grant.token, hold).await.unwrap()
    }

    pub(crate) async fn invalidate(&self) -> InvalidatedRecords {
        self.remote.invalidate(&key()).await.unwrap()
    }

    pub(crate) async fn put(&self) -> (ServerTime, Version) {
        self.try_put().await.unwrap()
    }

    pub(crate) async fn try_put(&self) -> Result<(ServerTime, Version), RemoteError> {
        let anything = Version::new(1).unwrap();
        self.remote.put(&key(), LONG, envelope(anything, "put")).await
    }

    pub(crate) async fn value(&self) -> Option<Bytes> {
        self.remote.get(&key()).await.unwrap()
    }
}

pub(crate) fn key() -> Key {
    Key::from("k")
}

/// A new token.
pub(crate) fn ask(lease: Duration) -> LeaseRequest {
    LeaseRequest::new(lease, 2 * LONG)
}

pub(crate) fn envelope(version: Version, payload: &str) -> Bytes {
    format!("SP10{version}{payload}").into()
}

pub(crate) fn version_of(envelope: &[u8]) -> Option<Version> {
    Version::from_digits(envelope.get(4..20)?)
}

/// So long after `version` that no clock reaches it during a test.
pub(crate) fn long_after(version: Version) -> Version {
    Version::new(version.get() + 1_000_000_000_000).unwrap()
}

pub(crate) fn granted(acquired: AcquireOutcome) -> Grant {
    match acquired {
        AcquireOutcome::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) fn hit(acquired: AcquireOutcome) -> Bytes {
    match acquired {
        AcquireOutcome::Hit { envelope, .. } => envelope,
        other => panic!("no hit: {other:?}"),
    }
}

pub(crate) fn left_of_lock(acquired: AcquireOutcome) -> Duration {
    match acquired {
        AcquireOutcome::Locked { left, .. } => left,
        other => panic!("not locked: {other:?}"),
    }
}

pub(crate) fn left_of_hold(acquired: AcquireOutcome) -> Duration {
    match acquired {
        AcquireOutcome::Held { left, .. } => left,
        other => panic!("not held: {other:?}"),
    }
}

pub(crate) async fn woken(listener: &mut Listener) {
    timeout(PATIENCE, listener.woken()).await.expect("not woken");
}

pub(crate) async fn is_left_alone(listener: &mut Listener) -> bool {
    timeout(QUIET, listener.woken()).await.is_err()
}

/// Lets a [`SHORT`] time pass for the server.
pub(crate) async fn lapse() {
    tokio::time::sleep(3 * SHORT).await;
}

/// Makes a test of every sentence: `contract!(#[tokio::test] server())`,
/// where `server()` is a future of a fresh [`Server`].
macro_rules! contract {
    (#[$test:meta] $server:expr) => {
        contract! { @all #[$test] $server;
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
                a_hold_ends_the_right_to_fill_and_to_renew
                a_hold_is_not_ended_by_a_second_abandon
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
                an_invalidation_is_told_to_the_others_and_not_to_its_own_process
                a_put_is_told_to_the_others_and_not_to_its_own_process
                a_notice_carries_every_kind_of_key
                a_fill_is_told_to_nobody
            }
            tags {
                an_invalidated_tag_is_in_the_log_with_the_remotes_time
                an_invalidated_tag_is_told_to_the_others_and_not_to_its_own_process
                a_tag_keeps_its_latest_time
                the_log_is_trimmed_of_what_is_older
                everything_is_a_tag_like_any_other
                tags_of_every_kind_come_back
                no_tags_are_no_entries
            }
        }
    };
    (@all #[$test:meta] $server:expr; $($area:ident { $($sentence:ident)* })*) => {
        $(
            mod $area {
                use super::*;
                $(
                    #[$test]
                    async fn $sentence() {
                        let world = contract::World::on($server.await).await;
                        contract::$area::$sentence(&world).await;
                    }
                )*
            }
        )*
    };
}
pub(crate) use contract;
