//! A thousand hostile clients, from ten addresses. One that is cut off comes again.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::sleep;

use crate::HOSTILE;

const DRIP: Duration = Duration::from_millis(700);

/// Before a client that was cut off comes again.
const AGAIN: Duration = Duration::from_millis(200);

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(proxy: SocketAddr) -> ExitCode {
    let clients: Vec<_> = (0..HOSTILE).map(|n| tokio::spawn(client(proxy, n))).collect();
    for client in clients {
        client.await.expect("no client panics");
    }
    ExitCode::SUCCESS
}

async fn client(proxy: SocketAddr, n: usize) {
    // Not all at one moment.
    sleep(Duration::from_millis(n as u64 * 2)).await;
    loop {
        let _ = once(proxy, n).await;
        sleep(AGAIN).await;
    }
}

async fn once(proxy: SocketAddr, n: usize) -> io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4096)?;
    let from = Ipv4Addr::new(127, 0, 1, 1 + (n / 10 % 10) as u8);
    socket.bind((from, 0).into())?;
    let mut stream = socket.connect(proxy).await?;
    stream.set_nodelay(true)?;
    let path =
        |kind: &str| format!("GET /{kind}/{n}/{} HTTP/1.1\r\nHost: a\r\n\r\n", fastrand::u64(..));
    match n % 10 {
        // It says nothing.
        0 => gone(stream).await,
        1 => drip(stream, "GET / HTTP/1.1\r\nHost: a\r\nX: ", b"x").await,
        2 => drip(stream, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999\r\n\r\n", b"x").await,
        // It sends half of a body, and no more.
        3 => {
            stream
                .write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999\r\n\r\nhalf")
                .await?;
            gone(stream).await
        }
        // It does not read.
        4 => {
            stream.write_all(path("large").as_bytes()).await?;
            std::future::pending().await
        }
        5 => pings(stream).await,
        kind => {
            let kind = ["silent", "half-head", "stalled", "dripping"][kind - 6];
            stream.write_all(path(kind).as_bytes()).await?;
            gone(stream).await
        }
    }
}

/// Waits until the proxy ends the connection.
async fn gone(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = [0; 1024];
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
}

async fn drip(stream: TcpStream, head: &str, part: &[u8]) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    write.write_all(head.as_bytes()).await?;
    let dripping = async {
        loop {
            write.write_all(part).await?;
            sleep(DRIP).await;
        }
    };
    tokio::select! {
        ended = dripping => ended,
        ended = read.readable() => ended,
    }
}

/// A connection of HTTP/2 that only answers pings.
async fn pings(stream: TcpStream) -> io::Result<()> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(1))
        .keep_alive_while_idle(true);
    let connected = builder.handshake::<_, Empty<Bytes>>(TokioIo::new(stream)).await;
    let (_sender, connection) = connected.map_err(io::Error::other)?;
    connection.await.map_err(io::Error::other)
}
