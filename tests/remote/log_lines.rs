//! Lines about leases of other processes: a wait that is long, and a lease that ran out.

use tower_stampede::remote::Double;
use tower_stampede::{FailureAction, Key, Stampede};
use tracing::Level;

use crate::kit::log::{TextLog, assert_says};
use crate::kit::origin::{Answer, MS, Origin, SECOND, settings};
use crate::kit::remote::Process;
use crate::kit::spawn;

fn hash_of_k(cache: &Stampede<u64>) -> String {
    format!("key_hash={}", cache.hash_of("k"))
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_runs_out_is_a_line_of_the_process_that_takes_it_over() {
    let double = Double::new();
    let process = Process::on(&double);
    process.prepare(&double).await;
    let log = TextLog::default();
    let _listening = log.listen(Level::INFO);
    // A process that dies in this moment: it neither renews nor gives up.
    assert!(double.lock_as_stranger(&Key::from("k"), 3 * SECOND));
    assert_eq!(process.load(&Origin::new()).await, 1);
    let [line] = &log.lines()[..] else { panic!("{}", log.text()) };
    assert_says(line, &["INFO", "has not renewed its lease", "this process computes the key now"]);
    assert_says(line, &[&hash_of_k(&process), "waited=3", "lease=5s"]);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_given_up_or_filled_is_no_line() {
    let double = Double::new();
    // Without a hold the process that waits computes next.
    let share_only = || settings().on_failure(|_| FailureAction::ShareOnly);
    let processes = Process::several_with(2, &double, share_only).await;
    let log = TextLog::default();
    let _listening = log.listen(Level::INFO);
    for answer in [Answer::Fail, Answer::Value] {
        let origin = Origin::taking(3 * SECOND);
        origin.next([answer]);
        let first = processes[0].spawn(&origin);
        tokio::time::sleep(100 * MS).await;
        let second = processes[1].spawn(&origin);
        assert_eq!(first.await.unwrap().is_ok(), answer == Answer::Value);
        assert!(second.await.unwrap().is_ok());
        processes[0].invalidate("k").await;
    }
    assert_eq!(log.text(), "");
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_longer_than_a_lease_is_one_line() {
    let double = Double::new();
    let processes = Process::several(2, &double).await;
    let log = TextLog::default();
    let _listening = log.listen(Level::INFO);
    let origin = Origin::taking(20 * SECOND);
    let first = processes[0].spawn(&origin);
    tokio::time::sleep(100 * MS).await;
    let second = processes[1].spawn(&origin);
    assert_eq!(first.await.unwrap().unwrap(), 1);
    assert_eq!(second.await.unwrap().unwrap(), 1);
    let [line] = &log.lines()[..] else { panic!("{}", log.text()) };
    assert_says(line, &["INFO", "another process still computes this key"]);
    assert_says(line, &[&hash_of_k(&processes[1]), "waited=5", "lease=5s"]);
}

/// An operator must see the panic also while many notices are left out.
#[tokio::test(start_paused = true)]
async fn many_notices_leave_out_no_warning() {
    let double = Double::new();
    let process = Process::on(&double);
    process.prepare(&double).await;
    let log = TextLog::default();
    let _listening = log.listen(Level::INFO);
    let origin = Origin::new();
    let keys: Vec<_> = (0..50).map(|n| format!("k{n}")).collect();
    for key in &keys {
        assert!(double.lock_as_stranger(&Key::from(key.as_str()), 3 * SECOND));
    }
    let callers = keys.into_iter().map(|key| {
        let (cache, compute) = (process.clone(), origin.compute());
        async move { cache.get_or_compute(key, compute).await }
    });
    let answers = futures_util::future::join_all(callers).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(log.text().matches("INFO").count(), 10, "{}", log.text());
    origin.next([Answer::Panic]);
    let (cache, compute) = (process.clone(), origin.compute());
    let caller = spawn(async move { cache.get_or_compute("panics", compute).await });
    assert!(caller.await.expect_err("it panics").is_panic());
    let lines = log.lines();
    let warnings: Vec<_> = lines.iter().filter(|line| line.contains("WARN")).collect();
    let [line] = &warnings[..] else { panic!("{}", log.text()) };
    assert_says(line, &["a computation panicked"]);
    assert!(!line.contains("left_out"), "the notices are counted in the next notice: {line}");
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_a_line_with_its_kind_and_its_end_one_with_its_duration() {
    let double = Double::new();
    let process = Process::on(&double);
    process.prepare(&double).await;
    let log = TextLog::default();
    let _listening = log.listen(Level::INFO);
    double.freeze();
    let origin = Origin::new();
    for key in 0..10_u64 {
        process.get_or_compute(key, origin.compute()).await.unwrap();
    }
    tokio::time::sleep(90 * SECOND).await;
    double.thaw();
    tokio::time::sleep(10 * SECOND).await;
    let [away, back] = &log.lines()[..] else { panic!("{}", log.text()) };
    assert_says(away, &["WARN", "the remote is away", "server=\"remote\"", "error=\"timeout\""]);
    assert_says(away, &["op=\""]);
    assert_says(back, &["WARN", "the remote answers again", "server=\"remote\"", "away_for=1m 3"]);
}
