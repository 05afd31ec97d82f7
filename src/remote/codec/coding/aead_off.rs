//! No encryption: the feature `codec-aead` is off.

use bytes::Bytes;

/// There are none.
#[derive(Debug)]
pub(crate) enum NoKeys {}

impl NoKeys {
    pub(crate) fn encrypt(&self, _: &[u8], _: &[u8]) -> Option<Vec<u8>> {
        match *self {}
    }

    pub(crate) fn decrypt(&self, _: &[u8], _: &[u8]) -> Option<Bytes> {
        match *self {}
    }
}
