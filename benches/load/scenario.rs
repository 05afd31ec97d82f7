//! What a scenario finds, and what it must find.

use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::arrivals::Load;
use super::lab::{Lab, Run, most_within};
use super::origin::Work;
use super::report::Figure;

type Playing<'a> = Pin<Box<dyn Future<Output = Found> + 'a>>;

pub(crate) struct Scenario {
    /// In the ids of its figures: `cold_herd`.
    pub(crate) name: &'static str,
    pub(crate) play: for<'a> fn(&'a Lab) -> Playing<'a>,
}

/// Counts that end the run when they are not met.
pub(crate) struct Bounds {
    pub(crate) calls: RangeInclusive<usize>,
    pub(crate) errors: RangeInclusive<usize>,
    /// So many calls for one key at most within so long.
    pub(crate) together: Option<(usize, Duration)>,
}

impl Bounds {
    /// So many calls, and no client gets an error.
    pub(crate) fn calls(calls: RangeInclusive<usize>) -> Self {
        Self { calls, errors: 0..=0, together: None }
    }

    /// Each key again and again: `each` calls for one end of a lifetime.
    ///
    /// A lifetime is shortened by up to a tenth, so that keys do not end
    /// together; another twentieth is for what is late here or there. All calls
    /// of one end come within half a lifetime, those of two ends never do.
    pub(crate) fn expiries(keys: usize, each: usize, time: Duration, cycle: &Cycle) -> Self {
        let ends = |lifetime: f64| (time.as_secs_f64() / lifetime) as usize;
        let most = ends(cycle.lifetime.as_secs_f64() * 0.85) + 1;
        let fewest = ends((cycle.lifetime + cycle.work).as_secs_f64() * 2.0).max(1);
        let together = Some((each, cycle.lifetime / 2));
        Self { calls: keys * fewest..=keys * most * each, errors: 0..=0, together }
    }

    /// Another call, where a fault makes the processes lose what they know.
    pub(crate) fn and_one_more(self) -> Self {
        let calls = *self.calls.start()..=self.calls.end() + 1;
        let together = self.together.map(|(each, span)| (each + 1, span));
        Self { calls, together, ..self }
    }
}

/// How long a value is fresh, and how long making the next takes.
pub(crate) struct Cycle {
    pub(crate) lifetime: Duration,
    pub(crate) work: Duration,
}

pub(crate) struct Found {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// Who asked whom for what, and what happened: a sentence or two.
    pub(crate) story: String,
    pub(crate) requests: usize,
    pub(crate) ours: Run,
    pub(crate) without: Arc<Run>,
    /// What only this scenario has.
    own: Vec<Figure>,
    bounds: Bounds,
    p99_goal: Option<Duration>,
    pub(crate) has_charts: bool,
}

impl Found {
    /// Of a load with the layer, and of the same without.
    pub(crate) async fn new(
        lab: &Lab,
        scenario: (&'static str, &'static str),
        (load, work): (&Load, &Work),
        ours: Run,
        bounds: Bounds,
    ) -> Self {
        Self {
            name: scenario.0,
            title: scenario.1,
            story: format!("The origin works on {work}."),
            requests: load.requests(),
            ours,
            without: lab.without(load, work).await,
            own: Vec::new(),
            bounds,
            p99_goal: None,
            has_charts: false,
        }
    }

    pub(crate) fn story(mut self, what: &str) -> Self {
        self.story = format!("{what} {}", self.story);
        self
    }

    pub(crate) fn charts(self) -> Self {
        Self { has_charts: true, ..self }
    }

    pub(crate) fn figure(mut self, figure: Figure) -> Self {
        self.own.push(figure);
        self
    }

    /// A goal for the 99th percentile.
    pub(crate) fn p99_at_most(self, limit: Duration) -> Self {
        Self { p99_goal: Some(limit), ..self }
    }

    /// All its figures, those that end the run first.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        let mut figures = self.counts();
        figures.extend(self.own.iter().cloned());
        figures.extend(self.beside());
        figures
    }

    fn counts(&self) -> Vec<Figure> {
        let (tally, bounds) = (&self.ours.tally, &self.bounds);
        let mut figures = vec![
            within(self.count("origin_calls", "calls of the origin", self.calls()), &bounds.calls),
            within(self.count("errors", "requests that failed", tally.errors), &bounds.errors),
            within(self.count("stuck", "requests without an answer", tally.stuck), &(0..=0)),
            // Each request is accounted for.
            within(
                self.count("requests", "requests", tally.requests),
                &(self.requests..=self.requests),
            ),
        ];
        if let Some((most, span)) = bounds.together {
            let says = format!("most calls for one key within {} ms", span.as_millis());
            let together = most_within(&self.ours.calls, span);
            figures.push(within(self.count("calls_together", &says, together), &(0..=most)));
        }
        figures
    }

    fn beside(&self) -> Vec<Figure> {
        let mut figures = vec![
            self.count("late", "requests sent more than 10 ms late", self.ours.tally.late),
            self.count("hung_up", "clients that hung up", self.ours.tally.hung_up),
        ];
        let [p50, mut p99, longest] = self.times("", "", &self.ours);
        if let Some(goal) = self.p99_goal {
            p99 = p99.at_most(goal.as_secs_f64() * 1000.0);
        }
        figures.extend([p50, p99, longest]);
        let (tally, calls) = (&self.without.tally, self.without.calls.len());
        let kind = |kind: &str| format!("without.{kind}");
        let figure = |id, says: &str, value| {
            self.count(&kind(id), &format!("{says}, without the layer"), value)
        };
        figures.push(figure("origin_calls", "calls of the origin", calls));
        figures.push(figure("errors", "requests that failed", tally.errors));
        figures.push(figure("stuck", "requests without an answer", tally.stuck));
        figures.extend(self.times("without.", ", without the layer", &self.without));
        figures
    }

    pub(crate) fn calls(&self) -> usize {
        self.ours.calls.len()
    }

    fn count(&self, id: &str, says: &str, value: usize) -> Figure {
        let unit = if id.contains("calls") { "calls" } else { "requests" };
        let (name, title) = (self.name, self.title);
        let id = format!("load.{name}.{id}");
        Figure::new(&id, &format!("{title}: {says}"), value as f64, unit, "count of one run")
    }

    fn times(&self, prefix: &str, suffix: &str, run: &Run) -> [Figure; 3] {
        let figure = |id: &str, what: &str, value: f64| {
            let id = format!("load.{}.{prefix}{id}_ms", self.name);
            let says = format!("{}: {what} of the waits{suffix}", self.title);
            Figure::new(&id, &says, value, "ms", "one run, since the intended time")
        };
        [
            figure("p50", "50th percentile", run.tally.percentile(50.0)),
            figure("p99", "99th percentile", run.tally.percentile(99.0)),
            figure("max", "longest", run.tally.longest()),
        ]
    }
}

/// A count that ends the run where it does not lie within.
pub(crate) fn within(figure: Figure, range: &RangeInclusive<usize>) -> Figure {
    figure.at_least(*range.start() as f64).at_most(*range.end() as f64).or_fail()
}
