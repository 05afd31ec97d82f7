//! The program `inspector` beside real processes on a real server, and beside one that is none:
//! it lists a copy for ever.

use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::routing::get;
use axum::{Json, Router};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tower::ServiceExt;
use tower_stampede::{Announcement, Computed, HttpStampede, Redis, Stampede, admin};

use crate::kit::origin::within;
use crate::kit::redis::{Cluster, Server, eventually};
use crate::kit::redis_caches::LIMIT;
use crate::kit::spawn;

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

/// It runs, and looks ten times in each second, until the test has seen enough.
struct Inspection(Option<Child>);

impl Inspection {
    fn begin(redis: &str, processes: &[&str], more: &[&str]) -> Self {
        let mut command = program();
        command.args(["--redis", redis, "--namespace", "shop", "--cache", "catalog"]);
        command.args(["--interval-ms", "100", "--seconds", "3600"]);
        for process in processes {
            command.args(["--process", process]);
        }
        command.args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(Some(command.spawn().unwrap()))
    }

    /// Interrupts it: it ends with its summary.
    async fn end(self) -> Output {
        let process = self.0.as_ref().expect("it runs");
        kill_process(Pid::from_child(process), Signal::INT).unwrap();
        self.output().await
    }

    /// Waits until it ends by itself.
    async fn output(mut self) -> Output {
        let process = self.0.take().expect("it runs");
        let waiting = tokio::task::spawn_blocking(move || process.wait_with_output().unwrap());
        within(LIMIT, waiting).await.unwrap()
    }
}

