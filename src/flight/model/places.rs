//! The queue for places, and loans: no place is lost, none is doubled.

use std::time::Duration;

use shuttle::future::block_on;

use super::*;
use crate::flight::model::{check, choice, join_all, pause, spawn};
use crate::sync::{AtomicUsize, Notify};

const LONG: Duration = Duration::from_secs(24 * 3600);

impl Places {
    /// Counts the places, and follows each loan from both of its ends.
    pub(in crate::flight) fn assert_consistent(&self, max: usize) {
        // Where the number of places changes, no other thread changes it meanwhile.
        let limit = self.limit.as_ref().map(|limit| limit.lock());
        let max = limit.as_ref().map_or(max, |limit| limit.get());
        let state = self.state.lock();
        let mut own = Vec::new();
        let queue: Vec<u64> = state.queue.ids().collect();
        for (id, member) in &state.members {
            match member.standing {
                Standing::Queued { .. } => {
                    assert!(queue.contains(id), "queued, and not in the queue");
                }
                Standing::Placed { from, lent_to } => {
                    match from {
                        Source::Own(client) => own.push(client),
                        Source::Lender(lender) => {
                            let lends = matches!(state.standing(lender),
                                Some(Standing::Placed { lent_to: Some(to), .. }) if to == *id);
                            assert!(lends, "borrowed from one that does not lend");
                        }
                    }
                    if let Some(borrower) = lent_to {
                        let borrows = matches!(state.standing(borrower), Some(Standing::Placed {
                            from: Source::Lender(from), ..
                        }) if from == *id);
                        assert!(borrows, "lent to one that does not borrow");
                    }
                }
            }
        }
        let queued = state.members.len() - state.placed();
        assert_eq!(queue.len(), queued, "in the queue, and not a member");
        assert_eq!(
            state.free + own.len().cast_signed(),
            max.cast_signed(),
            "a place is lost or doubled"
        );
        assert!(state.free <= 0 || !state.queue.is_due(), "a free place, and a queue");
        state.queue.assert_consistent(&own);
        for (lender, queued) in &state.waiting_for {
            for borrower in queued {
                assert!(queue.contains(&borrower.1), "waits for one that is not queued");
                let is_offered = state.lenders_of(borrower.1).contains(lender);
                assert!(is_offered, "waits for one to which it has made no offer");
            }
        }
    }

    fn assert_unused(&self, max: usize) {
        self.assert_consistent(max);
        let state = self.state.lock();
        assert_eq!(state.free, max.cast_signed(), "a place is taken");
        assert!(state.members.is_empty() && state.waiting_for.is_empty(), "a member is left");
        assert!(state.offers.is_empty(), "an offer is left");
    }
}

impl State {
    fn placed(&self) -> usize {
        let is_placed = |member: &&Member| matches!(member.standing, Standing::Placed { .. });
        self.members.values().filter(is_placed).count()
    }
}

struct Bench {
    places: Arc<Places>,
    shares: Places,
    clock: Clock,
    max: usize,
}

impl Bench {
    fn new(max: usize) -> Arc<Self> {
        let (places, shares) = (Arc::new(Places::new(None, max)), Places::new(None, max));
        Arc::new(Self { places, shares, clock: Clock::runtime(), max })
    }

    fn computation(&self, id: u64) -> Arc<Computation> {
        Arc::new(Computation::new(id, self.clock.now().plus(LONG), None))
    }

    fn computation_for(&self, id: u64, client: u64) -> Arc<Computation> {
        let call = OriginCall::new(id, None).for_client(Some(ClientKey::of(client)));
        Arc::new(Computation::of_call(id, self.clock.now().plus(LONG), Arc::new(call)))
    }

    fn take(&self, computation: &Arc<Computation>) {
        let deadline = Instant::now() + LONG;
        let waited = block_on(self.places.wait(computation, deadline, &self.clock, || None));
        waited.expect("it is wanted, and no deadline comes");
        self.places.assert_consistent(self.max);
    }

