//! Clients that know only the lock: `SET NX PX` with a token, released by
//! compare and delete.

use super::*;

pub async fn a_strangers_lock_locks_us_out(w: &ContractWorld<impl ContractServer>) {
    assert!(w.server.lock_as_stranger(&key(), LONG).await);
    let left = left_of_lock(w.one.acquire(&ask(LONG)).await);
    assert!(left > LONG / 2 && left <= LONG, "{left:?}");
}

pub async fn a_strangers_lock_is_safe_from_us(w: &ContractWorld<impl ContractServer>) {
    assert!(w.server.lock_as_stranger(&key(), LONG).await);
    let never = Grant::new(ask(LONG).token, Version::new(9).unwrap(), ServerTime::default());
    assert!(!w.one.renew(&never).await);
    assert_eq!(w.one.fill(&never).await, FillOutcome::Refused);
    assert!(!w.one.abandon(&never, None).await);
    assert!(w.server.unlock_as_stranger(&key()).await);
}

pub async fn a_strangers_lock_is_ended_by_an_invalidation_and_by_a_put(
    w: &ContractWorld<impl ContractServer>,
) {
    assert!(w.server.lock_as_stranger(&key(), LONG).await);
    assert_eq!(
        w.one.invalidate().await,
        InvalidatedRecords { value: false, lease: true, version: None }
    );
    assert!(!w.server.unlock_as_stranger(&key()).await);
    assert!(w.server.lock_as_stranger(&key(), LONG).await);
    w.one.put().await;
    assert!(!w.server.unlock_as_stranger(&key()).await);
}

pub async fn a_strangers_released_lock_is_ours_to_take(w: &ContractWorld<impl ContractServer>) {
    assert!(w.server.lock_as_stranger(&key(), LONG).await);
    assert!(w.server.unlock_as_stranger(&key()).await);
    w.one.lead().await;
}

pub async fn our_lock_keeps_a_stranger_out(w: &ContractWorld<impl ContractServer>) {
    let grant = w.one.lead().await;
    assert!(!w.server.lock_as_stranger(&key(), LONG).await);
    assert!(!w.server.unlock_as_stranger(&key()).await);
    assert!(w.one.renew(&grant).await);
    assert!(w.two.is_locked_out().await);
}

pub async fn a_strangers_lock_is_never_shortened(w: &ContractWorld<impl ContractServer>) {
    w.one.lead_for(SHORT).await;
    lapse().await;
    assert!(w.server.lock_as_stranger(&key(), LONG).await);
    let left = left_of_lock(w.two.acquire(&ask(SHORT)).await);
    assert!(left > LONG / 2, "{left:?}");
}

pub async fn a_strangers_value_ends_our_right(w: &ContractWorld<impl ContractServer>) {
    let grant = w.one.lead_for(SHORT).await;
    lapse().await;
    assert!(w.server.lock_as_stranger(&key(), LONG).await);
    let theirs = envelope(Version::new(5).unwrap(), "theirs");
    w.server.set_value(&key(), theirs.clone()).await;
    assert!(w.server.unlock_as_stranger(&key()).await);
    assert!(!w.one.renew(&grant).await);
    assert_eq!(w.one.fill(&grant).await, FillOutcome::Refused);
    assert_eq!(w.one.value().await, Some(theirs));
}

pub async fn a_strangers_value_written_without_the_lock_ends_our_right_and_wakes(
    w: &ContractWorld<impl ContractServer>,
) {
    let grant = w.one.lead().await;
    let mut waiter = w.two.wait().await;
    assert!(w.one.renew(&grant).await);
    let theirs = envelope(Version::new(6).unwrap(), "theirs");
    w.server.set_value(&key(), theirs.clone()).await;
    assert_eq!(w.one.fill(&grant).await, FillOutcome::Refused);
    woken(&mut waiter).await;
    assert_eq!(w.one.value().await, Some(theirs));
    w.assert_idle().await;
}

pub async fn a_strangers_lock_alone_does_not_end_our_right(w: &ContractWorld<impl ContractServer>) {
    let grant = w.one.lead_for(SHORT).await;
    lapse().await;
    assert!(w.server.lock_as_stranger(&key(), LONG).await);
    assert!(!w.one.renew(&grant).await, "the lock is theirs");
    assert_eq!(w.one.fill(&grant).await, FillOutcome::Stored);
    assert!(w.server.unlock_as_stranger(&key()).await, "their lock stays");
}

pub async fn a_waiter_for_a_strangers_lock_is_woken_by_us(w: &ContractWorld<impl ContractServer>) {
    assert!(w.server.lock_as_stranger(&key(), LONG).await);
    let mut waiter = w.two.wait().await;
    assert!(w.server.unlock_as_stranger(&key()).await);
    let grant = w.one.lead().await;
    assert!(w.one.abandon(&grant, None).await);
    woken(&mut waiter).await;
}

pub async fn a_hold_leaves_a_strangers_lock_alone(w: &ContractWorld<impl ContractServer>) {
    let grant = w.one.lead_for(SHORT).await;
    lapse().await;
    assert!(w.server.lock_as_stranger(&key(), LONG).await);
    assert!(w.one.abandon(&grant, Some(LONG)).await);
    assert!(w.two.is_locked_out().await, "locked, not held");
    assert!(w.server.unlock_as_stranger(&key()).await);
}
