//! Hits on one thread, and on all cores.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::draw::{Chart, line, points};
use crate::report::{Figure, Part, Profile, Role, Series};
use crate::subjects::{self, Pair, Reads, paired, slice};

struct Row {
    threads: f64,
    hit: Pair,
}

pub(crate) fn measure(profile: Profile, part: &mut Part) {
    let mut series = Vec::new();
    for (keys, named) in [(1, "1 key"), (10_000, "10,000 keys")] {
        let rows: Vec<_> = counts().iter().map(|threads| row(profile, keys, *threads)).collect();
        say(part, &rows, keys, named);
        series.extend(lines(&rows, named));
    }
    let chart = Chart {
        id: "scaling.threads",
        title: "Hits in memory on more threads",
        caption: "Hits of all threads together in a second, each thread reading as fast as it \
                  can. On one key all of them share the counters of one entry, moka's readers as well \
                  as ours.",
        x: ("threads", ""),
        y: ("hits per second", "1/s"),
    };
    part.exhibits.push(chart.of(series));
}

/// The powers of two below the number of cores, and that number.
fn counts() -> Vec<usize> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let powers = std::iter::successors(Some(1), |count| Some(count * 2));
    powers.take_while(|count| *count < cores).chain([cores]).collect()
}

fn row(profile: Profile, keys: u64, threads: usize) -> Row {
    let value = Bytes::from_static(&[b'x'; 1024]);
    let (ours, moka) = (subjects::ours(keys, &value), subjects::moka(keys, &value));
    let (slices, times) = (profile.pick(9, 31), profile.pick(50_000, 200_000));
    let ours = |turn| at_once(&ours, threads, keys, times, turn);
    let moka = |turn| at_once(&moka, threads, keys, times, turn);
    Row { threads: threads as f64, hit: paired(slices, times, ours, moka) }
}

/// From when the first thread begins, which waits for all to be there, until the
/// last one has read so often. Their own clocks: who starts them may get a core
/// only when they have long begun.
fn at_once<S: Reads>(subject: &S, threads: usize, keys: u64, times: u64, turn: u64) -> Duration {
    let barrier = Barrier::new(threads);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..threads as u64)
            .map(|reader| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    let from = Instant::now();
                    slice(subject, keys, times, turn + reader);
                    (from, Instant::now())
                })
            })
            .collect();
        let spans: Vec<_> =
            readers.into_iter().map(|reader| reader.join().expect("no reader panics")).collect();
        let first = spans.iter().map(|(from, _)| from).min().expect("there is a reader");
        let last = spans.iter().map(|(_, to)| to).max().expect("there is a reader");
        last.saturating_duration_since(*first)
    })
}

/// What all threads together read in a second.
fn rate(row: &Row, each: f64) -> f64 {
    row.threads * 1e9 / each
}

fn say(part: &mut Part, rows: &[Row], keys: u64, named: &str) {
    let last = &rows[rows.len() - 1];
    let threads = last.threads;
    let slices = "median of paired slices";
    let id = format!("scaling.threads_{keys}_keys_to_moka");
    let says = format!("our hit to moka's get, {named}, {threads} threads");
    part.figures.push(Figure::new(&id, &says, last.hit.ratio, "", slices).at_most(0.5));
    let id = format!("scaling.threads_{keys}_keys_hits_per_second");
    let says = format!("hits of all threads together, {named}, {threads} threads");
    part.figures.push(Figure::new(&id, &says, rate(last, last.hit.ours), "1/s", slices));
}

fn lines(rows: &[Row], named: &str) -> [Series; 2] {
    let of = |each: fn(&Pair) -> f64| points(rows, |row| (row.threads, rate(row, each(&row.hit))));
    [
        line(&format!("get_or_compute, {named}"), Role::Ours, of(|pair| pair.ours)),
        line(&format!("moka get, {named}"), Role::Without, of(|pair| pair.moka)),
    ]
}
