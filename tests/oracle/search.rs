//! Draws cases, judges them, and makes those with findings small.

use std::collections::BTreeMap;
use std::fmt;

use crate::ask::Form;
use crate::case::{Case, When};
use crate::grammar::HOST;
use crate::grammar::Through;
use crate::judge::{CODED_PARTS, Exchange, Finding, Source, foreground_calls, judge};
use crate::persona::{KNOWN_CREDENTIALS, Kind, TRUSTED};

/// Whatever sends a case: in process, or through the proxy.
pub(crate) trait Stage {
    const THROUGH: Through;

    /// Runs a case from its beginning, and judges what its victims got.
    fn run(&mut self, case: &Case) -> (Vec<Exchange>, Vec<Finding>);
}

/// Judges all victims of a case by the persona itself.
pub(crate) fn findings(case: &Case, exchanges: &[Exchange]) -> Vec<Finding> {
    let foreground = foreground_calls(exchanges);
    let victims = exchanges.iter().filter(|exchange| case.steps[exchange.step].ask.is_victim);
    let judged = victims.filter_map(|exchange| {
        judge(&case.persona, &case.steps[exchange.step].ask, exchange, &foreground)
    });
    judged.collect()
}

/// What victims got, for one kind of origin.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) exchanges: u64,
    pub(crate) victims: u64,
    pub(crate) hits: u64,
    pub(crate) stale: u64,
    pub(crate) joined: u64,
    pub(crate) own: u64,
    pub(crate) unanswered: u64,
}

impl Counts {
    pub(crate) fn cached(&self) -> u64 {
        self.hits + self.stale + self.joined
    }

    fn note(&mut self, case: &Case, exchanges: &[Exchange]) {
        self.exchanges += exchanges.len() as u64;
        for exchange in exchanges.iter().filter(|one| case.steps[one.step].ask.is_victim) {
            self.victims += 1;
            let counter = match exchange.reply.as_ref().map(|reply| reply.source) {
                Some(Source::Hit) => &mut self.hits,
                Some(Source::Stale) => &mut self.stale,
                Some(Source::Joined) => &mut self.joined,
                Some(Source::Own) => &mut self.own,
                Some(Source::Nobody) | None => &mut self.unanswered,
            };
            *counter += 1;
        }
    }

    fn add(&mut self, other: &Self) {
        self.exchanges += other.exchanges;
        self.victims += other.victims;
        self.hits += other.hits;
        self.stale += other.stale;
        self.joined += other.joined;
        self.own += other.own;
        self.unanswered += other.unanswered;
    }
}

/// The first finding of its sort, made small.
pub(crate) struct Found {
    /// Exchanges until then, of all kinds and of this kind of origin.
    pub(crate) after: (u64, u64),
    pub(crate) seed: u64,
    pub(crate) case: Case,
    pub(crate) finding: Finding,
    pub(crate) count: u64,
}

#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) counts: [Counts; Kind::COUNT],
    pub(crate) found: BTreeMap<String, Found>,
}

impl Outcome {
    pub(crate) fn exchanges(&self) -> u64 {
        self.counts.iter().map(|counts| counts.exchanges).sum()
    }

