//! What was found, as figures and charts.

use std::time::Duration;

use crate::plays::Round;
use crate::report::{
    self, Axis, BarSeries, Cell, Content, Exhibit, Figure, Part, Profile, Role, Scale, percentile,
};
use crate::scenarios::{Goal, Scenario};

/// What one cache did in all rounds of a scenario.
#[derive(Default)]
pub(crate) struct Rounds {
    halves: Vec<Duration>,
    ends: Vec<Duration>,
    hits: Vec<usize>,
    errors: Vec<usize>,
}

impl Rounds {
    pub(crate) fn add(&mut self, round: &Round, scenario: &Scenario) {
        let times = round.times(scenario.of);
        self.halves.push(percentile(&times, 50.0).unwrap_or_default());
        self.ends.push(percentile(&times, 99.0).unwrap_or_default());
        self.hits.push(round.hits);
        self.errors.push(round.errors());
    }

    fn p50(&self) -> f64 {
        median(&self.halves)
    }

    fn p99(&self) -> f64 {
        median(&self.ends)
    }

    fn says(&self) -> [f64; 4] {
        let most = |counts: &[usize]| counts.iter().max().map_or(0.0, |&count| count as f64);
        [most(&self.hits), most(&self.errors), self.p50(), self.p99()]
    }
}

/// A scenario and its results.
pub(crate) struct Found {
    pub(crate) scenario: Scenario,
    pub(crate) ours: Rounds,
    pub(crate) nginx: Option<Rounds>,
    pub(crate) floors: Vec<Duration>,
}

impl Found {
    /// p99 of clients that are answered without work.
    fn floor(&self) -> f64 {
        median(&self.floors)
    }

    /// p99 to one origin time and the floor, each round's to its own.
    fn ratio(&self) -> f64 {
        let origin = milliseconds(self.scenario.origin);
        let pairs = self.ours.ends.iter().zip(&self.floors);
        let ratio = |(end, floor): (&Duration, &Duration)| {
            milliseconds(*end) / (origin + milliseconds(*floor))
        };
        report::median(&mut pairs.map(ratio).collect::<Vec<_>>())
    }

    /// One origin time and the floor.
    fn least(&self) -> f64 {
        self.floor() + milliseconds(self.scenario.origin)
    }

    pub(crate) fn line(&self) -> String {
        let line = |name: &str, rounds: &Rounds| {
            let [hits, errors, p50, p99] = rounds.says();
            let floor = self.floor();
            format!("{name:48} {hits:>4} {errors:>6} {p50:>7.1} {p99:>7.1} {floor:>7.1}")
        };
        let ours = format!("{} {:>6.2}", line(self.scenario.name, &self.ours), self.ratio());
        let nginx = self.nginx.as_ref().map(|nginx| line("  nginx", nginx));
        [Some(ours), nginx].into_iter().flatten().collect::<Vec<_>>().join("\n")
    }

    fn figures(&self) -> Vec<Figure> {
        let Scenario { id, name, clients, hits, errors, goal, rounds, .. } = &self.scenario;
        let of_rounds = format!("median of {rounds} rounds of {clients} clients");
        let figure = |what: &str, says: &str, value: f64, unit: &str| {
            let says = format!("{says}: {name}");
            Figure::new(&format!("http_caches.{id}.{what}"), &says, value, unit, &of_rounds)
        };
        let count = |what: &str, says: &str, counts: &[usize], least: usize, most: usize| {
            let mut figure = figure(what, says, worst(counts, least, most) as f64, "calls");
            figure.statistic = format!("the worst of {rounds} rounds of {clients} clients");
            figure.at_least(least as f64).at_most(most as f64).or_fail()
        };
        let mut p99 = figure("p99", "p99", self.ours.p99(), "ms");
        let mut ratio = figure("ratio", "p99 to one origin time and the floor", self.ratio(), "");
        ratio.statistic = format!("median of {rounds} paired rounds of {clients} clients");
        match *goal {
            Some(Goal::Ratio(limit)) => ratio = ratio.at_most(limit),
            Some(Goal::Milliseconds(limit)) => p99 = p99.at_most(limit),
            None => {}
        }
        vec![
            count("hits", "requests to the origin", &self.ours.hits, *hits.start(), *hits.end()),
            count("errors", "answers that are errors", &self.ours.errors, *errors, *errors),
            figure("p50", "p50", self.ours.p50(), "ms"),
            p99,
            figure("floor_p99", "p99 at a server that does nothing", self.floor(), "ms"),
            ratio,
        ]
    }

    fn nginx_figures(&self) -> Vec<Figure> {
        let Some(nginx) = &self.nginx else { return Vec::new() };
        let Scenario { id, name, clients, nginx_rounds, .. } = &self.scenario;
        let statistic = format!("median of {nginx_rounds} rounds of {clients} clients");
        let figure = |what: &str, says: &str, value: f64, unit: &str| {
            let says = format!("nginx, {says}: {name}");
            Figure::new(&format!("http_caches.nginx.{id}.{what}"), &says, value, unit, &statistic)
        };
        let [hits, errors, p50, p99] = nginx.says();
        vec![
            figure("hits", "most requests to the origin in a round", hits, "calls"),
            figure("errors", "most answers that are errors in a round", errors, "calls"),
            figure("p50", "p50", p50, "ms"),
            figure("p99", "p99", p99, "ms"),
        ]
    }
}

