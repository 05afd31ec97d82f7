//! Parts with made-up numbers, one for each kind of chart and each thing that
//! is hard to draw. Nothing in them was measured.

use crate::report::{Axis, BarSeries, Cell, Content, Exhibit, Figure, Part, Role, Scale, Series};

/// What every text of these parts begins with, so that no reader takes a number
/// for a result.
const MADE_UP: &str = "Made up:";

pub(crate) fn parts() -> Vec<Part> {
    vec![wake(), load(), peers(), scaling(), zebra()]
}

pub(crate) fn part(name: &str, title: &str) -> Part {
    let command = format!("cargo bench --bench {name} -- --profile quick --out report");
    let mut part = Part::new(name, &format!("{MADE_UP} {title}"), &command);
    part.versions = vec![("redis-server".into(), "0.0.0".into()), ("nginx".into(), "0.0.0".into())];
    part.notes = vec![
        "A fixture of the page's own tests; no number here was measured.".into(),
        "The real ones say in this place how they were measured and what they do not show.".into(),
    ];
    part
}

pub(crate) fn exhibit(id: &str, title: &str, content: Content) -> Exhibit {
    let caption = "What to see in it, and under which load, in a sentence or two that are as \
                   long as the real ones are, so that the page has to break the line.";
    Exhibit { id: id.into(), title: format!("{MADE_UP} {title}"), caption: caption.into(), content }
}

pub(crate) fn line(name: &str, role: Role, points: Vec<(f64, f64)>) -> Series {
    Series { name: name.into(), role, points, steps: false }
}

fn bars(name: &str, role: Role, values: &[Option<f64>]) -> BarSeries {
    BarSeries { name: name.into(), role, values: values.to_vec() }
}

/// The same at each run, and uneven.
fn wobble(n: usize) -> f64 {
    ((n * 7919 + 13) % 101) as f64 / 101.0
}

fn load() -> Part {
    let mut part = part("load", "what a server under load sees");
    part.figures = vec![
        Figure::new(
            "load.cold_herd.origin_calls",
            "calls of the origin for 500 clients at once on a cold key",
            1.0,
            "calls",
            "largest of 9 runs",
        )
        .at_least(1.0)
        .at_most(1.0)
        .or_fail(),
        Figure::new(
            "load.cold_herd.ratio",
            "p99 of 500 clients to one origin time and the floor",
            1.0312,
            "",
            "median of 9 runs",
        )
        .at_most(1.05),
        Figure::new(
            "load.redis_frozen.p99_ms",
            "p99 while Redis is frozen",
            131.27,
            "ms",
            "one run of 30 s",
        )
        .at_most(110.0),
        Figure::new("load.requests", "requests in all scenarios", 1_234_567.0, "requests", "count"),
        Figure::new(
            "load.throughput",
            "requests answered in a second",
            10_432.7,
            "requests/s",
            "mean of 30 s",
        )
        .at_least(9_000.0),
    ];
    part.exhibits = vec![expiry(), latency(), totals()];
    part
}

fn expiry() -> Exhibit {
    let with = |n: usize| f64::from(u8::from(n % 50 == 10));
    let without = |n: usize| {
        if n % 50 >= 10 && n % 50 < 14 {
            80.0 + (wobble(n) * 40.0).floor()
        } else {
            (wobble(n) * 3.0).floor()
        }
    };
    let points =
        |count: &dyn Fn(usize) -> f64| (0..200).map(|n| (n as f64 / 10.0, count(n))).collect();
    let mut series = vec![
        line("without tower-stampede", Role::Without, points(&without)),
        line("with tower-stampede", Role::Ours, points(&with)),
    ];
    series.iter_mut().for_each(|series| series.steps = true);
    let x = Axis::new("time since the beginning", "s", Scale::Linear);
    let y = Axis::new("calls of the origin in 100 ms", "calls", Scale::Linear);
    exhibit(
        "load.hot_expiry.calls_over_time",
        "each time a hot key expires, the origin is asked once",
        Content::Lines { x, y, series },
    )
}

