//! A caching reverse proxy in front of any HTTP/1.1 origin, in any language.
//!
//! ```sh
//! cargo run --release -p stampede-proxy -- --origin http://127.0.0.1:9000
//! cargo run --release -p stampede-proxy -- --config proxy.toml
//! cargo run --release -p stampede-proxy -- --help   # the flags
//! ```
//!
//! In reading order:
//!
//! - `args`, `file` and `config`: the command line, the configuration file, and both together in
//!   `settings`. `document` reads TOML with line numbers; `server` and `rules` are parts of it.
//! - `live`: the layers and services that the settings make, and how SIGHUP replaces them.
//! - `front`: where the three parts meet: the checks that a request must pass, the layer, and the
//!   service that asks the origin. That is `origin`, on the connections of `pool`.
//! - `manifest`: what a process leaves to the next one.
//! - `operators`, `status`, `access_log`: what operators see.
//! - `command` and `init`: what the program does besides serving.
//!
//! `connection`, `limits`, `listen`, `metrics_off`, `signal`, `size` and `texts` are symbolic links:
//! the proxy shares these files with the example `web_server` and with the library, and a package
//! contains their text.

use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, RwLock};

use clap::Parser;
use tower_stampede::HttpStampede;

use crate::args::Args;
use crate::config::Config;
use crate::connection::Drain;
use crate::front::Proxy;
use crate::live::{Live, Reload};
use crate::metrics::Metrics;
use crate::names::NameFilter;
use crate::status::Status;
use crate::via::Via;

mod access_log;
mod alarm;
mod args;
mod checks;
mod command;
mod config;
mod connection;
mod connector;
mod document;
mod failure;
mod fields;
mod file;
mod forward;
mod front;
mod host;
mod incoming;
mod init;
mod layers;
mod limits;
mod listen;
mod live;
mod manifest;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(not(feature = "metrics"))]
#[path = "metrics_off.rs"]
mod metrics;
mod names;
mod operators;
mod origin;
mod outgoing;
mod own_values;
mod pages;
mod pool;
mod provenance;
mod readings;
mod redis;
mod reloads;
mod rules;
mod server;
mod settings;
mod signal;
mod size;
mod status;
mod streams;
mod texts;
mod tls;
mod traffic;
mod upgrade;
mod via;
mod wire;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Without a standard output there is no reader of the help.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    if let Some(command) = &args.command {
        return match command.run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(reason) => fail(reason),
        };
    }
    let config = match Config::load(&args) {
        Ok(config) => config,
        Err(wrong) => return refuse(&wrong),
    };
    // Before the cache: it makes its meters when it is built.
    let metrics = match Metrics::install("proxy") {
        Ok(metrics) => metrics,
        Err(error) => return fail(error),
    };
    let cache = match config.settings.cache() {
        Ok(cache) => cache,
        Err(message) => return refuse(&[message]),
    };
    if args.check_config {
        println!("the configuration is good: {}", config.settings.summary());
        return ExitCode::SUCCESS;
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return fail(error),
    };
    let result = runtime.block_on(run(args, config, &cache, Status::new(metrics)));
    // A reload that waits for a file, or a look-up of a name, does not hold the end up.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error),
    }
}

/// Ends a start whose settings cannot be followed.
fn refuse(wrong: &[String]) -> ExitCode {
    eprintln!("stampede-proxy: these settings cannot be followed:");
    wrong.iter().for_each(|line| eprintln!("{line}"));
    eprintln!("try `--help`");
    ExitCode::from(2)
}

/// Ends a start, or a run, that something outside prevented.
fn fail(error: impl std::fmt::Display) -> ExitCode {
    eprintln!("stampede-proxy: {error}");
    ExitCode::FAILURE
}

async fn run(
    args: Args,
    config: Config,
    cache: &HttpStampede,
    status: Status,
) -> Result<(), Box<dyn Error>> {
    let (settings, status) = (config.settings, Arc::new(status));
    // Each client may be two sockets. Where the system refuses, fewer work.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let stop = signal::received()?;
    let reloads = reloads::received()?;
    let listener = listen::on(settings.listen)
        .map_err(|error| format!("cannot listen on {}: {error}", settings.listen))?;
    let address = listener.local_addr()?;
    let operators = match settings.admin {
        None => None,
        Some(at) => {
            let refused = |error| format!("cannot listen on {at}: {error}");
            Some(listen::on(at).map_err(refused)?)
        }
    };
    let (log, writer) = match settings.access_log {
        None => (None, None),
        Some(format) => {
            let to = settings.access_log_file.clone();
            let (log, writer) = access_log::start(format, to, Arc::clone(&status.log))
                .map_err(|error| format!("the access log: {error}"))?;
            (Some(log), Some(writer))
        }
    };
    if let Some(redis) = &settings.redis {
        redis::check_in_background(redis.clone(), settings.namespace.as_deref());
        // Whether it succeeds or fails: now the connection is there, or known not to be.
        drop(cache.get("the first look").await);
    }
    let token = config.token.map(|token| Arc::new(RwLock::new(token)));
    let names = NameFilter::of_process(settings.underscores_in_headers);
    let drain = Drain { delay: settings.drain_delay, timeout: settings.drain_timeout };
    let (scheme, file) = (settings.scheme_name(), settings.manifest.clone());
    let live = Live::new(cache, settings, config.origin_tls, Via::new());
    let tls = config.listener_tls.map(tls::Listener::new);
    let proxy = Arc::new(Proxy::new(live, names, tls, log.clone(), Arc::clone(&status)));
    let operators = match operators.zip(token.clone()) {
        None => None,
        Some((listener, token)) => {
            operators::announce(listener.local_addr()?)?;
            let (proxy, status) = (Arc::clone(&proxy), Arc::clone(&status));
            Some(tokio::spawn(operators::serve(listener, token, cache.clone(), proxy, status)))
        }
    };
    let reload = Reload {
        args,
        cache: cache.clone(),
        proxy: Arc::clone(&proxy),
        token,
        log,
        status: Arc::clone(&status),
    };
    let reloading = tokio::spawn(reload_at_each(reloads, Arc::new(reload)));
    let mut stop = Box::pin(async {
        stop.await;
        status.drain();
    });
    let loaded = tokio::select! {
        loaded = manifest::load(file.as_deref(), &proxy) => loaded,
        () = stop.as_mut() => None,
    };
    if let Some(may_write) = loaded {
        status.end_loading();
        listen::announce(scheme, address)?;
        front::serve(listener, proxy, stop, drain).await;
        if let Some(file) = file.filter(|_| may_write) {
            manifest::write(&file, cache).await;
        }
    }
    reloading.abort();
    cache.shutdown(drain.timeout).await;
    operators.into_iter().for_each(|serving| serving.abort());
    if let Some(writer) = writer {
        writer.end();
    }
    names.report_total();
    Ok(())
}

/// Reads the configuration anew at each signal. Files are read on a thread that may wait.
async fn reload_at_each(mut signals: reloads::Reloads, reload: Arc<Reload>) {
    while signals.next().await.is_some() {
        let reload = Arc::clone(&reload);
        // A reload that panics changes nothing.
        let _ = tokio::task::spawn_blocking(move || reload.run()).await;
    }
}
