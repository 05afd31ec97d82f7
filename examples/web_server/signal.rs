//! The signals that end the server.

use std::io;

/// Returns a future that ends with the first Ctrl-C or SIGTERM from now on.
#[cfg(unix)]
pub(crate) fn received() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};

    // Registered here, not at the first poll: no signal is missed.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => (),
            _ = terminate.recv() => (),
        }
    })
}

/// Returns a future that ends with the first Ctrl-C.
#[cfg(not(unix))]
pub(crate) fn received() -> io::Result<impl Future<Output = ()>> {
    Ok(async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    })
}
