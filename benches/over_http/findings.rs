//! What was found, as figures and charts.

use crate::load::{CONNECTIONS, Found, Slice, Wrk, statistic};
use crate::report::{
    Axis, BarSeries, Cell, Content, Exhibit, Figure, Part, Profile, Role, Scale, median,
};
use crate::servers::Cores;
use crate::servers::nginx::Nginx;

/// One body, from each server that was asked for it.
pub(crate) struct Group {
    /// The example.
    pub(crate) id: &'static str,
    /// Its length in bytes.
    pub(crate) body: usize,
    pub(crate) bare: Found,
    pub(crate) ours: Found,
    /// The layer behind axum's router, where `ours` has it in front.
    pub(crate) routed: Option<Found>,
    pub(crate) nginx: Option<Found>,
    /// What the example's origin and nginx's were asked beyond once each: then it
    /// was not hits that were measured.
    pub(crate) calls_too_many: f64,
}

impl Group {
    fn is_usual(&self) -> bool {
        self.id != "reverse_proxy" || self.body == 1 << 10
    }

    /// `reverse_proxy_to_axum`, and with the size where it is not the usual.
    fn figure_id(&self, server: &str) -> String {
        let size = if self.is_usual() { String::new() } else { format!(".{}_bytes", self.body) };
        format!("over_http.{server}_to_axum{size}")
    }

    fn category(&self) -> String {
        format!("{}, {} bytes", self.id, self.body)
    }

    fn figures(&self) -> Vec<Figure> {
        let ratio = |server: &str, found: &Found| {
            let says = format!(
                "hits a second of {server}, {} bytes each, to a bare axum handler's on one core",
                self.body
            );
            let statistic = found.statistic();
            Figure::new(&self.figure_id(server), &says, found.ratio(), "", &statistic)
        };
        let ours = ratio(self.id, &self.ours);
        let is_example = self.id != "in_front" && self.is_usual();
        // A proxy checks what a library is given checked.
        let least = if self.nginx.is_some() { 0.8 } else { 0.95 };
        let mut figures = vec![if is_example { ours.at_least(least) } else { ours }];
        if let Some(nginx) = &self.nginx {
            figures.push(ratio("nginx", nginx));
            figures.push(self.to_nginx(nginx));
        }
        if let Some(routed) = &self.routed {
            figures.push(ratio("route_layer", routed));
            figures.extend(cpu("in_front", &self.ours, 1.03));
            figures.extend(cpu("route_layer", routed, 0.96));
        }
        if self.is_usual() {
            figures.push(self.latency("p50", |slice| slice.p50_ms));
            figures.push(self.latency("p99", |slice| slice.p99_ms));
        }
        figures
    }

    /// Of slices of the same round.
    fn to_nginx(&self, nginx: &Found) -> Figure {
        let pairs = self.ours.ratios.iter().zip(&nginx.ratios);
        let mut ratios: Vec<f64> = pairs.map(|(ours, theirs)| ours / theirs).collect();
        let says = format!(
            "hits a second of {}, {} bytes each, to those of nginx on one core",
            self.id, self.body
        );
        let size = if self.is_usual() { String::new() } else { format!(".{}_bytes", self.body) };
        let id = format!("over_http.{}_to_nginx{size}", self.id);
        let statistic = statistic(&ratios);
        let figure = Figure::new(&id, &says, median(&mut ratios), "", &statistic);
        figure.at_least(if self.is_usual() { 1.25 } else { 1.0 })
    }

    fn latency(&self, name: &str, of: fn(&Slice) -> f64) -> Figure {
        let id = format!("over_http.{}.{name}", self.id);
        let says = format!("{name} of a hit of {} under {CONNECTIONS} connections", self.id);
        let statistic = format!("median of {} slices of 1 s", self.ours.slices.len());
        Figure::new(&id, &says, self.ours.median(of), "ms", &statistic)
    }

    fn errors(&self) -> f64 {
        let all = [Some(&self.bare), Some(&self.ours), self.routed.as_ref(), self.nginx.as_ref()];
        let slices = all.into_iter().flatten().flat_map(|found| &found.slices);
        slices.map(|slice| slice.errors).sum()
    }
}

/// Hits for so much processor time.
fn cpu(place: &str, found: &Found, goal: f64) -> Option<Figure> {
    let says = format!("hits for the same processor time, layer at {place}, to a bare handler's");
    let (id, statistic) = (format!("over_http.{place}_cpu_to_axum"), statistic(&found.cpu_ratios));
    Some(Figure::new(&id, &says, found.cpu_ratio()?, "", &statistic).at_least(goal))
}

pub(crate) struct Findings {
    cores: Cores,
    profile: Profile,
    groups: Vec<Group>,
}

impl Findings {
    pub(crate) fn new(cores: Cores, profile: Profile) -> Self {
        Self { cores, profile, groups: Vec::new() }
    }

    pub(crate) fn add(&mut self, group: Group) {
        let (id, body) = (group.id, group.body);
        eprintln!("{id}, {body} bytes: {:.3}", group.ours.ratio());
        self.groups.push(group);
    }

    /// The part where nothing could be measured.
    pub(crate) fn without_wrk(profile: Profile) -> Part {
        let mut part = empty(profile);
        part.notes.push("wrk is not installed: nothing was measured.".into());
        part
    }

