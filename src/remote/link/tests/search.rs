//! Searches every state of the world breadth first, so that a history which breaks a promise is one
//! of the shortest.
//!
//! The suite searches the scopes that are small, and each rule alone. `scripts/protocol_model` runs
//! all of it in the release build, and prints the histories.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::state::{What, World, WorldModel, WorldScope, WorldStep};
use crate::remote::link::Rule;

/// How many states a search keeps at most, where it is not told.
const IN_SUITE: usize = 6_000;

/// The scopes: by tag and by key.
fn scopes() -> Vec<WorldScope> {
    let base = WorldScope::BASE;
    let moves = WorldScope { promotes: true, ..base };
    let lags = WorldScope { is_stored: true, lags: true, command_cuts: 1, ..moves };
    let started = WorldScope { late: 0b10, starts_early: true, ..lags };
    let dies =
        WorldScope { late: 0b100, readers: 0b110, processes: 3, demotes: true, kills: 1, ..moves };
    let scopes = [
        WorldScope { name: "planned failover", late: 0b10, demotes: true, ..moves },
        WorldScope { name: "moved address", subscription_cuts: 1, ..lags },
        WorldScope { name: "moved address, started since", ..started },
        WorldScope { name: "sent again", resends: true, opens: 1, reads: 1, ..started },
        WorldScope { name: "restart from a snapshot", is_stored: true, restarts: true, ..base },
        WorldScope { name: "late reply", has_late_beats: true, readers: 0b1, ..lags },
        WorldScope {
            name: "late reply, started since",
            has_late_beats: true,
            readers: 0b10,
            reads: 1,
            ..started
        },
        WorldScope {
            name: "two primaries",
            strays: true,
            demotes: true,
            command_cuts: 2,
            subscription_cuts: 1,
            ..moves
        },
        WorldScope {
            name: "two primaries, one process",
            processes: 1,
            strays: true,
            demotes: true,
            command_cuts: 2,
            ..moves
        },
        WorldScope {
            name: "demoted by hand",
            late: 0b10,
            demotes: true,
            closes_on_demotion: false,
            command_cuts: 1,
            ..moves
        },
        WorldScope {
            name: "three processes",
            processes: 3,
            late: 0b100,
            writers: 0b11,
            readers: 0b110,
            writes: 2,
            demotes: true,
            ..moves
        },
        WorldScope { name: "the announcer dies, another has heard it", ..dies },
        WorldScope {
            name: "the announcer dies, heard of over the old subscription",
            readers: 0b10,
            reads: 1,
            command_cuts: 1,
            kills: 1,
            ..moves
        },
    ];
    let both = scopes
        .into_iter()
        .flat_map(|scope| [What::Tag, What::Key].map(|what| WorldScope { what, ..scope }));
    both.collect()
}

fn scope(name: &str, what: What) -> WorldScope {
    scopes().into_iter().find(|it| it.name == name && it.what == what).unwrap()
}

struct Found {
    broken: &'static str,
    history: Vec<String>,
}

struct SearchOutcome {
    states: usize,
    /// All histories of so many steps were searched.
    depth: usize,
    is_complete: bool,
    found: Option<Found>,
}

/// Two numbers of 64 bits stand for a state.
fn fingerprint(world: &World) -> u128 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    let first = hasher.finish();
    0x9e37_u16.hash(&mut hasher);
    (u128::from(first) << 64) | u128::from(hasher.finish())
}

fn search(model: &WorldModel, most: usize) -> SearchOutcome {
    let beginning = model.beginning();
    let mut seen = HashSet::from([fingerprint(&beginning)]);
    // Of each state how it came about; the states themselves only of the last depth.
    let mut steps: Vec<(usize, Option<WorldStep>)> = vec![(0, None)];
    let mut last = vec![(0, beginning)];
    let (mut depth, deepest) = (0, number("STAMPEDE_MODEL_DEPTH").unwrap_or(usize::MAX));
    while !last.is_empty() {
        let mut next = Vec::new();
        // The states of the deepest level are judged, and not kept: they take most of the memory.
        let keeps = depth + 1 < deepest;
        for (from, world) in last {
            let mut found = None;
            model.steps(&world, &mut |step, after| {
                if found.is_some() || !seen.insert(fingerprint(&after)) {
                    return;
                }
                steps.push((from, Some(step)));
                match model.violation(&after) {
                    Some(broken) => found = Some(broken),
                    None if keeps => next.push((steps.len() - 1, after)),
                    None => {}
                }
            });
            if let Some(broken) = found {
                let found = Some(Found { broken, history: history(&steps) });
                return SearchOutcome { states: steps.len(), depth, is_complete: false, found };
            }
            if steps.len() > most {
                return SearchOutcome {
                    states: steps.len(),
                    depth,
                    is_complete: false,
                    found: None,
                };
            }
        }
        last = next;
        depth += 1;
    }
    SearchOutcome { states: steps.len(), depth, is_complete: depth < deepest, found: None }
}

