//! Searches the models: `protocol_model [--without RULE] [--scope NAME] [--states N]`.
mod checker;
mod protocol;
mod rules;
mod scopes;
mod system;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |flag: &str| {
        arguments.iter().position(|it| it == flag).and_then(|at| arguments.get(at + 1))
    };
    let rules = value("--without").map_or(rules::Rules::ALL, |name| {
        rules::Rules::without(name)
            .unwrap_or_else(|| panic!("{name}: one of {:?}", rules::Rules::NAMES))
    });
    let most =
        value("--states").map_or(2_000_000, |it| it.parse().expect("--states takes a number"));
    let mut has_failed = false;
    for &scope in scopes::SMALL {
        if value("--scope").is_some_and(|name| name != scope.name) {
            continue;
        }
        let outcome = checker::search(&system::System { scope, rules }, most);
        let end = if outcome.is_complete { "all" } else { "a part" };
        println!("{}: {end}, {} states, {:.1?}", scope.name, outcome.states, outcome.time);
        if let Some(example) = outcome.counter_example {
            has_failed = true;
            println!("  {} after {} steps", example.invariant, example.steps.len());
            for step in example.steps {
                println!("    {step}");
            }
        }
    }
    std::process::exit(i32::from(has_failed));
}
