//! `docs/http.md`, table by table: each row is sent through the layer.

use axum::body::Body;
use http::Request;
use tokio::time::Instant;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{CacheFor, HttpLayer, HttpService, Stampede};

use crate::kit::http::*;

const PAGE: &str = include_str!("../../docs/http.md");

type Row = Vec<&'static str>;

/// The rows of the first table below a heading.
fn table(heading: &str) -> Vec<Row> {
    let below = PAGE.split_once(&format!("# {heading}\n")).expect("the heading stands there").1;
    let lines = below.lines().skip_while(|line| !line.starts_with('|'));
    let rows: Vec<Row> = lines
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let width = rows[0].len();
    assert!(rows.len() > 2 && rows.iter().all(|row| row.len() == width), "{heading}");
    rows[2..].to_vec()
}

/// What stands between backticks in a cell.
fn quoted(cell: &'static str) -> Vec<&'static str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// The same, each as a field.
fn fields(cell: &'static str) -> Vec<(&'static str, &'static str)> {
    quoted(cell).into_iter().filter_map(|text| text.split_once(": ")).collect()
}

fn answer(status: u16, fields: &[(&'static str, &'static str)]) -> Answer {
    let answer = Answer::status(status).after(ms(0));
    fields.iter().fold(answer, |answer, (name, value)| match *name {
        "CacheFor" => answer.extension(CacheFor::new(secs(value.parse().unwrap()))),
        name => answer.header(name, value),
    })
}

fn app_of(
    layer: HttpLayer,
    answer: impl Fn(&Call) -> Answer + Send + Sync + 'static,
) -> HttpService<Origin> {
    layered(layer, &Origin::new(answer))
}

#[tokio::test(start_paused = true)]
async fn a_response_lives_as_long_as_the_page_says() {
    for row in table("Lifetimes") {
        let said = fields(row[0]);
        assert!(!said.is_empty() || row[0] == "nothing", "{row:?}");
        // Jitter shortens what the layer chose, and nothing else.
        let jitter = if row[1] == "30 s" { 0.0 } else { 0.9 };
        let cache = Stampede::builder("test").ttl(secs(30)).jitter(jitter).build().unwrap();
        let app = app_of(cache.http_layer(), move |_| answer(200, &said));
        send(&app, get("/")).await;
        let reply = send(&app, get("/")).await;
        let ttl = reply.cache_status().strip_prefix("tower-stampede; hit; ttl=");
        let lives = ttl.map_or("not stored".into(), |ttl| format!("{ttl} s"));
        assert_eq!(lives, row[1], "{row:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_status_is_stored_where_the_page_says() {
    const MODIFIED: (&str, &str) = ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT");
    const PUBLIC: (&str, &str) = ("cache-control", "public");
    let columns: [&[_]; 4] =
        [&[], &[MODIFIED], &[PUBLIC, MODIFIED], &[("cache-control", "max-age=60")]];
    for row in table("Statuses") {
        for (said, cell) in columns.into_iter().zip(&row[1..]) {
            for status in row[0].split(", ") {
                let status = status.parse().unwrap();
                let layer = if said.is_empty() { with_ttl(60) } else { origin_only() };
                let app = app_of(layer.http_layer(), move |_| answer(status, said));
                send(&app, get("/")).await;
                let is_stored = send(&app, get("/")).await.is(Hit);
                assert!(["stored", "no"].contains(cell), "{row:?}");
                assert_eq!(is_stored, *cell == "stored", "{status} {said:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_never_stored_is_not_for_the_reason_on_the_page() {
    for row in table("Never stored") {
        let [(name, value)] = fields(row[0])[..] else { panic!("one field: {row:?}") };
        let lives = ("cache-control", "max-age=60");
        // What cannot be read must not swallow the lifetime.
        let said = [lives, (name, value)];
        let app = app_of(origin_only().http_layer(), move |_| answer(200, &said));
        for _ in 0..2 {
            let reply = send(&app, get("/")).await;
            let detail = reply.cache_status().split_once("; detail=").expect("not stored").1;
            assert_eq!(detail, row[1], "{row:?}");
        }
    }
}

/// The words in backticks of the list below a heading.
fn listed(heading: &str) -> Vec<&'static str> {
    let (_, after) = PAGE.split_once(&format!("\n### {heading}\n")).unwrap();
    let section = after.split("\n#").next().unwrap();
    let is_listed = |line: &&str| line.starts_with(['-', '`']) || line.starts_with("  `");
    let lines = section.lines().filter(is_listed);
    let words = lines.flat_map(|line| line.split('`').skip(1).step_by(2));
    words.filter(|word| !word.contains('(')).collect()
}

#[test]
fn the_page_lists_the_fields_that_are_keyed_and_those_that_are_credentials() {
    let sorted = |mut names: Vec<&'static str>| {
        names.sort_unstable();
        names
    };
    for (heading, published) in [
        ("Fields that count as credentials", HttpLayer::CREDENTIAL_HEADERS),
        ("Fields that are part of the key", HttpLayer::KEYED_HEADERS),
    ] {
        assert_eq!(sorted(listed(heading)), sorted(published.to_vec()), "{heading}");
    }
}

/// A request that carries the credentials in a cell.
fn carrying(cell: &'static str) -> Request<Body> {
    let fields: Vec<_> = quoted(cell).into_iter().map(|name| (name, "me")).collect();
    assert!(!fields.is_empty() || cell == "none", "{cell}");
    with("/", &fields)
}

/// A response that says what stands in a cell of credentials.
fn shared(cell: &'static str) -> Answer {
    match cell {
        "by `ttl`" => answer(200, &[]),
        "by `CacheFor`" => answer(200, &[("CacheFor", "60")]),
        "by `CacheFor`, `public()`" => answer(200, &[]).extension(CacheFor::new(secs(60)).public()),
        _ => answer(200, &[("cache-control", quoted(cell)[0])]),
    }
}

#[tokio::test(start_paused = true)]
async fn credentials_are_served_as_the_page_says() {
    let others = ["none", "`Cookie`", "`Authorization`", "`X-Api-Key`"];
    for row in table("Credentials") {
        let response = row[1];
        for (other, cell) in others.into_iter().zip(&row[3..]) {
            let app = app_of(with_ttl(60).http_layer(), move |_| shared(response));
            let first = send(&app, carrying(row[0])).await;
            let is_stored = first.cache_status().ends_with("; stored");
            assert_eq!(is_stored, row[2] == "yes", "{row:?}");
            let answers = send(&app, carrying(other)).await.is(Hit);
            let expected = if is_stored { *cell } else { "" };
            let found = match (is_stored, answers) {
                (false, false) => "",
                (_, true) => "yes",
                (true, false) => "no",
            };
            assert_eq!(found, expected, "{row:?} to {other}");
        }
    }
}

/// The layer that a cell of the table on stale answers names.
fn layer_of(cell: &str) -> HttpLayer {
    let minute = secs(60);
    let layer = origin_only().http_layer().disconnected(|_: &OriginError| true);
    match cell {
        "none" => layer,
        "`stale_for`" => layer.stale_for(minute),
        "`stale_if_error`" => layer.stale_if_error(minute),
        "`stale_if_disconnected`" => layer.stale_if_disconnected(minute),
        "all" => layer.stale_for(minute).stale_if_error(minute).stale_if_disconnected(minute),
        "`stale_beside_s_maxage(false)`" => layer.stale_beside_s_maxage(false),
        other => panic!("no layer: {other}"),
    }
}

/// What a client gets when the response is 14 s old, and its lifetime over.
async fn late(row: &Row, then: fn() -> Answer) -> String {
    let directives = quoted(row[0])[0];
    let origin = Origin::new(move |call| match call.n {
        0 => Answer::ok(directives, "old").header("etag", "\"a\"").after(ms(0)),
        _ => then(),
    });
    let app = layered(layer_of(row[1]), &origin);
    send(&app, get("/")).await;
    pass(secs(14)).await;
    // The service's own error goes to the clients whose requests led: to two at most.
    let mut all = crowd_of(&app, 3, |_| get("/")).await;
    // The second of the two is chosen by chance.
    all.sort_by_key(|got| matches!(got, Got::Reply(_)));
    let reply = match all.pop() {
        Some(Got::Reply(reply)) => reply,
        Some(Got::Error(OriginError)) => return "error".into(),
        other => panic!("{row:?}: {other:?}"),
    };
    match reply.status {
        200 if reply.text() == "old" => "stale".into(),
        200 => "new".into(),
        status => status.to_string(),
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_stale_is_served_where_the_page_says() {
    let thens: [fn() -> Answer; 3] =
        [|| Answer::ok("max-age=60", "new"), || Answer::status(503), Answer::error];
    for row in table("Stale") {
        for (then, cell) in thens.into_iter().zip(&row[2..]) {
            assert_eq!(late(&row, then).await, *cell, "{row:?}");
        }
    }
}

/// A request as a cell names it: the method, then fields.
fn as_named(cell: &'static str) -> Request<Body> {
    request(quoted(cell)[0], "/", &fields(cell))
}

/// The outcome, as the page writes it.
async fn came(app: &HttpService<Origin>, request: Request<Body>) -> String {
    let reply = send(app, request).await;
    let said = reply.cache_status().strip_prefix("tower-stampede; ").expect("our member");
    let said = said.split("; ttl=").next().unwrap();
    match reply.status {
        200 => format!("`{said}`"),
        status => format!("{status} `{said}`"),
    }
}

#[tokio::test(start_paused = true)]
async fn requests_are_answered_as_the_page_says() {
    for row in table("Requests") {
        let app = || {
            let whole = || Answer::ok("max-age=60", "0123456789").header("etag", "\"a\"");
            app_of(origin_only().http_layer(), move |_| whole())
        };
        assert_eq!(came(&app(), as_named(row[0])).await, row[1], "{row:?}, cold");
        let app = app();
        send(&app, get("/")).await;
        let expected = if row[2] == "the same" { row[1] } else { row[2] };
        assert_eq!(came(&app, as_named(row[0])).await, expected, "{row:?}, stored");
    }
}

/// What comes, by a cell of the table on waiting.
fn coming(cell: &'static str) -> Answer {
    match cell {
        "an error" => Answer::error(),
        "a panic" => Answer::panic(),
        _ => answer(cell[..3].parse().unwrap(), &fields(cell)).after(WORK),
    }
}

#[tokio::test(start_paused = true)]
async fn a_crowd_waits_as_long_as_the_page_says() {
    for row in table("What waiting costs") {
        let comes = row[0];
        let app = app_of(origin_only().http_layer(), move |_| coming(comes));
        for expected in &row[1..] {
            let from = Instant::now();
            crowd_of(&app, 10, |_| get("/")).await;
            let times = from.elapsed().as_millis() / WORK.as_millis();
            assert_eq!(times.to_string(), *expected, "{row:?}");
        }
    }
}

fn member(reply: &Reply) -> String {
    format!("`{}`", reply.cache_status())
}

#[tokio::test(start_paused = true)]
async fn cache_status_has_the_members_of_the_page() {
    let mut members = Vec::new();
    let app = app_of(origin_only().http_layer(), |_| Answer::ok("max-age=60", ""));
    let cold = crowd(&app, 2, |_| get("/")).await;
    members.push(member(&send(&app, get("/")).await));

    let old = "max-age=10, stale-while-revalidate=60";
    let app = app_of(origin_only().http_layer(), move |_| Answer::ok(old, ""));
    send(&app, get("/")).await;
    pass(secs(12)).await;
    members.push(member(&send(&app, get("/")).await));
    members.extend(cold.iter().map(member));

    let app = app_of(origin_only().http_layer(), |call| match call.n {
        0 => Answer::ok("max-age=10", "").header("etag", "\"a\""),
        _ => Answer::status(304),
    });
    send(&app, get("/")).await;
    pass(secs(12)).await;
    members.push(member(&send(&app, get("/")).await));

    let app = app_of(origin_only().http_layer(), |_| Answer::ok("private", ""));
    members.push(member(&send(&app, get("/")).await));
    let app = app_of(origin_only().http_layer(), |_| Answer::never());
    members.push(member(&send(&app, get("/")).await));

    let narrow = Stampede::builder("test").origin_only().max_waiters(1).build().unwrap();
    let app = app_of(narrow.http_layer(), |_| Answer::ok("max-age=60", ""));
    members.push(member(&crowd(&app, 3, |_| get("/")).await[2]));

    let listed: Vec<_> = table("Cache-Status").into_iter().map(|row| row[0]).collect();
    assert_eq!(members, listed);
}