    fn release(&self, computation: &Computation) {
        self.places.release(computation, self.clock.now());
        self.places.assert_consistent(self.max);
    }
}

#[test]
fn no_more_computations_run_than_there_are_places_and_each_gets_one() {
    check(|| {
        let max = 1 + choice(2) as usize;
        let bench = Bench::new(max);
        let running = Arc::new(AtomicUsize::new(0));
        let computations = (1..=3).map(|id| {
            let (bench, running) = (Arc::clone(&bench), Arc::clone(&running));
            spawn(move || {
                let computation = bench.computation(id);
                bench.take(&computation);
                assert!(running.fetch_add(1, Ordering::SeqCst) < max, "one more than the bound");
                running.fetch_sub(1, Ordering::SeqCst);
                bench.release(&computation);
                // As a leader that was deposed does when it ends.
                bench.release(&computation);
            })
        });
        join_all(computations.collect::<Vec<_>>());
        bench.places.assert_unused(max);
    });
}

#[test]
fn each_computation_gets_a_place_while_their_number_changes() {
    check(|| {
        let (places, shares) = (Arc::new(Places::new(Some(1), 3)), Places::new(None, 3));
        let bench = Arc::new(Bench { places, shares, clock: Clock::runtime(), max: 3 });
        let computations = (1..=4).map(|id| {
            let bench = Arc::clone(&bench);
            spawn(move || {
                let computation = bench.computation(id);
                bench.take(&computation);
                // The first window says what is usual, the others end each with another number.
                let took = Duration::from_millis(1 + u64::from(choice(2)) * 9);
                (0..16).for_each(|_| bench.places.note_time(took, bench.clock.now()));
                bench.places.assert_consistent(3);
                bench.release(&computation);
            })
        });
        join_all(computations.collect::<Vec<_>>());
        bench.places.assert_consistent(3);
    });
}

/// Of two places a client may have one, so the other client never waits for it.
#[test]
fn clients_share_the_places_and_no_client_has_more_than_its_share() {
    check(|| {
        let bench = Bench::new(2);
        let running = [1, 2].map(|_| Arc::new(AtomicUsize::new(0)));
        let computations = [(1, 0), (2, 0), (3, 0), (4, 1)].map(|(id, client)| {
            let (bench, running) = (Arc::clone(&bench), Arc::clone(&running[client]));
            spawn(move || {
                let computation = bench.computation_for(id, client as u64);
                if choice(3) == 0 {
                    bench.places.join_queue(&computation, &mut None, bench.clock.now());
                    pause();
                    bench.places.leave_queue(&computation);
                    bench.places.assert_consistent(2);
                    bench.release(&computation);
                    return;
                }
                bench.take(&computation);
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "more than its share");
                pause();
                running.fetch_sub(1, Ordering::SeqCst);
                bench.release(&computation);
            })
        });
        join_all(computations);
        bench.places.assert_unused(2);
    });
}

/// A client's computation asks for a key that another client's computation computes.
#[test]
fn a_place_that_is_lent_counts_for_the_client_of_the_lender_until_it_returns() {
    check(|| {
        let bench = Bench::new(2);
        let (lender, borrower) = (bench.computation_for(1, 0), bench.computation_for(2, 1));
        let other = bench.computation_for(3, 1);
        bench.take(&lender);
        let threads = [borrower.clone(), other].map(|computation| {
            let bench = Arc::clone(&bench);
            spawn(move || {
                bench.take(&computation);
                pause();
                bench.release(&computation);
            })
        });
        let offer = bench.places.offer(&lender, &borrower);
        bench.places.assert_consistent(2);
        pause();
        bench.release(&lender);
        drop(offer);
        join_all(threads);
        bench.places.assert_unused(2);
    });
}

