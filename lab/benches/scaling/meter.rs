//! What Redis has done, by its own account.

use crate::redis_support::{Resp, Server};

/// Reads the counters of a server on a connection of its own.
pub(crate) struct Meter {
    connection: Resp,
    /// What one reading costs the server, in µs.
    own_cost: f64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// Microseconds in user code and in the kernel.
    cpu: f64,
    commands: f64,
}

/// What was spent between two readings, the reading itself taken off.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    pub(crate) cpu: f64,
    /// Commands executed, those that scripts call included.
    pub(crate) commands: f64,
}

impl Meter {
    pub(crate) fn of(server: &Server) -> Self {
        let connection = server.connect().expect("the server answers");
        let mut meter = Self { connection, own_cost: 0.0 };
        let before = meter.read();
        for _ in 0..100 {
            meter.read();
        }
        meter.own_cost = meter.since(before).cpu / 101.0;
        meter
    }

    pub(crate) fn read(&mut self) -> Reading {
        let cpu = self.info("cpu");
        let seconds = |name| value(&cpu, name).unwrap_or_default();
        let cpu = (seconds("used_cpu_user:") + seconds("used_cpu_sys:")) * 1e6;
        let commands = self.info("commandstats").lines().filter_map(calls).sum();
        Reading { cpu, commands }
    }

    pub(crate) fn since(&mut self, before: Reading) -> Spent {
        let now = self.read();
        Spent {
            cpu: now.cpu - before.cpu - self.own_cost,
            commands: now.commands - before.commands,
        }
    }

    fn info(&mut self, section: &str) -> String {
        self.connection.call(&["INFO", section]).expect("the server answers").text()
    }
}

fn value(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

/// The 7 of `cmdstat_get:calls=7,usec=11,...`. The readings are not counted,
/// nor what every client sends once a second to see whether Redis lives.
fn calls(line: &str) -> Option<f64> {
    let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
    let counts = !matches!(name, "info" | "ping");
    counts.then(|| rest.split(',').next()?.parse().ok()).flatten()
}
