//! What a layer remembers of the routes that layers further in own.
//!
//! It decides about cost alone. All of it is of fixed size: names are remembered as hashes, and
//! two names with one hash are taken for one.
//!
//! An answer from between the layers does not show that a route has no owner: one client may
//! lack a ticket. So it ends nothing that is known. But a page that is answered from between is
//! not worth a call for each of its clients. So only few requests for one URI go straight on
//! without reaching an owner; then the requests for this URI are handled as those for any other
//! page, until one of them reaches an owner.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use crate::http::flow::lookup::received_uri;
use crate::http::flow::nested::View;

/// The most routes, and the most URIs, that one layer remembers.
const MAX_NAMES: usize = 4096;

/// How many requests for one URI go straight on without reaching an owner.
const MAX_UNCLAIMED: u8 = 4;

/// The routes behind a layer that layers further in own.
#[derive(Default)]
pub(crate) struct OwnedRoutes {
    has_some: AtomicBool,
    hasher: RandomState,
    routes: RwLock<HashSet<u64>>,
    uris: RwLock<HashMap<u64, Passed>>,
}

/// What has become of requests for one URI that went straight on.
#[derive(Clone, Copy, Default)]
struct Passed {
    /// One of them has reached an owner.
    is_claimed: bool,
    /// How many have not, since then.
    unclaimed: u8,
}

impl OwnedRoutes {
    /// Returns whether an owner of the route is known.
    pub(super) fn have(&self, view: &View) -> bool {
        self.has_some.load(Ordering::Relaxed) && self.routes.read().contains(&self.route_of(view))
    }

    /// Returns whether a request goes straight on to its owner.
    pub(super) fn admit(&self, view: &View) -> bool {
        if !self.have(view) {
            return false;
        }
        let uri = self.uri_of(view);
        let passed = self.uris.read().get(&uri).copied().unwrap_or_default();
        if passed.unclaimed >= MAX_UNCLAIMED {
            return false;
        }
        if !passed.is_claimed {
            self.count_unclaimed(uri);
        }
        true
    }

    /// Remembers that a request has reached an owner.
    pub(super) fn learn(&self, view: &View) {
        let (route, uri) = (self.route_of(view), self.uri_of(view));
        if !self.routes.read().contains(&route) {
            let mut routes = self.routes.write();
            if routes.len() >= MAX_NAMES {
                routes.clear();
            }
            routes.insert(route);
            self.has_some.store(true, Ordering::Relaxed);
        }
        let is_new = |passed: &Passed| !passed.is_claimed || passed.unclaimed > 0;
        if self.uris.read().get(&uri).is_none_or(is_new) {
            let mut uris = self.uris.write();
            make_room(&mut uris);
            uris.insert(uri, Passed { is_claimed: true, unclaimed: 0 });
        }
    }

    /// Remembers that a request went straight on, and reached no owner.
    pub(super) fn note_unclaimed(&self, view: &View) {
        let uri = self.uri_of(view);
        // For other URIs it has counted since it went.
        if self.uris.read().get(&uri).is_some_and(|passed| passed.is_claimed) {
            self.count_unclaimed(uri);
        }
    }

    fn count_unclaimed(&self, uri: u64) {
        let mut uris = self.uris.write();
        make_room(&mut uris);
        let passed = uris.entry(uri).or_default();
        passed.unclaimed = passed.unclaimed.saturating_add(1);
    }

    /// Names the route by the pattern of the router, or by the path.
    fn route_of(&self, view: &View) -> u64 {
        let uri = received_uri(&view.parts);
        match view.pattern.as_deref() {
            Some(pattern) => self.name(view, b"*", pattern),
            None => self.name(view, b"=", uri.path()),
        }
    }

    fn uri_of(&self, view: &View) -> u64 {
        let uri = received_uri(&view.parts);
        self.name(view, b"?", uri.path_and_query().map_or("", |resource| resource.as_str()))
    }

    fn name(&self, view: &View, kind: &[u8], resource: &str) -> u64 {
        let View { parts, .. } = view;
        let host = parts.headers.get(http::header::HOST).map_or(&b""[..], |host| host.as_bytes());
        let authority = received_uri(parts).authority().map_or("", |authority| authority.as_str());
        self.hasher.hash_one((kind, host, authority, resource))
    }
}

fn make_room(uris: &mut HashMap<u64, Passed>) {
    if uris.len() >= MAX_NAMES {
        uris.clear();
    }
}
