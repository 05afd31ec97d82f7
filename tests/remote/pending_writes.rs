//! Writes that the remote has not been told yet, with `await` and without: their order, and
//! what their own process reads meanwhile.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use tokio::runtime::Runtime;
use tower_stampede::remote::{Double, RemoteErrorKind, RemoteOp, RemoteSettings};
use tower_stampede::{Announcement, Computed};

use crate::kit::origin::*;
use crate::kit::remote::*;
use crate::kit::spawn;

async fn computed(n: u64) -> Result<u64, OriginError> {
    Ok(n)
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().start_paused(true).build().unwrap()
}

/// Runs a case for each number below `count`.
fn for_each_seed<F: Future<Output = Result<(), String>>>(count: u64, case: impl Fn(u64) -> F) {
    let run = |seed| runtime().block_on(case(seed)).err().map(|how| format!("{seed}: {how}"));
    let failed: Vec<_> = (0..count).filter_map(run).collect();
    assert!(failed.is_empty(), "{} of {count}: {failed:#?}", failed.len());
}

// ---- what the process reads ----

#[tokio::test(start_paused = true)]
async fn a_look_does_not_find_the_value_that_its_process_has_invalidated_without_await() {
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    processes[0].put("k", 1).await;
    processes[0].invalidate_now("k");
    assert_eq!(processes[0].get("k").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_look_does_not_find_a_value_whose_tag_its_process_has_invalidated_without_await() {
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    processes[0].put_with("k", Computed::new(1).tag("t")).await;
    pass(SECOND).await;
    processes[0].invalidate_tags_now(["t"]);
    assert_eq!(processes[0].get("k").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_caller_computes_what_its_process_has_invalidated_without_await() {
    for is_scoped in [false, true] {
        let double = Double::new();
        let processes = Process::several(2, &double).await;
        double.delay(5 * MS);
        processes[0].put("k", 1).await;
        processes[0].invalidate_now("k");
        let got = match is_scoped {
            false => processes[0].get_or_compute("k", || computed(2)).await,
            true => processes[0].get_or_compute_scoped("k", || computed(2)).await,
        };
        assert_eq!(got.ok(), Some(2), "scoped: {is_scoped}");
        pass(SECOND).await;
        assert_eq!(processes[1].get("k").await, Some(2), "it is shared");
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_computes_what_was_invalidated_after_other_writes_that_are_not_told_yet() {
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    processes[0].put("k", 1).await;
    double.delay(20 * MS);
    for n in 0..5 {
        processes[0].put_now(format!("other {n}"), 1);
    }
    processes[0].invalidate_now("k");
    let began = tokio::time::Instant::now();
    let got = processes[0].get_or_compute("k", || computed(2)).await;
    assert_eq!(got.ok(), Some(2));
    // The invalidation in two calls, the look and the lease: the puts of other keys delay none
    // of them.
    assert_eq!(began.elapsed(), 80 * MS);
}

#[tokio::test(start_paused = true)]
async fn a_pending_write_delays_no_caller_of_another_key() {
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    processes[1].put("other", 1).await;
    double.delay_commands(50 * MS);
    processes[0].invalidate_now("k");
    all_have_run().await;
    double.delay_commands(Duration::ZERO);
    let began = tokio::time::Instant::now();
    assert_eq!(processes[0].get("other").await, Some(1));
    assert_eq!(began.elapsed(), Duration::ZERO);
}

// A reader must not wait for a remote that hangs, nor get the old value.
#[tokio::test(start_paused = true)]
async fn a_caller_waits_for_a_pending_write_no_longer_than_its_calls_may_take() {
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    processes[0].put("k", 1).await;
    double.delay_commands(MINUTE);
    processes[0].invalidate_now("k");
    let began = tokio::time::Instant::now();
    assert_eq!(processes[0].get("k").await, None);
    let got = processes[0].get_or_compute("k", || computed(2)).await;
    assert_eq!(got.ok(), Some(2));
    assert!(began.elapsed() <= 300 * MS, "{:?}", began.elapsed());
}

// The wait ends with the invalidation, and what was put elsewhere after it is alive.
#[tokio::test(start_paused = true)]
async fn a_caller_that_waited_for_the_invalidation_of_a_tag_keeps_what_was_put_after_it() {
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    double.delay(50 * MS);
    processes[0].invalidate_tags_now(["t"]);
    all_have_run().await;
    double.delay(Duration::ZERO);
    pass(20 * MS).await;
    processes[1].put_with("k", Computed::new(1).tag("t")).await;
    let began = tokio::time::Instant::now();
    assert_eq!(processes[0].get("k").await, Some(1));
    assert!(began.elapsed() > 20 * MS, "it waited");
    let looks = double.calls(RemoteOp::Get);
    assert_eq!(processes[0].get("k").await, Some(1));
    assert_eq!(double.calls(RemoteOp::Get), looks, "it was kept");
}

// A caller waits for two rounds of writes at most. What a third one ends may be given to it,
// since it asked before, and must not stay in the process.
#[tokio::test(start_paused = true)]
async fn what_a_caller_has_read_before_a_later_invalidation_is_told_is_not_kept() {
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    processes[1].put_with("k", Computed::new(1).tag("t")).await;
    double.delay_commands(50 * MS);
    processes[0].invalidate_tags_now(["first"]);
    pass(10 * MS).await;
    let cache = processes[0].cache.clone();
    let reader = spawn(async move { cache.get("k").await });
    pass(30 * MS).await;
    processes[0].invalidate_tags_now(["second"]);
    pass(40 * MS).await;
    processes[0].invalidate_tags_now(["t"]);
    all_have_run().await;
    double.delay_commands(Duration::ZERO);
    pass(20 * MS).await;
    assert!(reader.is_finished(), "it waits for no third round");
    assert_eq!(processes[0].get("k").await, None, "it was invalidated 20 ms ago");
}

// Each reader computes or finds a value of the source that is no older than its question.
async fn reads_after_writes(seed: u64) -> Result<(), String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    let source = Arc::new(AtomicU64::new(0));
    let mut readers = Vec::new();
    for _ in 0..40 {
        double.delay_commands([0, 0, 5, 20][random.usize(0..4)] * MS);
        double.delay([0, 0, 5, 20][random.usize(0..4)] * MS);
        let writer = &processes[0];
        match random.u32(0..10) {
            0 => {
                source.fetch_add(1, SeqCst);
                let _ = writer.invalidate_now("k");
            }
            1 => {
                source.fetch_add(1, SeqCst);
                writer.invalidate_tags_now(["t"]);
            }
            2 => {
                let n = source.fetch_add(1, SeqCst) + 1;
                writer.put_with_now("k", Computed::new(n).tag("t"));
            }
            3 => {
                let n = source.fetch_add(1, SeqCst) + 1;
                let (cache, put) = (writer.cache.clone(), Computed::new(n).tag("t"));
                let mut put = Box::pin(async move { cache.put_with("k", put).await });
                // Its caller goes away.
                let _ = futures_util::poll!(&mut put);
            }
            _ => {
                let is_ours = random.bool();
                let cache = processes[usize::from(!is_ours)].cache.clone();
                let (origin, takes) = (Arc::clone(&source), random.u32(0..30) * MS);
                let only_looks = random.u32(0..3) == 0;
                let least = if is_ours { source.load(SeqCst) } else { 0 };
                readers.push(spawn(async move {
                    let compute = move || async move {
                        let n = origin.load(SeqCst);
                        tokio::time::sleep(takes).await;
                        Ok::<_, OriginError>(Computed::new(n).tag("t"))
                    };
                    let got = match only_looks {
                        true => cache.get("k").await,
                        false => cache.get_or_compute_with("k", compute).await.ok(),
                    };
                    (least, got, only_looks)
                }));
            }
        }
        tokio::time::sleep(random.u32(0..8) * MS).await;
    }
    for reader in readers {
        let (least, got, only_looks) = within(MINUTE, reader).await.unwrap();
        if got.is_some_and(|got| got < least) || (got.is_none() && !only_looks) {
            return Err(format!("{got:?}, and {least} was written before the question"));
        }
    }
    Ok(())
}

#[test]
fn no_reader_of_the_process_that_writes_gets_what_was_replaced_before_it_asked() {
    for_each_seed(200, reads_after_writes);
}

// ---- the order of the writes ----

async fn writes(seed: u64) -> Result<(), String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    let (mut stands, mut done) = (None, Vec::new());
    for n in 0..random.u64(2..8) {
        double.delay_commands([0, 0, 5, 50][random.usize(0..4)] * MS);
        double.delay([0, 0, 5, 30][random.usize(0..4)] * MS);
        let (kind, cache) = (random.u32(0..10), processes[0].cache.clone());
        done.push(kind);
        stands = matches!(kind, 0..5).then_some(n);
        match kind {
            0 | 1 => cache.put_now("k", n),
            2 => cache.put("k", n).await,
            3 => std::thread::spawn(move || cache.put_now("k", n)).join().unwrap(),
            4 => {
                let mut put = Box::pin(cache.put("k", n));
                let _ = futures_util::poll!(&mut put);
            }
            5 => drop(cache.invalidate_now("k")),
            6 => drop(cache.invalidate("k").await),
            7 => drop(std::thread::spawn(move || cache.invalidate_now("k")).join().unwrap()),
            8 => {
                let mut invalidation = Box::pin(cache.invalidate("k"));
                let _ = futures_util::poll!(&mut invalidation);
            }
            _ => {
                cache.invalidate_tags_now(["*"]);
                // Times of tags are the remote's, in milliseconds.
                pass(160 * MS).await;
            }
        }
        pass(random.u32(0..3) * 10 * MS).await;
        if random.bool() {
            let _ = processes[1].get("k").await;
        }
    }
    pass(10 * SECOND).await;
    let (there, here) = (processes[1].get("k").await, processes[0].get("k").await);
    if (there, here) != (stands, stands) {
        return Err(format!("{done:?}: there {there:?}, here {here:?}, should be {stands:?}"));
    }
    Ok(())
}

#[test]
fn writes_without_await_arrive_in_their_order() {
    for_each_seed(300, writes);
}

// "Cancel safe: once polled, it is done, here and in the remote."
#[tokio::test(start_paused = true)]
async fn an_invalidation_without_await_does_not_overtake_a_put_whose_caller_has_gone() {
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    double.delay_commands(100 * MS);
    {
        let mut put = Box::pin(processes[0].put("k", 1));
        assert!(futures_util::poll!(&mut put).is_pending());
    }
    all_have_run().await;
    double.delay_commands(Duration::ZERO);
    processes[0].invalidate_now("k");
    pass(10 * SECOND).await;
    assert_eq!(processes[1].get("k").await, None, "it was invalidated after the put");
    assert_eq!(processes[0].get("k").await, None, "and here as well");
}

// The first command of a process waits for the log.
#[tokio::test(start_paused = true)]
async fn the_first_put_of_a_process_whose_caller_has_gone_does_not_undo_an_invalidation() {
    let double = Double::new();
    double.delay(5 * MS);
    let process = Process::on(&double);
    {
        let mut put = Box::pin(process.put("k", 1));
        assert!(futures_util::poll!(&mut put).is_pending());
    }
    process.invalidate("k").await;
    pass(10 * SECOND).await;
    assert_eq!(process.get("k").await, None, "it was invalidated after the put");
}

#[tokio::test(start_paused = true)]
async fn a_tag_is_invalidated_after_the_put_before_it_although_its_caller_has_gone() {
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    double.delay_commands(50 * MS);
    {
        let mut put = Box::pin(processes[0].put_with("k", Computed::new(1).tag("t")));
        assert!(futures_util::poll!(&mut put).is_pending());
    }
    all_have_run().await;
    double.delay_commands(Duration::ZERO);
    assert_eq!(processes[0].invalidate_tag("t").await.remote, Announcement::Done);
    pass(SECOND).await;
    assert_eq!(processes[1].get("k").await, None);
    assert_eq!(processes[0].get("k").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_put_a_while_after_the_invalidation_of_its_tag_stands() {
    for (lag, is_awaited) in [(0, true), (0, false), (15, false)] {
        let double = Double::new();
        let processes = Process::several(2, &double).await;
        double.delay(10 * MS);
        if is_awaited {
            processes[0].invalidate_all().await;
            processes[0].put("k", 1).await;
        } else {
            processes[0].invalidate_tags_now(["*"]);
            pass(lag * MS).await;
            processes[0].put_now("k", 1);
            assert_eq!(processes[0].get("k").await, Some(1), "this process has the value");
        }
        pass(10 * SECOND).await;
        let got = (processes[0].get("k").await, processes[1].get("k").await);
        assert_eq!(got, (Some(1), Some(1)), "lag {lag} ms, awaited: {is_awaited}");
    }
}

#[tokio::test(start_paused = true)]
async fn writes_of_different_keys_are_told_at_once() {
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    double.delay(20 * MS);
    let began = tokio::time::Instant::now();
    let (one, two) = (&processes[0], &processes[0]);
    let invalidations = [one.invalidate("a"), two.invalidate("b")];
    tokio::join!(one.put("c", 1), two.put("d", 1), futures_util::future::join_all(invalidations));
    // Each in two calls: the key, and the log.
    assert_eq!(began.elapsed(), 40 * MS);
}

#[tokio::test(start_paused = true)]
async fn more_pending_writes_than_the_journal_holds_become_one_invalidation_of_everything() {
    let double = Double::new();
    let settings_of_remote = RemoteSettings::new().max_journal(10);
    let here = Process::with_remote(&double, settings(), settings_of_remote);
    let other = Process::on(&double);
    for process in [&here, &other] {
        process.prepare(&double).await;
    }
    for n in 0..30_u64 {
        other.put(n, n).await;
    }
    pass(SECOND).await;
    for n in 0..30_u64 {
        here.invalidate_now(n);
        assert_eq!(here.lookup(n), None);
    }
    pass(5 * SECOND).await;
    for n in 0..30_u64 {
        assert_eq!((here.get(n).await, other.get(n).await), (None, None), "key {n}");
    }
    assert!(double.all_calls().iter().any(|(op, _)| *op == RemoteOp::Announce));
}

#[tokio::test(start_paused = true)]
async fn a_put_after_one_that_fails_is_queued_with_it() {
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    processes[0].put("k", 0).await;
    double.fail(&[RemoteOp::Put], RemoteErrorKind::Unavailable);
    processes[0].put_now("k", 1);
    all_have_run().await;
    double.heal(&[RemoteOp::Put]);
    processes[0].put_now("k", 2);
    assert_eq!(processes[0].get("k").await, Some(2));
    pass(5 * SECOND).await;
    assert_ne!(processes[1].get("k").await, Some(0), "the old value");
    assert_ne!(processes[1].get("k").await, Some(1), "the older put");
}

// ---- runtimes that stand still ----

// The runtime that used the cache first has not ended, but no thread runs it.
fn on_a_runtime_that_stands_still(double: &Double) -> (Runtime, Process) {
    let idle = runtime();
    let process = idle.block_on(async {
        let process = Process::on(double);
        process.prepare(double).await;
        process.put("k", 1).await;
        process
    });
    (idle, process)
}

#[test]
fn a_write_is_not_held_up_by_a_runtime_that_stands_still() {
    for key in ["another key", "k"] {
        let double = Double::new();
        let (idle, process) = on_a_runtime_that_stands_still(&double);
        process.invalidate_now(key);
        runtime().block_on(async {
            let began = tokio::time::Instant::now();
            within(10 * MINUTE, process.put("k", 1)).await;
            assert!(began.elapsed() <= SECOND, "{:?}", began.elapsed());
        });
        drop(idle);
    }
}

#[test]
fn an_invalidation_is_not_forgotten_because_a_runtime_stands_still() {
    let double = Double::new();
    let (idle, process) = on_a_runtime_that_stands_still(&double);
    process.invalidate_now("k");
    runtime().block_on(async {
        pass(20 * SECOND).await;
        assert_eq!(process.get("k").await, None, "it was invalidated 20 s ago");
    });
    drop(idle);
}

#[test]
fn the_remote_is_told_from_another_runtime_where_the_first_stands_still() {
    let double = Double::new();
    let (idle, process) = on_a_runtime_that_stands_still(&double);
    process.invalidate_now("k");
    let second = runtime();
    second.block_on(async {
        let other = Process::on(&double);
        assert_eq!(other.get("k").await, Some(1));
        // The first caller hands the invalidation over; some time later a caller takes over
        // the task that tells the remote.
        assert_eq!(process.get("k").await, None);
        pass(3 * MINUTE).await;
        assert_eq!(process.get("k").await, None);
        pass(10 * SECOND).await;
        assert_eq!(other.get("k").await, None, "the other process has been told");
        process.put("k", 2).await;
        assert_eq!(other.get("k").await, Some(2), "and the remote is used again");
    });
    // The first runtime goes on: its task finds that another has taken its place.
    idle.block_on(pass(MINUTE));
    second.block_on(async { assert_eq!(process.get("k").await, Some(2)) });
}

// ---- what other processes invalidate meanwhile ----

// The put has returned before the invalidation begins, and waits for the write before it: when the
// remote gets the value, its process has long heard of the invalidation.
#[tokio::test(start_paused = true)]
async fn a_put_that_arrives_after_the_invalidation_of_its_tag_is_dead() {
    for tag in ["t", "*"] {
        let double = Double::new();
        let processes = Process::several(3, &double).await;
        double.delay_commands(20 * MS);
        processes[0].put_now("k", 1);
        processes[0].put_with_now("k", Computed::new(2).tag("t"));
        pass(MS).await;
        assert_eq!(processes[1].invalidate_tag(tag).await.remote, Announcement::Done);
        pass(5 * SECOND).await;
        for (n, process) in processes.iter().enumerate() {
            assert_eq!(process.get("k").await, None, "process {n}, tag {tag}");
        }
    }
}

// The same by key: the put has returned, and the process that invalidates has been told `Done`.
#[tokio::test(start_paused = true)]
async fn a_put_that_arrives_after_the_invalidation_of_its_key_is_dead() {
    let double = Double::new();
    let processes = Process::several(3, &double).await;
    double.delay_commands(20 * MS);
    processes[0].put_now("k", 1);
    processes[0].put_now("k", 2);
    pass(MS).await;
    assert_eq!(processes[1].invalidate("k").await.remote, Announcement::Done);
    pass(5 * SECOND).await;
    for (n, process) in processes.iter().enumerate() {
        assert_eq!(process.get("k").await, None, "process {n}");
    }
}

// The same while messages are lost: the process learns of it by the reply to its own announcement.
#[tokio::test(start_paused = true)]
async fn a_put_that_arrives_after_the_invalidation_of_its_key_is_dead_without_messages() {
    let double = Double::new();
    let processes = Process::several(3, &double).await;
    double.delay_commands(20 * MS);
    double.lose_messages(true);
    processes[0].put_now("k", 1);
    processes[0].put_now("k", 2);
    pass(MS).await;
    assert_eq!(processes[1].invalidate("k").await.remote, Announcement::Done);
    pass(5 * SECOND).await;
    for (n, process) in processes.iter().enumerate() {
        assert_eq!(process.get("k").await, None, "process {n}");
    }
}
