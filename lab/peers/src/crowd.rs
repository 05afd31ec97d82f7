//! A crowd that asks for one key at once, and what may go wrong meanwhile.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::origin::{Origin, Script, WORK};
use crate::peers::Peer;
use crate::report::{median, percentile};
use crate::subject::Subject;

pub(crate) const CROWD: usize = 1000;

/// Who has no answer by then is counted as stuck.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

/// When the leader's caller leaves.
const STAY: Duration = Duration::from_millis(20);

pub(crate) const ROUNDS: u64 = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scenario {
    Cold,
    LeaderLeaves,
    FailsOnce,
    Fails,
    Panics,
    /// No cache knows yet that the answers may not be stored.
    Private,
    /// The next crowd at the same key.
    PrivateKnown,
    TwoProcesses,
}

use Scenario::{Cold, Fails, FailsOnce, LeaderLeaves, Panics, Private, PrivateKnown, TwoProcesses};

impl Scenario {
    pub(crate) const ALL: [Self; 8] =
        [Cold, LeaderLeaves, FailsOnce, Fails, Panics, Private, PrivateKnown, TwoProcesses];

    pub(crate) fn id(self) -> &'static str {
        match self {
            Cold => "cold",
            LeaderLeaves => "leader_leaves",
            FailsOnce => "fails_once",
            Fails => "fails",
            Panics => "panics",
            Private => "private",
            PrivateKnown => "private_known",
            TwoProcesses => "two_processes",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Cold => "nothing stored yet",
            LeaderLeaves => "the first caller leaves after 20 ms",
            FailsOnce => "the first call fails",
            Fails => "every call fails",
            Panics => "the first call panics",
            Private => "answers may not be stored",
            PrivateKnown => "the same, the next 1000",
            TwoProcesses => "two processes on one Redis",
        }
    }

    pub(crate) fn caption(self) -> &'static str {
        match self {
            Cold => "All is well but that nothing is stored.",
            LeaderLeaves => "It is its question that began the work.",
            FailsOnce => "Later calls would succeed.",
            Fails => "Where waiters try one after the other, few have had their turn after 3 s.",
            Panics => "Later calls would succeed.",
            Private => "Each answer says no-store.",
            PrivateKnown => "Each answer says no-store, and there has been a crowd before.",
            TwoProcesses => "Half of the callers ask at each; caches without Redis are not here.",
        }
    }

    /// What our cache must do.
    pub(crate) fn must(self) -> &'static str {
        match self {
            Cold => "1",
            LeaderLeaves => "1; ≤ 1/≤ 10",
            FailsOnce => "≤ 2; one error, or it is shared",
            Fails => "≤ 2, the error shared",
            Panics => "≤ 2; ≤ 1 error",
            Private => "1000 in parallel",
            PrivateKnown => "1000; ≤ 5",
            TwoProcesses => "1",
        }
    }

    pub(crate) fn named(id: &str) -> Self {
        let scenario = Self::ALL.into_iter().find(|scenario| scenario.id() == id);
        scenario.unwrap_or_else(|| panic!("no scenario is called {id}"))
    }

    /// Whether the peer can be asked for this at all.
    pub(crate) fn suits(self, peer: &Peer) -> bool {
        match self {
            Private | PrivateKnown => peer.has_private_answers,
            TwoProcesses => peer.start_on_redis.is_some(),
            _ => true,
        }
    }

    pub(crate) fn is_private(self) -> bool {
        matches!(self, Private | PrivateKnown)
    }

    fn script(self) -> Script {
        match self {
            Cold | LeaderLeaves | TwoProcesses => Script::Answers,
            FailsOnce => Script::FailsOnce,
            Fails => Script::Fails,
            Panics => Script::PanicsOnce,
            Private | PrivateKnown => Script::Private,
        }
    }
}

/// The results of a crowd.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Wave {
    pub(crate) calls: usize,
    pub(crate) errors: usize,
    pub(crate) stuck: usize,
    /// How many callers got another caller's answer, where each is for one alone.
    pub(crate) shared: usize,
    /// Milliseconds from the first caller's question to answer or error, over
    /// the time that the work takes; none if no caller got any.
    pub(crate) p50: Option<f64>,
    pub(crate) p99: Option<f64>,
}

