//! The examples of one file, each run as its users run it. `web_server` has `processes.rs`.

use std::path::PathBuf;
use std::process::Command;

use crate::kit::redis::{Cluster, Sentinels, Server};

/// Cargo puts examples beside the folder of the tests, and builds them for
/// `cargo test`.
pub(super) fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().find(|path| path.join("examples").is_dir());
    let program = profile.expect("target/<profile>").join("examples").join(name);
    assert!(
        program.is_file(),
        "{} is missing: `cargo build --example {name}` with the features of this test \
         makes it, as `scripts/test` does",
        program.display()
    );
    program
}

/// Returns what it prints.
fn run<S: AsRef<std::ffi::OsStr>>(name: &str, arguments: impl IntoIterator<Item = S>) -> String {
    let output = Command::new(program(name)).args(arguments).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn alone(name: &str) -> String {
    run::<&str>(name, [])
}

#[test]
fn quick_start_calls_the_handler_once_for_two_thousand_requests() {
    let text = alone("quick_start");
    assert_eq!(text.matches("1 call so far").count(), 2, "{text}");
}

#[test]
fn database_loader_asks_once_for_an_absent_row_and_once_after_the_write() {
    let text = alone("database_loader");
    assert!(text.contains("does not exist: queries: 1\n"), "{text}");
    assert!(text.contains("after the write: Some(\"Ada\"), queries: 2\n"), "{text}");
    assert!(text.contains("more readers: queries: 2\n"), "{text}");
}

#[test]
fn settings_file_keeps_the_popular_key_and_names_the_wrong_setting() {
    let text = alone("settings_file");
    assert!(text.contains("the popular one is there: true"), "{text}");
    assert!(text.contains("a wrong file: `caches.users.ttl`: "), "{text}");
}

#[test]
fn admin_router_shows_a_hit_and_purges_the_page() {
    let text = alone("admin_router");
    assert!(text.contains(r#"GET /admin/health: 200 OK {"health":"up"}"#), "{text}");
    assert!(text.contains(r#""purged":{"path":"/report"}"#), "{text}");
    assert!(text.contains(r#""hits":1"#), "{text}");
}

#[test]
fn model_gateway_shares_an_answer_replays_it_and_stores_none_that_was_cut() {
    let text = alone("model_gateway");
    // How many tokens come at once depends on the machine.
    let all_of = |user: &str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix(user)?.strip_prefix(':'));
        lines.collect::<String>()
    };
    for user in ["Ada", "Ben", "Cem"] {
        assert_eq!(all_of(user), " Once upon a time [DONE]", "{text}");
        assert!(text.contains(&format!("{user} has it all, calls of the model: 1\n")), "{text}");
    }
    for (user, calls) in [("Dee", 2), ("Eve", 3)] {
        assert_eq!(all_of(user), " Once upon", "{text}");
        assert!(text.contains(&format!("{user} has it all, calls of the model: {calls}\n")));
    }
}

#[test]
fn shared_export_runs_one_query_for_all_readers_until_the_orders_change() {
    let text = alone("shared_export");
    assert!(text.contains("readers: 1000, rows: 500, queries: 1\n"), "{text}");
    assert!(text.contains("later: rows: 500, queries: 1\n"), "{text}");
    assert!(text.contains("after a change: rows: 500, queries: 2\n"), "{text}");
}

#[test]
fn mock_remote_fails_the_scripted_call_and_logs_all() {
    let text = alone("mock_remote");
    assert!(text.contains("computed 1 and 1 times"), "{text}");
    assert!(text.contains("process 1 get user:7: timeout"), "{text}");
    assert!(text.contains("process 1 invalidate user:7\n"), "{text}");
}

// Those with a server have the time-outs and leases of an application, which end early on a busy
// machine: how often they compute is checked by the other tests of this binary.

#[test]
fn shared_redis_reads_the_same_value_in_both_processes() {
    let server = Server::start();
    let text = run("shared_redis", [server.url()]);
    assert!(text.starts_with("one process: computed, the other: "), "{text}");
    assert!(text.contains("after an invalidation in the first, the other: "), "{text}");
}

#[test]
fn lock_only_does_the_job_at_once_and_in_turn() {
    let server = Server::start();
    let text = run("lock_only", [server.url()]);
    assert!(text.contains("20 workers tried at once: "), "{text}");
    assert!(text.contains("5 workers waited for their turn: "), "{text}");
}

#[test]
fn redis_cluster_answers_all_callers() {
    let cluster = Cluster::start();
    let text = run("redis_cluster", cluster.urls());
    assert!(text.contains("4000 callers at two caches, 20 rows: loaded "), "{text}");
}

#[test]
fn redis_sentinel_finds_the_primary() {
    let sentinels = Sentinels::with(1);
    let arguments = [Sentinels::NAME.to_owned()].into_iter().chain(sentinels.urls());
    let text = run("redis_sentinel", arguments);
    assert_eq!(
        (text.matches("row 1: ").count(), text.matches("row 2: ").count()),
        (2, 1),
        "{text}"
    );
}
