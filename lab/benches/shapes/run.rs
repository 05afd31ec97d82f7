//! Plays the rows, judges them, and writes the table.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tower::Layer;
use tower::ServiceExt;
use tower_stampede::remote::Redis;
use tower_stampede::{HttpService, HttpStampede, Stampede};

use crate::crowd::{self, CLIENTS, Replies, takes_gzip};
use crate::origin::{MAX_BODY, Origin, length};
use crate::redis_support::Server;
use crate::report::{self, Figure, Part as ReportPart, Profile};
use crate::rows::{self, Answer, Condition, Method, Odd, PROCESSES, Part, Row, State, StoreKind};

/// How many times the requests the detour over the cache may cost, where the answer may not be
/// shared, and how many times the time: two leaders, whose requests differ, and each client.
const MOST_CALLS: f64 = 2.05;
const MOST_TIME: f64 = 3.1;
/// The same in two processes, where a response that could be shared was seen lately: each crowd
/// waits for two leaders of its own process, and the first ones follow each other.
const MOST_TIME_OF_TWO: f64 = 4.1;
/// Where the table of a page begins and ends.
const MARKS: (&str, &str) = ("<!-- rows -->\n", "<!-- end of rows -->");

/// What was found of a row.
struct Found {
    row: Row,
    calls: usize,
    took: Duration,
    /// The same crowd straight at the origin, where the answer may not be shared.
    straight: Option<(usize, Duration)>,
    wrong: Vec<String>,
}

#[tokio::main]
pub(crate) async fn run(args: &[String]) -> ExitCode {
    let value_of = |flag: &str| {
        let at = args.iter().position(|arg| arg == flag)?;
        Some(args.get(at + 1).expect("the flag has a value").clone())
    };
    let only = value_of("--row").map(|row| row.parse::<usize>().expect("--row takes a number"));
    let (profile, redis) = (Profile::among(args), redis_server());
    let plays = |row: &Row| {
        only.is_none_or(|only| row.number == only)
            && (row.store == StoreKind::Memory || redis.is_some())
    };
    let rows: Vec<_> = rows::all(profile).into_iter().filter(plays).collect();
    let spare = rows.first().map(|row| Row { number: 0, ..*row });
    let origin = Origin::new(&rows.iter().copied().chain(spare).collect::<Vec<_>>());
    let memory = [handle(None)];
    let shared = redis.as_ref().map(|redis| [(); PROCESSES].map(|()| handle(Some(redis))));
    let services = |caches: &[HttpStampede]| -> Vec<_> {
        caches.iter().map(|cache| layered(cache, &origin)).collect()
    };
    let memory = services(&memory);
    let shared = shared.map(|shared| services(&shared)).unwrap_or_default();
    let of = |row: &Row| match row.store {
        StoreKind::Memory => &memory,
        StoreKind::Redis => &shared,
    };
    warm_up(&rows, &of).await;
    grow(spare, &memory).await;
    grow(spare, &shared).await;
    let mut found = Vec::new();
    for row in rows {
        let one = play(row, of(&row), &origin).await;
        println!("{}", one.line());
        one.wrong.iter().for_each(|wrong| println!("    {wrong}"));
        found.push(one);
    }
    if redis.is_none() {
        println!("redis-server is not installed: its rows are left out");
    }
    if let Some(page) = report::path_of(args, "--docs") {
        write_table(&page, &found);
    }
    part(profile, &found, redis.is_some()).finish(report::out_directory(args).as_deref())
}

fn redis_server() -> Option<Server> {
    let is_there = std::process::Command::new("redis-server").arg("--version").output().is_ok();
    is_there.then(Server::start)
}

fn handle(redis: Option<&Server>) -> HttpStampede {
    let mut settings = Stampede::builder("shapes").ttl(Duration::from_secs(60));
    if let Some(redis) = redis {
        settings = settings
            .redis(Redis::lazy(&redis.url()).expect("the address is one").namespace("stampede"));
    }
    settings.build().expect("the settings are good")
}

fn layered(cache: &HttpStampede, origin: &Origin) -> HttpService<Origin> {
    let layer = cache.http_layer().honour_request_directives(true).max_body(MAX_BODY);
    layer.cache_posts(|_| true).layer(origin.clone())
}

/// Stores what is to be expired when the crowds come.
async fn warm_up<'a>(rows: &[Row], of: &impl Fn(&Row) -> &'a Vec<HttpService<Origin>>) {
    let expired = rows.iter().filter(|row| row.state == State::Expired);
    let requests = expired.map(|row| {
        // The whole, of which later requests want a part.
        let whole = Row { part: Part::Whole, condition: Condition::None, ..*row };
        of(row)[0].clone().oneshot(crowd::request(&whole, 0))
    });
    let replies = futures_util::future::join_all(requests).await;
    assert!(replies.into_iter().all(|reply| reply.is_ok_and(|reply| reply.status() == 200)));
    // Two lifetimes, by real clocks: Redis has one of its own.
    tokio::time::sleep(Duration::from_secs(2)).await;
}

/// Plays a crowd that counts for no row: the first one of a process waits for memory.
async fn grow(spare: Option<Row>, services: &[HttpService<Origin>]) {
    if let Some(spare) = spare.filter(|_| !services.is_empty()) {
        crowd::play(&spare, services).await;
    }
}

async fn play(row: Row, services: &[HttpService<Origin>], origin: &Origin) -> Found {
    let before = origin.calls(&row);
    let replies = crowd::play(&row, services).await;
    let calls = origin.calls(&row) - before;
    let mut wrong = wrong_replies(&row, &replies);
    let straight = match row.may_be_shared() {
        true => None,
        false => {
            let before = origin.calls(&row);
            let straight = crowd::play(&row, std::slice::from_ref(origin)).await;
            wrong.extend(
                wrong_replies(&row, &straight).into_iter().map(|it| format!("origin: {it}")),
            );
            Some((origin.calls(&row) - before, straight.took))
        }
    };
    let mut found = Found { row, calls, took: replies.took, straight, wrong: Vec::new() };
    wrong.extend(found.broken_bound());
    found.wrong = wrong;
    found
}

