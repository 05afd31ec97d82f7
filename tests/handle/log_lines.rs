//! Lines at WARN tell of failures that are easily overlooked: how many, of which keys, and
//! what the callers got meanwhile.

use tower_stampede::{Builder, ErrorKind, Stampede};
use tracing::Level;

use crate::kit::log::{TextLog, assert_says};
use crate::kit::origin::*;
use crate::kit::spawn;

fn warned() -> (TextLog, tracing::subscriber::DefaultGuard) {
    let log = TextLog::default();
    let listening = log.listen(Level::INFO);
    (log, listening)
}

fn built(settings: Builder<u64>) -> (Stampede<u64>, Origin) {
    (settings.build().expect("the settings are good"), Origin::new())
}

async fn fails(cache: &Stampede<u64>, origin: &Origin, key: &str) -> ErrorKind {
    cache.get_or_compute(key, origin.compute()).await.expect_err("it fails").kind()
}

#[tokio::test(start_paused = true)]
async fn a_computation_that_times_out_is_a_line_that_says_what_its_callers_got() {
    let (log, _listening) = warned();
    let (cache, origin) = built(settings().compute_timeout(SECOND + 234 * MS));
    origin.next([Answer::Hang]);
    assert_eq!(fails(&cache, &origin, "user:7").await, ErrorKind::ComputeTimeout);
    let [line] = &log.lines()[..] else { panic!("{}", log.text()) };
    assert_says(line, &[" WARN tower_stampede: a computation took longer than compute_timeout"]);
    assert_says(line, &["cache=\"test\"", "took=1.2", "held_for=1s", "callers_got=\"the error\""]);
    assert_says(line, &[&format!("key_hash={}", cache.hash_of("user:7"))]);
    assert!(!line.contains("user:7") && !line.contains("left_out"), "{line}");
}

