mod search;
mod state;
mod steps;
mod world;

use super::*;
use crate::lease::grant::Version;
use crate::remote::link::known::judge_by;
use crate::remote::log::LogPositions;

const T0: Tick = Tick::from_nanos(1000);

fn epoch(number: u64) -> Epoch {
    Epoch::new(number).unwrap()
}

fn stamp(position: u64) -> Option<Stamp> {
    Some(Stamp::new(epoch(1), position))
}

fn k() -> Key {
    "k".into()
}

fn own(items: &[LogItem]) -> OwnItems<'_> {
    OwnItems { items, ended: &[] }
}

fn version(number: u64) -> Version {
    Version::new(number).unwrap()
}

/// An entry whose computation was granted version 5.
fn entry<'a>(key: &'a Key, tags: &'a [Tag], stamp: Option<Stamp>) -> JudgedEntry<'a> {
    JudgedEntry { key, tags, stamp, version: Some(version(5)) }
}

fn judge(link: &Link, key: &Key, tags: &[Tag], stamp: Option<Stamp>) -> Liveness {
    link.judge_by_log(entry(key, tags, stamp))
}

impl Effects {
    fn items(&self) -> Vec<LogItem> {
        self.items.iter().map(|(_, item)| item.clone()).collect()
    }
}

fn header(last: u64) -> LogHeader {
    LogHeader { epoch: epoch(1), server: 1, last, everything: 0, everything_stale: 0, dropped: 0 }
}

fn tag(name: &str) -> LogItem {
    LogItem::Tag(name.into())
}

fn tags(names: &[&str]) -> Vec<Tag> {
    names.iter().map(|name| Tag::from(*name)).collect()
}

fn reply(header: LogHeader, missed: &[(u64, LogItem)]) -> LogReply {
    let missed = missed.to_vec();
    LogReply { header, previous: header.last, missed, complete_to: header.last }
}

fn update(previous: u64, items: &[LogItem]) -> LogUpdate {
    LogUpdate { epoch: epoch(1), previous, items: items.to_vec() }
}

/// Follows the log from position 10 on.
fn following() -> Link {
    let mut link = Link::new(100, 100);
    let effect = link.take_reply(None, &reply(header(10), &[]), OwnItems::default(), T0);
    assert!(effect.drops_copies, "what was held before is not known to be alive");
    link
}

#[test]
fn before_the_log_was_read_it_is_to_be_read() {
    let mut link = Link::new(100, 100);
    assert_eq!(judge(&link, &k(), &[], stamp(1)), Liveness::Behind);
    assert_eq!(link.stamp(), None);
    let effect = link.take_update(&update(0, &[tag("a")]), T0);
    assert!(effect.is_behind);
    assert_eq!(effect.items(), [tag("a")], "what it says has ended in any case");
}

#[test]
fn an_entry_is_dead_once_a_tag_of_it_has_a_higher_position() {
    let mut link = following();
    let effect = link.take_update(&update(10, &[tag("a"), tag("b")]), T0);
    assert_eq!(effect.items(), vec![tag("a"), tag("b")]);
    assert_eq!(link.stamp(), stamp(12));
    assert_eq!(judge(&link, &k(), &tags(&["b"]), stamp(11)), Liveness::Dead);
    assert_eq!(judge(&link, &k(), &tags(&["a"]), stamp(11)), Liveness::Alive, "began after it");
    assert_eq!(judge(&link, &k(), &tags(&["c"]), stamp(10)), Liveness::Alive);
    assert_eq!(judge(&link, &k(), &[], stamp(10)), Liveness::Alive);
}

#[test]
fn an_entry_without_a_stamp_or_of_another_epoch_is_not_alive() {
    let link = following();
    assert_eq!(judge(&link, &k(), &[], None), Liveness::Dead);
    assert_eq!(judge(&link, &k(), &[], Some(Stamp::new(epoch(2), 1))), Liveness::Behind);
    assert_eq!(judge(&link, &k(), &[], stamp(11)), Liveness::Behind, "its process knows more");
}

