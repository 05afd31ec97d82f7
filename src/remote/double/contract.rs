//! The double as a server under test of the contract suite.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::key::Key;
use crate::remote::Remote;
use crate::remote::contract::ContractServer;
use crate::remote::double::{Double, Record};

impl ContractServer for Double {
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

    async fn lose_log(&self) {
        Self::lose_log(self);
    }

    async fn lose_keys_of_log(&self) {
        self.lose_key_log();
    }

    async fn roll_back_log(&self, lost: u64) {
        Self::roll_back_log(self, lost);
    }

    async fn fail_over_log(&self) {
        Self::fail_over_log(self, 0);
    }

    async fn bound_log(&self, tags: usize, keys: usize) -> (usize, usize) {
        Self::bound_log(self, tags, keys);
        (tags, keys)
    }
}
