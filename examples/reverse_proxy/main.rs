//! A caching reverse proxy in front of any HTTP/1.1 origin, in any language.
//!
//! ```sh
//! cargo run --release --example reverse_proxy -- --origin http://127.0.0.1:9000
//! cargo run --release --example reverse_proxy -- --help   # the flags
//! ```
//!
//! `front.rs` is where the three parts meet: the checks that a request must
//! pass, the layer, and the service that asks the origin.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use tower_stampede::HttpStampede;

use crate::flags::{Command, Flags};
use crate::front::Proxy;
use crate::names::NameFilter;
use crate::operators::AdminToken;

mod alarm;
mod checks;
#[path = "../web_server/connection.rs"]
mod connection;
mod connector;
mod failure;
mod fields;
mod flags;
mod forward;
mod front;
mod host;
mod incoming;
#[path = "../web_server/limits.rs"]
mod limits;
#[path = "../web_server/listen.rs"]
mod listen;
mod names;
mod operators;
mod origin;
mod outgoing;
mod own_values;
mod pages;
mod provenance;
#[cfg(feature = "redis")]
mod redis;
#[cfg(not(feature = "redis"))]
#[path = "redis_off.rs"]
mod redis;
#[path = "../web_server/signal.rs"]
mod signal;
mod upgrade;
#[path = "../web_server/values.rs"]
mod values;
mod via;
mod wire;

/// How long connections and computations may take to end once we are told to.
const DRAIN: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let flags = match flags::parse(std::env::args_os()) {
        Ok(Command::Serve(flags)) => *flags,
        Ok(Command::Help) => {
            print!("{}", flags::HELP);
            return ExitCode::SUCCESS;
        }
        Err(message) => return refuse(&message),
    };
    // Before it serves anyone: without a token there is no listener.
    let token = match flags.admin.map(|_| AdminToken::read(flags.admin_token_file.as_ref())) {
        None => None,
        Some(Ok(token)) => Some(token),
        Some(Err(message)) => return refuse(&message),
    };
    let cache = match flags.cache() {
        Ok(cache) => cache,
        Err(message) => return refuse(&message),
    };
    match run(flags, token, &cache) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&*error),
    }
}

/// Ends a start whose flags cannot be followed.
fn refuse(message: &str) -> ExitCode {
    eprintln!("reverse_proxy: {message}");
    eprintln!("try `--help`");
    ExitCode::from(2)
}

/// Ends a start, or a run, that something outside prevented.
fn fail(error: &dyn Error) -> ExitCode {
    eprintln!("reverse_proxy: {error}");
    ExitCode::FAILURE
}

#[tokio::main]
async fn run(
    flags: Flags,
    token: Option<AdminToken>,
    cache: &HttpStampede,
) -> Result<(), Box<dyn Error>> {
    // Each client may be two sockets. Where the system refuses, fewer work.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let stop = signal::received()?;
    let listener = listen::on(flags.listen)
        .map_err(|error| format!("cannot listen on {}: {error}", flags.listen))?;
    let address = listener.local_addr()?;
    let operators = match flags.admin {
        None => None,
        Some(at) => {
            let refused = |error| format!("cannot listen on {at}: {error}");
            Some(listen::on(at).map_err(refused)?)
        }
    };
    if let Some(redis) = &flags.redis {
        redis::check_in_background(redis.clone(), flags.namespace.as_deref());
        // Whatever comes of it: now the connection is there, or known not to be.
        drop(cache.get("the first look").await);
    }
    let operators = match operators.zip(token) {
        None => None,
        Some((listener, token)) => {
            operators::announce(listener.local_addr()?)?;
            Some(tokio::spawn(operators::serve(listener, token, cache.clone())))
        }
    };
    listen::announce(address)?;
    let names = NameFilter::of_process(flags.underscores_in_headers);
    front::serve(listener, Proxy::new(cache.http_layer(), flags, names), stop, DRAIN).await;
    operators.into_iter().for_each(|serving| serving.abort());
    cache.shutdown(DRAIN).await;
    names.report_total();
    Ok(())
}
