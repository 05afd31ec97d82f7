//! Lines about leases of other processes: a wait that is long, and a lease that ran out.

use tower_stampede::remote::Double;
use tower_stampede::{FailureAction, Key, Stampede};
use tracing::Level;

use crate::kit::log::{TextLog, assert_says};
use crate::kit::origin::{Answer, MINUTE, MS, Origin, SECOND, all_have_run, settings};
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

/// Two processes with a value of `k` that may be served in place of a failure only, and two
/// origins. The first origin fails.
async fn two_with_something_stale() -> (Vec<Process>, [Origin; 2]) {
    let double = Double::new();
    let stale = || settings().stale_if_error(60 * MINUTE);
    let processes = Process::several_with(2, &double, stale).await;
    for process in &processes {
        assert_eq!(process.load(&Origin::new()).await, 1);
        tokio::time::sleep(SECOND).await;
    }
    tokio::time::sleep(2 * MINUTE).await;
    let origins = [Origin::new(), Origin::new()];
    origins[0].usually(Answer::Fail);
    (processes, origins)
}

#[tokio::test(start_paused = true)]
async fn a_hold_of_another_process_that_a_stale_value_hides_is_one_line_of_each_process() {
    let (processes, [failing, other]) = two_with_something_stale().await;
    let log = TextLog::default();
    let _listening = log.listen(Level::INFO);
    for _ in 0..3 {
        assert_eq!(processes[0].load(&failing).await, 1);
        assert_eq!(processes[1].load(&other).await, 1);
    }
    assert_eq!((failing.calls(), other.calls()), (1, 0), "the second process is held");
    let [first, second] = &log.lines()[..] else { panic!("{}", log.text()) };
    assert_says(first, &["failures=1", "cause=\"call 1 failed\""]);
    assert_says(second, &["WARN", "failures reach no caller", "failures=1", "oldest_stale=2m"]);
    assert_says(second, &["remedy=\"the computation failed in another process"]);
}

#[tokio::test(start_paused = true)]
async fn a_fresh_value_of_another_process_ends_the_row_of_hidden_failures() {
    let (processes, [failing, other]) = two_with_something_stale().await;
    assert_eq!(processes[0].load(&failing).await, 1);
    tokio::time::sleep(MINUTE).await;
    other.next([Answer::Value, Answer::Value]);
    drop(other.load());
    assert_eq!(processes[1].load(&other).await, 2);
    all_have_run().await;
    assert_eq!(processes[0].load(&failing).await, 2, "from the remote");
    tokio::time::sleep(2 * MINUTE).await;
    let log = TextLog::default();
    let _listening = log.listen(Level::INFO);
    assert_eq!(processes[0].load(&failing).await, 2, "stale");
    let [line] = &log.lines()[..] else { panic!("{}", log.text()) };
    assert_says(line, &["failures=1 "]);
}
