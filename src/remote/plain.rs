//! A remote made of a store that only reads, writes and deletes bytes.

use std::array;
use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::error::BoxError;
use crate::key::Key;
use crate::remote::{
    AcquireOutcome, Call, FillOutcome, Grant, InvalidatedRecords, LeaseRequest, Remote,
    RemoteError, RemoteErrorKind, ServerTime, Shard, Token, Version,
};

/// A store of bytes under names: memcached, a table, a bucket.
///
/// [`PlainRemote`] makes a [`Remote`] of it. A name is the prefix of that remote, a colon, and 64
/// hexadecimal digits. Any error means that the store is away.
///
/// # Examples
///
/// A table, here in memory:
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::{Arc, Mutex};
/// use std::time::{Duration, Instant};
///
/// use bytes::Bytes;
/// use tower_stampede::remote::{PlainRemote, PlainStore, RemoteSettings};
/// use tower_stampede::{BoxError, Stampede};
///
/// #[derive(Clone, Default)]
/// struct Table(Arc<Mutex<HashMap<String, (Bytes, Instant)>>>);
///
/// impl PlainStore for Table {
///     async fn get(&self, name: &str) -> Result<Option<Bytes>, BoxError> {
///         let rows = self.0.lock().unwrap();
///         Ok(rows.get(name).filter(|row| Instant::now() < row.1).map(|row| row.0.clone()))
///     }
///
///     async fn set(&self, name: &str, value: Bytes, ttl: Duration) -> Result<(), BoxError> {
///         let until = Instant::now() + ttl;
///         self.0.lock().unwrap().insert(name.to_owned(), (value, until));
///         Ok(())
///     }
///
///     async fn delete(&self, name: &str) -> Result<(), BoxError> {
///         self.0.lock().unwrap().remove(name);
///         Ok(())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let table = Table::default();
/// let open = || {
///     let remote = Arc::new(PlainRemote::new(table.clone(), "catalog"));
///     let builder = Stampede::<u32>::builder("catalog").ttl(Duration::from_secs(60));
///     builder.remote(remote, RemoteSettings::new()).build()
/// };
/// let (one, two) = (open()?, open()?);
/// assert_eq!(one.get_or_compute("k", async || Ok::<_, BoxError>(7)).await?, 7);
/// # while table.0.lock().unwrap().len() < 1 { tokio::task::yield_now().await; }
/// assert_eq!(two.get_or_compute("k", async || Ok::<_, BoxError>(8)).await?, 7);
/// # Ok(())
/// # }
/// ```
///
/// Memcached, with a connection for each command. A client for production keeps its connections:
///
/// ```no_run
/// use std::time::Duration;
///
/// use bytes::Bytes;
/// use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
/// use tokio::net::TcpStream;
/// use tower_stampede::BoxError;
/// use tower_stampede::remote::PlainStore;
///
/// struct Memcached(String);
///
/// impl Memcached {
///     async fn call(&self, command: &[u8]) -> Result<(String, BufReader<TcpStream>), BoxError> {
///         let mut stream = BufReader::new(TcpStream::connect(&self.0).await?);
///         stream.write_all(command).await?;
///         let mut line = String::new();
///         stream.read_line(&mut line).await?;
///         Ok((line, stream))
///     }
/// }
///
/// impl PlainStore for Memcached {
///     async fn get(&self, name: &str) -> Result<Option<Bytes>, BoxError> {
///         let (line, mut stream) = self.call(format!("get {name}\r\n").as_bytes()).await?;
///         let words: Vec<_> = line.split_whitespace().collect();
///         match words[..] {
///             ["END"] => Ok(None),
///             ["VALUE", _, _, length] => {
///                 let mut bytes = vec![0; length.parse()?];
///                 stream.read_exact(&mut bytes).await?;
///                 Ok(Some(bytes.into()))
///             }
///             _ => Err(line.into()),
///         }
///     }
///
///     async fn set(&self, name: &str, value: Bytes, ttl: Duration) -> Result<(), BoxError> {
///         // More than 30 days would be a date.
///         let seconds = ttl.as_secs().saturating_add(1).min(30 * 24 * 3600);
///         let head = format!("set {name} 0 {seconds} {}\r\n", value.len());
///         let (line, _) = self.call(&[head.as_bytes(), &value[..], b"\r\n"].concat()).await?;
///         if line == "STORED\r\n" { Ok(()) } else { Err(line.into()) }
///     }
///
///     async fn delete(&self, name: &str) -> Result<(), BoxError> {
///         let (line, _) = self.call(format!("delete {name}\r\n").as_bytes()).await?;
///         let is_gone = line == "DELETED\r\n" || line == "NOT_FOUND\r\n";
///         if is_gone { Ok(()) } else { Err(line.into()) }
///     }
/// }
/// ```
pub trait PlainStore: Send + Sync + 'static {
    /// Reads what stands under a name.
    fn get(&self, name: &str) -> impl Future<Output = Result<Option<Bytes>, BoxError>> + Send;

    /// Writes a value for `ttl`, over any other. A store with seconds rounds `ttl` up.
    fn set(&self, name: &str, value: Bytes, ttl: Duration) -> impl Future<Output = Done> + Send;

    /// Removes a value. It must be possible in a store that is full.
    fn delete(&self, name: &str) -> impl Future<Output = Done> + Send;
}

