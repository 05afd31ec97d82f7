//! Values written past the lease.

use crate::remote::RemoteErrorKind;

use super::*;

pub async fn a_put_is_stored_under_a_version_of_the_remote(w: &ContractWorld<impl ContractServer>) {
    let (now, version) = w.one.put().await;
    assert!(now <= w.one.remote.probe(Shard::ONLY).await.unwrap());
    assert_eq!(w.two.value().await, Some(envelope(version, "put")));
    w.assert_idle().await;
}

pub async fn a_put_ends_the_computation(w: &ContractWorld<impl ContractServer>) {
    let grant = w.one.lead().await;
    let (_, version) = w.two.put().await;
    assert!(version > grant.version);
    assert_eq!(w.one.fill(&grant).await, FillOutcome::Refused);
    assert!(!w.one.renew(&grant).await);
    assert_eq!(w.one.value().await, Some(envelope(version, "put")));
    w.assert_idle().await;
}

pub async fn a_put_is_above_every_version_before_it(w: &ContractWorld<impl ContractServer>) {
    let (_, first) = w.one.put().await;
    let (_, second) = w.two.put().await;
    assert!(second > first);
    let future = long_after(second);
    w.server.set_value(&key(), envelope(future, "future")).await;
    let (_, third) = w.one.put().await;
    assert!(third > future);
    w.server.set_value(&key(), envelope(long_after(third), "future")).await;
    let seen = ask(LONG).seen(Some(long_after(third)));
    let grant = granted(w.two.acquire(&seen).await);
    w.lose(Record::Value).await;
    let (_, fourth) = w.one.put().await;
    assert!(fourth > grant.version);
}

pub async fn a_put_is_found_by_who_has_seen_an_older_value(w: &ContractWorld<impl ContractServer>) {
    let (_, first) = w.one.put().await;
    let (_, second) = w.one.put().await;
    let found = hit(w.two.acquire(&ask(LONG).seen(Some(first))).await);
    assert_eq!(version_of(&found), Some(second));
}

pub async fn a_put_value_is_gone_after_its_ttl(w: &ContractWorld<impl ContractServer>) {
    let brief = envelope(Version::new(1).unwrap(), "brief");
    w.one.remote.put(&key(), SHORT, brief).await.unwrap();
    lapse().await;
    assert_eq!(w.two.value().await, None);
}

pub async fn without_memory_a_put_says_so_and_drops_the_old_value(
    w: &ContractWorld<impl ContractServer>,
) {
    let (_, seen) = w.one.put().await;
    let grant = granted(w.two.acquire(&ask(LONG).seen(Some(seen))).await);
    w.server.out_of_memory(true).await;
    let put = w.one.try_put().await;
    assert_eq!(put.unwrap_err().kind(), RemoteErrorKind::OutOfMemory);
    w.server.out_of_memory(false).await;
    assert_eq!(w.one.value().await, None);
    assert_eq!(w.two.fill(&grant).await, FillOutcome::Refused);
    w.assert_idle().await;
}
