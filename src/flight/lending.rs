//! In which computation a caller runs.
//!
//! A computation that asks its own handle for another key waits for it and does not
//! work meanwhile. So that it can lend its place, the engine has to know which computation
//! asks: each computation runs within a task-local scope that names it. Work that the
//! computation spawns (`tokio::spawn`) is outside of that scope, and lends nothing.
//!
//! For the same reason the engine knows which computation waits for which ([`Wait`]). One that asks
//! for its own key, or for one whose computation asks for its key in turn, would wait until a
//! time-out. The last caller of such a circle finds it.

use std::collections::HashSet;
use std::future::Future;

use crate::flight::computation::{Computation, OriginCall};
use crate::flight::places::{Offer, Places};
use crate::sync::{Arc, task_local};

task_local! {
    static SCOPE: Arc<Scope>;
}

/// A computation, and the outer computation whose caller asked for it.
#[derive(Debug)]
pub(crate) struct Scope {
    /// Tells one handle from another.
    places: Arc<Places>,
    computation: Arc<Computation>,
    outer: Option<Arc<Scope>>,
}

/// Returns the scope in which the caller runs, for a computation that will run on
/// another task.
pub(crate) fn scope_of_caller() -> Option<Arc<Scope>> {
    SCOPE.try_with(Arc::clone).ok()
}

/// Returns the innermost computation of the same handle in which the caller runs.
pub(crate) fn computation_of_caller(places: &Arc<Places>) -> Option<Arc<Computation>> {
    SCOPE
        .try_with(|scope| {
            let scopes = std::iter::successors(Some(scope), |scope| scope.outer.as_ref());
            let mut own = scopes.filter(|scope| Arc::ptr_eq(&scope.places, places));
            own.next().map(|scope| Arc::clone(&scope.computation))
        })
        .ok()
        .flatten()
}

impl Drop for Scope {
    // One after the other: a long chain would overflow the stack.
    fn drop(&mut self) {
        let mut next = self.outer.take();
        while let Some(mut scope) = next.and_then(Arc::into_inner) {
            next = scope.outer.take();
        }
    }
}

impl Scope {
    pub(crate) fn new(
        places: &Arc<Places>,
        computation: &Arc<Computation>,
        outer: Option<Arc<Self>>,
    ) -> Arc<Self> {
        let (places, computation) = (Arc::clone(places), Arc::clone(computation));
        Arc::new(Self { places, computation, outer })
    }
}

/// Says that a caller waits for a computation, as long as this lives. Where the caller runs in a
/// computation itself, that one lends its place.
#[derive(Debug, Default)]
pub(crate) struct Wait(Option<Box<InnerWait>>);

/// The wait of a caller that runs in a computation.
#[derive(Debug)]
struct InnerWait {
    _offer: Option<Offer>,
    need: Need,
}

impl Wait {
    pub(super) fn new(places: &Arc<Places>, computation: &Arc<Computation>) -> Self {
        let lender = computation_of_caller(places);
        let offer = lender.map(|lender| places.offer(&lender, computation));
        let need = Need::of_caller(computation);
        Self(need.map(|need| Box::new(InnerWait { _offer: offer, need })))
    }

    /// Returns whether the caller runs in a computation.
    pub(super) fn is_inside(&self) -> bool {
        self.0.is_some()
    }

    /// Returns whether the computation waits for the caller's own.
    pub(super) fn is_circular(&self) -> bool {
        self.0.as_ref().is_some_and(|wait| wait.need.is_circular())
    }
}

/// Says that a call cannot end before a computation has, as long as this lives. The two may be of
/// different handles.
#[derive(Debug)]
pub(crate) struct Need {
    of: Arc<OriginCall>,
    on: Arc<Computation>,
}

impl Need {
    /// Notes that the caller needs `on`, if it runs in a computation.
    pub(super) fn of_caller(on: &Arc<Computation>) -> Option<Self> {
        let of = SCOPE.try_with(|scope| scope.computation.call()).ok()?;
        of.needs.add(on);
        Some(Self { of, on: Arc::clone(on) })
    }

    /// Returns whether the computation needs this call in turn, directly or by way of others. Each
    /// need is noted before it looks around: of several that close a circle together, one finds it.
    fn is_circular(&self) -> bool {
        let (mut seen, mut next) = (HashSet::new(), Vec::from_iter(self.on.begun_call()));
        while let Some(call) = next.pop() {
            if Arc::ptr_eq(&call, &self.of) {
                return true;
            }
            let calls = call.needs.calls();
            next.extend(calls.into_iter().filter(|call| seen.insert(Arc::as_ptr(call).addr())));
        }
        false
    }
}

impl Drop for Need {
    fn drop(&mut self) {
        self.of.needs.remove(&self.on);
    }
}

/// Runs `work` within `scope`.
pub(crate) fn within<F: Future>(scope: Arc<Scope>, work: F) -> impl Future<Output = F::Output> {
    SCOPE.scope(scope, work)
}
