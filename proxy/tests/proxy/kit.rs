//! The three rooms of the test kit in `tests/kit` that these tests use.

#[cfg(unix)]
#[path = "../../../tests/kit/proxy/mod.rs"]
pub(crate) mod proxy;
#[cfg(unix)]
#[path = "../../../tests/kit/redis/mod.rs"]
pub(crate) mod redis;
#[cfg(unix)]
#[path = "../../../tests/kit/spellings.rs"]
pub(crate) mod spellings;
