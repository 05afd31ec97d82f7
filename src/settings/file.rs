//! Settings from a file: whatever serde reads, with durations such as `60s` and sizes such as
//! `64MiB`.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Visitor};

use crate::settings::size::parse_size;
use crate::settings::{Settings, StatusTtl};

/// A setting that cannot be read: its path in the file, and why.
#[derive(Debug)]
pub struct SettingsError {
    path: String,
    reason: String,
}

impl SettingsError {
    /// Returns the path of the setting, such as `caches.users.ttl`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.path, self.reason)
    }
}

impl std::error::Error for SettingsError {}

impl Settings {
    /// Reads settings. `path` says where they stand in the file: errors name it, also those of
    /// [`Builder::build`](crate::Builder::build).
    ///
    /// # Errors
    ///
    /// When a setting is unknown or of another form.
    pub fn read<'de, D: Deserializer<'de>>(path: &str, from: D) -> Result<Self, SettingsError> {
        match serde_path_to_error::deserialize::<_, Self>(from) {
            Ok(settings) => Ok(Self { path: path.to_owned(), ..settings }),
            Err(error) => {
                let inside = error.path().to_string();
                let parts = [path, &inside];
                let named = parts.into_iter().filter(|part| !matches!(*part, "" | "."));
                let path = named.collect::<Vec<_>>().join(".");
                Err(SettingsError { path, reason: error.into_inner().to_string() })
            }
        }
    }
}

/// Reads what serde reads by itself: a number, or a word.
pub(super) fn plain<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(from)
}

pub(super) fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    struct Text;
    impl Visitor<'_> for Text {
        type Value = Duration;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a duration with a unit, such as \"60s\", \"250ms\" or \"1h 30m\"")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Duration, E> {
            humantime::parse_duration(text).map_err(|error| {
                E::custom(format!("`{text}` is no duration ({error}); write for example `60s`"))
            })
        }
    }
    from.deserialize_str(Text).map(Some)
}

/// Reads lifetimes by status. The statuses are texts: what some formats have as keys.
pub(super) fn status_ttl<'de, D: Deserializer<'de>>(from: D) -> Result<StatusTtl, D::Error> {
    let refuse = <D::Error as serde::de::Error>::custom;
    let texts = BTreeMap::<String, String>::deserialize(from)?;
    let lifetimes = texts.iter().map(|(status, ttl)| {
        let number = status.parse();
        let number = number.map_err(|_| {
            refuse(format!("`{status}` is no status; write for example `404 = \"10s\"`"))
        })?;
        let ttl = humantime::parse_duration(ttl).map_err(|error| {
            refuse(format!("`{ttl}` is no duration ({error}); write for example `60s`"))
        })?;
        Ok((number, ttl))
    });
    lifetimes.collect()
}

/// The same, where nothing is no table.
#[cfg(feature = "http")]
pub(super) fn statuses<'de, D: Deserializer<'de>>(from: D) -> Result<Option<StatusTtl>, D::Error> {
    status_ttl(from).map(Some)
}

