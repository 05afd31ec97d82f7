//! Servers that benches start as processes of their own, on a core of their
//! own where there are two.

// Each bench uses a part of this.
#![allow(dead_code)]

pub(crate) mod nginx;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Where the two sides of a measurement run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cores {
    /// None where there is only one, or no `taskset`.
    pub(crate) server: Option<usize>,
    pub(crate) clients: Option<usize>,
}

impl Cores {
    /// The first and the last that this process may use: neighbours in number
    /// are often one core that pretends to be two.
    pub(crate) fn found() -> Self {
        let allowed = allowed_cores();
        let has_taskset = Command::new("taskset").arg("--version").output().is_ok();
        match (allowed.first(), allowed.last()) {
            (Some(&first), Some(&last)) if first != last && has_taskset => {
                Self { server: Some(first), clients: Some(last) }
            }
            _ => Self::default(),
        }
    }
}

/// Reads `Cpus_allowed_list: 0-1,4`.
fn allowed_cores() -> Vec<usize> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let ranges = list.unwrap_or_default().trim().split(',').filter_map(|range| {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        Some(from.parse::<usize>().ok()?..=to.parse::<usize>().ok()?)
    });
    ranges.flatten().collect()
}

/// A command whose threads all stay on one core.
pub(crate) fn on_core(core: Option<usize>, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let Some(core) = core else { return Command::new(program) };
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &core.to_string()]).arg(program);
    command
}

/// A program that benches measure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    /// What cargo is told to build.
    build: [&'static str; 4],
    /// Below the folder of the profile.
    path: &'static str,
}

pub(crate) const WEB_SERVER: Program = Program {
    build: ["--package", "tower-stampede", "--example", "web_server"],
    path: "examples/web_server",
};

pub(crate) const PROXY: Program = Program {
    build: ["--package", "stampede-proxy", "--bin", "stampede-proxy"],
    path: "stampede-proxy",
};

impl Program {
    /// Builds it with the profile of benches: an old one would be measured otherwise.
    pub(crate) fn build(self) {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--quiet", "--profile", "bench"]).args(self.build);
        // Where `path` looks, whatever folder this bench was started in.
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
        cargo.arg("--target-dir").arg(target.expect("target/tmp lies in target"));
        // What cargo says of this package to us makes build scripts run anew.
        let variables = std::env::vars_os().map(|(name, _)| name);
        let is_of_package = |name: &std::ffi::OsString| {
            let name = name.to_string_lossy();
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
        };
        for name in variables.filter(is_of_package) {
            cargo.env_remove(name);
        }
        let built = cargo.status().expect("cargo runs");
        assert!(built.success(), "{} does not compile", self.path);
    }

    /// Cargo puts programs beside the folder of the benches.
    fn path(self) -> PathBuf {
        let bench = std::env::current_exe().expect("this program has a path");
        let profile = bench.ancestors().find(|path| path.join("deps").is_dir());
        profile.expect("target/<profile>").join(self.path)
    }
}

/// A server's process, which ends with this value.
pub(crate) struct Server {
    process: Child,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts a program on a free port.
    pub(crate) fn program(core: Option<usize>, program: Program, flags: &[&str]) -> Self {
        let mut command = on_core(core, program.path());
        Self::start(command.args(["--listen", "127.0.0.1:0"]).args(flags))
    }

    /// Starts this program itself, as what its arguments say.
    pub(crate) fn ourselves(core: Option<usize>, args: &[&str]) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        Self::start(on_core(core, program).args(args))
    }

    /// Returns the memory that it holds now, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        kib.unwrap_or_default() * 1024
    }

    /// Returns the processor time that it has taken, in seconds, to a hundredth.
    pub(crate) fn cpu(&self) -> Option<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).ok()?;
        // The name of the program, in brackets, may have blanks.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
        Some((ticks(11)? + ticks(12)?) / 100.0)
    }

    /// Waits for the line that ends with the address.
    fn start(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().expect("the program runs");
        let mut line = String::new();
        let output = process.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut line).expect("it says where it listens");
        let address = line.trim().trim_start_matches("listening on http://");
        Self { address: address.parse().expect("an address"), process }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already: no matter.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
