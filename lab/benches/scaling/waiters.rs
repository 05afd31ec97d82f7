//! Many callers wait for one key in one process.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use stats_alloc::Region;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tower_stampede::Stampede;

use crate::ALLOCATOR;
use crate::draw::{Chart, line, points};
use crate::report::{Figure, Part, Profile, Role, median};

/// How many wait, and how often that is repeated in each profile.
pub(crate) const CROWDS: [(usize, usize, usize); 5] =
    [(10, 50, 400), (100, 30, 200), (1_000, 9, 60), (10_000, 9, 15), (100_000, 9, 9)];

/// A cache that all of a crowd may wait at.
pub(crate) fn cache() -> Stampede<u64> {
    let builder = Stampede::builder("waiters").ttl(Duration::from_secs(3600)).jitter(0.0);
    let builder = builder.max_waiters(200_000).compute_timeout(Duration::from_secs(3600));
    builder.wait_timeout(Duration::from_secs(60)).build().expect("the settings are good")
}

/// One fill, and when its waiters had the value.
struct Round {
    bytes: f64,
    first: f64,
    middle: f64,
    last: f64,
}

/// The medians of all rounds with a crowd of one size.
struct Row {
    crowd: f64,
    round: Round,
}

pub(crate) fn measure(profile: Profile, part: &mut Part) {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(workers).enable_all().build().expect("a runtime starts");
    let cache = cache();
    let (mut ours, mut bare, mut to_notify, mut fills) = (Vec::new(), Vec::new(), 0.0, 0);
    for (crowd, quick, full) in CROWDS {
        let rounds = profile.pick(quick, full);
        // In turn, so that a drift of the machine's speed hits both.
        let (mut our_rounds, mut bare_rounds) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            our_rounds.push(our_round(&runtime, &cache, fills, crowd));
            bare_rounds.push(bare_round(&runtime, crowd));
            fills += 1;
        }
        // Of the last crowd, which is the largest.
        let pairs = our_rounds.iter().zip(&bare_rounds);
        to_notify =
            median(&mut pairs.map(|(ours, bare)| ours.last / bare.last).collect::<Vec<_>>());
        ours.push(Row { crowd: crowd as f64, round: middle_of(&our_rounds) });
        bare.push(Row { crowd: crowd as f64, round: middle_of(&bare_rounds) });
    }
    let calls = cache.stats().computations as f64 / fills as f64;
    say(part, &ours, &bare, calls, &statistic(profile));
    let says = "until the last of 100,000 waiters has the value, to tokio's Notify alone";
    let rounds = format!("median of {} paired rounds", profile.pick(CROWDS[4].1, CROWDS[4].2));
    let figure = Figure::new("scaling.waking_100000_to_notify", says, to_notify, "", &rounds);
    part.figures.push(figure.at_most(1.2));
    draw(part, &ours, &bare);
}

