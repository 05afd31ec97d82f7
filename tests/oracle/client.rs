//! A client that writes HTTP/1.1 as it likes, and HTTP/2 by the book.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::ask::{Ask, Form};
use crate::judge::{Reply, Source};

/// After this long, an answer does not come any more.
const GIVE_UP: Duration = Duration::from_secs(3);

/// Fields that HTTP/2 has no place for (RFC 9113, 8.2.2).
const OF_HTTP1: [&str; 5] =
    ["connection", "upgrade", "keep-alive", "proxy-connection", "transfer-encoding"];

type Connections = HashMap<(SocketAddr, u8), SendRequest<Full<Bytes>>>;

#[derive(Clone, Default)]
pub(crate) struct Client(Arc<Mutex<Connections>>);

impl Client {
    /// Returns the whole reply, or nothing where the connection ended.
    pub(crate) async fn send(&self, to: SocketAddr, ask: &Ask) -> Option<Reply> {
        let limit = ask.hangs_up.map_or(GIVE_UP, Duration::from_millis);
        let sending = async {
            match ask.form {
                Form::Http2 => self.by_http2(to, ask).await,
                Form::Origin | Form::Absolute => by_http1(to, ask).await,
            }
        };
        timeout(limit, sending).await.ok().flatten()
    }

    async fn by_http2(&self, to: SocketAddr, ask: &Ask) -> Option<Reply> {
        let mut request = Request::new(Full::from(ask.body.clone()));
        *request.method_mut() = ask.method.parse().ok()?;
        *request.uri_mut() = ask.uri().parse().ok()?;
        for (name, value) in &ask.fields {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            let is_fit =
                !OF_HTTP1.contains(&name.as_str()) && (name != "te" || value == "trailers");
            if is_fit {
                request.headers_mut().append(name, HeaderValue::from_str(value.trim()).ok()?);
            }
        }
        let mut sender = self.connection(to, ask.address).await?;
        let response = sender.send_request(request).await.ok()?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.ok()?.to_bytes();
        Some(reply(head.status.as_u16(), &head.headers, &body))
    }

    async fn connection(&self, to: SocketAddr, from: u8) -> Option<SendRequest<Full<Bytes>>> {
        let kept = self.0.lock().get(&(to, from)).filter(|kept| !kept.is_closed()).cloned();
        if kept.is_some() {
            return kept;
        }
        let io = TokioIo::new(connect(to, from).await?);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.ok()?;
        tokio::spawn(connection);
        self.0.lock().insert((to, from), sender.clone());
        Some(sender)
    }
}

async fn connect(to: SocketAddr, from: u8) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().ok()?;
    socket.bind((Ipv4Addr::new(127, 0, 0, from), 0).into()).ok()?;
    let stream = socket.connect(to).await.ok()?;
    stream.set_nodelay(true).ok()?;
    // No port waits for the end of a connection that is done.
    stream.set_zero_linger().ok()?;
    Some(stream)
}

async fn by_http1(to: SocketAddr, ask: &Ask) -> Option<Reply> {
    let mut stream = connect(to, ask.address).await?;
    let mut text = format!("{} {} HTTP/1.1\r\n", ask.method, ask.uri());
    for (name, value) in &ask.fields {
        text += &format!("{name}: {value}\r\n");
    }
    if !ask.body.is_empty() {
        text += &format!("Content-Length: {}\r\n", ask.body.len());
    }
    text += &format!("\r\n{}", ask.body);
    stream.write_all(text.as_bytes()).await.ok()?;
    let mut bytes = Vec::new();
    loop {
        let (status, headers) = head(&mut stream, &mut bytes).await?;
        match status {
            101 => return None,
            100..200 => {}
            _ => {
                let has_body = ask.method != "HEAD" && status != 204 && status != 304;
                let body =
                    if has_body { body(&mut stream, bytes, &headers).await? } else { Vec::new() };
                return Some(reply(status, &headers, &body));
            }
        }
    }
}

/// Reads a head, and takes it from `bytes`.
async fn head(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<(u16, HeaderMap)> {
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(bytes).await.ok()? == 0 {
            return None;
        }
    };
    let text = String::from_utf8(bytes.drain(..end + 4).collect()).ok()?;
    let mut lines = text.trim_end().split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(':')?;
        headers.append(HeaderName::from_bytes(name.as_bytes()).ok()?, value.trim().parse().ok()?);
    }
    Some((status, headers))
}

async fn body(stream: &mut TcpStream, mut bytes: Vec<u8>, headers: &HeaderMap) -> Option<Vec<u8>> {
    let length = headers.get("content-length").and_then(|length| length.to_str().ok());
    let length: Option<usize> = length.and_then(|length| length.parse().ok());
    loop {
        let done = match length {
            Some(length) => (bytes.len() >= length).then(|| bytes[..length].to_vec()),
            None => chunked(&bytes),
        };
        if done.is_some() {
            return done;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

/// Returns the content of a chunked body once all of it is here.
fn chunked(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    loop {
        let end = bytes.windows(2).position(|window| window == b"\r\n")?;
        let size = usize::from_str_radix(str::from_utf8(&bytes[..end]).ok()?, 16).ok()?;
        bytes = &bytes[end + 2..];
        if size == 0 {
            return Some(content);
        }
        content.extend_from_slice(bytes.get(..size)?);
        bytes = bytes.get(size + 2..)?;
    }
}

fn reply(status: u16, headers: &HeaderMap, body: &[u8]) -> Reply {
    let said = headers.get("cache-status").and_then(|said| said.to_str().ok()).unwrap_or_default();
    let source = match said {
        _ if said.contains("collapsed") => Source::Joined,
        _ if said.contains("hit; ttl=-") => Source::Stale,
        _ if said.contains("; hit") => Source::Hit,
        _ => Source::Own,
    };
    Reply::new(status, headers, source, body)
}
