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
//!
//! A crowd comes before any answer. So a request counts as soon as it goes straight on: only few
//! are on their way at once, or as many as were when one of them reached the owner. What lies
//! between has let so many pass before. The others are led, and go on together when
//! their leader has reached the owner. From then on as many go straight on.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::http::flow::lookup::received_uri;
use crate::http::flow::nested::View;

/// The most routes, and the most URIs, that one layer remembers.
const MAX_NAMES: usize = 4096;

/// How many requests for one URI go straight on, one by one or at once, without reaching an
/// owner.
const MAX_UNCLAIMED: u8 = 4;

/// The routes behind a layer that layers further in own.
#[derive(Default)]
pub(crate) struct OwnedRoutes {
    has_some: AtomicBool,
    hasher: RandomState,
    routes: RwLock<HashSet<u64>>,
    uris: RwLock<HashMap<u64, Mutex<Passed>>>,
}

/// Requests for one URI that go straight on.
#[derive(Clone, Copy, Default)]
struct Passed {
    /// How many are on their way.
    on_way: u16,
    /// How many were on their way when one of them reached the owner, at most.
    at_once: u16,
    /// How many have ended without reaching an owner since the last one that has.
    unclaimed: u8,
}

/// How a request comes to go straight on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Crowd {
    /// It has just come.
    Coming,
    /// It has waited for a leader, and is to wait no more.
    Released,
}

impl Passed {
    fn admit(&mut self, crowd: Crowd) -> bool {
        let limit = self.at_once.max(MAX_UNCLAIMED.into());
        let on_way = self.on_way.saturating_add(self.unclaimed.into());
        let admits = self.unclaimed < MAX_UNCLAIMED && (crowd == Crowd::Released || on_way < limit);
        self.on_way = self.on_way.saturating_add(admits.into());
        admits
    }

    fn note_claimed(&mut self, was_on_way: bool) {
        self.at_once = self.at_once.max(self.on_way);
        self.on_way = self.on_way.saturating_sub(was_on_way.into());
        self.unclaimed = 0;
    }

    fn note_unclaimed(&mut self) {
        self.on_way = self.on_way.saturating_sub(1);
        self.unclaimed = self.unclaimed.saturating_add(1);
        if self.unclaimed >= MAX_UNCLAIMED {
            self.at_once = 0;
        }
    }
}

impl OwnedRoutes {
    /// Returns whether no owner of any route is known.
    pub(super) fn are_none(&self) -> bool {
        !self.has_some.load(Ordering::Relaxed)
    }

    /// Returns whether an owner of the route is known.
    pub(super) fn have(&self, view: &View) -> bool {
        self.has_some.load(Ordering::Relaxed) && self.routes.read().contains(&self.route_of(view))
    }

    /// Returns whether a request goes straight on to its owner. Then it is on its way, until
    /// [`learn`](Self::learn) or [`note_unclaimed`](Self::note_unclaimed) is called for it.
    pub(super) fn admit(&self, view: &View, crowd: Crowd) -> bool {
        self.have(view) && self.of_uri(view, |passed| passed.admit(crowd))
    }

    /// Remembers that a request has reached an owner, and whether it was on its way.
    pub(super) fn learn(&self, view: &View, was_on_way: bool) {
        let route = self.route_of(view);
        if !self.routes.read().contains(&route) {
            let mut routes = self.routes.write();
            if routes.len() >= MAX_NAMES {
                routes.clear();
            }
            routes.insert(route);
            self.has_some.store(true, Ordering::Relaxed);
        }
        self.of_uri(view, |passed| passed.note_claimed(was_on_way));
    }

    /// Remembers that a request was on its way, and has ended without reaching an owner.
    pub(super) fn note_unclaimed(&self, view: &View) {
        self.of_uri(view, Passed::note_unclaimed);
    }

    fn of_uri<T>(&self, view: &View, read: impl FnOnce(&mut Passed) -> T) -> T {
        let uri = self.uri_of(view);
        if let Some(passed) = self.uris.read().get(&uri) {
            return read(&mut passed.lock());
        }
        let mut uris = self.uris.write();
        if uris.len() >= MAX_NAMES {
            uris.clear();
        }
        read(uris.entry(uri).or_default().get_mut())
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
