//! Why a caller got no value.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::key::{Key, primary_of};

/// Any error, boxed: what inner services and computations fail with.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Why a caller got no value. Cheap to clone: one failure may reach thousands
/// of callers. Its text names the cache and the cause.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_stampede::{ErrorKind, Stampede};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let cache: Stampede<u32> = Stampede::in_memory(Duration::from_secs(60));
/// let error = cache.get_or_compute("k", || async { "x".parse::<u32>() }).await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Inner);
/// assert!(error.inner::<std::num::ParseIntError>().is_some());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Error(Arc<Repr>);

struct Repr {
    kind: ErrorKind,
    retry_after: Option<Duration>,
    source: Option<Source>,
    /// What is done about the failure, where a typed cache has decided that.
    action: Option<FailureAction>,
    /// The name of the cache, once that is known.
    cache: Option<Arc<str>>,
    /// The size of a loader's error, which is shared with its callers.
    shared_bytes: usize,
}

enum Source {
    Inner(BoxError),
    /// A hold repeats the failure that began it.
    Earlier(Error),
    /// The failure is the answer: it is remembered, and no stale value is served in its place.
    Answer(Error),
    /// The same error, which others hold too, with the name of the cache.
    Named(Error),
    /// The key, as text.
    OwnKey(Box<str>),
}

/// What an error of the application counts at least: it may hold memory that is not in its text.
const LEAST_INNER: u64 = 1 << 10;

/// So many errors of a chain of sources are looked at.
const MOST_SOURCES: usize = 16;

/// The text of a key is no longer than this in an error.
const LONGEST_KEY: usize = 64;

/// What to do when a computation fails; see [`Builder::on_failure`](crate::Builder::on_failure).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureAction {
    /// The waiters share the failure, and no caller tries again for `hold`. A stale value
    /// is served in its place.
    #[default]
    Hold,
    /// The waiters share the failure; the next caller tries again. A stale value is served
    /// in its place.
    ShareOnly,
    /// Each waiter tries for itself, in parallel; so does the next caller.
    EachItself,
    /// The failure is an answer, such as "not found": for this long every caller of this
    /// process gets it, as the computation's own error, and the key is not computed. No stale
    /// value is served in its place: an older value is removed, also from the remote.
    ///
    /// It ends early with `invalidate`, `put` or `mark_stale` of the key, `invalidate_all`, or
    /// a `refresh`. Other processes compute for themselves once. How many failures are
    /// remembered is bounded; the loss of one costs a computation.
    Remember(Duration),
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The computation or the inner service failed; the error is its own.
    Inner,
    /// The caller waited for `wait_timeout`.
    WaitTimeout,
    /// The computation took longer than `compute_timeout` and was dropped.
    ComputeTimeout,
    /// Too many callers wait, or no place among the `max_computations` came free in time.
    Overloaded,
    /// The key failed a moment ago and is not computed again for `retry_after`.
    Held,
    /// The computation panicked twice in a row.
    Panicked,
    /// The computation was stopped because the handle or the runtime shut down.
    ShutDown,
    /// A computation asks for its own key, or for a key whose computation asks for its own: it
    /// would wait for itself. The text names the key.
    Cycle,
}

impl ErrorKind {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Inner => "computation failed",
            Self::WaitTimeout => "waited too long for another caller's computation",
            Self::ComputeTimeout => "computation took too long",
            Self::Overloaded => "too many callers wait, or too many computations run",
            Self::Held => "computation failed a moment ago and is not tried again yet",
            Self::Panicked => "computation panicked",
            Self::ShutDown => "computation was stopped by a shutdown",
            Self::Cycle => "computation waits for itself",
        }
    }
}

impl Error {
    pub(crate) fn new(kind: ErrorKind) -> Self {
        Self::made_of(kind, None, None)
    }

    pub(crate) fn retry_in(kind: ErrorKind, retry_after: Duration) -> Self {
        Self::made_of(kind, Some(retry_after), None)
    }

    fn made_of(kind: ErrorKind, retry_after: Option<Duration>, source: Option<Source>) -> Self {
        let (action, cache, shared_bytes) = (None, None, 0);
        Self(Arc::new(Repr { kind, retry_after, source, action, cache, shared_bytes }))
    }

    /// Makes the error of a caller that runs in the computation of `key`, or in one that this one
    /// waits for, and asks for `key`.
    pub(crate) fn circular(key: &Key) -> Self {
        let name = match key.as_bytes() {
            // Of a request, which may have credentials in its key.
            bytes if primary_of(bytes).is_some() => key.hash_text(),
            bytes if bytes.len() <= LONGEST_KEY => bytes.escape_ascii().to_string(),
            bytes => format!("{}...", bytes[..LONGEST_KEY].escape_ascii()),
        };
        Self::made_of(ErrorKind::Cycle, None, Some(Source::OwnKey(name.into())))
    }

    pub(crate) fn inner_error(error: impl Into<BoxError>) -> Self {
        Self::made_of(ErrorKind::Inner, None, Some(Source::Inner(error.into())))
    }

