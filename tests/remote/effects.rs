//! What a process does with what the log says: what its callers get meanwhile, what it takes for the
//! work of another process, and when it computes for itself.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use tower_stampede::remote::{
    AcquireOutcome, Call, Double, DoubleProcess, FillOutcome, Grant, InvalidatedRecords,
    LeaseRequest, LogItem, LogPositions, LogReply, Remote, RemoteErrorKind, RemoteLog, RemoteOp,
    RemotePush, RemoteSettings, ServerTime, Shard, Stamp, Token, Version,
};
use tower_stampede::{Announcement, Computed, Key, Stampede, Tag};

use crate::kit::origin::*;
use crate::kit::remote::*;

thread_local! {
    /// What is done when the value 1 is dropped, once.
    static ON_DROP: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// A value with a `Drop` of the user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Noisy(u64);

impl Drop for Noisy {
    fn drop(&mut self) {
        if self.0 == 1
            && let Some(hook) = ON_DROP.take()
        {
            hook();
        }
    }
}

fn noisy(double: &Double) -> Stampede<Noisy> {
    settings().remote(double.process(), RemoteSettings::new()).build().unwrap()
}

/// Two processes that have `a` and `b`, of which the second has missed that both have ended.
async fn missed(double: &Double) -> (Stampede<Noisy>, Stampede<Noisy>) {
    let (one, two) = (noisy(double), noisy(double));
    for (key, n) in [("a", 1), ("b", 2)] {
        one.put(key, Noisy(n)).await;
        assert_eq!(two.get(key).await, Some(Noisy(n)));
    }
    all_have_run().await;
    double.lose_messages(true);
    one.invalidate("a").await;
    one.invalidate("b").await;
    (one, two)
}

#[tokio::test(start_paused = true)]
async fn no_caller_gets_what_its_process_is_about_to_end() {
    let double = Double::new();
    let (_one, two) = missed(&double).await;
    let got = Arc::new(Mutex::new(None));
    let (cache, noted) = (two.clone(), Arc::clone(&got));
    // While `a` ends, another caller asks for `b`.
    let hook = move || *noted.lock().unwrap() = Some(cache.get("b").now_or_never());
    ON_DROP.set(Some(Box::new(hook)));
    // The process stood still: its copies are valid no more.
    tokio::time::advance(5 * SECOND).await;
    pass(SECOND).await;
    let got = got.lock().unwrap().take().expect("the copy of `a` has ended");
    assert_ne!(
        got,
        Some(Some(Noisy(2))),
        "it has ended five seconds ago, and this process knows it"
    );
    assert_eq!(two.get("b").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_users_code_keeps_nothing_from_ending() {
    let double = Double::new();
    let (_one, two) = missed(&double).await;
    ON_DROP.set(Some(Box::new(|| panic!("of the user"))));
    two.invalidate("c").await;
    all_have_run().await;
    assert_eq!(two.get("b").await, None);
    assert_eq!(two.get("a").await, None);
}

// ---- leases ----

#[tokio::test(start_paused = true)]
async fn a_subscription_that_is_made_anew_ends_no_lease() {
    let (double, origin) = (Double::new(), Origin::taking(20 * SECOND));
    let processes = Process::several(8, &double).await;
    let mut callers = vec![processes[0].spawn(&origin)];
    pass(SECOND).await;
    callers.extend(processes[1..].iter().map(|process| process.spawn(&origin)));
    // Longer than a lease is without a renewal.
    pass(6 * SECOND).await;
    for _ in 0..2 {
        for process in &processes {
            process.client.unsubscribe();
            process.client.subscribe();
        }
        pass(SECOND).await;
    }
    assert_eq!(origin.calls(), 1, "the lease is held all the while");
    for answer in gather(callers).await {
        assert_eq!(answer.unwrap(), 1);
    }
}

// ---- announcements ----

/// A process's client whose connection has the numbers that the test says, and whose announcements
/// are answered late.
struct Way {
    inner: Arc<DoubleProcess>,
    connection: AtomicU64,
    late: Mutex<VecDeque<Duration>>,
    /// How long the next announcements are on their way there.
    held: Mutex<VecDeque<Duration>>,
    has_log: bool,
}

impl Way {
    fn to(double: &Double) -> Arc<Self> {
        Self::with(double, true)
    }

    fn with(double: &Double, has_log: bool) -> Arc<Self> {
        let (connection, late, held) = (AtomicU64::new(1), Mutex::default(), Mutex::default());
        Arc::new(Self { inner: double.process(), connection, late, held, has_log })
    }
}

fn on(way: &Arc<Way>, remote: RemoteSettings) -> Stampede<u64> {
    settings().remote(Arc::clone(way) as _, remote).build().unwrap()
}

impl RemoteLog for Way {
    fn announce<'a>(&'a self, items: &'a [LogItem], from: Option<Stamp>) -> Call<'a, LogReply> {
        let next = |times: &Mutex<VecDeque<Duration>>| {
            let is_told = !items.is_empty();
            is_told.then(|| times.lock().unwrap().pop_front()).flatten().unwrap_or_default()
        };
        let (held, late) = (next(&self.held), next(&self.late));
        Box::pin(async move {
            tokio::time::sleep(held).await;
            let reply = self.inner.log().unwrap().announce(items, from).await;
            tokio::time::sleep(late).await;
            reply
        })
    }

    fn read(&self, from: Option<Stamp>) -> Call<'_, Option<LogReply>> {
        self.inner.log().unwrap().read(from)
    }

    fn positions<'a>(&'a self, tags: &'a [Tag]) -> Call<'a, Option<LogPositions>> {
        self.inner.log().unwrap().positions(tags)
    }
}

impl Remote for Way {
    fn get<'a>(&'a self, key: &'a Key) -> Call<'a, Option<Bytes>> {
        self.inner.get(key)
    }

    fn acquire<'a>(&'a self, key: &'a Key, ask: &'a LeaseRequest) -> Call<'a, AcquireOutcome> {
        self.inner.acquire(key, ask)
    }

    fn fill<'a>(
        &'a self,
        key: &'a Key,
        grant: &'a Grant,
        ttl: Duration,
        envelope: Bytes,
    ) -> Call<'a, FillOutcome> {
        self.inner.fill(key, grant, ttl, envelope)
    }

    fn renew<'a>(
        &'a self,
        key: &'a Key,
        grant: &'a Grant,
        ask: &'a LeaseRequest,
    ) -> Call<'a, bool> {
        self.inner.renew(key, grant, ask)
    }

    fn abandon<'a>(
        &'a self,
        key: &'a Key,
        token: &'a Token,
        hold: Option<Duration>,
    ) -> Call<'a, bool> {
        self.inner.abandon(key, token, hold)
    }

    fn invalidate<'a>(&'a self, key: &'a Key) -> Call<'a, InvalidatedRecords> {
        self.inner.invalidate(key)
    }

    fn put<'a>(
        &'a self,
        key: &'a Key,
        ttl: Duration,
        envelope: Bytes,
    ) -> Call<'a, (ServerTime, Version)> {
        self.inner.put(key, ttl, envelope)
    }

    fn probe(&self, shard: Shard) -> Call<'_, ServerTime> {
        self.inner.probe(shard)
    }

    fn log(&self) -> Option<&dyn RemoteLog> {
        Some(self as &dyn RemoteLog).filter(|_| self.has_log)
    }

    fn push(&self) -> Option<&dyn RemotePush> {
        self.inner.push()
    }

    fn connection(&self, _: Shard) -> u64 {
        self.connection.load(SeqCst)
    }

    fn suspect(&self, shard: Shard, kind: RemoteErrorKind) {
        self.inner.suspect(shard, kind);
    }
}