#[test]
fn a_place_that_two_release_at_once_is_returned_once() {
    check(|| {
        let bench = Bench::new(1);
        let computation = bench.computation(1);
        bench.take(&computation);
        let releasing = (0..2).map(|_| {
            let (bench, computation) = (Arc::clone(&bench), Arc::clone(&computation));
            spawn(move || bench.release(&computation))
        });
        let mut threads: Vec<_> = releasing.collect();
        let next = Arc::clone(&bench);
        threads.push(spawn(move || {
            let computation = next.computation(2);
            next.take(&computation);
            next.release(&computation);
        }));
        join_all(threads);
        bench.places.assert_unused(1);
    });
}

#[test]
fn computations_that_leave_the_queue_lose_no_place() {
    check(|| {
        let bench = Bench::new(1);
        let first = bench.computation(1);
        bench.take(&first);
        let leaving = Arc::clone(&bench);
        let leaving = spawn(move || {
            let computation = leaving.computation(2);
            leaving.places.join_queue(&computation, &mut None, leaving.clock.now());
            pause();
            leaving.release(&computation);
        });
        let staying = Arc::clone(&bench);
        let staying = spawn(move || {
            let computation = staying.computation(3);
            staying.take(&computation);
            staying.release(&computation);
        });
        bench.release(&first);
        join_all([leaving, staying]);
        bench.places.assert_unused(1);
    });
}

#[test]
fn the_place_of_an_overdue_computation_is_taken_once() {
    check(|| {
        let bench = Bench::new(1);
        let silent = bench.computation(1);
        bench.take(&silent);
        let later = bench.clock.now().plus(LONG * 2);
        let takers = (2..=3).map(|id| {
            let bench = Arc::clone(&bench);
            spawn(move || {
                let overdue_at = later.plus(LONG);
                let computation = Arc::new(Computation::new(id, overdue_at, None));
                if !bench.places.try_take(&computation, later) {
                    bench.take(&computation);
                }
                bench.release(&computation);
            })
        });
        let takers: Vec<_> = takers.collect();
        bench.release(&silent);
        join_all(takers);
        bench.places.assert_unused(1);
    });
}

/// A computation that asks for another key: it offers its place, perhaps waits until what
/// it asks for has ended, and ends itself.
fn lend(bench: &Bench, lender: &Arc<Computation>, borrower: &Arc<Computation>, ends: &Ended) {
    bench.take(lender);
    let offer = bench.places.offer(lender, borrower);
    bench.places.assert_consistent(bench.max);
    if choice(2) == 0 {
        block_on(ends.wait());
    } else {
        pause();
    }
    match choice(3) {
        // Withdrawn, perhaps while the place is lent; then the lender goes on.
        0 => {
            drop(offer);
            bench.places.assert_consistent(bench.max);
            bench.release(lender);
        }
        // The lender ends first, as one that is deposed.
        _ => {
            bench.release(lender);
            drop(offer);
        }
    }
}

/// Tells a lender that its borrower has ended.
#[derive(Default)]
struct Ended(AtomicUsize, Notify);

impl Ended {
    fn tell(&self) {
        self.0.store(1, Ordering::SeqCst);
        self.1.notify_one();
    }

    async fn wait(&self) {
        while self.0.load(Ordering::SeqCst) == 0 {
            self.1.notified().await;
        }
    }
}

/// `length` computations of which each asks for the next, and one that asks for none.
fn check_chain(length: usize, max: usize) {
    let bench = Bench::new(max);
    let chain: Vec<_> = (1..=length as u64).map(|id| bench.computation(id)).collect();
    let ends: Vec<_> = (0..length).map(|_| Arc::new(Ended::default())).collect();
    let links = (0..length).map(|at| {
        let (bench, own, next) = (Arc::clone(&bench), Arc::clone(&chain[at]), chain.get(at + 1));
        let (end, next) = (Arc::clone(&ends[at]), next.cloned().zip(ends.get(at + 1).cloned()));
        spawn(move || {
            match next {
                Some((next, next_end)) => lend(&bench, &own, &next, &next_end),
                None => {
                    bench.take(&own);
                    bench.release(&own);
                }
            }
            end.tell();
        })
    });
    join_all(links.collect::<Vec<_>>());
    bench.places.assert_unused(max);
}

