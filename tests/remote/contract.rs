//! The double keeps the contract of a remote.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tower_stampede::Key;
use tower_stampede::remote::{Double, Record, Remote};

use crate::kit::contract::{self, contract};

impl contract::Server for Double {
    async fn connect(&self) -> Arc<dyn Remote> {
        self.process()
    }

    async fn lose(&self, key: &Key, record: Record) {
        Self::lose(self, key, record);
    }

    async fn set_value(&self, key: &Key, envelope: Bytes) {
        self.set_raw(key, envelope);
    }

    async fn set_foreign_value(&self, key: &Key) {
        self.set_foreign(key);
    }

    async fn lock_as_stranger(&self, key: &Key, lease: Duration) -> bool {
        Self::lock_as_stranger(self, key, lease)
    }

    async fn unlock_as_stranger(&self, key: &Key) -> bool {
        Self::unlock_as_stranger(self, key)
    }

    async fn stretch_lease(&self, key: &Key, left: Duration) {
        Self::stretch_lease(self, key, left);
    }

    async fn out_of_memory(&self, full: bool) {
        Self::out_of_memory(self, full);
    }

    async fn flush(&self) {
        Self::flush(self);
    }
}

contract!(
    #[tokio::test(start_paused = true)]
    ready(Double::new())
);
