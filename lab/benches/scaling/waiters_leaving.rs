//! What joining a crowd costs, and leaving it without the value: by hanging
//! up and by running out of patience.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, unconstrained};
use tower_stampede::{Error, ErrorKind, Stampede};

use crate::draw::{Chart, line, points};
use crate::report::{Figure, Part, Profile, Role, median};
use crate::waiters::{CROWDS, cache, statistic};

/// Nanoseconds for each of a crowd.
struct Row {
    crowd: f64,
    joins: f64,
    hangs_up: f64,
    times_out: f64,
}

pub(crate) fn measure(profile: Profile, part: &mut Part) {
    let mut rows = Vec::new();
    let mut not_refused = 0;
    for (crowd, quick, full) in CROWDS {
        let rounds = profile.pick(quick, full);
        let (mut joins, mut hangs_up): (Vec<_>, Vec<_>) =
            (0..rounds).map(|_| join_and_hang_up(crowd)).unzip();
        let timed_out = (0..rounds).map(|_| time_out(crowd));
        let (mut times_out, strays): (Vec<_>, Vec<_>) = timed_out.unzip();
        not_refused += strays.iter().sum::<usize>();
        rows.push(Row {
            crowd: crowd as f64,
            joins: median(&mut joins),
            hangs_up: median(&mut hangs_up),
            times_out: median(&mut times_out),
        });
    }
    let statistic = format!("{}, one thread", statistic(profile));
    say(part, &rows, not_refused, &statistic);
    draw(part, &rows);
}

/// A runtime of one thread whose time moves when it is told to, so that all
/// time-outs fall due at once and nothing else is measured.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime starts")
}

/// One leader that does not end by itself.
async fn lead(cache: &Stampede<u64>) -> JoinHandle<Result<u64, Error>> {
    let leader = tokio::spawn(ask(cache.clone()));
    while cache.stats().flights == 0 {
        tokio::task::yield_now().await;
    }
    leader
}

async fn ask(cache: Stampede<u64>) -> Result<u64, Error> {
    let compute = || async {
        std::future::pending::<()>().await;
        Ok::<_, std::fmt::Error>(7)
    };
    cache.get_or_compute(7, compute).await
}

type Asking = Pin<Box<dyn Future<Output = Result<u64, Error>>>>;

/// Nanoseconds to join and to hang up, for each of the crowd.
fn join_and_hang_up(crowd: usize) -> (f64, f64) {
    let cache = cache();
    runtime().block_on(async {
        let leader = lead(&cache).await;
        let mut callers: Vec<Asking> =
            (0..crowd).map(|_| Box::pin(ask(cache.clone())) as Asking).collect();
        let from = Instant::now();
        // Tokio would make a task that polls so many timers wait its turn.
        unconstrained(poll_fn(|_| {
            callers.iter_mut().for_each(begin);
            Poll::Ready(())
        }))
        .await;
        let joined = from.elapsed();
        assert_eq!(cache.stats().waiting, crowd, "all wait");
        let from = Instant::now();
        drop(callers);
        let left = from.elapsed();
        assert_eq!(cache.stats().waiting, 0, "no caller waits");
        leader.abort();
        (each(joined, crowd), each(left, crowd))
    })
}

fn begin(caller: &mut Asking) {
    let mut context = Context::from_waker(Waker::noop());
    assert!(caller.as_mut().poll(&mut context).is_pending(), "the leader does not end");
}

fn each(time: Duration, crowd: usize) -> f64 {
    time.as_secs_f64() * 1e9 / crowd as f64
}

/// Nanoseconds for each of the crowd until all have been refused, and how many
/// were not.
fn time_out(crowd: usize) -> (f64, usize) {
    let cache = cache();
    runtime().block_on(async {
        let leader = lead(&cache).await;
        let waiters: Vec<_> = (0..crowd).map(|_| tokio::spawn(ask(cache.clone()))).collect();
        while cache.stats().waiting < crowd {
            tokio::task::yield_now().await;
        }
        let from = Instant::now();
        tokio::time::advance(Duration::from_secs(61)).await;
        let mut strays = 0;
        for waiter in waiters {
            let answer = waiter.await.expect("a waiter does not panic");
            strays += usize::from(!is_time_out(&answer));
        }
        let took = from.elapsed();
        leader.abort();
        (each(took, crowd), strays)
    })
}

fn is_time_out(answer: &Result<u64, Error>) -> bool {
    matches!(answer, Err(error) if error.kind() == ErrorKind::WaitTimeout)
}

fn say(part: &mut Part, rows: &[Row], not_refused: usize, statistic: &str) {
    let with = |crowd: f64| rows.iter().find(|row| row.crowd == crowd).expect("it was measured");
    let (most, fewer) = (with(100_000.0), with(1_000.0));
    let mut say = |name: &str, says: &str, time: fn(&Row) -> f64| {
        let id = format!("scaling.waiter_{name}_ns");
        let all = format!("{says}, each of 100,000");
        part.figures.push(Figure::new(&id, &all, time(most), "ns", statistic));
        let id = format!("scaling.waiter_{name}_linearity");
        let growth = format!("{says}, each of 100,000 to each of 1,000");
        let figure = Figure::new(&id, &growth, time(most) / time(fewer), "", statistic);
        part.figures.push(figure.at_most(2.5));
    };
    say("join", "a caller joins those who wait", |row| row.joins);
    say("hang_up", "a caller that waits hangs up", |row| row.hangs_up);
    say("time_out", "a caller has waited too long and is refused", |row| row.times_out);
    let says = "callers that waited too long and were answered otherwise";
    let strays = not_refused as f64;
    let figure = Figure::new("scaling.waiters_not_refused", says, strays, "callers", "count");
    part.figures.push(figure.at_most(0.0).or_fail());
}

fn draw(part: &mut Part, rows: &[Row]) {
    let chart = Chart {
        id: "scaling.waiters_leaving",
        title: "Joining a crowd, and leaving it without the value",
        caption: "For each caller, on one thread: joining those who wait for one key, hanging up \
                  while waiting, and being refused after `wait_timeout`. Flat: no list is searched \
                  from its beginning.",
        x: ("waiters on one key", ""),
        y: ("per waiter", "ns"),
    };
    let of = |time: fn(&Row) -> f64| points(rows, |row| (row.crowd, time(row)));
    part.exhibits.push(chart.of(vec![
        line("joins", Role::Ours, of(|row| row.joins)),
        line("hangs up", Role::Ours, of(|row| row.hangs_up)),
        line("is refused after its time-out", Role::Ours, of(|row| row.times_out)),
    ]));
}
