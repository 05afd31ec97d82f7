//! One `redis-server` process.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;

use super::{Monitor, Reply, Resp, wait_until};

/// Another process may take a port between our look and the server's bind.
const TRIES: usize = 20;

/// How far above a node's port the port of its bus is when nothing else is said.
pub(super) const USUAL_BUS: u16 = 10_000;

/// The environment variable that names the server to start: Redis or Valkey, by
/// its path. `redis-server` when it is not set.
const BINARY: &str = "TOWER_STAMPEDE_REDIS_SERVER";

/// Variables of a server's environment.
pub(super) type Environment = Vec<(String, String)>;

/// A `redis-server` of our own: on a free port of the loopback interface,
/// without persistence, in a folder that is removed.
pub(crate) struct Server {
    port: u16,
    folder: TempDir,
    lines: Vec<String>,
    environment: Environment,
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
    fn launch(is_sentinel: bool, mut lines: impl FnMut() -> Vec<String>) -> Self {
        Self::try_ports(is_sentinel, Environment::new(), || (free_port(), lines()))
    }

    /// Starts a node of a cluster. The lines are told a free port for its bus, or none
    /// where the server cannot be told (before Redis 7): then the bus has its usual port.
    pub(super) fn launch_with_bus(
        environment: Environment,
        lines: impl Fn(Option<u16>) -> Vec<String>,
    ) -> Self {
        Self::try_ports(false, environment, || match has_cluster_port() {
            // The usual port may be no port at all.
            true => (free_port(), lines(Some(free_port()))),
            false => (free_port_with_bus(), lines(None)),
        })
    }

    fn try_ports(
        is_sentinel: bool,
        environment: Environment,
        mut next: impl FnMut() -> (u16, Vec<String>),
    ) -> Self {
        for _ in 0..TRIES {
            let folder = tempfile::tempdir().unwrap();
            let (port, lines) = next();
            if let Some(process) = spawn(&folder, port, &lines, &environment, is_sentinel) {
                return Self {
                    port,
                    folder,
                    lines,
                    environment,
                    is_sentinel,
                    process: Mutex::new(process),
                };
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

    /// Removes what was saved, by `SAVE` or as a replica: the next process begins empty.
    pub(crate) fn forget_snapshot(&self) {
        // There may be none.
        let _ = fs::remove_file(self.folder.path().join("dump.rdb"));
    }

    /// Kills the process, if it runs, and starts one on the port: with what was saved, else empty.
    pub(crate) fn restart(&self) {
        self.kill();
        let started = (0..TRIES)
            .find_map(|_| {
                spawn(&self.folder, self.port, &self.lines, &self.environment, self.is_sentinel)
            })
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
    /// cannot be reached or takes a minute.
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

/// A free port with another free one in the usual distance.
fn free_port_with_bus() -> u16 {
    let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let mut ports = std::iter::repeat_with(free_port);
    ports.find(|port| port.checked_add(USUAL_BUS).is_some_and(is_free)).expect("it goes on")
}

/// Whether the server has the setting `cluster-port`, which came with Redis 7.
fn has_cluster_port() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        let setting = Server::start().cli(&["CONFIG", "GET", "cluster-port"]);
        !setting.parts().is_empty()
    })
}

/// Whether the program starts at all with these variables: some libraries that are to be loaded
/// first do not get on with its own.
pub(super) fn starts_with(environment: &[(String, String)]) -> bool {
    let mut process = Command::new(binary())
        .arg("--version")
        .envs(environment.iter().cloned())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        if let Some(status) = process.try_wait().unwrap() {
            return status.success();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = process.kill();
    let _ = process.wait();
    false
}

/// The program to start.
pub(super) fn binary() -> PathBuf {
    std::env::var_os(BINARY).unwrap_or_else(|| "redis-server".into()).into()
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
fn spawn(
    folder: &TempDir,
    port: u16,
    lines: &[String],
    environment: &Environment,
    is_sentinel: bool,
) -> Option<Child> {
    let path = folder.path();
    let mut file = format!("port {port}\nbind 127.0.0.1\ndir {}\n", path.display());
    if !is_sentinel {
        file += "save \"\"\nappendonly no\nrepl-diskless-sync-delay 0\n";
    }
    file += &lines.join("\n");
    fs::write(path.join("redis.conf"), file + "\n").unwrap();

    let binary = binary();
    let mut command = Command::new(&binary);
    command.arg(path.join("redis.conf")).envs(environment.iter().cloned());
    if is_sentinel {
        command.arg("--sentinel");
    }
    let log = File::create(path.join("log")).unwrap();
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let mut process = command.spawn().unwrap_or_else(|error| match error.kind() {
        ErrorKind::NotFound => panic!(
            "`{BINARY}` (`{}`) must name a Redis or Valkey server: these tests start their own \
             servers; set it to the path of one, or run scripts/test, which installs \
             redis-server where apt-get does",
            binary.display()
        ),
        _ => panic!("`{BINARY}` (`{}`) does not start: {error}", binary.display()),
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
