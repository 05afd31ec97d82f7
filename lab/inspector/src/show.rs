//! What is printed.

use std::time::Duration;

use serde_json::json;

use crate::Inspection;
use crate::judge::{BOUND, Findings};

const COLUMNS: &str = "health     copies  older than Redis  invalidated, served  for at most  \
                       while up  behind the log  process";

/// The head of the table.
pub(crate) fn head() -> &'static str {
    COLUMNS
}

/// One line of the table: what was found so far.
pub(crate) fn line(url: &str, found: &Findings) -> String {
    format!(
        "{:<10} {:>6} {:>17} {:>20} {:>12} {:>9} {:>15}  {url}",
        found.health,
        found.copies,
        found.older_than_remote,
        found.invalidated,
        time(found.longest),
        time(found.longest_up),
        time(found.longest_behind),
    )
}

fn time(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// The summary for people.
pub(crate) fn summary(inspection: &Inspection) -> String {
    let Inspection { processes, watch, log, rounds, redis_failures, took, .. } = inspection;
    let mut text = format!(
        "\n{rounds} rounds in {:.0} s; invalidations in the log meanwhile: {}, {} commands to \
         Redis ({:.1} a second)\n",
        took.as_secs_f64(),
        watch.count,
        log.servers.commands,
        log.servers.commands as f64 / took.as_secs_f64().max(0.001),
    );
    text += &format!("{}\n", head());
    for (process, found) in processes {
        text += &format!("{}\n", line(&process.url, found));
    }
    if log.gaps > 0 {
        text += &format!(
            "{} reads of the log found more than 1000 items: shorten --interval-ms to see all\n",
            log.gaps
        );
    }
    if let Some((failures, last)) = redis_failures {
        text += &format!("Redis could not be asked {failures} times, last: {last}\n");
    }
    for (process, found) in processes {
        let url = &process.url;
        if let Some(error) = &found.last_error {
            let count = found.unanswered;
            text += &format!("{url} could not be asked {count} times, last: {error}\n");
        }
        if found.is_violated() {
            let key = found.worst_key.as_deref().unwrap_or_default();
            text += &format!(
                "VIOLATION: {url} reported `up` and served {key:?} for at least {} after its \
                 invalidation; {} are allowed. Purge it there (`POST /purge`), or restart the \
                 process\n",
                time(found.longest_up),
                time(BOUND),
            );
        } else if found.longest > BOUND {
            text += &format!(
                "{url} served what was invalidated for {} while it did not reach Redis: as it \
                 should, and it ends when it is `up`\n",
                time(found.longest),
            );
        }
        if found.longest_behind > BOUND {
            text += &format!(
                "{url} was behind the log for {}: look at its way to Redis\n",
                time(found.longest_behind),
            );
        }
    }
    text + "verdict: " + &verdict(inspection) + "\n"
}

fn verdict(inspection: &Inspection) -> String {
    if inspection.is_violated() {
        "an invalidated value was served for longer than it may be".to_owned()
    } else if !inspection.has_asked_all() {
        "no violation seen, but not all could be asked".to_owned()
    } else if let Some(reason) = inspection.nothing_to_judge() {
        format!("nothing could be judged: {reason}")
    } else {
        "no violation".to_owned()
    }
}

/// The summary for programs. Times are in milliseconds.
pub(crate) fn json(inspection: &Inspection) -> serde_json::Value {
    let processes = inspection.processes.iter().map(|(process, found)| {
        json!({
            "url": process.url,
            "health": found.health,
            "rounds": found.rounds,
            "unanswered": found.unanswered,
            "last_error": found.last_error,
            "rounds_not_up": found.not_up,
            "copies": found.copies,
            "older_than_remote": found.older_than_remote,
            "invalidated_and_served": found.invalidated,
            "longest_ms": millis(found.longest),
            "longest_up_ms": millis(found.longest_up),
            "worst_key": found.worst_key,
            "longest_behind_ms": millis(found.longest_behind),
            "is_violated": found.is_violated(),
        })
    });
    let (failures, last) = inspection.redis_failures.clone().unzip();
    json!({
        "rounds": inspection.rounds,
        "took_ms": millis(inspection.took),
        "bound_ms": millis(BOUND),
        "invalidations": inspection.watch.count,
        "commands": inspection.log.servers.commands,
        "log_gaps": inspection.log.gaps,
        "redis_failures": failures.unwrap_or(0),
        "redis_last_error": last,
        "is_violated": inspection.is_violated(),
        "processes": processes.collect::<Vec<_>>(),
    })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
