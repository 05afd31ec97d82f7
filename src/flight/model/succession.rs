//! A second leader after the first: one at most, and no waiter is left behind.

use super::*;
use crate::flight::evidence::RequestTraits;
use crate::flight::vacancy::Successor;
use crate::flight::waiter::{Fit, FlightResult};
use crate::sync::AtomicUsize;

fn failure() -> End<u64> {
    let error = Error::new(ErrorKind::Inner);
    Conclusion::Fail { error, rule: NO_HOLD, result: None }.into()
}

/// A caller whose request has these fields besides its key.
struct Client {
    unkeyed: u64,
}

impl Caller<u64> for Client {
    fn flight_request(&mut self) -> FlightRequest {
        let traits = RequestTraits { unkeyed: self.unkeyed, ..RequestTraits::default() };
        FlightRequest { traits, ..FlightRequest::of(key()) }
    }

    fn second_look(&mut self) -> Option<Arc<Entry<u64>>> {
        None
    }

    fn fallback(&self) -> Option<Arc<Entry<u64>>> {
        None
    }
}

impl World {
    async fn ask(&self, unkeyed: u64) -> Step<u64> {
        Resolver::new(&self.engine).resolve(&mut Client { unkeyed }).await
    }
}

/// Waiters of a flight whose first leader fails, with these fields. The first of them may be
/// dropped at any time. A leader fills, fails too, or is dropped.
fn wave(successor: Successor, waiters: &[u64], drops_one: bool) {
    let world = World::new(1);
    let mut first = world.lead(&key());
    assert!(first.try_place());
    let client = |unkeyed: u64| {
        let world = Arc::clone(&world);
        shuttle::future::spawn(async move {
            let Step::Lead(mut leader) = world.ask(unkeyed).await else { return };
            leader.take_place().await.expect("one computes at a time");
            let entry = world.entry(&leader, 1, &[]);
            match choice(3) {
                0 => drop(leader.fill(&entry)),
                1 => leader.pass_on_or_end(Some(successor), failure()),
                _ => drop(leader),
            }
        })
    };
    let clients: Vec<_> = waiters.iter().map(|unkeyed| client(*unkeyed)).collect();
    let failing = spawn(move || first.pass_on_or_end(Some(successor), failure()));
    if drops_one {
        pause();
        clients[0].abort();
    }
    clients.into_iter().for_each(|client| drop(wait(client)));
    join_all([failing]);
    world.assert_idle();
}

#[test]
fn every_waiter_of_a_flight_with_two_leaders_gets_an_end() {
    check(|| wave(Successor::Any, &[0, 1], false));
}

#[test]
fn a_candidate_that_goes_away_leaves_the_lead_or_the_end_to_the_others() {
    check(|| wave(Successor::Any, &[1, 0], true));
}

#[test]
fn a_flight_whose_only_candidate_goes_away_ends() {
    check(|| wave(Successor::OtherRequest, &[1, 0, 0], true));
}

#[test]
fn a_flight_has_one_second_leader() {
    check(|| {
        let world = World::new(1);
        let mut first = world.lead(&key());
        assert!(first.try_place());
        let id = first.flight.id;
        let seconds = Arc::new(AtomicUsize::new(0));
        let waiters = (0..2).map(|n| {
            let (world, seconds) = (Arc::clone(&world), Arc::clone(&seconds));
            spawn(move || {
                if let Step::Lead(leader) = wait(world.ask(n)) {
                    let is_of_flight = leader.flight.id == id;
                    seconds.fetch_add(usize::from(is_of_flight), Ordering::SeqCst);
                    leader.pass_on_or_end(Some(Successor::Any), failure());
                }
            })
        });
        let waiters: Vec<_> = waiters.collect();
        first.pass_on_or_end(Some(Successor::Any), failure());
        join_all(waiters);
        assert!(seconds.load(Ordering::SeqCst) <= 1);
        world.assert_idle();
    });
}

/// A caller that takes no result of a computation that began before the call.
struct FreshReader {
    from: u64,
}

impl Caller<u64> for FreshReader {
    fn flight_request(&mut self) -> FlightRequest {
        FlightRequest::of(key()).despite_hold()
    }

    fn second_look(&mut self) -> Option<Arc<Entry<u64>>> {
        None
    }

    fn fits(&mut self, result: &FlightResult<'_, u64>) -> Fit {
        let is_new = result.numbers.computation.is_some_and(|number| number >= self.from);
        if is_new && result.may_be_taken() { Fit::Takes } else { Fit::Refused }
    }

    fn wants_computation_from(&self) -> Option<u64> {
        Some(self.from)
    }

    fn fallback(&self) -> Option<Arc<Entry<u64>>> {
        None
    }
}

#[test]
fn a_fresh_read_is_no_older_than_a_write_that_had_completed() {
    check(|| {
        let world = World::new(1);
        let threads = (0..3).map(|n| {
            let world = Arc::clone(&world);
            spawn(move || {
                if n == 0 {
                    world.origin.fetch_add(1, Ordering::SeqCst);
                    return pause();
                }
                let before = world.origin.load(Ordering::SeqCst);
                let from = world.engine.table.upcoming_number();
                let mut reader = FreshReader { from };
                let value = match wait(Resolver::new(&world.engine).resolve(&mut reader)) {
                    Step::Answer(entry, _) => entry.value,
                    Step::Lead(leader) => wait(world.compute(leader)).expect("nothing fails"),
                    _ => panic!("nothing fails"),
                };
                assert!(value >= before, "read {value} after {before} was written");
            })
        });
        join_all(threads.collect::<Vec<_>>());
        world.assert_idle();
    });
}