type Done = Result<(), BoxError>;

/// A second level without a lease between processes and without an invalidation log.
///
/// Processes read each other's values, and a store that is away fails no request. What is weaker
/// than with Redis:
///
/// - **Each process computes.** There is no lease between processes. With ten processes, an expired
///   key costs up to ten computations, and a key that fails is tried by each of them.
/// - **Invalidations of keys** reach other processes when they look into the store:
///   after [`local_ttl`](super::RemoteSettings::local_ttl), 1 s by default. **Invalidations of tags
///   and of everything, and stale marks,** stay in their process, and so do values with tags.
/// - **Late writers.** A computation that began before an invalidation, or before another process
///   stored a value, does not overwrite it: an invalidation leaves a mark for ten minutes, and a fill
///   looks first. Three holes stay, in which an old value comes back until its `ttl`: between
///   look and write is one round trip, in which another process may invalidate; the store may
///   drop the mark; and a command that was given up may be executed later.
/// - **Time.** Ages are counted by the clocks of the processes. Values from a process whose clock is
///   2 s ahead or more are not used; a clock that is behind makes values older.
///
/// A fill and an invalidation send two commands each, within one
/// [`op_timeout`](super::RemoteSettings::op_timeout).
#[derive(Debug)]
pub struct PlainRemote<S> {
    store: S,
    prefix: String,
    began: (Duration, Instant),
    /// The rights to fill, in parts. A part is locked while one of its names is written.
    rights: [Mutex<HashMap<Key, Right>>; 64],
}

/// Whose grant it is, and what stood in the store then: another version is of another writer.
type Right = ((Token, Version), Option<Version>);

type Replaced = Result<(Version, InvalidatedRecords), RemoteError>;

/// Stands in place of a value that was ended. The digits give way to a version.
const MARK: &[u8] = b"end:0000000000000000";

/// How long a mark stays: longer than computations.
const MARK_TTL: Duration = Duration::from_secs(600);

impl<S: PlainStore> PlainRemote<S> {
    /// Makes a remote of `store` for one cache. `prefix` begins all names: no other cache may use it.
    #[must_use]
    pub fn new(store: S, prefix: impl Into<String>) -> Self {
        let began = (SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default(), Instant::now());
        Self { store, prefix: prefix.into(), began, rights: array::from_fn(|_| Mutex::default()) }
    }

    fn time(&self) -> ServerTime {
        ServerTime::from_millis((self.began.0 + self.began.1.elapsed()).as_millis() as u64)
    }

    /// Returns the name of a key. Two keys with one name would be a miss: the envelope has the key.
    fn name(&self, key: &Key) -> String {
        format!("{}:{}", self.prefix, blake3::hash(key.as_bytes()).to_hex())
    }

    async fn rights(&self, key: &Key) -> MutexGuard<'_, HashMap<Key, Right>> {
        self.rights[(key.stable_hash() % 64) as usize].lock().await
    }

    /// Reads a value, if it is one, and the version of the value or of the mark.
    async fn read(&self, key: &Key) -> Result<(Option<Bytes>, Option<Version>), RemoteError> {
        let bytes = self.store.get(&self.name(key)).await.map_err(failed)?;
        let version = bytes.as_ref().and_then(|bytes| Version::from_digits(bytes.get(4..20)?));
        let is_value = |bytes: &Bytes| bytes.len() != MARK.len() || bytes[..4] != MARK[..4];
        Ok((bytes.filter(is_value), version))
    }

    /// Returns a version above what was found and granted.
    fn next(&self, found: Option<Version>, right: Option<&Right>) -> Result<Version, RemoteError> {
        let above = found.max(right.map(|(granted, _)| granted.1));
        let next = above.and_then(|above| Version::new(above.get() + 1));
        let next = next.max(Version::new(self.time().as_millis() * 1000));
        next.ok_or_else(|| failed("the system's clock is not set".into()))
    }

    /// Ends the right to fill a key, and what is stored. Returns the new version.
    async fn replace(&self, key: &Key, ttl: Duration, mut bytes: BytesMut) -> Replaced {
        let mut rights = self.rights(key).await;
        let right = rights.remove(key);
        let (value, found) = self.read(key).await?;
        let version = self.next(found, right.as_ref())?;
        bytes[4..20].copy_from_slice(version.to_string().as_bytes());
        if let Err(error) = self.store.set(&self.name(key), bytes.freeze(), ttl).await {
            // What stands there is wrong, and a store without room can still forget it.
            let _ = self.store.delete(&self.name(key)).await;
            return Err(failed(error));
        }
        Ok((
            version,
            InvalidatedRecords {
                value: value.is_some(),
                lease: right.is_some(),
                version: Some(version),
            },
        ))
    }
}

