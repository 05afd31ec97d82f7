//! The caches that we compare ourselves with, each set up as its own documentation says.

mod amalgam;
mod axum_response_cache;
mod bare;
mod cachet;
mod floor;
mod foyer;
mod hitbox;
mod http_cache_tower;
mod http_cache_tower_server;
mod moka;
mod ours;
mod ours_http;
#[cfg(feature = "pingora")]
mod pingora;
mod quick_cache;
mod tower_http_cache;
mod tower_resilience;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::faults::{Stage, Staged};
use crate::origin::Origin;
use crate::report::Role;
use crate::subject::Subject;

/// Longer than any run.
const TTL: Duration = Duration::from_secs(3600);

/// More than there are keys.
const ENTRIES: u64 = 100_000;

pub(crate) type Start = fn(Origin) -> BoxFuture<'static, Arc<dyn Subject>>;
pub(crate) type StartOnRedis = fn(Origin, String) -> BoxFuture<'static, Arc<dyn Subject>>;

pub(crate) struct Peer {
    /// In names of figures.
    pub(crate) id: &'static str,
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    pub(crate) kind: Kind,
    /// Whose versions belong to the figures.
    pub(crate) crates: &'static [&'static str],
    pub(crate) configuration: &'static str,
    /// Whether there is a way to tell it that an answer may not be stored.
    pub(crate) has_private_answers: bool,
    pub(crate) start: Start,
    pub(crate) start_on_redis: Option<StartOnRedis>,
}

/// What is asked, and so what a hit is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// With a key and a function; moka's `get` alone.
    Function,
    /// With an HTTP request; moka's `get`, a response made of it, and drained.
    Http,
}

impl Kind {
    pub(crate) fn reference(self) -> Peer {
        match self {
            Self::Function => floor::get(),
            Self::Http => floor::response(),
        }
    }
}

/// In the order of the tables.
pub(crate) fn all() -> Vec<Peer> {
    vec![
        ours::peer(),
        moka::peer(),
        quick_cache::peer(),
        foyer::peer(),
        amalgam::peer(),
        cachet::peer(),
        ours_http::peer(),
        tower_http_cache::peer(),
        hitbox::peer(),
        tower_resilience::peer(),
        axum_response_cache::peer(),
        http_cache_tower::peer(),
        http_cache_tower_server::peer(),
        #[cfg(feature = "pingora")]
        pingora::peer(),
        bare::peer(),
    ]
}

pub(crate) fn named(id: &str) -> Peer {
    let peer = all().into_iter().find(|peer| peer.id == id);
    peer.unwrap_or_else(|| panic!("no peer is called {id}"))
}

pub(crate) type StartStaged = fn(Stage) -> BoxFuture<'static, Arc<dyn Staged>>;

/// The peers that have a second level or a place for one, by their names, and how each is
/// started for the faults.
pub(crate) const STAGED: [(&str, StartStaged); 3] =
    [("ours", ours::staged), ("amalgam", amalgam::staged), ("cachet", cachet::staged)];

pub(crate) fn staged(id: &str) -> Option<StartStaged> {
    STAGED.into_iter().find(|(name, _)| *name == id).map(|(_, start)| start)
}
