//! From another cache to this one: a table of words, and the same program before and after.

#[doc = include_str!("../../docs/migration/moka.md")]
pub mod moka {}

#[doc = include_str!("../../docs/migration/fusioncache.md")]
pub mod fusioncache {}

// Always to be read; its code needs axum.
#[cfg_attr(any(not(doctest), feature = "axum"), doc = include_str!("../../docs/migration/nginx.md"))]
#[cfg_attr(all(doctest, not(feature = "axum")), doc = "A migration.")]
pub mod nginx {}

// Always to be read; its code needs axum.
#[cfg_attr(any(not(doctest), feature = "axum"), doc = include_str!("../../docs/migration/varnish.md"))]
#[cfg_attr(all(doctest, not(feature = "axum")), doc = "A migration.")]
pub mod varnish {}

#[doc = include_str!("../../docs/migration/laravel-flexible.md")]
pub mod laravel_flexible {}

#[doc = include_str!("../../docs/migration/dogpile.md")]
pub mod dogpile {}
