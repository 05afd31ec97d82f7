//! An instance that the page of another one has started: it reports to that process on stdout,
//! and ends with it.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tower_stampede::{CacheOutcome, HttpStampede};

use crate::redis::{self, Redis};

/// The field of a response that names its outcome. `Cache-Status` has one word for stale responses,
/// whether a refresh runs or the origin has failed.
pub(crate) const OUTCOME: HeaderName = HeaderName::from_static("x-outcome");
/// How often the state of Redis is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// One line on stdout, after the line with the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub(crate) enum Report {
    /// The origin has begun to compute the report of the page.
    Began { at: u64, call: u64 },
    /// It has ended.
    Ended { at: u64, call: u64, ok: bool },
    /// Redis answers, or does not.
    Redis { at: u64, up: bool },
}

/// The sending end. Without it an instance is on its own.
#[derive(Debug)]
pub(crate) struct Child {
    /// Numbers the calls: after an invalidation two may run at once.
    calls: AtomicU64,
}

impl Child {
    /// Ends this process when its standard input closes: so it ends with the process that holds
    /// the other end, even where that one is killed.
    pub(crate) fn new() -> Self {
        std::thread::spawn(|| {
            // An error is an end as well.
            let _ = io::copy(&mut io::stdin().lock().by_ref(), &mut io::sink());
            std::process::exit(0);
        });
        Self { calls: AtomicU64::new(0) }
    }

    /// Reports a computation from its begin to its end.
    pub(crate) fn compute(&self) -> Computation {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        send(Report::Began { at: now(), call });
        Computation { call, ok: false }
    }
}

/// Reports when Redis goes, and when it comes back.
pub(crate) fn watch_redis(cache: HttpStampede, server: Redis) {
    tokio::spawn(async move {
        let mut known = None;
        loop {
            let up = redis::state(&cache, Some(&server)) == "up";
            if known.replace(up) != Some(up) {
                send(Report::Redis { at: now(), up });
            }
            tokio::time::sleep(LOOK).await;
        }
    });
}

/// Names the outcome of a response in one of its fields.
pub(crate) fn mark(response: &mut Response) {
    let outcome = response.extensions().get().copied().unwrap_or(CacheOutcome::Hit);
    response.headers_mut().insert(OUTCOME, HeaderValue::from_static(outcome.as_str()));
}

/// A computation that runs. Dropped before its end, it counts as failed.
#[derive(Debug)]
pub(crate) struct Computation {
    call: u64,
    ok: bool,
}

impl Computation {
    pub(crate) fn succeed(mut self) {
        self.ok = true;
    }
}

impl Drop for Computation {
    fn drop(&mut self) {
        send(Report::Ended { at: now(), call: self.call, ok: self.ok });
    }
}

fn send(report: Report) {
    if let Ok(line) = serde_json::to_string(&report) {
        let mut out = io::stdout().lock();
        // Where the other end is gone, this process ends in a moment.
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    }
}

/// Milliseconds since 1970: all processes of a page are on one machine.
pub(crate) fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