fn latency() -> Exhibit {
    let percentiles = [50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99, 100.0];
    let curve = |scale: f64| {
        percentiles
            .iter()
            .enumerate()
            .map(|(n, p)| (*p, scale * (1.0 + n as f64 * n as f64 / 9.0)))
            .collect()
    };
    let mut without: Vec<(f64, f64)> = curve(330.0);
    without.remove(3);
    let series = vec![
        line("cold herd, the same load without the layer", Role::Without, without),
        line("floor: a handler without work", Role::Without, curve(2.1)),
        line("cold herd", Role::Ours, curve(301.0)),
        line("hot expiry, stale while refreshing", Role::Ours, curve(0.93)),
        line("one origin time", Role::Bound, vec![(50.0, 300.0), (100.0, 300.0)]),
    ];
    let x = Axis::new("percentile of requests", "%", Scale::Percentile);
    let y = Axis::new("latency", "ms", Scale::Log);
    exhibit("load.latency", "who waits how long", Content::Lines { x, y, series })
}

fn totals() -> Exhibit {
    let categories = [
        "cold herd",
        "hot expiry, 1 key",
        "hot expiry, 200 keys",
        "failing origin",
        "leader killed in the middle of its computation",
    ];
    let series = vec![
        bars(
            "with tower-stampede",
            Role::Ours,
            &[Some(1.0), Some(20.0), Some(4_000.0), Some(3.0), Some(2.0)],
        ),
        bars(
            "without",
            Role::Without,
            &[Some(500.0), Some(9_870.0), Some(9_912.0), Some(0.0), None],
        ),
    ];
    let value = Axis::new("calls of the origin", "calls", Scale::Log);
    exhibit(
        "load.totals",
        "how often the origin is asked in each scenario",
        Content::Bars { value, categories: categories.map(String::from).to_vec(), series },
    )
}

const PEERS: [&str; 10] = [
    "moka try_get_with",
    "quick_cache",
    "foyer (the fetch is its own task)",
    "pingora-cache",
    "tower-http-cache",
    "hitbox, protection switched on",
    "tower-resilience coalesce",
    "http-cache-tower",
    "axum-response-cache",
    "bare service",
];

fn peers() -> Part {
    let mut part = part("peers", "others beside it");
    let scenarios = ["leader dropped after 20 ms", "leader fails", "answers may not be stored"];
    let mut series = vec![bars("tower-stampede", Role::Ours, &[Some(0.8), Some(9.4), Some(100.3)])];
    series.extend(PEERS.iter().enumerate().map(|(n, name)| {
        let role = if *name == "bare service" { Role::Without } else { Role::Other };
        let values = [
            Some(20.0 * wobble(n) + 1.0),
            (n != 3).then_some(800.0 * wobble(n + 5) + 1.0),
            Some(100.0 + 200.0 * wobble(n + 9)),
        ];
        bars(name, role, &values)
    }));
    let value = Axis::new("p99 over the 100 ms of work", "ms", Scale::Linear);
    let waits = Content::Bars { value, categories: scenarios.map(String::from).to_vec(), series };
    let hits = bars(
        "one hit",
        Role::Other,
        &[Some(380.2), Some(412.0), Some(658.0), Some(1_468.0), Some(83_278.0)],
    );
    let categories = [
        "moka get",
        "tower-stampede, generic",
        "moka get and a response",
        "axum-response-cache",
        "hitbox with the JSON that it comes with",
    ];
    let value = Axis::new("time of one hit, one task", "ns", Scale::Log);
    let hits = Content::Bars {
        value,
        categories: categories.map(String::from).to_vec(),
        series: vec![hits],
    };
    part.exhibits = vec![
        exhibit("peers.waits", "who waits how long when something goes wrong", waits),
        exhibit("peers.hits", "a hit", hits),
        outcomes(),
    ];
    part
}

fn outcomes() -> Exhibit {
    let columns = [
        "",
        "leader dropped",
        "leader fails",
        "leader panics",
        "calls, two processes",
        "what it does better than ours",
    ];
    let rows = PEERS.iter().enumerate().map(|(n, name)| {
        vec![
            Cell::Text((*name).into()),
            Cell::Number(1.0 + n as f64),
            if n == 4 { Cell::Text("hangs".into()) } else { Cell::Number(1000.0 * wobble(n)) },
            Cell::Number(2.0),
            Cell::Number(1000.0 - n as f64),
            Cell::Text("smaller entries, fewer dependencies".into()),
        ]
    });
    let content =
        Content::Table { columns: columns.map(String::from).to_vec(), rows: rows.collect() };
    exhibit("peers.outcomes", "inner calls for 1000 callers on one key", content)
}

