//! Measures hits, and writes down what was found.

use super::report::{
    Axis, BarSeries, Content, Exhibit, Figure, Part, Profile, Role, Scale, median,
};
use super::{Candidate, TASKS, candidates, instructions, runtime, spread};

const MANY_KEYS: usize = 10_000;
const SPREAD_ROUNDS: usize = 9;
const WORKERS: [usize; 2] = [1, 2];

/// One subject over another, and what that is to be at most.
struct Ratio {
    ours: &'static str,
    theirs: &'static str,
    /// Of the times, under each plan.
    time: [Option<f64>; 2],
    instructions: Option<f64>,
}

impl Ratio {
    const fn of(
        ours: &'static str,
        theirs: &'static str,
        time: [Option<f64>; 2],
        instructions: Option<f64>,
    ) -> Self {
        Self { ours, theirs, time, instructions }
    }
}

const RATIOS: [Ratio; 7] = [
    Ratio::of("generic", "moka", [Some(0.5); 2], Some(0.5)),
    Ratio::of("typed", "generic", [Some(1.05); 2], Some(1.05)),
    Ratio::of("http", "floor", [None, Some(0.6)], Some(1.4)),
    Ratio::of("http_routed", "floor_routed", [None, Some(1.0)], Some(1.5)),
    Ratio::of("http_outcome", "floor", [None; 2], None),
    Ratio::of("http_plain", "floor", [None; 2], None),
    Ratio::of("http", "bare", [None; 2], None),
];

#[derive(Clone, Copy)]
struct Plan {
    keys: usize,
    per_slice: usize,
    rounds: usize,
}

impl Plan {
    /// Each slice visits all of its keys. It is short otherwise, so that few are
    /// cut in two by something else that runs on the machine.
    fn all(profile: Profile) -> [Self; 2] {
        [
            Self { keys: 1, per_slice: 1_000, rounds: profile.pick(101, 501) },
            Self { keys: MANY_KEYS, per_slice: 10_000, rounds: profile.pick(21, 61) },
        ]
    }

    fn says(self) -> String {
        if self.keys == 1 { "1 key".into() } else { format!("{} keys", self.keys) }
    }

    fn statistic(self, of: &str) -> String {
        format!("median of {} {of} of {} hits", self.rounds, self.per_slice)
    }
}

/// The times of all subjects under one plan.
struct Run {
    plan: Plan,
    timed: Vec<Timed>,
}

pub(crate) fn part(profile: Profile, with_instructions: bool) -> Part {
    let command = format!(
        "cargo bench -p tower-stampede-benches --bench hit -- --profile {} --out report",
        profile.name()
    );
    let mut part = Part::new("hit", "What a hit costs in memory", &command);
    part.notes.extend(profile.note());
    part.notes.push(
        "Slices of hits of each subject in turn; a ratio divides two slices of the same round. A \
         body of 1 KiB; generic keys are u64, requests are made before the clock runs."
            .into(),
    );
    part.notes.push(
        "The floor is moka's get and a response with two fields and a body made of what it \
         found; the bare service makes the same response out of nothing."
            .into(),
    );
    part.notes.push(
        "moka is as it comes, with the hash function of the standard library, here and in the \
         floor. Ours looks up in a table of its own, which costs less than moka's get: a ratio \
         below 1 is no contradiction."
            .into(),
    );
    part.notes.push(
        "Routed requests carry an extension, as they do behind a server or a router; they are \
         compared with a floor that gets the same. Dropping the request counts on both sides."
            .into(),
    );
    let runs = Plan::all(profile).map(Run::of);
    times(&mut part, &runs);
    ratios(&mut part, &runs);
    spreads(&mut part, profile.pick(500, 2_000));
    if with_instructions {
        count_instructions(&mut part);
    }
    part
}

/// A subject's nanoseconds per hit, of each round.
struct Timed {
    candidate: Candidate,
    nanos: Vec<f64>,
}

impl Timed {
    fn median(&self) -> f64 {
        median(&mut self.nanos.clone())
    }
}

impl Run {
    fn of(plan: Plan) -> Self {
        let timed = |candidate| Timed { candidate, nanos: Vec::new() };
        let mut timed: Vec<Timed> = candidates(plan.keys).into_iter().map(timed).collect();
        for _ in 0..plan.rounds {
            for Timed { candidate, nanos } in &mut timed {
                let took = candidate.subject.slice(plan.per_slice);
                nanos.push(took.as_secs_f64() * 1e9 / plan.per_slice as f64);
            }
        }
        Self { plan, timed }
    }

    fn find(&self, slug: &str) -> &Timed {
        let found = self.timed.iter().find(|timed| timed.candidate.slug == slug);
        found.expect("every ratio is of two subjects")
    }

    fn ratio(&self, ours: &str, theirs: &str) -> f64 {
        let pairs = self.find(ours).nanos.iter().zip(&self.find(theirs).nanos);
        median(&mut pairs.map(|(ours, theirs)| ours / theirs).collect::<Vec<f64>>())
    }
}

