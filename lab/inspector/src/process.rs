//! One process, as its admin router shows it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use crate::names::bytes_of;

/// How long a process may take for one answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The longest answer that is read.
const MAX_BODY: usize = 16 << 20;

/// A local copy, as it was listed.
#[derive(Clone, Debug)]
pub(crate) struct LocalCopy {
    pub(crate) key: Vec<u8>,
    pub(crate) tags: Vec<Vec<u8>>,
    pub(crate) version: Option<u64>,
    /// Not later than this its computation began, unless it is a response: its age may be
    /// older than its computation.
    pub(crate) started: Instant,
    pub(crate) is_response: bool,
}

/// What one process said in one round.
#[derive(Debug)]
pub(crate) struct Report {
    /// `up`, `degraded` or `bypassed`; the worse of one before and one after the list.
    pub(crate) health: String,
    /// How far it follows the log: epoch and position.
    pub(crate) applied: Option<(String, u64)>,
    /// Whether it serves its copies without reading the log first.
    pub(crate) is_vouched: bool,
    pub(crate) copies: Vec<LocalCopy>,
    /// When the list was asked for: at this moment or later it served them.
    pub(crate) asked: Instant,
    /// When the list was there.
    pub(crate) answered: Instant,
}

#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) url: String,
    token: Option<String>,
    keys: usize,
    client: Client<HttpConnector, Empty<Bytes>>,
}

impl Process {
    pub(crate) fn new(url: String, token: Option<String>, keys: usize) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { url, token, keys, client }
    }

    /// Asks how it is, what it holds, and how it is then.
    pub(crate) async fn report(&self) -> Result<Report, String> {
        let before = self.health().await?;
        let log = self.get("/log").await?;
        let asked = Instant::now();
        let listed = self.get(&format!("/keys?tags=all&limit={}", self.keys)).await?;
        let answered = Instant::now();
        let after = self.health().await?;
        let health = if before == "up" { after } else { before };
        let epoch = log["epoch"].as_str().map(str::to_owned);
        let is_vouched = log["vouched_ms"].as_u64() != Some(0);
        let copies = listed["keys"].as_array().ok_or("its list of keys has no `keys`")?;
        let copies = copies.iter().filter_map(|copy| copy_of(copy, answered)).collect();
        let applied = epoch.zip(log["position"].as_u64());
        Ok(Report { health, applied, is_vouched, copies, asked, answered })
    }

    async fn health(&self) -> Result<String, String> {
        let said = self.get("/health").await?;
        said["health"].as_str().map(str::to_owned).ok_or_else(|| "it has no `health`".into())
    }

    async fn get(&self, path: &str) -> Result<Value, String> {
        let asked = tokio::time::timeout(PATIENCE, self.get_now(path)).await;
        asked.unwrap_or_else(|_| Err(format!("GET {path}: no answer within 2 s")))
    }

    async fn get_now(&self, path: &str) -> Result<Value, String> {
        let failed = |error: &dyn std::fmt::Display| format!("GET {path}: {error}");
        let mut request = Request::get(format!("{}{path}", self.url));
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Empty::new()).map_err(|error| failed(&error))?;
        let response = self.client.request(request).await.map_err(|error| failed(&error))?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(failed(&"refused; --admin-token must be the one of the process"));
            }
            StatusCode::NOT_FOUND => {
                let remedy = "404; --process must be the path of the admin router, and the \
                              process of this version";
                return Err(failed(&remedy));
            }
            status => return Err(failed(&status)),
        }
        let body = Limited::new(response.into_body(), MAX_BODY).collect().await;
        let body = body.map_err(|error| failed(&error))?.to_bytes();
        serde_json::from_slice(&body).map_err(|error| failed(&error))
    }
}

fn copy_of(listed: &Value, answered: Instant) -> Option<LocalCopy> {
    let tags = listed["tags"].as_array()?.iter().filter_map(|tag| bytes_of(tag.as_str()?));
    let age = Duration::from_millis(listed["age_ms"].as_u64()?);
    Some(LocalCopy {
        key: bytes_of(listed["key"].as_str()?)?,
        tags: tags.collect(),
        version: listed["version"].as_u64(),
        // Before the system was started no process was.
        started: answered.checked_sub(age).unwrap_or(answered),
        is_response: listed.get("url").is_some(),
    })
}
