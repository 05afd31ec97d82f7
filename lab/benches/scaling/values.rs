//! From a hundred bytes to ten mebibytes.

use bytes::Bytes;

use crate::client::{Done, Fleet, Task};
use crate::draw::{Chart, line, points};
use crate::redis_support::Server;
use crate::report::{Figure, Part, Profile, Role, median};
use crate::subjects::{self, Pair, paired, slice};

const SIZES: [usize; 6] = [100, 1 << 10, 10 << 10, 100 << 10, 1 << 20, 10 << 20];

pub(crate) fn in_memory(profile: Profile, part: &mut Part) {
    let rows: Vec<_> = SIZES.iter().map(|bytes| (*bytes as f64, hit(profile, *bytes))).collect();
    let growth = rows[rows.len() - 1].1.ours / rows[0].1.ours;
    let says = "a hit in memory, 10 MiB to 100 B";
    let statistic = format!("ratio of medians of {} slices each", slices(profile));
    let figure = Figure::new("scaling.value_size_hit_growth", says, growth, "", &statistic);
    part.figures.push(figure.at_most(1.3));
    let chart = Chart {
        id: "scaling.values_in_memory",
        title: "A hit in memory, from 100 B to 10 MiB",
        caption: "A line that is flat is a value that is handed on and not copied.",
        x: ("size of the value", "bytes"),
        y: ("per hit", "ns"),
    };
    part.exhibits.push(chart.of(vec![
        line("get_or_compute", Role::Ours, points(&rows, |(size, pair)| (*size, pair.ours))),
        line("moka get", Role::Without, points(&rows, |(size, pair)| (*size, pair.moka))),
    ]));
}

fn slices(profile: Profile) -> u64 {
    profile.pick(9, 31)
}

fn hit(profile: Profile, bytes: usize) -> Pair {
    let value = Bytes::from(vec![b'x'; bytes]);
    let (ours, moka) = (subjects::ours(1, &value), subjects::moka(1, &value));
    let (slices, times) = (slices(profile), 50_000);
    paired(slices, times, |turn| slice(&ours, 1, times, turn), |turn| slice(&moka, 1, times, turn))
}

/// Medians in µs of values of one size.
struct Row {
    bytes: f64,
    fill_to_waiter: f64,
    remote_hit: f64,
}

pub(crate) fn through_redis(profile: Profile, server: &Server, part: &mut Part) {
    let mut fleet = Fleet::on(server.url());
    fleet.grow_to(2);
    let mut all = Vec::new();
    let rows: Vec<_> =
        SIZES.iter().map(|bytes| row(profile, &mut fleet, *bytes, &mut all)).collect();
    say(part, &rows, &all);
    let chart = Chart {
        id: "scaling.values",
        title: "Through Redis, from 100 B to 10 MiB",
        caption: "Two processes and one Redis on one machine. From the end of the leader's \
                  computation until the other process, which waits, has the value; and a look at \
                  a value that the other process has computed. From some hundred KiB on the bytes \
                  themselves are what takes time.",
        x: ("size of the value", "bytes"),
        y: ("time", "µs"),
    };
    part.exhibits.push(chart.of(vec![
        line("fill to waiter", Role::Ours, points(&rows, |row| (row.bytes, row.fill_to_waiter))),
        line("hit in Redis", Role::Ours, points(&rows, |row| (row.bytes, row.remote_hit))),
    ]));
}

fn row(profile: Profile, fleet: &mut Fleet, bytes: usize, all: &mut Vec<Done>) -> Row {
    // The figure that others reckon with deserves more samples.
    let rounds = if bytes == 1 << 10 { profile.pick(50, 300) } else { profile.pick(9, 50) };
    let (mut waits, mut looks) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let ask = |what: &str, hold_ms| {
            let keys = vec![format!("{what}-{bytes}-{round}")];
            Task::Ask { keys, hold_ms, bytes }
        };
        let done = fleet.all(&ask("wait", 20));
        waits.push(last_after_fill(&done) / 1e3);
        let (first, then) = (fleet.first(&ask("look", 0)), fleet.others(&ask("look", 0)));
        looks.push(then[0].took_ns as f64 / 1e3);
        all.extend(done.into_iter().chain([first]).chain(then));
    }
    let bytes = bytes as f64;
    Row { bytes, fill_to_waiter: median(&mut waits), remote_hit: median(&mut looks) }
}

/// Nanoseconds from the end of the one computation until all have the value.
pub(crate) fn last_after_fill(done: &[Done]) -> f64 {
    let filled = done.iter().map(|done| done.filled_at).max().unwrap_or_default();
    let had = done.iter().map(|done| done.had_at).max().unwrap_or_default();
    had.saturating_sub(filled) as f64
}

fn say(part: &mut Part, rows: &[Row], all: &[Done]) {
    let small = rows.iter().find(|row| row.bytes == 1024.0).expect("1 KiB was measured");
    let says = "from the leader's fill to 1 KiB in one other process";
    let figure =
        Figure::new("scaling.fill_to_waiter_us", says, small.fill_to_waiter, "µs", "median");
    part.figures.push(figure.at_most(500.0));
    let says = "a hit of 1 KiB in Redis, from the question to the answer";
    part.figures.push(Figure::new("scaling.remote_hit_us", says, small.remote_hit, "µs", "median"));
    let errors: u64 = all.iter().map(|done| done.errors).sum();
    let says = "requests without a value, all sizes";
    let figure = Figure::new("scaling.value_size_errors", says, errors as f64, "requests", "count");
    part.figures.push(figure.at_most(0.0).or_fail());
    // Each key was computed by one of the two.
    let calls: u64 = all.iter().map(|done| done.computed).sum();
    let keys = all.len() as f64 / 2.0;
    let says = "computations for each key that two processes ask for, all sizes";
    let figure =
        Figure::new("scaling.value_size_origin_calls", says, calls as f64 / keys, "calls", "mean");
    part.figures.push(figure.at_least(1.0).at_most(1.0).or_fail());
}
