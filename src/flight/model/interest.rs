//! Queued leaders, work that may be cancelled, and the callers that want their results.

use super::*;

/// A leader on a task of its own, which waits for a place that another computation has.
fn queued_leader(world: &Arc<World>) -> (Leader<u64>, Leader<u64>) {
    let mut busy = world.lead(&other_key());
    assert!(busy.try_place());
    (busy, world.lead(&key()))
}

#[test]
fn a_queued_leader_that_no_caller_wants_leaves() {
    check(|| {
        let world = World::new(1);
        let (busy, mut leader) = queued_leader(&world);
        let (caller, waiter) = (leader.move_to_task(), world.join(&key()));
        let leaving = [spawn(move || drop(caller)), spawn(move || drop(waiter))];
        assert!(wait(leader.take_place()).is_err(), "no place is free");
        drop(leader);
        join_all(leaving);
        drop(busy);
        world.assert_idle();
    });
}

#[test]
fn a_caller_that_comes_while_a_queued_leader_leaves_is_served() {
    check(|| {
        let world = World::new(1);
        let (busy, mut leader) = queued_leader(&world);
        let caller = leader.move_to_task();
        let late = Arc::clone(&world);
        let late = spawn(move || assert!(wait(late.call(&key())).is_some()));
        let task = Arc::clone(&world);
        let task = spawn(move || {
            let _ = wait(task.compute(leader));
        });
        drop(caller);
        pause();
        drop(busy);
        join_all([late, task]);
        world.assert_idle();
    });
}

#[test]
fn a_place_that_is_handed_to_a_leader_that_leaves_goes_to_the_next() {
    check(|| {
        let world = World::new(1);
        let (busy, mut leader) = queued_leader(&world);
        let caller = leader.move_to_task();
        let leaving = spawn(move || {
            let _ = wait(leader.take_place());
        });
        let next = Arc::clone(&world);
        let next = spawn(move || {
            let mut next = next.lead(&"next".into());
            wait(next.take_place()).expect("its caller waits");
        });
        let ending = spawn(move || drop(busy));
        drop(caller);
        join_all([leaving, next, ending]);
        world.assert_idle();
    });
}

#[test]
fn a_caller_that_comes_while_work_is_cancelled_is_served() {
    check(|| {
        let world = World::cancelling(1);
        let mut leader = world.lead(&key());
        let caller = leader.move_to_task();
        let late = Arc::clone(&world);
        let late = spawn(move || assert!(wait(late.call(&key())).is_some()));
        let task = Arc::clone(&world);
        let task = spawn(move || {
            let _ = wait(task.compute(leader));
        });
        pause();
        drop(caller);
        join_all([late, task]);
        world.assert_idle();
    });
}

#[test]
fn work_is_not_cancelled_while_a_caller_waits() {
    check(|| {
        let world = World::cancelling(1);
        let mut leader = world.lead(&key());
        let (caller, waiter) = (leader.move_to_task(), world.join(&key()));
        let task = Arc::clone(&world);
        let task = spawn(move || assert!(wait(task.compute(leader)).is_some()));
        let leaving = spawn(move || drop(caller));
        join_all([task, leaving]);
        drop(waiter);
        world.assert_idle();
    });
}

#[test]
fn the_place_of_cancelled_work_goes_to_the_next_in_the_queue() {
    check(|| {
        let world = World::cancelling(1);
        let mut leader = world.lead(&key());
        let caller = leader.move_to_task();
        let task = Arc::clone(&world);
        let task = spawn(move || {
            let _ = wait(task.compute(leader));
        });
        let next = Arc::clone(&world);
        let next = spawn(move || assert!(wait(next.call(&other_key())).is_some()));
        pause();
        drop(caller);
        join_all([task, next]);
        world.assert_idle();
    });
}