fn times(part: &mut Part, runs: &[Run]) {
    for Run { plan, timed } in runs {
        for subject in timed {
            let Candidate { slug, subject: hit, .. } = &subject.candidate;
            part.figures.push(Figure::new(
                &format!("hit.{slug}_{}_ns", plan.keys),
                &format!("a hit, {}: {}", plan.says(), hit.name()),
                subject.median(),
                "ns",
                &plan.statistic("slices"),
            ));
        }
    }
    let series = |(n, first): (usize, &Timed)| BarSeries {
        name: first.candidate.subject.name(),
        role: first.candidate.role,
        values: runs.iter().map(|run| Some(run.timed[n].median())).collect(),
    };
    let series = runs[0].timed.iter().enumerate().map(series).collect();
    part.exhibits.push(Exhibit {
        id: "hit.times".into(),
        title: "The time of a hit".into(),
        caption: "One task asks for a key that is held, again and again: always the same one, \
                  or 10,000 in turn, which do not fit into the processor's caches. What our \
                  layers add is the difference to the look-up alone, to the floor of a look-up \
                  and a response, and to the service without a cache."
            .into(),
        content: Content::Bars {
            value: Axis::new("time of a hit", "ns", Scale::Linear),
            categories: runs.iter().map(|run| run.plan.says()).collect(),
            series,
        },
    });
}

fn ratios(part: &mut Part, runs: &[Run]) {
    let (mut categories, mut values, mut goals) = (Vec::new(), Vec::new(), Vec::new());
    for Ratio { ours, theirs, time, .. } in RATIOS {
        for (run, goal) in runs.iter().zip(time) {
            let ratio = run.ratio(ours, theirs);
            let [over, under] = [ours, theirs].map(|slug| run.find(slug).candidate.subject.name());
            let figure = Figure::new(
                &format!("hit.{ours}_to_{theirs}_{}", run.plan.keys),
                &format!("{over} to {under}, {}", run.plan.says()),
                ratio,
                "",
                &run.plan.statistic("paired slices"),
            );
            part.figures.push(match goal {
                Some(goal) => figure.at_most(goal),
                None => figure,
            });
            categories.push(format!("{over} / {under}, {}", run.plan.says()));
            values.push(Some(ratio));
            goals.push(goal);
        }
    }
    let series = vec![
        BarSeries { name: "measured".into(), role: Role::Ours, values },
        BarSeries { name: "goal, at most".into(), role: Role::Bound, values: goals },
    ];
    part.exhibits.push(Exhibit {
        id: "hit.ratios".into(),
        title: "A hit as a multiple of what it is built on".into(),
        caption: "Each bar divides the time of our hit by the time of the other in the same \
                  round of the same run, so that a drift of the machine's speed hits both."
            .into(),
        content: Content::Bars {
            value: Axis::new("ratio of times", "", Scale::Linear),
            categories,
            series,
        },
    });
}

/// Each of the tasks makes so many hits.
fn spreads(part: &mut Part, per_task: usize) {
    let candidates = candidates(MANY_KEYS);
    let mut values = vec![Vec::new(); candidates.len()];
    for workers in WORKERS {
        for (candidate, values) in candidates.iter().zip(&mut values) {
            let nanos = spread_nanos(candidate, workers, per_task);
            values.push(Some(nanos));
            let name = candidate.subject.name();
            part.figures.push(Figure::new(
                &format!("hit.{}_{workers}_workers_ns", candidate.slug),
                &format!("a hit, {TASKS} tasks, threads: {workers}, {MANY_KEYS} keys: {name}"),
                nanos,
                "ns",
                &format!("worker time per hit, median of {SPREAD_ROUNDS} runs"),
            ));
        }
    }
    let series = candidates.iter().zip(values).map(|(candidate, values)| BarSeries {
        name: candidate.subject.name(),
        role: candidate.role,
        values,
    });
    part.exhibits.push(Exhibit {
        id: "hit.workers".into(),
        title: "A hit while other threads hit too".into(),
        caption: "64 tasks ask for 10,000 keys on one worker thread and on two. The time is a \
                  worker's own: what it grows by from one to two is what the threads take from \
                  each other."
            .into(),
        content: Content::Bars {
            value: Axis::new("time of a worker per hit", "ns", Scale::Linear),
            categories: vec!["one worker thread".into(), "two worker threads".into()],
            series: series.collect(),
        },
    });
}

fn spread_nanos(candidate: &Candidate, workers: usize, per_task: usize) -> f64 {
    let runtime = runtime(workers);
    let mut nanos: Vec<f64> = (0..SPREAD_ROUNDS)
        .map(|_| runtime.block_on(spread(&candidate.subject, per_task)))
        .map(|took| took.as_secs_f64() * 1e9 / (TASKS * per_task) as f64)
        .collect();
    median(&mut nanos)
}

fn count_instructions(part: &mut Part) {
    if !instructions::is_possible() {
        part.notes.push("Instructions were not counted: valgrind is not installed.".into());
        return;
    }
    let candidates = candidates(1);
    let counted: Vec<f64> = candidates.iter().map(instructions::per_hit).collect();
    let statistic = "callgrind, difference of two runs by 20,000 hits, 1 key";
    let mut figure = |id: String, says: String, value, unit, goal: Option<f64>| {
        let figure = Figure::new(&id, &says, value, unit, statistic);
        part.figures.push(match goal {
            Some(goal) => figure.at_most(goal),
            None => figure,
        });
    };
    for (Candidate { slug, subject, .. }, count) in candidates.iter().zip(&counted) {
        let says = format!("instructions of a hit: {}", subject.name());
        figure(format!("hit.instructions_{slug}"), says, *count, "instructions", None);
    }
    let of = |slug| candidates.iter().zip(&counted).find(|(found, _)| found.slug == slug);
    for Ratio { ours, theirs, instructions: goal, .. } in RATIOS {
        let (Some((over, ours_count)), Some((under, theirs_count))) = (of(ours), of(theirs)) else {
            continue;
        };
        let says = format!("instructions: {} to {}", over.subject.name(), under.subject.name());
        let id = format!("hit.instructions_{ours}_to_{theirs}");
        figure(id, says, ours_count / theirs_count, "", goal);
    }
}