fn our_round(runtime: &Runtime, cache: &Stampede<u64>, key: u64, crowd: usize) -> Round {
    runtime.block_on(async {
        let fill = Fill::default();
        let leader = tokio::spawn(lead(cache.clone(), key, fill.clone()));
        fill.begun.notified().await;
        let region = Region::new(ALLOCATOR);
        let waiters: Vec<_> = (0..crowd).map(|_| tokio::spawn(wait(cache.clone(), key))).collect();
        while cache.stats().waiting < crowd {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let bytes = live(&region);
        fill.go.notify_one();
        leader.await.expect("the leader does not panic");
        let filled = *fill.ended.get().expect("the computation has ended");
        collect(waiters, filled, bytes).await
    })
}

/// A computation that begins, waits until it is told to end, and notes when.
#[derive(Clone, Default)]
struct Fill {
    begun: Arc<Notify>,
    go: Arc<Notify>,
    ended: Arc<OnceLock<Instant>>,
}

async fn lead(cache: Stampede<u64>, key: u64, fill: Fill) {
    let compute = move || async move {
        fill.begun.notify_one();
        fill.go.notified().await;
        let _ = fill.ended.set(Instant::now());
        Ok::<_, std::fmt::Error>(key)
    };
    cache.get_or_compute(key, compute).await.expect("the leader fills");
}

async fn wait(cache: Stampede<u64>, key: u64) -> Instant {
    // It joins the leader, and computes nothing.
    let compute = || async { Err::<u64, _>(std::fmt::Error) };
    let value = cache.get_or_compute(key, compute).await.expect("the leader fills");
    let now = Instant::now();
    assert_eq!(value, key);
    now
}

/// The same crowd on tokio's own list of waiters: what waking so many tasks
/// costs without a cache.
fn bare_round(runtime: &Runtime, crowd: usize) -> Round {
    runtime.block_on(async {
        let notify = Arc::new(Notify::new());
        let waiting = Arc::new(tokio::sync::Semaphore::new(0));
        let region = Region::new(ALLOCATOR);
        let waiters: Vec<_> = (0..crowd)
            .map(|_| {
                let (notify, waiting) = (Arc::clone(&notify), Arc::clone(&waiting));
                tokio::spawn(async move {
                    let mut woken = std::pin::pin!(notify.notified());
                    woken.as_mut().enable();
                    waiting.add_permits(1);
                    woken.await;
                    Instant::now()
                })
            })
            .collect();
        while waiting.available_permits() < crowd {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let bytes = live(&region);
        let filled = Instant::now();
        notify.notify_waiters();
        collect(waiters, filled, bytes).await
    })
}

fn live(region: &Region<'_, std::alloc::System>) -> f64 {
    let change = region.change();
    change.bytes_allocated as f64 - change.bytes_deallocated as f64
}

async fn collect(waiters: Vec<JoinHandle<Instant>>, filled: Instant, bytes: f64) -> Round {
    let mut delays = Vec::with_capacity(waiters.len());
    for waiter in waiters {
        let had = waiter.await.expect("a waiter does not panic");
        delays.push(had.saturating_duration_since(filled).as_secs_f64() * 1e3);
    }
    delays.sort_by(f64::total_cmp);
    let each = bytes / delays.len() as f64;
    let last = delays[delays.len() - 1];
    Round { bytes: each, first: delays[0], middle: delays[delays.len() / 2], last }
}

fn middle_of(rounds: &[Round]) -> Round {
    let of = |part: fn(&Round) -> f64| median(&mut rounds.iter().map(part).collect::<Vec<_>>());
    Round {
        bytes: of(|round| round.bytes),
        first: of(|round| round.first),
        middle: of(|round| round.middle),
        last: of(|round| round.last),
    }
}

/// Nanoseconds for each of the crowd until the last one has the value.
fn each(row: &Row) -> f64 {
    row.round.last * 1e6 / row.crowd
}

fn with(rows: &[Row], crowd: usize) -> &Row {
    rows.iter().find(|row| row.crowd == crowd as f64).expect("crowds of this size were measured")
}

fn growth(rows: &[Row]) -> f64 {
    each(with(rows, 100_000)) / each(with(rows, 1_000))
}

/// How many rounds there are of the crowd with the fewest.
pub(crate) fn statistic(profile: Profile) -> String {
    let rounds = CROWDS.iter().map(|&(_, quick, full)| profile.pick(quick, full));
    format!("median of {} rounds or more", rounds.min().unwrap_or_default())
}

fn say(part: &mut Part, ours: &[Row], bare: &[Row], calls: f64, median: &str) {
    let figure = |id: &str, says: &str, value, unit| {
        Figure::new(&format!("scaling.{id}"), says, value, unit, median)
    };
    let linearity = "time per waiter until the last one has the value, 100,000 waiters to 1,000";
    let most = with(ours, 100_000);
    let figures = [
        figure("waiters_linearity", linearity, growth(ours), "").at_most(2.5),
        figure("waiters_linearity_of_tokio", "the same of tokio's Notify", growth(bare), ""),
        figure(
            "wake_per_waiter_ns",
            "what each of 1,000 waiters adds until the last one has the value",
            each(with(ours, 1_000)),
            "ns",
        ),
        figure(
            "waiters_100000_last_ms",
            "from the fill until the last of 100,000 waiters has the value",
            most.round.last,
            "ms",
        ),
        figure(
            "waiter_bytes",
            "memory of a waiter among 100,000, its task included",
            most.round.bytes,
            "bytes",
        )
        .at_most(1000.0),
        Figure::new(
            "scaling.waiters_origin_calls",
            "computations for each crowd that waits for one key",
            calls,
            "calls",
            "mean of all rounds",
        )
        .at_least(1.0)
        .at_most(1.0)
        .or_fail(),
    ];
    part.figures.extend(figures);
}

fn draw(part: &mut Part, ours: &[Row], bare: &[Row]) {
    let chart = Chart {
        id: "scaling.waiters",
        title: "From the fill to the waiters of one key",
        caption: "So many tasks of one process wait for one key. The leader's computation ends, \
                  and then the first, the middle and the last of them have the value. A straight \
                  line to the upper right is a cost in proportion; beside ours is what tokio \
                  needs to wake as many tasks without a cache.",
        x: ("waiters on one key", ""),
        y: ("after the fill", "ms"),
    };
    let of = |rows: &[Row], time: fn(&Round) -> f64| {
        points(rows, |row| (row.crowd, time(&row.round).max(1e-4)))
    };
    part.exhibits.push(chart.of(vec![
        line("the first has it", Role::Ours, of(ours, |round| round.first)),
        line("the middle one", Role::Ours, of(ours, |round| round.middle)),
        line("the last", Role::Ours, of(ours, |round| round.last)),
        line("the last, tokio's Notify alone", Role::Without, of(bare, |round| round.last)),
    ]));
    let chart = Chart {
        id: "scaling.waiters_memory",
        title: "Memory of one waiter",
        caption: "Bytes on the heap for each waiting task, with everything it holds. Flat: no waiter \
                  pays for the others. Beside it a bare task that waits on tokio's Notify.",
        x: ("waiters on one key", ""),
        y: ("bytes per waiter", "bytes"),
    };
    part.exhibits.push(chart.of(vec![
        line("a caller that waits", Role::Ours, of(ours, |round| round.bytes)),
        line("a bare task", Role::Without, of(bare, |round| round.bytes)),
    ]));
}
