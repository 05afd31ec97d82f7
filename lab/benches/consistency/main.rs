//! Whether the processes of a cache stay consistent while their servers are killed, frozen,
//! flushed, failed over, set back and short of memory, and while their address moves.
//!
//! `scripts/consistency [--reads N] [--processes N] [--minutes M] [--faults A,B]` starts it. Every
//! process is one of the system's, and runs the crate as an application does; `run/judge.rs` says
//! what counts as a violation. Ends with 1 where there is one. Needs `redis-server`.

#![cfg_attr(not(unix), allow(dead_code, unused_imports, reason = "it needs signals"))]

#[cfg(unix)]
mod kit {
    pub(crate) use crate::redis_support as redis;
}
#[cfg(unix)]
#[path = "../../../tests/kit/redis/mod.rs"]
mod redis_support;
#[cfg(unix)]
mod run;

use std::process::ExitCode;

#[cfg(unix)]
use run::faults::Fault;

#[cfg(not(unix))]
fn main() -> ExitCode {
    eprintln!("consistency: it freezes processes by signals, which this system has not");
    ExitCode::SUCCESS
}

#[cfg(unix)]
fn main() -> ExitCode {
    if run::worker::work_if_told() {
        return ExitCode::SUCCESS;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    // Under `cargo test` there is nothing to see.
    if !args.iter().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    let plan = match plan(&args) {
        Ok(plan) => plan,
        Err(message) => {
            eprintln!("consistency: {message}");
            return ExitCode::from(2);
        }
    };
    let this = std::env::current_exe().expect("this program has a path");
    let findings = run::run(&plan, || std::process::Command::new(&this));
    println!("{}", findings.to_text());
    let is_short = findings.reads() < plan.reads;
    if is_short {
        eprintln!("consistency: fewer reads than asked for; this machine is too busy");
    }
    match !findings.has_violations() && !is_short {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

#[cfg(unix)]
fn plan(args: &[String]) -> Result<run::Plan, String> {
    let (mut reads, mut processes, mut minutes) = (100_000_000, 8, 10.0);
    let mut faults = Fault::ALL.to_vec();
    let mut args = args.iter().filter(|arg| *arg != "--bench");
    while let Some(flag) = args.next() {
        let value = args.next().ok_or_else(|| format!("{flag} needs a value"))?;
        let bad = |rule: &str| format!("{flag}: {value:?} is not {rule}");
        match flag.as_str() {
            "--reads" => {
                let number = value.parse().ok().filter(|number| *number > 0);
                reads = number.ok_or_else(|| bad("a whole number above 0"))?;
            }
            "--processes" => {
                let number = value.parse().ok().filter(|number| (2..=1000).contains(number));
                processes = number.ok_or_else(|| bad("a whole number from 2 to 1000"))?;
            }
            "--minutes" => {
                let number = value.parse().ok().filter(|number| (0.1..=1440.0).contains(number));
                minutes = number.ok_or_else(|| bad("a number from 0.1 to 1440"))?;
            }
            "--faults" => {
                let known = Fault::ALL.map(Fault::word).join(", ");
                let of_word = |word| Fault::ALL.into_iter().find(|fault| fault.word() == word);
                let named: Option<Vec<_>> = value.split(',').map(of_word).collect();
                faults = named.ok_or_else(|| bad(&format!("a list of {known}")))?;
            }
            _ => {
                let known = "the flags are --reads, --processes, --minutes and --faults";
                return Err(format!("unknown flag {flag}: {known}"));
            }
        }
    }
    Ok(run::Plan {
        processes,
        reads,
        keys: 640,
        time: std::time::Duration::from_secs_f64(minutes * 60.0),
        rest: std::time::Duration::from_secs(12),
        invalidate_every: std::time::Duration::from_millis(150),
        faults,
    })
}