#[test]
fn a_lent_place_returns_in_whatever_order_lender_and_borrower_end() {
    check(|| check_chain(2, 1));
}

#[test]
fn a_place_that_is_lent_on_returns_in_whatever_order_the_three_end() {
    check(|| check_chain(3, 1));
}

#[test]
fn of_two_borrowers_one_has_the_place_at_a_time_and_both_get_it() {
    check(|| {
        let bench = Bench::new(1);
        let (lender, borrowers) = (bench.computation(1), [2, 3].map(|id| bench.computation(id)));
        bench.take(&lender);
        let running = Arc::new(AtomicUsize::new(0));
        let threads = borrowers.clone().map(|borrower| {
            let (bench, lender) = (Arc::clone(&bench), Arc::clone(&lender));
            let running = Arc::clone(&running);
            spawn(move || {
                let offer = bench.places.offer(&lender, &borrower);
                bench.take(&borrower);
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "two borrow one place");
                running.fetch_sub(1, Ordering::SeqCst);
                bench.release(&borrower);
                drop(offer);
            })
        });
        join_all(threads);
        bench.release(&lender);
        bench.places.assert_unused(1);
    });
}

/// Computations of one call come and go beside another call, in any order.
#[test]
fn the_computations_of_one_call_share_a_place_until_the_last_has_let_go() {
    check(|| {
        let bench = Bench::new(1);
        let call = Arc::new(OriginCall::new(1, None));
        let (running, others) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut tasks = Vec::new();
        for id in 2..4 {
            let (bench, call, running) =
                (Arc::clone(&bench), Arc::clone(&call), Arc::clone(&running));
            let others = Arc::clone(&others);
            tasks.push(spawn(move || {
                let overdue_at = bench.clock.now().plus(LONG);
                let part = Arc::new(Computation::of_call(id, overdue_at, call));
                if choice(2) == 0 {
                    bench.places.join_queue(&part, &mut None, bench.clock.now());
                    pause();
                    if choice(2) == 0 {
                        bench.places.leave_queue(&part);
                        bench.places.assert_consistent(1);
                        // A part that has the place keeps it.
                        bench.release(&part);
                        return;
                    }
                }
                bench.take(&part);
                running.fetch_add(1, Ordering::SeqCst);
                assert_eq!(others.load(Ordering::SeqCst), 0, "another call has the only place");
                pause();
                running.fetch_sub(1, Ordering::SeqCst);
                bench.release(&part);
                bench.release(&part);
            }));
        }
        let other = Arc::clone(&bench);
        tasks.push(spawn(move || {
            let computation = other.computation(5);
            other.take(&computation);
            others.fetch_add(1, Ordering::SeqCst);
            assert_eq!(running.load(Ordering::SeqCst), 0, "a part of the call has the only place");
            pause();
            others.fetch_sub(1, Ordering::SeqCst);
            other.release(&computation);
        }));
        join_all(tasks);
        bench.places.assert_unused(1);
    });
}

