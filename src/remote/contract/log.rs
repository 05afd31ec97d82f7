//! The invalidation log.

use std::collections::BTreeMap;

use crate::Tag;
use crate::remote::{
    Epoch, LogItem, LogPositions, LogReply, LogUpdate, RemoteErrorKind, RemoteLog, Stamp,
};

use super::*;

fn tag(name: &str) -> LogItem {
    LogItem::Tag(Tag::from(name))
}

fn key_item(name: &str) -> LogItem {
    LogItem::Key(Key::from(name))
}

/// Tags by number, those `from` up to `to`.
fn numbered_tags(from: usize, to: usize) -> Vec<LogItem> {
    (from..to).map(|n| LogItem::Tag(Tag::from(n as u64))).collect()
}

fn numbered_keys(from: usize, to: usize) -> Vec<LogItem> {
    (from..to).map(|n| LogItem::Key(Key::from(n as u64))).collect()
}

impl ContractProcess {
    fn log(&self) -> &dyn RemoteLog {
        self.remote.log().expect("a remote with a log")
    }

    async fn announce(&self, items: &[LogItem], from: Option<Stamp>) -> LogReply {
        self.log().announce(items, from).await.unwrap()
    }

    /// Announces many items, in several calls.
    async fn announce_all(&self, items: &[LogItem]) {
        for items in items.chunks(5000) {
            self.announce(items, None).await;
        }
    }

    async fn read(&self, from: Stamp) -> LogReply {
        self.log().read(Some(from)).await.unwrap().expect("there is a log")
    }

    /// Reads again and again, until the log is complete.
    async fn read_all(&self, mut from: Stamp) -> (Vec<(u64, LogItem)>, usize) {
        let (mut found, mut reads) = (Vec::new(), 0);
        loop {
            let reply = self.read(from).await;
            reads += 1;
            found.extend(reply.missed.into_iter().filter(|(at, _)| *at <= reply.complete_to));
            if reply.complete_to == reply.previous {
                return (found, reads);
            }
            assert!(reply.complete_to > from.position, "no progress at {from:?}");
            from.position = reply.complete_to;
        }
    }

    async fn positions(&self, tags: &[Tag]) -> LogPositions {
        self.log().positions(tags).await.unwrap().expect("there is a log")
    }

    async fn position(&self, tag: impl Into<Tag>) -> u64 {
        self.positions(&[tag.into()]).await.positions[0]
    }

    async fn begin_log(&self) -> Stamp {
        stamp_of(&self.announce(&[], None).await)
    }
}

fn stamp_of(reply: &LogReply) -> Stamp {
    Stamp::new(reply.header.epoch, reply.header.last)
}

pub async fn there_is_no_log_before_the_first_announcement(w: &ContractWorld<impl ContractServer>) {
    let elsewhere = Stamp::new(Epoch::random(), 7);
    assert_eq!(w.one.log().read(None).await.unwrap(), None);
    assert_eq!(w.one.log().read(Some(elsewhere)).await.unwrap(), None);
    assert_eq!(w.one.log().positions(&[Tag::from("a")]).await.unwrap(), None);
    let begun = w.one.announce(&[], Some(elsewhere)).await;
    assert_ne!(begun.header.epoch, elsewhere.epoch);
    assert_eq!((begun.previous, begun.header.last, begun.header.dropped), (0, 0, 0));
    assert_eq!((begun.header.everything, begun.header.everything_stale), (0, 0));
    assert_eq!(w.two.log().read(None).await.unwrap(), Some(begun.clone()));
    assert_eq!(w.two.announce(&[], None).await, begun, "the log goes on");
}

pub async fn items_are_numbered_one_by_one(w: &ContractWorld<impl ContractServer>) {
    let first = w.one.announce(&[tag("a"), key_item("k"), LogItem::Everything], None).await;
    assert_eq!((first.previous, first.header.last), (0, 3));
    let second = w.two.announce(&[tag("b")], None).await;
    assert_eq!((second.previous, second.header.last), (3, 4));
    assert_eq!(second.header.epoch, first.header.epoch);
    let third = w.one.announce(&[tag("b"), tag("b")], None).await;
    assert_eq!((third.previous, third.header.last), (4, 6));
    assert_eq!(w.one.position("b").await, 6);
}

