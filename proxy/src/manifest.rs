//! What this process leaves to the next one, which loads it before it is ready: the URLs of its
//! responses, those that are worth the most first.

use std::io;
use std::path::Path;
use std::time::Duration;

use tower::service_fn;
use tower_stampede::{HttpStampede, Manifest};

use crate::front::Proxy;
use crate::live::report;
use crate::settings::CACHE;

/// How many URLs are left to the next process, and how many it asks for at once.
const MOST: usize = 10_000;
const AT_ONCE: usize = 16;

/// How long the next process loads. An origin that is slow or away must not hold the start up.
const LOADING: Duration = Duration::from_secs(30);

/// Loads the responses that are in the file. Returns whether the file may be written: one that no
/// stampede-proxy of this version has written is left as it is, for it may be the only copy of
/// something else.
pub(crate) async fn load(file: Option<&Path>, proxy: &Proxy) -> Option<bool> {
    let Some(file) = file else { return Some(true) };
    // One small file, before there are requests.
    let text = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(true),
        text => text.map_err(|error| error.to_string()),
    };
    let read = |text: String| Manifest::read(&text, CACHE).map_err(|error| error.to_string());
    match text.and_then(read) {
        Ok(manifest) => {
            let replay = manifest.replay(service_fn(|request| proxy.load(request)), AT_ONCE);
            let total = manifest.len();
            report(&match tokio::time::timeout(LOADING, replay).await {
                Ok(failed) => format!("--manifest: loaded {} of {total} URLs", total - failed),
                Err(_) => format!("--manifest: not all of {total} URLs were loaded in {LOADING:?}"),
            });
            Some(true)
        }
        Err(error) => {
            report(&format!(
                "--manifest: {}: {error}; nothing is loaded, and the file stays as it is: remove \
                 it, or name another one",
                file.display()
            ));
            Some(false)
        }
    }
}

/// Writes the file. A reader finds the old one, or the whole new one, also where several processes
/// end at once.
pub(crate) async fn write(file: &Path, cache: &HttpStampede) {
    let text = cache.manifest(MOST).await.to_string();
    let mut new = file.as_os_str().to_owned();
    // In containers that share a volume all processes have the same number.
    let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    new.push(format!(".{}.{now}.new", std::process::id()));
    if let Err(error) = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, file)) {
        report(&format!("--manifest: {} cannot be written: {error}", file.display()));
    }
}
