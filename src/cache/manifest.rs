//! What a cache holds, without the values: the next process loads it before it takes requests.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::cache::handle::Stampede;
use crate::error::ConfigError;
use crate::key::{self, Key};

/// The first word of the text of a manifest, and its version.
const KIND: &str = "tower-stampede-manifest-1";

/// How many entries are looked at before other tasks run.
const SLICE: usize = 512;

/// The keys of a cache that are worth the most, with what their values took to compute and how often
/// they were used: what a process leaves to the next one. It has no values.
///
/// [`Stampede::manifest`] makes it at the end of a process. Its text ([`Display`](fmt::Display)) is
/// written wherever the next process finds it: to a file, or to a remote as the value of another
/// cache. That process [`read`](Self::read)s it, loads the keys, and then reports that it is ready.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_stampede::{Cache, Manifest, Stampede};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let file = std::env::temp_dir().join(format!("squares-{}.manifest", std::process::id()));
/// let start = || {
///     let handle = Stampede::builder("squares").ttl(Duration::from_secs(60)).build()?;
///     let square = |n: u64| async move { Ok::<_, std::io::Error>(n * n) };
///     Ok::<_, tower_stampede::ConfigError>(Cache::new(handle, square))
/// };
/// let squares = start()?;
/// squares.get(7).await?;
/// // At the end of the process, after it has taken its last request:
/// std::fs::write(&file, squares.handle().manifest(10_000).await.to_string())?;
///
/// // The next process, before it reports that it is ready:
/// let squares = start()?;
/// let manifest = Manifest::read(&std::fs::read_to_string(&file)?, "squares")?;
/// let failures = squares.preload(manifest.keys::<u64>(), 8).await;
/// assert!(failures.is_empty() && squares.handle().lookup(7).is_some());
/// # std::fs::remove_file(file)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    cache: String,
    /// The one that is worth the most first.
    rows: Vec<Row>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    key: Key,
    micros: u32,
    uses: u32,
}

impl Row {
    /// Price and use. A value that was not used yet comes after all that were, of its price.
    fn worth(&self) -> u64 {
        u64::from(self.micros) * (u64::from(self.uses) + 1)
    }
}

fn refused(reason: String) -> ConfigError {
    ConfigError::new(&["manifest"], reason)
}

impl Manifest {
    /// Reads the text of a manifest of the cache that is named `cache`.
    ///
    /// # Errors
    ///
    /// If it is none, or one of another version or of another cache, or a part of it is missing. Nothing
    /// of it is to be used then: a process that starts without a manifest starts cold.
    pub fn read(text: &str, cache: &str) -> Result<Self, ConfigError> {
        let (head, rest) = text.split_once('\n').unwrap_or((text, ""));
        let mut words = head.split(' ');
        match words.next() {
            Some(KIND) => {}
            Some(other) if other.starts_with("tower-stampede-manifest-") => {
                return Err(refused(format!(
                    "is of the kind `{other}`, and this version reads `{KIND}`: start without it once"
                )));
            }
            _ => return Err(refused(format!("is no manifest: its first word is not `{KIND}`"))),
        }
        let named = words.next().and_then(key::bytes_of);
        if named.as_deref() != Some(cache.as_bytes()) {
            let named = named.map(|it| String::from_utf8_lossy(&it).into_owned());
            return Err(refused(format!(
                "is of the cache `{}`, and not of `{cache}`: give each cache a file of its own",
                named.unwrap_or_default()
            )));
        }
        let mut rows = Vec::new();
        for (at, line) in rest.lines().enumerate() {
            let row = || {
                let mut words = line.split(' ');
                let (micros, uses) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                let key = Key::from_encoded(&key::bytes_of(words.next()?)?);
                words.next().is_none().then_some(Row { key, micros, uses })
            };
            let row = row().ok_or_else(|| {
                refused(format!(
                    "cannot be read at line {}: it is damaged, start without it",
                    at + 2
                ))
            })?;
            rows.push(row);
        }
        // Also a cut within the last key.
        if words.next() != Some(&*rows.len().to_string()) || !text.ends_with('\n') {
            return Err(refused("is not whole: start without it".into()));
        }
        Ok(Self { cache: cache.into(), rows })
    }

    /// Returns how many keys it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the keys that can be read as a `K`, that which is worth the most first: numbers and
    /// text. Keys of several parts cannot; for these see [`encoded_keys`](Self::encoded_keys).
    pub fn keys<K: FromStr>(&self) -> impl Iterator<Item = K> {
        let keys = self.rows.iter().filter_map(|row| key::bytes_in(row.key.as_bytes()));
        keys.filter_map(|key| str::from_utf8(key).ok()?.parse().ok())
    }

    /// Returns all keys in this order, as [`ToKey`](crate::ToKey) makes them.
    pub fn encoded_keys(&self) -> impl Iterator<Item = &Key> {
        self.rows.iter().map(|row| &row.key)
    }
}

impl fmt::Display for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = key::text_of(self.cache.as_bytes());
        writeln!(f, "{KIND} {name} {}", self.rows.len())?;
        for Row { key, micros, uses } in &self.rows {
            writeln!(f, "{micros} {uses} {}", key::text_of(key.as_bytes()))?;
        }
        Ok(())
    }
}

impl<V: Clone + Send + Sync + 'static> Stampede<V> {
    /// Returns the `most` keys of this process whose values are worth the most: the time that their
    /// computation took, by their uses. See [`Manifest`].
    ///
    /// Keys may hold data of users, and so does the manifest: keep it as you keep a log with keys. Of
    /// responses over HTTP it has those that have nothing but their URL in the key, so none that
    /// depend on credentials.
    ///
    /// # Cost
    ///
    /// Looks at every entry, in slices, and holds as many keys as it returns.
    pub async fn manifest(&self, most: usize) -> Manifest {
        let state = Arc::clone(&self.0);
        let mut first = BinaryHeap::new();
        for (n, (key, entry)) in state.local.iter().enumerate() {
            if state.is_of_use(&entry) && key::is_plain(key.as_bytes()) {
                let row = Row { key, micros: entry.computed_micros(), uses: entry.uses() };
                // Those of one worth are in the order of their keys.
                let bytes: Box<[u8]> = row.key.as_bytes().into();
                first.push((Reverse(row.worth()), bytes, row.micros, row.uses));
                if first.len() > most {
                    first.pop();
                }
            }
            if n % SLICE == SLICE - 1 {
                tokio::task::yield_now().await;
            }
        }
        let row = |(_, key, micros, uses): (_, Box<[u8]>, _, _)| Row {
            key: Key::from_encoded(&key),
            micros,
            uses,
        };
        let rows = first.into_sorted_vec().into_iter().map(row).collect();
        Manifest { cache: state.name.to_string(), rows }
    }
}
