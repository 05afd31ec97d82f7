//! Clients that ask for pages, one request after the other, at a fixed pace.

use std::net::SocketAddr;
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

const CLIENTS: usize = 100;

/// Between two requests of one client.
const PACE: Duration = Duration::from_millis(100);

/// One request of so many is for a page that no client has asked for before.
const NEW_EVERY: u64 = 10;

/// What the clients have seen in one slice.
pub(crate) struct Slice {
    times: Histogram<u64>,
    pub(crate) errors: u64,
}

impl Slice {
    fn new() -> Self {
        Self {
            times: Histogram::new_with_bounds(1, 60_000_000, 3).expect("valid bounds"),
            errors: 0,
        }
    }

    pub(crate) fn p50(&self) -> f64 {
        self.times.value_at_quantile(0.5) as f64 / 1000.0
    }

    pub(crate) fn p99(&self) -> f64 {
        self.times.value_at_quantile(0.99) as f64 / 1000.0
    }
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(proxy: SocketAddr, time: Duration) -> Slice {
    let begun = Instant::now();
    let clients = (0..CLIENTS).map(|n| tokio::spawn(client(proxy, n, begun, time)));
    let clients: Vec<_> = clients.collect();
    let mut all = Slice::new();
    for client in clients {
        let slice = client.await.expect("no client panics");
        all.times.add(slice.times).expect("the same range");
        all.errors += slice.errors;
    }
    all
}

async fn client(proxy: SocketAddr, n: usize, begun: Instant, time: Duration) -> Slice {
    let (mut slice, mut stream, mut count) = (Slice::new(), None, 0);
    // The clients do not all ask at one moment.
    let mut ticks = interval_at(begun + PACE.mul_f64(n as f64 / CLIENTS as f64), PACE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while begun.elapsed() < time {
        ticks.tick().await;
        count += 1;
        let path = match count % NEW_EVERY {
            0 => format!("/new/{n}/{}", fastrand::u64(..)),
            _ => format!("/page/{}", count % 50),
        };
        let asked = Instant::now();
        match ask(&mut stream, proxy, &path).await {
            Ok(()) => slice.times.saturating_record(asked.elapsed().as_micros() as u64),
            Err(error) => {
                let millis = asked.elapsed().as_millis();
                eprintln!("{path} after {millis} ms: {error}");
                slice.errors += 1;
                stream = None;
            }
        }
    }
    slice
}

async fn ask(kept: &mut Option<TcpStream>, proxy: SocketAddr, path: &str) -> std::io::Result<()> {
    let stream = match kept {
        Some(stream) => stream,
        None => {
            let stream = TcpStream::connect(proxy).await?;
            stream.set_nodelay(true)?;
            kept.insert(stream)
        }
    };
    let request = format!("GET {path} HTTP/1.1\r\nHost: shop.example\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut read = Vec::with_capacity(2048);
    loop {
        if stream.read_buf(&mut read).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        // The body of each page has 1 KiB.
        let head = read.windows(4).position(|w| w == b"\r\n\r\n");
        if head.is_some_and(|at| read.len() >= at + 4 + 1024) {
            let is_good = read.starts_with(b"HTTP/1.1 200");
            return if is_good { Ok(()) } else { Err(std::io::ErrorKind::InvalidData.into()) };
        }
    }
}
