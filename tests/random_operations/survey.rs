//! Runs many cases, and tells of each rule that breaks: how often, from which
//! seed on, and by which operations.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::case::{Case, Without};
use crate::record::Violation;
use crate::{panics, shrink, stage};

/// A case that takes longer is stuck: user code was called under a lock.
const STUCK_AFTER: Duration = Duration::from_secs(30);

const THREAD: &str = "random operations";

/// What is to be run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    first: u64,
    cases: u64,
    without: Without,
    unchecked: BTreeSet<String>,
    shows_progress: bool,
}

impl Plan {
    /// Reads the variables that `scripts/random_operations` sets.
    pub(crate) fn from_environment(in_suite: u64) -> Self {
        let variable = |name| std::env::var(name).ok();
        let number = |name| {
            let text: String = variable(name)?;
            Some(text.parse().unwrap_or_else(|_| panic!("`{name}` is no whole number: {text}")))
        };
        let cases = number("RANDOM_OPERATIONS_CASES");
        let unchecked = variable("RANDOM_OPERATIONS_UNCHECKED").unwrap_or_default();
        Self {
            first: number("RANDOM_OPERATIONS_SEED").unwrap_or(1),
            cases: cases.unwrap_or(in_suite),
            without: Without::named(&variable("RANDOM_OPERATIONS_WITHOUT").unwrap_or_default()),
            unchecked: unchecked.split(';').map(|rule| rule.trim().to_owned()).collect(),
            shows_progress: cases.is_some(),
        }
    }

    /// The case of one seed.
    pub(crate) fn of_one(seed: u64) -> Self {
        Self { first: seed, cases: 1, ..Self::default() }
    }

    /// Runs the cases on a thread of their own, which may get stuck.
    pub(crate) fn run(self) -> Survey {
        panics::note_those_of(THREAD);
        let shared = Arc::new(Shared { plan: self, ..Shared::default() });
        let running = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(THREAD.into());
        // Keeps on when it is stuck; the process ends it.
        drop(thread.spawn(move || running.run()).expect("a thread starts"));
        shared.watch();
        let mut survey = shared.survey.lock().unwrap();
        std::mem::take(&mut *survey)
    }
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            first: 1,
            cases: 0,
            without: Without::default(),
            unchecked: BTreeSet::new(),
            shows_progress: false,
        }
    }
}

#[derive(Default)]
struct Shared {
    plan: Plan,
    survey: Mutex<Survey>,
    /// The seed that runs now, and how many runs there were.
    seed: AtomicU64,
    runs: AtomicU64,
    is_over: AtomicBool,
}

impl Shared {
    fn run(&self) {
        let begun = Instant::now();
        let mut told = begun;
        let seeds = self.plan.first..self.plan.first.saturating_add(self.plan.cases);
        for seed in seeds {
            self.seed.store(seed, SeqCst);
            self.begins();
            let case = Case::generate(seed, &self.plan.without);
            let outcome = stage::run(&case, false);
            let broken = self.broken(outcome.violations);
            for violation in broken {
                self.break_rule(&case, violation);
            }
            let mut survey = self.survey.lock().unwrap();
            survey.cases += 1;
            survey.computations += outcome.computations as u64;
            survey.took = begun.elapsed();
            if self.plan.shows_progress && told.elapsed() > Duration::from_secs(5) {
                told = Instant::now();
                println!("seed {seed}: {}", survey.summary());
            }
        }
        self.is_over.store(true, SeqCst);
    }

    fn begins(&self) {
        self.runs.fetch_add(1, SeqCst);
    }

    /// Returns the first violation of each rule that is checked.
    fn broken(&self, violations: Vec<Violation>) -> Vec<Violation> {
        let mut rules = BTreeSet::new();
        let is_new = |violation: &Violation| {
            !self.plan.unchecked.contains(violation.rule) && rules.insert(violation.rule)
        };
        violations.into_iter().filter(is_new).collect()
    }

    fn break_rule(&self, case: &Case, violation: Violation) {
        let rule = violation.rule;
        if let Some(broken) = self.survey.lock().unwrap().broken.get_mut(rule) {
            broken.count += 1;
            return;
        }
        let small = shrink::shrink(case, rule, || self.begins());
        let history = stage::run(&small, true).history;
        let broken = Broken { seed: case.seed, count: 1, violation, small, history };
        if self.plan.shows_progress {
            println!("seed {}: {rule}", case.seed);
        }
        self.survey.lock().unwrap().broken.insert(rule, broken);
    }

    /// Returns when the cases are over, or one is stuck.
    fn watch(&self) {
        let (mut runs, mut since) = (0, Instant::now());
        while !self.is_over.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(50));
            let now = self.runs.load(SeqCst);
            if now != runs {
                (runs, since) = (now, Instant::now());
            } else if since.elapsed() > STUCK_AFTER {
                let seed = self.seed.load(SeqCst);
                let case = Case::generate(seed, &self.plan.without);
                let mut survey = self.survey.lock().unwrap();
                survey.stuck = Some(case);
                return;
            }
        }
    }
}

/// A rule that was broken.
#[derive(Debug)]
struct Broken {
    seed: u64,
    count: u64,
    violation: Violation,
    small: Case,
    history: Vec<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Survey {
    cases: u64,
    computations: u64,
    took: Duration,
    broken: BTreeMap<&'static str, Broken>,
    stuck: Option<Case>,
}

impl Survey {
    pub(crate) fn is_clean(&self) -> bool {
        self.broken.is_empty() && self.stuck.is_none()
    }

    pub(crate) fn broken_rules(&self) -> usize {
        self.broken.len() + usize::from(self.stuck.is_some())
    }

    fn summary(&self) -> String {
        let seconds = self.took.as_secs_f64();
        format!(
            "{} cases with {} computations in {seconds:.1} s, {:.0} cases per second, {} rules broken",
            self.cases,
            self.computations,
            self.cases as f64 / seconds,
            self.broken.len(),
        )
    }
}

impl fmt::Display for Survey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (rule, broken) in &self.broken {
            writeln!(f, "=== {rule}")?;
            writeln!(f, "{} cases, the first by seed {}", broken.count, broken.seed)?;
            writeln!(f, "there: {}", broken.violation.detail)?;
            writeln!(f, "the same with fewer operations: {}", broken.small)?;
            for line in &broken.history {
                writeln!(f, "    {line}")?;
            }
            writeln!(f)?;
        }
        if let Some(case) = &self.stuck {
            writeln!(f, "=== no user code runs under a lock")?;
            writeln!(f, "this case is stuck for {STUCK_AFTER:?}: {case}")?;
        }
        for (rule, broken) in &self.broken {
            writeln!(f, "{:>7} cases, seed {:<7} {rule}", broken.count, broken.seed)?;
        }
        f.write_str(&self.summary())
    }
}
