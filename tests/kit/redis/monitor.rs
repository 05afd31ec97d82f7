//! Which commands clients send, by `MONITOR`.

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use super::{Resp, Server, wait_until};

const MARK: &str = "tower-stampede-monitor-mark";

/// Watches a server until dropped. Counts what clients send; what scripts call
/// does not count.
pub(crate) struct Monitor {
    seen: Arc<Mutex<Vec<String>>>,
    marker: Mutex<Resp>,
    marks: AtomicUsize,
    stream: TcpStream,
    reader: Option<JoinHandle<()>>,
}

impl Monitor {
    pub(super) fn of(server: &Server) -> Self {
        let mut connection = server.connect().unwrap();
        assert!(!connection.call(&["MONITOR"]).unwrap().is_error());
        connection.wait_for_ever().unwrap();
        let stream = connection.stream().unwrap();
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let lines = Arc::clone(&seen);
        let reader = thread::spawn(move || {
            while let Ok(line) = connection.line() {
                lines.lock().unwrap().extend(command_of_client(&line));
            }
        });
        let marker = Mutex::new(server.connect().unwrap());
        Self { seen, marker, marks: AtomicUsize::new(0), stream, reader: Some(reader) }
    }

    /// The commands so far, in order: the name in upper case, then the
    /// arguments as `MONITOR` writes them.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.catch_up();
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|line| !line.contains(MARK) && !is_fixture(line)).cloned().collect()
    }

    /// The names of the commands so far, in order and in upper case.
    pub(crate) fn commands(&self) -> Vec<String> {
        self.lines().iter().map(|line| name(line).to_owned()).collect()
    }

    /// How often each command was sent.
    pub(crate) fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for command in self.commands() {
            *counts.entry(command).or_default() += 1;
        }
        counts
    }

    pub(crate) fn count(&self, command: &str) -> usize {
        self.counts().get(command).copied().unwrap_or_default()
    }

    /// Begins anew.
    pub(crate) fn forget(&self) {
        self.catch_up();
        self.seen.lock().unwrap().clear();
    }

    /// What was sent before this has been seen after this.
    fn catch_up(&self) {
        let mark = format!("{MARK}-{}", self.marks.fetch_add(1, Ordering::Relaxed));
        self.marker.lock().unwrap().call(&["ECHO", &mark]).unwrap();
        let quoted = format!("\"{mark}\"");
        wait_until("the monitor is in step", || {
            self.seen.lock().unwrap().iter().any(|line| line.ends_with(&quoted))
        });
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // The server may have closed it.
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// `+1700000000.123456 [0 127.0.0.1:50000] "get" "k"`; `[0 lua]` is a script.
fn command_of_client(line: &str) -> Option<String> {
    let (from, command) = line.split_once("] ")?;
    let (name, args) = command.split_once(' ').unwrap_or((command, ""));
    let name = name.trim_matches('"').to_uppercase();
    (!from.ends_with(" lua")).then(|| format!("{name} {args}").trim_end().to_owned())
}

/// The name of a command. A script counts as `EVALSHA`, also where its first call sends it in
/// full.
fn name(line: &str) -> &str {
    match line.split(' ').next().unwrap_or_default() {
        "EVAL" => "EVALSHA",
        name => name,
    }
}

/// What the fixtures themselves send while a test runs.
fn is_fixture(line: &str) -> bool {
    matches!(name(line), "INFO" | "MONITOR")
}