#[test]
fn tags_of_an_entry_older_than_what_is_followed_are_asked_for() {
    let link = following();
    assert_eq!(judge(&link, &k(), &tags(&["a"]), stamp(9)), Liveness::Unknown);
    let said = |positions: &[u64]| LogPositions { header: header(10), positions: positions.into() };
    let asked = Stamp::new(epoch(1), 9);
    assert_eq!(judge_by(&said(&[9, 9]), 1, asked), Liveness::Alive);
    assert_eq!(judge_by(&said(&[10, 0]), 1, asked), Liveness::Dead);
    assert_eq!(judge_by(&said(&[9, 10]), 1, asked), Liveness::Stale(None));
    let other = Stamp::new(epoch(2), 9);
    assert_eq!(judge_by(&said(&[0, 0]), 1, other), Liveness::Dead);
    let mut all = said(&[0, 0]);
    all.header.everything = 10;
    assert_eq!(judge_by(&all, 1, asked), Liveness::Dead);
}

#[test]
fn an_older_entry_without_tags_is_asked_for_only_where_a_key_was_marked_since() {
    let mut link = following();
    assert_eq!(judge(&link, &k(), &[], stamp(9)), Liveness::Unknown, "not known yet");
    let of_other_life = LogHeader { epoch: epoch(2), ..header(10) };
    for said in [of_other_life, header(9)] {
        link.is_told_of_marked_keys(&said, 3);
        assert_eq!(judge(&link, &k(), &[], stamp(9)), Liveness::Unknown, "{said:?} is too old");
    }
    link.is_told_of_marked_keys(&header(10), 9);
    assert_eq!(judge(&link, &k(), &[], stamp(9)), Liveness::Alive);
    assert_eq!(judge(&link, &k(), &[], stamp(8)), Liveness::Unknown);
    let items = items_of_tags(&[Tag::mark_of_key(&"other".into())]);
    let effects = link.take_update(&update(10, &items), T0);
    assert_eq!(effects.items(), items[..1], "the other record is for those who come later");
    assert_eq!(link.stamp(), stamp(12));
    assert_eq!(judge(&link, &k(), &[], stamp(10)), Liveness::Alive, "it knows of all since then");
    assert_eq!(judge(&link, &k(), &[], stamp(9)), Liveness::Unknown);
    let said = LogPositions { header: header(12), positions: vec![0] };
    assert_eq!(judge_by(&said, 0, Stamp::new(epoch(1), 9)), Liveness::Alive);
}

#[test]
fn the_mark_of_a_key_makes_stale_what_was_computed_before_it() {
    let mut link = following();
    let items = items_of_tags(&[Tag::mark_of_key(&k())]);
    link.take_update(&update(10, &items), T0);
    for tags in [&[][..], &tags(&["a"])] {
        assert_eq!(judge(&link, &k(), tags, stamp(10)), Liveness::Stale(Some(T0)));
        assert_eq!(judge(&link, &k(), tags, stamp(11)), Liveness::Alive);
        assert_eq!(judge(&link, &"other".into(), tags, stamp(10)), Liveness::Alive);
    }
    assert!(items[0].concerns(&k(), &[]) && !items[0].concerns(&"other".into(), &tags(&["k"])));
    // Not told yet, it may not serve as fresh.
    link.journal.note_tags(&[Tag::mark_of_key(&k())]);
    assert_eq!(link.judge(entry(&k(), &[], stamp(11)), T0), Liveness::Dead);
}

#[test]
fn everything_ends_what_has_no_tag_and_a_mark_makes_it_stale() {
    let mut link = following();
    let later = T0.plus(std::time::Duration::from_secs(1));
    link.take_update(&update(10, &[LogItem::Everything]), T0);
    link.take_update(&update(11, &[LogItem::EverythingStale]), later);
    assert_eq!(judge(&link, &k(), &[], stamp(10)), Liveness::Dead);
    assert_eq!(judge(&link, &k(), &[], stamp(11)), Liveness::Stale(Some(later)));
    assert_eq!(judge(&link, &k(), &[], stamp(12)), Liveness::Alive);
    let mark = LogItem::from(Tag::from("a").stale_mark());
    link.take_update(&update(12, std::slice::from_ref(&mark)), T0);
    assert_eq!(judge(&link, &k(), &tags(&["a"]), stamp(12)), Liveness::Stale(Some(T0)));
    assert_eq!(judge(&link, &k(), &tags(&["b"]), stamp(12)), Liveness::Alive);
}

