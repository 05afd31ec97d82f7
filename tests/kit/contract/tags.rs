//! The invalidation log.

use std::collections::HashMap;

use tower_stampede::Tag;

use super::*;

async fn log(process: &Process) -> HashMap<Tag, ServerTime> {
    let entries = process.remote.read_tags().await.unwrap();
    let count = entries.len();
    let log: HashMap<_, _> = entries.into_iter().collect();
    assert_eq!(log.len(), count, "a tag twice");
    log
}

fn later(time: ServerTime, millis: u64) -> ServerTime {
    ServerTime::from_millis(time.as_millis() + millis)
}

pub(crate) async fn an_invalidated_tag_is_in_the_log_with_the_remotes_time(w: &World<impl Server>) {
    assert!(log(&w.two).await.is_empty());
    let before = w.one.remote.probe().await.unwrap();
    let (a, b) = (Tag::from("a"), Tag::from("b"));
    let at = w.one.remote.invalidate_tags(&[a.clone(), b.clone()]).await.unwrap();
    assert!(at >= before && at <= w.one.remote.probe().await.unwrap());
    assert_eq!(log(&w.two).await, HashMap::from([(a, at), (b, at)]));
}

pub(crate) async fn an_invalidated_tag_is_told_to_the_others_and_not_to_its_own_process(
    w: &World<impl Server>,
) {
    let tags = [Tag::from("a"), Tag::from("b")];
    let at = w.one.remote.invalidate_tags(&tags).await.unwrap();
    for process in [&w.two, &w.three] {
        assert_eq!(process.notice().await, Notice::TagsInvalidated(tags.to_vec(), at));
    }
    let last = [Tag::from("last")];
    let at = w.two.remote.invalidate_tags(&last).await.unwrap();
    assert_eq!(w.one.notice().await, Notice::TagsInvalidated(last.to_vec(), at));
}

pub(crate) async fn a_tag_keeps_its_latest_time(w: &World<impl Server>) {
    let tag = Tag::from("t");
    let at = w.one.remote.invalidate_tags(std::slice::from_ref(&tag)).await.unwrap();
    let earlier = ServerTime::from_millis(at.as_millis() - 1);
    w.two.remote.restore_tags(&[(tag.clone(), earlier)]).await.unwrap();
    assert_eq!(log(&w.one).await[&tag], at);
    let far = later(at, 1_000_000);
    let other = Tag::from("other");
    w.two.remote.restore_tags(&[(tag.clone(), far), (other.clone(), earlier)]).await.unwrap();
    assert_eq!(log(&w.one).await, HashMap::from([(tag.clone(), far), (other, earlier)]));
    w.one.remote.invalidate_tags(std::slice::from_ref(&tag)).await.unwrap();
    assert_eq!(log(&w.one).await[&tag], far, "a clock set back does not turn it back");
}

pub(crate) async fn the_log_is_trimmed_of_what_is_older(w: &World<impl Server>) {
    let now = w.one.remote.probe().await.unwrap();
    let entries = [0, 1, 2].map(|n| (Tag::from(n), later(now, n)));
    w.one.remote.restore_tags(&entries).await.unwrap();
    w.two.remote.trim_tags(later(now, 1)).await.unwrap();
    assert_eq!(log(&w.one).await, entries[1..].iter().cloned().collect());
}

pub(crate) async fn everything_is_a_tag_like_any_other(w: &World<impl Server>) {
    let everything = Tag::from("*");
    let at = w.one.remote.invalidate_tags(std::slice::from_ref(&everything)).await.unwrap();
    assert_eq!(log(&w.two).await, HashMap::from([(everything.clone(), at)]));
    assert_eq!(w.two.notice().await, Notice::TagsInvalidated(vec![everything], at));
}

pub(crate) async fn tags_of_every_kind_come_back(w: &World<impl Server>) {
    let tags: Vec<Tag> = fills::odd_keys().into_iter().map(Tag::from).collect();
    let at = w.one.remote.invalidate_tags(&tags).await.unwrap();
    assert_eq!(w.two.notice().await, Notice::TagsInvalidated(tags.clone(), at));
    assert_eq!(log(&w.two).await, tags.into_iter().map(|tag| (tag, at)).collect());
    let entries: Vec<_> = log(&w.two).await.into_iter().collect();
    w.server.flush().await;
    w.three.remote.restore_tags(&entries).await.unwrap();
    assert_eq!(log(&w.two).await, entries.into_iter().collect());
}

pub(crate) async fn no_tags_are_no_entries(w: &World<impl Server>) {
    w.one.remote.invalidate_tags(&[]).await.unwrap();
    w.one.remote.restore_tags(&[]).await.unwrap();
    assert!(log(&w.two).await.is_empty());
}
