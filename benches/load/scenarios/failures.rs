//! An origin that answers 500.

use std::time::{Duration, Instant};

use super::super::lab::Lab;
use super::super::origin::Work;
use super::super::scenario::{Bounds, Found};
use super::expiry::{WORK, warm};
use super::hot_key;

const FAILING: Work = WORK.failing();

/// The rest after a failed refresh, which doubles; each up to a tenth shorter.
const HOLD: Duration = Duration::from_secs(1);

/// Something is stored, and may be served in place of failures.
pub(crate) async fn with_stale(lab: &Lab) -> Found {
    let load = hot_key(lab);
    let origin = lab.origin(&WORK);
    let flags = ["--ttl-ms", "300", "--stale-if-error-ms", "600000"];
    let front = lab.front(0, &origin, &flags);
    warm(lab, &front, &origin).await;
    origin.answers(FAILING);
    let begin = Instant::now();
    let ours = lab.play(&[&front], &origin, &load).await;
    let most = attempts(begin.elapsed());
    let name = ("failing_origin", "an origin that fails, with something stale");
    Found::new(lab, name, (&load, &FAILING), ours, Bounds::calls(1..=most))
        .await
        .story(
            "400 requests a second for one thing, whose lifetime ends after 300 ms; from then on \
             the origin answers 500, and what is stored may stand in.",
        )
        .charts()
}

/// How often a dead origin is asked: at once, then after each rest.
fn attempts(time: Duration) -> usize {
    let rest_until = |attempt: u32| HOLD.mul_f64(0.9 * f64::from(2_u32.pow(attempt) - 1));
    1 + (1..16).take_while(|&attempt| rest_until(attempt) <= time).count()
}

/// Nothing is stored: clients that come while the origin is asked share its
/// failure, clients that come later make an attempt of their own.
pub(crate) async fn cold(lab: &Lab) -> Found {
    let load = hot_key(lab);
    let origin = lab.origin(&FAILING);
    let front = lab.front(0, &origin, &["--ttl-ms", "60000"]);
    let ours = lab.play(&[&front], &origin, &load).await;
    let waves = (load.time() + FAILING.takes).div_duration_f64(FAILING.takes) as usize + 1;
    let requests = load.requests();
    let name = ("failing_cold", "an origin that fails, with nothing stored");
    let bounds = Bounds {
        calls: 1..=waves,
        // They are told so, all of them, and in time.
        errors: requests..=requests,
        // One after the other.
        together: Some((1, FAILING.takes / 2)),
    };
    let found = Found::new(lab, name, (&load, &FAILING), ours, bounds).await;
    found.story("400 requests a second for one thing that the origin fails to make.")
}
