//! Slots: which one a name has, and which node has it.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::remote::redis::reply::{CallFailure, ServerReply};

/// How many slots a cluster has.
pub(super) const SLOTS: u16 = 16384;

/// So many slots in a row have one number as a shard.
const SLOTS_PER_SHARD: u16 = 16;

/// More nodes than a cluster has.
pub(super) const MOST_NODES: usize = 1000;

/// The number of what no node has.
const NOBODY: u16 = u16::MAX;

/// Returns the slot of a name: of what stands between the first braces, if anything does.
pub(in crate::remote::redis) fn slot_of(name: &[u8]) -> u16 {
    let hashed = name.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &name[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    crc16(hashed.unwrap_or(name)) % SLOTS
}

/// Returns a word that has this slot.
pub(in crate::remote::redis) fn tag_of_slot(slot: u16) -> String {
    WORDS[&(slot % SLOTS)].to_string()
}

/// For each slot the lowest number that has it.
static WORDS: LazyLock<HashMap<u16, u32>> = LazyLock::new(|| {
    let mut words = HashMap::new();
    for number in 0_u32.. {
        words.entry(slot_of(number.to_string().as_bytes())).or_insert(number);
        if words.len() == usize::from(SLOTS) {
            break;
        }
    }
    words
});

/// CRC-16/XMODEM, as the cluster specification has it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc: u16, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

/// Where a node is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::remote::redis) struct Place {
    pub(in crate::remote::redis) host: String,
    pub(in crate::remote::redis) port: u16,
}

impl Place {
    /// Returns the place that a redirection names; without a host, it is that of the node that
    /// said so.
    pub(super) fn named((host, port): (&str, u16), by: &Self) -> Self {
        let host = if host.is_empty() { by.host.clone() } else { host.to_owned() };
        Self { host, port }
    }
}

/// Which node has which slot.
#[derive(Debug)]
pub(super) struct SlotMap {
    /// By the numbers of `nodes`.
    owners: Box<[u16]>,
    /// With the first slot of each.
    nodes: Vec<(u16, Place)>,
}

