//! A shop on a database of its own, and requests to it.

use std::path::PathBuf;

use axum::Router;
use axum::body::Body;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::BodyExt;
use tempfile::TempDir;
use tower::ServiceExt;
use tower_stampede::CacheOutcome;
use trial::shop::{Database, Shop};

pub(crate) struct Site {
    pub(crate) shop: Shop,
    pub(crate) app: Router,
    folder: TempDir,
}

/// A response, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) outcome: Option<CacheOutcome>,
    pub(crate) cookie: Option<String>,
    pub(crate) text: String,
}

impl Site {
    pub(crate) fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::open(&folder.path().join("shop.db")).unwrap();
        let shop = Shop::new(database, None).unwrap();
        let app = shop.clone().app();
        Self { shop, app, folder }
    }

    pub(crate) fn database_file(&self) -> PathBuf {
        self.folder.path().join("shop.db")
    }

    pub(crate) fn queries(&self) -> usize {
        self.shop.database.queries()
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        send(self.app.clone(), Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn get_as(&self, cookie: &str, path: &str) -> Answer {
        let request = Request::get(path).header(header::COOKIE, cookie);
        send(self.app.clone(), request.body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Answer {
        let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
        send(self.app.clone(), request.body(Body::from(body.to_owned())).unwrap()).await
    }

    pub(crate) async fn post_as(&self, cookie: &str, path: &str, body: &str) -> Answer {
        let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
        let request = request.header(header::COOKIE, cookie);
        send(self.app.clone(), request.body(Body::from(body.to_owned())).unwrap()).await
    }

    /// Begins a session, and returns the cookie.
    pub(crate) async fn log_in(&self, name: &str) -> String {
        let answer = self.post("/login", name).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.text);
        answer.cookie.unwrap().split(';').next().unwrap().to_owned()
    }

    pub(crate) async fn log_out(&self, cookie: &str) -> Answer {
        let request = Request::post("/logout").header(header::COOKIE, cookie);
        send(self.app.clone(), request.body(Body::empty()).unwrap()).await
    }

    /// Sends requests of one kind at once.
    pub(crate) async fn herd(&self, count: usize, path: &'static str) -> Vec<Answer> {
        let request = || Request::get(path).body(Body::empty()).unwrap();
        let herd: Vec<_> =
            (0..count).map(|_| tokio::spawn(send(self.app.clone(), request()))).collect();
        let mut answers = Vec::new();
        for task in herd {
            answers.push(task.await.unwrap());
        }
        answers
    }
}

async fn send(app: Router, request: Request<Body>) -> Answer {
    let response = app.oneshot(request).await.unwrap();
    // A hit says so in its fields and in its body, and the router has put it into another body.
    let is_hit = |status: &HeaderValue| status.as_bytes().starts_with(b"tower-stampede; hit");
    let is_hit = response.headers().get("cache-status").is_some_and(is_hit);
    let outcome = response.extensions().get().copied();
    let outcome = outcome.or(is_hit.then_some(CacheOutcome::Hit));
    let cookie = response.headers().get(header::SET_COOKIE);
    let cookie = cookie.map(|cookie| cookie.to_str().unwrap().to_owned());
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    Answer { status, outcome, cookie, text: String::from_utf8(body.to_vec()).unwrap() }
}
