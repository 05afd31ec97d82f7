//! What this process leaves to the next one, which asks for it before it listens.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use tower_stampede::{HttpStampede, Manifest};

use crate::routes::Site;

/// Of the cache.
const NAME: &str = "web";
/// How many keys are left to the next process, and how many it asks for at once.
const KEYS: usize = 10_000;
const AT_ONCE: usize = 16;

/// How long it asks. Pages that hang must not hold the start.
const LOADING: Duration = Duration::from_secs(30);

/// Asks for what the last process has left. Without that the start is a cold one.
pub(crate) async fn start(file: &Path, site: &Site) {
    // One small file, before there are requests.
    let text = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        text => text.map_err(|error| error.to_string()),
    };
    let manifest =
        text.and_then(|text| Manifest::read(&text, NAME).map_err(|error| error.to_string()));
    match manifest {
        Ok(manifest) => {
            let service = tower::service_fn(|request: Request<Body>| {
                let answer = site.clone().answer(request);
                async { Ok::<_, Infallible>(answer.await) }
            });
            let (replay, total) = (manifest.replay(service, AT_ONCE), manifest.len());
            match tokio::time::timeout(LOADING, replay).await {
                Ok(failed) => {
                    eprintln!("--manifest: {} pages are loaded, {failed} failed", total - failed);
                }
                Err(_) => eprintln!("--manifest: not all of {total} pages came in {LOADING:?}"),
            }
        }
        Err(error) => eprintln!("--manifest: {}: {error}; it starts cold", file.display()),
    }
}

/// Leaves the keys to the next process. Its reader finds the old file, or the whole new one.
pub(crate) async fn end(file: &Path, cache: &HttpStampede) {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    let new = file.with_extension(format!("{}.{now}.new", std::process::id()));
    let text = cache.manifest(KEYS).await.to_string();
    let mut written = std::fs::write(&new, text);
    if written.is_ok() {
        written = std::fs::rename(&new, file);
    }
    if let Err(error) = written {
        eprintln!("--manifest: {} cannot be written: {error}", file.display());
    }
}
