//! Which scenarios there are, and what each must result in.

use std::ops::RangeInclusive;
use std::pin::Pin;
use std::time::Duration;

use crate::plays::{self, Cache, Round};
use crate::proxy_support::stage::{
    CROWD, FAILURE, FRESH, PRIVATE, SHORT, SMALL_CROWD, STALE_IF_ERROR, STALE_MEANWHILE, VARYING,
};
use crate::proxy_support::{Answer, Pace, Seen};
use crate::report::Profile;

/// What the origin takes, but for the scenarios that say otherwise.
pub(crate) const ORIGIN: Duration = Duration::from_millis(300);

/// Enough for a time that has a goal.
const PAIRED_ROUNDS: usize = 9;

pub(crate) const SLOW_ORIGIN: Duration = Duration::from_secs(7);

type Play = fn(Cache) -> Pin<Box<dyn Future<Output = Round>>>;

/// What p99 should be at most.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    /// To one origin time and the floor.
    Ratio(f64),
    Milliseconds(f64),
}

pub(crate) struct Scenario {
    /// In the names of its figures.
    pub(crate) id: &'static str,
    pub(crate) name: &'static str,
    /// What the origin answers, before the play changes it.
    pub(crate) answer: Answer,
    pub(crate) play: Play,
    pub(crate) clients: usize,
    pub(crate) origin: Duration,
    pub(crate) rounds: usize,
    /// How often nginx plays it; where each round takes seconds, once.
    pub(crate) nginx_rounds: usize,
    pub(crate) hits: RangeInclusive<usize>,
    pub(crate) errors: usize,
    pub(crate) goal: Option<Goal>,
    pub(crate) of: fn(&Seen) -> Duration,
}

/// A scenario, and the play of the same name.
macro_rules! scenario {
    ($id:ident, $name:literal, $answer:expr $(, $field:ident: $value:expr)* $(,)?) => {
        Scenario {
            id: stringify!($id),
            $($field: $value,)*
            ..Scenario::new($name, $answer, |cache| Box::pin(plays::$id(cache)))
        }
    };
}

impl Scenario {
    /// One request to the origin, and no client gets an error.
    fn new(name: &'static str, answer: Answer, play: Play) -> Self {
        Self {
            id: "",
            name,
            answer: answer.head(Pace::After(ORIGIN)),
            play,
            clients: CROWD,
            origin: ORIGIN,
            rounds: 3,
            nginx_rounds: 3,
            hits: 1..=1,
            errors: 0,
            goal: None,
            of: |seen| seen.whole,
        }
    }

    /// Where the answer permits it, nginx is told to use what is stale.
    pub(crate) fn permits_stale(&self) -> bool {
        self.answer.fields.iter().any(|(_, value)| value.contains("stale"))
    }
}

/// One request to the origin for each of a small crowd.
fn each(goal: f64, scenario: Scenario) -> Scenario {
    let (hits, goal) = (SMALL_CROWD..=SMALL_CROWD, Some(Goal::Ratio(goal)));
    let (clients, rounds) = (SMALL_CROWD, PAIRED_ROUNDS);
    Scenario { clients, rounds, nginx_rounds: 1, hits, goal, ..scenario }
}

/// A scenario without a goal is played once in the quick profile: its counts are what must hold.
pub(crate) fn all(profile: Profile) -> Vec<Scenario> {
    let mut all = full();
    for scenario in all.iter_mut().filter(|scenario| scenario.goal.is_none()) {
        scenario.rounds = profile.pick(1, scenario.rounds);
    }
    all
}

fn full() -> Vec<Scenario> {
    let at_once = Duration::ZERO;
    let in_time = Some(Goal::Ratio(1.05));
    vec![
        scenario!(cold, "cold", FRESH, rounds: PAIRED_ROUNDS, goal: in_time),
        scenario!(expired, "expired, nothing stale allowed", SHORT),
        scenario!(refresh_fails, "refresh answers 500, stale-if-error", STALE_IF_ERROR),
        scenario!(origin_refuses, "origin refuses, stale-if-error", STALE_IF_ERROR,
            origin: at_once, hits: 0..=0),
        scenario!(cold_failure, "cold, origin answers 500", FAILURE,
            rounds: PAIRED_ROUNDS, nginx_rounds: 1, errors: CROWD, goal: in_time),
        // Seen by the clients that come 50 ms later.
        scenario!(first_hangs_up, "first client hangs up after 50 ms", FRESH,
            origin: Duration::from_millis(250)),
        each(2.1, scenario!(private, "private, 50 clients", PRIVATE)),
        each(1.05, scenario!(private_again, "private, the next 50", PRIVATE)),
        each(2.1, scenario!(variants_of_50, "Vary, 50 variants", VARYING)),
        each(1.05, scenario!(next_variants, "Vary, the next 50 variants", VARYING)),
        scenario!(slow, "origin takes 7 s, 50 clients", FRESH,
            clients: SMALL_CROWD, origin: SLOW_ORIGIN, rounds: 1, nginx_rounds: 1),
        scenario!(stream, "stream, 1 s of body: first byte", FRESH,
            rounds: PAIRED_ROUNDS, goal: Some(Goal::Milliseconds(360.0)), of: |seen| seen.first),
        scenario!(outage, "origin dead 3 s, 50 clients again and again", STALE_IF_ERROR,
            clients: SMALL_CROWD, origin: at_once, rounds: 1, nginx_rounds: 1, hits: 1..=9),
        scenario!(after_stale, "next request after something stale", STALE_MEANWHILE,
            clients: SMALL_CROWD, origin: at_once, nginx_rounds: 0),
    ]
}
