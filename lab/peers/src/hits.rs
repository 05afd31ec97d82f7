//! What a hit in memory costs, beside the least that it could cost: in turn,
//! within one process, so that a drift of the machine's speed hits both.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;

use crate::origin::{Origin, Script};
use crate::peers::{Peer, Start};
use crate::report::median;
use crate::subject::Subject;

pub(crate) const SLICES: usize = 15;
pub(crate) const SINGLE_HITS: usize = 2001;
pub(crate) const TASKS: u64 = 64;
pub(crate) const KEYS: u64 = 10_000;

/// How long a slice takes at the peer, more or less.
const SLICE: Duration = Duration::from_millis(10);

/// Medians of paired slices.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Hits {
    pub(crate) one_task: Cost,
    /// Time that passes, for each hit of all tasks.
    pub(crate) many_tasks: Cost,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Cost {
    pub(crate) ns: f64,
    pub(crate) reference_ns: f64,
    pub(crate) ratio: f64,
}

pub(crate) fn measure(peer: &Peer) -> Hits {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    let reference = peer.kind.reference().start;
    Hits {
        one_task: pair(peer, [start(&runtime, reference, 1), start(&runtime, peer.start, 1)], {
            |subject, times| one_task(&runtime, subject, times)
        }),
        many_tasks: pair(
            peer,
            [start(&runtime, reference, KEYS), start(&runtime, peer.start, KEYS)],
            |subject, times| many_tasks(&runtime, subject, times),
        ),
    }
}

/// What it allocates in one hit, by a counter of all allocations. Each hit is
/// counted alone: what a cache does now and then for all of its entries, as
/// moka does, is in a mean and not in the median.
pub(crate) fn allocations(peer: &Peer, count: impl Fn() -> usize) -> f64 {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    let filled = start(&runtime, peer.start, 1);
    let of = |keys: &[u64]| {
        let hits = filled.subject.hits(keys);
        let before = count();
        runtime.block_on(hits);
        count() - before
    };
    let mut single: Vec<f64> = (0..SINGLE_HITS).map(|_| of(&[0]) as f64).collect();
    assert_eq!(of(&[]), 0, "asking for nothing allocates nothing");
    filled.check(peer);
    median(&mut single)
}

/// With some keys in memory.
struct FillOutcome {
    subject: Arc<dyn Subject>,
    origin: Origin,
    calls: usize,
}

fn start(runtime: &Runtime, start: Start, keys: u64) -> FillOutcome {
    let origin = Origin::new(Script::AtOnce);
    let subject = runtime.block_on(async {
        let subject = start(origin.clone()).await;
        fill(&*subject, keys).await;
        // Some store on a task of their own, after they have answered.
        sleep(Duration::from_millis(100)).await;
        fill(&*subject, keys).await;
        subject
    });
    FillOutcome { subject, calls: origin.calls(), origin }
}

async fn fill(subject: &dyn Subject, keys: u64) {
    for key in 0..keys {
        subject.ask(key).await.expect("the origin answers");
    }
}

impl FillOutcome {
    /// Otherwise it is something else that was measured.
    fn check(&self, peer: &Peer) {
        let is_bare = peer.id == "bare";
        assert!(is_bare || self.origin.calls() == self.calls, "{}: not all were hits", peer.name);
    }
}

fn pair(
    peer: &Peer,
    [reference, filled]: [FillOutcome; 2],
    slice: impl Fn(&Arc<dyn Subject>, usize) -> Duration,
) -> Cost {
    const TRIAL: usize = 1000;
    let trial = slice(&filled.subject, TRIAL).as_secs_f64() / TRIAL as f64;
    let times = (SLICE.as_secs_f64() / trial) as usize;
    let times = times.clamp(200, 20_000);
    let (mut ns, mut reference_ns, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..SLICES {
        let of_reference = slice(&reference.subject, times).as_secs_f64() * 1e9 / times as f64;
        let of_peer = slice(&filled.subject, times).as_secs_f64() * 1e9 / times as f64;
        reference_ns.push(of_reference);
        ns.push(of_peer);
        ratios.push(of_peer / of_reference);
    }
    filled.check(peer);
    Cost {
        ns: median(&mut ns),
        reference_ns: median(&mut reference_ns),
        ratio: median(&mut ratios),
    }
}

fn one_task(runtime: &Runtime, subject: &Arc<dyn Subject>, times: usize) -> Duration {
    let hits = subject.hits(&vec![0; times]);
    let from = Instant::now();
    runtime.block_on(hits);
    from.elapsed()
}

/// Each task walks over all keys, not in their order, from a place of its own.
fn many_tasks(runtime: &Runtime, subject: &Arc<dyn Subject>, times: usize) -> Duration {
    let each = times.div_ceil(TASKS as usize) as u64;
    let keys = |task: u64| (0..each).map(move |n| (task * 157 + n) * 7919 % KEYS);
    let hits: Vec<_> =
        (0..TASKS).map(|task| subject.hits(&keys(task).collect::<Vec<_>>())).collect();
    runtime.block_on(async {
        let from = Instant::now();
        let tasks: Vec<_> = hits.into_iter().map(tokio::spawn).collect();
        for task in tasks {
            task.await.expect("a hit does not panic");
        }
        from.elapsed()
    })
}
