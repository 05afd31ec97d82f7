//! What was found, as figures and charts.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use crate::causes::{self, Woken};
use crate::herd::{CALLERS, Herds, Latenesses, PROCESSES, herds};
use crate::inboxes::{Inboxes, ROUNDS, inboxes};
use crate::polling::polling;
use crate::redis_support::Server;
use crate::report::{
    Axis, Cell, Content, Exhibit, Figure, Part, Profile, Role, Scale, Series, median, percentile,
    redis_version,
};

/// Where the lines of a distribution have their points.
const PERCENTILES: [f64; 13] =
    [0.0, 1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 100.0];

/// One way to learn that a wait is over.
struct Cause {
    id: &'static str,
    name: &'static str,
    role: Role,
    woken: Woken,
}

impl Cause {
    fn new(id: &'static str, name: &'static str, woken: Woken) -> Self {
        println!("{name}: p50 {:.2} ms", milliseconds(at(&sorted(&woken.samples), 50.0)));
        Self { id, name, role: Role::Ours, woken }
    }

    /// What clients do that are not told.
    fn polled(id: &'static str, name: &'static str, samples: Vec<Duration>) -> Self {
        let woken = Woken { samples, pushes: 0, timers: 0, polls: 0 };
        Self { role: Role::Without, ..Self::new(id, name, woken) }
    }

    fn figures(&self) -> Vec<Figure> {
        let samples = sorted(&self.woken.samples);
        let statistic = format!("of {} waits", samples.len());
        let figure = |percent: f64| {
            let id = format!("wake.{}.p{percent}", self.id);
            let says = format!("p{percent} from the end of the computation: {}", self.name);
            let value = milliseconds(at(&samples, percent));
            Figure::new(&id, &says, value, "ms", &statistic)
        };
        let p50 = figure(50.0);
        let p50 = if self.id == "push" { p50.at_most(0.5) } else { p50 };
        vec![p50, figure(99.0)]
    }

    fn line(&self) -> Series {
        let samples = sorted(&self.woken.samples);
        let point = |percent| (percent, milliseconds(at(&samples, percent)));
        let points = PERCENTILES.map(point).into();
        Series { name: self.name.into(), role: self.role, points, steps: false }
    }

    fn row(&self) -> Vec<Cell> {
        let samples = sorted(&self.woken.samples);
        let times = [50.0, 99.0, 100.0].map(|percent| milliseconds(at(&samples, percent)));
        let Woken { pushes, timers, polls, .. } = self.woken;
        let counts = [samples.len() as u64, pushes, timers, polls].map(|count| count as f64);
        let numbers = times.into_iter().chain(counts).map(Cell::Number);
        [Cell::Text(self.name.into())].into_iter().chain(numbers).collect()
    }
}

pub(crate) async fn run(profile: Profile, out: Option<&Path>) -> ExitCode {
    let server = Server::start();
    let herds = tokio::task::block_in_place(|| herds(&server, profile));
    let causes = vec![
        Cause::new(
            "memory",
            "leader in the same process",
            causes::in_memory(&server, profile).await,
        ),
        Cause::new("push", "pushed by the fill", causes::push(&server, profile).await),
        Cause::new("dropped", "leader hung up", causes::leader_dropped(&server, profile).await),
        Cause::new(
            "connection_killed",
            "connection for wake-ups killed",
            causes::connection_killed(&server, profile).await,
        ),
        Cause::new(
            "no_subscriber",
            "no subscriptions: polling",
            causes::no_subscriber(&server).await,
        ),
        Cause::new("pushes_lost", "pushes lost: timer", causes::pushes_lost(&server).await),
        Cause::new(
            "leader_killed",
            "leader killed, lease of 1 s",
            causes::leader_killed(&server, profile).await,
        ),
        Cause::polled(
            "get_10_ms",
            "GET every 10 ms",
            polling(&server, profile, Duration::from_millis(10)),
        ),
        Cause::polled(
            "get_50_ms",
            "GET every 50 ms",
            polling(&server, profile, Duration::from_millis(50)),
        ),
    ];
    let inboxes = inboxes(&server).await;
    part(profile, &causes, &inboxes, &herds).finish(out)
}

