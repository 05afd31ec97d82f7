//! What a fill stores, when it is refused, and what is found of a value.

use crate::remote::RemoteErrorKind;

use super::*;

pub async fn a_fill_stores_the_envelope_as_it_is_and_leaves_neither_lock_nor_right(
    w: &ContractWorld<impl ContractServer>,
) {
    let grant = w.one.lead().await;
    assert_eq!(w.one.fill(&grant).await, FillOutcome::Stored);
    assert_eq!(w.two.value().await, Some(envelope(grant.version, "filled")));
    let found = w.two.invalidate().await;
    assert_eq!(found, InvalidatedRecords { value: true, lease: false, version: None });
}

pub async fn a_fill_sent_twice_is_stored_once(w: &ContractWorld<impl ContractServer>) {
    let grant = w.one.lead().await;
    assert_eq!(w.one.fill(&grant).await, FillOutcome::Stored);
    assert_eq!(w.one.fill(&grant).await, FillOutcome::StoredBefore);
}

pub async fn a_fill_without_a_grant_is_refused(w: &ContractWorld<impl ContractServer>) {
    let never = Grant::new(ask(LONG).token, Version::new(9).unwrap(), ServerTime::default());
    assert_eq!(w.one.fill(&never).await, FillOutcome::Refused);
    let grant = w.one.lead().await;
    assert_eq!(w.two.fill(&never).await, FillOutcome::Refused);
    assert_eq!(w.two.value().await, None);
    assert_eq!(w.one.fill(&grant).await, FillOutcome::Stored);
    assert_eq!(w.two.fill(&never).await, FillOutcome::Refused);
}

pub async fn a_fill_under_another_version_is_refused_and_frees_the_lock(
    w: &ContractWorld<impl ContractServer>,
) {
    let grant = w.one.lead().await;
    let other = Grant::new(grant.token, long_after(grant.version), grant.now);
    assert_eq!(w.one.fill(&other).await, FillOutcome::Refused);
    assert_eq!(w.one.value().await, None);
    w.two.lead().await;
}

pub async fn a_late_fill_that_nobody_came_before_is_stored(w: &ContractWorld<impl ContractServer>) {
    let grant = w.one.lead_for(SHORT).await;
    lapse().await;
    assert_eq!(w.one.fill(&grant).await, FillOutcome::Stored);
    w.assert_idle().await;
}

pub async fn a_fill_that_another_grant_came_before_is_refused(
    w: &ContractWorld<impl ContractServer>,
) {
    let late = w.one.lead_for(SHORT).await;
    lapse().await;
    let next = w.two.lead().await;
    assert_eq!(w.two.fill(&next).await, FillOutcome::Stored);
    assert_eq!(w.one.fill(&late).await, FillOutcome::Refused);
    assert_eq!(w.one.value().await, Some(envelope(next.version, "filled")));
}

pub async fn a_fill_after_an_invalidation_is_refused(w: &ContractWorld<impl ContractServer>) {
    let grant = w.one.lead().await;
    assert_eq!(
        w.two.invalidate().await,
        InvalidatedRecords { value: false, lease: true, version: None }
    );
    assert_eq!(w.one.fill(&grant).await, FillOutcome::Refused);
    assert_eq!(w.one.value().await, None);
}

pub async fn an_acquire_that_arrives_after_an_invalidation_does_not_revive_the_old_right(
    w: &ContractWorld<impl ContractServer>,
) {
    let ask = ask(LONG);
    let old = granted(w.one.acquire(&ask).await);
    w.two.invalidate().await;
    let copy = granted(w.one.acquire(&ask).await);
    assert!(copy.version > old.version);
    assert!(!w.one.renew(&old).await);
    assert_eq!(w.one.fill(&old).await, FillOutcome::Refused);
    assert_eq!(w.one.value().await, None);
    // The lock that no process knows of went with the refusal.
    w.two.lead().await;
}

pub async fn a_value_is_gone_after_its_ttl(w: &ContractWorld<impl ContractServer>) {
    let grant = w.one.lead().await;
    let envelope = envelope(grant.version, "brief");
    let filled = w.one.remote.fill(&key(), &grant, SHORT, envelope).await.unwrap();
    assert_eq!(filled, FillOutcome::Stored);
    lapse().await;
    assert_eq!(w.two.value().await, None);
    w.two.lead().await;
}

pub async fn a_value_of_another_type_is_bytes_of_none_and_filled_over(
    w: &ContractWorld<impl ContractServer>,
) {
    w.server.set_foreign_value(&key()).await;
    assert_eq!(w.one.value().await, Some(Bytes::new()));
    let grant = w.one.lead().await;
    assert!(w.two.is_locked_out().await);
    assert!(w.one.renew(&grant).await);
    assert_eq!(w.one.fill(&grant).await, FillOutcome::Stored);
    assert_eq!(w.two.value().await, Some(envelope(grant.version, "filled")));
    w.server.set_foreign_value(&key()).await;
    let (_, version) = w.one.put().await;
    assert_eq!(version_of(&w.two.value().await.unwrap()), Some(version));
    w.server.set_foreign_value(&key()).await;
    assert!(w.one.invalidate().await.value);
}

