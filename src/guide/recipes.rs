//! Recipes: one problem each, with code that runs as a test.

// Always to be read; its code needs axum.
#[cfg_attr(any(not(doctest), feature = "axum"), doc = include_str!("../../docs/recipes/sessions.md"))]
#[cfg_attr(all(doctest, not(feature = "axum")), doc = "A recipe.")]
pub mod sessions {}

// Always to be read; its code needs axum.
#[cfg_attr(any(not(doctest), feature = "axum"), doc = include_str!("../../docs/recipes/routes.md"))]
#[cfg_attr(all(doctest, not(feature = "axum")), doc = "A recipe.")]
pub mod routes {}

// Always to be read; its code needs axum.
#[cfg_attr(any(not(doctest), feature = "axum"), doc = include_str!("../../docs/recipes/errors.md"))]
#[cfg_attr(all(doctest, not(feature = "axum")), doc = "A recipe.")]
pub mod errors {}

// Always to be read; its code needs the HTTP layer.
#[cfg_attr(any(not(doctest), feature = "http"), doc = include_str!("../../docs/recipes/outgoing-client.md"))]
#[cfg_attr(all(doctest, not(feature = "http")), doc = "A recipe.")]
pub mod outgoing_client {}

#[doc = include_str!("../../docs/recipes/grpc.md")]
pub mod grpc {}

// Always to be read; its code needs axum.
#[cfg_attr(any(not(doctest), feature = "axum"), doc = include_str!("../../docs/recipes/graphql.md"))]
#[cfg_attr(all(doctest, not(feature = "axum")), doc = "A recipe.")]
pub mod graphql {}

#[doc = include_str!("../../docs/recipes/sql-batches.md")]
pub mod sql_batches {}

#[doc = include_str!("../../docs/recipes/oauth-token.md")]
pub mod oauth_token {}

#[doc = include_str!("../../docs/recipes/warm-up.md")]
pub mod warm_up {}

#[doc = include_str!("../../docs/recipes/outbox.md")]
pub mod outbox {}

// Always to be read; its code needs axum.
#[cfg_attr(any(not(doctest), feature = "axum"), doc = include_str!("../../docs/recipes/observe-only.md"))]
#[cfg_attr(all(doctest, not(feature = "axum")), doc = "A recipe.")]
pub mod observe_only {}

// Always to be read; its code needs the HTTP layer.
#[cfg_attr(any(not(doctest), feature = "http"), doc = include_str!("../../docs/recipes/php.md"))]
#[cfg_attr(all(doctest, not(feature = "http")), doc = "A recipe.")]
pub mod php {}
