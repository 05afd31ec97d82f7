//! What is stored, against `invalidate` and `put`.

use super::*;
use crate::flight::phase::Verdict;

#[test]
fn a_woken_waiter_finds_the_value_in_the_store() {
    check(|| {
        let world = World::new(1);
        let leader = world.lead(&key());
        let waiters = (0..2).map(|_| {
            let (world, waiter) = (Arc::clone(&world), world.join(&key()));
            spawn(move || {
                let Verdict::Filled(entry) = wait(waiter.flight.wait()) else {
                    panic!("the leader fills")
                };
                let found = world.get(&key()).expect("stored before it was published");
                assert!(Arc::ptr_eq(&found, &entry));
            })
        });
        let waiters: Vec<_> = waiters.collect();
        let entry = world.entry(&leader, 7, &[]);
        drop(leader.fill(&entry));
        join_all(waiters);
        world.assert_idle();
    });
}

/// A leader that has read 1 fills, and a caller asks, while `write` changes the value to 2.
/// A caller that asks after the write gets 2, and no older value is in the store then.
fn check_write(write: impl Fn(&World) + Copy + Send + Sync + 'static) -> impl Fn() + Send + Sync {
    move || {
        let world = World::new(2);
        let leader = world.lead(&key());
        let (old, written) = (world.entry(&leader, 1, &[]), Arc::new(AtomicU64::new(0)));
        let filling = spawn(move || drop(leader.fill(&old)));
        let caller = {
            let (world, written) = (Arc::clone(&world), Arc::clone(&written));
            spawn(move || {
                let least = written.load(Ordering::SeqCst);
                let value = wait(world.call(&key())).expect("nothing fails");
                assert!(value >= least, "asked after the write, got {value}");
            })
        };
        world.origin.store(2, Ordering::SeqCst);
        write(&world);
        written.store(2, Ordering::SeqCst);
        let is_new = |world: &World| world.get(&key()).is_none_or(|entry| entry.value == 2);
        assert!(is_new(&world), "an older value is stored");
        join_all([filling, caller]);
        assert!(is_new(&world), "an older value was stored later");
        world.assert_idle();
    }
}

#[test]
fn no_older_value_is_stored_or_served_after_an_invalidation() {
    check(check_write(|world| world.invalidate(&key())));
}

#[test]
fn no_older_value_is_stored_or_served_after_an_invalidation_of_everything() {
    check(check_write(|world| world.invalidate_tag("*")));
}

#[test]
fn no_older_value_is_stored_or_served_after_a_put() {
    check(check_write(|world| world.put(&key(), 2)));
}

#[test]
fn what_was_put_is_found_until_it_is_invalidated() {
    check(|| {
        let world = World::new(2);
        let caller = Arc::clone(&world);
        let caller = spawn(move || {
            if let Admission::Lead(leader) = caller.enter(&key()) {
                let entry = caller.entry(&leader, 2, &[]);
                drop(leader.fill(&entry));
            }
        });
        world.put(&key(), 2);
        assert!(world.get(&key()).is_some(), "what was put is gone");
        join_all([caller]);
        assert!(world.get(&key()).is_some(), "what was put is gone later");
        world.assert_idle();
    });
}

#[test]
fn a_put_is_not_replaced_by_a_computation_that_began_before_it() {
    check(|| {
        let world = World::new(2);
        let leader = world.lead(&key());
        let entry = world.entry(&leader, 1, &[]);
        let filling = spawn(move || drop(leader.fill(&entry)));
        let other = Arc::clone(&world);
        let other = spawn(move || {
            other.origin.store(2, Ordering::SeqCst);
            other.put(&key(), 2);
        });
        join_all([filling, other]);
        assert_eq!(world.get(&key()).map(|entry| entry.value), Some(2));
        world.assert_idle();
    });
}

#[test]
fn of_two_flights_of_one_key_the_forgotten_one_stores_nothing() {
    check(|| {
        let world = World::new(2);
        let old = world.lead(&key());
        world.invalidate(&key());
        let new = world.lead(&key());
        let (old_entry, new_entry) = (world.entry(&old, 1, &[]), world.entry(&new, 2, &[]));
        let ends =
            [spawn(move || drop(old.fill(&old_entry))), spawn(move || drop(new.fill(&new_entry)))];
        join_all(ends);
        assert_eq!(world.get(&key()).map(|entry| entry.value), Some(2));
        world.assert_idle();
    });
}
