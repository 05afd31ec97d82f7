//! Who is woken, and who is told.

use super::*;

pub(crate) async fn a_fill_wakes_every_process_that_waits_and_no_other(w: &World<impl Server>) {
    let grant = w.one.lead().await;
    let mut leader = w.one.remote.listen(&key());
    let (mut two, mut three) = (w.two.wait().await, w.three.wait().await);
    assert!(is_left_alone(&mut two).await, "not yet");
    w.one.fill(&grant).await;
    woken(&mut two).await;
    woken(&mut three).await;
    assert!(is_left_alone(&mut leader).await);
    assert!(is_left_alone(&mut two).await, "once");
}

pub(crate) async fn a_waiter_of_a_lost_leader_is_woken_by_the_next(w: &World<impl Server>) {
    w.one.lead_for(SHORT).await;
    let mut waiter = w.two.wait().await;
    lapse().await;
    let grant = w.three.lead().await;
    w.three.fill(&grant).await;
    woken(&mut waiter).await;
}

pub(crate) async fn an_invalidation_wakes_every_process_that_waits(w: &World<impl Server>) {
    w.one.lead().await;
    let (mut two, mut three) = (w.two.wait().await, w.three.wait().await);
    w.one.invalidate().await;
    woken(&mut two).await;
    woken(&mut three).await;
}

pub(crate) async fn a_put_wakes_every_process_that_waits(w: &World<impl Server>) {
    w.one.lead().await;
    let (mut two, mut three) = (w.two.wait().await, w.three.wait().await);
    w.one.put().await;
    woken(&mut two).await;
    woken(&mut three).await;
}

pub(crate) async fn who_did_not_register_is_not_woken(w: &World<impl Server>) {
    let grant = w.one.lead().await;
    let mut listener = w.two.remote.listen(&key());
    assert!(w.two.is_locked_out().await);
    let mut registered = w.three.wait().await;
    w.one.fill(&grant).await;
    woken(&mut registered).await;
    assert!(is_left_alone(&mut listener).await);
}

pub(crate) async fn another_key_wakes_nobody(w: &World<impl Server>) {
    let grant = w.one.lead().await;
    let mut waiter = w.two.wait().await;
    let other = Key::from("other");
    let stranger = granted(w.one.remote.acquire(&other, &ask(LONG)).await.unwrap());
    let filled = envelope(stranger.version, "other");
    w.one.remote.fill(&other, &stranger, LONG, filled).await.unwrap();
    w.one.remote.invalidate(&other).await.unwrap();
    assert!(is_left_alone(&mut waiter).await);
    w.one.fill(&grant).await;
    woken(&mut waiter).await;
}

pub(crate) async fn an_invalidation_is_told_to_the_others_and_not_to_its_own_process(
    w: &World<impl Server>,
) {
    w.one.invalidate().await;
    assert_eq!(w.two.notice().await, Notice::Invalidated(key()));
    assert_eq!(w.three.notice().await, Notice::Invalidated(key()));
    // Messages come in order: had the first process been told of its own, it
    // would be told that before this.
    let last = Key::from("last");
    w.two.remote.invalidate(&last).await.unwrap();
    assert_eq!(w.one.notice().await, Notice::Invalidated(last));
}

pub(crate) async fn a_put_is_told_to_the_others_and_not_to_its_own_process(w: &World<impl Server>) {
    w.one.put().await;
    assert_eq!(w.two.notice().await, Notice::Invalidated(key()));
    assert_eq!(w.three.notice().await, Notice::Invalidated(key()));
    let last = Key::from("last");
    w.two.remote.invalidate(&last).await.unwrap();
    assert_eq!(w.one.notice().await, Notice::Invalidated(last));
}

pub(crate) async fn a_notice_carries_every_kind_of_key(w: &World<impl Server>) {
    for key in fills::odd_keys() {
        w.one.remote.invalidate(&key).await.unwrap();
        assert_eq!(w.two.notice().await, Notice::Invalidated(key));
    }
}

pub(crate) async fn a_fill_is_told_to_nobody(w: &World<impl Server>) {
    let grant = w.one.lead().await;
    w.one.fill(&grant).await;
    let last = Key::from("last");
    w.one.remote.invalidate(&last).await.unwrap();
    assert_eq!(w.two.notice().await, Notice::Invalidated(last));
}