#[test]
fn a_lost_message_is_found_by_the_next_message_and_read() {
    let mut link = following();
    let asked = link.stamp();
    let effect = link.take_update(&update(12, &[tag("c")]), T0);
    assert!(effect.is_behind);
    assert_eq!(effect.items(), [tag("c")], "this one has ended at once");
    assert_eq!(link.stamp(), asked, "no computation is stamped with more");
    assert_eq!(judge(&link, &k(), &tags(&["c"]), stamp(10)), Liveness::Dead);
    let key = LogItem::Key("k".into());
    let missed = [(11, tag("b")), (12, key.clone()), (13, tag("c"))];
    let effect = link.take_reply(asked, &reply(header(13), &missed), OwnItems::default(), T0);
    assert_eq!(effect.items(), vec![tag("b"), key]);
    assert_eq!(link.stamp(), stamp(13));
}

#[test]
fn a_message_that_comes_twice_or_late_does_nothing() {
    let mut link = following();
    let message = update(10, &[tag("a"), LogItem::Key("k".into())]);
    assert_eq!(link.take_update(&message, T0).items().len(), 2);
    assert_eq!(link.take_update(&message, T0), Effects::default());
}

#[test]
fn own_items_are_known_at_once_and_end_nothing_twice() {
    let mut link = following();
    let (asked, mut said) = (link.stamp(), reply(header(12), &[(11, tag("b"))]));
    (said.previous, said.complete_to) = (11, 11);
    let effect = link.take_reply(asked, &said, own(&[tag("own")]), T0);
    assert_eq!(effect.items(), [tag("b")]);
    assert_eq!(link.stamp(), stamp(12));
    assert_eq!(judge(&link, &k(), &tags(&["own"]), stamp(11)), Liveness::Dead);
}

#[test]
fn what_another_process_has_ended_is_not_hidden_by_an_own_item_that_came_later() {
    let mut link = following();
    let (asked, mut said) = (link.stamp(), reply(header(12), &[(11, tag("a"))]));
    (said.previous, said.complete_to) = (11, 11);
    let effect = link.take_reply(asked, &said, own(&[tag("a")]), T0);
    assert_eq!(effect.items(), [tag("a")]);
    assert_eq!(judge(&link, &k(), &tags(&["a"]), stamp(11)), Liveness::Dead);
    assert_eq!(judge(&link, &k(), &tags(&["a"]), stamp(12)), Liveness::Alive);
}

#[test]
fn an_own_end_of_everything_ends_once_more_where_another_may_be_hidden_by_it() {
    for (missed, expected) in [(0, vec![]), (1, vec![LogItem::Everything])] {
        let mut link = following();
        let last = 11 + missed;
        let said = LogHeader { everything: last, ..header(last) };
        let mut said = reply(said, &[]);
        (said.previous, said.complete_to) = (last - 1, last - 1);
        let effect = link.take_reply(link.stamp(), &said, own(&[LogItem::Everything]), T0);
        assert_eq!(effect.items(), expected, "{missed}");
        assert_eq!(judge(&link, &k(), &[], stamp(last - 1)), Liveness::Dead);
    }
}

#[test]
fn own_items_end_once_more_where_it_is_not_known_what_they_hide() {
    let mut link = following();
    let mut said = reply(header(12), &[]);
    said.previous = 11;
    let effect = link.take_reply(None, &said, own(&[tag("a")]), T0);
    assert_eq!((effect.items(), effect.is_behind), (vec![tag("a")], true));
    assert_eq!(judge(&link, &k(), &tags(&["a"]), stamp(10)), Liveness::Dead);
}

#[test]
fn own_items_are_known_although_more_is_to_be_read() {
    let mut link = following();
    let (asked, mut said) = (link.stamp(), reply(header(3001), &[(11, tag("b"))]));
    (said.previous, said.complete_to) = (3000, 11);
    let effect = link.take_reply(asked, &said, own(&[tag("own")]), T0);
    assert!(effect.is_behind);
    assert_eq!(effect.items(), [tag("b"), tag("own")]);
    assert_eq!(link.stamp(), stamp(11));
    assert_eq!(judge(&link, &k(), &tags(&["own"]), stamp(11)), Liveness::Dead);
}

#[test]
fn a_log_that_is_shorter_than_when_it_was_asked_has_been_rolled_back() {
    let mut link = following();
    let effect = link.take_reply(stamp(10), &reply(header(8), &[]), OwnItems::default(), T0);
    assert!(effect.is_rolled_back && !effect.drops_copies);
    assert_eq!(link.stamp(), stamp(10));
}