fn scaling() -> Part {
    let mut part = part("scaling", "what growing costs");
    part.figures = vec![
        Figure::new(
            "scaling.wake_per_waiter_ns",
            "cost of waking one more waiter",
            431.9,
            "ns",
            "slope from 10 to 100,000",
        )
        .at_most(1000.0),
    ];
    let sizes = [10.0, 100.0, 1_000.0, 10_000.0, 100_000.0];
    let curve = |each: f64| sizes.iter().map(|size| (*size, 0.02 + size * each / 1e6)).collect();
    let mut series = vec![line("tower-stampede", Role::Ours, curve(430.0))];
    series.extend(
        PEERS
            .iter()
            .take(9)
            .enumerate()
            .map(|(n, name)| line(name, Role::Other, curve(600.0 * (n + 1) as f64))),
    );
    let x = Axis::new("waiters on one key", "waiters", Scale::Log);
    let y = Axis::new("from the answer to the last of them", "ms", Scale::Log);
    let ratios = [Some(1.07), Some(1.77), Some(0.4)];
    let ratios = Content::Bars {
        value: Axis::new("ratio of times", "", Scale::Linear),
        categories: ["a hit, 1 key", "a hit, 10,000 keys", "a hit that has no goal"]
            .map(String::from)
            .to_vec(),
        series: vec![
            bars("measured", Role::Ours, &ratios),
            bars("goal, at most", Role::Bound, &[Some(1.3), Some(1.3), None]),
        ],
    };
    let keys = [1.0, 1_000.0, 1_000_000.0].map(|keys: f64| (keys, 380.0 + 20.0 * keys.log10()));
    let keys = Content::Lines {
        x: Axis::new("keys", "keys", Scale::Log),
        y: Axis::new("a hit", "ns", Scale::Linear),
        series: vec![
            line("get_or_compute", Role::Ours, keys.to_vec()),
            line("moka get", Role::Without, keys.map(|(x, y)| (x, y / 1.21)).to_vec()),
        ],
    };
    let processes = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0].map(|n| (n, 3.0 / n));
    let processes = Content::Lines {
        x: Axis::new("processes on one Redis", "processes", Scale::Log),
        y: Axis::new("Redis commands for a request", "", Scale::Linear),
        series: vec![line("tower-stampede", Role::Ours, processes.to_vec())],
    };
    part.exhibits = vec![
        exhibit(
            "scaling.waiters",
            "waking a crowd takes time in proportion",
            Content::Lines { x, y, series },
        ),
        exhibit("scaling.ratios", "ratios", ratios),
        exhibit("scaling.keys", "a million keys cost what one costs", keys),
        exhibit("scaling.processes", "more processes, fewer commands each", processes),
    ];
    part
}

fn wake() -> Part {
    let mut part = part("wake", "from one process to another");
    part.figures = vec![
        Figure::new(
            "wake.push.p50",
            "from the fill to the value in another process, p50",
            0.187,
            "ms",
            "median of 500",
        )
        .at_most(0.5),
    ];
    let percentile = |n: usize| 100.0 - 50.0 * 0.95f64.powi(n as i32);
    let curve =
        |scale: f64| (0..120).map(|n| (percentile(n), scale * (1.0 + n as f64 / 30.0))).collect();
    let series = vec![
        line("our push", Role::Ours, curve(0.18)),
        line("GET every 10 ms", Role::Other, curve(5.3)),
        line("GET every 50 ms", Role::Other, curve(25.2)),
    ];
    let x = Axis::new("percentile", "%", Scale::Percentile);
    let y = Axis::new("from the fill to the value", "ms", Scale::Linear);
    part.exhibits = vec![exhibit(
        "wake.latency",
        "pushed, not asked for again and again",
        Content::Lines { x, y, series },
    )];
    part
}

/// A part that the page does not know, with text that could be taken for tags.
fn zebra() -> Part {
    let mut part = part("zebra", "<script>alert('a title')</script> & \"more\"");
    part.figures =
        vec![Figure::new("zebra.tiny", "a very small number <b>", 0.000_012_34, "s", "one")];
    let series = vec![
        line("</svg><script>", Role::Ours, vec![(0.0, -2.5), (1.0, 0.0), (2.0, 7.25)]),
        line("empty", Role::Other, Vec::new()),
    ];
    let x = Axis::new("<x>", "", Scale::Linear);
    let y = Axis::new("below nothing", "", Scale::Linear);
    part.exhibits = vec![exhibit(
        "zebra.lines",
        "<img src=x onerror=alert(1)>",
        Content::Lines { x, y, series },
    )];
    part
}
