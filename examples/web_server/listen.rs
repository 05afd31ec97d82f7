//! Where connections come in; both servers among the examples have it.

use std::io::{self, Write};
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

/// How many connections may wait to be accepted; the kernel may allow less.
const BACKLOG: u32 = 8192;

/// Listens with room for a herd: with the usual queue of 128 the kernel drops
/// the rest of a thousand connections that come at once, and they try again
/// one to three seconds later.
pub(crate) fn on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // On Windows this would let two servers take one port.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Says that we are ready; scripts wait for this line.
pub(crate) fn announce(scheme: &str, address: SocketAddr) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "listening on {scheme}://{address}")?;
    out.flush()
}
