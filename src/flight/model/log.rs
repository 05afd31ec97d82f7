//! The invalidation log: dead entries stay dead, and no other entry dies.

use super::*;
use crate::clock::Tick;
use crate::invalidation::{ASKED_NOW, InvalidationLog};
use crate::sync::AtomicUsize;

const T0: Tick = Tick::from_nanos(0);

fn tags(names: &[&str]) -> Vec<Tag> {
    names.iter().map(|name| Tag::from(*name)).collect()
}

#[test]
fn a_reader_that_reads_the_new_number_finds_the_record() {
    check(|| {
        let world = World::new(1);
        let log = Arc::new(InvalidationLog::new(10));
        let entry = world.entry_of(1, 0, &tags(&["a"]));
        let reader = {
            let (log, entry) = (Arc::clone(&log), Arc::clone(&entry));
            spawn(move || {
                // One record alone is appended.
                if log.seq() == 1 {
                    assert!(log.is_dead(&entry.tags, 0, ASKED_NOW));
                    assert!(!log.is_alive(&entry));
                }
            })
        };
        let dropping = {
            let log = Arc::clone(&log);
            spawn(move || log.drop_slice(log.oldest_slice()))
        };
        log.append("a".into(), T0).expect("there is room");
        join_all([reader, dropping]);
        assert!(!log.is_alive(&entry));
    });
}

/// An entry with the tag `a`, while `a` is invalidated and other tags push its record out.
fn check_related(tag: &'static str) -> impl Fn() + Send + Sync {
    move || {
        let world = World::with_log(1, 2);
        let entry = world.entry_of(1, 0, &tags(&["a"]));
        assert!(world.store.fill(&key(), Arc::clone(&entry), &|| true).finish());
        let invalidated = Arc::new(AtomicUsize::new(0));
        let others = Arc::clone(&world);
        let others = spawn(move || {
            for other in ["x", "y", "z"] {
                others.invalidate_tag(other);
            }
        });
        let reader = {
            let (world, entry) = (Arc::clone(&world), Arc::clone(&entry));
            let invalidated = Arc::clone(&invalidated);
            spawn(move || {
                for _ in 0..2 {
                    let is_after = invalidated.load(Ordering::SeqCst) == 1;
                    let is_alive = world.engine.log.is_alive(&entry);
                    assert!(!(is_after && is_alive), "alive after its invalidation");
                }
            })
        };
        world.invalidate_tag(tag);
        invalidated.store(1, Ordering::SeqCst);
        assert!(!world.engine.log.is_alive(&entry));
        join_all([others, reader]);
        assert!(!world.engine.log.is_alive(&entry));
    }
}

#[test]
fn a_related_entry_is_dead_once_its_invalidation_has_returned() {
    check(check_related("a"));
}

#[test]
fn every_entry_is_dead_once_the_invalidation_of_everything_has_returned() {
    check(check_related("*"));
}

/// What the tidying task does when the log wants room (`cache/state.rs`).
fn sweep(world: &World) {
    let log = &world.engine.log;
    let slice = log.wants_room().then(|| log.oldest_slice());
    drop(world.store.retain(&|entry| log.is_alive(entry)));
    if let Some(slice) = slice {
        log.drop_slice(slice);
    }
}

#[test]
fn an_unrelated_entry_never_dies_when_records_are_dropped() {
    check(|| {
        let world = World::with_log(1, 2);
        let entry = world.entry_of(1, 0, &tags(&["a"]));
        assert!(world.store.fill(&key(), Arc::clone(&entry), &|| true).finish());
        // The second thread renews the records among which the first one chooses.
        let invalidating = [["x", "y", "z", "u"], ["x", "y", "x", "y"]].map(|others| {
            let world = Arc::clone(&world);
            spawn(move || others.iter().for_each(|other| world.invalidate_tag(other)))
        });
        let sweeping = Arc::clone(&world);
        let sweeping = spawn(move || sweep(&sweeping));
        for _ in 0..3 {
            assert!(world.get(&key()).is_some(), "an unrelated entry died");
        }
        join_all(invalidating);
        join_all([sweeping]);
        assert!(world.get(&key()).is_some(), "an unrelated entry died");
    });
}

#[test]
fn an_unrelated_entry_does_not_die_with_a_record_that_is_just_written() {
    check(|| {
        let world = World::with_log(1, 1);
        let entry = world.entry_of(1, 0, &tags(&["a"]));
        assert!(world.store.fill(&key(), entry, &|| true).finish());
        let sweeping = Arc::clone(&world);
        let sweeping = spawn(move || sweep(&sweeping));
        world.invalidate_tag("x");
        join_all([sweeping]);
        assert!(world.get(&key()).is_some(), "an unrelated entry died");
    });
}

#[test]
fn an_unrelated_entry_that_is_filled_while_records_are_dropped_does_not_die_later() {
    check(|| {
        let world = World::with_log(1, 2);
        let filled = Arc::new(AtomicUsize::new(0));
        let filling = {
            let (world, filled) = (Arc::clone(&world), Arc::clone(&filled));
            spawn(move || {
                let leader = world.lead(&key());
                let entry = world.entry(&leader, 1, &tags(&["a"]));
                let store = &world.engine.local;
                let allowed = || leader.may_store(&entry);
                let is_filled = store.fill(&key(), Arc::clone(&entry), &allowed).finish();
                filled.store(usize::from(is_filled), Ordering::SeqCst);
                leader.end(End::Filled { entry, stored: is_filled });
            })
        };
        let sweeping = Arc::clone(&world);
        let sweeping = spawn(move || sweep(&sweeping));
        for other in ["x", "y", "z"] {
            world.invalidate_tag(other);
        }
        join_all([filling, sweeping]);
        let is_filled = filled.load(Ordering::SeqCst) == 1;
        assert_eq!(world.get(&key()).is_some(), is_filled, "stored, and it died");
        world.invalidate_tag("t");
        assert_eq!(world.get(&key()).is_some(), is_filled, "stored, and it died later");
        world.assert_idle();
    });
}

#[test]
fn a_computation_with_an_invalidated_tag_stores_nothing_that_is_alive() {
    check(|| {
        let world = World::with_log(1, 2);
        let leader = world.lead(&key());
        let entry = world.entry(&leader, 1, &tags(&["a"]));
        let others = Arc::clone(&world);
        let others = spawn(move || {
            for other in ["x", "y"] {
                others.invalidate_tag(other);
            }
        });
        let filling = spawn(move || drop(leader.fill(&entry)));
        world.invalidate_tag("a");
        assert!(world.get(&key()).is_none(), "alive after its invalidation");
        join_all([others, filling]);
        assert!(world.get(&key()).is_none(), "alive after its invalidation");
        world.assert_idle();
    });
}
