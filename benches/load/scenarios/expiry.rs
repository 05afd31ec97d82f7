//! What is asked for all the time comes to the end of its lifetime.

use std::time::Duration;

use super::super::arrivals::Load;
use super::super::lab::Lab;
use super::super::origin::{Origin, Work};
use super::super::scenario::{Bounds, Cycle, Found};
use super::super::servers::Front;
use super::{hot_key, patience, time};

pub(crate) const LIFETIME: Duration = Duration::from_millis(500);

/// 160 requests a second.
pub(crate) const WORK: Work = Work::new(16, 100);

pub(crate) const CYCLE: Cycle = Cycle { lifetime: LIFETIME, work: WORK.takes };

const TTL: [&str; 2] = ["--ttl-ms", "500"];

pub(crate) async fn one_key(lab: &Lab) -> Found {
    let load = hot_key(lab);
    let origin = lab.origin(&WORK);
    let front = lab.front(0, &origin, &TTL);
    let ours = lab.play(&[&front], &origin, &load).await;
    let name = ("hot_expiry", "one hot key whose lifetime ends");
    let bounds = Bounds::expiries(1, 1, load.time(), &CYCLE);
    Found::new(lab, name, (&load, &WORK), ours, bounds)
        .await
        .story("400 requests a second for one thing that is fresh for half a second.")
        .charts()
}

/// One call for each key and lifetime is what an origin of this size can do;
/// one for each request is not.
pub(crate) async fn two_hundred_keys(lab: &Lab) -> Found {
    let work = Work::new(40, 100);
    let cycle = Cycle { lifetime: Duration::from_secs(1), work: work.takes };
    let load = Load::steady(1000.0, time(lab), |rng| rng.u64(0..200)).deadline(patience(lab));
    let origin = lab.origin(&work);
    let front = lab.front(0, &origin, &["--ttl-ms", "1000"]);
    let ours = lab.play(&[&front], &origin, &load).await;
    let name = ("hot_expiry_200", "200 hot keys whose lifetimes end");
    let bounds = Bounds::expiries(200, 1, load.time(), &cycle);
    Found::new(lab, name, (&load, &work), ours, bounds)
        .await
        .story("1000 requests a second for 200 things, each fresh for a second.")
        .charts()
}

/// Something stale is served while one request refreshes it: no client waits.
pub(crate) async fn stale(lab: &Lab) -> Found {
    let load = hot_key(lab);
    let origin = lab.origin(&WORK);
    let front = lab.front(0, &origin, &[&TTL[..], &["--stale-ms", "60000"]].concat());
    warm(lab, &front, &origin).await;
    let ours = lab.play(&[&front], &origin, &load).await;
    let name = ("stale", "one hot key, stale while it is refreshed");
    let bounds = Bounds::expiries(1, 1, load.time(), &CYCLE);
    let found = Found::new(lab, name, (&load, &WORK), ours, bounds).await;
    found
        .p99_at_most(WORK.takes / 5)
        .story(
            "400 requests a second for one thing that is fresh for half a second, and may be \
             served for a minute after that while it is refreshed.",
        )
        .charts()
}

/// Has something stored before the load begins.
pub(crate) async fn warm(lab: &Lab, front: &Front, origin: &Origin) {
    let first = lab.play(&[front], origin, &Load::herd(std::iter::once(0))).await;
    assert_eq!((first.tally.errors, first.tally.stuck), (0, 0), "the origin answers");
}
