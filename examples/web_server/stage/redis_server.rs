//! A Redis server of the page's own, which it can freeze.
//!
//! `redis-server` does not end with the process that started it. So a keeper stands between: this
//! program, started with `--keep-redis PORT`. It starts the server, freezes and thaws it as it is
//! told on stdin, and kills it when stdin closes.

use std::io::{self, BufRead, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
#[cfg(unix)]
use std::os::unix::process::CommandExt;
use std::process::{Child as Process, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child as AsyncProcess, ChildStdin, ChildStdout};

use super::own_program;

/// What is started.
const PROGRAM: &str = "redis-server";
/// How long the server may take to listen.
const START: Duration = Duration::from_secs(5);

/// Says whether the server is installed.
pub(crate) fn is_installed() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(PROGRAM).is_file())
}

/// A server that runs, and its keeper. Dropped, both end.
#[derive(Debug)]
pub(crate) struct RedisServer {
    keeper: AsyncProcess,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    port: u16,
    is_frozen: bool,
}

impl RedisServer {
    /// Starts a server on a free port; it accepts connections when this returns.
    pub(crate) async fn start() -> Result<Self, String> {
        let wrong = |error: io::Error| format!("the keeper of Redis: {error}");
        let port = free_port().map_err(wrong)?;
        let mut keeper = own_program()
            .map_err(wrong)?
            .args(["--keep-redis", &port.to_string()])
            .spawn()
            .map_err(wrong)?;
        let (Some(commands), Some(stdout)) = (keeper.stdin.take(), keeper.stdout.take()) else {
            return Err("the keeper of Redis ended at once".into());
        };
        let answers = BufReader::new(stdout).lines();
        let mut server = Self { keeper, commands, answers, port, is_frozen: false };
        match server.answer().await.as_deref() {
            Some("ready") => Ok(server),
            Some(reason) => Err(reason.to_owned()),
            None => Err("the keeper of Redis ended".into()),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// Stops the server with SIGSTOP, or lets it go on with SIGCONT.
    pub(crate) async fn freeze(&mut self, on: bool) -> Result<(), String> {
        let command: &[u8] = if on { b"freeze\n" } else { b"thaw\n" };
        self.commands.write_all(command).await.map_err(|error| error.to_string())?;
        match self.answer().await.as_deref() {
            Some("done") => {
                self.is_frozen = on;
                Ok(())
            }
            Some(reason) => Err(reason.to_owned()),
            None => Err("the keeper of Redis is gone".into()),
        }
    }

    /// Ends the server, and returns when it is gone.
    pub(crate) async fn stop(self) {
        let Self { mut keeper, commands, .. } = self;
        drop(commands);
        let _ = keeper.wait().await;
    }

    async fn answer(&mut self) -> Option<String> {
        self.answers.next_line().await.ok().flatten()
    }
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// The keeper's side: what `--keep-redis PORT` does.
pub(crate) fn keep(port: u16) -> ExitCode {
    let mut program = Command::new(PROGRAM);
    program
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // Not in the keeper's group: when the page's process dies, the system sends SIGHUP to a group
    // with a stopped process, and the keeper would end before it has killed a frozen server.
    #[cfg(unix)]
    program.process_group(0);
    let mut server = match program.spawn() {
        Ok(server) => server,
        Err(error) => {
            say(&format!("{PROGRAM} cannot be started: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let listens = wait_until_it_listens(&mut server, port);
    say(if listens { "ready" } else { "redis-server does not listen" });
    if listens {
        for command in io::stdin().lock().lines().map_while(Result::ok) {
            match signal(&server, command == "freeze") {
                Ok(()) => say("done"),
                Err(error) => say(&format!("{PROGRAM} cannot be frozen: {error}")),
            }
        }
    }
    // A server that is stopped dies of this, too.
    let _ = server.kill();
    let _ = server.wait();
    ExitCode::SUCCESS
}

fn wait_until_it_listens(server: &mut Process, port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let give_up = Instant::now() + START;
    while Instant::now() < give_up && matches!(server.try_wait(), Ok(None)) {
        if TcpStream::connect(address).is_ok() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

#[cfg(unix)]
fn signal(server: &Process, freeze: bool) -> io::Result<()> {
    use rustix::process::{Pid, Signal, kill_process};
    let signal = if freeze { Signal::STOP } else { Signal::CONT };
    Ok(kill_process(Pid::from_child(server), signal)?)
}

#[cfg(not(unix))]
fn signal(_: &Process, _: bool) -> io::Result<()> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

fn say(line: &str) {
    let mut out = io::stdout().lock();
    // Where the reader is gone, stdin is closed, too.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
