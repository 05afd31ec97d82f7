//! The scenarios, a file for each kind.

mod crowds;
mod expiry;
mod failures;
mod many_keys;
mod processes;

use std::time::Duration;

use super::arrivals::Load;
use super::lab::Lab;
use super::scenario::Scenario;

/// In the order of the report.
pub(crate) fn all() -> Vec<Scenario> {
    vec![
        Scenario { name: "cold_herd", play: |lab| Box::pin(crowds::cold_herd(lab)) },
        Scenario { name: "hot_expiry", play: |lab| Box::pin(expiry::one_key(lab)) },
        Scenario { name: "hot_expiry_200", play: |lab| Box::pin(expiry::two_hundred_keys(lab)) },
        Scenario { name: "stale", play: |lab| Box::pin(expiry::stale(lab)) },
        Scenario { name: "slow_origin", play: |lab| Box::pin(crowds::slow_origin(lab)) },
        Scenario { name: "failing_origin", play: |lab| Box::pin(failures::with_stale(lab)) },
        Scenario { name: "failing_cold", play: |lab| Box::pin(failures::cold(lab)) },
        Scenario { name: "leader_killed", play: |lab| Box::pin(processes::leader_killed(lab)) },
        Scenario { name: "hang_ups", play: |lab| Box::pin(crowds::hang_ups(lab)) },
        Scenario { name: "uncacheable", play: |lab| Box::pin(crowds::uncacheable(lab)) },
        Scenario { name: "processes", play: |lab| Box::pin(processes::together(lab)) },
        Scenario { name: "redis_frozen", play: |lab| Box::pin(processes::redis_frozen(lab)) },
        Scenario { name: "redis_killed", play: |lab| Box::pin(processes::redis_killed(lab)) },
        Scenario { name: "key_flood", play: |lab| Box::pin(many_keys::flood(lab)) },
        Scenario { name: "cold_keys", play: |lab| Box::pin(many_keys::cold(lab)) },
    ]
}

/// How long a load lasts.
fn time(lab: &Lab) -> Duration {
    Duration::from_millis(lab.profile.pick(2400, 9600))
}

/// How long a client waits before it counts as stuck. Without the layer that
/// is how long the end of a load takes.
fn patience(lab: &Lab) -> Duration {
    Duration::from_millis(lab.profile.pick(1500, 5000))
}

/// 400 requests a second for one key; several scenarios have it, and without
/// the layer it is played once.
fn hot_key(lab: &Lab) -> Load {
    Load::steady(400.0, time(lab), |_| 0).deadline(patience(lab))
}
