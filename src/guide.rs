//! Longer texts: how the crate works, and how to live with it.
//!
//! Every piece of Rust in them runs as a test.

// Always to be read; its code needs axum and Redis.
#[cfg_attr(
    any(not(doctest), all(feature = "axum", feature = "redis")),
    doc = include_str!("../docs/put-it-in-your-app.md")
)]
#[cfg_attr(
    all(doctest, not(all(feature = "axum", feature = "redis"))),
    doc = "Put it in your app."
)]
pub mod put_it_in_your_app {}

#[doc = include_str!("../docs/glossary.md")]
pub mod glossary {}

#[doc = include_str!("../docs/how-it-works.md")]
pub mod how_it_works {}

#[doc = include_str!("../docs/typed-caches.md")]
pub mod typed_caches {}

#[doc = include_str!("../docs/time-outs.md")]
pub mod time_outs {}

// Always to be read; its code needs the HTTP layer.
#[cfg_attr(any(not(doctest), feature = "http"), doc = include_str!("../docs/what-is-cached.md"))]
#[cfg_attr(all(doctest, not(feature = "http")), doc = "What is cached.")]
pub mod what_is_cached {}

// Always to be read; its code needs the HTTP layer.
#[cfg_attr(any(not(doctest), feature = "http"), doc = include_str!("../docs/steering.md"))]
#[cfg_attr(all(doctest, not(feature = "http")), doc = "The origin steers.")]
pub mod steering {}

// Always to be read; its code needs the manual clock and the double.
#[cfg_attr(
    any(not(doctest), all(feature = "remote", feature = "test-util")),
    doc = include_str!("../docs/testing.md")
)]
#[cfg_attr(all(doctest, not(all(feature = "remote", feature = "test-util"))), doc = "Testing.")]
pub mod testing {}

#[doc = include_str!("../docs/the-lock.md")]
pub mod the_lock {}

// Always to be read; its code needs Redis and the double.
#[cfg_attr(
    any(not(doctest), all(feature = "redis", feature = "test-util")),
    doc = include_str!("../docs/operating-redis.md")
)]
#[cfg_attr(
    all(doctest, not(all(feature = "redis", feature = "test-util"))),
    doc = "Operating with Redis."
)]
pub mod operating_redis {}

// Always to be read; its code needs the remote.
#[cfg_attr(
    any(not(doctest), feature = "remote"),
    doc = include_str!("../docs/protocol-for-other-languages.md")
)]
#[cfg_attr(all(doctest, not(feature = "remote")), doc = "The protocol for other languages.")]
pub mod protocol_for_other_languages {}

#[doc = include_str!("../docs/observability.md")]
pub mod observability {}

pub mod migration;
pub mod recipes;

#[cfg(all(
    test,
    feature = "http",
    feature = "metrics",
    feature = "redis",
    feature = "test-util",
    feature = "tracing"
))]
mod tests;