pub async fn who_reads_gets_what_others_have_announced_since(
    w: &ContractWorld<impl ContractServer>,
) {
    let start = stamp_of(&w.one.announce(&[tag("before")], None).await);
    w.two.announce(&[tag("a"), key_item("k"), tag("b")], None).await;
    let last = w.three.announce(&[tag("a"), key_item("k")], None).await;
    let reply = w.one.read(start).await;
    // Each item once, where it was announced last.
    assert_eq!(reply.missed, [(4, tag("b")), (5, tag("a")), (6, key_item("k"))]);
    assert_eq!((reply.previous, reply.complete_to), (6, 6));
    assert_eq!(reply.header, last.header);
    let reply = w.one.read(Stamp::new(start.epoch, 5)).await;
    assert_eq!(reply.missed, [(6, key_item("k"))]);
    let reply = w.one.read(stamp_of(&last)).await;
    assert_eq!((reply.missed, reply.complete_to), (Vec::new(), 6));
}

pub async fn who_announces_gets_what_others_have_announced_before(
    w: &ContractWorld<impl ContractServer>,
) {
    let start = w.one.begin_log().await;
    w.two.announce(&[tag("a"), key_item("k")], None).await;
    let reply = w.one.announce(&[tag("a"), tag("own"), key_item("own")], Some(start)).await;
    assert_eq!(reply.missed, [(1, tag("a")), (2, key_item("k"))]);
    assert_eq!((reply.previous, reply.complete_to, reply.header.last), (2, 2, 5));
}

pub async fn everything_stands_in_the_header_alone(w: &ContractWorld<impl ContractServer>) {
    let start = w.one.begin_log().await;
    let items = [LogItem::EverythingStale, tag("a"), LogItem::Everything, tag("b")];
    w.two.announce(&items, None).await;
    let reply = w.one.read(start).await;
    assert_eq!(reply.missed, [(2, tag("a")), (4, tag("b"))]);
    assert_eq!((reply.header.everything, reply.header.everything_stale), (3, 1));
    w.two.announce(&[LogItem::EverythingStale], None).await;
    let header = w.one.positions(&[]).await.header;
    assert_eq!((header.everything, header.everything_stale, header.last), (3, 5, 5));
    let reply = w.one.announce(&[], Some(start)).await;
    assert_eq!((reply.header, reply.previous), (header, 5));
}

pub async fn nothing_was_missed_since_a_position_of_another_epoch(
    w: &ContractWorld<impl ContractServer>,
) {
    let last = w.one.announce(&[tag("a"), key_item("k")], None).await;
    let elsewhere = Stamp::new(Epoch::random(), 1);
    for from in [None, Some(elsewhere), Some(Stamp::new(elsewhere.epoch, 99))] {
        let read = w.two.log().read(from).await.unwrap().unwrap();
        assert_eq!((read.missed, read.complete_to, read.previous), (Vec::new(), 2, 2), "{from:?}");
        assert_eq!(read.header, last.header, "{from:?}");
        let announced = w.two.announce(&[], from).await;
        assert_eq!((announced.missed, announced.header), (Vec::new(), last.header), "{from:?}");
    }
}

pub async fn a_process_that_has_missed_much_reads_on_from_where_a_reply_is_complete(
    w: &ContractWorld<impl ContractServer>,
) {
    let start = w.one.begin_log().await;
    let mut items = Vec::new();
    for part in 0..25 {
        items.extend(numbered_tags(100 * part, 100 * (part + 1)));
        items.extend(numbered_keys(60 * part, 60 * (part + 1)));
    }
    w.two.announce_all(&items).await;
    let expected: Vec<_> = (1..).zip(items).collect();
    let (found, reads) = w.one.read_all(start).await;
    assert!(found == expected, "{} of {} items", found.len(), expected.len());
    assert!(reads > 1, "a reply is bounded");
    let reply = w.one.announce(&[tag("own")], Some(start)).await;
    assert!(reply.complete_to < reply.previous, "so is the reply to an announcement");
    let complete = reply.complete_to as usize;
    assert!(
        reply.missed.iter().filter(|(at, _)| *at <= reply.complete_to).eq(&expected[..complete])
    );
}

