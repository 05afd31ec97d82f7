//! The engine alone, on a store that is a map: what no surface can show.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::{Clock, Tick};
use crate::entry::Entry;
use crate::error::{Error, ErrorKind};
use crate::flight::admission::Admission;
use crate::flight::end::{Conclusion, End, Remember};
use crate::flight::engine::Engine;
use crate::flight::hold::{FailureRule, HoldRule};
use crate::flight::leader::Leader;
use crate::flight::ports::{Store, StoreChange};
use crate::flight::request::FlightRequest;
use crate::flight::waiter::{Caller, Fit, FlightResult, Resolver, Step};
use crate::freshness::{Lifetimes, Window};
use crate::garbage::Garbage;
use crate::key::Key;
use crate::observe::{CacheLabel, Observe, Occurrence};
use crate::outcome::CacheOutcome;
use crate::settings::Settings;

const SECOND: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Map(Mutex<HashMap<Key, Arc<Entry<u32>>>>);

fn changed(applied: bool) -> StoreChange<u32> {
    StoreChange { applied, garbage: Garbage::none() }
}

impl Store<u32> for Map {
    fn fill(
        &self,
        key: &Key,
        entry: Arc<Entry<u32>>,
        allowed: &dyn Fn() -> bool,
    ) -> StoreChange<u32> {
        let mut map = self.0.lock();
        let applied = allowed();
        if applied {
            map.insert(key.clone(), entry);
        }
        changed(applied)
    }

    fn remove(&self, key: &Key) -> StoreChange<u32> {
        changed(self.0.lock().remove(key).is_some())
    }

    fn peek(&self, key: &[u8]) -> Option<Arc<Entry<u32>>> {
        self.0.lock().get(key).cloned()
    }

    fn clear(&self) -> Garbage<u32> {
        self.0.lock().clear();
        Garbage::none()
    }

    fn remove_exactly(&self, key: &Key, entry: &Arc<Entry<u32>>) -> Garbage<u32> {
        let mut map = self.0.lock();
        if map.get(key).is_some_and(|found| Arc::ptr_eq(found, entry)) {
            map.remove(key);
        }
        Garbage::none()
    }

    fn retain(&self, keep: &dyn Fn(&Entry<u32>) -> bool) -> Garbage<u32> {
        self.0.lock().retain(|_, entry| keep(entry));
        Garbage::none()
    }
}

struct Nobody;

impl Observe for Nobody {
    fn happened(&self, _: Occurrence<'_>) {}
}

fn engine() -> (Arc<Engine<u32>>, Arc<Map>) {
    let settings = Settings {
        compute_timeout: Some(SECOND * 10),
        wait_timeout: Some(SECOND * 30),
        max_waiters: Some(100),
        max_waiters_in_all: Some(1000),
        max_computations: Some(10),
        max_logged_tags: Some(1000),
        ..Settings::default()
    };
    let label = CacheLabel { name: "test".into(), log_keys: false };
    let map = Arc::new(Map::default());
    let engine = Engine::new(
        label,
        settings,
        Clock::runtime(),
        Arc::clone(&map) as _,
        Arc::new(Nobody) as _,
    );
    (Arc::new(engine), map)
}

fn entry(leader: &Leader<u32>, value: u32) -> Arc<Entry<u32>> {
    let lifetimes =
        Lifetimes { ttl: SECOND * 60, stale_for: Duration::ZERO, stale_if_error: Duration::ZERO };
    let window = Window::new(leader.started.tick, lifetimes, SECOND);
    Arc::new(Entry::new(value, window, Box::default(), leader.started.seq))
}

fn end_filled(leader: Leader<u32>, value: u32) {
    let entry = entry(&leader, value);
    leader.end(End::Filled { entry, stored: false });
}

fn lead(engine: &Arc<Engine<u32>>) -> Leader<u32> {
    match engine.enter(&FlightRequest::of("k".into()), &mut None) {
        Admission::Lead(leader) => leader,
        _ => panic!("there is a flight already"),
    }
}

/// A caller that takes values below `less_than` only.
struct Picky {
    engine: Arc<Engine<u32>>,
    map: Arc<Map>,
    less_than: u32,
}

impl Caller<u32> for Picky {
    fn flight_request(&mut self) -> FlightRequest {
        FlightRequest::of("k".into())
    }