pub(super) fn size<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    struct Size;
    impl Visitor<'_> for Size {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number of bytes, or a size such as \"64MiB\"")
        }

        fn visit_u64<E: serde::de::Error>(self, bytes: u64) -> Result<u64, E> {
            Ok(bytes)
        }

        fn visit_i64<E: serde::de::Error>(self, bytes: i64) -> Result<u64, E> {
            let bytes = u64::try_from(bytes);
            bytes.map_err(|_| E::custom("a size is not negative; write for example `64MiB`"))
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<u64, E> {
            parse_size(text).ok_or_else(|| {
                E::custom(format!("`{text}` is no size; write for example `64MiB`, or bytes"))
            })
        }
    }
    let bytes = from.deserialize_any(Size)?;
    let too_large = |_| serde::de::Error::custom(format!("{bytes} bytes are too large here"));
    T::try_from(bytes).map(Some).map_err(too_large)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Eviction;

    fn read(json: &str) -> Result<Settings, SettingsError> {
        Settings::read("caches.a", &mut serde_json::Deserializer::from_str(json))
    }

    fn refused(json: &str) -> String {
        read(json).expect_err("refused").to_string()
    }

    #[test]
    fn each_setting_reaches_the_builder() {
        let json = r#"{
            "ttl": "1h 30m", "stale_for": "5m", "stale_if_error": "1d", "jitter": 0.2,
            "early_refresh": 1.0, "early_refresh_share": 0.5, "cancel_unwanted": 0.5, "compute_timeout": "2s",
            "lease": "3s", "wait_timeout": "4s", "compute_after_wait": true, "hold": "250ms",
            "max_hold": "30s", "uncacheable_for": "6s", "max_bytes": "64MiB",
            "max_entries": 1000, "eviction": "s3_fifo", "max_waiters": 7,
            "max_waiters_in_all": 70, "min_computations": 2, "max_computations": 8,
            "max_refreshes": 3,
            "max_logged_tags": 99, "max_batch": 50, "batch_window": "5ms",
            "status_ttl": { "404": "10s", "500": "1s" }
        }"#;
        let settings = read(json).expect("these can be read");
        assert_eq!(settings.ttl, Some(Duration::from_secs(5400)));
        assert_eq!(settings.max_bytes, Some(64 << 20));
        assert_eq!(settings.eviction, Some(Eviction::S3Fifo));
        let cache = settings.builder::<u32>("a").build().expect("they fit");
        let engine = &cache.0.engine.settings;
        assert_eq!((engine.min_computations, engine.max_computations()), (Some(2), 8));
        assert_eq!(engine.hold(), Duration::from_millis(250));
        assert_eq!(engine.max_batch(), 50);
        assert_eq!(engine.compute_after_wait, Some(true));
        assert_eq!(cache.0.values.jitter, 0.2);
        assert_eq!(cache.0.values.status_ttl.get(&404), Some(&Duration::from_secs(10)));
    }

    #[test]
    fn a_setting_that_cannot_be_read_is_named_by_its_path() {
        for (json, path, word) in [
            (r#"{"ttl": "60 parsecs"}"#, "caches.a.ttl", "is no duration"),
            (r#"{"ttl": 60}"#, "caches.a.ttl", "with a unit"),
            (r#"{"hold": "soon"}"#, "caches.a.hold", "write for example `60s`"),
            (r#"{"max_bytes": "64 elephants"}"#, "caches.a.max_bytes", "is no size"),
            (r#"{"max_bytes": "99999999999GiB"}"#, "caches.a.max_bytes", "is no size"),
            (r#"{"max_bytes": -1}"#, "caches.a.max_bytes", "not negative"),
            (r#"{"max_entries": "many"}"#, "caches.a.max_entries", "invalid type"),
            (r#"{"eviction": "random"}"#, "caches.a.eviction", "unknown variant"),
            (r#"{"status_ttl": {"404": 10}}"#, "caches.a.status_ttl.404", "invalid type"),
            (r#"{"status_ttl": {"gone": "1s"}}"#, "caches.a.status_ttl", "is no status"),
            (r#"{"status_ttl": {"404": "soon"}}"#, "caches.a.status_ttl", "is no duration"),
            (r#"{"tttl": "1s"}"#, "caches.a.tttl", "unknown field"),
            (r#"7"#, "caches.a", "invalid type"),
        ] {
            let error = read(json).expect_err(json);
            assert_eq!(error.path(), path, "{json}");
            assert!(error.to_string().contains(word), "{error}");
        }
        assert!(refused(r#"{"jitter": "a"}"#).starts_with("`caches.a.jitter`: "));
    }

    #[test]
    fn settings_that_do_not_fit_are_named_by_their_paths() {
        let build = |json| read(json).expect("can be read").builder::<u32>("a").build();
        let error = build(r#"{"ttl": "1s", "max_refreshes": 9, "max_computations": 8}"#);
        let error = error.expect_err("does not fit");
        let paths = "`caches.a.max_refreshes` and `caches.a.max_computations`: 9 must";
        assert!(error.to_string().starts_with(paths), "{error}");
        assert_eq!(error.fields(), ["max_refreshes", "max_computations"]);
        for (json, word) in [
            (r#"{"ttl": "1s", "status_ttl": {"200": "1s"}}"#, "200 is no error"),
            (r#"{"ttl": "1s", "status_ttl": {"404": "0s"}}"#, "404 is 0 s"),
        ] {
            let error = build(json).expect_err("no such lifetime").to_string();
            assert!(
                error.starts_with("`caches.a.status_ttl`: ") && error.contains(word),
                "{error}"
            );
        }
        let error = build("{}").expect_err("there is no ttl");
        assert!(error.to_string().starts_with("`caches.a.ttl`: is not set"), "{error}");
    }

    #[test]
    fn sizes_have_units_of_bytes() {
        let sizes = [("0", 0), ("12", 12), ("12 B", 12), ("3kB", 3000), ("2 MB", 2_000_000)];
        for (text, bytes) in sizes {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for (text, bytes) in [("1KiB", 1 << 10), ("5GiB", 5 << 30), ("1GB", 1_000_000_000)] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for text in ["", "MiB", "1.5MiB", "-1", "1 mib", "1MiB2"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }
}
