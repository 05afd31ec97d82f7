//! What is printed of a run.

use std::fmt::Write as _;

use super::faults::{Episode, Fault};
use super::judge::{Part, Spread, Verdict, Violation};
use super::record::{Moment, Record};

/// An invalidation counts to a fault until so long after it: the processes find their way back.
const AFTERMATH: Moment = 3_000_000_000;

/// The upper ends of the histogram's parts, in milliseconds.
const ENDS: [u64; 13] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000];

/// How many violations are shown of each part of the rule.
const SHOWN: usize = 5;

/// All that is known after a run.
pub(crate) struct Findings {
    pub(crate) scenes: Vec<Scene>,
    pub(crate) seconds: f64,
}

/// What was seen at the servers of one scene.
pub(crate) struct Scene {
    pub(crate) records: Vec<Record>,
    pub(crate) episodes: Vec<Episode>,
    pub(crate) verdict: Verdict,
}

impl Scene {
    fn is_in_trouble(&self, spread: &Spread) -> bool {
        self.episodes.iter().any(|episode| is_during(episode, spread))
    }
}

impl Findings {
    fn records(&self) -> impl Iterator<Item = &Record> {
        self.scenes.iter().flat_map(|scene| &scene.records)
    }

    pub(crate) fn reads(&self) -> u64 {
        self.records().map(|record| record.reads).sum()
    }

    pub(crate) fn episodes(&self) -> impl Iterator<Item = &Episode> {
        self.scenes.iter().flat_map(|scene| &scene.episodes)
    }

    pub(crate) fn spreads(&self) -> impl Iterator<Item = &Spread> {
        self.scenes.iter().flat_map(|scene| &scene.verdict.spreads)
    }

    pub(crate) fn has_violations(&self) -> bool {
        self.scenes.iter().any(|scene| !scene.verdict.violations.is_empty())
    }

