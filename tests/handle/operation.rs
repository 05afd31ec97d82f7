//! What an operator sees and does: counts, events, switching off, shutting down.

use tokio::sync::broadcast::error::TryRecvError;
use tokio::time::Instant;
use tower_stampede::{ErrorKind, Event, Health, Key, Mode, Stampede};

use crate::kit::origin::*;
use crate::kit::spawn;

fn ask(
    cache: &Stampede<u64>,
    origin: &Origin,
) -> impl Future<Output = Result<u64, tower_stampede::Error>> + Send + 'static {
    let (cache, compute) = (cache.clone(), origin.compute());
    async move { cache.get_or_compute("k", compute).await }
}

#[tokio::test(start_paused = true)]
async fn the_counts_tell_each_way_to_an_answer() {
    let cache: Stampede<u64> =
        settings().stale_for(MINUTE).stale_if_error(3 * MINUTE).build().unwrap();
    let origin = Origin::taking(100 * MS);
    herd(10, |_| ask(&cache, &origin)).await;
    ask(&cache, &origin).await.unwrap();
    pass(MINUTE).await;
    origin.next([Answer::Fail, Answer::Fail]);
    ask(&cache, &origin).await.unwrap();
    pass(MINUTE + SECOND).await;
    ask(&cache, &origin).await.unwrap();
    cache.invalidate("k").await;

    let stats = cache.stats();
    assert_eq!((stats.computed, stats.joined, stats.hits), (1, 9, 1));
    assert_eq!((stats.stale, stats.stale_if_error), (1, 1));
    assert_eq!((stats.computations, stats.failures), (3, 2));
    assert_eq!((stats.alone, stats.refused, stats.bypassed), (0, 0, 0));
    assert_eq!((stats.invalidations, stats.entries), (1, 0));
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_computation_panics_is_counted_like_one_that_fails() {
    for (mode, computed, alone) in [(Mode::On, 3, 0), (Mode::Observe, 0, 3), (Mode::Off, 0, 3)] {
        let (cache, origin) = (settings::<u64>().build().unwrap(), Origin::new());
        cache.set_mode(mode);
        origin.usually(Answer::Panic);
        let (detached, load) = (cache.clone(), origin.compute());
        assert!(spawn(async move { detached.get_or_compute("a", load).await }).await.is_err());
        let (inside, of_inside) = (cache.clone(), origin.clone());
        let inside = async move { inside.get_or_compute_scoped("b", || of_inside.load()).await };
        assert!(spawn(inside).await.is_err());
        let (fresh, load) = (cache.clone(), origin.compute());
        assert!(spawn(async move { fresh.refresh("c", load).await }).await.is_err());
        let stats = cache.stats();
        assert_eq!((stats.computed, stats.alone, stats.refused), (computed, alone, 0));
        assert_eq!(origin.calls(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn flights_and_waiters_are_counted_while_they_last() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
    let callers = spawn_herd(10, |_| ask(&cache, &origin));
    all_have_run().await;
    assert_eq!((cache.stats().flights, cache.stats().waiting), (1, 9));
    gather(callers).await;
    assert_quiet(&cache);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn events_tell_what_happened_in_order() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
    let mut events = cache.events();
    let key = Key::from("k");
    herd(10, |_| ask(&cache, &origin)).await;
    assert!(matches!(
        events.try_recv().unwrap(),
        Event::Computed { key: k, took, shared: true, .. } if k == key && took == 100 * MS
    ));
    let herd = spawn_herd(1, |_| ask(&cache, &origin));
    gather(herd).await;
    assert_eq!(events.try_recv(), Err(TryRecvError::Empty), "hits are not events");

    cache.invalidate("k").await;
    assert!(matches!(events.try_recv().unwrap(), Event::Invalidated { key: k, .. } if k == key));
    let computing = spawn_herd(1, |_| ask(&cache, &origin));
    all_have_run().await;
    cache.invalidate_all().await;
    assert!(matches!(
        events.try_recv().unwrap(),
        Event::TagInvalidated { tag, .. } if tag.is_everything()
    ));
    gather(computing).await;
    assert!(matches!(events.try_recv().unwrap(), Event::FillRefused { key: k, .. } if k == key));
    assert!(matches!(events.try_recv().unwrap(), Event::Computed { .. }));

    origin.next([Answer::Fail]);
    ask(&cache, &origin).await.unwrap_err();
    assert!(matches!(events.try_recv().unwrap(), Event::Failed { how: "failed", .. }));
    cache.set_mode(Mode::Off);
    assert!(matches!(events.try_recv().unwrap(), Event::ModeChanged { mode: Mode::Off, .. }));
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn switched_off_every_caller_computes_and_nothing_is_stored_or_served() {
    let cache: Stampede<u64> = settings().stale_for(MINUTE).build().unwrap();
    let origin = Origin::taking(100 * MS);
    cache.put("k", 100).await;
    cache.set_mode(Mode::Off);
    assert_eq!((cache.mode(), cache.health()), (Mode::Off, Health::Bypassed));

    let mut answers: Vec<_> = herd(10, |_| ask(&cache, &origin)).await;
    answers.sort_by_key(|answer| *answer.as_ref().unwrap());
    assert!(answers.into_iter().map(Result::unwrap).eq(1..=10));
    assert_eq!((origin.calls(), origin.most_at_once()), (10, 10));
    assert_eq!(cache.get("k").await, None);
    pass(MINUTE + SECOND).await;
    assert_eq!(cache.get("k").await, None, "stale is not served either");

    cache.set_mode(Mode::On);
    assert_eq!(cache.get("k").await, Some(100));
    assert_eq!(cache.health(), Health::Up);
}

#[tokio::test(start_paused = true)]
async fn an_invalidation_while_switched_off_is_not_lost() {
    let cache: Stampede<u64> = settings().build().unwrap();
    for (n, key) in ["by key", "by put", "by all"].into_iter().enumerate() {
        cache.put(key, n as u64).await;
    }
    cache.set_mode(Mode::Off);
    cache.invalidate("by key").await;
    cache.put("by put", 100).await;
    cache.set_mode(Mode::On);
    assert_eq!(cache.get("by key").await, None);
    assert_eq!(cache.get("by put").await, None, "the old value must not come back");
    assert_eq!(cache.get("by all").await, Some(2));
    cache.set_mode(Mode::Off);
    cache.invalidate_all().await;
    cache.set_mode(Mode::On);
    assert_eq!(cache.get("by all").await, None);
}

#[tokio::test(start_paused = true)]
async fn observing_every_caller_computes_while_the_cache_is_filled_and_counts() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
    cache.set_mode(Mode::Observe);
    let mut answers: Vec<u64> =
        herd(10, |_| ask(&cache, &origin)).await.into_iter().map(Result::unwrap).collect();
    answers.sort_unstable();
    assert_eq!(answers, (1..=10).collect::<Vec<_>>());
    assert_eq!(origin.most_at_once(), 10);
    ask(&cache, &origin).await.unwrap();
    assert_eq!(origin.calls(), 11);
    assert_eq!(cache.stats().would_have_answered, 1);
    assert_eq!((cache.stats().hits, cache.stats().joined), (0, 0));
    assert_eq!(cache.get("k").await, None);
    cache.set_mode(Mode::On);
    assert!(cache.get("k").await.is_some());
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn observing_every_caller_with_a_borrowing_computation_computes_too() {
    let (cache, origin) = (settings::<u64>().build().unwrap(), Origin::taking(100 * MS));
    cache.set_mode(Mode::Observe);
    herd(10, |_| {
        let (cache, origin) = (cache.clone(), origin.clone());
        async move { cache.get_or_compute_scoped("k", || origin.load()).await.unwrap() }
    })
    .await;
    assert_eq!((origin.calls(), origin.most_at_once()), (10, 10));
    cache.set_mode(Mode::On);
    assert!(cache.get("k").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_when_the_cache_is_switched_off_still_get_their_answer() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
    let callers = spawn_herd(10, |_| ask(&cache, &origin));
    all_have_run().await;
    cache.set_mode(Mode::Off);
    let answers: Vec<u64> = gather(callers).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers, [1; 10]);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn switched_off_no_caller_is_refused_at_the_end_of_its_wait_for_a_leader_that_hangs() {
    for mode in [Mode::Off, Mode::Observe] {
        let cache: Stampede<u64> = settings().wait_timeout(5 * SECOND).build().unwrap();
        let (hung, origin) = (Origin::new(), Origin::new());
        hung.usually(Answer::Hang);
        let leader = spawn(ask(&cache, &hung));
        all_have_run().await;
        let from = Instant::now();
        let waiters = spawn_herd(3, |_| ask(&cache, &origin));
        all_have_run().await;
        cache.set_mode(mode);
        assert!(gather(waiters).await.iter().all(Result::is_ok), "{mode:?}");
        assert_eq!((from.elapsed(), origin.calls()), (5 * SECOND, 3), "{mode:?}");
        let stats = cache.stats();
        assert_eq!((stats.refused, stats.held, stats.overloaded, stats.alone), (0, 0, 0, 3));
        leader.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_lets_running_computations_finish() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
    let callers = spawn_herd(10, |_| ask(&cache, &origin));
    all_have_run().await;
    let from = Instant::now();
    assert_eq!(cache.shutdown(SECOND).await, 0);
    assert_eq!(from.elapsed(), 99 * MS, "no longer than the work");
    assert!(gather(callers).await.into_iter().all(|answer| answer.unwrap() == 1));
    assert_eq!((origin.calls(), origin.dropped()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_drops_what_still_runs_at_its_deadline() {
    let (cache, origin) = (settings().build().unwrap(), Origin::new());
    origin.next([Answer::Hang]);
    let callers = spawn_herd(10, |_| ask(&cache, &origin));
    all_have_run().await;
    let from = Instant::now();
    assert_eq!(cache.shutdown(SECOND).await, 1);
    assert_eq!(from.elapsed(), SECOND);
    assert_eq!((origin.running(), origin.dropped()), (0, 1));
    // The caller whose work was dropped gets an error; its waiters, and callers
    // that ask now, compute for themselves.
    let answers = gather(callers).await;
    let refused: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].kind(), ErrorKind::ShutDown);
    assert_eq!(origin.calls(), 10);
    ask(&cache, &origin).await.unwrap();
    assert_eq!(origin.calls(), 11);
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn after_a_shutdown_callers_compute_alone_and_the_cache_stays_off() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
    cache.put("k", 100).await;
    cache.shutdown(SECOND).await;
    assert_eq!(cache.health(), Health::Bypassed);
    herd(10, |_| ask(&cache, &origin)).await.into_iter().for_each(|answer| {
        answer.unwrap();
    });
    cache.set_mode(Mode::On);
    assert_eq!(cache.mode(), Mode::Off);
    assert!(ask(&cache, &origin).await.is_ok());
    assert_eq!(origin.calls(), 11);
    assert_eq!(cache.shutdown(SECOND).await, 0, "twice does no harm");
}

#[tokio::test(start_paused = true)]
async fn a_handle_that_is_used_and_dropped_outside_of_a_runtime_does_not_panic() {
    let cache: Stampede<u64> = settings().build().unwrap();
    cache.put("k", 1).await;
    std::thread::spawn(move || {
        assert_eq!(cache.stats().entries, 1);
        drop(cache);
    })
    .join()
    .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_computation_begun_before_the_cache_was_switched_off_is_not_stored() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(SECOND));
    let caller = spawn(ask(&cache, &origin));
    all_have_run().await;
    cache.set_mode(Mode::Off);
    assert_eq!(caller.await.unwrap().unwrap(), 1);
    cache.set_mode(Mode::On);
    assert_eq!(cache.get("k").await, None);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_clock_set_by_hand_deposes_no_leader_that_is_at_work() {
    let clock = tower_stampede::ManualClock::new();
    let builder = settings().compute_timeout(10 * SECOND).clock(&clock);
    let (cache, origin) = (builder.build().unwrap(), Origin::taking(5 * SECOND));
    let early = spawn_herd(2, |_| ask(&cache, &origin));
    all_have_run().await;
    clock.advance(30 * SECOND);
    let late = spawn_herd(1, |_| ask(&cache, &origin));
    for answer in gather(early).await.into_iter().chain(gather(late).await) {
        assert_eq!(answer.unwrap(), 1);
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failure_counts_as_what_its_callers_did() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let origin = Origin::taking(100 * MS);
    origin.usually(Answer::Fail);
    herd(3, |_| ask(&cache, &origin)).await;
    let stats = cache.stats();
    assert_eq!((stats.computations, stats.computed, stats.joined), (1, 1, 2));

    pass(MINUTE).await;
    for (mode, alone) in [(Mode::Off, 1), (Mode::Observe, 2)] {
        cache.set_mode(mode);
        ask(&cache, &origin).await.unwrap_err();
        let stats = cache.stats();
        assert_eq!((stats.alone, stats.computed, stats.refused), (alone, 1, 0), "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_is_told_as_a_switch_and_a_switch_after_it_is_none() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let mut events = cache.events();
    cache.shutdown(SECOND).await;
    assert!(matches!(events.try_recv().unwrap(), Event::ModeChanged { mode: Mode::Off, .. }));
    cache.set_mode(Mode::On);
    cache.shutdown(SECOND).await;
    assert_eq!(events.try_recv(), Err(TryRecvError::Empty));
    assert_eq!(cache.mode(), Mode::Off);
}
