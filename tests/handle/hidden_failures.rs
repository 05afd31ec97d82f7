//! Failures that a stale value hides from all callers: the log and the counts say what no caller
//! learns.

use tower_stampede::{Builder, CacheOutcome, Computed, Mode, Stampede};
use tracing::Level;

use crate::kit::log::{TextLog, assert_says};
use crate::kit::origin::*;
use crate::kit::spawn;

const HOUR: std::time::Duration = MINUTE.saturating_mul(60);

/// A cache whose value of `k` is 100, and was computed two minutes ago.
async fn with_old_value(settings: Builder<u64>) -> (Stampede<u64>, Origin) {
    let (cache, origin) = (settings.build().expect("the settings are good"), Origin::new());
    cache.put("k", 100).await;
    pass(2 * MINUTE).await;
    (cache, origin)
}

fn heard() -> (TextLog, tracing::subscriber::DefaultGuard) {
    let log = TextLog::default();
    let listening = log.listen(Level::INFO);
    (log, listening)
}

async fn ask(cache: &Stampede<u64>, origin: &Origin) -> u64 {
    let answer = cache.get_or_compute("k", origin.compute()).await.expect("there is a value");
    all_have_run().await;
    answer
}

/// The number of failures in each line that tells of hidden ones.
fn told(log: &TextLog) -> Vec<u64> {
    let number = |line: &String| {
        let (_, rest) = line.split_once(" failures=")?;
        rest.split(' ').next()?.parse().ok()
    };
    log.lines().iter().filter_map(number).collect()
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_an_hour_is_a_line_at_the_first_failure_and_at_each_doubling() {
    for settings in [settings().stale_if_error(24 * HOUR), settings().stale_for(24 * HOUR)] {
        let (log, _listening) = heard();
        let (cache, origin) = with_old_value(settings).await;
        origin.usually(Answer::Fail);
        for _ in 0..3600 {
            assert_eq!(ask(&cache, &origin).await, 100);
            pass(SECOND).await;
        }
        assert!((64..100).contains(&origin.calls()), "{} calls", origin.calls());
        assert_eq!(told(&log), [1, 2, 4, 8, 16, 32, 64], "{}", log.text());
        assert_eq!(log.lines().len(), 7, "{}", log.text());
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_success_after_an_outage_is_a_line_with_its_length_and_its_failures() {
    let (log, _listening) = heard();
    let (cache, origin) = with_old_value(settings().stale_if_error(HOUR)).await;
    origin.next([Answer::Fail, Answer::Fail, Answer::Fail, Answer::Value]);
    for _ in 0..4 {
        ask(&cache, &origin).await;
        pass(2 * MINUTE).await;
    }
    let lines = log.lines();
    let ends: Vec<_> = lines.iter().filter(|line| line.contains("no failure is hidden")).collect();
    let [end] = &ends[..] else { panic!("{}", log.text()) };
    assert_says(end, &[" INFO tower_stampede: a computation succeeded", "hidden=3", "lasted=6m"]);
    assert_says(end, &[&format!("key_hash={}", cache.hash_of("k"))]);
}

#[tokio::test(start_paused = true)]
async fn the_line_says_what_failed_how_old_the_values_are_and_what_to_do() {
    let (log, _listening) = heard();
    let (cache, origin) = with_old_value(settings().stale_if_error(HOUR)).await;
    origin.usually(Answer::Fail);
    ask(&cache, &origin).await;
    let [line] = &log.lines()[..] else { panic!("{}", log.text()) };
    assert_says(line, &[" WARN tower_stampede: failures reach no caller"]);
    assert_says(
        line,
        &["cache=\"test\"", "failures=1", "oldest_stale=2m", "cause=\"call 1 failed\""],
    );
    assert_says(line, &["remedy=\"look at what computes these values"]);
    assert_says(line, &[&format!("key_hash={}", cache.hash_of("k"))]);
}

#[tokio::test(start_paused = true)]
async fn the_text_of_an_error_is_one_line_of_bounded_length() {
    let (log, _listening) = heard();
    let (cache, _) = with_old_value(settings().stale_if_error(HOUR)).await;
    let text = format!("first\nsecond{}", "x".repeat(1000));
    let fails = move || async { Err::<u64, _>(std::io::Error::other(text)) };
    cache.get_or_compute("k", fails).await.unwrap();
    let [line] = &log.lines()[..] else { panic!("{}", log.text()) };
    assert_says(line, &["first\\\\nsecondxxx"]);
    assert!(!line.contains(&"x".repeat(200)), "{line}");
}

#[tokio::test(start_paused = true)]
async fn a_success_ends_the_row_and_the_next_outage_begins_with_a_line() {
    let (log, _listening) = heard();
    let (cache, origin) = with_old_value(settings().stale_if_error(24 * HOUR)).await;
    for answers in [[Answer::Fail, Answer::Fail, Answer::Fail, Answer::Value]; 3] {
        origin.next(answers);
        for _ in answers {
            ask(&cache, &origin).await;
            pass(2 * MINUTE).await;
        }
    }
    assert_eq!(origin.calls(), 12);
    assert_eq!(told(&log), [1, 2, 1, 2, 1, 2], "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn a_computation_that_fails_now_and_then_does_not_fill_the_log() {
    let (log, _listening) = heard();
    let (cache, origin) = with_old_value(settings().ttl(MS).stale_if_error(HOUR).hold(MS)).await;
    for _ in 0..1000 {
        origin.next([Answer::Fail, Answer::Value]);
        for _ in 0..2 {
            ask(&cache, &origin).await;
            pass(10 * MS).await;
        }
    }
    // In 20 seconds.
    assert_eq!(told(&log), [1], "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn a_crowd_that_shares_one_failure_counts_it_once_and_so_does_its_hold() {
    let (log, _listening) = heard();
    let (cache, origin) = with_old_value(settings().stale_if_error(HOUR)).await;
    origin.usually(Answer::Fail);
    for _ in 0..2 {
        let herd = spawn_herd(100, |_| {
            let (cache, origin) = (cache.clone(), origin.clone());
            async move { ask(&cache, &origin).await }
        });
        assert_eq!(gather(herd).await, [100; 100]);
    }
    assert_eq!((origin.calls(), cache.stats().stale_if_error), (1, 200));
    assert_eq!(told(&log), [1], "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn a_panic_a_time_out_and_a_failure_inside_the_caller_are_told_of() {
    for (answer, cause) in [
        (Answer::Hang, "computation took too long"),
        (Answer::Panic, "computation panicked"),
        (Answer::Fail, "call 1 failed"),
    ] {
        for is_scoped in [false, true] {
            let (log, _listening) = heard();
            let (cache, origin) = with_old_value(settings().stale_if_error(HOUR)).await;
            origin.usually(answer);
            let (asked, compute) = (cache.clone(), origin.compute());
            let caller = spawn(async move {
                match is_scoped {
                    true => asked.get_or_compute_scoped("k", compute).await,
                    false => asked.get_or_compute("k", compute).await,
                }
            });
            // The panic goes on in its caller.
            assert_eq!(caller.await.is_err(), answer == Answer::Panic);
            all_have_run().await;
            assert_eq!(told(&log), [1], "{}", log.text());
            assert_says(&log.text(), &[&format!("cause=\"{cause}")]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_at_a_stale_value_is_told_of() {
    let (log, _listening) = heard();
    let (cache, origin) = with_old_value(
        settings().stale_if_error(HOUR).wait_timeout(5 * SECOND).compute_timeout(MINUTE),
    )
    .await;
    origin.usually(Answer::Hang);
    let leader = spawn({
        let (cache, origin) = (cache.clone(), origin.clone());
        async move { ask(&cache, &origin).await }
    });
    all_have_run().await;
    assert_eq!(ask(&cache, &origin).await, 100);
    assert_eq!(told(&log), [1], "{}", log.text());
    assert_says(&log.text(), &["cause=\"waited too long", "remedy=\"computations take too long"]);
    assert_eq!(leader.await.unwrap(), 100);
    assert_eq!(told(&log), [1], "it is the same computation: {}", log.text());
}

/// By the time-out of the cache, and by that of each call.
#[tokio::test(start_paused = true)]
async fn a_crowd_that_waits_too_long_for_one_computation_is_one_hidden_failure() {
    for (timeout, late) in [(HOUR, 99), (3 * SECOND, 100)] {
        let (log, _listening) = heard();
        let settings = settings().stale_if_error(HOUR).wait_timeout(5 * SECOND);
        let cache = settings.build().unwrap();
        cache.put("k", 100).await;
        pass(2 * MINUTE).await;
        for (n, answer) in [(1, Answer::Fail), (2, Answer::Fail), (3, Answer::Value)] {
            let origin = Origin::taking(20 * SECOND);
            origin.usually(answer);
            let herd = spawn_herd(100, |_| {
                let (cache, compute) = (cache.clone(), origin.compute());
                async move { *cache.entry("k").timeout(timeout).get_or_compute(compute).await.unwrap() }
            });
            let answers = gather(herd).await;
            assert!(answers.iter().filter(|answer| **answer == 100).count() >= late);
            assert_eq!(cache.stats().wait_timeouts, n * late as u64);
            pass(2 * MINUTE).await;
            assert_eq!(origin.calls(), 1);
            assert_eq!(told(&log), [1, 2][..n.min(2) as usize], "{}", log.text());
        }
        assert!(log.text().contains("hidden=3"), "{}", log.text());
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_computes_alone_and_is_served_a_stale_value_is_told_of() {
    let (log, _listening) = heard();
    let (cache, origin) = with_old_value(settings().stale_if_error(HOUR)).await;
    // Its answers are known not to be shared.
    let declines = || async { Ok::<_, OriginError>(Computed::new(7).do_not_store()) };
    cache.get_or_compute_with("other", declines).await.unwrap();
    cache.put_with("other", Computed::new(100).ttl(MS)).await;
    pass(SECOND).await;
    origin.usually(Answer::Fail);
    let answer = cache.entry("other").get_or_compute(origin.compute()).await.unwrap();
    assert_eq!((*answer, answer.outcome()), (100, CacheOutcome::StaleIfError));
    assert_eq!(told(&log), [1], "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_its_caller_gets_is_no_line_and_does_not_count() {
    let (log, _listening) = heard();
    let (cache, origin) = with_old_value(settings().stale_if_error(HOUR)).await;
    origin.usually(Answer::Fail);
    for key in ["a", "b", "c"] {
        cache.get_or_compute(key, origin.compute()).await.unwrap_err();
    }
    // A new value is wanted by name: no stale one stands in.
    cache.refresh("k", origin.compute()).await.unwrap_err();
    assert_eq!(log.text(), "");
    pass(MINUTE).await;
    ask(&cache, &origin).await;
    assert_eq!(told(&log), [1], "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn the_oldest_stale_value_is_told_while_it_is_served_and_forgotten_within_a_minute() {
    let (cache, origin) = with_old_value(settings().stale_for(HOUR).stale_if_error(HOUR)).await;
    assert!(cache.stats().oldest_stale.is_zero());
    origin.usually(Answer::Fail);
    for _ in 0..30 {
        ask(&cache, &origin).await;
        pass(10 * SECOND).await;
    }
    let oldest = cache.stats().oldest_stale;
    assert!((6 * MINUTE..=7 * MINUTE).contains(&oldest), "{oldest:?}");
    // Values that are younger, and hits, change nothing.
    cache.put("young", 1).await;
    cache.get("young").await;
    assert_eq!(cache.stats().oldest_stale, oldest);
    origin.usually(Answer::Value);
    pass(2 * MINUTE).await;
    assert!(cache.stats().oldest_stale.is_zero(), "{:?}", cache.stats());
    ask(&cache, &origin).await;
    assert_ne!(ask(&cache, &origin).await, 100);
    let last = cache.stats().oldest_stale;
    assert!(last > 8 * MINUTE, "the last one that was served: {last:?}");
    pass(MINUTE).await;
    assert!(cache.stats().oldest_stale.is_zero(), "{:?}", cache.stats());
}

#[tokio::test(start_paused = true)]
async fn a_value_without_a_lifetime_is_no_old_value_for_its_wave() {
    let cache = settings::<u64>().build().unwrap();
    let brief = || async {
        tokio::time::sleep(SECOND).await;
        Ok::<_, OriginError>(Computed::new(1).ttl(std::time::Duration::ZERO))
    };
    let herd = spawn_herd(10, |_| {
        let cache = cache.clone();
        async move { cache.get_or_compute_with("k", brief).await.unwrap() }
    });
    gather(herd).await;
    assert_eq!(cache.stats().joined, 9);
    assert!(cache.stats().oldest_stale.is_zero());
}

#[tokio::test(start_paused = true)]
async fn a_served_value_has_the_age_that_lookup_tells_and_is_stale_by_its_window() {
    let cache = settings().stale_for(HOUR).stale_if_error(2 * HOUR).build().unwrap();
    let origin = Origin::taking(5 * SECOND);
    let first = cache.entry("k").get_or_compute(origin.compute()).await.unwrap();
    assert_eq!((first.outcome(), first.is_stale()), (CacheOutcome::Computed, false));
    assert_eq!(first.age(), 5 * SECOND);
    origin.usually(Answer::Fail);
    for (passed, outcome) in [
        (10 * SECOND, CacheOutcome::Hit),
        (2 * MINUTE, CacheOutcome::Stale),
        (90 * MINUTE, CacheOutcome::StaleIfError),
    ] {
        pass(passed).await;
        let served = cache.entry("k").get_or_compute(origin.compute()).await.unwrap();
        assert_eq!(served.outcome(), outcome);
        assert_eq!(served.age(), cache.lookup("k").unwrap().age, "{outcome:?}");
        assert_eq!(served.is_stale(), outcome != CacheOutcome::Hit);
        // It is kept, and goes on growing older.
        let age = served.age();
        pass(SECOND).await;
        assert_eq!(served.age(), age + SECOND);
    }
}

#[tokio::test(start_paused = true)]
async fn a_value_that_is_marked_stale_is_stale_at_once_for_those_that_keep_it() {
    let cache = settings().stale_for(HOUR).build().unwrap();
    cache.put("k", 1).await;
    let served = cache.entry("k").get().await.unwrap();
    assert!(!served.is_stale());
    cache.mark_stale("k").await;
    assert!(served.is_stale());
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_is_off_hides_nothing() {
    let (log, _listening) = heard();
    let (cache, origin) = with_old_value(settings().stale_if_error(HOUR)).await;
    cache.set_mode(Mode::Off);
    origin.usually(Answer::Fail);
    cache.get_or_compute("k", origin.compute()).await.unwrap_err();
    let lines = log.lines();
    assert!(matches!(&lines[..], [line] if line.contains("the mode was switched")), "{lines:?}");
}

async fn with_stale_value() -> Stampede<u64> {
    let settings = settings().stale_if_error(HOUR).wait_timeout(5 * SECOND);
    let cache: Stampede<u64> = settings.build().unwrap();
    cache.put("k", 100).await;
    pass(2 * MINUTE).await;
    cache
}

/// The flight has left the table then.
#[tokio::test(start_paused = true)]
async fn a_crowd_that_waits_too_long_is_one_hidden_failure_also_after_a_stale_mark() {
    let (log, _listening) = heard();
    let cache = with_stale_value().await;
    let origin = Origin::taking(20 * SECOND);
    origin.usually(Answer::Fail);
    let callers = spawn_herd(100, |_| {
        let (cache, compute) = (cache.clone(), origin.compute());
        async move { *cache.entry("k").timeout(3 * SECOND).get_or_compute(compute).await.unwrap() }
    });
    pass(SECOND).await;
    cache.mark_stale("k").await;
    assert_eq!(gather(callers).await, [100; 100]);
    pass(MINUTE).await;
    assert_eq!(origin.calls(), 1);
    assert_eq!(told(&log), [1], "{}", log.text());
}

/// The callers of the old flight take the one report of the new one.
#[tokio::test(start_paused = true)]
async fn a_failure_after_a_stale_mark_is_told_though_callers_of_the_flight_before_it_gave_up() {
    let (log, _listening) = heard();
    let cache = with_stale_value().await;
    let (before, after) = (Origin::taking(20 * SECOND), Origin::taking(4 * SECOND));
    after.usually(Answer::Fail);
    let ask = |origin: &Origin, timeout| {
        let (cache, compute) = (cache.clone(), origin.compute());
        async move { *cache.entry("k").timeout(timeout).get_or_compute(compute).await.unwrap() }
    };
    let first = spawn_herd(1, |_| ask(&before, 3 * SECOND));
    pass(SECOND).await;
    cache.mark_stale("k").await;
    let second = spawn_herd(1, |_| ask(&after, 10 * SECOND));
    assert_eq!(gather(first).await, [100]);
    assert_eq!(gather(second).await, [100]);
    all_have_run().await;
    assert_eq!((before.calls(), after.calls()), (1, 1));
    assert!(log.text().contains("call 1 failed"), "two computations: {}", log.text());
    assert_eq!(told(&log), [1, 2], "two computations: {}", log.text());
}

/// The value is fresh: no stale one hides anything.
#[tokio::test(start_paused = true)]
async fn callers_that_are_served_a_fresh_value_at_their_time_out_hide_no_failure() {
    for timeout in [3 * SECOND, HOUR] {
        let (log, _listening) = heard();
        let cache = with_stale_value().await;
        let origin = Origin::taking(8 * SECOND);
        let callers = spawn_herd(100, |_| {
            let (cache, compute) = (cache.clone(), origin.compute());
            async move { *cache.entry("k").timeout(timeout).get_or_compute(compute).await.unwrap() }
        });
        pass(SECOND).await;
        cache.put("k", 200).await;
        let answers = gather(callers).await;
        assert!(answers.iter().filter(|it| **it == 200).count() >= 99, "{answers:?}");
        assert_eq!(told(&log), [0; 0], "{timeout:?} {}", log.text());
    }
}

/// The computation fails in the moment in which its callers give up.
#[tokio::test(start_paused = true)]
async fn a_crowd_whose_wait_ends_with_the_flight_is_one_hidden_failure() {
    for (timeout, takes) in [(3, 3), (5, 5), (60, 5)] {
        let (log, _listening) = heard();
        let cache = with_stale_value().await;
        let origin = Origin::taking(takes * SECOND);
        origin.usually(Answer::Fail);
        let callers = spawn_herd(100, |_| {
            let (cache, compute) = (cache.clone(), origin.compute());
            async move {
                *cache.entry("k").timeout(timeout * SECOND).get_or_compute(compute).await.unwrap()
            }
        });
        assert_eq!(gather(callers).await, [100; 100]);
        pass(MINUTE).await;
        assert_eq!(told(&log), [1], "{timeout} {}", log.text());
    }
}
