//! One process of a stage: the same program, on a free port.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child as Process, ChildStdin, ChildStdout};
use tokio_util::sync::CancellationToken;

use super::own_program;
use crate::child::Report;

/// How long a process may take to listen.
const START: Duration = Duration::from_secs(10);

/// A process that runs, as its stage knows it.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub(crate) name: String,
    pub(crate) pid: u32,
    pub(crate) address: SocketAddr,
    /// How many calls its origin works on.
    pub(crate) computing: usize,
    /// Whether it reaches Redis; `None` before it has said so, and without Redis.
    pub(crate) reaches_redis: Option<bool>,
    kill: CancellationToken,
}

/// The process itself, and what it writes.
#[derive(Debug)]
pub(crate) struct Running {
    process: Process,
    lines: Lines<BufReader<ChildStdout>>,
    kill: CancellationToken,
    // Closed when this is dropped: the process ends then.
    _stdin: ChildStdin,
}

impl Instance {
    /// Starts a process; it listens when this returns.
    pub(crate) async fn start(name: String, flags: &[String]) -> Result<(Self, Running), String> {
        let wrong = |error: &dyn std::fmt::Display| format!("process {name}: {error}");
        let mut process = own_program()
            .map_err(|error| wrong(&error))?
            .args(["--child", "--listen", "127.0.0.1:0"])
            .args(flags)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| wrong(&error))?;
        let pipes = (process.stdin.take(), process.stdout.take(), process.id());
        let (Some(stdin), Some(stdout), Some(pid)) = pipes else {
            return Err(wrong(&"it ended at once"));
        };
        let mut lines = BufReader::new(stdout).lines();
        let first = tokio::time::timeout(START, lines.next_line()).await;
        let Ok(Ok(Some(line))) = first else { return Err(wrong(&"it does not listen")) };
        let address = line.strip_prefix("listening on http://").and_then(|at| at.parse().ok());
        let address = address.ok_or_else(|| wrong(&"it says no address"))?;
        let kill = CancellationToken::new();
        let running = Running { process, lines, kill: kill.clone(), _stdin: stdin };
        let (computing, reaches_redis) = (0, None);
        Ok((Self { name, pid, address, computing, reaches_redis, kill }, running))
    }

    /// Ends the process with SIGKILL, in a moment.
    pub(crate) fn kill(&self) {
        self.kill.cancel();
    }
}

impl Running {
    /// Hands on what the process reports, and returns when it is gone.
    pub(crate) async fn follow(mut self, mut report: impl FnMut(Report)) {
        loop {
            tokio::select! {
                // What it has written before it is killed counts.
                line = self.lines.next_line() => match line {
                    Ok(Some(line)) => {
                        if let Ok(line) = serde_json::from_str(&line) {
                            report(line);
                        }
                    }
                    Ok(None) | Err(_) => break,
                },
                () = self.kill.cancelled() => {
                    // It is dead already, or dies now: its stdout ends in both cases.
                    let _ = self.process.start_kill();
                    self.kill = CancellationToken::new();
                }
            }
        }
        let _ = self.process.start_kill();
        let _ = self.process.wait().await;
    }
}
