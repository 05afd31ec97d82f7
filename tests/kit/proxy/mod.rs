//! `stampede-proxy` as a process of its own, between clients and
//! origins that are sockets in the hand of the test.

#![allow(dead_code, reason = "each test binary uses a part")]

mod backend;
mod crowd;
pub(crate) mod scripted;
pub(crate) mod stage;

use std::future::Future;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

#[allow(unused_imports, reason = "each test binary uses a part")]
pub(crate) use backend::{Answer, Backend, Pace, VARIANT};
#[allow(unused_imports, reason = "each test binary uses a part")]
pub(crate) use crowd::{Ask, Client, Crowd, Seen, get, get_with};

/// After this long, what a test waits for does not come any more, on a machine that is ten times
/// slower than ours.
pub(crate) const GIVE_UP: Duration = Duration::from_secs(120);

/// The programs, and how Cargo is told to build them.
const PROXY: Program = Program { path: "stampede-proxy", build: "-p stampede-proxy" };
const WEB_SERVER: Program = Program { path: "examples/web_server", build: "--example web_server" };

struct Program {
    /// Below the folder of the profile.
    path: &'static str,
    build: &'static str,
}

impl Program {
    /// Cargo builds it beside the folder of the tests for `cargo test --workspace`.
    fn command(&self) -> Command {
        let test = std::env::current_exe().unwrap();
        let profile = test.ancestors().find(|path| path.join("deps").is_dir());
        let program = profile.expect("target/<profile>").join(self.path);
        assert!(
            program.is_file(),
            "{} is missing: `cargo build {}` makes it, and `cargo test --workspace` does",
            program.display(),
            self.build
        );
        Command::new(program)
    }
}

/// Waits for what will come, unless it does not.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match timeout(GIVE_UP, future).await {
        Ok(output) => output,
        Err(_) => panic!("waited in vain for {what}"),
    }
}

/// A proxy's process.
pub(crate) struct Proxy {
    /// None for another server in its place, which the bench has started.
    process: Option<Child>,
    pub(crate) address: SocketAddr,
    /// Where operators are served, with `--admin`.
    pub(crate) operators: Option<SocketAddr>,
}

impl Proxy {
    /// Starts a proxy in front of `origin`.
    pub(crate) fn start(origin: &Origin, flags: &[&str]) -> Self {
        Self::start_at(&origin.url(), flags)
    }

    pub(crate) fn start_at(origin: &str, flags: &[&str]) -> Self {
        Self::start_with_stderr(origin, flags, Stdio::inherit())
    }

    /// Starts a proxy whose standard error the test reads once it has ended.
    pub(crate) fn start_recorded(origin: &Origin, flags: &[&str]) -> Self {
        Self::start_with_stderr(&origin.url(), flags, Stdio::piped())
    }

    fn start_with_stderr(origin: &str, flags: &[&str], stderr: Stdio) -> Self {
        let flags = [&["--origin", origin], flags].concat();
        Self::spawn(PROXY.command().args(flags).stderr(stderr))
    }

    /// Starts a proxy whose flags, or the file that they name, have its origins.
    pub(crate) fn start_with(flags: &[&str]) -> Self {
        Self::spawn(PROXY.command().args(flags).stderr(Stdio::piped()))
    }

    /// Starts the example `web_server`: no proxy, but a client sees no difference.
    pub(crate) fn start_web_server(flags: &[&str]) -> Self {
        Self::spawn(WEB_SERVER.command().args(flags))
    }

    /// Starts a proxy with a listener for operators, who show this token.
    pub(crate) fn start_with_token(origin: &str, flags: &[&str], token: &str) -> Self {
        let mut command = PROXY.command();
        command.args(["--origin", origin, "--admin", "127.0.0.1:0"]).args(flags);
        Self::spawn(command.env("STAMPEDE_ADMIN_TOKEN", token))
    }

    fn spawn(command: &mut Command) -> Self {
        let command = command.args(["--listen", "127.0.0.1:0"]);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut line = lines.next().expect("it says where it listens");
        let operators = line.strip_prefix("operators on http://").map(|at| at.parse().unwrap());
        if operators.is_some() {
            line = lines.next().expect("it says where it listens");
        }
        let address = line.trim().strip_prefix("listening on ").expect("it listens");
        let address = address.trim_start_matches("http://").trim_start_matches("https://");
        Self { process: Some(process), address: address.parse().unwrap(), operators }
    }