fn part(profile: Profile, causes: &[Cause], inboxes: &[Inboxes], herds: &Herds) -> Part {
    let title = "How long a waiter learns late that its wait is over";
    let command = format!(
        "cargo bench -p tower-stampede-benches --bench wake -- --profile {}",
        profile.name()
    );
    let mut part = Part::new("wake", title, &command);
    part.versions.extend(redis_version().map(|version| ("redis-server".into(), version)));
    part.notes = [
        "Redis is on the same machine, over the loopback interface. The processes are handles \
         with connections of their own in one process, but for leaders that are killed and for \
         the herds, which are processes.",
        "A wait ends when the caller has the value of 1 KiB; where the leader hung up or was \
         killed, when the computation of the next one begins. It is measured from the end of the \
         leader's computation, from its hanging up, or from its death.",
        "GET every 10 ms or 50 ms is what clients without wake-ups do, on a plain connection.",
    ]
    .map(str::to_owned)
    .into();
    part.notes.extend(profile.note());
    part.figures = causes.iter().flat_map(Cause::figures).collect();
    part.figures.push(not_pushed(causes));
    part.figures.extend(inbox_figures(inboxes));
    part.figures.extend(herd_figures(herds));
    part.exhibits = vec![distribution(causes), table(causes), last_inbox(inboxes)];
    part
}

/// A push that comes late would be hidden by a timer or a poll, and its number
/// by another wait that was told twice.
fn not_pushed(causes: &[Cause]) -> Figure {
    let push = causes.iter().find(|cause| cause.id == "push").expect("it is among them");
    let Woken { samples, pushes, timers, polls } = &push.woken;
    let missed = (samples.len() as u64).saturating_sub(*pushes).max(timers + polls) as f64;
    let says = "waits that should have ended by a push and did not";
    Figure::new("wake.push.missed", says, missed, "calls", "count").at_most(0.0).or_fail()
}

fn inbox_figures(inboxes: &[Inboxes]) -> Vec<Figure> {
    let mut figures: Vec<_> = inboxes.iter().map(last_figure).collect();
    let each = |count: usize| {
        let one = inboxes.iter().find(|inboxes| inboxes.count == count);
        let last = &one.expect("it was measured").last;
        last.iter().map(move |last| milliseconds(*last) / count as f64)
    };
    let says = "time until the last inbox is woken, per inbox: with 1000 to with 100";
    let ratio = median(&mut each(1000).zip(each(100)).map(|(a, b)| a / b).collect::<Vec<_>>());
    let statistic = format!("median of {ROUNDS} paired rounds");
    figures.push(Figure::new("wake.inbox_linearity", says, ratio, "", &statistic).at_most(2.0));
    figures
}

fn herd_figures(herds: &Herds) -> Vec<Figure> {
    let who = format!("{PROCESSES} processes with {CALLERS} callers each");
    let rounds = format!("most of {} rounds", herds.herd.own.len());
    let times = |name: &str, says: &str, found: &Latenesses| {
        let Latenesses { own, library, sockets } = found;
        let statistic = format!("median of {} rounds", own.len());
        let figure = |id: &str, says: &str, value, unit| {
            Figure::new(&format!("wake.{name}.{id}"), says, value, unit, &statistic)
        };
        let time = |id: &str, who: &str, all: &[Duration]| {
            let all = &mut all.iter().copied().map(milliseconds).collect::<Vec<_>>();
            figure(id, &format!("{says}{who}"), median(all), "ms")
        };
        let ratio = |id: &str, who: &str, bare: &[Duration]| {
            let ratio = |(own, bare): (&Duration, &Duration)| own.div_duration_f64(*bare);
            let ratios = &mut own.iter().zip(bare).map(ratio).collect::<Vec<_>>();
            figure(id, &format!("{says}, to {who}"), median(ratios), "")
        };
        let (bare, blocking) = ("bare clients of the same library", "bare blocking clients");
        vec![
            time("own", "", own),
            time("library", &format!(": {bare}"), library),
            time("sockets", &format!(": {blocking}"), sockets),
            ratio("to_library", bare, library).at_most(1.5),
            ratio("to_sockets", blocking, sockets),
        ]
    };
    let mut figures = vec![
        Figure::new(
            "wake.herd.computations",
            &format!("computations of a cold key: {who}"),
            herds.computations as f64,
            "calls",
            &rounds,
        )
        .at_most(1.0)
        .or_fail(),
        Figure::new(
            "wake.herd.commands",
            &format!("commands of a process that waits, without heartbeats: {who}"),
            herds.commands as f64,
            "calls",
            "most of all processes",
        )
        .at_most(3.0),
    ];
    let says = format!("from the end of the computation to the last caller: {who}");
    figures.extend(times("herd", &says, &herds.herd));
    let says = "from the end of the computation to the value in one other process";
    figures.extend(times("pair", says, &herds.pair));
    figures
}

