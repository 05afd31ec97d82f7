//! A lease given up, with and without a hold.

use futures_util::future::{Either, select};

use super::*;

pub async fn an_abandon_frees_the_lock_and_wakes_one_process(
    w: &ContractWorld<impl ContractServer>,
) {
    let first = w.one.lead().await;
    let mut waiters = [w.two.wait().await, w.three.wait().await];
    assert!(w.one.abandon(&first, None).await);
    let [two, three] = &mut waiters;
    let first = select(Box::pin(woken(two)), Box::pin(woken(three))).await;
    let chosen = usize::from(matches!(first, Either::Right(_)));
    drop(first);
    let other = 1 - chosen;
    assert!(is_left_alone(&mut waiters[other]).await, "one is enough");
    let process = [&w.two, &w.three][chosen];
    let grant = process.lead().await;
    assert_eq!(process.fill(&grant).await, FillOutcome::Stored);
    woken(&mut waiters[other]).await;
    assert!(is_left_alone(&mut waiters[chosen]).await, "who is woken waits no more");
}

pub async fn an_abandon_by_who_has_nothing_does_nothing(w: &ContractWorld<impl ContractServer>) {
    let never = Grant::new(ask(LONG).token, Version::new(9).unwrap(), ServerTime::default());
    assert!(!w.one.abandon(&never, Some(LONG)).await);
    let grant = w.one.lead().await;
    assert!(!w.two.abandon(&never, Some(LONG)).await);
    assert!(w.one.renew(&grant).await);
    assert!(w.one.abandon(&grant, None).await);
    assert!(!w.one.abandon(&grant, None).await, "once");
}

pub async fn a_hold_keeps_everybody_out_until_it_is_over(w: &ContractWorld<impl ContractServer>) {
    let failed = w.one.lead().await;
    assert!(w.one.abandon(&failed, Some(LONG)).await);
    for process in [&w.one, &w.two] {
        let left = left_of_hold(process.acquire(&ask(LONG)).await);
        assert!(left > LONG / 2 && left <= LONG, "{left:?}");
    }
    w.one.invalidate().await;
    let failed = w.one.lead().await;
    assert!(w.one.abandon(&failed, Some(SHORT)).await);
    lapse().await;
    w.two.lead().await;
}

pub async fn a_hold_wakes_every_process(w: &ContractWorld<impl ContractServer>) {
    let failed = w.one.lead().await;
    let (mut two, mut three) = (w.two.wait().await, w.three.wait().await);
    assert!(w.one.abandon(&failed, Some(LONG)).await);
    woken(&mut two).await;
    woken(&mut three).await;
}

pub async fn an_abandon_for_all_wakes_every_process_and_keeps_none_out(
    w: &ContractWorld<impl ContractServer>,
) {
    let unfilled = w.one.lead().await;
    let (mut two, mut three) = (w.two.wait().await, w.three.wait().await);
    assert!(w.one.abandon(&unfilled, Some(Duration::ZERO)).await);
    woken(&mut two).await;
    woken(&mut three).await;
    w.two.lead().await;
}

pub async fn a_hold_ends_the_right_to_fill_and_to_renew(w: &ContractWorld<impl ContractServer>) {
    let failed = w.one.lead().await;
    w.one.abandon(&failed, Some(LONG)).await;
    assert_eq!(w.one.fill(&failed).await, FillOutcome::Refused);
    assert!(!w.one.renew(&failed).await);
    left_of_hold(w.two.acquire(&ask(LONG)).await);
}

pub async fn a_hold_is_not_ended_by_a_second_abandon(w: &ContractWorld<impl ContractServer>) {
    let failed = w.one.lead().await;
    w.one.abandon(&failed, Some(LONG)).await;
    assert!(!w.one.abandon(&failed, None).await);
    left_of_hold(w.two.acquire(&ask(LONG)).await);
}

pub async fn a_hold_ends_in_time_though_the_clock_was_set_back(
    w: &ContractWorld<impl ContractServer>,
) {
    let failed = w.one.lead().await;
    assert!(w.one.abandon(&failed, Some(BRIEF)).await);
    w.server.stretch_lease(&key(), 36 * LONG).await;
    let left = left_of_hold(w.two.acquire(&ask(LONG)).await);
    assert!(left <= BRIEF, "{left:?}");
    tokio::time::sleep(BRIEF + SHORT).await;
    w.two.lead().await;
}

pub async fn a_hold_keeps_strangers_out(w: &ContractWorld<impl ContractServer>) {
    let failed = w.one.lead().await;
    w.one.abandon(&failed, Some(LONG)).await;
    assert!(!w.server.lock_as_stranger(&key(), LONG).await);
}

pub async fn a_hold_is_ended_by_an_invalidation(w: &ContractWorld<impl ContractServer>) {
    let failed = w.one.lead().await;
    w.one.abandon(&failed, Some(LONG)).await;
    assert_eq!(
        w.two.invalidate().await,
        InvalidatedRecords { value: false, lease: true, version: None }
    );
    w.two.lead().await;
}

pub async fn a_hold_is_set_though_the_lock_was_lost(w: &ContractWorld<impl ContractServer>) {
    let failed = w.one.lead().await;
    w.lose(Record::Lock).await;
    assert!(w.one.abandon(&failed, Some(LONG)).await);
    left_of_hold(w.two.acquire(&ask(LONG)).await);
}

pub async fn without_memory_an_abandon_ends_the_right_and_wakes(
    w: &ContractWorld<impl ContractServer>,
) {
    let failed = w.one.lead().await;
    let mut waiter = w.two.wait().await;
    w.server.out_of_memory(true).await;
    assert!(w.one.abandon(&failed, Some(LONG)).await);
    woken(&mut waiter).await;
    w.server.out_of_memory(false).await;
    assert_eq!(w.one.fill(&failed).await, FillOutcome::Refused);
}