    /// Returns how many invalidations returned `Done`, and how many `Queued`.
    pub(crate) fn invalidations(&self) -> (usize, usize) {
        let all = || self.records().flat_map(|record| &record.invalidations);
        let done = all().filter(|invalidation| invalidation.is_done).count();
        (done, all().count() - done)
    }

    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text).expect("a string takes whatever is written");
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        self.write_counts(text)?;
        for part in Part::ALL {
            self.write_violations(part, text)?;
        }
        let taken = || self.scenes.iter().flat_map(|scene| &scene.verdict.taken_within);
        writeln!(
            text,
            "taken from Redis after `Done` of a tag, within the bound: {}, the last {} ms after it",
            taken().count(),
            millis(taken().copied().max().unwrap_or(0)),
        )?;
        let count = |is: fn(&&Spread) -> bool| self.spreads().filter(is).count();
        writeln!(
            text,
            "judged from when the processes were at one server: {}; of these not covered, as \
             no process was left to announce them: {}",
            count(|spread| spread.is_split),
            count(|spread| spread.is_uncovered),
        )?;
        self.write_times(text)
    }

    fn write_counts(&self, text: &mut String) -> std::fmt::Result {
        let sum = |of: fn(&Record) -> u64| self.records().map(of).sum::<u64>();
        let (done, queued) = self.invalidations();
        let (up, degraded) = (sum(|record| record.up_ms), sum(|record| record.degraded_ms));
        writeln!(
            text,
            "{} reads in {} processes in {:.0} s, {} computations, {} reads without a value\n\
             {done} invalidations returned `Done`, {queued} `Queued`; the processes reported `Up` \
             for {:.1} % of the time",
            self.reads(),
            self.records().count(),
            self.seconds,
            sum(|record| record.computations),
            sum(|record| record.failures),
            100.0 * up as f64 / (up + degraded).max(1) as f64,
        )?;
        match self.records().find_map(|record| record.first_failure.as_deref()) {
            Some(error) => writeln!(text, "the first read without a value: {error}"),
            None => Ok(()),
        }
    }

    fn write_times(&self, text: &mut String) -> std::fmt::Result {
        writeln!(text, "\nUntil all processes are consistent, by invalidation (`Done`), in ms:")?;
        writeln!(
            text,
            "{:>43} {:>7} {:>7} {:>7} {:>7} {:>8} {:>8}",
            "", "count", "p50", "p90", "p99", "max", "max Up"
        )?;
        let is_calm = |scene: &Scene, spread: &&Spread| !scene.is_in_trouble(spread);
        let of_scene = |scene| move |spread: &&Spread| is_calm(scene, spread);
        let calm: Vec<_> = self
            .scenes
            .iter()
            .flat_map(|scene| scene.verdict.spreads.iter().filter(of_scene(scene)))
            .collect();
        write_row(text, "no fault", &calm)?;
        for fault in Fault::ALL {
            let times = self.episodes().filter(|episode| episode.fault == fault).count();
            if times > 0 {
                write_row(text, &format!("{} (x{times})", fault.name()), &self.during(fault))?;
            }
        }
        let all: Vec<_> = self.spreads().collect();
        write_row(text, "all", &all)?;
        writeln!(text, "\nHistogram, all invalidations; beside it without faults:")?;
        let mut from = 0;
        for to in ENDS.into_iter().chain([u64::MAX]) {
            let is_in = |spread: &&&Spread| (from..to).contains(&(spread.until_all / 1_000_000));
            let counts = [&all, &calm].map(|spreads| spreads.iter().filter(is_in).count());
            let until = if to == u64::MAX { "and more".into() } else { format!("to {to} ms") };
            writeln!(text, "{from:>6} {until:<12} {:>8} {:>8}", counts[0], counts[1])?;
            from = to;
        }
        Ok(())
    }

    fn during(&self, fault: Fault) -> Vec<&Spread> {
        let of_scene = |scene: &'_ Scene, spread: &&Spread| {
            let mut episodes = scene.episodes.iter();
            episodes.any(|episode| episode.fault == fault && is_during(episode, spread))
        };
        let scenes = self.scenes.iter();
        scenes
            .flat_map(|scene| {
                scene.verdict.spreads.iter().filter(move |spread| of_scene(scene, spread))
            })
            .collect()
    }

    fn write_violations(&self, part: Part, text: &mut String) -> std::fmt::Result {
        let is_of_part = |found: &&Violation| found.part == part;
        let found: Vec<_> = self
            .scenes
            .iter()
            .flat_map(|scene| {
                let violations = scene.verdict.violations.iter().filter(is_of_part);
                violations.map(move |found| (scene, found))
            })
            .collect();
        writeln!(text, "violations, {}: {}", part.name(), found.len())?;
        for (scene, found) in found.into_iter().take(SHOWN) {
            let at = found.invalidation.returned;
            let near = scene.episodes.iter().rev().find(|episode| episode.from <= at);
            let near = near.map(|episode| {
                let since = millis(at - episode.from);
                format!(", {since} ms after the begin of: {}", episode.fault.name())
            });
            let number = |index: usize| scene.records[index].number;
            writeln!(
                text,
                "  key {} in process {}: {:?} by process {} (took {} ms) was served {} ms \
                 later; both were at one server after {} ms; the value is {} ms older than the \
                 call{}",
                found.key,
                number(found.process),
                found.invalidation.target,
                number(found.by),
                millis(at - found.invalidation.called),
                millis(found.after),
                millis(found.apart),
                millis(found.older),
                near.unwrap_or_default(),
            )?;
        }
        Ok(())
    }
}

fn is_during(episode: &Episode, spread: &Spread) -> bool {
    let called = spread.invalidation.called;
    // What is called a moment before a fault meets it as well.
    (episode.from..episode.to + AFTERMATH).contains(&spread.invalidation.returned)
        || (episode.from..episode.to).contains(&(called + AFTERMATH / 3))
}

fn write_row(text: &mut String, name: &str, spreads: &[&Spread]) -> std::fmt::Result {
    let mut times: Vec<_> = spreads.iter().map(|spread| spread.until_all).collect();
    times.sort_unstable();
    let max_up = spreads.iter().map(|spread| spread.until_all_up).max().unwrap_or(0);
    let at = |share: f64| {
        let index = (times.len().saturating_sub(1) as f64 * share).round() as usize;
        millis(times.get(index).copied().unwrap_or(0))
    };
    let count = times.len();
    let (p50, p90, p99, max, max_up) = (at(0.5), at(0.9), at(0.99), at(1.0), millis(max_up));
    writeln!(text, "{name:>43} {count:>7} {p50:>7} {p90:>7} {p99:>7} {max:>8} {max_up:>8}")
}

fn millis(nanos: Moment) -> String {
    format!("{:.1}", nanos as f64 / 1e6)
}
