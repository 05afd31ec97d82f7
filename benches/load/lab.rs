//! What scenarios have at hand: origins, servers in front of them, and the same
//! load without.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Mutex;

use super::arrivals::Load;
use super::client::play;
use super::origin::{Call, Origin, Work};
use super::report::Profile;
use super::servers::{Floor, Front};
use super::tally::Tally;

/// What clients saw of a load, and the origin.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) tally: Tally,
    pub(crate) calls: Vec<Call>,
}

pub(crate) struct Lab {
    pub(crate) profile: Profile,
    /// Whether the layer is left out, to see the bounds break.
    is_bare: bool,
    pub(crate) floor: Floor,
    /// Threads that clients do not use: they shall not keep it from answering.
    origins: Runtime,
    /// Loads without the layer that have been played.
    played: Mutex<Vec<(Load, Work, Arc<Run>)>>,
}

impl Lab {
    pub(crate) fn new(profile: Profile, is_bare: bool) -> Self {
        let origins = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let origins = origins.expect("a runtime starts");
        let played = Mutex::default();
        Self { profile, is_bare, floor: Floor::start(), origins, played }
    }

    pub(crate) fn origin(&self, work: &Work) -> Origin {
        Origin::start(self.origins.handle(), work.clone())
    }

    /// The `n`th server of a scenario in front of an origin.
    pub(crate) fn front(&self, n: usize, origin: &Origin, flags: &[&str]) -> Front {
        if self.is_bare {
            Front::bare(origin.address())
        } else {
            Front::proxy(n, &origin.url(), flags)
        }
    }

    /// Plays a load at servers in turn.
    pub(crate) async fn play(&self, fronts: &[&Front], origin: &Origin, load: &Load) -> Run {
        let addresses: Vec<_> = fronts.iter().map(|front| front.address).collect();
        run(&addresses, Some(origin), load).await
    }

    /// The same load straight at the same kind of origin. Where scenarios share
    /// both it is played once.
    pub(crate) async fn without(&self, load: &Load, work: &Work) -> Arc<Run> {
        let mut played = self.played.lock().await;
        let same = played.iter().find(|before| (&before.0, &before.1) == (load, work));
        if let Some((.., run)) = same {
            return Arc::clone(run);
        }
        let origin = self.origin(work);
        let run = Arc::new(run(&[origin.address()], Some(&origin), load).await);
        played.push((load.clone(), work.clone(), Arc::clone(&run)));
        run
    }

    /// The load at a server that answers without work.
    pub(crate) async fn floor(&self, load: &Load) -> Tally {
        run(&[self.floor.address], None, load).await.tally
    }

    pub(crate) fn end(self) {
        self.origins.shutdown_background();
    }
}

async fn run(addresses: &[SocketAddr], origin: Option<&Origin>, load: &Load) -> Run {
    let start = Instant::now();
    let tally = play(addresses, load, start).await;
    if let Some(why) = &tally.first_error {
        eprintln!("    the first of {} errors: {why}", tally.errors);
    }
    let calls = origin.map_or_else(Vec::new, |origin| origin.calls_since(start));
    Run { tally, calls }
}

/// The most calls for one key that came within `span`.
pub(crate) fn most_within(calls: &[Call], span: Duration) -> usize {
    let mut by_key = std::collections::HashMap::<u64, Vec<Duration>>::new();
    for call in calls {
        by_key.entry(call.key).or_default().push(call.at);
    }
    let most_of_key = |times: &Vec<Duration>| {
        let since =
            |from: Duration| times.iter().filter(move |&&at| at >= from && at < from + span);
        times.iter().map(|&from| since(from).count()).max()
    };
    by_key.values().filter_map(most_of_key).max().unwrap_or_default()
}
