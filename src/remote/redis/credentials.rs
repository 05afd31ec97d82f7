//! Who a connection is, where that changes: tokens that expire, passwords that are rotated.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use crate::error::BoxError;
use crate::remote::pause::Pause;
use crate::remote::redis::reply::{CallFailure, PROVIDER};

/// How long a provider may take.
const PROVIDER_TIMEOUT: Duration = Duration::from_secs(5);

/// Which user connects, with which password, and for how long both are valid.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_stampede::RedisCredentials;
///
/// let token = RedisCredentials::new("cache", "a token").valid_for(Duration::from_secs(900));
/// assert!(!format!("{token:?}").contains("a token"));
/// ```
#[derive(Clone)]
#[must_use]
pub struct RedisCredentials {
    user: Option<String>,
    password: String,
    valid_for: Option<Duration>,
}

impl RedisCredentials {
    /// Takes a user of the server's access control list and its password or token. They are
    /// valid for ever, until [`valid_for`](Self::valid_for) says otherwise.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { user: Some(user.into()), password: password.into(), valid_for: None }
    }

    /// Takes the password of the server's default user.
    pub fn default_user(password: impl Into<String>) -> Self {
        Self { user: None, password: password.into(), valid_for: None }
    }

    /// Sets how long they are valid, counted from when the provider was asked for them. New ones
    /// are asked for after 70 to 80 % of that time, at random, so that processes that started
    /// together do not ask together. Less than a second counts as a second.
    pub fn valid_for(mut self, validity: Duration) -> Self {
        self.valid_for = Some(validity);
        self
    }

    pub(super) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    pub(super) fn password(&self) -> &str {
        &self.password
    }
}

/// Shows neither the user nor the password.
impl fmt::Debug for RedisCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisCredentials")
            .field("valid_for", &self.valid_for)
            .finish_non_exhaustive()
    }
}

/// What [`CredentialsProvider::credentials`] returns.
pub type CredentialsFuture<'a> =
    Pin<Box<dyn Future<Output = Result<RedisCredentials, BoxError>> + Send + 'a>>;

/// Gives the credentials for Redis, again and again: for tokens that expire and passwords that are
/// rotated. See [`Redis::credentials`](crate::Redis::credentials).
///
/// A closure that returns a future is a provider, too.
///
/// # When it is asked
///
/// Before each connection: each process has one for commands and one per cache for messages,
/// and may open both at the same time. And before the expiry of what it said last: then an
/// open connection sends `AUTH`, also one to a node of a cluster. Connections stay
/// as they are if it says that its credentials are valid for ever.
///
/// # When it fails
///
/// It fails when it returns an error, panics, or takes longer than 5 s. Then there is no new
/// connection, the cache treats the server as away, and no request fails; open connections stay
/// in use for as long as the server lets them. It is asked again after 50 ms, then at longer
/// intervals up to 5 s, each up to a fifth longer or shorter. The text of its error may be
/// logged, so it must hold no secret.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_stampede::remote::CredentialsFuture;
/// use tower_stampede::{RedisCredentials, CredentialsProvider, Redis};
///
/// struct TokenFile;
///
/// impl CredentialsProvider for TokenFile {
///     fn credentials(&self) -> CredentialsFuture<'_> {
///         Box::pin(async {
///             let token = std::fs::read_to_string("/run/secrets/redis")?;
///             Ok(RedisCredentials::new("cache", token.trim()).valid_for(Duration::from_secs(600)))
///         })
///     }
/// }
///
/// let redis = Redis::lazy("rediss://cache.example:6380")?.credentials(TokenFile);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait CredentialsProvider: Send + Sync + 'static {
    /// Returns the credentials for the next connection. The future is dropped after 5 s.
    fn credentials(&self) -> CredentialsFuture<'_>;
}

impl<F, A> CredentialsProvider for F
where
    F: Fn() -> A + Send + Sync + 'static,
    A: Future<Output = Result<RedisCredentials, BoxError>> + Send + 'static,
{
    fn credentials(&self) -> CredentialsFuture<'_> {
        Box::pin(self())
    }
}

/// A provider, and how it fared. A clone is the same one.
#[derive(Clone)]
pub(super) struct Login(Arc<LoginState>);

struct LoginState {
    provider: Box<dyn CredentialsProvider>,
    failed: Mutex<Option<FailedLogin>>,
}

struct FailedLogin {
    backoff: Pause,
    next: Instant,
    failure: CallFailure,
}

impl Login {
    pub(super) fn new(provider: impl CredentialsProvider) -> Self {
        Self(Arc::new(LoginState { provider: Box::new(provider), failed: Mutex::new(None) }))
    }