/// Computations move to a later call, one after the other, while another call wants the place.
#[test]
fn computations_that_move_to_another_call_lose_no_place_and_run_on_its_own() {
    check(|| {
        let bench = Bench::new(1);
        let (earlier, later) =
            (Arc::new(OriginCall::new(1, None)), Arc::new(OriginCall::new(2, None)));
        let running = Arc::new(AtomicUsize::new(0));
        let mut tasks = Vec::new();
        for id in 3..5 {
            let (bench, running) = (Arc::clone(&bench), Arc::clone(&running));
            let (earlier, later) = (Arc::clone(&earlier), Arc::clone(&later));
            tasks.push(spawn(move || {
                let overdue_at = bench.clock.now().plus(LONG);
                let part = Arc::new(Computation::of_call(id, overdue_at, earlier));
                bench.take(&part);
                pause();
                bench.places.move_to(&bench.shares, &part, &later, bench.clock.now());
                bench.places.assert_consistent(1);
                bench.take(&part);
                assert_eq!(running.load(Ordering::SeqCst), 0, "another call has the only place");
                pause();
                bench.release(&part);
            }));
        }
        let (other, others) = (Arc::clone(&bench), running);
        tasks.push(spawn(move || {
            let computation = other.computation(6);
            other.take(&computation);
            others.fetch_add(1, Ordering::SeqCst);
            pause();
            others.fetch_sub(1, Ordering::SeqCst);
            other.release(&computation);
        }));
        join_all(tasks);
        bench.places.assert_unused(1);
    });
}

/// A computation moves to a later call, while what waits for it offers its place.
#[test]
fn a_place_that_is_lent_to_a_computation_follows_it_to_another_call() {
    check(|| {
        let bench = Bench::new(1);
        let (lender, part) = (bench.computation(1), bench.computation(2));
        let later = Arc::new(OriginCall::new(3, None));
        bench.take(&lender);
        let moving = (Arc::clone(&bench), Arc::clone(&part), Arc::clone(&later));
        let moving = spawn(move || {
            let (bench, part, later) = moving;
            bench.take(&part);
            bench.places.move_to(&bench.shares, &part, &later, bench.clock.now());
            bench.places.assert_consistent(1);
            bench.take(&part);
            // What the later call asks for borrows from it in turn.
            let scope = Arc::new(Computation::of_call(4, part.overdue_at(), later));
            let nested = bench.computation(5);
            let offer = bench.places.offer(&scope, &nested);
            bench.take(&nested);
            bench.release(&nested);
            drop(offer);
            bench.release(&part);
        });
        let sibling = (Arc::clone(&bench), later);
        let sibling = spawn(move || {
            let (bench, later) = sibling;
            let overdue_at = bench.clock.now().plus(LONG);
            let sibling = Arc::new(Computation::of_call(6, overdue_at, later));
            bench.places.join_queue(&sibling, &mut None, bench.clock.now());
            bench.places.assert_consistent(1);
            pause();
            bench.release(&sibling);
        });
        let offer = bench.places.offer(&lender, &part);
        bench.places.assert_consistent(1);
        join_all([moving, sibling]);
        drop(offer);
        bench.release(&lender);
        bench.places.assert_unused(1);
    });
}

/// A computation asks for a key, and for another one by way of a call that needs no place.
#[test]
fn what_a_call_without_a_place_asks_for_gets_the_place_around_it() {
    check(|| {
        let bench = Bench::new(1);
        let (lender, key, part) =
            (bench.computation(1), bench.computation(2), bench.computation(3));
        bench.take(&lender);
        let offers = [&key, &part].map(|borrower| bench.places.offer(&lender, borrower));
        let computing = Arc::clone(&bench);
        let computing = spawn(move || {
            computing.take(&key);
            pause();
            computing.release(&key);
        });
        let calling = Arc::clone(&bench);
        let calling = spawn(move || {
            let (bench, later) = (calling, Arc::new(OriginCall::new(4, None)));
            bench.places.borrow(&part);
            bench.places.assert_consistent(1);
            pause();
            bench.places.move_to(&bench.shares, &part, &later, bench.clock.now());
            bench.places.borrow(&part);
            bench.places.assert_consistent(1);
            let scope = Arc::new(Computation::of_call(5, part.overdue_at(), later));
            let nested = bench.computation(6);
            let offer = bench.places.offer(&scope, &nested);
            bench.take(&nested);
            bench.release(&nested);
            drop(offer);
            bench.release(&part);
        });
        join_all([computing, calling]);
        drop(offers);
        bench.release(&lender);
        bench.places.assert_unused(1);
    });
}
