//! Runs a part of a test in a process of its own: one that may deadlock, abort,
//! or keep others from going on.

use std::io::{Read, Seek};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Names the case in the process that runs nothing else.
const CASE: &str = "EDGE_TEST_CASE";

/// The longest that the cases may take together, on a machine that is ten times slower than ours.
const LONGEST: Duration = Duration::from_secs(600);

struct Running<'a> {
    case: &'a str,
    process: Child,
    output: std::fs::File,
}

impl<'a> Running<'a> {
    fn start(case: &'a str) -> Self {
        let test = std::thread::current().name().expect("a test's thread has its name").to_owned();
        let output = tempfile::tempfile().unwrap();
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &test, "--nocapture", "--test-threads=2"])
            .env(CASE, case)
            .env("RUST_BACKTRACE", "0")
            .stdout(output.try_clone().unwrap())
            .stderr(output.try_clone().unwrap())
            .spawn()
            .unwrap();
        Self { case, process, output }
    }

    /// Returns whether it has ended, and notes how if that was no success.
    fn has_ended(&mut self, is_late: bool, failed: &mut Vec<String>) -> bool {
        match self.process.try_wait().unwrap() {
            Some(status) => {
                let mut output = String::new();
                self.output.rewind().unwrap();
                self.output.read_to_string(&mut output).unwrap();
                if !status.success() || !output.contains("1 passed") {
                    // The first panics say why; a backtrace may follow.
                    let first: String = output.chars().take(800).collect();
                    failed.push(format!("{} ends with {status}:\n{first}", self.case));
                }
                true
            }
            None if is_late => {
                self.process.kill().unwrap();
                self.process.wait().unwrap();
                failed.push(format!("{} does not end in {LONGEST:?}", self.case));
                true
            }
            None => false,
        }
    }
}

/// Runs `work` once for each case, each in a process of its own, and fails with
/// those that fail or do not end.
pub(crate) fn alone(cases: &[&str], work: impl Fn(&str)) {
    if let Ok(case) = std::env::var(CASE) {
        return work(&case);
    }
    let until = Instant::now() + LONGEST;
    let mut running: Vec<_> = cases.iter().map(|case| Running::start(case)).collect();
    let mut failed = Vec::new();
    while !running.is_empty() {
        let is_late = Instant::now() >= until;
        running.retain_mut(|one| !one.has_ended(is_late, &mut failed));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(failed.is_empty(), "{} of {} cases: {}", failed.len(), cases.len(), failed.join("; "));
}
