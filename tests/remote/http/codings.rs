//! `Vary: Accept-Encoding` in many processes: one computation for each coding.

use tower_stampede::remote::Double;

use super::{everywhere, process, processes};
use crate::kit::codings::accepts;
use crate::kit::http::{Answer, Origin, pass, secs, send, with};

const SPELLINGS: [&str; 6] = ["gzip", "GZIP;q=0.5", "x-gzip", "br, gzip", "*", "deflate, gzip"];
const NONE: [&str; 2] = ["identity", "gzip;q=0"];

fn codes(codings: &'static [&'static str]) -> Origin {
    Origin::new(move |call| {
        let said = [call.header("accept-encoding").unwrap_or("identity").to_owned()];
        let chosen = codings.iter().find(|coding| accepts(&said, coding));
        let answer = Answer::ok("max-age=60", chosen.copied().unwrap_or("identity"));
        let answer = answer.header("vary", "accept-encoding");
        match chosen {
            Some(coding) => answer.header("content-encoding", coding),
            None => answer,
        }
    })
}

/// Names no `Vary`.
fn codes_in_silence() -> Origin {
    Origin::new(|call| match call.header("accept-encoding") {
        Some("gzip") => Answer::ok("max-age=60", "gzip").header("content-encoding", "gzip"),
        _ => Answer::ok("max-age=60", "identity"),
    })
}

fn asking(accept: &str) -> http::Request<axum::body::Body> {
    with("http://a/x", &[("accept-encoding", accept)])
}

#[tokio::test(start_paused = true)]
async fn a_crowd_at_many_processes_is_one_computation_per_coding() {
    for first in 0..2 {
        let (double, origin) = (Double::new(), codes(&["gzip"]));
        let apps = processes(&double, &origin, 4);
        let mut values = [&SPELLINGS[..], &NONE].concat();
        values.rotate_left(first * SPELLINGS.len());
        for round in 1..=2 {
            let replies = everywhere(&apps, 125, |i| asking(values[i % values.len()])).await;
            for (i, reply) in replies.iter().enumerate() {
                let is_plain = NONE.contains(&values[i / 4 % values.len()]);
                assert_eq!(reply.text(), if is_plain { "identity" } else { "gzip" });
            }
            assert_eq!(origin.calls(), 2 * round, "{first}");
            pass(secs(61)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_finds_what_another_has_stored_by_any_spelling() {
    for origin in [codes(&["gzip"]), codes_in_silence()] {
        let double = Double::new();
        send(&process(&double, &origin), asking("gzip")).await;
        // Not even by the process that has stored the coded one.
        send(&process(&double, &origin), asking("identity")).await;
        for accept in SPELLINGS {
            let fresh = process(&double, &origin);
            assert_eq!(send(&fresh, asking(accept)).await.text(), "gzip", "{accept}");
            assert_eq!(send(&fresh, asking("")).await.text(), "identity");
        }
        assert_eq!(origin.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_that_is_never_coded_is_computed_once_for_all_that_accept_gzip() {
    let (double, origin) = (Double::new(), codes(&[]));
    let apps = processes(&double, &origin, 4);
    everywhere(&apps, 125, |i| asking(SPELLINGS[i % SPELLINGS.len()])).await;
    everywhere(&apps, 10, |i| asking(NONE[i % 2])).await;
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_page_that_is_never_coded_costs_each_process_a_call_where_no_coding_was_asked_for_first()
{
    let (double, origin) = (Double::new(), codes(&[]));
    let apps = processes(&double, &origin, 4);
    everywhere(&apps, 1, |_| asking("identity")).await;
    assert_eq!(origin.calls(), 1);
    everywhere(&apps, 125, |i| asking(SPELLINGS[i % SPELLINGS.len()])).await;
    assert!(origin.calls() <= 5, "{}", origin.calls());
    pass(secs(61)).await;
    let before = origin.calls();
    everywhere(&apps, 125, |i| asking(SPELLINGS[i % SPELLINGS.len()])).await;
    assert_eq!(origin.calls() - before, 1, "from then on it is known");
}
