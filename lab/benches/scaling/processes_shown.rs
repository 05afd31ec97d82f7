//! What the measurements of fleets say: figures, and curves.

use crate::draw::{Chart, line, points};
use crate::processes::{Cost, Counts, Row};
use crate::report::{Figure, Part, Role, Series};

const PROCESSES: (&str, &str) = ("processes on one Redis", "");

fn figure(id: &str, says: &str, value: f64, unit: &str, statistic: &str) -> Figure {
    Figure::new(&format!("scaling.processes_{id}"), says, value, unit, statistic)
}

pub(crate) fn say(part: &mut Part, rows: &[Row], counts: &Counts) {
    say_counts(part, counts);
    say_wakes(part, &rows[rows.len() - 1], counts);
    say_costs(part, &rows[rows.len() - 1]);
}

fn say_counts(part: &mut Part, counts: &Counts) {
    let calls = counts.cold_calls as f64 / counts.cold_keys as f64;
    let says = "computations of a cold key that 1 to 64 processes ask for at once";
    let figures = [
        figure("cold_origin_calls", says, calls, "calls", "mean").at_least(1.0).at_most(1.0),
        figure(
            "found_origin_calls",
            "computations of what another process has computed",
            counts.found_calls as f64,
            "calls",
            "count",
        )
        .at_most(0.0),
        figure(
            "steady_surplus",
            "computations under steady load beyond one a key and lifetime, the worst fleet",
            counts.steady_surplus.max(0.0),
            "calls",
            "count",
        )
        .at_most(0.0),
        figure(
            "errors",
            "requests without a value, 1 to 64 processes",
            counts.errors as f64,
            "requests",
            "count",
        )
        .at_most(0.0),
    ];
    part.figures.extend(figures.map(Figure::or_fail));
}

fn say_wakes(part: &mut Part, most: &Row, counts: &Counts) {
    let share = counts.pushed as f64 / counts.waited as f64;
    let says = "processes woken by a message, of all that were to wait for the fill";
    part.figures.push(figure("pushed_share", says, share, "", "all rounds").at_least(0.99));
    let says = "from the fill until the last of 64 processes has the value";
    part.figures.push(figure("64_last_ms", says, most.last, "ms", "median of all rounds"));
}

fn say_costs(part: &mut Part, most: &Row) {
    let found = most.found.expect("the largest fleet has more than one process");
    let situations = [
        ("cold", "a cold key that 64 processes ask for at once", most.cold),
        ("found", "what another of 64 processes has computed", found),
        ("steady", "64 processes under steady load", most.steady),
    ];
    for (name, situation, cost) in situations {
        let id = format!("64_{name}_commands");
        let says = format!("commands sent for each request: {situation}");
        part.figures.push(figure(&id, &says, cost.sent, "commands", "mean"));
        let id = format!("64_{name}_cpu_us");
        let says = format!("server CPU of each request: {situation}");
        part.figures.push(figure(&id, &says, cost.cpu, "µs", "mean, by INFO cpu"));
    }
}

pub(crate) fn draw(part: &mut Part, rows: &[Row]) {
    let last = points(rows, |row| (row.processes, row.last));
    part.exhibits.push(LAST.of(vec![line("the last has it", Role::Ours, last)]));
    part.exhibits.push(COMMANDS.of(situations(rows, |cost| cost.sent)));
    part.exhibits.push(EXECUTED.of(situations(rows, |cost| cost.executed)));
    part.exhibits.push(CPU.of(situations(rows, |cost| cost.cpu)));
    let calls = points(rows, |row| (row.processes, row.steady_calls));
    let alone = points(rows, |row| (row.processes, row.alone_calls));
    part.exhibits.push(ORIGIN.of(vec![
        line("one Redis", Role::Ours, calls),
        line("each process alone", Role::Without, alone),
    ]));
}

fn situations(rows: &[Row], value: fn(&Cost) -> f64) -> Vec<Series> {
    let found = rows.iter().filter_map(|row| Some((row.processes, value(row.found.as_ref()?))));
    vec![
        line("cold key", Role::Ours, points(rows, |row| (row.processes, value(&row.cold)))),
        line("found in Redis", Role::Ours, found.collect()),
        line("steady load", Role::Ours, points(rows, |row| (row.processes, value(&row.steady)))),
    ]
}

const LAST: Chart = Chart {
    id: "scaling.processes",
    title: "From the fill to the last of so many processes",
    caption: "All ask for one cold key at once; one computes, the others wait for its message \
              from Redis. All of them, and Redis, share the cores of one machine.",
    x: PROCESSES,
    y: ("after the fill", "ms"),
};

const COMMANDS: Chart = Chart {
    id: "scaling.processes_commands",
    title: "Commands for each request as the fleet grows",
    caption: "What the processes send, in three situations: a cold key that all ask for at once; \
              a key that one of the others has computed; and steady load, each process with 100 \
              requests a second for 10 keys that live one second. What scripts call inside Redis \
              is not counted, nor the one PING a second by which each process sees that Redis \
              lives.",
    x: PROCESSES,
    y: ("commands per request", ""),
};

const EXECUTED: Chart = Chart {
    id: "scaling.processes_executed",
    title: "The same with what the scripts call",
    caption: "Commands that Redis executes for each request, by INFO commandstats: a script is \
              one command, and those inside it are more.",
    x: PROCESSES,
    y: ("commands executed per request", ""),
};

const CPU: Chart = Chart {
    id: "scaling.processes_cpu",
    title: "Server CPU for each request as the fleet grows",
    caption: "User and system time of the Redis process by INFO cpu, in the same three \
              situations. Twenty keys are asked for together, so that Redis reads many commands \
              at once: each costs less than one sent alone.",
    x: PROCESSES,
    y: ("server CPU per request", "µs"),
};

const ORIGIN: Chart = Chart {
    id: "scaling.processes_origin",
    title: "Computations a second as the fleet grows",
    caption: "Steady load: each process with 100 requests a second for 10 keys that live one \
              second. However many processes there are, each key is computed once in its \
              lifetime. Beside it the same processes without Redis, each with its own cache.",
    x: PROCESSES,
    y: ("computations per second", "1/s"),
};
