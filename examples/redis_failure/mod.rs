//! One line for an error of Redis, as people read it: what is wrong, why, and what helps. No example
//! by itself: the examples that need Redis have it.
#![allow(dead_code, reason = "not every example prints a URL")]

use std::error::Error;
use std::process::ExitCode;

use tower_stampede::ConfigError;
use tower_stampede::remote::{RemoteError, RemoteErrorKind};

/// Runs an example with the URLs of its command line; says in a line why it failed.
pub(crate) async fn run<F>(name: &str, example: impl FnOnce(Vec<String>) -> F) -> ExitCode
where
    F: Future<Output = Result<(), Box<dyn Error + Send + Sync>>>,
{
    let urls: Vec<_> = std::env::args().skip(1).collect();
    let Some(server) = urls.first().cloned() else {
        eprintln!("{name}: name the server, as redis://HOST:PORT");
        return ExitCode::from(2);
    };
    match example(urls).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {}: {}", printable(&server), describe(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Says what is wrong with its first cause, and what helps, where that is known.
pub(crate) fn describe(error: &(dyn Error + 'static)) -> String {
    let causes: Vec<_> = std::iter::successors(Some(error), |&error| error.source()).collect();
    let mut line = error.to_string();
    if let Some(first) = causes.last().map(ToString::to_string)
        && !line.contains(&first)
    {
        line = format!("{line}: {first}");
    }
    match causes.iter().find_map(|error| remedy(*error)) {
        Some(remedy) => format!("{line}; {remedy}"),
        None => line,
    }
}

fn remedy(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let settings = error.downcast_ref::<ConfigError>();
    if settings.is_some_and(|error| error.fields().contains(&"url")) {
        return Some("write it as redis://HOST:PORT or redis://USER:PASSWORD@HOST:PORT");
    }
    match error.downcast_ref::<RemoteError>()?.kind() {
        RemoteErrorKind::Connection | RemoteErrorKind::Timeout => {
            Some("start a server there, or name another one")
        }
        RemoteErrorKind::Denied => {
            Some("name a user and a password that it accepts: redis://USER:PASSWORD@HOST:PORT")
        }
        _ => None,
    }
}

/// Returns a URL as it may be printed: without what may hold a password.
pub(crate) fn printable(url: &str) -> &str {
    let is_plain = url.contains("://") && !url.contains(['@', '?']);
    if is_plain { url } else { "the server" }
}
