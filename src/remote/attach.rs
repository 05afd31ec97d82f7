//! How a builder comes by its remote.

use std::sync::Arc;
use std::time::Duration;

use crate::cache::builder::{Attaching, Builder};
use crate::error::ConfigError;
use crate::remote::codec::ValueForm;
use crate::remote::coordinator::EntryRemote;
use crate::remote::{Codec, Remotable, Remote, RemoteSettings};

impl<V: Clone + Send + Sync + 'static> Builder<V> {
    /// Shares values and refresh locks with other processes through Redis: of
    /// all processes with the same namespace and the same name of the cache,
    /// one computes.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tower_stampede::{Redis, Stampede};
    ///
    /// let cache: Stampede<String> = Stampede::builder("catalog")
    ///     .ttl(Duration::from_secs(60))
    ///     .stale_for(Duration::from_secs(600))
    ///     .redis(Redis::lazy("redis://127.0.0.1/")?.namespace("shop"))
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    pub fn redis(self, redis: crate::remote::redis::Redis) -> Self
    where
        V: Remotable,
    {
        let (settings, namespace) = (redis.settings.clone(), redis.namespace.to_string());
        self.remote_from(settings, namespace, move |name| redis.open(name))
    }

    /// Shares values and refresh locks through a remote of your own. It must
    /// belong to this cache alone: its keys are not told apart by the name of
    /// the cache.
    pub fn remote(self, remote: Arc<dyn Remote>, settings: RemoteSettings) -> Self
    where
        V: Remotable,
    {
        self.remote_from(settings, String::new(), move |_| Ok(remote))
    }

    /// Sets how values become bytes for other processes. Defaults to [`Remotable::codec`]: postcard
    /// for serde types. Without a remote it has no effect.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tower_stampede::remote::Codec;
    /// use tower_stampede::{Redis, Stampede};
    ///
    /// let cache: Stampede<String> = Stampede::builder("catalog")
    ///     .ttl(Duration::from_secs(60))
    ///     .codec(Codec::json())
    ///     .redis(Redis::lazy("redis://127.0.0.1/")?.namespace("shop"))
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn codec(mut self, codec: Codec<V>) -> Self {
        self.codec = Some(codec);
        self
    }

    fn remote_from(
        self,
        settings: RemoteSettings,
        namespace: String,
        open: impl FnOnce(&str) -> Result<Arc<dyn Remote>, ConfigError> + Send + Sync + 'static,
    ) -> Self
    where
        V: Remotable,
    {
        self.attach(
            settings.local_ttl,
            Box::new(move |attaching: Attaching<'_, V>| {
                let of_cache = &attaching.engine.settings;
                let (lease, wait_timeout) = (of_cache.lease(), of_cache.wait_timeout());
                check(&settings, lease, wait_timeout)?;
                let name = &attaching.engine.label.name;
                let remote = open(name)?;
                // As long as a leader may fill and a process may wait. No longer: keys that fail leave
                // nothing behind.
                let work = wait_timeout.saturating_add(of_cache.compute_timeout());
                let times = (lease, lease.saturating_mul(2).saturating_add(work));
                let codec = attaching.codec.unwrap_or_else(V::codec);
                // Neither of the two has a line break.
                let scope = format!("{namespace}\n{name}");
                let form = ValueForm::new(codec, attaching.schema, scope);
                let form = (form, attaching.weights);
                let shared = EntryRemote::new(remote, settings, form, times, attaching.engine);
                // A new engine has none.
                let _ = attaching.engine.shared.set(shared);
                Ok(())
            }),
        )
    }
}

/// Refuses times of the remote that contradict those of the cache.
fn check(
    settings: &RemoteSettings,
    lease: Duration,
    wait_timeout: Duration,
) -> Result<(), ConfigError> {
    settings.check()?;
    if wait_timeout <= lease {
        let fields = &["wait_timeout", "lease"];
        let reason = "a killed leader must lead to a takeover, so the wait is the longer one";
        return Err(ConfigError::new(fields, reason));
    }
    if lease / 3 <= settings.op_timeout {
        let fields = &["lease", "op_timeout"];
        let reason = "a lease is renewed at a third, and that may take an `op_timeout`";
        return Err(ConfigError::new(fields, reason));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_wait_that_ends_with_the_lease_and_a_lease_without_time_for_a_renewal_are_refused() {
        let settings = RemoteSettings::new();
        assert!(check(&settings, SECOND, SECOND * 2).is_ok());
        let error = check(&settings, SECOND, SECOND).unwrap_err();
        assert_eq!(error.fields(), ["wait_timeout", "lease"]);
        let error = check(&settings, Duration::from_millis(300), SECOND).unwrap_err();
        assert_eq!(error.fields(), ["lease", "op_timeout"]);
    }
}
