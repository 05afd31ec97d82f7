//! Many clients for one thing that no process has yet.

use std::time::Duration;

use super::super::arrivals::Load;
use super::super::lab::{Lab, Run};
use super::super::origin::Work;
use super::super::report::{Figure, median};
use super::super::scenario::{Bounds, Found};
use super::time;

const CROWD: usize = 500;

/// A crowd of 500 without the layer takes it three seconds.
const WORK: Work = Work::new(50, 300);

/// Rounds of the cold herd, each with a floor of its own.
const ROUNDS: u64 = 9;

/// How long a response that says nothing is fresh: longer than a scenario.
const LONG: [&str; 2] = ["--ttl-ms", "600000"];

fn crowd(key: u64) -> Load {
    Load::herd(std::iter::repeat_n(key, CROWD))
}

/// The cold herd, again and again on another key. The report shows the round
/// with the most calls, or the one in the middle of the times.
pub(crate) async fn cold_herd(lab: &Lab) -> Found {
    let origin = lab.origin(&WORK);
    let front = lab.front(0, &origin, &LONG);
    // The first crowd of a process pays for its memory; here as there.
    lab.floor(&crowd(0)).await;
    let (mut rounds, mut ratios, mut floors) = (Vec::new(), Vec::new(), Vec::new());
    for key in 1..=ROUNDS {
        let floor = lab.floor(&crowd(key)).await.percentile(99.0);
        let run = lab.play(&[&front], &origin, &crowd(key)).await;
        let least = WORK.takes.as_secs_f64() * 1000.0 + floor;
        ratios.push(run.tally.percentile(99.0) / least);
        floors.push(floor);
        rounds.push(run);
    }
    let ours = shown(rounds);
    let bounds = Bounds::calls(1..=1);
    let name = ("cold_herd", "500 clients at once for something cold");
    let found = Found::new(lab, name, (&crowd(0), &WORK), ours, bounds).await;
    let statistic = format!("median of {ROUNDS} paired rounds");
    let ratio = Figure::new(
        "load.cold_herd.ratio",
        "500 connections at once, origin of 300 ms: p99 to the origin's time and the p99 of as \
         many connections answered without work",
        median(&mut ratios),
        "",
        &statistic,
    );
    let floor = Figure::new(
        "load.cold_herd.floor_p99_ms",
        "500 connections at once, answered without work: 99th percentile",
        median(&mut floors),
        "ms",
        &statistic,
    );
    found
        .figure(ratio.at_most(1.05))
        .figure(floor)
        .story("500 clients connect and ask for the same thing at the same moment.")
        .charts()
}

/// The worst in its counts, else the one in the middle by its times.
fn shown(mut rounds: Vec<Run>) -> Run {
    let by_p99 = |a: &Run, b: &Run| a.tally.percentile(99.0).total_cmp(&b.tally.percentile(99.0));
    rounds.sort_by(by_p99);
    let is_bad = |run: &Run| (run.tally.stuck, run.tally.errors, run.calls.len());
    let is_good = |run: &Run| is_bad(run) == (0, 0, 1);
    let at = rounds.iter().position(|run| !is_good(run)).unwrap_or(rounds.len() / 2);
    rounds.swap_remove(at)
}

/// Every client that comes in the meantime waits for the one answer.
pub(crate) async fn slow_origin(lab: &Lab) -> Found {
    let slow = Work::new(16, lab.profile.pick(1500, 7000));
    let patience = slow.takes + Duration::from_millis(500);
    let load = Load::steady(100.0, time(lab), |_| 0).deadline(patience);
    let origin = lab.origin(&slow);
    // It takes many leases, and the lead is kept.
    let flags = [&LONG[..], &["--lease-ms", "500"]].concat();
    let front = lab.front(0, &origin, &flags);
    let ours = lab.play(&[&front], &origin, &load).await;
    let name = ("slow_origin", "an origin that takes seconds");
    let found = Found::new(lab, name, (&load, &slow), ours, Bounds::calls(1..=1)).await;
    found.story("100 requests a second for one thing that is cold at first.")
}

/// The first client, whose request it is that the others wait for, is one of
/// those that leave.
pub(crate) async fn hang_ups(lab: &Lab) -> Found {
    let load = crowd(0).three_of_ten_leave_after(Duration::from_millis(100));
    let origin = lab.origin(&WORK);
    let front = lab.front(0, &origin, &LONG);
    let ours = lab.play(&[&front], &origin, &load).await;
    let name = ("hang_ups", "30 of 100 clients hang up");
    let hung_up = ours.tally.hung_up;
    let found = Found::new(lab, name, (&load, &WORK), ours, Bounds::calls(1..=1)).await;
    let left = Figure::new(
        "load.hang_ups.left",
        "clients that left before they had an answer, the first among them",
        hung_up as f64,
        "requests",
        "count of one run",
    );
    found
        .figure(left.at_least(CROWD as f64 * 0.3).at_most(CROWD as f64 * 0.3).or_fail())
        .story("500 clients ask at once; three of ten, the first among them, leave after 100 ms.")
}

/// Each request is its own, in parallel: no client queues for an answer that
/// may not be shared.
pub(crate) async fn uncacheable(lab: &Lab) -> Found {
    let work = Work::new(64, 100).saying("private");
    let load = Load::steady(200.0, time(lab), |_| 0);
    let origin = lab.origin(&work);
    let front = lab.front(0, &origin, &LONG);
    let ours = lab.play(&[&front], &origin, &load).await;
    let requests = load.requests();
    let name = ("uncacheable", "answers that may not be shared");
    let bounds = Bounds::calls(requests..=requests);
    let found = Found::new(lab, name, (&load, &work), ours, bounds).await;
    found.story("200 requests a second for something that the origin calls private.")
}
