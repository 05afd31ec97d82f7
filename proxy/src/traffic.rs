//! Counts the bytes that follow the head of a response.
//!
//! A response may be followed by more bytes than its length says. hyper reads them into its own
//! buffer, and closes the connection without a word to the reader of the response. So the stream
//! counts the bytes as they come.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where in a start line the status begins: `HTTP/1.1 200`.
const STATUS: usize = 9;

/// What the origin has sent in the current exchange of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traffic(Arc<Mutex<Received>>);

#[derive(Debug, Default)]
struct Received {
    head: HeadScan,
    /// How many bytes have followed the head.
    body: u64,
}

impl Traffic {
    fn lock(&self) -> MutexGuard<'_, Received> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an exchange.
    pub(crate) fn begin(&self) {
        *self.lock() = Received::default();
    }

    pub(crate) fn received(&self, bytes: &[u8]) {
        let mut received = self.lock();
        received.body += received.head.body_in(bytes) as u64;
    }

    /// Returns whether more bytes have come than a body of this length has.
    pub(crate) fn has_more_than(&self, length: u64) -> bool {
        self.lock().body > length
    }
}

/// Finds the end of a response's head, and of the informational ones before it.
#[derive(Debug, Default)]
struct HeadScan {
    /// How many bytes of this head have come, its start line included.
    seen: usize,
    is_informational: bool,
    /// Nothing stands on this line yet.
    is_line_empty: bool,
    has_ended: bool,
}

impl HeadScan {
    /// Returns how many of these bytes stand behind the head.
    fn body_in(&mut self, bytes: &[u8]) -> usize {
        let mut bytes = bytes.iter();
        while !self.has_ended
            && let Some(&b) = bytes.next()
        {
            self.step(b);
        }
        bytes.len()
    }

    fn step(&mut self, b: u8) {
        match b {
            // hyper skips empty lines before a head.
            b'\r' | b'\n' if self.seen == 0 => return,
            b'\n' if self.is_line_empty && self.is_informational => return *self = Self::default(),
            b'\n' if self.is_line_empty => self.has_ended = true,
            b'\n' => self.is_line_empty = true,
            b'\r' => {}
            _ => self.is_line_empty = false,
        }
        if self.seen == STATUS {
            self.is_informational = b == b'1';
        }
        self.seen += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n";

    fn traffic(response: &str, size: usize) -> Traffic {
        let traffic = Traffic::default();
        response.as_bytes().chunks(size).for_each(|piece| traffic.received(piece));
        traffic
    }

    #[test]
    fn bytes_that_follow_the_head_are_counted_however_they_come() {
        for head in [
            HEAD.to_owned(),
            HEAD.replace('\r', ""),
            format!("\r\n\r\n{HEAD}"),
            format!("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n{HEAD}"),
        ] {
            for size in 1..=head.len() + 4 {
                for body in ["ab", "\r\n\r\n"] {
                    let traffic = traffic(&format!("{head}{body}"), size);
                    let length = body.len() as u64;
                    assert!(!traffic.has_more_than(length), "{head:?} {size}");
                    assert!(traffic.has_more_than(length - 1), "{head:?} {size}");
                }
            }
        }
    }

    #[test]
    fn each_exchange_is_counted_for_itself() {
        let traffic = traffic(&format!("{HEAD}abc"), 99);
        traffic.begin();
        traffic.received(HEAD.as_bytes());
        assert!(!traffic.has_more_than(0));
    }
}