fn last_figure(inboxes: &Inboxes) -> Figure {
    let Inboxes { count, last, .. } = inboxes;
    let says = format!("from the fill until the last of {count} waiting processes has the value");
    let statistic = format!("median of {} rounds", last.len());
    Figure::new(&format!("wake.inboxes_{count}.last"), &says, last_of(inboxes), "ms", &statistic)
}

/// After how many milliseconds the last one has it.
fn last_of(inboxes: &Inboxes) -> f64 {
    median(&mut inboxes.last.iter().copied().map(milliseconds).collect::<Vec<_>>())
}

fn distribution(causes: &[Cause]) -> Exhibit {
    Exhibit {
        id: "wake.latency".into(),
        title: "Wake-up latencies by cause".into(),
        caption: "How much later than the leader's end a waiter goes on, for each way to learn of \
                  it: of a hundred waits, so many took at most as long as the line is high. The \
                  lowest lines are what usually happens: told in the same process, or pushed \
                  through Redis. The higher ones are what remains when something breaks: no \
                  connection for wake-ups, wake-ups lost on their way, a leader killed. Grey: \
                  clients that ask again and again, as without wake-ups."
            .into(),
        content: Content::Lines {
            x: Axis::new("percentile of the waits", "%", Scale::Percentile),
            y: Axis::new("time until the waiter goes on", "ms", Scale::Log),
            series: causes.iter().map(Cause::line).collect(),
        },
    }
}

fn table(causes: &[Cause]) -> Exhibit {
    let columns =
        ["cause", "p50 ms", "p99 ms", "longest ms", "waits", "by push", "by timer", "by poll"];
    Exhibit {
        id: "wake.causes".into(),
        title: "What woke the waiters".into(),
        caption: "The last three columns are what the waiting process counted in its own Stats: \
                  how often it looked again because it was told to, because a timer ran out, and \
                  because it polled, having no connection for wake-ups. In one process none of \
                  them is needed. A wait may take several looks."
            .into(),
        content: Content::Table {
            columns: columns.map(str::to_owned).into(),
            rows: causes.iter().map(Cause::row).collect(),
        },
    }
}

fn last_inbox(inboxes: &[Inboxes]) -> Exhibit {
    let line = |name: &str, of: fn(&Inboxes) -> f64| {
        let points = inboxes.iter().map(|inboxes| (inboxes.count as f64, of(inboxes))).collect();
        Series { name: name.into(), role: Role::Ours, points, steps: false }
    };
    Exhibit {
        id: "wake.inboxes".into(),
        title: "Many processes woken by one fill".into(),
        caption:
            "So many processes wait for one key, each with an inbox of its own in Redis. A line \
                  that rises no faster than their number is a cost in proportion; all of them \
                  are clients on this one machine, which has to wake each."
                .into(),
        content: Content::Lines {
            x: Axis::new("waiting processes", "", Scale::Log),
            y: Axis::new("time from the fill", "ms", Scale::Log),
            series: vec![
                line("the last has the value", last_of),
                line("half of them have it", |inboxes| {
                    milliseconds(at(&sorted(&inboxes.samples), 50.0))
                }),
            ],
        },
    }
}

fn sorted(samples: &[Duration]) -> Vec<Duration> {
    let mut samples = samples.to_vec();
    samples.sort_unstable();
    samples
}

fn at(sorted: &[Duration], percent: f64) -> Duration {
    percentile(sorted, percent).unwrap_or_default()
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
