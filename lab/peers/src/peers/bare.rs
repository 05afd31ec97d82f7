use bytes::Bytes;
use http_body_util::Full;

use super::{Kind, Peer};
use crate::report::Role;
use crate::subject::web;

pub(super) fn peer() -> Peer {
    Peer {
        id: "bare",
        name: "bare service",
        role: Role::Without,
        kind: Kind::Http,
        crates: &[],
        configuration: "the service alone, with nothing before it",
        has_private_answers: true,
        start: |origin| Box::pin(async move { web(origin.service::<Full<Bytes>>()) }),
        start_on_redis: None,
    }
}
