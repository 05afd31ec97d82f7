//! A `redis-server` of a test's own.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command as Process, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::remote::redis::connection::{Command, Target};
use crate::remote::redis::reply::ServerReply;
use crate::remote::redis::tests::Redis;

pub(super) struct Server {
    pub(super) port: u16,
    pub(super) folder: PathBuf,
    process: Child,
    args: Vec<String>,
}

impl Server {
    pub(super) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with more arguments. Another process may take the port
    /// in between, so this tries again.
    pub(super) fn with(args: &[&str]) -> Self {
        let args: Vec<_> = args.iter().map(ToString::to_string).collect();
        let folder = new_folder();
        Self::begin(folder, args)
    }

    /// Starts a sentinel that watches a server as `main`.
    pub(super) fn sentinel(port_of_primary: u16, more: &str) -> Self {
        let folder = new_folder();
        let config = folder.join("sentinel.conf");
        let watch = format!("sentinel monitor main 127.0.0.1 {port_of_primary} 1\n");
        let quick = "sentinel down-after-milliseconds main 300\n";
        std::fs::write(&config, watch + quick + more).unwrap();
        Self::begin(folder, vec![config.display().to_string(), "--sentinel".to_owned()])
    }

    /// Starts a node of a cluster. Before Redis 7 its bus is 10,000 ports above its own.
    pub(super) fn node() -> Self {
        let mut args = vec!["--cluster-enabled", "yes"];
        if is_since(7) {
            args.extend(["--cluster-port", "0"]);
        }
        Self::with(&args)
    }

    fn begin(folder: PathBuf, mut args: Vec<String>) -> Self {
        for _ in 0..20 {
            // The bus may be taken, too.
            if let Some(at) = args.iter().position(|arg| arg == "--cluster-port") {
                args[at + 1] = free_port().to_string();
            }
            let port = free_port();
            let mut process = spawn(port, &folder, &args);
            if answers(port, &mut process) {
                return Self { port, folder, process, args };
            }
            let _ = process.kill();
            let _ = process.wait();
        }
        panic!("no redis-server starts");
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(super) fn redis(&self) -> Redis {
        Redis::lazy(&self.url()).unwrap().namespace("stampede")
    }

    /// Sends a command over a connection of its own.
    pub(super) async fn tell(&self, words: &[&str]) -> ServerReply {
        let connection =
            Target::single(&self.url()).unwrap().connect(Duration::from_secs(30)).await.unwrap();
        connection.send(&Command::new(words[0]).args(&words[1..])).await.unwrap()
    }

    pub(super) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts it again, empty, on the same port.
    pub(super) fn restart(&mut self) {
        self.process = spawn(self.port, &self.folder, &self.args);
        assert!(answers(self.port, &mut self.process), "restarted");
    }

    pub(super) fn signal(&self, signal: &str) {
        let pid = self.process.id().to_string();
        assert!(Process::new("kill").args([signal, &pid]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub(super) fn new_folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("stampede-{:016x}", fastrand::u64(..)));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

pub(super) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Whether the server is at least of this major version; Valkey counts as what it followed.
pub(super) fn is_since(major: u32) -> bool {
    let said = Process::new(binary()).arg("--version").output().unwrap().stdout;
    let said = String::from_utf8(said).unwrap();
    let version = said.split("v=").nth(1).and_then(|rest| rest.split('.').next());
    version.and_then(|version| version.parse::<u32>().ok()).expect("it says its version") >= major
}

/// Whether the server was built with TLS: then it misses its certificate, and ends.
pub(super) fn has_tls() -> bool {
    let port = free_port().to_string();
    let args = ["--port", "0", "--tls-port", &port, "--save", ""];
    let said = Process::new(binary()).args(args).output().unwrap().stdout;
    String::from_utf8_lossy(&said).contains("tls-cert-file")
}

fn binary() -> std::ffi::OsString {
    let binary = std::env::var_os("TOWER_STAMPEDE_REDIS_SERVER");
    binary.unwrap_or_else(|| "redis-server".into())
}

fn spawn(port: u16, folder: &std::path::Path, args: &[String]) -> Child {
    // A file of settings comes first.
    let (file, args) = args.split_at(usize::from(args.iter().any(|arg| arg == "--sentinel")));
    Process::new(binary())
        .args(file)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no"])
        .arg("--dir")
        .arg(folder)
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("TOWER_STAMPEDE_REDIS_SERVER, or redis-server, starts")
}

fn answers(port: u16, process: &mut Child) -> bool {
    for _ in 0..1000 {
        if process.try_wait().unwrap().is_some() {
            return false;
        }
        if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
            return is_of(stream, process.id()).unwrap_or_else(|| {
                // It ends where it cannot have its other port.
                sleep(Duration::from_millis(50));
                process.try_wait().unwrap().is_none()
            });
        }
        sleep(Duration::from_millis(5));
    }
    false
}

/// Returns whether it is this process that answers, and not the server of another test that was
/// given the same port. One that asks for a password, speaks TLS or ends does not say so.
fn is_of(mut stream: TcpStream, pid: u32) -> Option<bool> {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let _ = stream.write_all(b"INFO server\r\n");
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let process = lines.by_ref().take_while(|line| !line.starts_with('-'));
    let mut process = process.filter_map(|line| line.strip_prefix("process_id:")?.parse().ok());
    process.next().map(|process: u32| process == pid)
}
