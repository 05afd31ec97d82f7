//! Records that were lost, one or both.

use super::*;

pub async fn without_the_right_a_fill_goes_by_the_lock(w: &ContractWorld<impl ContractServer>) {
    let grant = w.one.lead().await;
    w.lose(Record::Right).await;
    assert_eq!(w.one.fill(&grant).await, FillOutcome::Stored);
    w.assert_idle().await;
}

pub async fn without_the_right_others_stay_locked_out(w: &ContractWorld<impl ContractServer>) {
    w.one.lead().await;
    w.lose(Record::Right).await;
    assert!(w.two.is_locked_out().await);
}

pub async fn without_the_right_a_repeated_acquire_is_a_newer_grant(
    w: &ContractWorld<impl ContractServer>,
) {
    let ask = ask(LONG);
    let old = granted(w.one.acquire(&ask).await);
    w.lose(Record::Right).await;
    let new = granted(w.one.acquire(&ask).await);
    assert!(new.version > old.version);
    assert_eq!(w.one.fill(&new).await, FillOutcome::Stored);
}

pub async fn without_the_right_a_renewal_puts_it_back(w: &ContractWorld<impl ContractServer>) {
    let grant = w.one.lead().await;
    w.lose(Record::Right).await;
    assert!(w.one.renew(&grant).await);
    w.lose(Record::Lock).await;
    assert_eq!(w.one.fill(&grant).await, FillOutcome::Stored);
}

pub async fn without_the_right_an_invalidation_still_ends_the_computation(
    w: &ContractWorld<impl ContractServer>,
) {
    let grant = w.one.lead().await;
    w.lose(Record::Right).await;
    w.two.invalidate().await;
    assert_eq!(w.one.fill(&grant).await, FillOutcome::Refused);
    assert_eq!(w.one.value().await, None);
}

pub async fn without_the_right_an_abandon_frees_the_lock(w: &ContractWorld<impl ContractServer>) {
    let grant = w.one.lead().await;
    w.lose(Record::Right).await;
    assert!(w.one.abandon(&grant, None).await);
    w.two.lead().await;
}

pub async fn without_the_right_a_new_waiter_is_woken(w: &ContractWorld<impl ContractServer>) {
    let grant = w.one.lead().await;
    w.lose(Record::Right).await;
    let mut waiter = w.two.wait().await;
    assert_eq!(w.one.fill(&grant).await, FillOutcome::Stored);
    woken(&mut waiter).await;
}

pub async fn without_the_lock_a_renewal_takes_it_again(w: &ContractWorld<impl ContractServer>) {
    let grant = w.one.lead().await;
    w.lose(Record::Lock).await;
    assert!(w.one.renew(&grant).await);
    assert!(w.two.is_locked_out().await);
    assert_eq!(w.one.fill(&grant).await, FillOutcome::Stored);
    w.assert_idle().await;
}

pub async fn without_the_lock_a_repeated_acquire_is_the_same_grant(
    w: &ContractWorld<impl ContractServer>,
) {
    let ask = ask(LONG);
    let first = granted(w.one.acquire(&ask).await);
    w.lose(Record::Lock).await;
    assert_eq!(granted(w.one.acquire(&ask).await).version, first.version);
    assert!(w.two.is_locked_out().await);
}

pub async fn without_the_lock_another_may_take_it_and_is_safe_from_the_first(
    w: &ContractWorld<impl ContractServer>,
) {
    let first = w.one.lead().await;
    w.lose(Record::Lock).await;
    let second = w.two.lead().await;
    assert!(!w.one.renew(&first).await);
    assert_eq!(w.one.fill(&first).await, FillOutcome::Refused);
    assert!(!w.one.abandon(&first, None).await);
    assert!(w.three.is_locked_out().await);
    assert_eq!(w.two.fill(&second).await, FillOutcome::Stored);
}

pub async fn without_both_nothing_is_allowed(w: &ContractWorld<impl ContractServer>) {
    let grant = w.one.lead().await;
    w.lose(Record::Lock).await;
    w.lose(Record::Right).await;
    assert_eq!(w.one.fill(&grant).await, FillOutcome::Refused);
    assert!(!w.one.renew(&grant).await);
    assert!(!w.one.abandon(&grant, None).await);
    assert_eq!(w.one.value().await, None);
}

pub async fn after_a_flush_nothing_is_allowed_and_nothing_is_locked(
    w: &ContractWorld<impl ContractServer>,
) {
    let grant = w.one.lead().await;
    w.server.flush().await;
    assert!(!w.one.renew(&grant).await);
    assert_eq!(w.one.fill(&grant).await, FillOutcome::Refused);
    let next = w.two.lead().await;
    assert_eq!(w.two.fill(&next).await, FillOutcome::Stored);
}

pub async fn without_the_value_its_refresh_goes_on(w: &ContractWorld<impl ContractServer>) {
    let (_, seen) = w.one.put().await;
    let refresh = granted(w.one.acquire(&ask(LONG).seen(Some(seen))).await);
    w.lose(Record::Value).await;
    w.lose(Record::Lock).await;
    assert!(w.one.renew(&refresh).await);
    assert!(w.two.is_locked_out().await);
    assert_eq!(w.one.fill(&refresh).await, FillOutcome::Stored);
}