    /// Another server in its place.
    pub(crate) fn elsewhere(address: SocketAddr) -> Self {
        Self { process: None, address, operators: None }
    }

    fn process(&self) -> &Child {
        self.process.as_ref().expect("a process of ours")
    }

    /// Runs it with flags that do not let it start.
    pub(crate) fn refuse(flags: &[&str]) -> Output {
        PROXY.command().args(flags).output().unwrap()
    }

    pub(crate) fn refuse_web_server(flags: &[&str]) -> Output {
        WEB_SERVER.command().args(flags).output().unwrap()
    }

    pub(crate) async fn connect(&self) -> Peer {
        Peer::new(TcpStream::connect(self.address).await.unwrap())
    }

    /// A connection of an operator.
    pub(crate) async fn connect_as_operator(&self) -> Peer {
        let operators = self.operators.expect("started with `--admin`");
        Peer::new(TcpStream::connect(operators).await.unwrap())
    }

    /// A client with another loopback address than the usual one.
    pub(crate) async fn connect_from(&self, address: Ipv4Addr) -> Peer {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((address, 0).into()).unwrap();
        Peer::new(socket.connect(self.address).await.unwrap())
    }

    /// A client that speaks HTTP/2 from the beginning.
    pub(crate) async fn connect_http2(&self) -> http2::SendRequest<Full<Bytes>> {
        let stream = self.connect().await.into_stream();
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (sender, connection) = handshake.unwrap();
        tokio::spawn(connection);
        sender
    }

    /// A client that takes little before it reads.
    pub(crate) async fn connect_small(&self) -> Peer {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        Peer::new(socket.connect(self.address).await.unwrap())
    }

    /// Sends a whole request on a connection of its own.
    pub(crate) async fn send(&self, request: impl AsRef<[u8]>) -> Peer {
        let mut peer = self.connect().await;
        peer.send(request).await;
        peer
    }

