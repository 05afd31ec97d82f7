//! One case: an origin, settings, and requests in their order.

use std::fmt;

use fastrand::Rng;

use crate::ask::Ask;
use crate::grammar::{Scene, Through, attacker, one_of, victim};
use crate::persona::{IDENTITIES, Kind, PathReading, Persona, Reading, Rewrite, UNKEYED, VARIED};
use crate::settings::Settings;

/// When a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// Once all before it have their answers, and so many milliseconds later.
    After(u64),
    /// So many milliseconds after the one before it was sent.
    Meanwhile(u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) when: When,
    pub(crate) ask: Ask,
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// Seeds what the library chooses at random.
    pub(crate) seed: u64,
    pub(crate) persona: Persona,
    pub(crate) settings: Settings,
    pub(crate) steps: Vec<Step>,
}

const READINGS: [Reading; 5] = [
    Reading::Field,
    Reading::Authority,
    Reading::FieldElseAuthority,
    Reading::AuthorityElseField,
    Reading::Everything,
];

const REWRITES: [Rewrite; 5] = [
    Rewrite::AddPrefix,
    Rewrite::StripPrefix,
    Rewrite::ReplacePath,
    Rewrite::ChangeQuery,
    Rewrite::ChangeAuthority,
];

/// Fields of which each kind is not shared under `max-age` alone, nor under
/// `must-revalidate` beside it, except `Authorization`.
const STRICT: [&str; 4] = ["authorization", "x-api-key", "proxy-authorization", "client-cert"];

fn kind(rng: &mut Rng, through: Through, index: usize) -> Kind {
    let reading = READINGS[rng.usize(..5)];
    match index {
        0 => Kind::Links(reading),
        1 => Kind::Redirector(reading, if rng.bool() { 301 } else { 308 }),
        2 => Kind::Gateway,
        3 => {
            let count = if rng.u8(..3) == 0 { 2 } else { 1 };
            let mut names: Vec<_> = (0..count).map(|_| one_of(rng, &VARIED)).collect();
            names.dedup();
            Kind::Varier(names)
        }
        4 => Kind::Identity(one_of(rng, &IDENTITIES)),
        // RFC 9111, 3.5, has rules of its own for it.
        5 if rng.u8(..3) == 0 => Kind::Permission(Some("authorization")),
        5 => Kind::Permission(Some(one_of(rng, &IDENTITIES))),
        6 if through == Through::Layer => Kind::Tenant(REWRITES[rng.usize(..5)]),
        7 if through == Through::Proxy => Kind::CookieReader,
        8 => Kind::Methods,
        9 if through == Through::Layer => Kind::Versions,
        10 => Kind::Refreshed(one_of(rng, &UNKEYED)),
        11 if through == Through::Layer => Kind::Sharded,
        12 if through == Through::Layer => Kind::User,
        13 if through == Through::Layer => Kind::Precompressed,
        // A layer has no rules for paths.
        14 if through == Through::Proxy => Kind::Router(PathReading::ALL[rng.usize(..7)]),
        _ => Kind::Links(reading),
    }
}

/// Chooses what the origin says of its lifetime.
fn cache_control(rng: &mut Rng, kind: &mut Kind, settings: &Settings) -> String {
    let lifetime = one_of(rng, &["max-age=1", "max-age=5", "max-age=60", "s-maxage=5"]);
    let stale = one_of(rng, &["", "", ", stale-while-revalidate=60", ", stale-if-error=60"]);
    match kind {
        Kind::Identity(_) | Kind::User => one_of(rng, &["", "", "foo", "max-stale=9"]).into(),
        Kind::Permission(_) => permission(rng, kind),
        Kind::Varier(_) | Kind::CookieReader => format!("public, {lifetime}{stale}"),
        Kind::Refreshed(_) | Kind::Sharded => "max-age=1, stale-while-revalidate=60".into(),
        Kind::Tenant(_) | Kind::Versions if settings.ttl.is_some() && rng.bool() => String::new(),
        _ => format!("{lifetime}{stale}"),
    }
}

/// Where the origin itself permits to share, it shows no user's data.
fn permission(rng: &mut Rng, kind: &mut Kind) -> String {
    let mut said: Vec<&str> = Vec::new();
    for directive in ["must-revalidate", "public", "proxy-revalidate"] {
        if rng.u8(..3) == 0 {
            said.push(directive);
        }
    }
    let lifetime = one_of(rng, &["", "", "max-age=5", "s-maxage=5"]);
    if lifetime == "s-maxage=5" || !lifetime.is_empty() && said.contains(&"public") {
        *kind = Kind::Permission(None);
    } else if !lifetime.is_empty() {
        let first = usize::from(said.contains(&"must-revalidate"));
        *kind = Kind::Permission(Some(STRICT[rng.usize(first..STRICT.len())]));
    }
    if rng.u8(..6) == 0 {
        // These forbid to share, whatever else is said.
        *kind = Kind::Permission(Some(one_of(rng, &IDENTITIES)));
        said.push(one_of(rng, &["private", "no-store", "no-cache"]));
    }
    if !lifetime.is_empty() {
        said.push(lifetime);
    }
    said.join(", ")
}

