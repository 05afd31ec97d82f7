//! The program `inspector` beside real processes on a real server, and beside one that is none:
//! it lists a copy for ever.

use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use tower::ServiceExt;
use tower_stampede::{Announcement, Computed, HttpStampede, Redis, Stampede, admin};

use crate::kit::redis::{Server, eventually};

/// Copies that a process which is none lists.
const OLD: &str = "old";

fn program() -> Command {
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().find(|path| path.join("deps").is_dir());
    let program = profile.expect("target/<profile>").join("inspector");
    assert!(
        program.is_file(),
        "{} is missing: `cargo build -p tower-stampede-inspector` makes it, as `scripts/test` does",
        program.display()
    );
    Command::new(program)
}

/// Runs it for so many seconds, and looks ten times in each.
fn inspect(
    redis: &str,
    seconds: u32,
    processes: &[&str],
    more: &[&str],
) -> impl Future<Output = Output> + use<> {
    let mut command = program();
    command.args(["--redis", redis, "--namespace", "shop", "--cache", "catalog"]);
    command.args(["--interval-ms", "100", "--seconds", &seconds.to_string()]);
    for process in processes {
        command.args(["--process", process]);
    }
    command.args(more);
    async { tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap() }
}

fn summary(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&said).unwrap_or_else(|error| {
        panic!("{error}: {said}\n{}", String::from_utf8_lossy(&output.stderr))
    })
}

type Cache = Stampede<String>;

fn cache(server: &Server) -> Cache {
    let redis = Redis::lazy(&server.url()).unwrap().namespace("shop");
    Stampede::builder("catalog").ttl(Duration::from_secs(600)).redis(redis).build().unwrap()
}

/// Serves a router on a port of its own, until the runtime ends; returns its URL.
async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

async fn load(cache: &Cache, keys: u32) {
    for key in 0..keys {
        let value = async || Ok::<_, std::io::Error>(Computed::new("x".to_owned()).tag("all"));
        cache.get_or_compute_with(key, value).await.unwrap();
    }
}

/// An admin router that lists one copy for ever, whatever is invalidated.
fn never_updated(health: &'static str, vouched_ms: Option<u64>, listed: Value) -> Router {
    let begun = Instant::now();
    let listed = Arc::new(listed);
    let health = move || async move { Json(json!({"health": health})) };
    let log = json!({"epoch": null, "position": null, "vouched_ms": vouched_ms});
    let log = move || async move { Json(log) };
    let keys = move |_: Request| async move {
        let mut copy = Value::clone(&listed);
        copy["age_ms"] = json!(begun.elapsed().as_millis() as u64);
        Json(json!({"keys": [copy], "next": null}))
    };
    Router::new().route("/health", get(health)).route("/log", get(log)).route("/keys", get(keys))
}

fn old_copy(key: &str, tags: &[&str]) -> Value {
    json!({"key": key, "ttl_left_ms": 1000, "stale_left_ms": 0, "bytes": 1, "version": 7,
           "tags": tags})
}