#[tokio::test(start_paused = true)]
async fn a_remote_may_number_its_connections_as_it_likes() {
    for numbers in [[1, 1], [7, 7], [0, 1], [2, 1], [5, 0], [0, 0]] {
        let (double, origin) = (Double::new(), Origin::new());
        let way = Way::to(&double);
        way.connection.store(numbers[0], SeqCst);
        let (process, other) = (on(&way, RemoteSettings::new()), Process::on(&double));
        assert_eq!(process.get("nothing").await, None);
        way.connection.store(numbers[1], SeqCst);
        pass(3 * SECOND).await;
        assert_eq!(other.load(&origin).await, 1);
        let got = process.get_or_compute("k", origin.compute()).await.unwrap();
        assert_eq!((got, origin.calls()), (1, 1), "{numbers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_put_is_not_lost_where_another_write_of_its_process_is_answered_sooner() {
    let double = Double::new();
    let way = Way::to(&double);
    let (process, other) = (on(&way, RemoteSettings::new()), Process::on(&double));
    assert_eq!(process.get("nothing").await, None);
    all_have_run().await;
    way.late.lock().unwrap().extend([50 * MS]);
    tokio::join!(process.put("a", 1), process.put("b", 2));
    assert_eq!(process.get("a").await, Some(1), "no other process has written anything");
    assert_eq!(process.get("b").await, Some(2));
    assert_eq!(other.get("a").await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn what_another_process_computes_while_a_key_is_invalidated_is_not_computed_twice() {
    let (double, origin) = (Double::new(), Origin::new());
    let way = Way::to(&double);
    let (process, other) = (on(&way, RemoteSettings::new()), Process::on(&double));
    assert_eq!(process.get("nothing").await, None);
    other.prepare(&double).await;
    // The key is removed at once, and the log is told a round trip later.
    way.held.lock().unwrap().extend([20 * MS]);
    let invalidate = async { process.invalidate("k").await.remote };
    let compute = async {
        pass(10 * MS).await;
        other.load(&origin).await
    };
    let (told, computed) = tokio::join!(invalidate, compute);
    assert_eq!((told, computed), (Announcement::Done, 1));
    let got = process.get_or_compute("k", origin.compute()).await.unwrap();
    assert_eq!((got, origin.calls()), (1, 1), "it began after the invalidation");
}

#[tokio::test(start_paused = true)]
async fn what_a_process_has_put_is_alive_for_it_however_late_that_was_announced() {
    for (fails, is_invalidated) in [(false, false), (false, true), (true, false), (true, true)] {
        let (double, origin) = (Double::new(), Origin::new());
        // It soon has no copy.
        let process = Process::with(&double, settings().max_entries(1));
        process.prepare(&double).await;
        if is_invalidated {
            process.invalidate("k").await;
        }
        if fails {
            double.fail(&[RemoteOp::Announce], RemoteErrorKind::Timeout);
        }
        process.put("k", 7).await;
        double.heal(&[RemoteOp::Announce]);
        pass(30 * SECOND).await;
        for n in 0..10 {
            process.put(n, 1).await;
        }
        let other = Process::on(&double);
        assert_eq!(other.load(&origin).await, 7);
        let got = process.load(&origin).await;
        assert_eq!(got, 7, "announced late: {fails}, invalidated before: {is_invalidated}");
    }
}

// ---- after a failover ----

fn paused() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().start_paused(true).build().unwrap()
}

async fn tagged(process: &Process, origin: &Origin) -> u64 {
    let origin = origin.clone();
    let compute = move || async move { origin.load().await.map(|n| Computed::new(n).tag("t")) };
    process.get_or_compute_with("k", compute).await.unwrap()
}

#[test]
fn what_was_handed_over_to_the_journal_is_announced_again_after_a_failover() {
    for is_handed_over in [false, true] {
        let (double, idle, second) = (Double::new(), paused(), paused());
        let process = idle.block_on(async {
            let process = Process::on(&double);
            process.prepare(&double).await;
            process
        });
        if is_handed_over {
            // Its runtime stands still.
            process.invalidate_tags_now(["t"]);
        }
        second.block_on(async {
            let origin = Origin::new();
            assert_eq!(process.get("k").await, None);
            pass(3 * MINUTE).await;
            assert_eq!(process.get("k").await, None);
            if !is_handed_over {
                process.invalidate_tag("t").await;
            }
            pass(10 * SECOND).await;
            assert!(double.calls(RemoteOp::Announce) >= 1, "it was told");
            // The server that takes over lacks it, and a process is there already.
            double.fail_over_log(1);
            let other = Process::on(&double);
            assert_eq!(tagged(&other, &origin).await, 1);
            pass(20 * SECOND).await;
            let got = tagged(&other, &origin).await;
            assert_eq!(got, 2, "handed over: {is_handed_over}");
        });
        drop(idle);
    }
}

// ---- results that stay in their process ----

#[tokio::test(start_paused = true)]
async fn a_result_that_stays_in_its_process_is_computed_once_in_its_lifetime() {
    let mut more = Vec::new();
    for (has_log, local_ttl) in [(true, None), (true, Some(SECOND))] {
        for tag in [None, Some("t")] {
            let (double, origin) = (Double::new(), Origin::new());
            let mut remote = RemoteSettings::new().max_value_bytes(1);
            if let Some(ttl) = local_ttl {
                remote = remote.local_ttl(ttl);
            }
            let process = on(&Way::with(&double, has_log), remote);
            assert_eq!(process.get("nothing").await, None);
            for _ in 0..100 {
                let origin = origin.clone();
                let compute = move || async move {
                    let computed = Computed::new(origin.load().await?);
                    Ok::<_, OriginError>(tag.into_iter().fold(computed, |it, tag| it.tag(tag)))
                };
                process.get_or_compute_with("k", compute).await.unwrap();
                pass(100 * MS).await;
            }
            if origin.calls() != 1 {
                let case = format!("log: {has_log}, local_ttl: {local_ttl:?}, tag: {tag:?}");
                more.push((case, origin.calls()));
            }
        }
    }
    assert!(more.is_empty(), "computed more than once in ten seconds: {more:#?}");
}

#[tokio::test(start_paused = true)]
async fn processes_that_hear_no_messages_do_not_wait_for_one_after_the_other_either() {
    use crate::kit::crowd::{Crowd, Report, WORK, reports};
    for is_deaf in [false, true] {
        let (double, origin) = (Double::new(), Origin::taking(WORK));
        let mut caches = Vec::new();
        for _ in 0..8 {
            let client = double.process();
            let cache = reports().remote(Arc::clone(&client) as _, RemoteSettings::new());
            let cache = cache.build().unwrap();
            assert_eq!(cache.get("nothing is here").await, None);
            if is_deaf {
                client.unsubscribe();
            }
            caches.push(cache);
        }
        all_have_run().await;
        double.fail(&[RemoteOp::Fill], RemoteErrorKind::TryAgain);
        let crowd = Crowd::ask(&caches, 50 * MS, &origin, Report::small).await;
        assert_eq!(crowd.failed, 0, "deaf: {is_deaf}, {crowd:?}");
    }
}
