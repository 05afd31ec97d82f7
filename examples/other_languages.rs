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

use std::error::Error;
use std::io::BufRead;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tower_stampede::remote::Codec;
use tower_stampede::{Computed, Redis, Remotable, Stampede};

mod redis_failure;

/// A value whose bytes every language reads: UTF-8 text, and nothing around it.
#[derive(Clone)]
struct Text(String);

impl Remotable for Text {
    fn encode(&self) -> Option<Bytes> {
        Some(Bytes::from(self.0.clone()))
    }

    fn decode(bytes: Bytes) -> Option<Self> {
        String::from_utf8(bytes.into()).ok().map(Self)
    }

    /// The number that the programs in the other languages write.
    fn codec() -> Codec<Self> {
        Codec::new(Self::encode, Self::decode).fingerprint(0)
    }
}

/// A computation that counts itself.
#[derive(Clone, Default)]
struct Computation(Arc<AtomicU32>);

impl Computation {
    async fn run(self, take: Duration) -> Result<Computed<Text>, std::io::Error> {
        let number = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        println!("computing");
        tokio::time::sleep(take).await;
        let text = Text(format!("rust {} {number}", std::process::id()));
        Ok(Computed::new(text).tag("reports"))
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
    let cache = Stampede::<Text>::builder("demo")
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
                let mut texts = Vec::new();
                for caller in (0..callers).map(ask).collect::<Vec<_>>() {
                    texts.push(caller.await??.0);
                }
                let answered = texts.len();
                texts.sort_unstable();
                texts.dedup();
                let computations = computation.0.load(Ordering::SeqCst) - before;
                println!(
                    "{{\"answered\": {answered}, \"computations\": {computations}, \
                     \"values\": {texts:?}}}"
                );
            }
            Some(("invalidate", key)) => {
                cache.invalidate(key.to_owned()).await;
                println!("done");
            }
            Some(("tag", tag)) => {
                cache.invalidate_tag(tag.to_owned()).await;
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
