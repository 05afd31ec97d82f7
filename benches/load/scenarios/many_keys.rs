//! More keys than a cache can hold, or an origin make at once.

use std::time::Duration;

use super::super::arrivals::Load;
use super::super::client::path;
use super::super::lab::Lab;
use super::super::origin::Work;
use super::super::proxy_support::{Client, get_with};
use super::super::report::Figure;
use super::super::scenario::{Bounds, Found};
use super::super::servers::Front;
use super::time;

const MIB: f64 = 1_048_576.0;

/// What a cache holds at most if nothing else is said.
const MAX_BYTES: f64 = 64.0 * MIB;

/// Of each answer.
const BODY: usize = 64 << 10;

/// How many answers are on their way at a time: what they take is not the
/// cache's, and with clients that are too fast for this machine it would be more.
const CONNECTIONS: usize = 32;

/// Clients ask for something else each time: three times what the cache holds,
/// or fourteen.
pub(crate) async fn flood(lab: &Lab) -> Found {
    let work = Work::new(1000, 10).body(BODY);
    let mut load = Load::steady(1500.0, time(lab), |rng| rng.u64(..));
    load.connections = CONNECTIONS;
    let origin = lab.origin(&work);
    let front = lab.front(0, &origin, &["--ttl-ms", "600000"]);
    let ours = lab.play(&[&front], &origin, &load).await;
    let requests = load.requests();
    let name = ("key_flood", "a flood of keys");
    let peak = front.peak_memory();
    let held = held(&front, &load).await;
    let bounds = Bounds::calls(requests..=requests);
    let mut found = Found::new(lab, name, (&load, &work), ours, bounds).await;
    let held = Figure::new(
        "load.key_flood.held_mib",
        "a flood of keys: bodies that the proxy still holds, found by asking for each",
        held as f64 * BODY as f64 / MIB,
        "MiB",
        "count of one run",
    );
    found = found.figure(held.at_least(1.0).at_most(MAX_BYTES / MIB).or_fail());
    if let Some(peak) = peak {
        found = found.figure(memory(peak));
    }
    let sent = requests as f64 * BODY as f64 / MIB;
    found.story(&format!(
        "1500 requests a second on at most {CONNECTIONS} connections, each for something else, \
         {sent:.0} MiB in all; the cache may hold 64 MiB."
    ))
}

/// Half as much again as the cache holds is for what the allocator keeps; and a
/// MiB for each answer on its way, which is there as it comes, whole, and as it
/// goes.
fn memory(peak: u64) -> Figure {
    let figure = Figure::new(
        "load.key_flood.peak_memory_mib",
        "a flood of keys: the most memory that the proxy had at a time",
        peak as f64 / MIB,
        "MiB",
        "one run",
    );
    figure.at_most(1.5 * MAX_BYTES / MIB + CONNECTIONS as f64).or_fail()
}

/// How many of the keys are answered without asking the origin.
async fn held(front: &Front, load: &Load) -> usize {
    let mut client = Client::connect(front.address).await;
    let mut held = 0;
    for arrival in &load.arrivals {
        let ask = get_with(&path(arrival.key), "cache-control", "only-if-cached");
        let seen = client.ask(ask).await.expect("the proxy answers");
        held += usize::from(seen.status == 200);
    }
    held
}

/// After a start, when nothing is there yet.
pub(crate) async fn cold(lab: &Lab) -> Found {
    let count = lab.profile.pick(2_000, 10_000);
    let work = Work::new(64, 20);
    let mut load = Load::herd(0..count).deadline(Duration::from_secs(20));
    load.own_connections = false;
    let origin = lab.origin(&work);
    let front = lab.front(0, &origin, &["--ttl-ms", "600000"]);
    let ours = lab.play(&[&front], &origin, &load).await;
    let requests = load.requests();
    let name = ("cold_keys", "thousands of cold keys at once");
    let bounds = Bounds::calls(requests..=requests);
    let found = Found::new(lab, name, (&load, &work), ours, bounds).await;
    found.story(&format!("{count} requests at once, each for something else."))
}
