//! The bound on requests that are forwarded outside of any flight.
//!
//! A request that no flight is for has none of the places for computations: it is credentialed,
//! unsafe, uncacheable, or bypasses the cache. Where the layer sets a bound, such a request has
//! one of its places until the head of the response is there. Places, queue and loans are those
//! of the engine: a handler that sends another request through the layer lends its place.

use std::future::Future;
use std::sync::Arc;

use http::request::Parts;
use tokio::time::Instant;

use crate::clock::Tick;
use crate::error::Error;
use crate::flight::client_key::ClientKey;
use crate::flight::computation::{Computation, OriginCall};
use crate::flight::lending::{self, Scope};
use crate::flight::places::{NoPlace, Places};
use crate::http::layer::rules::Rules;
use crate::http::rules::key::received_uri;
use crate::http::stored::response::HttpCache;
use crate::key::Key;
use crate::mode::Mode;

impl Rules {
    /// Returns the client of a request, if the application names it.
    pub(super) fn client(&self, parts: &Parts) -> Option<ClientKey> {
        self.client.as_ref().and_then(|client| client(parts))
    }
}

/// A request that may be forwarded now; under a bound, its place.
#[must_use = "the place returns when this is dropped"]
pub(super) struct ForwardPlace(Option<Taken>);

struct Taken {
    places: Arc<Places>,
    computation: Arc<Computation>,
    cache: Arc<HttpCache>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.places.release(&self.computation, self.cache.engine.watch.now());
    }
}

impl ForwardPlace {
    /// For a request that counts elsewhere.
    pub(super) const NOT_NEEDED: Self = Self(None);

    /// Waits for a place as long as the handle's `wait_timeout`. A cache that is not on bounds
    /// nothing.
    ///
    /// Cancel safe: a request that is dropped leaves the queue.
    pub(super) async fn take(
        cache: &Arc<HttpCache>,
        rules: &Rules,
        parts: &Parts,
    ) -> Result<Self, Error> {
        match &rules.forwarded {
            Some(places) if cache.engine.mode() == Mode::On => {
                let client = rules.client(parts);
                let refused = || cache.engine.overloaded(&Key::from(received_uri(parts).path()));
                take(cache, places, client).await.ok_or_else(refused).map(Self)
            }
            _ => Ok(Self::NOT_NEEDED),
        }
    }

    /// Drives the call of the service, and returns the place.
    pub(super) async fn drive<F: Future>(self, call: F) -> F::Output {
        let Some(Taken { places, computation, .. }) = &self.0 else { return call.await };
        let scope = Scope::new(places, computation, lending::scope_of_caller());
        lending::within(scope, call).await
    }
}

/// Returns `None` where the bound is reached for too long, and `Some(None)` where there is none
/// any more.
async fn take(
    cache: &Arc<HttpCache>,
    places: &Arc<Places>,
    client: Option<ClientKey>,
) -> Option<Option<Taken>> {
    let engine = &cache.engine;
    let (id, never) = (engine.table.next_number(), Tick::from_nanos(u64::MAX));
    let call = Arc::new(OriginCall::new(id, None).for_client(client));
    let computation = Arc::new(Computation::of_call(id, never, call));
    let taken = Taken {
        places: Arc::clone(places),
        computation: Arc::clone(&computation),
        cache: Arc::clone(cache),
    };
    let lender = lending::computation_of_caller(places);
    let _offer = lender.map(|lender| places.offer(&lender, &computation));
    if places.try_take(&computation, engine.watch.now()) {
        return Some(Some(taken));
    }
    let mut slot = Some(engine.take_slot()?);
    places.join_queue(&computation, &mut slot, engine.watch.now());
    let deadline = Instant::now() + engine.settings.wait_timeout();
    let gives_up = || (engine.mode() != Mode::On).then_some(NoPlace::NotNeeded);
    match places.wait(&computation, deadline, &engine.watch, gives_up).await {
        Ok(()) => Some(Some(taken)),
        Err(NoPlace::NotNeeded) => Some(None),
        Err(NoPlace::TimedOut | NoPlace::Unwanted) => None,
    }
}
