//! Pages of the guide are held against the tables and the words of the code.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use crate::flight::waiter::AloneReason;
use crate::http::flow::error_response::RefusalReason;
use crate::http::flow::miss::alone_detail;
use crate::http::rules::decline_reason::{DeclineReason, UnstoredReason};
use crate::http::rules::request::BypassReason;
use crate::observe::labels::LocalLock;
use crate::observe::lines::LogMessage;
use crate::observe::table::{Metric, MetricKind};
use crate::observe::{CallersGot, ComputationEnd, LockAnswer, RemoteOp};
use crate::outcome::CacheOutcome;
use crate::remote::RemoteErrorKind;
use crate::remote::envelope::Damage;

const OBSERVABILITY: &str = include_str!("../../docs/observability.md");
const WHAT_IS_CACHED: &str = include_str!("../../docs/what-is-cached.md");

type Row = Vec<&'static str>;

/// The rows of the first table below a heading.
fn table(page: &'static str, heading: &str) -> Vec<Row> {
    let (_, below) = page
        .split_once(&format!("# {heading}\n"))
        .unwrap_or_else(|| panic!("the page has no heading {heading}"));
    let lines = below.lines().skip_while(|line| !line.starts_with('|'));
    let rows = lines
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect());
    rows.skip(2).collect()
}

