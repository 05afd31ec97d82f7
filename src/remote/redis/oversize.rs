//! Values that are larger than this cache takes: they are read whole once, whichever process wrote
//! them.

use std::collections::HashSet;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::remote::redis::connection::Command;
use crate::remote::redis::pool::Pool;
use crate::remote::redis::reply::{CallFailure, ServerReply};

/// How many keys are remembered. Beyond that, all are forgotten: then each is read whole once
/// more.
const MOST_KEYS: usize = 1024;

/// How much of an envelope is read where the rest is of no use: up to the end of its version.
const HEAD: usize = 20;

/// The keys under which a value was found that is too large.
///
/// The size is not asked for before each read: a hit would cost a second command, or a script in
/// place of `GET`. So the first read of such a value carries it whole.
pub(super) struct Oversize {
    max_bytes: usize,
    /// Stable hashes. Of two keys with one hash, one costs a command more.
    keys: Mutex<HashSet<u64>>,
}

impl Oversize {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, keys: Mutex::default() }
    }

    pub(super) const fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// Reads a value by `GET`. Where the last one was too large, first a byte behind the bound;
    /// if there is one, the beginning of the value alone.
    pub(super) async fn read(
        &self,
        link: &Pool,
        name: &[u8],
        hash: u64,
    ) -> Result<ServerReply, CallFailure> {
        if self.keys.lock().contains(&hash) {
            let bound = self.max_bytes;
            if !range(link, name, bound, bound).await?.is_empty() {
                return range(link, name, 0, HEAD - 1).await.map(ServerReply::Bytes);
            }
            self.keys.lock().remove(&hash);
        }
        let reply = link.send(&Command::new("GET").arg(name)).await?;
        if let ServerReply::Bytes(bytes) = &reply
            && bytes.len() > self.max_bytes
        {
            let mut keys = self.keys.lock();
            if keys.len() >= MOST_KEYS {
                keys.clear();
            }
            keys.insert(hash);
        }
        Ok(reply)
    }
}

async fn range(link: &Pool, name: &[u8], from: usize, to: usize) -> Result<Bytes, CallFailure> {
    let (from, to) = (from.to_string(), to.to_string());
    let read = Command::new("GETRANGE").arg(name).arg(from).arg(to);
    Ok(link.send(&read).await?.bytes()?.clone())
}
