//! wrk, and what it finds.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::bare::PATH;
use crate::report::median;
use crate::servers::{Cores, Server, on_core};

/// Each with one request under way at any time.
pub(crate) const CONNECTIONS: usize = 64;

/// Says what it found in numbers; its own output has changing units.
const SCRIPT: &str = r#"
done = function(summary, latency)
  local e = summary.errors
  io.write(string.format("found %.0f %.0f %.0f %.0f %.0f\n",
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.status + e.timeout))
end
"#;

/// wrk is installed.
pub(crate) struct Wrk {
    pub(crate) version: String,
    cores: Cores,
    script: PathBuf,
    _folder: TempDir,
}

/// What one run of wrk found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slice {
    pub(crate) per_second: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) errors: f64,
    /// Microseconds of processor time of the server, of each request; none of nginx, which is
    /// several processes.
    pub(crate) cpu_us: Option<f64>,
}

/// A server under load.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) address: SocketAddr,
    pub(crate) server: Option<&'a Server>,
}

impl<'a> From<&'a Server> for Target<'a> {
    fn from(server: &'a Server) -> Self {
        Self { address: server.address, server: Some(server) }
    }
}

/// What one server does, over all slices.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) slices: Vec<Slice>,
    /// Requests a second, to those of the bare handler in the same round.
    pub(crate) ratios: Vec<f64>,
    /// Requests for so much processor time, to those of the bare handler in the same round.
    pub(crate) cpu_ratios: Vec<f64>,
}

impl Found {
    pub(crate) fn median(&self, of: fn(&Slice) -> f64) -> f64 {
        median(&mut self.slices.iter().map(of).collect::<Vec<_>>())
    }

    pub(crate) fn ratio(&self) -> f64 {
        median(&mut self.ratios.clone())
    }

    /// `median of 11 paired slices of 1 s (0.93 to 0.97)`.
    pub(crate) fn statistic(&self) -> String {
        statistic(&self.ratios)
    }

    pub(crate) fn cpu_ratio(&self) -> Option<f64> {
        (!self.cpu_ratios.is_empty()).then(|| median(&mut self.cpu_ratios.clone()))
    }
}

pub(crate) fn statistic(ratios: &[f64]) -> String {
    let (least, most) = ratios
        .iter()
        .fold((f64::MAX, f64::MIN), |(least, most), &ratio| (least.min(ratio), most.max(ratio)));
    let slices = ratios.len();
    format!("median of {slices} paired slices of 1 s ({least:.2} to {most:.2})")
}

impl Wrk {
    pub(crate) fn found(cores: Cores) -> Option<Self> {
        let output = Command::new("wrk").arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = text.split_whitespace().nth(1).unwrap_or("unknown").to_owned();
        let folder = tempfile::tempdir().expect("a folder");
        let script = folder.path().join("found.lua");
        std::fs::write(&script, SCRIPT).expect("a file");
        Some(Self { version, cores, script, _folder: folder })
    }

    fn slice(&self, target: Target<'_>) -> Slice {
        let (address, cpu) = (target.address, || target.server.and_then(Server::cpu));
        let before = cpu();
        let mut wrk = on_core(self.cores.clients, "wrk");
        wrk.args(["-t", "1", "-d", "1s", "-c", &CONNECTIONS.to_string(), "-s"]).arg(&self.script);
        let output = wrk.arg(format!("http://{address}{PATH}")).output().expect("wrk runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().find_map(|line| line.strip_prefix("found "));
        let line = line.unwrap_or_else(|| panic!("wrk says what it found, not {text}"));
        let numbers: Vec<f64> = line.split(' ').map(|n| n.parse().expect("a number")).collect();
        let [requests, microseconds, p50, p99, errors] = numbers[..] else {
            panic!("five numbers, not {line}")
        };
        let per_second = requests / (microseconds / 1e6);
        let cpu_us = cpu().zip(before).map(|(after, before)| (after - before) * 1e6 / requests);
        Slice { per_second, p50_ms: p50 / 1e3, p99_ms: p99 / 1e3, errors, cpu_us }
    }

    /// Loads each server in turn, in so many rounds; every other round runs
    /// backwards. The first server is what the others are compared with.
    pub(crate) fn paired(&self, servers: &[Target<'_>], rounds: usize) -> Vec<Found> {
        for &server in servers {
            self.slice(server);
        }
        let mut found: Vec<_> = servers.iter().map(|_| Found::default()).collect();
        for round in 0..rounds {
            let mut order: Vec<usize> = (0..servers.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for n in order {
                found[n].slices.push(self.slice(servers[n]));
            }
            let bare = found[0].slices[round];
            for found in &mut found {
                let slice = found.slices[round];
                found.ratios.push(slice.per_second / bare.per_second);
                found
                    .cpu_ratios
                    .extend(bare.cpu_us.zip(slice.cpu_us).map(|(bare, own)| bare / own));
            }
        }
        found
    }
}
