//! The table: which caller leads, which join, and what a caller finds after an end.

use super::*;
use crate::flight::phase::Verdict;
use crate::flight::waiter::{AloneReason, Fit, FlightResult};
use crate::sync::AtomicUsize;

#[test]
fn every_caller_gets_an_answer_or_leads() {
    check(|| {
        let world = World::new(1);
        let callers = (0..3).map(|_| {
            let world = Arc::clone(&world);
            spawn(move || {
                if let Step::Lead(mut leader) = wait(world.resolve(&key())) {
                    leader.try_place();
                    end_somehow(&world, leader);
                }
            })
        });
        join_all(callers.collect::<Vec<_>>());
        world.assert_idle();
    });
}

#[test]
fn a_caller_that_enters_after_the_end_never_joins_the_ended_flight() {
    check(|| {
        let world = World::new(1);
        let leader = world.lead(&key());
        let (id, has_ended) = (leader.flight.id, Arc::new(AtomicUsize::new(0)));
        let callers = (0..2).map(|_| {
            let (world, has_ended) = (Arc::clone(&world), Arc::clone(&has_ended));
            spawn(move || {
                let is_after = has_ended.load(Ordering::SeqCst) == 1;
                if let Admission::Join(waiter) = world.enter(&key()) {
                    assert!(!is_after || waiter.flight.id != id, "joined an ended flight");
                    wait(waiter.flight.wait());
                }
            })
        });
        let callers: Vec<_> = callers.collect();
        end_somehow(&world, leader);
        has_ended.store(1, Ordering::SeqCst);
        join_all(callers);
        world.assert_idle();
    });
}

#[test]
fn a_waiter_that_looks_again_never_joins_the_settled_flight() {
    check(|| {
        let world = World::new(1);
        let leader = world.lead(&key());
        let waiters = (0..2).map(|_| {
            let (world, waiter) = (Arc::clone(&world), world.join(&key()));
            spawn(move || {
                wait(waiter.flight.wait_settled());
                if let Admission::Join(next) = world.enter(&key()) {
                    assert_ne!(next.flight.id, waiter.flight.id, "joined a settled flight");
                }
            })
        });
        let waiters: Vec<_> = waiters.collect();
        end_somehow(&world, leader);
        join_all(waiters);
        world.assert_idle();
    });
}

#[test]
fn a_failure_that_an_invalidation_has_overtaken_holds_no_caller() {
    check(|| {
        let world = World::new(1);
        let leader = world.lead(&key());
        let failing = spawn(move || {
            leader.end(Conclusion::Fail {
                error: Error::new(ErrorKind::Inner),
                rule: HOLD,
                result: None,
            });
        });
        world.invalidate(&key());
        drop(world.lead(&key()));
        join_all([failing]);
        drop(world.lead(&key()));
        world.assert_idle();
    });
}

#[test]
fn a_caller_that_does_not_join_a_failing_flight_sees_its_hold() {
    check(|| {
        let world = World::new(1);
        let leader = world.lead(&key());
        let callers = (0..2).map(|_| {
            let world = Arc::clone(&world);
            spawn(move || match world.enter(&key()) {
                Admission::Join(waiter) => {
                    assert!(matches!(wait(waiter.flight.wait()), Verdict::Failed(_)));
                }
                Admission::Held(_) => {}
                _ => panic!("there was neither a flight nor a hold"),
            })
        });
        let callers: Vec<_> = callers.collect();
        leader.end(Conclusion::Fail {
            error: Error::new(ErrorKind::Inner),
            rule: HOLD,
            result: None,
        });
        join_all(callers);
        world.assert_idle();
    });
}

#[test]
fn a_caller_that_does_not_join_a_declining_flight_sees_that_the_key_is_uncacheable() {
    check(|| {
        let world = World::new(1);
        let leader = world.lead(&key());
        let id = leader.flight.id;
        let callers = (0..2).map(|_| {
            let world = Arc::clone(&world);
            spawn(move || match world.enter(&key()) {
                Admission::Join(waiter) => {
                    assert_eq!(waiter.flight.id, id, "joined the flight of an uncacheable key");
                    assert!(matches!(wait(waiter.flight.wait()), Verdict::Declined(_)));
                }
                Admission::Lead(leader) => {
                    let now = world.engine.clock.now();
                    let seen =
                        world.engine.table.read_marks(&key(), |it| it.evidence.is_declined(now));
                    assert_eq!(seen, Some(true));
                    leader.end(Conclusion::Decline(Remember::Here));
                }
                Admission::Alone(reason) => assert_eq!(reason, AloneReason::Passed),
                Admission::Held(_) | Admission::Overloaded => panic!("nothing has failed"),
            })
        });
        let callers: Vec<_> = callers.collect();
        leader.end(Conclusion::Decline(Remember::Here));
        join_all(callers);
        world.assert_idle();
    });
}

