//! The least that as many clients can wait.

use std::time::Duration;

use crate::plays::Round;
use crate::proxy_support::Crowd;
use crate::proxy_support::stage::same;
use crate::servers::Server;

/// A process of our own that answers without any work.
pub(crate) struct Floor(Server);

impl Floor {
    pub(crate) fn start() -> Self {
        Self(Server::ourselves(None, &["--floor"]))
    }

    pub(crate) async fn crowd(&self, clients: usize) -> Vec<Duration> {
        let outcomes = Crowd::ask(&[self.0.address], same(clients)).outcomes().await;
        Round { hits: 0, outcomes }.times(|seen| seen.whole)
    }
}
