//! A `redis-server` of a test's own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

pub(crate) struct Server {
    port: u16,
    process: Child,
}

impl Server {
    /// Starts a server. Another process may take the port in between, so this
    /// tries again.
    pub(crate) fn start() -> Self {
        for _ in 0..5 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let mut server = Self { port, process: spawn(port) };
            if server.answers() {
                return server;
            }
        }
        panic!("no redis-server starts");
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sends a command of plain words and returns the reply as it is sent: a
    /// line with its mark, or the text after the length of one.
    pub(crate) fn tell(&self, command: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        write!(stream, "{command}\r\n").unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        match line.trim_end().strip_prefix('$').map(str::parse::<usize>) {
            Some(Ok(len)) => {
                let mut text = vec![0; len];
                reader.read_exact(&mut text).unwrap();
                String::from_utf8(text).unwrap()
            }
            _ => line.trim_end().to_owned(),
        }
    }

    fn answers(&mut self) -> bool {
        for _ in 0..1000 {
            if self.process.try_wait().unwrap().is_some() {
                return false;
            }
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return true;
            }
            sleep(Duration::from_millis(5));
        }
        false
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(port: u16) -> Child {
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server is installed")
}