pub async fn each_tag_has_the_position_of_its_last_item(w: &ContractWorld<impl ContractServer>) {
    w.one.announce(&[tag("a"), tag("b"), key_item("k"), tag("a"), key_item("a")], None).await;
    let asked = ["never", "b", "a", "k", "a"].map(Tag::from);
    let said = w.two.positions(&asked).await;
    assert_eq!(said.positions, [0, 2, 4, 0, 4]);
    assert_eq!(Some(said.header), w.two.log().read(None).await.unwrap().map(|read| read.header));
    assert!(w.two.positions(&[]).await.positions.is_empty());
}

pub async fn a_dropped_tag_counts_as_announced_at_its_position_or_later(
    w: &ContractWorld<impl ContractServer>,
) {
    let (max_tags, _) = w.server.bound_log(500, 50).await;
    w.one.announce(&[tag("first"), tag("second")], None).await;
    // Known by now, and exactly.
    assert_eq!(w.two.position("first").await, 1);
    assert_eq!(w.two.positions(&[]).await.header.dropped, 0);
    w.one.announce_all(&numbered_tags(0, max_tags)).await;
    let said = w.two.positions(&["first", "second"].map(Tag::from)).await;
    assert!(said.positions[0] >= 1 && said.positions[1] >= 2, "{:?}", said.positions);
    let dropped = said.header.dropped;
    assert!((2..=said.header.last - max_tags as u64).contains(&dropped), "{dropped}");
}

pub async fn the_tags_that_stay_have_their_exact_positions_where_others_were_dropped(
    w: &ContractWorld<impl ContractServer>,
) {
    let (max_tags, _) = w.server.bound_log(500, 50).await;
    w.one.announce_all(&numbered_tags(0, max_tags + 1)).await;
    let first = 2;
    for from in (first..=max_tags).step_by(5000) {
        let until = (from + 5000).min(max_tags + 1);
        let tags: Vec<_> = (from..until).map(|n| Tag::from(n as u64)).collect();
        let expected: Vec<_> = (from..until).map(|n| n as u64 + 1).collect();
        assert!(w.two.positions(&tags).await.positions == expected, "from {from}");
    }
    // A dropped tag takes at most a few along that were never announced.
    let never: Vec<_> = (0..200).map(|n| Tag::from(format!("never {n}").as_str())).collect();
    let said = w.two.positions(&never).await.positions;
    assert!(said.iter().filter(|position| **position > 0).count() < 20, "{said:?}");
}

pub async fn a_process_that_missed_a_dropped_key_is_told(w: &ContractWorld<impl ContractServer>) {
    let (_, max_keys) = w.server.bound_log(500, 50).await;
    let start = w.one.begin_log().await;
    w.two.announce_all(&numbered_keys(0, max_keys)).await;
    assert_eq!(w.one.read(start).await.header.dropped, 0);
    let last = w.two.announce(&numbered_keys(max_keys, max_keys + 3), None).await.header;
    assert!((3..=last.last - max_keys as u64).contains(&last.dropped), "{last:?}");
    assert_eq!(w.one.read(start).await.header, last);
    let (found, _) = w.one.read_all(Stamp::new(start.epoch, last.dropped)).await;
    let expected = (1..).zip(numbered_keys(0, max_keys + 3)).skip(last.dropped as usize);
    assert!(found.into_iter().eq(expected));
}

pub async fn a_tag_that_is_announced_again_is_not_the_oldest(
    w: &ContractWorld<impl ContractServer>,
) {
    let (max_tags, _) = w.server.bound_log(500, 50).await;
    w.one.announce_all(&numbered_tags(0, max_tags)).await;
    let again = w.one.announce(&numbered_tags(0, 1), None).await.header;
    assert_eq!(again.dropped, 0, "no more tags than before");
    w.one.announce(&[tag("new")], None).await;
    assert_eq!(w.two.position(0_u64).await, again.last);
}

