//! What a figure was measured on.

use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_mib: u64,
    pub(crate) system: String,
    pub(crate) rustc: String,
}

impl Machine {
    pub(crate) fn this() -> Self {
        Self {
            processor: processor().unwrap_or_else(|| "unknown".into()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: memory_mib().unwrap_or_default(),
            system: said("uname", &["-sr"]),
            rustc: said("rustc", &["--version"]),
        }
    }
}

fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory_mib() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib / 1024)
}

/// The first line of what a program prints, or `unknown`.
pub(crate) fn said(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().ok();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    text.and_then(|text| text.lines().next().map(str::to_owned)).unwrap_or_else(|| "unknown".into())
}

/// None if there is no Redis here.
pub(crate) fn redis_version() -> Option<String> {
    let output = Command::new("redis-server").arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
    Some(version.unwrap_or("unknown").to_owned())
}
