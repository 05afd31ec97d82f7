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

/// Lets no connection begin any more. Those that have begun are still accepted.
///
/// Without this, clients connect in the very moment in which the listener closes, and the kernel
/// resets their connections together with the requests on them. The first packet of a client is
/// dropped now: the client sends it again a second later, and is then refused, or finds the next
/// process that listens here. On Linux only; elsewhere nothing changes.
pub(crate) fn close_the_door(listener: &TcpListener) {
    #[cfg(target_os = "linux")]
    {
        use socket2::{SockFilter, SockRef};
        // Where the flags stand in the head of a TCP packet, and those of a first packet.
        const FLAGS: u32 = 13;
        const SYN: u32 = 0x02;
        const SYN_OR_ACK: u32 = 0x12;
        // BPF: load the byte, mask it; if it is SYN alone drop the packet, else keep all of it.
        let filter = [
            SockFilter::new(0x30, 0, 0, FLAGS),
            SockFilter::new(0x54, 0, 0, SYN_OR_ACK),
            SockFilter::new(0x15, 0, 1, SYN),
            SockFilter::new(0x06, 0, 0, 0),
            SockFilter::new(0x06, 0, 0, u32::MAX),
        ];
        // Where the system refuses, it is as elsewhere.
        let _ = SockRef::from(listener).attach_filter(&filter);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = listener;
}

/// Says that we are ready; scripts wait for this line.
pub(crate) fn announce(scheme: &str, address: SocketAddr) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "listening on {scheme}://{address}")?;
    out.flush()
}
