//! What may go wrong in the shop, and the response for it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tower_stampede::{Absent, CacheFor, Failure};

#[derive(Clone, Debug)]
pub enum ShopError {
    NotFound,
    NotLoggedIn,
    NotAllowed,
    DatabaseDown(Arc<rusqlite::Error>),
    Cache(tower_stampede::Error),
}

impl From<rusqlite::Error> for ShopError {
    fn from(error: rusqlite::Error) -> Self {
        Self::DatabaseDown(Arc::new(error))
    }
}

/// Makes `?` work on what a cache of the shop returns.
impl From<Failure<ShopError>> for ShopError {
    fn from(failure: Failure<ShopError>) -> Self {
        failure.into_error(|error| match error.inner() {
            Some(Absent { .. }) => Self::NotFound,
            None => Self::Cache(error),
        })
    }
}

impl fmt::Display for ShopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("there is no such thing"),
            Self::NotLoggedIn => f.write_str("log in first"),
            Self::NotAllowed => f.write_str("this is for operators"),
            Self::DatabaseDown(error) => write!(f, "the database: {error}"),
            Self::Cache(error) => error.fmt(f),
        }
    }
}

impl IntoResponse for ShopError {
    fn into_response(self) -> Response {
        let text = self.to_string();
        match self {
            // This page may be kept, too.
            Self::NotFound => {
                let cache_for = CacheFor::new(Duration::from_secs(5)).public().tag("missing");
                (StatusCode::NOT_FOUND, cache_for, text).into_response()
            }
            Self::NotLoggedIn => (StatusCode::UNAUTHORIZED, text).into_response(),
            Self::NotAllowed => (StatusCode::FORBIDDEN, text).into_response(),
            Self::DatabaseDown(_) | Self::Cache(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], text)
                    .into_response()
            }
        }
    }
}