    fn second_look(&mut self) -> Option<Arc<Entry<u32>>> {
        let found = self.map.0.lock().get(&Key::from("k")).cloned();
        found.filter(|entry| self.engine.log.is_alive(entry) && entry.value < self.less_than)
    }

    fn fits(&mut self, result: &FlightResult<'_, u32>) -> Fit {
        let is_answer = result.entry.value < self.less_than && result.may_be_taken();
        if is_answer { Fit::Takes } else { Fit::Refused }
    }

    fn fallback(&self) -> Option<Arc<Entry<u32>>> {
        None
    }
}

fn ask(
    engine: &Arc<Engine<u32>>,
    map: &Arc<Map>,
    less_than: u32,
) -> tokio::task::JoinHandle<Step<u32>> {
    let mut caller = Picky { engine: Arc::clone(engine), map: Arc::clone(map), less_than };
    let engine = Arc::clone(engine);
    tokio::spawn(async move { Resolver::new(&engine).resolve(&mut caller).await })
}

async fn value(step: tokio::task::JoinHandle<Step<u32>>) -> u32 {
    match step.await.unwrap() {
        Step::Answer(entry, CacheOutcome::Joined) => entry.value,
        other => panic!("{other:?}"),
    }
}

/// Lets every other task run until it waits.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_published_answer_is_there_for_who_waits_and_for_who_comes_before_it_is_settled() {
    let (engine, map) = engine();
    let leader = lead(&engine);
    let early = ask(&engine, &map, 100);
    settle().await;
    leader.publish(entry(&leader, 7));
    assert_eq!(value(early).await, 7);
    let late = ask(&engine, &map, 100);
    assert_eq!(value(late).await, 7);
    assert_eq!(engine.table.running(), 1, "joinable until it settles");
    end_filled(leader, 7);
    assert_eq!(engine.table.running(), 0);
}

#[tokio::test(start_paused = true)]
async fn who_comes_after_the_answer_was_published_gets_it_only_while_it_is_fresh() {
    let (engine, map) = engine();
    let leader = lead(&engine);
    leader.expect_within(SECOND * 600);
    leader.publish(entry(&leader, 7));
    tokio::time::advance(SECOND * 61).await;
    let late = ask(&engine, &map, 100);
    settle().await;
    assert!(!late.is_finished(), "it waits for the flight to settle");
    end_filled(leader, 7);
    assert!(matches!(late.await.unwrap(), Step::Lead(_)));
}

#[tokio::test(start_paused = true)]
async fn who_cannot_use_the_answer_looks_again_only_when_the_flight_is_settled() {
    let (engine, map) = engine();
    let leader = lead(&engine);
    let picky = ask(&engine, &map, 5);
    settle().await;
    leader.publish(entry(&leader, 7));
    settle().await;
    assert!(!picky.is_finished());
    end_filled(leader, 7);
    assert!(matches!(picky.await.unwrap(), Step::Lead(_)), "then it leads its own");
}