/// Of counts, one that must not be, else the largest.
fn worst(counts: &[usize], least: usize, most: usize) -> usize {
    let wrong = counts.iter().find(|count| !(least..=most).contains(count));
    *wrong.or(counts.iter().max()).expect("there are rounds")
}

pub(crate) fn part(profile: Profile, found: &[Found], nginx: Option<String>) -> Part {
    let title = "What a crowd waits for at a caching proxy";
    let command = format!(
        "cargo bench -p tower-stampede-lab --bench http_caches -- --profile {} --out report",
        profile.name()
    );
    let mut part = Part::new("http_caches", title, &command);
    part.notes = notes(nginx.is_some());
    part.notes.extend(profile.note());
    part.versions.extend(nginx.map(|version| ("nginx".into(), version)));
    part.figures = found.iter().flat_map(Found::figures).collect();
    part.figures.extend(found.iter().flat_map(Found::nginx_figures));
    part.exhibits = vec![
        bars("latency", "p99", "ms", Scale::Log, LATENCY, found, |[_, _, _, p99]| p99),
        bars("calls", "requests to the origin", "calls", Scale::Log, CALLS, found, |[n, ..]| n),
        table(found),
    ];
    part
}

fn notes(has_nginx: bool) -> Vec<String> {
    let nginx = if has_nginx {
        "nginx: proxy_cache with proxy_cache_lock on and its usual time-outs of 5 s, one worker; \
         where the origin permits stale answers also proxy_cache_use_stale error timeout updating \
         http_500 http_502 http_503 http_504 and proxy_cache_background_update on. It was not \
         asked for the next request on a connection that was served stale."
    } else {
        "nginx is not in the tables: it is not installed, or the profile is quick."
    };
    vec![
        "Clients connect and ask at the same moment, and their times begin with it. Clients, \
         origin and cache share the machine."
            .into(),
        "The floor is p99 of as many clients at a server that answers without any work, measured \
         before each round. The origin takes 300 ms but where it says otherwise."
            .into(),
        nginx.into(),
    ]
}

const LATENCY: &str = "How long the unluckiest of a hundred clients waits when all ask at once, 500 \
    or 50 of them, for a response that the origin takes 300 ms to make (7 s where it says so). \
    Shorter is better; next to each other a cache and the least that is possible, which is one \
    origin time and what as many clients wait at a server that does nothing. Times are on a \
    logarithmic axis.";

const CALLS: &str = "How often the origin was asked for one crowd, in the worst round. One is the \
    best for what may be shared; what is private or has 50 variants has to be asked for 50 times. \
    Counts are on a logarithmic axis.";

fn bars(
    id: &str,
    title: &str,
    unit: &str,
    scale: Scale,
    caption: &str,
    found: &[Found],
    of: fn([f64; 4]) -> f64,
) -> Exhibit {
    let values = |rounds: fn(&Found) -> Option<&Rounds>| {
        found.iter().map(|found| rounds(found).map(|rounds| of(rounds.says()))).collect()
    };
    let series = |name: &str, role, values| BarSeries { name: name.into(), role, values };
    let mut all = vec![
        series("tower-stampede", Role::Ours, values(|found| Some(&found.ours))),
        series("nginx proxy_cache", Role::Other, values(|found| found.nginx.as_ref())),
    ];
    if unit == "ms" {
        let least = found.iter().map(|found| Some(found.least())).collect();
        all.push(series("least possible", Role::Without, least));
    }
    Exhibit {
        id: format!("http_caches.{id}"),
        title: format!("A crowd at a caching proxy: {title}"),
        caption: caption.into(),
        content: Content::Bars {
            value: Axis::new(title, unit, scale),
            categories: found.iter().map(|found| found.scenario.name.into()).collect(),
            series: all,
        },
    }
}

fn table(found: &[Found]) -> Exhibit {
    let columns =
        ["scenario", "cache", "clients", "origin calls", "errors", "p50 ms", "p99 ms", "floor ms"];
    let rows = found.iter().flat_map(|found| {
        let caches = [("tower-stampede", Some(&found.ours)), ("nginx", found.nginx.as_ref())];
        caches.map(|(name, rounds)| {
            let words = [found.scenario.name, name].map(|text| Cell::Text(text.into()));
            let numbers = rounds?.says().map(Cell::Number);
            let clients = Cell::Number(found.scenario.clients as f64);
            let floor = Cell::Number(found.floor());
            Some(words.into_iter().chain([clients]).chain(numbers).chain([floor]).collect())
        })
    });
    Exhibit {
        id: "http_caches.all".into(),
        title: "All scenarios".into(),
        caption: "Counts are of the worst round, times medians of rounds. An error is a status of \
                  500 or more, or no answer at all; where the origin answers 500 to a crowd and \
                  nothing is stored, all of them get it."
            .into(),
        content: Content::Table {
            columns: columns.map(str::to_owned).into(),
            rows: rows.flatten().collect(),
        },
    }
}

/// The median, in milliseconds.
fn median(durations: &[Duration]) -> f64 {
    report::median(&mut durations.iter().copied().map(milliseconds).collect::<Vec<_>>())
}

pub(crate) fn floor_of(sorted: &[Duration]) -> Duration {
    percentile(sorted, 99.0).unwrap_or_default()
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