    /// Makes an error of what a computation failed with.
    pub(crate) fn of_computation(error: impl Into<BoxError>) -> Self {
        match error.into().downcast::<LoadFailure>() {
            Ok(shared) => shared.0,
            Err(error) => Self::inner_error(error),
        }
    }

    /// Returns the error of the computation, if this is one.
    pub(crate) fn cause(&self) -> Option<&(dyn StdError + Send + Sync + 'static)> {
        match self.0.source.as_ref()? {
            Source::Inner(error) => Some(&**error),
            Source::Named(error) => error.cause(),
            Source::Earlier(_) | Source::Answer(_) | Source::OwnKey(_) => None,
        }
    }

    /// Returns what a typed cache does about the failure.
    pub(crate) fn action(&self) -> Option<FailureAction> {
        self.0.action
    }

    /// Makes an answer of a failure.
    pub(crate) fn into_answer(self) -> Self {
        Self::made_of(self.kind(), None, Some(Source::Answer(self)))
    }

    /// Returns whether the failure is an answer, for which nothing stale stands in.
    pub(crate) fn is_answer(&self) -> bool {
        match &self.0.source {
            Some(Source::Answer(_)) => true,
            Some(Source::Named(error)) => error.is_answer(),
            Some(Source::Inner(_) | Source::Earlier(_) | Source::OwnKey(_)) | None => false,
        }
    }

    /// Says which cache the error comes from.
    pub(crate) fn in_cache(self, cache: &Arc<str>) -> Self {
        let (mut error, cache) = (self, Some(Arc::clone(cache)));
        if error.0.cache.is_some() {
            return error;
        }
        if let Some(repr) = Arc::get_mut(&mut error.0) {
            repr.cache = cache;
            return error;
        }
        let Repr { kind, retry_after, action, .. } = *error.0;
        let (source, shared_bytes) = (Some(Source::Named(error)), 0);
        Self(Arc::new(Repr { kind, retry_after, source, action, cache, shared_bytes }))
    }

    pub(crate) fn held(retry_after: Duration, earlier: Option<Self>) -> Self {
        let source = earlier.map(Source::Earlier);
        Self::made_of(ErrorKind::Held, Some(retry_after), source)
    }

    /// Returns what went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the error of the computation if it is a `T`, also when a hold repeats it. A
    /// hold that another process began comes without the error.
    #[must_use]
    pub fn inner<T: StdError + 'static>(&self) -> Option<&T> {
        match self.0.source.as_ref()? {
            Source::Inner(error) => error
                .downcast_ref()
                .or_else(|| error.downcast_ref().map(|error: &LoadError<T>| &*error.0)),
            Source::Earlier(error) | Source::Answer(error) | Source::Named(error) => error.inner(),
            Source::OwnKey(_) => None,
        }
    }

    /// Returns the loader's own error if it is an `E`, also when a hold repeats it: the error of
    /// a [`Cache`](crate::Cache), which every caller that waited shares.
    ///
    /// # Errors
    ///
    /// Returns this error if it is one of the cache, of another type, or did not come from the
    /// loader of a [`Cache`](crate::Cache); see [`inner`](Self::inner) for those.
    pub fn downcast<E: fmt::Debug + fmt::Display + 'static>(self) -> Result<Arc<E>, Self> {
        self.of_loader().ok_or(self)
    }

    /// Keeps the error of a loader as it is, for every caller that gets it.
    pub(crate) fn of_load<E: fmt::Debug + fmt::Display + Send + Sync + 'static>(
        error: E,
        action: Option<FailureAction>,
    ) -> Self {
        let source = Some(Source::Inner(Box::new(LoadError(Arc::new(error)))));
        let (kind, retry_after, cache, shared_bytes) =
            (ErrorKind::Inner, None, None, size_of::<E>());
        Self(Arc::new(Repr { kind, retry_after, source, action, cache, shared_bytes }))
    }

    /// Returns about how many bytes the error takes. Of an error of the application the cache sees the
    /// size and the text, and those of its sources: it counts these, and `LEAST_INNER` at least.
    ///
    /// Runs code of the user: `Display` and `source` of the errors. One that panics weighs most.
    pub(crate) fn weight(&self) -> u64 {
        let own = size_of::<Repr>().saturating_add(self.0.shared_bytes) as u64;
        match &self.0.source {
            None | Some(Source::OwnKey(_)) => own,
            Some(Source::Inner(error)) => {
                let first: &(dyn StdError + 'static) = &**error;
                let chain = std::iter::successors(Some(first), |&error| StdError::source(error));
                let bytes = |error: &(dyn StdError + 'static)| {
                    (size_of_val(error) as u64).saturating_add(text_bytes(error))
                };
                let inner = || chain.take(MOST_SOURCES).map(bytes).fold(own, u64::saturating_add);
                contain_panic(inner).unwrap_or(u64::MAX).max(LEAST_INNER)
            }
            Some(Source::Earlier(error) | Source::Answer(error) | Source::Named(error)) => {
                own.saturating_add(error.weight())
            }
        }
    }

    fn of_loader<E: fmt::Debug + fmt::Display + 'static>(&self) -> Option<Arc<E>> {
        match self.0.source.as_ref()? {
            Source::Inner(error) => {
                error.downcast_ref().map(|error: &LoadError<E>| Arc::clone(&error.0))
            }
            Source::Earlier(error) | Source::Answer(error) | Source::Named(error) => {
                error.of_loader()
            }
            Source::OwnKey(_) => None,
        }
    }

    /// Returns after how long asking again makes sense, where that is known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }
}

