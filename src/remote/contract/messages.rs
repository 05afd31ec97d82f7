//! Who is woken, and who is told.

use crate::remote::LogItem;

use super::*;

pub async fn a_fill_wakes_every_process_that_waits_and_no_other(
    w: &ContractWorld<impl ContractServer>,
) {
    let grant = w.one.lead().await;
    let mut leader = w.one.listen();
    let (mut two, mut three) = (w.two.wait().await, w.three.wait().await);
    assert!(is_left_alone(&mut two).await, "not yet");
    w.one.fill(&grant).await;
    woken(&mut two).await;
    woken(&mut three).await;
    assert!(is_left_alone(&mut leader).await);
    assert!(is_left_alone(&mut two).await, "once");
}

pub async fn a_waiter_of_a_lost_leader_is_woken_by_the_next(
    w: &ContractWorld<impl ContractServer>,
) {
    w.one.lead_for(SHORT).await;
    let mut waiter = w.two.wait().await;
    lapse().await;
    let grant = w.three.lead().await;
    w.three.fill(&grant).await;
    woken(&mut waiter).await;
}

pub async fn an_invalidation_wakes_every_process_that_waits(
    w: &ContractWorld<impl ContractServer>,
) {
    w.one.lead().await;
    let (mut two, mut three) = (w.two.wait().await, w.three.wait().await);
    w.one.invalidate().await;
    woken(&mut two).await;
    woken(&mut three).await;
}

pub async fn a_put_wakes_every_process_that_waits(w: &ContractWorld<impl ContractServer>) {
    w.one.lead().await;
    let (mut two, mut three) = (w.two.wait().await, w.three.wait().await);
    w.one.put().await;
    woken(&mut two).await;
    woken(&mut three).await;
}

pub async fn who_did_not_register_is_not_woken(w: &ContractWorld<impl ContractServer>) {
    let grant = w.one.lead().await;
    let mut listener = w.two.listen();
    assert!(w.two.is_locked_out().await);
    let mut registered = w.three.wait().await;
    w.one.fill(&grant).await;
    woken(&mut registered).await;
    assert!(is_left_alone(&mut listener).await);
}

pub async fn another_key_wakes_nobody(w: &ContractWorld<impl ContractServer>) {
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

pub async fn a_process_that_is_locked_out_learns_how_many_wait(
    w: &ContractWorld<impl ContractServer>,
) {
    let first = w.one.lead().await;
    let waiting =
        async |process: &ContractProcess, ask: LeaseRequest| match process.acquire(&ask).await {
            AcquireOutcome::Locked { waiting, .. } => waiting,
            other => panic!("not locked: {other:?}"),
        };
    let before = waiting(&w.two, ask(LONG)).await;
    assert_eq!(before, 0, "it did not register");
    let mut counts = Vec::new();
    for process in [&w.two, &w.three, &w.two] {
        counts.push(waiting(process, ask(LONG).register()).await);
    }
    counts.push(waiting(&w.three, ask(LONG)).await);
    // A remote may leave the counting out.
    assert!(counts == [1, 2, 2, 2] || counts == [0; 4], "{counts:?}");
    w.one.fill(&first).await;
    w.one.invalidate().await;
    w.one.lead().await;
    let after = waiting(&w.two, ask(LONG).register()).await;
    assert_eq!(after, counts[0], "who was woken waits no more");
}

pub async fn what_is_done_to_a_key_is_told_to_nobody(w: &ContractWorld<impl ContractServer>) {
    let grant = w.one.lead().await;
    w.one.fill(&grant).await;
    w.one.put().await;
    w.one.invalidate().await;
    let failed = w.one.lead().await;
    w.one.abandon(&failed, Some(LONG)).await;
    w.one.remote.probe(Shard::ONLY).await.unwrap();
    let last = LogItem::Key(Key::from("last"));
    let announced = std::slice::from_ref(&last);
    w.one.remote.log().unwrap().announce(announced, None).await.unwrap();
    assert_eq!(w.two.update().await.items, [last]);
}
