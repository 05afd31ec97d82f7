//! A store that only reads, writes and deletes bytes, as the second level: what of the contract of
//! a remote it keeps, and what it leaves out.

use std::collections::HashMap;
use std::future::ready;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tower_stampede::remote::contract::ContractServer;
use tower_stampede::remote::{
    AcquireOutcome, FillOutcome, Grant, LeaseRequest, PlainRemote, PlainStore, Record, Remote,
    RemoteSettings, Version,
};
use tower_stampede::{Announcement, BoxError, Computed, Health, Key, Stampede, remote_contract};

use crate::kit::origin::*;
use crate::kit::remote::k;
use crate::kit::spawn;

/// A table in memory, which can be away, full, or stand still before it writes.
#[derive(Clone, Debug)]
struct Table(Arc<State>);

#[derive(Debug)]
struct State {
    rows: Mutex<HashMap<String, (Bytes, Instant)>>,
    last_read: Mutex<String>,
    is_away: Mutex<bool>,
    is_full: Mutex<bool>,
    writes: Semaphore,
}

impl Table {
    fn new() -> Self {
        Self(Arc::new(State {
            rows: Mutex::default(),
            last_read: Mutex::default(),
            is_away: Mutex::new(false),
            is_full: Mutex::new(false),
            writes: Semaphore::new(Semaphore::MAX_PERMITS),
        }))
    }

    fn check(&self) -> Result<(), BoxError> {
        if *self.0.is_away.lock().unwrap() { Err("the table is away".into()) } else { Ok(()) }
    }

    fn remote(&self) -> Arc<PlainRemote<Self>> {
        Arc::new(PlainRemote::new(self.clone(), "test"))
    }

    fn process(&self) -> Stampede<u64> {
        settings().remote(self.remote(), RemoteSettings::new()).build().unwrap()
    }
}

impl PlainStore for Table {
    async fn get(&self, name: &str) -> Result<Option<Bytes>, BoxError> {
        self.check()?;
        name.clone_into(&mut self.0.last_read.lock().unwrap());
        let rows = self.0.rows.lock().unwrap();
        Ok(rows.get(name).filter(|row| Instant::now() < row.1).map(|row| row.0.clone()))
    }

    async fn set(&self, name: &str, value: Bytes, ttl: Duration) -> Result<(), BoxError> {
        let _ = self.0.writes.acquire().await?;
        self.check()?;
        if *self.0.is_full.lock().unwrap() {
            return Err("the table is full".into());
        }
        self.0.rows.lock().unwrap().insert(name.to_owned(), (value, Instant::now() + ttl));
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<(), BoxError> {
        self.check()?;
        self.0.rows.lock().unwrap().remove(name);
        Ok(())
    }
}

async fn load(process: &Stampede<u64>, origin: &Origin) -> u64 {
    process.get_or_compute("k", origin.compute()).await.unwrap()
}

/// The three processes of the suite are one here: grants are of a process.
struct OneProcess {
    table: Table,
    remote: Arc<PlainRemote<Table>>,
}

impl OneProcess {
    fn new() -> Self {
        let table = Table::new();
        Self { remote: table.remote(), table }
    }
}

impl ContractServer for OneProcess {
    async fn connect(&self) -> Arc<dyn Remote> {
        Arc::clone(&self.remote) as _
    }

    async fn lose(&self, _: &Key, record: Record) {
        assert_eq!(record, Record::Value, "the store has nothing else");
        self.flush().await;
    }

    async fn set_value(&self, key: &Key, envelope: Bytes) {
        self.remote.get(key).await.unwrap();
        let name = self.table.0.last_read.lock().unwrap().clone();
        let until = Instant::now() + 1000 * MINUTE;
        self.table.0.rows.lock().unwrap().insert(name, (envelope, until));
    }

    async fn flush(&self) {
        self.table.0.rows.lock().unwrap().clear();
    }

    async fn set_foreign_value(&self, _: &Key) {
        unreachable!("the store has one type");
    }

    async fn lock_as_stranger(&self, _: &Key, _: Duration) -> bool {
        unreachable!("the store has no locks");
    }

    async fn unlock_as_stranger(&self, _: &Key) -> bool {
        unreachable!("the store has no locks");
    }

    async fn stretch_lease(&self, _: &Key, _: Duration) {
        unreachable!("the store has no locks");
    }

    async fn out_of_memory(&self, full: bool) {
        *self.table.0.is_full.lock().unwrap() = full;
    }