/// Returns the steps to the last state.
fn history(steps: &[(usize, Option<WorldStep>)]) -> Vec<String> {
    let mut history = Vec::new();
    let mut at = steps.len() - 1;
    while let (from, Some(step)) = &steps[at] {
        history.push(step.to_string());
        at = *from;
    }
    history.reverse();
    history
}

/// How many states `scripts/protocol_model` asks for.
fn most() -> Option<usize> {
    number("STAMPEDE_MODEL_STATES")
}

fn number(variable: &str) -> Option<usize> {
    let told = std::env::var(variable).ok().filter(|told| !told.is_empty())?;
    Some(told.parse().unwrap_or_else(|_| panic!("{variable} is a whole number")))
}

/// What is left out, where, and after how many steps a value comes back then. Where invalidated keys
/// are remembered, that hides what some rules are for as long as the memory lasts.
fn without_rules() -> Vec<(Vec<Rule>, WorldScope, usize)> {
    use Rule::*;
    use What::{Key, Tag};
    let dies = "the announcer dies, another has heard it";
    vec![
        (vec![OwnIsToldAgain], scope("planned failover", Tag), 7),
        (vec![OwnIsToldAgain], scope("planned failover", Key), 8),
        (vec![NewConnectionIsVerified, OwnKeysAreRemembered], scope("moved address", Key), 8),
        (vec![NewConnectionIsVerified], scope("moved address, started since", Key), 10),
        (vec![ReplyIsOfConnectionInUse], scope("late reply, started since", Key), 12),
        (vec![AwayJudgesNothingUnverified, OwnKeysAreRemembered], scope("sent again", Key), 10),
        (vec![KeyEndsOverOneConnection], scope("two primaries, one process", Key), 14),
        (vec![OwnKeysAreRemembered], scope("demoted by hand", Key), 11),
        (vec![HeardIsToldAgain], scope(dies, Tag), 9),
    ]
}

#[test]
fn each_rule_stops_a_history_that_no_other_rule_stops() {
    for (without, scope, steps) in without_rules() {
        let name = format!("without {without:?}, {}, by {:?}", scope.name, scope.what);
        let outcome = search(&WorldModel { scope, without }, most().unwrap_or(usize::MAX));
        let Some(found) = outcome.found else {
            panic!("{name}: no value comes back in {} states", outcome.states)
        };
        println!("{name}, {} states: {}", outcome.states, found.broken);
        found.history.iter().for_each(|step| println!("    {step}"));
        assert_eq!(found.history.len(), steps, "{name}");
    }
}

#[test]
fn with_all_rules_no_invalidated_value_comes_back() {
    let only = std::env::var("STAMPEDE_MODEL_SCOPE").unwrap_or_default();
    for scope in scopes().into_iter().filter(|scope| scope.name.contains(&only)) {
        let name = format!("{}, by {:?}", scope.name, scope.what);
        let start = std::time::Instant::now();
        let outcome =
            search(&WorldModel { scope, without: Vec::new() }, most().unwrap_or(IN_SUITE));
        if let Some(found) = outcome.found {
            found.history.iter().for_each(|step| println!("    {step}"));
            panic!("{name}: {} in {} steps", found.broken, found.history.len());
        }
        let SearchOutcome { states, depth, is_complete, .. } = outcome;
        let how = if is_complete { "all histories".into() } else { format!("to {depth} steps") };
        println!("{name}: {how}, {states} states, {} s", start.elapsed().as_secs());
    }
}
