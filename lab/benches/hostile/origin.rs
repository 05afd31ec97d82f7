//! The origin: good pages, and paths at which it is hostile.

use std::process::ExitCode;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

/// How long a page takes.
const WORK: Duration = Duration::from_millis(20);

const DRIP: Duration = Duration::from_millis(700);

#[tokio::main]
pub(crate) async fn serve() -> ExitCode {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    println!("listening on http://{}", listener.local_addr().expect("it has an address"));
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(connection(stream));
        }
    }
}

/// Answers request after request; `None` ends the connection.
async fn connection(mut stream: TcpStream) -> Option<()> {
    let _ = stream.set_nodelay(true);
    let mut buffer = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            if stream.read_buf(&mut buffer).await.ok()? == 0 {
                return None;
            }
        };
        let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
        buffer.drain(..end);
        answer(&mut stream, head.split(' ').nth(1)?).await?;
    }
}

async fn answer(stream: &mut TcpStream, path: &str) -> Option<()> {
    let endless = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 8388608\r\n\r\n";
    match path.split('/').nth(1)? {
        // Nothing ever comes.
        "silent" => std::future::pending().await,
        "half-head" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nX: ").await.ok()?;
            std::future::pending().await
        }
        "stalled" => {
            stream.write_all(endless.as_bytes()).await.ok()?;
            stream.write_all(b"half").await.ok()?;
            std::future::pending().await
        }
        "dripping" => {
            stream.write_all(endless.as_bytes()).await.ok()?;
            loop {
                stream.write_all(b"x").await.ok()?;
                sleep(DRIP).await;
            }
        }
        "large" => {
            stream.write_all(endless.as_bytes()).await.ok()?;
            let part = [b'x'; 64 << 10];
            for _ in 0..128 {
                stream.write_all(&part).await.ok()?;
            }
            Some(())
        }
        _ => {
            sleep(WORK).await;
            let page = "x".repeat(1024);
            let head =
                "HTTP/1.1 200 OK\r\nCache-Control: max-age=1\r\nContent-Length: 1024\r\n\r\n";
            stream.write_all(format!("{head}{page}").as_bytes()).await.ok()
        }
    }
}