/// The worst count and the median time of several rounds, each with a cache of
/// its own. One in which a caller is stuck is the last.
pub(crate) async fn run(peer: &Peer, scenario: Scenario, redis: Option<&str>) -> Wave {
    let mut waves: Vec<Wave> = Vec::new();
    for key in 0..ROUNDS {
        waves.push(round(peer, scenario, key, redis).await);
        if waves.iter().any(|wave| wave.stuck > 0) {
            break;
        }
    }
    let worst = |count: fn(&Wave) -> usize| waves.iter().map(count).max().unwrap_or_default();
    let time = |time: fn(&Wave) -> Option<f64>| {
        let mut times: Vec<_> = waves.iter().filter_map(time).collect();
        (!times.is_empty()).then(|| median(&mut times))
    };
    Wave {
        calls: worst(|wave| wave.calls),
        errors: worst(|wave| wave.errors),
        stuck: worst(|wave| wave.stuck),
        shared: worst(|wave| wave.shared),
        p50: time(|wave| wave.p50),
        p99: time(|wave| wave.p99),
    }
}

async fn round(peer: &Peer, scenario: Scenario, key: u64, redis: Option<&str>) -> Wave {
    let origin = Origin::new(scenario.script());
    let mut crowd = Crowd { subjects: Vec::new(), origin: origin.clone(), key };
    match (scenario, peer.start_on_redis, redis) {
        (TwoProcesses, Some(start), Some(url)) => {
            for _ in 0..2 {
                let subject = start(origin.clone(), url.to_owned()).await;
                // Opens its connections.
                subject.ask(u64::MAX).await.expect("the server answers");
                crowd.subjects.push(subject);
            }
        }
        _ => crowd.subjects.push((peer.start)(origin.clone()).await),
    }
    if scenario == PrivateKnown {
        crowd.wave().await;
    }
    if scenario == LeaderLeaves { crowd.wave_without_leader().await } else { crowd.wave().await }
}

type Outcome = (Instant, Result<u64, String>);

struct Crowd {
    subjects: Vec<Arc<dyn Subject>>,
    origin: Origin,
    key: u64,
}

impl Crowd {
    /// Evenly at all there are.
    fn ask(&self, n: usize) -> JoinHandle<Outcome> {
        let asked = self.subjects[n % self.subjects.len()].ask(self.key);
        tokio::spawn(async move {
            let result = asked.await;
            (Instant::now(), result)
        })
    }

    async fn wave(&self) -> Wave {
        let (before, began) = (self.origin.calls(), Instant::now());
        let tasks = (0..CROWD).map(|n| self.ask(n)).collect();
        self.end(before, began, tasks).await
    }

    async fn wave_without_leader(&self) -> Wave {
        let (before, began) = (self.origin.calls(), Instant::now());
        let leader = self.ask(0);
        while self.origin.calls() == before {
            sleep(Duration::from_millis(1)).await;
        }
        let tasks = (1..CROWD).map(|n| self.ask(n)).collect();
        sleep_until(began + STAY).await;
        leader.abort();
        self.end(before, began, tasks).await
    }

    async fn end(&self, before: usize, began: Instant, tasks: Vec<JoinHandle<Outcome>>) -> Wave {
        let mut wave = Wave::default();
        let (mut times, mut answers, mut calls) = (Vec::new(), 0, HashSet::new());
        for mut task in tasks {
            match timeout_at(began + PATIENCE, &mut task).await {
                Ok(Ok((at, result))) => {
                    times.push((at - began).as_secs_f64() * 1e3 - WORK.as_secs_f64() * 1e3);
                    match result {
                        Ok(call) => (answers, _) = (answers + 1, calls.insert(call)),
                        Err(_) => wave.errors += 1,
                    }
                }
                // It panicked.
                Ok(Err(_)) => wave.errors += 1,
                Err(_) => {
                    wave.stuck += 1;
                    task.abort();
                }
            }
        }
        times.sort_by(f64::total_cmp);
        wave.calls = self.origin.calls() - before;
        if self.origin.is_private() {
            wave.shared = answers - calls.len();
        }
        [wave.p50, wave.p99] = [50.0, 99.0].map(|percent| percentile(&times, percent));
        wave
    }
}