#[test]
fn a_new_epoch_is_a_gap_and_the_old_one_is_never_returned_to() {
    let mut link = following();
    let asked = link.stamp();
    let new = LogHeader { epoch: epoch(2), ..header(3) };
    let effect = link.take_reply(asked, &reply(new, &[]), OwnItems::default(), T0);
    assert!(effect.drops_copies);
    assert_eq!(link.stamp(), Some(Stamp::new(epoch(2), 3)));
    let late = link.take_reply(asked, &reply(header(11), &[]), OwnItems::default(), T0);
    assert_eq!(late, Effects { is_behind: true, ..Effects::default() });
    assert_eq!(link.stamp(), Some(Stamp::new(epoch(2), 3)));
    assert_eq!(judge(&link, &k(), &[], stamp(10)), Liveness::Behind);
}

#[test]
fn items_that_the_log_has_dropped_are_a_gap_only_where_they_were_missed() {
    let mut link = following();
    let dropped = |dropped| LogHeader { dropped, ..header(20) };
    let effect = link.take_reply(stamp(10), &reply(dropped(10), &[]), OwnItems::default(), T0);
    assert!(!effect.drops_copies);
    let mut link = following();
    let effect = link.take_reply(stamp(10), &reply(dropped(11), &[]), OwnItems::default(), T0);
    assert!(effect.drops_copies);
    assert_eq!(link.stamp(), stamp(20));
}

#[test]
fn an_announcement_from_before_the_first_read_ends_what_it_names() {
    let mut link = Link::new(100, 100);
    // Another call has read the log while this one was on its way.
    link.take_reply(None, &reply(header(10), &[]), OwnItems::default(), T0);
    let mut said = reply(header(11), &[]);
    (said.previous, said.complete_to) = (10, 10);
    link.take_reply(None, &said, own(&[tag("own")]), T0);
    assert_eq!(judge(&link, &k(), &tags(&["own"]), stamp(10)), Liveness::Dead);
}

#[test]
fn tags_beyond_the_bound_are_asked_for() {
    let mut link = Link::new(10, 100);
    link.take_reply(None, &reply(header(0), &[]), OwnItems::default(), T0);
    for n in 0..100_u64 {
        link.take_update(&update(n, &[LogItem::Tag(n.into())]), T0);
        assert!(link.known.as_ref().unwrap().len() <= 10);
    }
    for n in 0..100_u64 {
        let judged = judge(&link, &k(), &[n.into()], stamp(n));
        assert!(matches!(judged, Liveness::Dead | Liveness::Unknown), "tag {n}: {judged:?}");
    }
    assert_eq!(judge(&link, &k(), &[7_u64.into()], stamp(100)), Liveness::Alive);
}

#[test]
fn a_message_that_tells_of_unread_items_has_the_log_read_before_anything_is_judged() {
    let mut link = following();
    let before = link.questions.count;
    // A gap: items 11 and 12 are not known.
    assert!(link.take_update(&update(12, &[tag("b")]), T0).is_behind);
    assert_eq!(judge(&link, &k(), &tags(&["a"]), stamp(10)), Liveness::Behind);
    assert_eq!(
        link.judge_behind(entry(&k(), &tags(&["a"]), stamp(10))),
        Liveness::Alive,
        "the log is away"
    );
    link.questions.answered = before;
    assert_eq!(judge(&link, &k(), &[], stamp(10)), Liveness::Behind, "that read was sent before");
    link.questions.answered = link.questions.count;
    assert_eq!(judge(&link, &k(), &[], stamp(10)), Liveness::Alive);

    // Another life of the log: everything may have ended.
    let other = LogUpdate { epoch: epoch(2), ..update(1, &[tag("b")]) };
    assert!(link.take_update(&other, T0).is_behind);
    assert_eq!(judge(&link, &k(), &[], stamp(10)), Liveness::Behind);
    assert_eq!(link.judge_behind(entry(&k(), &[], stamp(10))), Liveness::Unknown);
    link.questions.answered = link.questions.count;
    assert_eq!(judge(&link, &k(), &[], stamp(10)), Liveness::Alive, "the log says otherwise");
}