#[tokio::test(start_paused = true)]
async fn a_leader_dropped_between_the_two_phases_leaves_nobody_behind() {
    let (engine, map) = engine();
    let leader = lead(&engine);
    let (taker, picky) = (ask(&engine, &map, 100), ask(&engine, &map, 5));
    settle().await;
    leader.publish(entry(&leader, 7));
    drop(leader);
    assert_eq!(value(taker).await, 7);
    assert!(matches!(picky.await.unwrap(), Step::Lead(_)));
    assert_eq!((engine.table.running(), engine.waiting()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_late_leader_neither_closes_a_newer_flight_nor_stores_over_its_value() {
    let (engine, map) = engine();
    let old = lead(&engine);
    engine.forget(&"k".into());
    let new = lead(&engine);
    let waiter = ask(&engine, &map, 100);
    settle().await;
    let (old_value, new_value) = (entry(&old, 1), entry(&new, 2));
    drop(old.fill(&old_value));
    assert_eq!(engine.table.running(), 1, "the newer flight is still there");
    assert!(map.0.lock().is_empty(), "and nothing is stored");
    drop(new.fill(&new_value));
    assert_eq!(value(waiter).await, 2);
    assert_eq!(map.0.lock()[&Key::from("k")].value, 2);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_nobody_polls_is_deposed_and_its_late_result_is_not_stored() {
    let (engine, map) = engine();
    let mut leader = lead(&engine);
    leader.take_place().await.unwrap();
    leader.expect_within(SECOND * 10);
    let waiter = ask(&engine, &map, 100);
    let step = waiter.await.unwrap();
    let Step::Refuse(error) = step else { panic!("{step:?}") };
    assert_eq!(error.kind(), ErrorKind::ComputeTimeout);
    assert_eq!(engine.places.free(), 10, "its place is free again");
    let newer = lead(&engine);
    let late = entry(&leader, 1);
    drop(leader.fill(&late));
    assert!(map.0.lock().is_empty());
    drop(newer);
}

type Ending = fn(Leader<u32>, FailureRule);

#[tokio::test(start_paused = true)]
async fn however_a_leader_ends_it_is_out_of_the_table_and_its_waiters_go_on() {
    let rule = FailureRule { hold: HoldRule::Never, stale_until: None, each_computes: false };
    let ends: [(&str, Ending); 8] = [
        ("drop", |leader, _| drop(leader)),
        ("withdraw", |leader, _| leader.end(Conclusion::Withdraw)),
        ("decline", |leader, _| leader.end(Conclusion::Decline(Remember::Nothing))),
        ("not shared", |leader, _| leader.end(Conclusion::NotShared)),
        ("fail", |leader, rule| {
            leader.end(Conclusion::Fail {
                error: Error::new(ErrorKind::Inner),
                rule,
                result: None,
            });
        }),
        ("fill", |leader, _| {
            let entry = entry(&leader, 7);
            drop(leader.fill(&entry));
        }),
        ("found", |leader, _| {
            let entry = entry(&leader, 7);
            leader.end(End::Found(entry));
        }),
        ("panic", |leader, _| {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let _leader = leader;
                std::panic::resume_unwind(Box::new("as the user's code does"));
            }));
            assert!(panicked.is_err());
        }),
    ];
    for (name, end) in ends {
        let (engine, map) = engine();
        let leader = lead(&engine);
        let waiters: Vec<_> = (0..3).map(|_| ask(&engine, &map, 100)).collect();
        settle().await;
        assert_eq!(engine.waiting(), 3, "{name}");
        end(leader, rule);
        for waiter in waiters {
            // Dropping a step that leads hands the lead to the next.
            drop(waiter.await.unwrap());
        }
        assert_eq!((engine.table.running(), engine.waiting()), (0, 0), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_its_leaders_own_affair_elects_twice_and_then_everybody_goes_alone() {
    let (engine, map) = engine();
    let first = lead(&engine);
    let mut waiters: Vec<_> = (0..20).map(|_| ask(&engine, &map, 100)).collect();
    settle().await;
    first.end(Conclusion::NotShared);
    for round in 0..2 {
        settle().await;
        let at = waiters.iter().position(|waiter| waiter.is_finished()).expect("one is elected");
        let step = waiters.remove(at).await.unwrap();
        let Step::Lead(leader) = step else { panic!("round {round}: {step:?}") };
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "only one");
        leader.end(Conclusion::NotShared);
    }
    for waiter in waiters {
        assert!(matches!(waiter.await.unwrap(), Step::Alone(_)));
    }
}

#[tokio::test(start_paused = true)]
async fn an_uncacheable_key_is_led_by_one_and_passed_by_the_others() {
    let (engine, map) = engine();
    lead(&engine).end(Conclusion::Decline(Remember::Everywhere));
    let leader = lead(&engine);
    assert!(matches!(ask(&engine, &map, 100).await.unwrap(), Step::Alone(_)));
    let stored = entry(&leader, 7);
    drop(leader.fill(&stored));
    let leader = lead(&engine);
    let joined = ask(&engine, &map, 100);
    settle().await;
    assert!(!joined.is_finished(), "a stored answer has cleared the marker");
    drop(leader);
    assert!(matches!(joined.await.unwrap(), Step::Answer(_, CacheOutcome::Hit)));
}

#[test]
fn the_clock_of_a_reading_is_far_from_both_ends() {
    let now = Clock::runtime().now();
    assert!(now > Tick::from_nanos(0).plus(SECOND * 1_000_000));
    assert!(now.plus(Duration::from_secs(100 * 365 * 86400)) > now);
}