    /// Asks for credentials, and for when to ask again. Fails at once in the pause after a failure.
    pub(super) async fn ask(&self) -> Result<(RedisCredentials, Option<Instant>), CallFailure> {
        if let Some(failed) = &*self.0.failed.lock()
            && Instant::now() < failed.next
        {
            return Err(failed.failure.clone());
        }
        let begun = Instant::now();
        let provider = &self.0.provider;
        // The call itself may panic, too.
        let asked = AssertUnwindSafe(async { provider.credentials().await }).catch_unwind();
        let problem = match timeout(PROVIDER_TIMEOUT, asked).await {
            Ok(Ok(Ok(credentials))) => {
                *self.0.failed.lock() = None;
                let renewal = credentials.valid_for.map(|length| renewal(begun, length));
                return Ok((credentials, renewal));
            }
            Ok(Ok(Err(error))) => format!("{PROVIDER} failed: {error}"),
            Ok(Err(_)) => format!("{PROVIDER} panicked"),
            Err(_) => format!("{PROVIDER} took longer than {PROVIDER_TIMEOUT:?}"),
        };
        let failure = CallFailure::disconnected(problem);
        let mut failed = self.0.failed.lock();
        let mut backoff = failed.take().map_or_else(retry_pause, |before| before.backoff);
        let next = Instant::now() + backoff.lengthen();
        *failed = Some(FailedLogin { backoff, next, failure: failure.clone() });
        Err(failure)
    }
}

/// Returns the pauses after connections that failed.
pub(super) const fn retry_pause() -> Pause {
    Pause::of_millis(50, 5000)
}

/// Returns when new credentials are due.
fn renewal(from: Instant, length: Duration) -> Instant {
    const SECOND: Duration = Duration::from_secs(1);
    const YEAR: Duration = Duration::from_secs(3600 * 24 * 365);
    from + length.clamp(SECOND, YEAR).mul_f64(0.7 + 0.1 * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::remote::RemoteErrorKind;

    /// A provider that counts how often it is asked.
    fn counting(
        answer: impl Fn() -> CredentialsFuture<'static> + Send + Sync + 'static,
    ) -> (Login, Arc<AtomicU32>) {
        let asked = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&asked);
        let login = Login::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
            answer()
        });
        (login, asked)
    }

    #[tokio::test(start_paused = true)]
    async fn a_provider_that_fails_panics_or_hangs_is_asked_at_growing_intervals() {
        let answers: [fn() -> CredentialsFuture<'static>; 3] = [
            || Box::pin(async { Err("no token".into()) }),
            || panic!("no token"),
            || Box::pin(std::future::pending()),
        ];
        for answer in answers {
            let (login, asked) = counting(answer);
            let begun = Instant::now();
            let failure = login.ask().await.unwrap_err();
            assert_eq!(failure.kind, RemoteErrorKind::Connection);
            assert!(begun.elapsed() <= PROVIDER_TIMEOUT + Duration::from_millis(1));
            assert!(login.ask().await.is_err());
            assert_eq!(asked.load(Ordering::SeqCst), 1, "not again at once");

            while begun.elapsed() < Duration::from_secs(120) {
                let _ = login.ask().await;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let times = asked.load(Ordering::SeqCst);
            assert!((10..50).contains(&times), "{times}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_provider_that_works_again_is_asked_each_time() {
        let fails = Arc::new(AtomicU32::new(1));
        let (login, asked) = counting(move || {
            let fails = fails.fetch_sub(1, Ordering::SeqCst) == 1;
            Box::pin(async move {
                if fails { Err("no token".into()) } else { Ok(RedisCredentials::new("u", "p")) }
            })
        });
        assert!(login.ask().await.is_err());
        tokio::time::sleep(Duration::from_millis(100)).await;
        for _ in 0..3 {
            drop(login.ask().await.unwrap());
        }
        assert_eq!(asked.load(Ordering::SeqCst), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn credentials_are_renewed_before_they_expire() {
        for (validity, at) in [(Duration::from_secs(100), 70..=80), (Duration::ZERO, 0..=0)] {
            let login = Login::new(move || async move {
                Ok(RedisCredentials::default_user("p").valid_for(validity))
            });
            let begun = Instant::now();
            let (_, renewal) = login.ask().await.unwrap();
            tokio::time::sleep_until(renewal.unwrap()).await;
            assert!(at.contains(&begun.elapsed().as_secs()));
            assert!(begun.elapsed() >= Duration::from_millis(700));
        }
    }

    #[test]
    fn neither_user_nor_password_is_shown() {
        let shown = format!("{:?}", RedisCredentials::new("joe", "secret"));
        assert!(!shown.contains("joe") && !shown.contains("secret"), "{shown}");
    }
}
