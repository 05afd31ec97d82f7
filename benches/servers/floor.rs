//! The least that a crowd of clients can wait for: a server that answers
//! without any work.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::ExitCode;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpSocket;

/// Serves until it is killed, each path with what `answer` makes of it, and
/// says first where.
#[tokio::main]
pub(crate) async fn serve(answer: fn(&str) -> Bytes) -> ExitCode {
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    let listener = socket.listen(8192).expect("a listener");
    println!("{}", listener.local_addr().expect("it is bound"));
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        stream.set_nodelay(true).expect("a connection of TCP");
        tokio::spawn(async move {
            let service = service_fn(|request: Request<Incoming>| async move {
                let body = Full::new(answer(request.uri().path()));
                Ok::<_, Infallible>(Response::new(body))
            });
            // The client leaves when it has its answer.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}
