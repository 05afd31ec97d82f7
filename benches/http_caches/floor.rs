//! The least that as many clients can wait.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpSocket;

use crate::plays::Round;
use crate::proxy_support::Crowd;
use crate::proxy_support::stage::same;
use crate::servers::Server;

/// A process of our own that answers without any work.
pub(crate) struct Floor(Server);

impl Floor {
    pub(crate) fn start() -> Self {
        Self(Server::ourselves(None, &["--floor"]))
    }

    pub(crate) async fn crowd(&self, clients: usize) -> Vec<Duration> {
        let outcomes = Crowd::ask(&[self.0.address], same(clients)).outcomes().await;
        Round { hits: 0, outcomes }.times(|seen| seen.whole)
    }
}

#[tokio::main]
pub(crate) async fn process() -> ExitCode {
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    let listener = socket.listen(8192).expect("a listener");
    println!("{}", listener.local_addr().expect("it is bound"));
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        stream.set_nodelay(true).expect("a connection of TCP");
        tokio::spawn(async move {
            let service = service_fn(|_| async {
                let body = Full::new(Bytes::from_static(b"answer 1 to all"));
                Ok::<_, Infallible>(Response::new(body))
            });
            // The client leaves when it has its answer.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}
