//! One function for each page.

use std::time::Duration;

use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use tower_stampede::CacheFor;

use super::{Product, ProductId, Session, Shop, ShopError, User};

/// One product: the page is for all clients, with a session or without.
pub(super) async fn show(
    State(shop): State<Shop>,
    Path(id): Path<ProductId>,
) -> Result<impl IntoResponse, ShopError> {
    let product = shop.products.get(id).await?;
    let cache_for = CacheFor::new(Duration::from_secs(10))
        .stale_for(Duration::from_secs(20))
        .public()
        .tag(page_of(id));
    Ok((cache_for, Json(product)))
}

#[derive(serde::Deserialize)]
pub(super) struct Wanted {
    ids: String,
}

/// Several products, `/products?ids=1,2,3`; those that are not there are left out.
pub(super) async fn list(
    State(shop): State<Shop>,
    Query(wanted): Query<Wanted>,
) -> Result<impl IntoResponse, ShopError> {
    let ids: Vec<_> =
        wanted.ids.split(',').filter_map(|id| id.parse().ok().map(ProductId)).collect();
    let found = shop.products.get_many(ids.iter().copied()).await.complete()?;
    let products: Vec<_> = ids.iter().filter_map(|id| found.get(id).cloned()).collect();
    let cache_for = CacheFor::new(Duration::from_secs(10)).public().tag("lists");
    Ok((cache_for, Json(products)))
}

#[derive(serde::Deserialize)]
pub(super) struct Price {
    cents: i64,
}

/// Invalidates a product when it goes out of scope, which may be on any thread.
struct Invalidate {
    shop: Shop,
    id: ProductId,
}

impl Drop for Invalidate {
    fn drop(&mut self) {
        self.shop.products.handle().invalidate_now(self.id);
        self.shop.pages.invalidate_tags_now([page_of(self.id), "lists".to_owned()]);
    }
}

/// The guard goes with the write: a client that hangs up ends neither.
pub(super) async fn set_price(
    State(shop): State<Shop>,
    Path(id): Path<ProductId>,
    Json(price): Json<Price>,
) -> Result<StatusCode, ShopError> {
    let invalidate = Invalidate { shop: shop.clone(), id };
    shop.database.set_price(id, price.cents, invalidate).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn add(
    State(shop): State<Shop>,
    Json(product): Json<Product>,
) -> Result<StatusCode, ShopError> {
    let id = product.id;
    shop.database.add(product).await?;
    shop.products.invalidate(&id).await;
    shop.pages.invalidate_tags(["lists", "missing"]).await;
    Ok(StatusCode::CREATED)
}

fn page_of(id: ProductId) -> String {
    format!("product:{}", id.0)
}

/// Orders are the same for a while, for the user whose orders they are.
pub(super) async fn orders(Extension(user): Extension<User>) -> impl IntoResponse {
    let cache_for = CacheFor::new(Duration::from_secs(10)).stale_for(Duration::from_secs(20));
    (cache_for, format!("orders of {}", user.name))
}

/// Says nothing of a lifetime: never stored.
pub(super) async fn account(Extension(user): Extension<User>) -> String {
    format!("account of {}", user.name)
}

/// Lets a request with a session through, and says who the user is.
pub(super) async fn session(
    State(shop): State<Shop>,
    mut request: Request,
    next: Next,
) -> Result<Response, ShopError> {
    let session = session_of(request.headers()).ok_or(ShopError::NotLoggedIn)?;
    let user = shop.users.get(session).await?;
    request.extensions_mut().insert(user);
    Ok(next.run(request).await)
}

/// Lets a request of an operator through; the session is known by now.
pub(super) async fn only_operators(
    Extension(user): Extension<User>,
    request: Request,
    next: Next,
) -> Result<Response, ShopError> {
    if user.name == "Grace" { Ok(next.run(request).await) } else { Err(ShopError::NotAllowed) }
}

/// Begins a session. A real shop asks for a password, and takes a random token.
pub(super) async fn log_in(
    State(shop): State<Shop>,
    name: String,
) -> Result<impl IntoResponse, ShopError> {
    let session = Session(format!("session-of-{name}"));
    let cookie = format!("session={}; HttpOnly", session.0);
    shop.database.log_in(name, session.clone()).await?;
    shop.users.invalidate(&session).await;
    Ok(([(header::SET_COOKIE, cookie)], StatusCode::NO_CONTENT))
}

pub(super) async fn log_out(
    State(shop): State<Shop>,
    headers: HeaderMap,
) -> Result<StatusCode, ShopError> {
    let session = session_of(&headers).ok_or(ShopError::NotLoggedIn)?;
    shop.database.log_out(session.clone()).await?;
    shop.users.invalidate(&session).await;
    Ok(StatusCode::NO_CONTENT)
}

fn session_of(headers: &HeaderMap) -> Option<Session> {
    let cookies = headers.get(header::COOKIE)?.to_str().ok()?;
    let token = cookies.split("; ").find_map(|cookie| cookie.strip_prefix("session="))?;
    Some(Session(token.to_owned()))
}