#[tokio::test(start_paused = true)]
async fn a_task_local_that_a_computation_lacks_is_one_line_and_none_inside_of_its_caller() {
    tokio::task_local! { static USER: u64; }
    let (log, _listening) = warned();
    let (cache, _) = built(settings());
    let read = || async { Ok::<_, std::io::Error>(USER.get()) };
    for key in ["a", "b"] {
        let cache = cache.clone();
        let caller = async move { cache.get_or_compute(key, read).await.map(drop) };
        assert!(spawn(USER.scope(7, caller)).await.unwrap_err().is_panic());
    }
    let is_about_it = |line: &&String| line.contains("task-local value is missing");
    assert_eq!(log.lines().iter().filter(is_about_it).count(), 1, "{}", log.text());
    assert_says(&log.text(), &["get_or_compute_scoped", "HttpLayer::carry_context"]);
    let inside = cache.get_or_compute_scoped("c", read);
    assert_eq!(USER.scope(7, inside).await.unwrap(), 7);
    // There it is a defect of the caller itself.
    let (cache, _) = built(settings());
    let alone = spawn(async move { cache.get_or_compute_scoped("c", read).await.map(drop) });
    assert!(alone.await.unwrap_err().is_panic());
    assert_eq!(log.lines().iter().filter(is_about_it).count(), 1, "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn lines_about_one_key_come_once_a_minute_and_say_how_many_were_left_out() {
    let (log, _listening) = warned();
    let (cache, origin) = built(settings().compute_timeout(SECOND).hold(MS));
    origin.usually(Answer::Hang);
    // A second each, and a little.
    for _ in 0..59 {
        fails(&cache, &origin, "k").await;
        tokio::time::sleep(2 * MS).await;
    }
    assert_eq!(log.lines().len(), 1, "{}", log.text());
    tokio::time::sleep(SECOND).await;
    fails(&cache, &origin, "k").await;
    assert_eq!(log.lines().len(), 2, "{}", log.text());
    assert_says(&log.lines()[1], &["left_out=58"]);
    fails(&cache, &origin, "other").await;
    assert_eq!(log.lines().len(), 3, "another key has a line of its own");
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_many_keys_is_ten_lines_a_second() {
    let (log, _listening) = warned();
    let (cache, origin) = built(settings().compute_timeout(SECOND));
    origin.usually(Answer::Hang);
    let herd = spawn_herd(500, |n| {
        let (cache, origin) = (cache.clone(), origin.clone());
        async move { fails(&cache, &origin, &format!("k{n}")).await }
    });
    gather(herd).await;
    assert_eq!(log.lines().len(), 10, "{}", log.text());
    tokio::time::sleep(SECOND).await;
    fails(&cache, &origin, "one more").await;
    assert_says(&log.lines()[10], &["left_out_others=490"]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_line_that_says_what_its_callers_got() {
    let (log, _listening) = warned();
    let (cache, origin) = built(settings().hold(5 * SECOND));
    origin.next([Answer::Panic, Answer::Panic]);
    for key in ["k", "k"] {
        let (cache, compute) = (cache.clone(), origin.compute());
        let caller = spawn(async move { cache.get_or_compute(key, compute).await });
        assert!(caller.await.expect_err("it panics").is_panic());
        tokio::time::sleep(MINUTE).await;
    }
    let [first, second] = &log.lines()[..] else { panic!("{}", log.text()) };
    assert_says(first, &["WARN", "a computation panicked", "callers_got=\"a new computation"]);
    assert!(!first.contains("held_for"), "{first}");
    assert_says(second, &["callers_got=\"the error\"", "held_for=5s"]);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_that_times_out_is_a_line_although_no_caller_gets_an_error() {
    let (log, _listening) = warned();
    let (cache, origin) = built(settings().stale_for(60 * MINUTE).compute_timeout(SECOND));
    assert_eq!(cache.get_or_compute("k", origin.compute()).await.unwrap(), 1);
    origin.next([Answer::Hang]);
    tokio::time::sleep(2 * MINUTE).await;
    assert_eq!(cache.get_or_compute("k", origin.compute()).await.unwrap(), 1, "stale");
    tokio::time::sleep(2 * SECOND).await;
    let [timed_out, hidden] = &log.lines()[..] else { panic!("{}", log.text()) };
    assert_says(timed_out, &["WARN", "longer than compute_timeout", "took=1s", "held_for="]);
    assert_says(timed_out, &["callers_got=\"the stale value\""]);
    assert_says(hidden, &["WARN", "failures reach no caller", "failures=1 oldest_stale=2m"]);
}

#[tokio::test(start_paused = true)]
async fn a_plain_failure_that_its_caller_gets_is_no_line() {
    let (log, _listening) = warned();
    let (cache, origin) = built(settings());
    origin.next([Answer::Fail]);
    assert_eq!(fails(&cache, &origin, "k").await, ErrorKind::Inner);
    assert_eq!(log.text(), "");
}

#[tokio::test(start_paused = true)]
async fn lines_and_spans_carry_keys_where_the_application_wants_it_escaped_and_cut() {
    let log = TextLog::default();
    let _listening = log.listen(Level::DEBUG);
    let (cache, origin) = built(settings().log_keys(true).compute_timeout(SECOND));
    origin.usually(Answer::Hang);
    let long = "x".repeat(1000);
    fails(&cache, &origin, "a \"b\"\n\u{1b}[31m").await;
    fails(&cache, &origin, &long).await;
    let lines = log.lines();
    assert!(lines.iter().all(|line| !line.contains('\u{1b}')), "{}", log.text());
    let warnings: Vec<_> = lines.iter().filter(|line| line.contains("WARN")).collect();
    assert_says(warnings[0], &[r#" key="a \"b\"\n\x1b[31m""#]);
    assert_says(warnings[1], &[&format!(" key=\"{}...\"", "x".repeat(200))]);
    assert!(!log.text().contains(&"x".repeat(201)), "{}", log.text());
    let computed: Vec<_> = lines.iter().filter(|line| line.contains(": computed")).collect();
    assert_says(computed[0], &[r#"stampede{cache="test" role="leader""#, "key=\"a "]);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_not_polled_any_more_is_a_line() {
    let (log, _listening) = warned();
    let (cache, origin) = built(settings().compute_timeout(SECOND));
    let mut kept = Box::pin(cache.get_or_compute_scoped("k", || origin.load()));
    origin.next([Answer::Hang]);
    assert!(futures_util::poll!(&mut kept).is_pending());
    tokio::time::sleep(MINUTE).await;
    assert_eq!(cache.get_or_compute("k", origin.compute()).await.unwrap(), 2);
    let [line] = &log.lines()[..] else { panic!("{}", log.text()) };
    assert_says(line, &["WARN", "neither polled nor dropped", "callers_got=\"the error\""]);
}

#[test]
fn the_second_living_handle_of_a_name_is_one_warning_and_a_clone_is_none() {
    let log = TextLog::default();
    let _listening = log.listen(Level::WARN);
    let build = |name| -> Stampede<u32> { Stampede::builder(name).ttl(SECOND).build().unwrap() };
    let lines = || log.whole_text().lines().map(str::to_owned).collect::<Vec<_>>();

    let first = build("shared name");
    let handles = [first.clone(), first];
    let _other = build("another name");
    drop(build("used after each other"));
    drop(build("used after each other"));
    assert_eq!(lines(), [""; 0]);

    let _second = build("shared name");
    let _third = build("shared name");
    assert_eq!(lines().len(), 1, "{:?}", lines());
    assert_says(&lines()[0], &["WARN", "shared name", "clone the first handle", "another name"]);
    drop(handles);
}
