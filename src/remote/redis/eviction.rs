//! Warns where the server's eviction policy removes locks first, or may remove the invalidation
//! log.

use std::sync::Once;
use std::time::Duration;

use crate::remote::redis::connection::{Command, Connection, Target};

/// Reads how the server makes room, and warns once if it is by what hits the
/// locks. A server that does not say is left in peace.
pub(super) async fn warn_once(warned: &Once, connection: &Connection, target: &Target) {
    if warned.is_completed() {
        return;
    }
    let info = Command::new("INFO").arg("memory");
    let asked = tokio::time::timeout(Duration::from_secs(1), connection.send(&info)).await;
    let Ok(Ok(reply)) = asked else { return };
    let Some(policy) = reply.text().ok().and_then(policy) else { return };
    if is_harmful(policy) {
        warned.call_once(|| crate::observe::warn_of_policy(&target.address(), policy));
    }
}

fn policy(info: &str) -> Option<&str> {
    info.lines().find_map(|line| line.strip_prefix("maxmemory_policy:")).map(str::trim)
}

/// Of what has a time to live, locks have the shortest, and random policies hit them as often as
/// anything else. The invalidation log has none: only policies for all keys remove it.
fn is_harmful(policy: &str) -> bool {
    matches!(policy, "volatile-ttl" | "volatile-random") || policy.starts_with("allkeys-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_that_evict_locks_or_the_log_are_known() {
        let info = "# Memory\r\nused_memory:1\r\nmaxmemory_policy:volatile-ttl\r\nx:1\r\n";
        assert_eq!(policy(info), Some("volatile-ttl"));
        assert_eq!(policy("maxmemory:0"), None);
        for policy in ["volatile-ttl", "volatile-random", "allkeys-random", "allkeys-lfu"] {
            assert!(is_harmful(policy), "{policy}");
        }
        for policy in ["volatile-lfu", "volatile-lru", "noeviction"] {
            assert!(!is_harmful(policy), "{policy}");
        }
    }
}