impl Error {
    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.kind.text())?;
        match &self.0.source {
            Some(Source::Earlier(earlier)) => {
                // Its cache is the same.
                f.write_str(": ")?;
                earlier.describe(f)
            }
            Some(Source::OwnKey(key)) => write!(
                f,
                ": it asks for the key `{key}`, directly or through other keys; let it ask for \
                 another key, or read an older value with `get`",
            ),
            _ => self.source().map_or(Ok(()), |cause| write!(f, ": {cause}")),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(cache) = &self.0.cache {
            write!(f, "cache `{cache}`: ")?;
        }
        self.describe(f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("retry_after", &self.0.retry_after)
            .field("source", &self.source().map(ToString::to_string))
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self.0.source.as_ref()? {
            Source::Inner(error) => Some(&**error),
            Source::Earlier(error) => Some(error),
            Source::Answer(error) | Source::Named(error) => error.source(),
            Source::OwnKey(_) => None,
        }
    }
}

/// Returns the length of an error's text.
fn text_bytes(error: &dyn StdError) -> u64 {
    struct Counter(u64);
    impl fmt::Write for Counter {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0 = self.0.saturating_add(text.len() as u64);
            Ok(())
        }
    }
    let mut counter = Counter(0);
    // What is written until an error counts.
    let _ = write!(counter, "{error}");
    counter.0
}

/// The error of a loader, kept so that each caller gets it back as it is.
struct LoadError<E>(Arc<E>);

impl<E: fmt::Debug> fmt::Debug for LoadError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<E: fmt::Display> fmt::Display for LoadError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<E: fmt::Debug + fmt::Display> StdError for LoadError<E> {}

/// An error of the crate that a computation of the crate returns: one call for several keys fails each
/// with the same error, and a loader's error says what is done about it.
#[derive(Clone, Debug)]
pub(crate) struct LoadFailure(pub(crate) Error);

impl fmt::Display for LoadFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for LoadFailure {}

/// The loader of a batch returned no value for the key.
///
/// It is the [`inner`](Error::inner) error of a caller of that key alone;
/// [`Stampede::get_many`](crate::Stampede::get_many) leaves such keys out. Like the error of
/// any computation it goes to every caller that waits, and `on_failure` decides what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Absent;

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the loader returned no value for the key")
    }
}

impl StdError for Absent {}

/// A setting that cannot work, or two that contradict each other.
///
/// Returned by [`Builder::build`](crate::Builder::build); the text names every
/// setting that is involved, and the rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    fields: &'static [&'static str],
    reason: Cow<'static, str>,
    /// Where the settings stand in a file, with a dot at the end.
    path: String,
}

impl ConfigError {
    pub(crate) fn new(
        fields: &'static [&'static str],
        reason: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { fields, reason: reason.into(), path: String::new() }
    }

    pub(crate) fn at(self, path: &str) -> Self {
        let path = if path.is_empty() { String::new() } else { format!("{path}.") };
        Self { path, ..self }
    }

    /// Returns the names of the settings involved.
    #[must_use]
    pub fn fields(&self) -> &'static [&'static str] {
        self.fields
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = &self.path;
        let fields: Vec<_> = self.fields.iter().map(|field| format!("`{path}{field}`")).collect();
        write!(f, "{}: {}", fields.join(" and "), self.reason)
    }
}

impl StdError for ConfigError {}

/// Calls the user's code. A panic in it ends here, after the panic hook has
/// reported it.
pub(crate) fn contain_panic<T>(call: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => Some(result),
        Err(panic) => {
            // A payload's `Drop` is the user's code, too.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
                std::mem::forget(panic);
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_source_and_a_hold_repeats_it() {
        let inner = "x".parse::<u32>().unwrap_err();
        let error = Error::inner_error(inner.clone());
        assert_eq!(error.to_string(), format!("computation failed: {inner}"));
        assert_eq!(error.source().unwrap().to_string(), inner.to_string());

        let held = Error::held(Duration::from_secs(1), Some(error));
        assert_eq!(held.kind(), ErrorKind::Held);
        assert_eq!(held.retry_after(), Some(Duration::from_secs(1)));
        assert_eq!(held.inner::<std::num::ParseIntError>(), Some(&inner));
        let text = format!("computation failed: {inner}");
        assert_eq!(held.source().unwrap().to_string(), text);
        let text = format!("cache `users`: {}: {text}", ErrorKind::Held.text());
        assert_eq!(held.in_cache(&"users".into()).to_string(), text);
    }

    #[test]
    fn a_config_error_names_its_fields() {
        let error = ConfigError::new(&["a", "b"], "they contradict each other");
        assert_eq!(error.to_string(), "`a` and `b`: they contradict each other");
    }
}