#[test]
fn positions_at_the_end_of_their_range_panic_nowhere() {
    let mut link = following();
    let items = [tag("a"), tag("b")];
    let last = LogHeader { last: u64::MAX, ..header(0) };
    let said = LogReply { previous: u64::MAX, ..reply(last, &[]) };
    link.take_reply(stamp(10), &said, own(&items), T0);
    link.take_update(&update(u64::MAX - 1, &items), T0);
    link.take_update(&update(u64::MAX, &items), T0);
    assert_ne!(judge(&link, &k(), &tags(&["a"]), stamp(10)), Liveness::Alive);
}

fn was_alive(link: &Link, tags: &[Tag], stamp: Option<Stamp>, arrived: Stamp) -> bool {
    let link = Link {
        valid: Validity::Until(Tick::MAX),
        verified_over: Some(link.connection),
        ..link.clone()
    };
    link.was_alive(entry(&k(), tags, stamp), arrived, T0)
}

#[test]
fn what_has_ended_since_a_caller_came_was_alive_for_that_caller() {
    let mut link = following();
    link.take_update(&update(10, &[tag("a"), tag("b")]), T0);
    let arrived = link.known.as_ref().unwrap().heard();
    link.take_update(&update(12, &[tag("a"), tag("c"), LogItem::Everything]), T0);
    let alive = |names: &[&str], at| was_alive(&link, &tags(names), stamp(at), arrived);
    assert_eq!(judge(&link, &k(), &tags(&["a"]), stamp(12)), Liveness::Dead);
    assert!(alive(&["a"], 12), "it began after all that was known");
    assert!(alive(&["c"], 10), "no item of its tags lies in between");
    assert!(alive(&["a"], 11));
    assert!(!alive(&["a"], 10), "the first of two items of its tag");
    assert!(!alive(&["b"], 11));
    assert!(!alive(&["c"], 9), "what was announced before is not known");
    assert!(!was_alive(&link, &[], None, arrived), "computed without the log");
    let later = link.known.as_ref().unwrap().heard();
    assert!(!was_alive(&link, &[], stamp(14), later), "everything has ended before it came");
}

#[test]
fn for_a_caller_nothing_was_alive_that_an_announcement_of_its_own_process_had_ended() {
    let mut link = following();
    // Another process has announced something in between, which is still to be read.
    let reply = LogReply { previous: 12, complete_to: 10, ..reply(header(13), &[]) };
    let asked = link.stamp();
    assert!(link.take_reply(asked, &reply, own(&[tag("a")]), T0).is_behind);
    let arrived = link.known.as_ref().unwrap().heard();
    assert!(!was_alive(&link, &tags(&["a"]), stamp(10), arrived));
}

#[test]
fn an_open_question_and_another_epoch_leave_nothing_alive_for_a_caller() {
    let mut link = following();
    let arrived = link.known.as_ref().unwrap().heard();
    assert!(was_alive(&link, &[], stamp(10), arrived));
    link.take_update(&update(12, &[tag("b")]), T0);
    assert!(!was_alive(&link, &[], stamp(10), arrived), "what lies in between is not known");
    let new = LogHeader { epoch: epoch(2), ..header(20) };
    link.take_reply(stamp(10), &reply(new, &[]), OwnItems::default(), T0);
    assert!(!was_alive(&link, &[], stamp(10), arrived));
}

#[test]
fn of_more_items_than_are_remembered_one_by_one_none_is_taken_for_absent() {
    let mut link = following();
    let items: Vec<_> = (0..=known::MAX_RECENT).map(|n| tag(&n.to_string())).collect();
    link.take_update(&update(10, &items), T0);
    let arrived = link.known.as_ref().unwrap().heard();
    assert!(!was_alive(&link, &tags(&["other"]), stamp(10), arrived));
    assert!(was_alive(&link, &tags(&["other"]), stamp(11), arrived));
    assert!(was_alive(&link, &tags(&["0"]), Some(arrived), arrived));
}

/// Has the log begin anew on a server, with one item that was announced there before.
fn begins_anew_on(link: &mut Link, server: u64) -> Effects {
    let header = LogHeader { epoch: epoch(2), server, ..header(1) };
    link.is_asked_over(1);
    let asked = link.asks(T0).verifying();
    link.is_answered(&asked, &reply(header, &[]), OwnItems::default(), T0)
}

