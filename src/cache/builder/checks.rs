//! What settings may be, and what fits together. A refusal says which settings, their values,
//! the rule and the remedy.

use std::time::Duration;

use crate::cache::builder::Builder;
use crate::error::ConfigError;
use crate::settings::{Settings, refused_status};

impl<V: Clone + Send + Sync + 'static> Builder<V> {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        self.check_lifetimes()?;
        if let Some(reason) = refused_status(&self.settings.status_ttl) {
            return Err(ConfigError::new(&["status_ttl"], reason));
        }
        self.check_shares()?;
        self.check_zero()?;
        #[cfg(feature = "http")]
        if let Some((fields, reason)) = self.settings.http.refusal() {
            return Err(ConfigError::new(fields, reason));
        }
        self.check_pairs()
    }

    fn check_lifetimes(&self) -> Result<(), ConfigError> {
        match (self.settings.ttl, self.settings.origin_only == Some(true)) {
            (None, false) => Err(ConfigError::new(
                &["ttl"],
                "is not set and has no default; set it, or call `origin_only` for HTTP",
            )),
            (Some(Duration::ZERO), _) => Err(ConfigError::new(
                &["ttl"],
                "is 0 s, so no value would be fresh; set a longer one, or call `origin_only` to \
                 store only what headers allow",
            )),
            (Some(ttl), true) => Err(ConfigError::new(
                &["ttl", "origin_only"],
                format!(
                    "a lifetime of {ttl:?} for all contradicts lifetimes from the origin only; \
                     leave one of the two out"
                ),
            )),
            _ if self.negative.is_some_and(|(ttl, _)| ttl.is_zero()) => Err(ConfigError::new(
                &["negative_ttl"],
                "is 0 s and must be longer; leave it out to treat `None` like any value",
            )),
            _ => Ok(()),
        }
    }

    fn check_shares(&self) -> Result<(), ConfigError> {
        let Settings { early_refresh, cancel_unwanted, .. } = self.settings;
        let (jitter, share) = (self.settings.jitter(), self.settings.early_refresh_share());
        if !(0.0..1.0).contains(&jitter) {
            let rule = "must be a share from 0 up to but not including 1; the default is 0.1";
            return Err(ConfigError::new(&["jitter"], format!("is {jitter} and {rule}")));
        }
        if let Some(beta) = early_refresh.filter(|beta| !(beta.is_finite() && *beta > 0.0)) {
            let rule = "must be a finite factor above 0; 1.0 is a good start";
            return Err(ConfigError::new(&["early_refresh"], format!("is {beta} and {rule}")));
        }
        if !(share > 0.0 && share <= 1.0) {
            let rule = "must be a share above 0, at most 1; the default is 0.25";
            return Err(ConfigError::new(
                &["early_refresh_share"],
                format!("is {share} and {rule}"),
            ));
        }
        if let Some(share) = cancel_unwanted.filter(|share| !(*share > 0.0 && *share <= 1.0)) {
            let rule = "must be a share above 0, at most 1; leave it unset to let all work go on";
            return Err(ConfigError::new(&["cancel_unwanted"], format!("is {share} and {rule}")));
        }
        Ok(())
    }

    fn check_zero(&self) -> Result<(), ConfigError> {
        if let Some((field, rule, unset)) = self.settings.zero() {
            return Err(ConfigError::new(field, format!("{rule}; leave it unset for {unset}")));
        }
        if self.max_arriving_bytes == Some(0) {
            let reason = "is 0 and must be at least 1; leave it unset for `max_bytes`";
            return Err(ConfigError::new(&["max_arriving_bytes"], reason));
        }
        Ok(())
    }

    fn check_pairs(&self) -> Result<(), ConfigError> {
        // Each pair: what contradicts what, with both values and the remedy. Single settings are checked
        // before.
        let settings = &self.settings;
        let (hold, longest) = (settings.hold(), settings.max_hold());
        if longest < hold {
            let reason = format!(
                "the first hold ({hold:?}) must not exceed the longest ({longest:?}); raise \
                 `max_hold`, or leave it unset"
            );
            return Err(ConfigError::new(&["hold", "max_hold"], reason));
        }
        let bytes = settings.max_bytes();
        if let Some(entries) = settings.max_entries.filter(|entries| *entries > bytes) {
            let reason = format!(
                "{bytes} bytes for {entries} entries are less than a byte for each; raise \
                 `max_bytes`"
            );
            return Err(ConfigError::new(&["max_entries", "max_bytes"], reason));
        }
        let least = (settings.eviction().entry_bytes() + size_of::<V>()) as u64;
        if bytes < least {
            let reason = format!(
                "is {bytes} and must be at least {least}, what an entry takes beside the memory \
                 that its value points to; raise it, or leave it unset for 64 MiB"
            );
            return Err(ConfigError::new(&["max_bytes"], reason));
        }
        let (one, all) = (settings.max_waiters(), settings.max_waiters_in_all());
        if one as usize > all {
            let reason = format!(
                "{one} for one key must not exceed {all} for all keys; lower `max_waiters`, or \
                 leave it unset"
            );
            return Err(ConfigError::new(&["max_waiters", "max_waiters_in_all"], reason));
        }
        let (refreshes, all) = (settings.max_refreshes(), settings.max_computations());
        if refreshes > all {
            let reason = format!(
                "{refreshes} must not exceed {all}, since every refresh is a computation; lower \
                 `max_refreshes`, or leave it unset"
            );
            return Err(ConfigError::new(&["max_refreshes", "max_computations"], reason));
        }
        if let Some(least) = settings.min_computations.filter(|least| *least > all) {
            let reason = format!("{least} must not exceed {all}; lower `min_computations`");
            return Err(ConfigError::new(&["min_computations", "max_computations"], reason));
        }
        let most = tokio::sync::Semaphore::MAX_PERMITS;
        if all > most {
            let reason = format!("is {all} and must be at most {most}");
            return Err(ConfigError::new(&["max_computations"], reason));
        }
        let (window, timeout) = (settings.batch_window(), settings.compute_timeout());
        if window >= timeout {
            let reason = format!(
                "a window of {window:?} for callers to come together must be shorter than the \
                 {timeout:?} that a computation may take, since it counts into them; lower \
                 `batch_window`"
            );
            return Err(ConfigError::new(&["batch_window", "compute_timeout"], reason));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn builder() -> Builder<u32> {
        Builder::new("test").ttl(SECOND)
    }

    fn refused(builder: Builder<u32>) -> &'static [&'static str] {
        builder.build().expect_err("refused").fields()
    }

    #[test]
    fn settings_that_are_out_of_range_are_refused_by_name() {
        assert_eq!(refused(Builder::new("test")), ["ttl"]);
        assert_eq!(refused(builder().ttl(Duration::ZERO)), ["ttl"]);
        assert_eq!(refused(builder().jitter(1.0)), ["jitter"]);
        assert_eq!(refused(builder().jitter(f64::NAN)), ["jitter"]);
        assert_eq!(refused(builder().early_refresh(0.0)), ["early_refresh"]);
        assert_eq!(refused(builder().early_refresh(f64::INFINITY)), ["early_refresh"]);
        assert_eq!(refused(builder().early_refresh_share(0.0)), ["early_refresh_share"]);
        for share in [0.0, -0.5, 1.5, f64::NAN, f64::INFINITY] {
            assert_eq!(refused(builder().cancel_unwanted(share)), ["cancel_unwanted"]);
        }
        assert_eq!(refused(builder().compute_timeout(Duration::ZERO)), ["compute_timeout"]);
        assert_eq!(refused(builder().lease(Duration::ZERO)), ["lease"]);
        assert_eq!(refused(builder().wait_timeout(Duration::ZERO)), ["wait_timeout"]);
        assert_eq!(refused(builder().hold(Duration::ZERO)), ["hold"]);
        assert_eq!(refused(builder().uncacheable_for(Duration::ZERO)), ["uncacheable_for"]);
        assert_eq!(refused(builder().max_bytes(0)), ["max_bytes"]);
        assert_eq!(refused(builder().max_bytes(200)), ["max_bytes"]);
        assert_eq!(refused(builder().max_entries(0)), ["max_entries"]);
        assert_eq!(refused(builder().max_waiters(0)), ["max_waiters"]);
        assert_eq!(refused(builder().max_waiters_in_all(0)), ["max_waiters_in_all"]);
        assert_eq!(refused(builder().max_computations(0)), ["max_computations"]);
        assert_eq!(refused(builder().max_refreshes(0)), ["max_refreshes"]);
        assert_eq!(refused(builder().max_logged_tags(0)), ["max_logged_tags"]);
        assert_eq!(refused(builder().max_batch(0)), ["max_batch"]);
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused_with_both_names() {
        let pairs: [(_, [&str; 2]); 7] = [
            (builder().origin_only(), ["ttl", "origin_only"]),
            (builder().hold(SECOND * 61).max_hold(SECOND * 60), ["hold", "max_hold"]),
            (
                builder().max_waiters(11).max_waiters_in_all(10),
                ["max_waiters", "max_waiters_in_all"],
            ),
            (
                builder().max_computations(10).min_computations(11),
                ["min_computations", "max_computations"],
            ),
            (
                builder().max_computations(10).max_refreshes(11),
                ["max_refreshes", "max_computations"],
            ),
            (builder().max_bytes(10).max_entries(11), ["max_entries", "max_bytes"]),
            (
                builder().batch_window(SECOND).compute_timeout(SECOND),
                ["batch_window", "compute_timeout"],
            ),
        ];
        for (builder, names) in pairs {
            assert_eq!(refused(builder), names);
        }
    }

    #[test]
    fn a_bound_that_is_set_alone_narrows_the_defaults_that_depend_on_it() {
        let settings = |builder: Builder<u32>| {
            let settings = &builder.build().expect("fits").0.engine.settings;
            (settings.max_refreshes(), settings.max_waiters(), settings.max_hold())
        };
        assert_eq!(settings(builder()), (256, 100_000, SECOND * 60));
        let narrow = builder().max_computations(8).max_waiters_in_all(1000).hold(SECOND * 120);
        assert_eq!(settings(narrow), (8, 1000, SECOND * 120));
    }

    #[test]
    fn the_text_of_a_refusal_names_settings_values_rule_and_remedy() {
        let text = |builder: Builder<u32>| builder.build().unwrap_err().to_string();
        assert_eq!(
            text(builder().max_refreshes(9).max_computations(8)),
            "`max_refreshes` and `max_computations`: 9 must not exceed 8, since every refresh is \
             a computation; lower `max_refreshes`, or leave it unset"
        );
        assert_eq!(
            text(builder().jitter(2.5)),
            "`jitter`: is 2.5 and must be a share from 0 up to but not including 1; the default \
             is 0.1"
        );
    }
}
