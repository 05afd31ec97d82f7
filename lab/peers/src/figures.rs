//! The numbers, and what ours have to be.

use crate::crowd::{CROWD, ROUNDS, Scenario, Wave};
use crate::faults::Fault;
use crate::hits::{Cost, SINGLE_HITS, SLICES};
use crate::peers::{Kind, Peer};
use crate::report::{Figure, Role};
use crate::run::Found;

pub(crate) fn of(found: &Found) -> Vec<Figure> {
    let peer = &found.peer;
    let mut figures: Vec<_> = Scenario::ALL
        .into_iter()
        .filter_map(|scenario| Some((scenario, found.wave(scenario)?)))
        .flat_map(|(scenario, wave)| of_wave(peer, scenario, wave))
        .collect();
    for (fault, finding) in &found.faults {
        figures.extend(finding.as_ref().ok().map(|finding| of_fault(peer, *fault, finding.wrong)));
    }
    if let Ok(hits) = &found.hits {
        figures.extend(of_cost(peer, "hit", "a hit, one task and key", &hits.one_task));
        let says = "a hit, 64 tasks on 2 threads, 10,000 keys";
        figures.extend(of_cost(peer, "hit_many", says, &hits.many_tasks));
    }
    if let Ok(allocations) = found.allocations {
        figures.push(of_allocations(peer, allocations));
    }
    // A measurement of our crate that died must not pass as one without a fault.
    if peer.role == Role::Ours {
        figures.push(complete(found));
    }
    figures
}

fn of_wave(peer: &Peer, scenario: Scenario, wave: &Wave) -> Vec<Figure> {
    let figure = |what: &str, value: f64, unit: &str, statistic: &str| {
        let id = format!("peers.{}.{}.{what}", peer.id, scenario.id());
        let says = format!("{}, {}: {what}", peer.name, scenario.title());
        Figure::new(&id, &says, value, unit, statistic)
    };
    let worst = format!("worst of {ROUNDS} rounds of {CROWD} callers");
    let middle = format!("over the work's 100 ms, median of {ROUNDS} rounds");
    let mut figures = vec![
        figure("calls", wave.calls as f64, "calls", &worst),
        figure("errors", wave.errors as f64, "callers", &worst),
        figure("stuck", wave.stuck as f64, "callers", &worst),
    ];
    if scenario.is_private() {
        figures.push(figure("shared", wave.shared as f64, "callers", &worst));
    }
    let times = [("p50_ms", wave.p50), ("p99_ms", wave.p99)];
    figures.extend(
        times.into_iter().filter_map(|(what, time)| Some(figure(what, time?, "ms", &middle))),
    );
    if peer.role != Role::Ours {
        return figures;
    }
    figures.into_iter().map(|figure| bounded(scenario, figure)).collect()
}

/// Counts end the run, times do not.
fn bounded(scenario: Scenario, figure: Figure) -> Figure {
    use Scenario::{Fails, FailsOnce, LeaderLeaves, Panics, Private, PrivateKnown};
    let crowd = CROWD as f64;
    let what = figure.id.rsplit('.').next().unwrap_or_default().to_owned();
    match (what.as_str(), scenario) {
        ("calls", Private | PrivateKnown) => figure.at_least(crowd).at_most(crowd).or_fail(),
        // Over HTTP a second request asks: the failure may concern the first one alone.
        ("calls", Panics | Fails | FailsOnce) => figure.at_most(2.0).or_fail(),
        ("calls", _) => figure.at_least(1.0).at_most(1.0).or_fail(),
        // One failure for all, who would otherwise wait for one after the other.
        ("errors", Fails) => figure.at_least(crowd).at_most(crowd).or_fail(),
        ("errors", FailsOnce) => figure.at_most(crowd).or_fail(),
        // The panic is the leader's own.
        ("errors", Panics) => figure.at_most(1.0).or_fail(),
        ("errors" | "stuck" | "shared", _) => figure.at_most(0.0).or_fail(),
        ("p50_ms", LeaderLeaves) => figure.at_most(1.0),
        ("p99_ms", LeaderLeaves) => figure.at_most(10.0),
        ("p50_ms", PrivateKnown) => figure.at_most(5.0),
        _ => figure,
    }
}

fn of_fault(peer: &Peer, fault: Fault, wrong: usize) -> Figure {
    let id = format!("peers.{}.fault.{}", peer.id, fault.id());
    let says = format!("{}, {}: not as it must be", peer.name, fault.title());
    let figure = Figure::new(&id, &says, wrong as f64, "", "one run");
    if peer.role == Role::Ours { figure.at_most(0.0).or_fail() } else { figure }
}

fn of_cost(peer: &Peer, what: &str, says: &str, cost: &Cost) -> [Figure; 2] {
    let id = |unit: &str| format!("peers.{}.{what}_{unit}", peer.id);
    let statistic = format!("median of {SLICES} paired slices");
    let reference = peer.kind.reference().name;
    let ns = format!("{}: {says}", peer.name);
    let ratio = format!("{ns}, to {reference}");
    let ratio = Figure::new(&id("ratio"), &ratio, cost.ratio, "", &statistic);
    let limit = match peer.kind {
        Kind::Function => 1.3,
        Kind::Http => 1.5,
    };
    let is_bounded = peer.role == Role::Ours && what == "hit";
    let ratio = if is_bounded { ratio.at_most(limit) } else { ratio };
    [Figure::new(&id("ns"), &ns, cost.ns, "ns", &statistic), ratio]
}

fn of_allocations(peer: &Peer, allocations: f64) -> Figure {
    let id = format!("peers.{}.hit_allocations", peer.id);
    let says = format!("{}: a hit, one task and key", peer.name);
    let statistic = format!("median of {SINGLE_HITS} single hits");
    let figure = Figure::new(&id, &says, allocations, "allocations", &statistic);
    match (peer.role, peer.kind) {
        (Role::Ours, Kind::Http) => figure.at_most(5.0).or_fail(),
        _ => figure,
    }
}

fn complete(found: &Found) -> Figure {
    let measured = found.waves.iter().filter(|(_, wave)| wave.is_ok()).count()
        + found.faults.iter().filter(|(_, finding)| finding.is_ok()).count()
        + usize::from(found.hits.is_ok())
        + usize::from(found.allocations.is_ok());
    let wanted = (found.waves.len() + found.faults.len() + 2) as f64;
    let id = format!("peers.{}.measured", found.peer.id);
    let says = format!("{}: measurements that came to an end", found.peer.name);
    Figure::new(&id, &says, measured as f64, "", "count").at_least(wanted).or_fail()
}
