//! What is missing from a value that is a stream, and the flight that waits for it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use crate::budget::Reservation;
use crate::error::Error;

/// The flight of a stream, as its producer sees it. None of its methods runs while the stream is
/// polled. Each end ends the flight; dropped, it ends as one whose leader is lost.
pub(crate) trait StreamFlight<V>: Send {
    /// Says that more comes within `limit`, so that no waiter takes the stream for lost.
    fn goes_on(&self, limit: Duration);

    /// Returns whether the whole would answer a request, also where no caller reads now.
    fn is_of_use(&self) -> bool;

    /// The stream has ended well, and is stored where it may be.
    fn complete(self: Box<Self>, whole: V, keeps: bool) -> BoxFuture<'static, ()>;

    /// The stream has failed.
    fn fail(self: Box<Self>, error: Error) -> BoxFuture<'static, ()>;

    /// The stream was too slow.
    fn is_late(self: Box<Self>) -> BoxFuture<'static, ()>;

    /// The stream goes on for its readers, and is not stored.
    fn decline(self: Box<Self>) -> BoxFuture<'static, ()>;
}

/// Drives a stream to its end.
pub(super) trait Drive<V>: Send {
    fn drive(
        self: Box<Self>,
        flight: Option<Box<dyn StreamFlight<V>>>,
        reserved: Option<Reservation>,
    ) -> BoxFuture<'static, ()>;
}

/// What is missing from a value that is a stream. Clones share it, and one of them drives it.
pub(crate) struct Rest<V>(Arc<Mutex<Option<Box<dyn Drive<V>>>>>);

impl<V> Rest<V> {
    pub(super) fn new(drive: impl Drive<V> + 'static) -> Self {
        Self(Arc::new(Mutex::new(Some(Box::new(drive)))))
    }

    /// Returns what drives the stream. What arrives counts in `reserved`; without one, nothing is
    /// kept that all readers have read.
    pub(crate) fn drive(
        self,
        flight: Option<Box<dyn StreamFlight<V>>>,
        reserved: Option<Reservation>,
    ) -> Option<BoxFuture<'static, ()>> {
        let drive = self.0.lock().take()?;
        Some(drive.drive(flight, reserved))
    }
}

impl<V> Clone for Rest<V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<V> fmt::Debug for Rest<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rest")
    }
}