impl Drop for Inspection {
    fn drop(&mut self) {
        if let Some(process) = &mut self.0 {
            // It may have ended already: no matter.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// How often the inspector has listed the copies of a process.
#[derive(Clone, Default)]
struct Looks(Arc<AtomicUsize>);

impl Looks {
    /// Counts the requests for the copies that this router is asked for.
    fn counting(&self, router: Router) -> Router {
        let looks = self.clone();
        router.layer(axum::middleware::from_fn(move |request: Request, next: Next| {
            let looks = looks.clone();
            async move {
                let lists_copies = request.uri().path().ends_with("/keys");
                let response = next.run(request).await;
                looks.0.fetch_add(usize::from(lists_copies), Ordering::SeqCst);
                response
            }
        }))
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// Waits until a copy that was ended before is listed again after the time for which it may be
    /// served. The time is the product's, and begins when the inspector finds the invalidation in
    /// the log: a slow machine makes it no shorter.
    async fn see_it_past_the_bound(&self) {
        self.more(2).await;
        tokio::time::sleep(PAST_THE_BOUND).await;
        self.more(2).await;
    }

    /// Waits for so many more.
    async fn more(&self, looks: usize) {
        let seen = self.count() + looks;
        eventually("the inspector looks", || self.count() >= seen).await;
    }
}

/// For longer than this no process that is up may serve what was invalidated.
const PAST_THE_BOUND: Duration = Duration::from_millis(2100);

fn summary(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&said).unwrap_or_else(|error| {
        panic!("{error}: {said}\n{}", String::from_utf8_lossy(&output.stderr))
    })
}

type Cache = Stampede<String>;

fn cache(server: &Server) -> Cache {
    // So patient that no call times out on a busy machine.
    let redis = Redis::lazy(&server.url())
        .unwrap()
        .namespace("stampede")
        .op_timeout(Duration::from_secs(30));
    let builder = Stampede::builder("catalog").ttl(Duration::from_secs(3600));
    let builder = builder.lease(Duration::from_secs(100)).wait_timeout(LIMIT);
    builder.redis(redis.namespace("shop")).build().unwrap()
}

/// Serves a router on a port of its own, until the runtime ends; returns its URL.
async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn(async move { axum::serve(listener, router).await });
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

/// The copies of processes that are none, and how often they were listed.
async fn serve_counted(looks: &Looks, router: Router) -> String {
    serve(looks.counting(router)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthy_processes_are_seen_to_serve_nothing_that_was_invalidated() {
    let server = Server::start();
    let caches: Vec<_> = (0..3).map(|_| cache(&server)).collect();
    let (mut urls, looks) = (Vec::new(), Looks::default());
    for cache in &caches {
        load(cache, 20).await;
        let router = Router::new().nest("/admin", admin::router(cache.clone()));
        urls.push(serve_counted(&looks, router).await);
    }
    eventually("all listen", || server.clients("pubsub") == 3).await;
    let processes: Vec<_> = urls.iter().map(|url| format!("{url}/admin")).collect();
    let processes: Vec<_> = processes.iter().map(String::as_str).collect();
    let inspecting = Inspection::begin(&server.url(), &processes, &["--json"]);
    looks.more(6).await;
    let (begun, seen) = (Instant::now(), looks.count());
    let invalidating = async {
        // Until the inspector has seen enough, and for longer than what it looks for would take.
        let is_enough = |round: u32| {
            round >= 60 && looks.count() >= seen + 60 && begun.elapsed() >= PAST_THE_BOUND
        };
        for round in (0..).take_while(|round| !is_enough(*round)) {
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
    within(LIMIT, invalidating).await;
    let output = inspecting.end().await;
    let found = summary(&output);
    // A process that is kept from answering for two seconds is counted as one that was not asked.
    let unanswered = |process: &Value| process["unanswered"].as_u64().unwrap();
    let processes = found["processes"].as_array().unwrap();
    let all_answered = processes.iter().all(|process| unanswered(process) == 0);
    let expected = if all_answered { 0 } else { 3 };
    assert_eq!(output.status.code(), Some(expected), "{found:#}");
    assert!(found["invalidations"].as_u64() > Some(30), "{found:#}");
    for process in processes {
        assert_eq!(process["is_violated"], false, "{found:#}");
        assert!(process["copies"].as_u64() > Some(100), "{found:#}");
        let not_up = process["rounds_not_up"].as_u64().unwrap() + unanswered(process);
        assert!(not_up < process["rounds"].as_u64().unwrap() / 2, "{found:#}");
    }
    // None stays behind the log.
    let position = async |cache: &Cache| ask(&admin::router(cache.clone()), "/log").await;
    let all_caught_up = async {
        loop {
            let [one, two, three] = [&caches[0], &caches[1], &caches[2]].map(position);
            let [one, two, three] = [one.await, two.await, three.await];
            if one["position"] == two["position"] && two["position"] == three["position"] {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(LIMIT, all_caught_up).await;
}

/// What an admin router answers.
async fn ask(router: &Router, path: &str) -> Value {
    let request = http::Request::get(path).body(Body::empty()).unwrap();
    let reply = router.clone().oneshot(request).await.unwrap();
    let body = axum::body::to_bytes(reply.into_body(), 1 << 20).await.unwrap();
    serde_json::from_slice(&body).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_is_served_past_its_invalidation_is_a_violation_while_the_process_is_up() {
    let server = Server::start();
    let cache = cache(&server);
    load(&cache, 1).await;
    let looks = Looks::default();
    let by_key = serve_counted(&looks, never_updated("up", None, old_copy(OLD, &[]))).await;
    let by_tag = serve(never_updated("up", None, old_copy("k", &["a%20tag"]))).await;
    let away = serve(never_updated("degraded", None, old_copy(OLD, &[]))).await;
    let other = serve(never_updated("up", None, old_copy("other", &["b"]))).await;
    // In Redis it stands under a later version than the copy's.
    cache.get_or_compute("other", async || Ok::<_, std::io::Error>("x".into())).await.unwrap();
    let processes = [&*by_key, &by_tag, &away, &other];
    let inspecting = Inspection::begin(&server.url(), &processes, &["--json"]);
    looks.more(3).await;
    cache.invalidate(OLD).await;
    cache.invalidate_tag("a tag").await;
    looks.see_it_past_the_bound().await;
    let output = inspecting.end().await;
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
    let looks = Looks::default();
    let late = serve_counted(&looks, never_updated("up", None, old_copy(OLD, &[]))).await;
    let not_vouched = serve(never_updated("up", Some(0), old_copy(OLD, &[]))).await;
    // On a busy machine two seconds may pass before the inspector looks again: then there is
    // nothing to see, and the next copy may be seen in time.
    let mut is_seen = false;
    for _ in 0..20 {
        let inspecting = Inspection::begin(&server.url(), &[&*late, &not_vouched], &["--json"]);
        looks.more(3).await;
        let invalidated = Instant::now();
        cache.invalidate(OLD).await;
        looks.more(3).await;
        let output = inspecting.end().await;
        let is_in_time = invalidated.elapsed() < Duration::from_secs(2);
        let found = summary(&output);
        let [late, not_vouched] = [0, 1].map(|n| &found["processes"][n]);
        assert_eq!(not_vouched["invalidated_and_served"], 0, "{found:#}");
        let longest = late["longest_up_ms"].as_u64().unwrap();
        assert_eq!(late["is_violated"], longest > 2000, "{found:#}");
        if is_in_time {
            assert_eq!(output.status.code(), Some(0), "{found:#}");
            assert!(late["invalidated_and_served"].as_u64() > Some(0), "{found:#}");
            is_seen = true;
            break;
        }
    }
    assert!(is_seen, "no inspection was in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_is_known_by_its_uri_and_by_its_path() {
    let server = Server::start();
    let redis = Redis::lazy(&server.url())
        .unwrap()
        .namespace("stampede")
        .op_timeout(Duration::from_secs(30));
    let builder = Stampede::builder("catalog").ttl(Duration::from_secs(3600));
    let builder = builder.lease(Duration::from_secs(100)).wait_timeout(LIMIT);
    let cache: HttpStampede = builder.redis(redis.namespace("shop")).build().unwrap();
    let page = async |written: bool| {
        let method = if written { "POST" } else { "GET" };
        let request = http::Request::builder().method(method).uri("http://a/page?x=1");
        let app = Router::new().route("/page", get(async || "page").post(async || "written"));
        let app = app.layer(cache.http_layer());
        app.oneshot(request.body(Body::empty()).unwrap()).await.unwrap().status()
    };
    let router = admin::router(cache.clone());
    for written in [true, false] {
        // The second time it is computed anew: the first copy has ended.
        assert_eq!(page(false).await, 200);
        let copy = ask(&router, "/keys?tags=all").await["keys"][0].clone();
        assert!(copy["version"].is_u64() && copy["url"] == "http://a/page?x=1", "{copy:#}");
        let looks = Looks::default();
        let old = serve_counted(&looks, never_updated("up", None, copy)).await;
        let inspecting = Inspection::begin(&server.url(), &[&old], &["--json"]);
        looks.more(3).await;
        match written {
            true => {
                assert_eq!(page(true).await, 200);
            }
            false => {
                assert_eq!(cache.invalidate_path("/page").await.remote, Announcement::Done);
            }
        }
        looks.see_it_past_the_bound().await;
        let output = inspecting.end().await;
        let found = summary(&output);
        assert_eq!(output.status.code(), Some(1), "written: {written}: {found:#}");
    }
    let log = ask(&router, "/log").await;
    assert_eq!(log["epoch"].as_str().map(str::len), Some(16), "{log}");
    assert!(log["position"].as_u64() >= Some(2) && log["vouched_ms"].is_u64(), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_log_ends_every_copy() {
    let server = Server::start();
    let cache = cache(&server);
    load(&cache, 1).await;
    let looks = Looks::default();
    let old = serve_counted(&looks, never_updated("up", None, old_copy("any", &[]))).await;
    let inspecting = Inspection::begin(&server.url(), &[&old], &["--quiet"]);
    looks.more(3).await;
    server.cli(&["FLUSHALL"]);
    cache.invalidate("something else").await;
    looks.see_it_past_the_bound().await;
    let output = inspecting.end().await;
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
    let looks = Looks::default();
    let process = serve_counted(&looks, admin::router(cache.clone())).await;
    let monitor = server.monitor();
    let url = format!("redis://inspector:secret@{}", server.address());
    let inspecting = Inspection::begin(&url, &[&process], &["--json"]);
    looks.more(5).await;
    let output = inspecting.end().await;
    let found = summary(&output);
    assert_eq!(found["redis_failures"], 0, "{found:#}");
    assert!(found["processes"][0]["copies"].as_u64() > Some(10), "{found:#}");
    // What the page says it costs: three for the log, and one for each key.
    let rounds = found["rounds"].as_u64().unwrap();
    assert!(found["commands"].as_u64() <= Some(rounds * 8), "{found:#}");
    assert!(monitor.count("GETRANGE") >= 5);
    // Nothing to judge is no good news.
    let quiet = Inspection::begin(&url, &[&process], &["--quiet"]);
    looks.more(3).await;
    let quiet = quiet.end().await;
    let said = String::from_utf8_lossy(&quiet.stdout).into_owned();
    assert!(said.contains("nothing was invalidated meanwhile"), "{said}");
    assert_eq!(quiet.status.code(), Some(3), "{said}");
    let wrong = server.url().replace("redis://", "redis://nobody:x@");
    let refused = Inspection::begin(&wrong, &[&process], &["--seconds", "1"]).output().await;
    assert_eq!(refused.status.code(), Some(3));
    let said = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(said.contains("Redis could not be asked") && said.contains("USER:PASSWORD"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_processes_of_a_cluster_are_judged_from_any_of_its_nodes() {
    let cluster = Cluster::start();
    let redis = Redis::cluster(cluster.urls()).unwrap().op_timeout(Duration::from_secs(30));
    let builder = Stampede::builder("catalog").ttl(Duration::from_secs(3600));
    let builder = builder.lease(Duration::from_secs(100)).wait_timeout(LIMIT);
    let cache: Cache = builder.redis(redis.namespace("shop")).build().unwrap();
    load(&cache, 20).await;
    for node in cluster.nodes() {
        let looks = Looks::default();
        let healthy = serve_counted(&looks, admin::router(cache.clone())).await;
        let old = serve(never_updated("up", None, old_copy(OLD, &[]))).await;
        let inspecting = Inspection::begin(&node.url(), &[&*healthy, &old], &["--json"]);
        looks.more(3).await;
        cache.invalidate(OLD).await;
        looks.see_it_past_the_bound().await;
        let output = inspecting.end().await;
        let found = summary(&output);
        assert_eq!(output.status.code(), Some(1), "{found:#}");
        assert_eq!(found["redis_failures"], 0, "{found:#}");
        let violated = [0, 1].map(|n| found["processes"][n]["is_violated"] == true);
        assert_eq!(violated, [false, true], "{found:#}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_cannot_be_asked_and_a_cache_that_is_not_there_are_named() {
    let server = Server::start();
    let cache = cache(&server);
    load(&cache, 1).await;
    let process = serve(admin::router(cache.clone())).await;
    let nowhere = format!("{process}/nowhere");
    let seconds = ["--seconds", "1"];
    let output = Inspection::begin(&server.url(), &[&nowhere], &seconds).output().await;
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains(&nowhere) && said.contains("the path of the admin router"), "{said}");

    let another = ["--seconds", "1", "--cache", "another"];
    let output = Inspection::begin(&server.url(), &[&process], &another).output().await;
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