pub async fn a_lost_log_begins_again_under_another_epoch(w: &ContractWorld<impl ContractServer>) {
    let items = [tag("a"), key_item("k"), LogItem::Everything];
    let old = stamp_of(&w.one.announce(&items, None).await);
    w.server.lose_log().await;
    assert_eq!(w.two.log().read(Some(old)).await.unwrap(), None);
    assert_eq!(w.two.log().positions(&[Tag::from("a")]).await.unwrap(), None);
    let new = w.one.announce(&[tag("b")], Some(old)).await;
    assert_ne!(new.header.epoch, old.epoch);
    assert_eq!((new.previous, new.header.last, new.header.everything), (0, 1, 0));
    assert_eq!(new.missed, []);
    assert_eq!(w.two.position("a").await, 0);
    assert_eq!(w.two.read(old).await.header, new.header);
    let same = w.two.announce(&[tag("c")], Some(old)).await;
    assert_eq!((same.header.epoch, same.previous), (new.header.epoch, 1));
}

pub async fn a_flush_takes_the_log_along(w: &ContractWorld<impl ContractServer>) {
    let old = stamp_of(&w.one.announce(&[tag("a")], None).await);
    w.server.flush().await;
    assert_eq!(w.two.log().read(Some(old)).await.unwrap(), None);
    assert_ne!(w.two.begin_log().await.epoch, old.epoch);
}

pub async fn lost_keys_are_a_gap_for_who_has_not_applied_them(
    w: &ContractWorld<impl ContractServer>,
) {
    let start = w.one.begin_log().await;
    let applied = w.two.announce(&[tag("a"), key_item("k"), tag("b")], None).await;
    w.server.lose_keys_of_log().await;
    // Seen by each reader, and for good once a process has announced.
    for _ in 0..2 {
        let reply = w.one.read(start).await;
        assert!(reply.header.dropped >= 2, "{:?}", reply.header);
        assert!(w.one.read(stamp_of(&applied)).await.header.dropped <= 3);
        let tags = reply.missed.iter().filter(|(_, item)| matches!(item, LogItem::Tag(_)));
        assert_eq!(tags.count(), 2, "the tags are still there");
        w.three.announce(&[], None).await;
    }
    let now = w.two.announce(&[key_item("new")], Some(stamp_of(&applied))).await;
    assert_eq!((now.header.epoch, now.previous), (start.epoch, 3));
    let reply = w.one.read(stamp_of(&applied)).await;
    assert_eq!(reply.missed, [(4, key_item("new"))]);
    assert!((2..=3).contains(&reply.header.dropped), "{:?}", reply.header);
}

pub async fn a_log_that_lacks_what_a_process_has_applied_begins_again(
    w: &ContractWorld<impl ContractServer>,
) {
    let begun = stamp_of(&w.one.announce(&numbered_tags(0, 5), None).await);
    w.server.roll_back_log(2).await;
    let reply = w.one.read(begun).await;
    assert_eq!((reply.header.epoch, reply.header.last), (begun.epoch, 3), "the reader sees it");
    let as_far = Stamp::new(begun.epoch, 3);
    assert_eq!(w.two.announce(&[], Some(as_far)).await.header.epoch, begun.epoch);
    let new = w.one.announce(&[tag("a")], Some(begun)).await;
    assert_ne!(new.header.epoch, begun.epoch);
    assert_eq!((new.previous, new.header.last, new.missed), (0, 1, vec![]));
    assert_eq!(w.two.position(0_u64).await, 0, "of the old log nothing is left");
}

pub async fn after_a_failover_the_log_begins_again_though_nothing_seems_to_lack(
    w: &ContractWorld<impl ContractServer>,
) {
    for from in [None, Some(())] {
        let old = stamp_of(&w.one.announce(&[tag("a")], None).await);
        w.server.fail_over_log().await;
        let new = w.two.announce(&[], from.map(|()| old)).await;
        assert_ne!(new.header.epoch, old.epoch);
        assert_eq!((new.header.last, w.two.position("a").await), (0, 0));
        assert_eq!(w.three.begin_log().await.epoch, new.header.epoch, "once");
    }
}

