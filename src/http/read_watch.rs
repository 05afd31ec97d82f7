//! Notices, in debug builds, that no layer reads what a handler says in its response.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use http::Extensions;

/// An extension beside [`CacheFor`](crate::CacheFor), which warns where the response goes before a
/// layer has read that.
#[derive(Clone, Default)]
pub(super) struct ReadWatch(Arc<ReadFlag>);

#[derive(Default)]
struct ReadFlag(AtomicBool);

impl ReadWatch {
    pub(super) fn begin(extensions: &mut Extensions) {
        extensions.insert(Self::default());
    }

    /// A layer has read it.
    pub(super) fn end(extensions: &mut Extensions) {
        if let Some(watch) = extensions.remove::<Self>() {
            watch.0.0.store(true, Relaxed);
        }
    }
}

impl Drop for ReadFlag {
    fn drop(&mut self) {
        thread_local! { static HAS_WARNED: Cell<bool> = const { Cell::new(false) }; }
        let is_first = || HAS_WARNED.try_with(|it| !it.replace(true)).unwrap_or(false);
        if !self.0.load(Relaxed) && !std::thread::panicking() && is_first() {
            crate::observe::warn_of_unread();
        }
    }
}