impl Found {
    fn broken_bound(&self) -> Option<String> {
        let Some((calls, took)) = self.straight else {
            let most = self.row.most_calls();
            return (self.calls > most).then(|| format!("at most {most} origin requests"));
        };
        let calls = self.calls as f64 / calls as f64;
        let time = self.took.as_secs_f64() / took.as_secs_f64();
        let was_shared = self.row.store == StoreKind::Redis && self.row.state == State::Expired;
        let most_time = if was_shared { MOST_TIME_OF_TWO } else { MOST_TIME };
        let is_broken = calls > MOST_CALLS || time > most_time;
        is_broken.then(|| format!("{calls:.2} times the requests, {time:.2} times the time"))
    }

    fn cells(&self) -> Vec<String> {
        let Row { number, method, part, varying, condition, answer, size, store, state, .. } =
            self.row;
        let odd = match self.row.odd {
            Odd::Nothing => "–".into(),
            odd if self.row.odd_is_before => format!("{odd}, before"),
            odd => format!("{odd}, leads"),
        };
        let ms = |took: Duration| took.as_millis().to_string();
        let (straight_calls, straight_ms) = match self.straight {
            Some((calls, took)) => (calls.to_string(), ms(took)),
            None => ("–".into(), "–".into()),
        };
        vec![
            number.to_string(),
            method.to_string(),
            part.to_string(),
            varying.to_string(),
            condition.to_string(),
            answer.to_string(),
            size.to_string(),
            store.to_string(),
            state.to_string(),
            odd,
            if self.row.may_be_shared() { "yes" } else { "no" }.into(),
            self.calls.to_string(),
            straight_calls,
            ms(self.took),
            straight_ms,
        ]
    }

    fn line(&self) -> String {
        format!("| {} |", self.cells().join(" | "))
    }
}

/// Returns what clients got that the row does not permit.
fn wrong_replies(row: &Row, replies: &Replies) -> Vec<String> {
    let is_wrong = |reply: &&crowd::Reply| {
        let statuses = statuses(row);
        let is_whole = reply.status == 200;
        let expected = if row.method == Method::Head { 0 } else { length(row.size) };
        !statuses.contains(&reply.status)
            || is_whole && reply.bytes != expected
            || reply.is_gzip && !takes_gzip(row, reply.client)
    };
    let wrong: Vec<_> = replies.all.iter().filter(is_wrong).collect();
    let (count, first) = (wrong.len(), wrong.first());
    first.map(|first| format!("{count} wrong replies, the first: {first:?}")).into_iter().collect()
}

fn statuses(row: &Row) -> Vec<u16> {
    match row.answer {
        Answer::Moved => vec![301],
        Answer::Missing => vec![404],
        Answer::Gone => vec![410],
        Answer::Failed => vec![500],
        Answer::Unavailable => vec![503],
        _ => {
            let mut statuses = vec![200];
            if matches!(row.condition, Condition::SameTag | Condition::Since) {
                statuses.push(304);
            }
            match row.part {
                Part::Whole => {}
                Part::First | Part::Last | Part::Two => statuses.extend([206, 416]),
                Part::Beyond => statuses.push(416),
            }
            statuses
        }
    }
}

fn part(profile: Profile, found: &[Found], has_redis: bool) -> ReportPart {
    let title = "Every shape of request";
    let command = format!(
        "cargo bench -p tower-stampede-lab --bench shapes -- --profile {} --out report",
        profile.name()
    );
    let mut part = ReportPart::new("shapes", title, &command);
    part.notes.extend(profile.note());
    part.notes.push(format!("{CLIENTS} clients in each row; the origin takes 400 ms."));
    if !has_redis {
        part.notes.push("Without redis-server: its rows are left out.".into());
    }
    let count = |id: &str, says: &str, value: usize| {
        Figure::new(&format!("shapes.{id}"), says, value as f64, "rows", "count")
    };
    let broken = found.iter().filter(|one| !one.wrong.is_empty()).count();
    part.figures.push(count("rows", "rows played", found.len()).at_most(300.0).or_fail());
    part.figures.push(count("broken", "rows that break a bound", broken).at_most(0.0).or_fail());
    let shared = found.iter().filter(|one| one.row.may_be_shared());
    let most = shared.map(|one| one.calls).max().unwrap_or(0);
    let says = "origin requests of a crowd, where the answer may be shared";
    part.figures.push(Figure::new("shapes.most_calls", says, most as f64, "calls", "most"));
    part
}

/// Puts the table into a page, between its marks.
fn write_table(page: &Path, found: &[Found]) {
    let text = std::fs::read_to_string(page).expect("the page can be read");
    let (before, rest) = text.split_once(MARKS.0).expect("the page has a place for the table");
    let (_, after) = rest.split_once(MARKS.1).expect("the place has an end");
    let columns = [
        "#",
        "method",
        "range",
        "`Vary`",
        "condition",
        "answer",
        "size",
        "store",
        "before",
        "odd request",
        "shareable",
        "origin requests",
        "straight",
        "ms",
        "straight ms",
    ];
    let mut table = format!("| {} |\n|{}\n", columns.join(" | "), " --- |".repeat(columns.len()));
    found.iter().for_each(|one| {
        let _ = writeln!(table, "{}", one.line());
    });
    let text = [before, MARKS.0, &table, MARKS.1, after].concat();
    std::fs::write(page, text).expect("the page can be written");
}
