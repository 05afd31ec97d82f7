//! One `redis-server` process.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;

use super::{Monitor, Reply, Resp, wait_until};

/// Another process may take a port between our look and the server's bind.
const TRIES: usize = 20;

/// A `redis-server` of our own: on a free port of the loopback interface,
/// without persistence, in a folder that is removed.
pub(crate) struct Server {
    port: u16,
    folder: TempDir,
    lines: Vec<String>,
    is_sentinel: bool,
    process: Mutex<Child>,
}

impl Server {
    /// Starts an empty server.
    pub(crate) fn start() -> Self {
        Self::configured(&[])
    }

    /// Starts an empty server with lines of its configuration file, such as
    /// `maxmemory 2mb`, `requirepass secret` or
    /// `user guest on >secret ~* &* +@all`.
    pub(crate) fn configured(lines: &[&str]) -> Self {
        Self::launch(false, || lines.iter().map(|line| (*line).to_owned()).collect())
    }

    /// Starts a replica and waits until it has the primary's data.
    pub(crate) fn replica_of(primary: &Self) -> Self {
        let line = format!("replicaof 127.0.0.1 {}", primary.port);
        let replica = Self::configured(&[&line]);
        wait_until("the replica is in step", || {
            let info = replica.cli(&["INFO", "replication"]);
            info.field("master_link_status").as_deref() == Some("up")
        });
        replica
    }

    pub(super) fn sentinel(lines: &[String]) -> Self {
        Self::launch(true, || lines.to_vec())
    }

    /// Starts with lines that are made anew for every port tried.
    pub(super) fn launch(is_sentinel: bool, mut lines: impl FnMut() -> Vec<String>) -> Self {
        for _ in 0..TRIES {
            let folder = tempfile::tempdir().unwrap();
            let (port, lines) = (free_port(), lines());
            if let Some(process) = spawn(&folder, port, &lines, is_sentinel) {
                return Self { port, folder, lines, is_sentinel, process: Mutex::new(process) };
            }
        }
        panic!("redis-server did not start on any of {TRIES} free ports");
    }

    /// What the process wrote to its log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The address as a URL, with the password of `requirepass`.
    pub(crate) fn url(&self) -> String {
        let password = password(&self.lines).map(|password| format!(":{password}@"));
        format!("redis://{}{}", password.unwrap_or_default(), self.address())
    }

    /// Kills the process with `SIGKILL`. Clients see their connections reset,
    /// new ones are refused.
    pub(crate) fn kill(&self) {
        let mut process = self.process.lock().unwrap();
        // It may be dead already: no matter.
        let _ = process.kill();
        let _ = process.wait();
    }

    /// Kills the process, if it runs, and starts an empty one on the port.
    pub(crate) fn restart(&self) {
        self.kill();
        let started = (0..TRIES)
            .find_map(|_| spawn(&self.folder, self.port, &self.lines, self.is_sentinel))
            .expect("the port was taken by somebody else in the meantime");
        *self.process.lock().unwrap() = started;
    }

    /// Stops the process with `SIGSTOP`: connections stay, nothing answers.
    /// Returns once it has stopped.
    pub(crate) fn freeze(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
        waitpid(Some(self.pid()), WaitOptions::UNTRACED).unwrap();
    }

    /// Lets a frozen process go on.
    pub(crate) fn thaw(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process.lock().unwrap())
    }

    /// Sends one command on a connection of its own. Panics when the server
    /// cannot be reached or takes 10 s.
    pub(crate) fn cli<A: AsRef<[u8]>>(&self, args: &[A]) -> Reply {
        self.try_cli(args).expect("the server answers")
    }

    /// The same for servers that may be away.
    /// The same for a command of plain words; returns the reply as redis-cli's
    /// users know it from the wire: a line with its mark, or a text as it is.
    pub(crate) fn tell(&self, command: &str) -> String {
        match self.cli(&command.split(' ').collect::<Vec<_>>()) {
            Reply::Nil => "$-1".to_owned(),
            Reply::Int(number) => format!(":{number}"),
            Reply::Status(status) => format!("+{status}"),
            text => text.text(),
        }
    }

    pub(crate) fn try_cli<A: AsRef<[u8]>>(&self, args: &[A]) -> io::Result<Reply> {
        self.connect()?.call(args)
    }

    /// Opens a connection that is allowed everything.
    pub(crate) fn connect(&self) -> io::Result<Resp> {
        connect(self.port, &self.lines)
    }

    /// Begins to watch which commands clients send.
    pub(crate) fn monitor(&self) -> Monitor {
        Monitor::of(self)
    }

    /// How many clients are connected, by `CLIENT LIST TYPE`: `normal` (this
    /// one excepted), `pubsub`, `replica`.
    pub(crate) fn clients(&self, kind: &str) -> usize {
        let list = self.cli(&["CLIENT", "LIST", "TYPE", kind]).text();
        list.lines().filter(|line| !line.contains("cmd=client")).count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(super) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn password(lines: &[String]) -> Option<&str> {
    lines.iter().find_map(|line| line.strip_prefix("requirepass "))
}

fn connect(port: u16, lines: &[String]) -> io::Result<Resp> {
    let mut connection = Resp::connect(port)?;
    if let Some(password) = password(lines) {
        connection.call(&["AUTH", password])?;
    }
    Ok(connection)
}

/// Returns none when the port was taken.
fn spawn(folder: &TempDir, port: u16, lines: &[String], is_sentinel: bool) -> Option<Child> {
    let path = folder.path();
    let mut file = format!("port {port}\nbind 127.0.0.1\ndir {}\n", path.display());
    if !is_sentinel {
        file += "save \"\"\nappendonly no\nrepl-diskless-sync-delay 0\n";
    }
    file += &lines.join("\n");
    fs::write(path.join("redis.conf"), file + "\n").unwrap();

    let mut command = Command::new("redis-server");
    command.arg(path.join("redis.conf"));
    if is_sentinel {
        command.arg("--sentinel");
    }
    let log = File::create(path.join("log")).unwrap();
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let mut process = command.spawn().unwrap_or_else(|error| match error.kind() {
        ErrorKind::NotFound => panic!(
            "redis-server is not installed: these tests start their own servers; \
             scripts/test installs it where apt-get does"
        ),
        _ => panic!("redis-server does not start: {error}"),
    });

    let pid = i64::from(process.id());
    let mut has_ended = false;
    wait_until("redis-server answers", || {
        has_ended = process.try_wait().unwrap().is_some();
        has_ended || answers(port, lines, pid)
    });
    if !has_ended {
        return Some(process);
    }
    let log = fs::read_to_string(path.join("log")).unwrap();
    assert!(log.contains("in use"), "redis-server ended at once:\n{log}");
    None
}

/// Whether this very process answers on the port, and no other.
fn answers(port: u16, lines: &[String], pid: i64) -> bool {
    let info = connect(port, lines).and_then(|mut server| server.call(&["INFO", "server"]));
    info.is_ok_and(|info| info.field("process_id") == Some(pid.to_string()))
}
