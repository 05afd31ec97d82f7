//! The computation that a caller brings, and how its type is forgotten.
//!
//! A program has hundreds of calls of `get_or_compute`, each with a closure of its own type. If the
//! way of a caller knew that type, it would be compiled once for each call. So a detached caller
//! keeps its closure in its own future ([`CallerClosure`]) and lends it to its way by reference
//! ([`LentClosure`]). A caller that joins a flight boxes nothing. A caller that leads takes a
//! [`BoxedCall`] to its task. A call that was not polled comes back from the task, and runs where the
//! caller goes on.
//!
//! Computations inside their caller (`get_or_compute_scoped`) and those of tower services keep
//! their type: the first may borrow and need not be `Send`, the others are few.

use std::future::{Future, ready};

use futures_util::future::BoxFuture;

use crate::computed::Computed;
use crate::error::{BoxError, Error, ErrorKind};
use crate::flight::engine::PlaceForOne;

/// What a computation hands to its leader: the value to keep, if it may be kept, and what
/// the leader's own caller gets.
pub(crate) type ComputationResult<V, T> = (Option<Computed<V>>, T);

/// Computes a value, once.
pub(crate) trait Compute<V> {
    /// What the leader's own caller gets.
    type Own;
    type Error: Into<BoxError>;
    type Call: Future<Output = Result<ComputationResult<V, Self::Own>, Self::Error>>;

    fn call(self) -> Self::Call;

    /// Takes the place of a caller that computes alone, where the call is for others too, and
    /// keeps its time itself. Returns whether that is so.
    fn takes_place(&mut self, _: &mut Option<PlaceForOne<V>>) -> bool
    where
        V: Send + Sync + 'static,
    {
        false
    }
}

impl<V, T, E, F, Fut> Compute<V> for F
where
    E: Into<BoxError>,
    F: FnOnce() -> Fut,
    Fut: Future<Output = Result<ComputationResult<V, T>, E>>,
{
    type Own = T;
    type Error = E;
    type Call = Fut;

    fn call(self) -> Fut {
        self()
    }
}

/// A call whose type is forgotten. The closure runs at its first poll.
pub(crate) type BoxedCall<V> = BoxFuture<'static, Result<ComputationResult<V, V>, BoxError>>;

/// Hands out a call, and takes it back where it was not polled.
pub(crate) trait TakeCall<V>: Send {
    fn take_call(&mut self) -> BoxedCall<V>;
    fn give_back(&mut self, call: BoxedCall<V>);
}

/// A closure that stays in the future of its caller until that leads or computes alone.
pub(crate) enum CallerClosure<F, V> {
    Closure(F),
    Call(BoxedCall<V>),
    Taken,
}

impl<V, R, E, F, Fut> TakeCall<V> for CallerClosure<F, V>
where
    V: Clone + Send + 'static,
    R: Into<Computed<V>>,
    E: Into<BoxError>,
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = Result<R, E>> + Send + 'static,
{
    fn take_call(&mut self) -> BoxedCall<V> {
        match std::mem::replace(self, Self::Taken) {
            Self::Closure(compute) => Box::pin(async move {
                match compute().await {
                    Ok(result) => {
                        let mut computed = result.into();
                        // The clone is stored: it has no spare capacity.
                        let stored = computed.value.clone();
                        let own = std::mem::replace(&mut computed.value, stored);
                        Ok((Some(computed), own))
                    }
                    Err(error) => Err(error.into()),
                }
            }),
            Self::Call(call) => call,
            // Not reached: `LentClosure` is consumed by the call, and made anew by `give_back` only.
            Self::Taken => Box::pin(ready(Err(Error::new(ErrorKind::ShutDown).into()))),
        }
    }

    fn give_back(&mut self, call: BoxedCall<V>) {
        *self = Self::Call(call);
    }
}

/// What a caller lends to its way.
pub(crate) struct LentClosure<'a, V>(pub(crate) &'a mut dyn TakeCall<V>);

impl<V> Compute<V> for LentClosure<'_, V> {
    type Own = V;
    type Error = BoxError;
    type Call = BoxedCall<V>;

    fn call(self) -> BoxedCall<V> {
        self.0.take_call()
    }
}

/// A call that its caller has taken to a task.
pub(crate) struct TakenCall<V>(pub(crate) BoxedCall<V>);

impl<V> Compute<V> for TakenCall<V> {
    type Own = V;
    type Error = BoxError;
    type Call = BoxedCall<V>;

    fn call(self) -> BoxedCall<V> {
        self.0
    }
}
