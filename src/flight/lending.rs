//! In which computation a caller runs.
//!
//! A computation that asks its own handle for another key waits for it and does not
//! work meanwhile. So that it can lend its place, the engine has to know which computation
//! asks: each computation runs within a task-local scope that names it. Work that the
//! computation spawns (`tokio::spawn`) is outside of that scope, and lends nothing.

use std::future::Future;

use crate::flight::computation::Computation;
use crate::flight::places::Places;
use crate::sync::Arc;

tokio::task_local! {
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

/// Runs `work`, which is no longer a part of the computation of `scope`, where the caller of
/// that computation runs.
pub(crate) async fn outside_of<F: Future>(scope: &Scope, work: F) -> F::Output {
    match &scope.outer {
        Some(outer) => within(Arc::clone(outer), work).await,
        None => work.await,
    }
}

/// Runs `work` within `scope`.
pub(crate) fn within<F: Future>(scope: Arc<Scope>, work: F) -> impl Future<Output = F::Output> {
    SCOPE.scope(scope, work)
}