#[test]
fn where_another_server_begins_the_log_anew_it_is_told_what_this_process_has_invalidated() {
    let mut link = following();
    link.invalidates_keys(&[k()]);
    link.invalidates_tags(&tags(&["a"]));
    let effects = begins_anew_on(&mut link, 2);
    assert!(effects.drops_copies && effects.tends);
    assert!(link.journal.concerns(&k()) && link.journal.has_any_of(&tags(&["a"])));
    assert_eq!(link.judge(entry(&k(), &[], Some(Stamp::new(epoch(2), 1))), T0), Liveness::Dead);
}

#[test]
fn a_log_that_was_lost_on_the_same_server_is_told_nothing_again() {
    let mut link = following();
    link.invalidates_keys(&[k()]);
    link.is_told(&update(10, &[tag("a")]), T0);
    assert!(begins_anew_on(&mut link, 1).drops_copies);
    assert!(link.journal.is_empty());
    assert_eq!(link.next_due(), None);
}

#[test]
fn what_others_have_announced_is_told_again_within_a_second_and_ends_here_too() {
    let mut link = following();
    link.is_told(&update(10, &[tag("a"), LogItem::Key(k())]), T0);
    begins_anew_on(&mut link, 2);
    assert!(link.journal.is_empty(), "another process may be the first");
    let due = link.next_due().unwrap();
    assert!(due >= T0 && due <= T0.plus(Duration::from_secs(1)));
    let effects = link.tells_again(due);
    assert_eq!(effects.items().len(), 2);
    assert!(effects.tends);
    assert!(link.journal.concerns(&k()) && link.journal.has_any_of(&tags(&["a"])));
    assert_eq!(link.tells_again(Tick::MAX), Effects::default(), "once");
}

#[test]
fn what_is_heard_again_is_not_told_again_and_nothing_older_than_half_a_minute_is() {
    let mut link = following();
    link.is_told(&update(10, &[tag("old")]), T0);
    let later = T0.plus(Duration::from_secs(31));
    link.is_told(&update(11, &[tag("a"), tag("b")]), later);
    let header = LogHeader { epoch: epoch(2), server: 2, ..header(1) };
    let asked = link.asks(later).verifying();
    link.is_answered(&asked, &reply(header, &[]), OwnItems::default(), later);
    let heard = LogUpdate { epoch: epoch(2), ..update(1, &[tag("a")]) };
    link.is_told(&heard, later);
    assert_eq!(link.tells_again(Tick::MAX).items(), [tag("b")]);
}

#[test]
fn a_key_that_this_process_has_invalidated_is_dead_as_it_was_before() {
    for (ended, expected) in
        [(None, Liveness::Alive), (Some(6), Liveness::Dead), (Some(5), Liveness::Alive)]
    {
        let mut link = following();
        let items = [LogItem::Key(k())];
        let ended: Vec<_> = ended.into_iter().map(|ended| (k(), version(ended))).collect();
        let said = LogReply { previous: 10, complete_to: 10, ..reply(header(11), &[]) };
        link.take_reply(stamp(10), &said, OwnItems { items: &items, ended: &ended }, T0);
        assert_eq!(judge(&link, &k(), &[], stamp(10)), expected, "{ended:?}");
        assert_eq!(judge(&link, &k(), &[], stamp(11)), Liveness::Alive, "computed since");
    }
}

#[test]
fn copies_are_valid_for_two_seconds_after_the_last_answered_read_and_without_limit_while_away() {
    let mut link = Link::new(100, 100);
    assert_eq!(link.valid_until(), ValidUntil::UNASKED);
    link.is_asked_over(1);
    let asked = link.asks(T0);
    assert!(asked.verifies, "the first read");
    assert!(link.is_answered(&asked, &reply(header(10), &[]), OwnItems::default(), T0).is_complete);
    let until = ValidUntil::at(T0.plus(VALID_FOR));
    assert_eq!(link.valid_until(), until);
    link.is_asked_over(2);
    assert!(!link.is_prepared(T0), "what comes over a new connection is not judged");
    assert_eq!(link.valid_until(), until, "what is here is served");
    link.is_away();
    assert_eq!(link.valid_until(), ValidUntil::FOR_EVER);
    assert_eq!(link.judge(entry(&k(), &[], stamp(10)), T0), Liveness::Unknown);
    let _ = link.skips_to(&header(20), &asked);
    assert!(link.is_back().drops_copies, "what was missed while it was away");
    link.is_subscribed();
    assert_eq!(link.valid_until(), ValidUntil::NO_MORE);
}

