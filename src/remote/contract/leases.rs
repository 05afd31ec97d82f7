//! Who has the lease, for how long, and under which version.

use super::*;

pub async fn a_free_key_is_granted_to_who_asks_first(w: &ContractWorld<impl ContractServer>) {
    let before = w.one.remote.probe(Shard::ONLY).await.unwrap();
    let ask = ask(LONG);
    let grant = granted(w.one.acquire(&ask).await);
    assert_eq!(grant.token, ask.token);
    assert!(grant.now >= before);
}

pub async fn an_acquire_sent_twice_is_one_grant(w: &ContractWorld<impl ContractServer>) {
    let ask = ask(LONG);
    let first = granted(w.one.acquire(&ask).await);
    let second = granted(w.one.acquire(&ask).await);
    assert_eq!(first.version, second.version);
    assert_eq!(w.one.fill(&first).await, FillOutcome::Stored);
}

pub async fn another_token_is_locked_out_for_what_is_left_of_the_lease(
    w: &ContractWorld<impl ContractServer>,
) {
    w.one.lead().await;
    for process in [&w.one, &w.two] {
        let left = left_of_lock(process.acquire(&ask(LONG)).await);
        assert!(left > LONG / 2 && left <= LONG, "{left:?}");
    }
}

pub async fn a_lease_that_is_not_renewed_passes_to_the_next_who_asks(
    w: &ContractWorld<impl ContractServer>,
) {
    let lost = w.one.lead_for(SHORT).await;
    lapse().await;
    let next = w.two.lead().await;
    assert!(next.version > lost.version);
}

pub async fn who_lost_the_lease_to_another_can_do_nothing_to_it(
    w: &ContractWorld<impl ContractServer>,
) {
    let lost = w.one.lead_for(SHORT).await;
    lapse().await;
    let next = w.two.lead().await;
    assert_eq!(w.one.fill(&lost).await, FillOutcome::Refused);
    assert!(!w.one.renew(&lost).await);
    assert!(!w.one.abandon(&lost, None).await);
    assert!(!w.one.abandon(&lost, Some(LONG)).await);
    assert!(w.two.renew(&next).await);
    assert_eq!(w.two.fill(&next).await, FillOutcome::Stored);
}

pub async fn a_renewed_lease_lasts_longer(w: &ContractWorld<impl ContractServer>) {
    let grant = w.one.lead_for(2 * SHORT).await;
    assert!(w.one.renew(&grant).await);
    lapse().await;
    assert!(w.two.is_locked_out().await);
    assert_eq!(w.one.fill(&grant).await, FillOutcome::Stored);
}

pub async fn a_lease_that_lapsed_with_nobody_after_it_is_renewed(
    w: &ContractWorld<impl ContractServer>,
) {
    let grant = w.one.lead_for(SHORT).await;
    lapse().await;
    assert!(w.one.renew(&grant).await);
    assert!(w.two.is_locked_out().await);
}

pub async fn a_value_that_was_not_seen_is_a_hit(w: &ContractWorld<impl ContractServer>) {
    let grant = w.one.lead().await;
    w.one.fill(&grant).await;
    let found = hit(w.two.acquire(&ask(LONG)).await);
    assert_eq!(found, envelope(grant.version, "filled"));
    assert!(!w.one.invalidate().await.lease, "a hit takes no lease");
}

pub async fn a_value_that_was_seen_is_refreshed_under_a_higher_version(
    w: &ContractWorld<impl ContractServer>,
) {
    let first = w.one.lead().await;
    w.one.fill(&first).await;
    let refresh = granted(w.two.acquire(&ask(LONG).seen(Some(first.version))).await);
    assert!(refresh.version > first.version);
    assert_eq!(w.two.fill(&refresh).await, FillOutcome::Stored);
    assert_eq!(w.one.value().await, Some(envelope(refresh.version, "filled")));
}

pub async fn a_value_that_replaced_the_seen_one_is_a_hit(w: &ContractWorld<impl ContractServer>) {
    let first = w.one.lead().await;
    w.one.fill(&first).await;
    let seen = ask(LONG).seen(Some(first.version));
    let second = granted(w.one.acquire(&seen).await);
    w.one.fill(&second).await;
    // A look that is late: it missed before the fill, and asks after it.
    let late = ask(LONG).seen(Some(first.version));
    assert_eq!(version_of(&hit(w.two.acquire(&late).await)), Some(second.version));
}

pub async fn a_lease_ends_in_time_though_the_clock_was_set_back(
    w: &ContractWorld<impl ContractServer>,
) {
    w.one.lead_for(BRIEF).await;
    w.server.stretch_lease(&key(), 36 * LONG).await;
    let left = left_of_lock(w.two.acquire(&ask(SHORT)).await);
    assert!(left <= BRIEF, "{left:?}");
    tokio::time::sleep(BRIEF + SHORT).await;
    w.two.lead().await;
}

pub async fn a_longer_lease_of_the_holder_is_respected(w: &ContractWorld<impl ContractServer>) {
    w.one.lead().await;
    lapse().await;
    let left = left_of_lock(w.two.acquire(&ask(SHORT)).await);
    assert!(left > LONG / 2 && left <= LONG - SHORT, "neither capped nor prolonged: {left:?}");
}

pub async fn a_renewal_says_how_long_the_lease_may_be(w: &ContractWorld<impl ContractServer>) {
    let grant = w.one.lead().await;
    assert!(w.one.renew_for(&grant, LONG / 2).await);
    w.server.stretch_lease(&key(), 36 * LONG).await;
    let left = left_of_lock(w.two.acquire(&ask(SHORT)).await);
    assert!(left > LONG / 4 && left <= LONG / 2, "{left:?}");
}

pub async fn a_grant_is_above_the_version_of_a_value_from_the_future(
    w: &ContractWorld<impl ContractServer>,
) {
    let future = long_after(w.one.lead().await.version);
    w.one.invalidate().await;
    w.server.set_value(&key(), envelope(future, "future")).await;
    let grant = granted(w.two.acquire(&ask(LONG).seen(Some(future))).await);
    assert!(grant.version > future);
    assert_eq!(w.two.fill(&grant).await, FillOutcome::Stored);
}

pub async fn a_grant_is_above_the_grants_before_it(w: &ContractWorld<impl ContractServer>) {
    let future = long_after(w.one.lead().await.version);
    w.one.invalidate().await;
    w.server.set_value(&key(), envelope(future, "future")).await;
    let first = granted(w.one.acquire(&ask(SHORT).seen(Some(future))).await);
    w.lose(Record::Value).await;
    lapse().await;
    assert!(w.two.lead().await.version > first.version);
}

pub async fn the_remotes_time_never_goes_back(w: &ContractWorld<impl ContractServer>) {
    let mut times = vec![w.one.remote.probe(Shard::ONLY).await.unwrap()];
    let grant = w.two.lead().await;
    times.push(grant.now);
    match w.one.acquire(&ask(LONG)).await {
        AcquireOutcome::Locked { now, .. } => times.push(now),
        other => panic!("not locked: {other:?}"),
    }
    w.two.fill(&grant).await;
    match w.one.acquire(&ask(LONG)).await {
        AcquireOutcome::Hit { now, .. } => times.push(now),
        other => panic!("no hit: {other:?}"),
    }
    times.push(w.two.put().await.0);
    lapse().await;
    times.push(w.two.remote.probe(Shard::ONLY).await.unwrap());
    assert!(times.is_sorted(), "{times:?}");
    let passed = times[times.len() - 1].as_millis() - times[0].as_millis();
    assert!(u128::from(passed) >= SHORT.as_millis(), "milliseconds: {passed}");
}
