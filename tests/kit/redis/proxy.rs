//! A TCP proxy that does what networks do, and counts what clients send.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

/// Stands between clients and one server. Runs on a thread of its own, until
/// dropped; then its connections are closed.
pub(crate) struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    target: AtomicU16,
    weather: watch::Sender<Weather>,
    commands: Mutex<Vec<String>>,
    accepted: AtomicUsize,
    open: AtomicUsize,
}

/// What happens to bytes at present.
#[derive(Clone, Default)]
struct Weather {
    requests: Flow,
    replies: Flow,
    delay: Duration,
    /// For how long a new connection is kept from the server.
    handshake: Duration,
    /// Bytes of replies, over all connections, after which a connection that
    /// has more is closed.
    reply_bytes: Option<Arc<AtomicUsize>>,
    refuses: bool,
    blocks_subscribers: bool,
    mutes_subscribers: bool,
    /// How often all connections were cut, and how often subscribers were.
    cuts: usize,
    subscriber_cuts: usize,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Flow {
    #[default]
    Passes,
    /// Kept until it passes again.
    Stalls,
    /// Taken and lost.
    IsSwallowed,
}

impl Proxy {
    /// Begins to forward to this port.
    pub(crate) fn start(target: u16) -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            target: AtomicU16::new(target),
            weather: watch::Sender::default(),
            commands: Mutex::default(),
            accepted: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
        });
        let (stop, stopped) = oneshot::channel();
        let server = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                tokio::select! {
                    () = accept(listener, server) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { port, shared, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Forwards to this port from now on, and closes every connection to the one before: an
    /// address that always leads to the primary.
    pub(crate) fn lead_to(&self, target: u16) {
        self.lead_next_to(target);
        self.cut();
    }

    /// Forwards new connections to this port. Those that are open stay where they are.
    pub(crate) fn lead_next_to(&self, target: u16) {
        self.shared.target.store(target, Ordering::SeqCst);
    }

    /// Ends every fault. A connection whose bytes were swallowed is closed.
    pub(crate) fn pass(&self) {
        self.set(|weather| {
            let Weather { cuts, subscriber_cuts, .. } = *weather;
            *weather = Weather { cuts, subscriber_cuts, ..Weather::default() };
        });
    }

    /// Lets every reply take so much longer.
    pub(crate) fn delay(&self, delay: Duration) {
        self.set(|weather| weather.delay = delay);
    }

    /// Keeps new connections from the server for this long, as a slow handshake does.
    pub(crate) fn slow_handshakes(&self, handshake: Duration) {
        self.set(|weather| weather.handshake = handshake);
    }

    /// Loses what clients send; connections stay.
    pub(crate) fn swallow(&self) {
        self.set(|weather| weather.requests = Flow::IsSwallowed);
    }

    /// Loses what the server sends; commands are executed.
    pub(crate) fn lose_replies(&self) {
        self.set(|weather| weather.replies = Flow::IsSwallowed);
    }

    /// Half-opens every connection: nothing goes either way, nothing is
    /// closed, new ones are accepted. What was sent arrives after
    /// [`pass`](Self::pass).
    pub(crate) fn stall(&self) {
        self.set(|weather| {
            weather.requests = Flow::Stalls;
            weather.replies = Flow::Stalls;
        });
    }

    /// Closes every connection there is.
    pub(crate) fn cut(&self) {
        self.set(|weather| weather.cuts += 1);
    }

    /// Lets so many more bytes of replies through, over all connections; then
    /// a connection with more to say is closed.
    pub(crate) fn cut_after(&self, reply_bytes: usize) {
        let left = Arc::new(AtomicUsize::new(reply_bytes));
        self.set(|weather| weather.reply_bytes = Some(left));
    }

    /// Closes new connections at once.
    pub(crate) fn refuse_connections(&self, refuse: bool) {
        self.set(|weather| weather.refuses = refuse);
    }

    /// Closes the connections that have subscribed to something.
    pub(crate) fn cut_subscribers(&self) {
        self.set(|weather| weather.subscriber_cuts += 1);
    }

    /// Closes them, and every connection that subscribes from now on.
    pub(crate) fn block_subscribers(&self, block: bool) {
        self.set(|weather| {
            weather.blocks_subscribers = block;
            weather.subscriber_cuts += 1;
        });
    }

    /// Loses what subscribers are sent.
    pub(crate) fn mute_subscribers(&self, mute: bool) {
        self.set(|weather| weather.mutes_subscribers = mute);
    }

    /// The commands that clients have sent, in order, by name in upper case.
    pub(crate) fn commands(&self) -> Vec<String> {
        self.shared.commands.lock().unwrap().clone()
    }

    /// How often each was sent.
    pub(crate) fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for command in self.commands() {
            *counts.entry(command).or_default() += 1;
        }
        counts
    }

    pub(crate) fn count(&self, command: &str) -> usize {
        self.commands().iter().filter(|sent| *sent == command).count()
    }

    /// Begins to count anew.
    pub(crate) fn forget_commands(&self) {
        self.shared.commands.lock().unwrap().clear();
    }

    /// How many connections were opened so far, refused ones included.
    pub(crate) fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many connections are open.
    pub(crate) fn open(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    fn set(&self, change: impl FnOnce(&mut Weather)) {
        self.shared.weather.send_modify(change);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        shared.accepted.fetch_add(1, Ordering::SeqCst);
        if !shared.weather.borrow().refuses {
            tokio::spawn(Connection::new(&shared).serve(client));
        }
    }
}

struct Connection {
    shared: Arc<Shared>,
    /// How often connections had been cut when this one was made.
    cuts: usize,
    is_subscriber: AtomicBool,
    has_lost_bytes: AtomicBool,
}

impl Connection {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.open.fetch_add(1, Ordering::SeqCst);
        let (shared, cuts) = (Arc::clone(shared), shared.weather.borrow().cuts);
        let (is_subscriber, has_lost_bytes) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { shared, cuts, is_subscriber, has_lost_bytes }
    }

    async fn serve(self, client: TcpStream) {
        let handshake = self.shared.weather.borrow().handshake;
        if !handshake.is_zero() {
            tokio::time::sleep(handshake).await;
        }
        let port = self.shared.target.load(Ordering::SeqCst);
        let target = (Ipv4Addr::LOCALHOST, port);
        let Ok(server) = TcpStream::connect(target).await else { return };
        for stream in [&client, &server] {
            stream.set_nodelay(true).unwrap();
        }
        let (client_reads, client_writes) = client.into_split();
        let (server_reads, server_writes) = server.into_split();
        tokio::select! {
            _ = self.requests(client_reads, server_writes) => {}
            _ = self.replies(server_reads, client_writes) => {}
            () = self.cut() => {}
        }
    }

    async fn cut(&self) {
        let mut weather = self.shared.weather.subscribe();
        let subscriber_cuts = weather.borrow().subscriber_cuts;
        let is_cut = |weather: &Weather| {
            let clear =
                weather.requests != Flow::IsSwallowed && weather.replies != Flow::IsSwallowed;
            weather.cuts != self.cuts
                || (self.is_subscriber() && weather.subscriber_cuts != subscriber_cuts)
                || (clear && self.has_lost_bytes.load(Ordering::SeqCst))
        };
        let _ = weather.wait_for(is_cut).await;
    }

    fn is_subscriber(&self) -> bool {
        self.is_subscriber.load(Ordering::SeqCst)
    }

    async fn requests(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> Option<()> {
        let (mut bytes, mut parser) = (vec![0; 64 * 1024], Parser::default());
        loop {
            self.flow(|weather| weather.requests).await?;
            let len = from.read(&mut bytes).await.ok().filter(|len| *len > 0)?;
            self.note(&parser.feed(&bytes[..len]))?;
            match self.flow(|weather| weather.requests).await? {
                Flow::IsSwallowed => self.has_lost_bytes.store(true, Ordering::SeqCst),
                _ => to.write_all(&bytes[..len]).await.ok()?,
            }
        }
    }

    /// Writes down what was sent. None when the connection is to be closed.
    fn note(&self, commands: &[String]) -> Option<()> {
        self.shared.commands.lock().unwrap().extend_from_slice(commands);
        if commands.iter().any(|command| command.ends_with("SUBSCRIBE")) {
            self.is_subscriber.store(true, Ordering::SeqCst);
        }
        let blocks = self.shared.weather.borrow().blocks_subscribers;
        (!blocks || !self.is_subscriber()).then_some(())
    }

    async fn replies(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> Option<()> {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            self.flow(|weather| weather.replies).await?;
            let len = from.read(&mut bytes).await.ok().filter(|len| *len > 0)?;
            let delay = self.shared.weather.borrow().delay;
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            let flow = self.flow(|weather| weather.replies).await?;
            let weather = self.shared.weather.borrow().clone();
            if flow == Flow::IsSwallowed {
                self.has_lost_bytes.store(true, Ordering::SeqCst);
                continue;
            }
            if self.is_subscriber() && weather.mutes_subscribers {
                continue;
            }
            let allowed = weather.reply_bytes.map_or(len, |left| take(&left, len));
            to.write_all(&bytes[..allowed]).await.ok()?;
            if allowed < len {
                return None;
            }
        }
    }

    /// Waits while bytes are stalled.
    async fn flow(&self, of: impl Fn(&Weather) -> Flow) -> Option<Flow> {
        let mut weather = self.shared.weather.subscribe();
        let moving = pin!(weather.wait_for(|weather| of(weather) != Flow::Stalls)).await;
        moving.ok().map(|weather| of(&weather))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Takes up to `wanted` from what is left.
fn take(left: &AtomicUsize, wanted: usize) -> usize {
    let before = left
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| Some(left.saturating_sub(wanted)));
    before.unwrap_or_default().min(wanted)
}

/// Finds the names of commands in what a client sends: arrays of strings.
#[derive(Default)]
struct Parser {
    pending: Vec<u8>,
}

impl Parser {
    fn feed(&mut self, bytes: &[u8]) -> Vec<String> {
        self.pending.extend_from_slice(bytes);
        let mut names = Vec::new();
        let mut at = 0;
        while let Some((name, end)) = command(&self.pending, at) {
            names.push(name);
            at = end;
        }
        self.pending.drain(..at);
        names
    }
}

/// Reads one whole command from `at` on: its name and where it ends.
fn command(bytes: &[u8], at: usize) -> Option<(String, usize)> {
    let (parts, mut at) = header(bytes, at, b'*')?;
    let mut name = None;
    for _ in 0..parts {
        let (len, begin) = header(bytes, at, b'$')?;
        let part = bytes.get(begin..begin + len)?;
        bytes.get(begin + len..begin + len + 2)?;
        name.get_or_insert_with(|| String::from_utf8_lossy(part).to_uppercase());
        at = begin + len + 2;
    }
    Some((name.unwrap_or_default(), at))
}

/// Reads `*2\r\n` or `$5\r\n`: the number and where the next thing begins.
fn header(bytes: &[u8], at: usize, kind: u8) -> Option<(usize, usize)> {
    let rest = bytes.get(at..)?;
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let (first, digits) = rest[..end].split_first()?;
    assert_eq!(*first, kind, "no client sends this");
    Some((std::str::from_utf8(digits).ok()?.parse().ok()?, at + end + 2))
}
