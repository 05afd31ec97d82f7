//! The whole configuration: flags over the file over the defaults, and the files that they name.

use std::path::Path;
use std::sync::Arc;

use http::uri::Scheme;
use rustls::{ClientConfig, ServerConfig};

use crate::args::Args;
use crate::file;
use crate::operators::AdminToken;
use crate::settings::Settings;
use crate::tls;

/// Settings that were checked, and what was read from the files that they name.
pub(crate) struct Config {
    pub(crate) settings: Settings,
    pub(crate) listener_tls: Option<Arc<ServerConfig>>,
    /// There where an origin has https.
    pub(crate) origin_tls: Option<Arc<ClientConfig>>,
    /// There where there is a listener for operators.
    pub(crate) token: Option<AdminToken>,
}

impl Config {
    /// Reads and checks everything. The error has all that is wrong, a line for each.
    pub(crate) fn load(args: &Args) -> Result<Self, Vec<String>> {
        let mut settings = Settings::default();
        let mut wrong = match &args.config {
            Some(path) => read_file(path, &mut settings)?,
            None => Vec::new(),
        };
        wrong.extend(args.clone().apply(&mut settings));
        settings.normalise_hosts();
        if wrong.is_empty() {
            wrong.extend(settings.contradictions());
        }
        let listener_tls = settings.tls.as_ref().map(tls::server_config);
        let listener_tls = take(listener_tls, "the listener's TLS", &mut wrong);
        let needs_tls = settings.origins.all().any(|server| server.scheme == Scheme::HTTPS);
        let origin_tls = (needs_tls || settings.origin_ca.is_some())
            .then(|| tls::client_config(settings.origin_ca.as_deref()));
        let origin_tls = take(origin_tls, "TLS to origins", &mut wrong);
        if settings.access_log.is_some()
            && let Err(error) = settings.access_log_file.check()
        {
            wrong.push(format!("the access log: {error}"));
        }
        let folder = settings.manifest.as_deref().and_then(Path::parent);
        if folder.is_some_and(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
            wrong.push("--manifest: the folder of the file is missing: make it".into());
        }
        let token = settings.admin.map(|_| AdminToken::read(settings.admin_token_file.as_ref()));
        let token = token.and_then(|read| read.map_err(|error| wrong.push(error)).ok());
        if !wrong.is_empty() {
            return Err(wrong);
        }
        Ok(Self { settings, listener_tls, origin_tls, token })
    }
}

/// Notes what is wrong, and with what.
fn take<T>(read: Option<Result<T, String>>, what: &str, wrong: &mut Vec<String>) -> Option<T> {
    read?.map_err(|error| wrong.push(format!("{what}: {error}"))).ok()
}

/// Returns what is wrong with the settings in the file. A file that cannot be read is all that
/// there is to say.
fn read_file(path: &Path, to: &mut Settings) -> Result<Vec<String>, Vec<String>> {
    let name = path.display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(file::read(&name, &text, to)),
        Err(error) => Err(vec![format!("--config: {name}: {error}")]),
    }
}