impl Case {
    /// Chooses a case; `kind_index` is the kind of origin.
    pub(crate) fn random(seed: u64, through: Through, kind_index: usize) -> Self {
        let rng = &mut Rng::with_seed(seed);
        let mut kind = kind(rng, through, kind_index);
        let settings = Settings::random(rng, &kind, through);
        let cache_control = match through {
            // Its lifetime is the proxy's, which is shorter than a second.
            Through::Proxy if matches!(kind, Kind::Refreshed(_)) => String::new(),
            // Its rules say how long its pages live.
            Through::Proxy if matches!(kind, Kind::Router(_)) => String::new(),
            _ => cache_control(rng, &mut kind, &settings),
        };
        let by_handler = matches!(kind, Kind::Identity(_)) && rng.u8(..4) == 0;
        let in_process = through == Through::Layer;
        let is_crowded = rng.u8(..4) == 0;
        let works = match through {
            Through::Layer => [0, 0, 1, 100, 1500],
            Through::Proxy if is_crowded => [5; 5],
            Through::Proxy => [0; 5],
        };
        let persona = Persona {
            cache_control,
            cache_for: by_handler.then_some(5),
            has_etag: rng.u8(..3) == 0,
            sets_cookie: rng.u8(..16) == 0,
            work: works[rng.usize(..5)],
            reads_late: rng.bool(),
            fails: if rng.u8(..10) == 0 && in_process { 3 } else { 0 },
            streams: rng.u8(..8) == 0 && in_process,
            folds: !in_process,
            status: match rng.u8(..6) {
                0 => [400, 404, 410, 500, 503][rng.usize(..5)],
                _ => 200,
            },
            groups: matches!(kind, Kind::Versions) && rng.bool(),
            is_long: settings.compressor,
            kind,
        };
        let mut steps = Vec::new();
        let scene = Scene::new(rng, &persona, &settings);
        let count = rng.usize(2..=7);
        for n in 0..=count {
            let is_honest = n == count || rng.u8(..20) < 9;
            let of_whom = if is_honest { victim } else { attacker };
            let ask = of_whom(rng, &scene);
            steps.push(Step { when: when(rng, is_crowded, &persona, through), ask });
        }
        Self { seed, persona, settings, steps }
    }
}

fn when(rng: &mut Rng, is_crowded: bool, persona: &Persona, through: Through) -> When {
    if through == Through::Proxy {
        return match rng.u8(..20) {
            0..4 if is_crowded => When::Meanwhile(0),
            0..6 if matches!(persona.kind, Kind::Refreshed(_)) => When::After(60),
            0 => When::After(45),
            _ => When::After(0),
        };
    }
    if is_crowded && rng.bool() {
        return When::Meanwhile([0, 0, 1, 50, 100, 1000][rng.usize(..6)]);
    }
    let is_refreshed = matches!(persona.kind, Kind::Refreshed(_) | Kind::Sharded);
    if is_refreshed && rng.bool() {
        return When::After(2000);
    }
    match rng.u8(..10) {
        0..7 => When::After(0),
        7 => When::After([1, 500, 999, 1000, 1001][rng.usize(..5)]),
        8 => When::After([2000, 4999, 5000, 5001, 6000][rng.usize(..5)]),
        _ => When::After([30_000, 61_000, 120_000][rng.usize(..3)]),
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Persona { kind, cache_control, cache_for, has_etag, sets_cookie, work, .. } =
            &self.persona;
        writeln!(f, "  origin: {kind:?}, Cache-Control: {cache_control:?}")?;
        if let Some(secs) = cache_for {
            writeln!(f, "    its handler says CacheFor::new({secs} s)")?;
        }
        if self.persona.status != 200 {
            writeln!(f, "    its pages have the status {}", self.persona.status)?;
        }
        if self.persona.groups {
            writeln!(f, "    its pages are a group, which a write to /form ends")?;
        }
        if *has_etag || *sets_cookie || *work > 0 || self.persona.fails > 0 {
            let fails = self.persona.fails;
            writeln!(
                f,
                "    ETag: {has_etag}, Set-Cookie: {sets_cookie}, takes {work} ms, fails one in {fails}"
            )?;
        }
        writeln!(f, "  settings: {}", self.settings)?;
        for (n, Step { when, ask }) in self.steps.iter().enumerate() {
            match when {
                When::After(0) => writeln!(f, "  {n}. {ask}")?,
                When::After(pause) => writeln!(f, "  {n}. {pause} ms later, {ask}")?,
                When::Meanwhile(pause) => writeln!(f, "  {n}. meanwhile, after {pause} ms, {ask}")?,
            }
        }
        Ok(())
    }
}
