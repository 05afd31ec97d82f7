//! Leaders that are dropped at any step, or deposed while they end.

use super::*;
use crate::flight::phase::{Flight, Verdict};

/// A verdict, to be compared.
fn kind(verdict: &Verdict<u64>) -> std::mem::Discriminant<Verdict<u64>> {
    std::mem::discriminant(verdict)
}

fn settled(flight: &Flight<u64>) -> Verdict<u64> {
    flight.verdict().expect("the flight has a verdict")
}

#[test]
fn a_leader_that_is_deposed_while_it_ends_leaves_one_verdict_and_returns_its_place_once() {
    check(|| {
        let world = World::new(1);
        let mut leader = world.lead(&key());
        assert!(leader.try_place());
        let (flight, waiter) = (Arc::clone(&leader.flight), world.join(&key()));
        let waiting = spawn(move || {
            let seen = kind(&wait(waiter.flight.wait()));
            wait(waiter.flight.wait_settled());
            assert_eq!(kind(&settled(&waiter.flight)), seen, "a second verdict");
        });
        let (deposing, deposed) = (Arc::clone(&world), Arc::clone(&flight));
        let deposing = spawn(move || {
            deposing.engine.depose(&deposed);
            // The next leader needs the place.
            if let Admission::Lead(mut next) = deposing.enter(&key()) {
                wait(next.take_place()).expect("the place is free again");
                end_somehow(&deposing, next);
            }
        });
        end_somehow(&world, leader);
        join_all([waiting, deposing]);
        world.assert_idle();
    });
}

#[test]
fn a_deposed_leader_stores_nothing_over_the_value_of_the_next() {
    check(|| {
        let world = World::new(1);
        let mut silent = world.lead(&key());
        assert!(silent.try_place());
        let (flight, late) = (Arc::clone(&silent.flight), world.entry(&silent, 1, &[]));
        world.origin.store(2, Ordering::SeqCst);
        let value = Arc::new(AtomicU64::new(0));
        let (next, returned) = (Arc::clone(&world), Arc::clone(&value));
        let next = spawn(move || {
            next.engine.depose(&flight);
            let value = wait(next.call(&key())).expect("nothing fails");
            returned.store(value, Ordering::SeqCst);
        });
        drop(silent.fill(&late));
        join_all([next]);
        // Or the silent leader had stored its value before it was deposed.
        if value.load(Ordering::SeqCst) == 2 {
            assert_eq!(world.get(&key()).map(|entry| entry.value), Some(2));
        }
        world.assert_idle();
    });
}

#[test]
fn callers_that_are_dropped_at_any_step_leave_nothing_behind() {
    check(|| {
        let world = World::new(1);
        let call = |key: Key| {
            let world = Arc::clone(&world);
            shuttle::future::spawn(async move { world.call(&key).await })
        };
        let dropped = [call(key()), call(other_key())];
        let staying = [call(key()), call(other_key())];
        for task in &dropped {
            pause();
            task.abort();
        }
        for task in staying {
            assert_eq!(wait(task).expect("it is not dropped"), Some(1));
        }
        for task in dropped {
            let _ = wait(task);
        }
        world.assert_idle();
    });
}

#[test]
fn a_leader_that_is_dropped_hands_the_lead_to_one_waiter() {
    check(|| {
        let world = World::new(1);
        let leader = world.lead(&key());
        let leading = Arc::new(AtomicU64::new(0));
        let waiters = (0..2).map(|_| {
            let (world, leading) = (Arc::clone(&world), Arc::clone(&leading));
            spawn(move || {
                if let Step::Lead(leader) = wait(world.resolve(&key())) {
                    assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0, "two lead");
                    leading.fetch_sub(1, Ordering::SeqCst);
                    drop(leader);
                }
            })
        });
        let waiters: Vec<_> = waiters.collect();
        drop(leader);
        join_all(waiters);
        world.assert_idle();
    });
}
