//! A web shop: axum, SQLite, and sessions in cookies.
//!
//! Three caches, each with its own task:
//!
//! - `pages`: responses over HTTP. Product pages are for all clients; the orders of a user
//!   are for this user alone.
//! - `products`: rows of the database by number, many at once.
//! - `users`: which user a session belongs to.

mod database;
mod error;
mod handlers;

use std::time::Duration;

use axum::Router;
use axum::http::request::Parts;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};
use tower_stampede::{
    Absent, Cache, ConfigError, FailureAction, HttpStampede, Redis, Stampede, admin,
};

pub use database::{Database, Product, ProductId, Session, User};
pub use error::ShopError;

/// What every handler gets.
#[derive(Clone)]
pub struct Shop {
    pub database: Database,
    pub pages: HttpStampede,
    pub products: Cache<ProductId, Product, ShopError>,
    pub users: Cache<Session, User, ShopError>,
}

impl Shop {
    /// With a Redis, all processes of the shop share the products.
    pub fn new(database: Database, redis: Option<Redis>) -> Result<Self, ConfigError> {
        let pages = Stampede::builder("pages").origin_only().jitter(0.0).build()?;

        let mut products = Stampede::builder("products")
            .ttl(Duration::from_secs(60))
            .stale_for(Duration::from_secs(30))
            .jitter(0.0)
            .lease(Duration::from_secs(1))
            // The handle's own hook is asked about rows that the query did not return.
            .on_failure(|error| match error.downcast_ref() {
                Some(Absent { .. }) => FailureAction::Remember(Duration::from_secs(10)),
                None => FailureAction::Hold,
            })
            .weigh();
        if let Some(redis) = redis {
            products = products.redis(redis);
        }
        let db = database.clone();
        let products = Cache::batched(products.build()?, move |missing| {
            let db = db.clone();
            async move { db.products(missing).await }
        });

        let users =
            Stampede::builder("users").ttl(Duration::from_secs(60)).jitter(0.0).weigh().build()?;
        let load_user = |db: Database, session| async move { db.user_of(session).await };
        let users = Cache::with_state(users, database.clone(), load_user).on_failure(|error| {
            match error {
                // An answer. That the database is down is none.
                ShopError::NotLoggedIn => FailureAction::Remember(Duration::from_secs(10)),
                _ => FailureAction::Hold,
            }
        });

        Ok(Self { database, pages, products, users })
    }

    /// One cache for all pages: a layer for those of a user, and one for all others.
    pub fn app(self) -> Router {
        let pages = &self.pages;
        let known = from_fn_with_state(self.clone(), handlers::session);
        // Inside of the session middleware, which says who the user is. The orders of a user are
        // shared among the requests of this user, although they carry a cookie.
        let of_user =
            pages.http_layer().route_rules("/orders", |route| route.identity(user_number).public());
        let private = Router::new()
            .route("/orders", get(handlers::orders))
            .route("/account", get(handlers::account))
            .layer(of_user)
            .route_layer(known.clone());
        let for_all = pages.http_layer().route_rules("/products", |route| route.query(["ids"]));
        let public = Router::new()
            .route("/products", get(handlers::list).post(handlers::add))
            .route("/products/{id}", get(handlers::show))
            .route("/products/{id}/price", post(handlers::set_price))
            .route("/login", post(handlers::log_in))
            .route("/logout", post(handlers::log_out))
            .layer(for_all);
        let operators = Router::new()
            .nest("/pages", admin::router(self.pages.clone()))
            .nest("/products", admin::router(self.products.handle().clone()))
            .layer(from_fn(handlers::only_operators))
            .layer(known);
        private.merge(public).with_state(self).nest("/admin", operators)
    }
}

fn user_number(request: &Parts) -> Option<i64> {
    Some(request.extensions.get::<User>()?.id)
}