    /// Sends a request that is answered without asking the origin.
    pub(crate) async fn ask(&self, request: impl AsRef<[u8]>) -> Reply {
        self.send(request).await.reply().await
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.process()), signal).unwrap();
    }

    /// Waits for its end; returns its exit code.
    pub(crate) async fn ended(&mut self) -> Option<i32> {
        let process = self.process.as_mut().expect("a process of ours");
        let ended = async {
            loop {
                if let Some(status) = process.try_wait().unwrap() {
                    return status.code();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon("the end of the process", ended).await
    }

    /// Ends a recorded proxy; returns what it wrote to its standard error.
    pub(crate) async fn end_and_read_stderr(mut self) -> String {
        self.signal(Signal::TERM);
        assert_eq!(self.ended().await, Some(0));
        let process = self.process.as_mut().expect("a process of ours");
        let mut text = String::new();
        process.stderr.take().expect("a recorded proxy").read_to_string(&mut text).unwrap();
        text
    }

    /// Waits until it has nothing to do before something comes from outside:
    /// all its threads sleep, and none has run between two looks.
    #[cfg(target_os = "linux")]
    pub(crate) async fn is_idle(&self) {
        let idle = async {
            let mut before = None;
            loop {
                let now = self.sleeping_threads();
                if now.is_some() && now == before {
                    return;
                }
                before = now;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        soon("the proxy to be idle", idle).await;
    }

    /// How often each of its threads has gone to sleep; none if one runs.
    #[cfg(target_os = "linux")]
    fn sleeping_threads(&self) -> Option<Vec<String>> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.process().id())).unwrap();
        let switches = |thread: std::io::Result<std::fs::DirEntry>| {
            // It may have ended meanwhile.
            let status = std::fs::read_to_string(thread.ok()?.path().join("status")).ok()?;
            let is_asleep = status.lines().any(|line| line.starts_with("State:\tS"));
            let count = status.lines().filter(|line| line.contains("voluntary_ctxt_switches"));
            is_asleep.then(|| count.collect())
        };
        threads.map(switches).collect()
    }

    /// The memory that it has used at most, in bytes.
    #[cfg(target_os = "linux")]
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = format!("/proc/{}/status", self.process().id());
        let status = std::fs::read_to_string(status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        kib * 1024
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // It may have ended already: no matter.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// An origin that does nothing by itself. Dropped, it refuses connections.
pub(crate) struct Origin {
    listener: TcpListener,
    address: SocketAddr,
}

impl Origin {
    pub(crate) async fn bind() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        Self { listener, address }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Refuses connections from now on. While the socket lives, no other program gets the port.
    #[must_use = "the port is free once the socket is dropped"]
    pub(crate) fn refuse(self) -> TcpSocket {
        let Self { listener, address } = self;
        drop(listener);
        let socket = TcpSocket::new_v4().unwrap();
        // Connections of the listener may linger.
        socket.set_reuseaddr(true).unwrap();
        socket.bind(address).unwrap();
        socket
    }

    /// The next connection of the proxy.
    pub(crate) async fn accept(&self) -> Peer {
        let accepted = soon("a connection to the origin", self.listener.accept()).await;
        Peer::new(accepted.unwrap().0)
    }

    /// The next connection, and the head of the request on it.
    pub(crate) async fn request(&self) -> (Peer, Head) {
        let mut peer = self.accept().await;
        let head = peer.head().await;
        (peer, head)
    }

    /// The request after one that is answered: on the same connection, or on a
    /// new one where the proxy had not put that back yet.
    pub(crate) async fn request_after(&self, mut peer: Peer) -> (Peer, Head) {
        tokio::select! {
            head = peer.head_or_end() => match head {
                Some(head) => (peer, head),
                None => self.request().await,
            },
            request = self.request() => request,
        }
    }

    /// Sends a request through `proxy`; returns the origin's end, what it
    /// sees, and the client's end.
    pub(crate) async fn request_on_new(&self, proxy: &Proxy, request: &str) -> (Peer, Head, Peer) {
        let client = proxy.send(request).await;
        let (peer, head) = self.request().await;
        (peer, head, client)
    }

    /// Whether a connection comes that the test has not accepted yet.
    pub(crate) async fn is_asked_within(&self, time: Duration) -> bool {
        timeout(time, self.listener.accept()).await.is_ok()
    }
}

/// One end of a connection.
pub(crate) struct Peer {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Peer {
    fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        Self { stream, buffer: Vec::new() }
    }

    /// A connection that the test has made itself.
    pub(crate) fn of(stream: TcpStream) -> Self {
        Self::new(stream)
    }

    pub(crate) fn into_stream(self) -> TcpStream {
        self.stream
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        soon("room to write", self.stream.write_all(bytes.as_ref())).await.unwrap();
    }

    /// Writes as far as the other side lets us, or the connection.
    pub(crate) async fn send_within(&mut self, time: Duration, bytes: &[u8]) -> usize {
        let mut sent = 0;
        let writing = async {
            while sent < bytes.len() {
                match self.stream.write(&bytes[sent..]).await {
                    Ok(n) => sent += n,
                    Err(_) => break,
                }
            }
        };
        let _ = timeout(time, writing).await;
        sent
    }

    /// Says that there is nothing more to send.
    pub(crate) async fn finish(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    /// Ends the connection with a reset.
    pub(crate) fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }

    /// Reads on; false at the end.
    async fn fill(&mut self) -> bool {
        let read = soon("bytes", self.stream.read_buf(&mut self.buffer)).await;
        read.is_ok_and(|n| n > 0)
    }

    /// Reads to the empty line that ends a head.
    pub(crate) async fn head(&mut self) -> Head {
        let head = self.head_or_end().await;
        head.expect("a head, not the end of the connection")
    }

    pub(crate) async fn head_or_end(&mut self) -> Option<Head> {
        loop {
            if let Some(at) = self.buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                let head: Vec<u8> = self.buffer.drain(..at + 4).collect();
                return Some(Head::parse(std::str::from_utf8(&head).unwrap()));
            }
            if !self.fill().await {
                assert!(self.buffer.is_empty(), "{}", self.buffer.escape_ascii());
                return None;
            }
        }
    }

    pub(crate) async fn bytes(&mut self, n: usize) -> Vec<u8> {
        while self.buffer.len() < n {
            assert!(self.fill().await, "ended after {}", self.buffer.escape_ascii());
        }
        self.buffer.drain(..n).collect()
    }

    pub(crate) async fn expect(&mut self, text: &str) {
        let bytes = self.bytes(text.len()).await;
        assert_eq!(String::from_utf8_lossy(&bytes), text);
    }

    async fn line(&mut self) -> String {
        loop {
            if let Some(at) = self.buffer.windows(2).position(|w| w == b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..at + 2).collect();
                return String::from_utf8(line[..at].to_vec()).unwrap();
            }
            assert!(self.fill().await, "ended after {}", self.buffer.escape_ascii());
        }
    }

    /// Reads whatever comes until the connection ends.
    pub(crate) async fn until_end(&mut self) -> Vec<u8> {
        while self.fill().await {}
        std::mem::take(&mut self.buffer)
    }

    /// Reads and throws away so many bytes, or all before the end; returns how
    /// many.
    pub(crate) async fn count_of(&mut self, size: u64) -> u64 {
        let mut count = std::mem::take(&mut self.buffer).len() as u64;
        let mut part = vec![0; 256 << 10];
        while count < size {
            match soon("bytes", self.stream.read(&mut part)).await {
                Ok(0) | Err(_) => break,
                Ok(n) => count += n as u64,
            }
        }
        count
    }

    /// Whether nothing comes for a while; what comes is kept.
    pub(crate) async fn is_quiet_for(&mut self, time: Duration) -> bool {
        let before = self.buffer.len();
        let _ = timeout(time, self.stream.read_buf(&mut self.buffer)).await;
        self.buffer.len() == before
    }

    /// Reads a chunked body and its trailers.
    pub(crate) async fn chunked(&mut self) -> (Vec<u8>, Vec<String>) {
        let mut body = Vec::new();
        loop {
            let size = usize::from_str_radix(&self.line().await, 16).unwrap();
            if size == 0 {
                break;
            }
            body.extend(self.bytes(size).await);
            self.expect("\r\n").await;
        }
        let mut trailers = Vec::new();
        loop {
            match self.line().await {
                line if line.is_empty() => return (body, trailers),
                line => trailers.push(line),
            }
        }
    }

    /// Reads a whole response to a GET.
    pub(crate) async fn reply(&mut self) -> Reply {
        self.reply_or_end().await.expect("a response, not the end of the connection")
    }

    pub(crate) async fn reply_or_end(&mut self) -> Option<Reply> {
        let head = self.head_or_end().await?;
        let is_chunked = head.get("transfer-encoding") == Some("chunked");
        let length = head.get("content-length").map(|length| length.parse().unwrap());
        let body = match length {
            _ if is_chunked => {
                assert_eq!(length, None, "one framing only");
                self.chunked().await.0
            }
            Some(length) => self.bytes(length).await,
            None if matches!(head.status(), 100..=199 | 204 | 304) => Vec::new(),
            None => self.until_end().await,
        };
        Some(Reply { head, body: String::from_utf8(body).unwrap() })
    }
}

/// A start line and the fields below it; names in lower case.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) start: String,
    pub(crate) fields: Vec<(String, String)>,
}

impl Head {
    fn parse(text: &str) -> Self {
        let mut lines = text.trim_end().split("\r\n");
        let start = lines.next().unwrap().to_owned();
        let field = |line: &str| {
            let (name, value) = line.split_once(':').expect("a field");
            (name.to_ascii_lowercase(), value.trim().to_owned())
        };
        Self { start, fields: lines.map(field).collect() }
    }

    /// The status of a response.
    pub(crate) fn status(&self) -> u16 {
        self.start.split(' ').nth(1).unwrap().parse().unwrap()
    }

    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let fields = self.fields.iter().filter(|(field, _)| field == name);
        fields.map(|(_, value)| value.as_str()).collect()
    }

    /// The value of a field that stands there once at most.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let values = self.all(name);
        assert!(values.len() < 2, "{name} more than once: {self:?}");
        values.first().copied()
    }

    /// The fields but those that a proxy adds by the rules.
    pub(crate) fn but(&self, names: &[&str]) -> Vec<(&str, &str)> {
        let fields = self.fields.iter().filter(|(name, _)| !names.contains(&name.as_str()));
        fields.map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }
}

/// A whole response.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) head: Head,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn status(&self) -> u16 {
        self.head.status()
    }
}
