//! Requests of a case that are on their way.

use tokio::task::JoinHandle;

use crate::judge::Exchange;

pub(crate) enum Running {
    Done(Box<Exchange>),
    Sent(JoinHandle<Exchange>),
}

impl Running {
    /// Returns the exchange if it is over.
    pub(crate) async fn if_done(&mut self) -> Option<&Exchange> {
        if let Self::Sent(task) = self
            && task.is_finished()
        {
            self.finish().await;
        }
        match self {
            Self::Done(exchange) => Some(exchange),
            Self::Sent(_) => None,
        }
    }

    async fn finish(&mut self) {
        if let Self::Sent(task) = self {
            *self = Self::Done(Box::new(task.await.expect("no exchange panics")));
        }
    }
}

/// Waits until all are over.
pub(crate) async fn finish(running: &mut [Running]) {
    for one in running {
        one.finish().await;
    }
}

/// Returns the exchanges that are over.
pub(crate) fn exchanges(running: Vec<Running>) -> Vec<Exchange> {
    let done = running.into_iter().filter_map(|one| match one {
        Running::Done(exchange) => Some(*exchange),
        Running::Sent(_) => None,
    });
    done.collect()
}
