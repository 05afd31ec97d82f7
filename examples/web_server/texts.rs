//! What the texts of settings mean. Both servers among the examples have these settings.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

pub(crate) fn milliseconds(text: &str) -> Result<Duration, String> {
    let millis = text.parse().map_err(|_| "is not a whole number of milliseconds".to_owned())?;
    Ok(Duration::from_millis(millis))
}

pub(crate) fn some_time(text: &str) -> Result<Duration, String> {
    match milliseconds(text)? {
        Duration::ZERO => Err("is no time at all; say 1 or more".into()),
        time => Ok(time),
    }
}

pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "is not a whole number of bytes".into())
}

pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    let n = text.parse().ok().filter(|n| *n > 0);
    n.ok_or_else(|| "is not a whole number above 0".into())
}

/// Of no consequence without Redis, but wrong is wrong.
pub(crate) fn namespace(text: &str) -> Result<String, String> {
    match text {
        "" => Err("is empty".into()),
        _ if text.contains(['{', '}']) => Err("contains a brace".into()),
        _ if text.contains(|c: char| c.is_whitespace() || c.is_control()) => {
            Err("contains a blank or a control character".into())
        }
        _ => Ok(text.to_owned()),
    }
}

pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let found = text.to_socket_addrs().ok().and_then(|mut all| all.next());
    found.ok_or_else(|| "is not an address like 127.0.0.1:3000".into())
}
