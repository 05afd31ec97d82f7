//! Searches the models: `protocol_model [--without RULE] [--all-rules] [--scope NAME] [--states N]`.
mod checker;
mod protocol;
mod rules;
mod scopes;
mod state;
mod system;

use std::process::ExitCode;

use crate::rules::{NOT_SHOWN, Rules, STAND_INS};

/// How many states of a scope are looked at, unless `--states` says it.
const STATES: usize = 2_000_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |flag: &str| {
        arguments.iter().position(|it| it == flag).and_then(|at| arguments.get(at + 1))
    };
    let most = value("--states").map_or(STATES, |it| it.parse().expect("--states takes a number"));
    let scope = value("--scope").map(String::as_str);
    let has_held = match arguments.iter().any(|it| it == "--all-rules") {
        true => each_rule_is_needed(most),
        false => {
            let names = value("--without").map_or("", String::as_str).split(',');
            let rules = names.filter(|name| !name.is_empty()).fold(Rules::ALL, without);
            holds(rules, scope, most)
        }
    };
    if has_held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints what each scope says, and returns whether none refutes the protocol.
fn holds(rules: Rules, name: Option<&str>, most: usize) -> bool {
    let mut has_held = true;
    for &scope in scopes::SMALL.iter().filter(|scope| name.is_none_or(|name| name == scope.name)) {
        let outcome = checker::search(&system::System { scope, rules }, most);
        let end = if outcome.is_complete { "all" } else { "a part" };
        println!("{}: {end}, {} states, {:.1?}", scope.name, outcome.states, outcome.time);
        if let Some(example) = outcome.counter_example {
            has_held = false;
            println!("  {} after {} steps", example.invariant, example.steps.len());
            for step in example.steps {
                println!("    {step}");
            }
        }
    }
    has_held
}

fn without(rules: Rules, name: &str) -> Rules {
    rules.without(name).unwrap_or_else(|| panic!("{name}: one of {:?}", Rules::NAMES))
}

/// Leaves out one rule after the other, prints as a table which scope refutes the rest, and
/// returns whether each rule is needed, alone or together with the one that [`STAND_INS`] names,
/// but for those in [`NOT_SHOWN`]: they are not.
fn each_rule_is_needed(most: usize) -> bool {
    let mut are_needed = true;
    println!("| without | refuted in | steps | states | breaks |\n| --- | --- | --- | --- | --- |");
    for &name in Rules::NAMES {
        let rest = without(Rules::ALL, name);
        let is_shown = print_refuted(name, rest, &[], most);
        if NOT_SHOWN.contains(&name) {
            println!("| `{name}` | | | | {} |", if is_shown { "IS SHOWN" } else { "not refuted" });
            are_needed &= !is_shown;
            continue;
        }
        if is_shown {
            continue;
        }
        let stand_in = STAND_INS.iter().find(|(shown, _)| *shown == name);
        are_needed &= stand_in.is_some_and(|(_, other)| {
            let alone = without(Rules::ALL, other);
            let refuted = scopes::SMALL.iter().filter(|scope| refutes(**scope, alone, most));
            let refuted: Vec<_> = refuted.map(|scope| scope.name).collect();
            print_refuted(&format!("{name}`, `{other}"), without(rest, other), &refuted, most)
        });
        if stand_in.is_none() {
            println!("| `{name}` | | | | IT IS NOT KNOWN WHY IT IS NEEDED |");
        }
    }
    are_needed
}

fn refutes(scope: system::Scope, rules: Rules, most: usize) -> bool {
    checker::search(&system::System { scope, rules }, most).counter_example.is_some()
}

/// Prints the first scope that refutes these rules, and returns whether there is one.
fn print_refuted(names: &str, rules: Rules, but_for: &[&str], most: usize) -> bool {
    let scopes = scopes::SMALL.iter().filter(|scope| !but_for.contains(&scope.name));
    for &scope in scopes {
        let outcome = checker::search(&system::System { scope, rules }, most);
        if let Some(example) = outcome.counter_example {
            let (steps, invariant) = (example.steps.len(), example.invariant);
            let (scope, states) = (scope.name, outcome.states);
            println!("| `{names}` | `{scope}` | {steps} | {states} | {invariant} |");
            return true;
        }
    }
    false
}