pub async fn a_damaged_value_is_no_hit_and_filled_over(w: &ContractWorld<impl ContractServer>) {
    let damaged: [&[u8]; 5] = [b"", b"SP10", b"SP1000000000000000", &[0xff; 64], &[b'x'; 24]];
    for damaged in damaged {
        w.server.set_value(&key(), Bytes::copy_from_slice(damaged)).await;
        assert_eq!(w.one.value().await.as_deref(), Some(damaged));
        let grant = w.one.lead().await;
        assert!(w.two.is_locked_out().await);
        assert_eq!(w.one.fill(&grant).await, FillOutcome::Stored);
        assert_eq!(w.one.value().await, Some(envelope(grant.version, "filled")));
    }
}

pub async fn digits_that_are_no_version_do_not_freeze_the_version(
    w: &ContractWorld<impl ContractServer>,
) {
    // 2^52, and the largest number; no process can have seen these, as they are no versions.
    for digits in ["4503599627370496", "9999999999999999", "0000000000000000", " 123456789012345"] {
        w.server.set_value(&key(), format!("SP10{digits}x").into()).await;
        let first = w.one.lead().await;
        assert_eq!(w.one.fill(&first).await, FillOutcome::Stored);
        let next = granted(w.two.acquire(&ask(LONG).seen(Some(first.version))).await);
        assert!(next.version > first.version);
        w.two.invalidate().await;
    }
}

pub async fn bytes_of_every_kind_and_number_come_back(w: &ContractWorld<impl ContractServer>) {
    for len in [0, 1, 255, 70_000, 1 << 20] {
        let grant = w.one.lead().await;
        let mut bytes = envelope(grant.version, "").to_vec();
        bytes.extend((0..len).map(|n| (n % 256) as u8));
        let bytes = Bytes::from(bytes);
        let filled = w.one.remote.fill(&key(), &grant, LONG, bytes.clone()).await.unwrap();
        assert_eq!(filled, FillOutcome::Stored);
        assert!(w.two.value().await.unwrap() == bytes, "{len} bytes");
        assert!(hit(w.two.acquire(&ask(LONG)).await) == bytes, "{len} bytes");
        w.one.invalidate().await;
    }
}

pub async fn keys_of_every_kind_are_kept_apart(w: &ContractWorld<impl ContractServer>) {
    let keys = odd_keys();
    for (n, key) in keys.iter().enumerate() {
        let grant = granted(w.one.remote.acquire(key, &ask(LONG)).await.unwrap());
        let envelope = envelope(grant.version, &n.to_string());
        let filled = w.one.remote.fill(key, &grant, LONG, envelope).await.unwrap();
        assert_eq!(filled, FillOutcome::Stored, "{key:?}");
    }
    for (n, key) in keys.iter().enumerate() {
        let found = w.two.remote.get(key).await.unwrap().unwrap();
        assert_eq!(found[20..], *n.to_string().as_bytes(), "{key:?}");
    }
}

/// Keys that a naive hash tag mixes up or that are no text.
pub fn odd_keys() -> Vec<Key> {
    let long = |end: char| format!("{}{end}", "a".repeat(300));
    let mut keys: Vec<Key> =
        ["", "k", "{k}", "}k", "{", "{}", "k}x", "#k", "*", " ", "\n", "\r\n", "ä", "k:v", "k:l"]
            .map(Key::from)
            .into();
    keys.extend([Key::from(long('x')), Key::from(long('y'))]);
    keys.extend([Key::from(("a", "bc")), Key::from(("ab", "c")), Key::from(&[0_u8, 255, 13][..])]);
    keys
}

pub async fn an_invalidation_says_what_it_found(w: &ContractWorld<impl ContractServer>) {
    assert_eq!(w.one.invalidate().await, InvalidatedRecords::default());
    let grant = w.one.lead().await;
    assert_eq!(
        w.two.invalidate().await,
        InvalidatedRecords { value: false, lease: true, version: None }
    );
    assert_eq!(w.two.invalidate().await, InvalidatedRecords::default());
    assert!(!w.one.renew(&grant).await);
    let (_, version) = w.one.put().await;
    granted(w.one.acquire(&ask(LONG).seen(Some(version))).await);
    assert_eq!(
        w.two.invalidate().await,
        InvalidatedRecords { value: true, lease: true, version: None }
    );
    w.one.lead_for(SHORT).await;
    lapse().await;
    assert!(w.two.invalidate().await.lease, "the right outlives the lease");
}

pub async fn without_memory_an_acquire_and_a_fill_say_so(w: &ContractWorld<impl ContractServer>) {
    let (_, seen) = w.one.put().await;
    let ask_again = || ask(LONG).seen(Some(seen));
    let grant = granted(w.one.acquire(&ask_again()).await);
    w.server.out_of_memory(true).await;
    let acquired = w.two.remote.acquire(&key(), &ask_again()).await;
    assert_eq!(acquired.unwrap_err().kind(), RemoteErrorKind::OutOfMemory);
    let filled = w.one.try_fill(&grant).await;
    assert_eq!(filled.unwrap_err().kind(), RemoteErrorKind::OutOfMemory);
    assert_eq!(version_of(&w.two.value().await.unwrap()), Some(seen), "reading goes on");
    w.server.out_of_memory(false).await;
    assert_eq!(w.one.fill(&grant).await, FillOutcome::Stored);
}
