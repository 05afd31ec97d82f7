//! `tracing` subscribers of one thread, beside tests that have none.

use std::sync::OnceLock;

use tracing::Dispatch;
use tracing::subscriber::{DefaultGuard, NoSubscriber, Subscriber};

/// Installs a subscriber for this thread, until the guard is dropped.
///
/// `tracing` remembers for each place in the code whether any subscriber wants its lines.
/// While it knows of one subscriber only, it asks the subscriber of the current thread. A test
/// on a thread without any would then switch the place off for the thread that has one. So
/// there is always a second one, which wants nothing.
pub(crate) fn listen(subscriber: impl Subscriber + Send + Sync + 'static) -> DefaultGuard {
    static SECOND: OnceLock<Dispatch> = OnceLock::new();
    SECOND.get_or_init(|| Dispatch::new(NoSubscriber::new()));
    tracing::subscriber::set_default(subscriber)
}
