//! A herd of real clients: one TCP connection each, all open before the first
//! request goes out. A browser cannot do this, it opens six.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request, StatusCode, header};
use http_body_util::BodyExt;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

/// After how long a client gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long after the first request the others come.
const FOLLOW: Duration = Duration::from_millis(20);
/// When the first client hangs up.
const HANG_UP: Duration = Duration::from_millis(50);

/// How a client got its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It made the origin work.
    Called,
    /// It waited for another one's call.
    Waited,
    /// Its answer was stored, and fresh.
    Hit,
    /// Its answer was stored, and stale.
    Stale,
    /// It made the origin work, and got an error.
    CalledInVain,
    /// It got an error without having made the origin work, or no answer.
    Failed,
    /// It hung up before.
    Left,
}

/// What one client can tell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
}

/// Opens `clients` connections, then asks on all of them at once.
pub(crate) async fn stampede(to: SocketAddr, path: &str, clients: usize) -> io::Result<Vec<Reply>> {
    let connections = connect(to, clients).await?;
    Ok(ask_at_once(connections, to, path).await)
}

/// One client asks, `others` follow, and the first hangs up.
pub(crate) async fn leader_leaves(
    to: SocketAddr,
    path: &str,
    others: usize,
) -> io::Result<Vec<Reply>> {
    let mut first = connect(to, 1).await?;
    let rest = connect(to, others).await?;
    let Some(first) = first.pop() else { return Ok(Vec::new()) };
    let (url, host) = (path.to_owned(), to.to_string());
    let first = tokio::spawn(async move {
        // What is dropped here closes the connection.
        let answer = tokio::time::timeout(HANG_UP, ask(first, &url, &host)).await;
        answer.unwrap_or(Reply { outcome: Outcome::Left, took: HANG_UP })
    });
    tokio::time::sleep(FOLLOW).await;
    let mut replies = ask_at_once(rest, to, path).await;
    if let Ok(reply) = first.await {
        replies.insert(0, reply);
    }
    Ok(replies)
}

/// An open connection, closed when dropped.
pub(crate) struct Client {
    pub(crate) sender: SendRequest<Body>,
    _connection: JoinSet<()>,
}

pub(crate) async fn connect(to: SocketAddr, clients: usize) -> io::Result<Vec<Client>> {
    let mut open = Vec::with_capacity(clients);
    for _ in 0..clients {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        let mut task = JoinSet::new();
        // Its error is also the request's, which reports it.
        task.spawn(async move { drop(connection.await) });
        open.push(Client { sender, _connection: task });
    }
    Ok(open)
}

/// What the page is told where the connections cannot be had.
pub(crate) fn unreachable(error: &io::Error) -> (StatusCode, String) {
    let hint = "can this process open that many files? see `ulimit -n`";
    (StatusCode::SERVICE_UNAVAILABLE, format!("the herd could not connect: {error}; {hint}\n"))
}

async fn ask_at_once(clients: Vec<Client>, to: SocketAddr, path: &str) -> Vec<Reply> {
    let start = Arc::new(Barrier::new(clients.len()));
    let mut asking = JoinSet::new();
    for client in clients {
        let (start, path, host) = (Arc::clone(&start), path.to_owned(), to.to_string());
        asking.spawn(async move {
            start.wait().await;
            ask(client, &path, &host).await
        });
    }
    asking.join_all().await
}

async fn ask(mut client: Client, path: &str, host: &str) -> Reply {
    let began = Instant::now();
    let answer = tokio::time::timeout(PATIENCE, answer(&mut client.sender, path, host)).await;
    let outcome = match answer {
        Ok(Ok((status, headers))) => outcome(status, &headers),
        _ => Outcome::Failed,
    };
    Reply { outcome, took: began.elapsed() }
}

/// Asks, and reads the answer to its end.
async fn answer(
    sender: &mut SendRequest<Body>,
    path: &str,
    host: &str,
) -> Result<(StatusCode, HeaderMap), Box<dyn std::error::Error + Send + Sync>> {
    let request = Request::get(path).header(header::HOST, host).body(Body::empty())?;
    let (head, body) = sender.send_request(request).await?.into_parts();
    let _: Bytes = body.collect().await?.to_bytes();
    Ok((head.status, head.headers))
}

/// Reads `Cache-Status` (RFC 9211), as any client could.
fn outcome(answer: StatusCode, headers: &HeaderMap) -> Outcome {
    let status = headers.get("cache-status").and_then(|value| value.to_str().ok());
    let has = |word: &str| {
        status.is_some_and(|status| status.split(';').any(|part| part.trim().starts_with(word)))
    };
    // Without the layer no field says it; then the origin computed.
    let called = status.is_none() || has("fwd-status");
    match answer {
        StatusCode::OK if has("hit") && has("ttl=-") => Outcome::Stale,
        StatusCode::OK if has("hit") => Outcome::Hit,
        StatusCode::OK if has("collapsed") => Outcome::Waited,
        StatusCode::OK => Outcome::Called,
        _ if called => Outcome::CalledInVain,
        _ => Outcome::Failed,
    }
}