    pub(crate) fn part(&self, wrk: &Wrk) -> Part {
        let mut part = empty(self.profile);
        part.versions.push(("wrk".into(), wrk.version.clone()));
        part.versions.extend(Nginx::version().map(|version| ("nginx".into(), version)));
        part.notes.extend(self.notes());
        part.figures = self.groups.iter().flat_map(Group::figures).collect();
        part.figures.extend(self.counts());
        part.exhibits = vec![self.ratios(), self.throughput(), self.latencies()];
        part
    }

    fn notes(&self) -> Vec<String> {
        let place = match self.cores.server {
            Some(core) => format!(
                "Each server had core {core} to itself with one worker, and wrk another core."
            ),
            None => "Server and wrk shared all cores: there is one core, or no taskset.".into(),
        };
        let nginx = match Nginx::version() {
            Some(_) => {
                "nginx ran with one worker, its cached object in files of a temporary folder, \
                 open_file_cache, sendfile and no access log."
            }
            None => "nginx is not installed, and not in the tables.",
        };
        vec![
            place,
            "The bare handler has the same route and parameter, and answers the same body, and \
             fields of the same names and lengths, from a map that it clones once; in the ratios of \
             nginx too, whose own fields are fewer."
                .into(),
            nginx.into(),
            "wrk asks for the next response as soon as it has one: latencies are those of a \
             server that is as busy as it can be."
                .into(),
        ]
    }

    fn counts(&self) -> [Figure; 2] {
        let count = |id: &str, says: &str, of: fn(&Group) -> f64| {
            let id = format!("over_http.{id}");
            let sum = self.groups.iter().map(of).sum();
            Figure::new(&id, says, sum, "calls", "sum over all slices").at_most(0.0).or_fail()
        };
        [
            count("errors", "requests that wrk got no good answer to", Group::errors),
            count(
                "calls_too_many",
                "requests to the examples and to nginx that were no hits",
                |group| group.calls_too_many,
            ),
        ]
    }

    fn bars(&self, of: impl Fn(&Found) -> f64) -> Vec<BarSeries> {
        let series = |name: &str, role, found: fn(&Group) -> Option<&Found>| {
            let values = self.groups.iter().map(|group| found(group).map(&of)).collect();
            BarSeries { name: name.into(), role, values }
        };
        vec![
            series("bare axum handler", Role::Without, |group| Some(&group.bare)),
            series("tower-stampede", Role::Ours, |group| Some(&group.ours)),
            series("tower-stampede, route_layer", Role::Ours, |group| group.routed.as_ref()),
            series("nginx proxy_cache", Role::Other, |group| group.nginx.as_ref()),
        ]
    }

    fn categories(&self) -> Vec<String> {
        self.groups.iter().map(Group::category).collect()
    }

    fn ratios(&self) -> Exhibit {
        Exhibit {
            id: "over_http.ratio".into(),
            title: "Hits over HTTP, to a bare axum handler".into(),
            caption: format!(
                "Requests a second that one core answers from the cache, {CONNECTIONS} \
                 connections, relative to a handler that answers the same bytes without a cache. \
                 The bars are medians of paired slices; 1 would be a cache that costs nothing."
            ),
            content: Content::Bars {
                value: Axis::new("to the bare handler", "", Scale::Linear),
                categories: self.categories(),
                series: self.bars(Found::ratio),
            },
        }
    }

    fn throughput(&self) -> Exhibit {
        Exhibit {
            id: "over_http.throughput".into(),
            title: "Hits a second on one core".into(),
            caption: format!(
                "The same runs in requests a second: wrk with {CONNECTIONS} connections, median of \
                 slices of one second. Compare bars of one group only: the load generator and the \
                 kernel have their share in all of them."
            ),
            content: Content::Bars {
                value: Axis::new("requests a second", "1/s", Scale::Linear),
                categories: self.categories(),
                series: self.bars(|found| found.median(|slice| slice.per_second)),
            },
        }
    }

    fn latencies(&self) -> Exhibit {
        let columns = ["example and body", "server", "p50 ms", "p99 ms", "requests/s", "ratio"];
        let rows = self.groups.iter().flat_map(|group| {
            let servers = [
                ("bare axum handler", Some(&group.bare)),
                ("tower-stampede", Some(&group.ours)),
                ("tower-stampede, route_layer", group.routed.as_ref()),
                ("nginx proxy_cache", group.nginx.as_ref()),
            ];
            servers.map(|(server, found)| Some(row(&group.category(), server, found?)))
        });
        Exhibit {
            id: "over_http.latency".into(),
            title: "Latency of hits under full load".into(),
            caption: format!(
                "wrk keeps {CONNECTIONS} requests under way at all times, so a server that answers \
                 more of them a second also has the shorter latency. Medians of slices."
            ),
            content: Content::Table {
                columns: columns.map(str::to_owned).into(),
                rows: rows.flatten().collect(),
            },
        }
    }
}

fn row(category: &str, server: &str, found: &Found) -> Vec<Cell> {
    let numbers = [
        found.median(|slice| slice.p50_ms),
        found.median(|slice| slice.p99_ms),
        found.median(|slice| slice.per_second),
        found.ratio(),
    ];
    let words = [category, server].map(|text| Cell::Text(text.into()));
    words.into_iter().chain(numbers.map(Cell::Number)).collect()
}

fn empty(profile: Profile) -> Part {
    let command = format!(
        "cargo bench -p tower-stampede-benches --bench over_http -- --profile {}",
        profile.name()
    );
    let mut part = Part::new("over_http", "What a hit costs over HTTP", &command);
    part.notes.extend(profile.note());
    part
}