/// What stands between backticks in a cell.
fn quoted(cell: &'static str) -> Vec<&'static str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Compares as sets, and names what is on one side only.
fn assert_same<T: Ord + Debug>(what: &str, page: Vec<T>, code: Vec<T>) {
    let count = page.len();
    let (page, code): (BTreeSet<_>, BTreeSet<_>) =
        (page.into_iter().collect(), code.into_iter().collect());
    let missing: Vec<_> = code.difference(&page).collect();
    let unknown: Vec<_> = page.difference(&code).collect();
    assert!(missing.is_empty(), "{what}: the page lacks {missing:#?}");
    assert!(unknown.is_empty(), "{what}: the code does not have {unknown:#?}");
    assert_eq!(page.len(), count, "{what}: the page has a row twice");
}

#[test]
fn the_page_lists_every_log_line_with_its_level_and_fields() {
    let page = table(OBSERVABILITY, "Log lines").into_iter().map(|row| {
        let [message] = quoted(row[1])[..] else { panic!("{row:?}") };
        (row[0].to_owned(), message, quoted(row[2]))
    });
    let code = LogMessage::ALL
        .iter()
        .map(|message| (message.level().to_string(), message.text(), message.fields().to_vec()));
    assert_same("log lines", page.collect(), code.collect());
}

#[test]
fn the_page_explains_every_field_of_a_log_line() {
    let page = table(OBSERVABILITY, "Fields").into_iter().flat_map(|row| quoted(row[0]));
    let code = LogMessage::ALL.iter().flat_map(|message| message.fields().iter().copied());
    let code: BTreeSet<_> = code.chain(["cache"]).collect();
    assert_same("fields", page.collect(), code.into_iter().collect());
    let row = table(OBSERVABILITY, "Fields").into_iter().find(|row| row[0] == "`callers_got`");
    let words = quoted(row.expect("it stands there")[1]);
    assert_same("callers_got", words, CallersGot::ALL.iter().map(|it| it.as_str()).collect());
}

#[test]
fn the_page_lists_every_metric_with_its_type_unit_and_labels() {
    let page = table(OBSERVABILITY, "Metrics").into_iter().map(|row| {
        let [name] = quoted(row[0])[..] else { panic!("{row:?}") };
        (name, row[1], row[2], quoted(row[3]))
    });
    let code = Metric::ALL.iter().map(|metric| {
        let kind = match metric.kind() {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let unit = match metric.name() {
            name if name.contains("_seconds") => "seconds",
            name if name.ends_with("_bytes") => "bytes",
            _ => "number",
        };
        (metric.name(), kind, unit, metric.labels().to_vec())
    });
    assert_same("metrics", page.collect(), code.collect());
}

fn words<T: Copy>(all: &[T], word: impl Fn(T) -> &'static str) -> Vec<String> {
    all.iter().map(|it| word(*it).to_owned()).collect()
}

/// The values of a label. A row of the table names them, unless they come from several sets or
/// from a room that the observer does not know.
fn values(metric: Metric, label: &str) -> Vec<String> {
    if let Some(words) = metric.words(label) {
        return words.into_iter().map(str::to_owned).collect();
    }
    match (metric, label) {
        (Metric::Requests, _) => words(&CacheOutcome::ALL, CacheOutcome::as_str),
        (Metric::OriginCalls, _) => {
            let alone = words(AloneReason::ALL, AloneReason::as_str);
            let alone = alone.into_iter().map(|word| format!("alone_{word}"));
            words(ComputationEnd::ALL, ComputationEnd::as_str).into_iter().chain(alone).collect()
        }
        (Metric::Lock, "scope") => vec!["local".into(), "remote".into()],
        (Metric::Lock, _) => {
            let local = words(LocalLock::ALL, LocalLock::as_str);
            let remote = words(LockAnswer::ALL, LockAnswer::as_str);
            local.into_iter().chain(remote).collect::<BTreeSet<_>>().into_iter().collect()
        }
        (Metric::Bypass, _) => words(BypassReason::ALL, BypassReason::as_str),
        (_, "store") => vec!["remote".into()],
        (Metric::StoreErrors, "op") => {
            let calls = words(RemoteOp::ALL, RemoteOp::as_str).into_iter();
            calls.chain(["read".to_owned()]).collect()
        }
        (Metric::StoreErrors, _) => {
            let damage = words(Damage::ALL, Damage::as_str).into_iter();
            damage.chain(words(RemoteErrorKind::ALL, RemoteErrorKind::as_str)).collect()
        }
        _ => panic!("no values are known of {label} of {metric:?}"),
    }
}

#[test]
fn the_page_lists_every_value_of_every_label() {
    let mut page = BTreeMap::new();
    for row in table(OBSERVABILITY, "Label values") {
        let ([metric], [label]) = (&quoted(row[0])[..], &quoted(row[1])[..]) else {
            panic!("{row:?}");
        };
        page.insert((*metric, *label), quoted(row[2]));
    }
    for metric in Metric::ALL {
        for label in metric.labels() {
            let what = format!("{} of {}", label, metric.name());
            let said = page.remove(&(metric.name(), label)).unwrap_or_else(|| panic!("no {what}"));
            let said = said.into_iter().map(str::to_owned).collect();
            assert_same(&what, said, values(*metric, label));
        }
    }
    assert!(page.is_empty(), "not in the code: {page:?}");
}

/// The variants of [`Event`](crate::Event) and their fields, by the source.
fn events() -> Vec<(&'static str, Vec<&'static str>)> {
    let source = include_str!("../observe/table.rs");
    let (_, body) = source.split_once("pub enum Event {\n").expect("it is there");
    let (body, _) = body.split_once("\n}\n").expect("it has an end");
    let mut events: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in body.lines().filter(|line| !line.contains("//") && !line.contains('#')) {
        match line.strip_prefix("    ") {
            Some(variant) if variant.ends_with(" {") => {
                events.push((variant.trim_end_matches(" {"), Vec::new()));
            }
            Some(field) if field.starts_with("    ") => {
                let name = field.trim().split(':').next().expect("a split has a first part");
                events.last_mut().expect("a field has a variant").1.push(name);
            }
            _ => {}
        }
    }
    events
}

#[test]
fn the_page_lists_every_event_with_its_fields() {
    let page = table(OBSERVABILITY, "Events").into_iter().map(|row| {
        let [name] = quoted(row[0])[..] else { panic!("{row:?}") };
        (name, quoted(row[1]))
    });
    let code = events();
    assert!(code.len() > 10 && code[0] == ("Computed", vec!["key", "took", "shared"]), "{code:?}");
    assert_same("events", page.collect(), code);
}

#[test]
fn the_page_lists_every_detail_of_cache_status() {
    let page: Vec<_> = table(WHAT_IS_CACHED, "Details")
        .into_iter()
        .flat_map(|row| quoted(row[0]))
        .map(str::to_owned)
        .collect();
    let alone = AloneReason::ALL.iter().filter(|it| **it != AloneReason::Bypass);
    let code: BTreeSet<_> = words(DeclineReason::ALL, DeclineReason::as_str)
        .into_iter()
        .chain(words(UnstoredReason::ALL, UnstoredReason::as_str))
        .chain(words(BypassReason::ALL, BypassReason::as_str))
        .chain(words(RefusalReason::ALL, RefusalReason::as_str))
        .chain(alone.map(|it| alone_detail(*it)))
        .collect();
    assert_same("details", page, code.into_iter().collect());
}
