//! How a cache treats its remote.

use std::time::Duration;

use crate::error::ConfigError;

/// How a cache treats its remote, whichever it is.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_stampede::remote::RemoteSettings;
///
/// let settings = RemoteSettings::new().op_timeout(Duration::from_millis(50));
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct RemoteSettings {
    pub(crate) op_timeout: Duration,
    pub(crate) op_timeout_per_mib: Duration,
    pub(crate) breaker_failures: u32,
    pub(crate) local_ttl: Option<Duration>,
    pub(crate) remote_ttl: Duration,
    pub(crate) max_value_bytes: usize,
    pub(crate) max_journal: usize,
}

impl RemoteSettings {
    /// Takes every setting at its default.
    pub const fn new() -> Self {
        Self {
            op_timeout: Duration::from_millis(100),
            op_timeout_per_mib: Duration::from_millis(20),
            breaker_failures: 3,
            local_ttl: None,
            remote_ttl: Duration::MAX,
            max_value_bytes: 16 * 1024 * 1024,
            max_journal: 10_000,
        }
    }

    /// Sets how long the remote may be silent before a call is given up and the request goes on
    /// without it. While the remote answers other calls of the process, a call may take 2 s.
    /// Before its first answer, and where answers have taken long of late, the remote may be
    /// silent for up to four times as long. Defaults to 100 ms.
    pub const fn op_timeout(mut self, op_timeout: Duration) -> Self {
        self.op_timeout = op_timeout;
        self
    }

    /// Sets how much longer a call may take for each MiB it carries. A read
    /// counts as the largest value seen so far. Defaults to 20 ms.
    pub const fn op_timeout_per_mib(mut self, allowance: Duration) -> Self {
        self.op_timeout_per_mib = allowance;
        self
    }

    /// Sets after how many failed calls in a row the breaker opens: then no
    /// request asks the remote until a probe has reached it. Defaults to 3.
    pub const fn breaker_failures(mut self, failures: u32) -> Self {
        self.breaker_failures = failures;
        self
    }

    /// Sets how long this process uses a value that the remote has too, before it asks the remote
    /// for it again. If the remote still has it, the time begins anew. If not, one process
    /// computes. While the remote is away, the value is used as long as it lasts.
    ///
    /// By default a value is used as long as it lasts. With a remote that has no
    /// [invalidation log](crate::remote::RemoteLog) the default is 1 s, and all copies are
    /// dropped together.
    ///
    /// Costs one `GET` for each key and process in this time, and its callers wait for it.
    pub const fn local_ttl(mut self, local_ttl: Duration) -> Self {
        self.local_ttl = Some(local_ttl);
        self
    }

    /// Sets how long the remote keeps a value at most. A process that has it uses it as long as
    /// it lasts. By default the remote keeps a value as long as it lasts, with its stale windows.
    pub const fn remote_ttl(mut self, remote_ttl: Duration) -> Self {
        self.remote_ttl = remote_ttl;
        self
    }

    /// Sets the bound on an encoded value; larger ones are kept in the process
    /// alone, and larger ones found are a miss. Defaults to 16 MiB.
    pub const fn max_value_bytes(mut self, bytes: usize) -> Self {
        self.max_value_bytes = bytes;
        self
    }

    /// Sets how many invalidations are remembered while the remote is away;
    /// one more, and everything is invalidated when it is back. Defaults to
    /// 10,000.
    pub const fn max_journal(mut self, invalidations: usize) -> Self {
        self.max_journal = invalidations;
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let zero = [
            (&["op_timeout"], self.op_timeout.is_zero()),
            (&["breaker_failures"], self.breaker_failures == 0),
            (&["local_ttl"], self.local_ttl.is_some_and(|ttl| ttl.is_zero())),
            (&["remote_ttl"], self.remote_ttl.is_zero()),
            (&["max_value_bytes"], self.max_value_bytes == 0),
            (&["max_journal"], self.max_journal == 0),
        ];
        match zero.into_iter().find(|(_, is_zero)| *is_zero) {
            Some((field, _)) => Err(ConfigError::new(field, "is zero")),
            None => Ok(()),
        }
    }
}

impl Default for RemoteSettings {
    fn default() -> Self {
        Self::new()
    }
}