    pub(crate) fn merge(&mut self, other: Self) {
        for (ours, theirs) in self.counts.iter_mut().zip(&other.counts) {
            ours.add(theirs);
        }
        for (sort, found) in other.found {
            match self.found.entry(sort) {
                std::collections::btree_map::Entry::Vacant(place) => drop(place.insert(found)),
                std::collections::btree_map::Entry::Occupied(mut place) => {
                    place.get_mut().count += found.count;
                }
            }
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (sort, found) in &self.found {
            let Found { after: (all, of_kind), seed, case, finding, count } = found;
            writeln!(
                f,
                "FINDING {sort}: {count} times, first after {all} exchanges ({of_kind} with such an origin), case {seed}"
            )?;
            write!(f, "{case}")?;
            writeln!(f, "  the client of step {} got {}", finding.step, finding.got)?;
            writeln!(f, "  and would have got    {}\n", finding.expected)?;
        }
        for (name, counts) in Kind::NAMES.iter().zip(&self.counts).filter(|(_, c)| c.exchanges > 0)
        {
            let Counts { exchanges, victims, hits, stale, joined, own, unanswered } = counts;
            writeln!(
                f,
                "{name:>14}: {exchanges} exchanges, {victims} victims: {hits} hits, {stale} stale, {joined} joined, {own} by the origin, {unanswered} unanswered"
            )?;
        }
        write!(f, "{} exchanges, {} sorts of findings", self.exchanges(), self.found.len())
    }
}

/// A generator of numbers that a seed and a count give.
pub(crate) fn mix(seed: u64, n: u64) -> u64 {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(n);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Runs cases until so many exchanges are done.
pub(crate) fn search<S: Stage>(
    stage: &mut S,
    seed: u64,
    exchanges: u64,
    only: Option<usize>,
    mut progress: impl FnMut(&Outcome),
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut done = 0;
    for n in 0.. {
        if done >= exchanges {
            break;
        }
        let case_seed = mix(seed, n);
        let kind = only.unwrap_or((n % Kind::COUNT as u64) as usize);
        let case = Case::random(case_seed, S::THROUGH, kind);
        let (exchanged, findings) = stage.run(&case);
        done += exchanged.len() as u64;
        let index = case.persona.kind.index();
        outcome.counts[index].note(&case, &exchanged);
        for finding in findings {
            let sort = sort_of(&case, &finding);
            if let Some(found) = outcome.found.get_mut(&sort) {
                found.count += 1;
                continue;
            }
            let after = (done, outcome.counts[index].exchanges);
            let (case, finding) = shrink(stage, case.clone(), finding);
            let found = Found { after, seed: case_seed, case, finding, count: 1 };
            outcome.found.insert(sort, found);
        }
        if n.is_multiple_of(4096) {
            progress(&outcome);
        }
    }
    outcome
}

/// Findings of one sort are reported once.
fn sort_of(case: &Case, finding: &Finding) -> String {
    if finding.expected == CODED_PARTS {
        return "several parts behind a compressor".into();
    }
    let name = Kind::NAMES[case.persona.kind.index()];
    let sort = match &case.persona.kind {
        Kind::Links(reading) | Kind::Redirector(reading, _) => format!("{name}/{reading:?}"),
        Kind::Identity(field) | Kind::Refreshed(field) => format!("{name}/{field}"),
        Kind::Permission(field) => {
            let is_known = field.is_some_and(|field| KNOWN_CREDENTIALS.contains(&field));
            let whose = if is_known { "credentials" } else { "other identities" };
            format!("{name}/{}/{whose}", case.persona.cache_control)
        }
        Kind::Router(reading) => format!("{name}/{reading:?}"),
        Kind::Tenant(rewrite) => format!("{name}/{rewrite:?}"),
        Kind::Varier(fields) => format!("{name}/{}", fields.join("+")),
        Kind::Gateway => {
            let is_in = |text: &str, field: &str| text.contains(&format!("{field}="));
            let differs =
                |field: &&&str| is_in(&finding.got, field) != is_in(&finding.expected, field);
            let field = TRUSTED.iter().find(differs).copied();
            format!("{name}/{}", field.unwrap_or("several fields"))
        }
        _ => name.into(),
    };
    let replaces = match case.persona.kind {
        Kind::Gateway => !case.settings.keyed.is_empty(),
        Kind::Identity(_) | Kind::Permission(_) => !case.settings.credentials.is_empty(),
        _ => false,
    };
    if replaces { format!("{name} with fields of the setting") } else { sort }
}

/// Leaves out whatever the finding does not need: requests, fields, settings,
/// pauses.
fn shrink<S: Stage>(stage: &mut S, mut case: Case, mut finding: Finding) -> (Case, Finding) {
    let mut runs = 0;
    case.steps.truncate(finding.step + 1);
    loop {
        let before = case.clone();
        for smaller in smaller(&case) {
            runs += 1;
            let (_, findings) = stage.run(&smaller);
            let last = smaller.steps.len() - 1;
            if let Some(same) = findings.into_iter().find(|finding| finding.step == last) {
                (case, finding) = (smaller, same);
                break;
            }
        }
        let is_least = before.steps == case.steps
            && before.settings == case.settings
            && before.persona == case.persona;
        if is_least || runs > 2000 {
            return (case, finding);
        }
    }
}

fn smaller(case: &Case) -> Vec<Case> {
    let mut all = Vec::new();
    let last = case.steps.len() - 1;
    let mut with = |change: &dyn Fn(&mut Case)| {
        let mut other = case.clone();
        change(&mut other);
        all.push(other);
    };
    for n in 0..last {
        with(&|other| drop(other.steps.remove(n)));
    }
    for settings in case.settings.simpler(&case.persona.kind) {
        with(&|other| other.settings = settings.clone());
    }
    let persona = &case.persona;
    if persona.status != 200 {
        with(&|other| other.persona.status = 200);
    }
    if persona.groups {
        with(&|other| other.persona.groups = false);
    }
    if persona.is_long {
        with(&|other| other.persona.is_long = false);
    }
    if persona.fails > 0 {
        with(&|other| other.persona.fails = 0);
    }
    if persona.streams {
        with(&|other| other.persona.streams = false);
    }
    if persona.has_etag {
        with(&|other| other.persona.has_etag = false);
    }
    if persona.sets_cookie {
        with(&|other| other.persona.sets_cookie = false);
    }
    if persona.work > 0 {
        with(&|other| other.persona.work = 0);
    }
    for (n, step) in case.steps.iter().enumerate() {
        if step.when != When::After(0) {
            with(&|other| other.steps[n].when = When::After(0));
        }
        for field in 0..step.ask.fields.len() {
            with(&|other| drop(other.steps[n].ask.fields.remove(field)));
        }
        if !step.ask.body.is_empty() {
            with(&|other| other.steps[n].ask.body.clear());
        }
        if step.ask.form != Form::Origin {
            with(&|other| {
                let ask = &mut other.steps[n].ask;
                ask.form = Form::Origin;
                ask.set("Host", HOST);
            });
        }
        if step.ask.method != "GET" {
            with(&|other| other.steps[n].ask.method = "GET".into());
        }
        if step.ask.address != 1 {
            with(&|other| other.steps[n].ask.address = 1);
        }
        if step.ask.get("host").is_some_and(|host| host != HOST) {
            with(&|other| other.steps[n].ask.set("Host", HOST));
        }
        if step.ask.hangs_up.is_some() {
            with(&|other| other.steps[n].ask.hangs_up = None);
        }
        if step.ask.target.contains('?') {
            with(&|other| {
                for step in &mut other.steps {
                    let path = step.ask.target.split('?').next().unwrap_or_default();
                    step.ask.target = path.to_owned();
                }
            });
        }
    }
    all
}
