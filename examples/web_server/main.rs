//! An axum server whose expensive handler stands behind the layer, with a page
//! that shows what a herd does to it, and to the same handler without.
//!
//! ```sh
//! cargo run --release --example web_server            # then open http://127.0.0.1:3000
//! cargo run --release --example web_server -- --help  # the flags
//!
//! # Several instances that compute once together, on one Redis:
//! cargo run --release --example web_server -- --redis redis://127.0.0.1 --listen 127.0.0.1:3001
//! cargo run --release --example web_server -- --redis redis://127.0.0.1 --listen 127.0.0.1:3002
//! ```
//!
//! `routes.rs` is where the layer is put in front of the handlers; the rest is
//! a server like any other, and the page. `stage/` starts the processes that the page shows.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tower_stampede::HttpStampede;

use crate::child::Child;
use crate::demo::Demo;
use crate::flags::{Command, Flags};
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::origin::Origin;
use crate::stage::{Access, Stages};
use crate::stream::StreamDemo;

mod child;
mod connection;
mod demo;
mod flags;
mod herd;
mod limits;
mod listen;
mod metrics;
mod origin;
mod page;
#[cfg(feature = "redis")]
mod redis;
#[cfg(not(feature = "redis"))]
#[path = "redis_off.rs"]
mod redis;
mod routes;
mod signal;
mod stage;
mod stats;
mod stream;
mod texts;
mod values;
mod warm;

/// How long connections and computations may take to end once we are told to.
const DRAIN: Duration = Duration::from_secs(10);

/// What the handlers share.
struct App {
    cache: HttpStampede,
    origin: Origin,
    demo: Demo,
    stream: StreamDemo,
    /// What the page starts; none where other machines could press its buttons.
    stages: Option<Arc<Stages>>,
    /// Set if the page of another process has started this one.
    child: Option<Child>,
    metrics: Metrics,
    flags: Flags,
}

fn main() -> ExitCode {
    let flags = match flags::parse(std::env::args_os()) {
        Ok(Command::Serve(flags)) => *flags,
        Ok(Command::Help) => {
            print!("{}", flags::HELP);
            return ExitCode::SUCCESS;
        }
        Ok(Command::KeepRedis(port)) => return stage::redis_server::keep(port),
        Err(message) => return refuse(&message),
    };
    // Before the cache: it makes its meters when it is built.
    let metrics = match Metrics::install("web") {
        Ok(metrics) => metrics,
        Err(error) => return fail(&*error),
    };
    let cache = match flags.cache() {
        Ok(cache) => cache,
        Err(message) => return refuse(&message),
    };
    match run(flags, &cache, metrics) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&*error),
    }
}

/// Ends a start whose flags cannot be followed.
fn refuse(message: &str) -> ExitCode {
    eprintln!("web_server: {message}");
    eprintln!("try `--help`");
    ExitCode::from(2)
}

/// Ends a start, or a run, that something outside prevented.
fn fail(error: &dyn Error) -> ExitCode {
    eprintln!("web_server: {error}");
    ExitCode::FAILURE
}

#[tokio::main]
async fn run(flags: Flags, cache: &HttpStampede, metrics: Metrics) -> Result<(), Box<dyn Error>> {
    // A herd of 500 at both lanes is 2000 sockets, and both ends belong to this process.
    // Where the system refuses, smaller herds still work.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let stop = signal::received()?;

    let listener =
        listen::on(flags.listen).map_err(|error| listen_failure(flags.listen, &error))?;
    let address = listener.local_addr()?;
    // A process that a page has started starts none.
    let access = if flags.is_child { None } else { Access::new(address) };
    let app = Arc::new(App {
        cache: cache.clone(),
        origin: Origin::new(flags.work),
        demo: Demo::new(address),
        stream: StreamDemo::new()?,
        stages: access.map(|access| Arc::new(Stages::new(access))),
        child: flags.is_child.then(Child::new),
        metrics,
        flags,
    });
    if let Some(redis) = &app.flags.redis {
        redis::check_in_background(redis.clone(), app.flags.namespace.as_deref());
        // Whether it succeeds or fails: now the connection is there, or known not to be.
        drop(cache.get("the first look").await);
    }
    let (limits, stages, manifest) =
        (app.flags.limits.clone(), app.stages.clone(), app.flags.manifest.clone());
    let site = routes::Site::new(Arc::clone(&app));
    if let Some(file) = &manifest {
        warm::start(file, &site).await;
    }
    listen::announce("http", address)
        .map_err(|error| format!("the address cannot be written to stdout: {error}"))?;
    // After the line with the address: the reader expects it first.
    if let (Some(_), Some(redis)) = (&app.child, &app.flags.redis) {
        child::watch_redis(cache.clone(), redis.clone());
    }
    serve(listener, site, limits, stop).await;
    if let Some(file) = &manifest {
        warm::end(file, cache).await;
    }
    if let Some(stages) = stages {
        stages.stop().await;
    }
    cache.shutdown(DRAIN).await;
    Ok(())
}

fn listen_failure(address: SocketAddr, error: &io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::AddrInUse => "end the program that listens there, or name another port",
        io::ErrorKind::PermissionDenied => "name a port from 1024 on",
        _ => "name an address of this machine",
    };
    format!("--listen: cannot listen on {address}: {error}; {remedy}")
}

/// Serves until `stop`, then lets open requests end for at most [`DRAIN`].
async fn serve(
    listener: TcpListener,
    site: routes::Site,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    let server = Arc::new(server(&limits));
    let serve = |stream, _, place: Arc<connection::Place>, stopping| {
        let (site, limits, server) = (site.clone(), limits.clone(), Arc::clone(&server));
        async move {
            let answer = |request| site.clone().answer(request);
            connection::drive(&server, stream, &limits, &place, stopping, answer).await;
        }
    };
    let drain = connection::Drain { delay: Duration::ZERO, timeout: DRAIN };
    connection::accept_all(listener, &limits, stop, drain, serve).await;
}

fn server(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let mut server = auto::Builder::new(TokioExecutor::new());
    let fields = u32::try_from(limits.header_bytes).unwrap_or(u32::MAX);
    server
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header)
        .max_buf_size(limits.header_bytes.saturating_add(connection::LEAST_BUFFER));
    server
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(connection::PING)
        .max_header_list_size(fields);
    server
}
