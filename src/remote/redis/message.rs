//! Messages between processes: wake-ups and invalidations.

use crate::key::{Key, Tag};
use crate::lease::grant::{Epoch, Version};
use crate::lease::wakes::Wakes;
use crate::remote::{LogItem, LogUpdate};

/// The first byte of every message. A message in another format is a hint to
/// look at everything.
const FORMAT: u8 = b'1';

/// A published message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A key, by its stable hash, was filled or given up.
    Woken(u64),
    /// The process with this number invalidated or put a key.
    Invalidated(u64, Key),
    /// The process with this number announced something.
    Announced(u64, LogUpdate),
}

/// Writes the message that wakes the processes that wait for a value.
pub(super) fn filled(key: &Key, version: Version) -> Vec<u8> {
    written(b'F', key.stable_hash(), version.to_string().as_bytes())
}

/// Writes the message that wakes the process that computes next, or all processes for
/// a hold.
pub(super) fn abandoned(key: &Key) -> Vec<u8> {
    written(b'A', key.stable_hash(), &[])
}

/// Writes the message about an invalidated key, for waiting processes.
pub(super) fn invalidated(process: u64, key: &Key) -> Vec<u8> {
    written(b'I', process, key.as_bytes())
}

/// Writes the beginning of what tells of an announcement. The script writes the rest: epoch and
/// position in 16 digits each, then each item after its length.
pub(super) fn announced(process: u64) -> Vec<u8> {
    written(b'L', process, &[])
}

fn written(event: u8, number: u64, rest: &[u8]) -> Vec<u8> {
    [&[FORMAT, event], &number.to_be_bytes()[..], rest].concat()
}

impl Message {
    /// Reads a message. `None` if it makes no sense: any client may have sent it.
    pub(super) fn decode(message: &[u8]) -> Option<Self> {
        let (&[format, event], rest) = message.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let number = u64::from_be_bytes(*number);
        match (format, event) {
            (FORMAT, b'F') => Version::from_digits(rest).map(|_| Self::Woken(number)),
            (FORMAT, b'A') => rest.is_empty().then_some(Self::Woken(number)),
            (FORMAT, b'I') => Some(Self::Invalidated(number, Key::from_encoded(rest))),
            (FORMAT, b'L') => {
                let (epoch, rest) = rest.split_at_checked(16)?;
                let (digits, rest) = rest.split_at_checked(16)?;
                let previous: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
                let (epoch, items) = (Epoch::from_digits(epoch)?, read_items(rest)?);
                Some(Self::Announced(number, LogUpdate { epoch, previous, items }))
            }
            _ => None,
        }
    }
}

/// Wakes whom a message concerns: all where it makes no sense.
pub(super) fn wake(wakes: &Wakes, message: Option<Message>) {
    match message {
        Some(Message::Woken(hash)) => wakes.wake(hash),
        Some(Message::Invalidated(_, key)) => wakes.wake(key.stable_hash()),
        Some(Message::Announced(..)) | None => wakes.wake_all(),
    }
}

/// Writes an item as it stands in the log.
pub(super) fn item_bytes(item: &LogItem) -> Vec<u8> {
    let (kind, bytes) = match item {
        LogItem::Tag(tag) => (b't', tag.as_bytes()),
        LogItem::Key(key) => (b'k', key.as_bytes()),
        LogItem::Everything => (b'e', &[][..]),
        LogItem::EverythingStale => (b's', &[][..]),
    };
    [&[kind], bytes].concat()
}

pub(super) fn read_item(bytes: &[u8]) -> Option<LogItem> {
    match bytes.split_first()? {
        (b't', tag) => Some(LogItem::Tag(Tag::from_encoded(tag))),
        (b'k', key) => Some(LogItem::Key(Key::from_encoded(key))),
        (b'e', []) => Some(LogItem::Everything),
        (b's', []) => Some(LogItem::EverythingStale),
        _ => None,
    }
}

fn read_items(mut bytes: &[u8]) -> Option<Vec<LogItem>> {
    let mut items = Vec::new();
    while !bytes.is_empty() {
        let (len, rest) = bytes.split_first_chunk()?;
        let (item, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
        items.push(read_item(item)?);
        bytes = rest;
    }
    Some(items)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read() {
        let key = Key::from("user:7");
        let version = Version::new(42).unwrap();
        let woken = Message::Woken(key.stable_hash());
        assert_eq!(Message::decode(&filled(&key, version)), Some(woken.clone()));
        assert_eq!(Message::decode(&abandoned(&key)), Some(woken));
        let message = Message::decode(&invalidated(7, &key));
        assert_eq!(message, Some(Message::Invalidated(7, key)));
    }

    #[test]
    fn items_are_read_as_the_script_writes_them() {
        let mut message = announced(7);
        message.extend_from_slice(b"00000000000000ff0000000000001234");
        message.extend_from_slice(b"\0\0\0\x02ta\0\0\0\x01k\0\0\0\x01e\0\0\0\x01s");
        let items = vec![
            LogItem::Tag("a".into()),
            LogItem::Key("".into()),
            LogItem::Everything,
            LogItem::EverythingStale,
        ];
        assert!(items.iter().all(|item| read_item(&item_bytes(item)).as_ref() == Some(item)));
        let epoch = Epoch::new(255).unwrap();
        let expected = Message::Announced(7, LogUpdate { epoch, previous: 1234, items });
        assert_eq!(Message::decode(&message), Some(expected));
        message.pop();
        assert_eq!(Message::decode(&message), None, "cut");
    }

    #[test]
    fn a_message_in_another_format_is_not_understood() {
        let mut message = abandoned(&Key::from("k"));
        message[0] = b'2';
        assert_eq!(Message::decode(&message), None);
    }

    #[test]
    fn an_item_longer_than_the_message_needs_no_memory() {
        let mut message = announced(7);
        message.extend_from_slice(b"00000000000000ff0000000000001234\xff\xff\xff\xfft");
        assert_eq!(Message::decode(&message), None);
    }

    proptest! {
        #[test]
        fn garbage_is_no_message_and_no_panic(event: u8, garbage: Vec<u8>) {
            let _ = Message::decode(&garbage);
            let _ = Message::decode(&[&[FORMAT, event], &*garbage].concat());
        }
    }
}