pub async fn processes_that_announce_at_once_share_one_order(
    w: &ContractWorld<impl ContractServer>,
) {
    let own = async |process: &ContractProcess, name: &str| {
        let mut own = Vec::new();
        for n in 0..20 {
            let items = [tag(&format!("{name} {n}")), key_item(&format!("{name} {n}"))];
            let reply = process.announce(&items, None).await;
            assert!(reply.header.last >= reply.previous + 2);
            own.extend((reply.previous + 1..).zip(items));
        }
        own
    };
    let (one, two) = futures_util::future::join(own(&w.one, "one"), own(&w.two, "two")).await;
    let order: BTreeMap<_, _> = one.into_iter().chain(two).collect();
    assert!(order.keys().copied().eq(1..=80), "each position once");
    let mut heard = BTreeMap::new();
    for _ in 0..40 {
        let update = w.three.update().await;
        assert_eq!(update.previous, heard.len() as u64, "in their order");
        heard.extend((update.previous + 1..).zip(update.items));
    }
    assert_eq!(heard, order);
}

pub async fn an_announcement_is_told_to_the_others_and_not_to_its_own_process(
    w: &ContractWorld<impl ContractServer>,
) {
    let epoch = w.one.begin_log().await.epoch;
    let items = vec![tag("a"), LogItem::Everything, key_item("k"), LogItem::EverythingStale];
    w.one.announce(&items, None).await;
    let update = LogUpdate { epoch, previous: 0, items };
    assert_eq!(w.two.update().await, update);
    assert_eq!(w.three.update().await, update);
    // Messages come in order: had the first process been told of its own, it
    // would be told that before this.
    let items = vec![tag("last")];
    w.two.announce(&items, None).await;
    assert_eq!(w.one.update().await, LogUpdate { epoch, previous: 4, items });
}

pub async fn an_announcement_of_nothing_is_told_to_nobody(w: &ContractWorld<impl ContractServer>) {
    let begun = w.one.begin_log().await;
    w.one.announce(&[], Some(begun)).await;
    w.one.announce(&[tag("last")], None).await;
    assert_eq!(w.two.update().await.items, [tag("last")]);
}

pub async fn items_of_every_kind_of_bytes_come_back(w: &ContractWorld<impl ContractServer>) {
    let start = w.one.begin_log().await;
    let keys = fills::odd_keys();
    let mut tags: Vec<Tag> = keys.iter().cloned().map(Tag::from).collect();
    tags.extend([Tag::from("h:"), Tag::from(&[b'x'; 70_000][..])]);
    let mut items: Vec<_> = tags.iter().cloned().map(LogItem::Tag).collect();
    items.extend(keys.into_iter().map(LogItem::Key));
    w.one.announce(&items, None).await;
    assert_eq!(w.two.update().await.items, items);
    assert_eq!(w.two.positions(&tags).await.positions, (1..=tags.len() as u64).collect::<Vec<_>>());
    let reply = w.two.read(start).await;
    assert_eq!(reply.missed, (1..).zip(items).collect::<Vec<_>>());
}

pub async fn without_memory_announcements_are_taken_and_told(
    w: &ContractWorld<impl ContractServer>,
) {
    let start = w.one.begin_log().await;
    w.server.out_of_memory(true).await;
    let put = w.one.try_put().await;
    assert_eq!(put.unwrap_err().kind(), RemoteErrorKind::OutOfMemory);
    let items = [tag("a"), key_item("k"), LogItem::Everything];
    let reply = w.one.announce(&items, Some(start)).await;
    assert_eq!((reply.previous, reply.header.last), (0, 3));
    assert_eq!(w.two.update().await.items, items);
    assert_eq!(w.two.position("a").await, 1);
    assert_eq!(w.two.read(start).await.missed, [(1, tag("a")), (2, key_item("k"))]);
    // As well where the log has to begin.
    w.server.lose_log().await;
    let reply = w.two.announce(&items, Some(start)).await;
    assert_ne!(reply.header.epoch, start.epoch);
    assert_eq!((reply.previous, reply.header.last), (0, 3));
    assert_eq!(w.one.position("a").await, 1);
    w.server.out_of_memory(false).await;
}

pub async fn the_log_is_not_touched_by_what_is_done_to_keys(
    w: &ContractWorld<impl ContractServer>,
) {
    let begun = w.one.announce(&[tag("a"), key_item("k")], None).await;
    let grant = w.one.lead().await;
    w.one.fill(&grant).await;
    w.two.put().await;
    w.two.invalidate().await;
    let read = w.three.log().read(None).await.unwrap().unwrap();
    assert_eq!(read.header, begun.header);
}