impl SlotMap {
    /// Reads what the node at `asked` replies to `CLUSTER SLOTS`. Of ranges that overlap, the
    /// last counts; slots are written no more than twice as often as there are slots.
    pub(super) fn read(reply: &ServerReply, asked: &Place) -> Result<Self, CallFailure> {
        let mut owners = vec![NOBODY; usize::from(SLOTS)].into_boxed_slice();
        let mut places: Vec<Place> = Vec::new();
        let mut filled = 0;
        for range in reply.array()?.iter().take(usize::from(SLOTS)) {
            let [from, to, primary, ..] = range.array()? else {
                return Err(CallFailure::nonsense());
            };
            let (from, to) = (slot(from)?, slot(to)?);
            let [host, port, ..] = primary.array()? else { return Err(CallFailure::nonsense()) };
            let port = u16::try_from(port.number()?).map_err(|_| CallFailure::nonsense())?;
            let host = match host {
                ServerReply::Nil => "",
                host => host.text()?,
            };
            // The node does not know the name of that one.
            if host == "?" {
                continue;
            }
            let place = Place::named((host, port), asked);
            let number = places.iter().position(|known| *known == place).unwrap_or_else(|| {
                places.push(place);
                places.len() - 1
            });
            if places.len() > MOST_NODES {
                return Err(CallFailure::nonsense());
            }
            let number = u16::try_from(number).map_err(|_| CallFailure::nonsense())?;
            let range = owners.get_mut(from..=to).ok_or_else(CallFailure::nonsense)?;
            filled += range.len();
            if filled > usize::from(SLOTS) * 2 {
                return Err(CallFailure::nonsense());
            }
            range.fill(number);
        }
        let first = |number: usize| owners.iter().position(|owner| usize::from(*owner) == number);
        let first: Vec<_> = (0..places.len()).map(first).collect();
        let first = first.into_iter().map(|slot| slot.and_then(|slot| u16::try_from(slot).ok()));
        let nodes = first.zip(places).map(|(slot, place)| (slot.unwrap_or(0), place)).collect();
        Ok(Self { owners, nodes })
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&Place> {
        self.node(slot).map(|(_, place)| place)
    }

    /// Returns of how many slots it says which node has them.
    pub(super) fn slots(&self) -> u16 {
        self.owners.iter().map(|owner| u16::from(*owner != NOBODY)).sum()
    }

    fn node(&self, slot: u16) -> Option<&(u16, Place)> {
        let number = self.owners.get(usize::from(slot))?;
        self.nodes.get(usize::from(*number))
    }

    pub(super) fn nodes(&self) -> impl ExactSizeIterator<Item = &Place> {
        self.nodes.iter().map(|(_, place)| place)
    }

    /// Returns the nodes, with the first slot of each.
    pub(super) fn nodes_and_slots(&self) -> &[(u16, Place)] {
        &self.nodes
    }

    pub(super) fn has(&self, place: &Place) -> bool {
        self.nodes().any(|known| known == place)
    }

    pub(super) fn shard_of(&self, slot: u16) -> u32 {
        u32::from(self.node(slot).map_or(slot, |(first, _)| *first) / SLOTS_PER_SHARD)
    }

    /// Returns the node of a shard and its first slot; where slots have moved since, the node
    /// that has them now.
    pub(super) fn node_of_shard(&self, shard: u32) -> Option<(u16, &Place)> {
        let named = |(first, _): &&(u16, Place)| u32::from(first / SLOTS_PER_SHARD) == shard;
        let slot = u16::try_from(shard).ok()?.checked_mul(SLOTS_PER_SHARD)?;
        let (first, place) = self.nodes.iter().find(named).or_else(|| self.node(slot))?;
        Some((*first, place))
    }
}

fn slot(reply: &ServerReply) -> Result<usize, CallFailure> {
    usize::try_from(reply.number()?).map_err(|_| CallFailure::nonsense())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> ServerReply {
        ServerReply::Bytes(text.to_owned().into())
    }

    fn range(from: i64, to: i64, host: ServerReply, port: i64) -> ServerReply {
        let node = ServerReply::Array(vec![host, ServerReply::Int(port), bytes("id")]);
        ServerReply::Array(vec![ServerReply::Int(from), ServerReply::Int(to), node])
    }

    fn asked() -> Place {
        Place { host: "asked".into(), port: 7 }
    }

    fn map(ranges: Vec<ServerReply>) -> Result<SlotMap, CallFailure> {
        SlotMap::read(&ServerReply::Array(ranges), &asked())
    }

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"foo"), 12182);
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"user1000"));
        assert_eq!(slot_of(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
        for slot in [0, 1, 12182, SLOTS - 1] {
            assert_eq!(slot_of(tag_of_slot(slot).as_bytes()), slot);
        }
    }

    #[test]
    fn a_map_says_which_node_has_a_slot_and_which_shard_it_is() {
        let map = map(vec![
            range(0, 99, bytes("a"), 1),
            range(100, 199, bytes("b"), 2),
            range(200, 299, bytes("a"), 1),
        ]);
        let map = map.unwrap();
        assert_eq!(map.owner(150).unwrap().host, "b");
        assert_eq!(map.owner(250).unwrap().host, "a");
        assert_eq!(map.owner(300), None);
        assert_eq!((map.shard_of(250), map.shard_of(150)), (0, 6));
        assert_eq!(map.node_of_shard(6).unwrap().1.host, "b");
        assert_eq!(map.node_of_shard(14).unwrap().1.host, "a", "slot 224");
        assert_eq!(map.node_of_shard(900), None);
        assert_eq!(map.node_of_shard(u32::MAX), None);
    }

    #[test]
    fn a_node_without_a_host_is_where_it_was_asked_and_one_that_is_unknown_is_left_out() {
        let map = map(vec![
            range(0, 1, bytes(""), 1),
            range(2, 3, ServerReply::Nil, 2),
            range(4, 5, bytes("?"), 3),
        ]);
        let map = map.unwrap();
        assert_eq!(map.owner(0), Some(&Place { host: "asked".into(), port: 1 }));
        assert_eq!(map.owner(2), Some(&Place { host: "asked".into(), port: 2 }));
        assert_eq!(map.owner(4), None);
    }

    #[test]
    fn of_overlapping_ranges_the_last_counts_and_nonsense_is_refused() {
        let both = map(vec![range(0, 16383, bytes("a"), 1), range(5, 5, bytes("b"), 2)]).unwrap();
        assert_eq!(both.owner(5).unwrap().host, "b");
        assert_eq!(map(Vec::new()).unwrap().owner(0), None);
        for (from, to, port) in [(0, 16384, 1), (5, 4, 1), (-1, 4, 1), (0, 1, 65536), (0, 1, -1)] {
            let read = map(vec![range(from, to, bytes("a"), port)]);
            assert!(read.is_err() || from > to, "{from} {to} {port}");
        }
        let many = (0..1500).map(|n| range(n, n, bytes("a"), n + 1)).collect();
        assert!(map(many).is_err(), "no cluster has so many nodes");
        let full = || range(0, 16383, bytes("a"), 1);
        assert!(map(vec![full(), full()]).is_ok());
        assert!(map(vec![full(), full(), range(7, 7, bytes("a"), 1)]).is_err(), "too much work");
        assert!(SlotMap::read(&ServerReply::Int(1), &asked()).is_err());
        assert!(map(vec![ServerReply::Array(Vec::new())]).is_err());
    }
}
