//! The book of this crate: one module for each page. All Rust code in it runs as a test.
//!
#![doc = include_str!("guide/links.md")]
#![cfg_attr(any(not(doctest), feature = "axum"), doc = include_str!("../docs/README.md"))]

macro_rules! text {
    ($file:expr) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/", $file))
    };
}

/// A page of `docs/` as a module. The page is always there to read. Its code runs as a test
/// where the features that it needs are on.
///
/// In the file, a link to another page is a reference such as `[glossary]`, which the file
/// defines as the path of a file. `links.md` comes first here and defines the same references as
/// modules. The first definition counts, and rustdoc checks it.
macro_rules! page {
    ($name:ident, $file:literal) => {
        page!($name, $file, all());
    };
    ($name:ident, $file:literal, $needs:meta) => {
        #[doc = text!("src/guide/links.md")]
        #[cfg_attr(any(not(doctest), $needs), doc = text!(concat!("docs/", $file)))]
        pub mod $name {}
    };
}

page!(put_it_in_your_app, "put-it-in-your-app.md", all(feature = "axum", feature = "redis"));
page!(glossary, "glossary.md");
page!(how_it_works, "how-it-works.md");
page!(typed_caches, "typed-caches.md");
page!(what_is_cached, "what-is-cached.md", feature = "http");
page!(shapes, "shapes.md");
page!(steering, "steering.md", feature = "http");
page!(time_outs, "time-outs.md");
page!(cold_start, "cold-start.md");
page!(testing, "testing.md", all(feature = "remote", feature = "test-util"));
pub mod recipes;
page!(reverse_proxy, "reverse-proxy.md");
pub mod migration;
page!(the_lock, "the-lock.md");
page!(
    operating_redis,
    "operating-redis.md",
    all(
        feature = "redis",
        feature = "test-util",
        feature = "codec-json",
        feature = "codec-zstd",
        feature = "codec-aead"
    )
);
page!(observability, "observability.md");
pub mod operations;
page!(threats, "threats.md", feature = "axum");
page!(protocol_for_other_languages, "protocol-for-other-languages.md", feature = "remote");
page!(benchmarks, "benchmarks.md");
page!(peers, "peers.md");
page!(rfc9111, "rfc9111.md");

#[cfg(all(test, feature = "http", feature = "metrics", feature = "redis", feature = "test-util"))]
mod tests;
