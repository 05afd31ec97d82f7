//! Several processes on one Redis, and what can happen to either.

use std::time::{Duration, Instant};

use super::super::arrivals::Load;
use super::super::lab::{Lab, Run};
use super::super::origin::{Origin, Work};
use super::super::redis_support::Server;
use super::super::report::Figure;
use super::super::scenario::{Bounds, Found, within};
use super::super::servers::Front;
use super::expiry::{CYCLE, WORK};
use super::{hot_key, time};

/// How long a call to Redis may hold up a request.
const OP_TIMEOUT: Duration = Duration::from_millis(100);

fn fronts(lab: &Lab, count: usize, redis: &Server, origin: &Origin, flags: &[&str]) -> Vec<Front> {
    let url = redis.url();
    let flags = [&["--redis", &url, "--namespace", "load"], flags].concat();
    (0..count).map(|n| lab.front(n, origin, &flags)).collect()
}

async fn played(lab: &Lab, fronts: &[Front], origin: &Origin, load: &Load) -> Run {
    lab.play(&fronts.iter().collect::<Vec<_>>(), origin, load).await
}

/// They compute as one.
pub(crate) async fn together(lab: &Lab) -> Found {
    let count = lab.profile.pick(2, 4);
    let (load, redis, origin) = (hot_key(lab), Server::start(), lab.origin(&WORK));
    let fronts = fronts(lab, count, &redis, &origin, &["--ttl-ms", "500"]);
    let ours = played(lab, &fronts, &origin, &load).await;
    let name = ("processes", "several processes on one Redis");
    let bounds = Bounds::expiries(1, 1, load.time(), &CYCLE);
    Found::new(lab, name, (&load, &WORK), ours, bounds)
        .await
        .story(&format!(
            "400 requests a second at {count} processes in turn, for one thing that is fresh for \
             half a second."
        ))
        .charts()
}

/// Redis stands still for the middle third.
pub(crate) async fn redis_frozen(lab: &Lab) -> Found {
    let (redis, third) = (Server::start(), time(lab) / 3);
    let fault = async {
        tokio::time::sleep(third).await;
        redis.freeze();
        tokio::time::sleep(third).await;
        redis.thaw();
    };
    let name = ("redis_frozen", "Redis stands still in mid-run");
    redis_away(lab, name, &redis, fault, "stands still (SIGSTOP)").await
}

/// Redis is killed, and comes back without any memory.
pub(crate) async fn redis_killed(lab: &Lab) -> Found {
    let (redis, third) = (Server::start(), time(lab) / 3);
    let fault = async {
        tokio::time::sleep(third).await;
        redis.kill();
        tokio::time::sleep(third).await;
        redis.restart();
    };
    let name = ("redis_killed", "Redis is killed in mid-run");
    redis_away(lab, name, &redis, fault, "is killed (SIGKILL), then started again, empty,").await
}

/// Each process goes on for itself. When Redis is back they drop their copies,
/// as messages may have been missed: one more call.
async fn redis_away(
    lab: &Lab,
    name: (&'static str, &'static str),
    redis: &Server,
    fault: impl Future<Output = ()>,
    what: &str,
) -> Found {
    let count = lab.profile.pick(2, 4);
    let (load, origin) = (hot_key(lab), lab.origin(&WORK));
    let fronts = fronts(lab, count, redis, &origin, &["--ttl-ms", "500"]);
    let (ours, ()) = tokio::join!(played(lab, &fronts, &origin, &load), fault);
    let bounds = Bounds::expiries(1, count, load.time(), &CYCLE).and_one_more();
    let found = Found::new(lab, name, (&load, &WORK), ours, bounds).await;
    let third = time(lab).as_secs_f64() / 3.0;
    found
        .p99_at_most(WORK.takes + OP_TIMEOUT + Duration::from_millis(20))
        .story(&format!(
            "400 requests a second at {count} processes in turn, for one thing that is fresh for \
             half a second; Redis {what} from {third:.1} s to {:.1} s.",
            third * 2.0
        ))
        .charts()
}

/// The process that computes is killed; the others take over when its lease
/// has run out.
pub(crate) async fn leader_killed(lab: &Lab) -> Found {
    const WORK: Work = Work::new(50, 700);
    const LED: usize = 50;
    let (redis, origin) = (Server::start(), lab.origin(&WORK));
    let flags = ["--ttl-ms", "60000", "--lease-ms", "1000"];
    let fronts = fronts(lab, 2, &redis, &origin, &flags);
    let (led, load, begin) = (herd(LED), herd(200), Instant::now());
    let leading = async {
        let kill = async {
            origin.until_called().await;
            tokio::time::sleep(Duration::from_millis(200)).await;
            fronts[0].kill();
        };
        let leader = [&fronts[0]];
        tokio::join!(lab.play(&leader, &origin, &led), kill).0
    };
    let waiting = async {
        origin.until_called().await;
        lab.play(&[&fronts[1]], &origin, &load).await
    };
    let (leading, mut ours) = tokio::join!(leading, waiting);
    // The first of them came before these clients did.
    ours.calls = origin.calls_since(begin);
    let name = ("leader_killed", "the process that computes is killed");
    let found = Found::new(lab, name, (&load, &WORK), ours, Bounds::calls(2..=2)).await;
    let cut = Figure::new(
        "load.leader_killed.cut",
        "clients of the killed process itself, who lose their connections",
        leading.tally.errors as f64,
        "requests",
        "count of one run",
    );
    found.figure(within(cut, &(LED..=LED))).story(
        "50 clients ask one of two processes, and while it computes 200 ask the other, which \
         waits; then the first is killed. Its lease is a second long. The lines are of the 200.",
    )
}

fn herd(clients: usize) -> Load {
    Load::herd(std::iter::repeat_n(0, clients))
}
