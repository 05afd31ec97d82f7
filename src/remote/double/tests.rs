use std::future::Future;
use std::pin::pin;

use futures_util::FutureExt;
use parking_lot::Mutex;

use crate::remote::double::*;
use crate::remote::{
    AcquireOutcome, FillOutcome, Grant, LeaseRequest, LogItem, LogUpdate, Notice, OnNotice, Remote,
    RemoteError, RemoteLog, RemoteOp, RemotePush, Shard,
};

const LONG: Duration = Duration::from_secs(100);

#[derive(Default)]
struct Ears(Mutex<Vec<Notice>>);

impl OnNotice for Ears {
    fn on_notice(&self, notice: Notice) {
        self.0.lock().push(notice);
    }
}

fn listen_to(process: &DoubleProcess) -> (Arc<Ears>, Arc<dyn OnNotice>) {
    let ears = Arc::new(Ears::default());
    let kept: Arc<dyn OnNotice> = ears.clone();
    process.attach(Arc::downgrade(&kept));
    (ears, kept)
}

fn key() -> Key {
    Key::from("k")
}

async fn lead(process: &DoubleProcess) -> Grant {
    match process.acquire(&key(), &LeaseRequest::new(LONG, LONG)).await {
        Ok(AcquireOutcome::Granted(grant)) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

async fn fill(process: &DoubleProcess, grant: &Grant) -> Result<FillOutcome, RemoteError> {
    let envelope = format!("TEST{}", grant.version);
    process.fill(&key(), grant, LONG, envelope.into()).await
}

async fn is_pending(call: impl Future) -> bool {
    let mut call = pin!(call);
    tokio::time::timeout(Duration::from_secs(1), &mut call).await.is_err()
}

#[tokio::test(start_paused = true)]
async fn a_failed_call_is_counted_and_not_executed() {
    let double = Double::new();
    let process = double.process();
    let grant = lead(&process).await;
    double.fail(&[RemoteOp::Fill], RemoteErrorKind::ReadOnly);
    let error = fill(&process, &grant).await.unwrap_err();
    assert_eq!(error.kind(), RemoteErrorKind::ReadOnly);
    assert_eq!(process.get(&key()).await.unwrap(), None);
    double.heal(RemoteOp::ALL);
    assert_eq!(fill(&process, &grant).await.unwrap(), FillOutcome::Stored);
    assert_eq!(double.calls(RemoteOp::Fill), 2);
    let all = [(RemoteOp::Get, 1), (RemoteOp::Acquire, 1), (RemoteOp::Fill, 2)];
    assert_eq!(double.all_calls(), all.into());
    double.forget_calls();
    assert_eq!(double.calls(RemoteOp::Fill), 0);
}

#[tokio::test(start_paused = true)]
async fn a_script_says_how_each_call_ends_and_the_log_has_them_in_order() {
    let double = Double::new();
    let (one, other) = (double.process(), double.process());
    double.fail(&[RemoteOp::Get], RemoteErrorKind::ReadOnly);
    double.script(RemoteOp::Get, [Ok(()), Err(RemoteErrorKind::Timeout)]);
    let kind = |error: RemoteError| error.kind();
    assert_eq!(one.get(&key()).await.map_err(kind), Ok(None));
    assert_eq!(other.get(&key()).await.map_err(kind), Err(RemoteErrorKind::Timeout));
    other.probe(Shard::ONLY).await.unwrap();
    assert_eq!(one.get(&key()).await.map_err(kind), Err(RemoteErrorKind::ReadOnly));
    double.script(RemoteOp::Get, [Err(RemoteErrorKind::Timeout)]);
    double.heal(RemoteOp::ALL);
    assert_eq!(one.get(&key()).await.map_err(kind), Ok(None));

    let log: Vec<_> = double.call_log().iter().map(ToString::to_string).collect();
    let all = ["0 get k", "1 get k: timeout", "1 probe", "0 get k: read_only", "0 get k"];
    assert_eq!(log, all);
    double.forget_calls();
    assert!(double.call_log().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_reply_is_lost_or_broken_is_executed() {
    let double = Double::new();
    let process = double.process();
    let grant = lead(&process).await;
    double.lose_replies(&[RemoteOp::Fill]);
    assert!(is_pending(fill(&process, &grant)).await);
    double.break_replies(&[RemoteOp::Fill], RemoteErrorKind::Connection);
    let error = fill(&process, &grant).await.unwrap_err();
    assert_eq!(error.kind(), RemoteErrorKind::Connection);
    double.heal(&[RemoteOp::Fill]);
    assert_eq!(fill(&process, &grant).await.unwrap(), FillOutcome::StoredBefore);
}

#[tokio::test(start_paused = true)]
async fn a_frozen_server_does_what_was_asked_when_it_thaws_though_nobody_waits() {
    let double = Double::new();
    let process = double.process();
    let grant = lead(&process).await;
    double.freeze();
    assert!(is_pending(fill(&process, &grant)).await);
    let key = key();
    let mut late = process.get(&key);
    assert!((&mut late).now_or_never().is_none());
    double.thaw();
    assert!(late.await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_delayed_reply_takes_so_long() {
    let double = Double::new();
    let process = double.process();
    double.delay(LONG);
    let start = tokio::time::Instant::now();
    process.probe(Shard::ONLY).await.unwrap();
    assert_eq!(start.elapsed(), LONG);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_moves_the_ends_of_leases_and_values() {
    let double = Double::new();
    let process = double.process();
    let grant = lead(&process).await;
    fill(&process, &grant).await.unwrap();
    let before = process.probe(Shard::ONLY).await.unwrap().as_millis();
    double.set_clock_back(LONG);
    assert_eq!(process.probe(Shard::ONLY).await.unwrap().as_millis() + 100_000, before);
    tokio::time::advance(LONG).await;
    assert!(process.get(&key()).await.unwrap().is_some(), "it has so much longer");
    double.set_clock_forward(LONG);
    assert_eq!(process.get(&key()).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_process_is_told_when_it_is_cut_off_and_when_not_any_more() {
    let double = Double::new();
    let (one, two) = (double.process(), double.process());
    two.unsubscribe();
    let (ears, _kept) = listen_to(&two);
    assert!(!two.is_subscribed());
    assert_eq!(*ears.0.lock(), []);

    let mut listener = two.listen(&key());
    two.subscribe();
    assert!(two.is_subscribed());
    assert!(listener.woken().now_or_never().is_some(), "woken to look again");
    two.unsubscribe();
    one.announce(&[LogItem::Everything], None).await.unwrap();
    two.subscribe();
    let told = [Notice::Subscribed, Notice::Unsubscribed, Notice::Subscribed];
    assert_eq!(*ears.0.lock(), told);
}

#[tokio::test(start_paused = true)]
async fn who_is_cut_off_is_not_registered() {
    let double = Double::new();
    let (one, two, three) = (double.process(), double.process(), double.process());
    let (_ears, _kept) = listen_to(&two);
    let (_ears, _kept_too) = listen_to(&three);
    let grant = lead(&one).await;
    two.unsubscribe();
    let register = LeaseRequest::new(LONG, LONG).register();
    two.acquire(&key(), &register).await.unwrap();
    two.subscribe();
    three.acquire(&key(), &register).await.unwrap();
    // The first that is registered is woken; the second would be left out.
    let mut listener = three.listen(&key());
    one.abandon(&key(), &grant.token, None).await.unwrap();
    assert!(listener.woken().now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn an_abandon_wakes_the_first_that_still_hears() {
    let double = Double::new();
    let (one, two, three) = (double.process(), double.process(), double.process());
    let (_ears, _kept) = listen_to(&two);
    let (_ears, _kept_too) = listen_to(&three);
    let grant = lead(&one).await;
    let register = LeaseRequest::new(LONG, LONG).register();
    two.acquire(&key(), &register).await.unwrap();
    three.acquire(&key(), &register).await.unwrap();
    two.unsubscribe();
    let mut listener = three.listen(&key());
    one.abandon(&key(), &grant.token, None).await.unwrap();
    assert!(listener.woken().now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn lost_messages_reach_nobody() {
    let double = Double::new();
    let (one, two) = (double.process(), double.process());
    let (ears, _kept) = listen_to(&two);
    double.lose_messages(true);
    one.announce(&[LogItem::Everything], None).await.unwrap();
    double.lose_messages(false);
    let items = vec![LogItem::Key(Key::from("other"))];
    let epoch = one.announce(&items, None).await.unwrap().header.epoch;
    let update = LogUpdate { epoch, previous: 1, items };
    assert_eq!(*ears.0.lock(), [Notice::Subscribed, Notice::Announced(update)]);
}

#[tokio::test(start_paused = true)]
async fn an_announcement_of_nothing_counts_as_reading() {
    let double = Double::new();
    let process = double.process();
    process.announce(&[], None).await.unwrap();
    process.read(None).await.unwrap();
    process.announce(&[LogItem::Everything], None).await.unwrap();
    process.positions(&[]).await.unwrap();
    let all = [(RemoteOp::Announce, 1), (RemoteOp::ReadLog, 2), (RemoteOp::ReadPositions, 1)];
    assert_eq!(double.all_calls(), all.into());
}

#[tokio::test(start_paused = true)]
async fn a_log_that_fails_over_lacks_its_last_items_and_begins_again() {
    let double = Double::new();
    let process = double.process();
    let items = ["a", "b", "c"].map(|tag| LogItem::Tag(tag.into()));
    let before = process.announce(&items, None).await.unwrap().header;
    double.fail_over_log(1);
    let read = process.read(None).await.unwrap().unwrap().header;
    assert_eq!((read.epoch, read.last), (before.epoch, 2), "nothing was written yet");
    let after = process.announce(&[], None).await.unwrap().header;
    assert_ne!(after.epoch, before.epoch);
}

#[tokio::test(start_paused = true)]
async fn a_lost_node_leaves_the_log_and_a_flush_does_not() {
    let double = Double::new();
    let process = double.process();
    process.announce(&[LogItem::Everything], None).await.unwrap();
    let grant = lead(&process).await;
    fill(&process, &grant).await.unwrap();
    double.flush_keys();
    assert_eq!(process.get(&key()).await.unwrap(), None);
    assert!(process.read(None).await.unwrap().is_some());
    double.flush();
    assert_eq!(process.read(None).await.unwrap(), None);
}

struct Nosy(Arc<DoubleProcess>, Mutex<Vec<bool>>);

impl OnNotice for Nosy {
    fn on_notice(&self, _: Notice) {
        self.1.lock().push(self.0.is_subscribed());
    }
}

#[tokio::test]
async fn a_listener_may_call_back() {
    let process = Double::new().process();
    let nosy = Arc::new(Nosy(process.clone(), Mutex::default()));
    let kept: Arc<dyn OnNotice> = nosy.clone();
    process.attach(Arc::downgrade(&kept));
    process.unsubscribe();
    assert_eq!(*nosy.1.lock(), [true, false]);
}

#[tokio::test]
async fn suspicions_are_kept() {
    let process = Double::new().process();
    process.suspect(Shard::ONLY, RemoteErrorKind::Timeout);
    assert_eq!(process.suspicions(), [RemoteErrorKind::Timeout]);
}
