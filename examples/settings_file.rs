//! The settings of a cache from a file, and moka's TinyLFU as the store: a scan over many keys does not
//! push out the popular one.
//!
//! ```sh
//! cargo run --example settings_file --features serde,moka
//! ```

use std::error::Error;
use std::process::ExitCode;

use tower_stampede::{Settings, SettingsError, Stampede};

/// Any format that serde reads; here JSON.
const FILE: &str = r#"{
    "ttl": "60s", "stale_for": "5m", "compute_timeout": "2s",
    "max_entries": 100, "eviction": "tiny_lfu"
}"#;
const WRONG: &str = r#"{ "ttl": "60 parsecs" }"#;

fn read(file: &str) -> Result<Settings, SettingsError> {
    Settings::read("caches.users", &mut serde_json::Deserializer::from_str(file))
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("settings_file: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    // What is not in the file can be set in the code.
    let users: Stampede<String> = read(FILE)?.builder("users").jitter(0.0).build()?;
    let load = |id: u64| async move { Ok::<_, std::io::Error>(format!("user {id}")) };

    // User 0 is popular; the others are read once, as a report does.
    for id in 1..2000 {
        users.get_or_compute(0, move || load(0)).await?;
        users.get_or_compute(id, move || load(id)).await?;
    }
    let popular = users.get(0).await.is_some();
    println!("after a scan of 1999 users, the popular one is there: {popular}");

    if let Err(error) = read(WRONG) {
        println!("a wrong file: {error}");
    }
    Ok(())
}