impl<S: PlainStore> Remote for PlainRemote<S> {
    fn get<'a>(&'a self, key: &'a Key) -> Call<'a, Option<Bytes>> {
        Box::pin(async move { Ok(self.read(key).await?.0) })
    }

    fn acquire<'a>(&'a self, key: &'a Key, ask: &'a LeaseRequest) -> Call<'a, AcquireOutcome> {
        Box::pin(async move {
            let mut rights = self.rights(key).await;
            let ((value, found), now) = (self.read(key).await?, self.time());
            if let Some(value) = value.filter(|_| found.is_some() && found != ask.seen) {
                return Ok(AcquireOutcome::Hit { now, value });
            }
            let version = match rights.get(key) {
                Some(((token, version), _)) if *token == ask.token => *version,
                right => self.next(found, right)?,
            };
            // Rights stay where the calls that end them were given up. Who loses one shares nothing.
            if rights.len() >= 1000 {
                rights.clear();
            }
            rights.insert(key.clone(), ((ask.token, version), found));
            Ok(AcquireOutcome::Granted(Grant::new(ask.token, version, now)))
        })
    }

    fn fill<'a>(
        &'a self,
        key: &'a Key,
        grant: &'a Grant,
        ttl: Duration,
        envelope: Bytes,
    ) -> Call<'a, FillOutcome> {
        Box::pin(async move {
            let mut rights = self.rights(key).await;
            let (_, found) = self.read(key).await?;
            let right = rights.get(key).filter(|right| right.0 == (grant.token, grant.version));
            match right {
                _ if found == Some(grant.version) => Ok(FillOutcome::StoredBefore),
                Some((_, before)) if found.is_none() || found == *before => {
                    self.store.set(&self.name(key), envelope, ttl).await.map_err(failed)?;
                    rights.remove(key);
                    Ok(FillOutcome::Stored)
                }
                _ => Ok(FillOutcome::Refused),
            }
        })
    }

    fn renew<'a>(&'a self, key: &'a Key, of: &'a Grant, _: &'a LeaseRequest) -> Call<'a, bool> {
        Box::pin(async move {
            Ok(self.rights(key).await.get(key).is_some_and(|own| own.0 == (of.token, of.version)))
        })
    }

    fn abandon<'a>(&'a self, key: &'a Key, of: &'a Token, _: Option<Duration>) -> Call<'a, bool> {
        Box::pin(async move {
            let mut rights = self.rights(key).await;
            let is_own = rights.get(key).is_some_and(|right| right.0.0 == *of);
            Ok(is_own && rights.remove(key).is_some())
        })
    }

    fn invalidate<'a>(&'a self, key: &'a Key) -> Call<'a, InvalidatedRecords> {
        Box::pin(async move { Ok(self.replace(key, MARK_TTL, BytesMut::from(MARK)).await?.1) })
    }

    fn put<'a>(
        &'a self,
        key: &'a Key,
        ttl: Duration,
        envelope: Bytes,
    ) -> Call<'a, (ServerTime, Version)> {
        Box::pin(async move { Ok((self.time(), self.replace(key, ttl, envelope.into()).await?.0)) })
    }

    fn probe(&self, _: Shard) -> Call<'_, ServerTime> {
        Box::pin(async move {
            // No key has this name.
            let set = self.store.set(&self.prefix, Bytes::new(), Duration::from_secs(1)).await;
            set.map(|()| self.time()).map_err(failed)
        })
    }

    fn address(&self) -> String {
        self.prefix.clone()
    }

    fn suspect(&self, _: Shard, _: RemoteErrorKind) {}
}

fn failed(error: BoxError) -> RemoteError {
    RemoteError::caused(RemoteErrorKind::Connection, error)
}