#[test]
fn a_reply_of_a_connection_that_was_replaced_makes_nothing_valid() {
    let mut link = following();
    link.is_asked_over(1);
    let asked = link.asks(T0);
    link.is_asked_over(2);
    let effects = link.is_answered(&asked, &reply(header(10), &[]), OwnItems::default(), T0);
    assert!(!effects.is_complete);
    assert!(!link.is_prepared(T0));
}

#[test]
fn what_is_announced_in_a_life_of_the_log_that_was_left_is_told_again_as_well() {
    let mut link = following();
    begins_anew_on(&mut link, 2);
    // The subscription still leads to the old primary, and the announcing process may end soon.
    let effects = link.is_told(&update(10, &[tag("a"), LogItem::Key(k())]), T0);
    assert!(effects.tends, "the log is read, and is that of the new primary");
    let asked = link.asks(T0).verifying();
    let said = LogHeader { epoch: epoch(2), server: 2, ..header(1) };
    assert!(link.is_answered(&asked, &reply(said, &[]), OwnItems::default(), T0).is_complete);
    let due = link.next_due().expect("the new primary was never told");
    assert_eq!(link.tells_again(due).items().len(), 2);
}

#[test]
fn what_the_old_primary_says_once_more_was_not_told_to_the_new_one() {
    let mut link = following();
    link.is_told(&update(10, &[tag("a")]), T0);
    begins_anew_on(&mut link, 2);
    link.is_told(&update(11, &[tag("a")]), T0);
    assert_eq!(link.tells_again(Tick::MAX).items(), [tag("a")]);
}

#[cfg(feature = "http")]
#[test]
fn a_uri_that_this_process_has_invalidated_is_dead_under_each_of_its_keys() {
    use crate::key::{UriName, uncollected};
    let name = UriName { scope: b"s", scheme: b"https", host: b"x", resource: b"/page" };
    let stored = name.primary_keys().next().unwrap();
    let mut link = following();
    let items = items_of_keys(&uncollected(&stored));
    let said = LogReply { previous: 10, complete_to: 10, ..reply(header(11), &[]) };
    let ended: Vec<_> = uncollected(&stored).into_iter().map(|key| (key, version(6))).collect();
    link.take_reply(stamp(10), &said, OwnItems { items: &items, ended: &ended }, T0);
    for key in uncollected(&stored) {
        assert_eq!(judge(&link, &key, &[], stamp(10)), Liveness::Dead, "{key:?}");
    }
}

#[cfg(feature = "http")]
#[test]
fn a_long_uri_that_was_heard_of_is_removed_where_it_is_told_again() {
    use crate::key::{UriName, uncollected};
    use journal::JournalWork;
    let resource = [b"/".to_vec(), vec![b'a'; 300]].concat();
    let name = UriName { scope: b"s", scheme: b"https", host: b"x", resource: &resource };
    let stored = name.primary_keys().next().unwrap();
    let mut link = following();
    link.is_told(&update(10, &items_of_keys(&uncollected(&stored))), T0);
    begins_anew_on(&mut link, 2);
    link.tells_again(Tick::MAX);
    // Which keys it has is not known.
    assert!(link.journal.concerns(&stored));
    assert_eq!(link.journal.next(true, |_| true), Some(JournalWork::Tags(tags(&["*"]))));
}

#[test]
fn a_remote_that_counts_its_connections_from_zero_is_used() {
    let mut link = Link::new(100, 100);
    link.is_asked_over(0);
    let asked = link.asks(T0);
    assert!(link.is_answered(&asked, &reply(header(10), &[]), OwnItems::default(), T0).is_complete);
    assert!(link.is_prepared(T0));
}

impl Link {
    /// Feeds all that decides what this does next.
    fn fingerprint(&self, to: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        (self.connection, self.verified_over, self.verified_at, self.doubts, self.settled).hash(to);
        (self.questions, self.valid, self.is_away, self.is_in_doubt).hash(to);
        self.known.is_some().hash(to);
        if let Some(known) = &self.known {
            known.fingerprint(to);
        }
        self.journal.fingerprint(to);
        self.own.fingerprint(to);
        self.heard.fingerprint(to);
    }
}
