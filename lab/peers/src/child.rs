//! A process for each measurement: one that panics, spins or hangs does not end
//! the run, and leaves nothing behind for the next.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;

/// Longer than any takes that ends by itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a program and reads what it prints; or tells what it died of.
pub(crate) fn ask<T: DeserializeOwned>(program: &Path, args: &[&str]) -> Result<T, String> {
    let mut command = Command::new(program);
    let mut child = command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let mut output = child.stdout.take().expect("it is piped");
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let mut text = String::new();
        let read = output.read_to_string(&mut text).map(|_| text);
        // The receiver has gone when it took too long.
        let _ = tell.send(read);
    });
    let text = told.recv_timeout(PATIENCE);
    // It may have ended already: no matter.
    let _ = child.kill();
    let status = child.wait().map_err(|error| error.to_string())?;
    match text {
        Ok(Ok(text)) => serde_json::from_str(&text).map_err(|_| format!("it ended with {status}")),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no end after {} s", PATIENCE.as_secs())),
    }
}