#[test]
fn a_waiter_that_looks_again_finds_what_a_published_flight_has_stored() {
    check(|| {
        let world = World::new(1);
        let leader = world.lead(&key());
        let waiters = (0..2).map(|_| {
            let (world, waiter) = (Arc::clone(&world), world.join(&key()));
            spawn(move || {
                assert!(matches!(wait(waiter.flight.wait()), Verdict::Filled(_)));
                wait(waiter.flight.wait_settled());
                assert_eq!(world.get(&key()).map(|entry| entry.value), Some(7));
            })
        });
        let waiters: Vec<_> = waiters.collect();
        let entry = world.entry(&leader, 7, &[]);
        leader.publish(Arc::clone(&entry));
        drop(leader.fill(&entry));
        join_all(waiters);
        world.assert_idle();
    });
}

#[test]
fn waiters_beyond_the_bound_are_turned_away_and_the_others_are_counted() {
    check(|| {
        let world = World::new(1);
        let leader = world.lead(&key());
        let joined = Arc::new(AtomicUsize::new(0));
        let callers = (0..3).map(|_| {
            let (flight, joined) = (Arc::clone(&leader.flight), Arc::clone(&joined));
            spawn(move || {
                if let Some(waiter) = Waiter::join(&flight, &FlightRequest::of(key()), 2) {
                    assert!(joined.fetch_add(1, Ordering::SeqCst) < 2, "three wait");
                    pause();
                    joined.fetch_sub(1, Ordering::SeqCst);
                    drop(waiter);
                }
            })
        });
        join_all(callers.collect::<Vec<_>>());
        let flight = Arc::clone(&leader.flight);
        drop(leader);
        assert!(!flight.is_wanted(), "interest is left");
        world.assert_idle();
    });
}

/// A caller that takes computed values from 2 on, and waits for no other one to be stored.
struct Leaving<'a>(ModelCaller<'a>);

impl Caller<u64> for Leaving<'_> {
    fn flight_request(&mut self) -> FlightRequest {
        self.0.flight_request()
    }

    fn second_look(&mut self) -> Option<Arc<Entry<u64>>> {
        self.0.second_look().filter(|found| found.value >= 2)
    }

    fn fits(&mut self, result: &FlightResult<'_, u64>) -> Fit {
        let is_answer = result.entry.value >= 2 && result.may_be_taken();
        if is_answer { Fit::Takes } else { Fit::Leaves }
    }

    fn fallback(&self) -> Option<Arc<Entry<u64>>> {
        None
    }
}

#[test]
fn callers_that_leave_an_arriving_result_share_a_newer_one_that_the_older_does_not_replace() {
    check(|| {
        let world = World::new(2);
        let first = world.lead(&key());
        let led = Arc::new(AtomicUsize::new(0));
        let callers = (0..2).map(|_| {
            let (world, led) = (Arc::clone(&world), Arc::clone(&led));
            spawn(move || {
                let mut caller = Leaving(ModelCaller { world: &world, key: key() });
                match wait(Resolver::new(&world.engine).resolve(&mut caller)) {
                    Step::Lead(mut leader) => {
                        led.fetch_add(1, Ordering::SeqCst);
                        leader.try_place();
                        let entry = world.entry(&leader, 2, &[]);
                        leader.publish(Arc::clone(&entry));
                        pause();
                        drop(leader.fill(&entry));
                    }
                    Step::Answer(entry, _) => assert_eq!(entry.value, 2),
                    other => panic!("{other:?}"),
                }
            })
        });
        let callers: Vec<_> = callers.collect();
        let old = world.entry(&first, 1, &[]);
        first.publish(Arc::clone(&old));
        pause();
        drop(first.fill(&old));
        join_all(callers);
        assert_eq!(led.load(Ordering::SeqCst), 1, "one of them computes");
        assert_eq!(world.get(&key()).map(|entry| entry.value), Some(2));
        world.assert_idle();
    });
}
