//! The Rust side of one Redis that Rust, PHP and Python processes share.
//!
//! `examples/php/side.php` and `examples/python/side.py` take the same arguments and commands;
//! `scripts/other_languages` starts all of them and counts the computations.
//!
//! ```sh
//! cargo run --example other_languages --features redis -- HOST:PORT CALLERS TAKE_MS LEASE_MS
//! ```
//!
//! Commands, one a line: `get KEY` asks with all callers at once and prints one line of JSON,
//! `invalidate KEY` and `tag TAG` invalidate. The line `computing` says that a computation began.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::BufRead;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tower_stampede::remote::Codec;
use tower_stampede::{Announcement, Computed, Redis, Stampede};

mod redis_failure;

/// What all sides compute: who did it, and a sample of what JSON can hold.
#[derive(Clone, Serialize, Deserialize)]
struct Report {
    by: String,
    process: u32,
    number: u32,
    title: String,
    large: i64,
    ratio: f64,
    note: Option<String>,
    parts: Vec<Part>,
    limits: BTreeMap<String, u32>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Part {
    name: String,
    count: i32,
}

/// The number of the form that `Report` has. All sides name it.
const SCHEMA: u32 = 1;

/// A computation that counts itself.
#[derive(Clone, Default)]
struct Computation(Arc<AtomicU32>);

impl Computation {
    async fn run(self, take: Duration) -> Result<Computed<Report>, std::io::Error> {
        let number = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        println!("computing");
        tokio::time::sleep(take).await;
        let report = Report {
            by: "rust".into(),
            process: std::process::id(),
            number,
            title: "Zo\u{eb} / \"\u{2615}\"\n".into(),
            large: 9_007_199_254_740_993,
            ratio: 0.1,
            note: None,
            parts: vec![Part { name: "first".into(), count: -1 }],
            limits: BTreeMap::new(),
        };
        Ok(Computed::new(report).tag("reports"))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [address, callers, take, lease] = &arguments[..] else {
        eprintln!("other_languages: needs HOST:PORT CALLERS TAKE_MS LEASE_MS");
        return ExitCode::from(2);
    };
    match run(address, callers, take, lease).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("other_languages: {error}");
            ExitCode::FAILURE
        }
    }
}

fn number<N: FromStr>(name: &str, text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("{name}: {text:?} is not a whole number from 0"))
}

async fn run(
    address: &str,
    callers: &str,
    take: &str,
    lease: &str,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let callers: u32 = number("CALLERS", callers)?;
    let take = Duration::from_millis(number("TAKE_MS", take)?);
    let lease = Duration::from_millis(number("LEASE_MS", lease)?);
    let redis = Redis::connect(&format!("redis://{address}"))
        .await
        .map_err(|error| format!("{address}: {}", redis_failure::describe(&error)))?
        .namespace("languages");
    let cache = Stampede::<Report>::builder("demo")
        .codec(Codec::json().fingerprint(SCHEMA))
        .ttl(Duration::from_secs(60))
        .stale_for(Duration::from_secs(60))
        .lease(lease)
        .redis(redis)
        .build()
        .map_err(|error| format!("LEASE_MS: {error}"))?;
    let computation = Computation::default();
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        match line.split_once(' ') {
            Some(("get", key)) => {
                let before = computation.0.load(Ordering::SeqCst);
                let ask = |_| {
                    let (cache, computation, key) =
                        (cache.clone(), computation.clone(), key.to_owned());
                    tokio::spawn(async move {
                        cache.get_or_compute_with(key, move || computation.run(take)).await
                    })
                };
                let (mut answered, mut values) = (0, BTreeMap::new());
                for caller in (0..callers).map(ask).collect::<Vec<_>>() {
                    let value = serde_json::to_value(caller.await??)?;
                    values.insert(value.to_string(), value);
                    answered += 1;
                }
                let computations = computation.0.load(Ordering::SeqCst) - before;
                let values: Vec<_> = values.into_values().collect();
                println!(
                    "{}",
                    json!({"answered": answered, "computations": computations, "values": values})
                );
            }
            Some((what @ ("invalidate" | "tag"), name)) => {
                let told = match what {
                    "tag" => cache.invalidate_tag(name.to_owned()).await,
                    _ => cache.invalidate(name.to_owned()).await,
                };
                if told.remote == Announcement::Queued {
                    // This process ends, and what is queued with it.
                    let remedy = "no process may have been told: repeat it until it succeeds";
                    return Err(format!("{what} {name}: {address} is away; {remedy}").into());
                }
                println!("done");
            }
            _ => {
                let known = "the commands are `get KEY`, `invalidate KEY` and `tag TAG`";
                return Err(format!("{line:?} is no command; {known}").into());
            }
        }
    }
    Ok(())
}
