//! Runs many seeds on all cores, and tells of each that breaks a rule.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::case::Case;
use crate::history::Violation;
use crate::shrink;
use crate::stage::{self, Outcome};

/// Of each rule, so many seeds are made small and shown with their history.
const SHOWN: usize = 2;

thread_local! {
    /// What has panicked on this thread, in tasks too, where the runtime catches it.
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static IS_NOTED: RefCell<bool> = const { RefCell::new(false) };
}

/// Runs a case, and counts a panic as the break of a rule.
pub(crate) fn run(case: &Case, is_written: bool) -> Outcome {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if IS_NOTED.with_borrow(|is_noted| *is_noted) {
                PANICS.with_borrow_mut(|panics| panics.push(panic.to_string()));
            } else {
                usual(panic);
            }
        }));
    });
    IS_NOTED.with_borrow_mut(|is_noted| *is_noted = true);
    let outcome = catch_unwind(AssertUnwindSafe(|| stage::run(case, is_written)));
    IS_NOTED.with_borrow_mut(|is_noted| *is_noted = false);
    let panics = PANICS.take();
    let mut outcome = outcome.unwrap_or_else(|_| Outcome::default());
    let rule = "the crate does not panic";
    let broken = panics.into_iter().map(|text| Violation { rule, text });
    outcome.violations.extend(broken);
    outcome
}

/// What the seeds have shown.
#[derive(Default)]
pub(crate) struct Survey {
    seeds: u64,
    computations: usize,
    took: Duration,
    rules: BTreeMap<&'static str, Vec<u64>>,
}

impl Survey {
    /// Runs `count` seeds from `first` on. With `is_verbose` it says meanwhile how far it is.
    pub(crate) fn of(first: u64, count: u64, is_verbose: bool) -> Self {
        let began = Instant::now();
        let (next, survey) = (AtomicU64::new(0), Mutex::new(Self::default()));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..cores {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= count {
                            return;
                        }
                        let outcome = Self::look_at(first.wrapping_add(number), &survey);
                        let mut survey = survey.lock();
                        survey.seeds += 1;
                        survey.computations += outcome;
                        if is_verbose && survey.seeds.is_multiple_of(10_000) {
                            let broken = survey.rules.len();
                            println!("{} seeds, {broken} rules broken", survey.seeds);
                        }
                    }
                });
            }
        });
        let mut survey = survey.into_inner();
        survey.took = began.elapsed();
        survey
    }

    fn look_at(seed: u64, survey: &Mutex<Self>) -> usize {
        let case = Case::generate(seed);
        let outcome = run(&case, false);
        let mut rules: Vec<_> = outcome.violations.iter().map(|broken| broken.rule).collect();
        rules.sort_unstable();
        rules.dedup();
        for rule in rules {
            let is_shown = {
                let mut survey = survey.lock();
                let seeds = survey.rules.entry(rule).or_default();
                seeds.push(seed);
                seeds.len() <= SHOWN
            };
            if is_shown {
                show(&case, rule);
            } else {
                println!("seed {seed}: {rule}");
            }
        }
        outcome.computations
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.rules.is_empty()
    }
}

/// Prints the smallest case that breaks the rule, and its history.
fn show(case: &Case, rule: &str) {
    let small = shrink::shrink(case, rule);
    let outcome = run(&small, true);
    let history = outcome.history.join("\n");
    println!("seed {} breaks: {rule}\n{small}{history}\n", case.seed);
}

/// Runs one seed and prints its case and its history, whether or not it breaks a rule.
pub(crate) fn tell(seed: u64) -> Outcome {
    let case = Case::generate(seed);
    let outcome = run(&case, true);
    println!("{case}{}", outcome.history.join("\n"));
    for broken in &outcome.violations {
        println!("seed {seed} breaks: {}: {}", broken.rule, broken.text);
    }
    outcome
}

impl fmt::Display for Survey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seeds, computations) = (self.seeds, self.computations);
        writeln!(f, "{seeds} seeds with {computations} values in {:.1?}", self.took)?;
        for (rule, seeds) in &self.rules {
            let some: Vec<_> = seeds.iter().take(10).map(u64::to_string).collect();
            writeln!(f, "{} seeds break: {rule}: {}", seeds.len(), some.join(" "))?;
        }
        Ok(())
    }
}