    async fn lose_log(&self) {
        unreachable!("the store has no log");
    }

    async fn lose_keys_of_log(&self) {
        unreachable!("the store has no log");
    }

    async fn roll_back_log(&self, _: u64) {
        unreachable!("the store has no log");
    }

    async fn fail_over_log(&self) {
        unreachable!("the store has no log");
    }

    async fn bound_log(&self, _: usize, _: usize) -> (usize, usize) {
        unreachable!("the store has no log");
    }
}

// Left out: sentences about locks that keep another process out, holds, messages and the log.
remote_contract! {
    #[tokio::test(start_paused = true)]
    ready(OneProcess::new());
    leases {
        a_free_key_is_granted_to_who_asks_first
        an_acquire_sent_twice_is_one_grant
        a_lease_that_is_not_renewed_passes_to_the_next_who_asks
        who_lost_the_lease_to_another_can_do_nothing_to_it
        a_value_that_was_not_seen_is_a_hit
        a_value_that_was_seen_is_refreshed_under_a_higher_version
        a_value_that_replaced_the_seen_one_is_a_hit
        a_grant_is_above_the_version_of_a_value_from_the_future
        a_grant_is_above_the_grants_before_it
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
        digits_that_are_no_version_do_not_freeze_the_version
        bytes_of_every_kind_and_number_come_back
        keys_of_every_kind_are_kept_apart
        an_invalidation_says_what_it_found
    }
    abandons {
        an_abandon_by_who_has_nothing_does_nothing
    }
    puts {
        a_put_is_stored_under_a_version_of_the_remote
        a_put_ends_the_computation
        a_put_is_above_every_version_before_it
        a_put_is_found_by_who_has_seen_an_older_value
        a_put_value_is_gone_after_its_ttl
    }
}

#[tokio::test(start_paused = true)]
async fn processes_read_each_others_values_and_each_computes_once_what_none_has() {
    let (table, origin) = (Table::new(), Origin::taking(10 * MS));
    let (one, two) = (table.process(), table.process());
    let answers = herd(100, |_| {
        let (one, origin) = (one.clone(), origin.clone());
        async move { one.get_or_compute("k", origin.compute()).await }
    });
    for answer in answers.await {
        assert_eq!(answer.unwrap(), 1);
    }
    all_have_run().await;
    assert_eq!(load(&two, &origin).await, 1);
    assert_eq!(origin.calls(), 1);

    // Nothing is locked between processes.
    let both = tokio::join!(
        one.get_or_compute("cold", origin.compute()),
        two.get_or_compute("cold", origin.compute())
    );
    assert!(both.0.is_ok() && both.1.is_ok());
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_invalidation_of_a_key_reaches_the_others_within_the_local_ttl() {
    let (table, origin) = (Table::new(), Origin::new());
    let (one, two) = (table.process(), table.process());
    for process in [&one, &two] {
        assert_eq!(load(process, &origin).await, 1);
        all_have_run().await;
    }
    assert_eq!(one.invalidate("k").await.remote, Announcement::Done);
    assert_eq!(load(&one, &origin).await, 2);
    pass(SECOND).await;
    assert_eq!(load(&two, &origin).await, 2);
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_only_a_log_would_tell_stays_in_its_process_and_says_so() {
    let (table, origin) = (Table::new(), Origin::new());
    let (one, two) = (table.process(), table.process());
    for process in [&one, &two] {
        assert_eq!(load(process, &origin).await, 1);
        all_have_run().await;
    }
    let marked = one.mark_stale("k").await;
    assert!(marked.local);
    assert_eq!(marked.remote, Announcement::NoRemote);
    assert_eq!(load(&one, &origin).await, 2);
    assert_eq!(two.get("k").await, Some(1));
    assert_eq!(one.mark_tag_stale("t").await.remote, Announcement::NoRemote);
    assert_eq!(one.invalidate_all().await.remote, Announcement::NoRemote);
}

#[tokio::test(start_paused = true)]
async fn a_computation_that_another_process_has_invalidated_is_not_stored() {
    for is_put in [false, true] {
        let (table, late) = (Table::new(), Origin::taking(10 * SECOND));
        let (one, two) = (table.process(), table.process());
        let (asking, compute) = (one.clone(), late.compute());
        let caller = spawn(async move { asking.get_or_compute("k", compute).await });
        pass(SECOND).await;
        if is_put {
            two.put("k", 7).await;
        } else {
            assert_eq!(two.invalidate("k").await.remote, Announcement::Done);
        }
        assert_eq!(caller.await.unwrap().unwrap(), 1, "its caller asked before");
        all_have_run().await;
        let newer = Origin::new();
        newer.load().await.unwrap();
        let third = table.process();
        let wanted = if is_put { 7 } else { 2 };
        assert_eq!(load(&third, &newer).await, wanted);
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalidation_during_the_write_of_a_fill_comes_after_it() {
    let table = Table::new();
    let remote = table.remote();
    let ask = LeaseRequest::new(MINUTE, MINUTE);
    let Ok(AcquireOutcome::Granted(grant)) = remote.acquire(&k(), &ask).await else {
        panic!("the key is free");
    };
    let all = table.0.writes.acquire_many(u32::MAX >> 3).await.unwrap();
    let rest = table.0.writes.forget_permits(usize::MAX);
    let (filling, by) = (Arc::clone(&remote), grant);
    let fill = spawn(async move { fill(&filling, &by).await });
    all_have_run().await;
    let ending = Arc::clone(&remote);
    let invalidation = spawn(async move { ending.invalidate(&k()).await.unwrap() });
    all_have_run().await;
    table.0.writes.add_permits(rest);
    drop(all);
    assert_eq!(fill.await.unwrap(), FillOutcome::Stored);
    assert!(invalidation.await.unwrap().value);
    assert_eq!(remote.get(&k()).await.unwrap(), None);
}

async fn fill(remote: &PlainRemote<Table>, grant: &Grant) -> FillOutcome {
    let envelope = format!("SP10{}value", grant.version).into();
    remote.fill(&k(), grant, MINUTE, envelope).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_fails_no_request_and_is_told_later_what_was_invalidated() {
    let (table, origin) = (Table::new(), Origin::new());
    let (one, two) = (table.process(), table.process());
    assert_eq!(load(&one, &origin).await, 1);
    all_have_run().await;
    *table.0.is_away.lock().unwrap() = true;
    for key in 0..10_u64 {
        assert!(two.get_or_compute(key, origin.compute()).await.is_ok());
    }
    assert_eq!((two.health(), origin.calls()), (Health::Degraded, 11));
    assert_eq!(two.invalidate("k").await.remote, Announcement::Queued);
    *table.0.is_away.lock().unwrap() = false;
    pass(MINUTE / 2).await;
    assert_eq!(two.health(), Health::Up);
    assert_eq!(load(&table.process(), &origin).await, 12);
}

#[tokio::test(start_paused = true)]
async fn a_full_store_forgets_what_is_wrong() {
    let (table, origin) = (Table::new(), Origin::new());
    let one = table.process();
    assert_eq!(load(&one, &origin).await, 1);
    all_have_run().await;
    *table.0.is_full.lock().unwrap() = true;
    one.put("k", 7).await;
    all_have_run().await;
    assert_eq!(load(&one, &origin).await, 7);
    *table.0.is_full.lock().unwrap() = false;
    assert_ne!(load(&table.process(), &origin).await, 1);
}

#[tokio::test(start_paused = true)]
async fn values_with_tags_stay_in_their_process_and_so_do_invalidations_of_tags() {
    let (table, origin) = (Table::new(), Origin::new());
    let (one, two) = (table.process(), table.process());
    let ask = async |process: &Stampede<u64>| {
        let origin = origin.clone();
        let compute = move || async move { origin.load().await.map(|n| Computed::new(n).tag("t")) };
        process.get_or_compute_with("k", compute).await.unwrap()
    };
    assert_eq!((ask(&one).await, ask(&two).await), (1, 2));
    one.invalidate_tag("t").await;
    assert_eq!((ask(&one).await, ask(&two).await), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn rights_that_no_call_ends_do_not_pile_up() {
    let remote = Table::new().remote();
    let ask = LeaseRequest::new(MINUTE, MINUTE);
    for key in 0..100_000_u64 {
        remote.acquire(&Key::from(key), &ask).await.unwrap();
    }
    let Ok(AcquireOutcome::Granted(grant)) = remote.acquire(&k(), &ask).await else {
        panic!("the key is free");
    };
    assert!(grant.version > Version::new(1).unwrap());
    // 64 parts of at most 1,000 rights.
    assert!(format!("{remote:?}").matches("Token").count() <= 64_000);
    assert_eq!(fill(&remote, &grant).await, FillOutcome::Stored);
}
