//! A table behind a batch loader, which records its queries.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use super::origin::*;

pub(crate) type Rows = Result<HashMap<u64, u64>, OriginError>;

/// Has a row for each id below 1000, its square. Records each query, its ids in order.
#[derive(Clone)]
pub(crate) struct Table {
    takes: Duration,
    pub(crate) queries: Arc<Mutex<Vec<Vec<u64>>>>,
    running: Arc<AtomicUsize>,
    pub(crate) most_at_once: Arc<AtomicUsize>,
}

impl Table {
    pub(crate) fn taking(takes: Duration) -> Self {
        Self {
            takes,
            queries: Arc::default(),
            running: Arc::default(),
            most_at_once: Arc::default(),
        }
    }

    pub(crate) fn loader(&self) -> impl Fn(Vec<u64>) -> BoxFuture<'static, Rows> + use<> {
        let table = self.clone();
        move |mut ids| {
            ids.sort_unstable();
            table.queries.lock().push(ids.clone());
            let running = table.running.fetch_add(1, SeqCst) + 1;
            table.most_at_once.fetch_max(running, SeqCst);
            let table = table.clone();
            Box::pin(async move {
                tokio::time::sleep(table.takes).await;
                table.running.fetch_sub(1, SeqCst);
                Ok(ids.into_iter().filter(|id| *id < 1000).map(|id| (id, id * id)).collect())
            })
        }
    }

    pub(crate) fn loads_of(&self, id: u64) -> usize {
        self.queries.lock().iter().flatten().filter(|loaded| **loaded == id).count()
    }
}