/// Waits until the log is there, and invalidates after the inspector has looked at it.
async fn soon(cache: &Cache, what: impl AsyncFnOnce(&Cache)) {
    load(cache, 1).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    what(cache).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthy_processes_are_seen_to_serve_nothing_that_was_invalidated() {
    let server = Server::start();
    let caches: Vec<_> = (0..3).map(|_| cache(&server)).collect();
    let mut urls = Vec::new();
    for cache in &caches {
        load(cache, 20).await;
        urls.push(serve(Router::new().nest("/admin", admin::router(cache.clone()))).await);
    }
    eventually("all listen", || server.clients("pubsub") == 3).await;
    let processes: Vec<_> = urls.iter().map(|url| format!("{url}/admin")).collect();
    let processes: Vec<_> = processes.iter().map(String::as_str).collect();
    let invalidating = async {
        for round in 0..100_u32 {
            tokio::time::sleep(Duration::from_millis(30)).await;
            let cache = &caches[round as usize % 3];
            let done = match round % 10 {
                0 => cache.invalidate_tag("all").await,
                5 => cache.invalidate_all().await,
                _ => cache.invalidate(round % 20).await,
            };
            assert!(done.local || done.remote == Announcement::Done);
            for cache in &caches {
                load(cache, 20).await;
            }
        }
    };
    let inspecting = inspect(&server.url(), 3, &processes, &["--json"]);
    let (output, ()) = tokio::join!(inspecting, invalidating);
    let found = summary(&output);
    assert_eq!(output.status.code(), Some(0), "{found:#}");
    assert!(found["invalidations"].as_u64() > Some(30), "{found:#}");
    for process in found["processes"].as_array().unwrap() {
        assert!(process["copies"].as_u64() > Some(100), "{found:#}");
        assert_eq!((&process["health"], &process["unanswered"]), (&json!("up"), &json!(0)));
        assert!(process["longest_behind_ms"].as_u64() < Some(2000), "{found:#}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_is_served_past_its_invalidation_is_a_violation_while_the_process_is_up() {
    let server = Server::start();
    let cache = cache(&server);
    load(&cache, 1).await;
    let by_key = serve(never_updated("up", None, old_copy(OLD, &[]))).await;
    let by_tag = serve(never_updated("up", None, old_copy("k", &["a%20tag"]))).await;
    let away = serve(never_updated("degraded", None, old_copy(OLD, &[]))).await;
    let other = serve(never_updated("up", None, old_copy("other", &["b"]))).await;
    // In Redis it stands under a later version than the copy's.
    cache.get_or_compute("other", async || Ok::<_, std::io::Error>("x".into())).await.unwrap();
    let processes = [&*by_key, &by_tag, &away, &other];
    let ending = soon(&cache, async |cache| {
        cache.invalidate(OLD).await;
        cache.invalidate_tag("a tag").await;
    });
    let (output, ()) = tokio::join!(inspect(&server.url(), 4, &processes, &["--json"]), ending);
    let found = summary(&output);
    assert_eq!(output.status.code(), Some(1), "{found:#}");
    let [by_key, by_tag, away, other] = [0, 1, 2, 3].map(|n| &found["processes"][n]);
    for violated in [by_key, by_tag] {
        assert_eq!(violated["is_violated"], true, "{found:#}");
        assert!(violated["longest_up_ms"].as_u64() > Some(2000), "{found:#}");
    }
    assert_eq!((&by_key["worst_key"], &by_tag["worst_key"]), (&json!(OLD), &json!("k")));
    assert_eq!((&away["is_violated"], &away["longest_up_ms"]), (&json!(false), &json!(0)));
    assert!(away["longest_ms"].as_u64() > Some(2000), "{found:#}");
    assert_eq!((&other["is_violated"], &other["longest_ms"]), (&json!(false), &json!(0)));
    assert_eq!(other["older_than_remote"], other["copies"], "{found:#}");
    assert_eq!(by_key["older_than_remote"], 0, "nothing in Redis: {found:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_the_last_two_seconds_is_no_violation_and_one_not_vouched_for_is_not_served() {
    let server = Server::start();
    let cache = cache(&server);
    load(&cache, 1).await;
    let late = serve(never_updated("up", None, old_copy(OLD, &[]))).await;
    let not_vouched = serve(never_updated("up", Some(0), old_copy(OLD, &[]))).await;
    let ending = soon(&cache, async |cache| {
        cache.invalidate(OLD).await;
    });
    let processes = [&*late, &not_vouched];
    let (output, ()) = tokio::join!(inspect(&server.url(), 2, &processes, &["--json"]), ending);
    let found = summary(&output);
    assert_eq!(output.status.code(), Some(0), "{found:#}");
    let [late, not_vouched] = [0, 1].map(|n| &found["processes"][n]["invalidated_and_served"]);
    assert!(late.as_u64() > Some(0) && not_vouched == 0, "{found:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_is_known_by_its_uri_and_by_its_path() {
    let server = Server::start();
    let redis = Redis::lazy(&server.url()).unwrap().namespace("shop");
    let cache: HttpStampede =
        Stampede::builder("catalog").ttl(Duration::from_secs(600)).redis(redis).build().unwrap();
    let page = async |written: bool| {
        let method = if written { "POST" } else { "GET" };
        let request = http::Request::builder().method(method).uri("http://a/page?x=1");
        let app = Router::new().route("/page", get(async || "page").post(async || "written"));
        let app = app.layer(cache.http_layer());
        app.oneshot(request.body(Body::empty()).unwrap()).await.unwrap().status()
    };
    let ask = async |path: &str| {
        let request = http::Request::get(path).body(Body::empty()).unwrap();
        let reply = admin::router(cache.clone()).oneshot(request).await.unwrap();
        let body = axum::body::to_bytes(reply.into_body(), 1 << 20).await.unwrap();
        serde_json::from_slice::<Value>(&body).unwrap()
    };
    for written in [true, false] {
        // The second time it is computed anew: the first copy has ended.
        assert_eq!(page(false).await, 200);
        let copy = ask("/keys?tags=all").await["keys"][0].clone();
        assert!(copy["version"].is_u64() && copy["url"] == "http://a/page?x=1", "{copy:#}");
        let old = serve(never_updated("up", None, copy)).await;
        let ending = async {
            tokio::time::sleep(Duration::from_millis(700)).await;
            match written {
                true => {
                    assert_eq!(page(true).await, 200);
                }
                false => {
                    assert_eq!(cache.invalidate_path("/page").await.remote, Announcement::Done);
                }
            }
        };
        let (output, ()) = tokio::join!(inspect(&server.url(), 4, &[&old], &["--json"]), ending);
        let found = summary(&output);
        assert_eq!(output.status.code(), Some(1), "written: {written}: {found:#}");
    }
    let log = ask("/log").await;
    assert_eq!(log["epoch"].as_str().map(str::len), Some(16), "{log}");
    assert!(
        log["position"].as_u64() >= Some(2) && log["vouched_ms"].as_u64() <= Some(2000),
        "{log}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_log_ends_every_copy() {
    let server = Server::start();
    let cache = cache(&server);
    load(&cache, 1).await;
    let old = serve(never_updated("up", None, old_copy("any", &[]))).await;
    let ending = soon(&cache, async |cache| {
        server.cli(&["FLUSHALL"]);
        cache.invalidate("something else").await;
    });
    let (output, ()) = tokio::join!(inspect(&server.url(), 4, &[&old], &[]), ending);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("VIOLATION: {old} reported `up` and served \"any\"")), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_three_commands_on_the_names_of_the_cache_is_enough() {
    let user = "user inspector on >secret ~shop:2:* +zrangebyscore +zrevrangebyscore +getrange";
    let server = Server::configured(&[user]);
    let cache = cache(&server);
    load(&cache, 5).await;
    let process = serve(admin::router(cache.clone())).await;
    let monitor = server.monitor();
    let url = format!("redis://inspector:secret@{}", server.address());
    let output = inspect(&url, 1, &[&process], &["--json"]).await;
    let found = summary(&output);
    assert_eq!(output.status.code(), Some(0), "{found:#}");
    assert!(found["processes"][0]["copies"].as_u64() > Some(10), "{found:#}");
    // What the page says it costs: three for the log, and one for each key.
    let rounds = found["rounds"].as_u64().unwrap();
    assert!(found["commands"].as_u64() <= Some(rounds * 8), "{found:#}");
    assert!(monitor.count("GETRANGE") >= 5);
    // Nothing to judge is no good news.
    let quiet = inspect(&url, 1, &[&process], &["--quiet"]).await;
    let said = String::from_utf8_lossy(&quiet.stdout).into_owned();
    assert!(said.contains("nothing was invalidated meanwhile") && quiet.status.success(), "{said}");
    let refused =
        inspect(&server.url().replace("redis://", "redis://nobody:x@"), 1, &[&process], &[]);
    let refused = refused.await;
    assert_eq!(refused.status.code(), Some(3));
    let said = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(said.contains("Redis could not be asked") && said.contains("USER:PASSWORD"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_cannot_be_asked_and_a_cache_that_is_not_there_are_named() {
    let server = Server::start();
    let cache = cache(&server);
    load(&cache, 1).await;
    let process = serve(admin::router(cache.clone())).await;
    let nowhere = format!("{process}/nowhere");
    let output = inspect(&server.url(), 1, &[&nowhere], &[]).await;
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains(&nowhere) && said.contains("the path of the admin router"), "{said}");

    let output = inspect(&server.url(), 1, &[&process], &["--cache", "another"]).await;
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("--namespace and --cache must be those of the processes"), "{said}");
}

#[test]
fn flags_that_cannot_be_followed_are_named_with_their_rule_and_show_no_password() {
    let whole = ["--redis", "redis://a", "--cache", "c", "--process", "http://a/admin"];
    for (flags, expected) in [
        (&["--redis", "redis://a", "--cache", "c"][..], "--process is missing"),
        (&whole[2..], "--redis is missing"),
        (&["--redis", "http://user:hidden@a"], "is no URL like redis://"),
        (&["--process", "https://a/admin"], "must be http://HOST:PORT/PATH"),
        (&["--interval-ms", "5"], "--interval-ms: \"5\" must be from 50 to 60000"),
        (&["--keys", "1001"], "is not a whole number from 1 to 1000"),
        (&["--seconds", "0"], "from 1 to 86400"),
        (&["--nothing"], "unknown flag --nothing"),
    ] {
        let output = program().args(flags).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {said}");
        assert!(said.contains(expected) && said.contains("--help"), "{flags:?}: {said}");
        assert!(!said.contains("hidden"), "{said}");
    }
    let help = program().arg("--help").output().unwrap();
    assert!(help.status.success() && help.stdout.starts_with(b"Compares"));
}
