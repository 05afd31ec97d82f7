//! The signal to read the configuration anew.

use std::io;

/// The signals to reload.
pub(crate) struct Reloads(#[cfg(unix)] tokio::signal::unix::Signal);

/// Returns each SIGHUP from now on.
pub(crate) fn received() -> io::Result<Reloads> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Reloads(signal(SignalKind::hangup())?))
    }
    #[cfg(not(unix))]
    Ok(Reloads())
}

impl Reloads {
    #[cfg(unix)]
    pub(crate) async fn next(&mut self) -> Option<()> {
        self.0.recv().await
    }

    /// Such systems have no signal for it.
    #[cfg(not(unix))]
    pub(crate) async fn next(&mut self) -> Option<()> {
        std::future::pending().await
    }
}
