//! A remote in memory that fails by a script, and the log of the calls that it got: for the tests of an
//! application.
//!
//! ```sh
//! cargo run --example mock_remote --features remote,test-util
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use tower_stampede::remote::{Double, RemoteErrorKind, RemoteOp, RemoteSettings};
use tower_stampede::{ConfigError, Stampede};

fn process(server: &Double) -> Result<Stampede<String>, ConfigError> {
    let builder = Stampede::builder("users").ttl(Duration::from_secs(60));
    builder.remote(server.process(), RemoteSettings::new()).build()
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mock_remote: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let server = Double::new();
    let (one, other) = (process(&server)?, process(&server)?);
    let load = || async { Ok::<_, std::io::Error>("Ada".to_owned()) };
    // The second process cannot read what the first has stored, and computes for itself.
    server.script(RemoteOp::Get, [Ok(()), Err(RemoteErrorKind::Timeout)]);
    one.get_or_compute("user:7", load).await?;
    other.get_or_compute("user:7", load).await?;
    println!("computed {} and {} times", one.stats().computations, other.stats().computations);

    // The script has ended: the server works.
    other.invalidate("user:7").await;
    for call in server.call_log() {
        println!("process {call}");
    }
    Ok(())
}
