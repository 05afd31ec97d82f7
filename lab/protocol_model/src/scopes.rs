//! The configurations that are searched.

use crate::protocol::Kind::*;
use crate::system::{Fault::*, Scope};

pub const SMALL: &[Scope] = &[
    Scope { name: "key", kinds: &[Key], ..Scope::BASE },
    Scope { name: "tag", kinds: &[Tag], ..Scope::BASE },
    Scope {
        name: "start",
        kinds: &[Tag],
        has_log: false,
        faults: &[Restart, EvictLog],
        max_faults: 1,
        ..Scope::BASE
    },
    Scope {
        name: "evict",
        kinds: &[Tag],
        faults: &[Restart, EvictLog],
        max_faults: 2,
        ..Scope::BASE
    },
    Scope { name: "lag_log", kinds: &[Tag], faults: &[LagLog], max_faults: 1, ..Scope::BASE },
    Scope { name: "lag_key", kinds: &[Key], faults: &[LagKey], max_faults: 1, ..Scope::BASE },
    Scope {
        name: "journal",
        kinds: &[Key, Tag],
        faults: &[AnnounceFails],
        max_faults: 1,
        ..Scope::BASE
    },
    Scope {
        name: "copies",
        kinds: &[Key, Tag],
        faults: &[EvictEntry],
        max_faults: 1,
        has_copies: true,
        reads: 3,
        ..Scope::BASE
    },
    Scope { name: "soft", kinds: &[Key], has_soft_timeout: true, ..Scope::BASE },
    Scope { name: "late", kinds: &[Tag, Everything], has_late_heartbeats: true, ..Scope::BASE },
    Scope {
        name: "lease",
        kinds: &[Key],
        faults: &[LeaseEnds, EvictRight],
        max_faults: 1,
        ..Scope::BASE
    },
    Scope { name: "three_reads", kinds: &[Key], reads: 3, ..Scope::BASE },
    Scope { name: "two_items", kinds: &[Tag, OtherTag], writes: 2, writers: 3, ..Scope::BASE },
    Scope {
        name: "short_ring",
        kinds: &[Key, OtherKey],
        writes: 2,
        faults: &[LagKey],
        max_faults: 1,
        has_short_ring: true,
        ..Scope::BASE
    },
];
